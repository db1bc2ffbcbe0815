package driver

import (
	"os"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
	"golang.org/x/sys/unix"
)

// duplicate is another descriptor of the same file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// MemAddressReserve is cuMemAddressReserve. A wish for an address is met where it can be.
func (p *Process) MemAddressReserve(_ *wire.Call, size, align uint64, addr wire.CUdeviceptr, flags uint64) (wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	if size == 0 || size%hw.FrameSize != 0 || align&(align-1) != 0 || flags != 0 || size > addressLast-addressFirst {
		return 0, errInvalidValue
	}
	base := uint64(addr)
	ok := base != 0 && base%max(align, hw.FrameSize) == 0 && p.addresses.reserveAt(base, size)
	if !ok {
		if base, ok = p.addresses.reserve(size, align); !ok {
			return 0, errOutOfMemory
		}
	}
	p.reserved.add(base, size, size)
	return wire.CUdeviceptr(base), success
}

// MemAddressFree is cuMemAddressFree.
func (p *Process) MemAddressFree(_ *wire.Call, ptr wire.CUdeviceptr, size uint64) wire.CUresult {
	defer p.lock()()
	have, ok := p.reserved.find(uint64(ptr))
	if !ok || have != size || !p.reserved.begins(uint64(ptr)) || p.allocs.any(uint64(ptr), size) {
		return errInvalidValue
	}
	p.reserved.remove(uint64(ptr))
	p.addresses.release(uint64(ptr), size)
	return success
}

// checkProp checks what physical memory is asked for, and finds the device.
func (p *Process) checkProp(prop *wire.CUmemAllocationProp) (*device, Result) {
	if prop.Type != wire.CU_MEM_ALLOCATION_TYPE_PINNED {
		return nil, errInvalidValue
	}
	switch prop.Location.Type {
	case wire.CU_MEM_LOCATION_TYPE_DEVICE:
	case wire.CU_MEM_LOCATION_TYPE_HOST, wire.CU_MEM_LOCATION_TYPE_HOST_NUMA, wire.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return nil, errNotSupported
	default:
		return nil, errInvalidValue
	}
	if prop.RequestedHandleTypes&^wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
		return nil, errNotSupported
	}
	return p.device(wire.CUdevice(prop.Location.Id))
}

// MemCreate is cuMemCreate.
func (p *Process) MemCreate(_ *wire.Call, size uint64, prop *wire.CUmemAllocationProp, flags uint64) (wire.CUmemGenericAllocationHandle, wire.CUresult) {
	defer p.lock()()
	d, res := p.checkProp(prop)
	if res != success {
		return 0, res
	}
	if size == 0 || size%hw.FrameSize != 0 || flags != 0 {
		return 0, errInvalidValue
	}
	ph, res := p.newPhysical(d, size)
	if res != success {
		return 0, res
	}
	ph.prop = properties{uint32(prop.RequestedHandleTypes), prop.CompressionType, prop.GpuDirectRDMACapable, prop.Usage}
	h := p.handleOf(ph)
	ph.release() // the handle has its own reference
	return wire.CUmemGenericAllocationHandle(h), success
}

// MemRelease is cuMemRelease: memory that is still mapped stays until it is unmapped.
func (p *Process) MemRelease(_ *wire.Call, h wire.CUmemGenericAllocationHandle) wire.CUresult {
	defer p.lock()()
	return p.dropHandle(uint64(h))
}

// MemMap is cuMemMap: nobody may access the range before cuMemSetAccess.
func (p *Process) MemMap(_ *wire.Call, ptr wire.CUdeviceptr, size, offset uint64, h wire.CUmemGenericAllocationHandle, flags uint64) wire.CUresult {
	defer p.lock()()
	n := lookup[physicalHandle](&p.handles, uint64(h))
	base := uint64(ptr)
	if n == nil || flags != 0 || size == 0 || size%hw.FrameSize != 0 || base%hw.FrameSize != 0 || offset != 0 || size > n.ph.frames.Size() {
		return errInvalidValue
	}
	room, ok := p.reserved.find(base)
	if !ok || base+size > p.reserved.start(base)+room {
		return errInvalidValue
	}
	if p.allocs.any(base, size) {
		return errInvalidValue
	}
	r := &region{base: base, size: size, store: n.ph.frames, access: make([]access, len(p.d.devices))}
	if res := p.expose(r); res != success {
		return res
	}
	n.ph.refs++
	p.allocs.add(base, size, &allocation{typ: memMapped, base: base, size: size, dev: n.ph.dev, id: p.d.id(), region: r, phys: n.ph})
	return success
}

// mappings are the mappings that make up exactly [ptr, ptr+size).
func (p *Process) mappings(ptr, size uint64) ([]*allocation, Result) {
	var out []*allocation
	for at := ptr; at < ptr+size; {
		a, ok := p.allocs.find(at)
		if !ok || a.typ != memMapped || a.base != at {
			return nil, errInvalidValue
		}
		out = append(out, a)
		at += a.size
	}
	if len(out) == 0 || out[len(out)-1].base+out[len(out)-1].size != ptr+size {
		return nil, errInvalidValue
	}
	return out, success
}

