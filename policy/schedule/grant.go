package schedule

import "slices"

// step decides what is to be decided about a device. It may mark others.
func (s *Scheduler) step(d *device) {
	for _, x := range d.seats {
		s.count(x)
	}
	s.contend(d)
	if d.free != nil && !s.alone(d) {
		s.unfree(d)
	}
	if j := d.holder; j != nil {
		switch {
		case j.phase == running:
			s.govern(d, j)
		case j.phase == closing && s.now >= j.closed+d.options.DrainBound:
			s.overrun(j)
		}
	}
	s.dismiss(d)
	if d.free == nil && s.alone(d) {
		s.setFree(d)
	}
	if d.holder == nil && d.free == nil {
		s.pick(d)
	}
	s.seep(d)
	s.schedule(d)
}

// contend finds who could begin a grant on a device, and from now on has the holder charged by the clock if somebody
// could.
func (s *Scheduler) contend(d *device) {
	contended := d.next != nil
	for _, x := range d.seats {
		s.count(x)
		x.claim = s.claims(x)
		own := d.holder != nil && x.job == d.holder
		if x.claim && !own || own && x.wants && !x.held && s.funded(x) {
			contended = true
		}
	}
	d.contended = contended
}

func (s *Scheduler) funded(x *seat) bool {
	return x.node.mayUse(x.dev.id) && x.due(x.dev.options.Quantum) <= s.now
}

// claims says that a seat's job could begin a grant now, with this seat in it.
func (s *Scheduler) claims(x *seat) bool {
	return !x.open && x.job.phase == idle && s.ready(x.job) && slices.Contains(x.job.part, x)
}

// ready says that a job without a grant has work and credit for one, and finds the seats that take part and the time
// from which they have credit.
func (s *Scheduler) ready(j *job) bool {
	j.part, j.due = j.part[:0], forever+latest
	wants := false
	for _, x := range j.seats {
		if x.open || !x.node.mayUse(x.dev.id) || !x.wants && x.used < j.used-second {
			continue
		}
		wants = wants || x.wants
		if last := len(j.part) - 1; last < 0 || j.part[last].dev != x.dev {
			j.part = append(j.part, x)
		} else if y := j.part[last]; x.wants != y.wants && x.wants || x.wants == y.wants && x.fairer(y.account, 0, 0) {
			j.part[last] = x
		}
	}
	if !wants || j.late > 0 {
		return false
	}
	due := int64(0)
	for _, x := range j.part {
		due = max(due, x.due(x.dev.options.Quantum))
	}
	j.due = due
	return due <= s.now
}

// floors brings the device's floors up to date. Gangs that wait for another device do not hold them back.
func (s *Scheduler) floors(d *device) {
	d.scan++
	for _, x := range d.seats {
		if x.held || len(x.job.part) <= 1 {
			x.note(d.scan, x.levels, d.options.Slice)
		}
	}
	for _, x := range d.seats {
		if x.held || len(x.job.part) <= 1 {
			x.raise(x.levels)
		}
	}
}

// take has a seat take part in the competition on so many levels, its own being the first.
func (s *Scheduler) take(x *seat, levels int) {
	a := x.account
	for level := 0; level < max(levels, x.levels); level, a = level+1, a.up {
		switch {
		case level >= x.levels:
			a.join(s.now)
		case level >= levels:
			a.part()
		}
	}
	x.levels = levels
}

// admit has all that claim the device take part in fair queueing.
func (s *Scheduler) admit(d *device) {
	s.floors(d)
	for _, x := range d.seats {
		if x.claim {
			s.take(x, x.depth)
		}
	}
}

// dismiss is for those that neither have nor claim the device: what they did not get meanwhile is lost. But those that
// wait for the credit of a group keep what they are owed within it.
func (s *Scheduler) dismiss(d *device) {
	for _, x := range d.seats {
		if x.levels == 0 || x.held || x.claim {
			continue
		}
		levels := 0
		if x.wants {
			if levels = x.short(s.now, d.options.Quantum); levels == x.depth {
				levels = 0
			}
		}
		if levels < x.levels {
			s.admit(d) // those who waited beside it are not to profit from its going
			s.take(x, levels)
		}
	}
}

// Levels of precedence.
const (
	levelLatency = iota
	levelMin
	levelHigh
	levelNormal
)

func (s *Scheduler) level(x *seat) int {
	if x.node.p.Latency {
		slack := x.dev.options.Slice
		if !x.held {
			slack /= 2
		}
		if !x.ahead(slack, x.dev.options.SliceMax) {
			return levelLatency
		}
	}
	switch {
	case x.shortfall(s.now) < s.now:
		return levelMin
	case x.node.p.Class == High:
		return levelHigh
	default:
		return levelNormal
	}
}

