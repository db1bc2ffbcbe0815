package schedule

import "slices"

// second is how long a gang's seat without work is still opened with the others, and how long delivered time counts.
const second int64 = 1e9

// waitedMax bounds the wait during which credit is not cut, and with it how far a maximum can be exceeded after the
// wait.
const waitedMax int64 = 200e6

type phase uint8

const (
	idle      phase = iota
	reserving       // keeps devices until all are drained
	running
	closing
)

// job is what is granted together: the seats of one lgpu, or of all lgpus with a gang's name.
type job struct {
	*core
	gang       string
	seats      []*seat // by device, then ID
	granted    []*seat // take part in the grant
	spare      []*seat // for granted
	candidates []*seat // for the next grant; scratch of ready
	due        int64   // when there may be enough credit; scratch of ready
	phase      phase
	late       int   // seats that are
	used       int64 // last sign of work of any seat
	opened     int64
	ends       int64 // of the slice; 0: nobody else waits
	closed     int64 // when Close was decided
	beside     int64 // when a launch was last let through beside others
	last       bool  // slice of the grant: others come after it
	blocked    int64 // since when it was first on some device but not on all; 0: not
}

func (j *job) add(x *seat) {
	i, _ := slices.BinarySearchFunc(j.seats, x, bySeat)
	j.seats = slices.Insert(j.seats, i, x)
	x.job = j
}

// mark has all devices of the job looked at.
func (j *job) mark() {
	for _, x := range j.seats {
		x.dev.mark()
	}
}

