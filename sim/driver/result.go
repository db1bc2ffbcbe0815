package driver

import "github.com/lgpu/lgpu/sim/wire"

// Result is what every call of the driver API answers.
type Result = wire.CUresult

// The results that are used here, under shorter names.
const (
	success                     = wire.CUDA_SUCCESS
	errInvalidValue             = wire.CUDA_ERROR_INVALID_VALUE
	errOutOfMemory              = wire.CUDA_ERROR_OUT_OF_MEMORY
	errNotInitialized           = wire.CUDA_ERROR_NOT_INITIALIZED
	errDeinitialized            = wire.CUDA_ERROR_DEINITIALIZED
	errDeviceUnavailable        = wire.CUDA_ERROR_DEVICE_UNAVAILABLE
	errInvalidDevice            = wire.CUDA_ERROR_INVALID_DEVICE
	errNoDevice                 = wire.CUDA_ERROR_NO_DEVICE
	errNoBinary                 = wire.CUDA_ERROR_NO_BINARY_FOR_GPU
	errInvalidImage             = wire.CUDA_ERROR_INVALID_IMAGE
	errInvalidContext           = wire.CUDA_ERROR_INVALID_CONTEXT
	errMapFailed                = wire.CUDA_ERROR_MAP_FAILED
	errAlreadyMapped            = wire.CUDA_ERROR_ALREADY_MAPPED
	errNotMapped                = wire.CUDA_ERROR_NOT_MAPPED
	errUnsupportedLimit         = wire.CUDA_ERROR_UNSUPPORTED_LIMIT
	errPeerAccessUnsupported    = wire.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
	errInvalidPTX               = wire.CUDA_ERROR_INVALID_PTX
	errSymbolNotFound           = wire.CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
	errOperatingSystem          = wire.CUDA_ERROR_OPERATING_SYSTEM
	errInvalidHandle            = wire.CUDA_ERROR_INVALID_HANDLE
	errIllegalState             = wire.CUDA_ERROR_ILLEGAL_STATE
	errNotFound                 = wire.CUDA_ERROR_NOT_FOUND
	errNotReady                 = wire.CUDA_ERROR_NOT_READY
	errIllegalAddress           = wire.CUDA_ERROR_ILLEGAL_ADDRESS
	errLaunchOutOfResources     = wire.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
	errPeerAccessAlreadyEnabled = wire.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	errPeerAccessNotEnabled     = wire.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
	errPrimaryContextActive     = wire.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
	errContextIsDestroyed       = wire.CUDA_ERROR_CONTEXT_IS_DESTROYED
	errAssert                   = wire.CUDA_ERROR_ASSERT
	errHostAlreadyRegistered    = wire.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	errHostNotRegistered        = wire.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
	errHardwareStack            = wire.CUDA_ERROR_HARDWARE_STACK_ERROR
	errIllegalInstruction       = wire.CUDA_ERROR_ILLEGAL_INSTRUCTION
	errMisalignedAddress        = wire.CUDA_ERROR_MISALIGNED_ADDRESS
	errInvalidAddressSpace      = wire.CUDA_ERROR_INVALID_ADDRESS_SPACE
	errInvalidPC                = wire.CUDA_ERROR_INVALID_PC
	errLaunchFailed             = wire.CUDA_ERROR_LAUNCH_FAILED
	errCooperativeTooLarge      = wire.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
	errNotPermitted             = wire.CUDA_ERROR_NOT_PERMITTED
	errNotSupported             = wire.CUDA_ERROR_NOT_SUPPORTED
	errCaptureUnsupported       = wire.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	errCaptureInvalidated       = wire.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	errCaptureMerge             = wire.CUDA_ERROR_STREAM_CAPTURE_MERGE
	errCaptureUnmatched         = wire.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
	errCaptureUnjoined          = wire.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
	errCaptureIsolation         = wire.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
	errCaptureImplicit          = wire.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	errCapturedEvent            = wire.CUDA_ERROR_CAPTURED_EVENT
	errCaptureWrongThread       = wire.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
	errGraphExecUpdate          = wire.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
	errInvalidClusterSize       = wire.CUDA_ERROR_INVALID_CLUSTER_SIZE
	errUnknown                  = wire.CUDA_ERROR_UNKNOWN
)
