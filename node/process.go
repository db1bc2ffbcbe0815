package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/node/tenant"
)

// errGone: there is no such process any more.
var errGone = errors.New("the process has ended")

// status is what /proc/PID/stat tells of a live process.
type status struct {
	parent int
	start  uint64 // clock ticks since boot
	comm   string
}

// statusOf reads the state of a process; errGone if it does not live.
func statusOf(pid int) (status, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return status{}, fmt.Errorf("process %d: %w", pid, errGone)
	}
	if err != nil {
		return status{}, err
	}
	// The name, in parentheses, may hold anything, parentheses too.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return status{}, fmt.Errorf("process %d: its status has no name", pid)
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return status{}, fmt.Errorf("process %d: its status has %d fields", pid, len(fields)+2)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return status{}, fmt.Errorf("process %d: %w", pid, errGone)
	}
	s := status{comm: printable(text[open+1 : end])}
	if s.parent, err = strconv.Atoi(fields[1]); err != nil {
		return status{}, fmt.Errorf("process %d: parent: %w", pid, err)
	}
	if s.start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return status{}, fmt.Errorf("process %d: start: %w", pid, err)
	}
	return s, nil
}

// uidOf returns the user of a process, or 0 with false if it is gone.
func uidOf(pid int) (uint32, bool) {
	var stat unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &stat) != nil {
		return 0, false
	}
	return stat.Uid, true
}

// printable makes what a process calls itself harmless for a terminal.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b))
}

// cgroupText is /proc/PID/cgroup again.
func cgroupText(cgroups []tenant.Cgroup) []byte {
	var b bytes.Buffer
	for i, c := range cgroups {
		hierarchy := i + 1
		if c.Controllers == "" {
			hierarchy = 0
		}
		fmt.Fprintf(&b, "%d:%s:%s\n", hierarchy, c.Controllers, c.Path)
	}
	return b.Bytes()
}

// bootID tells this boot of the machine from all others.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// handle is a hold on one process that no other can take the place of.
type handle struct{ pidfd *os.File }

// openProcess takes hold of a process that started then; errGone if it does not live any more.
func openProcess(p tenant.Process) (*handle, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("process %d: %w", p.PID, errGone)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	h := &handle{os.NewFile(uintptr(fd), "pidfd")}
	if s, err := statusOf(p.PID); err != nil || s.start != p.Start {
		h.close()
		return nil, fmt.Errorf("process %d: %w", p.PID, errGone)
	}
	return h, nil
}

func (h *handle) close() { h.pidfd.Close() }

// signal sends a signal. That the process has ended is no error.
func (h *handle) signal(s unix.Signal) error {
	conn, err := h.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(failed, unix.ESRCH) {
		return nil
	}
	return failed
}

// wait returns nil once the process has ended, or ctx's error.
func (h *handle) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = h.pidfd.SetReadDeadline(time.Now()) })
	defer stop()
	conn, err := h.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// waitFor waits for the process's end at most so long, or until ctx ends, and reports whether it has ended.
func (h *handle) waitFor(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return h.wait(ctx) == nil
}
