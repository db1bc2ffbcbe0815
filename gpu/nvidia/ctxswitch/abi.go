package ctxswitch

import "unsafe"

// The driver's interface, as NVIDIA's open-gpu-kernel-modules (MIT) declare it. Each comment names the header and what
// it calls the thing.

// nv-ioctl-numbers.h, nv_escape.h: requests to device files of the driver.
const (
	ioctlMagic   = 'F'  // NV_IOCTL_MAGIC
	ioctlControl = 0x2a // NV_ESC_RM_CONTROL
	ioctlAlloc   = 0x2b // NV_ESC_RM_ALLOC
	ioctlMap     = 0x4e // NV_ESC_RM_MAP_MEMORY
)

// Classes of objects.
const (
	classClient      = 0x41   // cl0041.h: NV01_ROOT_CLIENT
	classDevice      = 0x80   // cl0080.h: NV01_DEVICE_0
	classSubdevice   = 0x2080 // cl2080.h: NV20_SUBDEVICE_0
	classEventBuffer = 0x90cd // cl90cd.h: NV_EVENT_BUFFER
	classMemory      = 0x90ce // cl90ce.h: NV01_MEMORY_DEVICELESS
)

// Commands to objects.
const (
	commandUUIDInfo = 0x274      // ctrl0000gpu.h: NV0000_CTRL_CMD_GPU_GET_UUID_INFO
	commandTime     = 0x20800403 // ctrl2080tmr.h: NV2080_CTRL_CMD_TIMER_GET_TIME
	commandBind     = 0x20801238 // ctrl2080gr.h: NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2
	commandEnable   = 0x90cd0101 // ctrl90cd.h: NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS
	commandFlush    = 0x90cd0104 // ctrl90cd.h: NV_EVENT_BUFFER_CTRL_CMD_FLUSH
)

// allocation is nvos.h's NVOS21_PARAMETERS. Pointers in these structures are 64 bits wide, as the driver wants them, on
// all processors that lgpu runs on.
type allocation struct {
	client, parent, object, class uint32
	params                        unsafe.Pointer
	size                          uint32 // bytes of params
	status                        status
}

// control is nvos.h's NVOS54_PARAMETERS.
type control struct {
	client, object, command, flags uint32
	params                         unsafe.Pointer
	size                           uint32 // bytes of params
	status                         status
}

// mapping is nv-unix-nvos-params-wrappers.h's nv_ioctl_nvos33_parameters_with_fd: nvos.h's NVOS33_PARAMETERS and the
// file that is mapped afterwards.
type mapping struct {
	client, device, memory, _ uint32
	offset, length, address   uint64
	status                    status
	flags                     uint32
	file                      int32
	_                         uint32
}

const mapReadOnly = 1 // nvos.h: NVOS33_FLAGS_ACCESS_READ_ONLY

// deviceParams is cl0080.h's NV0080_ALLOC_PARAMETERS.
type deviceParams struct {
	device, clientShare, targetClient, targetDevice, flags uint32
	size, start, limit                                     uint64 // of the address space
	mode, _                                                uint32
}

// subdeviceParams is cl2080.h's NV2080_ALLOC_PARAMETERS.
type subdeviceParams struct{ subdevice uint32 }

// memoryParams is nvos.h's NV_MEMORY_ALLOCATION_PARAMS.
type memoryParams struct {
	owner, kind, flags, width, height            uint32
	pitch                                        int32
	attributes, attributes2                      uint32
	format, compression, depth                   uint32
	low, high, size, alignment                   uint64
	offset, limit, address                       uint64
	tagOffset, addressSpace, internalFlags, name uint32
	node                                         int32
}

const (
	memoryCached       = 1 << 29 // nvos.h: NVOS32_ATTR_COHERENCY_CACHED
	memoryUserReadOnly = 1 << 22 // nvos.h: NVOS32_ATTR2_PROTECTION_USER_READ_ONLY, which an event buffer demands
)

// bufferParams is cl90cd.h's NV_EVENT_BUFFER_ALLOC_PARAMETERS.
type bufferParams struct {
	headerAddress, ringAddress      uint64
	recordSize, records             uint32
	extraAddress                    uint64
	extraSize, freeThreshold        uint32
	notification                    uint64
	extraThreshold, subdevice       uint32
	flags                           uint32
	headerMemory, ringMemory, extra uint32
}

// bindParams is ctrl2080gr.h's NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS.
type bindParams struct {
	buffer, recordSize, detail, filter uint32
	allUsers                           bool
	reason                             reason
}

const detailSimple = 1 // ctrl2080gr.h: NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD_SIMPLE, start and end of a context's turn

// enableParams is ctrl90cd.h's NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS.
type enableParams struct {
	enable bool
	flags  uint32
}

const keepNewest = 2 // ctrl90cd.h: NV_EVENT_BUFFER_FLAG_OVERFLOW_POLICY_KEEP_NEWEST

// uuidParams is ctrl0000gpu.h's NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS.
type uuidParams struct {
	uuid                         [256]byte
	flags, id, device, subdevice uint32
}

const uuidBinary = 2 // ctrl0000gpu.h: NV0000_CTRL_CMD_GPU_GET_UUID_INFO_FLAGS_FORMAT_BINARY, of type SHA-1 (0)

// header is the beginning of cl90cd.h's NV_EVENT_BUFFER_HEADER, which the driver writes at any time: it is read with
// package sync/atomic only.
type header struct {
	get, put uint32 // indices of records; nobody moves get where the newest are kept
	count    uint64 // of all records that were put into the ring
}

// Records: cl90cd.h's NV_EVENT_BUFFER_RECORD_HEADER, and after it cl90cdfecs.h's NV_EVENT_BUFFER_FECS_RECORD_V2.
const (
	recordSize  = 32
	recordKind  = 0  // u16
	recordTag   = 8  // u8
	recordSeq   = 10 // u16, which counts the records
	recordPID   = 16 // u32
	recordTime  = 24 // u64, ns of the device's clock (PTIMER)
	kindSwitch  = 2  // cl90cdtypes.h: NV_EVENT_BUFFER_RECORD_TYPE_FECS_CTX_SWITCH_V2
	pidKernel   = 1<<32 - 1
	tagSaveEnd  = 0x03 // NV_EVENT_BUFFER_FECS_CTXSWTAG_SAVE_END
	tagStart    = 0x05 // NV_EVENT_BUFFER_FECS_CTXSWTAG_CONTEXT_START
	tagSimple   = 0x06 // NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_START
	tagEnd      = 0x07 // NV_EVENT_BUFFER_FECS_CTXSWTAG_SIMPLE_END
	tagReset    = 0xfe // NV_EVENT_BUFFER_FECS_CTXSWTAG_ENGINE_RESET
	tagBadClock = 0xff // NV_EVENT_BUFFER_FECS_CTXSWTAG_INVALID_TIMESTAMP
)
