package driver

import (
	"encoding/binary"

	"github.com/lgpu/lgpu/sim/wire"
)

// MemGetInfo is cuMemGetInfo.
func (p *Process) MemGetInfo(call *wire.Call) (uint64, uint64, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, 0, res
	}
	p.d.collect()
	return c.dev.hw.Memory.Free(), c.dev.hw.Memory.Total(), success
}

// MemAlloc is cuMemAlloc.
func (p *Process) MemAlloc(call *wire.Call, size uint64) (wire.CUdeviceptr, wire.CUresult) {
	c, unlock, res := p.enterSafe(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	a, res := c.allocate(size)
	if res != success {
		return 0, res
	}
	return wire.CUdeviceptr(a.base), success
}

// pitchAlign is what rows of cuMemAllocPitch are aligned to.
const pitchAlign = 512

// MemAllocPitch is cuMemAllocPitch.
func (p *Process) MemAllocPitch(call *wire.Call, width, height uint64, element uint32) (wire.CUdeviceptr, uint64, wire.CUresult) {
	c, unlock, res := p.enterSafe(call)
	defer unlock()
	if res != success {
		return 0, 0, res
	}
	if element != 4 && element != 8 && element != 16 || width == 0 || height == 0 || width > 1<<31-1 || height > 1<<32 {
		return 0, 0, errInvalidValue
	}
	pitch := roundUp(width, pitchAlign)
	a, res := c.allocate(pitch * height)
	if res != success {
		return 0, 0, res
	}
	return wire.CUdeviceptr(a.base), pitch, success
}

// MemFree is cuMemFree.
func (p *Process) MemFree(call *wire.Call, ptr wire.CUdeviceptr) wire.CUresult {
	defer p.lock()()
	if c := p.currentOf(call); c != nil && c.fault != success {
		return c.fault
	}
	if res := p.safe(call.Thread); res != success {
		return res
	}
	return p.free(uint64(ptr))
}

// MemGetAddressRange is cuMemGetAddressRange.
func (p *Process) MemGetAddressRange(call *wire.Call, ptr wire.CUdeviceptr) (wire.CUdeviceptr, uint64, wire.CUresult) {
	_, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, 0, res
	}
	a, ok := p.allocs.find(uint64(ptr))
	if !ok {
		return 0, 0, errNotFound
	}
	return wire.CUdeviceptr(a.base), a.size, success
}

// Flags of cuMemHostAlloc and cuMemHostRegister, from cuda.h.
const (
	hostAllocFlags    = 1 | 2 | 4
	hostRegisterFlags = 1 | 2 | 4 | 8
	hostIOMemory      = 4
)

// MemHostMap makes host memory, which the client has at addr, memory that devices reach: cuMemHostAlloc and
// cuMemHostRegister. Its descriptor, in which it begins at offset, comes with the call.
func (p *Process) MemHostMap(call *wire.Call, addr, size, offset uint64, flags, registered uint32) wire.CUresult {
	_, unlock, res := p.enter(call)
	defer unlock()
	file := call.TakeFile()
	if res == success {
		res = p.safe(call.Thread)
	}
	known, typ := uint32(hostAllocFlags), memHost
	if registered != 0 {
		known, typ = hostRegisterFlags, memRegistered
		if flags&hostIOMemory != 0 && res == success {
			res = errNotSupported
		}
	}
	if res == success && (size == 0 || flags&^known != 0 || file == nil) {
		res = errInvalidValue
	}
	if res != success {
		if file != nil {
			file.Close()
		}
		return res
	}
	pages, err := p.d.machine.AdoptHostPages(file, offset, roundUp(size, hostPage))
	if err != nil {
		p.d.log.Warn("host memory", "process", p.pid, "error", err)
		return errInvalidValue
	}
	return p.adopt(&allocation{typ: typ, base: addr, size: size, id: p.d.id(), flags: flags, host: pages})
}

// MemHostUnmap takes host memory back: cuMemFreeHost and cuMemHostUnregister. Work that uses it is waited for.
func (p *Process) MemHostUnmap(call *wire.Call, addr uint64, registered uint32) wire.CUresult {
	defer p.lock()()
	typ, missing := memHost, errInvalidValue
	if registered != 0 {
		typ, missing = memRegistered, errHostNotRegistered
	}
	a, ok := p.allocs.find(addr)
	if !ok || a.base != addr || a.typ != typ {
		return missing
	}
	if res := p.safe(call.Thread); res != success {
		return res
	}
	for _, c := range p.contexts {
		if c.fault == success {
			c.synchronize()
		}
	}
	if b, ok := p.allocs.find(addr); ok && b == a {
		p.drop(a)
	}
	return success
}

