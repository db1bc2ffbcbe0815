// Package dmemtest is a stand-in for the kernel's hierarchy of cgroups with the controller dmem, for tests on machines
// whose kernel or driver has none: a file system with the files that package dmem uses, which refuses what the kernel
// refuses. Nothing is allocated or refused by it; Bound says what the driver would allow a process.
//
//	h := dmemtest.Mount(t, dmem.Region{Name: "nvidia/00000000:1b:00.0/vidmem", Bytes: 80 << 30})
//	tree, err := dmem.Open(h.Dir + "/lgpu")
//
// One difference: a process that another starts is not where that one is. Behaviour: Documentation/admin-guide/cgroup-v2.rst
// of Linux, "Controlling Controllers", "DMEM".
package dmemtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/internal/proc"
)

// Hierarchy is a mounted one.
type Hierarchy struct {
	Dir string

	mu      sync.Mutex
	regions []dmem.Region
	root    *cgroup
	at      map[int]*cgroup // processes that were moved; all others are at the root
}

// cgroup is a folder. Its fields are guarded by the hierarchy's mu.
type cgroup struct {
	fs.Inode
	h       *Hierarchy
	above   *cgroup // nil: the root
	enabled bool    // subtree_control has dmem
	below   map[string]*cgroup
	max     map[string]uint64
}

// Mount shows a hierarchy whose kernel knows some regions, until the test ends. Without root or FUSE the test is skipped.
func Mount(t testing.TB, regions ...dmem.Region) *Hierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a stand-in for cgroups")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("no FUSE here: ", err)
	} else {
		f.Close()
	}
	h := &Hierarchy{Dir: t.TempDir(), regions: regions, at: map[int]*cgroup{}}
	h.root = h.cgroup(nil)
	server, err := fs.Mount(h.Dir, h.root, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "cgroups"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *Hierarchy) cgroup(above *cgroup) *cgroup {
	return &cgroup{h: h, above: above, below: map[string]*cgroup{}, max: map[string]uint64{}}
}

// OnAdd makes the files of the root.
func (c *cgroup) OnAdd(ctx context.Context) {
	if c.above != nil {
		return
	}
	c.files(ctx, "cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")
	if len(c.h.regions) > 0 {
		c.files(ctx, "dmem.capacity")
	}
}

// files adds files.
func (c *cgroup) files(ctx context.Context, names ...string) {
	for _, name := range names {
		f := &file{of: c, name: name}
		c.AddChild(name, c.NewPersistentInode(ctx, f, fs.StableAttr{Mode: syscall.S_IFREG}), true)
	}
}

// Mkdir makes a cgroup.
func (c *cgroup) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.below[name] != nil {
		return nil, syscall.EEXIST
	}
	child := c.h.cgroup(c)
	inode := c.NewPersistentInode(ctx, child, fs.StableAttr{Mode: syscall.S_IFDIR})
	out.Mode = syscall.S_IFDIR | 0o755
	c.below[name] = child
	c.AddChild(name, inode, true)
	child.files(ctx, "cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")
	if c.enabled {
		child.files(ctx, "dmem.max")
	}
	return inode, fs.OK
}

// Rmdir removes a cgroup without processes and without others below it.
func (c *cgroup) Rmdir(_ context.Context, name string) syscall.Errno {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	child := c.below[name]
	switch {
	case child == nil:
		return syscall.ENOENT
	case len(child.below) > 0 || len(child.procs()) > 0:
		return syscall.EBUSY
	}
	delete(c.below, name)
	return fs.OK
}

