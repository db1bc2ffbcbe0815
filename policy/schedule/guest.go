package schedule

import "slices"

// On a device whose hardware preempts kernels (Options.Preempt), an lgpu that does not keep the device busy all the time
// is a guest: it is let in as soon as it has work, beside the owner, as long as it has not had more than its part. The
// others, which are heavy, still take the device in turns.

// Times in ns, loads in thousandths of the time in which the seat could use the device.
const (
	heavyFrom  int64 = 800 // a guest with more load than this becomes heavy,
	lightUntil int64 = 750 // and a heavy seat with less becomes a guest
	firstLoad  int64 = 500 // of a seat that is new
	loadTime   int64 = 100e6
	loadLook   int64 = 2e6

	waitLook    int64 = 2e6  // between two looks whether a guest that waits may go on
	measureFrom int64 = 10e6 // least Busy by which a density is learned
	crowdFrom   int64 = 1050 // thousandths of a device that its guests want
	pressing    int64 = 600  // load of a guest beside which one of a lower class would be felt
	working     int64 = 2e6  // a guest without new work for so long wants nothing
	fullFrom    int64 = 9000 // hundredths of a percent of a device that is used all the time

	// A seat without work keeps its place in fair queueing for this long. Its claim is bounded meanwhile (bound).
	rest int64 = 50e6
)

// bound is by how much device time, in its own weight, a guest may be ahead of those that wait, and by how much one that
// rests may be behind.
func (o *Options) bound() int64 { return 5 * o.Slice / 2 }

// step is how far below bound a guest that was stopped is let in again.
func (o *Options) step() int64 { return o.Slice / 5 }

// presence is what is known of how a seat uses its device.
type presence struct {
	load    int64 // mean part of the time used, where the seat could use the device
	weighed int64 // load is known up to here
	busy    int64 // Busy since weighed
	waited  int64 // time since weighed in which it had work and could not use the device

	// What part of Busy the device works for the seat, in hundredths of a percent: at present, and while nobody else
	// used the device. A program that launches small kernels leaves it idle between them.
	density, own int64
	among        int64 // likewise, of the Busy of an owner while guests used the device
	rate         int64 // device time used, in hundredths of a percent of all time, when it was last measured
	turned       int64 // when it last became heavy, or a guest
	hides        bool  // its Busy is clearly less than what it uses: it is charged by the clock, in turns
	measured     measurement
	billed       int64 // charged since measured
}

// measurement is what was known when the driver's counters were read.
type measurement struct {
	used, busy, excused, at int64
	valid                   bool
}

// newPresence is that of a seat of which nothing is known.
func newPresence(now int64) presence {
	return presence{load: firstLoad, weighed: now, density: int64(Whole), own: int64(Whole)}
}

// restart forgets what was summed up, but not what was learned.
func (p *presence) restart(now int64) { p.weighed, p.busy, p.waited = now, 0, 0 }

// measure learns from the device time that the seat has really used.
func (x *seat) measure(total int64) {
	p := &x.presence
	last := p.measured
	used, busy := total-last.used, x.busy-last.busy
	if last.valid && busy >= 0 && max(used, busy) < measureFrom {
		p.rate = min(p.rate, hundredths(used, x.now-last.at))
		return
	}
	billed := p.billed
	p.measured, p.billed = measurement{total, x.busy, x.excused, x.now, true}, 0
	if !last.valid || busy < 0 {
		return
	}
	p.hides = used > busy+busy/4+measureFrom
	// What it used beyond what it was charged, because its density was another before.
	if owed := min(used, x.now-last.at) - billed - measureFrom; owed > 0 && !x.heavy && p.turned < last.at {
		x.bill(owed)
	}
	p.density = max(1, min(mulDiv(max(used, 1), int64(Whole), max(busy, 1)), 2*int64(Whole)))
	p.rate = hundredths(used, x.now-last.at)
	beside := min(x.excused-last.excused, busy)
	switch {
	case x.heavy:
		if beside >= measureFrom {
			p.among = hundredths(used-mulDiv(busy-beside, p.own, int64(Whole)), beside)
		}
		if x.dev.mixed < last.at && p.turned < last.at {
			// It has left idle no more than the device was, which somebody may use who does not say so.
			idle := mulDiv(x.now-last.at, max(int64(Whole)-x.dev.used(), 0), int64(Whole))
			p.own = max(hundredths(used, busy-beside), hundredths(busy-idle, busy))
		}
	case x.dev.owner == nil && x.dev.used() >= fullFrom:
		p.own = int64(Whole) // together they want more than there is, and each has to show again what it leaves idle
	default:
		p.own = max(p.own, min(p.density, int64(Whole)))
	}
}

