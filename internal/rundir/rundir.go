// Package rundir knows the runtime folder, where the parts of lgpu on one machine find each other.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// longest is how many bytes the path of a runtime folder can have: the path of a socket has 107 at most, and that of a
// software GPU is the longest, sim-0123456789ab.sock.
const longest = 107 - 1 - 21

// Dir returns the runtime folder of this user, where the sockets of the daemon and of software GPUs are, and makes it
// if need be: $LGPU_RUNTIME_DIR, else /run/lgpu for root, else $XDG_RUNTIME_DIR/lgpu, else /tmp/lgpu-UID. The folder
// is open to its owner only, but for /run/lgpu, where the libraries are too and which others may pass; one that
// belongs to another user, as may happen in /tmp, is refused.
func Dir() (string, error) {
	uid := os.Getuid()
	var dir string
	mode := os.FileMode(0o700)
	if named := os.Getenv("LGPU_RUNTIME_DIR"); named != "" {
		absolute, err := filepath.Abs(named)
		if err != nil {
			return "", fmt.Errorf("runtime folder %s: %w", named, err)
		}
		dir = absolute
	} else if uid == 0 {
		dir, mode = "/run/lgpu", 0o711
	} else if session := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(session) {
		dir = filepath.Join(session, "lgpu")
	} else {
		dir = fmt.Sprintf("/tmp/lgpu-%d", uid)
	}
	if len(dir) > longest {
		return "", fmt.Errorf("runtime folder %s: its path has %d bytes; %d are possible, for the sockets in it", dir, len(dir),
			longest)
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make the runtime folder: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("runtime folder: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return "", fmt.Errorf("runtime folder %s is not a folder", dir)
	case ok && int(stat.Uid) != uid:
		return "", fmt.Errorf("runtime folder %s belongs to user %d", dir, stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return "", fmt.Errorf("runtime folder %s can be written by others (mode %#o)", dir, info.Mode().Perm())
	}
	return dir, nil
}
