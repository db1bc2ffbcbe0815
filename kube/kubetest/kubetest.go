// Package kubetest starts what tests of the driver need beside it: lgpu's daemon, as make build has made it, and the driver's
// service as the kubelet reaches it. Tests that use it are two folders below the repository's root.
package kubetest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/slice"
)

// Folder returns a new folder whose path is short enough for the sockets in it. It is removed when the test ends.
func Folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kube-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Daemon starts a daemon of dir, which has no other, and connects to it. The test's end, or that of its process, ends the daemon.
// Its specifications for containers are in dir/cdi.
func Daemon(t testing.TB, dir string) (*exec.Cmd, *api.Conn) {
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

// Kubelet serves a driver of a node in dir, and returns the kubelet's end of the connection and the helper that publishes.
func Kubelet(t testing.TB, d kubeletplugin.DRAPlugin, kube kubernetes.Interface, node, dir string) (
	drapb.DRAPluginClient, *kubeletplugin.Helper) {
	t.Helper()
	helper, err := kubeletplugin.Start(t.Context(), d, kubeletplugin.DriverName(slice.Driver), kubeletplugin.NodeName(node),
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
	return drapb.NewDRAPluginClient(conn), helper
}

// Prepare asks for a claim as the kubelet does.
func Prepare(t testing.TB, kubelet drapb.DRAPluginClient, c *drapb.Claim) *drapb.NodePrepareResourceResponse {
	t.Helper()
	r, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[c.Uid]
}

// Unprepare gives a claim back as the kubelet does.
func Unprepare(t testing.TB, kubelet drapb.DRAPluginClient, c *drapb.Claim) {
	t.Helper()
	r, err := kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil || r.Claims[c.Uid].GetError() != "" {
		t.Errorf("unprepare %s: %v, %v", c.Name, err, r)
	}
}
