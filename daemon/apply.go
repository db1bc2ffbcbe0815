package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/region"
)

// commit keeps a change of the tree before it takes effect, and in the same write what is known of an lgpu: of a new one, which
// would have all devices without it, or of one that moves to other devices with its limits. The tree's lock is held.
func (n *Daemon) commit(c limits.Change) error {
	if record, ok := c.Note.(store.Lgpu); ok {
		if record.ID == 0 {
			record.ID = c.Created[0]
		}
		return n.store.SaveTree(c.State, record)
	}
	return n.store.SaveTree(c.State)
}

// apply carries a change of the tree to tenants and the policy. It runs on the writer's goroutine, under the tree's
// lock.
func (n *Daemon) apply(c limits.Change) {
	n.pushing.Lock()
	touched := slices.Concat(c.Created, c.Changed, n.regiven(c.Changed))
	slices.Sort(touched) // a parent's ID is below its children's
	touched = slices.Compact(touched)
	for _, id := range touched {
		if dir, ok := n.tree.ByID(id); ok {
			n.pushDirectory(dir)
			n.pushLimits(dir)
			n.residence.read(dir)
		}
	}
	for _, id := range c.Removed {
		n.gates.Remove(id)
		n.residence.forget(id)
	}
	if err := n.pushBudgets(); err != nil {
		n.log.Error("budgets of groups are not what they should be", "error", err)
	}
	n.pushing.Unlock()
	n.announceChange(c)
	n.residence.look() // a budget may be another one
	n.containers.notice()
	if len(c.Removed) > 0 {
		n.lgpus.notice(c.Removed...)
	}
}

// announceChange makes events of a change: one for each directory that it is about. Limits have changed where others
// are asked for than before, not where that has an effect further down.
func (n *Daemon) announceChange(c limits.Change) {
	asked := make(map[uint64]limits.DirectoryState, len(c.State.Directories))
	for _, dir := range c.State.Directories {
		asked[dir.ID] = dir
	}
	n.mu.Lock()
	before := n.asked
	n.asked = asked
	n.mu.Unlock()
	by := authorOf(c.By)
	for _, id := range c.Created {
		if dir, ok := asked[id]; ok {
			e := Event{Kind: LgpuCreated, Path: dir.Path, ID: id, By: by, Text: dir.Path + " was created" + by.words()}
			e.Changes = n.tree.Differences(dir, limits.DirectoryState{UID: dir.UID, GID: dir.GID})
			n.journal.emit(e)
		}
	}
	for _, id := range c.Changed {
		if old, known := before[id]; known {
			n.announceLimits(asked[id], old, by)
		}
	}
	n.energy.inherit(c.Removed, before)
	for _, id := range c.Removed {
		n.mu.Lock()
		path := n.paths[id]
		delete(n.paths, id)
		n.mu.Unlock()
		n.journal.emit(Event{Kind: LgpuRemoved, ID: id, Path: path, By: by, Text: path + " was removed" + by.words()})
		n.journal.forget(id)
	}
}

// listed is how many differences the text of an event names.
const listed = 8

// announceLimits makes the event of a directory that asks for others than before.
func (n *Daemon) announceLimits(now, before limits.DirectoryState, by *Author) {
	changes := n.tree.Differences(now, before)
	if len(changes) == 0 {
		return
	}
	var words []string
	for _, c := range changes[:min(len(changes), listed)] {
		words = append(words, c.String())
	}
	if more := len(changes) - listed; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	n.journal.emit(Event{
		Kind: LimitChanged, Path: now.Path, ID: now.ID, By: by, Changes: changes,
		Text: now.Path + ": " + strings.Join(words, ", ") + by.words(),
	})
}

// pushAll tells the policy of the whole tree.
func (n *Daemon) pushAll() {
	n.pushing.Lock()
	defer n.pushing.Unlock()
	for _, dir := range n.tree.Directories() {
		n.pushDirectory(dir)
	}
}

// pushDirectory tells the policy of a directory. pushing is held.
func (n *Daemon) pushDirectory(dir limits.Directory) {
	p := dispatch.Params{Parent: dir.Parent, Gang: gangOf(n.tree, dir), Max: map[gpu.UUID]uint32{}, Min: map[gpu.UUID]uint32{}}
	var mine []gpu.UUID
	if record, known := n.lgpus.record(dir.ID); known {
		mine = devicesOf(dir, record)
	}
	n.mu.Lock()
	n.paths[dir.ID] = dir.Path
	n.mu.Unlock()
	p.Devices = mine
	priority := limits.Normal
	for _, e := range dir.Devices {
		uuid, err := gpu.ParseUUID(e.Device)
		if err != nil || mine != nil && !slices.Contains(mine, uuid) {
			continue
		}
		if e.ComputeMax < region.FullCompute {
			p.Max[uuid] = e.ComputeMax
		}
		if e.ComputeMin > 0 {
			p.Min[uuid] = e.ComputeMin
		}
		// The policy has one weight and one class for a node: those that differ most from the ordinary.
		if p.Weight == 0 || p.Weight == limits.DefaultWeight {
			p.Weight = e.Weight
		}
		priority = max(priority, e.Priority)
	}
	p.Latency = priority == limits.Latency
	if priority == limits.High {
		p.Class = schedule.High
	}
	if err := n.gates.Set(dir.ID, p); err != nil {
		n.log.Error("the scheduler does not take a group or lgpu", "path", dir.Path, "error", err)
	}
}

