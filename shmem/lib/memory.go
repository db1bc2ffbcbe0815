package main

// #include "lshmem.h"
import "C"

import (
	"math/bits"

	"github.com/lgpu/lgpu/shmem"
)

// Addresses come and go as uint64: results are written through a void ** that the C side passes as a uint64_t *.

//export shmemMalloc
func shmemMalloc(handle C.lshmem_pe_t, bytes C.size_t, out *C.uint64_t) C.int {
	return number(handle, "malloc", out, func(pe *shmem.PE) (uint64, error) { return pe.Malloc(uint64(bytes)) })
}

//export shmemCalloc
func shmemCalloc(handle C.lshmem_pe_t, count, bytes C.size_t, out *C.uint64_t) C.int {
	const op = "calloc"
	return number(handle, op, out, func(pe *shmem.PE) (uint64, error) {
		if over, _ := bits.Mul64(uint64(count), uint64(bytes)); over != 0 {
			return 0, argument(op, "%d elements of %d bytes are more than there are addresses", uint64(count), uint64(bytes))
		}
		return pe.Calloc(uint64(count), uint64(bytes))
	})
}

//export shmemAlign
func shmemAlign(handle C.lshmem_pe_t, alignment, bytes C.size_t, out *C.uint64_t) C.int {
	return number(handle, "align", out, func(pe *shmem.PE) (uint64, error) { return pe.Align(uint64(alignment), uint64(bytes)) })
}

//export shmemFree
func shmemFree(handle C.lshmem_pe_t, p C.uint64_t) C.int {
	return with(handle, "free", func(pe *shmem.PE) error { return pe.Free(uint64(p)) })
}

//export shmemPtr
func shmemPtr(handle C.lshmem_pe_t, p C.uint64_t, target C.int, out *C.uint64_t) C.int {
	const op = "ptr"
	return number(handle, op, out, func(pe *shmem.PE) (uint64, error) {
		if target < 0 || int(target) >= pe.Size() {
			return 0, argument(op, "PE %d of %d", target, pe.Size())
		}
		return pe.Ptr(uint64(p), int(target)), nil
	})
}

//export shmemHeapBytes
func shmemHeapBytes(handle C.lshmem_pe_t, backed, used, reserved *C.uint64_t) C.int {
	return with(handle, "heap_bytes", func(pe *shmem.PE) error {
		b, u := pe.HeapUse()
		_, r := pe.HeapRange()
		for _, v := range []struct {
			to   *C.uint64_t
			from uint64
		}{{backed, b}, {used, u}, {reserved, r}} {
			if v.to != nil {
				*v.to = C.uint64_t(v.from)
			}
		}
		return nil
	})
}

//export shmemRegister
func shmemRegister(handle C.lshmem_pe_t, p C.uint64_t, bytes C.size_t) C.int {
	return with(handle, "buffer_register", func(pe *shmem.PE) error { return pe.RegisterBuffer(uint64(p), uint64(bytes)) })
}

//export shmemUnregister
func shmemUnregister(handle C.lshmem_pe_t, p C.uint64_t) C.int {
	return with(handle, "buffer_unregister", func(pe *shmem.PE) error { return pe.UnregisterBuffer(uint64(p)) })
}

//export shmemUnregisterAll
func shmemUnregisterAll(handle C.lshmem_pe_t) C.int {
	return with(handle, "buffer_unregister_all", func(pe *shmem.PE) error { return pe.UnregisterAllBuffers() })
}

//export shmemRegisterSymmetric
func shmemRegisterSymmetric(handle C.lshmem_pe_t, p C.uint64_t, bytes C.size_t, out *C.uint64_t) C.int {
	return number(handle, "buffer_register_symmetric", out, func(pe *shmem.PE) (uint64, error) {
		return pe.RegisterSymmetric(uint64(p), uint64(bytes))
	})
}

//export shmemUnregisterSymmetric
func shmemUnregisterSymmetric(handle C.lshmem_pe_t, p C.uint64_t) C.int {
	return with(handle, "buffer_unregister_symmetric", func(pe *shmem.PE) error { return pe.UnregisterSymmetric(uint64(p)) })
}
