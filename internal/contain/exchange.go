package contain

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// Exchange has a contained process, and all in its mount namespace, have other devices: the files in open, which Options.Hide
// had, can be opened from now on, and those in hide cannot. It may be done again, after an error too. Only root can.
func Exchange(pid int, open, hide []string) error {
	return proc.InMountsOf(pid, func() error {
		for _, file := range open {
			for {
				shut, err := isShut(file)
				if err == nil && shut {
					err = unix.Unmount(file, unix.MNT_DETACH)
				}
				if err != nil {
					return fmt.Errorf("open %s to process %d: %w", file, pid, err)
				}
				if !shut {
					break
				}
			}
		}
		for _, file := range hide {
			is, err := isShut(file)
			if err == nil && !is {
				err = shut(file)
			}
			if err != nil {
				return fmt.Errorf("hide %s from process %d: %w", file, pid, err)
			}
		}
		return nil
	})
}

// Exchangeable says whether Exchange can open a file to a process.
func Exchangeable(pid int, file string) bool {
	if os.Geteuid() != 0 {
		return false
	}
	mounts, err := proc.Mounts(pid)
	return err == nil && slices.ContainsFunc(mounts, func(m proc.Mounted) bool { return m.Point == file })
}

// isShut says whether a device file is mounted so that it cannot be opened.
func isShut(file string) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(file, &s); err != nil {
		return false, err
	}
	return s.Flags&unix.ST_NODEV != 0, nil
}
