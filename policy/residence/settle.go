package residence

import (
	"cmp"
	"slices"
	"time"

	"github.com/lgpu/lgpu/policy/slot"
)

// View is what is known of lgpus beyond what their clients say.
type View struct {
	// Idle says for how long an lgpu has had no work; 0 if it has some.
	Idle func(lgpu uint64) time.Duration
	// Order is the planned order of lgpus that compute, or wait to; see slot.State.
	Order []slot.Place
	// Gang says with which others an lgpu computes only together: those with the same name; empty is none. nil: all are by
	// themselves.
	Gang func(lgpu uint64) string
	// Resting says whether the gates of an lgpu are closed, so that its memory can leave at once. nil: they always are.
	Resting func(lgpu uint64) bool
}

// Memory says where the memory of an lgpu is.
type Memory uint8

const (
	Here   Memory = iota // on its devices: it may compute
	Away                 // not there, or to leave
	Coming               // likewise, and others have made room for it
)

// Memory says whether an lgpu may compute, as of the last Settle. One that is suspended may, as far as turns go: its own
// lock keeps it from what is not there.
func (p *Policy) Memory(id uint64) Memory {
	l := p.lgpus[id]
	switch {
	case l == nil || l.suspended || len(l.seats) == 0 || p.plan.In[l.unit]:
		return Here
	case p.plan.Coming[l.unit]:
		return Coming
	}
	return Away
}

// Next reports whether an lgpu is to have the next turn on a device, so that its memory is loaded ahead.
func (p *Policy) Next(id uint64, d Device) bool {
	l, next := p.lgpus[id], p.plan.Next[d]
	return l != nil && next != 0 && l.unit == next && p.Memory(id) == Away
}

// Turn is how long a turn on a device is, and Stats what has been counted of turns.
func (p *Policy) Turn(d Device) time.Duration { return p.slots.Turn(d) }

// Stats returns what has been counted of turns.
func (p *Policy) Stats() slot.Stats { return p.slots.Stats() }

// SetTurns sets the bounds of turns, and how long an lgpu is to wait for its own at most; 0 is the default.
func (p *Policy) SetTurns(least, most, latency time.Duration) {
	p.turns.Min, p.turns.Max, p.turns.Latency = least, most, latency
	p.slots.SetOptions(p.turns)
}

// Settle gives the orders that follow from all that was said, and says when it is to be asked again though nothing is
// said; the zero time is never.
func (p *Policy) Settle(now time.Time, view View) (orders []Order, next time.Time) {
	s := &settling{Policy: p, now: now, view: view}
	for _, id := range p.LGPUs() {
		s.hold(p.lgpus[id])
	}
	units := s.units()
	p.plan = p.slots.Plan(now, s.state(units))
	s.wake(p.plan.Wake, 0)
	for _, u := range units {
		s.follow(u)
	}
	for _, l := range p.lgpus {
		for _, seat := range l.seats {
			if seat.resync && seat.Linked { // nothing else was to be said to it
				p.order(now, seat, seat.Level)
			}
			s.wake(seat.Since, p.options.Stuck)
		}
	}
	orders, p.orders = p.orders, nil
	return orders, s.next
}

// settling is one Settle.
type settling struct {
	*Policy
	now  time.Time
	view View
	next time.Time
}

// wake asks for another Settle so long after a time, unless that is over.
func (s *settling) wake(at time.Time, after time.Duration) {
	if at.IsZero() {
		return
	}
	if at = at.Add(after); at.After(s.now) && (s.next.IsZero() || at.Before(s.next)) {
		s.next = at
	}
}

// hold has the memory of a suspended lgpu leave, and notes what has become of those that ask.
func (s *settling) hold(l *lgpu) {
	if l.suspended {
		for _, seat := range l.seats {
			s.take(seat)
		}
		return
	}
	for _, seat := range l.seats {
		if seat.answer && seat.Level < seat.Wanted && s.never(l, seat) { // it is known only since that so much stays
			s.refuse(seat)
		}
	}
	if l.asking && l.complete() {
		l.asking = false
		for _, seat := range l.seats {
			if seat.Since.IsZero() {
				seat.Refused = 0 // it was to leave and could not, and need not any more
			}
			if seat.answer && seat.Linked {
				s.order(s.now, seat, seat.Level)
			}
		}
	}
}

// complete reports whether an lgpu has been given all that it wants.
func (l *lgpu) complete() bool {
	return !slices.ContainsFunc(l.seats, func(s *seat) bool { return s.Level < s.Wanted })
}

// take takes all from a seat, now or when it is asked again.
func (s *settling) take(seat *seat) {
	switch {
	case !seat.Linked:
	case seat.Level == 0 && !seat.resync:
	case s.now.Before(seat.retry):
		s.wake(seat.retry, 0)
	default:
		s.order(s.now, seat, 0)
	}
}

// unit is what has its turns together: an lgpu, or a gang of them.
type unit struct {
	id      uint64
	lgpus   []*lgpu
	devices []Device
}

// units returns those that take turns, in order. What is suspended takes none.
func (s *settling) units() []*unit {
	var all []*unit
	gangs := map[string]*unit{}
	for _, id := range s.LGPUs() {
		l := s.lgpus[id]
		if l.suspended || len(l.seats) == 0 {
			continue
		}
		gang := ""
		if s.view.Gang != nil {
			gang = s.view.Gang(id)
		}
		u := gangs[gang]
		if gang == "" || u == nil {
			u = &unit{id: id}
			all = append(all, u)
		}
		if gang != "" {
			gangs[gang] = u
		}
		l.unit = u.id
		u.lgpus = append(u.lgpus, l)
		for _, seat := range l.seats {
			if !slices.Contains(u.devices, seat.Device) {
				u.devices = append(u.devices, seat.Device)
			}
		}
	}
	return all
}

