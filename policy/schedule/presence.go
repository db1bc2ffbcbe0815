package schedule

import "slices"

// How seats use a device whose hardware preempts kernels: by what they report themselves, Busy, which is the time with
// work in flight, and by what the hardware has noted, which is the time for which it ran their work.

// When a seat is heavy. Parts in thousandths, times in ns.
const (
	heavyFrom  int64 = 900 // a guest with more load than this becomes heavy, if it also holds
	holdsFrom  int64 = 600 // so much of the device although another one's slice is short; a launch-bound one does not
	fillsFrom  int64 = 650 // a guest whose turns take so much of its time slices is heavy also on a loose device
	fillsUntil int64 = 500 // where those of all others take less than this
	fillsTurns int64 = 20  // of which that is a mean
	lightUntil int64 = 870 // a heavy seat with less load becomes a guest,
	keenFrom   int64 = 870 // but one that leaves the device idle for whole looks only, and not between its kernels,
	keenUntil  int64 = 650 // does with less than this,
	againFrom  int64 = 700 // and is heavy again with more than this: as a guest it has less load

	loadTime int64 = 100e6 // over which load is a mean
	loadLook int64 = 2e6   // between two looks at it
	keenLook int64 = 25e6  // a longer look may have a pause in it
	dimFor   int64 = 100e6 // a heavy seat becomes a guest when its load has been less for so long
	dwell    int64 = 200e6 // a seat is heavy, or a guest, for so long at least

	// Of a seat that is new: as if it had used half of a tenth of loadTime, and held the device.
	firstAble  int64 = partScale / 10
	firstHolds int64 = 700
	partScale  int64 = 1e6

	crowdFrom int64 = 1050        // of a device that its guests want
	company   int64 = second      // a seat without work for so long does not keep others company
	lively    int64 = 10 * second // and for so long, it may be expected to have work again
)

// What is learned from the hardware's notes. Times in ns.
const (
	measuredTogether int64 = 250e6 // nothing is learned from measurements that are further apart
	switching        int64 = 320e3 // what a switch to another program and back costs, about, as measured on an H200
	freely           int64 = 100   // visits a second that cost a guest no more than the time that it uses
	densityTime      int64 = 25e6  // of Busy, over which the density is a mean
	secretFrom       int64 = 50e6  // device time that a seat may have used beyond its Busy, because of roundings
	unseenFrom       int64 = 300e6 // Busy of a seat of which the hardware notes nothing

	// One that is seen to be light in its own turns is not heavy for a while, which is twice as long each time that it is
	// found again.
	lightMin int64 = 30 * second
	lightMax int64 = 120 * second
)

// Ran is the device time for which the hardware has run a seat's work, since some moment of the caller's choice, ns.
// While nobody else has work, that goes on through pauses.
type Ran struct {
	ID       ID
	Total    int64
	Turns    int64 // how often it was switched to
	Launches int64 // how often it has launched something, by its own word
}

// presence is what is known of how a seat uses its device.
type presence struct {
	load   ratio // part of the time that it would use if it were alone
	holds  int64 // mean part of the time that it uses although another one's slice is short, while its gate is open
	beside int64 // time for which another one's slice has been short meanwhile
	keen   ratio // load of those looks in which it used the device: without pauses that are longer than a look
	fills  int64 // mean part of the driver's time slice that its turns take as a guest
	waited int64 // time in which it had work and its gate was closed; only grows

	// Since load was last brought up to date: when that was, Busy, and waited then.
	weighed, busy, waitedThen int64

	density int64 // what part of Busy is device time, in hundredths of a percent
	turned  int64 // when it last became heavy, or a guest
	dim     int64 // since when its load is not that of a heavy one; 0: it is
	pauses  bool  // it was heavy until it paused, and is so again once it has work for long enough
	lasts   int64 // how long it is not taken for heavy again once it was found to be light in its turn
	proven  int64 // until when

	launches int64 // so many until now
	pace     pace

	last    measurement
	charged int64 // since last, before it was corrected
	ahead   int64 // charged before it was used
	// Delivered, by the meter, and given back: what is used next has been counted already.
	returned int64
	visits   int64 // that are still free, in ns of the time between two
	secret   int64 // device time used lately beyond what it reports
	unseen   int64 // Busy since the hardware last noted that it ran
	// The hardware does not stop its kernels at the end of its time slice.
	unstopped bool

	hides bool // its Busy is clearly less than what it uses: it is charged by the clock, in turns
}

// measurement is what was known when the hardware's notes were read.
type measurement struct {
	total, turns, busy, waited, at int64
	guest, granted, valid          bool

	// Since the one before.
	used     int64 // device time
	switches int64 // to it
	present  int64 // time in which its gate was open, or it had no work
	visited  bool  // it was a guest
}

// newPresence is that of a seat of which nothing is known.
func newPresence(now int64) presence {
	return presence{
		load: newRatio(), keen: newRatio(), holds: firstHolds, weighed: now,
		density: int64(Whole),
	}
}

