package cuda

import (
	"runtime"
	"sync"
	"unsafe"
)

// scratch are small words for results, where a fresh one each time would be a pity.
var scratch = sync.Pool{New: func() any { return new([2]uintptr) }}

// MemInfo returns the free and all memory of the current context's device, in an lgpu those of the lgpu.
func (d *Driver) MemInfo() (free, total uint64, err error) {
	out := new([2]uint64)
	err = d.call(cuMemGetInfo, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
	return out[0], out[1], err
}

// Alloc allocates device memory.
func (d *Driver) Alloc(bytes uint64) (uint64, error) {
	var p uint64
	err := d.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	return p, err
}

// Free frees what Alloc allocated.
func (d *Driver) Free(address uint64) error { return d.call(cuMemFree, uintptr(address)) }

// Flags of host memory.
const (
	HostPortable  = 1 // for all contexts
	HostDeviceMap = 2
)

// HostAlloc allocates host memory that devices reach at the same address.
func (d *Driver) HostAlloc(bytes uint64) (uint64, error) {
	var p uint64
	err := d.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), HostPortable|HostDeviceMap)
	return p, err
}

// HostFree frees what HostAlloc allocated.
func (d *Driver) HostFree(address uint64) error { return d.call(cuMemFreeHost, uintptr(address)) }

// HostRegister makes memory of the process known to the devices. The result is its device address, on all systems with
// CanUseHostPointerRegistered the same.
func (d *Driver) HostRegister(address, bytes uint64) (uint64, error) {
	return d.hostRegister(address, bytes, HostPortable|HostDeviceMap)
}

// HostRegisterIO does the same with registers of another device, which the process has mapped.
func (d *Driver) HostRegisterIO(address, bytes uint64) (uint64, error) {
	const ioMemory = 4
	return d.hostRegister(address, bytes, HostPortable|HostDeviceMap|ioMemory)
}

func (d *Driver) hostRegister(address, bytes uint64, flags uintptr) (uint64, error) {
	if err := d.call(cuMemHostRegister, uintptr(address), uintptr(bytes), flags); err != nil {
		return 0, err
	}
	var p uint64
	if err := d.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&p)), uintptr(address), 0); err != nil {
		d.call(cuMemHostUnregister, uintptr(address))
		return 0, err
	}
	return p, nil
}

// HostUnregister undoes HostRegister and HostRegisterIO.
func (d *Driver) HostUnregister(address uint64) error {
	return d.call(cuMemHostUnregister, uintptr(address))
}

// Bytes is memory of this process at an address as a slice, for host memory that is not the Go runtime's. A program may give
// any address: what is wrong with it must stay a panic that can be answered, which the checks of a race build are not.
//
//go:nocheckptr
func Bytes(address, bytes uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), bytes)
}

// Copy copies between any two addresses and returns when it is done.
func (d *Driver) Copy(to, from, bytes uint64) error {
	return d.call(cuMemcpy, uintptr(to), uintptr(from), uintptr(bytes))
}

// CopyAsync copies between any two addresses in the order of a stream.
func (d *Driver) CopyAsync(to, from, bytes uint64, stream uintptr) error {
	if r := d.result(cuMemcpyAsync, uintptr(to), uintptr(from), uintptr(bytes), stream); r != Success {
		return d.fail(cuMemcpyAsync, r)
	}
	return nil
}

