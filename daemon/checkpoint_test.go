package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// note is the note of a daemon that has ended while it held a program.
func note(t *testing.T, dir string, l released) {
	t.Helper()
	text, err := json.Marshal([]released{l})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, releasedFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// noted is a process as it is noted.
func noted(t *testing.T, pid int) releasedProcess {
	t.Helper()
	s, err := proc.Live(pid)
	if err != nil {
		t.Fatal(err)
	}
	return releasedProcess{PID: pid, Start: s.Start}
}

// What a daemon was ending, since an image has it, the next one ends; and not who has one of the numbers now.
func TestNextDaemonEnds(t *testing.T) {
	dir, ends, lives := t.TempDir(), program(t), program(t)
	other := noted(t, lives.Process.Pid)
	other.Start++
	note(t, dir, released{ID: 7, Held: []releasedProcess{noted(t, ends.Process.Pid), other}, Ending: true})
	start(t, Config{Dir: dir})
	if err := ends.Wait(); err == nil || ends.ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("it ends with %v", err)
	}
	if err := lives.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("another process: %v", err)
	}
}

// What a daemon held, the next one has go on, but not before nobody stops it any more.
func TestNextDaemonLetsGo(t *testing.T) {
	dir, held := t.TempDir(), program(t)
	pid := held.Process.Pid
	if err := held.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := func() bool { s, err := proc.Live(pid); return err == nil && s.Stopped }
	for !stopped() {
		time.Sleep(time.Millisecond)
	}
	note(t, dir, released{ID: 7, Held: []releasedProcess{noted(t, pid)}})
	lock := filepath.Join(dir, "dump-0000000000000007.lock")
	f, err := os.Create(lock)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start(t, Config{Dir: dir})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := awaitLock(ctx, lock); !errors.Is(err, context.DeadlineExceeded) || !stopped() {
		t.Errorf("while it may be stopped: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for stopped() {
		time.Sleep(time.Millisecond)
	}
}
