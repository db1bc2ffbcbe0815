package dispatch

import (
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// shortSlice is the hardware's time slice of lgpus that keep a device busy all the time while others use it, in µs. A
// slice ends only for somebody who has work, so a short one costs such an lgpu nothing while it is alone on the device.
const shortSlice = 50

// shape tells the clients of s which time slice they are to have, where that has changed.
func (r *Runner) shape(s *seat) {
	for _, c := range s.clients {
		if c.slice != s.slice {
			c.slice, c.sliced = s.slice, false
			c.gate.Send(protocol.Message{Kind: protocol.Slice, Value: s.slice})
		}
	}
}

// Sliced implements tenant.GateHandler.
func (r *Runner) Sliced(g *tenant.Gate, m protocol.Message) { r.sliced(g, m) }

func (r *Runner) sliced(g gate, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clients[g]
	switch {
	case c == nil || c.slice == 0:
	case m.Value != 0 && m.Value <= c.slice:
		c.sliced = true
	case c.sliced && m.Value > c.slice && m.Flags&protocol.FlagRefused == 0:
		c.sliced = false // it is told once, until the client says that it has put it right
		if r.config.Resliced != nil {
			r.config.Resliced(g.LGPU(), g.UUID(), g.Peer().PID, time.Duration(min(m.Value, maxSlice))*time.Microsecond)
		}
	}
}

// maxSlice bounds what a client may say of its slice, in µs.
const maxSlice = 1 << 32

// place is an lgpu on a device.
type place struct {
	lgpu uint64
	uuid gpu.UUID
}

// usage is the device time that the driver says an lgpu has used.
type usage struct {
	total time.Duration
	last  int64 // when it was read, ns
}

// gap is the longest time between two readings of the driver's counters of which the second holds for all of it.
const gap = int64(3 * time.Second)

// Measured says which part of the time since the last call the lgpu really used the device, in percent, by the driver's
// counters. It is to be called about once a second.
func (r *Runner) Measured(lgpu uint64, uuid gpu.UUID, percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	for _, s := range r.byID[lgpu] {
		if s.uuid != uuid || !r.devices[s.device].preempt {
			continue // only guests are charged by it
		}
		u, known := r.used[place{lgpu, uuid}]
		if passed := t - u.last; known && passed <= gap {
			u.total += time.Duration(passed) * time.Duration(max(0, min(percent, 100))) / 100
		}
		u.last = t
		r.used[place{lgpu, uuid}] = u
		r.progressOn(t, s.device)
		r.policy.Measured(t, schedule.ID(s.id), s.device, int64(u.total))
	}
	r.decide(t)
}
