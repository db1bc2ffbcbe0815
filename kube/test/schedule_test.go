package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/driver"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

// shape is the software GPU of the tests' nodes.
const shape = "2x16GiB,sms=4"

// node is a Node with a daemon and a driver, and no kubelet.
type node struct {
	name    string
	daemon  *api.Conn
	kubelet drapb.DRAPluginClient
	helper  *kubeletplugin.Helper
}

// serve makes a Node, and waits until its devices are published.
func (c *cluster) serve(t *testing.T, name string) *node {
	t.Helper()
	return c.serveOf(t, name, shape, 2)
}

// serveOf is serve with a software GPU of a shape, of which so many devices are published.
func (c *cluster) serveOf(t *testing.T, name, shape string, devices int) *node {
	t.Helper()
	c.addNode(t, name)
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	d := driver.New(daemon, c, driver.Options{Node: name, Sim: shape}, func(err error) { t.Error(err) })
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	kubelet, helper := kubetest.Kubelet(t, d, c, name, dir)
	go func() {
		if err := d.Publish(t.Context(), helper.PublishResources); t.Context().Err() == nil {
			t.Error(err)
		}
	}()
	c.awaitSlices(t, name, fmt.Sprint(devices, " devices"), func(d []resourceapi.Device) bool { return len(d) == devices })
	return &node{name, daemon, kubelet, helper}
}

// consumed are the memory and units that a claim was allocated of its first device.
func consumed(r *resourceapi.ResourceClaim) (memory, units int64) {
	of := r.Status.Allocation.Devices.Results[0].ConsumedCapacity
	m, u := of[slice.Memory], of[slice.Units]
	return m.Value(), u.Value()
}

// prepared prepares a claim, and returns its lgpu's limits by device.
func (n *node) prepared(t *testing.T, c *drapb.Claim) map[string]*api.Limits {
	t.Helper()
	r := kubetest.Prepare(t, n.kubelet, c)
	if r.GetError() != "" || len(r.GetDevices()) == 0 || r.Devices[0].CdiDeviceIds[0] != claim.CDI(c.Uid) {
		t.Fatalf("prepare %s: %v", c.Name, r)
	}
	s, err := n.daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]*api.Limits{}
	for _, dir := range s.GetDirectories() {
		if dir.GetPath() == claim.Group+"/"+c.Uid {
			for _, use := range dir.GetDevices() {
				limits[use.GetUuid()] = use.GetRequested()
			}
		}
	}
	if len(limits) == 0 {
		t.Fatalf("claim %s has no lgpu", c.Name)
	}
	return limits
}

// The stock scheduler gives parts of the devices that the driver has published, and no more than there is; the driver makes of
// each claim that it has allocated an lgpu with those limits, and the API server takes what the driver says of it.
func TestFractions(t *testing.T) {
	c := plane(t)
	n, ns := c.serve(t, "fractions"), c.addNamespace(t)
	c.addClass(t, "")
	add := func(name, memory, units string) {
		c.addClaim(t, ns, name, "", exactly("gpu", part(memory, units)))
		c.addPod(t, ns, podOf(name, n.name, name))
	}
	add("a", "10Gi", "3")
	first, allocated := c.bound(t, ns, "a")
	if memory, units := consumed(allocated); memory != 10<<30 || units != 3 {
		t.Errorf("a has %d bytes and %d units", memory, units)
	}
	device := allocated.Status.Allocation.Devices.Results[0].Device
	for uuid, limits := range n.prepared(t, first) {
		if strings.EqualFold(uuid, device) && (limits.GetMemoryMax() != 10<<30 || limits.GetLgpu().GetCount() != 3) {
			t.Errorf("limits of a: %v", limits)
		}
	}
	c.says(t, ns, "a", 10<<30, 3)

	add("odd", "1000000001", "1") // in the room beside a, and rounded up
	_, allocated = c.bound(t, ns, "odd")
	if memory, _ := consumed(allocated); memory != 954<<20 {
		t.Errorf("odd has %d bytes", memory)
	}
	add("whole", "", "") // the second device
	c.bound(t, ns, "whole")
	add("late", "6Gi", "1")
	if said := c.refused(t, ns, "late"); !strings.Contains(said, "cannot allocate all claims") {
		t.Errorf("the scheduler said %q", said)
	}
	add("more", "17Gi", "1")
	c.refused(t, ns, "more")

	c.endPod(t, ns, "a")
	kubetest.Unprepare(t, n.kubelet, first)
	second, _ := c.bound(t, ns, "late") // in what has become free
	n.prepared(t, second)
	if p := c.awaitPod(t, ns, "more", "there", func(*corev1.Pod) bool { return true }); p.Spec.NodeName != "" {
		t.Error("more than a device has was given")
	}
}

