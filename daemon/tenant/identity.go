package tenant

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/internal/proc"
)

// soPeerPIDFD is SO_PEERPIDFD (Linux 6.5): a pidfd of the process that connected, whatever has its pid now.
const soPeerPIDFD = 77

// maxAncestors bounds the walk, which a tenant can make as long as it likes.
const maxAncestors = 256

// errEnded: the process has ended.
var errEnded = os.ErrProcessDone

// status is what /proc/PID/stat tells.
type status struct {
	parent int
	start  uint64
	comm   string
}

// processes is where the state of processes is read; /proc, but for tests.
type processes interface {
	// status returns errEnded where there is no such process.
	status(pid int) (status, error)
}

type procfs struct{}

func (procfs) status(pid int) (status, error) {
	s, err := proc.Read(pid)
	return status{parent: s.Parent, start: s.Start, comm: s.Comm}, err
}

// ancestors returns the process self, its parent, and so on, up to one for which last is true, to process 1, or as far
// as can be seen. A pid that changes hands during the walk is noticed: a parent was read while its child had it as
// parent, before and after, and children get new parents only when theirs has ended.
func ancestors(procs processes, self Process, last func(Process) bool) ([]Process, error) {
	now, err := procs.status(self.PID)
	if err != nil {
		return nil, err
	}
	if now.start != self.Start {
		return nil, fmt.Errorf("pid %d: %w", self.PID, errEnded)
	}
	line := []Process{self}
	for retries := 0; len(line) < maxAncestors && now.parent > 0 && !last(line[len(line)-1]); {
		child := line[len(line)-1]
		parent, failed := procs.status(now.parent)
		again, err := procs.status(child.PID)
		if err != nil || again.start != child.Start {
			if len(line) == 1 {
				return nil, fmt.Errorf("pid %d: %w", self.PID, errEnded)
			}
			// It has ended, and its child has another parent now.
			line = line[:len(line)-1]
			if now, err = procs.status(line[len(line)-1].PID); err != nil {
				return nil, err
			}
		} else if again.parent != now.parent {
			now = again
		} else if failed != nil {
			return line, nil // hidden, as by hidepid, or of another PID namespace
		} else if parent.start > child.Start {
			return nil, fmt.Errorf("pid %d is younger than its child %d", now.parent, child.PID)
		} else {
			line = append(line, Process{PID: now.parent, Start: parent.start})
			now = parent
			continue
		}
		if retries++; retries > maxAncestors {
			return nil, fmt.Errorf("pid %d: its ancestors change all the time", self.PID)
		}
	}
	return line, nil
}

// Cgroups reads in which cgroups a process is.
func Cgroups(pid int) ([]Cgroup, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, err
	}
	return parseCgroups(string(text)), nil
}

func parseCgroups(text string) []Cgroup {
	var all []Cgroup
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && strings.HasPrefix(parts[2], "/") {
			all = append(all, Cgroup{Controllers: parts[1], Path: parts[2]})
		}
	}
	return all
}

// identify returns the process that made a connection, and its pidfd.
func identify(conn *foreign.Conn) (Peer, *life, error) {
	var credentials *unix.Ucred
	var fd int
	var failed error
	err := conn.Control(func(socket int) { credentials, fd, failed = peerOf(socket) })
	if err = errors.Join(err, failed); err != nil {
		return Peer{}, nil, fmt.Errorf("identify the process of a connection: %w", err)
	}
	unix.CloseOnExec(fd)
	life, err := lifeOf(fd)
	if err != nil {
		return Peer{}, nil, err
	}
	peer := Peer{Process: Process{PID: int(credentials.Pid)}, UID: credentials.Uid, GID: credentials.Gid}
	peer.User = userOf(peer.PID, peer.UID)
	now, err := procfs{}.status(peer.PID)
	if err == nil && life.ended() {
		err = errEnded // then what was read may be another's
	}
	if err != nil {
		life.Close()
		return Peer{}, nil, fmt.Errorf("identify pid %d: %w", peer.PID, err)
	}
	peer.Start, peer.Comm = now.start, now.comm
	return peer, life, nil
}

