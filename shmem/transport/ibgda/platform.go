package ibgda

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// alignment is that of all memory a Platform allocates: the largest page that a NIC may want to map it by.
const alignment = 64 << 10

// Platform is the memory of the PE's device: of a GPU (CUDA), or of the host where the PE computes on processors
// (Processor). Methods are safe for concurrent use.
type Platform interface {
	// AllocateDevice returns zeroed memory of the device, aligned to 64 KiB.
	AllocateDevice(bytes uint64) (nic.Buffer, error)
	// AllocateHost returns zeroed page-locked memory of the host, aligned to 64 KiB, that the device reaches at
	// Address.
	AllocateHost(bytes uint64) (nic.Buffer, error)
	// Free takes back what either returned.
	Free(nic.Buffer) error
	// Export says what memory lies at an address: with Host where the processor sees it, else with a dma-buf for the
	// caller to close. FD is -1 where there is none.
	Export(address, bytes uint64) (nic.Buffer, error)
	// Write and Read copy to and from memory of the device, and return when that is done. They do not wait for kernels.
	Write(address uint64, p []byte) error
	Read(address uint64, p []byte) error
	// MapRegister makes a page of a NIC's registers reachable by the device and returns its address there.
	MapRegister(register uint64, bytes uint64) (uint64, error)
	// UnmapRegister undoes it.
	UnmapRegister(register uint64) error
	// WritesOrdered: what a NIC wrote is visible to the device once the completion of a later write is.
	WritesOrdered() bool
}

// roundUp rounds up to whole pages of the largest size.
func roundUp(bytes uint64) uint64 { return (bytes + alignment - 1) &^ (alignment - 1) }

func closeFD(fd int) { _ = unix.Close(fd) } // there is nothing to lose in it

// hostBytes is memory of this process that the Go runtime does not know.
func hostBytes(address, bytes uint64) []byte { return cuda.Bytes(address, bytes) }

// Processor is the platform of a PE that computes on processors: its device's memory is the host's.
type Processor struct {
	mu   sync.Mutex
	maps map[uint64][]byte // by aligned address
}

// NewProcessor returns a Platform without a GPU.
func NewProcessor() *Processor { return &Processor{maps: map[uint64][]byte{}} }

// AllocateDevice implements Platform.
func (p *Processor) AllocateDevice(bytes uint64) (nic.Buffer, error) { return p.AllocateHost(bytes) }

// AllocateHost implements Platform. The memory is not page-locked: no DMA engine needs it.
func (p *Processor) AllocateHost(bytes uint64) (nic.Buffer, error) {
	m, err := unix.Mmap(-1, 0, int(roundUp(bytes)+alignment), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nic.Buffer{}, fmt.Errorf("map %d bytes: %w", bytes, err)
	}
	start := addressOf(m)
	aligned := roundUp(start)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maps[aligned] = m
	return nic.Buffer{Address: aligned, Bytes: bytes, Host: m[aligned-start:][:bytes:bytes], FD: -1}, nil
}

// Free implements Platform.
func (p *Processor) Free(b nic.Buffer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.maps[b.Address]
	if !ok {
		return fmt.Errorf("free %d bytes at %#x: not allocated here", b.Bytes, b.Address)
	}
	delete(p.maps, b.Address)
	return unix.Munmap(m)
}

// Export implements Platform.
func (p *Processor) Export(address, bytes uint64) (nic.Buffer, error) {
	return nic.Buffer{Address: address, Bytes: bytes, Host: hostBytes(address, bytes), FD: -1}, nil
}

// Write implements Platform.
func (p *Processor) Write(address uint64, b []byte) error {
	copy(hostBytes(address, uint64(len(b))), b)
	return nil
}

// Read implements Platform.
func (p *Processor) Read(address uint64, b []byte) error {
	copy(b, hostBytes(address, uint64(len(b))))
	return nil
}

// MapRegister implements Platform: processors reach registers where they are.
func (p *Processor) MapRegister(register, _ uint64) (uint64, error) { return register, nil }

// UnmapRegister implements Platform.
func (p *Processor) UnmapRegister(uint64) error { return nil }

// WritesOrdered implements Platform.
func (p *Processor) WritesOrdered() bool { return true }
