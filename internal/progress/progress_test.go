package progress

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestFrame(t *testing.T) {
	for _, c := range []struct {
		done, of, turn, width int
		want                  string
	}{
		{0, 0, 0, 80, "| waiting, 3s"},
		{0, 0, 5, 80, "/ waiting, 3s"},
		{3, 12, 0, 80, "[#####...............] 3 of 12 waiting, 3s"},
		{13, 12, 0, 80, "[####################] 13 of 12 waiting, 3s"},
		{-1, 12, 0, 80, "[....................] -1 of 12 waiting, 3s"},
		{0, 0, 0, 4, "| wa"},
		{0, 0, 0, -1, ""},
	} {
		if got := frame("waiting", "", c.done, c.of, c.turn, 3*time.Second, c.width); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestMeasure(t *testing.T) {
	if got := frame("going", "2 GiB of 8 GiB", 5, 20, 0, time.Second, 80); got != "[#####...............] 2 GiB of 8 GiB going, 1s" {
		t.Errorf("%q", got)
	}
}

// terminal returns both ends of one.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, program, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { user.Close(); program.Close() })
	return user, program
}

// until reads what a terminal shows up to some text.
func until(t *testing.T, user *os.File, text string) string {
	t.Helper()
	var all []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(all), text); {
		if _, err := user.Read(b); err != nil {
			t.Fatalf("%v after %q", err, all)
		}
		all = append(all, b...)
	}
	return string(all)
}

func TestLine(t *testing.T) {
	t.Setenv("TERM", "xterm")
	user, program := terminal(t)
	l := start(program, "counting", 0)
	l.Set(1, 2, "counting")
	until(t, user, "1 of 2 counting, ")
	l.Print(program, "a word")
	until(t, user, "\r\x1b[Ka word\r\n")
	until(t, user, "1 of 2 counting, ")
	l.Measure(.25, "2 GiB of 8 GiB", "going")
	until(t, user, "[#####...............] 2 GiB of 8 GiB going, ")
	l.Set(1, 2, "counting")
	until(t, user, "1 of 2 counting, ")
	l.Done()
	l.tick() // one that was on its way
	fmt.Fprint(program, "end")
	if shown := until(t, user, "end"); !strings.HasSuffix(shown, "\r\x1b[Kend") {
		t.Errorf("it leaves a trace: %q", shown)
	}

	l = start(program, "soon done", time.Hour)
	l.Done()
	fmt.Fprint(program, "end")
	if shown := until(t, user, "end"); shown != "end" {
		t.Errorf("what takes no time shows a line: %q", shown)
	}
}

func TestNoTerminal(t *testing.T) {
	var b bytes.Buffer
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if start(&b, "x", 0) != nil || start(file, "x", 0) != nil {
		t.Error("a line where there is no terminal")
	}
	var none *Line
	none.Set(1, 2, "x")
	none.Measure(.5, "1 B of 2 B", "x")
	none.Print(&b, "a word")
	none.Done()
	if b.String() != "a word\n" {
		t.Errorf("%q", b.String())
	}
}