// restart forgets what was summed up, but not what was learned.
func (p *presence) restart(now int64) {
	p.weighed, p.busy, p.waitedThen, p.charged, p.ahead, p.returned = now, 0, p.waited, 0, 0, 0
	p.launches, p.pace = 0, pace{}
	p.last.valid = false
}

// worth is the device time in an amount of Busy of a guest.
func (p *presence) worth(busy int64) int64 { return mulDiv(busy, p.density, int64(Whole)) }

// waitedBy is how long the seat has waited for its gate until now.
func (x *seat) waitedBy() int64 {
	if x.wants && !x.open {
		return x.presence.waited + x.now - x.since
	}
	return x.presence.waited
}

// arrived notes that the seat's wait for an open gate is over.
func (x *seat) arrived() { x.presence.waited = x.waitedBy() }

// weigh adds Busy time to the seat's load.
func (x *seat) weigh(spent int64) {
	p := &x.presence
	p.busy += spent
	waited := x.waitedBy()
	present := min(x.now-p.weighed-(waited-p.waitedThen), second)
	if present < loadLook {
		return
	}
	// A part of Busy it waited, while the device worked for others: then it could not use the device.
	used := min(p.worth(p.busy), p.busy)
	able := present - (p.busy - used)
	p.load.add(used, able, present)
	if used > 0 && present <= keenLook {
		p.keen.add(used, able, present)
	}
	if p.load.part() >= p.enough() {
		p.dim = 0
	} else if p.dim == 0 {
		p.dim = x.now
	}
	p.weighed, p.busy, p.waitedThen = x.now, 0, waited
	if x.dev.accompanied(x) {
		x.turn(x.takesTurns())
	}
}

// ratio is the time that a seat used over that which it could have used: not that in which it waited for others. Both are
// means over loadTime, in partScale.
type ratio struct{ used, able int64 }

func newRatio() ratio { return ratio{firstAble / 2, firstAble} }

// part is the ratio in thousandths.
func (r ratio) part() int64 { return mulDiv(r.used, 1000, max(r.able, 1)) }

// add adds what a seat used, and could have used, of the time for which it was present.
func (r *ratio) add(used, able, present int64) {
	r.used = approach(r.used, mulDiv(used, partScale, present), present)
	r.able = approach(r.able, mulDiv(max(able, used), partScale, present), present)
}

// enough is the load with which a heavy seat stays heavy.
func (p *presence) enough() int64 {
	if p.keen.part() >= keenFrom {
		return keenUntil
	}
	return lightUntil
}

// takesTurns reports whether the seat should be heavy.
func (x *seat) takesTurns() bool {
	p := &x.presence
	switch {
	case x.now < p.turned+dwell:
		return x.heavy
	case x.dev.loose() && !fillsAlone(x):
		return false
	case x.heavy && !x.job.single():
		return x.outranked()
	case x.heavy && (p.dim == 0 || x.now < p.dim+dimFor):
		return true
	case x.heavy:
		if p.pauses = p.keen.part() >= keenFrom; !p.pauses {
			p.lasts = min(max(2*p.lasts, lightMin), lightMax)
			p.proven = x.now + p.lasts
		}
		return false
	case x.dev.loose():
		return x.now >= p.proven && p.load.part() > heavyFrom
	case p.pauses && p.load.part() > againFrom:
		return true
	default: // gangs lose much at the end of each turn, when half of what is launched waits for the other half
		return x.job.single() && x.now >= p.proven && p.holds > holdsFrom && p.load.part() > heavyFrom && (!x.entity.p.Latency || holdsOut(x))
	}
}

// fillsAlone reports whether the seat is the only one on its device that works to the end of its time slices.
func fillsAlone(x *seat) bool {
	return x.job.single() && x.presence.fills > fillsFrom && !slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		return y != x && y.now < y.used+company && (y.heavy || y.presence.fills > fillsUntil)
	})
}

// weighted reports whether a seat other than x is heavy on the device.
func (d *device) weighted(x *seat) bool {
	return slices.ContainsFunc(d.seats, func(y *seat) bool { return y != x && y.heavy && y.now < y.used+company })
}

// holdsOut reports whether holds tells how a latency-critical seat does beside short time slices, or no other would do. Requests
// in a row look as if they kept the device busy while all are guests, and would wait for turns from then on.
func holdsOut(x *seat) bool {
	return x.presence.beside > dwell || !slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		return y != x && !y.entity.p.Latency && y.presence.load.part() > pressing && y.now < y.used+company
	})
}

// accompanied reports whether others than x use the device, too. While they do not, it is all the same what x is.
func (d *device) accompanied(x *seat) bool {
	return slices.ContainsFunc(d.seats, func(y *seat) bool { return y != x && y.now < y.used+company })
}

// approach is a mean over loadTime that has come closer to a value which held for some time.
func approach(mean, value, time int64) int64 {
	time = max(time, 0)
	return mean + (value-mean)*time/(time+loadTime)
}

