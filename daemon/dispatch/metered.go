package dispatch

import (
	"slices"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
)

// metered is what is known of a device's turns.
type metered struct {
	known bool     // whose turn it is, or was
	turn  gpu.Turn // the last one, up to where it has been counted
	at    int64    // when turns were last counted, ns

	looked tally // at the turns of all
	// In so many looks one after the other, a program that had work all the time was stopped at the end of its slice. From
	// looks on it is known that the hardware does that: who keeps the device then has another slice than it says.
	stopped int
}

// tally is how often, in looks, the turns of lgpus that have a short slice were short and long, while another one had
// work all the time; the sum of the long ones, and the slice.
type tally struct {
	short, long   int
	length, slice time.Duration
}

// Verdict is what the turns on a device say of its hardware's time slices.
type Verdict struct {
	Known   bool // there was something to judge by
	Works   bool // programs give way at the end of the slices that they have
	Active  bool // an lgpu has had work in flight since Ran was last called
	Refused bool // the driver does not set them: it refuses that, or it ignores it
	// Turn is how long programs kept the device, on average, that had a slice of Slice while others had work.
	Turn, Slice time.Duration
}

const (
	looks = 8                              // with the same result make a Verdict
	slack = 700 * time.Microsecond         // of a turn beyond its slice: switching, and the end of an instruction
	fresh = int64(20 * time.Millisecond)   // what a client has said of its slice for less is not judged
	least = int64(2500 * time.Microsecond) // between two looks
	leave = int64(time.Minute)             // for which there are no guests beside one that keeps the device
)

// Shared reports whether several lgpus are on a device where lgpus can be guests. While they are, Ran must be called.
func (r *Runner) Shared(uuid gpu.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.numbers[uuid]
	return known && r.devices[n].preempt && r.crowd(n) > 1
}

// share says that a device is shared, if it is.
func (r *Runner) share(n schedule.Device) {
	if r.config.Shared != nil && r.devices[n].preempt && r.crowd(n) > 1 {
		r.config.Shared(r.devices[n].uuid)
	}
}

// crowd is how many lgpus are on a device.
func (r *Runner) crowd(n schedule.Device) int {
	crowd := 0
	for _, s := range r.seats {
		if s.device == n {
			crowd++
		}
	}
	return crowd
}

// Metered says that turns come from a new meter, which notes them from the next one on: nothing is known of the one that is
// under way. It is to be called before Ran is.
func (r *Runner) Metered(uuid gpu.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, known := r.numbers[uuid]; known {
		r.devices[n].metered.known = false
	}
}

// Ran tells the policy whose work the hardware has run, from one call of gpu.Meter.Turns to the next, and what that says
// of time slices. It is to be called some hundred times a second while the device is Shared.
func (r *Runner) Ran(uuid gpu.UUID, turns []gpu.Turn) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.numbers[uuid]
	if !known {
		return Verdict{}
	}
	m, t := &r.devices[n].metered, now()
	r.count(n, m, turns)
	if !m.known || !r.devices[n].preempt {
		return Verdict{}
	}
	r.progressOn(t, n)
	r.ran = r.ran[:0]
	active := false
	for _, s := range r.seats {
		if s.device == n {
			active = active || r.busy(s) != s.judged.busy
			r.ran = append(r.ran, schedule.Ran{ID: schedule.ID(s.id), Total: s.ran, Turns: s.turns, Launches: s.launches()})
		}
	}
	v := r.judge(t, n, m)
	v.Active = active
	r.policy.Measured(t, n, r.ran)
	r.decide(t)
	return v
}

// launches is how often the lgpu has launched something on its device; 0 without clients.
func (s *seat) launches() int64 {
	if len(s.clients) == 0 {
		return 0
	}
	return int64(min(s.clients[0].gate.Launches(), 1<<62))
}

// count adds turns to the lgpus that had them.
func (r *Runner) count(n schedule.Device, m *metered, turns []gpu.Turn) {
	if len(turns) == 0 {
		return
	}
	processes := map[int]*seat{}
	for _, s := range r.seats {
		if s.device == n {
			for _, c := range s.clients {
				processes[c.gate.Peer().PID] = s
			}
		}
	}
	for _, t := range turns {
		from, began := t.Start, true
		if m.known && t.PID == m.turn.PID && t.Start == m.turn.Start {
			from, began = m.turn.End, false
			t.End = max(t.End, from)
		}
		m.known, m.turn = true, t
		s := processes[t.PID]
		if s == nil {
			continue // a program that is no client
		}
		s.ran += max(t.End-from, 0)
		if began {
			s.turns++
		}
	}
}

