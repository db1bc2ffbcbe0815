// Package heap decides where in a symmetric heap things lie, and which pieces of it need memory. It is arithmetic only:
// every PE runs it with the same calls and gets the same offsets, without any messages between them. Mapping memory and
// telling the other PEs is the runtime's part.
//
// # Words
//
// The heap is a range of Max bytes of addresses, of which offsets are known. A chunk is the unit in which it gets
// memory. An extent is a run of chunks that got theirs at once, as one driver handle; only whole extents are given
// back. An allocation lies in extents, also across the border of two. Extents may be anywhere, with holes between them.
//
// # Growing and shrinking
//
//	offset, ok := h.Allocate(bytes, align)       // in memory that is there
//	plan, err := h.PlanGrow(bytes, align)        // else: which extents are needed, and the offset it will have
//	... every PE makes plan.Extents, and all say that they could ...
//	h.Commit(plan)
//
//	h.Free(offset)
//	gone := h.Unused()                           // extents in which nothing is allocated
//	... every PE lets go of the others', then all of their own ...
//	h.Drop(gone)
//
// A Heap is not safe for concurrent use.
package heap

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// Align is the least alignment of an allocation; sizes are rounded up to it.
const Align = 256

// MinChunk is the smallest chunk: the unit of memory that drivers map.
const MinChunk = 2 << 20

// Errors that callers tell apart.
var (
	// ErrFull: the heap's addresses do not have such a range free.
	ErrFull = errors.New("the symmetric heap is full")
	// ErrArgument: a size or alignment that cannot be.
	ErrArgument = errors.New("impossible request")
	// ErrUnknown: there is no allocation at that offset.
	ErrUnknown = errors.New("no allocation begins there")
)

// Extent is a run of the heap that has memory.
type Extent struct {
	Offset, Bytes uint64
	// Foreign: the memory is a program's own buffer. It ends with that, not by disuse, and its size is the buffer's,
	// which may end within a chunk.
	Foreign bool
}

// End is the offset of the end of the extent.
func (e Extent) End() uint64 { return e.Offset + e.Bytes }

// Extents are the parts of a heap that have memory, by offset.
type Extents []Extent

// Holds says whether all of [offset, offset+bytes) has memory, so that it can be reached.
func (x Extents) Holds(offset, bytes uint64) bool {
	for _, e := range x[x.from(offset):] {
		if bytes == 0 || e.Offset > offset {
			break
		}
		n := min(bytes, e.End()-offset)
		offset, bytes = offset+n, bytes-n
	}
	return bytes == 0
}

// from is the index of the first extent that does not end before an offset.
func (x Extents) from(offset uint64) int {
	i, _ := slices.BinarySearchFunc(x, offset, func(e Extent, at uint64) int {
		if e.End() <= at {
			return -1
		}
		return 1
	})
	return i
}

// Allocation is a range that a program has.
type Allocation struct{ Offset, Bytes uint64 }

// End is the offset of the end of the allocation.
func (a Allocation) End() uint64 { return a.Offset + a.Bytes }

// Plan is a growth that has not happened.
type Plan struct {
	Extents    []Extent
	Allocation Allocation // what is allocated when it has
}

// Bytes is the memory that a plan adds.
func (p *Plan) Bytes() uint64 {
	var n uint64
	for _, e := range p.Extents {
		n += e.Bytes
	}
	return n
}

// Heap knows the extents and allocations of a heap.
type Heap struct {
	max, chunk, most uint64
	extents          Extents
	allocations      []Allocation // by offset
	used, mapped     uint64
}

// New makes an empty heap of max bytes of addresses, which gets memory in chunks, at most most bytes at once (0: no
// limit). chunk is a power of two of at least MinChunk; max and most are multiples of it.
func New(limit, chunk, most uint64) (*Heap, error) {
	if most == 0 {
		most = limit
	}
	if chunk < MinChunk || bits.OnesCount64(chunk) != 1 {
		return nil, fmt.Errorf("%w: chunks of %d bytes: a power of two of at least %d is needed", ErrArgument, chunk, MinChunk)
	}
	if limit == 0 || limit%chunk != 0 || most%chunk != 0 {
		return nil, fmt.Errorf("%w: a heap of %d bytes, extents of %d, in chunks of %d", ErrArgument, limit, most, chunk)
	}
	return &Heap{max: limit, chunk: chunk, most: most}, nil
}

