package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a process that is watched: it says its pid, and does as it says.
const childEnv = "LGPU_TEST_WATCHED"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "deadlock":
		fmt.Println(os.Getpid())
		Pulse(context.Background(), func() { time.Sleep(time.Hour) }) // of a lone goroutine that waits for ever the runtime would know
	case "live":
		fmt.Println(os.Getpid())
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		Pulse(ctx, func() {})
	case "fail":
		os.Exit(3)
	}
}

// watched starts children as the test says, one after the other.
type watched struct {
	t     *testing.T
	in    *os.File
	pids  chan int
	modes chan string
	ended chan error
}

func watching(t *testing.T, in *os.File, patience time.Duration, modes ...string) *watched {
	w := &watched{t: t, in: in, pids: make(chan int, 10), modes: make(chan string, 10), ended: make(chan error, 1)}
	for _, m := range modes {
		w.modes <- m
	}
	go func() { w.ended <- Keep(w.start, patience, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	return w
}

func (w *watched) start(pulse *os.File) (*exec.Cmd, error) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childEnv+"="+<-w.modes, Env+"=3")
	c.ExtraFiles = []*os.File{pulse}
	if w.in != nil {
		c.Stdin = w.in
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	var pid int
	if _, err := fmt.Fscan(bufio.NewReader(out), &pid); err == nil {
		w.pids <- pid
	}
	return c, nil
}

func pipe(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); out.Close() })
	return in, out
}

func (w *watched) pid() int {
	w.t.Helper()
	select {
	case pid := <-w.pids:
		return pid
	case <-time.After(time.Minute):
		w.t.Fatal("no process is started")
		return 0
	}
}

func (w *watched) end() error {
	w.t.Helper()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(time.Minute):
		w.t.Fatal("it does not end")
		return nil
	}
}

// A process that hangs, in a deadlock or stopped, is ended and started anew; one that ends is not.
func TestHang(t *testing.T) {
	in, out := pipe(t)
	w := watching(t, in, Patience/2, "deadlock", "live", "live")
	first := w.pid()
	second := w.pid()
	if err := unix.Kill(first, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process that hangs is still there: %v", err)
	}
	if err := unix.Kill(second, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if third := w.pid(); third == second {
		t.Error("the same process again")
	}
	out.Close()
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

// How a process ends by itself, or by somebody's signal, is what Keep returns.
func TestEnd(t *testing.T) {
	var exited *exec.ExitError
	if err := watching(t, nil, time.Minute, "fail").end(); !errors.As(err, &exited) || exited.ExitCode() != 3 {
		t.Errorf("%v", err)
	}
	in, out := pipe(t)
	w := watching(t, in, time.Minute, "live")
	if err := unix.Kill(w.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if err := w.end(); !errors.As(err, &exited) || exited.ExitCode() != -1 {
		t.Errorf("%v", err)
	}
}

// Nobody has to watch.
func TestUnwatched(t *testing.T) {
	t.Setenv(Env, "")
	if err := Pulse(t.Context(), func() { t.Error("asked") }); err != nil {
		t.Error(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	fd, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Env, fmt.Sprint(fd))
	if err := Pulse(t.Context(), func() {}); err != nil {
		t.Errorf("who watched is gone: %v", err)
	}
}
