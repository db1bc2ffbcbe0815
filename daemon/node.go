// Package daemon is the daemon: it owns the state of a machine's lgpus and joins the parts that each know one thing. The
// tree says what is allowed, tenants who asks, the gate whose turn it is, the store what survives, and the inventories
// what is true on the devices.
//
//	n, err := node.Open(node.Config{SimCommand: []string{self, "sim"}})
//	…
//	go serveAPI(n)
//	err = n.Run(ctx)
//
// # What holds when
//
// A limit that was written (Tree) is on disk, in the pages that tenants see and in the policy when the write returns. A
// Hold is on disk when it returns. So a daemon that is killed at any moment is followed by one that knows every lgpu,
// and launchers and clients that live find it: clients come back with their counters, launchers by HoldSpec.ID.
//
// # Locks
//
// In this order; whoever holds one may take those after it only:
//
//  1. life: an lgpu comes into use or goes out of it. No driver, hardware process or MPS daemon is waited for under it.
//  2. devices.mu: the list of devices changes.
//  3. the tree's own lock of writers, under which apply runs.
//  4. pushing: limits go from the tree to tenants and the policy, so that they arrive in the order of the writes.
//  5. mu: the fields of Node, of its lgpus and of its devices.
//
// The locks of tenants, gate, store and journal come last. Tenants call back without a lock of theirs; the gate calls
// with its lock held, which is why those calls take none of these.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	treefs "github.com/lgpu/lgpu/daemon/treefs"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/nvidia"
	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/region"
)

// Errors of this package, wrapped with what they are about.
var (
	// ErrRunning: another daemon has this runtime folder.
	ErrRunning = errors.New("a daemon is running already")
	// ErrClosed: the daemon, or the feed, has ended or is about to.
	ErrClosed = errors.New("closed")
	// ErrExists: there is an lgpu or group with that path already.
	ErrExists = errors.New("exists already")
	// ErrNotFound: there is no such lgpu or group.
	ErrNotFound = errors.New("no such lgpu or group")
	// ErrBusy: the lgpu has launchers or clients, the group has children, or the device is in another mode.
	ErrBusy = errors.New("in use")
	// ErrDiffers: the lgpu exists with other limits or devices than were asked for.
	ErrDiffers = errors.New("exists with other limits")
	// ErrInvalid: the specification makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrNoDevice: the machine has no device of that name, or none at all.
	ErrNoDevice = errors.New("no such device")
)

// Names in the runtime folder.
const (
	LockFile     = "lgpud.lock"  // held by the daemon of the folder
	StateFile    = "state.db"    // Config.State, unless it is elsewhere
	TenantSocket = "tenant.sock" // for the interposer
	TreeFolder   = "tree"        // where the tree of limits is mounted
	rosterFolder = "clients"
)

// SocketEnvironment is the variable that tells a tenant's programs where the tenants' socket is.
const SocketEnvironment = "LGPU_SOCKET"

// Node is the daemon of one runtime folder. Its methods may be called by any number of goroutines.
type Node struct {
	config   Config
	log      *slog.Logger
	lock     *os.File
	started  time.Time
	restarts uint64
	boot     string

	closeTime time.Duration

	tree    *limits.Tree
	store   *store.Store
	tenants tenants
	gates   gates
	modes   *mps.Manager
	journal journal
	slices  source[Slice]

	ctx    context.Context // ends in Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	blind  sync.Once     // for the warning that processes on devices cannot be told apart
	kicked chan struct{} // holds a token when there are ids in idle
	use    chan struct{} // holds a token when inUse may have changed

	life    sync.Mutex
	devices devices
	pushing sync.Mutex

	mu      sync.Mutex
	lgpus   map[uint64]*lgpu            // guarded by mu; written with life held
	all     []*device                   // guarded by mu; written with devices.mu held
	paths   map[uint64]string           // guarded by mu; of all nodes
	asked   map[uint64]limits.NodeState // guarded by mu; what the tree was last asked for
	idle    map[uint64]bool             // guarded by mu; lgpus that may have gone out of use
	users   int                         // guarded by mu; of the API
	leaving bool                        // guarded by mu
	mounted string                      // guarded by mu
	budgets []tenant.Budget             // guarded by pushing

	sharesMu  sync.Mutex
	sharesAt  time.Time                // guarded by sharesMu
	sharesNow map[place]dispatch.Share // guarded by sharesMu
}

