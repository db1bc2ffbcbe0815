package driver

import (
	"crypto/rand"

	"github.com/lgpu/lgpu/sim/wire"
)

// secret is what a handle between processes carries: whoever knows it may have the object.
type secret [32]byte

func newSecret() (s secret) {
	// rand.Read never fails: the runtime ends the process first.
	_, _ = rand.Read(s[:])
	return s
}

// IpcGetMemHandle is cuIpcGetMemHandle.
func (p *Process) IpcGetMemHandle(_ *wire.Call, ptr wire.CUdeviceptr) (wire.CUipcMemHandle, wire.CUresult) {
	defer p.lock()()
	var h wire.CUipcMemHandle
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.typ != memDevice {
		return h, errInvalidValue
	}
	s := p.export(a)
	copy(h[:], s[:])
	return h, success
}

// IpcOpenMemHandle is cuIpcOpenMemHandle: the other process's memory at an address of this one. The memory stays until
// both have given it up.
func (p *Process) IpcOpenMemHandle(call *wire.Call, h wire.CUipcMemHandle, flags uint32) (wire.CUdeviceptr, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	e := p.d.exports[secret(h[:32])]
	switch {
	case flags != uint32(wire.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS):
		return 0, errInvalidValue
	case e == nil || e.alloc == nil:
		return 0, errInvalidValue
	case e.owner == p:
		return 0, errInvalidContext // the real driver does not open a process's own handles either
	}
	return p.mapForeign(e.alloc, memImported, c.dev)
}

// mapForeign gives another process's allocation an address here, for its device and one more. Whole chunks are mapped,
// since page tables know nothing smaller.
func (p *Process) mapForeign(a *allocation, typ memType, dev *device) (wire.CUdeviceptr, Result) {
	from := a.chunk
	size := from.region.size
	base, ok := p.addresses.reserve(size, 0)
	if !ok {
		return 0, errOutOfMemory
	}
	rights := make([]access, len(p.d.devices))
	rights[dev.index], rights[from.phys.dev.index] = accessWrite, accessWrite
	r := &region{base: base, size: size, store: from.phys.frames, access: rights}
	if res := p.expose(r); res != success {
		p.addresses.release(base, size)
		return 0, res
	}
	from.phys.refs++
	offset := a.base - from.region.base
	p.allocs.add(base+offset, a.size, &allocation{typ: typ, base: base + offset, size: a.size, dev: from.phys.dev, id: a.id,
		region: r, phys: from.phys})
	return wire.CUdeviceptr(base + offset), success
}

// export gives an allocation its secret.
func (p *Process) export(a *allocation) secret {
	if a.exported == nil {
		s := newSecret()
		a.exported = &s
		p.d.exports[s] = &export{owner: p, alloc: a}
	}
	return *a.exported
}

// MemPoolExportToShareableHandle is cuMemPoolExportToShareableHandle; the descriptor goes back with the reply.
func (p *Process) MemPoolExportToShareableHandle(call *wire.Call, h wire.CUmemoryPool, typ wire.CUmemAllocationHandleType, flags uint64) wire.CUresult {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return res
	}
	if !pl.shareable || typ != wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
		return errInvalidValue
	}
	f, res := p.d.newDescriptor(&export{owner: p, pool: pl})
	if res == success {
		call.GiveFile(f)
	}
	return res
}

// MemPoolImportFromShareableHandle is cuMemPoolImportFromShareableHandle; the descriptor comes with the call.
func (p *Process) MemPoolImportFromShareableHandle(call *wire.Call, typ wire.CUmemAllocationHandleType, flags uint64) (wire.CUmemoryPool, wire.CUresult) {
	defer p.lock()()
	f := call.TakeFile()
	if f == nil {
		return 0, errInvalidValue
	}
	defer f.Close()
	if typ != wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
		return 0, errInvalidValue
	}
	e := p.d.exportOf(f)
	if e == nil || e.pool == nil || e.owner.closed {
		return 0, errInvalidValue
	}
	pl := p.newPool(e.pool.dev, 0)
	pl.source = e.pool
	return wire.CUmemoryPool(pl.handle), success
}

// MemPoolExportPointer is cuMemPoolExportPointer.
func (p *Process) MemPoolExportPointer(_ *wire.Call, ptr wire.CUdeviceptr) (wire.CUmemPoolPtrExportData, wire.CUresult) {
	defer p.lock()()
	var data wire.CUmemPoolPtrExportData
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.base != uint64(ptr) || a.typ != memAsync || !a.pool.shareable {
		return data, errInvalidValue
	}
	s := p.export(a)
	copy(data[:], s[:])
	return data, success
}

// MemPoolImportPointer is cuMemPoolImportPointer. The memory stays until both processes have freed it.
func (p *Process) MemPoolImportPointer(_ *wire.Call, h wire.CUmemoryPool, data *wire.CUmemPoolPtrExportData) (wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	pl, res := p.pool(h)
	if res != success {
		return 0, res
	}
	e := p.d.exports[secret(data[:32])]
	if e == nil || e.alloc == nil || pl.source == nil || e.alloc.pool != pl.source {
		return 0, errInvalidValue
	}
	return p.mapForeign(e.alloc, memPoolImported, pl.dev)
}

// IpcCloseMemHandle is cuIpcCloseMemHandle.
func (p *Process) IpcCloseMemHandle(_ *wire.Call, ptr wire.CUdeviceptr) wire.CUresult {
	defer p.lock()()
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.base != uint64(ptr) || a.typ != memImported {
		return errInvalidValue
	}
	for _, c := range p.contexts {
		if c.fault == success {
			c.synchronize()
		}
	}
	if b, ok := p.allocs.find(uint64(ptr)); ok && b == a {
		p.drop(a)
	}
	return success
}

// IpcGetEventHandle is cuIpcGetEventHandle.
func (p *Process) IpcGetEventHandle(_ *wire.Call, ev wire.CUevent) (wire.CUipcEventHandle, wire.CUresult) {
	defer p.lock()()
	var h wire.CUipcEventHandle
	e := lookup[event](&p.handles, uint64(ev))
	if e == nil {
		return h, errInvalidHandle
	}
	if e.flags&eventInterprocess == 0 {
		return h, errInvalidValue
	}
	if e.exported == nil {
		s := newSecret()
		e.exported = &s
		p.d.exports[s] = &export{owner: p, event: e}
	}
	copy(h[:], e.exported[:])
	return h, success
}

// IpcOpenEventHandle is cuIpcOpenEventHandle: an event that marks what the other process's does.
func (p *Process) IpcOpenEventHandle(call *wire.Call, h wire.CUipcEventHandle) (wire.CUevent, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	x := p.d.exports[secret(h[:32])]
	if x == nil || x.event == nil {
		return 0, errInvalidValue
	}
	e := &event{ctx: c, flags: x.event.flags, point: x.event.point, foreign: true}
	e.handle = p.handles.add(kindEvent, e)
	return wire.CUevent(e.handle), success
}
