package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/gputest"
	"github.com/lgpu/lgpu/policy/schedule"
)

// sharing is what a test makes up of the lgpus on devices, and what gates are told of these.
type sharing struct {
	mu      sync.Mutex
	shared  map[gpu.UUID]bool // nil: as it is
	verdict dispatch.Verdict
	ran     map[gpu.UUID]int // how many turns
	preempt map[gpu.UUID]bool
}

func (g *shownGates) Shared(device gpu.UUID) bool {
	g.sharing.mu.Lock()
	defer g.sharing.mu.Unlock()
	if g.sharing.shared == nil {
		return g.gates.Shared(device)
	}
	return g.sharing.shared[device] && g.sharing.preempt[device]
}

func (g *shownGates) Ran(device gpu.UUID, turns []gpu.Turn) dispatch.Verdict {
	g.sharing.mu.Lock()
	defer g.sharing.mu.Unlock()
	if g.sharing.shared == nil {
		return g.gates.Ran(device, turns)
	}
	g.sharing.ran[device] += len(turns)
	return g.sharing.verdict
}

func (g *shownGates) SetDevice(device gpu.UUID, spatial bool, o schedule.Options) error {
	g.sharing.mu.Lock()
	if g.sharing.preempt == nil {
		g.sharing.preempt = map[gpu.UUID]bool{}
	}
	g.sharing.preempt[device] = o.Preempt
	g.sharing.mu.Unlock()
	return g.gates.SetDevice(device, spatial, o)
}

// set changes what a test makes up.
func (s *sharing) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared == nil {
		s.shared, s.ran = map[gpu.UUID]bool{}, map[gpu.UUID]int{}
	}
	change()
}

// preempts reports whether gates were told that lgpus are guests on a device.
func (s *sharing) preempts(device gpu.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.preempt[device]
}

func (s *sharing) had(device gpu.UUID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ran[device]
}

// meteredGPUs are devices with meters, which count how they are used.
type meteredGPUs struct {
	*gputest.Inventory
	mu      sync.Mutex
	tries   int
	open    map[gpu.UUID]int
	refuses error                  // of Meter
	fails   map[gpu.UUID]error     // of Turns
	hangs   map[gpu.UUID]chan bool // in Turns, until that is closed
	hung    int                    // how many do
	gone    []gpu.UUID
}

func newMeteredGPUs(devices int) *meteredGPUs {
	return &meteredGPUs{
		Inventory: gputest.Machine(devices, 16<<30, 32), open: map[gpu.UUID]int{}, fails: map[gpu.UUID]error{}, hangs: map[gpu.UUID]chan bool{},
	}
}

func (g *meteredGPUs) Devices() ([]gpu.Device, error) {
	all, err := g.Inventory.Devices()
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(all, func(d gpu.Device) bool { return slices.Contains(g.gone, d.UUID) }), err
}

func (g *meteredGPUs) Meter(uuid gpu.UUID) (gpu.Meter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tries++
	if g.refuses != nil {
		return nil, g.refuses
	}
	g.open[uuid]++
	return &oneMeter{g, uuid}, nil
}

// set changes what the devices do.
func (g *meteredGPUs) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

func (g *meteredGPUs) opened(uuid gpu.UUID) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[uuid]
}

func (g *meteredGPUs) tried() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.tries
}

type oneMeter struct {
	of   *meteredGPUs
	uuid gpu.UUID
}

func (m *oneMeter) Turns(turns []gpu.Turn) ([]gpu.Turn, error) {
	m.of.mu.Lock()
	err, hangs := m.of.fails[m.uuid], m.of.hangs[m.uuid]
	if hangs != nil {
		m.of.hung++
	}
	m.of.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return append(turns, gpu.Turn{PID: 1, End: 10}), err
}

func (m *oneMeter) Close() error {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.of.open[m.uuid]--
	return nil
}

// happens waits for something that there is no event for.
func happens(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%s does not happen", what)
		}
	}
}

// metered starts a daemon of devices that have meters, of which lgpus share none.
func metered(t *testing.T, gpus *meteredGPUs, c Config) *rig {
	t.Helper()
	c.Inventories = []gpu.Inventory{gpus}
	r := start(t, c)
	r.gates.sharing.set(func() {})
	return r
}

// share has lgpus share a device, or no more.
func (r *rig) share(uuid gpu.UUID, shared bool) {
	r.gates.sharing.set(func() { r.gates.sharing.shared[uuid] = shared })
	if shared {
		r.inventory.share(uuid)
	}
}

func card(i int) gpu.UUID { return gpu.UUID{0xfa, 0xce, 15: byte(i + 1)} }

// why is what the daemon shows of a device.
func (r *rig) why(t *testing.T, uuid gpu.UUID) string {
	t.Helper()
	for _, d := range r.Snapshot().Devices {
		if d.UUID == uuid {
			return d.NoGuests
		}
	}
	t.Fatalf("there is no device %s", uuid)
	return ""
}

