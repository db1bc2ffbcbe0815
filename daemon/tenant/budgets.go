package tenant

import (
	"fmt"
	"iter"
	"slices"

	"github.com/lgpu/lgpu/tenant/region"
)

// memoryPools divides page-locked host memory, and the memory of each device, among lgpus. Server.mu guards it.
type memoryPools struct {
	budgets []Budget
	parents map[uint64]uint64 // of each lgpu: the ID of the Budget above it
	host    *pool
	devices map[[16]byte]*pool // by UUID, for devices that some lgpu has
}

func newMemoryPools() *memoryPools {
	return &memoryPools{parents: map[uint64]uint64{}, host: newPool(), devices: map[[16]byte]*pool{}}
}

// pools are the pools that an lgpu has quotas of, by kind of memory.
func (m *memoryPools) pools(l *lgpu) iter.Seq2[int, *pool] {
	return func(yield func(int, *pool) bool) {
		if !yield(hostKind, m.host) {
			return
		}
		for i, d := range l.Devices {
			if !yield(i+1, m.devices[d.UUID]) {
				return
			}
		}
	}
}

// add gives an lgpu a quota of every pool. keep is called before what the quota is charged for rises and after it fell.
func (m *memoryPools) add(l *lgpu, keep func(kind int, charged uint64)) {
	m.parents[l.ID] = l.Parent
	for _, d := range l.Devices {
		if m.devices[d.UUID] == nil {
			m.devices[d.UUID] = newPool()
			m.divide(m.devices[d.UUID], deviceLimit(d.UUID))
		}
	}
	for kind, p := range m.pools(l) {
		p.add(&quota{
			id: l.ID, limit: l.limit(kind), most: l.most(kind), charged: min(l.roster.charged[kind], l.most(kind)),
			keep: func(charged uint64) { keep(kind, charged) },
		}, l.Parent)
	}
}

// remove takes an lgpu's quotas back.
func (m *memoryPools) remove(l *lgpu) {
	for kind, p := range m.pools(l) {
		p.remove(l.ID)
		if kind != hostKind && len(p.order) == 0 {
			delete(m.devices, l.Devices[kind-1].UUID)
		}
	}
	delete(m.parents, l.ID)
}

// setLimits applies an lgpu's own limits.
func (m *memoryPools) setLimits(l *lgpu) {
	for kind, p := range m.pools(l) {
		p.setLimit(l.ID, l.limit(kind))
	}
}

// attach makes the counters of a region those of an lgpu's quotas.
func (m *memoryPools) attach(l *lgpu, shared *region.Shared) {
	for kind, p := range m.pools(l) {
		if kind == hostKind {
			p.attach(l.ID, hostCounter{shared}, l.frozen())
		} else {
			p.attach(l.ID, deviceCounter{shared, kind - 1}, l.frozen())
		}
	}
}

// clear says that an lgpu, which has no clients, uses nothing any more.
func (m *memoryPools) clear(l *lgpu) {
	for _, p := range m.pools(l) {
		p.quotas[l.ID].charge(0)
	}
}

// thaw says that all clients of an lgpu see its grants.
func (m *memoryPools) thaw(l *lgpu) {
	for _, p := range m.pools(l) {
		p.thaw(l.ID)
	}
}

// need grants an lgpu so many bytes more of a kind of memory than it uses now, if that is possible, and returns what is
// granted then; else by is the ID of the lgpu or the group whose limit does not allow it.
func (m *memoryPools) need(l *lgpu, kind int, bytes uint64) (granted, by uint64, ok bool) {
	p := m.host
	if kind != hostKind {
		p = m.devices[l.Devices[kind-1].UUID]
	}
	by, ok = p.need(l.ID, bytes)
	return p.quotas[l.ID].granted, by, ok
}

// setBudgets replaces all budgets, which form a tree.
func (m *memoryPools) setBudgets(budgets []Budget) {
	m.budgets = slices.Clone(budgets)
	m.divide(m.host, hostLimit)
	for uuid, p := range m.devices {
		m.divide(p, deviceLimit(uuid))
	}
}

// divide gives a pool the present budgets.
func (m *memoryPools) divide(p *pool, limit func(Budget) uint64) {
	parents, most, quotas := map[uint64]uint64{}, map[uint64]uint64{}, map[uint64]uint64{}
	for _, b := range m.budgets {
		parents[b.ID], most[b.ID] = b.Parent, limit(b)
	}
	for id := range p.quotas {
		quotas[id] = m.parents[id]
	}
	p.setBudgets(parents, most, quotas)
}

func hostLimit(b Budget) uint64 { return b.HostMemory }

func deviceLimit(uuid [16]byte) func(Budget) uint64 {
	return func(b Budget) uint64 {
		if bytes, ok := b.Memory[uuid]; ok {
			return bytes
		}
		return region.NoLimit
	}
}

// checkTree says what keeps budgets from being a tree.
func checkTree(budgets []Budget) error {
	parents := make(map[uint64]uint64, len(budgets))
	for _, b := range budgets {
		if _, twice := parents[b.ID]; twice || b.ID == 0 {
			return fmt.Errorf("%w: ID %#x is used twice", ErrBudgets, b.ID)
		}
		parents[b.ID] = b.Parent
	}
	for id := range parents {
		steps := 0
		for at := id; at != 0; steps++ {
			parent, known := parents[at]
			if !known || steps > len(parents) {
				return fmt.Errorf("%w: %#x has no way to the root", ErrBudgets, id)
			}
			at = parent
		}
	}
	return nil
}

// hostCounter and deviceCounter are an lgpu's kinds of memory in its region.
type hostCounter struct{ shared *region.Shared }

func (c hostCounter) Grant(bytes uint64) { c.shared.SetHostMemory(bytes) }
func (c hostCounter) Used() uint64       { return c.shared.Host() }

type deviceCounter struct {
	shared *region.Shared
	device int
}

func (c deviceCounter) Grant(bytes uint64) { c.shared.SetGranted(c.device, bytes) }
func (c deviceCounter) Used() uint64       { return c.shared.Used(c.device) }

// limit returns the lgpu's own limit of a kind of memory.
func (l *lgpu) limit(kind int) uint64 {
	if kind == hostKind {
		return l.HostMemory
	}
	return l.Devices[kind-1].Memory
}

// most returns how much of a kind of memory there is.
func (l *lgpu) most(kind int) uint64 {
	if kind == hostKind || l.Devices[kind-1].Physical == 0 {
		return maxMemory
	}
	return min(l.Devices[kind-1].Physical, maxMemory)
}
