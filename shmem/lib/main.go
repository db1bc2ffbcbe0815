// Command lib is liblshmem.so: package shmem with the C interface of lshmem.h. It exists because programs are in C,
// C++, CUDA and Python, and the runtime is in Go.
//
//	go build -buildmode=c-shared -ldflags "-s -w -extldflags=-Wl,--version-script=shmem/lib/liblshmem.map" ./shmem/lib
//
// api.c has the functions that lshmem.h declares; each calls the one here that does it. What crosses the border is
// numbers: instances are numbers in a table, addresses of the device and of symmetric memory are never pointers in Go.
// A result is written through the caller's pointer during the call, and no C pointer is kept but those of callbacks,
// until the instance ends.
//
// # Threads and contexts
//
// Every function may be called on any thread. It returns with the CUDA context that the thread had. A panic is an error
// of the call (LSHMEM_ERR_SYSTEM) and not the end of the process.
//
// # A Go runtime in the process
//
// Loading the library starts Go's runtime: threads, the use of SIGURG, and no survival of fork without exec. Programs
// that fork workers (torch's DataLoader) must load it after, or use spawn.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../include -std=gnu11 -O2 -Wall -Wextra
#include <stdlib.h>
#include "lshmem.h"

void shmem_set_error(const char *text);
*/
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/layout"
)

func main() {}

// instances are what handles mean. A number is used once.
var instances = struct {
	sync.RWMutex
	by   map[int64]*shmem.PE
	last int64
}{by: map[int64]*shmem.PE{}}

func add(pe *shmem.PE) int64 {
	instances.Lock()
	defer instances.Unlock()
	instances.last++
	instances.by[instances.last] = pe
	return instances.last
}

// take removes an instance from the table, so that one thread alone ends it.
func take(handle int64) *shmem.PE {
	instances.Lock()
	defer instances.Unlock()
	pe := instances.by[handle]
	delete(instances.by, handle)
	return pe
}

func find(handle int64) *shmem.PE {
	instances.RLock()
	defer instances.RUnlock()
	return instances.by[handle]
}

// failed keeps an error's text for the calling thread and returns its code.
func failed(err error) C.int {
	if err == nil {
		return C.LSHMEM_OK
	}
	text := C.CString(err.Error())
	defer C.free(unsafe.Pointer(text))
	C.shmem_set_error(text)
	return C.int(shmem.Status(err))
}

// argument is an error in what the caller passed.
func argument(op, format string, args ...any) error {
	return &shmem.Error{Status: layout.StatusArgument, Op: op, PE: -1, Err: fmt.Errorf(format, args...)}
}

// guard runs f and makes a panic an error.
func guard(op string, f func() error) (code C.int) {
	defer func() {
		if what := recover(); what != nil {
			code = failed(&shmem.Error{Status: layout.StatusSystem, Op: op, PE: -1,
				Err: fmt.Errorf("a defect of the library: %v\n%s", what, debug.Stack())})
		}
	}()
	return failed(f())
}

// with runs f on an instance.
func with(handle C.lshmem_pe_t, op string, f func(pe *shmem.PE) error) C.int {
	return guard(op, func() error {
		pe := find(int64(handle))
		if pe == nil {
			return unknown(op, int64(handle))
		}
		return f(pe)
	})
}

func unknown(op string, handle int64) error {
	instances.RLock()
	ended := handle > 0 && handle <= instances.last
	instances.RUnlock()
	if ended {
		return &shmem.Error{Status: layout.StatusState, Op: op, PE: -1, Err: fmt.Errorf("instance %d was finalized", handle)}
	}
	return argument(op, "%d is not an instance; lshmem_init returns one", handle)
}

// errNil is the error of a NULL pointer for a result.
func errNil(op string) error { return argument(op, "a NULL pointer where a result goes") }

//export shmemArgument
func shmemArgument(text *C.char) C.int { return failed(argument("arguments", "%s", C.GoString(text))) }

// number runs f on an instance and stores what it returns.
func number[T C.int | C.uint64_t, G int | uint64 | shmem.TeamID](handle C.lshmem_pe_t, op string, out *T,
	f func(pe *shmem.PE) (G, error)) C.int {
	return with(handle, op, func(pe *shmem.PE) error {
		if out == nil {
			return errNil(op)
		}
		v, err := f(pe)
		if err == nil {
			*out = T(v)
		}
		return err
	})
}
