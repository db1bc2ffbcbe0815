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
	if a.exported == nil {
		s := newSecret()
		a.exported = &s
		p.d.exports[s] = &export{owner: p, alloc: a}
	}
	copy(h[:], a.exported[:])
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
	from := e.alloc.chunk
	size := from.region.size
	base, ok := p.addresses.take(size, 0)
	if !ok {
		return 0, errOutOfMemory
	}
	rights := make([]access, len(p.d.devices))
	rights[c.dev.index], rights[from.phys.dev.index] = accessWrite, accessWrite
	r := &region{base: base, size: size, store: from.phys.frames, access: rights}
	if res := p.expose(r); res != success {
		p.addresses.give(base, size)
		return 0, res
	}
	from.phys.refs++
	offset := e.alloc.base - from.region.base
	p.allocs.add(base+offset, e.alloc.size, &allocation{typ: memImported, base: base + offset, size: e.alloc.size, dev: from.phys.dev,
		id: e.alloc.id, region: r, phys: from.phys})
	return wire.CUdeviceptr(base + offset), success
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
	s := newSecret()
	p.d.exports[s] = &export{owner: p, event: e}
	copy(h[:], s[:])
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
	e := &event{ctx: c, flags: x.event.flags, point: x.event.point}
	e.handle = p.handles.add(kindEvent, e)
	return wire.CUevent(e.handle), success
}