// hundredths is part of whole, in hundredths of a percent, within 0.01 and 100 %.
func hundredths(part, whole int64) int64 {
	return max(1, min(mulDiv(max(part, 0), int64(Whole), max(whole, 1)), int64(Whole)))
}

// used is the part of the time in which the device was used when its seats were last measured, in hundredths of a percent.
func (d *device) used() int64 {
	sum := int64(0)
	for _, x := range d.seats {
		sum += x.presence.rate
	}
	return sum
}

// crowded reports whether guests alone want more of the device than there is.
func (d *device) crowded() bool {
	sum := int64(0)
	for _, x := range d.seats {
		if x.levels > 0 {
			sum += x.presence.load
		}
	}
	return sum > crowdFrom
}

// mix notes whether seats use the device at the same time that are not meant to: then nothing can be learned about what
// one of them leaves idle.
func (d *device) mix() {
	open := 0
	for _, x := range d.seats {
		if x.open && (!x.guest || x.heavy) {
			open++
		}
	}
	if open > 1 {
		d.mixed = d.now
	}
}

// worth is the device time in an amount of Busy of a guest.
func (p *presence) worth(busy int64) int64 { return mulDiv(busy, p.density, int64(Whole)) }

// weigh adds Busy time to the seat's load.
func (x *seat) weigh(spent int64) {
	p := &x.presence
	p.busy += spent
	present := min(x.now-p.weighed-p.waited, second)
	if x.wants && !x.open {
		present -= x.now - max(x.since, p.weighed)
	}
	if present < loadLook {
		return
	}
	// Of Busy, in part the seat left the device idle, and in part it waited while the device worked for others: then it
	// could not use the device.
	able := mulDiv(p.busy, p.own, int64(Whole))
	used := min(p.worth(p.busy), able)
	present -= able - used
	part := min(mulDiv(used, 1000, max(present, 1)), 1000)
	p.load += (part - p.load) * max(present, 0) / (max(present, 0) + loadTime)
	p.weighed, p.busy, p.waited = x.now, 0, 0
	if heavy := p.load > heavyFrom || x.heavy && p.load >= lightUntil; heavy != x.heavy {
		x.heavy, p.turned = heavy, x.now
	}
}

// arrived notes that the seat's wait for an open gate is over.
func (x *seat) arrived() {
	if x.wants && !x.open {
		x.presence.waited += x.now - max(x.since, x.presence.weighed)
	}
}

// single reports whether the seat is granted by itself, and not with others.
func (x *seat) single() bool { return len(x.job.seats) == 1 && x.job.gang == "" }

// guestly reports whether the seat uses its device as a guest.
func (x *seat) guestly() bool {
	return x.mayVisit() && !x.granted && !x.late && x.dev.free != x
}

// mayVisit reports whether the seat, if it has no other grant, uses its device as a guest.
func (x *seat) mayVisit() bool {
	return x.dev.options.Preempt && !x.heavy && !x.presence.hides && x.single()
}

// makeWay turns an owner that has become light into a guest.
func (x *seat) makeWay() {
	x.settle()
	x.granted, x.guest = false, true
	x.job.granted = without(x.job.granted, x)
	x.dev.passOn(x.job)
	x.job.advance()
	x.extend(true)
}

