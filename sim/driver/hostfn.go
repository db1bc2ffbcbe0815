package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// hostFn is the op of a function that the program runs.
type hostFn struct {
	params   wire.CUDA_HOST_NODE_PARAMS
	callback bool   // cuStreamAddCallback's signature, with the stream
	stream   uint64 // as the program named it
}

func (o *hostFn) begin(d *Driver, w *work, at hw.Time) {
	p, clock := w.ctx.p, w.ctx.dev.hw.Clock
	go func() {
		clock.Wait(at)
		var err error
		if o.callback {
			err = p.host.Invoke(wire.StreamCallback, o.params.Fn, wire.HostAddr(o.stream), wire.HostAddr(success), o.params.UserData)
		} else {
			err = p.host.Invoke(wire.HostFunction, o.params.Fn, o.params.UserData, 0, 0)
		}
		if err != nil {
			return // the program is gone; closing it ends the work
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.end(w, clock.Now())
		d.drain()
	}()
}

// userObject is a counted object of the program's, whose destructor runs when nobody refers to it any more.
type userObject struct {
	handle       uint64
	ptr, destroy wire.HostAddr
	refs         uint32
}

// put gives up references.
func (p *Process) put(u *userObject, count uint32) {
	if u.refs -= count; u.refs > 0 {
		return
	}
	p.handles.remove(u.handle)
	if p.closed {
		return
	}
	p.destructors++
	go func() {
		// The only error is that the program is gone, and its object with it.
		_ = p.host.Invoke(wire.HostFunction, u.destroy, u.ptr, 0, 0)
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		if p.destructors--; p.destructors == 0 && p.quiet != nil {
			close(p.quiet)
			p.quiet = nil
		}
	}()
}
