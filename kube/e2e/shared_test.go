package e2e

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
)

// Two pods that compute all the time have parts of one device. Each is charged no more of its time than its claim's cap, and the
// kernels that they launch are as their caps: with neither units nor caps the two would launch the same. busy_usec does not tell
// lgpus of one device apart, for it has work that waits too.
func TestCapsTogether(t *testing.T) {
	const (
		over    = 0.05 // what an lgpu may be charged more than its cap, for kernels that are in flight are not interrupted
		apart   = 0.08 // from their parts of all kernels, which are one and two thirds: half of the way to equal ones
		samples = 12   // of the last second each
	)
	s := begun(t)
	caps := map[string]float64{"less": 0.30, "more": 0.60}
	s.apply(t, claims("less", "1Gi", 5, "cap: 30"), claims("more", "1Gi", 10, "cap: 60"), pod("less", "Never", work, "less"),
		pod("more", "Never", work, "more"))
	pods, ids := map[string]*corev1.Pod{}, map[string]string{}
	for name := range caps {
		pods[name] = s.runs(t, name)
		ids[name] = s.claimOf(t, name)
		s.said(t, pods[name], 2, "kernels ")
	}
	first := s.uses(t)
	if one, other := first[ids["less"]].GetUuid(), first[ids["more"]].GetUuid(); one != other || one == "" {
		t.Fatalf("the claims are on the devices %q and %q, and not on the same", one, other)
	}
	last, charged, launches := first, map[string]float64{}, map[string]float64{}
	for i := range samples {
		s.said(t, pods["less"], 3+i, "kernels ")
		last = s.uses(t)
		for name, id := range ids {
			charged[name] += float64(last[id].GetShareDelivered()) / 10000 / samples
		}
	}
	for name, limit := range caps {
		use := last[ids[name]]
		launches[name] = float64(use.GetLaunches() - first[ids[name]].GetLaunches())
		t.Logf("%s launched %.0f kernels and was charged %.0f %% of the device's time, with a cap of %.0f", name, launches[name],
			charged[name]*100, limit*100)
		if max := use.GetEffective().GetComputeMax(); float64(max) != limit*10000 || charged[name] > limit+over || charged[name] == 0 {
			t.Errorf("%s is charged %.1f %% of the device's time, with a compute.max of %d hundredths", name, charged[name]*100, max)
		}
	}
	part := launches["less"] / (launches["less"] + launches["more"])
	if want := caps["less"] / (caps["less"] + caps["more"]); math.Abs(part-want) > apart {
		t.Errorf("less launched %.0f %% of all kernels, and its cap is %.0f %% of both", part*100, want*100)
	}
}

// uses are what the lgpus of claims use of their first device, by the claims' UIDs, all at the same time.
func (s *space) uses(t testing.TB) map[string]*api.DeviceUse {
	t.Helper()
	all := map[string]*api.DeviceUse{}
	for _, d := range snapshot(t).GetDirectories() {
		if id, ok := strings.CutPrefix(d.GetPath(), claim.Group+"/"); ok && len(d.GetDevices()) > 0 {
			all[id] = d.GetDevices()[0]
		}
	}
	return all
}

// lgpu is what the daemon says of the lgpu of a claim with a UID, nil if there is none.
func (s *space) lgpu(t testing.TB, id string) *api.Directory {
	t.Helper()
	for _, d := range snapshot(t).GetDirectories() {
		if d.GetPath() == claim.Group+"/"+id {
			return d
		}
	}
	return nil
}

// TestOneClaim: pods that use the same claim use the same lgpu. Its memory is for all of them together, it stays until the last
// of them is gone, and then nothing of it stays; who comes later has a new one.
func TestOneClaim(t *testing.T) {
	s := begun(t)
	const limit, part = 1 << 30, 600 << 20
	hold := fmt.Sprintf("sleep 1000000 | /tenant /compute.ptx %d", part>>20)
	s.apply(t, oneClaim("team", "1Gi", 4), podOf("first", "Never", hold, "team"), podOf("second", "Never", idle, "team"))
	s.said(t, s.runs(t, "first"), 1, fmt.Sprintf("memory %d CUDA_SUCCESS", part))
	s.runs(t, "second")
	id := s.uid(t, "team")
	lgpu := s.lgpu(t, id)
	if lgpu == nil || lgpu.GetDevices()[0].GetEffective().GetMemoryMax() != limit {
		t.Fatalf("the lgpu of the claim is %v", lgpu)
	}
	rest := func(what string, least, most uint64) {
		t.Helper()
		said := s.exec(t, "second", "team", "env", "-i", "/tenant", "/compute.ptx")
		if got, err := memory(said); err != nil || got < least || got > most {
			t.Errorf("%s: the second got %d bytes and not %d to %d, %v", what, got, least, most, err)
		}
	}
	rest("beside the first", (limit-part)/2, limit-part)

	s.remove(t, "first")
	err := until(t.Context(), "the memory of the first is free", func(context.Context) (bool, error) {
		now := s.lgpu(t, id)
		if now.GetId() != lgpu.GetId() {
			return false, fmt.Errorf("while the second pod runs its lgpu is %v", now)
		}
		return now.GetDevices()[0].GetMemoryUsed() == 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rest("without the first", part, limit)

	s.remove(t, "second")
	s.nothing(t)
	s.apply(t, podOf("third", "Never", idle, "team"))
	s.runs(t, "third")
	if now := s.lgpu(t, id); now == nil || now.GetId() == lgpu.GetId() {
		t.Errorf("the lgpu of the third pod is %v", now)
	}
}
