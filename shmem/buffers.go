package shmem

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/lgpu/lgpu/shmem/layout"
)

// buffers are the registered buffers outside of the heap.
type buffers struct {
	job    *job
	exec   *executor
	routes *routes
	tables *tables

	// mu makes registrations one at a time, so that kernels are told of them in their order.
	mu sync.Mutex

	// tableMu is apart from mu, which is held while the NIC's driver works.
	tableMu sync.Mutex
	// +checklocks:tableMu
	bytes map[uint64]uint64 // sizes of the buffers by address
}

// cover says whether the memory is part of a registered buffer.
func (b *buffers) cover(address, bytes uint64) bool {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	for start, size := range b.bytes {
		if offset := address - start; offset < size && bytes <= size-offset {
			return true
		}
	}
	return false
}

func (b *buffers) has(address uint64) bool {
	b.tableMu.Lock()
	defer b.tableMu.Unlock()
	_, have := b.bytes[address]
	return have
}

// RegisterBuffer makes a buffer outside of the heap usable as the local side of operations with PEs that are reached
// through the network. For operations with mapped PEs any memory is usable. Not collective.
func (b *buffers) RegisterBuffer(address, bytes uint64) error {
	const op = "register buffer"
	if err := b.job.check(op); err != nil {
		return err
	}
	if bytes == 0 || address+bytes < address {
		return fault(layout.StatusArgument, op, -1, "%d bytes at %#x", bytes, address)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(address) {
		return fault(layout.StatusArgument, op, -1, "a buffer at %#x is registered already", address)
	}
	entries, err := b.routes.registerLocal(address, bytes)
	if err != nil {
		return wrap(op, err)
	}
	if entries > 0 {
		if err := b.tables.showLocals(b.exec, entries); err != nil {
			return wrap(op, errors.Join(err, b.routes.unregisterLocal(address)))
		}
	}
	b.tableMu.Lock()
	b.bytes[address] = bytes
	b.tableMu.Unlock()
	return nil
}

// UnregisterBuffer ends RegisterBuffer, by the address that it was called with.
func (b *buffers) UnregisterBuffer(address uint64) error {
	const op = "unregister buffer"
	if err := b.job.check(op); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unregister(op, address)
}

// UnregisterAllBuffers ends all RegisterBuffers.
func (b *buffers) UnregisterAllBuffers() error {
	const op = "unregister all buffers"
	if err := b.job.check(op); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tableMu.Lock()
	all := slices.Sorted(maps.Keys(b.bytes))
	b.tableMu.Unlock()
	var errs []error
	for _, address := range all {
		errs = append(errs, b.unregister(op, address))
	}
	return errors.Join(errs...)
}

// unregister ends one registration. The caller holds mu.
func (b *buffers) unregister(op string, address uint64) error {
	b.tableMu.Lock()
	_, have := b.bytes[address]
	delete(b.bytes, address)
	b.tableMu.Unlock()
	if !have {
		return fault(layout.StatusArgument, op, -1, "no buffer is registered at %#x", address)
	}
	return wrap(op, b.routes.unregisterLocal(address))
}
