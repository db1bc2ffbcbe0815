package daemon

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// deviceUsers is what a test makes up of how lgpus used devices.
type deviceUsers struct {
	mu   sync.Mutex
	used []dispatch.Used
}

func (u *deviceUsers) set(used ...dispatch.Used) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used = append([]dispatch.Used{}, used...)
}

// Used is what the test says, else what the gates say.
func (g *shownGates) Used(device gpu.UUID, dst []dispatch.Used) []dispatch.Used {
	g.users.mu.Lock()
	defer g.users.mu.Unlock()
	if g.users.used == nil {
		return g.gates.Used(device, dst)
	}
	return append(dst, g.users.used...)
}

// quietRig is a daemon whose police looks once only, with a reader of the first device's counter.
func quietRig(t *testing.T, c Config) (*rig, func(at time.Duration, joules uint64, w work)) {
	c.PolicePeriod = time.Hour
	r := start(t, c)
	for until := time.Now().Add(20 * time.Second); r.Snapshot().Devices[1].Sampled.IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the police does not look")
		}
	}
	d := r.inventory.present()[0]
	began := time.Now()
	return r, func(at time.Duration, joules uint64, w work) {
		mj := joules * 1000
		r.energy.see(d, gpu.Facts{Energy: &mj, Utilisation: 100}, began.Add(at), w)
	}
}

// joulesOf is what the snapshot, and the tree, say of a directory on the first device.
func (r *rig) joulesOf(t *testing.T, path string) uint64 {
	t.Helper()
	d := r.node(t, path).Devices[0]
	if d.Energy == nil {
		t.Fatalf("%s has no energy", path)
	}
	stat := r.Tree().Stat(path, r.Tree().Devices()[0].UUID)
	if !stat.Metered || stat.Energy != *d.Energy || stat.Power != *d.Power {
		t.Errorf("%s is shown with %d mJ, %d mW and as %+v", path, *d.Energy, *d.Power, stat)
	}
	return (*d.Energy + 500) / 1000
}

func (r *rig) group(t *testing.T, path string) uint64 {
	t.Helper()
	if _, err := r.Create(t.Context(), CreateSpec{Path: path}); err != nil {
		t.Fatal(err)
	}
	dir, err := r.Tree().Directory(path)
	if err != nil {
		t.Fatal(err)
	}
	return dir.ID
}

// What lgpus used is theirs and their groups', also when they have gone and with the next daemon. What nobody used is
// nobody's. The sum is what the device has drawn since it was first read.
func TestEnergyOfTree(t *testing.T) {
	dir := t.TempDir()
	r, read := quietRig(t, Config{Dir: dir})
	r.group(t, "/g")
	a, b := r.group(t, "/g/a"), r.group(t, "/g/b")
	if err := r.Tree().Write("/g/a", "lgpu.weight", "300"); err != nil {
		t.Fatal(err)
	}
	read(0, 1000, work{})
	r.gates.users.set()
	read(time.Second, 1100, work{}) // 100 W, of nobody
	here := func(lgpu uint64, time time.Duration) dispatch.Used {
		return dispatch.Used{LGPU: lgpu, Time: int64(time), Here: true}
	}
	r.gates.users.set(here(a, 0), here(b, 0))
	read(2*time.Second, 1200, work{}) // by weight
	check := func(when string, want map[string]uint64) {
		t.Helper()
		for path, joules := range want {
			if got := r.joulesOf(t, path); got != joules {
				t.Errorf("%s: %s has used %d J, want %d", when, path, got, joules)
			}
		}
	}
	check("at rest", map[string]uint64{"/": 100, "/g": 100, "/g/a": 75, "/g/b": 25})
	r.gates.users.set(here(a, 0), here(b, time.Second))
	read(3*time.Second, 1700, work{})
	check("at work", map[string]uint64{"/": 600, "/g": 600, "/g/a": 150, "/g/b": 450})
	r.gates.users.set(dispatch.Used{LGPU: b, Free: int64(time.Second), Here: true})
	read(4*time.Second, 2200, work{strangers: 1, lgpus: map[uint64]float64{b: 0}, known: true})
	check("beside a stranger", map[string]uint64{"/": 700, "/g/a": 150, "/g/b": 550})
	if got := *r.Snapshot().Devices[0].OtherEnergy; got != 500_000 {
		t.Errorf("nobody has used %d mJ", got)
	}
	if err := r.Tree().Rmdir("/g/b"); err != nil {
		t.Fatal(err)
	}
	r.gates.users.set(dispatch.Used{LGPU: b, Time: int64(time.Second)}, here(a, 0))
	read(5*time.Second, 2400, work{}) // what it did until then
	check("after one has gone", map[string]uint64{"/": 900, "/g": 900, "/g/a": 250})
	read(4*time.Second, 9999, work{}) // overtaken
	r.stop()
	r, read = quietRig(t, Config{Dir: dir})
	read(0, 50, work{})
	check("with the next daemon", map[string]uint64{"/": 900, "/g": 900, "/g/a": 250})
	if got := *r.Snapshot().Devices[0].OtherEnergy; got != 500_000 {
		t.Errorf("nobody has used %d mJ then", got)
	}
	if second := r.node(t, limits.Root).Devices[1]; second.Energy != nil || second.Power != nil {
		t.Errorf("a device without a counter has %v", second.Energy)
	}
}

