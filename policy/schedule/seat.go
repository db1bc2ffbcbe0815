package schedule

import (
	"cmp"
	"slices"
)

// lateMax bounds how late Busy may grow and still be charged in full: what a process claims to have used while it did
// not count is charged to its groups, too.
const lateMax = second

// seat is an lgpu on a device.
type seat struct {
	*core
	entity *entity
	dev    *device
	*account
	job *job

	busy      int64 // as last reported
	reported  int64 // when
	settledAt int64 // clock is summed up to here
	clock     int64 // contended time since reported
	charged   int64 // of it or of Busy, since reported
	advanced  int64 // when Busy last grew
	ran       int64 // it used the device until then, or for longer
	counted   int64 // charged since then

	wants  bool
	since  int64 // it wants, or has been drained
	used   int64 // last sign of work
	waited int64 // before this grant

	open      bool // from Open, Seep or Free to Closed
	closeSent bool // Close has been decided
	granted   bool // it is part of its job's grant
	guest     bool // it has a grant beside the owner
	late      bool // charged beside the owner: a drain past the bound, a launch let through
	levels    int  // of the tree, from below, on which it takes part in fair queueing
	claiming  bool // could begin a grant now; scratch of contend
	passed    bool // by pick; scratch
	paused    bool // its last grant ended because it had no work
	heavy     bool // it keeps the device busy all the time
	memory    Memory
	slice     int64 // time slice that it has been told to have; 0: the driver's own
	parts     int64 // how many times that of the smallest guest it is to have as one

	presence presence

	// The terms of the grant, and the slice's end, as last told.
	sentUntil  int64
	sentWanted bool
	sentBeside bool
	sentEnds   int64

	drain   int64 // how long it usually drains beyond a slice
	meter   meter
	metered int64
	spent   int64 // device time charged since it was attached
}

func newSeat(e *entity, d *device, busy int64) *seat {
	x := &seat{
		core: d.core, entity: e, dev: d, account: d.account(e),
		busy: clampTime(busy), reported: d.now, settledAt: d.now, advanced: d.now, since: d.now, used: d.now,
	}
	if x.presence = newPresence(d.now); x.account.known == nil {
		d.turns.worse.end = min(d.turns.worse.end, d.now+betterMin) // it is not known of this one
	} else {
		x.presence = *x.account.known
		x.presence.restart(d.now)
		x.presence.unstopped = false
	}
	return x
}

// bySeat orders seats by device, then ID.
func bySeat(a, b *seat) int {
	return cmp.Or(cmp.Compare(a.dev.id, b.dev.id), cmp.Compare(a.entity.id, b.entity.id))
}

// Levels of precedence.
const (
	levelLatency = iota
	levelMin
	levelHigh
	levelNormal
)

// want notes that the seat has work while its gate is closed.
func (x *seat) want() {
	x.worked()
	if x.open {
		x.wants = x.closeSent // it counts for after Closed; before Close there was no need to ask
		return
	}
	if !x.wants {
		x.wants, x.since = true, x.now
	}
	x.dev.mark()
	j := x.job
	if j.phase != running {
		return
	}
	if x.granted { // it yielded while the rest of its gang went on
		x.openGate()
	} else if d := x.dev; d.owner != j && d.next != j {
		// The gang needs one more device than its grant has.
		if d.owner == nil && d.next == nil && x.funded() {
			d.owner = j
			x.granted = true
			j.granted = append(j.granted, x)
			slices.SortFunc(j.granted, bySeat)
			x.openGate()
		} else {
			j.close()
		}
	}
}

// drained notes that an open seat's gate is closed and its work done; waiting says that there is more.
func (x *seat) drained(waiting bool) {
	d, j := x.dev, x.job
	waiting = waiting || x.wants
	stopped := x.guest && waiting && !x.closeSent // it has used up what it may
	x.open, x.guest, x.closeSent, x.since, x.wants, x.paused = false, false, false, x.now, waiting, !waiting
	if waiting {
		x.worked()
	}
	if d.free == x {
		d.free = nil
	}
	x.endBeside()
	if stopped {
		j.retreat()
	}
	if x.granted {
		if j.last && j.ends != 0 && x.now >= j.ends {
			over := x.now - j.ends
			x.drain += (over - x.drain) / 4
		}
		if waiting && j.phase == running {
			j.close()
		}
		j.advance()
	}
	j.mark()
}

// funded reports whether the seat has the credit to begin a grant.
func (x *seat) funded() bool {
	return x.entity.mayUse(x.dev.id) && x.due(x.dev.options.Quantum) <= x.now
}

// claims reports whether the seat's job could begin a grant now, with this seat in it.
func (x *seat) claims() bool {
	if x.mayVisit() {
		return !x.open && x.wants && x.job.phase == idle && x.job.late == 0 && x.funded()
	}
	return !x.open && x.job.phase == idle && x.job.ready() && slices.Contains(x.job.candidates, x)
}

