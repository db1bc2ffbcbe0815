package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// ArrayCreate is cuArrayCreate and cuArray3DCreate.
func (p *Process) ArrayCreate(call *wire.Call, desc *wire.CUDA_ARRAY3D_DESCRIPTOR) (wire.CUarray, wire.CUresult) {
	c, unlock, res := p.enterSafe(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	a, res := c.newArray(desc)
	if res != success {
		return 0, res
	}
	return wire.CUarray(a.handle), success
}

// ArrayGetDescriptor is cuArray3DGetDescriptor.
func (p *Process) ArrayGetDescriptor(_ *wire.Call, h wire.CUarray) (wire.CUDA_ARRAY3D_DESCRIPTOR, wire.CUresult) {
	defer p.lock()()
	a := lookup[array](&p.handles, uint64(h))
	if a == nil {
		return wire.CUDA_ARRAY3D_DESCRIPTOR{}, errInvalidHandle
	}
	return a.desc, success
}

// ArrayDestroy is cuArrayDestroy.
func (p *Process) ArrayDestroy(_ *wire.Call, h wire.CUarray) wire.CUresult {
	defer p.lock()()
	a := lookup[array](&p.handles, uint64(h))
	if a == nil || a.alloc == nil {
		return errInvalidHandle
	}
	if a.ctx.fault == success {
		a.ctx.synchronize()
		if lookup[array](&p.handles, uint64(h)) != a {
			return errInvalidHandle
		}
	}
	p.handles.remove(a.handle)
	p.drop(a.alloc)
	return success
}

// requirements are what memory an array takes.
func requirements(size uint64) wire.CUDA_ARRAY_MEMORY_REQUIREMENTS {
	return wire.CUDA_ARRAY_MEMORY_REQUIREMENTS{Size: size, Alignment: arenaUnit}
}

// ArrayGetMemoryRequirements is cuArrayGetMemoryRequirements.
func (p *Process) ArrayGetMemoryRequirements(_ *wire.Call, h wire.CUarray, dev wire.CUdevice) (wire.CUDA_ARRAY_MEMORY_REQUIREMENTS, wire.CUresult) {
	defer p.lock()()
	a := lookup[array](&p.handles, uint64(h))
	if a == nil {
		return wire.CUDA_ARRAY_MEMORY_REQUIREMENTS{}, errInvalidHandle
	}
	_, res := p.device(dev)
	return requirements(layoutBytes(a.pitch, a.rows, a.slices)), res
}

// MipmappedArrayCreate is cuMipmappedArrayCreate.
func (p *Process) MipmappedArrayCreate(call *wire.Call, desc *wire.CUDA_ARRAY3D_DESCRIPTOR, levels uint32) (wire.CUmipmappedArray, wire.CUresult) {
	c, unlock, res := p.enterSafe(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	m, res := c.newMipmap(desc, levels)
	if res != success {
		return 0, res
	}
	return wire.CUmipmappedArray(m.handle), success
}

// MipmappedArrayDestroy is cuMipmappedArrayDestroy.
func (p *Process) MipmappedArrayDestroy(_ *wire.Call, h wire.CUmipmappedArray) wire.CUresult {
	defer p.lock()()
	m := lookup[mipmap](&p.handles, uint64(h))
	if m == nil {
		return errInvalidHandle
	}
	if m.ctx.fault == success {
		m.ctx.synchronize()
		if lookup[mipmap](&p.handles, uint64(h)) != m {
			return errInvalidHandle
		}
	}
	for _, l := range m.levels {
		p.handles.remove(l.handle)
	}
	p.handles.remove(m.handle)
	p.drop(m.alloc)
	return success
}

// MipmappedArrayGetLevel is cuMipmappedArrayGetLevel.
func (p *Process) MipmappedArrayGetLevel(_ *wire.Call, h wire.CUmipmappedArray, level uint32) (wire.CUarray, wire.CUresult) {
	defer p.lock()()
	m := lookup[mipmap](&p.handles, uint64(h))
	if m == nil {
		return 0, errInvalidHandle
	}
	if int(level) >= len(m.levels) {
		return 0, errInvalidValue
	}
	return wire.CUarray(m.levels[level].handle), success
}

// MipmappedArrayGetMemoryRequirements is cuMipmappedArrayGetMemoryRequirements.
func (p *Process) MipmappedArrayGetMemoryRequirements(_ *wire.Call, h wire.CUmipmappedArray, dev wire.CUdevice) (wire.CUDA_ARRAY_MEMORY_REQUIREMENTS, wire.CUresult) {
	defer p.lock()()
	m := lookup[mipmap](&p.handles, uint64(h))
	if m == nil {
		return wire.CUDA_ARRAY_MEMORY_REQUIREMENTS{}, errInvalidHandle
	}
	_, res := p.device(dev)
	return requirements(m.alloc.size), res
}
