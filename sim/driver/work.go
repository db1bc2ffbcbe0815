package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
)

// op is something that a stream or a graph node does. begin starts it at device time at; Driver.end must be called for
// w when it has ended, from begin or later, with Driver.mu held both times.
type op interface {
	begin(d *Driver, w *work, at hw.Time)
}

// work is an op that has been submitted.
type work struct {
	op      op
	ctx     *context
	deps    int     // works before this one that have not ended, and one until it is armed
	ready   hw.Time // when the last of those before ended
	waiters []*work
	done    bool
	at      hw.Time       // when done
	signal  chan struct{} // closed when done; made by the first who waits
}

// empty is the op that takes no time.
type empty struct{}

func (empty) begin(d *Driver, w *work, at hw.Time) { d.end(w, at) }

// newWork makes a work of ctx that waits for nothing yet. arm starts it.
func (c *context) newWork(o op) *work {
	w := &work{op: o, ctx: c, deps: 1, ready: c.dev.hw.Clock.Now()}
	c.live[w] = struct{}{}
	return w
}

// after makes w wait for dep.
func (w *work) after(dep *work) {
	switch {
	case dep == nil || dep == w:
	case dep.done:
		w.follow(dep)
	default:
		dep.waiters = append(dep.waiters, w)
		w.deps++
	}
}

// follow makes w start no earlier than dep ended. Devices have clocks of their own: what another one did counts from
// now.
func (w *work) follow(dep *work) {
	if dep.ctx.dev == w.ctx.dev {
		w.ready = max(w.ready, dep.at)
	} else {
		w.ready = max(w.ready, w.ctx.dev.hw.Clock.Now())
	}
}

// arm says that w has all its dependencies.
func (d *Driver) arm(w *work) {
	if w.deps--; w.deps == 0 {
		d.ready = append(d.ready, w)
	}
}

// drain starts what is ready. Every entry into the driver that may have ended or armed works calls it last.
func (d *Driver) drain() {
	if d.draining {
		return
	}
	d.draining = true
	for len(d.ready) > 0 {
		w := d.ready[0]
		d.ready[0] = nil
		d.ready = d.ready[1:]
		if !w.done {
			w.op.begin(d, w, w.ready)
		}
	}
	d.ready = nil
	d.draining = false
}

// ended notes the end of w on the hardware, where err is what the context fails with.
func (d *Driver) ended(w *work, c *context, end hw.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && !w.done {
		c.fail(err)
	}
	d.end(w, end)
	d.drain()
}

// end marks w as ended at device time at. A second end of the same work does nothing.
func (d *Driver) end(w *work, at hw.Time) {
	if w.done {
		return
	}
	w.done, w.at = true, max(at, w.ready)
	w.op = nil
	if w.signal != nil {
		close(w.signal)
	}
	delete(w.ctx.live, w)
	w.ctx.spaceLeft()
	for _, n := range w.waiters {
		n.follow(w)
		d.arm(n)
	}
	w.waiters = nil
}

// ended reports whether programs may see that w has ended.
func (w *work) ended() bool { return w == nil || w.done && w.ctx.dev.hw.Clock.Now() >= w.at }

// over is closed when w, which has not ended, does.
func (w *work) over() <-chan struct{} {
	if w.signal == nil {
		w.signal = make(chan struct{})
	}
	return w.signal
}

// wait returns when w has ended and its time has come. It gives Driver.mu up meanwhile. It returns early when the
// program is gone.
func (p *Process) wait(w *work) {
	d := p.d
	d.drain()
	if w == nil || w.ended() {
		return
	}
	var signal <-chan struct{}
	if !w.done {
		signal = w.over()
	}
	clock := w.ctx.dev.hw.Clock
	d.mu.Unlock()
	defer d.mu.Lock()
	if signal != nil {
		select {
		case <-signal:
		case <-p.host.Gone():
			return
		case <-p.gone:
			return
		}
	}
	// Once it has ended, at does not change.
	clock.Wait(w.at)
}
