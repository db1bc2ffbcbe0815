package nvidia

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
)

// major is the number of NVIDIA's character devices.
const major = 195

// memoryInfo is NVML's nvmlMemory_t, in bytes.
type memoryInfo struct{ Total, Free, Used uint64 }

// pciInfo is NVML's nvmlPciInfo_t as of version 3.
type pciInfo struct {
	BusIDLegacy                                [16]byte
	Domain, Bus, Device, DeviceID, SubsystemID uint32
	BusID                                      [32]byte
}

// deviceAttributes is NVML's nvmlDeviceAttributes_t: what a MIG instance has.
type deviceAttributes struct {
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEG, OFA, GPUSlices, ComputeSlices uint32
	MemoryMiB                                                                             uint64
}

// Devices returns the GPUs in NVML's order, each followed by its MIG instances. A GPU that has fallen off the bus makes
// it fail.
func (i *Inventory) Devices() ([]gpu.Device, error) {
	var n uint32
	if result := i.count(&n); result != success {
		return nil, i.fail("count GPUs", result)
	}
	devices := make([]gpu.Device, 0, n)
	handles := make(map[gpu.UUID]handle, n)
	for index := range n {
		var h handle
		if result := i.byIndex(index, &h); result != success {
			return nil, fmt.Errorf("GPU %d: %w", index, i.fail("open", result))
		}
		d, err := i.device(h, index)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", index, err)
		}
		instances, err := i.instances(h, &d, handles)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", index, err)
		}
		handles[d.UUID] = h
		devices = append(append(devices, d), instances...)
	}
	i.handles, i.devices = handles, slices.Clone(devices)
	i.listen()
	return devices, nil
}

func (i *Inventory) device(h handle, index uint32) (gpu.Device, error) {
	d, err := i.named(h)
	if err != nil {
		return gpu.Device{}, err
	}
	var pci pciInfo
	if result := i.pci(h, &pci); result != success {
		return gpu.Device{}, i.fail("read the PCI address", result)
	}
	var minor uint32
	if result := i.minor(h, &minor); result != success {
		return gpu.Device{}, i.fail("read the number of the device node", result)
	}
	d.Index, d.PCI, d.Units, d.Node = int(index), text(pci.BusID[:]), i.units(h), node(minor)
	return d, nil
}

// named is a device or an instance as far as both are described alike.
func (i *Inventory) named(h handle) (gpu.Device, error) {
	var uuid, name [96]byte
	var memory memoryInfo
	if result := i.uuid(h, &uuid[0], uint32(len(uuid))); result != success {
		return gpu.Device{}, i.fail("read the UUID", result)
	}
	if result := i.name(h, &name[0], uint32(len(name))); result != success {
		return gpu.Device{}, i.fail("read the name", result)
	}
	if result := i.memory(h, &memory); result != success {
		return gpu.Device{}, i.fail("read the memory", result)
	}
	id, err := gpu.ParseUUID(text(uuid[:]))
	if err != nil {
		return gpu.Device{}, err
	}
	return gpu.Device{UUID: id, Name: text(name[:]), Memory: memory.Total}, nil
}

// node is the MAJ:MIN of /dev/nvidiaMINOR, which keeps its number where a container's /dev lacks it.
func node(minor uint32) string {
	info, err := os.Stat(fmt.Sprintf("/dev/nvidia%d", minor))
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&os.ModeCharDevice != 0 {
			return fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
		}
	}
	return fmt.Sprintf("%d:%d", major, minor)
}

// instances returns the MIG instances of parent, adds their handles, and marks parent where it is in MIG mode.
func (i *Inventory) instances(h handle, parent *gpu.Device, handles map[gpu.UUID]handle) ([]gpu.Device, error) {
	var mode, pending, most uint32
	if i.migMode(h, &mode, &pending) != success || mode == 0 {
		return nil, nil
	}
	if result := i.migCount(h, &most); result != success {
		return nil, i.fail("count MIG instances", result)
	}
	parent.Partitioned = true
	var instances []gpu.Device
	for index := range most {
		var instance handle
		result := i.migByIndex(h, index, &instance)
		if result == notFound {
			continue // indices have holes
		}
		if result != success {
			return nil, fmt.Errorf("MIG instance %d: %w", index, i.fail("open", result))
		}
		d, err := i.named(instance)
		if err != nil {
			return nil, fmt.Errorf("MIG instance %d: %w", index, err)
		}
		var a deviceAttributes
		if result := i.attributes(instance, &a); result != success {
			return nil, fmt.Errorf("MIG instance %d: %w", index, i.fail("read the attributes", result))
		}
		d.Index, d.ParentIndex, d.Parent, d.PCI = int(index), parent.Index, parent.UUID, parent.PCI
		d.Units = int(a.Multiprocessors)
		d.GPUInstance, d.ComputeInstance = i.number(i.gpuInstance, instance), i.number(i.computeInstance, instance)
		handles[d.UUID] = instance
		instances = append(instances, d)
	}
	return instances, nil
}

// number asks for a number of an instance; -1 where the driver does not say.
func (i *Inventory) number(ask func(handle, *uint32) int32, instance handle) int {
	var n uint32
	if ask(instance, &n) != success {
		return -1
	}
	return int(n)
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
