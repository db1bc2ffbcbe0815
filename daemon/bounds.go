package daemon

import (
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/policy/limits"
)

// bounds has the kernel bound the device memory of lgpus, where the administrator asks for that (Config.Dmem). It is a
// second line: a little above memory.max, where only what goes round the interposer comes.
type bounds struct {
	daemon *Daemon
	tree   *dmem.Tree           // nil where there is none; set before anything is served
	placed map[uint64]dmem.Path // guarded by Daemon.pushing; of the lgpus that have a cgroup
}

// open makes the cgroup of all lgpus. Without it the daemon goes on: programs of before have no bound either.
func (b *bounds) open() {
	if b.daemon.config.Dmem == "" {
		return
	}
	tree, err := dmem.Open(b.daemon.config.Dmem)
	if err != nil {
		b.daemon.journal.emit(Event{Kind: DmemFailed, Text: fmt.Sprintf("the kernel does not bound the device memory of lgpus: %v", err)})
		return
	}
	b.tree, b.placed = tree, map[uint64]dmem.Path{}
}

// set has the kernel hold an lgpu to its limits, and the groups above it to theirs. Called with pushing held.
func (b *bounds) set(dir limits.Directory) {
	if b.tree == nil {
		return
	}
	record, known := b.daemon.lgpus.record(dir.ID)
	if !known || record.Sim != "" {
		return
	}
	at := b.path(dir)
	b.placed[dir.ID] = at
	b.setGroups(at[:len(at)-1])
	var list []dmem.Limit
	for _, uuid := range record.Devices {
		if d := b.daemon.inventory.device(uuid); d != nil && countsMemory(d.Device) {
			e, _ := dir.Device(d.Identity())
			list = append(list, dmem.Limit{PCI: d.PCI, Bytes: boundOf(e.MemoryMax, 1)})
		}
	}
	unknown, err := b.tree.Set(at, list)
	for _, l := range unknown {
		err = fmt.Errorf("no driver has made the memory of %s known to the controller dmem", l.PCI)
	}
	b.failed(dir, err)
}

// countsMemory reports whether the controller knows what is used of a device: the driver keeps MIG instances apart by
// itself, and counts none of their memory.
func countsMemory(d gpu.Device) bool { return !d.MIG() && !d.Partitioned }

// path is where a directory's cgroup is. The root of the tree is the folder of all.
func (b *bounds) path(dir limits.Directory) (at dmem.Path) {
	for ok := true; ok && dir.Parent != 0; dir, ok = b.daemon.tree.ByID(dir.Parent) {
		at = append(at, dir.ID)
	}
	slices.Reverse(at)
	return at
}

// setGroup has the kernel hold a group to its limits, if an lgpu below has a cgroup. Called with pushing held.
func (b *bounds) setGroup(dir limits.Directory) {
	if at := b.path(dir); b.below(at) > 0 {
		b.setGroupAt(dir, at)
	}
}

// setGroups is setGroup for the root and all groups on a path.
func (b *bounds) setGroups(at dmem.Path) {
	if root, err := b.daemon.tree.Directory(limits.Root); err == nil {
		b.setGroupAt(root, nil)
	}
	for i, id := range at {
		if dir, ok := b.daemon.tree.ByID(id); ok {
			b.setGroupAt(dir, at[:i+1])
		}
	}
}

func (b *bounds) setGroupAt(dir limits.Directory, at dmem.Path) {
	var list []dmem.Limit
	for _, d := range b.daemon.inventory.usable("") {
		if e, ok := dir.Device(d.Identity()); ok && countsMemory(d) {
			list = append(list, dmem.Limit{PCI: d.PCI, Bytes: boundOf(e.MemoryMax, b.below(at))})
		}
	}
	b.failed(dir, b.tree.SetGroup(at, list))
}

// below is the number of lgpus with a cgroup that are below a group.
func (b *bounds) below(group dmem.Path) (n int) {
	for _, at := range b.placed {
		if len(at) > len(group) && slices.Equal(at[:len(group)], group) {
			n++
		}
	}
	return n
}

// failed reports that the kernel does not bound an lgpu or a group. nil is no failure.
func (b *bounds) failed(dir limits.Directory, err error) {
	if err != nil {
		b.daemon.journal.emit(Event{Kind: DmemFailed, Path: dir.Path, ID: dir.ID,
			Text: fmt.Sprintf("the kernel does not bound the device memory of %s: %v", dir.Path, err)})
	}
}

// boundOf is what the kernel allows so many lgpus with a limit on their sum: as much more as the police tolerates of each,
// since drivers count what they round up. So a program meets the limit of the interposer first, which says what was refused.
func boundOf(most limits.Bytes, lgpus int) uint64 {
	bytes, limited := most.Limit()
	if !limited {
		return dmem.Unlimited
	}
	return bytes + max(tolerance(bytes), uint64(lgpus)*toleranceBytes)
}

// join moves a launcher into the cgroup of its lgpu, before it has started anything there. One in a cgroup that belongs
// to a directory stays in it: that is why its programs belong there.
func (b *bounds) join(id uint64, of *launcher) error {
	record, _ := b.daemon.lgpus.record(id)
	if b.tree == nil || record.Sim != "" || of.bound {
		return nil
	}
	if err := b.tree.Join(id, of.PID); err != nil {
		return &Error{Class: ErrInvalid, Reason: fmt.Sprintf("the kernel cannot bound the device memory of its programs: %v", err),
			Remedy: "see dmem.cgroup in lgpud.conf; without it, the daemon alone keeps limits", Cause: err}
	}
	return nil
}

// forget removes the cgroup of an lgpu, now or when its processes have ended. Called with pushing held.
func (b *bounds) forget(id uint64) {
	at, placed := b.placed[id]
	if !placed {
		return
	}
	delete(b.placed, id)
	b.tree.Remove(id)
	group := at[:len(at)-1]
	for len(group) > 0 && b.below(group) == 0 {
		group = group[:len(group)-1]
	}
	if b.below(group) > 0 { // these have fewer lgpus to tolerate
		b.setGroups(group)
	}
}

// sweep removes the cgroups that were left.
func (b *bounds) sweep() {
	if b.tree != nil {
		b.tree.Sweep()
	}
}