// says fails the test unless a claim's status has what the driver says of its first device.
func (c *cluster) says(t *testing.T, namespace, name string, memory, units uint64) {
	t.Helper()
	r, err := c.ResourceV1().ResourceClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Lgpu, UUID    string
		Memory, Units uint64
	}
	if len(r.Status.Devices) != 1 {
		t.Fatalf("the claim says of devices: %+v", r.Status.Devices)
	}
	one := r.Status.Devices[0]
	err = json.Unmarshal(one.Data.Raw, &said)
	result := r.Status.Allocation.Devices.Results[0]
	if err != nil || said.Memory != memory || said.Units != units || said.Lgpu != claim.Group+"/"+string(r.UID) ||
		one.Device != result.Device || one.ShareID == nil || *one.ShareID != string(*result.ShareID) {
		t.Errorf("%v: the claim says %+v, %s", err, one, one.Data.Raw)
	}
}

// The first alternative that fits is given, and prepared under its own name.
func TestFirstAvailable(t *testing.T) {
	c := plane(t)
	n, ns := c.serve(t, "alternatives"), c.addNamespace(t)
	c.addClass(t, "")
	sub := func(name, memory string) resourceapi.DeviceSubRequest {
		e := part(memory, "1")
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: class, Capacity: e.Capacity}
	}
	c.addClaim(t, ns, "either", `{"apiVersion":"lgpu.io/v1","kind":"LgpuConfig","weight":200}`,
		resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{sub("huge", "20Gi"), sub("small", "4Gi")}})
	c.addPod(t, ns, podOf("either", n.name, "either"))
	one, allocated := c.bound(t, ns, "either")
	if got := allocated.Status.Allocation.Devices.Results[0].Request; got != "gpu/small" {
		t.Errorf("the request %s was allocated", got)
	}
	n.prepared(t, one)
	c.says(t, ns, "either", 4<<30, 1)
}

// A pod that asks for the extended resource of the class, as for a device of a device plugin, has a whole device.
func TestExtendedResource(t *testing.T) {
	const name = "lgpu.io/gpu"
	c := plane(t)
	n, ns := c.serve(t, "extended"), c.addNamespace(t)
	c.addClass(t, name)
	add := func(pod, count string) {
		p := podOf(pod, n.name, "")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: quantity(count)}
		c.addPod(t, ns, p)
	}
	add("two", "2")
	one, allocated := c.bound(t, ns, "two")
	if memory, units := consumed(allocated); len(allocated.Status.Allocation.Devices.Results) != 2 || memory != 16<<30 || units != 4 {
		t.Errorf("two has %+v", allocated.Status.Allocation.Devices.Results)
	}
	if limits := n.prepared(t, one); len(limits) != 2 {
		t.Errorf("limits %v", limits)
	}
	add("three", "1")
	c.refused(t, ns, "three")
}

// No new claim gets a device that does not work, and it gets one again once the device works.
func TestTaint(t *testing.T) {
	c := plane(t)
	n, ns := c.serve(t, "faults"), c.addNamespace(t)
	c.addClass(t, "")
	s, err := n.daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(fault string) {
		var devices []resourceapi.Device
		for _, d := range s.GetDevices() {
			d.Fault = fault
		}
		for _, d := range slice.Devices(s, shape) {
			devices = append(devices, d.Resource())
		}
		err := n.helper.PublishResources(t.Context(), resourceslice.DriverResources{
			Pools: map[string]resourceslice.Pool{n.name: {Slices: []resourceslice.Slice{{Devices: devices}}}}})
		if err != nil {
			t.Fatal(err)
		}
		c.awaitSlices(t, n.name, "as published", func(d []resourceapi.Device) bool {
			return len(d) == 2 && (len(d[0].Taints) > 0) == (fault != "")
		})
	}
	publish("Xid 79")
	c.addClaim(t, ns, "a", "", exactly("gpu", part("1Gi", "1")))
	c.addPod(t, ns, podOf("a", n.name, "a"))
	c.refused(t, ns, "a")
	publish("")
	c.bound(t, ns, "a")
}
