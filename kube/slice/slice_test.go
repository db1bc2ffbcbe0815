package slice

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lgpu/lgpu/api"
)

// Devices that containers can have are offered, with what can be given of them; MIG instances and their GPU are not.
func TestDevices(t *testing.T) {
	numa := uint32(1)
	s := &api.Snapshot{
		Devices: []*api.Device{
			{Uuid: "GPU-B", Index: 1, Key: "195:1", MemoryTotal: 1<<34 + 5, Units: 132, Fault: "it fell off the bus"},
			{Uuid: "GPU-A", Index: 0, Key: "195:0", Name: "H100", MemoryTotal: 1 << 34, Units: 132, Pci: "00000000:3B:00.0",
				Inventory: &api.Inventory{Architecture: "Hopper", Numa: &numa}},
			{Uuid: "GPU-C", Index: 2, MemoryTotal: 1 << 34, Units: 132},
			{Uuid: "MIG-C", Index: 2, Parent: "GPU-C", MemoryTotal: 1 << 33, Units: 66},
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
	for uuid, want := range map[string]string{"GPU-C": "divided into MIG", "MIG-C": "a MIG instance", "GPU-D": "spatial mode"} {
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
