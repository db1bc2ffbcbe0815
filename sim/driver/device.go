package driver

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// Compute capability of the devices.
const (
	ccMajor = 9
	ccMinor = 0
)

// device is a device as the driver knows it.
type device struct {
	hw    *hw.Device
	index int // in the machine
	gpu   int // the number of the GPU that it is, or is an instance of
	name  string
	uuid  wire.CUuuid
	// instance is set of a MIG instance, and instances are those of a GPU in MIG mode (mig.go).
	instance  *instance
	instances []*device
}

// pciDeviceID is the device and vendor number that the devices show: the vendor is none that exists.
const pciDeviceID = 0x1b1b_10de

func newDevice(h *hw.Device, index, gpu int, o *Options) *device {
	return &device{hw: h, index: index, gpu: gpu, name: o.Name, uuid: uuidOf(fmt.Sprintf("%s %d", o.Seed, gpu))}
}

// uuidOf is the UUID of a device that is called so.
func uuidOf(name string) (uuid wire.CUuuid) {
	sum := sha256.Sum256([]byte("lgpu software device " + name))
	copy(uuid[:], sum[:])
	uuid[6] = uuid[6]&0x0f | 0x40
	uuid[8] = uuid[8]&0x3f | 0x80
	return uuid
}

// pciBus is the device's bus number; domain 0, device 0.
func (d *device) pciBus() int { return d.gpu + 1 }

func (d *device) pciBusID() string { return fmt.Sprintf("0000:%02x:00.0", d.pciBus()) }

// parsePCIBusID finds the bus number in "[domain:]bus:device[.function]"; -1 where it is none of ours.
func parsePCIBusID(s string) int {
	parts := strings.Split(s, ":")
	if len(parts) == 3 {
		var domain uint
		if n, err := fmt.Sscanf(parts[0], "%x", &domain); n != 1 || err != nil || domain != 0 {
			return -1
		}
		parts = parts[1:]
	}
	if len(parts) != 2 {
		return -1
	}
	var bus, dev, fn int
	if n, err := fmt.Sscanf(parts[0], "%x", &bus); n != 1 || err != nil {
		return -1
	}
	if n, err := fmt.Sscanf(parts[1], "%x.%x", &dev, &fn); n < 1 || n == 1 && err == nil || dev != 0 || fn != 0 {
		return -1
	}
	return bus
}

// attribute is cuDeviceGetAttribute; ok is false for a number that is no attribute.
func (d *device) attribute(a wire.CUdevice_attribute) (v int32, ok bool) {
	c := &d.hw.Config
	switch a {
	case wire.CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		return int32(max(c.MHz*1000, 1)), true
	case wire.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return int32(c.Limits.Threads), true
	case wire.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		return int32(c.Limits.Blocks), true
	case wire.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, wire.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
		return int32(c.Limits.Registers), true
	case wire.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		return int32(c.Limits.Shared), true
	case wire.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return int32(d.pciBus()), true
	}
	if v, ok := attributes[a]; ok {
		return v, true
	}
	// What is not listed is 0: a feature that is not there.
	return 0, a > 0 && a < wire.CU_DEVICE_ATTRIBUTE_MAX
}

// attributes are those that are the same for every device. Values are those of compute capability 9.0 where programs
// depend on them; features that the software GPU does not have are left out and read as 0.
var attributes = map[wire.CUdevice_attribute]int32{
	wire.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:                       maxThreads,
	wire.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:                             maxThreads,
	wire.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:                             maxThreads,
	wire.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:                             maxBlockZ,
	wire.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:                              maxGridX,
	wire.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:                              maxGridYZ,
	wire.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:                              maxGridYZ,
	wire.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:                 sharedDefault,
	wire.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:           sharedOptIn,
	wire.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:            sharedReserved,
	wire.CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:                       64 << 10,
	wire.CU_DEVICE_ATTRIBUTE_WARP_SIZE:                                   32,
	wire.CU_DEVICE_ATTRIBUTE_MAX_PITCH:                                   1<<31 - 1,
	wire.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:                           512,
	wire.CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:                     32,
	wire.CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:                           512,
	wire.CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:                                 1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:                         1,
	wire.CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:                          1,
	wire.CU_DEVICE_ATTRIBUTE_ECC_ENABLED:                                 1,
	wire.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:                           3201000,
	wire.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:                     6144,
	wire.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:                               60 << 20,
	wire.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:                          3,
	wire.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:                          1,
	wire.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:                    ccMajor,
	wire.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:                    ccMinor,
	wire.CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:                 1,
	wire.CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:                   1,
	wire.CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:                    1,
	wire.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:                              1,
	wire.CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:       2,
	wire.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:                   1,
	wire.CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:                1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:     1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:                   1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:            1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:            1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:               1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:               1,
	wire.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:                          1,
	wire.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:                     1,
	wire.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:                     1,
	wire.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:         1,
	wire.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
	wire.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:                      1,
	wire.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:                         1,
	wire.CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:                       4,
	wire.CU_DEVICE_ATTRIBUTE_NUMA_ID:                                     -1,
	wire.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:                                0,
	wire.CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:                           pciDeviceID,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH:                     131072,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH:                     131072,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT:                    65536,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH:                     16384,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT:                    16384,
	wire.CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH:                     16384,
}
