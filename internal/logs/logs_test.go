package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// book is a log with a clock that the test winds.
type book struct {
	bytes.Buffer
	now time.Time
	due []func()
	log *slog.Logger
}

func newBook() *book {
	b := &book{now: time.Unix(1000, 0)}
	h := Limit(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h.(*limited).limits.now = func() time.Time { return b.now }
	h.(*limited).limits.after = func(_ time.Duration, f func()) *time.Timer {
		b.due = append(b.due, f)
		return nil
	}
	b.log = slog.New(h)
	return b
}

// lines returns how many lines have a text, and forgets all.
func (b *book) lines(text string) int {
	n := strings.Count(b.String(), text)
	b.Reset()
	return n
}

// TestLong: what is too long in a line is cut.
func TestLong(t *testing.T) {
	b := newBook()
	long := strings.Repeat("x", 4096)
	b.log.Info("said "+long, "kind", "refused", "what", long, "why", fmt.Errorf("no %s", long), "uid", 7, "short", "y")
	if n := b.Len(); n > 4*maxText+200 {
		t.Errorf("a line of %d bytes", n)
	}
	for _, want := range []string{`msg="said xxx`, "kind=refused", `what="xxx`, "x... (4096 bytes)", "uid=7", "short=y", `why="no xxx`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

func TestFlood(t *testing.T) {
	b := newBook()
	refused := b.log.With("uid", 1001)
	for i := range 1000 {
		refused.Info("refused", "path", i)
	}
	if n := b.lines("msg=refused"); n != userBurst {
		t.Errorf("of 1000 lines %d are written, want %d", n, userBurst)
	}
	b.log.Info("refused", "uid", 1002)
	b.log.Warn("another", "uid", 1001)
	if n := b.lines("uid="); n != 2 {
		t.Errorf("another user and another kind get %d lines, want 2", n)
	}
	if len(b.due) != 1 {
		t.Fatalf("%d summaries are due, want 1", len(b.due))
	}
	b.due[0]()
	if got, want := b.String(), fmt.Sprintf("msg=%q lines=%d of=refused\n", Left, 1000-userBurst); !strings.HasSuffix(got, want) {
		t.Errorf("the summary is %q, want %q", got, want)
	}
	b.Reset()
	b.now = b.now.Add(userPeriod)
	refused.Info("refused")
	refused.Info("refused")
	if n := b.lines("msg=refused"); n != 1 || len(b.due) != 2 {
		t.Errorf("later %d lines are written and %d summaries due", n, len(b.due)-1)
	}
	for range 1000 {
		refused.Debug("detail")
	}
	if n := b.lines("msg=detail"); n != 1000 {
		t.Errorf("of 1000 lines of level debug %d are written", n)
	}
}

// TestManyUsers: a kind is bounded however many users there are, and so is what is kept of them.
func TestManyUsers(t *testing.T) {
	b := newBook()
	for uid := range 10 * maxUsers {
		b.log.Info("refused", "uid", uid)
	}
	if n := b.lines("msg=refused"); n != kindBurst {
		t.Errorf("%d lines, want %d", n, kindBurst)
	}
	b.now = b.now.Add(time.Hour)
	b.log.Info("refused", "uid", -1)
	kind := b.log.Handler().(*limited).limits.kinds["refused"]
	if n := len(kind.users); n > maxUsers+1 {
		t.Errorf("%d users are kept", n)
	}
}

// TestKinds: the attribute kind is what a line goes by, whatever its text.
func TestKinds(t *testing.T) {
	b := newBook()
	for i := range 1000 {
		b.log.Info(fmt.Sprint("text ", i), "kind", "tenant.refused")
	}
	if n := b.lines("kind="); n != userBurst {
		t.Errorf("%d lines, want %d", n, userBurst)
	}
	for i := range 10 * maxKinds {
		b.log.Info(fmt.Sprint("text ", i))
	}
	if n := len(b.log.Handler().(*limited).limits.kinds); n > maxKinds+1 {
		t.Errorf("%d kinds are kept", n)
	}
}

// TestStandard: the log is two files of a bounded size at most, and a descriptor that is the log stays the new one.
func TestStandard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := NewStandard(path)
	s.most, s.out, s.fds = 1000, f, []int{int(f.Fd())}
	for i := range 100 {
		if _, err := fmt.Fprintf(s, "line %d of the log, of about 40 bytes\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Write(int(f.Fd()), []byte("crash\n")); err != nil {
		t.Fatal(err)
	}
	young, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path + OldSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if len(old) > 1000 || len(young) > 1000 || !bytes.HasSuffix(young, []byte("line 99 of the log, of about 40 bytes\ncrash\n")) {
		t.Errorf("%d bytes, old ones %d, the end is %q", len(young), len(old), young[max(len(young)-100, 0):])
	}
	if err := os.Rename(path, path+OldSuffix); err != nil { // another process changes the file
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("after\n")); err != nil {
		t.Fatal(err)
	}
	if young, err = os.ReadFile(path); err != nil || string(young) != "after\n" {
		t.Errorf("after another process has changed the log it is %q, %v", young, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
