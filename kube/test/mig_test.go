package test

import (
	"context"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

// chosen is a request of so much of a device for which an expression holds.
func chosen(memory, units, expression string) resourceapi.DeviceRequest {
	e := part(memory, units)
	e.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return exactly("gpu", e)
}

// ofProfile selects MIG instances of a size, and no GPU.
func ofProfile(profile string) string {
	return `has(device.attributes["lgpu.io"].profile) && device.attributes["lgpu.io"].profile == "` + profile + `"`
}

// The stock scheduler gives MIG instances of the software GPU that the driver has published, by their profile, whole or in part;
// what it has given becomes an lgpu on the instance. The GPU itself is not to be had.
func TestInstances(t *testing.T) {
	c := plane(t)
	n, ns := c.serveOf(t, "instances", "1x16GiB,sms=14,mig=3g+1g+1g", 3), c.addNamespace(t)
	c.addClass(t, "")
	add := func(name string, request resourceapi.DeviceRequest) {
		t.Helper()
		c.addClaim(t, ns, name, "", request)
		c.addPod(t, ns, podOf(name, n.name, name))
	}
	small := ofProfile("1g.2gb")
	add("part", chosen("1Gi", "1", small))
	first, allocated := c.bound(t, ns, "part")
	if memory, units := consumed(allocated); memory != 1<<30 || units != 1 {
		t.Errorf("part has %d bytes and %d units", memory, units)
	}
	device := allocated.Status.Allocation.Devices.Results[0].Device
	if !strings.HasPrefix(device, "mig-") {
		t.Errorf("part is on %s", device)
	}
	limits, found := n.prepared(t, first), false
	for uuid, l := range limits {
		found = found || strings.EqualFold(uuid, device) && l.GetMemoryMax() == 1<<30 && l.GetLgpu().GetCount() == 1
	}
	if !found {
		t.Errorf("limits of part, on %s: %v", device, limits)
	}
	c.says(t, ns, "part", 1<<30, 1)

	add("whole", chosen("", "", small)) // the other instance of that size
	whole, allocated := c.bound(t, ns, "whole")
	if memory, units := consumed(allocated); memory != 2<<30 || units != 2 ||
		allocated.Status.Allocation.Devices.Results[0].Device == device {
		t.Errorf("whole has %d bytes and %d units of %v", memory, units, allocated.Status.Allocation.Devices.Results)
	}
	n.prepared(t, whole)
	add("another", chosen("", "", small))
	c.refused(t, ns, "another")
	add("beside", chosen("1Gi", "1", small)) // what is left beside part
	beside, allocated := c.bound(t, ns, "beside")
	if allocated.Status.Allocation.Devices.Results[0].Device != device {
		t.Errorf("beside is on %v, not on %s", allocated.Status.Allocation.Devices.Results, device)
	}
	n.prepared(t, beside)
	add("gpu", exactly("gpu", part("16Gi", "14")))
	c.refused(t, ns, "gpu")
	add("half", exactly("gpu", part("8Gi", "6")))
	half, _ := c.bound(t, ns, "half")
	n.prepared(t, half)

	c.endPod(t, ns, "whole")
	kubetest.Unprepare(t, n.kubelet, whole)
	again, _ := c.bound(t, ns, "another")
	n.prepared(t, again)
}

// Instances that do not fit on their GPU together are not given together: they take of its counters, once however many claims
// share one. There are no such instances of a GPU, so the slices are made here of what a driver would have to say of them.
func TestCounters(t *testing.T) {
	c := plane(t)
	ns, node := c.addNamespace(t), "counters"
	c.addNode(t, node)
	c.addClass(t, "")
	instance := func(name string, index int32, memory uint64, units uint32) *api.Device {
		return &api.Device{Uuid: "MIG-" + name, Index: index, Parent: "GPU-1", Name: "GPU MIG " + name, MemoryTotal: memory, Units: units}
	}
	devices := slice.Devices(&api.Snapshot{Devices: []*api.Device{
		{Uuid: "GPU-0", Index: 0, MemoryTotal: 16 << 30, Units: 14},
		{Uuid: "GPU-1", Index: 1, MemoryTotal: 16 << 30, Units: 14, Partitioned: true},
		instance("a", 0, 8<<30, 6), instance("b", 1, 8<<30, 6), instance("c", 2, 2<<30, 2),
	}}, "")
	var offered []resourceapi.Device
	for _, d := range devices {
		offered = append(offered, d.Resource())
	}
	for name, spec := range map[string]resourceapi.ResourceSliceSpec{
		node: {Devices: offered}, node + "-gpus": {SharedCounters: slice.Counters(devices)},
	} {
		spec.Driver, spec.NodeName = slice.Driver, &node
		spec.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2}
		if _, err := c.ResourceV1().ResourceSlices().Create(t.Context(),
			&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.ResourceV1().ResourceSlices().Delete(context.Background(), name, now()) })
	}
	add := func(name, profile, memory, units string) {
		t.Helper()
		c.addClaim(t, ns, name, "", chosen(memory, units, ofProfile(profile)))
		c.addPod(t, ns, podOf(name, node, name))
	}
	add("first", "a", "1Gi", "1")
	c.bound(t, ns, "first")
	add("second", "b", "1Gi", "1")
	c.bound(t, ns, "second")
	add("third", "c", "1Gi", "1") // the memory of the GPU is given
	c.refused(t, ns, "third")
	add("shares", "b", "7Gi", "5")
	c.bound(t, ns, "shares")
	c.endPod(t, ns, "first")
	c.bound(t, ns, "third")
	add("late", "a", "1Gi", "1")
	c.refused(t, ns, "late")
}