// turn makes the seat heavy, or a guest.
func (x *seat) turn(heavy bool) {
	if heavy != x.heavy {
		x.heavy, x.presence.turned, x.presence.dim = heavy, x.now, 0
	}
}

// measured takes what the hardware has noted.
func (d *device) measured(ran []Ran) {
	busy, visits, came := int64(0), int64(0), int64(0)
	for _, x := range d.seats {
		busy += x.busy - x.presence.last.busy
	}
	noted := d.noted(ran)
	for _, x := range d.seats {
		own := x.busy - x.presence.last.busy
		i := slices.IndexFunc(ran, func(r Ran) bool { return r.ID == x.entity.id })
		if i < 0 {
			continue
		}
		x.presence.launches = clampTime(ran[i].Launches)
		if !x.measure(clampTime(ran[i].Total), clampTime(ran[i].Turns), busy-own, noted) {
			continue
		}
		m := &x.presence.last
		visits += m.visit()
		d.turns.switches += m.switches
		if m.visited {
			came += m.switches
		}
	}
	d.count(came)
	for _, x := range d.seats {
		if m := &x.presence.last; m.visited && d.accompanied(x) {
			present := max(m.present-(visits-m.visit()), m.used)
			p := &x.presence
			p.holds = approach(p.holds, min(mulDiv(m.used, 1000, max(present, 1)), 1000), m.present)
			if d.weighted(x) {
				p.beside = min(p.beside+m.present, second)
			} else {
				p.beside = 0
			}
			if m.switches > 0 {
				part := min(mulDiv(m.used, 1000, m.switches*driverSlice), 1000)
				p.fills += (part - p.fills) * m.switches / (m.switches + fillsTurns)
			}
		}
	}
}

// noted is for how long the hardware has run the work of any seat since the measurement before; less where seats have gone.
func (d *device) noted(ran []Ran) int64 {
	before := d.ran
	d.ran = 0
	for _, r := range ran {
		d.ran = clampTime(d.ran + clampTime(r.Total))
	}
	return max(d.ran-before, 0)
}

// count takes how often guests have come since the measurement before.
func (d *device) count(visits int64) {
	passed := d.now - d.measuredAt
	if d.measuredAt = d.now; passed <= 0 || passed > measuredTogether {
		return
	}
	d.visited = approach(d.visited, visits*second/passed, 5*passed)
	d.busy = d.visited > often || d.busy && d.visited > rarely
}

// visit is the time that a guest took others.
func (m *measurement) visit() int64 {
	if !m.visited {
		return 0
	}
	return m.used + m.switches*switching
}

// measure corrects what the seat was charged, learns what part of its Busy is device time, and reports whether it could.
// Others say that they had work in flight for the sum of others; the hardware has run it and theirs for noted.
func (x *seat) measure(total, turns, others, noted int64) bool {
	p := &x.presence
	last := p.last
	p.last = measurement{
		total: total, turns: turns, busy: x.busy, waited: x.waitedBy(), at: x.now,
		guest: x.guest || x.guestly(), granted: x.granted, valid: true,
	}
	charged := p.charged
	p.charged = 0
	busy, passed, ran := x.busy-last.busy, x.now-last.at, total-last.total
	if !last.valid || busy < 0 || passed <= 0 || passed > measuredTogether || ran < 0 || x.dev.free == x {
		return false
	}
	// Where it ran while it had nothing in flight, nobody else had work, or it does not say so.
	p.secret = max(0, min(p.secret+ran-busy-busy/4-passed/50-max(passed-others, 0), 2*secretFrom))
	p.hides = p.secret > secretFrom || p.hides && p.secret > 0
	visited := p.last.guest && last.guest
	if ran == 0 && busy > 0 { // the hardware has noted nothing of it: it waits for the device, or runs unseen
		if visited {
			refund(x, min(charged, 2*noted)) // it has waited only where others ran; switches among them are not noted
		}
		if p.unseen += busy; p.unseen > unseenFrom {
			p.hides = true
		}
		return false
	}
	p.unseen = 0
	// Of the time for which it ran, others had no work for part, and it may have paused then.
	used := max(min(ran, busy), ran-max(passed-others, 0))
	if busy > 0 {
		part := max(1, min(mulDiv(min(used, busy), int64(Whole), busy), int64(Whole)))
		p.density += (part - p.density) * busy / (busy + densityTime)
	}
	m := &p.last
	m.used, m.switches, m.present, m.visited = used, turns-last.turns, passed-(m.waited-last.waited), visited
	if last.granted && x.granted && x.dev.contended {
		p.ahead += max(charged-ran, 0) // by the clock it had the device, but guests had it
	}
	if m.visited {
		owed := used - charged
		p.visits = min(p.visits+passed, second/10)
		paid := max(m.switches-p.visits*freely/second, 0)
		p.visits = max(p.visits-(m.switches-paid)*second/freely, 0)
		x.bill(max(owed-p.ahead, 0), paid*switching)
		p.ahead = max(p.ahead-owed, 0)
		refund(x, 0)
	}
	return true
}