// hungry reports whether the seat has the device in its turn, or has work and waits.
func (x *seat) hungry() bool { return x.granted || x.claiming }

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
	for a := x.account; a.parent != nil; a = a.parent {
		if a.parent.scan != x.dev.scan {
			continue // nobody waits at this level
		}
		left = min(left, x.dev.options.bound()-mulDivSigned(a.vt-a.parent.mean, a.weight, vtScale))
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
	crowded := x.dev.crowded()
	return slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		higher := y.entity.p.Class == High && x.entity.p.Class != High
		works := y.guest && y != x && y.now < y.used+working
		return higher && (y.granted || y.contests()) || crowded && works && (higher && y.presence.load > pressing || y.shortfall(y.now) < y.now)
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
	d.tellRoles()
	guests := false
	for _, x := range d.seats {
		if x.granted && x.open && !x.closeSent && x.job.phase == running && d.owner == x.job && x.mayVisit() {
			x.makeWay()
		}
		guests = guests || x.guest || x.claiming && x.guestly()
	}
	if !guests {
		return
	}
	d.admit()
	for _, x := range d.seats {
		switch {
		case x.guest && !x.closeSent && (!x.guestly() || !x.entity.mayUse(d.id) || x.outranked()):
			x.closeSent = true
			x.decide(Close)
		case x.guest:
			x.extend(false)
		case x.claiming && x.guestly() && !x.outranked() && (x.lead() >= d.options.step() || x.shortfall(x.now) < x.now):
			x.visit()
		}
	}
}

// visit opens the gate of a guest.
func (x *seat) visit() {
	x.guest, x.claiming, x.waited = true, false, min(x.now-x.since, waitedMax)
	x.cut(x.now-x.waited, x.dev.options.Burst)
	x.serve(x.now)
	x.openGate()
}

// stay is how much device time a guest may use until it is asked to wait.
func (x *seat) stay() int64 {
	left := x.lead()
	if x.shortfall(x.now) < x.now {
		left = max(left, x.dev.options.step())
	}
	return max(left, 0)
}

// tellRoles says which seats are to have a short time slice: those that would keep a guest waiting.
func (d *device) tellRoles() {
	open := 0 // heavy seats that use the device at once, past a drain: between short slices the switches would eat most
	for _, x := range d.seats {
		if x.open && x.heavy {
			open++
		}
	}
	for _, x := range d.seats {
		short := d.options.Preempt && (x.heavy || x.presence.hides) && len(d.seats) > 1 && open < 2
		if short == x.shortened {
			continue
		}
		if x.shortened = short; short {
			x.decide(Shorten)
		} else {
			x.decide(Lengthen)
		}
	}
}

// resumes reports whether a heavy seat that has paused in its turn takes the device back from j.
func (x *seat) resumes(j *job) bool {
	if !x.dev.options.Preempt || !x.single() || !x.paused || x.guestly() {
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

// visited charges a guest for Busy time. On levels where nobody waits for the device, its use does not count against it.
func (x *seat) visited(busy int64) {
	d := x.dev
	if d.owner != nil && d.contended {
		d.visits = min(d.visits+busy, second)
	}
	spent := x.presence.worth(busy)
	x.counted += busy - spent
	x.bill(spent)
}

// bill charges device time to a guest.
func (x *seat) bill(spent int64) {
	d := x.dev
	byMin := x.shortfall(x.now) < x.now
	for a := x.account; a.parent != nil; a = a.parent {
		waited := a.parent.scan == d.scan
		a.take(x.now, spent, d.options.SliceMax, waited)
		// What it had by its minimum, or because of an overrun, is held against it only so far.
		if most := a.parent.mean + mulDiv(2*d.options.bound(), vtScale, a.weight); waited && byMin && vtLess(most, a.vt) {
			a.vt = most
		}
	}
	x.count(spent)
}
