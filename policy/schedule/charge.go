package schedule

// until is where Busy must stop.
func (s *Scheduler) until(x *seat) int64 {
	until := NoLimit
	// Busy is known when reported. Time charged by the clock since then was presumably busy; the credit is of that
	// moment, so that no other time since then counts before its Busy is known.
	if room := x.room(x.reported + x.charged); room < forever {
		until = x.busy + x.charged + room
	}
	if ends := x.job.ends; ends != 0 && x.dev.contended {
		until = min(until, x.busy+max(ends, s.now)-x.reported)
	}
	return until
}

// count charges a seat for the time that the clock says.
func (s *Scheduler) count(x *seat) {
	if x.late || x.held && x.dev.contended && x.job == x.dev.holder && x.job.phase >= running {
		x.clock += s.now - x.marked
	}
	x.marked = s.now
	if x.clock > x.charged {
		s.charge(x, x.clock-x.charged, true)
		x.charged = x.clock
	}
}

func (s *Scheduler) charge(x *seat, spent int64, contended bool) {
	x.counted += spent
	x.charge(s.now, spent, x.dev.options.SliceMax, contended)
	x.meter.add(max(x.metered, s.now-second), s.now, spent)
	x.metered = s.now
}

// report charges a seat for its Busy, as far as the clock has not.
func (s *Scheduler) report(x *seat, busy int64) {
	s.count(x)
	busy = within(busy)
	spent := max(0, min(busy-x.busy, s.now-x.reported))
	if spent > 0 {
		s.worked(x)
	}
	if x.held && x.open && !x.dev.contended {
		x.cut(x.reported-x.waited, x.dev.options.Burst)
	}
	// A process counts when it has a processor to do so: what comes now may have been used at any time since Busy came on.
	late := min(busy-x.busy, s.now-max(x.moved, s.now-lateMax))
	if due := max(spent-x.charged, late-x.counted); due > 0 {
		s.charge(x, due, !x.open)
	}
	if busy > x.busy {
		x.moved, x.counted = s.now, 0
	}
	x.busy, x.reported, x.clock, x.charged = busy, s.now, 0, 0
}

func (s *Scheduler) worked(x *seat) { x.used, x.job.used = s.now, s.now }
