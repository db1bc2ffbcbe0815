// Package cuda is the part of the CUDA driver's API that lshmem uses, bound at run time: a process without a driver can have
// it too, and no CUDA header is needed to build. The library is found as any program finds it (libcuda.so.1), so that an
// interposer or a software GPU in its place is used as well.
//
//	d, err := cuda.Load()
//	ctx, err := d.Primary(0)
//	defer ctx.Release()
//	err = ctx.Do(func() error { ... calls that need a current context ... })
//
// Device addresses are numbers (uint64), never Go pointers. Calls take what the driver's take and return its result as an
// *Error, which names the call.
//
// # Concurrency
//
// The driver's calls may be made by any goroutine. Those that need a current context need it on the thread they run on: see
// Context.Enter. Nothing here allocates in calls that are made for each operation (copies, launches, stream operations).
package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

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

// Driver is the driver's library. There is one in a process.
type Driver struct {
	library uintptr
	fn      [calls]uintptr
	names   sync.Map // Result -> string
}

var load = sync.OnceValues(open)

// Load finds and starts the driver, once in a process. Its error wraps ErrNoDriver.
func Load() (*Driver, error) { return load() }

func open() (*Driver, error) {
	library, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	d := &Driver{library: library}
	for i, name := range symbols {
		address, err := purego.Dlsym(library, name)
		if err != nil {
			if i < optional {
				return nil, fmt.Errorf("%w: libcuda.so.1 is too old: %w", ErrNoDriver, err)
			}
			continue
		}
		d.fn[i] = address
	}
	if err := d.call(cuInit, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	return d, nil
}

// call makes a call. What the arguments point to stays where it is until the call has returned.
//
//go:uintptrescapes
func (d *Driver) call(i int, args ...uintptr) error {
	fn := d.fn[i]
	if fn == 0 {
		return &Error{Call: symbols[i], Code: missingSymbol}
	}
	r, _, _ := purego.SyscallN(fn, args...)
	if Result(int32(r)) == Success {
		return nil
	}
	return d.fail(i, Result(int32(r)))
}

// argumentList is room for a call's arguments on the heap, where purego's calls want them.
type argumentList [12]uintptr

var argumentLists = sync.Pool{New: func() any { return new(argumentList) }}

// result makes a call without allocating. Its arguments are numbers, or addresses of what is on the heap and stays reachable
// until it returns.
func (d *Driver) result(i int, args ...uintptr) Result {
	fn := d.fn[i]
	if fn == 0 {
		return missingSymbol
	}
	list := argumentLists.Get().(*argumentList)
	n := copy(list[:], args)
	r, _, _ := purego.SyscallN(fn, list[:n]...)
	argumentLists.Put(list)
	return Result(int32(r))
}

// fail makes the error of a call.
func (d *Driver) fail(i int, r Result) error {
	return &Error{Call: symbols[i], Code: r, name: d.nameOf(r)}
}

func (d *Driver) nameOf(r Result) string {
	if n, ok := d.names.Load(r); ok {
		return n.(string)
	}
	var name *byte
	if got, _, _ := purego.SyscallN(d.fn[cuGetErrorName], uintptr(uint32(r)), uintptr(unsafe.Pointer(&name))); got != 0 || name == nil {
		return "unknown error"
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(name), n)) != 0 {
		n++
	}
	text := string(unsafe.Slice(name, n))
	d.names.Store(r, text)
	return text
}

// Has says whether this driver has a call, such as cuMemGetHandleForAddressRange.
func (d *Driver) Has(call string) bool {
	for i, name := range symbols {
		if name == call {
			return d.fn[i] != 0
		}
	}
	return false
}

// Version is the version of CUDA that the driver speaks: 12040 for 12.4.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// The calls. Those before optional every driver since CUDA 11.2 has.
const (
	cuInit = iota
	cuGetErrorName
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetPCIBusId
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceCanAccessPeer
	cuDeviceGetP2PAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxGetCurrent
	cuCtxSetCurrent
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuCtxGetDevice
	cuCtxSynchronize
	cuCtxEnablePeerAccess
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuMemcpy
	cuMemcpyAsync
	cuMemsetD8
	cuMemsetD8Async
	cuMemAddressReserve
	cuMemAddressFree
	cuMemCreate
	cuMemRelease
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemGetAllocationGranularity
	cuMemRetainAllocationHandle
	cuMemGetAllocationPropertiesFromHandle
	cuMemGetAddressRange
	cuPointerGetAttribute
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuStreamCreate
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamQuery
	cuStreamWaitEvent
	cuStreamIsCapturing
	cuEventCreate
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventElapsedTime
	cuEventDestroy
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuModuleGetGlobal
	cuFuncGetAttribute
	cuFuncSetAttribute
	cuLaunchKernel
	cuLaunchHostFunc
	cuOccupancyMaxActiveBlocksPerMultiprocessor
	cuStreamBeginCapture
	cuStreamEndCapture
	cuGraphInstantiate
	cuGraphLaunch
	cuGraphDestroy
	cuGraphExecDestroy
	optional
	cuLaunchCooperativeKernel = iota - 1
	cuStreamWriteValue64
	cuStreamWriteValue32
	cuStreamWaitValue64
	cuStreamWaitValue32
	cuMemGetHandleForAddressRange
	cuModuleLoadDataEx
	cuThreadExchangeStreamCaptureMode
	cuModuleGetFunctionCount
	cuModuleEnumerateFunctions
	cuFuncLoad
	calls
)

var symbols = [calls]string{
	"cuInit", "cuGetErrorName", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2",
	"cuDeviceGetPCIBusId", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent_v2",
	"cuCtxPopCurrent_v2", "cuCtxGetDevice", "cuCtxSynchronize", "cuCtxEnablePeerAccess", "cuMemGetInfo_v2", "cuMemAlloc_v2",
	"cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister",
	"cuMemHostGetDevicePointer_v2", "cuMemcpy", "cuMemcpyAsync", "cuMemsetD8_v2", "cuMemsetD8Async", "cuMemAddressReserve",
	"cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
	"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemGetAllocationGranularity",
	"cuMemRetainAllocationHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemGetAddressRange_v2", "cuPointerGetAttribute",
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuStreamCreate", "cuStreamCreateWithPriority",
	"cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuEventCreate",
	"cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime", "cuEventDestroy_v2", "cuModuleLoadData",
	"cuModuleUnload", "cuModuleGetFunction", "cuModuleGetGlobal_v2", "cuFuncGetAttribute", "cuFuncSetAttribute",
	"cuLaunchKernel", "cuLaunchHostFunc", "cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuStreamBeginCapture_v2",
	"cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy",
	"cuLaunchCooperativeKernel", "cuStreamWriteValue64_v2", "cuStreamWriteValue32_v2", "cuStreamWaitValue64_v2",
	"cuStreamWaitValue32_v2", "cuMemGetHandleForAddressRange", "cuModuleLoadDataEx",
	"cuThreadExchangeStreamCaptureMode", "cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
}
