package slice

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lgpu/lgpu/api"
)

// Devices that programs can use are offered, with what can be given of them; GPUs in MIG mode are not.
func TestDevices(t *testing.T) {
	numa := uint32(1)
	s := &api.Snapshot{
		Devices: []*api.Device{
			{Uuid: "GPU-B", Index: 1, Key: "195:1", MemoryTotal: 1<<34 + 5, Units: 132, Fault: "it fell off the bus"},
			{Uuid: "GPU-A", Index: 0, Key: "195:0", Name: "H100", MemoryTotal: 1 << 34, Units: 132, Pci: "00000000:3B:00.0",
				Inventory: &api.Inventory{Architecture: "Hopper", Numa: &numa}},
			{Uuid: "GPU-C", Index: 2, MemoryTotal: 1 << 34, Units: 132, Partitioned: true},
			{Uuid: "MIG-X", Index: 2, Parent: "GPU-X", MemoryTotal: 1 << 33, Units: 66},
			{Uuid: "GPU-D", Index: 3, MemoryTotal: 1 << 34, Units: 132, Mode: api.Device_SPATIAL},
			{Uuid: "GPU-S", Index: 4, MemoryTotal: 1 << 34, Units: 4, Sim: "1x16GiB"},
		},
		Directories: []*api.Directory{{Path: "/", Devices: []*api.DeviceUse{{Uuid: "GPU-A", Effective: &api.Effective{Count: 66}}}}},
	}
	all := Devices(s, "")
	if len(all) != 2 || all[0].UUID != "GPU-A" || all[1].UUID != "GPU-B" || all[0].Step != 2 || all[1].Step != 1 {
		t.Fatalf("%+v", all)
	}
	a, b := all[0].Resource(), all[1].Resource()
	if a.Name != "gpu-a" || !*a.AllowMultipleAllocations || len(a.Taints) != 0 || *a.Attributes["architecture"].StringValue != "Hopper" ||
		*a.Attributes["numa"].IntValue != 1 || *a.Attributes["resource.kubernetes.io/numaNode"].IntValue != 1 ||
		*a.Attributes["resource.kubernetes.io/pciBusID"].StringValue != "0000:3b:00.0" {
		t.Errorf("%+v", a)
	}
	units := a.Capacity[Units]
	if units.Value.Value() != 132 || units.RequestPolicy.ValidRange.Step.Value() != 2 {
		t.Errorf("units %+v", units)
	}
	memory := b.Capacity[Memory]
	if memory.Value.Cmp(resource.MustParse("16Gi")) != 0 || memory.RequestPolicy.Default.Cmp(memory.Value) != 0 {
		t.Errorf("memory %+v", memory)
	}
	if len(b.Taints) != 1 || b.Taints[0].Key != TaintFault {
		t.Errorf("taints %+v", b.Taints)
	}
	refused := Refused(s, "")
	for uuid, want := range map[string]string{"GPU-C": "in MIG mode", "MIG-X": "GPU-X, which is not there", "GPU-D": "spatial mode"} {
		if !strings.Contains(refused[uuid], want) {
			t.Errorf("%s is refused since %q", uuid, refused[uuid])
		}
	}
	if len(refused) != 3 {
		t.Errorf("refused: %v", refused)
	}
	if sim := Devices(s, "1x16GiB"); len(sim) != 1 || sim[0].UUID != "GPU-S" {
		t.Errorf("of the software GPU: %+v", sim)
	}
}

