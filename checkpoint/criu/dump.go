package criu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

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
	// Mounts is a process in whose mount namespace CRIU works, as all of the tree does; 0: in that of this one.
	Mounts int
	// Hold stays open as long as CRIU runs, even where this process ends before. May be nil.
	Hold *os.File
	// Named, if it is not nil, is called when all but memory of processes is written, while they stand still, with the names of
	// the files in memory that they have (see NamedIn), which are not in the image, and their folder. An error ends the dump, and
	// is its error.
	Named func(folder *os.File, names []string) error
	// Still, if it is not nil, has CRIU write next to no memory of processes. It is called when all else is written, while they
	// stand still and run no code of CRIU's, and has that memory from PagesIn and Pages.Open. An error ends the dump, and is its
	// error.
	Still func() error
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
	err := p.dump(ctx, d, d.Still != nil)
	if errors.Is(err, errNowhere) {
		if err = empty(d.Dir); err == nil {
			err = p.dump(ctx, d, false)
		}
	}
	if err != nil {
		return fmt.Errorf("dump process %d: %w", d.PID, err)
	}
	return nil
}

// options are those of the dump.
func (d *Dump) options(ctx context.Context, dir *os.File) message {
	o := options(ctx, dir)
	o.number(optPID, int64(d.PID))
	o.flag(optLeaveRunning, d.After == Running)
	o.flag(optLeaveStopped, d.After == Stopped)
	o.flag(optShellJob, d.Terminal)
	o.flag(optFileLocks, true)
	o.flag(optTCPClose, true)
	o.flag(optLinkRemap, true)
	o.flag(optNotices, true)
	o.number(optGhostLimit, ghostLimit)
	for _, name := range d.External {
		o.text(optExternal, name)
	}
	return o
}

// dump is Dump, or with nowhere without memory.
func (p Program) dump(ctx context.Context, d Dump, nowhere bool) (err error) {
	dir, err := os.OpenFile(d.Dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	pids := family(d.PID)
	if err := writeThreads(d.Dir, pids); err != nil {
		return err
	}
	var files []*os.File
	if d.Hold != nil {
		files = append(files, d.Hold)
	}
	if nowhere {
		var null *os.File
		if null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			return err
		}
		defer null.Close()
		files = append(files, null)
		var shared map[uint64]string
		if shared, err = sharedMemory(pids); err != nil {
			return err
		}
		var remove func() error
		if remove, err = leadNowhere(d.Dir, len(pids)+len(shared), firstInherited+len(files)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	l, err := newLinks(&d, pids)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.remove(family(d.PID))) }()
	hear := func(notice string) error {
		if notice != written {
			return nil
		}
		if nowhere {
			shared, err := sharedMemory(family(d.PID)) // as it is now
			if err == nil {
				err = leadToShared(d.Dir, shared)
			}
			if err != nil {
				return err
			}
		}
		if err := d.name(l); err != nil || d.Still == nil {
			return err
		}
		return d.Still()
	}
	_, err = p.ask(ctx, "dump", requestDump, d.options(ctx, dir), place{mounts: d.Mounts}, hear, files...)
	return logged(err, d.Dir)
}

// name sees to it that the image names files by names that they have, and that those in memory are written.
func (d *Dump) name(l *links) error {
	if err := l.relink(d.Dir); err != nil || d.Named == nil {
		return err
	}
	folder, err := OpenNamed(l.root)
	if err != nil || folder == nil {
		return err
	}
	defer folder.Close()
	names, err := NamedIn(d.Dir)
	if err != nil || len(names) == 0 {
		return err
	}
	return d.Named(folder, names)
}

// A CRIU that is killed while it has its code in a program may take the program with it: a trap that was meant for CRIU is
// delivered to the program then, and nothing can be done about it any more. So CRIU gets what can be had against that.

// deaf starts a command that signals by which one asks for an end do not reach; giveUp has others.
var deaf = []string{"/bin/sh", "-c", `trap "" HUP INT QUIT TERM; exec "$@"`, "sh"}

// shelter has a process not be chosen where the machine or a group has no memory left, and run before others, so that it has its
// code in a program for a shorter time. A machine where that is forbidden does without.
func shelter(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("-1000"), 0)
	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, -20)
}

// leader is the process of a thread; 0 if there is none.
func leader(tid int) int { return statusNumber(tid, "Tgid") }

// Stream is one of the standard streams of a process.
type Stream struct {
	FD   int
	Kind string // "pipe", "file", "terminal", "socket" …
	// Key is what the stream is called in Restore.Inherit; two that are the same have the same. Empty: it cannot be given again,
	// or need not, such as /dev/null; and for a terminal, in whose place Restore.TTY is.
	Key string
	// External is for Dump.External; empty for what need not be named.
	External string
	// Path is that of what whoever restores opens anew: a device other than a terminal, or a file that is no standard stream.
	Path string
	// Flags are those with which it is to be opened (open(2)), of what is no standard stream.
	Flags int
}

