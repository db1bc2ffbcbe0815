package dispatch

import (
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
)

// Place is schedule.Place with the lgpu's own ID.
type Place struct {
	LGPU uint64
	Rank int
	Lead time.Duration
}

// Memories is the part of a Runner that knows which lgpus' memory is away. Its methods are the Runner's.
type Memories struct {
	runner *Runner
	away   map[uint64]schedule.Memory // of lgpus, where it is not here; guarded by the Runner's mu
	places []schedule.Place           // scratch, likewise
}

// SetMemory says where the memory of an lgpu is, on all its devices, until something else is said: while it is not here, no
// gate of the lgpu is opened. Config.Rested says when those that were open are closed.
func (m *Memories) SetMemory(lgpu uint64, where schedule.Memory) {
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.away[lgpu] == where {
		return
	}
	if m.away[lgpu] = where; where == schedule.Here {
		delete(m.away, lgpu)
	}
	t := now()
	for _, s := range r.byID[lgpu] {
		r.progressOn(t, s.device)
		r.policy.SetMemory(t, schedule.ID(lgpu), s.device, where)
	}
	r.decide(t)
}

// Wish says that a program of an lgpu waits for its memory, as Want does of one that waits at its gate.
func (m *Memories) Wish(lgpu uint64) {
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	for _, s := range r.byID[lgpu] {
		if s.phase == idle {
			r.progressOn(t, s.device)
			r.policy.Want(t, schedule.ID(lgpu), s.device, r.busy(s))
		}
	}
	r.decide(t)
}

// Resting reports whether all gates are closed and drained of an lgpu, and of those in its gang.
func (m *Memories) Resting(lgpu uint64) bool {
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy.Resting(schedule.ID(lgpu))
}

// Idle is for how long an lgpu has shown no sign of work; false for one that has no gates.
func (m *Memories) Idle(lgpu uint64) (time.Duration, bool) {
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	for _, s := range r.byID[lgpu] {
		r.progressOn(t, s.device)
	}
	idle, ok := r.policy.Idle(t, schedule.ID(lgpu))
	r.decide(t)
	return time.Duration(idle), ok
}

// Order appends the planned order of a device to dst: the lgpus that have it, or wait for it.
func (m *Memories) Order(uuid gpu.UUID, dst []Place) []Place {
	r := m.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	n := r.number(uuid)
	r.progressOn(t, n)
	m.places = r.policy.Order(t, n, m.places[:0])
	for _, p := range m.places {
		dst = append(dst, Place{LGPU: uint64(p.ID), Rank: p.Rank, Lead: time.Duration(p.Lead)})
	}
	r.decide(t)
	return dst
}

// rested tells that gates of an lgpu have closed whose memory is away. Called with the Runner's mu locked.
func (m *Memories) rested(lgpu uint64) {
	r := m.runner
	if _, away := m.away[lgpu]; away && r.config.Rested != nil && r.policy.Resting(schedule.ID(lgpu)) {
		r.config.Rested(lgpu)
	}
}
