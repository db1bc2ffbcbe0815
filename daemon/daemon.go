// Package daemon is the daemon: it owns the state of a machine's lgpus and joins the parts that each know one thing.
// The tree says what is allowed, tenants who asks, the gate whose turn it is, the store what survives, and the
// inventories what is true on the devices.
//
//	d, err := daemon.Open(daemon.Config{SimCommand: []string{self, "sim"}})
//	…
//	go serveAPI(d)
//	err = d.Run(ctx)
//
// # What is settled when
//
// A limit that was written (Tree) is on disk, in the pages that tenants see and in the policy when the write returns.
// What Attach returns is on disk. So a daemon that is killed at any moment is followed by one that knows every lgpu,
// and launchers and clients that live find it: clients come back with their counters, launchers by AttachSpec.ID.
//
// # Who owns what
//
//   - lgpus: the lgpus, and the life of each (package lifecycle); a change carries out one event of one life.
//   - inventory: the devices, where they come from, what was last seen of them, and the modes they are in.
//   - police: what the devices say against what the accounts say.
//   - stopper: the end of programs that somebody wants to end.
//   - places: where programs of users run.
//   - presence: whether anybody needs the daemon.
//   - resolver and observer: what the tenants' server asks and tells.
//   - containers: what container runtimes are offered.
//   - residence: what of programs' memory is on their devices, and the files for the rest.
//   - bounds: the kernel's own limits of device memory.
//   - journal: the events. repeats decides which are told, package eventlog keeps them, and an Author is who causes one.
//   - Daemon: all of these, and what the tree says on its way to tenants and the policy.
//
// # Locks
//
// Each is declared above what it guards. A goroutine that has one may take only those below it in this list:
//
//  1. containers.mu
//  2. lgpus.life
//  3. inventory.mu
//  4. the tree's own lock of writers, under which Daemon.apply runs
//  5. Daemon.pushing
//  6. residence.mu
//  7. presence.mu
//  8. Daemon.mu
//  9. shares.mu, residence.queueMu, lgpus.mu, lgpus.noticesMu, inventory.seenMu, origin.asking: under none of these is another of
//     the list taken
//
// The locks of tenants, gate, modes, store and journal come last. Tenants call back without a lock of theirs,
// but for residence, which only takes its queueMu then; the gate
// calls with its lock held, which is why those calls take none of these but inventory.seenMu, under which nobody calls
// the gate.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/joules"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	treefs "github.com/lgpu/lgpu/daemon/treefs"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/policy/slot"
	"github.com/lgpu/lgpu/tenant/region"
)

// Errors of this package, wrapped with what they are about.
var (
	// ErrRunning: another daemon has this runtime folder.
	ErrRunning = errors.New("a daemon is running already")
	// ErrClosed: the daemon, or the subscription, has ended or is about to.
	ErrClosed = errors.New("closed")
	// ErrExists: there is an lgpu or group with that path already.
	ErrExists = errors.New("exists already")
	// ErrNotFound: there is no such lgpu or group.
	ErrNotFound = errors.New("no such lgpu or group")
	// ErrBusy: the lgpu has launchers or clients, the group has children, or the device is in another mode or another
	// daemon's.
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
	LockFile     = "lgpud.lock"  // locked by the daemon of the folder
	StateFile    = "state.db"    // Config.State, unless it is elsewhere
	TenantSocket = "tenant.sock" // for the interposer
	TreeFolder   = "tree"        // where the tree of limits is mounted
	rosterFolder = "clients"
	copiesFolder = "copies"     // Config.Copies
	doorsFolder  = "containers" // of the sockets that are mounted into containers
)

// energyOf is the folder of the history of energy that belongs to a file of state.
func energyOf(state string) string { return strings.TrimSuffix(state, filepath.Ext(state)) + ".energy" }

// eventsOf is the folder of events that belongs to a file of state.
func eventsOf(state string) string { return strings.TrimSuffix(state, filepath.Ext(state)) + ".events" }

// SocketEnvironment is the variable that tells a tenant's programs where the tenants' socket is.
const SocketEnvironment = "LGPU_SOCKET"