// TestLinked: devices are together that reach each other by NVLink, over others too, and whichever of them knows it.
func TestLinked(t *testing.T) {
	device := func(uuid string, index int32, links ...*api.DeviceLink) *api.Device {
		return &api.Device{Uuid: uuid, Index: index, MemoryTotal: 1 << 34, Units: 132, Inventory: &api.Inventory{Links: links}}
	}
	nv := func(peer string) *api.DeviceLink { return &api.DeviceLink{Peer: peer, Path: "NV", Nvlinks: 2} }
	s := &api.Snapshot{Devices: []*api.Device{
		device("GPU-A", 0, nv("GPU-D")), device("GPU-B", 1, nv("GPU-E"), &api.DeviceLink{Peer: "GPU-A", Path: "SYS"}),
		device("GPU-C", 2, &api.DeviceLink{Peer: "GPU-A", Path: "PIX"}), device("GPU-D", 3), device("GPU-E", 4),
		device("GPU-F", 5, nv("GPU-D")),
	}}
	want := []string{"GPU-A", "GPU-B", "", "GPU-A", "GPU-B", "GPU-A"}
	for i, d := range Devices(s, "") {
		got := ""
		if a, is := d.Resource().Attributes["nvlink"]; is {
			got = *a.StringValue
		}
		if got != want[i] {
			t.Errorf("%s: %q, want %q", d.UUID, got, want[i])
		}
	}
}

// TestInstances: MIG instances are offered like GPUs, in the order of their GPUs, and take of the counters of their GPU, which
// has them once.
func TestInstances(t *testing.T) {
	gpu := func(uuid string, index int32) *api.Device {
		return &api.Device{Uuid: uuid, Index: index, Name: "H100", MemoryTotal: 1<<34 + 5, Units: 132, Partitioned: true}
	}
	instance := func(uuid, parent, profile string, index int32, memory uint64, units uint32) *api.Device {
		return &api.Device{Uuid: uuid, Index: index, Key: uuid, Parent: parent, Name: "H100 MIG " + profile, MemoryTotal: memory, Units: units}
	}
	faulty := gpu("GPU-C", 1)
	faulty.Fault = "it fell off the bus"
	s := &api.Snapshot{Devices: []*api.Device{
		gpu("GPU-B", 2), instance("MIG-B1", "GPU-B", "1g.2gb", 1, 1<<31, 16), instance("MIG-B0", "GPU-B", "3g.8gb", 0, 1<<33+7, 60),
		{Uuid: "GPU-A", Index: 0, MemoryTotal: 1 << 34, Units: 132}, faulty, instance("MIG-C5", "GPU-C", "7g.16gb", 5, 1<<34, 132),
		gpu("GPU-D", 3),
	}}
	devices := Devices(s, "")
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	if got := strings.Join(names, " "); got != "gpu-a mig-c5 mig-b0 mig-b1" {
		t.Fatalf("offered: %s", got)
	}
	sets := Counters(devices)
	if len(sets) != 2 || sets[0].Name != "gpu-c" || sets[1].Name != "gpu-b" {
		t.Fatalf("counters %+v", sets)
	}
	memory, units := sets[1].Counters["memory"].Value, sets[1].Counters["units"].Value
	if memory.Value() != 1<<34+5 || units.Value() != 132 || len(sets[1].Counters) != 2 {
		t.Errorf("counters %+v", sets[1])
	}
	whole, half := devices[0].Resource(), devices[2].Resource()
	if len(whole.ConsumesCounters) != 0 || whole.Attributes["profile"].StringValue != nil || whole.Attributes["instance"].IntValue != nil {
		t.Errorf("a GPU: %+v", whole)
	}
	if *half.Attributes["profile"].StringValue != "3g.8gb" || *half.Attributes["parent"].StringValue != "GPU-B" ||
		*half.Attributes["index"].IntValue != 2 || *half.Attributes["instance"].IntValue != 0 || !*half.AllowMultipleAllocations {
		t.Errorf("an instance: %+v", half.Attributes)
	}
	if len(half.ConsumesCounters) != 1 || half.ConsumesCounters[0].CounterSet != "gpu-b" {
		t.Fatalf("an instance takes %+v", half.ConsumesCounters)
	}
	taken, capacity := half.ConsumesCounters[0].Counters, half.Capacity
	memory, units = taken["memory"].Value, taken["units"].Value
	of := capacity[Memory].Value
	if memory.Value() != 1<<33 || units.Value() != 60 || of.Value() != 1<<33 {
		t.Errorf("an instance takes %+v and has %+v", taken, capacity)
	}
	if tainted := devices[1].Resource(); len(tainted.Taints) != 1 {
		t.Errorf("an instance of a GPU that does not work: %+v", tainted.Taints)
	}
}
