package criu

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// After says what becomes of a program that was dumped.
type After int

// What can become of it.
const (
	Killed  After = iota // the image has it now
	Running              // as it was
	Stopped              // by SIGSTOP
)

// Dump is a request to write a program to files.
type Dump struct {
	PID   int    // the root of its tree; all processes below it are dumped
	Dir   string // an empty folder for the files
	After After
	// External are things outside of the tree that a restore is given again, as CRIU's option --external names them.
	External []string
	// Terminal says that its session is another's: that it is a job of a shell, or of lgpu run.
	Terminal bool
	// Hold stays open as long as CRIU runs, even where this process ends before. May be nil.
	Hold *os.File
}

// ghostLimit is the most that a file may have which is open and has no name any more, bytes: it is copied.
const ghostLimit = 1 << 30

// Dump writes a program to files. If that fails, the program goes on. If ctx ends, it may come to its end all the same, which
// is no error.
func (p Program) Dump(ctx context.Context, d Dump) error {
	if err := p.able(ctx); err != nil {
		return fmt.Errorf("dump process %d: %w", d.PID, err)
	}
	if leader(d.PID) != d.PID {
		return fmt.Errorf("dump process %d: there is no such process; threads cannot be dumped", d.PID)
	}
	dir, err := os.OpenFile(d.Dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("dump process %d: %w", d.PID, err)
	}
	defer dir.Close()
	o := options(ctx, dir)
	o.number(optPID, int64(d.PID))
	o.flag(optLeaveRunning, d.After == Running)
	o.flag(optLeaveStopped, d.After == Stopped)
	o.flag(optShellJob, d.Terminal)
	o.flag(optFileLocks, true)
	o.flag(optTCPClose, true)
	o.number(optGhostLimit, ghostLimit)
	for _, name := range d.External {
		o.text(optExternal, name)
	}
	var hold []*os.File
	if d.Hold != nil {
		hold = append(hold, d.Hold)
	}
	_, err = p.ask(ctx, "dump", requestDump, o, hold...)
	if err := logged(err, d.Dir); err != nil {
		return fmt.Errorf("dump process %d: %w", d.PID, err)
	}
	return nil
}

// leader is the process of a thread; 0 if there is none.
func leader(tid int) int { return statusNumber(tid, "Tgid") }

// Stream is one of the standard streams of a process.
type Stream struct {
	FD   int
	Kind string // "pipe", "file", "terminal", "socket" …
	// Key is what the stream is called in Restore.Inherit; two that are the same have the same. Empty: it cannot be given again,
	// or need not, such as /dev/null.
	Key string
	// External is for Dump.External; empty for what need not be named.
	External string
}

// Streams looks at the standard streams of a process, those that are open.
func Streams(pid int) ([]Stream, error) {
	var all []Stream
	for fd := range 3 {
		path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
		name, err := os.Readlink(path)
		if os.IsNotExist(err) && leader(pid) == pid {
			continue // it is closed
		} else if err != nil {
			return nil, fmt.Errorf("streams of process %d: %w", pid, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, fmt.Errorf("streams of process %d: %w", pid, err)
		}
		all = append(all, stream(fd, name, &st))
	}
	return all, nil
}

// ptsMajors are the numbers of devices that are terminals of programs, such as those of ssh.
const firstPTS, lastPTS = 136, 143

// stream says what a descriptor is that the kernel shows as name.
func stream(fd int, name string, st *unix.Stat_t) Stream {
	s := Stream{FD: fd}
	major := unix.Major(st.Rdev)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		s.Kind, s.Key = "pipe", name
		if name[0] == '/' { // it has a name, as a file has
			s.Key = name[1:]
		}
	case unix.S_IFREG:
		s.Kind, s.Key = "file", name[1:] // CRIU's names have no slash in front
	case unix.S_IFCHR:
		s.Kind = "device"
		if major >= firstPTS && major <= lastPTS {
			s.Kind, s.Key = "terminal", fmt.Sprintf("tty[%x:%x]", st.Rdev, st.Dev)
			s.External = s.Key
		}
	case unix.S_IFSOCK:
		s.Kind = "socket"
	default:
		s.Kind = "other"
	}
	return s
}

// External are the names of streams for Dump.External.
func External(streams []Stream) []string {
	var all []string
	for _, s := range streams {
		if s.External != "" {
			all = append(all, s.External)
		}
	}
	return all
}
