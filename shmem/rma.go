package shmem

import (
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// target checks a call on bytes at a heap address of a PE, and returns where that is mapped here, 0 if it is not. It does not
// leave that to the GPU: a kernel that meets an address without memory takes the whole context with it. No bytes are nowhere,
// whatever the address.
func (p *PE) target(op string, address, bytes uint64, pe int) (uint64, error) {
	if err := p.check(op); err != nil {
		return 0, err
	}
	if pe < 0 || pe >= p.size {
		return 0, fault(layout.StatusArgument, op, -1, "there is no PE %d among %d", pe, p.size)
	}
	if bytes == 0 {
		return 0, nil
	}
	offset := address - p.heapBase
	if offset >= p.heapBytes || bytes > p.heapBytes-offset {
		return 0, fault(layout.StatusArgument, op, pe, "%d bytes at %#x are not in the symmetric heap", bytes, address)
	}
	if offset < p.internal.bytes {
		return 0, fault(layout.StatusArgument, op, pe, "%#x (offset %#x of the heap) is memory of the library's own, not the program's", address, offset)
	}
	if !p.held.Load().Holds(offset, bytes) {
		return 0, fault(layout.StatusArgument, op, pe, "nothing is allocated in %d bytes at %#x (offset %#x of the heap), or in a part of them", bytes, address, offset)
	}
	if p.mapped[pe] == 0 {
		return 0, nil
	}
	return p.mapped[pe] + offset, nil
}

// notMapped is what a PE without a GPU says of one whose memory it does not see, which Init refuses.
func (p *PE) notMapped(op string, pe int) error {
	return fault(layout.StatusSupport, op, pe, "its memory is not mapped here, and PEs without a GPU need that")
}

// own says whether there is memory of the heap at an address of this PE.
func (p *PE) own(address, bytes uint64) bool {
	offset := address - p.heapBase
	return offset < p.heapBytes && bytes <= p.heapBytes-offset && p.held.Load().Holds(offset, bytes)
}

// reachable says whether queues can use memory as the local side.
func (p *PE) reachable(address, bytes uint64) bool {
	if p.own(address, bytes) {
		return true
	}
	p.localsMu.Lock()
	defer p.localsMu.Unlock()
	for start, size := range p.locals {
		if offset := address - start; offset < size && bytes <= size-offset {
			return true
		}
	}
	return false
}

// Put copies bytes from a local address to dest in a PE's heap, and returns when they are there. The source may be any memory.
func (p *PE) Put(dest, source, bytes uint64, pe int) error {
	return p.put("put", dest, source, bytes, pe, true)
}

// PutNBI is Put that may return before; Quiet waits for it. The source must stay as it is until then.
func (p *PE) PutNBI(dest, source, bytes uint64, pe int) error {
	return p.put("put_nbi", dest, source, bytes, pe, false)
}

func (p *PE) put(op string, dest, source, bytes uint64, pe int, wait bool) error {
	to, err := p.target(op, dest, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	return p.putTo(op, to, dest, source, bytes, pe, wait)
}

// putTo is put to a checked address, which is mapped at to unless that is 0.
func (p *PE) putTo(op string, to, dest, source, bytes uint64, pe int, wait bool) error {
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	var err error
	switch {
	case to != 0:
		err = p.copyOn(to, source, bytes, p.hot.stream)
	case p.reachable(source, bytes):
		err = p.kernel(op, kernels.Put, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, p.hot.stream)
	default: // through memory that the NIC knows
		stage := p.heapBase + p.internal.stage
		for bytes > 0 && err == nil {
			n := min(bytes, stageBytes)
			if err = p.copyOn(stage, source, n, p.hot.stream); err == nil {
				err = p.kernel(op, kernels.Put, with{dest: dest, source: stage, bytes: n, pe: uint32(pe)}, p.hot.stream)
			}
			dest, source, bytes = dest+n, source+n, bytes-n
		}
	}
	if err != nil || !wait {
		return wrap(op, err)
	}
	return p.finish(op, p.hot.stream)
}

// Get copies bytes from source in a PE's heap to a local address, and returns when they are there.
func (p *PE) Get(dest, source, bytes uint64, pe int) error {
	return p.get("get", dest, source, bytes, pe, true)
}

// GetNBI is Get that may return before; Quiet waits for it.
func (p *PE) GetNBI(dest, source, bytes uint64, pe int) error {
	return p.get("get_nbi", dest, source, bytes, pe, false)
}

func (p *PE) get(op string, dest, source, bytes uint64, pe int, wait bool) error {
	from, err := p.target(op, source, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	switch {
	case from != 0:
		err = p.copyOn(dest, from, bytes, p.hot.stream)
	case p.reachable(dest, bytes):
		err = p.kernel(op, kernels.Get, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, p.hot.stream)
	default:
		stage := p.heapBase + p.internal.stage
		for bytes > 0 && err == nil {
			n := min(bytes, stageBytes)
			if err = p.kernel(op, kernels.Get, with{dest: stage, source: source, bytes: n, pe: uint32(pe)}, p.hot.stream); err == nil {
				err = p.copyOn(dest, stage, n, p.hot.stream)
			}
			dest, source, bytes = dest+n, source+n, bytes-n
		}
	}
	if err != nil || !wait {
		return wrap(op, err)
	}
	return p.finish(op, p.hot.stream)
}

// width checks the size of an element.
func width(op string, n int) error {
	switch n {
	case 1, 2, 4, 8:
		return nil
	}
	return fault(layout.StatusArgument, op, -1, "elements of %d bytes: 1, 2, 4 or 8", n)
}

// unsigned is the type of elements of n bytes of which only the bits matter.
func unsigned(n int) uint32 {
	switch n {
	case 1:
		return layout.TypeUint8
	case 2:
		return layout.TypeUint16
	case 4:
		return layout.TypeUint32
	}
	return layout.TypeUint64
}

// P writes one element of 1, 2, 4 or 8 bytes, given by its bits, to dest in a PE's heap.
func (p *PE) P(dest, value uint64, size, pe int) error {
	const op = "p"
	if err := width(op, size); err != nil {
		return err
	}
	to, err := p.target(op, dest, uint64(size), pe)
	if err != nil {
		return err
	}
	if p.ctx == nil && to != 0 {
		storeElement(to, value, size)
		return nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	storeElement(p.hot.stage, value, size)
	if to != 0 {
		err = p.copyOn(to, p.hot.stage, uint64(size), p.hot.stream)
	} else {
		stage := p.heapBase + p.internal.stage
		if err = p.copyOn(stage, p.hot.stage, uint64(size), p.hot.stream); err == nil {
			err = p.kernel(op, kernels.Put, with{dest: dest, source: stage, bytes: uint64(size), pe: uint32(pe)}, p.hot.stream)
		}
	}
	if err != nil {
		return wrap(op, err)
	}
	return p.finish(op, p.hot.stream) // the staging memory is free again
}

// G reads one element of 1, 2, 4 or 8 bytes from source in a PE's heap, and returns its bits.
func (p *PE) G(source uint64, size, pe int) (uint64, error) {
	const op = "g"
	if err := width(op, size); err != nil {
		return 0, err
	}
	from, err := p.target(op, source, uint64(size), pe)
	if err != nil {
		return 0, err
	}
	if p.ctx == nil && from != 0 {
		return loadElement(from, size), nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	if from == 0 {
		from = p.heapBase + p.internal.stage
		err = p.kernel(op, kernels.Get, with{dest: from, source: source, bytes: uint64(size), pe: uint32(pe)}, p.hot.stream)
	}
	if err == nil {
		err = p.copyOn(p.hot.stage, from, uint64(size), p.hot.stream)
	}
	if err != nil {
		return 0, wrap(op, err)
	}
	if err := p.finish(op, p.hot.stream); err != nil {
		return 0, err
	}
	return loadElement(p.hot.stage, size), nil
}

// storeElement and loadElement access aligned elements of host memory whole, others by bytes.
func storeElement(at, value uint64, size int) {
	switch {
	case size == 8 && at%8 == 0:
		atomic.StoreUint64(hostPointer[uint64](at), value)
	case size == 4 && at%4 == 0:
		atomic.StoreUint32(hostPointer[uint32](at), uint32(value))
	default:
		b := cuda.Bytes(at, uint64(size))
		for i := range b {
			b[i] = byte(value >> (8 * i))
		}
	}
}

func loadElement(at uint64, size int) uint64 {
	switch {
	case size == 8 && at%8 == 0:
		return atomic.LoadUint64(hostPointer[uint64](at))
	case size == 4 && at%4 == 0:
		return uint64(atomic.LoadUint32(hostPointer[uint32](at)))
	}
	var v uint64
	for i, x := range cuda.Bytes(at, uint64(size)) {
		v |= uint64(x) << (8 * i)
	}
	return v
}

// span is how many bytes n elements with a stride cover.
func span(op string, stride int64, size int, n uint64) (uint64, error) {
	if stride < 1 || n > 1<<40 || stride > 1<<40/int64(max(1, n)) {
		return 0, fault(layout.StatusArgument, op, -1, "%d elements by a stride of %d", n, stride)
	}
	if n == 0 {
		return 0, nil
	}
	return ((n-1)*uint64(stride) + 1) * uint64(size), nil
}

// IPut copies n elements of 1, 2, 4 or 8 bytes from every sourceStride-th to every destStride-th of a PE's heap.
func (p *PE) IPut(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int) error {
	return p.strided("iput", kernels.StridedPut, dest, source, destStride, sourceStride, size, n, pe, 0, true)
}

// IGet copies n elements of a PE's heap to local memory, which in a GPU's job must be memory that the GPU reaches.
func (p *PE) IGet(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int) error {
	return p.strided("iget", kernels.StridedGet, dest, source, destStride, sourceStride, size, n, pe, 0, true)
}

// IPutOnStream is IPut in the order of a stream.
func (p *PE) IPutOnStream(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int, stream uintptr) error {
	return p.strided("iput_on_stream", kernels.StridedPut, dest, source, destStride, sourceStride, size, n, pe, stream, false)
}

// IGetOnStream is IGet in the order of a stream.
func (p *PE) IGetOnStream(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int, stream uintptr) error {
	return p.strided("iget_on_stream", kernels.StridedGet, dest, source, destStride, sourceStride, size, n, pe, stream, false)
}

func (p *PE) strided(op string, what kernels.RMAOperation, dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int,
	stream uintptr, wait bool) error {
	if err := width(op, size); err != nil {
		return err
	}
	heap, stride := dest, destStride
	if what == kernels.StridedGet {
		heap, stride = source, sourceStride
	}
	bytes, err := span(op, stride, size, n)
	if err != nil {
		return err
	}
	if _, err := span(op, destStride+sourceStride-stride, size, n); err != nil {
		return err
	}
	at, err := p.target(op, heap, bytes, pe)
	if err != nil || n == 0 {
		return err
	}
	if p.ctx == nil {
		if at == 0 {
			return p.notMapped(op, pe)
		}
		if what == kernels.StridedGet {
			source = at
		} else {
			dest = at
		}
		return wrap(op, touch(func() {
			for i := range n {
				storeElement(dest+i*uint64(destStride)*uint64(size), loadElement(source+i*uint64(sourceStride)*uint64(size), size), size)
			}
		}))
	}
	a := with{dest: dest, source: source, bytes: n * uint64(size), destStride: destStride, srcStride: sourceStride, pe: uint32(pe), kind: unsigned(size)}
	if !wait {
		return p.kernel(op, what, a, stream)
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	if err := p.kernel(op, what, a, p.hot.stream); err != nil {
		return err
	}
	return p.finish(op, p.hot.stream)
}

// atomicSize checks the type and place of an atomic operation and returns its size.
func atomicSize(op string, code, kind uint32, dest uint64) (int, error) {
	size := kernels.TypeBytes(kind)
	if size != 4 && size != 8 {
		return 0, fault(layout.StatusArgument, op, -1, "type %d: atomic operations are on 32 and 64 bits", kind)
	}
	if code > layout.AtomicCompareSwap {
		return 0, fault(layout.StatusArgument, op, -1, "there is no atomic operation %d", code)
	}
	if kind >= layout.TypeFloat16 && code != layout.AtomicSet && !(code == layout.AtomicAdd) && code != layout.AtomicCompareSwap {
		return 0, fault(layout.StatusArgument, op, -1, "no bitwise operation on floating-point numbers")
	}
	if dest%uint64(size) != 0 {
		return 0, fault(layout.StatusArgument, op, -1, "address %#x is not aligned to %d", dest, size)
	}
	return size, nil
}

// Atomic does an atomic operation (layout.Atomic*) on an element of a 32 or 64-bit type (layout.Type*) at dest in a PE's heap.
// Values are given by their bits; compare is for compare-and-swap. With fetch the result is the old value. A plain fetch is
// AtomicAdd of 0 for integers.
func (p *PE) Atomic(code, kind uint32, dest, value, compare uint64, fetch bool, pe int) (uint64, error) {
	const op = "atomic"
	size, err := atomicSize(op, code, kind, dest)
	if err != nil {
		return 0, err
	}
	at, err := p.target(op, dest, uint64(size), pe)
	if err != nil {
		return 0, err
	}
	if p.choice.AMO[pe] < 0 {
		return 0, fault(layout.StatusSupport, op, pe, "nothing here does atomic operations on its memory")
	}
	if p.ctx == nil {
		if at == 0 || !p.atomic[pe] {
			return 0, p.notMapped(op, pe)
		}
		return hostAtomic(code, kind, at, value, compare), nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	a := with{dest: dest, source: p.hot.stage, value: value, compare: compare, pe: uint32(pe), code: code, kind: kind}
	what := kernels.Atomic
	if fetch {
		what = kernels.Fetch
		storeElement(p.hot.stage, 0, 8)
	}
	if err := p.kernel(op, what, a, p.hot.stream); err != nil {
		return 0, err
	}
	if err := p.finish(op, p.hot.stream); err != nil {
		return 0, err
	}
	if !fetch {
		return 0, nil
	}
	return loadElement(p.hot.stage, size), nil
}

// AtomicOnStream is Atomic in the order of a stream. The old value goes to the local address fetch, if that is not 0.
func (p *PE) AtomicOnStream(code, kind uint32, dest, value, compare, fetch uint64, pe int, stream uintptr) error {
	const op = "atomic_on_stream"
	size, err := atomicSize(op, code, kind, dest)
	if err != nil {
		return err
	}
	if _, err := p.target(op, dest, uint64(size), pe); err != nil {
		return err
	}
	if p.choice.AMO[pe] < 0 {
		return fault(layout.StatusSupport, op, pe, "nothing here does atomic operations on its memory")
	}
	if p.ctx == nil {
		old, err := p.Atomic(code, kind, dest, value, compare, fetch != 0, pe)
		if err == nil && fetch != 0 {
			err = wrap(op, touch(func() { storeElement(fetch, old, size) }))
		}
		return err
	}
	what := kernels.Atomic
	if fetch != 0 {
		what = kernels.Fetch
	}
	return p.kernel(op, what, with{dest: dest, source: fetch, value: value, compare: compare, pe: uint32(pe), code: code, kind: kind}, stream)
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

// signalCode checks a signal operation and its word.
func signalCode(op string, code uint32, signal uint64) error {
	if code != layout.SignalSet && code != layout.SignalAdd {
		return fault(layout.StatusArgument, op, -1, "signal operation %d", code)
	}
	if signal%8 != 0 {
		return fault(layout.StatusArgument, op, -1, "the signal's address %#x is not aligned to 8", signal)
	}
	return nil
}

// SignalOp sets a signal word in a PE's heap or adds to it (layout.Signal*).
func (p *PE) SignalOp(signal, value uint64, code uint32, pe int) error {
	return p.signal("signal_op", signal, value, code, pe)
}

func (p *PE) signal(op string, signal, value uint64, code uint32, pe int) error {
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := p.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	if p.ctx == nil {
		if to == 0 {
			return p.notMapped(op, pe)
		}
		a := layout.AtomicSet
		if code == layout.SignalAdd {
			a = layout.AtomicAdd
		}
		hostAtomic(a, layout.TypeUint64, to, value, 0)
		return nil
	}
	return p.signalTo(op, to, signal, value, code, pe)
}

// signalTo is signal on a checked word, which is mapped at to unless that is 0, by a GPU.
func (p *PE) signalTo(op string, to, signal, value uint64, code uint32, pe int) error {
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	if err := p.signalOn(op, to, signal, value, code, pe, p.hot.stream); err != nil {
		return err
	}
	return p.finish(op, p.hot.stream)
}

// PutSignal is a Put, then a signal in the same PE's heap: who sees the signal sees the data.
func (p *PE) PutSignal(dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	return p.putSignal("put_signal", dest, source, bytes, signal, value, code, pe)
}

// PutSignalNBI is PutSignal that may return before. It does not, so far: the source is free when it returns.
func (p *PE) PutSignalNBI(dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	return p.putSignal("put_signal_nbi", dest, source, bytes, signal, value, code, pe)
}

func (p *PE) putSignal(op string, dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	if _, err := p.target(op, signal, 8, pe); err != nil {
		return err
	}
	// The put has arrived when it returns: nothing can overtake it.
	if err := p.put(op, dest, source, bytes, pe, true); err != nil {
		return err
	}
	return p.signal(op, signal, value, code, pe)
}

// SignalFetch reads a signal word of this PE.
func (p *PE) SignalFetch(signal uint64) (uint64, error) { return p.G(signal, 8, p.rank) }

// SignalWait waits until a signal word of this PE compares (layout.Compare*) to a value, and returns what it then is.
func (p *PE) SignalWait(signal uint64, compare uint32, value uint64) (uint64, error) {
	return p.wait("signal_wait_until", signal, layout.TypeUint64, compare, value)
}

// WaitUntil waits until an element of any integer type at an address of this PE's heap compares to a value, given by its bits.
func (p *PE) WaitUntil(address uint64, kind, compare uint32, value uint64) error {
	_, err := p.wait("wait_until", address, kind, compare, value)
	return err
}

// Test says whether an element compares to a value.
func (p *PE) Test(address uint64, kind, compare uint32, value uint64) (bool, error) {
	size, err := integer("test", kind, compare)
	if err != nil {
		return false, err
	}
	v, err := p.G(address, size, p.rank)
	return err == nil && compares(kind, compare, v, value), err
}

// integer checks the type and comparison of a wait.
func integer(op string, kind, compare uint32) (int, error) {
	if kind >= layout.TypeFloat16 {
		return 0, fault(layout.StatusArgument, op, -1, "type %d: waits are on integers", kind)
	}
	if compare > layout.CompareGE {
		return 0, fault(layout.StatusArgument, op, -1, "there is no comparison %d", compare)
	}
	return kernels.TypeBytes(kind), nil
}

func (p *PE) wait(op string, address uint64, kind, compare uint32, value uint64) (uint64, error) {
	size, err := integer(op, kind, compare)
	if err != nil {
		return 0, err
	}
	deadline := p.deadline()
	for i := 0; ; i++ {
		v, err := p.G(address, size, p.rank)
		if err != nil {
			var of *Error
			if errors.As(err, &of) { // of this call, not of the loads that it is made of
				of.Op = op
			}
			return 0, err
		}
		if compares(kind, compare, v, value) {
			return v, nil
		}
		switch {
		case i < 100:
			runtime.Gosched()
		case time.Now().After(deadline):
			return 0, fault(layout.StatusTimeout, op, -1, "the word at %#x is %d after %v", address, v, p.timeout)
		default:
			time.Sleep(min(time.Duration(i)*time.Microsecond/4, 200*time.Microsecond))
		}
	}
}

// compares compares two elements of an integer type, given by their bits.
func compares(kind, compare uint32, a, b uint64) bool {
	shift := 64 - 8*kernels.TypeBytes(kind)
	a, b = a<<shift, b<<shift // the order stays
	less := a < b
	switch kind {
	case layout.TypeInt8, layout.TypeInt16, layout.TypeInt32, layout.TypeInt64:
		less = int64(a) < int64(b)
	}
	switch compare {
	case layout.CompareEQ:
		return a == b
	case layout.CompareNE:
		return a != b
	case layout.CompareGT:
		return !less && a != b
	case layout.CompareLE:
		return less || a == b
	case layout.CompareLT:
		return less
	}
	return !less
}

// Quiet waits until all that the host and kernels that have ended sent to other PEs has arrived.
func (p *PE) Quiet() error { return p.quiet("quiet") }

// Fence orders what the host sends to a PE before it behind what it sent before.
func (p *PE) Fence() error {
	if !p.queued { // mapped memory is written in the order of the PE's own stream
		return p.check("fence")
	}
	return p.quiet("fence")
}

func (p *PE) quiet(op string) error {
	if err := p.check(op); err != nil {
		return err
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	if p.queued && p.ctx != nil {
		if err := p.kernel(op, kernels.Quiet, with{pe: layout.AllPEs}, p.hot.stream); err != nil {
			return err
		}
	}
	return p.finish(op, p.hot.stream)
}
