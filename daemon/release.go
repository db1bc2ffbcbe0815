package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/checkpoint/driver"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/wholefile"
	"github.com/lgpu/lgpu/policy/checkpoint"
	"github.com/lgpu/lgpu/policy/limits"
	policy "github.com/lgpu/lgpu/policy/residence"
)

// releasedFile is where in its folder a daemon notes which programs have left their devices, for the one after it.
const releasedFile = "released.json"

// Times of the stages of a release: of those that move memory, and of each other one.
const (
	savedTime = 10 * time.Minute
	stageTime = 30 * time.Second
)

// errStuck: what failed could not be undone.
var errStuck = errors.New("these processes could not be brought back")

// Phase is a part of a release, or of the way back.
type Phase struct {
	Stage string // "gated", "evicted", "parked" or "saved"
	Took  time.Duration
}

// Release is how far the programs of an lgpu have come on their way off their devices, or back.
type Release struct {
	Path      string
	Back      bool
	Processes int
	Stage     string  // that is under way; empty at the end
	Phases    []Phase // that are over, in their order
	Total     time.Duration
}

// Releases are the lgpus whose programs have left their devices wholly: all that the driver knows of them is in their own
// memory.
type Releases struct {
	daemon   *Daemon
	programs *tenant.Parking
	helpers  sync.Map // from the socket of a software GPU, or "", to *driver.Helper
	count    atomic.Int32

	mu  sync.Mutex
	all map[uint64]*released
}

// released is one of them.
type released struct {
	ID        uint64            `json:"lgpu"`
	Sim       string            `json:"sim,omitempty"` // socket of the software GPU that it is on
	Processes []releasedProcess `json:"processes"`
	Moving    bool              `json:"moving"` // on the way, one or the other
	// Held are all processes of the program while it is written to an image: it may be stopped, and comes back after that.
	Held   []releasedProcess `json:"held,omitempty"`
	Ending bool              `json:"ending,omitempty"` // they are killed, since the image has them
	Pairs  []driver.Pair     `json:"pairs,omitempty"`  // of devices, of one that comes from an image
	// On are the devices that each process has left, by its number. Where the lgpu has others since, it comes back to these.
	On   map[int][]gpu.UUID `json:"on,omitempty"`
	busy bool               // this daemon moves it, or has it held
}

// releasedProcess is a process of one.
type releasedProcess struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (p releasedProcess) process() tenant.Process { return tenant.Process{PID: p.PID, Start: p.Start} }

func newReleases(n *Daemon) *Releases { return &Releases{daemon: n, all: map[uint64]*released{}} }

// open reads what the daemon before has noted. It is called before tenants are served.
func (r *Releases) open() {
	text, err := os.ReadFile(filepath.Join(r.daemon.config.Dir, releasedFile))
	var all []*released
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.daemon.log.Warn("which programs have left their devices cannot be read", "error", err)
		}
		return
	}
	for _, l := range all {
		r.all[l.ID] = l
		for _, p := range l.Processes {
			r.programs.Keep(p.process(), true)
		}
		if dir, _ := r.daemon.tree.ByID(l.ID); dir.Overcommit {
			r.daemon.residence.images.evict(l.ID, true)
		}
	}
	r.count.Store(int32(len(r.all)))
}

// restore brings back what was on the way when the daemon before ended.
func (r *Releases) restore(ctx context.Context) {
	r.mu.Lock()
	var unfinished []uint64
	var ending []*released
	for id, l := range r.all {
		switch {
		case l.Ending:
			ending = append(ending, l)
		case l.Moving || len(l.Held) > 0:
			unfinished = append(unfinished, id)
		}
	}
	r.mu.Unlock()
	for _, l := range ending {
		if err := r.end(l); err != nil {
			r.daemon.log.Warn("programs that an image has are not gone", "error", err)
		}
	}
	for _, id := range unfinished {
		dir, _ := r.daemon.tree.ByID(id)
		if err := r.back(ctx, id, dir.Path, func(Release) {}); err != nil {
			r.daemon.log.Warn("programs that were leaving their devices are not back", "lgpu", dir.Path, "error", err)
		}
	}
}

// save notes all for the daemon after this one. Called with mu held.
func (r *Releases) save() error {
	r.count.Store(int32(len(r.all)))
	all := make([]*released, 0, len(r.all))
	for _, l := range r.all {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *released) int { return cmp.Compare(a.ID, b.ID) })
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return wholefile.Write(filepath.Join(r.daemon.config.Dir, releasedFile), bytes.NewReader(append(text, '\n')), 0o600)
}