// contests reports whether the seat waits for the device to be its own, and could use it.
func (x *seat) contests() bool { return x.claiming && !x.guestly() && x.job.here() }

// compete makes the seat take part in fair queueing on that many levels of the tree, counted from its own.
func (x *seat) compete(levels int) {
	a := x.account
	for level := 0; level < max(levels, x.levels); level, a = level+1, a.parent {
		switch {
		case level >= x.levels:
			a.join(x.now)
		case level >= levels:
			a.leave()
		}
	}
	x.levels = levels
}

// level is the seat's precedence at present.
func (x *seat) level() int {
	if x.entity.p.Latency {
		slack := x.dev.options.Slice
		if !x.granted {
			slack /= 2
		}
		if !x.ahead(slack, x.dev.options.SliceMax) && !outruns(x, slack) {
			return levelLatency
		}
	}
	switch {
	case x.shortfall(x.now) < x.now:
		return levelMin
	case x.entity.p.Class == High:
		return levelHigh
	default:
		return levelNormal
	}
}

// outruns reports whether a seat has had more than slack beyond the part of a gang that has the device or waits for
// it: one that waits does not count in the mean that others are compared with.
func outruns(x *seat, slack int64) bool {
	return slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		return y.job != x.job && !y.job.single() && (y.granted || y.contests()) && y.fairer(x.account, slack, 0)
	})
}

// before reports whether x goes before y on the device of both.
func (x *seat) before(y *seat) bool {
	lx, ly := x.level(), y.level()
	if lx != ly {
		return lx < ly
	}
	if lx == levelMin {
		if ox, oy := x.shortfall(x.now), y.shortfall(x.now); ox != oy {
			return ox < oy
		}
	}
	return x.fairer(y.account, x.tired(), y.tired())
}

// fresh reports whether a seat's grant has only just begun. If it ended for a gang then, and that gang's for another,
// all of them would begin for ever, and none would run.
func (x *seat) fresh() bool { return x.now < x.job.opened+x.dev.options.Slice/4 }

// tired is device time that counts against a seat that has the device, or just had it, in a comparison with others.
// Without it, two seats that differ by the length of a drain would not take turns.
func (x *seat) tired() int64 {
	if x.granted || x.last == x.now {
		return x.dev.options.Slice / 4
	}
	return 0
}

// yields reports whether x, which goes before q, lets q pass once q has waited for long.
func (x *seat) yields(q *seat) bool {
	lx, lq := x.level(), q.level()
	return (lx == lq || lx == levelMin) && !q.ahead(0, q.dev.options.SliceMax)
}

// lets reports whether x's class allows q to go first because it is older.
func lets(x, q *seat) bool { return q.entity.p.Class == High || x.entity.p.Class != High }

// chargeBeside charges the seat by the clock for using its device beside the owner, until endBeside.
func (x *seat) chargeBeside() {
	x.settle()
	x.late = true
	x.job.late++
}

// endBeside ends chargeBeside.
func (x *seat) endBeside() {
	if x.late {
		x.settle()
		x.late = false
		x.job.late--
	}
}

// openGate opens the gate of a seat that is part of its job's grant.
func (x *seat) openGate() {
	if x.open {
		x.extend(true)
		return
	}
	x.settle()
	x.arrived()
	x.open, x.closeSent, x.wants = true, false, false
	x.reported, x.clock, x.charged = x.now, 0, 0
	x.tell(Open, x.allowance())
}

// extend tells an open seat when the terms of its grant have changed. Unless all is set, small changes of its credit
// are not told.
func (x *seat) extend(all bool) {
	if !x.open || x.closeSent {
		return
	}
	until := x.allowance()
	wanted, same := x.wanted(), beside(x) == x.sentBeside
	if wanted == x.sentWanted && same && x.job.ends == x.sentEnds && !all {
		if wanted || max(until, x.sentUntil)-min(until, x.sentUntil) < x.dev.options.Quantum/4 {
			return
		}
	}
	if until == x.sentUntil && wanted == x.sentWanted && same {
		x.sentEnds = x.job.ends
		return
	}
	x.tell(Extend, until)
}

// wanted reports whether the seat must not keep its grant without work. A guest may: it is in nobody's way then.
func (x *seat) wanted() bool { return x.dev.pressed && !x.guest }

// beside reports whether others use the device at the same time as a seat. Then it is charged what the hardware notes, as a
// guest, or by the clock, if guests come in its turn. While nobody else has work it is charged by its Busy, and where others
// wait for the end of its turn, that ends by it.
func beside(x *seat) bool { return x.dev.options.Preempt && !x.wanted() && x.dev.accompanied(x) }