// While several lgpus work on a device its counter is read often, and then no more.
func TestEnergyIsReadOften(t *testing.T) {
	r, read := quietRig(t, Config{})
	d := r.inventory.present()[0]
	facts := gpu.Facts{Energy: ptr(uint64(5000)), Utilisation: -1}
	r.gpus.SetFacts(d.UUID, facts)
	a, b := r.group(t, "/a"), r.group(t, "/b")
	r.gates.users.set(dispatch.Used{LGPU: a, Time: 1e6, Here: true})
	reading := func() bool {
		d.watts.mu.Lock()
		defer d.watts.mu.Unlock()
		return d.watts.reading
	}
	if read(-time.Minute, 1, work{}); reading() {
		t.Error("the counter is read often for one lgpu")
	}
	r.gates.users.set(dispatch.Used{LGPU: a, Time: 1e6, Here: true}, dispatch.Used{LGPU: b, Time: 1e6, Here: true})
	read(-time.Minute+time.Millisecond, 2, work{})
	await := func(what string, ok func() bool) {
		t.Helper()
		for until := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal(what)
			}
		}
	}
	await("it is not read", func() bool { return *r.node(t, "/").Devices[0].Energy == 4000 })
	r.gates.users.set()
	await("it is read often for ever", func() bool { return !reading() })
	if got := r.joulesOf(t, "/"); got != 4 {
		t.Errorf("after that / has used %d J, want 4", got)
	}
}

// TestEnergyHistory: what each had used at the last point before a time, over restarts; a point that was not written to its
// end is none; and how far the history goes back is said.
func TestEnergyHistory(t *testing.T) {
	c := Config{Dir: t.TempDir()}
	r, reads := quietRig(t, c)
	id := r.group(t, "/a")
	key := EnergyKey{ID: id, Device: r.inventory.present()[0].UUID}
	began := time.Now().Add(-10 * time.Hour).Truncate(time.Second)
	at := func(r *rig, hours float64) (time.Duration, uint64, error) {
		when, used, err := r.EnergyAt(t.Context(), began.Add(time.Duration(hours*float64(time.Hour))), 0)
		return when.Sub(began), used[key] / 1000, err
	}
	if _, _, err := at(r, 1); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no history of energy yet") {
		t.Errorf("without a point: %v", err)
	}
	r.gates.users.set(dispatch.Used{LGPU: id, Time: int64(time.Second), Here: true})
	for hour := range 3 { // 100 J from the counter each time; the first reading has nothing before it
		reads(time.Duration(hour+1)*time.Second, uint64(1000+100*hour), work{})
		r.energy.addPoint(began.Add(time.Duration(hour) * time.Hour))
	}
	// A daemon that is killed leaves a point without an end.
	h := &r.energy.history
	h.disk.Append(h.last+1, began.Add(3*time.Hour), energyRecord{Device: key.Device, Used: [][2]uint64{{id, 1 << 40}}})
	check := func(r *rig) {
		t.Helper()
		for hours, want := range map[float64]uint64{0: 0, 0.9: 0, 1: 100, 1.5: 100, 2: 200, 5: 200, 100: 200} {
			when, joules, err := at(r, hours)
			if err != nil || joules != want || when != time.Duration(min(hours, 2))*time.Hour {
				t.Errorf("after %v hours: %d J at %v, %v; not %d", hours, joules, when, err, want)
			}
		}
		if _, _, err := at(r, -1); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "begins at") {
			t.Errorf("before its begin: %v", err)
		}
	}
	check(r)
	r.stop()
	r = start(t, c)
	check(r)
	if h := &r.energy.history; !h.at.Equal(began.Add(2*time.Hour)) || h.last < 4 {
		t.Errorf("it goes on after record %d of %v", h.last, h.at)
	}
}
