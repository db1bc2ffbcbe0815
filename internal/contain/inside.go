package contain

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// noteFile is the file of a namespace that says which one it is, as /proc names it, and what Make looked at: Plan.Kept. There
// are zero bytes between.
const noteFile = "note"

// Inside is the namespace that a process is contained in, as another process sees it.
type Inside struct {
	// Environment is what Options.Environment must have for a namespace like it.
	Environment []string
}

// Of returns the namespace that a process is contained in; nil if it is in none that Start has made, or in one with a user
// namespace of its own. Only who may read the process's root folder can ask, such as root.
func Of(pid int) (*Inside, error) {
	user, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return nil, err
	}
	if own, err := os.Readlink("/proc/self/ns/user"); err != nil || own != user {
		return nil, err
	}
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, err
	}
	if own, err := os.Readlink("/proc/self/ns/mnt"); err != nil || own == namespace {
		return nil, err
	}
	mounts, err := proc.Mounts(pid)
	if err != nil {
		return nil, err
	}
	dir := ""
	for _, m := range mounts {
		if m.Kind == "tmpfs" && m.Source == mountSource && m.Root == "/" {
			dir = m.Point
		}
	}
	if dir == "" {
		return nil, nil
	}
	text, err := readSmall(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), dir, noteFile))
	if err != nil {
		return nil, fmt.Errorf("the namespace of process %d: %w", pid, err)
	}
	words := strings.Split(text, "\x00")
	if words[0] != namespace { // the program has made one of its own from it
		return nil, nil
	}
	return &Inside{Environment: words[1:]}, nil
}

// maxNote bounds noteFile in bytes: the kernel allows one variable as much.
const maxNote = 128 << 10

// readSmall reads a regular file.
func readSmall(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxNote) {
		err = fmt.Errorf("%s is not what lgpu writes", path)
	}
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	return string(text), err
}

// Held is a namespace in which there is no program yet.
type Held struct {
	process *os.Process
	open    *os.File // it stays as long as this is open
}

// Hold builds a namespace, for processes that enter it. It is in no cgroup of the plan. The error is *Impossible where the
// kernel does not permit it.
func (p *Plan) Hold() (*Held, error) {
	q := *p
	q.Program, q.Cgroup, q.Tasks, q.Holds = "", "", "", true
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("hold a namespace: %w", err)
	}
	s, err := q.start(&os.ProcAttr{Files: []*os.File{read}})
	read.Close()
	if err == nil {
		err = s.Confirm()
	}
	if err != nil {
		write.Close()
		return nil, err
	}
	return &Held{s.Process, write}, nil
}

// PID is a process that is in the namespace.
func (h *Held) PID() int { return h.process.Pid }

// Root is the namespace's root folder, for who may look into it.
func (h *Held) Root() string { return fmt.Sprintf("/proc/%d/root", h.process.Pid) }

// Close gives the namespace up. It goes with the last process that is in it.
func (h *Held) Close() {
	h.open.Close()
	_, _ = h.process.Wait() // it has nothing to say
}