// is reports whether the programs of an lgpu have left their devices.
func (r *Releases) is(id uint64) bool {
	if r.count.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.all[id]
	return l != nil && !l.Moving
}

// left drops a process that has ended.
func (r *Releases) left(id uint64, p tenant.Process) {
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.all[id]
	if l == nil || l.Moving {
		return
	}
	l.Processes = slices.DeleteFunc(l.Processes, func(o releasedProcess) bool { return o.process() == p && !alive(o) })
	if len(l.Processes) == 0 {
		delete(r.all, id)
		r.daemon.residence.images.evict(id, false)
	}
	if err := r.save(); err != nil {
		r.daemon.log.Warn("which programs have left their devices cannot be noted", "error", err)
	}
}

// close ends the helpers.
func (r *Releases) close() {
	r.helpers.Range(func(_, h any) bool {
		h.(*driver.Helper).Close()
		return true
	})
}

// helper is the helper for the devices of a software GPU, or with "" for the machine's.
func (r *Releases) helper(sim string) *driver.Helper {
	command := r.daemon.config.CheckpointHelper
	h, _ := r.helpers.LoadOrStore(sim, &driver.Helper{Command: func() (*exec.Cmd, error) {
		if command == nil {
			return nil, errors.New("this daemon has none")
		}
		return command(sim)
	}})
	return h.(*driver.Helper)
}

// Move has all programs of an lgpu leave its devices wholly, or with back come back, all or none, and calls show as they
// get on. by is who asks; it is allowed to who may write memory.suspend.
func (r *Releases) Move(ctx context.Context, by limits.Author, path string, back bool, show func(Release)) error {
	if err := r.daemon.tree.May(by, limits.Access{Action: limits.ActionWrite, Path: path, File: "memory.suspend"}); err != nil {
		return err
	}
	dir, err := r.daemon.tree.Directory(path)
	if err != nil {
		return err
	}
	if back {
		return r.back(ctx, dir.ID, path, show)
	}
	return r.release(ctx, dir, show)
}

func releaseError(class error, path, remedy string, cause error) error {
	return &Error{Class: class, Field: "path", Value: path, Reason: cause.Error(), Remedy: remedy, Cause: cause}
}

func onTheWay(path string) error {
	return releaseError(ErrBusy, path, "wait until that has ended", errors.New("its programs are on the way"))
}

// take has an lgpu whose programs have left their devices be this call's alone, until ended, and notes what change does to it.
func (r *Releases) take(id uint64, path string, change func(*released)) (*released, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.all[id]
	if l == nil || l.busy {
		return nil, onTheWay(path)
	}
	l.busy = true
	change(l)
	return l, r.save()
}

// back brings them back.
func (r *Releases) back(ctx context.Context, id uint64, path string, show func(Release)) error {
	r.mu.Lock()
	known := r.all[id] != nil
	r.mu.Unlock()
	if !known {
		show(Release{Path: path, Back: true})
		return nil
	}
	var held []releasedProcess
	l, err := r.take(id, path, func(l *released) { held, l.Moving = l.Held, true })
	if l == nil {
		return err
	}
	r.unstop(ctx, id, held)
	if err == nil {
		err = r.comeBack(ctx, l, path, show)
	}
	r.ended(l, err != nil)
	if err != nil {
		return releaseError(ErrBusy, path, "its programs stay released; lgpu resume tries again", err)
	}
	return nil
}

// comeBack brings the programs of an lgpu back that is taken.
func (r *Releases) comeBack(ctx context.Context, l *released, path string, show func(Release)) error {
	r.mu.Lock()
	l.Processes = slices.DeleteFunc(l.Processes, func(p releasedProcess) bool { return !alive(p) })
	r.mu.Unlock()
	if err := r.move(l, path, true, show).run(ctx); err != nil {
		return err
	}
	r.daemon.journal.emit(Event{Kind: LgpuReturned, Path: path, ID: l.ID, Text: path + " was resumed: its programs are on its devices again"})
	return nil
}

