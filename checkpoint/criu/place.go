package criu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// place is where CRIU works: what it restores is there, too. A program that has the mounts that CRIU has needs none of them in
// its image.
type place struct {
	mounts  int      // a process in the mount namespace; 0: that of this process
	cgroups []string // files in which it is entered, by its number
	// terminal is CRIU's standard input, which what it restores has in the place of each terminal. May be nil.
	terminal *os.File
}

// start starts a command there. It does nothing of interest before it is asked for something.
func (p place) start(c *exec.Cmd) error {
	if p.terminal != nil {
		c.Stdin = p.terminal
	}
	start := c.Start
	if p.mounts != 0 {
		start = func() error { return onThread(func() error { return enterAndStart(p.mounts, c) }) }
	}
	if err := start(); err != nil {
		return err
	}
	for _, file := range p.cgroups {
		if err := os.WriteFile(file, []byte(strconv.Itoa(c.Process.Pid)), 0); err != nil {
			return errors.Join(fmt.Errorf("enter the program's cgroup: %w", err), c.Process.Kill(), ignoreExit(c.Wait()))
		}
	}
	return nil
}

// ignoreExit is an error of waiting, but for how the command ended.
func ignoreExit(err error) error {
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return nil
	}
	return err
}

// onThread calls f on a thread of its own, which ends with it. The first thread stays as it is: /proc shows that one as the
// process.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f() // never unlocked: the thread is of no use to others
	}()
	return <-done
}

// enterAndStart starts a command in the mount namespace of a process, which this thread enters for good.
func enterAndStart(pid int, c *exec.Cmd) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the other threads' folder: %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of process %d: %w", pid, err)
	}
	return c.Start()
}