// Write copies b to an address and returns when it is done.
func (d *Driver) Write(to uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := d.call(cuMemcpy, uintptr(to), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	runtime.KeepAlive(b)
	return err
}

// Read copies from an address to b and returns when it is done.
func (d *Driver) Read(b []byte, from uint64) error {
	if len(b) == 0 {
		return nil
	}
	err := d.call(cuMemcpy, uintptr(unsafe.Pointer(&b[0])), uintptr(from), uintptr(len(b)))
	runtime.KeepAlive(b)
	return err
}

// Set fills memory with a byte and returns when that is done or, for device memory, in the order of the null stream.
func (d *Driver) Set(address uint64, value byte, bytes uint64) error {
	return d.call(cuMemsetD8, uintptr(address), uintptr(value), uintptr(bytes))
}

// SetAsync fills memory with a byte in the order of a stream.
func (d *Driver) SetAsync(address uint64, value byte, bytes uint64, stream uintptr) error {
	if r := d.result(cuMemsetD8Async, uintptr(address), uintptr(value), uintptr(bytes), stream); r != Success {
		return d.fail(cuMemsetD8Async, r)
	}
	return nil
}

// Location is a CUmemLocation.
type Location struct {
	Type int32
	ID   int32
}

// LocationDevice is the type of a Location on a device.
const LocationDevice = 1

// AllocationProp is a CUmemAllocationProp.
type AllocationProp struct {
	Type        uint32 // 1: pinned
	HandleTypes uint32
	Location    Location
	_           uint64 // Windows' security attributes
	Compression uint8
	RDMACapable uint8
	Usage       uint16
	_           [4]uint8
}

// HandlePosixFD is the handle type of file descriptors.
const HandlePosixFD = 1

// DeviceMemory is what heap memory of a device is created with: a shareable descriptor, and reachable for a NIC if it can.
func DeviceMemory(device int32, rdma bool) AllocationProp {
	p := AllocationProp{Type: 1, HandleTypes: HandlePosixFD, Location: Location{LocationDevice, device}}
	if rdma {
		p.RDMACapable = 1
	}
	return p
}

// Granularity is the recommended unit of memory with these properties, in bytes.
func (d *Driver) Granularity(p *AllocationProp) (uint64, error) {
	const recommended = 1
	var g uint64
	err := d.call(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(p)), recommended)
	return g, err
}

// LargePage is the largest page that GPUs map memory by, so far. Large ranges of addresses begin at a multiple of it.
const LargePage = 512 << 20

// Reserve takes a range of addresses without memory. at is a wish, 0 for none.
func (d *Driver) Reserve(bytes, align, at uint64) (uint64, error) {
	var p uint64
	err := d.call(cuMemAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(bytes), uintptr(align), uintptr(at), 0)
	return p, err
}

// Unreserve gives a range back, in which nothing may be mapped.
func (d *Driver) Unreserve(address, bytes uint64) error {
	return d.call(cuMemAddressFree, uintptr(address), uintptr(bytes))
}

// Create makes physical memory, which counts as this process's.
func (d *Driver) Create(bytes uint64, p *AllocationProp) (uint64, error) {
	var h uint64
	err := d.call(cuMemCreate, uintptr(unsafe.Pointer(&h)), uintptr(bytes), uintptr(unsafe.Pointer(p)), 0)
	return h, err
}

// Release lets go of a handle; memory that is still mapped stays until then.
func (d *Driver) Release(handle uint64) error { return d.call(cuMemRelease, uintptr(handle)) }

// Map gives physical memory an address within a reserved range.
func (d *Driver) Map(address, bytes, handle uint64) error {
	return d.call(cuMemMap, uintptr(address), uintptr(bytes), 0, uintptr(handle), 0)
}

// Unmap takes the addresses away.
func (d *Driver) Unmap(address, bytes uint64) error {
	return d.call(cuMemUnmap, uintptr(address), uintptr(bytes))
}

// Allow lets a device read and write what is mapped in a range.
func (d *Driver) Allow(address, bytes uint64, device int32) error {
	const readWrite = 3
	desc := &struct {
		Location
		flags uint32
	}{Location{LocationDevice, device}, readWrite}
	return d.call(cuMemSetAccess, uintptr(address), uintptr(bytes), uintptr(unsafe.Pointer(desc)), 1)
}

// Export makes a file descriptor of physical memory, which the caller must close.
func (d *Driver) Export(handle uint64) (int, error) {
	var fd int32
	err := d.call(cuMemExportToShareableHandle, uintptr(unsafe.Pointer(&fd)), uintptr(handle), HandlePosixFD, 0)
	return int(fd), err
}

