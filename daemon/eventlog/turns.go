package eventlog

import (
	"context"
	"slices"
	"sync"
)

// turns let one reader read at a time. Users have their turn one after the other, however many readers each has, and the
// readers of one user among themselves.
type turns struct {
	mu      sync.Mutex
	taken   bool                       // guarded by mu, as what follows
	order   []uint32                   // users with readers that wait; the first is next
	waiting map[uint32][]chan struct{} // their readers, in order; closed when it is a reader's turn
}

// take waits for the turn of a reader. The error is ctx's; without one the caller calls pass.
func (t *turns) take(ctx context.Context, user uint32) error {
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	if t.waiting == nil {
		t.waiting = map[uint32][]chan struct{}{}
	}
	if len(t.waiting[user]) == 0 {
		t.order = append(t.order, user)
	}
	t.waiting[user] = append(t.waiting[user], mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting[user], mine); at >= 0 {
		t.leaveLocked(user, at)
	} else { // it has just become this reader's turn
		t.passLocked()
	}
	return context.Cause(ctx)
}

// leaveLocked takes a reader out of the queue. Called with mu held.
func (t *turns) leaveLocked(user uint32, at int) {
	t.waiting[user] = slices.Delete(t.waiting[user], at, at+1)
	if len(t.waiting[user]) == 0 {
		delete(t.waiting, user)
		t.order = slices.DeleteFunc(t.order, func(u uint32) bool { return u == user })
	}
}

// pass ends a turn.
func (t *turns) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passLocked()
}

// passLocked lets the next reader read. Called with mu held.
func (t *turns) passLocked() {
	if t.taken = len(t.order) > 0; !t.taken {
		return
	}
	user := t.order[0]
	next := t.waiting[user][0]
	t.order = append(t.order[1:], user)
	t.leaveLocked(user, 0)
	close(next)
}
