package driver

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

// A claim on a MIG instance is an lgpu on that instance, and one on two is refused: a program can use only one.
func TestInstances(t *testing.T) {
	const shape = "1x16GiB,sms=14,mig=3g+1g+1g"
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	d := New(daemon, kube, Options{Node: "node0", Sim: shape}, func(err error) { t.Errorf("the driver ends: %v", err) })
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	k, _ := kubetest.Kubelet(t, d, kube, "node0", dir)
	devices := slice.Devices(snapshot(t, daemon), shape)
	if len(devices) != 3 || devices[0].Memory != 8<<30 || devices[0].Units != 6 || devices[2].Memory != 2<<30 || devices[2].Units != 2 {
		t.Fatalf("offered: %+v", devices)
	}
	one := give(t, kube, first, "1Gi", "1", devices[2])
	if r := kubetest.Prepare(t, k, one); r.GetError() != "" || len(r.Devices) != 1 || r.Devices[0].CdiDeviceIds[0] != claim.CDI(first) {
		t.Fatalf("prepare: %v", r)
	}
	if !offered(t, dir, first) {
		t.Error("no specification has the claim's lgpu")
	}
	found := false
	for _, use := range directory(t, daemon, first).GetDevices() {
		limits := use.GetRequested()
		found = found || use.GetUuid() == devices[2].UUID && limits.GetMemoryMax() == 1<<30 && limits.GetLgpu().GetCount() == 1
	}
	if !found {
		t.Errorf("its limits are %v", directory(t, daemon, first).GetDevices())
	}
	two := give(t, kube, second, "1Gi", "1", devices[1], devices[2])
	if r := kubetest.Prepare(t, k, two); !strings.Contains(r.GetError(), "one MIG instance and nothing beside it") {
		t.Errorf("a claim on two instances: %v", r)
	}
	kubetest.Unprepare(t, k, one)
	if offered(t, dir, first) {
		t.Error("what was unprepared is offered")
	}
}

// TestCounters: instances are in slices of as many devices as the API takes that takes of counters, and counters in others.
func TestCounters(t *testing.T) {
	s := &api.Snapshot{}
	for g := range 10 {
		s.Devices = append(s.Devices, &api.Device{Uuid: fmt.Sprintf("GPU-%d", g), Index: int32(g), MemoryTotal: 16 << 30, Units: 14, Partitioned: true})
		for i := range 7 {
			s.Devices = append(s.Devices, &api.Device{Uuid: fmt.Sprintf("MIG-%d-%d", g, i), Index: int32(i), Parent: fmt.Sprintf("GPU-%d", g),
				Name: "GPU MIG 1g.2gb", MemoryTotal: 2 << 30, Units: 2})
		}
	}
	pool := (&Driver{Options: Options{Node: "node0"}}).resources(s).Pools["node0"]
	var devices, counters []int
	for _, one := range pool.Slices {
		if len(one.Devices) > 0 && len(one.SharedCounters) > 0 {
			t.Error("a slice has devices and counters")
		}
		devices, counters = append(devices, len(one.Devices)), append(counters, len(one.SharedCounters))
	}
	if got := fmt.Sprint(devices, counters); got != "[64 6 0 0] [0 0 8 2]" {
		t.Errorf("devices and counters of the slices: %s", got)
	}
	if none := (&Driver{Options: Options{Node: "node0"}}).resources(&api.Snapshot{}).Pools["node0"]; len(none.Slices) != 1 {
		t.Errorf("without devices: %+v", none)
	}
}