// judge compares the turns since it was last called with the slices that clients say they have.
func (r *Runner) judge(t int64, n schedule.Device, m *metered) Verdict {
	passed := t - m.at
	if passed < least {
		return Verdict{}
	}
	m.at = t
	pressed := r.pressed(n, passed)
	refuse, proven := 0, false
	for _, s := range r.seats {
		if s.device != n {
			continue
		}
		ran, turns := s.ran-s.judged.ran, s.turns-s.judged.turns
		s.judged.ran, s.judged.turns = s.ran, s.turns
		proven = proven || slices.ContainsFunc(s.clients, func(c *client) bool { return c.obeyed })
		switch {
		case s.refuses(t):
			refuse++
		case s.obeys(t):
			// Of a single turn it is not known whether what the other had in flight could run.
			if slices.ContainsFunc(pressed, func(p *seat) bool { return p != s }) && turns > 1 {
				turn, slice := time.Duration(ran/turns), time.Duration(s.slice)*time.Microsecond
				m.looked.add(turn, slice)
				switch short := s.looked.add(turn, slice); {
				case m.stopped == looks:
				case !short:
					m.stopped = 0
				case slices.Contains(pressed, s) && turn >= slice/2 && ran >= passed/5:
					m.stopped++
				}
			}
		}
		if m.stopped == looks {
			r.watch(t, s)
		}
		s.preempted(t, r.policy)
	}
	if refuse > 0 && !proven { // what one program has been given, the driver does not refuse to another
		return Verdict{Known: true, Refused: true}
	}
	v := m.looked.verdict()
	if m.stopped == looks && !v.Works {
		return Verdict{}
	}
	return v
}

// watch notes a seat that keeps its device beyond its slice, until it has given way for a while, or for a minute. All take
// turns meanwhile.
func (r *Runner) watch(t int64, s *seat) {
	v := s.looked.verdict()
	stays := s.stays != 0
	switch {
	case v.Known && !v.Works:
		s.stays = t + leave
	case v.Works || t >= s.stays:
		s.stays = 0
	}
	if stays != (s.stays != 0) && !stays && r.config.Stayed != nil {
		r.config.Stayed(s.id, s.uuid, v.Turn, v.Slice)
	}
}

// preempted tells the policy whether the hardware stops the seat at the end of its slices, where that has changed.
func (s *seat) preempted(t int64, policy *schedule.Scheduler) {
	if keeps := s.stays != 0 || t < s.greedy; keeps != s.keeps {
		s.keeps = keeps
		policy.Preempted(t, schedule.ID(s.id), s.device, !keeps)
	}
}

// pressed returns the seats that had work on a device for all of the time that has passed.
func (r *Runner) pressed(n schedule.Device, passed int64) []*seat {
	var pressed []*seat
	for _, s := range r.seats {
		if s.device != n {
			continue
		}
		busy := r.busy(s)
		if busy-s.judged.busy >= passed-passed/50 {
			pressed = append(pressed, s)
		}
		s.judged.busy = busy
	}
	return pressed
}

// add notes how long the turns of a seat were that has a slice, while others had work. It reports whether they were short.
func (l *tally) add(turn, slice time.Duration) bool {
	if l.slice = slice; turn <= slice+slack {
		l.short++
		return true
	}
	l.long++
	l.length += turn
	return false
}

// verdict is what the looks say, if they agree. Then it takes as many again.
func (l *tally) verdict() Verdict {
	var v Verdict
	switch {
	case l.long >= looks && l.long > 4*l.short:
		v = Verdict{Known: true, Turn: l.length / time.Duration(l.long), Slice: l.slice}
	case l.short >= looks && l.short > 4*l.long:
		v = Verdict{Known: true, Works: true, Slice: l.slice}
	case l.short+l.long < 8*looks:
		return v
	}
	*l = tally{}
	return v
}

// refuses reports whether all clients of a seat were told to have a short slice, and have said for a while that they
// cannot.
func (s *seat) refuses(t int64) bool {
	return s.slice != 0 && !slices.ContainsFunc(s.clients, func(c *client) bool { return !c.refused || t < c.settled+fresh })
}

// obeys reports whether all clients of a seat say that they have the short slice that they were told to have, and have
// had it for a while.
func (s *seat) obeys(t int64) bool {
	if s.slice == 0 {
		return false
	}
	for _, c := range s.clients {
		if !c.sliced || t < c.settled+fresh {
			return false
		}
	}
	return true
}

// Utilised tells the policy in which part of the last second a device worked, in percent.
func (r *Runner) Utilised(uuid gpu.UUID, percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.numbers[uuid]
	if !known || !r.devices[n].preempt {
		return
	}
	t := now()
	r.progressOn(t, n)
	r.policy.Utilised(t, n, percent)
	r.decide(t)
}
