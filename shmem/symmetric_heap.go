package shmem

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// maxExtent is the most memory of one driver handle.
const maxExtent = 2 << 30

// heapRange is the heap's range of addresses at this PE, and the unit in which it gets memory. It does not change.
type heapRange struct {
	heapBase, heapBytes, chunk uint64
}

// symmetricHeap is this PE's heap: memory at the same offsets at all PEs. It allocates, and grows and shrinks together
// with the heaps of the other PEs.
type symmetricHeap struct {
	heapRange
	job      *job
	exec     *executor
	routes   *routes  // nil until they are open
	reserved reserved // the library's own part
	static   uint64   // size of a heap that has all its memory from the start; 0: it grows and shrinks
	keep     uint64   // unused memory that it keeps

	mem memory

	// mu is held throughout collective calls, which wait for other PEs.
	mu sync.Mutex
	// +checklocks:mu
	space *heap.Heap
	// +checklocks:mu
	chunks map[uint64]transport.Chunk // by offset
	// +checklocks:mu
	grown, shrunk int
	// +checklocks:mu
	growTime time.Duration

	// held are the extents of space, for calls that do not wait for mu.
	held atomic.Pointer[heap.Extents]
}

// openHeap reserves the heap's addresses.
func openHeap(x *executor, t *terms) (*symmetricHeap, error) {
	h := &symmetricHeap{heapRange: t.heap, job: x.job, exec: x, reserved: t.reserved, static: t.static, keep: t.keep,
		chunks: map[uint64]transport.Chunk{}}
	var err error
	if h.mem, err = memoryFor(x, t); err != nil {
		return h, err
	}
	if h.heapBase, err = h.mem.reserve(h.heapBytes); err != nil {
		return h, fmt.Errorf("reserve %d bytes for the heap (LSHMEM_HEAP_MAX): %w", h.heapBytes, err)
	}
	h.space, err = heap.New(h.heapBytes, h.chunk, min(max(h.chunk, maxExtent), h.heapBytes))
	return h, err
}

// firstExtent gives the heap its first memory: all of a static heap, or what the library itself needs.
func (h *symmetricHeap) firstExtent(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var plan *heap.Plan
	var err error
	if h.static != 0 {
		plan, err = h.space.PlanStatic(h.static)
	} else {
		plan, err = h.space.PlanGrow(h.reserved.bytes, 0)
	}
	if err != nil {
		return err
	}
	if err := h.grow(ctx, request{op: opInit, bytes: h.reserved.bytes}, plan, 0); err != nil {
		return &known{err}
	}
	if h.static != 0 {
		if _, ok := h.space.Allocate(h.reserved.bytes, 0); !ok {
			return fmt.Errorf("a static heap of %d bytes has no room for %d of the library's own", h.static, h.reserved.bytes)
		}
	}
	return nil
}

// close detaches the heap from the transports and closes these, then gives the memory back. meet is called between,
// when there is memory: no PE releases what others have mapped.
func (h *symmetricHeap) close(meet func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	if h.routes != nil {
		var pieces []int
		for _, c := range h.chunks {
			pieces = append(pieces, c.Index)
		}
		errs = append(errs, h.routes.close(pieces))
	}
	if len(h.chunks) > 0 {
		meet()
	}
	for at, c := range h.chunks {
		errs = append(errs, h.mem.destroy(c))
		delete(h.chunks, at)
	}
	if h.mem != nil {
		errs = append(errs, h.mem.release())
	}
	return errors.Join(errs...)
}

// HeapRange is the address of the heap and its size in addresses.
func (h *symmetricHeap) HeapRange() (base, bytes uint64) { return h.heapBase, h.heapBytes }

// HeapUse is how much memory the heap has, and how much of that is allocated, the library's own included.
func (h *symmetricHeap) HeapUse() (mapped, used uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.space.Mapped(), h.space.Used()
}

// addStats adds what the heap has counted.
func (h *symmetricHeap) addStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Grown, s.Shrunk, s.GrowTime = h.grown, h.shrunk, h.growTime
}

// holds says whether the heap has memory at an address of this PE.
func (h *symmetricHeap) holds(address, bytes uint64) bool {
	offset := address - h.heapBase
	return offset < h.heapBytes && bytes <= h.heapBytes-offset && h.held.Load().Holds(offset, bytes)
}

// offset is the offset of an address in the heap, for a call on bytes there of a PE that the program may use. It does
// not leave the check to the GPU: a kernel that meets an address without memory ends the whole context.
func (h *symmetricHeap) offset(op string, address, bytes uint64, pe int) (uint64, error) {
	offset := address - h.heapBase
	if offset >= h.heapBytes || bytes > h.heapBytes-offset {
		return 0, fault(layout.StatusArgument, op, pe, "%d bytes at %#x are not in the symmetric heap", bytes, address)
	}
	if offset < h.reserved.bytes {
		return 0, fault(layout.StatusArgument, op, pe,
			"%#x (offset %#x of the heap) is memory of the library's own, not the program's", address, offset)
	}
	if !h.held.Load().Holds(offset, bytes) {
		return 0, fault(layout.StatusArgument, op, pe,
			"nothing is allocated in %d bytes at %#x (offset %#x of the heap), or in a part of them", bytes, address, offset)
	}
	return offset, nil
}

// Malloc allocates symmetric memory: at the same offset in the heaps of all PEs. Its contents are undefined.
// Collective; it returns when all PEs can be reached there. For zero bytes it returns address 0.
func (h *symmetricHeap) Malloc(bytes uint64) (uint64, error) { return h.Align(0, bytes) }

