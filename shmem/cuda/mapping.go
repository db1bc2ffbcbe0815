package cuda

import "unsafe"

// mappings are the calls that map physical memory at reserved addresses.
type mappings struct{ *library }

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

// DeviceMemory is what heap memory of a device is created with: a shareable descriptor, and reachable for a NIC if the
// device can do that.
func DeviceMemory(device int32, rdma bool) AllocationProp {
	p := AllocationProp{Type: 1, HandleTypes: HandlePosixFD, Location: Location{LocationDevice, device}}
	if rdma {
		p.RDMACapable = 1
	}
	return p
}

// Granularity is the recommended unit of memory with these properties, in bytes.
func (v *mappings) Granularity(p *AllocationProp) (uint64, error) {
	const recommended = 1
	var g uint64
	err := v.call(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(p)), recommended)
	return g, err
}

// LargePage is the largest page that GPUs map memory by, so far. Large ranges of addresses begin at a multiple of it.
const LargePage = 512 << 20

// Reserve takes a range of addresses without memory. at is a wish, 0 for none.
func (v *mappings) Reserve(bytes, align, at uint64) (uint64, error) {
	var p uint64
	err := v.call(cuMemAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(bytes), uintptr(align), uintptr(at), 0)
	return p, err
}

// Unreserve gives a range back, in which nothing may be mapped.
func (v *mappings) Unreserve(address, bytes uint64) error {
	return v.call(cuMemAddressFree, uintptr(address), uintptr(bytes))
}

// Create makes physical memory, which counts as this process's.
func (v *mappings) Create(bytes uint64, p *AllocationProp) (uint64, error) {
	var h uint64
	err := v.call(cuMemCreate, uintptr(unsafe.Pointer(&h)), uintptr(bytes), uintptr(unsafe.Pointer(p)), 0)
	return h, err
}

// Release releases a handle; memory that is still mapped stays until it is unmapped.
func (v *mappings) Release(handle uint64) error { return v.call(cuMemRelease, uintptr(handle)) }

// Map gives physical memory an address within a reserved range.
func (v *mappings) Map(address, bytes, handle uint64) error {
	return v.call(cuMemMap, uintptr(address), uintptr(bytes), 0, uintptr(handle), 0)
}

// Unmap takes the addresses away.
func (v *mappings) Unmap(address, bytes uint64) error {
	return v.call(cuMemUnmap, uintptr(address), uintptr(bytes))
}

// Allow lets a device read and write what is mapped in a range.
func (v *mappings) Allow(address, bytes uint64, device int32) error {
	const readWrite = 3
	desc := &struct {
		Location
		flags uint32
	}{Location{LocationDevice, device}, readWrite}
	return v.call(cuMemSetAccess, uintptr(address), uintptr(bytes), uintptr(unsafe.Pointer(desc)), 1)
}

// Export makes a file descriptor of physical memory, which the caller must close.
func (v *mappings) Export(handle uint64) (int, error) {
	var fd int32
	err := v.call(cuMemExportToShareableHandle, uintptr(unsafe.Pointer(&fd)), uintptr(handle), HandlePosixFD, 0)
	return int(fd), err
}

// Import makes a handle of another process's memory; the descriptor stays the caller's.
func (v *mappings) Import(fd int) (uint64, error) {
	var h uint64
	err := v.call(cuMemImportFromShareableHandle, uintptr(unsafe.Pointer(&h)), uintptr(fd), HandlePosixFD)
	return h, err
}

// Retain makes a handle of the memory that is mapped at an address.
func (v *mappings) Retain(address uint64) (uint64, error) {
	var h uint64
	err := v.call(cuMemRetainAllocationHandle, uintptr(unsafe.Pointer(&h)), uintptr(address))
	return h, err
}

// Properties are what the memory of a handle was created with.
func (v *mappings) Properties(handle uint64) (AllocationProp, error) {
	p := new(AllocationProp)
	err := v.call(cuMemGetAllocationPropertiesFromHandle, uintptr(unsafe.Pointer(p)), uintptr(handle))
	return *p, err
}

// AddressRange is the allocation or mapping that an address lies in.
func (v *mappings) AddressRange(address uint64) (base, bytes uint64, err error) {
	out := new([2]uint64)
	err = v.call(cuMemGetAddressRange, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])), uintptr(address))
	return out[0], out[1], err
}

// DMABuf makes a dma-buf descriptor of a range of device memory, which the caller must close.
func (v *mappings) DMABuf(address, bytes uint64) (int, error) {
	const dmaBuf = 1
	var fd int32
	err := v.call(cuMemGetHandleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(address), uintptr(bytes), dmaBuf, 0)
	return int(fd), err
}
