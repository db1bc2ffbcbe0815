// Package dmem has the kernel bound the device memory of lgpus: each has a cgroup with limits of the controller dmem
// (Linux 6.14), to which drivers charge what a process allocates, however it asks for it. NVIDIA's do from r615 on.
//
//	tree, err := dmem.Open("/sys/fs/cgroup/lgpu")
//	err = tree.Set(id, []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: 8 << 30}})
//	err = tree.Join(id, pid) // and all that it starts from now on
//	…
//	tree.Remove(id)
//
// The cgroups are the folders below one that is given to Open, and are called by the ids of the lgpus. They outlive the
// process, so that a bound never ends before its programs do; Sweep removes those that are left. All is for root, and may
// be called by any number of goroutines.
//
// Formats: Documentation/admin-guide/cgroup-v2.rst of Linux, "DMEM" and "Core Interface Files".
package dmem

import (
	"bytes"
	"cmp"
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
)

// Errors of Open, wrapped with the folder that they are about.
var (
	// ErrNoController: the kernel has no controller dmem, or this is a container, which does not see it.
	ErrNoController = errors.New("the controller dmem is not there")
	// ErrNoHierarchy: a folder is not in the hierarchy of cgroups of version 2.
	ErrNoHierarchy = errors.New("not in a hierarchy of cgroups of version 2")
)

// Names of files of a cgroup.
const (
	capacityFile = "dmem.capacity" // at the root alone
	maxFile      = "dmem.max"
	procsFile    = "cgroup.procs"
	enableFile   = "cgroup.subtree_control"
)

// Unlimited is a Limit's Bytes where there is none.
const Unlimited = ^uint64(0)

// Region is memory that a driver has made known to the controller.
type Region struct {
	Name  string // such as nvidia/00000000:1b:00.0/vidmem, or drm/0000:03:00.0/vram0
	Bytes uint64
}

// Limit is how much of a device's memory the processes of a cgroup may have together.
type Limit struct {
	PCI   string // address of the device, such as 0000:1b:00.0
	Bytes uint64 // or Unlimited
}

// Tree are the cgroups below a folder.
type Tree struct {
	dir, root string

	mu     sync.Mutex
	active map[uint64]bool // guarded by mu; that were set and not removed
	left   bool            // guarded by mu; there may be cgroups that are not active
}

// Open makes the folder dir a cgroup, if it is none yet, in which each lgpu can have a cgroup with limits. The controller
// is enabled from the root of the hierarchy on; none of the cgroups between the root and those of lgpus may have
// processes of its own.
func Open(dir string) (*Tree, error) {
	dir = filepath.Clean(dir)
	above := dir
	for above != "/" && !isCgroup(above) {
		if _, err := os.Lstat(above); err == nil {
			break // a folder of another file system
		}
		above = filepath.Dir(above)
	}
	if !isCgroup(above) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoHierarchy)
	}
	root := above
	for isCgroup(filepath.Dir(root)) {
		root = filepath.Dir(root)
	}
	t := &Tree{dir: dir, root: root, active: map[uint64]bool{}, left: true}
	if dir == root {
		return nil, fmt.Errorf("%s is the root of the hierarchy: name a folder below it", dir)
	}
	if _, err := t.Regions(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cgroup of all lgpus: %w", err)
	}
	below, _ := filepath.Rel(root, dir) // both are absolute, and dir is below
	at := root
	for _, name := range append(strings.Split(below, "/"), "") {
		if err := write(filepath.Join(at, enableFile), "+dmem"); err != nil {
			return nil, fmt.Errorf("enable the controller dmem: %w", err)
		}
		at = filepath.Join(at, name)
	}
	return t, nil
}

// isCgroup reports whether a folder is a cgroup of version 2.
func isCgroup(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, enableFile))
	return err == nil
}

// Dir is the folder of all lgpus' cgroups.
func (t *Tree) Dir() string { return t.dir }

