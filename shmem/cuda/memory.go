package cuda

import (
	"runtime"
	"sync"
	"unsafe"
)

// memory are the calls about memory and copies.
type memory struct{ *library }

// scratch are small words for results of calls that are made often.
var scratch = sync.Pool{New: func() any { return new([2]uintptr) }}

// MemInfo returns the free and all memory of the current context's device, in an lgpu those of the lgpu.
func (m *memory) MemInfo() (free, total uint64, err error) {
	out := new([2]uint64)
	err = m.call(cuMemGetInfo, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
	return out[0], out[1], err
}

// Alloc allocates device memory.
func (m *memory) Alloc(bytes uint64) (uint64, error) {
	var p uint64
	err := m.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	return p, err
}

// Free frees what Alloc allocated.
func (m *memory) Free(address uint64) error { return m.call(cuMemFree, uintptr(address)) }

// Flags of host memory.
const (
	HostPortable  = 1 // for all contexts
	HostDeviceMap = 2
)

// HostAlloc allocates host memory that devices reach at the same address.
func (m *memory) HostAlloc(bytes uint64) (uint64, error) {
	var p uint64
	err := m.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), HostPortable|HostDeviceMap)
	return p, err
}

// HostFree frees what HostAlloc allocated.
func (m *memory) HostFree(address uint64) error { return m.call(cuMemFreeHost, uintptr(address)) }

// HostRegister makes memory of the process known to the devices. The result is its device address, on all systems with
// CanUseHostPointerRegistered the same.
func (m *memory) HostRegister(address, bytes uint64) (uint64, error) {
	return m.hostRegister(address, bytes, HostPortable|HostDeviceMap)
}

// HostRegisterIO does the same with registers of another device, which the process has mapped.
func (m *memory) HostRegisterIO(address, bytes uint64) (uint64, error) {
	const ioMemory = 4
	return m.hostRegister(address, bytes, HostPortable|HostDeviceMap|ioMemory)
}

func (m *memory) hostRegister(address, bytes uint64, flags uintptr) (uint64, error) {
	if err := m.call(cuMemHostRegister, uintptr(address), uintptr(bytes), flags); err != nil {
		return 0, err
	}
	var p uint64
	if err := m.call(cuMemHostGetDevicePointer, uintptr(unsafe.Pointer(&p)), uintptr(address), 0); err != nil {
		m.call(cuMemHostUnregister, uintptr(address))
		return 0, err
	}
	return p, nil
}

// HostUnregister undoes HostRegister and HostRegisterIO.
func (m *memory) HostUnregister(address uint64) error {
	return m.call(cuMemHostUnregister, uintptr(address))
}

// Bytes is memory of this process at an address as a slice, for host memory that is not the Go runtime's. A program may
// give any address: a wrong one must be a panic that can be recovered from, which the checks of a race build are not.
//
//go:nocheckptr
func Bytes(address, bytes uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), bytes)
}

// Copy copies between any two addresses and returns when it is done.
func (m *memory) Copy(to, from, bytes uint64) error {
	return m.call(cuMemcpy, uintptr(to), uintptr(from), uintptr(bytes))
}

// CopyAsync copies between any two addresses in the order of a stream.
func (m *memory) CopyAsync(to, from, bytes uint64, stream uintptr) error {
	return m.quick(cuMemcpyAsync, uintptr(to), uintptr(from), uintptr(bytes), stream)
}

// Write copies b to an address and returns when it is done.
func (m *memory) Write(to uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := m.call(cuMemcpy, uintptr(to), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	runtime.KeepAlive(b)
	return err
}

// Read copies from an address to b and returns when it is done.
func (m *memory) Read(b []byte, from uint64) error {
	if len(b) == 0 {
		return nil
	}
	err := m.call(cuMemcpy, uintptr(unsafe.Pointer(&b[0])), uintptr(from), uintptr(len(b)))
	runtime.KeepAlive(b)
	return err
}

// Set fills memory with a byte and returns when that is done or, for device memory, in the order of the null stream.
func (m *memory) Set(address uint64, value byte, bytes uint64) error {
	return m.call(cuMemsetD8, uintptr(address), uintptr(value), uintptr(bytes))
}

// SetAsync fills memory with a byte in the order of a stream.
func (m *memory) SetAsync(address uint64, value byte, bytes uint64, stream uintptr) error {
	return m.quick(cuMemsetD8Async, uintptr(address), uintptr(value), uintptr(bytes), stream)
}

// MemoryType is where memory lies: a CUmemorytype.
type MemoryType int32

// Types of memory; 0 is memory the driver does not know.
const (
	MemoryHost   MemoryType = 1
	MemoryDevice MemoryType = 2
)

// TypeOf says what memory an address is of; for what the driver does not know it is 0 without an error.
func (m *memory) TypeOf(address uint64) (MemoryType, error) {
	const memoryType = 2
	var t int32
	err := m.call(cuPointerGetAttribute, uintptr(unsafe.Pointer(&t)), memoryType, uintptr(address))
	if Code(err) == InvalidValue {
		return 0, nil
	}
	return MemoryType(t), err
}

// IPCHandle is a CUipcMemHandle.
type IPCHandle [64]byte

// IPCGet makes a handle that other processes can open, of memory that Alloc allocated.
func (m *memory) IPCGet(address uint64) (IPCHandle, error) {
	h := new(IPCHandle)
	err := m.call(cuIpcGetMemHandle, uintptr(unsafe.Pointer(h)), uintptr(address))
	return *h, err
}

// IPCOpen maps another process's memory.
func (m *memory) IPCOpen(h *IPCHandle) (uint64, error) {
	const lazyEnablePeerAccess = 1
	var p uint64
	if runtime.GOARCH == "amd64" { // such a structure lies on the stack, after six registers
		w := (*[8]uint64)(unsafe.Pointer(h))
		err := m.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(&p)), lazyEnablePeerAccess, 0, 0, 0, 0, uintptr(w[0]),
			uintptr(w[1]), uintptr(w[2]), uintptr(w[3]), uintptr(w[4]), uintptr(w[5]), uintptr(w[6]), uintptr(w[7]))
		return p, err
	}
	err := m.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(h)), lazyEnablePeerAccess)
	return p, err
}

// IPCClose undoes IPCOpen.
func (m *memory) IPCClose(address uint64) error { return m.call(cuIpcCloseMemHandle, uintptr(address)) }
