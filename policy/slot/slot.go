// Package slot decides which tenants have their memory on the devices when not all of it fits: who computes next, what is
// loaded ahead for it beside the one that computes, and who makes room. It is gScale's scheme (docs/gscale.md) over amounts
// instead of places: what a tenant has of a device is its slot, and tenants whose sizes together exceed the room share one.
//
//	p := slot.New(slot.Options{Min: time.Second, Max: 30 * time.Second})
//	plan := p.Plan(now, state) // again whenever something has changed, and at plan.Wake
//
// # Rules
//
// A tenant computes only while all of its memory is there, on all of its devices: then it is in. Where all fits, all are
// in, and nothing moves. Otherwise those that are in keep what they have for a turn. Its length follows the swap that could
// not be hidden behind another's turn, so that swaps are a small part of the time, within bounds and with hysteresis.
//
// Who waits is served in the planned order, which the caller's scheduler knows. Of those that are about as far in it, the
// next is the one that follows in a cycle whose neighbours fit together as well as possible, since what fits beside the
// one that computes can be loaded meanwhile. Where nobody waits, a vote over past successors says who is next. One without
// work is never chosen, and keeps its memory until the room is needed.
//
// Room comes first from what is free, then from those that are not in, then from those without work, then from those whose
// turn is over; each time from the one that is farthest in the planned order, and no more than is needed.
//
// # Moves
//
// A plan has levels: how much of a device each tenant may have now. They change in steps, so that one tenant's memory comes
// while another's still leaves; those of tenants that tell how far they are need no steps. What the levels allow never
// exceeds the room, whatever is under way: a level rises only into what nobody has. The caller tells with each State what
// has become of the levels before; a plan that is not carried out, or only in part, costs nothing but time.
//
// The package is pure: no clock, no I/O, no goroutine. A Policy is for one goroutine at a time.
package slot

import (
	"cmp"
	"slices"
	"time"

	"github.com/lgpu/lgpu/policy/succession"
)

// Device is the UUID of a device.
type Device = [16]byte

// Options of a Policy. A time that is left out is the default.
type Options struct {
	// Min and Max bound a turn. Latency is how long a tenant is to wait for its turn at most, as far as Min allows; 0 is
	// any time.
	Min, Max, Latency time.Duration
	// Idle is how long a tenant has no work until it gives way first, and Quiet until it is not expected to have any: then
	// nothing is loaded ahead for it.
	Idle, Quiet time.Duration
	// Blind turns loading ahead off, for comparison.
	Blind bool
	// Oracle, if not nil, takes the place of the vote: who comes after a tenant on a device. For comparison.
	Oracle func(Device) (next uint64, ok bool)
}

// Times of Options that are left out.
const (
	DefaultMin   = time.Second
	DefaultMax   = 30 * time.Second
	DefaultIdle  = time.Second
	DefaultQuiet = 10 * time.Second
)

const (
	factor    = 12 // a turn is so many times the swap that is not hidden,
	steps     = 48 // and levels change by this part of the room,
	leastStep = 64 << 10
	again     = 50 * time.Millisecond // until the order is looked at again
	brief     = 20 * time.Millisecond // without work, after which who is known for long pauses gives way, and nobody waits
)

// Part is what a tenant has of a device, in bytes.
type Part struct {
	Device Device
	// Size is what it needs there to compute; Fixed is what cannot leave.
	Size, Fixed uint64
	// Level is what it may have, as it was told last; Taken what counts as used of the room, at least Level; Resident
	// what it says that is there.
	Level, Taken, Resident uint64
	// Moving says that it has not answered Level yet. Tells says that it tells how far its moves have come, and that they
	// can be changed at any time: steps gain nothing then.
	Moving, Tells bool
}

// Tenant is a party whose memory comes and goes as one: an lgpu, or the lgpus of a gang.
type Tenant struct {
	ID    uint64
	Parts []Part // one for each of its devices
	// Waits says that it waits for memory: to compute, or to allocate. Since is since when.
	Waits bool
	Since time.Time
	// Idle is for how long it has had no work.
	Idle time.Duration
	// Deaf says that nothing can be asked of it now: what it has stays taken, and it gets no more.
	Deaf bool
}

// Place is a tenant's place in the planned order.
type Place struct {
	ID uint64
	// Rank goes before all else: a tenant of a lower rank is served before those of a higher one.
	Rank int
	// Lead is by how much device time, in its own weight, it has had more than the first of its rank.
	Lead time.Duration
}

// State is what a plan is made for.
type State struct {
	Room    map[Device]uint64 // bytes of each device that there are for all tenants together
	Tenants []Tenant
	// Order has those that compute or wait, who goes first first; others wait by Since, after these. One that has had no work
	// for a while may be in it.
	Order []Place
}

// Plan is what is to be done.
type Plan struct {
	// Level is what each tenant may have now, by its Parts.
	Level map[uint64][]uint64
	// In has the tenants that may compute. Coming have been chosen and wait for the rest of their memory; until it has
	// come, their devices may have nobody else. Next are those whose memory is loaded ahead, by device.
	In, Coming map[uint64]bool
	Next       map[Device]uint64
	// Wake is when to plan again although nothing has changed; the zero time is never.
	Wake time.Time
}

// Stats only rise.
type Stats struct {
	// Switches counts tenants that came in where not all memory fits, and Hits those of them that had been chosen to be
	// next, or had all of their memory. Forced counts those of which nothing more could be loaded ahead, as they do not fit
	// beside the one before, and LeastForced how many there are at least for these sizes, if all take turns in the same cycle.
	Switches, Hits, Forced uint64
	LeastForced            float64
	// Size is what they needed in bytes, Exposed what of it was not there yet when they were chosen. Wasted is what was loaded
	// ahead for a tenant and left again before its turn.
	Size, Exposed, Wasted uint64
	// Waited is how long they took from then until they came in.
	Waited time.Duration
}