// Streams looks at the standard streams that a process has from its launcher, which may be at other descriptors of it by now, as
// a shell's are that reads from a file for a while. What it has opened itself is none of them. Without a launcher, 0, they are
// those that it has.
func Streams(pid, launcher int) ([]Stream, error) {
	mounts, err := mountsOf(pid)
	if err != nil {
		return nil, fmt.Errorf("streams of process %d: %w", pid, err)
	}
	from := cmp.Or(launcher, pid)
	var all []Stream
	for fd := range 3 {
		path := fmt.Sprintf("/proc/%d/fd/%d", from, fd)
		name, err := os.Readlink(path)
		if os.IsNotExist(err) && leader(from) == from {
			continue // it is closed
		} else if err != nil {
			return nil, fmt.Errorf("streams of process %d: %w", from, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, fmt.Errorf("streams of process %d: %w", from, err)
		}
		s := stream(fd, name, &st)
		if mount := descriptorNumber(from, fd, "mnt_id", 10); name[0] == '/' && s.Kind != KindTerminal && !mounts[mount] {
			s.External, s.Key = externalFile(mount, &st)
		}
		all = append(all, s)
	}
	return all, nil
}

// Inherited are what processes have, beside streams, from elsewhere: files that were opened in another mount namespace than
// theirs, as what a contained program has from its launcher, and which can be opened anew by their paths; and one terminal, if
// none is among streams. A terminal that the processes have made themselves is CRIU's to write. Other files from elsewhere, such
// as deleted ones, are left to Outside.
func Inherited(processes []int, streams []Stream) (all []Stream, err error) {
	given := map[string]bool{}
	terminal, own := false, ownTerminals(processes)
	for _, s := range streams {
		given[s.Key] = s.Key != ""
		terminal = terminal || s.Kind == KindTerminal
	}
	for _, pid := range processes {
		mounts, err := mountsOf(pid)
		var fds []int
		if err == nil {
			fds, err = descriptors(pid)
		}
		if err != nil && alive(pid) {
			return nil, fmt.Errorf("files of process %d: %w", pid, err)
		}
		for _, fd := range fds {
			path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
			var st, named unix.Stat_t
			name, err := os.Readlink(path)
			mount := descriptorNumber(pid, fd, "mnt_id", 10)
			if err != nil || name[0] != '/' || unix.Stat(path, &st) != nil {
				continue
			}
			s := stream(fd, name, &st)
			if s.Kind == KindTerminal && !terminal && !own[int(unix.Minor(st.Rdev))] {
				terminal = true
				all = append(all, s)
			}
			s.External, s.Key = externalFile(mount, &st)
			if s.Kind == KindTerminal || mounts[mount] || given[s.Key] ||
				unix.Stat(name, &named) != nil || named.Dev != st.Dev || named.Ino != st.Ino {
				continue
			}
			s.Path, s.Flags = name, flagsOf(pid, fd)
			i := slices.IndexFunc(all, func(o Stream) bool { return o.Key == s.Key })
			if i < 0 {
				all = append(all, s)
			} else if (all[i].Flags^s.Flags)&unix.O_ACCMODE != 0 { // both are given the same
				all[i].Flags = all[i].Flags&^unix.O_ACCMODE | unix.O_RDWR
			}
		}
	}
	return all, nil
}

// ownTerminals are the numbers of the terminals of which processes have the other end, as script(1) and tmux do.
func ownTerminals(processes []int) map[int]bool {
	all := map[int]bool{}
	for _, pid := range processes {
		fds, _ := descriptors(pid) // one that has just ended has none
		for _, fd := range fds {
			var st unix.Stat_t
			if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), &st) == nil && st.Rdev == unix.Mkdev(ptmxMajor, ptmxMinor) {
				all[descriptorNumber(pid, fd, "tty-index", 10)] = true
			}
		}
	}
	return all
}

// descriptors are the numbers of what a process has open.
func descriptors(pid int) (all []int, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, fd)
		}
	}
	return all, err
}

// Open opens what Path names, a file at a position in bytes (see Positions).
func (s Stream) Open(position int64) (*os.File, error) {
	if s.Kind == "device" { // such as /dev/null, which may be read from here and written to there
		if f, err := os.OpenFile(s.Path, os.O_RDWR, 0); err == nil {
			return f, nil
		}
	}
	// With O_NONBLOCK a pipe of which the other end is not open does not hold this up.
	const once = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_NOFOLLOW | unix.O_PATH | unix.O_TMPFILE
	f, err := os.OpenFile(s.Path, s.Flags&^once|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if s.Flags&unix.O_NONBLOCK == 0 {
		err = unix.SetNonblock(int(f.Fd()), false)
	}
	if s.Kind == "file" && err == nil {
		_, err = f.Seek(position, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// externalFile is what CRIU calls a file that it is to know nothing more of, and its Stream.Key. That is the same name without
// the first letter, as files have theirs without the first slash: what is given in its place under the key is taken as it is, and
// under the name it is opened anew, at the same offset, and must be as long.
func externalFile(mount int, st *unix.Stat_t) (name, key string) {
	name = fmt.Sprintf("file[%x:%x]", mount, st.Ino)
	return name, name[1:]
}

// KindTerminal is the Stream.Kind of a terminal.
const KindTerminal = "terminal"

// These are the first and last numbers of devices that are terminals of programs, such as those of ssh.
const firstPTS, lastPTS = 136, 143

// ptmxMajor and ptmxMinor are the device of all other ends of these (/dev/ptmx).
const ptmxMajor, ptmxMinor = 5, 2

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
			s.Kind = KindTerminal
		} else {
			s.Path = name
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