// peerOf asks the kernel which process made a connection, and for its pidfd.
func peerOf(socket int) (*unix.Ucred, int, error) {
	credentials, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, -1, err
	}
	if credentials.Pid <= 0 {
		return nil, -1, errors.New("it is in a PID namespace that cannot be seen")
	}
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, soPeerPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		// Its Hello must come from this pid too (connection.hello), so that a process that has the pid of one that
		// connected and died gains nothing.
		fd, err = unix.PidfdOpen(int(credentials.Pid), 0)
	}
	return credentials, fd, err
}

// find returns a pidfd of a process that has been known before, and what it is like now.
func find(p Process) (Peer, *life, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return Peer{}, nil, fmt.Errorf("pid %d: %w", p.PID, errEnded)
	}
	if err != nil {
		return Peer{}, nil, fmt.Errorf("open pid %d: %w", p.PID, err)
	}
	life, err := lifeOf(fd)
	if err != nil {
		return Peer{}, nil, err
	}
	now, err := procfs{}.status(p.PID)
	if err == nil && (now.start != p.Start || life.ended()) {
		err = errEnded
	}
	var stat unix.Stat_t
	if err == nil {
		err = unix.Stat("/proc/"+strconv.Itoa(p.PID), &stat)
	}
	if err != nil {
		life.Close()
		return Peer{}, nil, fmt.Errorf("pid %d: %w", p.PID, err)
	}
	return Peer{Process: p, UID: stat.Uid, GID: stat.Gid, User: userOf(p.PID, stat.Uid), Comm: now.comm}, life, nil
}

// userOf returns who answers for a process with a UID. Where that cannot be seen, as by a daemon that is not root, it is
// the UID.
func userOf(pid int, uid uint32) uint32 {
	if maker, confined, err := proc.Confiner(pid); err == nil && confined {
		return maker
	}
	return uid
}

// life is a pidfd, on which a goroutine can wait for the end of a process.
type life struct {
	*os.File
	fd int // to poll while the file is open
}

func lifeOf(fd int) (*life, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	return &life{os.NewFile(uintptr(fd), "pidfd"), fd}, nil
}

// ended reports whether the process has ended: all of its threads, and with them what they had open.
func (l *life) ended() (is bool) {
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { is = readable(fd) })
	}
	return is || err != nil // closed, which is done when it has ended
}

// await returns when the process has ended, or the descriptor is closed.
func (l *life) await() {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Read(readable)
	}
}

func readable(fd uintptr) bool {
	n, err := poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}})
	return err == nil && n > 0
}

// poll looks without waiting.
func poll(fds []unix.PollFd) (n int, err error) {
	for {
		if n, err = unix.Poll(fds, 0); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Observe gathers what is known of a process, be it a client or not, but for what container it is in. client says of
// which lgpu a process is a client, or 0. An error wraps os.ErrProcessDone where there is no such process.
func Observe(pid int, client func(Process) uint64) (Evidence, error) {
	return observe(pid, client, func(*Evidence) error { return nil })
}

func observe(pid int, client func(Process) uint64, container func(*Evidence) error) (Evidence, error) {
	now, err := procfs{}.status(pid)
	if err != nil {
		return Evidence{}, err
	}
	peer, life, err := find(Process{PID: pid, Start: now.start})
	if err != nil {
		return Evidence{}, err
	}
	defer life.Close()
	return evidence(peer, life, client, container)
}

// evidence gathers what is known of a process. client says of which lgpu a process is a client, or 0; container fills in
// which container it is in.
func evidence(peer Peer, life *life, client func(Process) uint64, container func(*Evidence) error) (Evidence, error) {
	e := Evidence{Peer: peer}
	var err error
	if e.Cgroups, err = Cgroups(peer.PID); err != nil {
		return Evidence{}, fmt.Errorf("cgroups of pid %d: %w", peer.PID, err)
	}
	line, err := ancestors(procfs{}, peer.Process, func(p Process) bool { return client(p) != 0 })
	if err != nil {
		return Evidence{}, fmt.Errorf("ancestors of pid %d: %w", peer.PID, err)
	}
	for _, p := range line {
		e.Ancestors = append(e.Ancestors, Ancestor{Process: p, LGPU: client(p)})
	}
	if err := container(&e); err != nil {
		return Evidence{}, err
	}
	if life.ended() {
		return Evidence{}, fmt.Errorf("pid %d: %w", peer.PID, errEnded)
	}
	return e, nil
}
