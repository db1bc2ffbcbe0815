package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lgpuPods are the pods of the chart's daemon set.
func (n *node) lgpuPods(ctx context.Context) ([]corev1.Pod, error) {
	all, err := n.CoreV1().Pods(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

// awaitDriver waits until lgpu's pod runs with an image, and is the only one.
func (n *node) awaitDriver(t testing.TB, image string) {
	t.Helper()
	err := until(context.Background(), "lgpu's pod runs "+image, func(ctx context.Context) (bool, error) {
		pods, err := n.lgpuPods(ctx)
		return err == nil && len(pods) == 1 && pods[0].Spec.Containers[0].Image == image && running(&pods[0]), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A pod that comes before the driver waits, and runs once the driver is there.
func TestBeforeDriver(t *testing.T) {
	s := begun(t)
	pods, err := s.lgpuPods(t.Context())
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods of lgpu, %v", len(pods), err)
	}
	mark := func(change string) {
		t.Helper()
		if _, err := s.kubectl(context.Background(), "", "label", "--overwrite", "node", nodeName, change); err != nil {
			t.Fatal(err)
		}
	}
	mark("lgpu.io/node-")
	defer mark(label) // the end of the test's namespace takes a driver
	err = until(t.Context(), "the driver is gone", func(ctx context.Context) (bool, error) {
		left, err := s.lgpuPods(ctx)
		return err == nil && len(left) == 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, claims("gpu", "1Gi", 4), pod("early", "Never", idle, "gpu"))
	s.awaitPod(t, "early", "was seen by the scheduler", func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
	mark(label)
	s.runs(t, "early")
	s.awaitDriver(t, pods[0].Spec.Containers[0].Image)
	bounded(t, "early", s.exec(t, "early", "gpu", "/tenant", "/compute.ptx"), 1<<30)
}

// An upgrade of lgpu's pod ends no program that computes: it goes on, within its limits, and so does the software GPU.
func TestUpgrade(t *testing.T) {
	s := begun(t)
	s.apply(t, claims("gpu", "1Gi", 4, "cap: 20"), pod("train", "Never", work, "gpu"))
	p := s.runs(t, "train")
	s.said(t, p, 2, "kernels ")
	pods, err := s.lgpuPods(t.Context())
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods of lgpu, %v", len(pods), err)
	}
	image := "localhost/lgpu:2"
	if pods[0].Spec.Containers[0].Image == image { // by this test, which ran before
		image = "localhost/lgpu:1"
	}
	if _, err := s.kubectl(t.Context(), "", "-n", system, "set", "image", "daemonset/lgpu", "*="+image); err != nil {
		t.Fatal(err)
	}
	s.awaitDriver(t, image)
	more := strings.Count("\n"+strings.Join(s.logsOf(p), "\n"), "\nkernels ") + 2
	s.said(t, p, more, "kernels ")
	now := s.runs(t, "train")
	if c := now.Status.ContainerStatuses[0]; c.RestartCount != 0 || c.State.Running == nil {
		t.Errorf("the program's container is %+v", c)
	}
	// It has all of its claim's memory, and no other program of its container gets any.
	out, err := s.kubectl(t.Context(), "", "-n", s.name, "exec", "train", "--", "env", "-i", "/tenant", "/compute.ptx")
	if err == nil || !strings.Contains(out, "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("after the upgrade a program beside it says %q, %v", out, err)
	}
}

// processOf is the process of a program with an argument that begins in some way, of those that are no containers' but lgpu's.
func processOf(program, argument string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := bytes.Split(data, []byte{0})
		if len(args) > 1 && string(args[0]) == program && bytes.HasPrefix(args[1], []byte(argument)) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process %s %s runs", program, argument)
}

// strike kills lgpu's driver or daemon, which the kubelet starts again.
func strike(t testing.TB, program, argument string) {
	t.Helper()
	err := until(t.Context(), program+" runs", func(context.Context) (bool, error) {
		pid, err := processOf(program, argument)
		return err == nil && unix.Kill(pid, unix.SIGKILL) == nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Pods come and go while each part of the node and the control plane is killed in turn. No program gets more than its limit, all
// pods complete, and nothing of them stays.
//
// Only the upper bound is looked at. A container that is begun again shares its claim for a moment with the one that still ends,
// and may get less.
func TestKills(t *testing.T) {
	s := begun(t)
	const count, limit = 50, 1 << 30
	kills := map[int]func(){
		4: func() { s.again(t, "kubelet") }, 12: func() { s.again(t, "containerd") },
		20: func() { strike(t, "/usr/bin/lgpu-kube", "--kubelet-dir") },
		28: func() { strike(t, "/var/lib/lgpu/bin/lgpu", "daemon") }, 36: func() { s.again(t, "controlplane") },
	}
	all := []string{claims("gpu", "1Gi", 4)}
	for i := range count {
		all = append(all, pod(fmt.Sprintf("p%d", i), "OnFailure", "exec /tenant /compute.ptx </dev/null", "gpu"))
	}
	s.apply(t, all...)
	for gone := 0; gone < count; {
		var done []corev1.Pod
		what := fmt.Sprintf("of %d pods more than %d complete", count, gone)
		err := until(t.Context(), what, func(ctx context.Context) (bool, error) {
			list, err := s.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, nil // the API server may be on its way
			}
			done = nil
			for _, p := range list.Items {
				if p.Status.Phase == corev1.PodSucceeded && p.DeletionTimestamp == nil {
					done = append(done, p)
				}
			}
			return len(done) > 0, nil
		})
		if err != nil {
			pods, _ := s.kubectl(context.Background(), "", "-n", s.name, "get", "pods,events")
			t.Fatalf("%v\n%s", err, pods)
		}
		for _, p := range done {
			for _, line := range s.logsOf(&p) {
				if got, err := memory(line); err == nil && got > limit {
					t.Errorf("%s got %d bytes of %d", p.Name, got, limit)
				}
			}
			err := until(t.Context(), "pod "+p.Name+" is removed", func(ctx context.Context) (bool, error) {
				return s.CoreV1().Pods(s.name).Delete(ctx, p.Name, metav1.DeleteOptions{}) == nil, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if gone++; kills[gone] != nil {
				kills[gone]()
			}
		}
	}
	err := until(t.Context(), "no claim stays", func(ctx context.Context) (bool, error) {
		left, err := s.ResourceV1().ResourceClaims(s.name).List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// again kills a program of the node and starts it again.
func (s *space) again(t testing.TB, name string) {
	t.Helper()
	s.programs[name].kill()
	if err := s.programs[name].start(); err != nil {
		t.Fatal(err)
	}
}
