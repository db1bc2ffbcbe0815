package ibgda

import "github.com/lgpu/lgpu/shmem/transport/ibgda/nic"

// Platform is the memory of the PE's device: of a GPU (CUDA), or of the host where the PE computes on processors (Processor).
type Platform interface {
	// AllocateDevice returns zeroed memory of the device, aligned to 64 KiB, with a dma-buf where the driver makes one.
	AllocateDevice(bytes uint64) (nic.Buffer, error)
	// AllocateHost returns zeroed page-locked memory of the host, aligned to 64 KiB, that the device reaches at Address.
	AllocateHost(bytes uint64) (nic.Buffer, error)
	// Free takes back what either returned, and its dma-buf.
	Free(nic.Buffer) error
	// Export finds the dma-buf of device memory, for the caller to close. FD is -1 where there is none.
	Export(address, bytes uint64) (nic.Buffer, error)
	// Write and Read copy to and from memory of the device, and return when that is done.
	Write(address uint64, p []byte) error
	Read(address uint64, p []byte) error
	// MapRegister makes a NIC's register page reachable by the device and returns its address there.
	MapRegister(register uint64, bytes uint64) (uint64, error)
	// UnmapRegister undoes it, with the register's address.
	UnmapRegister(register uint64) error
	// WritesOrdered: what a NIC wrote is visible to the device once the completion of a later write is.
	WritesOrdered() bool
}
