package residence

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Idle says for how long an lgpu has had no work; 0 if it has some.
type Idle func(lgpu uint64) time.Duration

// Settle gives the orders that follow from all that was said, and says when it is to be asked again though nothing is
// said; the zero time is never.
func (p *Policy) Settle(now time.Time, idle Idle) (orders []Order, next time.Time) {
	s := &settling{Policy: p, now: now, idle: idle, room: p.room()}
	for _, id := range p.LGPUs() {
		s.hold(p.lgpus[id])
	}
	s.reduce()
	for _, l := range p.waiting() {
		if !slices.ContainsFunc(l.seats, s.resting) {
			s.serve(l)
		}
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
	idle Idle
	// room is what is free of each device; it is less than nothing where somebody who waits has a claim to it.
	room map[Device]int64
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

// room is what no client has taken of each device.
func (p *Policy) room() map[Device]int64 {
	room := map[Device]int64{}
	for d, device := range p.devices {
		room[d] = signed(device.budget) - signed(device.plain)
	}
	for _, l := range p.lgpus {
		for _, s := range l.seats {
			room[s.Device] -= signed(s.Taken)
		}
	}
	return room
}

// signed is n as a number that sums of many do not take round.
func signed(n uint64) int64 { return int64(min(n, 1<<50)) }

// hold has the memory of a suspended lgpu leave, and notes what has become of those that ask.
func (s *settling) hold(l *lgpu) {
	if l.suspended {
		l.in = false
		for _, seat := range l.seats {
			s.take(seat)
		}
		return
	}
	if l.asking && l.complete() {
		l.asking = false
		for _, seat := range l.seats {
			if seat.Since.IsZero() {
				seat.Refused = 0 // it was to leave and could not, and need not any more
			}
			if seat.answer {
				s.order(s.now, seat, seat.Level)
			}
		}
	}
}

// complete reports whether an lgpu has all that it wants.
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

// waiting are the lgpus that ask, who waits longest first.
func (p *Policy) waiting() []*lgpu {
	var all []*lgpu
	for _, l := range p.lgpus {
		if l.asking && !l.suspended {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lgpu) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.id, b.id)) })
	return all
}

// missing is what an lgpu lacks of each device, in bytes.
func (l *lgpu) missing() map[Device]int64 {
	missing := map[Device]int64{}
	for _, s := range l.seats {
		if more := signed(s.Wanted) - signed(s.Taken); more > 0 && s.Linked {
			missing[s.Device] += more
		}
	}
	return missing
}

// fits reports whether there is room for all that is missing.
func fits(missing, room map[Device]int64) bool {
	for d, bytes := range missing {
		if bytes > 0 && room[d] < bytes {
			return false
		}
	}
	return true
}

// serve gives an lgpu what it wants, or has others make room.
func (s *settling) serve(l *lgpu) {
	missing := l.missing()
	if fits(missing, s.room) {
		s.give(l, missing)
		return
	}
	coming := s.coming()
	short := func() map[Device]int64 {
		short := map[Device]int64{}
		for d, bytes := range missing {
			if lacks := bytes - s.room[d] - coming[d]; lacks > 0 {
				short[d] = lacks
			}
		}
		return short
	}
	if !s.possible(l, short()) {
		return // others are served meanwhile
	}
	var chosen []*lgpu
	for _, victim := range s.victims(l, true) {
		if lacks := short(); len(lacks) > 0 && victim.gives(lacks, coming) {
			chosen = append(chosen, victim)
		}
	}
	if lacks := short(); len(lacks) == 0 {
		for _, victim := range chosen {
			s.evict(victim, missing)
		}
	}
	for d, bytes := range missing { // what becomes free is kept
		s.room[d] -= bytes
	}
}

// give gives an lgpu all that it wants.
func (s *settling) give(l *lgpu, missing map[Device]int64) {
	for d, bytes := range missing {
		s.room[d] -= bytes
	}
	for _, seat := range l.seats {
		if seat.Linked && (seat.Level < seat.Wanted || seat.answer) {
			s.order(s.now, seat, max(seat.Level, seat.Wanted))
		}
	}
	l.asking = false
	if !l.in {
		l.in, l.returning, l.resident = true, true, s.now
	}
}

