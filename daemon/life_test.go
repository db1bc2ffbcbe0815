package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// state returns the state of the lgpu with an ID.
func (r *rig) state(id uint64) lifecycle.State {
	r.lgpus.mu.Lock()
	defer r.lgpus.mu.Unlock()
	if l := r.lgpus.byID[id]; l != nil {
		return l.machine.State
	}
	return lifecycle.Removed
}

// free fails the test unless a device can change its mode, which it cannot while an lgpu is on it.
func (r *rig) free(t *testing.T, device int) {
	t.Helper()
	uuid := gpu.UUID{0xfa, 0xce, 15: byte(device + 1)}
	err := r.modes.SetMode(t.Context(), mps.Device{UUID: uuid, Software: true}, mps.Spatial)
	if err == nil {
		err = r.modes.SetMode(t.Context(), mps.Device{UUID: uuid, Software: true}, mps.Temporal)
	}
	if err != nil {
		t.Errorf("device %d is not free: %v", device, err)
	}
}

// savedIn returns the records of lgpus that a daemon has left.
func savedIn(t *testing.T, r *rig) []store.Lgpu {
	t.Helper()
	s, err := store.Open(r.config.State)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return s.State().Lgpus
}

// An activation that fails leaves nothing: no directory, no record, no use of a device; a persistent lgpu is as it was.
func TestActivationIsUndone(t *testing.T) {
	r := start(t, Config{})
	denied := errors.New("denied")
	kept, err := r.Create(t.Context(), CreateSpec{Path: "/kept"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/kept", "cgroup.path", "/pod"); err != nil {
		t.Fatal(err)
	}
	bound := tenant.Evidence{Cgroups: []tenant.Cgroup{{Path: "/pod"}}}
	nodes := len(r.Tree().Directories())
	check := func(what string, err error, device gpu.UUID, known bool) {
		t.Helper()
		if !errors.Is(err, denied) {
			t.Errorf("%s: %v", what, err)
		}
		if n := len(r.Tree().Directories()); n != nodes || r.Tree().Users("/kept") != 0 {
			t.Errorf("%s: %d directories, %d before; %d users", what, n, nodes, r.Tree().Users("/kept"))
		}
		record, is := r.lgpus.record(kept.ID)
		if is != known || known && (len(record.Devices) != 1 || record.Devices[0] != device) {
			t.Errorf("%s: known %v, as %+v", what, is, record)
		}
		if len(r.lgpus.admitted()) != 0 || len(r.tenants.lgpus) != 0 || r.lgpus.inUse() {
			t.Errorf("%s: it is still in use", what)
		}
		r.free(t, 0)
		r.free(t, 1)
	}
	r.tenants.deny(denied)
	_, err = r.Attach(t.Context(), AttachSpec{Program: "x", Launcher: self()})
	check("temporary", err, gpu.UUID{}, false)
	_, err = r.Attach(t.Context(), AttachSpec{Path: "/kept", Launcher: self()})
	check("persistent", err, gpu.UUID{}, false)
	_, err = r.resolver.Resolve(bound)
	check("bound", err, gpu.UUID{}, false)

	r.tenants.deny(nil)
	h := r.holds(t, AttachSpec{Path: "/kept", Devices: []string{"1"}})
	if err := h.Close(); err != nil || r.state(kept.ID) != lifecycle.Idle {
		t.Fatalf("%v, %s", err, r.state(kept.ID))
	}
	r.tenants.deny(denied)
	_, err = r.Attach(t.Context(), AttachSpec{Path: "/kept", Devices: []string{"0"}, Launcher: self()})
	check("idle, with another device", err, h.Devices[0].UUID, true)
	_, err = r.resolver.Resolve(bound)
	check("idle, bound", err, h.Devices[0].UUID, true)
	r.tenants.deny(nil)
	h = r.holds(t, AttachSpec{Path: "/kept"})
	if len(h.Devices) != 1 || h.Devices[0].Index != 1 {
		t.Errorf("devices %+v", h.Devices)
	}
	h.Close()
	r.stop()
	if saved := savedIn(t, r); len(saved) != 1 || saved[0].ID != kept.ID || saved[0].Active {
		t.Errorf("on disk: %+v", saved)
	}
}

// The states that an lgpu goes through, as its launcher and its clients come and go.
func TestStates(t *testing.T) {
	r := start(t, Config{})
	kept, err := r.Create(t.Context(), CreateSpec{Path: "/kept"})
	if err != nil {
		t.Fatal(err)
	}
	is := func(what string, id uint64, want lifecycle.State) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); r.state(id) != want; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it is %s, not %s", what, r.state(id), want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	join := func(id uint64, pid int) {
		r.tenants.join(tenant.Client{LGPU: id, Peer: tenant.Peer{Process: tenant.Process{PID: pid}}})
	}
	a := r.holds(t, AttachSpec{Path: "/kept"})
	b := r.holds(t, AttachSpec{Path: "/kept"})
	join(kept.ID, 4711)
	is("with launchers", kept.ID, lifecycle.Active)
	a.Close()
	is("with one launcher", kept.ID, lifecycle.Active)
	b.Close()
	is("with a client", kept.ID, lifecycle.Draining)
	c := r.holds(t, AttachSpec{Path: "/kept"})
	is("with a launcher again", kept.ID, lifecycle.Active)
	c.Close()
	r.tenants.leave(4711)
	is("without any", kept.ID, lifecycle.Idle)
	if err := r.Remove(t.Context(), self(), "/kept"); err != nil {
		t.Fatal(err)
	}
	is("removed", kept.ID, lifecycle.Removed)
	r.stop()
	if saved := savedIn(t, r); len(saved) != 0 {
		t.Errorf("on disk: %+v", saved)
	}
}