// MemHostGetDevicePointer is cuMemHostGetDevicePointer: the address is the same on both sides.
func (p *Process) MemHostGetDevicePointer(call *wire.Call, ptr wire.HostAddr, flags uint32) (wire.CUdeviceptr, wire.CUresult) {
	_, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.host == nil || a.typ == memManaged || flags != 0 {
		return 0, errInvalidValue
	}
	return wire.CUdeviceptr(ptr), success
}

// MemHostGetFlags is cuMemHostGetFlags.
func (p *Process) MemHostGetFlags(_ *wire.Call, ptr wire.HostAddr) (uint32, wire.CUresult) {
	defer p.lock()()
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.host == nil || a.typ == memManaged {
		return 0, errInvalidValue
	}
	// Mapped always, as with unified addressing.
	return a.flags | 2, success
}

// MemAllocManaged is cuMemAllocManaged at the address that the client keeps for it; the descriptor goes back with the
// reply.
func (p *Process) MemAllocManaged(call *wire.Call, addr, size uint64, flags uint32) wire.CUresult {
	c, unlock, res := p.enterSafe(call)
	defer unlock()
	if res != success {
		return res
	}
	a, res := c.managed(addr, size, flags)
	if res != success {
		return res
	}
	file, err := duplicate(a.host.File())
	if err != nil {
		p.d.log.Error("managed memory", "process", p.pid, "error", err)
		p.drop(a)
		return errOperatingSystem
	}
	call.GiveFile(file)
	return success
}

// place turns a location of the API into ours.
func (p *Process) location(l wire.CUmemLocation) (location, Result) {
	switch l.Type {
	case wire.CU_MEM_LOCATION_TYPE_DEVICE:
		if _, res := p.device(wire.CUdevice(l.Id)); res != success {
			return locationInvalid, res
		}
		return location(l.Id), success
	case wire.CU_MEM_LOCATION_TYPE_HOST, wire.CU_MEM_LOCATION_TYPE_HOST_NUMA, wire.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return locationHost, success
	}
	return locationInvalid, errInvalidValue
}

// managedRange finds the managed allocation that holds a range.
func (p *Process) managedRange(ptr, count uint64) (*allocation, Result) {
	a, ok := p.allocs.find(ptr)
	if !ok || a.typ != memManaged || count == 0 || ptr+count > a.base+a.size || ptr+count < ptr {
		return nil, errInvalidValue
	}
	return a, success
}

// MemAdvise is cuMemAdvise. Advice is kept and told for the whole allocation.
func (p *Process) MemAdvise(_ *wire.Call, ptr wire.CUdeviceptr, count uint64, advice wire.CUmem_advise, loc wire.CUmemLocation) wire.CUresult {
	defer p.lock()()
	a, res := p.managedRange(uint64(ptr), count)
	if res != success {
		return res
	}
	switch advice {
	case wire.CU_MEM_ADVISE_SET_READ_MOSTLY, wire.CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		a.readMostly = advice == wire.CU_MEM_ADVISE_SET_READ_MOSTLY
		return success
	case wire.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		a.preferred = locationInvalid
		return success
	}
	l, res := p.location(loc)
	if res != success {
		return res
	}
	switch advice {
	case wire.CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		a.preferred = l
	case wire.CU_MEM_ADVISE_SET_ACCESSED_BY:
		a.accessedBy = append(without(a.accessedBy, l), l)
	case wire.CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		a.accessedBy = without(a.accessedBy, l)
	default:
		return errInvalidValue
	}
	return success
}

func without(list []location, l location) []location {
	var out []location
	for _, o := range list {
		if o != l {
			out = append(out, o)
		}
	}
	return out
}

// MemPrefetchAsync is cuMemPrefetchAsync: the bytes are where everybody reaches them already.
func (p *Process) MemPrefetchAsync(call *wire.Call, ptr wire.CUdeviceptr, count uint64, loc wire.CUmemLocation, flags uint32, stream wire.CUstream) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	a, res := p.managedRange(uint64(ptr), count)
	if res != success {
		return res
	}
	l, res := p.location(loc)
	if res != success {
		return res
	}
	s, res := p.stream(uint64(stream), c, call.Thread)
	if res != success {
		return res
	}
	if flags != 0 {
		return errInvalidValue
	}
	a.prefetch = l
	_, res = s.submit(empty{})
	return res
}

