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

// A counter set has the same two of a GPU in MIG mode, and its instances take of them.
const (
	counterMemory = string(Memory)
	counterUnits  = string(Units)
)

// TaintFault is the key of the taint of a device that does not work.
const TaintFault = Driver + "/fault"

// PerSlice is how many devices a ResourceSlice may have where any has taints or takes of counters (resource.k8s.io/v1,
// ResourceSliceMaxDevicesWithTaintsOrConsumesCounters), and CountersPerSlice how many counter sets one may have that has no
// devices (ResourceSliceMaxCounterSets).
const (
	PerSlice         = 64
	CountersPerSlice = 8
)

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
	parent *api.Device // of a MIG instance; nil of a GPU
	nvlink string      // the first UUID of those that reach each other by NVLink; empty if it reaches none
}

// Devices returns what of a snapshot can be given, the software GPU of a shape or, with none, the machine's own devices.
func Devices(s *api.Snapshot, shape string) []Device {
	linked, by := linked(s), byUUID(s)
	var all []Device
	for _, d := range s.GetDevices() {
		if d.GetSim() != shape || refusal(d, by) != "" {
			continue
		}
		units := uint64(d.GetUnits())
		all = append(all, Device{Name: strings.ToLower(d.GetUuid()), UUID: d.GetUuid(), Key: d.GetKey(), Shape: shape,
			Memory: whole(d), Units: units, Step: step(s, d.GetUuid(), units), device: d, parent: by[d.GetParent()],
			nvlink: linked[d.GetUuid()]})
	}
	slices.SortFunc(all, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.gpu().GetIndex(), b.gpu().GetIndex()), cmp.Compare(a.device.GetIndex(), b.device.GetIndex()))
	})
	return all
}

// gpu is the device, or the GPU that it is a MIG instance of.
func (d Device) gpu() *api.Device {
	if d.parent != nil {
		return d.parent
	}
	return d.device
}

// Counters are the GPUs whose MIG instances are offered, with what there is of each: instances take of it (Device.Resource). They
// are in the order of Devices, and must be published in the pool of the devices, in other slices.
func Counters(devices []Device) []resourceapi.CounterSet {
	var all []resourceapi.CounterSet
	for _, d := range devices {
		if d.parent == nil || len(all) > 0 && all[len(all)-1].Name == counterSet(d.parent) {
			continue
		}
		all = append(all, resourceapi.CounterSet{Name: counterSet(d.parent),
			Counters: counters(d.parent.GetMemoryTotal(), uint64(d.parent.GetUnits()))})
	}
	return all
}

// counterSet is the name of the counters of a GPU in MIG mode.
func counterSet(gpu *api.Device) string { return strings.ToLower(gpu.GetUuid()) }

func counters(memory, units uint64) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{
		counterMemory: {Value: *resource.NewQuantity(int64(memory), resource.BinarySI)},
		counterUnits:  {Value: *resource.NewQuantity(int64(units), resource.DecimalSI)},
	}
}

// Refused are the devices of a snapshot that cannot be given, by UUID, and why; devices of other shapes are neither.
func Refused(s *api.Snapshot, shape string) map[string]string {
	by := byUUID(s)
	all := map[string]string{}
	for _, d := range s.GetDevices() {
		if why := refusal(d, by); d.GetSim() == shape && why != "" {
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

// byUUID are the devices of a snapshot.
func byUUID(s *api.Snapshot) map[string]*api.Device {
	all := map[string]*api.Device{}
	for _, d := range s.GetDevices() {
		all[d.GetUuid()] = d
	}
	return all
}

// refusal is why a device cannot be given, or empty.
func refusal(d *api.Device, by map[string]*api.Device) string {
	switch {
	case d.GetPartitioned() && d.GetSim() != "":
		return "it is in MIG mode: its instances are offered in its place"
	case d.GetPartitioned():
		return "it is in MIG mode: its instances are offered in its place; nvidia-smi -i " + d.GetUuid() + " -mig 0 ends that"
	case d.GetParent() != "" && by[d.GetParent()] == nil:
		return "it is a MIG instance of " + d.GetParent() + ", which is not there"
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

// Resource is the device as the scheduler sees it. Claims can share a MIG instance like a GPU; it takes of its GPU's counters as
// a whole, and once.
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
	if d.parent != nil {
		r.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: counterSet(d.parent), Counters: counters(d.Memory, d.Units)}}
	}
	if d.gpu().GetFault() != "" || d.device.GetFault() != "" {
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

// profile is the size of a MIG instance as the driver calls it, such as 1g.10gb: it ends the name. Empty for a GPU.
func (d Device) profile() string {
	if d.parent == nil {
		return ""
	}
	_, profile, _ := strings.Cut(d.device.GetName(), " MIG ")
	return profile
}

func (d Device) attributes() map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	about := d.device.GetInventory()
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range map[resourceapi.QualifiedName]string{"uuid": d.UUID, "model": d.device.GetName(),
		"architecture": about.GetArchitecture(), "mode": "temporal", "driverVersion": about.GetDriver(),
		"capability": about.GetCapability(), "pci": d.device.GetPci(), "nvlink": d.nvlink,
		"profile": d.profile(), "parent": d.device.GetParent(),
		deviceattribute.StandardDeviceAttributePCIBusID: d.PCI()} {
		if value != "" && len(value) <= maxAttribute {
			all[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	index := int64(d.gpu().GetIndex())
	all["index"] = resourceapi.DeviceAttribute{IntValue: &index}
	if d.parent != nil {
		instance := int64(d.device.GetIndex())
		all["instance"] = resourceapi.DeviceAttribute{IntValue: &instance}
	}
	if about != nil && about.Numa != nil {
		numa := int64(about.GetNuma())
		all["numa"] = resourceapi.DeviceAttribute{IntValue: &numa}
		all[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &numa}
	}
	return all
}
