package shmem

import (
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// streamOperations are operations in the order of a stream. They return when the work is queued: work that cannot be
// queued is an error of the call; what fails later is found by Err and by the next call. The stream may be being
// captured. To a PE whose memory is mapped, copies are the driver's copies and signals its stream writes; to others,
// and for what the driver has no operation for, a small kernel does the work. A PE without a GPU has no streams: its
// calls do the work at once.
type streamOperations struct {
	ops *operations
	// waitMemop makes waits for signals operations of the driver instead of kernels.
	waitMemop bool
}

// PutOnStream copies bytes from a local address to dest in a PE's heap.
func (s *streamOperations) PutOnStream(dest, source, bytes uint64, pe int, stream uintptr) error {
	const op = "put_on_stream"
	to, err := s.ops.target(op, dest, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	if to == 0 {
		return s.run(op, kernels.Put, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, stream)
	}
	return wrap(op, s.ops.exec.copyOn(to, source, bytes, stream))
}

// GetOnStream copies bytes from source in a PE's heap to a local address.
func (s *streamOperations) GetOnStream(dest, source, bytes uint64, pe int, stream uintptr) error {
	const op = "get_on_stream"
	from, err := s.ops.target(op, source, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	if from == 0 {
		return s.run(op, kernels.Get, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, stream)
	}
	return wrap(op, s.ops.exec.copyOn(dest, from, bytes, stream))
}

// run queues an operation with one PE as a kernel.
func (s *streamOperations) run(op string, what kernels.RMAOperation, a with, stream uintptr) error {
	return s.ops.exec.launcher.runRMA(op, what, a, stream)
}

// POnStream writes one element of 1, 2, 4 or 8 bytes, given by its bits, to dest in a PE's heap.
func (s *streamOperations) POnStream(dest, value uint64, size, pe int, stream uintptr) error {
	const op = "p_on_stream"
	if err := width(op, size); err != nil {
		return err
	}
	to, err := s.ops.target(op, dest, uint64(size), pe)
	if err != nil {
		return err
	}
	if to == 0 {
		if size < 4 {
			return fault(layout.StatusSupport, op, pe,
				"the network writes elements of 4 and 8 bytes from values; put them from memory")
		}
		return s.run(op, kernels.Atomic, with{dest: dest, value: value, pe: uint32(pe), code: layout.AtomicSet, kind: unsigned(size)}, stream)
	}
	x := s.ops.exec
	if x.plain() {
		storeElement(to, value, size)
		return nil
	}
	return x.inContext(op, func() (err error) {
		switch {
		case size == 8 && dest%8 == 0 && x.memops:
			return x.d.WriteValue64(stream, to, value)
		case size == 4 && dest%4 == 0 && x.memops:
			return x.d.WriteValue32(stream, to, uint32(value))
		}
		for i := 0; i < size && err == nil; i++ {
			err = x.d.SetAsync(to+uint64(i), byte(value>>(8*i)), 1, stream)
		}
		return err
	})
}

// IPutOnStream is IPut in the order of a stream.
func (s *streamOperations) IPutOnStream(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int, stream uintptr) error {
	const op = "iput_on_stream"
	a, err := s.ops.strided(op, kernels.StridedPut, &strides{dest, source, destStride, sourceStride, size, n, pe})
	if err != nil || a.bytes == 0 {
		return err
	}
	return s.run(op, kernels.StridedPut, a, stream)
}

// IGetOnStream is IGet in the order of a stream.
func (s *streamOperations) IGetOnStream(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int, stream uintptr) error {
	const op = "iget_on_stream"
	a, err := s.ops.strided(op, kernels.StridedGet, &strides{dest, source, destStride, sourceStride, size, n, pe})
	if err != nil || a.bytes == 0 {
		return err
	}
	return s.run(op, kernels.StridedGet, a, stream)
}

// AtomicOnStream is Atomic in the order of a stream. The old value goes to the local address fetch, if that is not 0.
func (s *streamOperations) AtomicOnStream(code, kind uint32, dest, value, compare, fetch uint64, pe int, stream uintptr) error {
	const op = "atomic_on_stream"
	size, err := atomicSize(op, code, kind, dest)
	if err != nil {
		return err
	}
	if _, err := s.ops.target(op, dest, uint64(size), pe); err != nil {
		return err
	}
	if err := s.ops.routes.noAtomics(op, pe); err != nil {
		return err
	}
	if s.ops.exec.plain() {
		old, err := s.ops.Atomic(code, kind, dest, value, compare, fetch != 0, pe)
		if err == nil && fetch != 0 {
			err = wrap(op, touch(func() { storeElement(fetch, old, size) }))
		}
		return err
	}
	what := kernels.Atomic
	if fetch != 0 {
		what = kernels.Fetch
	}
	return s.run(op, what, with{dest: dest, source: fetch, value: value, compare: compare, pe: uint32(pe), code: code, kind: kind}, stream)
}

// SignalOpOnStream sets a signal word in a PE's heap or adds to it, after all that the stream did before.
func (s *streamOperations) SignalOpOnStream(signal, value uint64, code uint32, pe int, stream uintptr) error {
	const op = "signal_op_on_stream"
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := s.ops.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	return s.ops.signalOn(op, to, signal, value, code, pe, stream)
}

// PutSignalOnStream is PutOnStream, then SignalOpOnStream on the same PE: a PE that sees the signal sees the data.
func (s *streamOperations) PutSignalOnStream(dest, source, bytes, signal, value uint64, code uint32, pe int, stream uintptr) error {
	const op = "put_signal_on_stream"
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := s.ops.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	if to == 0 && bytes > 0 {
		if _, err := s.ops.target(op, dest, bytes, pe); err != nil {
			return err
		}
		return s.run(op, kernels.PutSignal, with{dest: dest, source: source, bytes: bytes, signal: signal, value: value,
			pe: uint32(pe), code: code}, stream)
	}
	if err := s.PutOnStream(dest, source, bytes, pe, stream); err != nil {
		return err
	}
	return s.ops.signalOn(op, to, signal, value, code, pe, stream)
}

// SignalWaitOnStream holds a stream until a signal word of this PE compares (layout.Compare*) to a value. The wait ends
// with an error in Err when a PE dies or the timeout passes, unless Config.StreamWaitMemop.
func (s *streamOperations) SignalWaitOnStream(signal uint64, compare uint32, value uint64, stream uintptr) error {
	return s.WaitUntilOnStream(signal, layout.TypeUint64, compare, value, stream)
}

// WaitUntilOnStream holds a stream until an element of an integer type in this PE's heap compares to a value.
func (s *streamOperations) WaitUntilOnStream(address uint64, kind, compare uint32, value uint64, stream uintptr) error {
	const op = "wait_until_on_stream"
	size, err := integer(op, kind, compare)
	if err != nil {
		return err
	}
	x, rank := s.ops.exec, s.ops.job.rank
	if _, err := s.ops.target(op, address, uint64(size), rank); err != nil {
		return err
	}
	if x.plain() {
		_, err := s.ops.wait(op, address, kind, compare, value)
		return err
	}
	if s.waitMemop && x.memops && size == 8 && (compare == layout.CompareEQ || compare == layout.CompareGE) {
		condition := uint32(cuda.WaitEqual)
		if compare == layout.CompareGE {
			condition = cuda.WaitReached
		}
		return x.inContext(op, func() error { return x.d.WaitValue64(stream, address, value, condition) })
	}
	return s.run(op, kernels.Wait, with{dest: address, value: value, pe: uint32(rank), code: compare, kind: kind}, stream)
}

// QuietOnStream holds a stream until all that it, and kernels that have ended, sent to other PEs has arrived.
func (s *streamOperations) QuietOnStream(stream uintptr) error {
	const op = "quiet_on_stream"
	if err := s.ops.job.check(op); err != nil {
		return err
	}
	if !s.ops.routes.queued || s.ops.exec.plain() { // a stream's operations on mapped memory are complete, one by one
		return nil
	}
	return s.run(op, kernels.Quiet, with{pe: layout.AllPEs}, stream)
}

// FenceOnStream orders a stream's operations on each PE.
func (s *streamOperations) FenceOnStream(stream uintptr) error { return s.QuietOnStream(stream) }
