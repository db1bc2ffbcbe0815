package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// presence knows whether anybody needs the daemon, and decides when it leaves.
type presence struct {
	daemon  *Daemon
	changed chan struct{} // holds a token when somebody may have stopped needing it

	mu      sync.Mutex // guards the fields below
	users   int        // of the API
	leaving bool       // nobody can begin to need the daemon any more
}

func newPresence(n *Daemon) *presence { return &presence{daemon: n, changed: make(chan struct{}, 1)} }

// leave makes every later Attach and Create fail.
func (p *presence) leave() {
	p.mu.Lock()
	p.leaving = true
	p.mu.Unlock()
}

// left is ErrClosed once the daemon is about to end.
func (p *presence) left() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaving {
		return fmt.Errorf("the daemon is about to end: %w", ErrClosed)
	}
	return nil
}

// awaitIdle closes the channel once nobody has needed the daemon for some time. Nobody can begin to afterwards.
func (p *presence) awaitIdle(ctx context.Context, period time.Duration) <-chan struct{} {
	idle := make(chan struct{})
	p.daemon.work.Add(1)
	go func() {
		defer p.daemon.work.Done()
		timer := time.NewTimer(period)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.changed:
				timer.Reset(period)
			case <-timer.C:
				if p.leaveIfIdle() {
					close(idle)
					return
				}
			}
		}
	}()
	return idle
}

// leaveIfIdle decides to end if nobody needs the daemon. Someone who does is seen again at the end of the use.
func (p *presence) leaveIfIdle() bool { return p.leaveIf(func() bool { return p.users == 0 }) }

// leaveIf decides to end if no lgpu is in use and another condition holds, which is asked for under mu.
func (p *presence) leaveIf(also func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = p.leaving || also() && !p.daemon.lgpus.inUse() && p.daemon.containers.count.Load() == 0
	return p.leaving
}

// LeaveIfUnused reports whether no lgpu is in use, by a process or a container. Then nobody can begin to use one any more:
// the caller is to end Run.
func (n *Daemon) LeaveIfUnused() bool { return n.presence.leaveIf(func() bool { return true }) }

// used restarts the time to leaving. Whoever stops needing the daemon calls it.
func (p *presence) used() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// use counts a user of the API until release is called.
func (p *presence) use() (release func()) {
	p.mu.Lock()
	p.users++
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.users--
		p.mu.Unlock()
		p.used()
	})
}
