package daemon

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// lgpus owns the lgpus that have or had processes, or that are for a software GPU, and leads them through their lives
// (package lifecycle). Directories of the tree that never had any of this are not here.
type lgpus struct {
	daemon *Daemon

	// life is locked while an event of an lgpu is carried out, so that one is complete before the next begins. It
	// guards the fields of every lgpu that say so. No driver, hardware process or MPS daemon is waited for under it once
	// the daemon has started.
	life sync.Mutex

	// mu guards byID and the fields of every lgpu that say so. They are written with life held, too, so that reading
	// them takes either of the two locks. until, peaks and high may be written with mu alone.
	mu   sync.Mutex
	byID map[uint64]*lgpu

	noticesMu sync.Mutex
	notices   map[uint64]bool // guarded by noticesMu; lgpus that the janitor has to look at
	noticed   chan struct{}   // holds a token when there are notices
}

// lgpu is what the daemon knows of one lgpu.
type lgpu struct {
	record    store.Lgpu         // guarded by lgpus.mu; Active and Launchers are set on disk alone
	machine   lifecycle.Machine  // guarded by lgpus.mu
	launchers map[*launcher]bool // guarded by lgpus.mu
	until     time.Time          // guarded by lgpus.mu: when the machine's Expected ends
	leaving   bool               // guarded by lgpus.mu: it is being taken from tenants, unless it has clients

	saved    bool        // guarded by lgpus.life; there is a record of it on disk
	timer    *time.Timer // guarded by lgpus.life; runs until then
	sim      *simUse     // guarded by lgpus.life; nil on the machine's own devices
	releases claims      // guarded by lgpus.life; of its devices and their modes

	base  map[gpu.UUID]region.DeviceUse // guarded by lgpus.mu; of the times it was in use before
	peaks map[gpu.UUID]peak             // guarded by lgpus.mu; since a reset
	high  map[gpu.UUID]bool             // guarded by lgpus.mu; above memory.high when last looked at
}

// peak is how the most memory since a reset is found: what the counters said when it was reset, and the most that was
// seen since. Once the counters' own peak has risen, it is the answer.
type peak struct{ before, seen uint64 }

// launcher is a process that an lgpu is kept for.
type launcher struct {
	tenant.Process
	uid     uint32
	comm    string
	present bool // it has an Attachment; else it had one of the daemon before
	bound   bool // it is in a cgroup that is bound to a directory
}

func newLgpus(n *Daemon) *lgpus {
	return &lgpus{daemon: n, byID: map[uint64]*lgpu{}, notices: map[uint64]bool{}, noticed: make(chan struct{}, 1)}
}

func newLgpu(record store.Lgpu) *lgpu {
	l := &lgpu{record: record, launchers: map[*launcher]bool{}, base: map[gpu.UUID]region.DeviceUse{}}
	if len(record.Devices) > 0 {
		l.machine.State = lifecycle.Idle
	}
	return l
}

// declared is an lgpu that nobody has used.
func declared(id uint64) *lgpu { return newLgpu(store.Lgpu{ID: id, Created: time.Now()}) }

// nameOf is the last part of a path, as tenants see it.
func nameOf(p string) string { return path.Base(p) }

// restored is an lgpu that there is a record of on disk, as of the daemon before.
func restored(record store.Lgpu) *lgpu {
	l := newLgpu(record)
	l.saved = true
	return l
}

// add makes an lgpu known. Called with life held.
func (g *lgpus) add(l *lgpu) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.byID[l.record.ID] = l
}

// of returns the lgpu with an ID, or nil.
func (g *lgpus) of(id uint64) *lgpu {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byID[id]
}

// record returns what is kept of an lgpu, and whether it is known. Callers change nothing in it.
func (g *lgpus) record(id uint64) (store.Lgpu, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.byID[id]; l != nil {
		return l.record, true
	}
	return store.Lgpu{}, false
}

// ready reports whether programs can use an lgpu now: one that drains is not when the tenants' server has let it go.
func (g *lgpus) ready(id uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.byID[id]
	return l != nil && l.machine.State.Ready() && l.machine.Has&lifecycle.Tenants != 0 && !l.leaving
}

// inUse reports whether any lgpu is in use, or about to be.
func (g *lgpus) inUse() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.byID {
		if l.machine.State.InUse() {
			return true
		}
	}
	return false
}

