package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lgpu/lgpu/kube/claim"
)

// ways are commands by which a program tries to get more memory than its lgpu has.
var ways = [][]string{
	{"/tenant", "/compute.ptx"},
	{"env", "-i", "/tenant", "/compute.ptx"},
	{"env", "LGPU_SOCKET=/dev/null", "LGPU_REGION=/tmp/region", "/tenant", "/compute.ptx"},
	{"env", "LD_PRELOAD=libm.so.6", "LD_LIBRARY_PATH=/lib/x86_64-linux-gnu", "/tenant", "/compute.ptx"},
	{"env", "LGPU_REAL_LIBCUDA=/run/lgpu/driver/libcuda.so.1", "/tenant", "/compute.ptx"},
}

// Whatever a program of a pod does with its environment, it has its claim's memory and no more: those that a container starts
// with, and those that kubectl exec adds.
func TestMemory(t *testing.T) {
	s := begun(t)
	const limit = 1 << 30
	s.apply(t, claims("gpu", "1Gi", 4), pod("train", "Never", "/tenant /compute.ptx </dev/null; "+idle, "gpu"))
	p := s.runs(t, "train")
	bounded(t, "the container's own", s.said(t, p, 1, "memory "), limit)
	for _, way := range ways {
		bounded(t, strings.Join(way, " "), s.exec(t, "train", "gpu", way...), limit)
	}
	// What tests look for when their pods are gone is there as long as they are.
	left := s.left(t)
	for _, what := range []string{"lgpu ", "specification ", "folder ", "mount "} {
		if !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, what) }) {
			t.Errorf("no %sof a pod that runs is found among %q", what, left)
		}
	}
}

// Two containers of a pod have a claim each, and each its own.
func TestTwoClaims(t *testing.T) {
	s := begun(t)
	s.apply(t, claims("small", "1Gi", 4), claims("large", "3Gi", 4), pod("both", "Never", idle, "small", "large"))
	s.runs(t, "both")
	for name, limit := range map[string]uint64{"small": 1 << 30, "large": 3 << 30} {
		bounded(t, name, s.exec(t, "both", name, "env", "-i", "/tenant", "/compute.ptx"), limit)
	}
}

// work is the command of a container that computes all the time, and says so every second.
const work = "while echo 1; do :; done | /tenant /compute.ptx"

// slack is how much more of a device's time than its cap a program may have here, as a part of it. On a busy machine kernels of
// the software GPU take long, and those that are in flight are not interrupted.
const slack = 0.30

// A program that computes has no more of its device's time than the cap of its claim. Each has a device alone, which it would
// have all of.
func TestCaps(t *testing.T) {
	s := begun(t)
	caps := map[string]float64{"less": 0.30, "more": 0.60}
	s.apply(t, claims("less", "5Gi", 16, "cap: 30"), claims("more", "5Gi", 16, "cap: 60"), pod("less", "Never", work, "less"),
		pod("more", "Never", work, "more"))
	pods := map[string]*corev1.Pod{}
	for name := range caps {
		pods[name] = s.runs(t, name)
		s.said(t, pods[name], 2, "kernels ")
	}
	begin, first := time.Now(), s.busy(t)
	for _, p := range pods {
		s.said(t, p, 10, "kernels ")
	}
	last, took := s.busy(t), time.Since(begin)
	for name, limit := range caps {
		id := s.claimOf(t, name)
		part := (last[id] - first[id]).Seconds() / took.Seconds()
		t.Logf("%s has %.0f %% of its device's time, with a cap of %.0f", name, part*100, limit*100)
		if part > limit+slack || part == 0 {
			t.Errorf("%s has %.0f %% of its device's time", name, part*100)
		}
	}
}

// busy is how much time of devices the lgpus of claims have used, by the claims' UIDs.
func (s *space) busy(t testing.TB) map[string]time.Duration {
	t.Helper()
	all := map[string]time.Duration{}
	for _, d := range snapshot(t).GetDirectories() {
		if id, ok := strings.CutPrefix(d.GetPath(), claim.Group+"/"); ok {
			for _, use := range d.GetDevices() {
				all[id] += time.Duration(use.GetBusyNs())
			}
		}
	}
	return all
}

// claimOf is the UID of a pod's only claim.
func (s *space) claimOf(t testing.TB, pod string) string {
	t.Helper()
	p, err := s.CoreV1().Pods(s.name).Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.uid(t, *p.Status.ResourceClaimStatuses[0].ResourceClaimName)
}

// uid is the UID of a claim of a name.
func (s *space) uid(t testing.TB, name string) string {
	t.Helper()
	c, err := s.ResourceV1().ResourceClaims(s.name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(c.UID)
}

// A configuration that lgpu does not have is refused, and the pod's event says why.
func TestRefused(t *testing.T) {
	s := begun(t)
	s.apply(t, claims("gpu", "1Gi", 4, "weigth: 5"), pod("bad", "Never", idle, "gpu"))
	const want = `unknown field "weigth"`
	err := until(t.Context(), "an event of the pod says "+want, func(ctx context.Context) (bool, error) {
		events, err := s.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "bad" && e.Reason == "FailedPrepareDynamicResources" && strings.Contains(e.Message, want) {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// said waits until the container of a pod has said so many lines that begin in a way, and returns all that it has said.
func (s *space) said(t testing.TB, p *corev1.Pod, count int, begin string) string {
	t.Helper()
	var text string
	err := until(t.Context(), "pod "+p.Name+" says "+begin, func(context.Context) (bool, error) {
		text = strings.Join(s.logsOf(p), "\n")
		return strings.Count("\n"+text, "\n"+begin) >= count, nil
	})
	if err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return text
}

// logsOf are the lines that the containers of a pod have said, also those that have ended.
func (s *space) logsOf(p *corev1.Pod) []string {
	files, _ := filepath.Glob(filepath.Join("/var/log/pods", s.name+"_"+p.Name+"_"+string(p.UID), "*", "*.log"))
	var all []string
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for _, line := range lines(string(data)) { // TIME STREAM TAG WORDS
			if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
				all = append(all, parts[3])
			}
		}
	}
	return all
}
