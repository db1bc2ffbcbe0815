package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// note is what the tests keep.
type note struct {
	Text string `json:"text"`
}

var began = time.Unix(1_790_000_000, 0).UTC()

// at is when the records of the tests happen: each a minute after the one before.
func at(number uint64) time.Time { return began.Add(time.Duration(number) * time.Minute) }

func open(t *testing.T, o Options) (*Log[note], []Record[note]) {
	t.Helper()
	l, recent, err := Open[note](o)
	if err != nil {
		t.Fatal(err)
	}
	return l, recent
}

func (l *Log[T]) closed(t *testing.T) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// read returns the numbers of the records since a time.
func read(t *testing.T, l *Log[note], since time.Time) (numbers []uint64) {
	t.Helper()
	r := l.Read(since, 0)
	defer r.Close()
	for {
		records, err := r.Next(t.Context())
		for _, record := range records {
			if len(numbers) > 0 && record.Number <= numbers[len(numbers)-1] {
				t.Fatalf("record %d comes after %d", record.Number, numbers[len(numbers)-1])
			}
			if !strings.HasPrefix(record.Value.Text, fmt.Sprintf("event %d.", record.Number)) ||
				!record.Time.Equal(at(record.Number)) {
				t.Fatalf("record %d is %+v", record.Number, record)
			}
			numbers = append(numbers, record.Number)
		}
		if errors.Is(err, io.EOF) {
			return numbers
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// add appends the records from one number to another, of about so many bytes, and waits until they are written.
func add(l *Log[note], from, to uint64, size int) {
	for n := from; n <= to; n++ {
		l.Append(n, at(n), note{fmt.Sprintf("event %d.", n) + strings.Repeat("x", size)})
		<-l.settle(nil)
	}
}

func upto(from, to uint64) (all []uint64) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// TestRestart: what was kept is there for the next daemon, which goes on behind it.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "events")
	l, recent := open(t, Options{Dir: dir})
	if len(recent) != 0 {
		t.Fatalf("a new log has %v", recent)
	}
	add(l, 1, 5, 0)
	l.closed(t)
	l.Append(6, at(6), note{}) // too late, and no harm
	l, recent = open(t, Options{Dir: dir})
	if len(recent) != 5 || recent[4].Number != 5 || recent[4].Value.Text != "event 5." {
		t.Fatalf("the last records are %v", recent)
	}
	add(l, 6, 7, 0)
	if got := read(t, l, time.Time{}); !slices.Equal(got, upto(1, 7)) {
		t.Errorf("kept are %v", got)
	}
	if got := read(t, l, at(4)); !slices.Equal(got, upto(4, 7)) {
		t.Errorf("since the fourth there are %v", got)
	}
	l.closed(t)
	info, err := os.Stat(filepath.Join(dir, "00000000000000000001.jsonl"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; others may not read it", info, err)
	}
}

// TestRotate: the files stay within their bound, and the newest records are those that stay.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, Options{Dir: dir, MaxFile: 1, Files: 3}) // files of the least size, 128 KiB
	const records, size = 200, 5000
	add(l, 1, records, size)
	var sum int64
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	if most := int64(3 * (batch + maxLine)); sum > most {
		t.Errorf("the files have %d bytes, at most %d are allowed", sum, most)
	}
	kept := read(t, l, time.Time{})
	if first := kept[0]; first == 1 || !slices.Equal(kept, upto(first, records)) {
		t.Errorf("kept are %v", kept)
	}
	// What is before a time is not read where a file has nothing else.
	r := l.Read(at(records), 0)
	if err := r.begin(t.Context()); err != nil || len(r.left) != 1 {
		t.Errorf("for the last record %d files are read, %v", len(r.left), err)
	}
	l.closed(t)
	if _, recent := open(t, Options{Dir: dir, MaxFile: 1, Files: 3}); recent[len(recent)-1].Number != records {
		t.Errorf("the last record is %d", recent[len(recent)-1].Number)
	}
}

// TestTorn: a line that was not written to its end, and one that is damaged, take no other with them.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, Options{Dir: dir})
	add(l, 1, 3, 0)
	l.closed(t)
	path := name(dir, 1)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte{'\n'})
	lines[1] = append(bytes.Repeat([]byte{'['}, 3*maxLine), '\n')
	text = append(slices.Concat(lines...), `{"number":4,"time":"2026-`...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	l, recent := open(t, Options{Dir: dir})
	if len(recent) == 0 || recent[len(recent)-1].Number != 3 {
		t.Errorf("the last records are %v", recent)
	}
	add(l, 4, 5, 0)
	if got, want := read(t, l, time.Time{}), []uint64{1, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("kept are %v, want %v", got, want)
	}
	l.closed(t)
}

// TestFull: a disk that has no more room stops nothing and takes no earlier record; it is told once, and what comes when
// there is room again is kept.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	var told []error // by the writer's goroutine; read when it is settled
	l, _ := open(t, Options{Dir: dir, Report: func(err error) { told = append(told, err) }})
	add(l, 1, 3, 1000)
	info, err := os.Stat(name(dir, 1))
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	// A file that may grow by half a line is a disk that is full in the middle of it.
	full := unix.Rlimit{Cur: uint64(info.Size()) + 500, Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &before)
	add(l, 4, 6, 1000)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || !errors.Is(told[0], unix.EFBIG) {
		t.Errorf("told is %v", told)
	}
	add(l, 7, 8, 0)
	if got, want := read(t, l, time.Time{}), []uint64{1, 2, 3, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("kept are %v, want %v", got, want)
	}
	l.closed(t)
}