// before says that x goes before y on the device of both.
func (s *Scheduler) before(x, y *seat) bool {
	lx, ly := s.level(x), s.level(y)
	if lx != ly {
		return lx < ly
	}
	if lx == levelMin {
		if ox, oy := x.shortfall(s.now), y.shortfall(s.now); ox != oy {
			return ox < oy
		}
	}
	return x.fairer(y.account, s.tired(x), s.tired(y))
}

// tired is what counts against a seat that has the device or just had it, when it is compared with others: or two that
// differ by the length of a drain would not take turns.
func (s *Scheduler) tired(x *seat) int64 {
	if x.held || x.last == s.now {
		return x.dev.options.Slice / 4
	}
	return 0
}

// govern keeps a running grant within its slice and credit.
func (s *Scheduler) govern(d *device, j *job) {
	wanted := false
	for _, x := range j.held {
		wanted = wanted || x.dev.contended
	}
	switch {
	case !wanted:
		j.ends, j.last = 0, false
	case s.overdrawn(d, j) || s.preempt(d, j):
		s.close(j)
		return
	case j.ends == 0:
		j.ends, j.last = j.opened+s.slice(j), false
		if j.ends > s.now {
			break
		}
		// It had its slice while nobody minded.
		if j.ends = s.now; !s.keeps(j) {
			s.close(j)
			return
		}
		j.ends += s.slice(j)
	case j.last:
		if s.now >= j.ends+grace {
			s.close(j)
			return
		}
	case s.now >= j.ends-lead:
		if j.last = !s.keeps(j); !j.last {
			j.ends = max(j.ends, s.now) + s.slice(j)
		}
	}
	for _, x := range j.held {
		s.extend(x, false)
	}
}

// overdrawn says that a seat of j on d is charged by the clock and has used up its credit without noticing.
func (s *Scheduler) overdrawn(d *device, j *job) bool {
	for _, x := range j.held {
		if x.dev == d && x.open && d.contended && x.overdrawn(s.now, grace) {
			return true
		}
	}
	return false
}

// preempt says that a latency-critical seat that may claims d from j. A gang of such takes all its devices here.
func (s *Scheduler) preempt(d *device, j *job) bool {
	for _, x := range d.seats {
		if !x.claim || !x.node.p.Latency {
			continue
		}
		if s.admit(d); s.level(x) != levelLatency {
			continue
		}
		for _, h := range j.held {
			if h.dev == d && s.level(h) == levelLatency {
				return false
			}
		}
		if len(x.job.part) == 1 {
			return true
		}
		if s.startable(x.job) {
			s.reserve(x.job)
			return false
		}
	}
	return false
}

