// Package nvidia reads the inventory of NVIDIA's GPUs from the management library that every driver installs. It is
// loaded at run time, so that one lgpu binary runs with and without a driver and builds without cgo.
package nvidia

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/gpu"
)

// ErrNoDriver: the machine has no management library, or the library has no driver to talk to.
var ErrNoDriver = errors.New("no NVIDIA driver")

// Results of NVML that mean something here.
const (
	success          = 0
	invalidArgument  = 2
	notSupported     = 3
	notFound         = 6
	insufficientSize = 7
	driverNotLoaded  = 9
	libraryNotFound  = 12
	functionNotFound = 13
)

// handle is NVML's opaque nvmlDevice_t.
type handle uintptr

// Inventory is the management library of this machine. It implements gpu.Inventory.
type Inventory struct {
	library    uintptr
	namespaced bool                // NVML's process numbers may mean other processes here
	handles    map[gpu.UUID]handle // of the devices that Devices found last
	devices    []gpu.Device        // these
	events     uintptr             // NVML's set of events, 0 where there is none
	heard      map[gpu.UUID]bool   // whose events are in it
	faults     map[gpu.UUID]string // what was heard of devices

	shutdown          func() int32
	errorString       func(int32) string
	count             func(*uint32) int32
	byIndex           func(uint32, *handle) int32
	uuid              func(handle, *byte, uint32) int32
	name              func(handle, *byte, uint32) int32
	memory            func(handle, *memoryInfo) int32
	pci               func(handle, *pciInfo) int32
	computeCapability func(handle, *int32, *int32) int32 // major, minor
	minor             func(handle, *uint32) int32
	utilisation       func(handle, *utilisation) int32

	// What older drivers lack answers functionNotFound.
	cores           func(handle, *uint32) int32
	migMode         func(handle, *uint32, *uint32) int32 // current, pending
	migCount        func(handle, *uint32) int32
	migByIndex      func(handle, uint32, *handle) int32
	attributes      func(handle, *deviceAttributes) int32
	gpuInstance     func(handle, *uint32) int32
	computeInstance func(handle, *uint32) int32
	compute         func(handle, *uint32, *processInfo) int32
	graphics        func(handle, *uint32, *processInfo) int32
	mps             func(handle, *uint32, *processInfo) int32
	processActivity func(handle, *processSample, *uint32, uint64) int32
	power           func(handle, *uint32) int32        // milliwatts
	energy          func(handle, *uint64) int32        // millijoules
	temperature     func(handle, int32, *uint32) int32 // sensor, °C

	driverVersion func(*byte, uint32) int32
	architecture  func(handle, *uint32) int32
	ancestor      func(handle, handle, *uint32) int32
	p2p           func(handle, handle, uint32, *uint32) int32
	nvlinkState   func(handle, uint32, *uint32) int32
	nvlinkKind    func(handle, uint32, *uint32) int32
	nvlinkPCI     func(handle, uint32, *pciInfo) int32
	migProfile    func(handle, uint32, *profileInfo) int32
	migPlacements func(handle, uint32, *placement, *uint32) int32
	newEvents     func(*uintptr) int32
	register      func(handle, uint64, uintptr) int32
	waitEvent     func(uintptr, *eventData, uint32) int32
	freeEvents    func(uintptr) int32
}

