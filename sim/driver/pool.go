package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
)

// pool is a memory pool of a device, for allocations in stream order.
//
// What is freed in stream order no longer counts as used, but until its free has run it is the stream's own: it stays
// reserved, and only work after the free may use it. Other allocations make the pool grow, even though it has reserved
// more than is used; so does an allocation for which no hole is large enough.
type pool struct {
	handle    uint64
	p         *Process
	dev       *device
	arena     *arena
	parked    []*parked
	threshold uint64    // bytes that stay reserved when nothing uses them
	reuse     [3]uint64 // by reuseFollow and its neighbours: 0 is no
	usedHigh  uint64
	resvHigh  uint64
	shareable bool  // made for other processes
	source    *pool // of another process; nothing can be allocated from it here
	builtin   bool  // the device's default pool
	destroyed bool  // to go when its last allocation goes
}

// The ways in which a pool may reuse memory, in the order of CU_MEMPOOL_ATTR_REUSE_*.
const (
	reuseFollow        = iota // by a stream that depends on the free, by events
	reuseOpportunistic        // by any stream once the free has run
	reuseInternal             // by any stream, which is made to depend on the free, rather than to fail
)

// parked is memory whose free is on its way.
type parked struct {
	chunk *chunk
	rest  []hole // what has not been allocated again
	s     *stream
	free  *work
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

// currentPool is the pool that cuMemAllocAsync allocates from.
func (p *Process) currentPool(dev *device) *pool {
	if pl := p.current[dev.index]; pl != nil {
		return pl
	}
	return p.defaultPool(dev)
}

// alloc allocates memory now. The program may use it in the order of s, and after the work that is returned, if any.
func (pl *pool) alloc(s *stream, size uint64) (*allocation, *work, Result) {
	if pl.reuse[reuseOpportunistic] != 0 {
		pl.collect()
	}
	var after *work
	base, ch, ok := pl.unpark(size, func(k *parked) bool {
		return k.s == s || pl.reuse[reuseFollow] != 0 && s.follows(k.free)
	})
	if !ok {
		var res Result
		base, ch, res = pl.arena.alloc(size)
		if res == errOutOfMemory && pl.reuse[reuseInternal] != 0 {
			base, ch, ok = pl.unpark(size, func(k *parked) bool { after = k.free; return true })
		}
		if res != success && !ok {
			return nil, nil, res
		}
	}
	pl.usedHigh = max(pl.usedHigh, pl.arena.used)
	pl.resvHigh = max(pl.resvHigh, pl.arena.reserved)
	a := &allocation{typ: memAsync, base: base, size: size, dev: pl.dev, arena: pl.arena, chunk: ch, pool: pl, id: pl.p.d.id()}
	pl.p.allocs.add(base, size, a)
	return a, after, success
}

// park makes a, which w frees in the order of s, no longer the program's.
func (pl *pool) park(a *allocation, s *stream, w *work) {
	pl.p.forget(a)
	pl.arena.used -= a.size
	pl.parked = append(pl.parked, &parked{a.chunk, []hole{{a.base, portion(a.size)}}, s, w})
}

// unpark allocates size bytes of parked memory that may be used: the first range that is large enough.
func (pl *pool) unpark(size uint64, may func(*parked) bool) (uint64, *chunk, bool) {
	need := portion(size)
	for _, k := range pl.parked {
		i := slices.IndexFunc(k.rest, func(h hole) bool { return h.size >= need })
		if i < 0 || !may(k) {
			continue
		}
		h := k.rest[i]
		k.rest[i] = hole{h.base + need, h.size - need}
		if h.size == need {
			k.rest = slices.Delete(k.rest, i, i+1)
		}
		pl.arena.used += size
		return h.base, k.chunk, true
	}
	return 0, nil, false
}

// collect makes parked memory whose free has run available to all.
func (pl *pool) collect() {
	pl.parked = slices.DeleteFunc(pl.parked, func(k *parked) bool {
		if !k.free.done {
			return false
		}
		for _, h := range k.rest {
			pl.arena.back(k.chunk, h.base, h.size)
		}
		return true
	})
}

// trim releases memory that nothing uses until at most keep bytes are reserved.
func (pl *pool) trim(keep uint64) {
	pl.collect()
	pl.arena.trim(keep)
}

// ended releases a destroyed pool that has nothing left to wait for.
func (pl *pool) ended() {
	if !pl.destroyed || pl.arena.used > 0 {
		return
	}
	if pl.collect(); len(pl.parked) == 0 {
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
	pl.parked = nil
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

// settle releases what pools have reserved above their threshold; synchronising calls do so.
func (p *Process) settle(dev *device) {
	for _, pl := range p.pools {
		if pl.dev == dev {
			pl.trim(pl.threshold)
		}
	}
}

// reclaim releases all that pools have reserved and not used on a device, because an allocation needs it.
func (p *Process) reclaim(dev *device) bool {
	before := dev.hw.Memory.Free()
	for _, pl := range p.pools {
		if pl.dev == dev {
			pl.trim(0)
		}
	}
	return dev.hw.Memory.Free() > before
}

// unparks is the op of cuMemFreeAsync for a pool's own memory.
type unparks struct{ pool *pool }

func (o unparks) begin(d *Driver, w *work, at hw.Time) {
	d.end(w, at)
	o.pool.ended()
}

// release is the op of cuMemFreeAsync for other memory.
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