// without returns list less x.
func without(list []*seat, x *seat) []*seat {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// ready reports whether a job without a grant has work, and credit for a grant. It finds the seats that would take part
// and the time from which they have credit.
func (j *job) ready() bool {
	j.candidates, j.due = j.candidates[:0], forever+latest
	wants := false
	for _, x := range j.seats {
		if x.guest { // it was alone in the job when it was let in; its grant ends first
			return false
		}
		if x.open || !x.entity.mayUse(x.dev.id) || !x.wants && x.used < j.used-second {
			continue
		}
		wants = wants || x.wants
		if last := len(j.candidates) - 1; last < 0 || j.candidates[last].dev != x.dev {
			j.candidates = append(j.candidates, x)
		} else if y := j.candidates[last]; x.wants != y.wants && x.wants || x.wants == y.wants && x.fairer(y.account, 0, 0) {
			j.candidates[last] = x
		}
	}
	if !wants || j.late > 0 {
		return false
	}
	due := int64(0)
	for _, x := range j.candidates {
		due = max(due, x.due(x.dev.options.Quantum))
	}
	j.due = due
	return due <= j.now
}

// govern keeps a running grant within its slice and credit.
func (j *job) govern(d *device) {
	wanted := false
	for _, x := range j.granted {
		wanted = wanted || x.dev.pressed
	}
	switch {
	case !wanted:
		j.ends, j.last = 0, false
	case j.overdrawn(d) || d.preempts(j):
		j.close()
		return
	case j.ends == 0:
		j.ends, j.last = j.opened+j.slice(), false
		if j.ends > j.now {
			break
		}
		// It had its slice while nobody else waited.
		if j.ends = j.now; !j.keepsTurn() {
			j.close()
			return
		}
		j.ends += j.slice()
	case j.last:
		if j.now >= j.ends+grace {
			j.close()
			return
		}
	case j.now >= j.ends-lead:
		if j.last = !j.keepsTurn(); !j.last {
			j.ends = max(j.ends, j.now) + j.slice()
		}
	}
	for _, x := range j.granted {
		x.extend(false)
	}
}

// overdrawn reports whether a seat of j on d is charged by the clock and has used up its credit without noticing.
func (j *job) overdrawn(d *device) bool {
	for _, x := range j.granted {
		if x.dev == d && x.open && d.contended && x.overdrawn(j.now, grace) {
			return true
		}
	}
	return false
}

// keepsTurn reports whether no seat comes before j's at the end of its slice on any of its devices.
func (j *job) keepsTurn() bool {
	for _, h := range j.granted {
		d := h.dev
		d.contend()
		if !d.pressed {
			continue
		}
		if d.next != nil {
			return false
		}
		d.admit()
		left := max(j.ends-j.now, 0)
		h.shift(left)
		kept := true
		for _, x := range d.seats {
			own := x.job == j && x != h && x.wants
			if own || x.contests() && x.before(h) && (len(x.job.candidates) == 1 || x.job.startable()) {
				kept = false
				break
			}
		}
		h.shift(-left)
		if !kept {
			return false
		}
	}
	return true
}

// slice is the length of j's turn.
func (j *job) slice() int64 {
	var slice int64
	for _, x := range j.granted {
		slice = max(slice, x.dev.turnLength(), min(perDrain*x.drain, x.dev.options.SliceMax))
	}
	return slice
}

// turnLength is that of a slice on the device when draining is quick. Each change takes some 0.2 ms of the device. Where only
// heavy seats use one that preempts, a few of them have longer turns: who waits for less than that would be a guest.
func (d *device) turnLength() int64 {
	o := &d.options
	if !o.Preempt || d.unstopped {
		return o.Slice
	}
	heavy := int64(0)
	for _, x := range d.seats {
		switch {
		case x.now >= x.used+lively:
		case x.mayVisit() || x.entity.p.Latency:
			return o.Slice
		default:
			heavy++
		}
	}
	return min(max(o.Slice, roundOfTurns*o.Slice/max(heavy, 1)), o.SliceMax)
}

// startable reports whether a gang's turn has come: on each of its devices it goes before the owner and before all that
// wait. Gangs that are first on different devices block each other, so two gangs with opposite order on devices of both
// go by age. It may also take long to be first on many devices at once. So a gang that has waited for a while has its
// turn once it has had no more than its part on any of them, and before all gangs that have waited for less long.
func (j *job) startable() bool {
	patient := j.blocked == 0 || j.now < j.blocked+j.patience()
	blocked := false
	for _, q := range j.candidates {
		e := q.dev
		if e.next != nil || e.free != nil || e.owner != nil && e.owner.phase == reserving {
			return false
		}
		for _, x := range e.seats {
			x.settle()
			x.claiming = x.claims()
		}
		e.admit()
		for _, x := range e.seats {
			has := x.granted && x.job == e.owner && x.job.phase == running
			switch {
			case !has && !x.contests() || x.job == j:
			case has && x.fresh() && q.level() >= x.level():
				blocked = true
			case q.before(x):
			case !patient && x.yields(q):
			case !has && len(x.job.candidates) > 1 && (j.precedesOnSome(x.job) || !patient && lets(x, q)) && j.elder(x.job):
			default:
				blocked = true
			}
		}
	}
	if blocked && j.blocked == 0 {
		j.blocked = j.now
	}
	return !blocked
}

// patience is how long a gang waits to be first on all its devices.
func (j *job) patience() int64 { return 2 * j.candidates[0].dev.options.Slice }

// precedesOnSome reports whether j goes before another gang on some device of both.
func (j *job) precedesOnSome(other *job) bool {
	for _, x := range j.candidates {
		for _, y := range other.candidates {
			if x.dev == y.dev && x.before(y) {
				return true
			}
		}
	}
	return false
}

// oldest is the time since which a waiting job has waited.
func (j *job) oldest() int64 {
	oldest := forever + latest
	for _, x := range j.candidates {
		if x.wants {
			oldest = min(oldest, x.since)
		}
	}
	return oldest
}

// elder reports whether j has waited for longer than another job.
func (j *job) elder(other *job) bool {
	if a, b := j.oldest(), other.oldest(); a != b {
		return a < b
	}
	return j.seats[0].entity.id < other.seats[0].entity.id
}

// reserve reserves the devices of a job's next grant. The job gets those in use once they are drained.
func (j *job) reserve() {
	j.phase = reserving
	j.granted = append(j.granted[:0], j.candidates...)
	for _, x := range j.granted {
		x.granted, x.claiming = true, false
	}
	for _, x := range j.granted {
		if d := x.dev; d.owner == nil {
			d.owner = j
		} else {
			d.next = j
			d.contend()
		}
		x.dev.mark()
	}
	for _, x := range j.granted {
		if x.dev.next == j {
			x.dev.owner.close()
		}
	}
	j.advance()
}

// cancel drops a reservation.
func (j *job) cancel() {
	if j.phase != reserving {
		return
	}
	held := j.granted
	j.granted, j.spare, j.phase = j.spare[:0], held, idle
	for _, x := range held {
		x.granted = false
		x.dev.passOn(j)
	}
}

// advance begins the grant of a job that has all its devices, and ends the grant of one that has drained on all.
func (j *job) advance() {
	switch j.phase {
	case reserving:
		for _, x := range j.granted {
			if x.dev.owner != j {
				return
			}
		}
		if len(j.granted) > 0 {
			j.begin()
		} else {
			j.phase = idle
		}
	case running, closing:
		for _, x := range j.granted {
			if x.open {
				return
			}
		}
		j.end()
	}
}

// end ends a job's grant and passes its devices on.
func (j *job) end() {
	for _, x := range j.granted {
		x.settle()
		x.serve(j.now)
	}
	held := j.granted
	j.granted, j.spare, j.phase = j.spare[:0], held, idle
	for _, x := range held {
		x.granted = false
	}
	for _, x := range held {
		x.dev.passOn(j)
	}
	j.mark() // a grant that it waits for elsewhere may be possible now
}

// begin opens the gates of a job that has its devices.
func (j *job) begin() {
	for _, x := range j.granted {
		x.settle()
	}
	j.forgive()
	j.phase, j.opened, j.blocked, j.ends, j.last = running, j.now, 0, 0, false
	pressed := false
	for _, x := range j.granted {
		x.waited = 0
		if x.wants {
			x.waited = min(j.now-x.since, waitedMax)
		}
		x.cut(j.now-x.waited, x.dev.options.Burst)
		x.compete(x.depth)
		x.serve(j.now)
		x.dev.contend()
		pressed = pressed || x.dev.pressed
	}
	if pressed {
		j.ends = j.now + j.slice()
	}
	for _, x := range j.granted {
		x.openGate()
		x.dev.mark()
	}
}

// close asks for the devices of a running grant back.
func (j *job) close() {
	if j.phase == running {
		j.phase, j.closed = closing, j.now
	}
	if j.phase != closing {
		return
	}
	for _, x := range j.granted {
		if x.open && !x.closeSent {
			x.closeSent = true
			x.decide(Close)
		}
		x.dev.mark()
	}
	j.advance()
}

// overrun gives the devices of a job that does not drain to others, and charges the job for using them meanwhile.
func (j *job) overrun() {
	for _, x := range j.granted {
		x.settle()
		if x.open {
			x.chargeBeside()
			x.decide(Overran)
		}
	}
	j.end()
}

// forgive bounds what a gang is owed on some of its devices only because it waited for its turn on others: to two
// slices of any other seat, by weight.
func (j *job) forgive() {
	if len(j.granted) < 2 {
		return
	}
	for _, x := range j.granted {
		for a := x.account; a.parent != nil; a = a.parent {
			least := a.weight
			for _, y := range x.dev.seats {
				for b := y.account; y.levels > 0 && b.parent != nil; b = b.parent {
					if b.parent == a.parent {
						least = min(least, b.weight)
					}
				}
			}
			if most := mulDiv(2*x.dev.options.SliceMax, vtScale, least); a.parent.floor-a.vt > most {
				a.vt = a.parent.floor - most
			}
		}
	}
}
