package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Alone waits until no other driver serves the kubelet from a folder, and keeps others out until release is called or the process
// ends, however it does. Two drivers would take the sockets from each other, and whichever ends first removes them: the other one
// would go on, and the kubelet could not reach it.
func Alone(ctx context.Context, dir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "driver.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep other drivers from the node: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		klog.FromContext(ctx).Info("another driver serves this node; this one waits until it ends", "folder", dir)
		got := make(chan error, 1)
		go func() {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			for errors.Is(err, unix.EINTR) {
				err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			}
			got <- err
		}()
		select {
		case err = <-got:
		case <-ctx.Done():
			// The file stays open, as the wait for it cannot be ended; who gets the lock then gives it back.
			go func() {
				<-got
				f.Close()
			}()
			return nil, fmt.Errorf("another driver serves this node: %w", context.Cause(ctx))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { f.Close() }, nil
}