// tenants is what the daemon needs of a tenant.Server.
type tenants interface {
	Run(context.Context) error
	Close() error
	AddLGPU(tenant.LGPU) error
	RemoveLGPU(id uint64) error
	SetLimits(id uint64, l tenant.Limits) error
	SetBudgets([]tenant.Budget) error
	Clients() []tenant.Client
	Usage(id uint64) (region.State, error)
	Exports(device [16]byte) tenant.Exports
	ReleaseExports(device [16]byte, lgpu, gone uint64)
}

// gates is what the daemon needs of a gate.Runner.
type gates interface {
	tenant.GateHandler
	Set(id uint64, p dispatch.Params) error
	Remove(id uint64)
	SetDevice(uuid gpu.UUID, spatial bool, o schedule.Options) error
	Shares() []dispatch.Share
	Stats() dispatch.Stats
	Close()
}

// parts are what tests replace.
type parts struct {
	tenants func(tenant.Config) (tenants, error)
	gates   func(dispatch.Config) (gates, error)
}

// Open takes the runtime folder, reads the state and finds the devices. An error wraps ErrRunning if another daemon has
// the folder, or store.ErrDamaged if the state was unreadable. The caller ends a Node that was opened by Close, also
// after Run.
func Open(c Config) (*Node, error) {
	return open(c, parts{
		tenants: func(c tenant.Config) (tenants, error) { return tenant.Listen(c) },
		gates:   func(c dispatch.Config) (gates, error) { return dispatch.New(c) },
	})
}

func open(c Config, p parts) (n *Node, err error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	n = &Node{
		config: c, log: c.Log, started: time.Now(), lgpus: map[uint64]*lgpu{}, paths: map[uint64]string{},
		idle: map[uint64]bool{}, closeTime: closeTime,
		kicked: make(chan struct{}, 1), use: make(chan struct{}, 1),
	}
	n.journal.feed.limit, n.slices.limit = 1024, 4096
	n.ctx, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if n.boot, err = bootID(); err != nil {
		return n, err
	}
	if n.lock, err = lockFolder(c.Dir); err != nil {
		return n, err
	}
	if n.store, err = store.Open(c.State); err != nil {
		return n, err
	}
	n.gates, err = p.gates(dispatch.Config{
		Options: schedule.Options{Slice: int64(c.Slice)}, Slice: n.turn, Overran: n.overran, Log: c.Log,
	})
	if err != nil {
		return n, err
	}
	if n.modes, err = mps.New(mps.Config{Dir: c.Dir, Log: c.Log, Event: n.modeEvent}); err != nil {
		return n, err
	}
	n.tenants, err = p.tenants(tenant.Config{
		Socket: filepath.Join(c.Dir, TenantSocket), Roster: filepath.Join(c.Dir, rosterFolder),
		Resolver: n, Gate: n.gates, Observer: n, Log: c.Log,
	})
	if err != nil {
		return n, err
	}
	n.tree = limits.New(limits.Options{Usage: usage{n}, Commit: n.commit, Owner: uint32(os.Geteuid())})
	return n, n.restore()
}

