package daemon

import (
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
)

// Who has the device for itself is never shown with nothing while it works: either somebody measures, or nothing is said.
func TestTimeOfALoneLgpu(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	client := func(pid int, age time.Duration) tenant.Client {
		return tenant.Client{Peer: tenant.Peer{Process: tenant.Process{PID: pid}}, Joined: now.Add(-age)}
	}
	lone := dispatch.Share{State: schedule.Running, Free: true, Asked: 10000}
	old := []tenant.Client{client(7, time.Minute), client(8, time.Minute)}
	look := func(age time.Duration, device int, processes ...gpu.Process) sample {
		return sample{gpu.Facts{Utilisation: device, Processes: processes}, now.Add(-age)}
	}
	unmeasured := deviceTime{state: StateRunning}
	busy := func(share uint32) deviceTime {
		return deviceTime{asked: share, delivered: share, measured: true, state: StateRunning}
	}
	idle := deviceTime{measured: true, state: StateIdle}
	p := func(pid, busy int) gpu.Process { return gpu.Process{PID: pid, Utilisation: busy} }
	stranger := p(99, 50)
	account := func(state schedule.State, delivered uint32) dispatch.Share {
		return dispatch.Share{State: state, Asked: 2500, Delivered: delivered}
	}
	namespaced := look(0, 100, gpu.Process{PID: 7})
	namespaced.Namespaced = true
	for name, c := range map[string]struct {
		share   dispatch.Share
		spatial bool
		clients []tenant.Client
		look    sample
		want    deviceTime
	}{
		"accounts are kept": {account(schedule.Running, 2400), false, old, look(0, 9), deviceTime{2500, 2400, true, StateRunning}},
		"waits":             {account(schedule.Throttled, 0), false, old, look(0, 9), deviceTime{2500, 0, true, StateWaiting}},
		"nobody is there":   {dispatch.Share{}, false, nil, sample{}, idle},
		"alone":             {lone, false, old, look(0, 97, p(7, 3), p(8, -1)), busy(9700)},
		"alone and idle":    {lone, false, old, look(0, 0, p(7, -1)), idle},
		"a stranger beside": {lone, false, old,
			look(0, 97, p(7, 30), stranger, p(8, 12)), busy(4200)},
		"more than all": {lone, false, old,
			look(0, 97, p(7, 80), stranger, p(8, 70)), busy(10000)},
		"a silent driver": {lone, false, old, look(0, -1, p(7, -1)), unmeasured},
		"silent about processes": {lone, false, old,
			look(0, 97, stranger, p(7, -1), p(8, 3)), unmeasured},
		"the device is not told": {lone, false, old, look(0, -1, p(7, 20)), busy(2000)},
		"numbers of others":      {lone, false, old, namespaced, unmeasured},
		"too old":                {lone, false, old, look(time.Minute, 97, gpu.Process{PID: 7}), unmeasured},
		"never looked":           {lone, false, old, sample{}, unmeasured},
		"before it came":         {lone, false, []tenant.Client{client(7, 500*time.Millisecond)}, look(0, 0), unmeasured},
		"spatial":                {dispatch.Share{}, true, old, look(0, 97), unmeasured},
		"spatial, nobody":        {dispatch.Share{}, true, nil, look(0, 97), idle},
	} {
		if got := timeOf(c.share, c.spatial, c.clients, c.look, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// What is not measured is said of the groups above too, and in the files.
func TestUnmeasuredGroup(t *testing.T) {
	r := start(t, Config{PolicePeriod: time.Hour})
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/g"}); err != nil {
		t.Fatal(err)
	}
	h := r.holds(t, HoldSpec{Group: "/g", Program: "x"})
	defer h.Close()
	device := h.Devices[0]
	r.gates.shares.Store(&[]dispatch.Share{{LGPU: h.ID, Device: device.UUID, State: schedule.Running, Free: true, Asked: 10000}})
	r.tenants.join(tenant.Client{
		LGPU: h.ID, Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}, Joined: time.Now().Add(time.Hour),
	})
	for r.node(t, h.Path).Devices[0].Measured { // as long as shares of before are shown
		if t.Context().Err() != nil {
			t.Fatal("it stays measured")
		}
	}
	for _, path := range []string{"/", "/g", h.Path} {
		for i, d := range r.node(t, path).Devices {
			if d.Measured != (i != 0) || i == 0 && (d.State != StateRunning || d.Delivered != 0) {
				t.Errorf("%s, unmeasured on the first of two devices, has %+v", path, d)
			}
		}
		var want limits.Stat
		want.Unmeasured = true
		if got := r.Tree().Stat(path, device.Identity()); got != want {
			t.Errorf("files of %s have %+v", path, got)
		}
	}
}
