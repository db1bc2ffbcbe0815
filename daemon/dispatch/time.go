package dispatch

import (
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// look is the time between two looks at the charges of grants without an end, and between two beats for the clients
// that wait, ns.
const look int64 = protocol.Beat

// due is when keepTime must do something.
func (r *Runner) due(t int64) int64 {
	next, set := r.policy.Next()
	if !set {
		next = math.MaxInt64
	}
	for _, s := range r.seats {
		if s.waits() {
			next = min(next, t+look)
		}
		if s.phase != open {
			continue
		}
		next = min(next, t+look)
		for _, c := range s.clients {
			switch {
			case !c.owesClosed || len(s.clients) == 1:
			case c.stopped == 0:
				next = min(next, max(c.since+ownTurn, t+ownTurn/8))
			case c.stopped+ownBound > t:
				next = min(next, c.stopped+ownBound)
			}
		}
	}
	return next
}

// waits reports whether a client of s waits for a message.
func (s *seat) waits() bool {
	return s.phase != free && slices.ContainsFunc(s.clients, func(c *client) bool { return c.waiting || c.owesClosed })
}

// poke wakes keepTime.
func (r *Runner) poke() {
	unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is poked already
	r.asleep = 0
}

// keepTime ticks the policy. Go's timers are up to a millisecond late, which is a tenth of a slice.
func (r *Runner) keepTime() {
	defer unix.Close(r.wake)
	fds := []unix.PollFd{{Fd: int32(r.wake), Events: unix.POLLIN}}
	var counter [8]byte
	for {
		r.mu.Lock()
		if r.over {
			r.mu.Unlock()
			return
		}
		t := now()
		r.progress(t)
		r.policy.Tick(t)
		r.carryAllOut(t)
		for _, s := range r.seats {
			if s.phase == open {
				r.next(t, s)
			}
			if s.waits() {
				s.clients[0].gate.Beat()
			}
		}
		r.asleep = r.due(t)
		var timeout *unix.Timespec
		if r.asleep != math.MaxInt64 {
			d := unix.NsecToTimespec(max(r.asleep-t, 1000))
			timeout = &d
		}
		r.mu.Unlock()
		unix.Ppoll(fds, timeout, nil) // an interruption is as good as a wake-up
		unix.Read(r.wake, counter[:])
	}
}