// complete fills in defaults and checks c.
func (c *Config) complete() error {
	if c.Dir == "" {
		dir, err := rundir.Dir()
		if err != nil {
			return err
		}
		c.Dir = dir
	}
	if c.State == "" {
		c.State = filepath.Join(c.Dir, StateFile)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	defaults := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defaults(&c.PolicePeriod, time.Second)
	defaults(&c.StopGrace, 5*time.Second)
	defaults(&c.Reattach, 10*time.Second)
	if c.Mount == "" {
		c.Mount = MountAuto
	}
	if c.Police == "" {
		c.Police = PoliceReport
	}
	switch {
	case c.Mount != MountAuto && c.Mount != MountOn && c.Mount != MountOff:
		return fmt.Errorf("mount %q: %w; there are %s, %s and %s", c.Mount, ErrInvalid, MountAuto, MountOn, MountOff)
	case c.Police != PoliceReport && c.Police != PoliceStop && c.Police != PoliceStopStrangers:
		return fmt.Errorf("police %q: %w; there are %s, %s and %s", c.Police, ErrInvalid, PoliceReport, PoliceStop,
			PoliceStopStrangers)
	case c.Slice != 0 && (c.Slice < 2*time.Millisecond || c.Slice > 50*time.Millisecond):
		return fmt.Errorf("slice %v: %w; slices last 2ms to 50ms", c.Slice, ErrInvalid)
	case c.PolicePeriod < 0 || c.StopGrace < 0 || c.Reattach < 0 || c.Idle < 0:
		return fmt.Errorf("a time below zero: %w", ErrInvalid)
	}
	return nil
}

// lockFolder makes this process the only daemon of dir.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, LockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the daemon's lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := os.ReadFile(path)
		f.Close()
		return nil, fmt.Errorf("%w: process %s has %s", ErrRunning, pid, path)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprint(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// restore makes everything as it was when the daemon before ended: tree, devices, and lgpus in use.
func (n *Node) restore() error {
	state := n.store.State()
	n.restarts = state.Starts - 1
	saved := state.Tree
	if len(saved.Nodes) == 0 {
		// IDs name lgpus for good, also to clients of a state that was lost: they never begin at the same number.
		saved = limits.State{Version: limits.StateVersion, LastID: uint64(n.started.Unix()) << 20}
	}
	for _, err := range n.tree.Load(saved) {
		n.log.Warn("a part of the saved tree was left out", "error", err)
	}
	for _, record := range state.Lgpus {
		if _, exists := n.tree.ByID(record.ID); !exists {
			if err := n.store.DeleteLgpu(record.ID); err != nil {
				return err
			}
			continue
		}
		n.lgpus[record.ID] = &lgpu{record: record, launchers: map[*launcher]bool{},
			base: map[gpu.UUID]region.DeviceUse{}}
	}
	if err := n.openDevices(); err != nil {
		return err
	}
	n.asked = map[uint64]limits.NodeState{}
	for _, node := range n.tree.State().Nodes {
		n.asked[node.ID] = node
	}
	n.tree.Watch(n.apply)
	n.pushAll()
	return n.revive()
}

// openDevices opens the inventories, and the software GPUs that lgpus are on.
func (n *Node) openDevices() error {
	inventories := n.config.Inventories
	if inventories == nil {
		driver, err := nvidia.Open()
		switch {
		case err == nil:
			inventories = []gpu.Inventory{driver}
		case !errors.Is(err, nvidia.ErrNoDriver):
			n.log.Warn("NVIDIA's devices are left out", "error", err)
		}
	}
	n.devices.init()
	for _, inventory := range inventories {
		n.devices.add(&origin{inventory: inventory, users: 1, bereaved: make(chan struct{}, 1)})
	}
	for _, l := range n.lgpus {
		if l.record.Sim == "" {
			continue
		}
		if _, err := n.attachSim(l.record.Sim); err != nil {
			n.log.Warn("a software GPU cannot be reached", "shape", l.record.Sim, "error", err)
			continue
		}
		l.attached = true
	}
	return n.refreshDevices()
}

// Run serves tenants and keeps watch until ctx ends, or until nobody has needed the daemon for Config.Idle; then it
// returns nil. Tenants go on: they keep their limits and look for the next daemon.
func (n *Node) Run(ctx context.Context) error {
	unmount, err := n.mount()
	if err != nil {
		return err
	}
	defer unmount()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.announce()
	n.work.Add(2)
	go func() { defer n.work.Done(); n.janitor(ctx) }()
	go func() { defer n.work.Done(); n.rescan(ctx) }()
	n.devices.watch(n, ctx)
	served := make(chan error, 1)
	go func() { served <- n.tenants.Run(ctx) }()
	var idle <-chan struct{}
	if n.config.Idle > 0 {
		idle = n.awaitIdle(ctx)
	}
	select {
	case err = <-served:
		if err == nil && ctx.Err() == nil {
			err = errors.New("the tenants' socket was closed")
		}
		n.leave()
		return err
	case <-ctx.Done():
	case <-idle:
	}
	n.leave()
	cancel()
	return <-served
}

// announce says that the daemon is there.
func (n *Node) announce() {
	e := Event{Kind: DaemonStarted, PID: os.Getpid(), UID: uint32(os.Getuid()), Text: "the daemon has started"}
	if n.restarts > 0 {
		e.Kind, e.Text = DaemonRestarted, "the daemon has taken over the state of the one before"
	}
	n.emit(e)
}

// mount shows the tree, where that is wanted and possible.
func (n *Node) mount() (unmount func(), err error) {
	dir := filepath.Join(n.config.Dir, TreeFolder)
	if n.config.Mount == MountOff {
		if err := treefs.Clean(dir); err != nil { // a daemon before may have had one, and have died
			n.log.Warn("what is mounted stays", "error", err)
		}
		return func() {}, nil
	}
	server, err := treefs.Mount(dir, n.tree, treefs.Options{AllowOther: os.Geteuid() == 0, Log: n.log})
	if err != nil {
		if n.config.Mount == MountOn {
			return nil, err
		}
		n.emit(Event{Kind: MountFailed, Text: err.Error()})
		return func() {}, nil
	}
	n.mu.Lock()
	n.mounted = dir
	n.mu.Unlock()
	return func() {
		n.mu.Lock()
		n.mounted = ""
		n.mu.Unlock()
		if err := server.Close(); err != nil {
			n.log.Warn("the tree stays mounted", "error", err)
		}
	}, nil
}

// leave makes every later Hold and Create fail.
func (n *Node) leave() {
	n.mu.Lock()
	n.leaving = true
	n.mu.Unlock()
}

// left is ErrClosed once the daemon is about to end.
func (n *Node) left() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving {
		return fmt.Errorf("the daemon is about to end: %w", ErrClosed)
	}
	return nil
}

// awaitIdle closes the channel once nobody has needed the daemon for Config.Idle. Nobody can begin to afterwards.
func (n *Node) awaitIdle(ctx context.Context) <-chan struct{} {
	idle := make(chan struct{})
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		timer := time.NewTimer(n.config.Idle)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-n.use:
				timer.Reset(n.config.Idle)
			case <-timer.C:
				if n.leaveIfIdle() {
					close(idle)
					return
				}
			}
		}
	}()
	return idle
}