// Import makes a handle of another process's memory; the descriptor stays the caller's.
func (d *Driver) Import(fd int) (uint64, error) {
	var h uint64
	err := d.call(cuMemImportFromShareableHandle, uintptr(unsafe.Pointer(&h)), uintptr(fd), HandlePosixFD)
	return h, err
}

// Retain makes a handle of the memory that is mapped at an address.
func (d *Driver) Retain(address uint64) (uint64, error) {
	var h uint64
	err := d.call(cuMemRetainAllocationHandle, uintptr(unsafe.Pointer(&h)), uintptr(address))
	return h, err
}

// Properties are what the memory of a handle was created with.
func (d *Driver) Properties(handle uint64) (AllocationProp, error) {
	p := new(AllocationProp)
	err := d.call(cuMemGetAllocationPropertiesFromHandle, uintptr(unsafe.Pointer(p)), uintptr(handle))
	return *p, err
}

// AddressRange is the allocation or mapping that an address lies in.
func (d *Driver) AddressRange(address uint64) (base, bytes uint64, err error) {
	out := new([2]uint64)
	err = d.call(cuMemGetAddressRange, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])), uintptr(address))
	return out[0], out[1], err
}

// DMABuf makes a dma-buf descriptor of a range of device memory, which the caller must close.
func (d *Driver) DMABuf(address, bytes uint64) (int, error) {
	const dmaBuf = 1
	var fd int32
	err := d.call(cuMemGetHandleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(address), uintptr(bytes), dmaBuf, 0)
	return int(fd), err
}

// MemoryType is where memory lies: a CUmemorytype.
type MemoryType int32

// Types of memory; 0 is memory the driver does not know.
const (
	MemoryHost   MemoryType = 1
	MemoryDevice MemoryType = 2
)

// TypeOf says what memory an address is of; for what the driver does not know it is 0 without an error.
func (d *Driver) TypeOf(address uint64) (MemoryType, error) {
	const memoryType = 2
	var t int32
	err := d.call(cuPointerGetAttribute, uintptr(unsafe.Pointer(&t)), memoryType, uintptr(address))
	if Code(err) == InvalidValue {
		return 0, nil
	}
	return MemoryType(t), err
}

// DeviceOf is the ordinal of the device whose memory an address is of.
func (d *Driver) DeviceOf(address uint64) (int32, error) {
	const ordinal = 9
	var dev int32
	err := d.call(cuPointerGetAttribute, uintptr(unsafe.Pointer(&dev)), ordinal, uintptr(address))
	return dev, err
}

// IPCHandle is a CUipcMemHandle.
type IPCHandle [64]byte

// IPCGet makes a handle that other processes can open, of memory that Alloc allocated.
func (d *Driver) IPCGet(address uint64) (IPCHandle, error) {
	h := new(IPCHandle)
	err := d.call(cuIpcGetMemHandle, uintptr(unsafe.Pointer(h)), uintptr(address))
	return *h, err
}

// IPCOpen maps another process's memory.
func (d *Driver) IPCOpen(h *IPCHandle) (uint64, error) {
	const lazyEnablePeerAccess = 1
	var p uint64
	if runtime.GOARCH == "amd64" { // a structure of this size lies on the stack, behind six registers for others
		w := (*[8]uint64)(unsafe.Pointer(h))
		err := d.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(&p)), lazyEnablePeerAccess, 0, 0, 0, 0, uintptr(w[0]),
			uintptr(w[1]), uintptr(w[2]), uintptr(w[3]), uintptr(w[4]), uintptr(w[5]), uintptr(w[6]), uintptr(w[7]))
		return p, err
	}
	err := d.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(h)), lazyEnablePeerAccess)
	return p, err
}

// IPCClose undoes IPCOpen.
func (d *Driver) IPCClose(address uint64) error { return d.call(cuIpcCloseMemHandle, uintptr(address)) }
