package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/gputest"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// shownGates are gates whose shares a test may make up.
type shownGates struct {
	gates
	shares  atomic.Pointer[[]dispatch.Share]
	sharing sharing
	users   deviceUsers
	gangs   sync.Map // by ID of the directory
}

func (g *shownGates) Set(id uint64, p dispatch.Params) error {
	g.gangs.Store(id, p.Gang)
	return g.gates.Set(id, p)
}

func (g *shownGates) Shares() []dispatch.Share {
	if shares := g.shares.Load(); shares != nil {
		return *shares
	}
	return g.gates.Shares()
}

// rig is a daemon with fake devices and tenants, and a real tree, policy and store.
type rig struct {
	*Daemon
	tenants *fakeTenants
	gates   *shownGates
	gpus    *gputest.Inventory
	stop    func() // ends Run and waits for it
	run     chan error
}

// testing machines: two GPUs of 16 GiB with 32 units.
func machineOf(t *testing.T) *gputest.Inventory { return gputest.Machine(2, 16<<30, 32) }

// start opens and runs a daemon, whose tenants have the given clients already. The test's end stops it.
func start(t *testing.T, c Config, clients ...tenant.Client) *rig {
	t.Helper()
	return startWith(t, c, func(f *fakeTenants) { f.clients = clients })
}