// admitted returns the lgpus that the tenants' server knows.
func (g *lgpus) admitted() (ids []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, l := range g.byID {
		if l.machine.Has&lifecycle.Tenants != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// admits reports whether the tenants' server knows an lgpu.
func (g *lgpus) admits(id uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.byID[id]
	return l != nil && l.machine.Has&lifecycle.Tenants != 0
}

// tenant is an lgpu on devices as tenants know it.
func (g *lgpus) tenant(dir limits.Directory, devices []gpu.UUID) tenant.LGPU {
	return tenant.LGPU{ID: dir.ID, Name: nameOf(dir.Path), Parent: dir.Parent, Limits: g.daemon.limitsOf(dir, devices)}
}

// launchers returns the launchers of all lgpus.
func (g *lgpus) launchers() map[tenant.Process]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	launchers := map[tenant.Process]uint64{}
	for id, l := range g.byID {
		for of := range l.launchers {
			launchers[of.Process] = id
		}
	}
	return launchers
}

// launchersBy counts the launchers of a user.
func (g *lgpus) launchersBy(uid uint32) (count int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.byID {
		for of := range l.launchers {
			if of.uid == uid {
				count++
			}
		}
	}
	return count
}

// launchersOf returns the launchers of an lgpu as they are shown, by process.
func (g *lgpus) launchersOf(id uint64) (shown []Launcher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.byID[id]; l != nil {
		for of := range l.launchers {
			shown = append(shown, Launcher{PID: of.PID, UID: of.uid, Comm: of.comm})
		}
	}
	slices.SortFunc(shown, func(a, b Launcher) int { return a.PID - b.PID })
	return shown
}

// rises notes whether an lgpu is above its memory.high on a device, and reports whether it has come there now.
func (g *lgpus) rises(id uint64, uuid gpu.UUID, above bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.byID[id]
	if l == nil {
		return false
	}
	was := l.high[uuid]
	if l.high == nil {
		l.high = map[gpu.UUID]bool{}
	}
	l.high[uuid] = above
	return above && !was
}

// save writes down l's record. Called with life held.
func (g *lgpus) save(l *lgpu) error {
	l.saved = true
	return g.daemon.store.SaveLgpu(g.whole(l))
}

// whole is l's record as it is written down. Called with life held.
func (g *lgpus) whole(l *lgpu) store.Lgpu {
	g.mu.Lock()
	record := l.record
	record.Active = l.machine.State.InUse()
	record.Launchers = nil
	for of := range l.launchers {
		record.Launchers = append(record.Launchers, store.Launcher{PID: of.PID, Start: of.Start, Boot: g.daemon.boot,
			UID: of.uid})
	}
	g.mu.Unlock()
	slices.SortFunc(record.Launchers, func(a, b store.Launcher) int { return a.PID - b.PID })
	return record
}

// forget drops an lgpu, of which nothing is left but its directory at most. Called with life held.
func (g *lgpus) forget(l *lgpu) error {
	id := l.record.ID
	g.mu.Lock()
	_, known := g.byID[id]
	delete(g.byID, id)
	g.mu.Unlock()
	if !known {
		return nil
	}
	var err error
	if l.saved {
		err = g.daemon.store.DeleteLgpu(id)
	}
	if sim := l.sim; sim != nil {
		l.sim = nil
		// The hardware may take its time to answer; nobody waits for that.
		g.daemon.work.Add(1)
		go func() { defer g.daemon.work.Done(); sim.close() }()
	}
	g.daemon.journal.forget(id)
	return err
}

// addUse adds what an lgpu used while it was in use to its base. Called with lgpus.mu held.
func (l *lgpu) addUse(used region.State) {
	for i, uuid := range l.record.Devices {
		if i < len(used.Devices) {
			u, b := used.Devices[i], l.base[uuid]
			l.base[uuid] = region.DeviceUse{
				Busy: b.Busy + u.Busy, Launches: b.Launches + u.Launches, Peak: max(b.Peak, u.Peak),
				Evicted: b.Evicted + u.Evicted, Clean: b.Clean + u.Clean,
			}
		}
	}
}

// reachSims has the software GPUs that restored lgpus are on.
func (g *lgpus) reachSims() {
	for _, l := range g.byID {
		if l.record.Sim == "" {
			continue
		}
		sim, err := g.daemon.inventory.useSim(l.record.Sim)
		if err != nil {
			g.daemon.log.Warn("a software GPU cannot be reached", "shape", l.record.Sim, "error", err)
			continue
		}
		l.sim = sim
	}
}

// revive brings the lgpus back that were in use when the daemon before ended. They are kept for a while, so that
// clients can come back. Temporary directories that were made for a launcher but never became an lgpu go.
func (g *lgpus) revive() {
	g.life.Lock()
	defer g.life.Unlock()
	for _, id := range slices.Sorted(maps.Keys(g.byID)) {
		l := g.byID[id]
		for _, saved := range l.record.Launchers {
			p := tenant.Process{PID: saved.PID, Start: saved.Start}
			if saved.Boot != g.daemon.boot {
				continue
			}
			if h, err := proc.Open(p.PID, p.Start); err == nil {
				s, _ := proc.Live(p.PID)
				of := &launcher{Process: p, uid: saved.UID, comm: s.Comm}
				g.mu.Lock()
				l.launchers[of] = true
				g.mu.Unlock()
				g.awaitLauncher(l, of, h)
			}
		}
		c := &change{daemon: g.daemon, l: l, wait: g.daemon.config.Reattach}
		if !l.record.Active {
			// Nobody is expected, but its launchers may have ended while no daemon ran.
			if err := c.drive(lifecycle.Expired); err != nil {
				g.daemon.log.Warn("an lgpu stays without a launcher", "id", id, "error", err)
			}
			continue
		}
		g.readyModes(l)
		if err := c.drive(lifecycle.Revived); err != nil {
			g.daemon.log.Error("an lgpu that was in use cannot be brought back", "id", id, "error", err)
		}
	}
	for _, dir := range g.daemon.tree.Directories() {
		if dir.Temporary && g.byID[dir.ID] == nil {
			if err := g.daemon.tree.Rmdir(dir.Path); err != nil {
				g.daemon.log.Warn("a temporary lgpu stays", "path", dir.Path, "error", err)
			}
		}
	}
}

// readyModes brings the devices of a saved lgpu into the mode that it had them in.
func (g *lgpus) readyModes(l *lgpu) {
	for _, uuid := range l.record.Devices {
		if l.record.Spatial && g.daemon.modes.Mode(uuid) != mps.Spatial {
			if err := g.daemon.inventory.setMode(g.daemon.ctx, uuid, mps.Spatial); err != nil {
				g.daemon.log.Warn("a device stays in temporal mode", "device", uuid, "error", err)
			}
		}
	}
}

// awaitLauncher detaches a launcher when its process has ended. It takes over h.
func (g *lgpus) awaitLauncher(l *lgpu, of *launcher, h *proc.Handle) {
	id := l.record.ID
	g.daemon.work.Add(1)
	go func() {
		defer g.daemon.work.Done()
		defer h.Close()
		if h.Wait(g.daemon.ctx) == nil {
			if err := g.detach(l, of); err != nil {
				g.daemon.log.Warn("an lgpu stays without its launcher", "id", id, "error", err)
			}
		}
	}()
}

// detach takes a launcher from its lgpu, which ends if nobody else uses it. A daemon that is about to end leaves that
// to the next: streams of the API end before launchers do.
func (g *lgpus) detach(l *lgpu, of *launcher) error {
	g.life.Lock()
	defer g.life.Unlock()
	if g.daemon.presence.left() != nil {
		return nil
	}
	g.mu.Lock()
	attached := l.launchers[of]
	g.mu.Unlock()
	if !attached {
		return nil
	}
	c := &change{daemon: g.daemon, l: l, launcher: of}
	return c.drive(lifecycle.LauncherLeft)
}

// unexpect ends the wait for somebody, who has been there.
func (g *lgpus) unexpect(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.byID[id]; l != nil {
		l.until = time.Time{}
	}
}

// notice has the janitor look at lgpus: a client has left, a time is over, or a directory was removed.
func (g *lgpus) notice(ids ...uint64) {
	g.noticesMu.Lock()
	for _, id := range ids {
		g.notices[id] = true
	}
	g.noticesMu.Unlock()
	select {
	case g.noticed <- struct{}{}:
	default:
	}
}

// janitor tells lgpus what was noticed of them.
func (g *lgpus) janitor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.noticed:
		}
		g.noticesMu.Lock()
		ids := slices.Sorted(maps.Keys(g.notices))
		clear(g.notices)
		g.noticesMu.Unlock()
		for _, id := range ids {
			if err := g.look(id); err != nil {
				g.daemon.log.Warn("an lgpu stays though nobody uses it", "id", id, "error", err)
			}
		}
	}
}

// look tells an lgpu what has become of it.
func (g *lgpus) look(id uint64) error {
	g.life.Lock()
	defer g.life.Unlock()
	l := g.of(id)
	if l == nil {
		return nil
	}
	_, exists := g.daemon.tree.ByID(id)
	g.mu.Lock()
	expired := l.machine.Expected && !time.Now().Before(l.until)
	inUse := l.machine.State.InUse()
	g.mu.Unlock()
	event := lifecycle.ClientLeft
	switch {
	case !exists && !inUse:
		event = lifecycle.DirectoryRemoved
	case expired:
		event = lifecycle.Expired
	}
	c := &change{daemon: g.daemon, l: l}
	return c.drive(event)
}

// close stops the timers.
func (g *lgpus) close() {
	g.life.Lock()
	defer g.life.Unlock()
	for _, l := range g.byID {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
}