// leaveIfIdle decides to end if nobody needs the daemon. Someone who does is seen again at the end of the use.
func (n *Node) leaveIfIdle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving = n.leaving || n.users == 0 && !n.inUseLocked()
	return n.leaving
}

// used restarts the time to leaving. Whoever stops needing the daemon calls it.
func (n *Node) used() {
	select {
	case n.use <- struct{}{}:
	default:
	}
}

// Use tells the daemon that somebody is using its API until release is called, which keeps it from leaving.
func (n *Node) Use() (release func()) {
	n.mu.Lock()
	n.users++
	n.mu.Unlock()
	return sync.OnceFunc(func() {
		n.mu.Lock()
		n.users--
		n.mu.Unlock()
		n.used()
	})
}

// closeTime is how long Close waits for what is under way. More is only a driver that hangs.
const closeTime = 10 * time.Second

// Close ends all feeds and gives the runtime folder free. Run has returned, or was never called. Tenants, software GPUs
// that they use and control daemons of MPS go on. A driver that hangs is left to itself.
func (n *Node) Close() error {
	n.leave()
	n.cancel()
	var errs []error
	if n.tenants != nil {
		errs = append(errs, n.tenants.Close())
	}
	hung := !doneIn(n.closeTime, n.work.Wait)
	if hung {
		n.log.Warn("a driver hangs: its devices are not closed")
	}
	n.journal.feed.close()
	n.slices.close()
	if n.gates != nil {
		n.gates.Close()
	}
	if n.modes != nil {
		errs = append(errs, n.modes.Leave())
	}
	if !hung {
		errs = append(errs, n.devices.close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
		n.lock = nil
	}
	return errors.Join(errs...)
}

// doneIn reports whether f returns in time. If it does not, it goes on alone.
func doneIn(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// Dir returns the runtime folder.
func (n *Node) Dir() string { return n.config.Dir }

// Tree returns the tree of limits. What is written there holds when the write returns.
func (n *Node) Tree() *limits.Tree { return n.tree }

// Events returns a feed of what happens from now on, which the caller closes. The daemon keeps 1024 events for a slow
// reader.
func (n *Node) Events() *Feed[Event] { return n.journal.feed.subscribe() }

// Recent returns the last events, at most 256, oldest first.
func (n *Node) Recent() []Event { return n.journal.recent() }

// Slices returns a feed of the turns that lgpus had, which the caller closes. The daemon keeps 4096 for a slow reader.
func (n *Node) Slices() SliceFeed { return n.slices.subscribe() }

// Counters returns numbers that only rise while the daemon lives.
func (n *Node) Counters() Counters {
	return Counters{Events: n.journal.counted(), Gate: n.gates.Stats()}
}

// Counters are what metrics show beside a Snapshot.
type Counters struct {
	Events map[Kind]uint64 // how many of each kind
	Gate   dispatch.Stats
}
