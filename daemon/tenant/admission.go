package tenant

import (
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// maxPending bounds the connections that have no answer yet, maxPendingUser those of one user other than root and
	// the daemon's own, and maxPendingEach those of one process. Of more, one that has said nothing is dropped: the
	// oldest of the process, of the user, or of the user that has most. An honest client says Hello as soon as it is
	// connected. Where all have spoken the new one is dropped.
	maxPending     = 512
	maxPendingUser = 128
	maxPendingEach = 16
)

// waitingRoom is the connections that have no answer yet.
type waitingRoom struct {
	mu      sync.Mutex    // guards pending; it may be locked while Server.mu is, never the other way round
	pending []*connection // oldest first
}

// remove notes that a connection has had its answer, or has ended.
func (w *waitingRoom) remove(c *connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = slices.DeleteFunc(w.pending, func(p *connection) bool { return p == c })
}

// admit adds a connection to those that wait for an answer, for which it may drop another, or reports that there is no
// room. Connections that are being dropped still count, so that their number is bounded too.
func (w *waitingRoom) admit(c *connection) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := c.conn.UID
	own, users := 0, map[uint32]int{}
	for _, p := range w.pending {
		users[p.conn.UID]++
		if p.conn.UID == uid && p.conn.PID == c.conn.PID {
			own++
		}
	}
	room := true
	switch all := len(w.pending); {
	case own >= maxPendingEach:
		room = own < 2*maxPendingEach && w.drop(func(p *connection) bool { return p.conn.UID == uid && p.conn.PID == c.conn.PID })
	case !trusted(uid) && users[uid] >= maxPendingUser:
		room = users[uid] < 2*maxPendingUser && w.drop(func(p *connection) bool { return p.conn.UID == uid })
	case all >= maxPending:
		most := uid
		for user, count := range users {
			if count > users[most] {
				most = user
			}
		}
		room = all < 2*maxPending && w.drop(func(p *connection) bool { return p.conn.UID == most })
	}
	if room {
		w.pending = append(w.pending, c)
	}
	return room
}

// drop ends the oldest of those pending connections that have said nothing, or reports that there is none. It stays
// pending until it is closed. Called with mu held.
func (w *waitingRoom) drop(of func(*connection) bool) bool {
	for _, p := range w.pending {
		if of(p) && p.silent() {
			p.close()
			return true
		}
	}
	return false
}

// trusted reports whether a user controls the daemon anyway: only the bounds for all users together apply to it.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// throttle is a bucket of things that may happen: so many at once, and one more in every period.
type throttle struct {
	burst  int
	period time.Duration

	mu   sync.Mutex
	full time.Time // when the bucket is full again; guarded by mu
}

const (
	messagesAtOnce = 4096
	messagePeriod  = 20 * time.Microsecond
	refusalsAtOnce = 64
	refusalPeriod  = 100 * time.Millisecond
)

// delay counts n things and returns how long to wait before the first of them.
func (t *throttle) delay(now time.Time, n int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full.Before(now) {
		t.full = now
	}
	t.full = t.full.Add(time.Duration(n) * t.period)
	return max(t.full.Sub(now)-time.Duration(t.burst)*t.period, 0)
}

// allow counts one thing if it need not wait, and reports whether it did.
func (t *throttle) allow(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full.Before(now) {
		t.full = now
	}
	next := t.full.Add(t.period)
	if next.Sub(now) > time.Duration(t.burst)*t.period {
		return false
	}
	t.full = next
	return true
}
