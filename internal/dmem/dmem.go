// Package dmem has the kernel bound the device memory of lgpus: each has a cgroup with limits of the controller dmem
// (Linux 6.14), to which drivers charge what a process allocates, however it asks for it. NVIDIA's do from r615 on. Groups
// of lgpus have cgroups, too, whose limits bound the sum of what is below them.
//
//	tree, err := dmem.Open("/sys/fs/cgroup/lgpu")
//	err = tree.SetGroup(dmem.Path{team}, []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: 16 << 30}})
//	err = tree.Set(dmem.Path{team, id}, []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: 8 << 30}})
//	err = tree.Join(id, pid) // and all that it starts from now on
//	…
//	tree.Remove(id)
//
// The cgroups lie below the folder that is given to Open as the lgpus do in the tree of limits, and are called by ids. They
// outlive the process, so that a bound never ends before its programs do; Sweep removes those that are left. All is for
// root, and may be called by any number of goroutines.
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
	active map[uint64]string // guarded by mu; the cgroups of lgpus that were set and not removed
	left   bool              // guarded by mu; there may be cgroups that are of no active lgpu, nor above one
}

// Path is where an lgpu or a group is: the ids of the groups above it from the top, and its own. The root of all has none.
type Path []uint64

// Open makes the folder dir a cgroup, if it is none yet, in which lgpus and groups can have cgroups with limits. The
// controller is enabled from the root of the hierarchy on; none of the cgroups between the root and those of lgpus may
// have processes of its own.
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
	t := &Tree{dir: dir, root: root, active: map[uint64]string{}, left: true}
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

// groupSuffix ends the name of a group's cgroup: a directory of the tree may have been an lgpu before, with processes that
// are left, and the cgroup of a group takes none.
const groupSuffix = ".group"

// group is the folder of a group.
func (t *Tree) group(at Path) string {
	dir := t.dir
	for _, id := range at {
		dir = filepath.Join(dir, nameOf(id)+groupSuffix)
	}
	return dir
}

func nameOf(id uint64) string { return fmt.Sprintf("%016x", id) }

// named reports whether a folder has a name of a cgroup of an lgpu or a group.
func named(name string) bool {
	name = strings.TrimSuffix(name, groupSuffix)
	_, err := strconv.ParseUint(name, 16, 64)
	return err == nil && len(name) == len(nameOf(0))
}

// SetGroup makes a group's cgroup and those above it, if there are none, and sets its limits; those above have none until
// they are set. Devices of which no driver has made a region known are left out.
func (t *Tree) SetGroup(at Path, limits []Limit) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.makeGroups(at); err != nil {
		return err
	}
	t.left = true // an lgpu may never come
	_, err := t.bound(t.group(at), limits)
	return err
}

// makeGroups makes the cgroups of groups, down to one, which give the controller to those below. Called with mu held.
func (t *Tree) makeGroups(at Path) error {
	for i := range at {
		dir := t.group(at[:i+1])
		if err := makeCgroup(dir); err != nil {
			return err
		}
		if err := write(filepath.Join(dir, enableFile), "+dmem"); err != nil {
			return fmt.Errorf("enable the controller dmem: %w", err)
		}
	}
	return nil
}

func makeCgroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	return nil
}

// Set makes the cgroup of an lgpu, at a path with its own id at the end, and those of the groups above it, if there are
// none, and sets its limits. Devices of which no driver has made a region known are returned; for them nothing holds.
func (t *Tree) Set(at Path, limits []Limit) (unknown []Limit, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, groups := at[len(at)-1], at[:len(at)-1]
	if err := t.makeGroups(groups); err != nil {
		return nil, err
	}
	dir := filepath.Join(t.group(groups), nameOf(id))
	if err := makeCgroup(dir); err != nil {
		return nil, err
	}
	t.active[id] = dir
	return t.bound(dir, limits)
}

// bound sets the limits of a cgroup.
func (t *Tree) bound(dir string, limits []Limit) (unknown []Limit, err error) {
	all, err := t.Regions()
	if err != nil {
		return nil, err
	}
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

// Join moves a process into the cgroup of an lgpu that was set. What it starts from then on is there, too. An error wraps
// fs.ErrNotExist if the lgpu was not set.
func (t *Tree) Join(id uint64, pid int) error {
	t.mu.Lock()
	dir := t.active[id]
	t.mu.Unlock()
	err := fs.ErrNotExist
	if dir != "" {
		err = write(filepath.Join(dir, procsFile), strconv.Itoa(pid))
	}
	if err != nil {
		return fmt.Errorf("move process %d into a cgroup: %w", pid, err)
	}
	return nil
}

// Remove removes an lgpu's cgroup, and those of groups above it that have no other. One that still has processes goes at
// a later Sweep, and bounds them until then, as do those above it.
func (t *Tree) Remove(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dir := t.active[id]
	delete(t.active, id)
	if dir != "" && (remove(dir) != nil || !t.sweepLocked(t.dir)) {
		t.left = true
	}
}

// Sweep removes cgroups of no lgpu that was set, of this process or one before, and those of groups without any, unless
// they have processes. It costs nothing while there can be none.
func (t *Tree) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		t.left = !t.sweepLocked(t.dir)
	}
}

// sweepLocked removes what Sweep does below a folder, and reports whether nothing of it is left. Called with mu held.
func (t *Tree) sweepLocked(dir string) (clean bool) {
	clean = true
	entries, _ := os.ReadDir(dir) // what cannot be read cannot be removed
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		switch {
		case !e.IsDir() || !named(e.Name()):
		case t.used(at):
			if strings.HasSuffix(at, groupSuffix) {
				clean = t.sweepLocked(at) && clean
			}
		default:
			clean = remove(at) == nil && clean
		}
	}
	return clean
}

// used reports whether a cgroup is of an active lgpu, or above one. Called with mu held.
func (t *Tree) used(dir string) bool {
	for _, at := range t.active {
		if at == dir || strings.HasPrefix(at, dir+"/") {
			return true
		}
	}
	return false
}

// remove removes a cgroup and those below, which programs have made or are of a group that is gone. It is refused where one
// has processes; the others are gone then.
func remove(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, remove(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
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
