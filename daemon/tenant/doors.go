package tenant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/proc"
)

// door is the socket of an lgpu for containers. Its folder is mounted into them (contain.SocketDir), and has nothing but
// the socket: so a daemon makes a new socket where the one before had its own, and containers have it.
type door struct {
	listener *foreign.Listener
	folder   string
	mount    proc.Mount // how the kernel names the folder where it is mounted
}

// OpenDoor makes the socket by which containers come to an lgpu, which need not have been added, and returns its folder.
// The folder stays when the daemon ends, and is the same for the next. Without effect where the door is open.
func (s *Server) OpenDoor(lgpu uint64) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", fmt.Errorf("open lgpu %#x to containers: %w", lgpu, fs.ErrClosed)
	}
	if d := s.doors[lgpu]; d != nil {
		return d.folder, nil
	}
	d, err := s.makeDoor(filepath.Join(s.config.Doors, doorName(lgpu)))
	if err != nil {
		return "", fmt.Errorf("open lgpu %#x to containers: %w", lgpu, err)
	}
	s.doors[lgpu] = d
	if s.serving {
		s.serveDoor(lgpu, d)
	}
	return d.folder, nil
}

// doorName is the name of a door's folder. An ID is never used again, so a container of an lgpu that was removed has no
// way to another.
func doorName(lgpu uint64) string { return strconv.FormatUint(lgpu, 16) }

// makeDoor makes folder and socket. Called with mu held.
func (s *Server) makeDoor(folder string) (*door, error) {
	for _, f := range []struct {
		path string
		mode fs.FileMode
	}{{s.config.Doors, 0o711}, {folder, 0o755}} {
		if err := os.Mkdir(f.path, f.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := os.Chmod(f.path, f.mode); err != nil { // whatever the umask
			return nil, err
		}
	}
	mount, err := proc.MountOf(folder)
	if err != nil {
		return nil, err
	}
	listener, err := listen(filepath.Join(folder, contain.SocketName), &s.closers)
	if err != nil {
		return nil, err
	}
	listener.SetRights(s.receives)
	return &door{listener, folder, mount}, nil
}

// serveDoor accepts connections at a door until it is closed. Called with mu held.
func (s *Server) serveDoor(lgpu uint64, d *door) {
	s.running.Go(func() { s.accept(d.listener, lgpu) })
}

// CloseDoor removes the socket by which containers came to an lgpu. Those that have come stay.
func (s *Server) CloseDoor(lgpu uint64) error {
	s.mu.Lock()
	d := s.doors[lgpu]
	delete(s.doors, lgpu)
	s.mu.Unlock()
	if d == nil {
		return nil
	}
	return errors.Join(d.listener.Close(), os.Remove(d.folder))
}

// sweepDoors removes the folders of doors that nobody has opened. Called with mu held.
func (s *Server) sweepDoors() error {
	entries, err := os.ReadDir(s.config.Doors)
	if errors.Is(err, fs.ErrNotExist) || s.config.Doors == "" {
		return nil
	}
	for _, e := range entries {
		id, bad := strconv.ParseUint(e.Name(), 16, 64)
		if bad != nil || doorName(id) != e.Name() || s.doors[id] != nil {
			continue
		}
		folder := filepath.Join(s.config.Doors, e.Name())
		if socket := os.Remove(filepath.Join(folder, contain.SocketName)); !errors.Is(socket, fs.ErrNotExist) {
			err = errors.Join(err, socket)
		}
		err = errors.Join(err, os.Remove(folder))
	}
	return err
}

// container fills in what says which container a process is in. Called without mu.
func (s *Server) container(e *Evidence) error {
	e.Neighbour = s.neighbour(cgroupOf(e.Cgroups, s.cgroups))
	at, mounted, err := proc.MountAt(e.PID, contain.SocketDir)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
		return errEnded
	}
	if err != nil && e.Door != 0 {
		return fmt.Errorf("mounts of pid %d: %w", e.PID, err)
	}
	if err != nil || !mounted { // a daemon that is not root may not see them
		return nil
	}
	s.mu.Lock()
	for id, d := range s.doors {
		if d.mount == at {
			e.Container = id
		}
	}
	s.mu.Unlock()
	if e.Container == 0 {
		return nil
	}
	e.Maker, _, err = proc.Confiner(e.PID) // root, where it is in no user namespace: nobody else can mount
	return err
}

// containerID is how many hexadecimal digits runtimes name containers by.
const containerID = 64

// cgroupOf returns the cgroup that a runtime made for the container of a process: the path down to the part that has the
// container's ID in it, as podman, docker and containerd name theirs. It is empty where there is none. own are the
// daemon's cgroups: where it runs in a container itself, all that is in there with it is in no other by that.
func cgroupOf(all, own []Cgroup) string {
	for _, c := range all {
		at := 0
		for _, o := range own {
			if o.Controllers == c.Controllers && names.Within(c.Path, o.Path) {
				at = len(strings.TrimSuffix(o.Path, "/"))
			}
		}
		for at < len(c.Path) {
			part, _, _ := strings.Cut(strings.TrimPrefix(c.Path[at:], "/"), "/")
			at = min(at+1+len(part), len(c.Path))
			if hexadecimal(part) >= containerID {
				return c.Path[:at]
			}
		}
	}
	return ""
}

// hexadecimal is the length of the longest run of hexadecimal digits.
func hexadecimal(s string) (longest int) {
	run := 0
	for _, c := range []byte(s) {
		if run++; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// neighbour returns the lgpu of a container's client in the same cgroup, or 0.
func (s *Server) neighbour(cgroup string) uint64 {
	if cgroup == "" {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		if c.cgroup == cgroup {
			return c.lgpu.ID
		}
	}
	return 0
}

// Observe is the function Observe for the clients and the containers of the Server.
func (s *Server) Observe(pid int) (Evidence, error) { return observe(pid, s.lgpuOf, s.container) }
