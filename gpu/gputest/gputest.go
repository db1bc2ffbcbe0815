// Package gputest is a machine of devices whose facts a test sets.
package gputest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lgpu/lgpu/gpu"
)

// Inventory is a fake of gpu.Inventory that any number of goroutines may use.
type Inventory struct {
	mu      sync.Mutex
	devices []gpu.Device
	facts   map[gpu.UUID]gpu.Facts
	faults  map[gpu.UUID]error
	meters  map[gpu.UUID]gpu.Meter
	closed  bool
}

var _ gpu.Inventory = (*Inventory)(nil)

// New returns an inventory of devices that do nothing.
func New(devices ...gpu.Device) *Inventory {
	return &Inventory{devices: devices, facts: map[gpu.UUID]gpu.Facts{}, faults: map[gpu.UUID]error{}, meters: map[gpu.UUID]gpu.Meter{}}
}

// Machine returns an inventory of n equal GPUs with the device nodes 195:0 and so on.
func Machine(n int, memory uint64, units int) *Inventory {
	devices := make([]gpu.Device, n)
	for i := range devices {
		devices[i] = gpu.Device{
			UUID: gpu.UUID{0xfa, 0xce, 15: byte(i + 1)}, Index: i, Name: "Fake GPU", Memory: memory, Units: units,
			PCI: fmt.Sprintf("00000000:%02X:00.0", i+1), Node: fmt.Sprintf("195:%d", i),
		}
	}
	return New(devices...)
}

// SetFacts changes what is true on a device.
func (i *Inventory) SetFacts(uuid gpu.UUID, f gpu.Facts) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.facts[uuid] = f
}

// Break makes a device unreachable with err, or well again with nil.
func (i *Inventory) Break(uuid gpu.UUID, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults[uuid] = err
}

// Closed reports whether Close was called.
func (i *Inventory) Closed() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.closed
}

// Devices returns the devices, those that are broken too.
func (i *Inventory) Devices() ([]gpu.Device, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, errors.New("the inventory is closed")
	}
	return slices.Clone(i.devices), nil
}

// Facts returns what SetFacts or Break said last.
func (i *Inventory) Facts(uuid gpu.UUID) (gpu.Facts, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return gpu.Facts{}, errors.New("the inventory is closed")
	}
	if !slices.ContainsFunc(i.devices, func(d gpu.Device) bool { return d.UUID == uuid }) {
		return gpu.Facts{}, fmt.Errorf("%s: %w", uuid, gpu.ErrUnknownDevice)
	}
	if err := i.faults[uuid]; err != nil {
		return gpu.Facts{}, err
	}
	f := i.facts[uuid]
	f.Processes = slices.Clone(f.Processes)
	return f, nil
}

// Describe returns a description with every device behind one switch.
func (i *Inventory) Describe(uuid gpu.UUID) (gpu.Description, error) {
	if _, err := i.Facts(uuid); err != nil {
		return gpu.Description{}, err
	}
	d := gpu.Description{Architecture: "Fake", Capability: "9.0", Driver: "1.0", NUMA: 0}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, peer := range i.devices {
		if peer.UUID != uuid {
			d.Links = append(d.Links, gpu.Link{Peer: peer.UUID, Path: "PIX"})
		}
	}
	return d, nil
}

// Energy returns what SetFacts said last, or an error that wraps errors.ErrUnsupported if that had no Energy.
func (i *Inventory) Energy(uuid gpu.UUID) (uint64, error) {
	f, err := i.Facts(uuid)
	switch {
	case err != nil:
		return 0, err
	case f.Energy == nil:
		return 0, fmt.Errorf("%s has no counter of energy: %w", uuid, errors.ErrUnsupported)
	}
	return *f.Energy, nil
}

// SetMeter gives a device a meter.
func (i *Inventory) SetMeter(uuid gpu.UUID, m gpu.Meter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.meters[uuid] = m
}

// Meter returns what SetMeter said last.
func (i *Inventory) Meter(uuid gpu.UUID) (gpu.Meter, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if m := i.meters[uuid]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%s has no meter: %w", uuid, errors.ErrUnsupported)
}

// Close makes every later call fail.
func (i *Inventory) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	return nil
}