// MemRangeGetAttribute is cuMemRangeGetAttribute.
func (p *Process) MemRangeGetAttribute(_ *wire.Call, size uint64, attr wire.CUmem_range_attribute, ptr wire.CUdeviceptr, count uint64) ([]byte, wire.CUresult) {
	defer p.lock()()
	a, res := p.managedRange(uint64(ptr), count)
	if res != success {
		return nil, res
	}
	number := func(v int32) ([]byte, Result) {
		if size != 4 {
			return nil, errInvalidValue
		}
		return binary.LittleEndian.AppendUint32(nil, uint32(v)), success
	}
	kindOf := func(l location) int32 {
		switch l {
		case locationInvalid:
			return int32(wire.CU_MEM_LOCATION_TYPE_INVALID)
		case locationHost:
			return int32(wire.CU_MEM_LOCATION_TYPE_HOST)
		}
		return int32(wire.CU_MEM_LOCATION_TYPE_DEVICE)
	}
	switch attr {
	case wire.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		if a.readMostly {
			return number(1)
		}
		return number(0)
	case wire.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, wire.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		return number(int32(a.preferred))
	case wire.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, wire.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		return number(int32(a.prefetch))
	case wire.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		return number(kindOf(a.preferred))
	case wire.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		return number(kindOf(a.prefetch))
	case wire.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		if size == 0 || size%4 != 0 || size > 4096 {
			return nil, errInvalidValue
		}
		var out []byte
		for i := 0; i < int(size/4); i++ {
			l := locationInvalid
			if i < len(a.accessedBy) {
				l = a.accessedBy[i]
			}
			out = binary.LittleEndian.AppendUint32(out, uint32(int32(l)))
		}
		return out, success
	}
	return nil, errInvalidValue
}

// PointerGetAttribute is cuPointerGetAttribute; the answer has the size of the attribute.
func (p *Process) PointerGetAttribute(_ *wire.Call, size uint64, attr wire.CUpointer_attribute, ptr wire.CUdeviceptr) ([]byte, wire.CUresult) {
	defer p.lock()()
	b, res := p.pointerAttribute(attr, uint64(ptr))
	if res == success && uint64(len(b)) > size {
		return nil, errInvalidValue
	}
	return b, res
}

func (p *Process) pointerAttribute(attr wire.CUpointer_attribute, ptr uint64) ([]byte, Result) {
	le := binary.LittleEndian
	word := func(v uint32) ([]byte, Result) { return le.AppendUint32(nil, v), success }
	long := func(v uint64) ([]byte, Result) { return le.AppendUint64(nil, v), success }
	truth := func(v bool) ([]byte, Result) {
		if v {
			return []byte{1}, success
		}
		return []byte{0}, success
	}
	a, ok := p.allocs.find(ptr)
	if attr == wire.CU_POINTER_ATTRIBUTE_MAPPED {
		return truth(ok)
	}
	if !ok {
		return nil, errInvalidValue
	}
	onDevice := a.host == nil || a.typ == memManaged
	switch attr {
	case wire.CU_POINTER_ATTRIBUTE_CONTEXT:
		switch {
		case a.ctx != nil:
			return long(a.ctx.handle)
		case a.dev != nil && p.primaries[a.dev.index] != nil && a.typ == memManaged:
			return long(p.primaries[a.dev.index].handle)
		}
		return long(0)
	case wire.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		if onDevice {
			return word(uint32(wire.CU_MEMORYTYPE_DEVICE))
		}
		return word(uint32(wire.CU_MEMORYTYPE_HOST))
	case wire.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return long(ptr)
	case wire.CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if a.host == nil {
			return nil, errInvalidValue
		}
		return long(ptr)
	case wire.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return truth(a.syncOps)
	case wire.CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return long(a.id)
	case wire.CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return truth(a.typ == memManaged)
	case wire.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		if a.dev != nil {
			return word(uint32(p.ordinal(a.dev)))
		}
		return word(0)
	case wire.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return truth(a.typ == memDevice)
	case wire.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return long(a.base)
	case wire.CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return long(a.size)
	case wire.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		if a.typ == memMapped && a.phys != nil {
			return long(uint64(a.phys.prop.handleTypes))
		}
		return long(0)
	case wire.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, wire.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return truth(false)
	case wire.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return word(uint32(wire.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE))
	case wire.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		if a.pool != nil {
			return long(a.pool.handle)
		}
		return long(0)
	case wire.CU_POINTER_ATTRIBUTE_MAPPING_SIZE, wire.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		base, size := a.base, a.size
		if a.chunk != nil {
			base, size = a.chunk.region.base, a.chunk.region.size
		}
		if attr == wire.CU_POINTER_ATTRIBUTE_MAPPING_SIZE {
			return long(size)
		}
		return long(base)
	case wire.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return long(a.id)
	}
	return nil, errInvalidValue
}

// PointerSetAttribute is cuPointerSetAttribute.
func (p *Process) PointerSetAttribute(_ *wire.Call, value uint64, attr wire.CUpointer_attribute, ptr wire.CUdeviceptr) wire.CUresult {
	defer p.lock()()
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || attr != wire.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
		return errInvalidValue
	}
	a.syncOps = value&0xffffffff != 0
	return success
}
