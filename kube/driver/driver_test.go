package driver

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/slice"
)

const (
	shape  = "2x16GiB,sms=4"
	first  = "0a1b2c3d-0000-4000-8000-000000000001"
	second = "0a1b2c3d-0000-4000-8000-000000000002"
)

// serve starts a daemon of dir, as make build has made it, and connects to it.
func serve(t *testing.T, dir string) (*exec.Cmd, *api.Conn) {
	t.Helper()
	ready, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	c := exec.Command("../../bin/lgpu", "daemon", "--mount=off", "--cdi-dir", filepath.Join(dir, "cdi"))
	c.Env = append(os.Environ(), api.EnvDir+"="+dir, api.EnvReady+"=3", "LGPU_REAL_LIBNVML=")
	c.ExtraFiles, c.SysProcAttr = []*os.File{write}, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatalf("%v; run: make build", err)
	}
	write.Close()
	if said, _ := io.ReadAll(ready); strings.TrimSpace(string(said)) != "ready" && len(said) > 0 {
		t.Logf("the daemon said %s", said)
	}
	t.Cleanup(func() {
		if c.ProcessState == nil {
			c.Process.Signal(syscall.SIGTERM)
			c.Wait()
		}
	})
	conn, err := api.Dial(t.Context(), api.Options{Socket: filepath.Join(dir, api.Socket), Change: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	t.Cleanup(func() { conn.Close() })
	return c, conn
}

// kubelet starts the driver and returns the kubelet's end.
func kubelet(t *testing.T, daemon *api.Conn, kube *fake.Clientset, dir string) (drapb.DRAPluginClient, *Driver) {
	t.Helper()
	d := New(daemon, kube, "node0", shape, func(err error) { t.Error(err) })
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	helper, err := kubeletplugin.Start(t.Context(), d, kubeletplugin.DriverName(slice.Driver), kubeletplugin.NodeName("node0"),
		kubeletplugin.KubeClient(kube), kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.RegistrarDirectoryPath(dir),
		kubeletplugin.HealthService(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return drapb.NewDRAPluginClient(conn), d
}

// give adds a claim that was allocated so much of devices.
func give(t *testing.T, kube *fake.Clientset, uid, memory, units string, devices ...slice.Device) *drapb.Claim {
	t.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c" + uid[len(uid)-1:], UID: types.UID(uid)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	share := types.UID("5a1b2c3d-0000-4000-8000-00000000000" + uid[len(uid)-1:])
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

func prepare(t *testing.T, k drapb.DRAPluginClient, c *drapb.Claim) *drapb.NodePrepareResourceResponse {
	t.Helper()
	r, err := k.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[c.Uid]
}

func unprepare(t *testing.T, k drapb.DRAPluginClient, c *drapb.Claim) {
	t.Helper()
	r, err := k.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil || r.Claims[c.Uid].GetError() != "" {
		t.Errorf("unprepare: %v, %v", err, r)
	}
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
	dir, err := os.MkdirTemp("", "kube-") // short, for the sockets' sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	process, daemon := serve(t, dir)
	// The software GPU is there as long as something is for it.
	if _, err := daemon.Create(t.Context(), &api.CreateRequest{Path: "/keep", Sim: shape}); err != nil {
		t.Fatal(err)
	}
	devices := devicesOf(t, daemon)
	kube := fake.NewClientset()
	k, d := kubelet(t, daemon, kube, dir)
	if pool := d.resources(snapshot(t, daemon)).Pools["node0"]; len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 2 {
		t.Errorf("published: %+v", pool)
	}
	one := give(t, kube, first, "10Gi", "3", devices[1])
	for range 2 {
		r := prepare(t, k, one)
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
	if r := prepare(t, k, two); !strings.Contains(r.GetError(), "memory does not fit") {
		t.Errorf("over the device's memory: %v", r)
	}

	process.Process.Kill()
	process.Wait()
	_, next := serve(t, dir)
	holds(next)
	k, _ = kubelet(t, next, kube, t.TempDir())
	unprepare(t, k, one)
	unprepare(t, k, one)
	if offered(t, dir, first) {
		t.Error("a specification has the lgpu of a claim that is gone")
	}
	if r := prepare(t, k, two); r.GetError() != "" || len(r.Devices) != 2 {
		t.Errorf("on two devices, in the room that has become free: %v", r)
	}
	unprepare(t, k, two)
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
