package shmem

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
)

// What this process's own processor does with memory outside of Go's heap.

// hostPointer is memory of this process outside of Go's heap.
func hostPointer[T any](at uint64) *T { return *(**T)(unsafe.Pointer(&at)) }

func storeWord(at, value uint64) { atomic.StoreUint64(hostPointer[uint64](at), value) }

// storeElement stores an element of host memory: as a whole if it is an aligned one of 4 or 8 bytes, else by bytes.
func storeElement(at, value uint64, size int) {
	switch {
	case size == 8 && at%8 == 0:
		atomic.StoreUint64(hostPointer[uint64](at), value)
	case size == 4 && at%4 == 0:
		atomic.StoreUint32(hostPointer[uint32](at), uint32(value))
	default:
		putElement(cuda.Bytes(at, uint64(size)), value)
	}
}

// loadElement loads an element of host memory as storeElement stores it.
func loadElement(at uint64, size int) uint64 {
	switch {
	case size == 8 && at%8 == 0:
		return atomic.LoadUint64(hostPointer[uint64](at))
	case size == 4 && at%4 == 0:
		return uint64(atomic.LoadUint32(hostPointer[uint32](at)))
	}
	return element(cuda.Bytes(at, uint64(size)), size)
}

// element is the value of a little-endian number of size bytes.
func element(b []byte, size int) (v uint64) {
	for i, x := range b[:size] {
		v |= uint64(x) << (8 * i)
	}
	return v
}

// putElement stores a value as a little-endian number of the size of b.
func putElement(b []byte, v uint64) {
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// errAddress is wrapped by errors about memory of the program that cannot be read or written.
var errAddress = errors.New("an address without memory that can be used like that")

// touch runs f, which reads or writes memory at an address that the program gave. If there is no such memory, that is
// an error, not the end of the process.
func touch(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		what := recover()
		switch e := what.(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w: %#x", errAddress, e.Addr())
		case runtime.Error:
			err = fmt.Errorf("%w: NULL, or close to it", errAddress)
		default:
			panic(what)
		}
	}()
	f()
	return nil
}
