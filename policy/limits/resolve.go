package limits

import (
	"maps"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/internal/units"
)

// resolve computes what every directory gets from what was asked for, and tops up what counts hold.
func (s *state) resolve() {
	s.root.walk(func(n *directory) {
		n.effective = make([]Effective, len(s.devices))
		n.host, n.suspended = n.HostMax, n.Suspend
		if n.parent != nil {
			n.suspended = n.suspended || n.parent.suspended
			n.host = n.parent.host.Least(n.host)
		}
	})
	for d := range s.devices {
		s.resolveDevice(d)
	}
	s.stale = false
}

// resolveDevice computes what every directory gets of device number d.
func (s *state) resolveDevice(d int) {
	device := s.devices[d]
	needs := map[*directory]uint64{}
	s.root.need(device.UUID, needs)

	top := Effective{Bits: device.All(), ComputeMax: units.Whole}
	s.divide(d, top.Bits, []*directory{s.root})
	s.root.limit(device, d, top, Latency)
	s.root.effective[d].ComputeMin = uint32(min(needs[s.root], uint64(s.root.effective[d].ComputeMax)))
	s.resolveBelow(s.root, d, Latency, needs)
}

// resolveBelow computes what the directories below n get, where n has been done. ceiling is the highest priority that
// they can have.
func (s *state) resolveBelow(n *directory, d int, ceiling Priority, needs map[*directory]uint64) {
	if len(n.children) == 0 {
		return
	}
	if n.limits(s.devices[d].UUID).Priority != nil {
		ceiling = n.effective[d].Priority
	}
	s.divide(d, n.effective[d].Bits, n.children)
	wanted := uint64(0)
	for _, child := range n.children {
		child.limit(s.devices[d], d, n.effective[d], ceiling)
		wanted += min(needs[child], uint64(child.effective[d].ComputeMax))
	}
	promised := uint64(n.effective[d].ComputeMin)
	for _, child := range n.children {
		share := min(needs[child], uint64(child.effective[d].ComputeMax))
		if wanted > promised {
			share = share * promised / wanted
		}
		child.effective[d].ComputeMin = uint32(share)
		s.resolveBelow(child, d, ceiling, needs)
	}
}

// need computes the guarantee that a directory stands for: its own, or else what its children's come to.
func (n *directory) need(device string, needs map[*directory]uint64) uint64 {
	sum := uint64(0)
	for _, child := range n.children {
		sum += child.need(device, needs)
	}
	if own := n.limits(device).ComputeMin; own != nil {
		sum = uint64(*own)
	}
	needs[n] = sum
	return sum
}

// limit computes everything but bits and guarantee, which depend on siblings too.
func (n *directory) limit(device Device, d int, parent Effective, ceiling Priority) {
	l := n.limits(device.UUID)
	e := &n.effective[d]
	e.Device = device.UUID
	e.Whole = e.Bits.Count() == device.Capacity
	e.Units = e.Bits.Count() * device.UnitsPerBit
	e.ComputeMax = min(parent.ComputeMax, value(l.ComputeMax, units.Whole), timeShare(device, e.Bits.Count()))
	e.Weight = l.weight()
	e.Priority = min(value(l.Priority, parent.Priority), ceiling)
	e.OwnMemoryMax = l.MemoryMax
	e.MemoryMax = parent.MemoryMax.Least(l.MemoryMax)
	e.MemoryHigh = l.MemoryHigh
}

// timeShare is the part of the device's time that so many bits are, in hundredths of a percent, rounded to nearest but
// never to nothing. Bits of a spatial device are places: they do not cap time, unless there are none.
func timeShare(device Device, bits int) uint32 {
	switch {
	case bits == 0:
		return 0
	case device.Kind == Spatial:
		return units.Whole
	}
	whole := uint64(units.Whole)
	return uint32(max((2*uint64(bits)*whole+uint64(device.Capacity))/(2*uint64(device.Capacity)), 1))
}

// divide gives siblings their bits of what their parent has.
func (s *state) divide(d int, parent list.Set, siblings []*directory) {
	device := s.devices[d]
	if device.Kind == Temporal {
		for _, n := range siblings {
			n.effective[d].Bits = parent.Lowest(n.limits(device.UUID).amount(device))
		}
		return
	}
	s.settle(d, parent, siblings)
	for _, n := range siblings {
		l := n.limits(device.UUID)
		if l.Count == nil {
			continue
		}
		bits := n.effective[d].Bits
		if missing := *l.Count - bits.Count(); missing > 0 {
			free := s.free(d, parent, n, siblings, l.Exclusive)
			bits = bits.Or(s.leastShared(d, free, n, siblings, missing))
			n.effective[d].Bits = bits
		}
		if !l.Held.Equal(bits) {
			l.Held = bits
			s.hold(n, device.UUID, l)
		}
	}
	var taken list.Set
	for _, n := range siblings {
		if n.limits(device.UUID).Exclusive {
			taken = taken.Or(n.effective[d].Bits)
		}
	}
	for _, n := range siblings {
		switch l := n.limits(device.UUID); {
		case !l.follows():
		case l.Follow == FollowDefault:
			n.effective[d].Bits = parent.And(device.defaults()).Without(taken)
		default:
			n.effective[d].Bits = parent.Without(taken)
		}
	}
}