// startWith is start with tenants that were prepared.
func startWith(t *testing.T, c Config, prepare func(*fakeTenants)) *rig {
	t.Helper()
	r := &rig{run: make(chan error, 1)}
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Inventories == nil {
		r.gpus = machineOf(t)
		c.Inventories = []gpu.Inventory{r.gpus}
	}
	if c.Mount == "" {
		c.Mount = MountOff
	}
	c.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n, err := open(c, parts{
		tenants: func(c tenant.Config) (tenants, error) {
			r.tenants = newFakeTenants(c)
			prepare(r.tenants)
			return r.tenants, nil
		},
		gates: func(c dispatch.Config) (gates, error) {
			g, err := dispatch.New(c)
			r.gates = &shownGates{gates: g}
			return r.gates, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Daemon = n
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.run <- n.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-r.run; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// testWriter logs to a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// program starts a process that lives until the test kills it, or ends.
func program(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// self is this process as a launcher.
func self() limits.Author {
	return limits.Author{PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
}

// holds makes a hold of the caller's process.
func (r *rig) holds(t *testing.T, spec AttachSpec) *Attachment {
	t.Helper()
	if spec.Launcher.PID == 0 {
		spec.Launcher = self()
	}
	h, err := r.Attach(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// watcher reads events one by one.
type watcher struct {
	subscription *Subscription[Event]
	ahead        []Event
}

// events begins to watch.
func (r *rig) events(t *testing.T) *watcher {
	w := &watcher{subscription: r.journal.source.subscribe()}
	t.Cleanup(w.subscription.Close)
	return w
}

// await returns the next event of a kind.
func (w *watcher) await(t *testing.T, kind Kind) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		for len(w.ahead) > 0 {
			e := w.ahead[0]
			w.ahead = w.ahead[1:]
			if e.Kind == kind {
				return e
			}
		}
		var err error
		if w.ahead, _, err = w.subscription.Next(ctx); err != nil {
			t.Fatalf("waiting for %s: %v", kind, err)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// asks is a request for limits on each device, and memory one for memory.max.
func asks(l limits.Limits) limits.Request { return limits.Request{Limits: l} }

func memory(bytes uint64) limits.Request { return asks(limits.Limits{MemoryMax: limits.AtMost(bytes)}) }

func TestAttachMakesAndRemoves(t *testing.T) {
	r := start(t, Config{})
	h := r.holds(t, AttachSpec{Program: "train.py", Limits: limits.Request{Limits: limits.Limits{
		MemoryMax: limits.AtMost(1 << 30), ComputeMax: ptr[uint32](2500), Count: ptr(16), Weight: 300,
		Priority: ptr(limits.High), ComputeMin: ptr[uint32](1000),
	}, HostMax: limits.AtMost(1 << 20)}})
	if !strings.HasPrefix(h.Path, "/train.py-") || h.ID == 0 || len(h.Devices) != 2 {
		t.Errorf("hold %+v", h)
	}
	if h.Environment[SocketEnvironment] != filepath.Join(r.Dir(), TenantSocket) {
		t.Errorf("environment %v", h.Environment)
	}
	l := r.tenants.limits(h.ID)
	if l.HostMemory != 1<<20 || len(l.Devices) != 2 {
		t.Fatalf("limits %+v", l)
	}
	for i, d := range l.Devices {
		want := region.DeviceLimits{UUID: h.Devices[i].UUID, Memory: 1 << 30, Physical: 16 << 30, Compute: 2500,
			Units: 16}
		if d != want {
			t.Errorf("device %d: %+v, want %+v", i, d, want)
		}
	}
	n := r.node(t, h.Path)
	if n.Kind != KindLgpu || n.Persistent || len(n.Launchers) != 1 || n.Launchers[0].PID != os.Getpid() ||
		len(n.Devices) != 2 {
		t.Errorf("shown as %+v", n)
	}
	d := n.Devices[0]
	if d.Requested.MemoryMax != limits.AtMost(1<<30) || d.Requested.Weight != 300 || *d.Requested.Priority != limits.High ||
		d.Requested.Lgpu() != "count=16" ||
		d.Effective.ComputeMax != 2500 || d.Effective.Bits.Count() != 16 || d.Effective.ComputeMin != 1000 || d.Key != "195:0" {
		t.Errorf("limits are shown as %+v", d)
	}
	if err := errors.Join(h.Close(), h.Close()); err != nil {
		t.Error(err)
	}
	if _, err := r.Tree().Directory(h.Path); err == nil {
		t.Error("the lgpu stays after its hold")
	}
	if len(r.tenants.lgpus) != 0 {
		t.Errorf("tenants still know %v", r.tenants.lgpus)
	}
}

// directory returns what the snapshot says of a directory.
func (r *rig) node(t *testing.T, path string) Directory {
	t.Helper()
	nodes := r.Snapshot().Directories
	i := slices.IndexFunc(nodes, func(n Directory) bool { return n.Path == path })
	if i < 0 {
		t.Fatalf("no node %s", path)
	}
	return nodes[i]
}

func TestAttachRefuses(t *testing.T) {
	r := start(t, Config{})
	h := r.holds(t, AttachSpec{Path: "/team", Limits: memory(1 << 30), Devices: []string{"0"}})
	defer h.Close()
	for _, path := range []string{"/high", "/high/below"} {
		if _, err := r.Create(t.Context(), CreateSpec{Path: path}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Tree().Write("/high", "lgpu.priority", "0 high"); err != nil {
		t.Fatal(err)
	}
	r.holds(t, AttachSpec{Group: "/high", Limits: asks(limits.Limits{Priority: ptr(limits.Latency)}), Devices: []string{"1"}}).Close()
	for _, c := range []struct {
		spec AttachSpec
		err  error
		text string
	}{
		{AttachSpec{Limits: memory(20 << 30)}, unix.ERANGE, "memory.max: \"20 GiB\": device 0 (GPU-"},
		{AttachSpec{Limits: memory(4)}, unix.ERANGE, "memory.max: \"4 B\": of device 0 (GPU-"},
		{AttachSpec{Limits: limits.Request{MemoryPart: ptr[uint32](0)}}, unix.ERANGE, "memory.max: \"0%\": of device 0 (GPU-"},
		{AttachSpec{Limits: limits.Request{HostMax: limits.AtMost(4)}}, nil, "host.max"},
		{AttachSpec{Group: "/high", Limits: asks(limits.Limits{Priority: ptr(limits.Latency)})}, unix.EINVAL,
			"lgpu.priority: \"latency\": the group /high has high"},
		{AttachSpec{Group: "/high/below", Limits: asks(limits.Limits{Priority: ptr(limits.Latency)}), Devices: []string{"0"}}, unix.EINVAL,
			"lgpu.priority: \"latency\": the group /high has high"},
		{AttachSpec{Limits: asks(limits.Limits{Count: ptr(33)})}, unix.ERANGE, "lgpu: \"count=33\": device 0 ("},
		{AttachSpec{Limits: asks(limits.Limits{ComputeMin: ptr[uint32](5000), ComputeMax: ptr[uint32](100)})}, unix.ERANGE,
			"compute.min: \"50%\""},
		{AttachSpec{Devices: []string{"2"}}, ErrNoDevice, "devices: device \"2\": no such device"},
		{AttachSpec{Devices: []string{"1", "195:1"}}, ErrInvalid, "device is listed twice"},
		{AttachSpec{Path: "/nowhere/x"}, os.ErrNotExist, "/nowhere"},
		{AttachSpec{Path: "/procs"}, os.ErrExist, "procs"},
		{AttachSpec{Path: "/team", Limits: memory(2 << 30)}, ErrDiffers,
			"exists with memory.max 1 GiB, not 2 GiB"},
		{AttachSpec{Path: "/team", Devices: []string{"1"}}, ErrDiffers, "other devices"},
		{AttachSpec{Path: "/team", Sim: "1x1GiB"}, ErrDiffers, "not on the software GPU"},
		{AttachSpec{Path: "/team/child"}, nil, "processes"},
		{AttachSpec{Path: "/team", ID: 7}, ErrNotFound, "id 7"},
		{AttachSpec{Path: "/gone", ID: 7}, ErrNotFound, "id 7"},
		{AttachSpec{Sim: "huge"}, ErrInvalid, "sim: "},
		{AttachSpec{Spatial: true}, ErrInvalid, "spatial: "},
		{AttachSpec{Launcher: limits.Author{PID: 1 << 22}}, ErrInvalid, "launcher"},
	} {
		if c.spec.Launcher.PID == 0 {
			c.spec.Launcher = self()
		}
		before := len(r.Tree().Directories())
		got, err := r.Attach(t.Context(), c.spec)
		if err == nil {
			t.Errorf("%+v: held as %s", c.spec, got.Path)
			got.Close()
			continue
		}
		if c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: error %q, want %v with %q", c.spec, err, c.err, c.text)
		}
		if after := len(r.Tree().Directories()); after != before {
			t.Errorf("%+v: %d nodes, %d before", c.spec, after, before)
		}
	}
	// The same limits, or none, join.
	for _, spec := range []AttachSpec{{Path: "/team"}, {Path: "/team", Limits: memory(1 << 30)},
		{Path: "/team", Devices: []string{"0"}}} {
		h2 := r.holds(t, spec)
		if h2.ID != h.ID {
			t.Errorf("joined %d, want %d", h2.ID, h.ID)
		}
		h2.Close()
	}
	if _, err := r.Tree().Directory("/team"); err != nil {
		t.Error("the lgpu has gone with another's hold")
	}
}

// An lgpu outlives its launchers as long as it has clients.
func TestClientsKeepAnLgpu(t *testing.T) {
	r := start(t, Config{})
	events := r.events(t)
	h := r.holds(t, AttachSpec{})
	r.tenants.join(tenant.Client{LGPU: h.ID, Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}, Memory: []uint64{0,
		0}})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n := r.node(t, h.Path); len(n.Clients) != 1 || len(n.Launchers) != 0 {
		t.Errorf("%+v", n)
	}
	r.tenants.leave(4711)
	if e := events.await(t, LgpuRemoved); e.Path != h.Path || e.ID != h.ID {
		t.Errorf("%+v", e)
	}
}

// A persistent lgpu stays, and remembers what it used.
func TestPersistent(t *testing.T) {
	r := start(t, Config{})
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/p", Writes: []limits.Assignment{{File: "memory.max",
		Text: "195:0 2147483648\n"}}}); err != nil {
		t.Fatal(err)
	}
	if n := r.node(t, "/p"); n.Kind != KindGroup || !n.Persistent {
		t.Errorf("%+v", n)
	}
	h := r.holds(t, AttachSpec{Path: "/p", Devices: []string{"0"}})
	r.tenants.setUsage(h.ID, region.State{Host: 7, Devices: []region.DeviceUse{{Used: 100, Peak: 300,
		Busy: 5 * time.Second, Launches: 6}}})
	n := r.node(t, "/p")
	if d := n.Devices[0]; d.MemoryUsed != 100 || d.MemoryPeak != 300 || d.Busy != 5*time.Second || d.Launches != 6 ||
		n.HostUsed != 7 || n.Kind != KindLgpu {
		t.Errorf("%+v", n)
	}
	if root := r.Snapshot().Directories[0]; root.Devices[0].MemoryUsed != 100 || root.HostUsed != 7 {
		t.Errorf("the root has %+v", root)
	}
	if text, err := r.Tree().Read("/p", "memory.current"); err != nil || !strings.Contains(text, "195:0 100") {
		t.Errorf("memory.current %q, %v", text, err)
	}
	if err := r.Remove(t.Context(), self(), "/p"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed while in use: %v", err)
	}
	h.Close()
	h = r.holds(t, AttachSpec{Path: "/p"})
	if len(h.Devices) != 1 {
		t.Errorf("devices %v", h.Devices)
	}
	if d := r.node(t, "/p").Devices[0]; d.MemoryUsed != 0 || d.MemoryPeak != 300 || d.Busy != 5*time.Second ||
		d.Launches != 6 {
		t.Errorf("the second time: %+v", d)
	}
	h.Close()
	if err := r.Remove(t.Context(), self(), "/p"); err != nil {
		t.Error(err)
	}
}

// What is written to the tree is with the tenants when the write returns, and a group's limit is a budget.
func TestWritesArrive(t *testing.T) {
	r := start(t, Config{})
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/g"}); err != nil {
		t.Fatal(err)
	}
	h := r.holds(t, AttachSpec{Group: "/g", Program: "x"})
	defer h.Close()
	if err := r.Tree().Write(h.Path, "memory.max", "195:0 1073741824"); err != nil {
		t.Fatal(err)
	}
	events := r.events(t)
	if l := r.tenants.limits(h.ID); l.Devices[0].Memory != 1<<30 || l.Devices[1].Memory != region.NoLimit {
		t.Errorf("limits %+v", l)
	}
	if err := r.Tree().Write("/g", "memory.max", "195:1 4194304"); err != nil {
		t.Fatal(err)
	}
	if l := r.tenants.limits(h.ID); l.Devices[1].Memory != 4<<20 {
		t.Errorf("limits %+v", l)
	}
	g, _ := r.Tree().Directory("/g")
	if e := events.await(t, LimitChanged); e.Path != "/g" ||
		e.Text != "/g: memory.max of device 1 (GPU-face0000) is 4 MiB (was max)" || e.By != nil ||
		!slices.Equal(e.Changes, []limits.Difference{{File: "memory.max", Device: h.Devices[1].UUID.String(), Old: "max", New: "4 MiB"}}) {
		t.Errorf("%+v", e)
	}
	if err := r.Tree().Chown(limits.Root, 1000, 0); err != nil { // who may write /g then
		t.Fatal(err)
	}
	events.await(t, LimitChanged)
	if err := r.Tree().By(limits.Author{UID: 1000}).Update("/g", []limits.Assignment{{File: "compute.max", Text: "50%"}, {File: "lgpu.priority",
		Text: "high"}, {File: "gang", Text: "job"}}); err != nil {
		t.Fatal(err)
	}
	e := events.await(t, LimitChanged)
	if e.UID != 1000 || !strings.HasPrefix(e.Text, "/g: compute.max is 50% (was max), lgpu.priority is high (was default), "+
		"gang is job (was none), by user 1000") {
		t.Errorf("%+v", e)
	}
	changes := []limits.Difference{{File: "compute.max", Old: "max", New: "50%"},
		{File: "lgpu.priority", Old: "default", New: "high"}, {File: "gang", New: "job"}}
	if !slices.Equal(e.Changes, changes) {
		t.Errorf("changed are %+v", e.Changes)
	}
	i := slices.IndexFunc(r.tenants.budgets, func(b tenant.Budget) bool { return b.ID == g.ID })
	if i < 0 || !maps.Equal(r.tenants.budgets[i].Memory, map[[16]byte]uint64{h.Devices[1].UUID: 4 << 20}) {
		t.Errorf("budgets %+v", r.tenants.budgets)
	}
	if err := r.Tree().Write(h.Path, "lgpu", "195:0 count=0"); err != nil {
		t.Fatal(err)
	}
	if e := events.await(t, LimitChanged); e.Path != h.Path { // not because of /g
		t.Errorf("%+v", e)
	}
	if l := r.tenants.limits(h.ID); l.Devices[0].Compute != 0 {
		t.Errorf("no units: %+v", l.Devices[0])
	}
}

func TestSingleInstance(t *testing.T) {
	r := start(t, Config{})
	if n, err := open(Config{Dir: r.Dir(), Inventories: []gpu.Inventory{}}, parts{}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second daemon: %v, %v", n, err)
	}
}

// A daemon that cannot have a socket for tenants says so, and ends in order.
func TestNoTenantSocket(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, TenantSocket, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Dir: dir, Inventories: []gpu.Inventory{}, Mount: MountOff})
	if err == nil || n != nil || !strings.Contains(err.Error(), TenantSocket) {
		t.Errorf("%v, %v", n, err)
	}
}

func TestIdleExit(t *testing.T) {
	r := start(t, Config{Idle: 30 * time.Millisecond})
	release := r.Use()
	h := r.holds(t, AttachSpec{})
	release()
	select {
	case err := <-r.run:
		t.Fatalf("the daemon has left an lgpu in use: %v", err)
	case <-time.After(200 * time.Millisecond): // several times as long as it waits
	}
	h.Close()
	select {
	case err := <-r.run:
		r.run <- err
	case <-time.After(20 * time.Second):
		t.Fatal("the daemon does not leave")
	}
	if _, err := r.Attach(t.Context(), AttachSpec{Launcher: self()}); !errors.Is(err, ErrClosed) {
		t.Errorf("a hold of one that is leaving: %v", err)
	}
}

// A subscription keeps the newest values for a slow reader and says how many it lost.
func TestSubscription(t *testing.T) {
	s := source[int]{limit: 3}
	f := s.subscribe()
	for i := range 5 {
		s.publish(i)
	}
	items, lost, err := f.Next(t.Context())
	if !slices.Equal(items, []int{2, 3, 4}) || lost != 2 || err != nil {
		t.Errorf("%v, %d, %v", items, lost, err)
	}
	got := make(chan []int)
	go func() { items, _, _ := f.Next(t.Context()); got <- items }()
	s.publish(7)
	if items := <-got; !slices.Equal(items, []int{7}) {
		t.Errorf("%v", items)
	}
	s.publish(8)
	s.close()
	if items, _, err := f.Next(t.Context()); !slices.Equal(items, []int{8}) || err != nil {
		t.Errorf("after the end: %v, %v", items, err)
	}
	if _, _, err := f.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("at the end: %v", err)
	}
	f.Close()
	if _, _, err := s.subscribe().Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a late subscription: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var other source[int]
	if _, _, err := other.subscribe().Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// A program cannot run in a group, and trying leaves it one.
func TestGroupStaysAGroup(t *testing.T) {
	r := start(t, Config{SimCommand: simCommand(), Dir: shortDir(t)})
	make := func(path, shape string) {
		t.Helper()
		if _, err := r.Create(t.Context(), CreateSpec{Path: path, Sim: shape}); err != nil {
			t.Fatal(err)
		}
	}
	group := func(path string) {
		t.Helper()
		if n := r.node(t, path); n.Kind != KindGroup || len(n.Devices) < 2 {
			t.Errorf("%s is shown as %s with %d devices", path, n.Kind, len(n.Devices))
		}
	}
	make("/team", "1x1GiB,sms=2")
	make("/team/alice", "")
	_, err := r.Attach(t.Context(), AttachSpec{Path: "/team", Launcher: self()})
	var hint interface{ Hint() string }
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "/team is a group") || !errors.As(err, &hint) ||
		!strings.Contains(hint.Hint(), "--group /team") {
		t.Errorf("a program in a group: %v", err)
	}
	group("/team")

	// It becomes one after it was looked at.
	for _, c := range []struct{ path, shape string }{{"/late", "1x1GiB,sms=2"}, {"/new", ""}} {
		make(c.path, c.shape)
		spec := AttachSpec{Path: c.path, Sim: c.shape, Devices: []string{"0"}, Launcher: self()}
		p, err := r.look(spec, os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.choose(spec, p); err != nil {
			t.Fatal(err)
		}
		make(c.path+"/child", "")
		held, err := launcherOf(self())
		if err != nil {
			t.Fatal(err)
		}
		r.lgpus.life.Lock()
		_, err = r.join(spec, p, held)
		r.lgpus.life.Unlock()
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("a program in %s, which became a group: %v", c.path, err)
		}
		group(c.path)
	}

	// A program once ran in it.
	make("/once", "")
	h := r.holds(t, AttachSpec{Path: "/once", Devices: []string{"0"}})
	if n := r.node(t, "/once"); n.Kind != KindLgpu {
		t.Errorf("with a program: %+v", n)
	}
	h.Close()
	make("/once/child", "")
	group("/once")
}
