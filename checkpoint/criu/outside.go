package criu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/policy/checkpoint"
)

// Outside looks for what a program has that leads out of it, and that CRIU would not write, or not bring back as it was:
// processes are all of it, and streams what it is given again. What CRIU names itself, such as sockets to other processes, is
// left to it. A process that has just ended has nothing.
func Outside(processes []int, streams []Stream) ([]checkpoint.Found, error) {
	o := &outside{given: map[string]bool{}, ends: map[string]*pipe{}}
	for _, s := range streams {
		o.given[s.Key] = s.Key != ""
	}
	for _, pid := range processes {
		if err := o.look(pid); err != nil && leader(pid) == pid {
			return nil, fmt.Errorf("look at process %d: %w", pid, err)
		}
	}
	for _, name := range o.pipes {
		if p := o.ends[name]; !p.read || !p.written {
			o.add(p.pid, checkpoint.OpenFile, fmt.Sprintf("%s, descriptor %d", name, p.fd))
		}
	}
	return o.found, nil
}

// outside is what has been found so far.
type outside struct {
	given map[string]bool // streams
	ends  map[string]*pipe
	pipes []string // those of ends, in their order
	found []checkpoint.Found
}

// pipe is one that some of the processes have.
type pipe struct {
	pid, fd       int // who has it
	read, written bool
}

func (o *outside) add(pid int, what checkpoint.Hindrance, name string) {
	o.found = append(o.found, checkpoint.Found{Process: pid, Hindrance: what, Name: name})
}

// namespaces are those that a program must share with this process.
var namespaces = []struct {
	name string
	what checkpoint.Hindrance
}{
	{"mnt", checkpoint.Contained}, {"pid", checkpoint.Namespace}, {"user", checkpoint.Namespace}, {"net", checkpoint.Namespace},
	{"ipc", checkpoint.Namespace}, {"uts", checkpoint.Namespace},
}

func (o *outside) look(pid int) error {
	folder := fmt.Sprintf("/proc/%d", pid)
	for _, n := range namespaces {
		its, err := os.Readlink(filepath.Join(folder, "ns", n.name))
		if err != nil {
			return err
		}
		if own, err := os.Readlink("/proc/self/ns/" + n.name); err != nil || own != its {
			o.add(pid, n.what, n.name)
			return nil // all of the rest would be seen from outside
		}
	}
	if session, err := unix.Getsid(pid); err != nil {
		return err
	} else if session == 0 {
		o.add(pid, checkpoint.Session, "")
	}
	if tracer := statusNumber(pid, "TracerPid"); tracer != 0 {
		o.add(pid, checkpoint.Traced, fmt.Sprintf("%d, %s", tracer, called(tracer)))
	}
	maps, err := os.ReadFile(filepath.Join(folder, "maps"))
	if err != nil {
		return err
	}
	if bytes.Contains(maps, []byte("/liblshmem.so")) {
		o.add(pid, checkpoint.SymmetricHeap, "")
	}
	return o.files(pid, folder)
}

// files looks at what a process has open.
func (o *outside) files(pid int, folder string) error {
	entries, err := os.ReadDir(filepath.Join(folder, "fd"))
	if err != nil {
		return err
	}
	connected, err := connections(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := os.Readlink(filepath.Join(folder, "fd", e.Name()))
		switch {
		case err != nil || o.given[name]: // it has just been closed
		case name == "anon_inode:[io_uring]":
			o.add(pid, checkpoint.IOURing, fmt.Sprintf("descriptor %d", fd))
		case strings.HasPrefix(name, "pipe:["):
			o.pipe(pid, fd, name)
		case strings.HasPrefix(name, "socket:[") && (connected[name] || fd < 3):
			o.add(pid, checkpoint.OpenFile, fmt.Sprintf("%s, descriptor %d", name, fd))
		}
	}
	return nil
}

// pipe notes an end of a pipe.
func (o *outside) pipe(pid, fd int, name string) {
	p := o.ends[name]
	if p == nil {
		p = &pipe{pid: pid, fd: fd}
		o.ends[name] = p
		o.pipes = append(o.pipes, name)
	}
	mode := flagsOf(pid, fd) & unix.O_ACCMODE
	p.read = p.read || mode != unix.O_WRONLY
	p.written = p.written || mode != unix.O_RDONLY
}

// flagsOf are those with which a descriptor was opened; 0 if it has been closed.
func flagsOf(pid, fd int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "flags:")
	line, _, _ := strings.Cut(after, "\n")
	flags, err := strconv.ParseInt(strings.TrimSpace(line), 8, 64)
	if err != nil {
		return 0
	}
	return int(flags)
}

// listening is the state of a TCP socket that waits for connections.
const listening = "0A"

// connections are the TCP sockets in a process's network that are not only listened to, as the links to them read.
func connections(folder string) (map[string]bool, error) {
	all := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(folder, "net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if words := strings.Fields(lines.Text()); len(words) > 9 && words[3] != listening {
				all["socket:["+words[9]+"]"] = true
			}
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, err
		}
	}
	return all, nil
}