// member is what is known of a tenant between plans.
type member struct {
	in        bool              // it computes, or has been chosen to
	ready     bool              // all of its memory has come since
	chosen    time.Time         // when it was chosen
	since     time.Time         // when its turn began
	asked     time.Time         // since when it has waited for one
	displaces bool              // others that had work made room for it then
	ahead     map[Device]uint64 // bytes loaded ahead for its next turn
	next      bool              // it was voted, or waited, to be next
	paused    time.Duration     // the pause that it makes
	pauses    uint8             // its last pauses, the latest in the lowest bit: 1 is a long one
}

// Policy knows turns and successors.
type Policy struct {
	options Options
	members map[uint64]*member
	history succession.History[uint64]
	last    map[Device]uint64        // who came in last
	exposed map[Device]time.Duration // mean time of a swap that was not hidden
	length  map[Device]time.Duration // of a turn
	cycles  map[Device]*cycle
	stats   Stats
}

// New makes a policy without tenants.
func New(o Options) *Policy {
	p := &Policy{
		members: map[uint64]*member{}, last: map[Device]uint64{}, exposed: map[Device]time.Duration{},
		length: map[Device]time.Duration{}, cycles: map[Device]*cycle{},
	}
	p.SetOptions(o)
	return p
}

// SetOptions changes the options, from the next plan on.
func (p *Policy) SetOptions(o Options) {
	o.Min = cmp.Or(o.Min, DefaultMin)
	o.Idle, o.Quiet = cmp.Or(o.Idle, DefaultIdle), cmp.Or(o.Quiet, DefaultQuiet)
	o.Max = max(cmp.Or(o.Max, DefaultMax), o.Min)
	p.options = o
}

// Stats returns what has been counted.
func (p *Policy) Stats() Stats { return p.stats }

// Turn is how long a turn on a device is at present.
func (p *Policy) Turn(d Device) time.Duration { return cmp.Or(p.length[d], p.options.Min) }

// Plan decides what follows from a state.
func (p *Policy) Plan(now time.Time, s State) Plan {
	g := newPlanning(p, now, s)
	p.forget(g)
	g.arrive()
	g.reduce()
	g.expect()
	for _, t := range g.waiting() {
		g.serve(t)
	}
	g.predict()
	g.raise()
	g.lower()
	return g.plan()
}

// forget drops tenants that are gone.
func (p *Policy) forget(g *planning) {
	for id := range p.members {
		if g.byID[id] == nil {
			delete(p.members, id)
			p.history.Forget(id)
		}
	}
	for _, t := range g.tenants {
		if p.members[t.ID] == nil {
			p.members[t.ID] = &member{ahead: map[Device]uint64{}}
		}
		t.member = p.members[t.ID]
	}
}

// measure takes how long a swap that was not hidden has lasted.
func (p *Policy) measure(d Device, took time.Duration, rivals int) {
	if p.exposed[d] == 0 {
		p.exposed[d] = took
	}
	p.exposed[d] += (took - p.exposed[d]) / 4
	length := factor * p.exposed[d]
	if most := p.options.Latency / time.Duration(max(rivals-1, 1)); most > 0 {
		length = min(length, most)
	}
	length = max(p.options.Min, min(length, p.options.Max))
	// Small changes are not followed: turns of changing length are unfair.
	if was := p.length[d]; was < p.options.Min || was > p.options.Max || length > was+was/4 || length < was-was/4 {
		p.length[d] = length
	}
}

// cycle is an order of tenants whose neighbours fit together.
type cycle struct {
	ids   []uint64 // for which it was made
	sizes []uint64
	room  uint64
	order []uint64
	least float64 // part of the neighbours that do not fit together at least
}

// cycle is that of the tenants which take turns on a device.
func (g *planning) cycle(d int) *cycle {
	var ids, sizes []uint64
	for _, t := range g.on[d] {
		if size := t.Parts[t.at(d)].Size; size > 0 && (t.takesTurns() || t.Idle < g.options.Quiet) {
			ids, sizes = append(ids, t.ID), append(sizes, size)
		}
	}
	room := uint64(g.room[d])
	c := g.cycles[g.devices[d]]
	if c == nil || c.room != room || !slices.Equal(c.ids, ids) || !slices.Equal(c.sizes, sizes) {
		c = arrange(ids, sizes, room)
		g.cycles[g.devices[d]] = c
	}
	return c
}

// arrange makes a cycle in which as little as possible of neighbours' sizes is beyond the room, in thousandths of it.
func arrange(ids, sizes []uint64, room uint64) *cycle {
	c := &cycle{ids: ids, sizes: sizes, room: room}
	cost := func(a, b int) int {
		over := sizes[a] + sizes[b] - min(room, sizes[a]+sizes[b])
		if over == 0 || room == 0 {
			return 0
		}
		return 1000 + int(1000*float64(over)/float64(room)) // one more that does not fit is worse than any amount
	}
	for _, i := range succession.Arrange(len(ids), cost) {
		c.order = append(c.order, ids[i])
	}
	large := 0
	for _, size := range sizes {
		if size > room/2 { // no two of them fit
			large++
		}
	}
	if n := len(ids); n > 1 {
		c.least = float64(succession.LeastForcedCycle(n, large)) / float64(n)
	}
	return c
}

// distance is how many turns after another one a tenant has its own; it is the cycle's length where one of them is not in it.
func (c *cycle) distance(from, to uint64) int {
	i, j := slices.Index(c.order, from), slices.Index(c.order, to)
	if i < 0 || j < 0 || i == j {
		return len(c.order)
	}
	return (j - i + len(c.order)) % len(c.order)
}
