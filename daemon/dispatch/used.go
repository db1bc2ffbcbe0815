package dispatch

import (
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
)

// Used is how an lgpu used a device since it was last asked for.
type Used struct {
	LGPU uint64
	Time int64 // device time that it was charged, ns
	Free int64 // for how long its clients could run without accounts, ns: alone, or in spatial mode
	Here bool  // it has clients there now
}

// Used appends to dst how each lgpu used a device since the call before, those that have left it meanwhile included. One
// caller asks for each device.
func (r *Runner) Used(uuid gpu.UUID, dst []Used) []Used {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, n := now(), r.number(uuid)
	r.progressOn(t, n)
	d := &r.devices[n]
	for _, s := range r.seats {
		if s.device != n {
			continue
		}
		u := r.use(t, s)
		u.Here = true
		if before, had := d.left[s.id]; had { // it has left and come back
			u.Time, u.Free = u.Time+before.Time, u.Free+before.Free
			delete(d.left, s.id)
		}
		dst = append(dst, u)
	}
	for _, u := range d.left {
		dst = append(dst, u)
	}
	clear(d.left)
	d.watched = true
	r.decide(t)
	return dst
}

// use takes what a seat has used since it was last asked for.
func (r *Runner) use(t int64, s *seat) Used {
	s.enter(t, s.phase)
	spent := r.policy.Spent(t, schedule.ID(s.id), s.device)
	u := Used{LGPU: s.id, Time: max(spent-s.spent, 0), Free: s.free}
	s.spent, s.free = spent, 0
	return u
}

// leave keeps what a seat has used that is about to go.
func (r *Runner) leave(t int64, s *seat) {
	d := &r.devices[s.device]
	if !d.watched {
		return
	}
	u := r.use(t, s)
	if d.left == nil {
		d.left = map[uint64]Used{}
	}
	before := d.left[s.id]
	d.left[s.id] = Used{LGPU: s.id, Time: before.Time + u.Time, Free: before.Free + u.Free}
}

// enter changes the phase of a seat, and counts the time for which it was free.
func (s *seat) enter(t int64, p phase) {
	if s.phase == free {
		s.free += t - s.freed
	}
	s.phase, s.freed = p, t
}
