package hw

import "sync"

// Turn is a time for which the device ran the work of one channel alone: from the end of the switch to it until the next
// channel is switched to. What the device idles after the work belongs to the turn, as long as the channel lives.
type Turn struct {
	Owner      int // the channel's
	Start, End Time
	Unfinished bool // it goes on: End is when it was read
}

// turnsKept is how many turns that have ended a device remembers.
const turnsKept = 8192

// turnLog notes the turns of a device. Turns have numbers, from 0 on.
type turnLog struct {
	mu      sync.Mutex
	ended   uint64   // how many have ended, which is the number of the turn that is under way
	ring    []Turn   // the last turnsKept of those, each at its number modulo turnsKept
	current *Channel // whose turn is under way; nil where it is nobody's
	start   Time     // of the turn that is under way
	latest  Time     // that is in the log, or at which it was read: nothing begins or ends before it
}

// note says that from at on the device runs the work of c alone, or where c is nil, of nobody or of several.
func (l *turnLog) note(c *Channel, at Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c != nil && c.dead.Load() {
		c = nil // it was killed after the engine had picked it
	}
	if c == l.current {
		return
	}
	l.end(at)
	if c != nil {
		l.latest = max(l.latest, at)
		l.current, l.start = c, l.latest
	}
}

// gone says that c is dead, as of now.
func (l *turnLog) gone(c *Channel, now Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == l.current {
		l.end(now)
	}
}

// end ends the turn that is under way, if there is one. The caller has the lock.
func (l *turnLog) end(at Time) {
	if l.current == nil {
		return
	}
	l.latest = max(l.latest, at)
	t := Turn{Owner: l.current.Owner, Start: l.start, End: l.latest}
	if len(l.ring) < turnsKept {
		l.ring = append(l.ring, t)
	} else {
		l.ring[l.ended%turnsKept] = t
	}
	l.ended++
	l.current = nil
}

// read is Device.Turns.
func (l *turnLog) read(since uint64, room int, now Time) (turns []Turn, next uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = max(l.latest, now)
	if since > l.ended {
		if l.current != nil {
			return nil, l.ended + 1
		}
		return nil, l.ended
	}
	next = max(since, l.ended-uint64(len(l.ring)))
	turns = make([]Turn, 0, min(uint64(max(room, 0)), l.ended-next+1))
	for ; next < l.ended && len(turns) < room; next++ {
		turns = append(turns, l.ring[next%turnsKept])
	}
	if next == l.ended && l.current != nil && len(turns) < room {
		turns = append(turns, Turn{Owner: l.current.Owner, Start: l.start, End: l.latest, Unfinished: true})
	}
	return turns, next
}

// Turns returns the turns with numbers from since on, in order and at most room, and the number to ask from next. The
// last may be Unfinished: it is there again the next time. What begins or ends after the call does so no earlier than
// the call, in device time. Of turns that have ended, the last 8192 are remembered; older ones are left out. With a
// since beyond all turns there is none, and next is the number of the first turn that has not begun. A device is not
// divided into turns while a channel lives that is confined to some of the units: ok is false then, and time in which
// such a channel ran is in no turn.
func (d *Device) Turns(since uint64, room int) (turns []Turn, next uint64, ok bool) {
	if d.confined.Load() > 0 {
		return nil, 0, false
	}
	turns, next = d.log.read(since, room, d.Clock.Now())
	return turns, next, true
}
