// Package sim takes the inventory of a software GPU, so that whatever chooses devices treats it as any other vendor's.
package sim

import (
	"bytes"
	"fmt"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/sim"
)

// Inventory is a hold on a hardware process. It implements gpu.Inventory.
type Inventory struct {
	hardware *sim.Hardware
}

// New takes over hardware, which Close lets go.
func New(hardware *sim.Hardware) *Inventory { return &Inventory{hardware} }

// Devices asks the hardware process, and fails when that is gone.
func (i *Inventory) Devices() ([]gpu.Device, error) {
	have, err := i.hardware.Client.Devices()
	if err != nil {
		return nil, fmt.Errorf("ask the software GPU for its devices: %w", err)
	}
	devices := make([]gpu.Device, len(have))
	for n, d := range have {
		name, _, _ := bytes.Cut(d.Name[:], []byte{0})
		devices[n] = gpu.Device{
			UUID: gpu.UUID(d.UUID), Index: n, Name: string(name), Memory: d.MemoryTotal, Units: int(d.ComputeUnits),
			PCI: fmt.Sprintf("%08X:%02X:%02X.0", d.PCIDomain, d.PCIBus, d.PCIDevice),
		}
	}
	return devices, nil
}

// Close lets the hardware process go; it ends when nobody holds it.
func (i *Inventory) Close() error { return i.hardware.Close() }