// Open loads and initialises the library that LGPU_REAL_LIBNVML names, or libnvidia-ml.so.1. An error wraps ErrNoDriver
// where there is none.
func Open() (*Inventory, error) {
	path := os.Getenv("LGPU_REAL_LIBNVML")
	if path == "" {
		path = "libnvidia-ml.so.1"
	}
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	i := &Inventory{library: library, namespaced: inNamespace(), heard: map[gpu.UUID]bool{}, faults: map[gpu.UUID]string{}}
	var start func() int32
	for symbol, f := range map[string]any{
		"nvmlInit_v2": &start, "nvmlShutdown": &i.shutdown, "nvmlErrorString": &i.errorString,
		"nvmlDeviceGetCount_v2": &i.count, "nvmlDeviceGetHandleByIndex_v2": &i.byIndex, "nvmlDeviceGetUUID": &i.uuid,
		"nvmlDeviceGetName": &i.name, "nvmlDeviceGetMemoryInfo": &i.memory, "nvmlDeviceGetPciInfo_v3": &i.pci,
		"nvmlDeviceGetCudaComputeCapability": &i.computeCapability, "nvmlDeviceGetMinorNumber": &i.minor,
		"nvmlDeviceGetUtilizationRates": &i.utilisation,
	} {
		if err := i.bind(symbol, f); err != nil {
			purego.Dlclose(library)
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	i.bindOptional()
	if result := start(); result != success {
		err := i.fail("initialise NVML", result)
		if result == driverNotLoaded || result == libraryNotFound {
			err = fmt.Errorf("%w: %w", ErrNoDriver, err)
		}
		purego.Dlclose(library)
		return nil, err
	}
	return i, nil
}

// bind makes the function that f points to call symbol.
func (i *Inventory) bind(symbol string, f any) error {
	address, err := purego.Dlsym(i.library, symbol)
	if err != nil {
		return fmt.Errorf("find %s: %w", symbol, err)
	}
	purego.RegisterFunc(f, address)
	return nil
}

// bindOptional binds what older drivers lack.
func (i *Inventory) bindOptional() {
	i.cores = func(handle, *uint32) int32 { return functionNotFound }
	i.migMode = func(handle, *uint32, *uint32) int32 { return functionNotFound }
	i.migCount, i.gpuInstance, i.computeInstance = i.cores, i.cores, i.cores
	i.migByIndex = func(handle, uint32, *handle) int32 { return functionNotFound }
	i.attributes = func(handle, *deviceAttributes) int32 { return functionNotFound }
	i.compute = func(handle, *uint32, *processInfo) int32 { return functionNotFound }
	i.graphics, i.mps = i.compute, i.compute
	i.processActivity = func(handle, *processSample, *uint32, uint64) int32 { return functionNotFound }
	i.power = i.cores
	i.energy = func(handle, *uint64) int32 { return functionNotFound }
	i.temperature = func(handle, int32, *uint32) int32 { return functionNotFound }
	i.architecture = i.cores
	i.driverVersion = func(*byte, uint32) int32 { return functionNotFound }
	i.ancestor = func(handle, handle, *uint32) int32 { return functionNotFound }
	i.p2p = func(handle, handle, uint32, *uint32) int32 { return functionNotFound }
	i.nvlinkState = func(handle, uint32, *uint32) int32 { return functionNotFound }
	i.nvlinkKind = i.nvlinkState
	i.nvlinkPCI = func(handle, uint32, *pciInfo) int32 { return functionNotFound }
	i.migProfile = func(handle, uint32, *profileInfo) int32 { return functionNotFound }
	i.migPlacements = func(handle, uint32, *placement, *uint32) int32 { return functionNotFound }
	i.newEvents = func(*uintptr) int32 { return functionNotFound }
	i.register = func(handle, uint64, uintptr) int32 { return functionNotFound }
	i.waitEvent = func(uintptr, *eventData, uint32) int32 { return functionNotFound }
	i.freeEvents = func(uintptr) int32 { return functionNotFound }
	for symbol, f := range map[string]any{
		"nvmlSystemGetDriverVersion": &i.driverVersion, "nvmlDeviceGetArchitecture": &i.architecture,
		"nvmlDeviceGetTopologyCommonAncestor": &i.ancestor, "nvmlDeviceGetP2PStatus": &i.p2p,
		"nvmlDeviceGetNvLinkState": &i.nvlinkState, "nvmlDeviceGetNvLinkRemoteDeviceType": &i.nvlinkKind,
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": &i.nvlinkPCI, "nvmlDeviceGetGpuInstanceProfileInfoV": &i.migProfile,
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2": &i.migPlacements,
		"nvmlEventSetCreate":                            &i.newEvents, "nvmlDeviceRegisterEvents": &i.register,
		"nvmlEventSetWait_v2": &i.waitEvent, "nvmlEventSetFree": &i.freeEvents,
		"nvmlDeviceGetNumGpuCores": &i.cores, "nvmlDeviceGetMigMode": &i.migMode,
		"nvmlDeviceGetMaxMigDeviceCount":      &i.migCount,
		"nvmlDeviceGetMigDeviceHandleByIndex": &i.migByIndex, "nvmlDeviceGetAttributes_v2": &i.attributes,
		"nvmlDeviceGetGpuInstanceId": &i.gpuInstance, "nvmlDeviceGetComputeInstanceId": &i.computeInstance,
		"nvmlDeviceGetComputeRunningProcesses_v3":    &i.compute,
		"nvmlDeviceGetGraphicsRunningProcesses_v3":   &i.graphics,
		"nvmlDeviceGetMPSComputeRunningProcesses_v3": &i.mps,
		"nvmlDeviceGetProcessUtilization":            &i.processActivity,
		"nvmlDeviceGetPowerUsage":                    &i.power,
		"nvmlDeviceGetTotalEnergyConsumption":        &i.energy,
		"nvmlDeviceGetTemperature":                   &i.temperature,
	} {
		_ = i.bind(symbol, f) // the stand-in stays
	}
}

// Close shuts NVML down.
func (i *Inventory) Close() error {
	if i.events != 0 {
		i.freeEvents(i.events) // whatever it says: it ends with the library
	}
	if result := i.shutdown(); result != success {
		return i.fail("shut NVML down", result)
	}
	if err := purego.Dlclose(i.library); err != nil {
		return fmt.Errorf("unload NVML: %w", err)
	}
	return nil
}

func (i *Inventory) fail(act string, result int32) error {
	return fmt.Errorf("%s: %s (NVML error %d)", act, i.errorString(result), result)
}

// text is a C string in a buffer.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