// An lgpu that cannot be brought back after a restart is idle, and its launcher can attach to it again.
func TestRevivalFails(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Config{Dir: dir})
	launcher := program(t)
	other := r.holds(t, AttachSpec{Path: "/other", Launcher: limits.Author{PID: launcher.Process.Pid}})
	h := r.holds(t, AttachSpec{Path: "/x"})
	r.stop()
	r = startWith(t, Config{Dir: dir}, func(f *fakeTenants) { f.denies = errors.New("denied") })
	if s := r.state(h.ID); s != lifecycle.Idle {
		t.Errorf("it is %s", s)
	}
	r.tenants.deny(nil)
	again := r.holds(t, AttachSpec{Path: "/x", ID: h.ID})
	if n := r.node(t, "/x"); len(n.Launchers) != 1 || n.Launchers[0].PID != os.Getpid() || again.ID != h.ID {
		t.Errorf("%+v", n)
	}
	if s := r.state(h.ID); s != lifecycle.Active {
		t.Errorf("it is %s", s)
	}
	again.Close()
	if _, err := r.Tree().Directory("/x"); err == nil {
		t.Error("it stays without its launcher")
	}
	// One whose launcher dies goes as well.
	events := r.events(t)
	launcher.Process.Kill()
	launcher.Wait()
	if e := events.await(t, LgpuRemoved); e.ID != other.ID {
		t.Errorf("%+v", e)
	}
	r.stop()
	if saved := savedIn(t, r); len(saved) != 0 {
		t.Errorf("on disk: %+v", saved)
	}
}