// Calloc allocates n elements of size bytes, all zero.
func (h *symmetricHeap) Calloc(n, size uint64) (uint64, error) {
	high, bytes := bits.Mul64(n, size)
	if high != 0 {
		bytes = ^uint64(0) // more than there is; all PEs learn it together
	}
	address, err := h.Align(0, bytes)
	if err != nil || address == 0 {
		return address, err
	}
	err = h.exec.zero(address, bytes)
	// No PE writes there before all have cleared.
	ctx, unlock := h.lock()
	defer unlock()
	offset := address - h.heapBase
	if _, err := h.together(ctx, request{op: opMalloc, bytes: bytes, offset: offset}, err, nil); err != nil {
		return 0, errors.Join(err, h.space.Free(offset)) // the memory that grew for it stays for the next call
	}
	return address, nil
}

// Align is Malloc with an alignment, a power of two; less than 256 is 256. The offset is always aligned; the address on
// a PE is aligned up to the alignment of its heap.
func (h *symmetricHeap) Align(align, bytes uint64) (uint64, error) {
	if err := h.job.check("malloc"); err != nil {
		return 0, err
	}
	ctx, unlock := h.lock()
	defer unlock()
	r := request{op: opMalloc, bytes: bytes, align: align}
	if bytes == 0 {
		_, err := h.together(ctx, r, nil, nil)
		return 0, err
	}
	if offset, ok := h.space.Allocate(bytes, align); ok {
		if _, err := h.together(ctx, r, nil, nil); err != nil {
			return 0, errors.Join(err, h.space.Free(offset))
		}
		return h.heapBase + offset, nil
	}
	plan, err := h.space.PlanGrow(bytes, align)
	if err == nil && h.static != 0 {
		err = fmt.Errorf("%w: it is static (LSHMEM_HEAP_STATIC, LSHMEM_SYMMETRIC_SIZE), %d of %d bytes are allocated",
			heap.ErrFull, h.space.Used(), h.static)
	}
	return h.growFor(ctx, r, plan, err, 0)
}

// lock begins a collective call: it takes mu, and bounds the waits for the others. The function ends the call.
func (h *symmetricHeap) lock() (context.Context, func()) {
	ctx, cancel := h.job.context()
	h.mu.Lock()
	return ctx, func() {
		h.mu.Unlock()
		cancel()
	}
}

// growFor carries out a plan for an allocation, or tells the others why there is none. It returns the new address. The
// caller holds mu.
func (h *symmetricHeap) growFor(ctx context.Context, r request, plan *heap.Plan, failure error, foreign uint64) (uint64, error) {
	if failure != nil {
		_, err := h.together(ctx, r, failure, nil)
		return 0, err
	}
	if err := h.grow(ctx, r, plan, foreign); err != nil {
		return 0, err
	}
	return h.heapBase + plan.Allocation.Offset, nil
}

// Free frees what Malloc and its variants allocated; for address 0 it does nothing. Collective. No PE may use the
// memory any more when the first PE calls it: kernels and copies on streams must be done. Memory in which nothing is
// allocated any more goes back to the system, at all PEs, except for what Config.Keep lets the heap keep.
func (h *symmetricHeap) Free(address uint64) error { return h.free(request{op: opFree}, address) }

func (h *symmetricHeap) free(r request, address uint64) error {
	if err := h.job.check("free"); err != nil {
		return err
	}
	ctx, unlock := h.lock()
	defer unlock()
	var failure error
	if r.offset = address - h.heapBase; address == 0 {
		r.offset = ^uint64(0)
	} else if err := h.mayFree(r); err != nil {
		failure = fault(layout.StatusArgument, r.op.String(), -1, "address %#x: %w", address, err)
	}
	if _, err := h.together(ctx, r, failure, nil); err != nil || address == 0 {
		return err
	}
	if err := h.space.Free(r.offset); err != nil {
		return wrap("free", err)
	}
	if h.static != 0 {
		return nil
	}
	return h.shrink(ctx, h.space.Unused(h.keep))
}

// mayFree checks that something of that kind begins at the offset. The caller holds mu.
func (h *symmetricHeap) mayFree(r request) error {
	_, ok := h.space.Find(r.offset)
	if !ok || r.offset == 0 { // the library's own
		return heap.ErrUnknown
	}
	e, ok := h.space.ExtentAt(r.offset)
	if (ok && e.Foreign) != (r.op == opForeignEnd) {
		return fmt.Errorf("%w of that kind", heap.ErrUnknown)
	}
	return nil
}

// RegisterSymmetric makes a buffer that every PE brings, of the same size, part of the heap, and returns its address
// there: a second address of the same memory, which operations take. The buffer must be a whole allocation of device
// memory by cuMemCreate with a shareable descriptor, mapped at once. It must stay until UnregisterSymmetric.
// Collective.
func (h *symmetricHeap) RegisterSymmetric(address, bytes uint64) (uint64, error) {
	op := opForeign.String()
	if err := h.job.check(op); err != nil {
		return 0, err
	}
	ctx, unlock := h.lock()
	defer unlock()
	plan, err := h.space.PlanForeign(bytes)
	if err == nil && h.static != 0 {
		err = fault(layout.StatusSupport, op, -1, "the heap is static")
	}
	if err == nil && bytes%heap.MinChunk != 0 {
		err = fault(layout.StatusArgument, op, -1, "%d bytes: a multiple of %d is needed", bytes, heap.MinChunk)
	}
	return h.growFor(ctx, request{op: opForeign, bytes: bytes}, plan, err, address)
}

// UnregisterSymmetric ends RegisterSymmetric, by the address that it returned. Collective.
func (h *symmetricHeap) UnregisterSymmetric(address uint64) error {
	return h.free(request{op: opForeignEnd}, address)
}
