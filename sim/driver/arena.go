package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
)

// Sizes of an arena: allocations are multiples of the unit; those above the limit get frames of their own.
const (
	arenaUnit  = 512
	arenaLimit = 1 << 20
)

// arena cuts allocations out of chunks of whole frames.
type arena struct {
	p      *Process
	dev    *device
	ctx    *context // owner of the chunks; nil: the process
	access []access // where ctx is nil
	keep   bool     // chunks stay when they are empty, until trim
	limit  uint64   // bytes of chunks at most; 0: no limit

	chunks         []*chunk
	reserved, used uint64 // bytes of chunks, of allocations as asked for, as driver 580 counts them
}

type chunk struct {
	region *region
	phys   *physical
	free   holes
	used   uint64
}

// portion is what an allocation of size bytes takes of an arena.
func portion(size uint64) uint64 {
	if need := roundUp(size, arenaUnit); need <= arenaLimit {
		return need
	}
	return roundUp(size, hw.FrameSize)
}

// alloc takes size bytes. Nothing is left behind when it fails.
func (a *arena) alloc(size uint64) (uint64, *chunk, Result) {
	if size == 0 {
		return 0, nil, errInvalidValue
	}
	if size > addressLast-addressFirst {
		return 0, nil, errOutOfMemory
	}
	need := portion(size)
	for _, c := range a.chunks {
		for i, h := range c.free {
			if h.size >= need {
				c.free[i] = hole{h.base + need, h.size - need}
				if c.free[i].size == 0 {
					c.free = slices.Delete(c.free, i, i+1)
				}
				c.used += need
				a.used += size
				return h.base, c, success
			}
		}
	}
	c, res := a.grow(need)
	if res != success {
		return 0, nil, res
	}
	if rest := c.region.size - need; rest > 0 {
		c.free = []hole{{c.region.base + need, rest}}
	}
	c.used = need
	a.used += size
	return c.region.base, c, success
}

func (a *arena) grow(size uint64) (*chunk, Result) {
	size = roundUp(size, hw.FrameSize)
	if a.limit > 0 && a.reserved+size > a.limit {
		return nil, errOutOfMemory
	}
	phys, res := a.p.newPhysical(a.dev, size)
	if res != success {
		return nil, res
	}
	base, ok := a.p.addresses.reserve(size, 0)
	if !ok {
		phys.release()
		return nil, errOutOfMemory
	}
	r := &region{base: base, size: size, store: phys.frames, ctx: a.ctx, access: a.access}
	if res = a.p.expose(r); res != success {
		a.p.addresses.release(base, size)
		phys.release()
		return nil, res
	}
	c := &chunk{region: r, phys: phys}
	a.chunks = append(a.chunks, c)
	a.reserved += size
	return c, success
}

// free frees what alloc returned.
func (a *arena) free(c *chunk, base, size uint64) {
	a.used -= size
	a.back(c, base, portion(size))
}

// back makes need bytes of a chunk free, which no longer count as used.
func (a *arena) back(c *chunk, base, need uint64) {
	c.free.add(base, need)
	c.used -= need
	if c.used == 0 && !a.keep {
		a.release(c)
	}
}

// trim releases empty chunks until at most keep bytes are reserved.
func (a *arena) trim(keep uint64) {
	for _, c := range slices.Clone(a.chunks) {
		if a.reserved <= keep {
			return
		}
		if c.used == 0 {
			a.release(c)
		}
	}
}

// clear releases everything, whatever is in use.
func (a *arena) clear() {
	a.used = 0
	for _, c := range slices.Clone(a.chunks) {
		a.release(c)
	}
}

func (a *arena) release(c *chunk) {
	a.chunks = slices.DeleteFunc(a.chunks, func(o *chunk) bool { return o == c })
	a.reserved -= c.region.size
	a.p.unmap(c.region)
	a.p.addresses.release(c.region.base, c.region.size)
	c.phys.release()
}