// TestNoRoom: where the folder cannot take another file, that is told and nothing waits.
func TestNoRoom(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "events")
	told := make(chan error, 8)
	l, _ := open(t, Options{Dir: dir, Report: func(err error) { told <- err }})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	add(l, 1, 2, 0)
	if err := <-told; !errors.Is(err, os.ErrNotExist) || len(told) != 0 {
		t.Errorf("told is %v, and %d more", err, len(told))
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	add(l, 3, 3, 0)
	if got := read(t, l, time.Time{}); !slices.Equal(got, upto(3, 3)) {
		t.Errorf("kept are %v", got)
	}
	l.closed(t)
}

// TestAppendDoesNotWait: a writer that hangs costs records, and nobody's time.
func TestAppendDoesNotWait(t *testing.T) {
	hang, hangs := make(chan struct{}), make(chan struct{})
	var once bool
	l, _ := open(t, Options{Dir: t.TempDir(), Queue: 4, Report: func(error) {
		if !once {
			once = true
			close(hangs)
			<-hang
		}
	}})
	l.Append(1, at(1), note{strings.Repeat("x", maxLine)}) // too long, which is told
	<-hangs
	for n := uint64(2); n < 100; n++ {
		l.Append(n, at(n), note{fmt.Sprintf("event %d.", n)})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Read(time.Time{}, 0).Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a reader waits for a writer that hangs: %v", err)
	}
	close(hang)
	if got := read(t, l, time.Time{}); !slices.Equal(got, upto(2, 5)) {
		t.Errorf("kept are %v", got)
	}
	l.closed(t)
}

// FuzzRead: whatever is in a file, reading it ends, the records that come out are in order and within bounds, and what
// is appended afterwards is kept.
func FuzzRead(f *testing.F) {
	line, err := encode(Record[note]{Number: 1, Time: began, Value: note{"event"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(bytes.Repeat(line, 3))
	f.Add(line[:len(line)/2])
	f.Add(bytes.TrimSpace(line))
	f.Add(append(bytes.Repeat([]byte{'{'}, maxLine+1), line...))
	f.Add([]byte(`{"number":18446744073709551615,"time":"2026-01-01T00:00:00Z","event":{}}` + "\n"))
	f.Add([]byte(`{"number":9,"time":"0001-01-01T00:00:00Z","event":null}` + "\n\x00\xff\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(name(dir, 1), data, 0o600); err != nil {
			t.Fatal(err)
		}
		l, recent := open(t, Options{Dir: dir})
		defer l.Close()
		next := uint64(1)
		if len(recent) > 0 {
			next = recent[len(recent)-1].Number + 1
		}
		l.Append(next, began, note{"mine"})
		r := l.Read(time.Time{}, 0)
		defer r.Close()
		var last Record[note]
		for {
			records, err := r.Next(t.Context())
			for _, record := range records {
				if record.Number <= last.Number || record.Number > maxNumber+1 || len(record.Value.Text) > maxLine {
					t.Fatalf("%+v comes after %d", record, last.Number)
				}
				last = record
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if next <= maxNumber && (last.Number != next || last.Value.Text != "mine") {
			t.Fatalf("the last record is %+v, appended was %d", last, next)
		}
	})
}
