package cuda

import (
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is the driver's functions, and how they are called.
type library struct {
	fn    [calls]uintptr // 0 for what this driver does not have
	names sync.Map       // Result -> string
}

// call makes a call. What the arguments point to stays where it is until the call has returned.
//
//go:uintptrescapes
func (l *library) call(i int, args ...uintptr) error {
	fn := l.fn[i]
	if fn == 0 {
		return &Error{Call: symbols[i], Code: missingSymbol}
	}
	r, _, _ := purego.SyscallN(fn, args...)
	if Result(int32(r)) == Success {
		return nil
	}
	return l.fail(i, Result(int32(r)))
}

// argumentList is room for a call's arguments on the heap, where purego's calls want them.
type argumentList [12]uintptr

var argumentLists = sync.Pool{New: func() any { return new(argumentList) }}

// result makes a call without allocating. Its arguments are numbers, or addresses of what is on the heap and stays
// reachable until it returns.
func (l *library) result(i int, args ...uintptr) Result {
	fn := l.fn[i]
	if fn == 0 {
		return missingSymbol
	}
	list := argumentLists.Get().(*argumentList)
	n := copy(list[:], args)
	r, _, _ := purego.SyscallN(fn, list[:n]...)
	argumentLists.Put(list)
	return Result(int32(r))
}

// quick is call without allocating, as result says of the arguments.
func (l *library) quick(i int, args ...uintptr) error {
	if r := l.result(i, args...); r != Success {
		return l.fail(i, r)
	}
	return nil
}

// fail makes the error of a call.
func (l *library) fail(i int, r Result) error {
	return &Error{Call: symbols[i], Code: r, name: l.nameOf(r)}
}

func (l *library) nameOf(r Result) string {
	if n, ok := l.names.Load(r); ok {
		return n.(string)
	}
	var name *byte
	if got, _, _ := purego.SyscallN(l.fn[cuGetErrorName], uintptr(uint32(r)), uintptr(unsafe.Pointer(&name))); got != 0 || name == nil {
		return "unknown error"
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(name), n)) != 0 {
		n++
	}
	text := string(unsafe.Slice(name, n))
	l.names.Store(r, text)
	return text
}

// Has says whether this driver has a call, such as cuMemGetHandleForAddressRange.
func (l *library) Has(call string) bool {
	for i, name := range symbols {
		if name == call {
			return l.fn[i] != 0
		}
	}
	return false
}

// Version is the version of CUDA that the driver speaks: 12040 for 12.4.
func (l *library) Version() (int, error) {
	var v int32
	err := l.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&v)))
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
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamQuery
	cuStreamWaitEvent
	cuEventCreate
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventDestroy
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuLaunchKernel
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
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent", "cuEventCreate",
	"cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2", "cuModuleLoadData",
	"cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel", "cuStreamBeginCapture_v2",
	"cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy",
	"cuLaunchCooperativeKernel", "cuStreamWriteValue64_v2", "cuStreamWriteValue32_v2", "cuStreamWaitValue64_v2",
	"cuStreamWaitValue32_v2", "cuMemGetHandleForAddressRange", "cuModuleLoadDataEx",
	"cuThreadExchangeStreamCaptureMode", "cuModuleGetFunctionCount", "cuModuleEnumerateFunctions", "cuFuncLoad",
}