// procs are the processes that were moved to a cgroup and have not ended.
func (c *cgroup) procs() (pids []int) {
	for pid, at := range c.h.at {
		if at != c {
			continue
		}
		if _, err := proc.Live(pid); err != nil {
			delete(c.h.at, pid)
			continue
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// file is a file of a cgroup.
type file struct {
	fs.Inode
	of   *cgroup
	name string
}

// Open has every read ask.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, fs.OK
}

// Setattr accepts a truncation, as before a write.
func (f *file) Setattr(context.Context, fs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return fs.OK
}

// Read implements fs.NodeReader.
func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.of.h.mu.Lock()
	defer f.of.h.mu.Unlock()
	text := f.of.text(f.name)
	if off >= int64(len(text)) {
		return fuse.ReadResultData(nil), fs.OK
	}
	return fuse.ReadResultData([]byte(text[off:min(int64(len(text)), off+int64(len(dest)))])), fs.OK
}

// text is what a file says.
func (c *cgroup) text(name string) (text string) {
	switch {
	case name == "cgroup.procs":
		for _, pid := range c.procs() {
			text += strconv.Itoa(pid) + "\n"
		}
	case name == "cgroup.subtree_control" && c.enabled, name == "cgroup.controllers" && (c.above == nil || c.above.enabled):
		text = "dmem\n"
	case name == "dmem.capacity":
		for _, r := range c.h.regions {
			text += fmt.Sprintf("%s %d\n", r.Name, r.Bytes)
		}
	case name == "dmem.max":
		for _, r := range c.h.regions {
			value := "max"
			if most, limited := c.max[r.Name]; limited {
				value = strconv.FormatUint(most, 10)
			}
			text += r.Name + " " + value + "\n"
		}
	}
	return text
}

// Write implements fs.NodeWriter.
func (f *file) Write(ctx context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	c := f.of
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	errno := syscall.EINVAL
	switch text := strings.TrimSpace(string(data)); f.name {
	case "cgroup.procs":
		errno = c.move(text)
	case "cgroup.subtree_control":
		errno = c.enable(ctx, text)
	case "dmem.max":
		errno = c.bound(text)
	}
	if errno != fs.OK {
		return 0, errno
	}
	return uint32(len(data)), fs.OK
}

// move takes a process in. One that gives a controller to those below it takes in none, but for the root.
func (c *cgroup) move(text string) syscall.Errno {
	pid, err := strconv.Atoi(text)
	if err != nil {
		return syscall.EINVAL
	}
	if _, err := proc.Live(pid); err != nil {
		return syscall.ESRCH
	}
	if c.enabled && c.above != nil {
		return syscall.EBUSY
	}
	c.h.at[pid] = c
	return fs.OK
}

// enable gives the controller to those below, if this one has it, and no processes.
func (c *cgroup) enable(ctx context.Context, text string) syscall.Errno {
	switch {
	case text != "+dmem":
		return syscall.EINVAL
	case len(c.h.regions) == 0 || c.above != nil && !c.above.enabled:
		return syscall.ENOENT
	case c.above != nil && len(c.procs()) > 0:
		return syscall.EBUSY
	case c.enabled:
		return fs.OK
	}
	c.enabled = true
	for _, child := range c.below {
		child.files(ctx, "dmem.max")
	}
	return fs.OK
}

// bound sets the limits of lines of a region and a number of bytes or "max".
func (c *cgroup) bound(text string) syscall.Errno {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !slices.ContainsFunc(c.h.regions, func(r dmem.Region) bool { return r.Name == name }) {
			return syscall.EINVAL
		}
		most, err := strconv.ParseUint(value, 10, 64)
		switch {
		case value == "max":
			delete(c.max, name)
		case err != nil:
			return syscall.EINVAL
		default:
			c.max[name] = most
		}
	}
	return fs.OK
}

// Bound is how much of a region a process may have, together with all in its cgroup: the least limit from there up.
func (h *Hierarchy) Bound(pid int, region string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	least := dmem.Unlimited
	for c := h.at[pid]; c != nil; c = c.above {
		if most, limited := c.max[region]; limited {
			least = min(least, most)
		}
	}
	return least
}

// Cgroups are the folders of cgroups below one, as paths from the root, in order.
func (h *Hierarchy) Cgroups(below string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.root
	for name := range strings.SplitSeq(strings.Trim(below, "/"), "/") {
		if c != nil && name != "" {
			c = c.below[name]
		}
	}
	var paths []string
	if c != nil {
		for name := range c.below {
			paths = append(paths, filepath.Join(below, name))
		}
	}
	slices.Sort(paths)
	return paths
}
