package shmem

import (
	"math"
	"sync/atomic"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// atomicSize checks the type and address of an atomic operation and returns its size.
func atomicSize(op string, code, kind uint32, dest uint64) (int, error) {
	size := kernels.TypeBytes(kind)
	if size != 4 && size != 8 {
		return 0, fault(layout.StatusArgument, op, -1, "type %d: atomic operations are on 32 and 64 bits", kind)
	}
	if code > layout.AtomicCompareSwap {
		return 0, fault(layout.StatusArgument, op, -1, "there is no atomic operation %d", code)
	}
	if kind >= layout.TypeFloat16 && code != layout.AtomicSet && code != layout.AtomicAdd && code != layout.AtomicCompareSwap {
		return 0, fault(layout.StatusArgument, op, -1, "no bitwise operation on floating-point numbers")
	}
	if dest%uint64(size) != 0 {
		return 0, fault(layout.StatusArgument, op, -1, "address %#x is not aligned to %d", dest, size)
	}
	return size, nil
}

// Atomic does an atomic operation (layout.Atomic*) on an element of a 32 or 64-bit type (layout.Type*) at dest in a
// PE's heap. Values are given by their bits; compare is for compare-and-swap. With fetch the result is the old value. A
// plain fetch is AtomicAdd of 0 for integers.
func (o *operations) Atomic(code, kind uint32, dest, value, compare uint64, fetch bool, pe int) (uint64, error) {
	const op = "atomic"
	size, err := atomicSize(op, code, kind, dest)
	if err != nil {
		return 0, err
	}
	at, err := o.target(op, dest, uint64(size), pe)
	if err != nil {
		return 0, err
	}
	if err := o.routes.noAtomics(op, pe); err != nil {
		return 0, err
	}
	if o.exec.plain() {
		if at == 0 || !o.routes.atomic[pe] {
			return 0, notMapped(op, pe)
		}
		return hostAtomic(code, kind, at, value, compare), nil
	}
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	a := with{dest: dest, source: own.stage, value: value, compare: compare, pe: uint32(pe), code: code, kind: kind}
	what := kernels.Atomic
	if fetch {
		what = kernels.Fetch
		storeElement(own.stage, 0, 8)
	}
	if err := o.rmaLocked(op, what, a); err != nil {
		return 0, err
	}
	if err := o.exec.finish(op, own.stream); err != nil {
		return 0, err
	}
	if !fetch {
		return 0, nil
	}
	return loadElement(own.stage, size), nil
}

// hostAtomic does an atomic operation on host memory by the CPU, and returns the old bits.
func hostAtomic(code, kind uint32, at, value, compare uint64) uint64 {
	if kernels.TypeBytes(kind) == 4 {
		w := hostPointer[uint32](at)
		for {
			old := atomic.LoadUint32(w)
			if code == layout.AtomicCompareSwap && old != uint32(compare) {
				return uint64(old)
			}
			next := uint32(combine(code, uint64(old), value))
			if kind == layout.TypeFloat32 && code == layout.AtomicAdd {
				next = math.Float32bits(math.Float32frombits(old) + math.Float32frombits(uint32(value)))
			}
			if atomic.CompareAndSwapUint32(w, old, next) {
				return uint64(old)
			}
		}
	}
	w := hostPointer[uint64](at)
	for {
		old := atomic.LoadUint64(w)
		if code == layout.AtomicCompareSwap && old != compare {
			return old
		}
		next := combine(code, old, value)
		if kind == layout.TypeFloat64 && code == layout.AtomicAdd {
			next = math.Float64bits(math.Float64frombits(old) + math.Float64frombits(value))
		}
		if atomic.CompareAndSwapUint64(w, old, next) {
			return old
		}
	}
}

// combine is what an integer operation makes of a value.
func combine(code uint32, old, value uint64) uint64 {
	switch code {
	case layout.AtomicAdd:
		return old + value
	case layout.AtomicAnd:
		return old & value
	case layout.AtomicOr:
		return old | value
	case layout.AtomicXor:
		return old ^ value
	}
	return value
}
