package shmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// op is a collective call that changes the heap.
type op uint32

const (
	opInit op = iota + 1
	opMalloc
	opFree
	opForeign
	opForeignEnd
)

func (o op) String() string {
	switch o {
	case opInit:
		return "init"
	case opMalloc:
		return "malloc"
	case opFree:
		return "free"
	case opForeign:
		return "register symmetric buffer"
	case opForeignEnd:
		return "unregister symmetric buffer"
	}
	return fmt.Sprintf("call %d", uint32(o))
}

// request is a collective call as all PEs must have made it.
type request struct {
	op           op
	bytes, align uint64
	offset       uint64
}

func (r request) String() string {
	switch r.op {
	case opMalloc:
		return fmt.Sprintf("%v of %d bytes aligned to %d", r.op, r.bytes, r.align)
	case opFree, opForeignEnd:
		return fmt.Sprintf("%v of offset %#x", r.op, r.offset)
	}
	return fmt.Sprintf("%v of %d bytes", r.op, r.bytes)
}

// A message of a PE in a collective call: the request, how it went here, and for each new piece the transports' blobs.
//
//	op u32, status u32, bytes u64, align u64, offset u64, PE to blame u32 (none: all bits), length of text u32, text, then blobs: each
//	length u32, bytes
const messageHeader = 4 + 4 + 8 + 8 + 8 + 4 + 4

func (r request) message(err error, blobs [][]byte) []byte {
	e := binary.LittleEndian
	text, blame := "", -1
	if err != nil {
		text = err.Error()
		var whose *Error
		if errors.As(err, &whose) {
			blame = whose.PE
		}
		if e, ok := err.(*Error); ok { // whose call it is, the others know
			text = e.Err.Error()
		}
		text = text[:min(len(text), 1000)]
	}
	b := e.AppendUint32(nil, uint32(r.op))
	b = e.AppendUint32(b, Status(err))
	b = e.AppendUint64(b, r.bytes)
	b = e.AppendUint64(b, r.align)
	b = e.AppendUint64(b, r.offset)
	b = e.AppendUint32(b, uint32(blame))
	b = e.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	for _, blob := range blobs {
		b = e.AppendUint32(b, uint32(len(blob)))
		b = append(b, blob...)
	}
	return b
}

// parseMessage reads a message with the number of blobs that it must have if all went well.
func parseMessage(b []byte, blobs int) (r request, status uint32, blame int, text string, out [][]byte, err error) {
	e := binary.LittleEndian
	short := fmt.Errorf("%w: %d bytes of a collective call", transport.ErrBlob, len(b))
	if len(b) < messageHeader {
		return r, 0, -1, "", nil, short
	}
	r = request{op: op(e.Uint32(b)), bytes: e.Uint64(b[8:]), align: e.Uint64(b[16:]), offset: e.Uint64(b[24:])}
	status = e.Uint32(b[4:])
	blame = int(int32(e.Uint32(b[32:])))
	n := int(e.Uint32(b[36:]))
	b = b[messageHeader:]
	if n > len(b) {
		return r, 0, -1, "", nil, short
	}
	text, b = string(b[:n]), b[n:]
	if status != layout.StatusOK {
		return r, status, blame, text, nil, nil
	}
	for len(b) >= 4 {
		n := int(e.Uint32(b))
		if n > len(b)-4 {
			return r, 0, -1, "", nil, short
		}
		out, b = append(out, b[4:4+n:4+n]), b[4+n:]
	}
	if len(b) != 0 {
		return r, 0, -1, "", nil, short
	}
	return r, status, blame, text, out, nil
}

// together makes sure that all PEs made the same call and that it went well at all, and returns each PE's blobs. failure is
// what went wrong here. The error is the same at all PEs, save for whose it is.
func (p *PE) together(ctx context.Context, r request, failure error, blobs [][]byte) ([][][]byte, error) {
	failure = wrap(r.op.String(), failure) // so that the others get its status
	all, err := p.b.AllGather(ctx, r.message(failure, blobs))
	if err != nil {
		return nil, errors.Join(failure, wrap(r.op.String(), err))
	}
	out := make([][][]byte, p.size)
	var first error
	for pe, m := range all {
		got, status, blame, text, theirs, err := parseMessage(m, len(blobs))
		switch {
		case err != nil:
			err = fault(layout.StatusSystem, r.op.String(), pe, "%w", err)
		case got != r:
			err = fault(layout.StatusArgument, r.op.String(), pe, "the PEs do not make the same call: PE %d: %v; PE %d: %v", p.rank, r, pe, got)
		case status != layout.StatusOK:
			if blame < 0 || blame >= p.size {
				blame = pe // who says so
			}
			err = fault(status, r.op.String(), blame, "%s", text)
		}
		if err != nil && first == nil {
			first = err
		}
		out[pe] = theirs
	}
	if failure != nil { // the own one has its whole chain
		return nil, failure
	}
	if first != nil {
		return nil, first
	}
	for pe := range out {
		if len(out[pe]) != len(blobs) {
			return nil, fault(layout.StatusSystem, r.op.String(), pe, "%w: %d parts, here are %d", transport.ErrBlob, len(out[pe]), len(blobs))
		}
	}
	return out, nil
}