// MemUnmap is cuMemUnmap.
func (p *Process) MemUnmap(_ *wire.Call, ptr wire.CUdeviceptr, size uint64) wire.CUresult {
	defer p.lock()()
	list, res := p.mappings(uint64(ptr), size)
	if res != success {
		return res
	}
	for _, a := range list {
		p.drop(a)
	}
	return success
}

// MemSetAccess is cuMemSetAccess.
func (p *Process) MemSetAccess(_ *wire.Call, ptr wire.CUdeviceptr, size uint64, descs []wire.CUmemAccessDesc) wire.CUresult {
	defer p.lock()()
	list, res := p.mappings(uint64(ptr), size)
	if res != success {
		return res
	}
	if len(descs) == 0 {
		return errInvalidValue
	}
	for _, a := range descs {
		if a.Location.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
			return errInvalidValue
		}
		if _, res := p.device(wire.CUdevice(a.Location.Id)); res != success {
			return res
		}
		if _, res := accessOf(a.Flags); res != success {
			return res
		}
	}
	for _, a := range list {
		for _, desc := range descs {
			d, _ := p.device(wire.CUdevice(desc.Location.Id))
			a.region.access[d.index], _ = accessOf(desc.Flags)
		}
		for _, c := range p.contexts {
			p.show(a.region, c)
		}
	}
	return success
}

// MemGetAccess is cuMemGetAccess.
func (p *Process) MemGetAccess(_ *wire.Call, loc *wire.CUmemLocation, ptr wire.CUdeviceptr) (uint64, wire.CUresult) {
	defer p.lock()()
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.typ != memMapped || loc.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE {
		return 0, errInvalidValue
	}
	d, res := p.device(wire.CUdevice(loc.Id))
	if res != success {
		return 0, res
	}
	return uint64(a.region.access[d.index]), success
}

// MemGetAllocationGranularity is cuMemGetAllocationGranularity.
func (p *Process) MemGetAllocationGranularity(_ *wire.Call, prop *wire.CUmemAllocationProp, option wire.CUmemAllocationGranularity_flags) (uint64, wire.CUresult) {
	if option != wire.CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != wire.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
		return 0, errInvalidValue
	}
	if _, res := p.checkProp(prop); res != success {
		return 0, res
	}
	return hw.FrameSize, success
}

// MemGetAllocationPropertiesFromHandle is cuMemGetAllocationPropertiesFromHandle.
func (p *Process) MemGetAllocationPropertiesFromHandle(_ *wire.Call, h wire.CUmemGenericAllocationHandle) (wire.CUmemAllocationProp, wire.CUresult) {
	defer p.lock()()
	n := lookup[physicalHandle](&p.handles, uint64(h))
	if n == nil {
		return wire.CUmemAllocationProp{}, errInvalidValue
	}
	return wire.CUmemAllocationProp{
		Type: wire.CU_MEM_ALLOCATION_TYPE_PINNED, RequestedHandleTypes: wire.CUmemAllocationHandleType(n.ph.prop.handleTypes),
		Location:        wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(p.ordinal(n.ph.dev))},
		CompressionType: n.ph.prop.compression, GpuDirectRDMACapable: n.ph.prop.rdma, Usage: n.ph.prop.usage,
	}, success
}

// MemRetainAllocationHandle is cuMemRetainAllocationHandle.
func (p *Process) MemRetainAllocationHandle(_ *wire.Call, addr wire.HostAddr) (wire.CUmemGenericAllocationHandle, wire.CUresult) {
	defer p.lock()()
	a, ok := p.allocs.find(uint64(addr))
	if !ok || a.typ != memMapped {
		return 0, errInvalidValue
	}
	return wire.CUmemGenericAllocationHandle(p.handleOf(a.phys)), success
}

// MemExportToShareableHandle is cuMemExportToShareableHandle; the descriptor goes back with the reply. Memory stays as
// long as a copy of the descriptor is open.
func (p *Process) MemExportToShareableHandle(call *wire.Call, h wire.CUmemGenericAllocationHandle, typ wire.CUmemAllocationHandleType, flags uint64) wire.CUresult {
	defer p.lock()()
	n := lookup[physicalHandle](&p.handles, uint64(h))
	if n == nil || flags != 0 {
		return errInvalidValue
	}
	if typ != wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || n.ph.prop.handleTypes&uint32(typ) == 0 {
		return errInvalidValue
	}
	f, res := p.d.newDescriptor(&export{ph: n.ph})
	if res != success {
		return res
	}
	call.GiveFile(f)
	return success
}

// MemImportFromShareableHandle is cuMemImportFromShareableHandle; the descriptor comes with the call.
func (p *Process) MemImportFromShareableHandle(call *wire.Call, typ wire.CUmemAllocationHandleType) (wire.CUmemGenericAllocationHandle, wire.CUresult) {
	defer p.lock()()
	f := call.TakeFile()
	if f == nil {
		return 0, errInvalidValue
	}
	defer f.Close()
	if typ != wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
		return 0, errNotSupported
	}
	e := p.d.exportOf(f)
	if e == nil || e.ph == nil {
		return 0, errInvalidValue
	}
	if e.ph.owner == nil {
		e.ph.setOwner(p)
	}
	return wire.CUmemGenericAllocationHandle(p.handleOf(e.ph)), success
}
