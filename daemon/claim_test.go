package daemon

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/claim"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/sim"
)

// private is a user's daemon on a machine without a system daemon.
func private(t *testing.T, c Config) *rig {
	t.Helper()
	c.Claim, c.System = true, "/nowhere/lgpud.sock"
	return start(t, c)
}

// indices are those of the devices of an attachment.
func indices(a *Attachment) (all []int) {
	for _, d := range a.Devices {
		all = append(all, d.Index)
	}
	return all
}

// Two users' daemons share a software GPU of two devices, one each. What one uses the other does not get, by name or
// without; and gets when the lgpu is gone.
func TestTwoDaemonsOfOneMachine(t *testing.T) {
	shape, err := sim.ParseShape("2x256MiB,sms=2,context=16MiB")
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	machine := func() *rig { // each finds the same devices, as by NVML
		hardware, err := sim.Start(shape, sim.StartOptions{Dir: dir, Command: simCommand()})
		if err != nil {
			t.Fatal(err)
		}
		return private(t, Config{Inventories: []gpu.Inventory{gpusim.New(hardware)}})
	}
	one, other := machine(), machine()
	for _, r := range []*rig{one, other} {
		if got := len(r.Snapshot().Devices); got != 2 {
			t.Fatalf("a daemon without lgpus shows %d devices", got)
		}
	}
	if !slices.Equal(uuidsOf(one.inventory.usable("")), uuidsOf(other.inventory.usable(""))) {
		t.Fatal("they are not on the same machine")
	}
	refused := func(spec AttachSpec) {
		t.Helper()
		spec.Launcher = self()
		_, err := other.Attach(t.Context(), spec)
		var held *claim.Held
		if !errors.Is(err, ErrBusy) || !errors.As(err, &held) || held.PID != os.Getpid() ||
			!strings.Contains(err.Error(), "is managed by the daemon of user") {
			t.Errorf("%v: %v", spec.Devices, err)
		}
	}
	first := one.holds(t, AttachSpec{Path: "/first", Devices: []string{"0"}})
	refused(AttachSpec{Devices: []string{"0"}})
	refused(AttachSpec{Devices: []string{"0", "1"}})
	beside := other.holds(t, AttachSpec{Path: "/beside", Devices: []string{"1"}})
	refused(AttachSpec{Devices: []string{"0"}})
	beside.Close()
	any := other.holds(t, AttachSpec{})
	if got := indices(any); !slices.Equal(got, []int{1}) {
		t.Errorf("without a name it gets the devices %v, not the one that nobody has", got)
	}
	any.Close()
	// A second launcher keeps what the first had, and its end gives all back.
	second := one.holds(t, AttachSpec{Path: "/first"})
	third := one.holds(t, AttachSpec{Path: "/third", Devices: []string{"0"}})
	first.Close()
	second.Close()
	refused(AttachSpec{Devices: []string{"0"}})
	third.Close()
	all := other.holds(t, AttachSpec{})
	if got := indices(all); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("then it gets the devices %v", got)
	}
	if _, err := one.Attach(t.Context(), AttachSpec{Launcher: self()}); !errors.Is(err, ErrBusy) {
		t.Errorf("where all are taken: %v", err)
	}
	all.Close()
}

// An attempt that fails takes nothing.
func TestClaimsOfAFailedAttach(t *testing.T) {
	r := private(t, Config{})
	for _, spec := range []AttachSpec{
		{Spatial: true},                              // on two devices
		{Path: "/x", Limits: memory(1 << 50)},        // more than there is
		{Devices: []string{"0", "7"}},                // one that is not there
		{Devices: []string{"0", "1"}, Spatial: true}, // of both
	} {
		spec.Launcher = self()
		if h, err := r.Attach(t.Context(), spec); err == nil {
			t.Errorf("%+v is accepted", spec)
			h.Close()
		}
	}
	for _, d := range r.inventory.present() {
		if r.inventory.claims.Has(d.Identity()) {
			t.Errorf("device %d is claimed", d.Index)
		}
	}
}

// A process of a bound cgroup is kept out while another daemon has the device of its lgpu.
func TestClaimForAProcess(t *testing.T) {
	one, other := private(t, Config{}), private(t, Config{})
	if err := other.Tree().Mkdir("/bound", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := other.Tree().Write("/bound", "cgroup.path", "/kube/pod"); err != nil {
		t.Fatal(err)
	}
	bound := tenant.Evidence{
		Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}, Cgroups: []tenant.Cgroup{{Path: "/kube/pod"}},
	}
	h := one.holds(t, AttachSpec{})
	var refused *tenant.Refusal
	if _, err := other.resolver.Resolve(bound); !errors.As(err, &refused) || refused.Errno != unix.EBUSY ||
		!strings.Contains(refused.Text, "is managed by the daemon of user") {
		t.Errorf("%v", err)
	}
	h.Close()
	if _, err := other.resolver.Resolve(bound); err != nil {
		t.Errorf("when it is given back: %v", err)
	}
}

// In spatial mode a device stays claimed when its lgpu is gone, until it is in temporal mode again.
func TestClaimOfASpatialDevice(t *testing.T) {
	r := private(t, Config{})
	d := r.inventory.usable("")[0]
	claimed := func(want bool) {
		t.Helper()
		if got := r.inventory.claims.Has(d.Identity()); got != want {
			t.Errorf("claimed: %v", got)
		}
	}
	set := func(mode mps.Mode) {
		t.Helper()
		if err := r.modes.SetMode(t.Context(), mps.Device{UUID: d.UUID, Software: true}, mode); err != nil {
			t.Fatal(err)
		}
		if err := r.inventory.refresh(); err != nil {
			t.Fatal(err)
		}
	}
	claimed(false)
	set(mps.Spatial)
	claimed(true)
	h := r.holds(t, AttachSpec{Devices: []string{"0"}, Spatial: true})
	h.Close()
	claimed(true)
	set(mps.Temporal)
	claimed(false)
}

// A program is a stranger on a device only while the device is the daemon's.
func TestStrangersOfAnotherDaemon(t *testing.T) {
	r := private(t, Config{PolicePeriod: time.Millisecond, Police: PoliceStopStrangers})
	events := r.events(t)
	others := program(t)
	r.gpus.SetFacts(gpu.UUID{0xfa, 0xce, 15: 1}, gpu.Facts{Processes: []gpu.Process{{PID: others.Process.Pid, Memory: 1 << 30}}})
	for range 2 { // two looks at least
		r.gpus.Break(gpu.UUID{0xfa, 0xce, 15: 2}, errors.New("lost"))
		events.await(t, DeviceFault)
		r.gpus.Break(gpu.UUID{0xfa, 0xce, 15: 2}, nil)
		events.await(t, DeviceWell)
	}
	if got := r.Counters().Events[PoliceStranger]; got != 0 {
		t.Errorf("%d were reported", got)
	}
	h := r.holds(t, AttachSpec{Devices: []string{"0"}})
	defer h.Close()
	if e := events.await(t, PoliceStranger); e.PID != others.Process.Pid {
		t.Errorf("%+v", e)
	}
}

// Where there is no GPU the error says so.
func TestNoDevice(t *testing.T) {
	r := start(t, Config{Inventories: []gpu.Inventory{}})
	var held *claim.Held
	if _, err := r.Attach(t.Context(), AttachSpec{Launcher: self()}); !errors.Is(err, ErrNoDevice) || errors.As(err, &held) {
		t.Errorf("without a GPU: %v", err)
	}
}
