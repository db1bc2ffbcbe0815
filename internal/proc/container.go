package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMounts bounds in bytes what is read of a process's mounts, which it can make as many of as the kernel lets it.
const maxMounts = 8 << 20

// Mount names a folder or file by the file system that it is in: the same for all processes, wherever it is mounted.
type Mount struct {
	Device string // of the file system, MAJOR:MINOR
	Root   string // the path in it
}

// Mounted is a mount that a process has.
type Mounted struct {
	Mount
	Number int    // as the files that were opened on it say (mnt_id in proc(5), fdinfo)
	Point  string // where it is, seen from the process's root
	Kind   string // of file system, such as "tmpfs"
	Source string // what is said to be mounted
}

// Mounts returns those that a process has, in the kernel's order.
func Mounts(pid int) (all []Mounted, err error) {
	text, err := mounts("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	for line := range bytes.Lines(text) {
		if m, ok := parseMount(line); ok {
			all = append(all, m)
		}
	}
	return all, err
}

// MountAt returns what a process has mounted at a path, seen from its own root, and false if nothing is. The kernel's list
// is read and not the path, which a process can make hang for whoever follows it.
func MountAt(pid int, point string) (Mount, bool, error) {
	all, err := Mounts(pid)
	if err != nil {
		return Mount{}, false, err
	}
	var found Mount
	there := false
	for _, m := range all {
		if m.Point == point {
			found, there = m.Mount, true // what was mounted last covers what was there
		}
	}
	return found, there, nil
}

// MountOf returns how other processes' mounts of a folder of this process are named.
func MountOf(dir string) (Mount, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Mount{}, err
	}
	text, err := mounts("/proc/self/mountinfo")
	if err != nil {
		return Mount{}, err
	}
	var found Mount
	longest := -1
	for line := range bytes.Lines(text) {
		m, ok := parseMount(line)
		below, within := strings.CutPrefix(dir, strings.TrimSuffix(m.Point, "/")+"/")
		if dir == m.Point {
			below, within = "", true
		}
		if ok && within && len(m.Point) >= longest {
			longest, found = len(m.Point), Mount{m.Device, filepath.Join(m.Root, below)}
		}
	}
	if longest < 0 {
		return Mount{}, fmt.Errorf("find the file system of %s: %w", dir, os.ErrNotExist)
	}
	return found, nil
}

func mounts(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMounts+1))
	if err == nil && len(text) > maxMounts {
		err = fmt.Errorf("%s has more than %d bytes: %w", path, maxMounts, unix.E2BIG)
	}
	return text, err
}

// parseMount reads a line of mountinfo (proc(5)).
func parseMount(line []byte) (m Mounted, ok bool) {
	before, after, _ := bytes.Cut(line, []byte(" - "))
	fields, kind := bytes.Fields(before), bytes.Fields(after)
	if len(fields) < 6 {
		return Mounted{}, false
	}
	number, err := strconv.Atoi(string(fields[0]))
	m = Mounted{Mount: Mount{string(fields[2]), unescape(fields[3])}, Number: number, Point: unescape(fields[4])}
	if len(kind) > 1 {
		m.Kind, m.Source = string(kind[0]), unescape(kind[1])
	}
	return m, err == nil
}

// unescape puts back what the kernel writes as a backslash and three octal digits: spaces, tabs, newlines, backslashes.
func unescape(text []byte) string {
	var out []byte
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if c, err := strconv.ParseUint(string(text[i+1:i+4]), 8, 8); err == nil {
				out = append(out, byte(c))
				i += 3
				continue
			}
		}
		out = append(out, text[i])
	}
	return string(out)
}

// Requests to a namespace's file (ioctl_nsfs(2)).
const (
	nsGetParent   = 0xb702
	nsGetOwnerUID = 0xb704
)

// maxUserNamespaces is how deep the kernel lets user namespaces lie in each other.
const maxUserNamespaces = 32

// Confiner returns who made the outermost user namespace that a process is in and this one is not, and false if it is in
// this one's. Whoever that is rules over the process; its own user may be any of those that were lent to that user.
func Confiner(pid int) (uid uint32, confined bool, err error) {
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return 0, false, err
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
	if err != nil {
		return 0, false, err
	}
	defer func() { f.Close() }()
	for range maxUserNamespaces + 1 {
		info, err := f.Stat()
		if err != nil {
			return 0, false, err
		}
		if os.SameFile(own, info) {
			return uid, confined, nil
		}
		if uid, err = ownerOf(f); err != nil {
			return 0, false, fmt.Errorf("user namespace of process %d: %w", pid, err)
		}
		parent, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nsGetParent, 0)
		if errno != 0 { // EPERM at the initial one, or at one that does not lie in this process's
			return 0, false, fmt.Errorf("user namespace of process %d: %w", pid, errno)
		}
		confined = true
		f.Close()
		f = os.NewFile(parent, "user namespace")
	}
	return 0, false, errors.New("user namespaces without end")
}

// ownerOf returns who made a user namespace.
func ownerOf(f *os.File) (uint32, error) {
	uid, err := unix.IoctlGetUint32(int(f.Fd()), nsGetOwnerUID)
	return uid, err
}
