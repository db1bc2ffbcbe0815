package schedule

import "slices"

// device is what is to be granted.
type device struct {
	*core
	id         Device
	options    Options
	top        *account
	seats      []*seat // by ID
	owner      *job    // has the device, or keeps it while the other devices of its gang drain
	next       *job    // gets it after owner
	free       *seat   // has it without accounts; then there is no owner
	contended  bool    // the owner is charged by the clock
	pressed    bool    // somebody waits for it that could use it at once
	announced  *seat   // whose memory was asked for last
	vacant     int64   // since when it has no owner, if it has none
	visits     int64   // time used by guests for which the owner has not been excused yet
	turns      turnNotes
	sliced     int64 // when a seat was last told another time slice
	divided    int64 // when it was last divided among guests
	visited    int64 // visits of guests, a second
	busy       bool  // with visits
	stretch    int64 // of the time slices of heavy seats, because guests get ahead of their part
	stretched  int64 // what of it is in force
	fitted     int64 // when that was last changed; 0: it is not controlled
	fittedTo   int64 // the least lead of a guest then
	unstopped  bool  // the hardware does not stop one that uses it at the end of its time slice
	crowd      bool  // guests alone want more of it than there is, as of receive
	measuredAt int64
	ran        int64  // sum of what the hardware had run of seats then
	tick       int64  // when to look at it again
	marked     bool   // it is in core.changed
	scan       uint64 // number of the last raiseFloors
}

// step makes the decisions about a device. It may mark other devices.
func (d *device) step() {
	for _, x := range d.seats {
		x.settle()
	}
	d.noteStops()
	d.contend()
	if d.free != nil && !d.alone() {
		d.endFree()
	}
	d.receive()
	if j := d.owner; j != nil {
		switch {
		case j.phase == running && !j.here():
			j.close()
		case j.phase == running:
			j.govern(d)
		case j.phase == closing && d.now >= j.closed+d.options.DrainBound:
			j.overrun()
		}
	}
	d.dismiss()
	d.announce()
	if d.free == nil && d.alone() {
		d.setFree()
	}
	if d.owner == nil && d.free == nil {
		d.pick()
	}
	d.seep()
	d.setTick()
}

// contend finds the seats that could begin a grant on a device. If there is one, the owner is charged by the clock from
// now on, also if that one's memory would have to come first.
func (d *device) contend() {
	contended := d.next != nil
	pressed := contended
	for _, x := range d.seats {
		x.settle()
		x.claiming = x.claims()
		own := d.owner != nil && x.job == d.owner
		if (x.claiming || x.resting() && !x.wants) && !own || own && x.wants && !x.granted && x.funded() {
			contended = true
			pressed = pressed || x.job.here()
		}
	}
	d.contended, d.pressed = contended, pressed
}

// raiseFloors brings the device's floors up to date. Gangs that wait for another device do not keep them low, nor do those
// whose memory is away: they keep their claim, and nobody is held up for it before they can use the device.
func (d *device) raiseFloors() {
	d.scan++
	most := d.options.Slice // by which a seat counts as ahead of others
	if d.options.Preempt {
		most = d.options.SliceMax
	}
	counts := d.counting()
	for _, x := range d.seats {
		if counts(x) && x.job.here() {
			x.note(d.scan, x.levels, most)
		}
		if x.claiming && !x.job.here() {
			x.noteAbsent(d.scan)
		}
	}
	if d.options.Preempt {
		d.noteGuests(most)
	}
	for _, x := range d.seats {
		x.raise(d.scan, x.levels)
	}
	d.pursue()
}

// noteGuests has guests count among themselves in groups in which nobody else does. What their group has is limited by those
// outside of it, and is divided by their weights.
func (d *device) noteGuests(most int64) {
	for _, x := range d.seats {
		levels := 0
		for a := x.account; levels < x.levels && (a.parent.scan != d.scan || a.parent.calm == d.scan); a = a.parent {
			levels++
		}
		if levels > 0 && levels < x.depth && strives(x) && x.job.here() {
			for a, n := x.account, levels; n > 0; a, n = a.parent, n-1 {
				a.parent.calm = d.scan
			}
			x.note(d.scan, levels, most)
		}
	}
}

// counting returns which seats the device's floors follow.
func (d *device) counting() func(x *seat) bool {
	single := func(x *seat) bool { return x.granted || x.guestly() || len(x.job.candidates) <= 1 }
	if !d.options.Preempt {
		return single
	}
	// Guests that wait are ahead of the heavy ones. They count only among themselves.
	hungry := func(x *seat) bool { return x.granted || x.contests() }
	switch {
	case slices.ContainsFunc(d.seats, hungry):
	case d.crowd: // guests alone want more than there is
		return strives
	default:
		hungry = (*seat).hungry
	}
	return func(x *seat) bool { return single(x) && hungry(x) }
}

// admit adds all seats that claim the device to fair queueing.
func (d *device) admit() {
	d.raiseFloors()
	for _, x := range d.seats {
		if x.claiming {
			x.compete(x.depth)
		}
	}
}

// dismiss takes the seats that neither have nor claim the device out of fair queueing: they lose what they did not get
// meanwhile. Those that wait for the credit of a group keep what they are owed within the group.
func (d *device) dismiss() {
	for _, x := range d.seats {
		if x.levels == 0 || x.granted || x.claiming || x.resting() {
			continue
		}
		levels := 0
		if x.wants {
			if levels = x.short(d.now, d.options.Quantum); levels == x.depth {
				levels = 0
			}
		}
		if levels < x.levels {
			d.admit() // its siblings that waited must not gain from its leaving
			x.compete(levels)
		}
	}
}