// ended notes where an lgpu is after a move.
func (r *Releases) ended(l *released, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.daemon.ctx.Err() != nil {
		return // the next daemon ends it
	}
	l.Moving, l.busy, l.Held = false, false, nil
	if !is {
		delete(r.all, l.ID)
		r.daemon.residence.images.evict(l.ID, false)
	}
	if err := r.save(); err != nil {
		r.daemon.log.Warn("which programs have left their devices cannot be noted", "error", err)
	}
}

// alive reports whether a process is the one that was released.
func alive(p releasedProcess) bool {
	now, err := tenant.Observe(p.PID, func(tenant.Process) uint64 { return 0 })
	return err == nil && now.Start == p.Start
}

// ends says whether a process of which the driver has returned an error has ended. What does not use the driver, and has just
// done so, is about to: the driver forgets it before the kernel does.
func ends(ctx context.Context, p releasedProcess, err error) bool {
	for until := time.Now().Add(endTime); alive(p); {
		if !errors.Is(err, driver.NotInitialized) || time.Now().After(until) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(stateLook):
		}
	}
	return true
}

// find gathers the programs of an lgpu and what host memory they take, beside that of copies.
func (r *Releases) find(dir limits.Directory) (*released, []checkpoint.Room, error) {
	n := r.daemon
	record, known := n.lgpus.record(dir.ID)
	if !known || devicesOf(dir, record) == nil {
		return nil, nil, errors.New("it is no lgpu with programs")
	}
	l := &released{ID: dir.ID, Moving: true, On: map[int][]gpu.UUID{}, busy: true}
	for _, c := range n.tenants.Clients() {
		if c.LGPU != dir.ID {
			continue
		}
		if !c.Linked {
			return nil, nil, fmt.Errorf("process %d (%s) has no connection to the daemon now", c.Peer.PID, c.Peer.Comm)
		}
		l.Processes = append(l.Processes, releasedProcess{PID: c.Peer.PID, Start: c.Peer.Start})
		l.On[c.Peer.PID] = record.Devices
	}
	if len(l.Processes) == 0 {
		return nil, nil, errors.New("no program of it uses its devices")
	}
	l.Sim = r.simOf(record)
	used, err := n.tenants.Usage(dir.ID)
	if err != nil {
		return nil, nil, err
	}
	room := checkpoint.Room{Of: "host memory", Free: available()}
	for i, uuid := range record.Devices {
		if i < len(used.Devices) {
			room.Needed += used.Devices[i].Used - min(r.copied(dir.ID, uuid), used.Devices[i].Used)
		}
	}
	return l, []checkpoint.Room{room}, nil
}

// copied is how much of an lgpu's memory on a device is in files, or goes into such as are made already, bytes. It takes no host
// memory more.
func (r *Releases) copied(id uint64, uuid gpu.UUID) (sum uint64) {
	from := r.daemon.residence
	from.mu.Lock()
	defer from.mu.Unlock()
	moves := map[policy.Client]uint64{}
	for _, s := range from.policy.Seats(id) {
		if s.Device == uuid {
			moves[s.Client] = s.Wanted
		}
	}
	for _, of := range from.holders {
		for i := range of.devices {
			if d := &of.devices[i]; of.id.LGPU == id && d.uuid == uuid {
				sum += min(d.size(), moves[of.id])
			}
		}
	}
	return sum
}

// simOf is the socket of the software GPU that an lgpu is on, empty on the machine's own devices.
func (r *Releases) simOf(record store.Lgpu) string {
	for _, d := range r.daemon.inventory.present() {
		if socket := d.origin.socket.Load(); slices.Contains(record.Devices, d.UUID) && socket != nil {
			return *socket
		}
	}
	return ""
}

// hindrances are what the driver is known not to save.
func (r *Releases) hindrances(dir limits.Directory, l *released) (found []checkpoint.Found) {
	n := r.daemon
	record, _ := n.lgpus.record(dir.ID)
	for _, d := range n.inventory.present() {
		if !slices.Contains(record.Devices, d.UUID) {
			continue
		}
		if d.MIG() {
			found = append(found, checkpoint.Found{Process: l.Processes[0].PID, Hindrance: checkpoint.MIG, Name: d.Short()})
		}
		if n.modes.Settled(d.UUID, modeOf(true)) {
			found = append(found, checkpoint.Found{Process: l.Processes[0].PID, Hindrance: checkpoint.MPS, Name: d.Short()})
		}
	}
	return found
}

