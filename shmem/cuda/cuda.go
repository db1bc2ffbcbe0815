// Package cuda is the part of the CUDA driver's API that lshmem uses, bound at run time: a process without a driver can
// use the package too, and no CUDA header is needed to build. The library is found as any program finds it
// (libcuda.so.1), so that an interposer or a software GPU in its place is used as well.
//
//	d, err := cuda.Load()
//	ctx, err := d.Primary(0)
//	defer ctx.Release()
//	err = ctx.Do(func() error { ... calls that need a current context ... })
//
// Device addresses are numbers (uint64), never Go pointers. Calls take what the driver's calls take and return its
// result as an *Error, which names the call.
//
// # Concurrency
//
// Any goroutine may make the driver's calls. Those that need a current context need it on the thread they run on: see
// Context.Enter. Calls that are made for each operation (copies, launches, stream operations) allocate nothing.
package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebitengine/purego"
)

// ErrNoDriver: this machine has no CUDA driver, or it does not start.
var ErrNoDriver = errors.New("no CUDA driver")

// ErrNoLibrary: this machine has no CUDA driver. An error that wraps it wraps ErrNoDriver too.
var ErrNoLibrary = fmt.Errorf("%w: no libcuda.so.1", ErrNoDriver)

// Result is a CUresult.
type Result int32

// Results that callers tell apart, as the driver's header numbers them.
const (
	Success               Result = 0
	InvalidValue          Result = 1
	OutOfMemory           Result = 2
	NotInitialized        Result = 3
	Deinitialized         Result = 4
	NoDevice              Result = 100
	InvalidContext        Result = 201
	PeerAccessEnabled     Result = 704
	HostMemoryRegistered  Result = 712
	HostMemoryUnknown     Result = 713
	InvalidHandle         Result = 400
	NotFound              Result = 500
	NotReady              Result = 600
	NotPermitted          Result = 800
	NotSupported          Result = 801
	StreamCaptureInvalid  Result = 901
	StreamCaptureImplicit Result = 906
	missingSymbol         Result = -1
)

// Error is a driver call that did not succeed.
type Error struct {
	Call string
	Code Result
	name string
}

// Error names the call and the result.
func (e *Error) Error() string {
	if e.Code == missingSymbol {
		return e.Call + ": this CUDA driver does not have it"
	}
	return fmt.Sprintf("%s: %s (%d)", e.Call, e.name, int32(e.Code))
}

// Is lets errors.Is compare with a Result through Of.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Call == ""
}

// Of is an error to compare with: errors.Is(err, cuda.Of(cuda.OutOfMemory)).
func Of(r Result) error { return &Error{Code: r} }

// Code returns the driver's result that err stands for, Success for nil, and -1 for what is not the driver's.
func Code(err error) Result {
	if err == nil {
		return Success
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return missingSymbol
}

// Driver is the driver's library: its calls, in groups. There is one in a process.
type Driver struct {
	*library
	devices
	memory
	mappings
	modules
	streams
}

var load = sync.OnceValues(open)

// Load finds and starts the driver, once in a process. Its error wraps ErrNoDriver.
func Load() (*Driver, error) { return load() }

func open() (*Driver, error) {
	handle, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	l := new(library)
	for i, name := range symbols {
		address, err := purego.Dlsym(handle, name)
		if err != nil {
			if i < optional {
				return nil, fmt.Errorf("%w: libcuda.so.1 is too old: %w", ErrNoDriver, err)
			}
			continue
		}
		l.fn[i] = address
	}
	if err := l.call(cuInit, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	return &Driver{l, devices{l}, memory{l}, mappings{l}, modules{l}, streams{l}}, nil
}