// seepAt is when a seat's next launch is let through, if it is; otherwise when to look at that again, in the future.
func (x *seat) seepAt() (int64, bool) {
	j := x.job
	if !x.wants || x.open || !x.entity.mayUse(x.dev.id) || len(j.seats) < 2 {
		return 0, false
	}
	switch {
	case j.phase == closing || j.retreats():
		return max(x.since, j.closed) + x.dev.options.SeepAfter, true
	case j.late > 0 && !x.granted:
		return max(x.since, j.beside) + x.dev.options.Slice, true
	case j.phase == idle:
		return x.freeing()
	default:
		return 0, false
	}
}

// freeing is when a launch is let through although the gang has no grant, and whether it is: a seat of the gang that had
// all but drained runs on, or one that was a guest before it was in a gang, as half of a collective does that waits for
// this launch. The debt of the one, which grows meanwhile, and the gate of the other, which cannot be closed, would keep
// the gang from the grant that ends the wait.
func (x *seat) freeing() (at int64, ok bool) {
	o := &x.dev.options
	after := early + o.SeepAfter
	if x.dev.owner != nil {
		after = early + o.Slice
	}
	at = forever + latest
	for _, y := range x.job.seats {
		if y == x || y.open && !y.guest {
			continue
		}
		due := max(x.since, y.since) + after
		if y.ran > due-o.SeepAfter {
			return due, true
		}
		if due > x.now {
			at = min(at, due) // if it runs on, that is known then
		}
	}
	return at, false
}

// allowance is the Busy at which the grant ends.
func (x *seat) allowance() int64 {
	until := NoLimit
	// Busy is known as of reported, and time charged by the clock since then was presumably busy. The credit is that of
	// the same moment, so that no other time since then counts before its Busy is known.
	if room := x.room(x.reported + x.charged); room < forever {
		until = x.busy + x.charged + room
	}
	if x.guest {
		if left := x.stay(); left < forever {
			until = min(until, x.busy+left)
		}
	} else if ends := x.job.ends; ends != 0 && x.dev.pressed {
		until = min(until, x.busy+max(ends, x.now)-x.reported)
	}
	return until
}

// settle charges the seat for the time that has passed by the clock, where the clock counts.
func (x *seat) settle() {
	if x.late || x.granted && x.dev.contended && x.job == x.dev.owner && x.job.phase >= running {
		x.clock += x.now - x.settledAt
		if !x.late {
			excused := min(x.dev.visits, x.now-x.settledAt)
			x.dev.visits -= excused
			x.charged += excused
			x.counted += excused
		}
	} else if since, is := exposed(x); is {
		x.clock += x.now - max(x.settledAt, since)
	}
	x.settledAt = x.now
	if x.clock > x.charged {
		x.spend(x.clock-x.charged, true)
		x.charged = x.clock
	}
}

// spend charges device time to the accounts and the meter.
func (x *seat) spend(spent int64, contended bool) {
	x.presence.charged += spent
	early := min(spent, x.presence.ahead)
	x.presence.ahead -= early
	x.counted += early
	spent -= early
	x.charge(x.now, spent, x.dev.options.SliceMax, contended)
	x.count(spent)
}

// count adds device time that has been charged to what was delivered.
func (x *seat) count(spent int64) {
	x.counted += spent
	before := min(spent, x.presence.returned)
	x.presence.returned -= before
	spent -= before
	x.spent += spent
	x.meter.add(max(x.metered, x.now-second), x.now, spent)
	x.metered = x.now
}

// report takes the seat's Busy and charges what the clock has not charged already.
func (x *seat) report(busy int64) {
	x.settle()
	busy = clampTime(busy)
	spent := max(0, min(busy-x.busy, x.now-x.reported))
	x.weigh(spent)
	if spent > 0 {
		x.ran = x.reported + spent
		if !x.open || x.guest && x.closeSent {
			x.job.mark() // see freeing
		}
		x.worked()
		if x.guest && x.levels == 0 {
			x.compete(x.depth)
		}
	}
	if x.open && (x.guest || x.granted && !x.dev.contended) {
		x.cut(x.reported-x.waited, x.dev.options.Burst)
	}
	// A process counts only when it gets a CPU, so the time may have been used at any moment since Busy last grew.
	late := min(busy-x.busy, x.now-max(x.advanced, x.now-lateMax))
	switch due := max(spent-x.charged, late-x.counted); {
	case due <= 0:
	case x.guest:
		x.visited(due)
	default:
		x.spend(due, !x.open)
	}
	if busy > x.busy {
		x.advanced, x.counted = x.now, 0
	}
	x.busy, x.reported, x.clock, x.charged = busy, x.now, 0, 0
}

// worked notes a sign of work.
func (x *seat) worked() { x.used, x.job.used = x.now, x.now }