// coming is what clients have been told to give back and may still.
func (s *settling) coming() map[Device]int64 {
	coming := map[Device]int64{}
	for _, l := range s.lgpus {
		for _, seat := range l.seats {
			if seat.Taken > seat.Level && seat.Linked && !seat.Since.IsZero() && !s.stuck(seat) {
				coming[seat.Device] += signed(seat.Taken) - signed(max(seat.Level, seat.fixed))
			}
		}
	}
	return coming
}

// stuck reports whether a client has not answered for too long.
func (s *settling) stuck(seat *seat) bool {
	return !seat.Since.IsZero() && s.now.Sub(seat.Since) >= s.options.Stuck
}

// possible reports whether what is short can come from others at all, now or after their turns.
func (s *settling) possible(l *lgpu, short map[Device]int64) bool {
	others := map[Device]int64{}
	for _, victim := range s.victims(l, false) {
		victim.gives(short, others)
	}
	return fits(short, others)
}

// gives adds what an lgpu could give of devices that are short, and reports whether that is anything.
func (l *lgpu) gives(short, sum map[Device]int64) (any bool) {
	for _, s := range l.seats {
		if short[s.Device] > 0 && s.Level > s.fixed && s.Linked {
			sum[s.Device] += signed(s.Level - s.fixed)
			any = true
		}
	}
	return any
}

// victims are the lgpus from which memory can be taken for another, first those that give way first. With now, they are
// those whose turn is over.
func (s *settling) victims(forWhom *lgpu, now bool) []*lgpu {
	idle := map[uint64]time.Duration{}
	var all []*lgpu
	for _, l := range s.lgpus {
		if l == forWhom || l.suspended || slices.ContainsFunc(l.seats, s.unwilling) {
			continue
		}
		if turn := s.turn(l); now && s.now.Before(turn) {
			s.wake(turn, 0)
			continue
		}
		if idle[l.id] = s.idle(l.id); idle[l.id] < s.options.Idle {
			idle[l.id] = 0
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *lgpu) int {
		return cmp.Or(-cmp.Compare(idle[a.id], idle[b.id]), a.resident.Compare(b.resident), cmp.Compare(a.id, b.id))
	})
	return all
}

// unwilling reports whether a client cannot be asked to give memory back now.
func (s *settling) unwilling(seat *seat) bool { return s.resting(seat) || s.stuck(seat) }

// resting reports whether a client could not do what it was told a moment ago.
func (s *settling) resting(seat *seat) bool {
	if !s.now.Before(seat.retry) {
		return false
	}
	s.wake(seat.retry, 0)
	return true
}

// turn is when the turn of an lgpu ends. It begins when its memory has come back, for which there is a while.
func (s *settling) turn(l *lgpu) time.Time {
	if l.returning {
		return l.resident.Add(s.options.Turn + s.options.Stuck)
	}
	return l.resident.Add(s.options.Turn)
}

// evict takes an lgpu's memory of devices that are short.
func (s *settling) evict(l *lgpu, short map[Device]int64) {
	for _, seat := range l.seats {
		if short[seat.Device] > 0 && seat.Level > 0 && seat.Linked {
			s.take(seat)
		}
	}
	l.in, l.returning = false, false
	if l.asking {
		l.since = s.now // it has had its turn
	}
}

// reduce takes memory where more is given out than there is: the budget is less than it was, or lgpus without
// memory.overcommit use more.
func (s *settling) reduce() {
	coming := s.coming()
	over := map[Device]int64{}
	for d, room := range s.room {
		if room+coming[d] < 0 {
			over[d] = -room - coming[d]
		}
	}
	if len(over) == 0 {
		return
	}
	given := map[Device]int64{}
	for _, victim := range s.victims(nil, false) {
		lacks := maps.Clone(over)
		maps.DeleteFunc(lacks, func(d Device, bytes int64) bool { return given[d] >= bytes })
		if len(lacks) > 0 && victim.gives(lacks, given) {
			s.evict(victim, lacks)
		}
	}
}