// TestLauncherDiesUnseen: an lgpu that could not be revived, and that nobody came back to, goes with its launcher, also if
// that ends while no daemon runs.
func TestLauncherDiesUnseen(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Config{Dir: dir})
	launcher := program(t)
	h := r.holds(t, AttachSpec{Path: "/x", Launcher: limits.Author{PID: launcher.Process.Pid}})
	r.stop()
	r = startWith(t, Config{Dir: dir, Reattach: time.Millisecond}, func(f *fakeTenants) { f.denies = errors.New("denied") })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.lgpus.mu.Lock()
		expected := r.lgpus.byID[h.ID].machine.Expected
		r.lgpus.mu.Unlock()
		if !expected {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its clients are expected for longer than they may take")
		}
	}
	r.stop()
	if saved := savedIn(t, r); len(saved) != 1 || saved[0].Active {
		t.Fatalf("on disk: %+v", saved)
	}
	launcher.Process.Kill()
	launcher.Wait()
	r = start(t, Config{Dir: dir})
	if _, err := r.Tree().Directory("/x"); err == nil {
		t.Error("it stays without its launcher")
	}
}

// A new lgpu may have devices from the start, also after a restart; those that are not there, or named twice, are refused.
func TestCreateWithDevices(t *testing.T) {
	r := start(t, Config{})
	present := r.inventory.usable("")
	made, err := r.Create(t.Context(), CreateSpec{Path: "/made", Devices: []gpu.UUID{present[1].UUID}})
	if err != nil {
		t.Fatal(err)
	}
	for what, devices := range map[string][]gpu.UUID{"absent": {{1}}, "twice": {present[0].UUID, present[0].UUID}} {
		if _, err := r.Create(t.Context(), CreateSpec{Path: "/refused", Devices: devices}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	h := r.holds(t, AttachSpec{Path: "/made"})
	if len(h.Devices) != 1 || h.Devices[0].Index != 1 {
		t.Errorf("devices %+v", h.Devices)
	}
	h.Close()
	r.stop()
	if saved := savedIn(t, r); len(saved) != 1 || saved[0].ID != made.ID || len(saved[0].Devices) != 1 {
		t.Errorf("on disk: %+v", saved)
	}
}

// A daemon that is killed as soon as a new lgpu's directory is on disk has left its devices and its software GPU there too:
// without them the lgpu would have every device.
func TestCreateIsOneWrite(t *testing.T) {
	r := start(t, Config{})
	copied := filepath.Join(t.TempDir(), "state.db")
	stop := r.Tree().Watch(func(limits.Change) { // after the first write that has the directory, and before any other
		data, err := os.ReadFile(r.config.State)
		if err == nil {
			err = os.WriteFile(copied, data, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	})
	devices := []gpu.UUID{r.inventory.usable("")[1].UUID}
	made, err := r.Create(t.Context(), CreateSpec{Path: "/made", Devices: devices})
	stop()
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if saved := s.State().Lgpus; len(saved) != 1 || saved[0].ID != made.ID || !slices.Equal(saved[0].Devices, devices) {
		t.Errorf("a crash leaves of the lgpu %+v", saved)
	}
}

// A process that comes while an lgpu is being left by its last user is let in when that is done: never told in between that
// there is an lgpu, of which the tenants' server knows nothing any more.
func TestComesAsAnotherLeaves(t *testing.T) {
	r := start(t, Config{})
	kept, err := r.Create(t.Context(), CreateSpec{Path: "/kept"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/kept", "cgroup.path", "/pod"); err != nil {
		t.Fatal(err)
	}
	came := make(chan error, 1)
	resolve := func() {
		_, err := r.resolver.Resolve(tenant.Evidence{Cgroups: []tenant.Cgroup{{Path: "/pod"}}})
		came <- err
	}
	r.tenants.mu.Lock()
	r.tenants.removed = func(id uint64) {
		r.tenants.mu.Lock()
		r.tenants.removed = nil
		r.tenants.mu.Unlock()
		go resolve()
		select {
		case err := <-came:
			t.Errorf("let into lgpu %d, which is on its way out: %v", id, err)
			came <- err
		case <-time.After(20 * time.Millisecond): // it waits
		}
	}
	r.tenants.mu.Unlock()
	if err := r.holds(t, AttachSpec{Path: "/kept"}).Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-came; err != nil || !r.lgpus.ready(kept.ID) {
		t.Errorf("%v, %s", err, r.state(kept.ID))
	}
}