// Max is the size of the address range, Chunk that of a chunk.
func (h *Heap) Max() uint64 { return h.max }

// Chunk is the unit in which the heap gets memory.
func (h *Heap) Chunk() uint64 { return h.chunk }

// Used is the sum of all allocations.
func (h *Heap) Used() uint64 { return h.used }

// Mapped is the sum of all extents.
func (h *Heap) Mapped() uint64 { return h.mapped }

// Extents are those of now: a copy.
func (h *Heap) Extents() Extents { return slices.Clone(h.extents) }

// Allocations is how many there are.
func (h *Heap) Allocations() int { return len(h.allocations) }

func up(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// normal checks a request and rounds it.
func (h *Heap) normal(bytes, align uint64) (uint64, uint64, error) {
	if align == 0 {
		align = Align
	}
	if bits.OnesCount64(align) != 1 || align > h.max {
		return 0, 0, fmt.Errorf("%w: alignment %d: it must be a power of two, no larger than the heap", ErrArgument, align)
	}
	if bytes == 0 {
		return 0, 0, fmt.Errorf("%w: no bytes", ErrArgument)
	}
	if bytes > h.max {
		return 0, 0, fmt.Errorf("%w: %d bytes asked for, all of the heap has %d", ErrFull, bytes, h.max)
	}
	return up(bytes, Align), max(align, Align), nil
}

// gaps calls f for each range without an allocation, in order.
func (h *Heap) gaps(f func(from, to uint64) bool) {
	at := uint64(0)
	for _, a := range h.allocations {
		if a.Offset > at && !f(at, a.Offset) {
			return
		}
		at = a.End()
	}
	if at < h.max {
		f(at, h.max)
	}
}

// runs calls f for each part of [from, to) with memory that is not foreign, neighbours joined.
func (h *Heap) runs(from, to uint64, f func(from, to uint64)) {
	var start, end uint64
	for _, e := range h.extents[h.extents.from(from):] {
		if e.Offset >= to {
			break
		}
		if e.Foreign {
			continue
		}
		if e.Offset != end || end == 0 {
			if start < end {
				f(start, end)
			}
			start = max(e.Offset, from)
		}
		end = min(e.End(), to)
	}
	if start < end {
		f(start, end)
	}
}

// Allocate takes a range of memory that is there: of those it fits in the smallest, and of these the first. It says no
// when there is none or the request is impossible, which PlanGrow tells apart.
func (h *Heap) Allocate(bytes, align uint64) (uint64, bool) {
	bytes, align, err := h.normal(bytes, align)
	if err != nil {
		return 0, false
	}
	best, room := uint64(0), ^uint64(0)
	h.gaps(func(from, to uint64) bool {
		if to-from >= bytes {
			h.runs(from, to, func(from, to uint64) {
				if at := up(from, align); at >= from && at <= to && to-at >= bytes && to-from < room {
					best, room = at, to-from
				}
			})
		}
		return true
	})
	if room == ^uint64(0) {
		return 0, false
	}
	h.insert(Allocation{best, bytes})
	return best, true
}

func (h *Heap) insert(a Allocation) {
	i, _ := slices.BinarySearchFunc(h.allocations, a.Offset, func(x Allocation, at uint64) int { return cmp(x.Offset, at) })
	h.allocations = slices.Insert(h.allocations, i, a)
	h.used += a.Bytes
}

func cmp(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// LargePage is the largest page that GPUs map memory by. What is that large begins at a multiple of it if it can, since
// a GPU loses time where it needs many small pages.
const LargePage = 512 << 20

// PlanGrow says which extents an allocation needs that does not fit in the memory there is. Of the places where it may
// lie it takes the one that needs the least memory, and of these the first.
func (h *Heap) PlanGrow(bytes, align uint64) (*Plan, error) {
	bytes, align, err := h.normal(bytes, align)
	if err != nil {
		return nil, err
	}
	if bytes >= LargePage && align < LargePage {
		if p, err := h.planGrow(bytes, LargePage); err == nil {
			return p, nil
		}
	}
	return h.planGrow(bytes, align)
}

func (h *Heap) planGrow(bytes, align uint64) (*Plan, error) {
	best, need := uint64(0), ^uint64(0)
	try := func(at, from, to uint64) {
		if at < from || at > to || to-at < bytes {
			return
		}
		if n, ok := h.missing(at, at+bytes, nil); ok && (n < need || n == need && at < best) {
			best, need = at, n
		}
	}
	h.gaps(func(from, to uint64) bool {
		if to-from < bytes {
			return true
		}
		try(up(from, align), from, to)
		try((to-bytes)&^(align-1), from, to)
		for _, e := range h.extents {
			if up(e.End(), h.chunk) <= from || e.Offset >= to {
				continue
			}
			// Beginning where memory begins, ending where it ends, and after what cannot be used.
			try(up(max(e.Offset, from), align), from, to)
			try(up(up(e.End(), h.chunk), align), from, to)
			if end := min(e.End(), to); end >= bytes {
				try((end-bytes)&^(align-1), from, to)
			}
			if e.Foreign && e.Offset >= bytes {
				try((e.Offset-bytes)&^(align-1), from, to)
			}
		}
		return true
	})
	if need == ^uint64(0) {
		return nil, fmt.Errorf("%w: no %d bytes in one piece; %d of %d are allocated", ErrFull, bytes, h.used, h.max)
	}
	p := &Plan{Allocation: Allocation{best, bytes}}
	h.missing(best, best+bytes, &p.Extents)
	return p, nil
}

// missing is how much of [from, to) has no memory, in whole chunks, and in out the extents that it takes. It says no
// when the range touches a foreign extent's chunks.
func (h *Heap) missing(from, to uint64, out *[]Extent) (uint64, bool) {
	from, to = from&^(h.chunk-1), up(to, h.chunk)
	var need uint64
	add := func(from, to uint64) {
		need += to - from
		for out != nil && from < to {
			n := min(to-from, h.most)
			*out = append(*out, Extent{Offset: from, Bytes: n})
			from += n
		}
	}
	at := from
	for _, e := range h.extents {
		end := up(e.End(), h.chunk)
		if end <= from || e.Offset >= to {
			continue
		}
		if e.Foreign {
			return 0, false
		}
		if e.Offset > at {
			add(at, e.Offset)
		}
		at = min(end, to)
	}
	if at < to {
		add(at, to)
	}
	return need, true
}

// PlanForeign finds the place for a buffer that a program brings: chunks that have no memory, and no allocation either.
func (h *Heap) PlanForeign(bytes uint64) (*Plan, error) {
	if bytes == 0 || bytes > h.max {
		return nil, fmt.Errorf("%w: a buffer of %d bytes", ErrArgument, bytes)
	}
	at := uint64(0)
	for _, e := range h.extents {
		if e.Offset-at >= up(bytes, h.chunk) {
			break
		}
		at = up(e.End(), h.chunk)
	}
	if h.max-at < up(bytes, h.chunk) {
		return nil, fmt.Errorf("%w: no free addresses for a buffer of %d bytes", ErrFull, bytes)
	}
	return &Plan{Extents: []Extent{{at, bytes, true}}, Allocation: Allocation{at, bytes}}, nil
}

// Commit makes a plan true. The heap must be as it was when the plan was made.
func (h *Heap) Commit(p *Plan) {
	for _, e := range p.Extents {
		i, _ := slices.BinarySearchFunc(h.extents, e.Offset, func(x Extent, at uint64) int { return cmp(x.Offset, at) })
		h.extents = slices.Insert(h.extents, i, e)
		h.mapped += e.Bytes
	}
	if p.Allocation.Bytes > 0 {
		h.insert(p.Allocation)
	}
}

// PlanStatic is the plan of a heap that has all its memory from the start.
func (h *Heap) PlanStatic(bytes uint64) (*Plan, error) {
	bytes = up(bytes, h.chunk)
	if bytes == 0 || bytes > h.max || len(h.extents) > 0 {
		return nil, fmt.Errorf("%w: a static heap of %d bytes", ErrArgument, bytes)
	}
	return &Plan{Extents: []Extent{{Bytes: bytes}}}, nil
}

// Find returns the allocation that begins at an offset.
func (h *Heap) Find(offset uint64) (Allocation, bool) {
	i, ok := slices.BinarySearchFunc(h.allocations, offset, func(x Allocation, at uint64) int { return cmp(x.Offset, at) })
	if !ok {
		return Allocation{}, false
	}
	return h.allocations[i], true
}

// ExtentAt returns the extent that begins at an offset.
func (h *Heap) ExtentAt(offset uint64) (Extent, bool) {
	i, ok := slices.BinarySearchFunc(h.extents, offset, func(x Extent, at uint64) int { return cmp(x.Offset, at) })
	if !ok {
		return Extent{}, false
	}
	return h.extents[i], true
}

// Free ends an allocation. Its extents stay until they are dropped.
func (h *Heap) Free(offset uint64) error {
	i, ok := slices.BinarySearchFunc(h.allocations, offset, func(x Allocation, at uint64) int { return cmp(x.Offset, at) })
	if !ok {
		return fmt.Errorf("%w: offset %#x", ErrUnknown, offset)
	}
	h.used -= h.allocations[i].Bytes
	h.allocations = slices.Delete(h.allocations, i, i+1)
	return nil
}

// Unused lists the extents in which nothing is allocated. As long as the sum of what would stay unused is below keep,
// the first of them are left out.
func (h *Heap) Unused(keep uint64) []Extent {
	var out []Extent
	i := 0
	for _, e := range h.extents {
		for i < len(h.allocations) && h.allocations[i].End() <= e.Offset {
			i++
		}
		if i < len(h.allocations) && h.allocations[i].Offset < e.End() {
			continue
		}
		if !e.Foreign && e.Bytes <= keep {
			keep -= e.Bytes
			continue
		}
		out = append(out, e)
	}
	return out
}

// Drop takes extents away, in which nothing may be allocated.
func (h *Heap) Drop(extents []Extent) error {
	for _, e := range extents {
		i := slices.Index(h.extents, e)
		if i < 0 {
			return fmt.Errorf("%w: no extent at offset %#x", ErrUnknown, e.Offset)
		}
		for _, a := range h.allocations {
			if a.Offset < e.End() && a.End() > e.Offset {
				return fmt.Errorf("%w: the extent at %#x is in use at %#x", ErrArgument, e.Offset, a.Offset)
			}
		}
		h.extents = slices.Delete(h.extents, i, i+1)
		h.mapped -= e.Bytes
	}
	return nil
}

// Check verifies what must always hold, and says what does not: extents and allocations are sorted and apart, extents
// are of whole chunks, allocations are aligned and lie in memory, and the sums are right.
func (h *Heap) Check() error {
	var end, mapped, used uint64
	for _, e := range h.extents {
		if e.Offset < end || e.Offset%h.chunk != 0 || e.Bytes == 0 || !e.Foreign && (e.Bytes%h.chunk != 0 || e.Bytes > h.most && len(h.extents) > 1) {
			return fmt.Errorf("extent %+v after %#x", e, end)
		}
		end = up(e.End(), h.chunk)
		mapped += e.Bytes
	}
	if end > h.max || mapped != h.mapped {
		return fmt.Errorf("extents end at %#x of %#x, %d bytes, counted %d", end, h.max, mapped, h.mapped)
	}
	end = 0
	for _, a := range h.allocations {
		if a.Offset < end || a.Offset%Align != 0 || a.Bytes == 0 || !h.extents.Holds(a.Offset, a.Bytes) {
			return fmt.Errorf("allocation %+v after %#x", a, end)
		}
		end = a.End()
		used += a.Bytes
	}
	if end > h.max || used != h.used {
		return fmt.Errorf("allocations end at %#x of %#x, %d bytes, counted %d", end, h.max, used, h.used)
	}
	return nil
}