// Daemon is the daemon of one runtime folder. Its methods may be called by any number of goroutines.
type Daemon struct {
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

	lgpus      *lgpus
	inventory  *inventory
	presence   *presence
	police     *police
	stopper    *stopper
	places     *places
	resolver   *resolver
	observer   *observer
	energy     *energyBooks
	shares     *shares
	residence  *residence
	containers *containers
	bounds     *bounds
	// Releases has programs leave their devices. It never changes.
	Releases *Releases

	// pushing is locked while limits go from the tree to tenants and the policy, so that they arrive in the order of
	// the writes. It guards budgets.
	pushing sync.Mutex
	budgets []tenant.Budget // as tenants have them

	mu      sync.Mutex                       // guards the fields below
	paths   map[uint64]string                // of all groups and lgpus, those that were just removed included
	asked   map[uint64]limits.DirectoryState // what the tree was last asked for
	mounted string                           // where the tree is, or nothing

	notReady string // why programs are not served, or nothing
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
	Observe(pid int) (tenant.Evidence, error)
	OpenDoor(lgpu uint64) (folder string, err error)
	CloseDoor(lgpu uint64) error
}

// gates is what the daemon needs of a gate.Runner.
type gates interface {
	tenant.GateHandler
	Set(id uint64, p dispatch.Params) error
	Remove(id uint64)
	SetDevice(uuid gpu.UUID, spatial bool, o schedule.Options) error
	Shares() []dispatch.Share
	Stats() dispatch.Stats
	SetMemory(lgpu uint64, m schedule.Memory)
	Wish(lgpu uint64)
	Resting(lgpu uint64) bool
	Idle(lgpu uint64) (time.Duration, bool)
	Order(device gpu.UUID, dst []dispatch.Place) []dispatch.Place
	Used(device gpu.UUID, dst []dispatch.Used) []dispatch.Used
	Shared(device gpu.UUID) bool
	Metered(device gpu.UUID)
	Ran(device gpu.UUID, turns []gpu.Turn) dispatch.Verdict
	Utilised(device gpu.UUID, percent int)
	Close()
}

// parts are what tests replace.
type parts struct {
	tenants func(tenant.Config) (tenants, error)
	gates   func(dispatch.Config) (gates, error)
}