// grow carries out a plan at all PEs, or at none. foreign is the program's buffer, 0 for new memory. The caller holds mu.
func (p *PE) grow(ctx context.Context, r request, plan *heap.Plan, foreign uint64) error {
	begun := time.Now()
	var made []transport.Chunk
	var blobs [][]byte
	failure := func() error {
		for _, e := range plan.Extents {
			c, err := p.makeExtent(e, foreign)
			if err != nil {
				return err
			}
			made = append(made, c)
			for _, t := range p.transports {
				blob, err := t.Register(c)
				if err != nil {
					return fmt.Errorf("%s: register %d bytes of heap: %w", t.Name(), c.Bytes, err)
				}
				blobs = append(blobs, blob)
			}
		}
		return nil
	}()
	undo := func() {
		for _, c := range made {
			for _, t := range p.transports {
				if err := t.Detach(c.Index); err != nil {
					p.log.Warn("detach after an error", "pe", p.rank, "transport", t.Name(), "error", err)
				}
			}
		}
	}
	destroy := func() {
		for _, c := range made {
			if err := p.mem.destroy(c); err != nil {
				p.log.Warn("free heap memory after an error", "pe", p.rank, "error", err)
			}
		}
	}
	if failure != nil {
		blobs = nil
	}
	all, err := p.together(ctx, r, failure, blobs)
	if err != nil { // nobody has attached anything
		undo()
		destroy()
		return err
	}
	failure = nil
	for i := range made {
		if failure != nil {
			break // a peer that does not answer would be waited for again
		}
		for j, t := range p.transports {
			from := make([][]byte, p.size)
			for pe := range from {
				from[pe] = all[pe][i*len(p.transports)+j]
			}
			if err := t.Attach(made[i].Index, from); err != nil && failure == nil {
				failure = fmt.Errorf("%s: %w", t.Name(), err)
			}
		}
	}
	if _, err := p.together(ctx, r, failure, nil); err != nil {
		undo()
		if p.lost.Load() == nil { // all let go before anybody releases
			if err := p.b.Barrier(ctx); err != nil {
				p.log.Debug("barrier after an error", "pe", p.rank, "error", err)
			}
		}
		destroy()
		return err
	}
	for _, c := range made {
		p.chunks[c.Offset] = c
	}
	p.heap.Commit(plan)
	p.hold()
	p.stats.Grown++
	p.stats.GrowTime += time.Since(begun)
	return nil
}

// hold makes known to all calls where the heap has memory. The caller holds mu.
func (p *PE) hold() {
	x := p.heap.Extents()
	p.held.Store(&x)
}

func (p *PE) makeExtent(e heap.Extent, foreign uint64) (transport.Chunk, error) {
	if e.Foreign {
		return p.mem.foreign(e, foreign)
	}
	return p.mem.create(e)
}

// shrink gives unused extents back at all PEs. The caller holds mu, and all PEs have the same extents unused.
func (p *PE) shrink(ctx context.Context, extents []heap.Extent) error {
	if len(extents) == 0 {
		return nil
	}
	var errs []error
	for _, e := range extents {
		for _, t := range p.transports {
			if err := t.Detach(p.chunks[e.Offset].Index); err != nil {
				errs = append(errs, fmt.Errorf("%s: detach %d bytes of heap: %w", t.Name(), e.Bytes, err))
			}
		}
	}
	if err := p.b.Barrier(ctx); err != nil {
		return wrap("free", errors.Join(append(errs, err)...))
	}
	for _, e := range extents {
		if err := p.mem.destroy(p.chunks[e.Offset]); err != nil {
			errs = append(errs, err)
		}
		delete(p.chunks, e.Offset)
	}
	errs = append(errs, p.heap.Drop(extents))
	p.hold()
	p.stats.Shrunk++
	return wrap("free", errors.Join(errs...))
}

