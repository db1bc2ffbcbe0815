package driver

import (
	"maps"
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/ptx"
)

// context is a CUDA context: the state of one process on one device.
type context struct {
	handle, id uint64
	p          *Process
	dev        *device
	primary    bool
	refs       int // of a primary context
	flags      uint32
	fault      Result // sticky; success while the context is well

	space   *hw.Space
	channel *hw.Channel
	units   int // that the channel may run on
	cost    *physical
	stacks  *physical // nil while they are no larger than those that every context has
	arena   *arena
	peers   map[*context]bool // contexts whose memory this one sees

	legacy  *stream
	threads map[uint64]*stream // per-thread default streams
	streams []*stream          // of all kinds but capture's
	modules []*module
	live    map[*work]struct{}
	room    chan struct{} // closed when there are fewer works than a call may wait for

	output      *output
	prints      bool // a kernel of a module that prints was launched
	limits      [7]uint64
	cacheConfig int32
}

// newContext makes a context; its cost is taken from the device's memory.
func (p *Process) newContext(dev *device, flags uint32) (*context, Result) {
	if res := p.faults[dev.index]; res != success {
		return nil, res
	}
	cost, res := p.newPhysical(dev, p.d.options.ContextBytes)
	if res != success {
		return nil, res
	}
	channel := p.channel(dev)
	c := &context{
		id: p.d.id(), p: p, dev: dev, flags: flags, cost: cost, space: hw.NewSpace(), channel: channel, units: len(channel.Units()),
		peers: map[*context]bool{}, threads: map[uint64]*stream{}, live: map[*work]struct{}{},
		limits: [7]uint64{defaultStack, defaultOutput, 8 << 20, 2, 2048, 64, 0}, cacheConfig: 0,
	}
	c.arena = &arena{p: p, dev: dev, ctx: c}
	c.output = &output{p: p, limit: defaultOutput}
	c.handle = p.handles.add(kindContext, c)
	c.legacy = c.newStream(0, 0)
	p.contexts = append(p.contexts, c)
	for _, r := range p.regions.all() {
		p.show(r, c)
	}
	if p.eager {
		for _, l := range p.libraries {
			if _, res := l.moduleIn(c); res != success {
				p.destroy(c)
				return nil, res
			}
		}
	}
	return c, success
}

// destroy ends a context: its work is dropped and everything in it freed.
func (p *Process) destroy(c *context) {
	c.stop()
	for _, cp := range slices.Clone(p.captures) {
		if cp.origin.ctx == c {
			cp.drop()
		}
	}
	for _, a := range p.allocs.all() {
		if a.ctx == c {
			p.drop(a)
		}
	}
	for _, m := range slices.Clone(c.modules) {
		p.unload(m)
	}
	for h, o := range p.handles.objects {
		var of *context
		switch o := o.(type) {
		case *event:
			of = o.ctx
		case *array:
			of = o.ctx
		case *mipmap:
			of = o.ctx
		case *stream:
			of = o.ctx
		}
		if of == c {
			p.handles.remove(h)
		}
	}
	c.arena.clear()
	p.spilled = append(p.spilled, c.output.flush()...)
	for _, pl := range slices.Clone(p.pools) {
		pl.ended() // frees that were dropped have run
	}
	p.handles.remove(c.handle)
	p.contexts = slices.DeleteFunc(p.contexts, func(o *context) bool { return o == c })
	last := true
	for _, o := range p.contexts {
		delete(o.peers, c)
		last = last && o.dev != c.dev
	}
	if last {
		p.clearDevice(c.dev)
	}
	if p.primaries[c.dev.index] == c {
		p.primaries[c.dev.index] = nil
	}
	c.fault = errContextIsDestroyed
	c.cost.release()
	if c.stacks != nil {
		c.stacks.release()
	}
	p.d.drain()
}

// clearDevice frees what belongs to a device and not to a context, when the last context there goes.
func (p *Process) clearDevice(dev *device) {
	for _, a := range p.allocs.all() {
		if a.dev == dev && (a.typ == memAsync || a.typ == memManaged || a.typ == memGraph || a.typ == memImported ||
			a.typ == memPoolImported) {
			p.drop(a)
		}
	}
	for _, pl := range slices.Clone(p.pools) {
		if pl.dev == dev {
			pl.trim(0)
		}
	}
}

// stop drops all work of the context, here and in the engines.
func (c *context) stop() {
	c.channel.Kill()
	for _, d := range c.p.d.devices {
		for _, m := range []*hw.Mover{d.hw.In, d.hw.Out, d.hw.Local} {
			m.Cancel(c)
		}
	}
	now := c.dev.hw.Clock.Now()
	for w := range maps.Clone(c.live) {
		c.p.d.end(w, now)
	}
}

// fail makes the first fault of a context the fate of all that its process has on the device, now and later, as the
// real driver does: every call answers it, and only the end of the process ends it.
func (c *context) fail(err error) {
	p := c.p
	if c.fault != success {
		return
	}
	res := faultResult(err)
	p.faults[c.dev.index] = res
	p.d.log.Warn("fault", "process", p.pid, "context", c.id, "device", c.dev.index, "result", int32(res), "error", err)
	for _, o := range p.contexts {
		if o.dev != c.dev || o.fault != success {
			continue
		}
		o.fault = res
		for _, s := range o.streams {
			if s.capture != nil {
				s.capture.invalidate()
			}
		}
		o.stop()
	}
}

// faultResult is what programs are told of a fault.
func faultResult(err error) Result {
	f, ok := err.(*ptx.Fault)
	if !ok {
		return errIllegalAddress
	}
	switch f.Kind {
	case ptx.FaultMisaligned:
		return errMisalignedAddress
	case ptx.FaultTrap:
		return errLaunchFailed
	case ptx.FaultAssert:
		return errAssert
	case ptx.FaultStack:
		return errHardwareStack
	case ptx.FaultCall:
		return errInvalidPC
	case ptx.FaultInstruction:
		return errIllegalInstruction
	case ptx.FaultDeadlock:
		return errLaunchFailed
	}
	return errIllegalAddress
}

// spaceLeft wakes calls that wait for works to end.
func (c *context) spaceLeft() {
	if c.room != nil && len(c.live) < c.p.d.options.PendingMax {
		close(c.room)
		c.room = nil
	}
}

// waitRoom returns when the context may take another work, as a full ring of the real driver would block. It gives
// Driver.mu up meanwhile.
func (c *context) waitRoom() {
	d := c.p.d
	for len(c.live) >= d.options.PendingMax && c.fault == success && !c.p.closed {
		d.drain()
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		d.mu.Unlock()
		gone := false
		select {
		case <-room:
		case <-c.p.host.Gone():
			gone = true
		case <-c.p.gone:
			gone = true
		}
		d.mu.Lock()
		if gone {
			return
		}
	}
}

// synchronize waits for everything that was submitted to the context.
func (c *context) synchronize() Result {
	c.p.d.drain()
	for w := range maps.Clone(c.live) {
		c.p.wait(w)
	}
	c.p.settle(c.dev)
	return c.fault
}

// allocate takes device memory for the program.
func (c *context) allocate(size uint64) (*allocation, Result) {
	base, ch, res := c.arena.alloc(size)
	if res != success {
		return nil, res
	}
	a := &allocation{typ: memDevice, base: base, size: size, ctx: c, dev: c.dev, arena: c.arena, chunk: ch, id: c.p.d.id()}
	c.p.allocs.add(base, size, a)
	return a, success
}
