package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// MemAllocAsync is cuMemAllocAsync.
func (p *Process) MemAllocAsync(call *wire.Call, size uint64, stream wire.CUstream) (wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(stream), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return p.allocAsync(s, p.currentPool(s.ctx.dev), size)
}

// MemAllocFromPoolAsync is cuMemAllocFromPoolAsync.
func (p *Process) MemAllocFromPoolAsync(call *wire.Call, size uint64, h wire.CUmemoryPool, stream wire.CUstream) (wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(stream), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	pl, res := p.pool(h)
	if res != success || pl.source != nil {
		return 0, errInvalidValue
	}
	return p.allocAsync(s, pl, size)
}

func (p *Process) allocAsync(s *stream, pl *pool, size uint64) (wire.CUdeviceptr, Result) {
	if size == 0 {
		return 0, errInvalidValue
	}
	if res := s.capturable(); res != success {
		return 0, res
	}
	if s.capture != nil {
		n, res := s.capture.graph.addAlloc(pl.dev, size, wire.CUmemPoolProps{}, s.deps)
		if res != success {
			return 0, res
		}
		s.deps = []*node{n}
		return wire.CUdeviceptr(n.op.(*allocNode).addr), success
	}
	if res := s.admit(); res != success {
		return 0, res
	}
	if pl.destroyed {
		return 0, errInvalidValue
	}
	a, after, res := pl.alloc(s, size)
	if res != success {
		return 0, res
	}
	w := s.next(empty{})
	w.after(after)
	p.d.arm(w)
	return wire.CUdeviceptr(a.base), success
}

// addAlloc adds a memory allocation node.
func (g *graph) addAlloc(dev *device, size uint64, props wire.CUmemPoolProps, deps []*node) (*node, Result) {
	addr, ok := g.p.addresses.reserve(size, 0)
	if !ok {
		return nil, errOutOfMemory
	}
	o := &allocNode{p: g.p, dev: dev, addr: addr, size: size, props: props}
	g.p.graphMemory[addr] = o
	return g.add(o, deps), success
}

// MemFreeAsync is cuMemFreeAsync.
func (p *Process) MemFreeAsync(call *wire.Call, ptr wire.CUdeviceptr, stream wire.CUstream) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(stream), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	if res := s.capturable(); res != success {
		return res
	}
	if s.capture != nil {
		if p.graphMemory[uint64(ptr)] == nil {
			a, ok := p.allocs.find(uint64(ptr))
			if !ok || a.base != uint64(ptr) || a.typ != memAsync {
				return errInvalidValue
			}
		}
		_, res := s.submit(&freeNode{p: p, addr: uint64(ptr), from: p.graphMemory[uint64(ptr)]})
		return res
	}
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.base != uint64(ptr) || a.freed {
		return errInvalidValue
	}
	switch a.typ {
	case memAsync, memDevice, memGraph, memManaged, memPoolImported:
	default:
		return errInvalidValue
	}
	return p.freeAsync(s, a)
}

// freeAsync frees a in the order of s.
func (p *Process) freeAsync(s *stream, a *allocation) Result {
	a.freed = true // submitting may wait, and nobody may free it meanwhile
	var o op = release{p, a}
	if a.pool != nil {
		o = unparks{a.pool}
	}
	w, res := s.submit(o)
	if res != success {
		a.freed = false
		return res
	}
	if found, ok := p.allocs.find(a.base); a.pool != nil && ok && found == a {
		a.pool.park(a, s, w)
	}
	return success
}

// MemPoolCreate is cuMemPoolCreate.
func (p *Process) MemPoolCreate(_ *wire.Call, props *wire.CUmemPoolProps) (wire.CUmemoryPool, wire.CUresult) {
	defer p.lock()()
	if props.AllocType != wire.CU_MEM_ALLOCATION_TYPE_PINNED {
		return 0, errInvalidValue
	}
	if props.Location.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
		return 0, errNotSupported
	}
	d, res := p.device(wire.CUdevice(props.Location.Id))
	if res != success {
		return 0, res
	}
	if props.HandleTypes&^wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
		return 0, errNotSupported
	}
	pl := p.newPool(d, roundUp(props.MaxSize, hw.FrameSize))
	pl.shareable = props.HandleTypes != wire.CU_MEM_HANDLE_TYPE_NONE
	return wire.CUmemoryPool(pl.handle), success
}

// pool finds a pool that the program may use.
func (p *Process) pool(h wire.CUmemoryPool) (*pool, Result) {
	pl := lookup[pool](&p.handles, uint64(h))
	if pl == nil || pl.destroyed {
		return nil, errInvalidValue
	}
	return pl, success
}

// MemPoolDestroy is cuMemPoolDestroy: the pool goes when its last allocation does.
func (p *Process) MemPoolDestroy(_ *wire.Call, h wire.CUmemoryPool) wire.CUresult {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return res
	}
	if pl.builtin {
		return errInvalidValue
	}
	p.forgetPool(pl)
	pl.destroyed = true
	pl.trim(0)
	pl.ended()
	return success
}

// MemPoolTrimTo is cuMemPoolTrimTo.
func (p *Process) MemPoolTrimTo(_ *wire.Call, h wire.CUmemoryPool, keep uint64) wire.CUresult {
	defer p.lock()()
	pl, res := p.pool(h)
	if res == success {
		pl.trim(keep)
	}
	return res
}

