package proc

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InMountsOf calls a function in the mount namespace of a process, on a thread that ends with it. Only who may enter that can,
// such as root.
func InMountsOf(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // /proc shows the first thread as the process: it stays as it is
			done <- InMountsOf(pid, f)
			runtime.UnlockOSThread()
			return
		}
		err := enterMounts(pid)
		if err == nil {
			err = f()
		}
		done <- err // never unlocked: the thread is of no use to others
	}()
	return <-done
}

// enterMounts has this thread enter the mount namespace of a process, for good.
func enterMounts(pid int) error {
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
	return nil
}
