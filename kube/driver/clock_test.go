package driver

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lgpu/lgpu/kube/kubetest"
)

// envClock names the file that says how far this process's wall clock is off.
const envClock = "LGPU_TEST_CLOCK"

// The driver's wall clock jumps a day ahead and years back while it serves. A claim, which says when it was made and allocated
// by that clock, is prepared as it was allocated, once and again; what the claim says is of one lgpu.
func TestClock(t *testing.T) {
	file := os.Getenv(envClock)
	if file == "" {
		dir := t.TempDir()
		jump, file := filepath.Join(dir, "jump"), filepath.Join(dir, "clock")
		out, err := exec.Command("cc", "-std=c11", "-O1", "-o", jump, "../../test/programs/jump.c").CombinedOutput()
		if err != nil {
			t.Fatalf("compile: %v: %s", err, out)
		}
		turn(t, file, 0)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		within(t, envClock+"="+file, exec.CommandContext(t.Context(), jump, file, self))
		return
	}
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	kube := fake.NewClientset(nodeWith("containerd://2.4.2"))
	k, _ := kubetest.Kubelet(t, begin(t, daemon, kube), kube, "node0", dir)
	one := give(t, kube, first, "10Gi", "3", devicesOf(t, daemon)[0])
	claims := kube.ResourceV1().ResourceClaims("default")
	for _, jump := range []time.Duration{0, 24 * time.Hour, -10 * 365 * 24 * time.Hour} {
		began := time.Now()
		turn(t, file, jump)
		at := metav1.Now()
		if off := at.Round(0).Sub(began.Round(0)); off.Abs() < jump.Abs()/2 {
			t.Fatalf("the clock jumps by %v and not by %v", off, jump)
		}
		c, err := claims.Get(t.Context(), one.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.CreationTimestamp, c.Status.Allocation.AllocationTimestamp = at, &at
		if _, err := claims.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if r := kubetest.Prepare(t, k, one); r.GetError() != "" {
			t.Errorf("after a jump by %v: %v", jump, r)
		}
		if c, err = claims.Get(t.Context(), one.Name, metav1.GetOptions{}); err != nil || len(c.Status.Devices) != 1 {
			t.Errorf("after a jump by %v the claim says %+v, %v", jump, c.Status.Devices, err)
		}
		directory(t, daemon, first)
	}
	kubetest.Unprepare(t, k, one)
}

// turn sets how far the wall clock is off.
func turn(t *testing.T, file string, by time.Duration) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600) // in place, as it is mapped
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := binary.Write(f, binary.NativeEndian, int64(by/time.Second)); err != nil {
		t.Fatal(err)
	}
}
