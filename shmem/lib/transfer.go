package main

// #include "lshmem.h"
import "C"

import (
	"unsafe"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/kernels"
)

// elementBytes is the size of an element, or an error of the call.
func elementBytes(op string, kind C.int) (uint64, error) {
	if n := kernels.TypeBytes(uint32(kind)); n > 0 {
		return uint64(n), nil
	}
	return 0, argument(op, "type %d is not one of LSHMEM_INT8 to LSHMEM_FLOAT64", kind)
}

//export shmemPut
func shmemPut(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, target C.int) C.int {
	return with(handle, "put", func(pe *shmem.PE) error { return pe.Put(uint64(dst), uint64(src), uint64(bytes), int(target)) })
}

//export shmemGet
func shmemGet(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, target C.int) C.int {
	return with(handle, "get", func(pe *shmem.PE) error { return pe.Get(uint64(dst), uint64(src), uint64(bytes), int(target)) })
}

//export shmemPutOnStream
func shmemPutOnStream(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, target C.int, stream C.uint64_t) C.int {
	return with(handle, "put_on_stream", func(pe *shmem.PE) error {
		return pe.PutOnStream(uint64(dst), uint64(src), uint64(bytes), int(target), uintptr(stream))
	})
}

//export shmemGetOnStream
func shmemGetOnStream(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, target C.int, stream C.uint64_t) C.int {
	return with(handle, "get_on_stream", func(pe *shmem.PE) error {
		return pe.GetOnStream(uint64(dst), uint64(src), uint64(bytes), int(target), uintptr(stream))
	})
}

//export shmemIPut
func shmemIPut(handle C.lshmem_pe_t, kind C.int, dst, src C.uint64_t, dstStride, srcStride C.ptrdiff_t, count C.size_t, target C.int) C.int {
	const op = "iput"
	return with(handle, op, func(pe *shmem.PE) error {
		n, err := elementBytes(op, kind)
		if err != nil {
			return err
		}
		return pe.IPut(uint64(dst), uint64(src), int64(dstStride), int64(srcStride), int(n), uint64(count), int(target))
	})
}

//export shmemIGet
func shmemIGet(handle C.lshmem_pe_t, kind C.int, dst, src C.uint64_t, dstStride, srcStride C.ptrdiff_t, count C.size_t, target C.int) C.int {
	const op = "iget"
	return with(handle, op, func(pe *shmem.PE) error {
		n, err := elementBytes(op, kind)
		if err != nil {
			return err
		}
		return pe.IGet(uint64(dst), uint64(src), int64(dstStride), int64(srcStride), int(n), uint64(count), int(target))
	})
}

// word reads or writes a number of 1, 2, 4 or 8 bytes in the program's memory.
func word(op string, p unsafe.Pointer, bytes C.size_t) ([]byte, error) {
	if p == nil {
		return nil, errNil(op)
	}
	switch bytes {
	case 1, 2, 4, 8:
		return unsafe.Slice((*byte)(p), bytes), nil
	}
	return nil, argument(op, "an element of %d bytes; 1, 2, 4 and 8 are possible", uint64(bytes))
}

//export shmemP
func shmemP(handle C.lshmem_pe_t, dst C.uint64_t, value unsafe.Pointer, bytes C.size_t, target C.int) C.int {
	const op = "p"
	return with(handle, op, func(pe *shmem.PE) error {
		from, err := word(op, value, bytes)
		if err != nil {
			return err
		}
		var v uint64
		for i, b := range from {
			v |= uint64(b) << (8 * i)
		}
		return pe.P(uint64(dst), v, len(from), int(target))
	})
}

//export shmemG
func shmemG(handle C.lshmem_pe_t, value unsafe.Pointer, src C.uint64_t, bytes C.size_t, target C.int) C.int {
	const op = "g"
	return with(handle, op, func(pe *shmem.PE) error {
		to, err := word(op, value, bytes)
		if err != nil {
			return err
		}
		v, err := pe.G(uint64(src), len(to), int(target))
		if err != nil {
			return err
		}
		for i := range to {
			to[i] = byte(v >> (8 * i))
		}
		return nil
	})
}

//export shmemAtomic
func shmemAtomic(handle C.lshmem_pe_t, what, kind C.int, dst, operand, compare C.uint64_t, fetched *C.uint64_t, target C.int) C.int {
	const op = "atomic"
	return with(handle, op, func(pe *shmem.PE) error {
		if what < 0 || kind < 0 {
			return argument(op, "operation %d on type %d", what, kind)
		}
		old, err := pe.Atomic(uint32(what), uint32(kind), uint64(dst), uint64(operand), uint64(compare), fetched != nil, int(target))
		if err == nil && fetched != nil {
			*fetched = C.uint64_t(old)
		}
		return err
	})
}

