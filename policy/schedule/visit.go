package schedule

import "slices"

// The seats of a job are guests all together, or none is. A gang's kernels wait for each other across devices: were the
// gate of one closed beside the open one of another, half of what is launched would keep its device busy, waiting.

// mayVisit reports whether the job, if it has no other grant, uses its devices as a guest.
func (j *job) mayVisit() bool {
	return !slices.ContainsFunc(j.seats, func(x *seat) bool { return !x.light() })
}

// expected reports whether the seat is let in when its job is: it has work, or had some lately.
func (x *seat) expected() bool {
	return !x.open && x.entity.mayUse(x.dev.id) && (x.wants || x.used >= x.job.used-second)
}

// welcome reports whether the seat may be let in, as far as its own device is concerned.
func (x *seat) welcome() bool {
	return x.lead() >= x.step() || x.shortfall(x.now) < x.now || !x.job.single() && blocked(x)
}

// blocked reports whether those whose parts x has had on its device are all of gangs that wait for other devices. They
// cannot use this one before, and two gangs that are each ahead of the other on one device would wait for ever.
func blocked(x *seat) bool {
	return !slices.ContainsFunc(x.dev.seats, func(y *seat) bool {
		return y.job != x.job && y.hungry() && (y.granted || !slices.ContainsFunc(y.job.seats, func(z *seat) bool {
			return z != y && z.expected() && z.lead() < z.step()
		}))
	})
}

// enters reports whether no device keeps the job from being let in, and nothing of it must end first.
func (j *job) enters() bool {
	return !slices.ContainsFunc(j.seats, func(x *seat) bool {
		switch {
		case x.dev.free == x || x.guest && !x.closeSent:
			return false
		case x.open:
			return true
		default:
			return x.expected() && !(x.funded() && x.welcome())
		}
	})
}

// visit opens the gates of a job of guests.
func (j *job) visit() {
	for _, x := range j.seats {
		if x.expected() {
			if !j.single() {
				pardon(x)
			}
			x.visit()
		}
	}
}

// visit opens the gate of a guest.
func (x *seat) visit() {
	x.guest, x.claiming, x.waited = true, false, 0
	if x.wants {
		x.waited = min(x.now-x.since, waitedMax)
		x.worked() // what it waited with is launched now
	}
	x.cut(x.now-x.waited, x.dev.options.Burst)
	x.serve(x.now)
	x.openGate()
	x.dev.mark()
}

// pardon lets a seat that is let in although it is ahead stay for as long as others.
func pardon(x *seat) {
	for a := x.account; a.parent != nil; a = a.parent {
		if most := a.parent.mean + mulDiv(x.bound()-x.step(), vtScale, a.weight); a.parent.scan == x.dev.scan && vtLess(most, a.vt) {
			a.vt = most
		}
	}
}

// retreat closes the gates of a job of guests.
func (j *job) retreat() {
	if !j.retreats() {
		j.closed = j.now
	}
	for _, x := range j.seats {
		if x.guest && !x.closeSent {
			x.closeSent = true
			x.decide(Close)
			x.dev.mark()
		}
	}
}

// retreats reports whether guests of the job have been asked to close their gates, and some have not drained.
func (j *job) retreats() bool {
	return slices.ContainsFunc(j.seats, func(x *seat) bool { return x.guest && x.closeSent })
}

// makeWay turns an owner that has become light into a guest.
func (j *job) makeWay() {
	held := j.granted
	j.granted, j.spare, j.phase = j.spare[:0], held, idle
	for _, x := range held {
		x.settle()
		x.granted, x.guest = false, x.open
	}
	for _, x := range held {
		x.dev.passOn(j)
		x.extend(true)
	}
}
