package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

const (
	shape  = "2x16GiB,sms=4"
	first  = "0a1b2c3d-0000-4000-8000-000000000001"
	second = "0a1b2c3d-0000-4000-8000-000000000002"
)

// give adds a claim that was allocated so much of devices.
func give(t *testing.T, kube *fake.Clientset, uid, memory, units string, devices ...slice.Device) *drapb.Claim {
	t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c" + strings.TrimLeft(uid[len(uid)-12:], "0"), UID: types.UID(uid)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	share := types.UID("5a1b2c3d-0000-4000-8000-" + uid[len(uid)-12:])
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: slice.Driver, Pool: "node0", Device: d.Name, ShareID: &share,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				slice.Memory: resource.MustParse(memory), slice.Units: resource.MustParse(units)}})
	}
	if _, err := kube.ResourceV1().ResourceClaims("default").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &drapb.Claim{Namespace: "default", Name: c.Name, Uid: uid}
}

// offered reports whether a specification names the lgpu of a claim.
func offered(t *testing.T, dir, uid string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "cdi", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), `"kube:`+uid+`"`) {
			return true
		}
	}
	return false
}

// A claim's life as a kubelet has it, with a daemon that is killed in between: prepared twice it is one lgpu with its limits on
// its device alone; a claim that does not fit beside it is refused; what is unprepared is gone, and may be so again.
func TestClaims(t *testing.T) {
	dir := kubetest.Folder(t)
	process, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	d := begin(t, daemon, kube)
	devices := devicesOf(t, daemon)
	k, _ := kubetest.Kubelet(t, d, kube, "node0", dir)
	if pool := d.resources(snapshot(t, daemon)).Pools["node0"]; len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 2 {
		t.Errorf("published: %+v", pool)
	}
	one := give(t, kube, first, "10Gi", "3", devices[1])
	for range 2 {
		r := kubetest.Prepare(t, k, one)
		if r.GetError() != "" || len(r.Devices) != 1 || r.Devices[0].CdiDeviceIds[0] != claim.CDI(first) || r.Devices[0].GetShareId() == "" {
			t.Fatalf("prepare: %v", r)
		}
	}
	holds := func(daemon *api.Conn) {
		t.Helper()
		dir := directory(t, daemon, first)
		for _, use := range dir.GetDevices() {
			limits := use.GetRequested()
			if use.GetUuid() == devices[1].UUID && (limits.GetMemoryMax() != 10<<30 || limits.GetLgpu().GetCount() != 3) {
				t.Errorf("limits %v", limits)
			}
		}
	}
	holds(daemon)
	if !offered(t, dir, first) {
		t.Error("no specification has the claim's lgpu")
	}
	c, err := kube.ResourceV1().ResourceClaims("default").Get(t.Context(), one.Name, metav1.GetOptions{})
	if err != nil || len(c.Status.Devices) != 1 || !strings.Contains(string(c.Status.Devices[0].Data.Raw), `"memory":10737418240`) {
		t.Errorf("%v: the claim says %+v", err, c.Status.Devices)
	}
	two := give(t, kube, second, "8Gi", "1", devices...)
	if r := kubetest.Prepare(t, k, two); !strings.Contains(r.GetError(), "memory does not fit") {
		t.Errorf("over the device's memory: %v", r)
	}

	process.Process.Kill()
	process.Wait()
	_, next := kubetest.Daemon(t, dir)
	holds(next)
	k, _ = kubetest.Kubelet(t, begin(t, next, kube), kube, "node0", t.TempDir())
	kubetest.Unprepare(t, k, one)
	kubetest.Unprepare(t, k, one)
	if offered(t, dir, first) {
		t.Error("a specification has the lgpu of a claim that is gone")
	}
	if r := kubetest.Prepare(t, k, two); r.GetError() != "" || len(r.Devices) != 2 {
		t.Errorf("on two devices, in the room that has become free: %v", r)
	}
	kubetest.Unprepare(t, k, two)
}

// A specification that cannot be written, as on a disk that is full, is written once it can be: the pod waits for it.
func TestUnwritten(t *testing.T) {
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	k, _ := kubetest.Kubelet(t, begin(t, daemon, kube), kube, "node0", dir)
	specs := filepath.Join(dir, "cdi")
	if err := os.RemoveAll(specs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(specs, nil, 0o600); err != nil { // in the place of the folder
		t.Fatal(err)
	}
	one := give(t, kube, first, "10Gi", "3", devicesOf(t, daemon)[0])
	if r := kubetest.Prepare(t, k, one); r.GetError() != "" {
		t.Error(r)
	}
	if err := os.Remove(specs); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); !offered(t, dir, first); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("the specification is not written once it can be")
		}
	}
	kubetest.Unprepare(t, k, one)
}

// A claim is refused, with the reason, where the Node's container runtime would start the pod without its GPU.
func TestRuntimeWithoutCDI(t *testing.T) {
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://1.6.20"))
	d := begin(t, daemon, kube)
	k, _ := kubetest.Kubelet(t, d, kube, "node0", dir)
	one := give(t, kube, first, "10Gi", "3", devicesOf(t, daemon)[0])
	if r := kubetest.Prepare(t, k, one); !strings.Contains(r.GetError(), "1.6.20, ignores CDI") {
		t.Errorf("prepared for a runtime that ignores CDI: %v", r)
	}
	d.TrustRuntime = true
	if r := kubetest.Prepare(t, k, one); r.GetError() != "" {
		t.Errorf("where the administrator knows better: %v", r)
	}
	kubetest.Unprepare(t, k, one)
}

// A list of compute units is for devices in spatial mode: the daemon's reason for refusing it elsewhere is the claim's.
func TestListOfUnits(t *testing.T) {
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	k, _ := kubetest.Kubelet(t, begin(t, daemon, kube), kube, "node0", dir)
	one := give(t, kube, first, "1Gi", "2", devicesOf(t, daemon)[0])
	claims := kube.ResourceV1().ResourceClaims("default")
	c, err := claims.Get(t.Context(), one.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slice.Driver, Parameters: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"lgpu.io/v1","kind":"LgpuConfig","list":"0-1"}`)}}}}}
	if _, err := claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := kubetest.Prepare(t, k, one)
	if !strings.Contains(r.GetError(), "list") || !strings.Contains(r.GetError(), "not supported") {
		t.Errorf("a list on a device that takes turns: %v", r)
	}
}

// nodeWith is the Node of the tests, with a container runtime.
func nodeWith(version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: version}}}
}

// begin returns a driver that has begun.
func begin(t *testing.T, daemon *api.Conn, kube kubernetes.Interface) *Driver {
	t.Helper()
	d := New(daemon, kube, Options{Node: "node0", Sim: shape}, func(err error) { t.Error(err) })
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func snapshot(t *testing.T, daemon *api.Conn) *api.Snapshot {
	t.Helper()
	s, err := daemon.Snapshot(context.Background(), &api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func devicesOf(t *testing.T, daemon *api.Conn) []slice.Device {
	t.Helper()
	devices := slice.Devices(snapshot(t, daemon), shape)
	if len(devices) != 2 {
		t.Fatalf("devices %+v", devices)
	}
	return devices
}

func directory(t *testing.T, daemon *api.Conn, uid string) *api.Directory {
	t.Helper()
	for _, d := range snapshot(t, daemon).GetDirectories() {
		if d.GetPath() == claim.Group+"/"+uid {
			return d
		}
	}
	t.Fatalf("no lgpu of claim %s", uid)
	return nil
}
