package driver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/fake"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

// envFull says that this process has mounts of its own.
const envFull = "LGPU_TEST_FULL"

// On a disk that is full claims are prepared for as long as the daemon can write them down, and then refused with the reason.
// After a kill of the daemon there are the lgpus of those that were prepared, and of no others. Once there is room all are
// prepared.
func TestFull(t *testing.T) {
	if os.Getenv(envFull) == "" {
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		within(t, envFull+"=1", c)
		return
	}
	const count, wide = 60, "1x64GiB,sms=64"
	dir := kubetest.Folder(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	process, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	serve := func(daemon *api.Conn) drapb.DRAPluginClient {
		d := New(daemon, kube, Options{Node: "node0", Sim: wide}, func(err error) { t.Error(err) })
		if err := d.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		k, _ := kubetest.Kubelet(t, d, kube, "node0", kubetest.Folder(t))
		return k
	}
	k := serve(daemon)
	device := slice.Devices(snapshot(t, daemon), wide)[0]
	remove := fill(t, dir)
	var prepared, refused []*drapb.Claim
	for i := range count {
		c := give(t, kube, fmt.Sprintf("0a1b2c3d-0000-4000-8000-%012d", i), "1Gi", "1", device)
		switch r := kubetest.Prepare(t, k, c); {
		case r.GetError() == "":
			prepared = append(prepared, c)
		case strings.Contains(r.GetError(), "no space left on device"):
			refused = append(refused, c)
		default:
			t.Errorf("on a disk that is full: %v", r)
		}
	}
	t.Logf("%d claims are prepared and %d refused", len(prepared), len(refused))
	if len(refused) == 0 {
		t.Error("the disk is not full")
	}
	process.Process.Kill()
	process.Wait()
	remove()
	_, daemon = kubetest.Daemon(t, dir)
	for _, c := range prepared {
		directory(t, daemon, c.Uid)
	}
	if n := len(snapshot(t, daemon).GetDirectories()) - len(prepared); n != 2 { // the root, and the group of claims
		t.Errorf("%d lgpus are of claims that were refused", n-2)
	}
	k = serve(daemon)
	for _, c := range append(prepared, refused...) {
		if r := kubetest.Prepare(t, k, c); r.GetError() != "" || !offered(t, dir, c.Uid) {
			t.Errorf("once there is room: %v", r)
		}
	}
}

// within runs the test that runs once more, as a command says, with one more variable.
func within(t *testing.T, variable string, c *exec.Cmd) {
	t.Helper()
	c.Args = append(c.Args, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), variable)
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v\n%s", err, out)
	}
}

// fill takes all room that a file system has, until remove is called.
func fill(t *testing.T, dir string) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "full")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := 1 << 20; block > 0; {
		if _, err := f.Write(make([]byte, block)); errors.Is(err, unix.ENOSPC) {
			block /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}