// preempts reports whether a latency-critical seat takes d from j at once. If that seat is of a gang, the gang reserves
// all its devices here.
func (d *device) preempts(j *job) bool {
	for _, x := range d.seats {
		if !x.contests() {
			continue
		}
		if x.resumes(j) {
			return true
		}
		if !x.entity.p.Latency {
			continue
		}
		if d.admit(); x.level() != levelLatency {
			continue
		}
		for _, h := range j.granted {
			if h.dev == d && h.level() == levelLatency {
				return false
			}
		}
		if len(x.job.candidates) == 1 {
			return true
		}
		if x.job.startable() {
			x.job.reserve()
			return false
		}
	}
	return false
}

// pick gives a device without an owner to the first in order. A gang whose turn has not come on its other devices is
// passed over.
func (d *device) pick() {
	d.admit()
	for _, x := range d.seats {
		x.passed = false
	}
	for {
		var first *seat
		for _, x := range d.seats {
			if x.contests() && !x.passed && (first == nil || x.before(first)) {
				first = x
			}
		}
		switch {
		case first == nil:
			return
		case len(first.job.candidates) == 1 || first.job.startable():
			first.job.reserve()
			return
		}
		first.passed = true
	}
}

// passOn gives the device to the next job when j, which has no granted seat on it any more, had it.
func (d *device) passOn(j *job) {
	d.mark()
	if d.next == j {
		d.next = nil
	}
	if d.owner != j {
		return
	}
	d.owner, d.next, d.visits, d.vacant = d.next, nil, 0, d.now
	if d.owner != nil {
		d.owner.advance()
	}
}

// seep lets a launch through the gate of a gang's seat while other seats of the gang drain: their work may wait for the
// launch. Past the drain bound, when another job has the device, it does so less often.
func (d *device) seep() {
	for _, x := range d.seats {
		if at, ok := x.seepAt(); ok && at <= d.now {
			x.arrived()
			x.open, x.closeSent, x.wants = true, true, false
			if !x.granted && x.job.retreats() {
				x.guest = true
			} else if !x.granted {
				x.job.beside = d.now
				x.chargeBeside()
			}
			x.decide(Seep)
		}
	}
}

// setTick finds when to look at the device again.
func (d *device) setTick() {
	tick := forever + latest
	at := func(t int64) {
		if t > d.now {
			tick = min(tick, t)
		}
	}
	if j := d.owner; j != nil {
		switch {
		case j.phase == closing:
			at(j.closed + d.options.DrainBound)
		case j.phase == running && j.ends != 0:
			if j.last {
				at(j.ends + grace)
			} else {
				at(max(j.ends-lead, d.now+1))
			}
			for _, x := range j.granted {
				if x.dev == d && x.open && d.contended {
					if room := x.room(d.now); room < forever {
						at(d.now + room + grace)
					}
				}
			}
		}
	}
	for _, x := range d.seats {
		if !x.open && !x.granted && x.job.phase == idle {
			if !x.claiming && x.mayVisit() {
				at(x.due(d.options.Quantum))
			} else if !x.claiming {
				at(x.job.due)
			} else if x.job.blocked != 0 {
				at(x.job.blocked + x.job.patience())
			}
		}
		t, _ := x.seepAt()
		at(t)
		if x.resting() {
			at(x.used + rest)
		} else if x.claiming && x.guestly() && x.job.here() {
			at(d.now + max(d.options.step(), waitLook))
		}
	}
	d.tick = tick
}

// lapsed leaves out of what is charged by the clock a time for which nobody called Tick, if that is long: the daemon was
// stopped, or had no processor. Programs went on without it meanwhile, and their Busy says for how long they had the device.
func (d *device) lapsed(late int64) {
	if late < missed {
		return
	}
	for _, x := range d.seats {
		x.settledAt = min(x.settledAt+late, d.now)
	}
}

// alone reports whether the device needs no accounts: it has one seat, which no maximum holds for.
func (d *device) alone() bool {
	return len(d.seats) == 1 && !d.seats[0].capped() && d.seats[0].entity.mayUse(d.id) && d.seats[0].job.here()
}

// setFree gives a device to its only seat, without accounts.
func (d *device) setFree() {
	x := d.seats[0]
	j := x.job
	if d.next != nil || x.late || x.guest && x.closeSent || x.open && !x.guest && j.phase != running {
		return
	}
	if x.granted {
		j.granted = without(j.granted, x)
		x.granted = false
		d.passOn(j)
		j.advance()
	}
	x.compete(0)
	x.guest = false
	x.open, x.closeSent, x.wants, x.since, x.sentUntil = true, false, false, d.now, -1
	d.free = x
	x.decide(Free)
}

// endFree gives the free seat a grant, with accounts from now on.
func (d *device) endFree() {
	x := d.free
	j := x.job
	d.free = nil
	j.cancel()
	d.owner = j
	j.granted = append(j.granted, x)
	slices.SortFunc(j.granted, bySeat)
	x.granted = true
	x.compete(x.depth)
	x.serve(d.now)
	x.reported, x.settledAt, x.clock, x.charged, x.waited = d.now, d.now, 0, 0, 0
	x.advanced, x.counted = d.now, 0
	x.presence.restart(d.now)
	if j.phase == idle {
		j.phase, j.opened, j.ends, j.last = running, x.since, 0, false
	}
	x.extend(true)
	stop := j.phase == closing || !x.entity.mayUse(d.id) || !j.here()
	for _, y := range j.seats {
		stop = stop || y.wants && !y.granted
	}
	if stop {
		j.close()
	}
}
