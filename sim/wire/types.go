package wire

// Handles and addresses as programs hold them. A handle is a number that the driver side chose; programs see it cast to
// a pointer and may hand back anything. Zero is "no object", and for streams the legacy default stream; streams 1 and 2
// are the legacy and the per-thread default stream (StreamLegacy, StreamPerThread).
type (
	CUcontext                    uint64
	CUmodule                     uint64
	CUfunction                   uint64
	CUlibrary                    uint64
	CUkernel                     uint64
	CUarray                      uint64
	CUmipmappedArray             uint64
	CUevent                      uint64
	CUstream                     uint64
	CUgraph                      uint64
	CUgraphNode                  uint64
	CUgraphExec                  uint64
	CUmemoryPool                 uint64
	CUuserObject                 uint64
	CUlinkState                  uint64
	CUmemGenericAllocationHandle uint64
	// CUdevice is a device's ordinal.
	CUdevice int32
	// CUdeviceptr is an address of the unified address space: device memory, or host memory of the program.
	CUdeviceptr uint64
	// HostAddr is an address in the program's memory. It is only a number here: read and write it by Call.ReadHost and
	// Call.WriteHost, or hand it back to the program as the argument of a host function.
	HostAddr uint64
)

// The default streams that have handles of their own.
const (
	StreamLegacy    CUstream = 1
	StreamPerThread CUstream = 2
)

// CUuuid is a device's identity.
type CUuuid [16]byte

// Handles of memory, events and pool pointers that one process gives to another: opaque to both.
type (
	CUipcMemHandle         [64]byte
	CUipcEventHandle       [64]byte
	CUmemPoolPtrExportData [64]byte
)

// Values of attributes of launches, streams and kernel nodes: a union of 64 bytes, told apart by the attribute's id.
type (
	CUlaunchAttributeValue [8]uint64
	CUstreamAttrValue      [8]uint64
	CUkernelNodeAttrValue  [8]uint64
)

// CUlaunchAttribute is one attribute of a launch.
type CUlaunchAttribute struct {
	Id    CUlaunchAttributeID
	_     [4]byte
	Value CUlaunchAttributeValue
}

// CUDA_MEMCPY2D describes a pitched copy; sizes, offsets and pitches are bytes, Height is rows.
type CUDA_MEMCPY2D struct {
	SrcXInBytes, SrcY uint64
	SrcMemoryType     CUmemorytype
	_                 [4]byte
	SrcHost           HostAddr
	SrcDevice         CUdeviceptr
	SrcArray          CUarray
	SrcPitch          uint64
	DstXInBytes, DstY uint64
	DstMemoryType     CUmemorytype
	_                 [4]byte
	DstHost           HostAddr
	DstDevice         CUdeviceptr
	DstArray          CUarray
	DstPitch          uint64
	WidthInBytes      uint64
	Height            uint64
}

// CUDA_MEMCPY3D describes a copy of a box; widths, offsets and pitches are bytes, heights rows, depths slices.
type CUDA_MEMCPY3D struct {
	SrcXInBytes, SrcY, SrcZ, SrcLOD uint64
	SrcMemoryType                   CUmemorytype
	_                               [4]byte
	SrcHost                         HostAddr
	SrcDevice                       CUdeviceptr
	SrcArray                        CUarray
	Reserved0                       uint64
	SrcPitch, SrcHeight             uint64
	DstXInBytes, DstY, DstZ, DstLOD uint64
	DstMemoryType                   CUmemorytype
	_                               [4]byte
	DstHost                         HostAddr
	DstDevice                       CUdeviceptr
	DstArray                        CUarray
	Reserved1                       uint64
	DstPitch, DstHeight             uint64
	WidthInBytes, Height, Depth     uint64
}

// CUDA_MEMCPY3D_PEER is CUDA_MEMCPY3D with a context for each side.
type CUDA_MEMCPY3D_PEER struct {
	SrcXInBytes, SrcY, SrcZ, SrcLOD uint64
	SrcMemoryType                   CUmemorytype
	_                               [4]byte
	SrcHost                         HostAddr
	SrcDevice                       CUdeviceptr
	SrcArray                        CUarray
	SrcContext                      CUcontext
	SrcPitch, SrcHeight             uint64
	DstXInBytes, DstY, DstZ, DstLOD uint64
	DstMemoryType                   CUmemorytype
	_                               [4]byte
	DstHost                         HostAddr
	DstDevice                       CUdeviceptr
	DstArray                        CUarray
	DstContext                      CUcontext
	DstPitch, DstHeight             uint64
	WidthInBytes, Height, Depth     uint64
}

// CUDA_ARRAY3D_DESCRIPTOR describes an array, in elements. A 1D or 2D array has a zero Height or Depth.
type CUDA_ARRAY3D_DESCRIPTOR struct {
	Width, Height, Depth uint64
	Format               CUarray_format
	NumChannels          uint32
	Flags                uint32
	_                    [4]byte
}

// CUDA_ARRAY_MEMORY_REQUIREMENTS is the memory that a deferred-mapped array needs, in bytes.
type CUDA_ARRAY_MEMORY_REQUIREMENTS struct {
	Size, Alignment uint64
	Reserved        [4]uint32
}

// CUmemLocation names a place of memory: a device by its ordinal, the host, or a NUMA node.
type CUmemLocation struct {
	Type CUmemLocationType
	Id   int32
}