// Malloc allocates symmetric memory: at the same offset in the heaps of all PEs. Its contents are undefined. Collective; it
// returns when all PEs can be reached there. Zero bytes are address 0.
func (p *PE) Malloc(bytes uint64) (uint64, error) { return p.Align(0, bytes) }

// Calloc allocates n elements of size bytes, all zero.
func (p *PE) Calloc(n, size uint64) (uint64, error) {
	high, bytes := bits.Mul64(n, size)
	if high != 0 {
		bytes = ^uint64(0) // more than there is; all PEs learn it together
	}
	address, err := p.Align(0, bytes)
	if err != nil || address == 0 {
		return address, err
	}
	err = p.zero(address, bytes)
	ctx, cancel := p.context()
	defer cancel()
	// Nobody writes there before everybody has cleared.
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.together(ctx, request{op: opMalloc, bytes: bytes, offset: address - p.heapBase}, err, nil); err != nil {
		return 0, errors.Join(err, p.heap.Free(address-p.heapBase)) // what grew for it is there for the next
	}
	return address, nil
}

// Align is Malloc with an alignment, a power of two; less than 256 is 256. The address is aligned on every PE up to the
// alignment of the heap itself, the offset always.
func (p *PE) Align(align, bytes uint64) (uint64, error) {
	if err := p.check("malloc"); err != nil {
		return 0, err
	}
	ctx, cancel := p.context()
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := request{op: opMalloc, bytes: bytes, align: align}
	if bytes == 0 {
		_, err := p.together(ctx, r, nil, nil)
		return 0, err
	}
	if offset, ok := p.heap.Allocate(bytes, align); ok {
		if _, err := p.together(ctx, r, nil, nil); err != nil {
			return 0, errors.Join(err, p.heap.Free(offset))
		}
		return p.heapBase + offset, nil
	}
	plan, err := p.heap.PlanGrow(bytes, align)
	if err == nil && p.static != 0 {
		err = fmt.Errorf("%w: it is static (LSHMEM_HEAP_STATIC, LSHMEM_SYMMETRIC_SIZE), %d of %d bytes are allocated", heap.ErrFull, p.heap.Used(), p.static)
	}
	if err != nil {
		_, err = p.together(ctx, r, err, nil)
		return 0, err
	}
	if err := p.grow(ctx, r, plan, 0); err != nil {
		return 0, err
	}
	return p.heapBase + plan.Allocation.Offset, nil
}

// Free frees what Malloc and its like allocated; address 0 is nothing. Collective. Nobody may use the memory any more when the
// first PE calls it: kernels and copies on streams must be done. Memory that nothing is allocated in goes back to the system,
// at all PEs, save what Config.Keep lets the heap keep.
func (p *PE) Free(address uint64) error { return p.free(request{op: opFree}, address) }

func (p *PE) free(r request, address uint64) error {
	if err := p.check("free"); err != nil {
		return err
	}
	ctx, cancel := p.context()
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	var failure error
	if r.offset = address - p.heapBase; address == 0 {
		r.offset = ^uint64(0)
	} else if err := p.mayFree(r); err != nil {
		failure = &Error{Status: layout.StatusArgument, Op: r.op.String(), PE: -1, Err: fmt.Errorf("address %#x: %w", address, err)}
	}
	if _, err := p.together(ctx, r, failure, nil); err != nil || address == 0 {
		return err
	}
	if err := p.heap.Free(r.offset); err != nil {
		return wrap("free", err)
	}
	if p.static != 0 {
		return nil
	}
	return p.shrink(ctx, p.heap.Unused(p.keep))
}

// mayFree checks that something of that kind begins at the offset.
func (p *PE) mayFree(r request) error {
	_, ok := p.heap.Find(r.offset)
	if !ok || r.offset == 0 { // the library's own
		return heap.ErrUnknown
	}
	e, ok := p.heap.ExtentAt(r.offset)
	if (ok && e.Foreign) != (r.op == opForeignEnd) {
		return fmt.Errorf("%w of that kind", heap.ErrUnknown)
	}
	return nil
}

// Ptr returns where an address of the heap is in another PE's heap, as loads and stores reach it; 0 if they do not, or if
// there is no such PE.
func (p *PE) Ptr(address uint64, pe int) uint64 {
	offset := address - p.heapBase
	if offset >= p.heapBytes || pe < 0 || pe >= p.size || p.mapped[pe] == 0 || p.closed.Load() {
		return 0
	}
	return p.mapped[pe] + offset
}

