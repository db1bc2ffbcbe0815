package proc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() } // main runs on the first thread

// The test program also plays a process whose first thread has ended: it goes on until its input ends.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "headless" {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		os.Stdout.WriteString("ready\n")
		unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	os.Exit(m.Run())
}

func FuzzParse(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("7 (a) 3 (b)) S 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 77 0 0"))
	f.Add([]byte("7 (a) S 5"))
	f.Add([]byte(")("))
	f.Add([]byte("7 (x) S 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 -7 0 0"))
	f.Add([]byte("7 (x) S 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 many 0 7 0 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parse(text)
		if err != nil && s != (Status{}) {
			t.Errorf("%q: %+v and %v", text, s, err)
		}
	})
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Status{
		"7 (a) 3 (\x1b[31m)) S 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 77 0 0": {Parent: 5, Start: 77,
			Comm: "a) 3 (?[31m)"},
		"7 (a) Z 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 77 0 0": {Parent: 5, Start: 77, Comm: "a", Ended: true},
		"7 (a) Z 5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 2 0 77 0 0": {Parent: 5, Start: 77, Comm: "a"},
	} {
		if s, err := parse([]byte(text)); err != nil || s != want {
			t.Errorf("%q: %+v, %v; want %+v", text, s, err, want)
		}
	}
}

// A process lives on without its first thread, and cannot hide so.
func TestWithoutFirstThread(t *testing.T) {
	cmd := exec.Command(os.Args[0], "headless")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	headless := func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && bytes.Contains(text, []byte(") Z "))
	}
	for !headless() {
		if t.Context().Err() != nil {
			t.Fatal("its first thread does not end")
		}
	}
	s, err := Live(cmd.Process.Pid)
	if err != nil {
		t.Fatalf("it lives, but: %v", err)
	}
	h, err := Open(cmd.Process.Pid, s.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.WaitFor(t.Context(), time.Millisecond) {
		t.Error("it has ended already")
	}
	in.Close()
	if err := h.Wait(t.Context()); err != nil { // after one that was too short
		t.Fatal(err)
	}
	if _, err := Live(cmd.Process.Pid); !errors.Is(err, os.ErrProcessDone) { // a zombie until it is reaped
		t.Errorf("it has ended: %v", err)
	}
	if err := h.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
}

func TestOpenOther(t *testing.T) {
	if _, err := Open(os.Getpid(), 1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("with another start: %v", err)
	}
	h, err := Open(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if err := h.Wait(ctx); err != why {
		t.Errorf("waiting ends with %v", err)
	}
}