// A meter is read while lgpus share its device, and closed when they do not any more, again and again.
func TestMeterWhileShared(t *testing.T) {
	gpus := newMeteredGPUs(2)
	r := metered(t, gpus, Config{})
	if !r.gates.sharing.preempts(card(0)) || r.why(t, card(0)) != "" {
		t.Errorf("lgpus are no guests: %q", r.why(t, card(0)))
	}
	for range 2 {
		happens(t, "the end of the first look", func() bool { return gpus.opened(card(0)) == 0 && gpus.opened(card(1)) == 0 })
		had := r.gates.sharing.had(card(0))
		r.share(card(0), true)
		happens(t, "to read the meter", func() bool { return r.gates.sharing.had(card(0)) > had+2 })
		if n := gpus.opened(card(0)); n != 1 {
			t.Errorf("%d meters of the device that is shared are open", n)
		}
		r.share(card(0), false)
		happens(t, "to close the meter", func() bool { return gpus.opened(card(0)) == 0 })
	}
	if n := r.gates.sharing.had(card(1)); n != 0 {
		t.Errorf("%d turns of a device that is not shared", n)
	}
}

// Where there is no meter, or it cannot be read any more, or slices are of no use, lgpus take turns, and the user can
// see why. Other devices are as they were.
func TestNoGuestsBecause(t *testing.T) {
	broken := errors.New("no such luck")
	for name, c := range map[string]struct {
		fail func(*rig, *meteredGPUs)
		why  string
	}{
		"turns": {func(_ *rig, g *meteredGPUs) { g.set(func() { g.fails[card(0)] = broken }) },
			"read whose work the device runs: no such luck"},
		"refused": {func(r *rig, _ *meteredGPUs) {
			r.gates.sharing.set(func() { r.gates.sharing.verdict = dispatch.Verdict{Known: true, Refused: true} })
		}, errNotSet.Error()},
		"no effect": {func(r *rig, _ *meteredGPUs) {
			r.gates.sharing.set(func() {
				r.gates.sharing.verdict = dispatch.Verdict{Known: true, Turn: 2003 * time.Microsecond, Slice: 50 * time.Microsecond}
			})
		}, "time slices have no effect there: with one of 50µs, programs kept the device for 2ms while others had work"},
	} {
		t.Run(name, func(t *testing.T) {
			gpus := newMeteredGPUs(2)
			r := metered(t, gpus, Config{})
			c.fail(r, gpus)
			r.share(card(0), true)
			happens(t, "turns", func() bool { return r.why(t, card(0)) == c.why && !r.gates.sharing.preempts(card(0)) })
			happens(t, "to close the meter", func() bool { return gpus.opened(card(0)) == 0 })
			if why := r.why(t, card(1)); why != "" || !r.gates.sharing.preempts(card(1)) {
				t.Errorf("the other device: %q", why)
			}
		})
	}
	t.Run("no meter", func(t *testing.T) {
		gpus := newMeteredGPUs(1)
		gpus.refuses = broken
		r := metered(t, gpus, Config{})
		if why := r.why(t, card(0)); why != broken.Error() || r.gates.sharing.preempts(card(0)) {
			t.Errorf("no guests because %q", why)
		}
	})
	t.Run("by choice", func(t *testing.T) {
		gpus := newMeteredGPUs(1)
		r := metered(t, gpus, Config{NoGuests: true})
		r.share(card(0), true)
		if why := r.why(t, card(0)); !strings.Contains(why, "--guests off") || r.gates.sharing.preempts(card(0)) {
			t.Errorf("no guests because %q", why)
		}
		happens(t, "that the daemon runs", func() bool {
			r.inventory.mu.Lock()
			defer r.inventory.mu.Unlock()
			return r.inventory.watching != nil
		})
		r.stop() // after what it has begun
		if n := gpus.tried(); n != 0 || len(r.inventory.metered) != 0 {
			t.Errorf("the meter was asked for %d times", n)
		}
	})
}

// What works as a slice should changes nothing.
func TestSlicesThatWork(t *testing.T) {
	gpus := newMeteredGPUs(1)
	r := metered(t, gpus, Config{})
	r.gates.sharing.set(func() { r.gates.sharing.verdict = dispatch.Verdict{Known: true, Works: true} })
	r.share(card(0), true)
	happens(t, "to read the meter", func() bool { return r.gates.sharing.had(card(0)) > 5 })
	if why := r.why(t, card(0)); why != "" || gpus.opened(card(0)) != 1 {
		t.Errorf("no guests because %q", why)
	}
}

// A device that goes away is metered no more, and again when it comes back.
func TestMeterOfADeviceThatGoes(t *testing.T) {
	gpus := newMeteredGPUs(2)
	r := metered(t, gpus, Config{})
	r.share(card(0), true)
	happens(t, "to read the meter", func() bool { return r.gates.sharing.had(card(0)) > 0 })
	for _, gone := range [][]gpu.UUID{{card(0)}, nil} {
		gpus.set(func() { gpus.gone = gone })
		if err := r.inventory.refresh(); err != nil {
			t.Fatal(err)
		}
		r.inventory.mu.Lock()
		n := len(r.inventory.metered)
		r.inventory.mu.Unlock()
		if n != 2-len(gone) {
			t.Errorf("%d devices are metered without %v", n, gone)
		}
		if gone == nil {
			break
		}
		happens(t, "to close the meter", func() bool { return gpus.opened(card(0)) == 0 })
	}
	had := r.gates.sharing.had(card(0))
	happens(t, "to read the meter again", func() bool { return r.gates.sharing.had(card(0)) > had })
}

