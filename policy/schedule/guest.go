package schedule

import "slices"

// On a device whose hardware preempts kernels (Options.Preempt), an lgpu that does not keep the device busy all the time
// is a guest: it is let in as soon as it has work, beside the owner, as long as it has not had more than its part. The
// others, which are heavy, still take the device in turns.

// Times in ns.
const (
	waitLook int64 = 2e6 // between two looks whether a guest that waits may go on
	pressing int64 = 600 // load of a guest beside which one of a lower class would be felt, in thousandths
	working  int64 = 2e6 // a guest without new work for so long wants nothing

	// A seat without work keeps its place in fair queueing for this long. Its claim is bounded meanwhile (bound).
	rest int64 = 50e6
)

// bound is by how much device time, in its own weight, a guest may be ahead of those that wait, and by how much one that
// rests may be behind.
func (o *Options) bound() int64 { return 5 * o.Slice / 2 }

// step is how far below bound a guest that was stopped is let in again.
func (o *Options) step() int64 { return o.Slice / 5 }

// bound is by how much device time the seat may be ahead. Guests that only other guests wait for share the device by their
// time slices, so they may be ahead by more than those that have not used their parts can be behind: they stop nobody then
// but one that takes much more than its slice should give it. So may gangs, for which it costs much to stop.
func (x *seat) bound() int64 {
	bound := x.dev.options.bound()
	if x.dev.crowd || !x.job.single() {
		bound *= 2
	}
	return bound
}

// step is how far below its bound the seat is let in again after it was stopped.
func (x *seat) step() int64 {
	if !x.job.single() {
		return x.bound() / 2
	}
	return x.dev.options.step()
}

// crowded reports whether guests alone want more of the device than there is.
func (d *device) crowded() bool {
	sum := int64(0)
	for _, x := range d.seats {
		if x.levels > 0 && x.mayVisit() {
			sum += x.presence.load.part()
		}
	}
	return sum > crowdFrom
}

// single reports whether the job is one seat, which is granted by itself.
func (j *job) single() bool { return len(j.seats) == 1 && j.gang == "" }

// light reports whether neither the seat itself nor another one that the hardware does not stop keeps it from being a guest.
func (x *seat) light() bool {
	return x.dev.options.Preempt && !x.heavy && !x.presence.hides && !x.dev.unstopped
}

// noteStops notes whether the hardware stops all that use the device. Where it does not, somebody's work could be kept from
// it for any time beside an open gate: then all take turns.
func (d *device) noteStops() {
	d.unstopped = slices.ContainsFunc(d.seats, func(x *seat) bool { return x.presence.unstopped && x.now < x.used+company })
}

// guestly reports whether the seat uses its device as a guest.
func (x *seat) guestly() bool {
	return x.mayVisit() && !x.granted && !x.late && x.dev.free != x
}

// mayVisit reports whether the seat, if it has no other grant, uses its device as a guest.
func (x *seat) mayVisit() bool { return x.light() && x.job.mayVisit() }

// hungry reports whether the seat has the device in its turn, or has work and waits.
func (x *seat) hungry() bool { return x.granted || x.claiming }

// strives reports whether the seat waits for the device, or uses it as a guest.
func strives(x *seat) bool { return x.claiming || x.guest && x.now < x.used+working }

// resting reports whether the seat takes part in fair queueing although it waits for nothing.
func (x *seat) resting() bool {
	return x.levels > 0 && !x.hungry() && x.dev.options.Preempt && x.now < x.used+rest
}

// lead is how much device time is left until the seat is as far ahead of those that wait as a guest may be, here and
// above; forever if nobody waits.
func (x *seat) lead() int64 {
	left := forever
	if x.entity.p.Class == High && !x.rivalled() {
		return left
	}
	ahead := int64(0) // of its siblings in groups: what the group may have is theirs first
	for a := x.account; a.parent != nil; a = a.parent {
		switch had := mulDivSigned(a.vt-a.parent.mean, a.weight, vtScale); {
		case a.parent.scan != x.dev.scan: // nobody waits at this level
		case a.parent.calm == x.dev.scan:
			ahead += max(had, 0)
		default:
			left = min(left, x.bound()-had-ahead)
		}
	}
	return left
}

func mulDivSigned(a, b, c int64) int64 {
	if a < 0 {
		return -mulDiv(-a, b, c)
	}
	return mulDiv(a, b, c)
}

// outranked reports whether a guest waits because a seat of a higher class takes the device in turns, or because guests
// alone want more than there is and one of them is of a higher class or below its minimum. Its own minimum is kept.
func (x *seat) outranked() bool {
	if x.shortfall(x.now) < x.now {
		return false
	}
	crowded := x.dev.crowd
	return slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		higher := y.entity.p.Class == High && x.entity.p.Class != High
		works := y.guest && y != x && y.now < y.used+working
		return higher && (y.granted || y.contests()) || crowded && works && (higher && y.presence.load.part() > pressing || y.shortfall(y.now) < y.now)
	})
}