// keeps says that nobody comes before j at the end of its slice on any of its devices.
func (s *Scheduler) keeps(j *job) bool {
	for _, h := range j.held {
		d := h.dev
		s.contend(d)
		if !d.contended {
			continue
		}
		if d.next != nil {
			return false
		}
		s.admit(d)
		left := max(j.ends-s.now, 0)
		h.shift(left)
		kept := true
		for _, x := range d.seats {
			own := x.job == j && x != h && x.wants
			if own || x.claim && s.before(x, h) && (len(x.job.part) == 1 || s.startable(x.job)) {
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

// slice is how long j's turn is.
func (s *Scheduler) slice(j *job) int64 {
	var slice int64
	for _, x := range j.held {
		o := &x.dev.options
		slice = max(slice, o.Slice, min(perDrain*x.drain, o.SliceMax))
	}
	return slice
}

// pick gives a device that nobody has to whoever is first. A gang whose turn has not come on its other devices does not
// keep others from it.
func (s *Scheduler) pick(d *device) {
	s.admit(d)
	for _, x := range d.seats {
		x.passed = false
	}
	for {
		var first *seat
		for _, x := range d.seats {
			if x.claim && !x.passed && (first == nil || s.before(x, first)) {
				first = x
			}
		}
		switch {
		case first == nil:
			return
		case len(first.job.part) == 1 || s.startable(first.job):
			s.reserve(first.job)
			return
		}
		first.passed = true
	}
}

// startable says that a gang's turn has come: on each of its devices it goes before who has it and before all that
// wait. Gangs may have their turns on different devices, and so block each other; then those that share devices with
// opposite order go by age. And to be first on many devices at once may take long; so who has waited for it for a
// while has its turn when it is not beyond its part on any of them.
func (s *Scheduler) startable(j *job) bool {
	patient := j.blocked == 0 || s.now < j.blocked+s.patience(j)
	blocked := false
	for _, q := range j.part {
		e := q.dev
		if e.next != nil || e.free != nil || e.holder != nil && e.holder.phase == reserving {
			return false
		}
		for _, x := range e.seats {
			s.count(x)
			x.claim = s.claims(x)
		}
		s.admit(e)
		for _, x := range e.seats {
			has := x.held && x.job == e.holder && x.job.phase == running
			switch {
			case !has && !x.claim || x.job == j || s.before(q, x):
			case !patient && s.yields(x, q):
			case !has && len(x.job.part) > 1 && s.crossed(j, x.job) && j.oldest() < x.job.oldest():
			default:
				blocked = true
			}
		}
	}
	if blocked && j.blocked == 0 {
		j.blocked = s.now
	}
	return !blocked
}

// yields says that x, which goes before q, is not to do so again when q has waited for long.
func (s *Scheduler) yields(x, q *seat) bool {
	lx, lq := s.level(x), s.level(q)
	return (lx == lq || lx == levelMin) && !q.ahead(0, q.dev.options.SliceMax)
}

func (s *Scheduler) patience(j *job) int64 { return 2 * j.part[0].dev.options.Slice }

// crossed says that of two gangs, j goes first on some device of both.
func (s *Scheduler) crossed(j, other *job) bool {
	for _, x := range j.part {
		for _, y := range other.part {
			if x.dev == y.dev && s.before(x, y) {
				return true
			}
		}
	}
	return false
}

// oldest is since when a job that waits has waited.
func (j *job) oldest() int64 {
	oldest := forever + latest
	for _, x := range j.part {
		if x.wants {
			oldest = min(oldest, x.since)
		}
	}
	return oldest
}

// reserve takes the devices of a job for it: those in use, when they are drained.
func (s *Scheduler) reserve(j *job) {
	j.phase = reserving
	j.held = append(j.held[:0], j.part...)
	for _, x := range j.held {
		x.held, x.claim = true, false
	}
	for _, x := range j.held {
		if d := x.dev; d.holder == nil {
			d.holder = j
		} else {
			d.next = j
			s.contend(d)
		}
		s.mark(x.dev)
	}
	for _, x := range j.held {
		if x.dev.next == j {
			s.close(x.dev.holder)
		}
	}
	s.ended(j)
}

// cancel drops a reservation.
func (s *Scheduler) cancel(j *job) {
	if j.phase != reserving {
		return
	}
	held := j.held
	j.held, j.spare, j.phase = j.spare[:0], held, idle
	for _, x := range held {
		x.held = false
		s.leave(x.dev, j)
	}
}

// leave has a device that j has no more seat on pass on.
func (s *Scheduler) leave(d *device, j *job) {
	s.mark(d)
	if d.next == j {
		d.next = nil
	}
	if d.holder != j {
		return
	}
	d.holder, d.next = d.next, nil
	if d.holder != nil {
		s.ended(d.holder)
	}
}

// ended begins the grant of a job that has got all its devices, and ends that of one which is drained on all.
func (s *Scheduler) ended(j *job) {
	switch j.phase {
	case reserving:
		for _, x := range j.held {
			if x.dev.holder != j {
				return
			}
		}
		if len(j.held) > 0 {
			s.begin(j)
		} else {
			j.phase = idle
		}
	case running, closing:
		for _, x := range j.held {
			if x.open {
				return
			}
		}
		s.end(j)
	}
}

// end takes a job's devices away.
func (s *Scheduler) end(j *job) {
	for _, x := range j.held {
		s.count(x)
		x.serve(s.now)
	}
	held := j.held
	j.held, j.spare, j.phase = j.spare[:0], held, idle
	for _, x := range held {
		x.held = false
	}
	for _, x := range held {
		s.leave(x.dev, j)
	}
	// What it waits for elsewhere may be possible now.
	for _, x := range j.seats {
		s.mark(x.dev)
	}
}

// begin opens the gates of a job that has its devices.
func (s *Scheduler) begin(j *job) {
	for _, x := range j.held {
		s.count(x)
	}
	s.forgive(j)
	j.phase, j.opened, j.blocked, j.ends, j.last = running, s.now, 0, 0, false
	contended := false
	for _, x := range j.held {
		x.waited = 0
		if x.wants {
			x.waited = min(s.now-x.since, waitedMax)
		}
		x.cut(s.now-x.waited, x.dev.options.Burst)
		s.take(x, x.depth)
		x.serve(s.now)
		s.contend(x.dev)
		contended = contended || x.dev.contended
	}
	if contended {
		j.ends = s.now + s.slice(j)
	}
	for _, x := range j.held {
		s.open(x)
		s.mark(x.dev)
	}
}

// close asks for the devices of a running grant.
func (s *Scheduler) close(j *job) {
	if j.phase == running {
		j.phase, j.closed = closing, s.now
	}
	if j.phase != closing {
		return
	}
	for _, x := range j.held {
		if x.open && !x.told {
			x.told = true
			s.decide(Close, x)
		}
		s.mark(x.dev)
	}
	s.ended(j)
}

// overrun gives the devices of a job that does not drain to others, and charges it for them.
func (s *Scheduler) overrun(j *job) {
	for _, x := range j.held {
		s.count(x)
		if x.open {
			s.beside(x)
			s.decide(Overran, x)
		}
	}
	s.end(j)
}

// beside has a seat that uses its device beside the holder charged by the clock.
func (s *Scheduler) beside(x *seat) {
	s.count(x)
	x.late = true
	x.job.late++
}

// punctual ends beside.
func (s *Scheduler) punctual(x *seat) {
	if x.late {
		s.count(x)
		x.late = false
		x.job.late--
	}
}

// open opens a held seat's gate.
func (s *Scheduler) open(x *seat) {
	if x.open {
		s.extend(x, true)
		return
	}
	s.count(x)
	x.open, x.told, x.wants = true, false, false
	x.reported, x.clock, x.charged = s.now, 0, 0
	s.tell(Open, x, s.until(x))
}

// extend tells an open seat when until or wanted have changed; without all, not of every bit of credit.
func (s *Scheduler) extend(x *seat, all bool) {
	if !x.open || x.told {
		return
	}
	until := s.until(x)
	wanted := x.dev.contended
	if wanted == x.wanted && x.job.ends == x.ends && !all {
		if wanted || max(until, x.until)-min(until, x.until) < x.dev.options.Quantum/4 {
			return
		}
	}
	if until == x.until && wanted == x.wanted {
		x.ends = x.job.ends
		return
	}
	s.tell(Extend, x, until)
}

func (s *Scheduler) tell(kind Kind, x *seat, until int64) {
	x.until, x.wanted, x.ends = until, x.dev.contended, x.job.ends
	s.out = append(s.out, Decision{Kind: kind, ID: x.node.id, Device: x.dev.id, Until: until, Wanted: x.wanted})
}

func (s *Scheduler) decide(kind Kind, x *seat) {
	s.out = append(s.out, Decision{Kind: kind, ID: x.node.id, Device: x.dev.id})
}

// seep lets a launch through a gate of a gang whose other gates are draining: they may wait for it. Beyond the bound,
// when the device is another's, it does so more rarely.
func (s *Scheduler) seep(d *device) {
	for _, x := range d.seats {
		if at, ok := s.seepAt(x); ok && at <= s.now {
			x.open, x.told, x.wants = true, true, false
			if !x.held {
				s.beside(x)
			}
			s.decide(Seep, x)
		}
	}
}

// seepAt is when a seat's next launch is let through, if at all.
func (s *Scheduler) seepAt(x *seat) (int64, bool) {
	j := x.job
	if !x.wants || x.open || !x.node.mayUse(x.dev.id) || len(j.seats) < 2 {
		return 0, false
	}
	switch {
	case j.phase == closing:
		return max(x.since, j.closed) + x.dev.options.SeepAfter, true
	case j.late > 0 && !x.held:
		return x.since + x.dev.options.Slice, true
	default:
		return 0, false
	}
}

// schedule finds when to look at a device again.
func (s *Scheduler) schedule(d *device) {
	tick := forever + latest
	at := func(t int64) {
		if t > s.now {
			tick = min(tick, t)
		}
	}
	if j := d.holder; j != nil {
		switch {
		case j.phase == closing:
			at(j.closed + d.options.DrainBound)
		case j.phase == running && j.ends != 0:
			if j.last {
				at(j.ends + grace)
			} else {
				at(max(j.ends-lead, s.now+1))
			}
			for _, x := range j.held {
				if x.dev == d && x.open && d.contended {
					if room := x.room(s.now); room < forever {
						at(s.now + room + grace)
					}
				}
			}
		}
	}
	for _, x := range d.seats {
		if !x.open && !x.held && x.job.phase == idle {
			if !x.claim {
				at(x.job.due)
			} else if x.job.blocked != 0 {
				at(x.job.blocked + s.patience(x.job))
			}
		}
		if t, ok := s.seepAt(x); ok {
			at(t)
		}
	}
	d.tick = tick
}

// forgive bounds what a gang claims on some devices for no other reason than that it had to wait for its turn on
// others: to what two slices of anyone else are by weight.
func (s *Scheduler) forgive(j *job) {
	if len(j.held) < 2 {
		return
	}
	for _, x := range j.held {
		for a := x.account; a.up != nil; a = a.up {
			least := a.weight
			for _, y := range x.dev.seats {
				for b := y.account; y.levels > 0 && b.up != nil; b = b.up {
					if b.up == a.up {
						least = min(least, b.weight)
					}
				}
			}
			if most := mulDiv(2*x.dev.options.SliceMax, vtScale, least); a.up.floor-a.vt > most {
				a.vt = a.up.floor - most
			}
		}
	}
}
