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
	driverNotLoaded  = 9
	libraryNotFound  = 12
	functionNotFound = 13
)

// handle is NVML's opaque nvmlDevice_t.
type handle uintptr

// memoryInfo is NVML's nvmlMemory_t, in bytes.
type memoryInfo struct{ Total, Free, Used uint64 }

// pciInfo is NVML's nvmlPciInfo_t as of version 3.
type pciInfo struct {
	BusIDLegacy                                [16]byte
	Domain, Bus, Device, DeviceID, SubsystemID uint32
	BusID                                      [32]byte
}

// Inventory is the management library of this machine. It implements gpu.Inventory.
type Inventory struct {
	library uintptr

	shutdown          func() int32
	errorString       func(int32) string
	count             func(*uint32) int32
	byIndex           func(uint32, *handle) int32
	uuid              func(handle, *byte, uint32) int32
	name              func(handle, *byte, uint32) int32
	memory            func(handle, *memoryInfo) int32
	pci               func(handle, *pciInfo) int32
	cores             func(handle, *uint32) int32        // nil in drivers before 470
	computeCapability func(handle, *int32, *int32) int32 // major, minor
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
	i := &Inventory{library: library}
	var start func() int32
	for symbol, f := range map[string]any{
		"nvmlInit_v2": &start, "nvmlShutdown": &i.shutdown, "nvmlErrorString": &i.errorString,
		"nvmlDeviceGetCount_v2": &i.count, "nvmlDeviceGetHandleByIndex_v2": &i.byIndex, "nvmlDeviceGetUUID": &i.uuid,
		"nvmlDeviceGetName": &i.name, "nvmlDeviceGetMemoryInfo": &i.memory, "nvmlDeviceGetPciInfo_v3": &i.pci,
		"nvmlDeviceGetCudaComputeCapability": &i.computeCapability,
	} {
		if err := i.bind(symbol, f); err != nil {
			purego.Dlclose(library)
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := i.bind("nvmlDeviceGetNumGpuCores", &i.cores); err != nil {
		i.cores = func(handle, *uint32) int32 { return functionNotFound }
	}
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

// Devices returns the GPUs in NVML's order. Devices that have fallen off the bus make it fail.
func (i *Inventory) Devices() ([]gpu.Device, error) {
	var n uint32
	if result := i.count(&n); result != success {
		return nil, i.fail("count GPUs", result)
	}
	devices := make([]gpu.Device, 0, n)
	for index := range n {
		d, err := i.device(index)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", index, err)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func (i *Inventory) device(index uint32) (gpu.Device, error) {
	var h handle
	var uuid, name [96]byte
	var memory memoryInfo
	var pci pciInfo
	for _, step := range []struct {
		act  string
		call func() int32
	}{
		{"open", func() int32 { return i.byIndex(index, &h) }},
		{"read the UUID", func() int32 { return i.uuid(h, &uuid[0], uint32(len(uuid))) }},
		{"read the name", func() int32 { return i.name(h, &name[0], uint32(len(name))) }},
		{"read the memory", func() int32 { return i.memory(h, &memory) }},
		{"read the PCI address", func() int32 { return i.pci(h, &pci) }},
	} {
		if result := step.call(); result != success {
			return gpu.Device{}, i.fail(step.act, result)
		}
	}
	id, err := gpu.ParseUUID(text(uuid[:]))
	if err != nil {
		return gpu.Device{}, err
	}
	return gpu.Device{
		UUID: id, Index: int(index), Name: text(name[:]), Memory: memory.Total, PCI: text(pci.BusID[:]), Units: i.units(h),
	}, nil
}

// units divides the number of FP32 lanes, which NVML knows, by those of one SM, which the architecture fixes.
func (i *Inventory) units(h handle) int {
	var cores uint32
	var major, minor int32
	if i.cores(h, &cores) != success || i.computeCapability(h, &major, &minor) != success {
		return 0
	}
	lanes := uint32(128) // Maxwell, most of Pascal, Ampere's smaller chips, Ada, Hopper, Blackwell
	if major == 7 || minor == 0 && (major == 6 || major == 8) {
		lanes = 64 // GP100, Volta, Turing, GA100
	}
	return int(cores / lanes)
}

// Close shuts NVML down.
func (i *Inventory) Close() error {
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