// rivalled reports whether another seat of the same class waits for the device, or has it in its turn.
func (x *seat) rivalled() bool {
	return slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		return y != x && y.hungry() && y.entity.p.Class == x.entity.p.Class
	})
}

// receive opens and closes the gates of a device's guests.
func (d *device) receive() {
	d.noteTurns()
	d.tellRoles()
	d.crowd = d.crowded()
	guests := false
	for _, x := range d.seats {
		if x.granted && x.open && !x.closeSent && x.job.phase == running && d.owner == x.job && x.mayVisit() {
			x.job.makeWay()
		}
		guests = guests || x.guest || x.claiming && x.guestly()
	}
	if !guests {
		return
	}
	d.admit()
	for _, x := range d.seats {
		switch {
		case x.guest && !x.closeSent && (!x.guestly() || !x.entity.mayUse(d.id) || x.outranked() || !x.job.here()):
			x.job.retreat()
		case x.guest:
			x.extend(false)
		case !x.job.here():
		case x.claiming && x.guestly() && x.outranked():
			x.turn(true) // it takes part in the turns then, or it might never be let in
			d.mark()
		case x.claiming && x.guestly() && x.job.enters():
			x.job.visit()
		case x.claiming && x.guestly():
			x.job.retreat() // what it has launched elsewhere may wait for x
		}
	}
}

// stay is how much device time a guest may use until it is asked to wait.
func (x *seat) stay() int64 {
	left := x.lead()
	if x.shortfall(x.now) < x.now {
		left = max(left, x.step())
	}
	return max(left, 0)
}

// Time slices of those that would keep a guest waiting, ns. A slice ends only for somebody who has work, so a short one
// costs nothing while nobody comes. Where guests come often, most of the device would go into switches; then the slices
// are somewhat longer. That also lets guests that launch many small kernels prepare more of them, and come once for all.
// They grow further while a guest gets ahead of its part: it waits for a fraction of a millisecond at each visit then,
// instead of for several turns when it is as far ahead as it may be.
const (
	shortSlice  int64 = 50e3
	mediumSlice int64 = 150e3
	longSlice   int64 = 600e3
	sliceStep   int64 = 25e3 // smaller changes are not told
	often       int64 = 800  // visits a second from which slices are longer,
	rarely      int64 = 400  // until there are fewer than this

	// With a slice that is longer by 15 us, a guest that comes a thousand times a second has about 1 ms less in reslice.
	// These gains are 0.7 and 0.15 of that.
	speedGain int64 = 95
	placeGain int64 = 445

	reslice int64 = 100e6 // between two changes on a device: one takes 0.3 ms, and at worst 15

	// Of guests that share the device among themselves: the driver's own slice, and how many of them one has at most.
	driverSlice int64 = 2048e3
	mostParts   int64 = 8
)

// divide finds how many times the time slice of the smallest guests are to have, so that the hardware gives each its
// part, and to the others what one leaves.
func (d *device) divide() {
	if d.now < d.divided+reslice {
		return
	}
	d.divided = d.now
	active := func(x *seat) bool { return x.guest && x.now < x.used+company }
	asked, least := map[*account]float64(nil), 0.0
	for _, x := range d.seats {
		x.parts = 1
		if !active(x) {
			continue
		}
		if asked == nil {
			asked = d.entitled()
		}
		if part := asked[x.account]; part > 0 && (least == 0 || part < least) {
			least = part
		}
	}
	for _, x := range d.seats {
		if least > 0 && active(x) {
			x.parts = max(1, min(int64(asked[x.account]/least+0.5), mostParts))
		}
	}
}

// part is the time slice of the smallest guests. The longer one of a gang waits for its slice, the longer the others wait
// for it in a collective, and leave their devices idle: with gangs, the largest have the driver's own slice, and the others
// shorter ones.
func (d *device) part() int64 {
	most, gangs := int64(1), false
	for _, x := range d.seats {
		if x.guest && x.now < x.used+company {
			most, gangs = max(most, x.parts), gangs || !x.job.single()
		}
	}
	if gangs {
		return driverSlice / most
	}
	return driverSlice
}

// tellRoles says which time slices seats are to have. Where there are no guests, short ones would only add switches at
// the end of each turn, when the next one's work is there already.
func (d *device) tellRoles() {
	open, guests := 0, false
	for _, x := range d.seats {
		if x.open && !x.mayVisit() { // seats that take turns and use the device at once, past a drain, are not shortened either
			open++
		}
		guests = guests || x.mayVisit() && x.now < x.used+lively
	}
	if d.now < d.sliced+reslice {
		return
	}
	slice := int64(0)
	if guests && open < 2 {
		slice = d.fitSlice()
	}
	d.divide()
	part := d.part()
	for _, x := range d.seats {
		to := slice
		if x.mayVisit() {
			if to = max(x.parts, 1) * part; to == driverSlice {
				to = 0
			}
		}
		if to != x.slice {
			x.slice, d.sliced = to, d.now
			x.decisions = append(x.decisions, Decision{Kind: Slice, ID: x.entity.id, Device: d.id, Slice: to})
		}
	}
}

