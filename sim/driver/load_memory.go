package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
)

func (l *loader) makeAllocations() {
	for _, r := range l.img.Allocations {
		a := &allocation{typ: r.Type, base: r.Base, size: r.Size, id: l.id(r.ID), flags: r.Flags, syncOps: r.SyncOps,
			readMostly: r.ReadMostly, preferred: r.Preferred, prefetch: r.Prefetch, accessedBy: r.AccessedBy}
		l.check(r.Size > 0 && r.Size < 1<<46 && r.Base+r.Size > r.Base, "%#x bytes at %#x", r.Size, r.Base)
		if r.Dev >= 0 {
			a.dev = l.device(r.Dev)
		}
		switch r.Type {
		case memDevice, memModule, memArray:
			a.ctx = l.context(r.Context)
			l.place(a, a.ctx.arena)
		case memAsync:
			a.pool = at(l, "pool", l.pools, r.Pool)
			l.place(a, a.pool.arena)
		case memHost, memRegistered, memManaged:
			l.hostMemory(a, r)
		case memMapped, memGraph:
			l.mapping(a, r)
		default:
			l.check(false, "memory of kind %d", r.Type)
		}
	}
	for _, a := range l.arenas() {
		for _, ch := range a.chunks {
			taken := uint64(0)
			for _, o := range l.p.allocs.within(ch.region.base, ch.region.size) {
				taken += portion(o.size)
			}
			l.check(taken == ch.used, "%d bytes at %#x are taken, and %d allocated", ch.used, ch.region.base, taken)
		}
	}
}

func (l *loader) arenas() (all []*arena) {
	for _, c := range l.p.contexts {
		all = append(all, c.arena)
	}
	for _, pl := range l.pools {
		all = append(all, pl.arena)
	}
	return all
}

// add makes an allocation known by its address.
func (l *loader) add(a *allocation) {
	l.check(l.p.allocs.add(a.base, a.size, a), "%#x bytes at %#x are allocated twice", a.size, a.base)
}

// place puts an allocation into the chunk of an arena in which it lies.
func (l *loader) place(a *allocation, in *arena) {
	a.arena = in
	for _, ch := range in.chunks {
		off := a.base - ch.region.base
		if a.base >= ch.region.base && off < ch.region.size && portion(a.size) <= ch.region.size-off {
			a.chunk = ch
		}
	}
	l.check(a.chunk != nil && a.base%arenaUnit == 0 && a.dev == in.dev, "memory at %#x is in no chunk", a.base)
	in.used += a.size
	l.add(a)
}

// hostMemory maps memory of the program, whose file has come before.
func (l *loader) hostMemory(a *allocation, r allocationImage) {
	f, ok := l.p.pages[a.base]
	if !ok || f.loaded || f.pages.Size() != r.Pages || r.Size > r.Pages {
		l.fail(errInvalidValue, "the program's memory at %#x has not come", a.base)
	}
	l.check((r.Type == memManaged) == (a.dev != nil), "host memory at %#x", a.base)
	if r.Type == memManaged {
		a.phys = l.physical(r.Physical)
		l.check(a.phys.dev == a.dev, "managed memory at %#x is of another device", a.base)
	}
	l.check(a.base%hostPage == 0 && (a.base+r.Pages <= addressFirst || a.base >= addressLast), "host memory at %#x", a.base)
	a.host = f.pages
	a.region = &region{base: a.base, size: r.Pages, store: a.host, access: l.p.everywhere()}
	l.add(a)
	l.expose(a.region)
	f.loaded = true
	l.p.pages[a.base] = f
}

// mapping maps physical memory: a program's own mapping, or a graph's memory.
func (l *loader) mapping(a *allocation, r allocationImage) {
	a.phys = l.physical(r.Physical)
	size := a.phys.frames.Size()
	if r.Type == memMapped {
		l.check(r.Size <= size, "a mapping of %d bytes of %d", r.Size, size)
		size = r.Size
	}
	l.frames(r.Base, size)
	l.check(a.dev == a.phys.dev && r.Size <= size && size%hw.FrameSize == 0, "mapping at %#x", a.base)
	a.region = &region{base: r.Base, size: size, store: a.phys.frames, access: l.access(r.Access)}
	l.add(a)
	l.expose(a.region)
}

// allocation finds memory of a context that something else has.
func (l *loader) allocation(base uint64, typ memType, c *context) *allocation {
	a, ok := l.p.allocs.find(base)
	l.check(ok && a.base == base && a.typ == typ && a.ctx == c && !l.owned[a], "there is no memory of its own at %#x", base)
	l.owned[a] = true
	return a
}

// dropPages forgets the host memory that came for an image, and releases what nothing of the image has.
func (p *Process) dropPages() {
	for _, f := range p.pages {
		if f.loaded {
			continue
		}
		if err := f.pages.Release(); err != nil {
			p.d.log.Error("release host pages", "process", p.pid, "error", err)
		}
	}
	clear(p.pages)
}