// seats calls do for the seats of a unit on one of its devices.
func (u *unit) seats(d Device, do func(*seat)) {
	for _, l := range u.lgpus {
		for _, s := range l.seats {
			if s.Device == d {
				do(s)
			}
		}
	}
}

// state is what turns are planned for.
func (s *settling) state(units []*unit) slot.State {
	state := slot.State{Room: map[Device]uint64{}}
	for d, device := range s.devices {
		state.Room[d] = device.budget - min(device.plain, device.budget)
	}
	for _, l := range s.lgpus {
		for _, seat := range l.seats {
			if room, known := state.Room[seat.Device]; l.suspended || !known {
				state.Room[seat.Device] = room - min(seat.Taken, room)
			}
		}
	}
	known := map[uint64]uint64{}
	for _, u := range units {
		state.Tenants = append(state.Tenants, s.tenant(u))
		for _, l := range u.lgpus {
			known[l.id] = u.id
		}
	}
	placed := map[uint64]bool{}
	for _, place := range s.view.Order {
		if id, ok := known[place.ID]; ok && !placed[id] {
			placed[id] = true
			place.ID = id
			state.Order = append(state.Order, place)
		}
	}
	return state
}

// tenant is a unit as turns are planned for it.
func (s *settling) tenant(u *unit) slot.Tenant {
	t := slot.Tenant{ID: u.id, Idle: 1 << 62}
	for _, l := range u.lgpus {
		t.Idle = min(t.Idle, s.view.Idle(l.id))
		if l.asking && (!t.Waits || l.since.Before(t.Since)) {
			t.Waits, t.Since = true, l.since
		}
		t.Deaf = t.Deaf || slices.ContainsFunc(l.seats, s.deaf)
	}
	for _, d := range u.devices {
		part := slot.Part{Device: d, Tells: true}
		u.seats(d, func(seat *seat) {
			part.Size, part.Fixed = add(part.Size, seat.Wanted), add(part.Fixed, seat.fixed)
			part.Level, part.Taken = add(part.Level, seat.Level), add(part.Taken, seat.Taken)
			part.Resident = add(part.Resident, seat.Resident)
			part.Moving = part.Moving || !seat.Since.IsZero()
			part.Tells = part.Tells && seat.tells
		})
		t.Parts = append(t.Parts, part)
	}
	return t
}

// deaf reports whether a client cannot be asked for anything now.
func (s *settling) deaf(seat *seat) bool {
	if s.now.Before(seat.retry) {
		s.wake(seat.retry, 0)
		return true
	}
	return !seat.Linked || s.stuck(seat)
}

// stuck reports whether a client has not answered for too long.
func (s *settling) stuck(seat *seat) bool {
	return !seat.Since.IsZero() && s.now.Sub(seat.Since) >= s.options.Stuck && s.now.Sub(seat.heard) >= s.options.Stuck
}

// follow gives the clients of a unit the levels that were planned for it.
func (s *settling) follow(u *unit) {
	for i, d := range u.devices {
		level, before := s.plan.Level[u.id][i], uint64(0)
		u.seats(d, func(seat *seat) { before = add(before, seat.Level) })
		switch {
		case level > before:
			s.raise(u, d, level-before)
		case level < before && s.rest(u):
			s.lower(u, d, before-level)
		}
	}
}

// rest reports whether memory of a unit can leave now. Its gates are waited for, though not for long: the clients' own lock
// keeps everything from what leaves, but with its gates closed nothing of a gang waits for what is behind that lock.
func (s *settling) rest(u *unit) bool {
	resting := s.view.Resting == nil || !slices.ContainsFunc(u.lgpus, func(l *lgpu) bool { return !s.view.Resting(l.id) })
	for _, l := range u.lgpus {
		switch {
		case resting:
			l.leaves = time.Time{}
		case l.leaves.IsZero():
			l.leaves = s.now
		}
	}
	if resting {
		return true
	}
	s.wake(u.lgpus[0].leaves, s.options.Drain)
	return s.now.Sub(u.lgpus[0].leaves) >= s.options.Drain
}

// raise gives clients of a unit so much more together.
func (s *settling) raise(u *unit, d Device, more uint64) {
	u.seats(d, func(seat *seat) {
		if lacks := seat.Wanted - min(seat.Level, seat.Wanted); lacks > 0 && more > 0 && seat.Linked {
			part := min(lacks, more)
			more -= part
			s.order(s.now, seat, seat.Level+part)
		}
	})
}

// lower takes so much from clients of a unit together, first from those that have most.
func (s *settling) lower(u *unit, d Device, less uint64) {
	var all []*seat
	u.seats(d, func(seat *seat) { all = append(all, seat) })
	slices.SortStableFunc(all, func(a, b *seat) int { return cmp.Compare(b.Level, a.Level) })
	for _, seat := range all {
		part := min(seat.Level-min(seat.fixed, seat.Level), less)
		if part > 0 && seat.Linked {
			less -= part
			s.order(s.now, seat, seat.Level-part)
		}
	}
}
