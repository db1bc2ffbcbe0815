package tenant

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

const (
	mib     = 1 << 20
	timeout = 20 * time.Second // after which a test gives up
)

// daemon is a Server with the directory's part played by the test.
type daemon struct {
	*Server
	t      testing.TB
	dir    string
	events chan event
	gates  chan gateCall
	levels chan levelCall
	ran    chan error

	mu        sync.Mutex
	launchers map[Process]uint64 // guarded by mu
	cgroups   map[string]uint64  // guarded by mu; by path of version 2
}

type event struct {
	what   string // joined, left, refused or oom
	client Client
	peer   Peer
	err    error
	bytes  uint64
	by     uint64
	time   time.Time
}

type gateCall struct {
	what string // attach, want, closed, sliced or gone
	gate *Gate
	m    protocol.Message
}

func (d *daemon) Joined(c Client) { d.event(event{what: "joined", client: c}) }
func (d *daemon) Left(c Client)   { d.event(event{what: "left", client: c}) }
func (d *daemon) Refused(p Peer, err error) {
	d.event(event{what: "refused", peer: p, err: err})
}
func (d *daemon) OutOfMemory(c Client, _ int, bytes, by uint64) {
	d.event(event{what: "oom", client: c, bytes: bytes, by: by})
}

func (d *daemon) event(e event) {
	e.time = time.Now()
	select {
	case d.events <- e:
	default:
		panic("nobody takes events")
	}
}

func (d *daemon) gate(c gateCall) {
	select {
	case d.gates <- c:
	default:
	}
}

type gateHandler struct{ *daemon }

func (g gateHandler) Attach(s *Gate, m protocol.Message) { g.gate(gateCall{"attach", s, m}) }
func (g gateHandler) Want(s *Gate, m protocol.Message)   { g.gate(gateCall{"want", s, m}) }
func (g gateHandler) Closed(s *Gate, m protocol.Message) { g.gate(gateCall{"closed", s, m}) }
func (g gateHandler) Sliced(s *Gate, m protocol.Message) { g.gate(gateCall{"sliced", s, m}) }
func (g gateHandler) Gone(s *Gate)                       { g.gate(gateCall{"gone", s, protocol.Message{}}) }

// Resolve is what the directory does: the nearest bound cgroup, else the nearest ancestor that is a launcher or a
// client.
func (d *daemon) Ask(e Evidence) (uint64, error) { return d.Resolve(e) }

func (d *daemon) Resolve(e Evidence) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range e.Cgroups {
		for path := c.Path; c.Controllers == "" && path != "/"; path = filepath.Dir(path) {
			if id := d.cgroups[path]; id != 0 {
				return id, nil
			}
		}
	}
	for _, a := range e.Ancestors {
		if id := d.launchers[a.Process]; id != 0 {
			return id, nil
		}
		if a.LGPU != 0 {
			return a.LGPU, nil
		}
	}
	return 0, &Refusal{Errno: unix.EPERM, Text: "no lgpu is yours"}
}

