package criu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/checkpoint"
)

// Within is a program that is to be written, and what does not lead out of it.
type Within struct {
	Processes []int    // all of it
	Streams   []Stream // which it is given again
	Contained bool     // all may be in the mount namespace of the first, which whoever restores them makes anew
	Clients   []int32  // of the daemon: they give up their devices
}

// Outside looks for what a program has that leads out of it, and that CRIU would not write, or not bring back as it was. What
// CRIU names itself, such as sockets to other processes, is left to it. A process that has just ended has nothing.
func (p Program) Outside(ctx context.Context, w Within) ([]checkpoint.Found, error) {
	return around(w, func() (bool, error) { return p.sockets(ctx) })
}

// around is Outside with a CRIU that says whether it dumps sockets that are not credible. It is asked if there are some.
func around(w Within, sockets func() (bool, error)) ([]checkpoint.Found, error) {
	o := &outside{Within: w, sockets: sync.OnceValues(sockets), given: map[string]bool{}, ends: map[string]*pipe{}, like: "self"}
	if w.Contained {
		o.like = strconv.Itoa(w.Processes[0])
	}
	for _, s := range w.Streams {
		o.given[s.Key] = s.Key != ""
	}
	for _, pid := range w.Processes {
		if err := o.look(pid); err != nil && alive(pid) {
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
	Within
	sockets func() (bool, error) // whether CRIU dumps those that are not credible
	like    string               // the process whose mount namespace they must have, as /proc names it
	given   map[string]bool      // streams
	ends    map[string]*pipe
	pipes   []string // those of ends, in their order
	found   []checkpoint.Found
}

// pipe is one that some of the processes have.
type pipe struct {
	pid, fd       int // who has it
	read, written bool
}

func (o *outside) add(pid int, what checkpoint.Hindrance, name string) {
	o.found = append(o.found, checkpoint.Found{Process: pid, Hindrance: what, Name: name})
}

// namespaces are those that a program must share with this process, or of mounts with outside.like.
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
		like := "self"
		if n.name == "mnt" {
			like = o.like
		}
		if want, err := os.Readlink(filepath.Join("/proc", like, "ns", n.name)); err != nil || want != its {
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
	fds, err := descriptors(pid)
	if err != nil {
		return err
	}
	connected, err := connections(folder)
	if err != nil {
		return err
	}
	mounts, err := mountsOf(pid)
	if err != nil {
		return err
	}
	device := ""
	for _, fd := range fds {
		name, err := os.Readlink(filepath.Join(folder, "fd", strconv.Itoa(fd)))
		switch {
		case err != nil || o.given[name]: // it has just been closed
		case name == "anon_inode:[io_uring]":
			o.add(pid, checkpoint.IOURing, fmt.Sprintf("descriptor %d", fd))
		case strings.HasPrefix(name, "pipe:["):
			o.pipe(pid, fd, name)
		case strings.HasPrefix(name, deviceFile):
			device = name
		case name[0] == '/' && !o.findable(pid, fd, name, mounts):
			o.add(pid, checkpoint.OpenFile, fmt.Sprintf("%s, descriptor %d", name, fd))
		case strings.HasPrefix(name, "socket:[") && (connected[name] || fd < 3):
			o.add(pid, checkpoint.OpenFile, fmt.Sprintf("%s, descriptor %d", name, fd))
		case strings.HasPrefix(name, "socket:[") && !credibleOf(pid, fd):
			if dumped, err := o.sockets(); err != nil {
				return err
			} else if !dumped {
				o.add(pid, checkpoint.Socket, fmt.Sprintf("%s, descriptor %d", name, fd))
			}
		}
	}
	if device != "" && !slices.Contains(o.Clients, int32(pid)) {
		o.add(pid, checkpoint.DeviceFiles, device)
	}
	return nil
}

// deviceFile begins the names of the files of NVIDIA's driver.
const deviceFile = "/dev/nvidia"

// Beginnings of the names of files that never had one, in memory (memfd_create(2)) or, in any folder, of others (O_TMPFILE),
// as are those with what has left devices: CRIU writes the former, and is told of the latter, or refuses them.
const memoryFile, namelessFile = "/memfd:", "#"

// findable says whether CRIU finds a file where the process has it, or need not.
func (o *outside) findable(pid, fd int, name string, mounts map[int]bool) bool {
	mount := descriptorNumber(pid, fd, "mnt_id", 10)
	var st unix.Stat_t
	if mounts[mount] || strings.HasPrefix(name, memoryFile) || strings.HasPrefix(filepath.Base(name), namelessFile) ||
		unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), &st) != nil {
		return true
	}
	_, key := externalFile(mount, &st)
	return o.given[key] || stream(fd, name, &st).Kind == KindTerminal
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
	return descriptorNumber(pid, fd, "flags", 8)
}

// descriptorNumber is a number of a descriptor as /proc says it; 0 if it has been closed.
func descriptorNumber(pid, fd int, name string, base int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut("\n"+string(text), "\n"+name+":")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(line), base, 64)
	if err != nil {
		return 0
	}
	return int(n)
}

// mountsOf are the numbers of the mounts that a process has. Those of its files are others where these were opened in another
// mount namespace, and CRIU knows nothing of them.
func mountsOf(pid int) (map[int]bool, error) {
	mounts, err := proc.Mounts(pid)
	all := map[int]bool{}
	for _, m := range mounts {
		all[m.Number] = true
	}
	return all, err
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
