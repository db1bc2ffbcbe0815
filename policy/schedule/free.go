package schedule

import "slices"

// alone says that a device needs no accounts.
func (s *Scheduler) alone(d *device) bool {
	return len(d.seats) == 1 && !d.seats[0].capped() && d.seats[0].node.mayUse(d.id)
}

// setFree gives a device to its only seat, without accounts.
func (s *Scheduler) setFree(d *device) {
	x := d.seats[0]
	j := x.job
	if d.next != nil || x.late || x.open && j.phase != running {
		return
	}
	if x.held {
		j.held = without(j.held, x)
		x.held = false
		s.leave(d, j)
		s.ended(j)
	}
	s.take(x, 0)
	x.open, x.told, x.wants, x.since, x.until = true, false, false, s.now, -1
	d.free = x
	s.decide(Free, x)
}

// unfree has a free seat keep accounts: it has a grant from now on.
func (s *Scheduler) unfree(d *device) {
	x := d.free
	j := x.job
	d.free = nil
	s.cancel(j)
	d.holder = j
	j.held = append(j.held, x)
	slices.SortFunc(j.held, bySeat)
	x.held = true
	s.take(x, x.depth)
	x.serve(s.now)
	x.reported, x.marked, x.clock, x.charged, x.waited = s.now, s.now, 0, 0, 0
	x.moved, x.counted = s.now, 0
	if j.phase == idle {
		j.phase, j.opened, j.ends, j.last = running, x.since, 0, false
	}
	s.extend(x, true)
	stop := j.phase == closing || !x.node.mayUse(d.id)
	for _, y := range j.seats {
		stop = stop || y.wants && !y.held
	}
	if stop {
		s.close(j)
	}
}
