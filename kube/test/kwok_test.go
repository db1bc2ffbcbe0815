package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// played is the label of Nodes whose kubelets kwok plays.
const played = "lgpu.io/kwok"

// kubelets has kwok play the kubelets of the Nodes with the label played, until the test ends: it says that they are ready, sends
// their heartbeats, and says of pods that they run. Claims are not prepared.
func (c *cluster) kubelets(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	built := filepath.Dir(binary)
	k := exec.Command(filepath.Join(built, "kwok"), "--kubeconfig", c.kubeconfig, "--config", filepath.Join(built, "kwok.yaml"),
		"--manage-nodes-with-label-selector", played+"=true", "--node-lease-duration-seconds", "40")
	k.Env = append(os.Environ(), "HOME="+dir)
	k.Stdout, k.Stderr, k.SysProcAttr = log, log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.Start(); err != nil {
		t.Fatalf("%v; build it, once, by: make kube-control-plane", err)
	}
	t.Cleanup(func() {
		k.Process.Kill()
		k.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("kwok said:\n%s", text[max(0, len(text)-4000):])
		}
	})
}

// awaitReady waits until so many of the Nodes with the label played are ready.
func (c *cluster) awaitReady(t *testing.T, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: played})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ready := map[string]bool{}
	for e := range w.ResultChan() {
		n, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready[n.Name] = true
			}
		}
		if len(ready) == count {
			return
		}
	}
	t.Fatalf("%d of %d nodes are ready", len(ready), count)
}
