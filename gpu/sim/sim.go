// Package sim is the inventory of a software GPU, so that its devices are chosen and watched like any vendor's.
package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// Inventory keeps a hardware process running. It implements gpu.Inventory.
type Inventory struct {
	hardware *sim.Hardware
}

// New returns the inventory of hardware, which Close releases.
func New(hardware *sim.Hardware) *Inventory { return &Inventory{hardware} }

// Socket is where programs reach the hardware, for their environment (wire.Environment).
func (i *Inventory) Socket() string { return i.hardware.Socket }

// Devices asks the hardware process, and fails when that is gone.
func (i *Inventory) Devices() ([]gpu.Device, error) {
	have, err := i.ask()
	if err != nil {
		return nil, err
	}
	devices := make([]gpu.Device, len(have))
	gpus := 0
	for n, d := range have {
		name, _, _ := bytes.Cut(d.Name[:], []byte{0})
		devices[n] = gpu.Device{
			UUID: gpu.UUID(d.UUID), Index: gpus, Name: string(name), Memory: d.MemoryTotal, Units: int(d.ComputeUnits),
			PCI:         fmt.Sprintf("%08X:%02X:%02X.0", d.PCIDomain, d.PCIBus, d.PCIDevice),
			Partitioned: d.Instances > 0,
		}
		if d.Parent == 0 {
			gpus++
			continue
		}
		parent := devices[d.Parent-1]
		devices[n].Index, devices[n].Parent, devices[n].ParentIndex = int(d.Number), parent.UUID, parent.Index
		devices[n].GPUInstance = int(d.GPUInstance) // and compute instance 0
	}
	return devices, nil
}

// Facts asks the hardware process. Processes are sorted by their id.
func (i *Inventory) Facts(uuid gpu.UUID) (gpu.Facts, error) {
	d, index, err := i.find(uuid)
	if err != nil {
		return gpu.Facts{}, err
	}
	f := gpu.Facts{
		MemoryUsed: d.MemoryUsed, Utilisation: int(d.UtilizationGPU), MemoryUtilisation: int(d.UtilizationMemory),
	}
	if d.Parent > 0 || d.Instances > 0 { // nor does NVIDIA's driver say how busy instances are, and GPUs in MIG mode
		f.Utilisation, f.MemoryUtilisation = -1, -1
	}
	if d.Parent == 0 {
		celsius := int32(d.TemperatureC)
		f.Power, f.Energy, f.Temperature = &d.PowerMilliwatts, &d.EnergyMillijoules, &celsius
	}
	processes, err := i.hardware.Client.Processes(index)
	if err != nil {
		return gpu.Facts{}, fmt.Errorf("ask the software GPU for its processes: %w", err)
	}
	for _, p := range processes {
		f.Processes = append(f.Processes, gpu.Process{PID: int(p.PID), Memory: p.MemoryUsed,
			Utilisation: int(p.UtilizationGPU)})
	}
	slices.SortFunc(f.Processes, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return f, nil
}

// Describe says what is the same for all software GPUs: an architecture of their own, each behind its own
// root port of one host. As with a vendor's, MIG instances have no links and are none.
func (i *Inventory) Describe(uuid gpu.UUID) (gpu.Description, error) {
	have, err := i.ask()
	if err != nil {
		return gpu.Description{}, err
	}
	description, found, instance := gpu.Description{Architecture: "software", NUMA: -1}, false, false
	for _, d := range have {
		if gpu.UUID(d.UUID) == uuid {
			found, instance = true, d.Parent > 0
			description.Capability = fmt.Sprintf("%d.%d", d.CCMajor, d.CCMinor)
			continue
		}
		if d.Parent == 0 {
			description.Links = append(description.Links, gpu.Link{Peer: gpu.UUID(d.UUID), Path: "NODE"})
		}
	}
	if !found {
		return gpu.Description{}, fmt.Errorf("software GPU %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	if instance {
		description.Links = nil
	}
	return description, nil
}

// Energy asks the hardware process. The counter begins with it. A MIG instance has none.
func (i *Inventory) Energy(uuid gpu.UUID) (uint64, error) {
	d, _, err := i.find(uuid)
	if err == nil && d.Parent > 0 {
		return 0, fmt.Errorf("software GPU %s: a MIG instance has no counter of energy: %w", uuid, errors.ErrUnsupported)
	}
	return d.EnergyMillijoules, err
}

// find asks for a device, and which one it is.
func (i *Inventory) find(uuid gpu.UUID) (wire.Device, int, error) {
	have, err := i.ask()
	if err != nil {
		return wire.Device{}, 0, err
	}
	index := slices.IndexFunc(have, func(d wire.Device) bool { return gpu.UUID(d.UUID) == uuid })
	if index < 0 {
		return wire.Device{}, 0, fmt.Errorf("software GPU %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	return have[index], index, nil
}

func (i *Inventory) ask() ([]wire.Device, error) {
	have, err := i.hardware.Client.Devices()
	if err != nil {
		return nil, fmt.Errorf("ask the software GPU for its devices: %w", err)
	}
	return have, nil
}

// Close releases the hardware process, which ends when no program uses it.
func (i *Inventory) Close() error { return i.hardware.Close() }