// Regions returns what drivers have made known. Devices come and go.
func (t *Tree) Regions() ([]Region, error) {
	text, err := os.ReadFile(filepath.Join(t.root, capacityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", t.root, ErrNoController)
	}
	if err != nil {
		return nil, fmt.Errorf("read the regions of device memory: %w", err)
	}
	return ParseRegions(text), nil
}

// ParseRegions reads a file of lines of a region and a number of bytes. Other lines are left out.
func ParseRegions(text []byte) []Region {
	var all []Region
	for line := range bytes.Lines(text) {
		name, number, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if size, err := strconv.ParseUint(number, 10, 64); err == nil && name != "" {
			all = append(all, Region{name, size})
		}
	}
	return all
}

// Find returns the region of a device: the largest whose name has the device's PCI address as a part.
func Find(all []Region, pci string) (Region, bool) {
	want := address(pci)
	var of []Region
	for _, r := range all {
		if want != "" && slices.ContainsFunc(strings.Split(r.Name, "/"), func(part string) bool { return address(part) == want }) {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return Region{}, false
	}
	return slices.MaxFunc(of, func(a, b Region) int { return cmp.Compare(a.Bytes, b.Bytes) }), true
}

// address is a PCI address in the form in which two can be compared: drivers write the domain with 4 or 8 digits. It is
// empty for what is none.
func address(text string) string {
	domain, rest, found := strings.Cut(strings.ToLower(text), ":")
	n, err := strconv.ParseUint(domain, 16, 32)
	if !found || err != nil || len(rest) != len("1b:00.0") {
		return ""
	}
	return fmt.Sprintf("%08x:%s", n, rest)
}

// cgroup is the folder of an lgpu.
func (t *Tree) cgroup(id uint64) string { return filepath.Join(t.dir, fmt.Sprintf("%016x", id)) }

// Set makes an lgpu's cgroup, if there is none, and sets its limits. Devices of which no driver has made a region known
// are returned; for them nothing holds.
func (t *Tree) Set(id uint64, limits []Limit) (unknown []Limit, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, err := t.Regions()
	if err != nil {
		return nil, err
	}
	dir := t.cgroup(id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	t.active[id] = true
	for _, l := range limits {
		r, found := Find(all, l.PCI)
		if !found {
			unknown = append(unknown, l)
			continue
		}
		value := "max"
		if l.Bytes != Unlimited {
			value = strconv.FormatUint(l.Bytes, 10)
		}
		if err := write(filepath.Join(dir, maxFile), r.Name+" "+value); err != nil {
			return unknown, fmt.Errorf("bound the memory of %s: %w", l.PCI, err)
		}
	}
	return unknown, nil
}

// Join moves a process into an lgpu's cgroup. What it starts from then on is there, too.
func (t *Tree) Join(id uint64, pid int) error {
	if err := write(filepath.Join(t.cgroup(id), procsFile), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("move process %d into a cgroup: %w", pid, err)
	}
	return nil
}

// Remove removes an lgpu's cgroup. One that still has processes goes at a later Sweep, and bounds them until then.
func (t *Tree) Remove(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.active, id)
	t.left = t.left || remove(t.cgroup(id)) != nil
}

// Sweep removes cgroups that no lgpu has, of this process or one before, unless they have processes. It costs nothing
// while there can be none.
func (t *Tree) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left {
		return
	}
	t.left = false
	entries, _ := os.ReadDir(t.dir) // what cannot be read cannot be removed
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 16, 64)
		if err == nil && e.IsDir() && len(e.Name()) == 16 && !t.active[id] && remove(filepath.Join(t.dir, e.Name())) != nil {
			t.left = true
		}
	}
}

// remove removes a cgroup and those below, which programs have made. It is refused where one has processes.
func remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// write writes a line into a file of a cgroup, which exists: the kernel takes each write as one command.
func write(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
