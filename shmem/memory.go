package shmem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// memory is where the memory of a PE's own heap comes from.
type memory interface {
	// reserve takes the heap's addresses.
	reserve(bytes uint64) (base uint64, err error)
	// create gives an extent its memory; an error leaves nothing.
	create(e heap.Extent) (transport.Chunk, error)
	// destroy takes it back.
	destroy(c transport.Chunk) error
	// foreign maps a buffer of the program into an extent.
	foreign(e heap.Extent, address uint64) (transport.Chunk, error)
	// release gives the addresses back.
	release() error
}

// memoryFor is the source of a heap's memory on these terms.
func memoryFor(x *executor, t *terms) (memory, error) {
	switch {
	case t.kind == transport.Host:
		return &hostMemory{ctx: x.ctx, chunk: t.heap.chunk}, nil
	case !t.vmm:
		return &pinnedMemory{ctx: x.ctx}, nil
	}
	rdma, err := x.d.DeviceAttribute(cuda.GPUDirectRDMAWithVMMSupported, x.ctx.Device)
	m := &deviceMemory{ctx: x.ctx, chunk: t.heap.chunk, prop: cuda.DeviceMemory(x.ctx.Device, err == nil && rdma != 0)}
	g, err := x.d.Granularity(&m.prop)
	if err != nil {
		return nil, err
	}
	if m.chunk%g != 0 {
		return nil, fmt.Errorf("the GPU maps memory in units of %d bytes; set LSHMEM_CHUNK to a multiple of it", g)
	}
	return m, nil
}

var errForeign = errors.New("only device memory that was made by cuMemCreate with a shareable descriptor can be part of the heap")

// deviceMemory is memory of the GPU by handles: any extent can come and go.
type deviceMemory struct {
	ctx         *cuda.Context
	prop        cuda.AllocationProp
	chunk       uint64
	base, bytes uint64
}

func (m *deviceMemory) reserve(bytes uint64) (uint64, error) {
	err := m.ctx.Do(func() (err error) {
		m.base, err = m.ctx.D.Reserve(bytes, cuda.LargePage, 0)
		return err
	})
	m.bytes = bytes
	return m.base, err
}

func (m *deviceMemory) create(e heap.Extent) (c transport.Chunk, err error) {
	err = m.ctx.Do(func() error {
		h, err := m.ctx.D.Create(e.Bytes, &m.prop)
		if err != nil {
			return fmt.Errorf("%d bytes of device memory: %w", e.Bytes, err)
		}
		c, err = m.mapHandle(e, h)
		return err
	})
	return c, err
}

// mapHandle maps a handle, which is released if that does not work.
func (m *deviceMemory) mapHandle(e heap.Extent, h uint64) (transport.Chunk, error) {
	d, at := m.ctx.D, m.base+e.Offset
	if err := d.Map(at, e.Bytes, h); err != nil {
		return transport.Chunk{}, errors.Join(err, d.Release(h))
	}
	if err := d.Allow(at, e.Bytes, m.ctx.Device); err != nil {
		return transport.Chunk{}, errors.Join(err, d.Unmap(at, e.Bytes), d.Release(h))
	}
	return transport.Chunk{Index: int(e.Offset / m.chunk), Offset: e.Offset, Bytes: e.Bytes, Address: at, Kind: transport.Device, Handle: h, FD: -1}, nil
}

func (m *deviceMemory) foreign(e heap.Extent, address uint64) (c transport.Chunk, err error) {
	op := opForeign.String()
	err = m.ctx.Do(func() error {
		d := m.ctx.D
		base, size, err := d.AddressRange(address)
		if err != nil {
			return fault(layout.StatusArgument, op, -1, "%d bytes at %#x: %w", e.Bytes, address, err)
		}
		if base != address || size != e.Bytes {
			return fault(layout.StatusArgument, op, -1, "%d bytes at %#x: they must be all of an allocation, which is %d bytes at %#x",
				e.Bytes, address, size, base)
		}
		h, err := d.Retain(address)
		if err != nil {
			return fmt.Errorf("%w: %w", errForeign, err)
		}
		if p, err := d.Properties(h); err != nil || p.HandleTypes&cuda.HandlePosixFD == 0 {
			return errors.Join(errForeign, err, d.Release(h))
		}
		c, err = m.mapHandle(e, h)
		return err
	})
	return c, err
}

func (m *deviceMemory) destroy(c transport.Chunk) error {
	return m.ctx.Do(func() error {
		return errors.Join(m.ctx.D.Unmap(c.Address, c.Bytes), m.ctx.D.Release(c.Handle))
	})
}

func (m *deviceMemory) release() error {
	if m.base == 0 {
		return nil
	}
	return m.ctx.Do(func() error { return m.ctx.D.Unreserve(m.base, m.bytes) })
}

// pinnedMemory is one allocation of the GPU's memory: a static heap where there are no handles.
type pinnedMemory struct {
	ctx  *cuda.Context
	base uint64
}

func (m *pinnedMemory) reserve(bytes uint64) (uint64, error) {
	err := m.ctx.Do(func() (err error) {
		m.base, err = m.ctx.D.Alloc(bytes)
		return err
	})
	return m.base, err
}

func (m *pinnedMemory) create(e heap.Extent) (transport.Chunk, error) {
	return transport.Chunk{Offset: e.Offset, Bytes: e.Bytes, Address: m.base + e.Offset, Kind: transport.Device, FD: -1}, nil
}

func (m *pinnedMemory) foreign(heap.Extent, uint64) (transport.Chunk, error) {
	return transport.Chunk{}, errForeign
}

func (m *pinnedMemory) destroy(transport.Chunk) error { return nil }

func (m *pinnedMemory) release() error {
	if m.base == 0 {
		return nil
	}
	return m.ctx.Do(func() error { return m.ctx.D.Free(m.base) })
}

// hostMemory is memory of the machine, in memory files.
type hostMemory struct {
	ctx         *cuda.Context // nil without a GPU
	chunk       uint64
	base, bytes uint64
}

func (m *hostMemory) reserve(bytes uint64) (base uint64, err error) {
	m.base, err = p2p.ReserveHost(bytes)
	m.bytes = bytes
	return m.base, err
}

func (m *hostMemory) create(e heap.Extent) (transport.Chunk, error) {
	fd, err := p2p.CreateHost(e.Bytes)
	if err != nil {
		return transport.Chunk{}, err
	}
	at := m.base + e.Offset
	if err := p2p.MapHost(at, e.Bytes, fd); err != nil {
		return transport.Chunk{}, errors.Join(err, unix.Close(fd))
	}
	if m.ctx != nil {
		if err := p2p.RegisterHost(m.ctx, at, e.Bytes); err != nil {
			return transport.Chunk{}, errors.Join(err, p2p.UnmapHost(at, e.Bytes), unix.Close(fd))
		}
	}
	return transport.Chunk{Index: int(e.Offset / m.chunk), Offset: e.Offset, Bytes: e.Bytes, Address: at, Kind: transport.Host, FD: fd}, nil
}

func (m *hostMemory) foreign(heap.Extent, uint64) (transport.Chunk, error) {
	return transport.Chunk{}, errForeign
}

func (m *hostMemory) destroy(c transport.Chunk) error {
	var err error
	if m.ctx != nil {
		err = p2p.UnregisterHost(m.ctx, c.Address)
	}
	return errors.Join(err, p2p.UnmapHost(c.Address, c.Bytes), unix.Close(c.FD))
}

func (m *hostMemory) release() error {
	if m.base == 0 {
		return nil
	}
	return p2p.ReleaseHost(m.base, m.bytes)
}