// CUmemAllocationProp describes physical memory to be created.
type CUmemAllocationProp struct {
	Type                 CUmemAllocationType
	RequestedHandleTypes CUmemAllocationHandleType
	Location             CUmemLocation
	Win32HandleMetaData  uint64
	CompressionType      uint8
	GpuDirectRDMACapable uint8
	Usage                uint16
	Reserved             [4]uint8
}

// CUmemAccessDesc says which place may access a range, and how.
type CUmemAccessDesc struct {
	Location CUmemLocation
	Flags    CUmemAccess_flags
}

// CUmemPoolProps describes a memory pool. MaxSize is in bytes, 0 for no limit.
type CUmemPoolProps struct {
	AllocType               CUmemAllocationType
	HandleTypes             CUmemAllocationHandleType
	Location                CUmemLocation
	Win32SecurityAttributes uint64
	MaxSize                 uint64
	Usage                   uint16
	Reserved                [54]uint8
}

// CUDA_MEMSET_NODE_PARAMS describes a memset: Width elements of ElementSize bytes in each of Height rows.
type CUDA_MEMSET_NODE_PARAMS struct {
	Dst         CUdeviceptr
	Pitch       uint64
	Value       uint32
	ElementSize uint32
	Width       uint64
	Height      uint64
}

// CUDA_HOST_NODE_PARAMS names a function of the program and its argument.
type CUDA_HOST_NODE_PARAMS struct {
	Fn       HostAddr
	UserData HostAddr
}

// CUgraphEdgeData annotates an edge of a graph.
type CUgraphEdgeData struct {
	FromPort, ToPort, Type uint8
	Reserved               [5]uint8
}

// CUgraphExecUpdateResultInfo says why an executable graph could not take over another's parameters.
type CUgraphExecUpdateResultInfo struct {
	Result        CUgraphExecUpdateResult
	_             [4]byte
	ErrorNode     CUgraphNode
	ErrorFromNode CUgraphNode
}

// CUstreamBatchMemOpParams is one operation of a batch. Value is 32 or 64 bits by Operation; a flush of remote writes
// and a barrier use FlushFlags only.
type CUstreamBatchMemOpParams struct {
	Operation  CUstreamBatchMemOpType
	FlushFlags uint32
	Address    CUdeviceptr
	Value      uint64
	Flags      uint32
	_          [4]byte
	Alias      CUdeviceptr
	_          [8]byte
}

// Launch is the shape of one kernel launch. Function is a CUfunction or a CUkernel.
type Launch struct {
	Function       CUfunction
	Grid, Block    [3]uint32
	SharedMemBytes uint32
	Cooperative    uint32 // 1 for a cooperative launch
}

// KernelNode is a graph's kernel node without its parameter bytes. Func is 0 where the program gave a CUkernel in Kern.
type KernelNode struct {
	Func           CUfunction
	Kern           CUkernel
	Ctx            CUcontext
	Grid, Block    [3]uint32
	SharedMemBytes uint32
	_              [4]byte
}

// Param is where one kernel parameter lies in the parameter bytes.
type Param struct {
	Offset, Size uint32
}

// Device is a device as the management library shows it: what never changes first, then its present state.
type Device struct {
	Name                  [96]byte // zero-terminated
	UUID                  CUuuid
	PCIDomain             uint32
	PCIBus, PCIDevice     uint32
	PCIDeviceID           uint32 // device id << 16 | vendor id
	ComputeUnits          uint32
	CoresPerUnit          uint32
	CCMajor, CCMinor      uint32
	ClockMHz, MemClockMHz uint32
	MemoryTotal           uint64 // bytes
	MemoryUsed            uint64 // bytes
	MemoryReserved        uint64 // bytes that no program can have
	UtilizationGPU        uint32 // percent of the last sample period in which a kernel ran
	UtilizationMemory     uint32 // percent of the last sample period in which memory was copied
	PowerMilliwatts       uint32
	PowerLimitMilliwatts  uint32
	TemperatureC          uint32
	ComputeMode           uint32
	EnergyMillijoules     uint64 // since the device was switched on
	Instances             uint32 // MIG instances that follow in the list of devices; 0: the device is not in MIG mode
	Parent                uint32 // of a MIG instance: the number of the GPU in that list, and one; 0: it is no instance
	Number                uint32 // of a MIG instance: among those of the GPU
	GPUInstance           uint32 // of a MIG instance: its number; its only compute instance has number 0
	Slices                uint32 // of a MIG instance: compute slices
	_                     uint32
}

// Process is one process on one device as the management library shows it.
type Process struct {
	PID               uint32
	UtilizationGPU    uint32 // percent of the last sample period in which its kernels ran
	UtilizationMemory uint32
	_                 uint32
	MemoryUsed        uint64 // bytes
	SampleTime        uint64 // microseconds since the Unix epoch of the sample that the two percentages are of
}

// Turn is a time for which a device ran the work of one process, in one of its contexts, without another's between.
type Turn struct {
	PID        uint32
	Unfinished uint32 // 1: it goes on, and End is when it was read
	Start, End uint64 // ns of device time
}

// CUcheckpointGpuPair says which device takes another's place when a process is restored.
type CUcheckpointGpuPair struct {
	OldUuid, NewUuid CUuuid
}
