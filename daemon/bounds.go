package daemon

import (
	"fmt"

	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/policy/limits"
)

// bounds has the kernel bound the device memory of lgpus, where the administrator asks for that (Config.Dmem). It is a
// second line: a little above memory.max, where only what goes round the interposer comes.
type bounds struct {
	daemon *Daemon
	tree   *dmem.Tree // nil where there is none; set before anything is served
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
	b.tree = tree
}

// set has the kernel hold an lgpu to its limits. Called with pushing held.
func (b *bounds) set(dir limits.Directory) {
	if b.tree == nil {
		return
	}
	record, known := b.daemon.lgpus.record(dir.ID)
	if !known || record.Sim != "" {
		return
	}
	var list []dmem.Limit
	for _, uuid := range record.Devices {
		d := b.daemon.inventory.device(uuid)
		if d == nil || d.MIG() {
			continue // the driver keeps MIG instances apart by itself, and counts none of their memory
		}
		e, _ := dir.Device(d.Identity())
		list = append(list, dmem.Limit{PCI: d.PCI, Bytes: boundOf(e.MemoryMax)})
	}
	unknown, err := b.tree.Set(dir.ID, list)
	for _, l := range unknown {
		err = fmt.Errorf("no driver has made the memory of %s known to the controller dmem", l.PCI)
	}
	if err != nil {
		b.daemon.journal.emit(Event{Kind: DmemFailed, Path: dir.Path, ID: dir.ID,
			Text: fmt.Sprintf("the kernel does not bound the device memory of %s: %v", dir.Path, err)})
	}
}

// boundOf is what the kernel allows an lgpu with a limit: as much more as the police tolerates, since drivers count what
// they round up. So a program meets the limit of the interposer first, which says what was refused.
func boundOf(most limits.Bytes) uint64 {
	bytes, limited := most.Limit()
	if !limited {
		return dmem.Unlimited
	}
	return bytes + tolerance(bytes)
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

// forget removes the cgroup of an lgpu, now or when its processes have ended.
func (b *bounds) forget(id uint64) {
	if b.tree != nil {
		b.tree.Remove(id)
	}
}

// sweep removes the cgroups that were left.
func (b *bounds) sweep() {
	if b.tree != nil {
		b.tree.Sweep()
	}
}
