package ibgda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// CUDA is the platform of a PE with a GPU.
type CUDA struct {
	c       *cuda.Context
	ordered bool

	mu      sync.Mutex
	raw     map[uint64]uint64 // what the driver allocated, by aligned address
	onHost  map[uint64]bool
	streams []uintptr // idle ones
	closed  bool
}

// NewCUDA returns the platform of a context's device. The context stays the caller's.
func NewCUDA(c *cuda.Context) (*CUDA, error) {
	p := &CUDA{c: c, raw: map[uint64]uint64{}, onHost: map[uint64]bool{}}
	ordering, err := c.D.DeviceAttribute(cuda.GPUDirectRDMAWritesOrdering, c.Device)
	if err != nil && cuda.Code(err) != cuda.InvalidValue { // a driver that does not know the attribute promises nothing
		return nil, fmt.Errorf("ibgda: how device %d orders a NIC's writes: %w", c.Device, err)
	}
	p.ordered = err == nil && ordering >= cuda.WritesOrderingOwner
	return p, nil
}

// Context is what NewCUDA was given.
func (p *CUDA) Context() *cuda.Context { return p.c }

// AllocateDevice implements Platform.
func (p *CUDA) AllocateDevice(bytes uint64) (nic.Buffer, error) {
	b := nic.Buffer{Bytes: bytes, FD: -1}
	err := p.c.Do(func() error {
		raw, err := p.c.D.Alloc(roundUp(bytes) + alignment)
		if err != nil {
			return err
		}
		b.Address = roundUp(raw)
		if err := p.zero(b.Address, roundUp(bytes)); err != nil {
			return errors.Join(err, p.c.D.Free(raw))
		}
		p.keep(b.Address, raw, false)
		return nil
	})
	return b, err
}

// AllocateHost implements Platform.
func (p *CUDA) AllocateHost(bytes uint64) (nic.Buffer, error) {
	b := nic.Buffer{Bytes: bytes, FD: -1}
	err := p.c.Do(func() error {
		raw, err := p.c.D.HostAlloc(roundUp(bytes) + alignment)
		if err != nil {
			return err
		}
		b.Address = roundUp(raw)
		b.Host = cuda.Bytes(b.Address, bytes)
		clear(b.Host)
		p.keep(b.Address, raw, true)
		return nil
	})
	return b, err
}

func (p *CUDA) keep(address, raw uint64, onHost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.raw[address], p.onHost[address] = raw, onHost
}

// Free implements Platform.
func (p *CUDA) Free(b nic.Buffer) error {
	p.mu.Lock()
	raw, ok := p.raw[b.Address]
	onHost := p.onHost[b.Address]
	delete(p.raw, b.Address)
	delete(p.onHost, b.Address)
	p.mu.Unlock()
	if !ok {
		return fmt.Errorf("free %d bytes at %#x: not allocated here", b.Bytes, b.Address)
	}
	return p.c.Do(func() error {
		if onHost {
			return p.c.D.HostFree(raw)
		}
		return p.c.D.Free(raw)
	})
}

// Export implements Platform.
func (p *CUDA) Export(address, bytes uint64) (nic.Buffer, error) {
	b := nic.Buffer{Address: address, Bytes: bytes, FD: -1}
	err := p.c.Do(func() error {
		t, err := p.c.D.TypeOf(address)
		if err != nil {
			return err
		}
		if t != cuda.MemoryDevice {
			b.Host = cuda.Bytes(address, bytes)
			return nil
		}
		// A dma-buf is of whole pages of the host.
		const page = 4096
		start, end := address&^(page-1), (address+bytes+page-1)&^(page-1)
		fd, err := p.c.D.DMABuf(start, end-start)
		if err == nil {
			b.FD, b.Offset = fd, address-start
		}
		return nil // without one, a NIC may still reach the memory by its address
	})
	return b, err
}

// Write implements Platform.
func (p *CUDA) Write(address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := p.onStream(func(s uintptr) error {
		return p.c.D.CopyAsync(address, uint64(uintptr(unsafe.Pointer(&b[0]))), uint64(len(b)), s)
	})
	runtime.KeepAlive(b)
	return err
}

// Read implements Platform.
func (p *CUDA) Read(address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	err := p.onStream(func(s uintptr) error {
		return p.c.D.CopyAsync(uint64(uintptr(unsafe.Pointer(&b[0]))), address, uint64(len(b)), s)
	})
	runtime.KeepAlive(b)
	return err
}

func (p *CUDA) zero(address, bytes uint64) error {
	return p.onStream(func(s uintptr) error { return p.c.D.SetAsync(address, 0, bytes, s) })
}

// onStream runs f on a stream that waits for no other, and waits for it. A copy on the null stream would wait for the
// kernels that may be waiting for the copy.
func (p *CUDA) onStream(f func(uintptr) error) error {
	return p.c.Do(func() error {
		s, err := p.stream()
		if err != nil {
			return err
		}
		err = errors.Join(f(s), p.c.D.StreamSynchronize(s))
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil || p.closed {
			return errors.Join(err, p.c.D.StreamDestroy(s))
		}
		p.streams = append(p.streams, s)
		return nil
	})
}

// stream is one for the caller alone.
func (p *CUDA) stream() (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.streams); n > 0 {
		s := p.streams[n-1]
		p.streams = p.streams[:n-1]
		return s, nil
	}
	return p.c.D.StreamCreate(cuda.StreamNonBlocking)
}

// MapRegister implements Platform.
func (p *CUDA) MapRegister(register, bytes uint64) (address uint64, err error) {
	err = p.c.Do(func() (err error) {
		address, err = p.c.D.HostRegisterIO(register, bytes)
		return err
	})
	return address, err
}

// UnmapRegister implements Platform.
func (p *CUDA) UnmapRegister(register uint64) error {
	return p.c.Do(func() error { return p.c.D.HostUnregister(register) })
}

// WritesOrdered implements Platform.
func (p *CUDA) WritesOrdered() bool { return p.ordered }

// Close gives back the streams. What was allocated must have been freed.
func (p *CUDA) Close() error {
	p.mu.Lock()
	streams := p.streams
	p.streams, p.closed = nil, true
	left := len(p.raw)
	p.mu.Unlock()
	return p.c.Do(func() error {
		var errs []error
		for _, s := range streams {
			errs = append(errs, p.c.D.StreamDestroy(s))
		}
		if left > 0 {
			errs = append(errs, fmt.Errorf("ibgda: %d allocations are not freed", left))
		}
		return errors.Join(errs...)
	})
}