// gangOf is the name by which the policy knows the gang of a directory, empty for none. Gangs are those of an owner, the
// one of the topmost directory above that is given to somebody: everybody may choose any name, and what is in a gang has
// a say in when all in it have their devices. All that was given to nobody is the administrators', with gangs of theirs.
func gangOf(tree *limits.Tree, dir limits.Directory) string {
	if dir.Gang == "" {
		return ""
	}
	owner, ok := "", true
	for above := dir; ok; above, ok = tree.ByID(above.Parent) {
		if above.UID != 0 && above.UID != tree.Rights().Owner || above.GID != 0 {
			owner = fmt.Sprintf("%d:%d/", above.UID, above.GID)
		}
	}
	return owner + dir.Gang
}

// regiven returns the directories below those that have another owner now, for their gangs are the owner's.
func (n *Daemon) regiven(changed []uint64) (below []uint64) {
	n.mu.Lock()
	before := n.asked
	n.mu.Unlock()
	for _, id := range changed {
		now, ok := n.tree.ByID(id)
		if old, known := before[id]; !ok || !known || old.UID == now.UID && old.GID == now.GID {
			continue
		}
		for _, dir := range n.tree.Directories() {
			if dir.Gang != "" && names.Within(dir.Path, now.Path) {
				below = append(below, dir.ID)
			}
		}
	}
	return below
}

// pushLimits changes what the processes of an lgpu see, and what the kernel allows those of an lgpu or a group. pushing is
// held.
func (n *Daemon) pushLimits(dir limits.Directory) {
	if !n.lgpus.admits(dir.ID) {
		n.bounds.setGroup(dir)
		return
	}
	record, _ := n.lgpus.record(dir.ID)
	if err := n.tenants.SetLimits(dir.ID, n.limitsOf(dir, record.Devices)); err != nil {
		n.log.Error("limits do not reach the processes", "path", dir.Path, "error", err)
	}
	n.bounds.set(dir)
}

// limitsOf is what the processes of an lgpu see.
func (n *Daemon) limitsOf(dir limits.Directory, devices []gpu.UUID) tenant.Limits {
	out := tenant.Limits{HostMemory: toRegion(dir.Host)}
	for _, uuid := range devices {
		d := region.DeviceLimits{UUID: uuid, Overcommit: bit(dir.Overcommit)} // of a device that is gone nothing can be had
		for _, device := range n.inventory.present() {
			if device.UUID != uuid {
				continue
			}
			d.Physical, d.Instance = device.Memory, bit(device.MIG())
			e, ok := dir.Device(device.Identity())
			if !ok {
				continue
			}
			d.Memory, d.Compute = toRegion(e.MemoryMax), e.ComputeMax
			if !e.Whole {
				d.Units = uint32(e.Units)
			}
			if n.modes.Mode(uuid) == mps.Spatial && e.ComputeMax > 0 {
				d.Compute = region.FullCompute // the hardware keeps it to its units
			}
			if device.Units <= 0 {
				d.Units = 0 // unknown
			}
		}
		out.Devices = append(out.Devices, d)
	}
	return out
}

// pushBudgets tells tenants what the groups above lgpus in use allow all of them together. pushing is held.
func (n *Daemon) pushBudgets() error {
	byID := map[uint64]tenant.Budget{}
	for _, id := range n.lgpus.admitted() {
		dir, ok := n.tree.ByID(id)
		for ok && dir.Parent != 0 {
			if dir, ok = n.tree.ByID(dir.Parent); ok {
				byID[dir.ID] = budgetOf(dir)
			}
		}
	}
	budgets := make([]tenant.Budget, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		budgets = append(budgets, byID[id])
	}
	same := slices.EqualFunc(budgets, n.budgets, func(a, b tenant.Budget) bool {
		return a.ID == b.ID && a.Parent == b.Parent && a.HostMemory == b.HostMemory && maps.Equal(a.Memory, b.Memory)
	})
	if same {
		return nil
	}
	if err := n.tenants.SetBudgets(budgets); err != nil {
		return err
	}
	n.budgets = budgets
	return nil
}

// budgetOf is what a group allows all below it together.
func budgetOf(dir limits.Directory) tenant.Budget {
	b := tenant.Budget{ID: dir.ID, Parent: dir.Parent, HostMemory: toRegion(dir.HostMax), Memory: map[[16]byte]uint64{}}
	for _, e := range dir.Devices {
		uuid, err := gpu.ParseUUID(e.Device)
		if most, limited := e.OwnMemoryMax.Limit(); err == nil && limited {
			b.Memory[uuid] = most
		}
	}
	return b
}
