package daemon

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/policy/limits"
)

// A daemon takes over the lgpus of the one before: those of launchers that live, and those with clients.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	launcher, other := program(t), program(t)
	r := start(t, Config{Dir: dir})
	if err := r.Tree().Mkdir("/g", 5, 6); err != nil {
		t.Fatal(err)
	}
	spec := AttachSpec{Group: "/g", Program: "p", Devices: []string{"1", "0"},
		Limits: memory(1 << 30), Launcher: limits.Author{PID: launcher.Process.Pid}}
	lives := r.holds(t, spec)
	spec.Launcher.PID = other.Process.Pid
	dies := r.holds(t, spec)
	used := r.holds(t, spec) // by a client, when its launcher is gone
	r.stop()
	// The holds end with their streams, but the lgpus outlive the daemon.
	if err := errors.Join(lives.Close(), dies.Close(), used.Close()); err != nil {
		t.Fatal(err)
	}
	other.Process.Kill()
	other.Wait()

	r = start(t, Config{Dir: dir, Reattach: time.Hour})
	if got := r.Snapshot().Daemon.Restarts; got != 1 {
		t.Errorf("%d restarts", got)
	}
	n := r.node(t, lives.Path)
	if n.ID != lives.ID || len(n.Launchers) != 1 || n.Launchers[0].PID != launcher.Process.Pid || n.Created.IsZero() {
		t.Errorf("after a restart: %+v", n)
	}
	if n := r.node(t, dies.Path); len(n.Launchers) != 0 {
		t.Errorf("a launcher that has died is still there: %+v", n)
	}
	l := r.tenants.limits(lives.ID)
	if len(l.Devices) != 2 || l.Devices[0].UUID != lives.Devices[0].UUID || l.Devices[0].Memory != 1<<30 {
		t.Errorf("limits %+v", l)
	}
	r.stop()

	// Once clients had their time, what nobody uses is gone.
	client := tenant.Client{LGPU: used.ID, Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}}
	r = start(t, Config{Dir: dir, Reattach: time.Millisecond}, client)
	events := r.events(t)
	if _, err := r.Tree().Directory(dies.Path); err == nil {
		if e := events.await(t, LgpuRemoved); e.Path != dies.Path {
			t.Errorf("%s was removed", e.Path)
		}
	}
	again := r.holds(t, AttachSpec{Path: lives.Path, ID: lives.ID, Launcher: limits.Author{PID: launcher.Process.Pid}})
	if n := r.node(t, lives.Path); again.ID != lives.ID || len(n.Launchers) != 1 {
		t.Errorf("taken up again: %+v", n)
	}
	if n := r.node(t, used.Path); len(n.Clients) != 1 {
		t.Errorf("the lgpu with a client: %+v", n)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Tree().Directory(lives.Path); err == nil {
		t.Error("the lgpu stays after its hold")
	}
	r.stop()

	r = start(t, Config{Dir: dir})
	if n, err := r.Tree().Directory("/g"); err != nil || n.UID != 5 {
		t.Errorf("the group: %+v, %v", n, err)
	}
}

// A launcher that dies without a word, after a restart, ends its hold.
func TestLauncherDies(t *testing.T) {
	dir := t.TempDir()
	launcher := program(t)
	r := start(t, Config{Dir: dir})
	h := r.holds(t, AttachSpec{Launcher: limits.Author{PID: launcher.Process.Pid}})
	r.stop()
	r = start(t, Config{Dir: dir, Reattach: time.Hour}) // that is for those who are not known to be there
	events := r.events(t)
	if n := r.node(t, h.Path); len(n.Launchers) != 1 {
		t.Fatalf("%+v", n)
	}
	launcher.Process.Kill()
	launcher.Wait()
	if e := events.await(t, LgpuRemoved); e.ID != h.ID {
		t.Errorf("%+v", e)
	}
}

// A process with the number of a launcher from before a reboot is not that launcher.
func TestReboot(t *testing.T) {
	dir := t.TempDir()
	launcher := program(t)
	r := start(t, Config{Dir: dir})
	h := r.holds(t, AttachSpec{Launcher: limits.Author{PID: launcher.Process.Pid}})
	r.stop()
	s, err := store.Open(r.config.State)
	if err != nil {
		t.Fatal(err)
	}
	record := s.State().Lgpus[0]
	record.Launchers[0].Boot = "another"
	if err := errors.Join(s.SaveLgpu(record), s.Close()); err != nil {
		t.Fatal(err)
	}
	r = start(t, Config{Dir: dir})
	if n := r.node(t, h.Path); len(n.Launchers) != 0 {
		t.Errorf("%+v", n.Launchers)
	}
}

// IDs of a new state are none of a state that was lost.
func TestIDsAfterLoss(t *testing.T) {
	dir := t.TempDir()
	r := start(t, Config{Dir: dir})
	first := r.holds(t, AttachSpec{}).ID
	r.stop()
	if err := os.WriteFile(r.config.State, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Mount: MountOff}); !errors.Is(err, store.ErrDamaged) {
		t.Fatalf("a damaged state: %v", err)
	}
	time.Sleep(time.Until(time.Unix(time.Now().Unix()+1, 0))) // IDs begin at the second of the start
	r = start(t, Config{Dir: dir})
	if second := r.holds(t, AttachSpec{}).ID; second <= first {
		t.Errorf("id %d after %d", second, first)
	}
}
