// Package treefs shows a tree of limits as a file system: directories are nodes, and a write(2) to a file is a transaction
// whose errno the writer gets.
//
//	server, err := fs.Mount("/run/lgpu/tree", t, fs.Options{AllowOther: true})
//	defer server.Close()
//
// # What a write is
//
// Each write(2) is one transaction, as in the files of a cgroup. Some shells write every line on its own (bash's echo
// and printf); each of those is a transaction then. A write that continues in the middle of a line is refused: it is a
// piece of something that was cut. The text of an error, which errno cannot carry, goes to Options.Log; the daemon's
// API gives it to the caller.
//
// # What a read is
//
// A read from the beginning of a file takes a picture of it, and reads further on continue in that picture, so that no
// reader sees two states mixed. The kernel caches nothing.
//
// # Who may
//
// The tree's own rights (limits.Rights) hold for who the kernel says is asking: for a write when the file is opened, as
// usual, and again when it is written; for everything else at once. What is hidden from a caller is not there.
package treefs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/policy/limits"
)

// Type is the type of the file system, as /proc/mounts shows it.
const Type = "fuse.lgpu"

// Options of a mount.
type Options struct {
	// AllowOther lets users other than the daemon's own in. It needs root, or user_allow_other in /etc/fuse.conf.
	AllowOther bool
	// Log gets refused operations with their full text; nil discards them.
	Log *slog.Logger
}

// Server is a mounted tree.
type Server struct {
	dir    string
	server *fuse.Server
}

// Mount shows t at dir, which it makes if need be. Whoever calls it is the only daemon of dir: a mount of Type that is
// there lost its daemon, and is taken away first. As root it mounts by itself; otherwise it needs fusermount3.
//
// The process that serves a tree must not open the tree's files: if it were killed then, it would wait for its own
// answer for ever.
func Mount(dir string, t *limits.Tree, options Options) (*Server, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("mount the tree: %w", err)
	}
	if err := Clean(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("mount the tree: %w", err)
	}
	if err := usable(); err != nil {
		return nil, fmt.Errorf("mount the tree at %s: %w", dir, err)
	}
	m := &mount{tree: t, log: options.Log, started: time.Now()}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	now := time.Duration(0)
	server, err := open(dir, &folder{mount: m, path: limits.Root}, &fs.Options{
		EntryTimeout: &now, AttrTimeout: &now, NegativeTimeout: &now,
		MountOptions: fuse.MountOptions{
			Name: strings.TrimPrefix(Type, "fuse."), FsName: "lgpu", AllowOther: options.AllowOther, DisableXAttrs: true,
			DirectMountStrict: os.Geteuid() == 0, MaxWrite: maxWrite,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount the tree at %s: %w", dir, err)
	}
	// The mount is there, and requests wait until they are served. go-fuse's WaitMount would add no more than an open
	// of a file of the tree.
	go server.Serve()
	return &Server{dir, server}, nil
}

// open mounts a file system that is yet to be served. The kernel ends it when nobody has the device open any more, and so
// a child must not have it: whoever looks at the tree of a daemon that was killed would wait for that child's end.
func open(dir string, root fs.InodeEmbedder, options *fs.Options) (*fuse.Server, error) {
	files := fs.NewNodeFS(root, options)
	if !options.DirectMountStrict {
		return fuse.NewServer(files, dir, &options.MountOptions) // of what fusermount3 sends, go-fuse takes care
	}
	// go-fuse opens the device without O_CLOEXEC: nobody is to fork before that is made good.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	server, err := fuse.NewServer(files, dir, &options.MountOptions)
	if err != nil {
		return nil, err
	}
	if err := closeOnExec(device); err != nil {
		return nil, errors.Join(fmt.Errorf("keep %s from children: %w", device, err), detach(dir))
	}
	return server, nil
}

// device is what file systems are served through.
const device = "/dev/fuse"

// closeOnExec has no child inherit this process's descriptors of a device.
func closeOnExec(path string) error {
	var wanted, stat unix.Stat_t
	if err := unix.Stat(path, &wanted); err != nil {
		return err
	}
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range all {
		fd, err := strconv.Atoi(entry.Name())
		if err == nil && unix.Fstat(fd, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == wanted.Rdev {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// usable says whether this process may serve file systems, in better words than a mount that does not work.
func usable() error {
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w; it needs the kernel's module fuse, and permission to use its device", err)
	}
	_ = file.Close()
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return fmt.Errorf("%w; without root the package fuse3 is needed", err)
	}
	return nil
}

// maxWrite is the most that one request from the kernel carries: more than the longest text, so that a longer one is
// refused as a whole.
const maxWrite = 2 * limits.MaxText

// Close unmounts, even while somebody has files of the tree open: what they do then fails. It waits until nothing is
// served any more; without root, files that are open keep that from happening, and Close returns at once.
func (s *Server) Close() error {
	if err := detach(s.dir); err != nil {
		return fmt.Errorf("unmount the tree: %w", err)
	}
	if os.Geteuid() == 0 {
		s.server.Wait()
	}
	return nil
}

// Wait returns when the tree is no longer served, by Close or because an administrator unmounted it.
func (s *Server) Wait() { s.server.Wait() }

// Clean takes away mounts of a tree at dir whose daemon is gone. It touches nothing below dir, since that could wait
// for the daemon for ever. An error wraps EBUSY if something else is mounted there.
func Clean(dir string) error {
	const most = 64 // mounts on top of each other; a daemon that died leaves one
	for range most {
		kind, err := mounted(dir)
		switch {
		case err != nil:
			return err
		case kind == "":
			return nil
		case kind != Type:
			return fmt.Errorf("mount the tree: a file system of type %s is at %s: %w", kind, dir, syscall.EBUSY)
		}
		if err := detach(dir); err != nil {
			return fmt.Errorf("take away the mount at %s that a daemon left: %w", dir, err)
		}
	}
	return fmt.Errorf("take away the mounts at %s: there are more than %d: %w", dir, most, syscall.EBUSY)
}

// detach unmounts dir and ends what is under way there. As root the kernel is told to fail all requests; the daemon's
// death does the same without.
func detach(dir string) error {
	err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
	switch {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // not mounted (any more)
		return nil
	case !errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w", dir, err)
	}
	out, err := exec.Command("fusermount3", "-u", "-z", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// mounted returns the type of the file system at dir, or "".
func mounted(dir string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("look for mounts: %w", err)
	}
	return mountType(string(table), dir), nil
}

// mountType finds the topmost mount at dir in the text of mountinfo: number, parent, device, root, mount point,
// options, optional fields, "-", type.
func mountType(table, dir string) string {
	escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(dir)
	kind := ""
	for line := range strings.Lines(table) {
		before, after, found := strings.Cut(line, " - ")
		if fields := strings.Fields(before); found && len(fields) > 4 && fields[4] == escaped {
			kind, _, _ = strings.Cut(after, " ")
		}
	}
	return kind
}