// settle gives siblings that asked for bits those that they asked for or hold, exclusive ones first. Writes see to it
// that nobody's are taken by that; a state from a file may be otherwise.
func (s *state) settle(d int, parent list.Set, siblings []*directory) {
	device := s.devices[d]
	var taken list.Set
	for _, exclusive := range []bool{true, false} {
		for _, n := range siblings {
			l := n.limits(device.UUID)
			if l.follows() || l.Exclusive != exclusive {
				continue
			}
			bits := l.wanted().And(parent).Without(taken)
			if l.Count != nil {
				bits = bits.Lowest(*l.Count)
			}
			n.effective[d].Bits = bits
			if exclusive {
				taken = taken.Or(bits)
			}
		}
	}
}

// hold records what a count has got. That is no new request, so the revision stays: the effective values differ anyway.
func (s *state) hold(n *directory, device string, l Limits) {
	n.DirectoryState.Devices = maps.Clone(n.DirectoryState.Devices) // older states have it too
	n.DirectoryState.Devices[device] = l
}

// free are the bits of parent that n does not have and could get beside its siblings: those that nobody has exclusively
// or, to have them exclusively, that nobody has asked for.
func (s *state) free(d int, parent list.Set, n *directory, siblings []*directory, exclusive bool) list.Set {
	free := parent.Without(n.effective[d].Bits)
	for _, other := range siblings {
		l := other.limits(s.devices[d].UUID)
		if other != n && !l.follows() && (exclusive || l.Exclusive) {
			free = free.Without(other.effective[d].Bits)
		}
	}
	return free
}

// leastShared picks count bits: those that fewest siblings have asked for, and among them the lowest. So counts of
// siblings are disjoint as long as that is possible, and each gets the throughput that its count stands for.
func (s *state) leastShared(d int, free list.Set, n *directory, siblings []*directory, count int) list.Set {
	if count <= 0 {
		return list.Set{}
	}
	holders := make([]int, s.devices[d].Capacity)
	for _, other := range siblings {
		if other != n && !other.limits(s.devices[d].UUID).follows() {
			for bit := range other.effective[d].Bits.All() {
				holders[bit]++
			}
		}
	}
	var picked list.Set
	for level := 0; level <= len(siblings) && count > 0; level++ {
		var here []int
		for bit := range free.All() {
			if holders[bit] == level {
				here = append(here, bit)
			}
		}
		lowest := list.Of(here...).Lowest(count)
		count -= lowest.Count()
		picked = picked.Or(lowest)
	}
	return picked
}

// defaults are the bits that the keyword default stands for.
func (d Device) defaults() list.Set {
	if d.Default.Empty() {
		return d.All()
	}
	return d.Default
}

// follows says that no bits of its own were asked for.
func (l Limits) follows() bool { return l.Count == nil && l.List == nil }

// wanted are the bits asked for by name, or held for a count.
func (l Limits) wanted() list.Set {
	if l.List != nil {
		return *l.List
	}
	return l.Held
}

// amount is the number of bits asked for, where bits have no names.
func (l Limits) amount(device Device) int {
	switch {
	case l.Count != nil:
		return *l.Count
	case l.List != nil: // the device had names when this was written
		return l.List.Count()
	case l.Follow == FollowDefault:
		return device.defaults().Count()
	}
	return device.Capacity
}

// None says that nothing was asked for.
func (l Limits) None() bool {
	return l.follows() && l.Follow == FollowMax && l.Weight == 0 && l.Priority == nil && l.ComputeMax == nil &&
		l.ComputeMin == nil && l.MemoryMax == Bytes{} && l.MemoryHigh == Bytes{} && l.MemoryBudget == Bytes{}
}

func (e Effective) equal(other Effective) bool {
	if !e.Bits.Equal(other.Bits) {
		return false
	}
	return e.Device == other.Device && e.Whole == other.Whole && e.Units == other.Units && e.ComputeMax == other.ComputeMax &&
		e.ComputeMin == other.ComputeMin && e.Weight == other.Weight && e.Priority == other.Priority && e.MemoryMax == other.MemoryMax &&
		e.OwnMemoryMax == other.OwnMemoryMax && e.MemoryHigh == other.MemoryHigh
}
