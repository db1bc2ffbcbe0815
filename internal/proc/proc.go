// Package proc identifies processes: what /proc says of a pid, and handles that stay with one process when its pid is
// used again.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Status is what /proc/PID/stat tells.
type Status struct {
	Parent int
	Start  uint64 // clock ticks since boot
	Comm   string // the program's short name; printable
	// Ended: it only waits to be reaped. One whose first thread has ended while others go on has not.
	Ended bool
	// Stopped: by a signal, until SIGCONT.
	Stopped bool
}

// Read reads the status of a process. An error wraps os.ErrProcessDone where there is no such process.
func Read(pid int) (Status, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Status{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return Status{}, err
	}
	s, err := parse(text)
	if err != nil {
		return Status{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return s, nil
}

// Live is Read for a process that is to live: the error wraps os.ErrProcessDone also where it has ended.
func Live(pid int) (Status, error) {
	s, err := Read(pid)
	if err == nil && s.Ended {
		return Status{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	}
	return s, err
}

// parse reads /proc/PID/stat. The second field is the program's name in parentheses and may contain anything, spaces
// and parentheses included.
func parse(text []byte) (Status, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Status{}, fmt.Errorf("status %q has no name", text)
	}
	fields := strings.Fields(string(text[end+1:])) // from the third of proc(5) on
	if len(fields) < 20 {
		return Status{}, fmt.Errorf("status has %d fields", len(fields)+2)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Status{}, fmt.Errorf("status: parent: %w", err)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return Status{}, fmt.Errorf("status: threads: %w", err)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Status{}, fmt.Errorf("status: start: %w", err)
	}
	dead := fields[0] == "Z" || fields[0] == "X"
	return Status{
		Parent: parent, Start: start, Comm: printable(text[open+1 : end]), Ended: dead && threads <= 1, Stopped: fields[0] == "T",
	}, nil
}

// Descendants returns the processes that descend from pid, parents before their children. pid is alive or a zombie of this
// process, so that none of the numbers can mean somebody else but in the moment after it was read.
func Descendants(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the only error is that of the pattern
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(text)) {
			if below, err := strconv.Atoi(word); err == nil {
				all = append(append(all, below), Descendants(below)...)
			}
		}
	}
	return all
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

// Handle refers to one process for good. One goroutine at a time may wait.
type Handle struct {
	PID   int
	pidfd *os.File
}

// Open returns a handle of the process with this pid, if it started then; 0 is any time. An error wraps
// os.ErrProcessDone if there is none.
func Open(pid int, start uint64) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	h := &Handle{PID: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	s, err := Read(pid)
	if err == nil && start != 0 && s.Start != start {
		err = fmt.Errorf("process %d is another one now: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close lets go.
func (h *Handle) Close() { h.pidfd.Close() }

// Signal sends a signal. That the process has ended is no error.
func (h *Handle) Signal(s unix.Signal) error {
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

// Ended says whether the process has ended. Until it says so, no other has its number. Any goroutine may ask.
func (h *Handle) Ended() bool {
	conn, err := h.pidfd.SyscallConn()
	if err != nil {
		return true // it is closed
	}
	ended := false
	if err := conn.Control(func(fd uintptr) { ended = readable(fd) }); err != nil {
		return true
	}
	return ended
}

// readable says whether the process of a pidfd has ended.
func readable(pidfd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// Wait returns nil once the process has ended, or why ctx has.
func (h *Handle) Wait(ctx context.Context) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = h.pidfd.SetReadDeadline(time.Now())
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
			_ = h.pidfd.SetReadDeadline(time.Time{}) // for the next Wait
		}
	}()
	conn, err := h.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	err = conn.Read(readable)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// WaitFor waits for the process's end at most so long, or until ctx ends, and reports whether it has ended.
func (h *Handle) WaitFor(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return h.Wait(ctx) == nil
}