// releaseMove carries out what policy/checkpoint orders.
type releaseMove struct {
	releases *Releases
	lgpu     *released
	helper   *driver.Helper
	machine  *checkpoint.Machine
	show     func(Release)
	shown    Release
	begun    time.Time // of the stage that is under way
	results  chan stepResult
	stops    map[int]context.CancelFunc
}

type stepResult struct {
	pid int
	err error
}

func (r *Releases) move(l *released, path string, back bool, show func(Release)) *releaseMove {
	m := &releaseMove{releases: r, lgpu: l, helper: r.helper(l.Sim), show: show, results: make(chan stepResult, len(l.Processes)),
		stops: map[int]context.CancelFunc{}, shown: Release{Path: path, Back: back, Processes: len(l.Processes)}}
	var pids []int
	for _, p := range l.Processes {
		pids = append(pids, p.PID)
	}
	var o checkpoint.Options
	o.Deadline[checkpoint.Evicted], o.Deadline[checkpoint.Saved] = savedTime, savedTime
	for _, s := range []checkpoint.Stage{checkpoint.Gated, checkpoint.Parked} {
		o.Deadline[s] = stageTime
	}
	from, to := checkpoint.Running, checkpoint.Saved
	if back {
		from, to = to, from
	}
	m.machine = checkpoint.New(pids, from, to, o)
	return m
}

// run moves all, and returns why they were turned back. Where ctx ends, they are.
func (m *releaseMove) run(ctx context.Context) error {
	begun := time.Now()
	m.begun = begun
	orders := m.machine.Start(begun)
	canceled := ctx.Done()
	for {
		m.begin(orders)
		if o, ok := m.machine.Outcome(); ok && len(m.stops) == 0 {
			m.phase("")
			m.shown.Total = time.Since(begun)
			if o.Err == nil {
				m.show(m.shown)
			}
			if len(o.Stuck) > 0 {
				return fmt.Errorf("%w, and %w: %v; lgpu resume tries again", o.Err, errStuck, o.Stuck)
			}
			return o.Err
		}
		var late <-chan time.Time
		if at, ok := m.machine.Deadline(); ok {
			late = time.After(time.Until(at))
		}
		select {
		case s := <-m.results:
			m.stops[s.pid]()
			delete(m.stops, s.pid)
			switch {
			case errors.Is(s.err, tenant.ErrEnded):
				orders = m.machine.Ended(s.pid, time.Now())
			case s.err != nil:
				orders = m.machine.Failed(s.pid, s.err, time.Now())
			default:
				orders = m.machine.Done(s.pid, time.Now())
			}
		case <-late:
			orders = m.machine.Expire(time.Now())
		case <-canceled:
			canceled = nil
			orders = m.machine.Cancel(time.Now())
		}
	}
}

// begin begins steps, and has those end that are to be broken off.
func (m *releaseMove) begin(orders []checkpoint.Order) {
	for _, o := range orders {
		if o.Stop {
			if stop := m.stops[o.Process]; stop != nil {
				stop()
			}
			continue
		}
		m.phase(max(o.From, o.To).String())
		at := slices.IndexFunc(m.lgpu.Processes, func(p releasedProcess) bool { return p.PID == o.Process })
		p := m.lgpu.Processes[at]
		ctx, stop := context.WithTimeout(m.releases.daemon.ctx, savedTime)
		m.stops[o.Process] = stop
		go func() { m.results <- stepResult{o.Process, m.step(ctx, p, o.From, o.To)} }()
	}
}

// phase notes that a stage is over, and which one has begun.
func (m *releaseMove) phase(stage string) {
	if stage == m.shown.Stage {
		return
	}
	now := time.Now()
	if m.shown.Stage != "" {
		m.shown.Phases = append(m.shown.Phases, Phase{Stage: m.shown.Stage, Took: now.Sub(m.begun)})
	}
	m.shown.Stage, m.begun = stage, now
	if stage != "" {
		shown := m.shown
		shown.Phases = slices.Clone(m.shown.Phases)
		m.show(shown)
	}
}