// RegisterBuffer makes a buffer outside of the heap usable as the local side of operations with PEs that are reached through
// the network. For mapped PEs any memory is. Local.
func (p *PE) RegisterBuffer(address, bytes uint64) error {
	const op = "register buffer"
	if err := p.check(op); err != nil {
		return err
	}
	if bytes == 0 || address+bytes < address {
		return fault(layout.StatusArgument, op, -1, "%d bytes at %#x", bytes, address)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.localsMu.Lock()
	_, have := p.locals[address]
	p.localsMu.Unlock()
	if have {
		return fault(layout.StatusArgument, op, -1, "a buffer at %#x is registered already", address)
	}
	for i, t := range p.transports {
		l, ok := t.(transport.LocalRegistrar)
		if !ok {
			continue
		}
		entries, err := l.RegisterLocal(address, bytes)
		if err == nil {
			if err = p.showLocals(entries); err == nil {
				continue
			}
			i++ // this one has it
		}
		for _, t := range p.transports[:i] {
			if l, ok := t.(transport.LocalRegistrar); ok {
				err = errors.Join(err, l.UnregisterLocal(address))
			}
		}
		return wrap(op, err)
	}
	p.localsMu.Lock()
	p.locals[address] = bytes
	p.localsMu.Unlock()
	return nil
}

// showLocals makes kernels look at so many registered buffers, in the state's copy that the network path reads: also those
// that run already.
func (p *PE) showLocals(entries uint32) error {
	at := p.tables.self + uint64(unsafe.Offsetof(p.state.LocalCount))
	return p.write(at, binary.LittleEndian.AppendUint32(nil, entries))
}

// UnregisterBuffer ends RegisterBuffer, by the address it was called with.
func (p *PE) UnregisterBuffer(address uint64) error {
	const op = "unregister buffer"
	if err := p.check(op); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unregister(op, address)
}

// UnregisterAllBuffers ends all RegisterBuffers.
func (p *PE) UnregisterAllBuffers() error {
	const op = "unregister all buffers"
	if err := p.check(op); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	var all []uint64
	p.localsMu.Lock()
	for address := range p.locals {
		all = append(all, address)
	}
	p.localsMu.Unlock()
	slices.Sort(all)
	for _, address := range all {
		errs = append(errs, p.unregister(op, address))
	}
	return errors.Join(errs...)
}

func (p *PE) unregister(op string, address uint64) error {
	p.localsMu.Lock()
	_, have := p.locals[address]
	delete(p.locals, address)
	p.localsMu.Unlock()
	if !have {
		return fault(layout.StatusArgument, op, -1, "no buffer is registered at %#x", address)
	}
	var errs []error
	for _, t := range p.transports {
		if l, ok := t.(transport.LocalRegistrar); ok {
			errs = append(errs, l.UnregisterLocal(address))
		}
	}
	return wrap(op, errors.Join(errs...))
}

// RegisterSymmetric makes a buffer that every PE brings, of the same size, part of the heap, and returns its address there: a
// second address of the same memory, which operations take. The buffer must be a whole allocation of device memory by
// cuMemCreate with a shareable descriptor, mapped at once. It must stay until UnregisterSymmetric. Collective.
func (p *PE) RegisterSymmetric(address, bytes uint64) (uint64, error) {
	if err := p.check("register symmetric buffer"); err != nil {
		return 0, err
	}
	ctx, cancel := p.context()
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := request{op: opForeign, bytes: bytes}
	plan, err := p.heap.PlanForeign(bytes)
	if err == nil && p.static != 0 {
		err = fault(layout.StatusSupport, r.op.String(), -1, "the heap is static")
	}
	if err == nil && bytes%heap.MinChunk != 0 {
		err = fault(layout.StatusArgument, r.op.String(), -1, "%d bytes: a multiple of %d is needed", bytes, heap.MinChunk)
	}
	if err != nil {
		_, err = p.together(ctx, r, err, nil)
		return 0, err
	}
	if err := p.grow(ctx, r, plan, address); err != nil {
		return 0, err
	}
	return p.heapBase + plan.Allocation.Offset, nil
}

// UnregisterSymmetric ends RegisterSymmetric, by the address that it returned. Collective.
func (p *PE) UnregisterSymmetric(address uint64) error {
	return p.free(request{op: opForeignEnd}, address)
}
