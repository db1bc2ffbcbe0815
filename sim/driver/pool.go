package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
)

// pool is a memory pool of a device, for allocations in stream order.
type pool struct {
	handle    uint64
	p         *Process
	dev       *device
	arena     *arena
	threshold uint64 // bytes that stay reserved when nothing uses them
	reuse     [3]uint64
	usedHigh  uint64
	resvHigh  uint64
	shareable bool  // made for other processes
	source    *pool // of another process; nothing can be allocated from it here
	builtin   bool  // the device's default pool
	destroyed bool  // to go when its last allocation goes
}

func (p *Process) newPool(dev *device, limit uint64) *pool {
	rights := make([]access, len(p.d.devices))
	rights[dev.index] = accessWrite
	pl := &pool{p: p, dev: dev, reuse: [3]uint64{1, 1, 1}}
	pl.arena = &arena{p: p, dev: dev, access: rights, keep: true, limit: limit}
	pl.handle = p.handles.add(kindPool, pl)
	p.pools = append(p.pools, pl)
	return pl
}

// defaultPool is the device's own pool, made when it is first asked for.
func (p *Process) defaultPool(dev *device) *pool {
	if p.defaults[dev.index] == nil {
		pl := p.newPool(dev, 0)
		pl.builtin = true
		p.defaults[dev.index] = pl
	}
	return p.defaults[dev.index]
}

// currentPool is the pool that cuMemAllocAsync takes from.
func (p *Process) currentPool(dev *device) *pool {
	if pl := p.current[dev.index]; pl != nil {
		return pl
	}
	return p.defaultPool(dev)
}

// alloc takes memory now. The program may use it in the order of s, which is never earlier.
func (pl *pool) alloc(c *context, size uint64) (*allocation, Result) {
	base, ch, res := pl.arena.alloc(size)
	if res == errOutOfMemory {
		// Memory whose free is on its way counts as there: wait for it, as reuse in stream order would.
		if c.fault == success {
			c.synchronize()
		}
		base, ch, res = pl.arena.alloc(size)
	}
	if res != success {
		return nil, res
	}
	pl.usedHigh = max(pl.usedHigh, pl.arena.used)
	pl.resvHigh = max(pl.resvHigh, pl.arena.reserved)
	a := &allocation{typ: memAsync, base: base, size: size, dev: pl.dev, arena: pl.arena, chunk: ch, pool: pl, id: pl.p.d.id()}
	pl.p.allocs.add(base, size, a)
	return a, success
}

// gave is told when an allocation went back into the arena.
func (pl *pool) gave(*allocation) {
	if pl.destroyed && pl.arena.used == 0 {
		pl.destroy()
	}
}

// destroy releases the pool and everything in it.
func (pl *pool) destroy() {
	for _, a := range pl.p.allocs.all() {
		if a.pool == pl {
			pl.p.allocs.remove(a.base)
		}
	}
	pl.arena.clear()
	pl.p.handles.remove(pl.handle)
	pl.p.pools = slices.DeleteFunc(pl.p.pools, func(o *pool) bool { return o == pl })
}

// setAccess gives a device its rights on all memory of the pool, present and future.
func (pl *pool) setAccess(dev *device, rights access) {
	pl.arena.access[dev.index] = rights
	for _, ch := range pl.arena.chunks {
		for _, c := range pl.p.contexts {
			if c.dev == dev {
				pl.p.show(ch.region, c)
			}
		}
	}
}

// settle releases what pools hold above their threshold; synchronising calls do so.
func (p *Process) settle(dev *device) {
	for _, pl := range p.pools {
		if pl.dev == dev {
			pl.arena.trim(pl.threshold)
		}
	}
}

// reclaim releases all that pools hold in reserve on a device, because an allocation needs it.
func (p *Process) reclaim(dev *device) bool {
	before := dev.hw.Memory.Free()
	for _, pl := range p.pools {
		if pl.dev == dev {
			pl.arena.trim(0)
		}
	}
	return dev.hw.Memory.Free() > before
}

// release is the op of cuMemFreeAsync and of a graph's free node.
type release struct {
	p     *Process
	alloc *allocation
}

func (o release) begin(d *Driver, w *work, at hw.Time) {
	if a, ok := o.p.allocs.find(o.alloc.base); ok && a == o.alloc {
		o.p.drop(a)
	}
	d.end(w, at)
}

// forgetPool removes a pool as current where it is.
func (p *Process) forgetPool(pl *pool) {
	if i := slices.Index(p.current, pl); i >= 0 {
		p.current[i] = nil
	}
}