// step takes a process from a stage to the next, or the one before.
func (m *releaseMove) step(ctx context.Context, p releasedProcess, from, to checkpoint.Stage) error {
	programs := m.releases.programs
	bounded, cancel := context.WithTimeout(ctx, stageTime)
	defer cancel()
	switch {
	case to == checkpoint.Gated && from < to:
		return programs.Halt(bounded, p.process())
	case to == checkpoint.Evicted && from < to:
		return m.evicted(ctx)
	case to == checkpoint.Gated:
		m.releases.daemon.residence.images.evict(m.lgpu.ID, false)
	case to == checkpoint.Parked && from < to:
		return programs.Park(bounded, p.process())
	case to == checkpoint.Saved:
		return m.saved(ctx, p)
	case to == checkpoint.Parked && from > to:
		return m.restored(ctx, p)
	case to == checkpoint.Evicted && from > to:
		return programs.Rejoin(bounded, p.process())
	case to == checkpoint.Running:
		return programs.Proceed(bounded, p.process())
	}
	return nil
}

// evicted has what can leave the devices by lgpu's own means leave them.
func (m *releaseMove) evicted(ctx context.Context) error {
	n := m.releases.daemon
	if dir, _ := n.tree.ByID(m.lgpu.ID); !dir.Overcommit {
		return nil
	}
	record, _ := n.lgpus.record(m.lgpu.ID)
	n.residence.images.evict(m.lgpu.ID, true)
	err := n.residence.images.await(ctx, m.lgpu.ID, record.Devices)
	if err != nil {
		n.residence.images.evict(m.lgpu.ID, false)
	}
	return err
}

// saved has the driver write all that it knows of a process into the process. What fails leaves it as it was.
func (m *releaseMove) saved(ctx context.Context, p releasedProcess) error {
	err := again(ctx, func() error {
		condition, err := m.helper.Do(ctx, driver.State, p.PID, 0)
		if bare := errors.Is(err, driver.NotInitialized) || errors.Is(err, driver.InvalidValue) && alive(p); bare {
			return nil // it only looks at devices
		}
		if err == nil && condition == driver.Running {
			_, err = m.helper.Do(ctx, driver.Lock, p.PID, uint32(stageTime.Milliseconds()))
		}
		if err == nil && condition != driver.Checkpointed {
			if err = m.releases.leaves(m.lgpu, p); err == nil {
				_, err = m.helper.Do(ctx, driver.Checkpoint, p.PID, 0)
			}
		}
		return err
	})
	if err == nil {
		return nil
	}
	if ends(ctx, p, err) {
		return tenant.ErrEnded
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stageTime)
	defer cancel()
	return errors.Join(err, m.restored(undo, p))
}

// stateLook is the time between two looks whether a process has come out of a state, or has ended, endTime how long a process
// that was killed takes to end.
const (
	stateLook = 10 * time.Millisecond
	endTime   = 2 * time.Second
)

// helpers is how many helpers are tried that end in the middle of a call.
const helpers = 3

// again makes calls about a process, which look first what state it is in, until it is in one for them: the helper of a daemon
// that has died may have one under way still, and a lock whose caller died is given up by itself. If the helper itself ends,
// another one makes them.
func again(ctx context.Context, calls func() error) error {
	ended := 0
	for until := time.Now().Add(stageTime); ; {
		err := calls()
		if errors.Is(err, driver.ErrHelper) {
			ended++
		}
		lost := errors.Is(err, driver.ErrHelper) && ended < helpers
		if !lost && !errors.Is(err, driver.IllegalState) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(stateLook):
		}
	}
}

// leaves notes which devices a process is about to leave.
func (r *Releases) leaves(l *released, p releasedProcess) error {
	record, _ := r.daemon.lgpus.record(l.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.On == nil {
		l.On = map[int][]gpu.UUID{}
	}
	if slices.Equal(l.On[p.PID], record.Devices) {
		return nil
	}
	l.On[p.PID] = record.Devices
	return r.save()
}

// restored has the driver take a process back, wherever it is on the way.
func (m *releaseMove) restored(ctx context.Context, p releasedProcess) error {
	err := again(ctx, func() error {
		condition, err := m.helper.Do(ctx, driver.State, p.PID, 0)
		if bare := errors.Is(err, driver.NotInitialized) || errors.Is(err, driver.InvalidValue) && alive(p); bare {
			return nil // it only looks at devices
		}
		if err == nil && condition == driver.Checkpointed {
			err = m.broughtBack(ctx, p)
			condition = driver.Locked
		}
		if err == nil && condition == driver.Locked {
			_, err = m.helper.Do(ctx, driver.Unlock, p.PID, 0)
		}
		return err
	})
	if err == nil {
		return nil
	}
	if ends(ctx, p, err) {
		return tenant.ErrEnded
	}
	return err
}