// listening makes a daemon in dir that does not run yet.
func listening(t testing.TB, dir string) *daemon {
	t.Helper()
	d := &daemon{
		t: t, dir: dir, events: make(chan event, 10000), gates: make(chan gateCall, 1000), levels: make(chan levelCall, 1000), ran: make(chan error, 1),
		launchers: map[Process]uint64{}, cgroups: map[string]uint64{},
	}
	var err error
	d.Server, err = Listen(Config{
		Socket: d.socket(), Roster: filepath.Join(dir, "roster"), Resolver: d, Gate: gateHandler{d}, Observer: d, Residence: residenceHandler{d},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *daemon) run() *daemon {
	go func() { d.ran <- d.Run(context.Background()) }()
	d.t.Cleanup(d.stop)
	return d
}

func (d *daemon) stop() {
	if err := d.Close(); err != nil {
		d.t.Error(err)
	}
	select {
	case err := <-d.ran:
		if err != nil {
			d.t.Error(err)
		}
		d.ran <- nil
	case <-time.After(timeout):
		d.t.Error("Run does not return")
	}
}

// serve is a daemon at work in a folder that others may pass.
func serve(t testing.TB) *daemon {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return listening(t, dir).run()
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "tenant.sock") }

// lgpu adds an lgpu of two devices, of the first so many MiB.
func (d *daemon) lgpu(id, parent, megabytes uint64) {
	d.t.Helper()
	l := LGPU{ID: id, Name: fmt.Sprint("lgpu-", id), Parent: parent, Limits: limits(megabytes)}
	if err := d.AddLGPU(l); err != nil {
		d.t.Fatal(err)
	}
}

func limits(megabytes uint64) Limits {
	l := Limits{HostMemory: region.NoLimit}
	for i := range 2 {
		l.Devices = append(l.Devices, region.DeviceLimits{
			UUID: [16]byte{byte(i + 1)}, Memory: region.NoLimit, Physical: 1 << 40, Compute: region.FullCompute,
		})
	}
	l.Devices[0].Memory = megabytes * mib
	return l
}

// tenant starts a process that belongs to an lgpu; it has said nothing yet.
func (d *daemon) tenant(lgpu uint64) *tenantProcess {
	d.t.Helper()
	p := start(d.t, d.socket())
	d.launcher(p.process(), lgpu)
	return p
}

func (d *daemon) launcher(p Process, lgpu uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.launchers[p] = lgpu
}

// client starts a process and makes it a client.
func (d *daemon) client(lgpu uint64) *tenantProcess {
	d.t.Helper()
	p := d.tenant(lgpu)
	p.want("welcome", "hello 0")
	return p
}

// await waits for an event about a process.
func (d *daemon) await(what string, pid int) event {
	d.t.Helper()
	for end := time.After(timeout); ; {
		select {
		case e := <-d.events:
			if e.what == what && (e.client.Peer.PID == pid || e.peer.PID == pid) {
				return e
			}
		case <-end:
			d.t.Fatalf("pid %d: not %s", pid, what)
		}
	}
}

// awaitGate waits for a call of the gate.
func (d *daemon) awaitGate(what string) gateCall {
	d.t.Helper()
	for end := time.After(timeout); ; {
		select {
		case c := <-d.gates:
			if c.what == what {
				return c
			}
		case <-end:
			d.t.Fatalf("the gate is not told %s", what)
		}
	}
}

func (d *daemon) used(lgpu uint64) uint64 {
	d.t.Helper()
	state, err := d.Usage(lgpu)
	if err != nil {
		d.t.Fatal(err)
	}
	return state.Devices[0].Used
}

func (d *daemon) wantUsed(lgpu, bytes uint64) {
	d.t.Helper()
	if used := d.used(lgpu); used != bytes {
		d.t.Fatalf("lgpu %d uses %d, want %d", lgpu, used, bytes)
	}
}

func TestClient(t *testing.T) {
	d := serve(t)
	d.lgpu(7, 0, 100)
	p := d.tenant(7)
	p.want("welcome 0 0x7", "hello 0")
	joined := d.await("joined", p.pid()).client
	if joined.LGPU != 7 || joined.Index != 0 || joined.Peer.Process != p.process() ||
		joined.Peer.UID != uint32(os.Getuid()) || joined.Peer.Comm == "" {
		t.Errorf("joined: %+v", joined)
	}
	p.want("true", "alloc 0 %d", 60*mib)
	p.want("false", "alloc 0 %d", 41*mib)
	if oom := d.await("oom", p.pid()); oom.bytes != 41*mib || oom.by != 7 {
		t.Errorf("out of memory: %+v", oom)
	}
	p.want("true", "alloc 0 %d", 40*mib)
	all := d.Clients()
	if len(all) != 1 || all[0].Memory[0] != 100*mib || !all[0].Linked {
		t.Errorf("clients: %+v", all)
	}
	view := d.tenant(7)
	view.want(fmt.Sprintf("welcome %d 0x7", region.MaxClients), "hello %d", protocol.FlagView)
	view.want("error", "hear") // its connection has ended
	if len(d.Clients()) != 1 {
		t.Errorf("who only looks is a client: %+v", d.Clients())
	}
	if err := d.RemoveLGPU(7); !errors.Is(err, ErrInUse) {
		t.Errorf("removed under a client: %v", err)
	}
	p.kill()
	if left := d.await("left", p.pid()); left.client.Memory[0] != 100*mib {
		t.Errorf("left: %+v", left.client)
	}
	d.wantUsed(7, 0)
	if err := d.RemoveLGPU(7); err != nil {
		t.Error(err)
	}
	if err := d.RemoveLGPU(7); !errors.Is(err, ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(d.dir, "roster"))
	if err != nil || len(left) != 0 {
		t.Errorf("left of a removed lgpu: %v, %v", left, err)
	}
	view.want("refused "+strconv.Itoa(int(unix.ESRCH)), "hello 0")
}

// TestRemoveAfterDeath: an lgpu whose processes have all died is not in use, also before the news of it.
func TestRemoveAfterDeath(t *testing.T) {
	d := serve(t)
	for id := range uint64(50) {
		d.lgpu(id+1, 0, 1)
		d.client(id + 1).kill()
		if err := d.RemoveLGPU(id + 1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLimitsChange: limits are seen at once; one below what is used stops more until it is enough.
func TestLimitsChange(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	p.want("true", "alloc 0 %d", 80*mib)
	if err := d.SetLimits(1, limits(50)); err != nil {
		t.Fatal(err)
	}
	p.want(fmt.Sprint(50*mib), "memory 0")
	p.want("false", "alloc 0 1")
	p.want("ok", "free 0 %d", 40*mib)
	p.want("true", "alloc 0 %d", 10*mib)
	p.want("false", "alloc 0 1")
	if err := d.SetLimits(1, limits(60)); err != nil {
		t.Fatal(err)
	}
	p.want("true", "alloc 0 %d", 10*mib)
	other := limits(60)
	other.Devices[1].UUID[0] = 9
	if err := d.SetLimits(1, other); !errors.Is(err, ErrDevices) {
		t.Errorf("other devices: %v", err)
	}
	if err := d.SetLimits(2, limits(60)); !errors.Is(err, ErrUnknown) {
		t.Errorf("limits of none: %v", err)
	}
	other = limits(60)
	other.Devices[0].Compute = region.FullCompute + 1
	if err := d.SetLimits(1, other); !errors.Is(err, region.ErrSpec) {
		t.Errorf("impossible limits: %v", err)
	}
	if err := d.AddLGPU(LGPU{ID: 1, Name: "x", Limits: limits(1)}); !errors.Is(err, ErrExists) {
		t.Errorf("added twice: %v", err)
	}
	if err := d.AddLGPU(LGPU{ID: 2, Name: "-", Limits: limits(1)}); !errors.Is(err, region.ErrSpec) {
		t.Errorf("an impossible name: %v", err)
	}
}

// TestBudgets: the members of a group share what it has, to the byte, and get back what a dead one had.
func TestBudgets(t *testing.T) {
	d := serve(t)
	memory := func(megabytes uint64) map[[16]byte]uint64 { return map[[16]byte]uint64{{1}: megabytes * mib} }
	budgets := []Budget{
		{ID: 1, HostMemory: region.NoLimit, Memory: memory(100)},
		{ID: 2, Parent: 1, HostMemory: region.NoLimit, Memory: memory(70)},
	}
	if err := d.SetBudgets(budgets); err != nil {
		t.Fatal(err)
	}
	for id, parent := range map[uint64]uint64{1: 1, 2: 2, 3: 2, 4: 99} {
		d.lgpu(id, parent, 1000)
	}
	a, b, c, free := d.client(1), d.client(2), d.client(3), d.client(4)
	b.want("true", "alloc 0 %d", 50*mib)
	c.want("false", "alloc 0 %d", 20*mib+1)
	a.want("true", "alloc 0 %d", 50*mib)
	c.want("false", "alloc 0 1")
	free.want("true", "alloc 0 %d", 1000*mib)
	b.kill() // and at once
	c.want("true", "alloc 0 %d", 50*mib)
	a.want("ok", "free 0 %d", 50*mib)
	c.want("true", "alloc 0 %d", 20*mib)
	c.want("false", "alloc 0 1")
	a.want("true", "alloc 0 %d", 30*mib)
	a.want("false", "alloc 0 1")
	for what, wrong := range map[string][]Budget{
		"a loop":         {{ID: 1, Parent: 2}, {ID: 2, Parent: 1}},
		"no such parent": {{ID: 1, Parent: 3}},
		"one twice":      {{ID: 1}, {ID: 1}},
		"no ID":          {{}},
	} {
		if err := d.SetBudgets(wrong); !errors.Is(err, ErrBudgets) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := d.SetBudgets(nil); err != nil {
		t.Fatal(err)
	}
	c.want("true", "alloc 0 %d", 900*mib)
}

// TestIdentity: what a process says or becomes does not change whose it is.
func TestIdentity(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // as lgpu run is
		t.Fatal(err)
	}
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.lgpu(2, 0, 100)
	stranger := start(t, d.socket()) // with the environment of somebody's tenant
	stranger.want(fmt.Sprintf("refused %d no lgpu is yours", unix.EPERM), "hello 0")
	if e := d.await("refused", stranger.pid()); e.peer.Process != stranger.process() {
		t.Errorf("refused: %+v", e.peer)
	}
	stranger.want("refused "+strconv.Itoa(int(unix.ESTALE)), "resume-as 1 0")
	stranger.want("refused "+strconv.Itoa(int(unix.ESTALE)), "resume-forged none")
	stranger.wantKeptOut("resume-forged perfect")

	d.launcher(self(t), 1)
	child := start(t, d.socket())
	child.want("welcome 0 0x1", "hello 0")
	if os.Getuid() == 0 {
		child.want("ready", "detach 65534") // daemonised, as another user, from a client
	} else {
		child.want("ready", "detach")
	}
	pid, err := strconv.Atoi(child.ask("pid"))
	if err != nil || pid == child.pid() {
		t.Fatalf("a detached process has pid %d, %v", pid, err)
	}
	t.Cleanup(func() { unix.Kill(pid, unix.SIGKILL); unix.Wait4(pid, nil, 0, nil) })
	d.await("left", child.pid())
	child.want("welcome", "hello 0")
	c := d.Clients()
	if len(c) != 1 || c[0].Peer.PID != pid || c[0].LGPU != 1 || os.Getuid() == 0 && c[0].Peer.UID != 65534 {
		t.Errorf("after su and setsid: %+v", c)
	}

	inner := d.tenant(2) // a launcher below a launcher
	inner.want("welcome 0 0x2", "hello 0")
	inner.want("ready", "exec")
	inner.want("welcome 0 0x2", "hello 0") // the same process, another program: the same index, settled
	if pid := inner.ask("pid"); pid != strconv.Itoa(inner.pid()) {
		t.Errorf("exec has made pid %s of %d", pid, inner.pid())
	}
}

func self(t testing.TB) Process {
	now, err := procfs{}.status(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return Process{PID: os.Getpid(), Start: now.start}
}

// TestCgroup: a process that enters a bound cgroup is its tenant, wherever it comes from and whatever else it is.
func TestCgroup(t *testing.T) {
	d := serve(t)
	var root string
	for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(mount + "/cgroup.procs"); err == nil {
			root = mount
			break
		}
	}
	name := fmt.Sprintf("/lgpu-test-%d", os.Getpid())
	if root == "" || os.Mkdir(root+name, 0o755) != nil {
		t.Skip("no cgroup of version 2 can be made here")
	}
	t.Cleanup(func() { os.Remove(root + name) })
	if err := os.Mkdir(root+name+"/inner", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(root + name + "/inner") })
	d.lgpu(1, 0, 100)
	d.lgpu(2, 0, 100)
	own, err := Cgroups(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range own {
		if c.Controllers == "" {
			d.cgroups[filepath.Join("/", name)] = 2
		}
	}
	p := d.tenant(1)
	p.want("ok", "cgroup %s", root+name+"/inner")
	p.want("welcome 0 0x2", "hello 0")
	p.kill()
	d.await("left", p.pid())
}

// TestManyAtOnce: 256 processes of 4 lgpus, all at once.
func TestManyAtOnce(t *testing.T) {
	d := serve(t)
	for id := range uint64(4) {
		d.lgpu(id+1, 0, 64)
	}
	clients := make([]*tenantProcess, 256)
	for i := range clients {
		clients[i] = d.tenant(uint64(i%4 + 1))
	}
	begun := time.Now()
	for _, p := range clients {
		p.tell("hello 0")
	}
	indices := map[string]bool{}
	for i, p := range clients {
		answer := p.answer()
		if !strings.HasPrefix(answer, "welcome ") || !strings.HasSuffix(answer, fmt.Sprintf(" %#x", i%4+1)) || indices[answer] {
			t.Fatalf("client %d of lgpu %d: %q", i, i%4+1, answer)
		}
		indices[answer] = true
	}
	t.Logf("256 clients were welcomed within %v", time.Since(begun))
	for _, p := range clients {
		p.want("true", "alloc 0 %d", mib)
	}
	for id := range uint64(4) {
		d.wantUsed(id+1, 64*mib)
	}
	for _, p := range clients {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for range clients {
		d.awaitAny("left")
	}
	for id := range uint64(4) {
		d.wantUsed(id+1, 0)
	}
}

func (d *daemon) awaitAny(what string) event {
	d.t.Helper()
	for end := time.After(timeout); ; {
		select {
		case e := <-d.events:
			if e.what == what {
				return e
			}
		case <-end:
			d.t.Fatal("nobody has ", what)
		}
	}
}

// TestKilledAtEveryStep: a client killed at any point of its life leaves nothing.
func TestKilledAtEveryStep(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	other := d.client(1)
	other.want("true", "alloc 0 %d", 10*mib)
	steps := [][]string{
		{"connect"},
		{"connect", "say 1 0 0 0"}, // Hello, whose answer it never reads
		{"hello 0"},
		{"hello 1", "hello 0"},
		{"hello 0", "alloc 0 50000000"},
		{"hello 0", "alloc 0 50000000", "say 5 0 1000000000 0"}, // Need
		{"hello 0", "say 2 0 0 0"},                              // Gate
		{"hello 0", "say 2 1 0 0", "say 3 1 0 0"},               // Want
		{"hello 0", "alloc 0 50000000", "close"},
		{"hello 0", "alloc 0 50000000", "close", "connect"},
		{"hello 0", "alloc 0 50000000", "close", "resume"},
		{"hello 0", "alloc 0 50000000", "free 0 10000000"},
	}
	for _, step := range steps {
		p := d.tenant(1)
		for _, command := range step {
			if answer := p.ask(command); strings.HasPrefix(answer, "error") {
				t.Fatalf("%v: %s: %s", step, command, answer)
			}
		}
		member := len(step) > 1 || step[0] != "connect"
		if member {
			d.await("joined", p.pid())
		}
		p.kill()
		if member {
			d.await("left", p.pid())
		}
		if all := d.Clients(); len(all) != 1 || all[0].Peer.PID != other.pid() {
			t.Fatalf("%v: clients are %+v", step, all)
		}
		d.wantUsed(1, 10*mib)
	}
	next := d.tenant(1)
	next.want("welcome 1 0x1", "hello 0") // the index of all of them
}

// TestForkKeepsConnection: a child that has the connection open does not keep its dead parent alive. Prints how long it
// takes until what the parent held is free.
func TestForkKeepsConnection(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	p.want("true", "alloc 0 %d", 100*mib)
	p.want("ok", "say %d 1 0 0", protocol.Gate)
	gate := d.awaitGate("attach").gate
	keeper, err := strconv.Atoi(p.ask("keep"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(keeper, unix.SIGKILL) })
	killed := time.Now()
	p.kill()
	left := d.await("left", p.pid())
	t.Logf("usage was free %v after kill -9", left.time.Sub(killed))
	if left.time.Sub(killed) > time.Second {
		t.Error("that is too long")
	}
	d.wantUsed(1, 0)
	if gone := d.awaitGate("gone").gate; gone != gate {
		t.Error("another gate is gone")
	}
	gate.Send(protocol.Message{Kind: protocol.Open}) // to nobody
}

// BenchmarkReclaim is the time from a client's death to its memory being free.
func BenchmarkReclaim(b *testing.B) {
	d := serve(b)
	d.lgpu(1, 0, 100)
	var worst, sum time.Duration
	for b.Loop() {
		p := d.client(1)
		p.want("true", "alloc 0 %d", 100*mib)
		begun := time.Now()
		p.kill()
		took := d.await("left", p.pid()).time.Sub(begun)
		sum += took
		worst = max(worst, took)
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "µs/death")
	b.ReportMetric(float64(worst.Microseconds()), "µs-worst")
}