// The end of the daemon ends what meters, also where lgpus share devices and where it waits to try again.
func TestCloseEndsMetering(t *testing.T) {
	gpus := newMeteredGPUs(3)
	r := metered(t, gpus, Config{})
	gpus.set(func() { gpus.fails[card(1)] = errors.New("no such luck") })
	r.share(card(0), true)
	r.share(card(1), true)
	happens(t, "to read a meter", func() bool { return r.gates.sharing.had(card(0)) > 0 })
	happens(t, "turns on the other", func() bool { return r.why(t, card(1)) != "" })
	r.stop()
	if open := slices.Sorted(maps.Values(gpus.open)); open[len(open)-1] != 0 {
		t.Errorf("meters are open: %v", gpus.open)
	}
	if !gpus.Closed() { // it would not, with work under way
		t.Error("the devices are not closed")
	}
}

// A driver that hangs in one device's meter keeps nobody else from theirs, nor the daemon from its end.
func TestMeterHangs(t *testing.T) {
	gpus := newMeteredGPUs(2)
	r := metered(t, gpus, Config{PolicePeriod: time.Millisecond})
	r.closeTime = time.Millisecond
	hangs := make(chan bool)
	gpus.set(func() { gpus.hangs[card(0)] = hangs })
	r.share(card(0), true)
	happens(t, "to ask the meter", func() bool {
		gpus.mu.Lock()
		defer gpus.mu.Unlock()
		return gpus.hung == 1
	})
	r.share(card(1), true)
	happens(t, "to read the other meter", func() bool { return r.gates.sharing.had(card(1)) > 2 })
	seen := func() time.Time { return r.inventory.sample(r.inventory.device(card(0))).at }
	before := seen()
	happens(t, "a look at the device", func() bool { return seen().After(before) })
	r.stop()
	close(hangs)
	r.work.Wait()
}

// counted is a log that counts one message.
type counted struct {
	slog.Handler
	message string
	mu      sync.Mutex
	count   int
}

func (c *counted) Enabled(context.Context, slog.Level) bool { return true }

func (c *counted) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Message == c.message && r.Level >= slog.LevelInfo {
		c.count++
	}
	return nil
}

func (c *counted) seen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// What does not work is tried again and again, and logged when it is news.
func TestMeteringIsTriedAgain(t *testing.T) {
	log := &counted{Handler: slog.DiscardHandler, message: "lgpus take turns there"}
	gpus := newMeteredGPUs(1)
	var told *shownGates
	// It does not run, and so begins to meter nothing by itself.
	n, err := open(Config{Dir: t.TempDir(), Inventories: []gpu.Inventory{gpus}, Mount: MountOff, Log: slog.New(log)}, parts{
		tenants: func(c tenant.Config) (tenants, error) { return newFakeTenants(c), nil },
		gates: func(c dispatch.Config) (gates, error) {
			runner, err := dispatch.New(c)
			told = &shownGates{gates: runner}
			return told, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := n.inventory.device(card(0))
	m := d.metering
	m.retry = 0
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-ended
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	again := func(what string, logged int) {
		t.Helper()
		for from := gpus.tried(); gpus.tried() < from+6; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal("it has ended")
			}
			n.inventory.share(card(0))
		}
		if n := log.seen(); n != logged {
			t.Errorf("%s: %d lines are logged, want %d", what, n, logged)
		}
	}
	told.sharing.set(func() { told.sharing.shared[card(0)] = true })
	gpus.set(func() { gpus.refuses = errors.New("no such luck") })
	go func() { defer close(ended); m.run(ctx) }()
	again("no meter", 1)
	verdict := func(v dispatch.Verdict) {
		told.sharing.set(func() { told.sharing.verdict = v })
		gpus.set(func() { gpus.refuses = nil })
	}
	verdict(dispatch.Verdict{Known: true, Refused: true})
	again("refused", 2)
	verdict(dispatch.Verdict{Known: true, Turn: time.Millisecond, Slice: 50 * time.Microsecond})
	again("no effect", 3)
	verdict(dispatch.Verdict{Known: true, Turn: 2 * time.Millisecond, Slice: 50 * time.Microsecond})
	again("no effect, other figures", 3)
	verdict(dispatch.Verdict{Known: true, Works: true})
	before := told.sharing.had(card(0))
	happens(t, "that they work", func() bool { return told.sharing.had(card(0)) > before+2 && n.inventory.whyNoGuests(d) == "" })
	if !told.sharing.preempts(card(0)) {
		t.Error("the gates do not know that lgpus are guests")
	}
	verdict(dispatch.Verdict{Known: true, Turn: 2 * time.Millisecond, Slice: 50 * time.Microsecond})
	again("no effect after all", 4)
}
