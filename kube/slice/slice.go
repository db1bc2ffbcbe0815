// Package slice makes the devices of a ResourceSlice from the daemon's inventory: what of a node's GPUs the scheduler may
// give away. It is pure: the same snapshot gives the same devices.
package slice

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/lgpu/lgpu/api"
)

// Driver is the name of the DRA driver, and the domain of its attributes.
const Driver = "lgpu.io"

// The capacities that a claim may request a part of.
const (
	Memory resourceapi.QualifiedName = "memory" // device memory, in bytes
	Units  resourceapi.QualifiedName = "units"  // compute units: a part of the device's time on a device that takes turns
)

// TaintFault is the key of the taint of a device that does not work.
const TaintFault = Driver + "/fault"

// PerSlice is how many devices a ResourceSlice may have where any has taints (resource.k8s.io/v1,
// ResourceSliceMaxDevicesWithTaintsOrConsumesCounters).
const PerSlice = 64

// memoryStep is what device memory is given in multiples of, in bytes.
const memoryStep = 1 << 20

// maxAttribute is the length of an attribute that the API takes, in bytes (DeviceAttributeMaxValueLength).
const maxAttribute = 64

// Device is one that claims can have a part of.
type Device struct {
	Name  string // in the pool
	UUID  string
	Key   string // in the files of the tree
	Shape string // of the software GPU; empty for hardware
	// Memory is in bytes, and Units is the number of compute units.
	Memory, Units uint64
	// Step is how many compute units a bit of the file lgpu has.
	Step uint64

	device *api.Device
	nvlink string // the first UUID of those that reach each other by NVLink; empty if it reaches none
}

// Devices returns what of a snapshot can be given, the software GPU of a shape or, with none, the machine's own devices.
func Devices(s *api.Snapshot, shape string) []Device {
	divided, linked := divided(s), linked(s)
	var all []Device
	for _, d := range s.GetDevices() {
		if d.GetSim() != shape || refusal(d, divided) != "" {
			continue
		}
		units := uint64(d.GetUnits())
		all = append(all, Device{Name: strings.ToLower(d.GetUuid()), UUID: d.GetUuid(), Key: d.GetKey(), Shape: shape,
			Memory: whole(d), Units: units, Step: step(s, d.GetUuid(), units), device: d, nvlink: linked[d.GetUuid()]})
	}
	slices.SortFunc(all, func(a, b Device) int { return cmp.Compare(a.device.GetIndex(), b.device.GetIndex()) })
	return all
}

// Refused are the devices of a snapshot that cannot be given, by UUID, and why; devices of other shapes are neither.
func Refused(s *api.Snapshot, shape string) map[string]string {
	divided := divided(s)
	all := map[string]string{}
	for _, d := range s.GetDevices() {
		if why := refusal(d, divided); d.GetSim() == shape && why != "" {
			all[d.GetUuid()] = why
		}
	}
	return all
}

// linked are the devices that reach another by NVLink, each with the first UUID of all that it so reaches, over others too.
func linked(s *api.Snapshot) map[string]string {
	links := map[string][]string{} // both ways: of two devices, one may know less than the other
	for _, d := range s.GetDevices() {
		for _, l := range d.GetInventory().GetLinks() {
			if l.GetNvlinks() > 0 {
				links[d.GetUuid()] = append(links[d.GetUuid()], l.GetPeer())
				links[l.GetPeer()] = append(links[l.GetPeer()], d.GetUuid())
			}
		}
	}
	first := map[string]string{}
	for _, uuid := range slices.Sorted(maps.Keys(links)) {
		for found := []string{uuid}; len(found) > 0; {
			next := found[0]
			found = found[1:]
			if first[next] == "" {
				first[next] = uuid
				found = append(found, links[next]...)
			}
		}
	}
	return first
}

// divided are the GPUs that are divided into MIG instances.
func divided(s *api.Snapshot) map[string]bool {
	all := map[string]bool{}
	for _, d := range s.GetDevices() {
		all[d.GetParent()] = true
	}
	return all
}

// refusal is why a device cannot be given, or empty.
func refusal(d *api.Device, divided map[string]bool) string {
	switch {
	case d.GetParent() != "":
		return "it is a MIG instance, which containers cannot have"
	case divided[d.GetUuid()]:
		return "it is divided into MIG instances, which containers cannot have; nvidia-smi -i " + d.GetUuid() + " -mig 0 gives it back"
	case d.GetMode() != api.Device_TEMPORAL:
		return "it is in spatial mode, in which claims cannot share it"
	case whole(d) == 0 || d.GetUnits() == 0:
		return "the driver does not say how much memory and how many compute units it has"
	}
	return ""
}

// whole is a device's memory in bytes, as far as it can be given.
func whole(d *api.Device) uint64 { return d.GetMemoryTotal() / memoryStep * memoryStep }

// step is how many units a bit has: the root of the tree has all bits of a device.
func step(s *api.Snapshot, uuid string, units uint64) uint64 {
	if len(s.GetDirectories()) > 0 {
		for _, use := range s.GetDirectories()[0].GetDevices() {
			if bits := uint64(use.GetEffective().GetCount()); use.GetUuid() == uuid && bits > 0 && units%bits == 0 {
				return units / bits
			}
		}
	}
	return 1
}

// PCI is the device's address on the bus as the kernel has it, such as 0000:3b:00.0, with four digits of the domain where the
// driver has eight; empty if it is not known, and for a software GPU, which has none.
func (d Device) PCI() string {
	if d.Shape != "" {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(d.device.GetPci(), "0000"))
}

// Resource is the device as the scheduler sees it.
func (d Device) Resource() resourceapi.Device {
	shared := true
	r := resourceapi.Device{
		Name:                     d.Name,
		AllowMultipleAllocations: &shared,
		Attributes:               d.attributes(),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			Memory: capacity(d.Memory, memoryStep, resource.BinarySI),
			Units:  capacity(d.Units, d.Step, resource.DecimalSI),
		},
	}
	if d.device.GetFault() != "" {
		r.Taints = []resourceapi.DeviceTaint{{Key: TaintFault, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return r
}

// capacity may be requested in multiples of a step; who requests nothing has all of it.
func capacity(total, step uint64, format resource.Format) resourceapi.DeviceCapacity {
	all, least := *resource.NewQuantity(int64(total), format), *resource.NewQuantity(int64(step), format)
	return resourceapi.DeviceCapacity{Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: &all, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &all, Step: &least}}}
}

func (d Device) attributes() map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	about := d.device.GetInventory()
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range map[resourceapi.QualifiedName]string{"uuid": d.UUID, "model": d.device.GetName(),
		"architecture": about.GetArchitecture(), "mode": "temporal", "driverVersion": about.GetDriver(),
		"capability": about.GetCapability(), "pci": d.device.GetPci(), "nvlink": d.nvlink,
		deviceattribute.StandardDeviceAttributePCIBusID: d.PCI()} {
		if value != "" && len(value) <= maxAttribute {
			all[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	index := int64(d.device.GetIndex())
	all["index"] = resourceapi.DeviceAttribute{IntValue: &index}
	if about != nil && about.Numa != nil {
		numa := int64(about.GetNuma())
		all["numa"] = resourceapi.DeviceAttribute{IntValue: &numa}
		all[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &numa}
	}
	return all
}