// MemPoolGetAttribute is cuMemPoolGetAttribute.
func (p *Process) MemPoolGetAttribute(_ *wire.Call, h wire.CUmemoryPool, attr wire.CUmemPool_attribute) (uint64, wire.CUresult) {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return 0, res
	}
	switch attr {
	case wire.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
		wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		return pl.reuse[attr-wire.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES], success
	case wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return pl.threshold, success
	case wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return pl.arena.reserved, success
	case wire.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return pl.resvHigh, success
	case wire.CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return pl.arena.used, success
	case wire.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return pl.usedHigh, success
	}
	return 0, errInvalidValue
}

// MemPoolSetAttribute is cuMemPoolSetAttribute; the high-water marks can be set to 0, which means the present value.
func (p *Process) MemPoolSetAttribute(_ *wire.Call, h wire.CUmemoryPool, attr wire.CUmemPool_attribute, value uint64) wire.CUresult {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return res
	}
	switch attr {
	case wire.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
		wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pl.reuse[attr-wire.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = value
		return success
	case wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pl.threshold = value
		return success
	case wire.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, wire.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if value != 0 {
			return errInvalidValue
		}
		if attr == wire.CU_MEMPOOL_ATTR_USED_MEM_HIGH {
			pl.usedHigh = pl.arena.used
		} else {
			pl.resvHigh = pl.arena.reserved
		}
		return success
	}
	return errInvalidValue
}

// accessOf turns access flags of the API into ours.
func accessOf(f wire.CUmemAccess_flags) (access, Result) {
	switch f {
	case wire.CU_MEM_ACCESS_FLAGS_PROT_NONE:
		return accessNone, success
	case wire.CU_MEM_ACCESS_FLAGS_PROT_READ:
		return accessRead, success
	case wire.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		return accessWrite, success
	}
	return accessNone, errInvalidValue
}

// MemPoolSetAccess is cuMemPoolSetAccess.
func (p *Process) MemPoolSetAccess(_ *wire.Call, h wire.CUmemoryPool, descs []wire.CUmemAccessDesc) wire.CUresult {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return res
	}
	for _, a := range descs {
		if a.Location.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
			return errInvalidValue
		}
		d, res := p.device(wire.CUdevice(a.Location.Id))
		if res != success {
			return res
		}
		rights, res := accessOf(a.Flags)
		if res != success || d == pl.dev && rights != accessWrite {
			return errInvalidValue
		}
	}
	for _, a := range descs {
		rights, _ := accessOf(a.Flags)
		d, _ := p.device(wire.CUdevice(a.Location.Id))
		pl.setAccess(d, rights)
	}
	return success
}

// MemPoolGetAccess is cuMemPoolGetAccess.
func (p *Process) MemPoolGetAccess(_ *wire.Call, h wire.CUmemoryPool, loc *wire.CUmemLocation) (wire.CUmemAccess_flags, wire.CUresult) {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return 0, res
	}
	if loc.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
		return 0, errInvalidValue
	}
	d, res := p.device(wire.CUdevice(loc.Id))
	if res != success {
		return 0, res
	}
	return wire.CUmemAccess_flags(pl.arena.access[d.index]), success
}

// DeviceGetDefaultMemPool is cuDeviceGetDefaultMemPool.
func (p *Process) DeviceGetDefaultMemPool(_ *wire.Call, dev wire.CUdevice) (wire.CUmemoryPool, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	return wire.CUmemoryPool(p.defaultPool(d).handle), success
}

// DeviceGetMemPool is cuDeviceGetMemPool.
func (p *Process) DeviceGetMemPool(_ *wire.Call, dev wire.CUdevice) (wire.CUmemoryPool, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	return wire.CUmemoryPool(p.currentPool(d).handle), success
}

// DeviceSetMemPool is cuDeviceSetMemPool.
func (p *Process) DeviceSetMemPool(_ *wire.Call, dev wire.CUdevice, h wire.CUmemoryPool) wire.CUresult {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return res
	}
	pl, res := p.pool(h)
	if res != success {
		return res
	}
	if pl.dev != d || pl.source != nil {
		return errInvalidValue
	}
	p.current[d.index] = pl
	return success
}

// poolAt is the device whose pool a location and type name.
func (p *Process) poolAt(loc *wire.CUmemLocation, typ wire.CUmemAllocationType) (wire.CUdevice, Result) {
	if typ != wire.CU_MEM_ALLOCATION_TYPE_PINNED || loc.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
		return 0, errNotSupported
	}
	return wire.CUdevice(loc.Id), success
}

// MemGetDefaultMemPool is cuMemGetDefaultMemPool.
func (p *Process) MemGetDefaultMemPool(call *wire.Call, loc *wire.CUmemLocation, typ wire.CUmemAllocationType) (wire.CUmemoryPool, wire.CUresult) {
	dev, res := p.poolAt(loc, typ)
	if res != success {
		return 0, res
	}
	return p.DeviceGetDefaultMemPool(call, dev)
}

// MemGetMemPool is cuMemGetMemPool.
func (p *Process) MemGetMemPool(call *wire.Call, loc *wire.CUmemLocation, typ wire.CUmemAllocationType) (wire.CUmemoryPool, wire.CUresult) {
	dev, res := p.poolAt(loc, typ)
	if res != success {
		return 0, res
	}
	return p.DeviceGetMemPool(call, dev)
}

// MemSetMemPool is cuMemSetMemPool.
func (p *Process) MemSetMemPool(call *wire.Call, loc *wire.CUmemLocation, typ wire.CUmemAllocationType, h wire.CUmemoryPool) wire.CUresult {
	dev, res := p.poolAt(loc, typ)
	if res != success {
		return res
	}
	return p.DeviceSetMemPool(call, dev, h)
}
