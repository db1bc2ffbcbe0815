package dispatch

import (
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// shape tells the clients of s which time slice they are to have, where that has changed.
func (r *Runner) shape(s *seat) {
	for _, c := range s.clients {
		if c.slice != s.slice {
			c.slice, c.sliced, c.refused = s.slice, false, false
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
		if !c.sliced {
			c.settled = now()
		}
		c.sliced, c.refused, c.obeyed = true, false, true
	case m.Flags&protocol.FlagRefused != 0, !c.sliced && m.Value > c.slice: // also if the driver took it, and ignored it
		if !c.refused {
			c.settled = now()
		}
		c.sliced, c.refused = false, true
	case c.sliced && m.Value > c.slice:
		c.sliced = false // it is told once, until the client says that it has put it right
		t, found := now(), time.Duration(min(m.Value, maxSlice))*time.Microsecond
		if r.config.Resliced != nil && t >= c.reported+often {
			c.reported = t
			r.config.Resliced(g.LGPU(), g.UUID(), g.Peer().PID, found)
		}
		s := r.seatOf(g)
		if s == nil || !c.again(t) {
			return
		}
		if t >= s.greedy && r.config.Stayed != nil {
			r.config.Stayed(s.id, s.uuid, found, time.Duration(c.slice)*time.Microsecond)
		}
		s.greedy = t + leave // nobody is to wait for the device until it is put back once more
		s.preempted(t, r.policy)
		r.decide(t)
	}
}

// again notes that the client has lengthened its slice, and reports whether it has lately done so before.
func (c *client) again(t int64) bool {
	before := c.lengthened
	c.lengthened = t
	return before != 0 && t < before+leave
}

// often is the time between two reports about a client, ns.
const often = int64(time.Second)

// maxSlice bounds what a client may say of its slice, in µs.
const maxSlice = 1 << 32