// fitSlice returns the time slice of heavy seats beside guests. Where guests come often it is controlled so that the one
// that is furthest ahead stays at the same place below the bound: by how far it is from there, and by how fast it moves.
func (d *device) fitSlice() int64 {
	bound, heavy := d.options.bound(), false
	lead := 2 * bound
	for _, x := range d.seats {
		heavy = heavy || !x.mayVisit()
		if x.levels > 0 && x.mayVisit() {
			lead = min(lead, x.lead())
		}
	}
	switch {
	case !d.busy || !heavy:
		d.stretch, d.stretched, d.fitted = 0, 0, 0
		return shortSlice
	case d.fitted == 0:
		d.fitted, d.fittedTo = d.now, lead
	case d.now >= d.fitted+reslice:
		d.stretch -= (lead-d.fittedTo)/speedGain + (lead-bound*3/4)/placeGain
		d.stretch = max(0, min(d.stretch, longSlice-mediumSlice))
		d.fitted, d.fittedTo = d.now, lead
	}
	if max(d.stretch, d.stretched)-min(d.stretch, d.stretched) >= sliceStep {
		d.stretched = d.stretch
	}
	return mediumSlice + d.stretched
}

// resumes reports whether a heavy seat that has paused in its turn takes the device back from j.
func (x *seat) resumes(j *job) bool {
	if !x.dev.options.Preempt || !x.job.single() || !x.paused || x.guestly() {
		return false
	}
	for _, h := range j.granted {
		if h.dev != x.dev {
			continue
		}
		if lx, lh := x.level(), h.level(); lx > lh || lx == lh && !x.fairer(h.account, x.dev.options.step(), 0) {
			return false
		}
	}
	return true
}

// pursue brings the claims of those that rest up to the bound, on all levels on which they take part.
func (d *device) pursue() {
	if !d.options.Preempt {
		return
	}
	for _, x := range d.seats {
		if x.levels == 0 || x.hungry() {
			continue
		}
		a := x.account
		for range x.levels {
			if least := a.parent.mean - mulDiv(d.options.bound(), vtScale, a.weight); a.parent.scan == d.scan && vtLess(a.vt, least) {
				a.vt = least
			}
			a = a.parent
		}
	}
}

// visited charges a guest for Busy time, as far as that is known to be device time. Measured corrects it.
func (x *seat) visited(busy int64) {
	spent := x.presence.worth(busy)
	x.counted += busy - spent
	x.presence.charged += spent
	early := min(spent, x.presence.ahead)
	x.presence.ahead -= early
	x.counted += early
	x.bill(spent-early, 0)
}

// bill charges device time to a guest. On levels where nobody waits for the device, it does not count against it. The
// switches that its visits cost count in comparison with others, but not for a maximum or minimum: what is promised is
// device time. The owner is not charged for either.
func (x *seat) bill(spent, switches int64) {
	d := x.dev
	if d.owner != nil && d.contended {
		d.visits = min(d.visits+spent+switches, second)
	}
	byMin := x.shortfall(x.now) < x.now
	for a := x.account; a.parent != nil; a = a.parent {
		waited := a.parent.scan == d.scan || a.parent.absent == d.scan
		a.take(x.now, spent, d.options.SliceMax, waited)
		if !waited {
			continue
		}
		a.vt += mulDiv(switches, vtScale, a.weight)
		// What it had by its minimum, or because half of its gang could not drain, is held against it only so far.
		if most := a.parent.mean + mulDiv(2*x.bound(), vtScale, a.weight); (byMin || !x.job.single()) && vtLess(most, a.vt) {
			a.vt = most
		}
	}
	x.count(spent)
}

// refund gives back what a guest was charged for work that only waited, behind that of others; so it did in waited, which has
// just been charged. It counts as delivered later, when it is used; else many guests would all have had the same time. One
// with a maximum gets credit back as well, but for what may still be in flight, which stays charged ahead: one of many that
// come at once would otherwise be in debt for as long as its maximum takes to pay for the time of all of them.
func refund(x *seat, waited int64) {
	p := &x.presence
	if !x.capped() {
		p.returned += waited
		return
	}
	p.ahead += waited
	if back := p.ahead - x.dev.options.Quantum; back > 0 {
		p.ahead -= back
		p.returned += back
		x.account.refund(x.now, back)
	}
}
