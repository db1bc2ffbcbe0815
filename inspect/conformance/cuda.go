package conformance

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/gpu"
)

// cuda is the part of the driver API that the probe needs, as any program would call it.
type cuda struct {
	init              func(flags uint32) int32
	errorName         func(code int32, name **byte) int32
	deviceGet         func(device *int32, ordinal int32) int32
	deviceGetUUID     func(uuid *gpu.UUID, device int32) int32
	attribute         func(value *int32, attribute, device int32) int32
	primaryCtxRetain  func(context *uintptr, device int32) int32
	ctxSetCurrent     func(context uintptr) int32
	moduleLoadData    func(module *uintptr, image *byte) int32
	moduleGetFunction func(function *uintptr, module uintptr, name string) int32
	memAlloc          func(address *uint64, size uintptr) int32
	memsetD8          func(address uint64, value uint8, n uintptr) int32
	memcpyDtoH        func(to *byte, from uint64, n uintptr) int32
	streamCreate      func(stream *uintptr, flags uint32) int32
	streamSynchronize func(stream uintptr) int32
	eventCreate       func(event *uintptr, flags uint32) int32
	eventRecord       func(event, stream uintptr) int32
	eventSynchronize  func(event uintptr) int32
	launchKernel      func(f uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream uintptr, params *uintptr, extra uintptr) int32
}

// Numbers of the driver API.
const (
	attributeUnits     = 16 // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	attributeClock     = 13 // CU_DEVICE_ATTRIBUTE_CLOCK_RATE, in kHz
	streamNonBlocking  = 1
	eventWithoutTiming = 2
)

// loadCUDA finds the driver's library as programs do.
func loadCUDA() (*cuda, error) {
	library, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver: %w", err)
	}
	c := &cuda{}
	for name, f := range map[string]any{
		"cuInit": &c.init, "cuGetErrorName": &c.errorName, "cuDeviceGet": &c.deviceGet,
		"cuDeviceGetUuid_v2": &c.deviceGetUUID, "cuDeviceGetAttribute": &c.attribute,
		"cuDevicePrimaryCtxRetain": &c.primaryCtxRetain, "cuCtxSetCurrent": &c.ctxSetCurrent,
		"cuModuleLoadData": &c.moduleLoadData, "cuModuleGetFunction": &c.moduleGetFunction,
		"cuMemAlloc_v2": &c.memAlloc, "cuMemsetD8_v2": &c.memsetD8, "cuMemcpyDtoH_v2": &c.memcpyDtoH,
		"cuStreamCreate": &c.streamCreate, "cuStreamSynchronize": &c.streamSynchronize, "cuEventCreate": &c.eventCreate,
		"cuEventRecord": &c.eventRecord, "cuEventSynchronize": &c.eventSynchronize, "cuLaunchKernel": &c.launchKernel,
	} {
		symbol, err := purego.Dlsym(library, name)
		if err != nil {
			return nil, fmt.Errorf("the CUDA driver has no %s: %w", name, err)
		}
		purego.RegisterFunc(f, symbol)
	}
	return c, nil
}

// check makes an error of a result.
func (c *cuda) check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	var name *byte
	if c.errorName(code, &name) != 0 || name == nil {
		return fmt.Errorf("%s: error %d", call, code)
	}
	return fmt.Errorf("%s: %s (%d)", call, stringAt(name), code)
}

// stringAt reads a C string.
func stringAt(s *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return unsafe.String(s, n)
}

var errNoInput = errors.New("nobody said when to begin")

// progress says on standard error what the probe does, where LGPU_LOG asks for it.
func progress(format string, args ...any) {
	if os.Getenv("LGPU_LOG") >= "3" {
		fmt.Fprintf(os.Stderr, "lgpu: "+format+"\n", args...)
	}
}