//export shmemAtomicOnStream
func shmemAtomicOnStream(handle C.lshmem_pe_t, what, kind C.int, dst, operand, compare, fetched C.uint64_t, target C.int, stream C.uint64_t) C.int {
	const op = "atomic_on_stream"
	return with(handle, op, func(pe *shmem.PE) error {
		if what < 0 || kind < 0 {
			return argument(op, "operation %d on type %d", what, kind)
		}
		return pe.AtomicOnStream(uint32(what), uint32(kind), uint64(dst), uint64(operand), uint64(compare), uint64(fetched), int(target), uintptr(stream))
	})
}

//export shmemPutSignal
func shmemPutSignal(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, signal, value C.uint64_t, what, target C.int) C.int {
	return with(handle, "put_signal", func(pe *shmem.PE) error {
		return pe.PutSignal(uint64(dst), uint64(src), uint64(bytes), uint64(signal), uint64(value), uint32(what), int(target))
	})
}

//export shmemPutSignalOnStream
func shmemPutSignalOnStream(handle C.lshmem_pe_t, dst, src C.uint64_t, bytes C.size_t, signal, value C.uint64_t, what, target C.int,
	stream C.uint64_t) C.int {
	return with(handle, "put_signal_on_stream", func(pe *shmem.PE) error {
		return pe.PutSignalOnStream(uint64(dst), uint64(src), uint64(bytes), uint64(signal), uint64(value), uint32(what), int(target), uintptr(stream))
	})
}

//export shmemSignalOp
func shmemSignalOp(handle C.lshmem_pe_t, signal, value C.uint64_t, what, target C.int) C.int {
	return with(handle, "signal_op", func(pe *shmem.PE) error {
		return pe.SignalOp(uint64(signal), uint64(value), uint32(what), int(target))
	})
}

//export shmemSignalOpOnStream
func shmemSignalOpOnStream(handle C.lshmem_pe_t, signal, value C.uint64_t, what, target C.int, stream C.uint64_t) C.int {
	return with(handle, "signal_op_on_stream", func(pe *shmem.PE) error {
		return pe.SignalOpOnStream(uint64(signal), uint64(value), uint32(what), int(target), uintptr(stream))
	})
}

//export shmemSignalFetch
func shmemSignalFetch(handle C.lshmem_pe_t, signal C.uint64_t, out *C.uint64_t) C.int {
	return number(handle, "signal_fetch", out, func(pe *shmem.PE) (uint64, error) { return pe.SignalFetch(uint64(signal)) })
}

//export shmemSignalWait
func shmemSignalWait(handle C.lshmem_pe_t, signal C.uint64_t, compare C.int, value C.uint64_t) C.int {
	return with(handle, "signal_wait_until", func(pe *shmem.PE) error {
		_, err := pe.SignalWait(uint64(signal), uint32(compare), uint64(value))
		return err
	})
}

//export shmemSignalWaitOnStream
func shmemSignalWaitOnStream(handle C.lshmem_pe_t, signal C.uint64_t, compare C.int, value, stream C.uint64_t) C.int {
	return with(handle, "signal_wait_until_on_stream", func(pe *shmem.PE) error {
		return pe.SignalWaitOnStream(uint64(signal), uint32(compare), uint64(value), uintptr(stream))
	})
}

//export shmemWaitUntil
func shmemWaitUntil(handle C.lshmem_pe_t, kind C.int, p C.uint64_t, compare C.int, value C.uint64_t) C.int {
	return with(handle, "wait_until", func(pe *shmem.PE) error {
		return pe.WaitUntil(uint64(p), uint32(kind), uint32(compare), uint64(value))
	})
}

//export shmemWaitUntilOnStream
func shmemWaitUntilOnStream(handle C.lshmem_pe_t, kind C.int, p C.uint64_t, compare C.int, value, stream C.uint64_t) C.int {
	return with(handle, "wait_until_on_stream", func(pe *shmem.PE) error {
		return pe.WaitUntilOnStream(uint64(p), uint32(kind), uint32(compare), uint64(value), uintptr(stream))
	})
}

//export shmemQuiet
func shmemQuiet(handle C.lshmem_pe_t) C.int { return with(handle, "quiet", (*shmem.PE).Quiet) }

//export shmemQuietOnStream
func shmemQuietOnStream(handle C.lshmem_pe_t, stream C.uint64_t) C.int {
	return with(handle, "quiet_on_stream", func(pe *shmem.PE) error { return pe.QuietOnStream(uintptr(stream)) })
}

//export shmemFence
func shmemFence(handle C.lshmem_pe_t) C.int { return with(handle, "fence", (*shmem.PE).Fence) }
