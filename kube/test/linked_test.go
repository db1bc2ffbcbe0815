package test

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/slice"
)

// Of four devices two and two reach each other by NVLink. A claim on two that do has such a pair, whichever is free, and three
// that do are not to be had.
func TestLinked(t *testing.T) {
	c := plane(t)
	ns, node := c.addNamespace(t), "linked"
	c.addNode(t, node)
	c.addClass(t, "")
	s := &api.Snapshot{Directories: []*api.Directory{{Path: "/"}}}
	for i := range 4 {
		s.Devices = append(s.Devices, &api.Device{Uuid: fmt.Sprintf("GPU-%d", i), Index: int32(i), MemoryTotal: 16 << 30, Units: 4,
			Mode: api.Device_TEMPORAL, Inventory: &api.Inventory{Links: []*api.DeviceLink{
				{Peer: fmt.Sprintf("GPU-%d", (i+2)%4), Path: "NV", Nvlinks: 4}, {Peer: fmt.Sprintf("GPU-%d", (i+1)%4), Path: "SYS"}}}})
	}
	one := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourceapi.ResourceSliceSpec{Driver: slice.Driver,
		NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}}
	for _, d := range slice.Devices(s, "") {
		one.Spec.Devices = append(one.Spec.Devices, d.Resource())
	}
	if _, err := c.ResourceV1().ResourceSlices().Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ResourceV1().ResourceSlices().Delete(context.Background(), node, now()) })
	linked := resourceapi.FullyQualifiedName(slice.Driver + "/nvlink")
	add := func(name string, requests ...string) {
		t.Helper()
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, r := range requests {
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, exactly(r, part("", "")))
		}
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: requests, MatchAttribute: &linked}}
		if _, err := c.ResourceV1().ResourceClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.addPod(t, ns, podOf(name, node, name))
	}
	add("three", "a", "b", "c")
	c.refused(t, ns, "three")
	had := map[string]bool{}
	for _, name := range []string{"first", "second"} {
		add(name, "a", "b")
		_, allocated := c.bound(t, ns, name)
		var pair []string
		for _, r := range allocated.Status.Allocation.Devices.Results {
			pair = append(pair, r.Device)
			had[r.Device] = true
		}
		if got := fmt.Sprint(pair); len(pair) != 2 || got != "[gpu-0 gpu-2]" && got != "[gpu-2 gpu-0]" && got != "[gpu-1 gpu-3]" && got != "[gpu-3 gpu-1]" {
			t.Errorf("%s has %s", name, got)
		}
	}
	if len(had) != 4 {
		t.Errorf("two pairs have %d devices", len(had))
	}
	add("third", "a", "b")
	c.refused(t, ns, "third")
}