// Open takes the runtime folder, reads the state and finds the devices. An error wraps ErrRunning if another daemon has
// the folder, or store.ErrDamaged if the state was unreadable. The caller ends a Daemon that was opened by Close, also
// after Run.
func Open(c Config) (*Daemon, error) {
	return open(c, parts{
		tenants: func(c tenant.Config) (tenants, error) { // nil if there is an error, not an interface of nil
			s, err := tenant.Listen(c)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		gates: func(c dispatch.Config) (gates, error) {
			s, err := dispatch.New(c)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	})
}

func open(c Config, p parts) (n *Daemon, err error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	n = &Daemon{
		config: c, log: c.Log, started: time.Now(), paths: map[uint64]string{}, closeTime: closeTime,
		notReady: "it has just begun",
	}
	n.lgpus, n.inventory, n.presence = newLgpus(n), newInventory(n), newPresence(n)
	n.police, n.resolver, n.observer, n.energy = &police{daemon: n}, &resolver{n}, &observer{n}, &energyBooks{daemon: n}
	n.shares = &shares{daemon: n}
	n.residence, n.containers = newResidence(n), newContainers(n)
	n.bounds, n.Releases = &bounds{daemon: n}, newReleases(n)
	n.stopper, n.places = &stopper{daemon: n}, &places{daemon: n, Places: c.Places}
	n.journal.log = c.Log
	n.journal.source.limit, n.slices.limit = 1024, 4096
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
	if trouble := n.store.Trouble(); trouble != nil {
		n.log.Warn("nothing can be changed or started", "error", trouble)
	}
	n.journal.open(eventsOf(c.State))
	n.gates, err = p.gates(dispatch.Config{
		Options: schedule.Options{Slice: int64(c.Slice)}, Slice: n.observer.turn, Overran: n.observer.overran,
		Resliced: n.observer.resliced, Stayed: n.observer.stayed, Shared: n.inventory.share, Log: c.Log,
		Prepare: func(uint64, gpu.UUID) { n.residence.look() }, Rested: func(uint64) { n.residence.look() },
	})
	if err != nil {
		return n, err
	}
	if n.modes, err = mps.New(mps.Config{Dir: c.Dir, Log: c.Log, Event: n.inventory.modeEvent}); err != nil {
		return n, err
	}
	n.tenants, err = p.tenants(tenant.Config{
		Socket: filepath.Join(c.Dir, TenantSocket), Roster: filepath.Join(c.Dir, rosterFolder),
		Doors:    filepath.Join(c.Dir, doorsFolder),
		Resolver: n.resolver, Gate: n.gates, Observer: n.observer, Residence: n.residence, Log: c.Log,
		UserClients: c.Rights.Quota.Processes,
	})
	if err != nil {
		return n, err
	}
	if s, ok := n.tenants.(*tenant.Server); ok {
		n.Releases.programs = s.Parking
	}
	n.tree = limits.New(limits.Options{Usage: usage{n}, Commit: n.commit, Rights: c.Rights, Stop: n.stopper.stop,
		Names: limits.Names{User: users.Known, Group: users.KnownGroup},
		Used:  n.lgpus.hadPrograms, HostBudget: halfOfMemory()})
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
	c.Rights.Owner, c.Rights.Quota = uint32(os.Geteuid()), c.Rights.Quota.Complete()
	defaults(&c.PolicePeriod, time.Second)
	defaults(&c.StopGrace, 5*time.Second)
	defaults(&c.Reattach, 10*time.Second)
	defaults(&c.Patience, time.Minute)
	if c.Copies == "" {
		c.Copies = filepath.Join(filepath.Dir(c.State), copiesFolder)
	}
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
	case c.PolicePeriod < 0 || c.StopGrace < 0 || c.Reattach < 0 || c.Idle < 0 || c.Patience < 0:
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
func (n *Daemon) restore() error {
	state := n.store.State()
	n.restarts = state.Starts - 1
	saved := state.Tree
	if len(saved.Directories) == 0 {
		// IDs name lgpus for good, also to clients of a state that was lost: they never begin at the same number.
		saved = limits.State{Version: limits.StateVersion, LastID: uint64(n.started.Unix()) << 20}
	}
	for _, err := range n.tree.Load(saved) {
		n.log.Warn("a part of the saved tree was left out", "error", err)
	}
	for _, record := range state.Lgpus {
		if _, exists := n.tree.ByID(record.ID); !exists {
			if err := n.store.DeleteLgpu(record.ID); err != nil && !store.Full(err) {
				return err // where a disk is full, the next daemon does it
			}
			continue
		}
		n.lgpus.add(restored(record))
	}
	root, _ := n.tree.Directory(limits.Root)
	n.energy.ledger = joules.New(state.Energy, root.ID, func(id uint64) bool { _, there := n.tree.ByID(id); return there })
	n.energy.openHistory(energyOf(n.config.State))
	n.inventory.open(n.config.Inventories)
	n.lgpus.reachSims()
	if err := n.inventory.refresh(); err != nil {
		return err
	}
	n.asked = map[uint64]limits.DirectoryState{}
	for _, dir := range n.tree.State().Directories {
		n.asked[dir.ID] = dir
	}
	n.bounds.open()
	n.Releases.open()
	n.tree.Watch(n.apply)
	n.pushAll()
	n.lgpus.revive()
	n.containers.begin()
	n.bounds.sweep()
	return nil
}

// Run serves tenants and keeps watch until ctx ends, or until nobody has needed the daemon for Config.Idle; then it
// returns nil. Tenants go on: they keep their limits and look for the next daemon.
func (n *Daemon) Run(ctx context.Context) error {
	unmount, err := n.mount()
	if err != nil {
		return err
	}
	defer unmount()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n.journal.announce(n.restarts)
	n.setReady("")
	defer n.setReady("it is about to end")
	n.work.Add(6)
	go func() { defer n.work.Done(); n.Releases.restore(ctx) }()
	go func() { defer n.work.Done(); n.containers.keep(ctx) }()
	go func() { defer n.work.Done(); n.residence.keep(ctx) }()
	go func() { defer n.work.Done(); n.energy.keep(ctx) }()
	go func() { defer n.work.Done(); n.lgpus.janitor(ctx) }()
	go func() { defer n.work.Done(); n.inventory.rescan(ctx) }()
	n.inventory.watch(ctx)
	served := make(chan error, 1)
	go func() { served <- n.tenants.Run(ctx) }()
	var idle <-chan struct{}
	if n.config.Idle > 0 {
		idle = n.presence.awaitIdle(ctx, n.config.Idle)
	}
	select {
	case err = <-served:
		if err == nil && ctx.Err() == nil {
			err = errors.New("the tenants' socket was closed")
		}
		n.presence.leave()
		return err
	case <-ctx.Done():
	case <-idle:
	}
	n.presence.leave()
	cancel()
	return <-served
}

// setReady notes why programs are not served, or with nothing that they are.
func (n *Daemon) setReady(not string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notReady = not
}

// mount shows the tree, where that is wanted and possible.
func (n *Daemon) mount() (unmount func(), err error) {
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
		n.journal.emit(Event{Kind: MountFailed, Text: err.Error()})
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

// Use tells the daemon that somebody is using its API until release is called, which keeps it from leaving.
func (n *Daemon) Use() (release func()) { return n.presence.use() }

// closeTime is how long Close waits for what is under way. More is only a driver that hangs.
const closeTime = 10 * time.Second

// Close ends all subscriptions and gives the runtime folder free. Run has returned, or was never called. Tenants,
// software GPUs that they use and control daemons of MPS go on. A driver that hangs is left to itself.
func (n *Daemon) Close() error {
	n.presence.leave()
	n.cancel()
	var errs []error
	if n.tenants != nil {
		errs = append(errs, n.tenants.Close())
	}
	n.lgpus.close()
	n.Releases.close()
	hung := !doneIn(n.closeTime, n.work.Wait)
	if hung {
		n.log.Warn("a driver hangs: its devices are not closed")
	}
	n.slices.close()
	if n.gates != nil {
		n.gates.Close()
	}
	if n.modes != nil {
		errs = append(errs, n.modes.Leave())
	}
	if !hung {
		errs = append(errs, n.inventory.close())
	}
	// Last of what makes events. A disk that hangs keeps its events to itself.
	var unkept error
	if doneIn(n.closeTime, func() { unkept = n.journal.close() }) {
		errs = append(errs, unkept)
	} else {
		n.log.Warn("the disk hangs: the last events are lost")
	}
	if n.store != nil {
		errs = append(errs, n.energy.close())
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
func (n *Daemon) Dir() string { return n.config.Dir }

// Tree returns the tree of limits. What is written there is in effect when the write returns.
func (n *Daemon) Tree() *limits.Tree { return n.tree }

// Slices subscribes to the turns that lgpus have; the caller closes the subscription. The daemon keeps 4096 for a slow
// reader.
func (n *Daemon) Slices() SliceSubscription { return n.slices.subscribe() }

// Counters returns numbers that only rise while the daemon lives.
func (n *Daemon) Counters() Counters {
	return Counters{Events: n.journal.counted(), Gate: n.gates.Stats(), Turns: n.residence.turnCounts()}
}

// Counters are what metrics show beside a Snapshot.
type Counters struct {
	Events map[Kind]uint64 // how many of each kind
	Gate   dispatch.Stats
	Turns  Turns
}

// Turns are those of lgpus whose memory does not fit together.
type Turns struct {
	slot.Stats
	Length map[gpu.UUID]time.Duration // of a turn at present, by device
}

// pathOf is where a group or lgpu is, or was last.
func (n *Daemon) pathOf(id uint64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.paths[id]
}
