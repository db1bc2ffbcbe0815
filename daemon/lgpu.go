package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// lgpu is what the daemon knows of a node that has or had processes, or that is for a software GPU.
type lgpu struct {
	record    store.Lgpu         // guarded by Node.mu; written with life held
	launchers map[*launcher]bool // guarded by Node.mu; written with life held
	attached  bool               // with life held: it has an attachSim
	releases  []func()           // with life held: of the modes of its devices
	keepUntil time.Time          // guarded by Node.mu: not out of use before, since somebody is expected

	base  map[gpu.UUID]region.DeviceUse // guarded by Node.mu; of the times it was in use before
	peaks map[gpu.UUID]peak             // guarded by Node.mu; since a reset
	high  map[gpu.UUID]bool             // guarded by Node.mu; above memory.high when last looked at
}

// peak is how the most memory since a reset is found: what the counters said when it was reset, and the most that was
// seen since. Once the counters' own peak has risen, it is the answer.
type peak struct{ before, seen uint64 }

// launcher is a process that holds an lgpu.
type launcher struct {
	tenant.Process
	uid     uint32
	comm    string
	present bool // it has a Hold; else it had one with the daemon before
}

func newLgpu(id uint64) *lgpu {
	return &lgpu{
		record: store.Lgpu{ID: id,
			Created: time.Now()}, launchers: map[*launcher]bool{}, base: map[gpu.UUID]region.DeviceUse{},
	}
}

// saveLocked writes down l's record. life is held.
func (n *Node) save(l *lgpu) error {
	n.mu.Lock()
	record := l.record
	record.Launchers = nil
	for held := range l.launchers {
		record.Launchers = append(record.Launchers, store.Launcher{PID: held.PID, Start: held.Start, Boot: n.boot,
			UID: held.uid})
	}
	n.mu.Unlock()
	slices.SortFunc(record.Launchers, func(a, b store.Launcher) int { return a.PID - b.PID })
	return n.store.SaveLgpu(record)
}

// lgpuOf returns the lgpu with an ID, or nil.
func (n *Node) lgpuOf(id uint64) *lgpu {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lgpus[id]
}

// activate makes an lgpu known to tenants. life is held, and the node has been entered. Its record has its devices.
func (n *Node) activate(l *lgpu) error {
	n.mu.Lock()
	l.record.Active = true
	n.lgpus[l.record.ID] = l
	n.mu.Unlock()
	n.pushing.Lock()
	defer n.pushing.Unlock()
	// What the tree says is read under the lock that its changes come through, so that none is missed.
	node, ok := n.tree.ByID(l.record.ID)
	if !ok {
		return ErrNotFound
	}
	n.pushNode(node)
	if err := n.pushBudgets(); err != nil {
		return err
	}
	return n.tenants.AddLGPU(tenant.LGPU{ID: node.ID, Name: nameOf(node.Path), Parent: node.Parent,
		Limits: n.limitsOf(node, l)})
}

// nameOf is the last part of a path, as tenants see it.
func nameOf(p string) string { return path.Base(p) }

// retire ends an lgpu that nobody uses any more: a temporary one is removed. life is held. It reports whether the lgpu
// is out of use; one with clients is not.
func (n *Node) retire(l *lgpu) (bool, error) {
	id := l.record.ID
	n.mu.Lock()
	busy := len(l.launchers) > 0 || time.Now().Before(l.keepUntil)
	active := l.record.Active
	n.mu.Unlock()
	if busy {
		return false, nil
	}
	if active {
		used, err := n.tenants.Usage(id)
		if err := n.tenants.RemoveLGPU(id); errors.Is(err, tenant.ErrInUse) {
			return false, nil
		} else if err != nil && !errors.Is(err, tenant.ErrUnknown) {
			return false, err
		}
		n.mu.Lock()
		l.record.Active = false
		if err == nil {
			l.addUse(used)
		}
		n.mu.Unlock()
		n.pushing.Lock()
		err = n.pushBudgets()
		n.pushing.Unlock()
		if err != nil {
			n.log.Error("budgets of groups are not what they should be", "error", err)
		}
		for _, release := range l.releases {
			release()
		}
		l.releases = nil
	}
	node, exists := n.tree.ByID(id)
	if active && exists {
		n.tree.Leave(node.Path)
	}
	defer n.used()
	if !exists || node.Temporary {
		return true, n.forget(l, node.Path)
	}
	return true, n.save(l)
}

// forget removes a temporary lgpu. life is held.
func (n *Node) forget(l *lgpu, at string) error {
	if at != "" {
		if err := n.tree.Rmdir(at); err != nil {
			return fmt.Errorf("remove lgpu %s: %w", at, err)
		}
	}
	return n.drop(l)
}

// drop forgets the record of an lgpu whose node is gone. life is held.
func (n *Node) drop(l *lgpu) error {
	n.mu.Lock()
	_, known := n.lgpus[l.record.ID]
	delete(n.lgpus, l.record.ID)
	n.mu.Unlock()
	if !known {
		return nil
	}
	err := n.store.DeleteLgpu(l.record.ID)
	if l.attached {
		l.attached = false
		// The hardware may take its time to answer; nobody waits for that.
		n.work.Add(1)
		go func() { defer n.work.Done(); n.detachSim(l.record.Sim) }()
	}
	n.journal.forget(l.record.ID)
	return err
}

// addUse adds what an lgpu used while it was active to its base. Node.mu is held.
func (l *lgpu) addUse(used region.State) {
	for i, uuid := range l.record.Devices {
		if i < len(used.Devices) {
			u, b := used.Devices[i], l.base[uuid]
			l.base[uuid] = region.DeviceUse{Busy: b.Busy + u.Busy, Launches: b.Launches + u.Launches, Peak: max(b.Peak,
				u.Peak)}
		}
	}
}

// revive brings the lgpus back that were in use when the daemon before ended, and removes temporary ones that nobody
// uses any more once clients had time to come back.
func (n *Node) revive() error {
	n.life.Lock()
	defer n.life.Unlock()
	until := time.Now().Add(n.config.Reattach)
	waiting := false
	for _, id := range slices.Sorted(maps.Keys(n.lgpus)) {
		l := n.lgpus[id]
		for _, saved := range l.record.Launchers {
			p := tenant.Process{PID: saved.PID, Start: saved.Start}
			if saved.Boot != n.boot {
				continue
			}
			if h, err := proc.Open(p.PID, p.Start); err == nil {
				s, _ := proc.Live(p.PID)
				held := &launcher{Process: p, uid: saved.UID, comm: s.Comm}
				l.launchers[held] = true
				n.awaitLauncher(l, held, h)
			}
		}
		if !l.record.Active {
			continue
		}
		waiting = true
		if err := n.reactivate(l); err != nil {
			n.log.Error("an lgpu that was in use cannot be brought back", "id", id, "error", err)
			continue
		}
		n.mu.Lock()
		l.keepUntil = until
		n.mu.Unlock()
	}
	for _, node := range n.tree.Nodes() {
		if node.Temporary && n.lgpus[node.ID] == nil { // it was never given to its launcher
			if err := n.tree.Rmdir(node.Path); err != nil {
				n.log.Warn("a temporary lgpu stays", "path", node.Path, "error", err)
			}
		}
	}
	if waiting {
		n.work.Add(1)
		go func() {
			defer n.work.Done()
			select {
			case <-time.After(time.Until(until)):
				n.mu.Lock()
				ids := slices.Collect(maps.Keys(n.lgpus))
				n.mu.Unlock()
				n.kick(ids...)
			case <-n.ctx.Done():
			}
		}()
	}
	return nil
}

// reactivate makes a saved lgpu known to tenants again. life is held.
func (n *Node) reactivate(l *lgpu) error {
	node, ok := n.tree.ByID(l.record.ID)
	if !ok {
		return ErrNotFound
	}
	for _, uuid := range l.record.Devices {
		if l.record.Spatial && n.modes.Mode(uuid) != mps.Spatial {
			if err := n.setMode(n.ctx, uuid, mps.Spatial); err != nil {
				n.log.Warn("a device stays in temporal mode", "device", uuid, "error", err)
			}
		}
		release, err := n.modes.Use(uuid)
		if err != nil {
			return err
		}
		l.releases = append(l.releases, release)
	}
	if err := n.tree.Enter(node.Path); err != nil {
		return err
	}
	return n.activate(l)
}

// setMode brings a device into a mode and tells the tree and the policy.
func (n *Node) setMode(ctx context.Context, uuid gpu.UUID, mode mps.Mode) error {
	d := n.deviceOf(uuid)
	if d == nil {
		return fmt.Errorf("device %s: %w", uuid, ErrNoDevice)
	}
	if err := n.modes.SetMode(ctx, mps.Device{UUID: uuid, Software: d.origin.shape != ""}, mode); err != nil {
		return err
	}
	return n.publishDevices()
}

// awaitLauncher ends a launcher's hold when its process has ended. It takes over h.
func (n *Node) awaitLauncher(l *lgpu, held *launcher, h *proc.Handle) {
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		defer h.Close()
		if h.Wait(n.ctx) == nil {
			if err := n.release(l, held); err != nil {
				n.log.Warn("an lgpu stays without its launcher", "id", l.record.ID, "error", err)
			}
		}
	}()
}

// release ends a launcher's hold, and the lgpu if nobody else uses it. A daemon that is about to end leaves that to the
// next: streams of the API end before launchers do.
func (n *Node) release(l *lgpu, held *launcher) error {
	n.life.Lock()
	defer n.life.Unlock()
	if n.left() != nil {
		return nil
	}
	n.mu.Lock()
	had := l.launchers[held]
	delete(l.launchers, held)
	l.keepUntil = time.Time{} // it was waited for
	n.mu.Unlock()
	if !had {
		return nil
	}
	if out, err := n.retire(l); out || err != nil {
		return err
	}
	return n.save(l)
}

// kick has the janitor look whether lgpus are still in use.
func (n *Node) kick(ids ...uint64) {
	n.mu.Lock()
	for _, id := range ids {
		n.idle[id] = true
	}
	n.mu.Unlock()
	select {
	case n.kicked <- struct{}{}:
	default:
	}
}

// janitor retires lgpus whose last client has gone.
func (n *Node) janitor(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.kicked:
		}
		n.mu.Lock()
		ids := slices.Sorted(maps.Keys(n.idle))
		clear(n.idle)
		n.mu.Unlock()
		for _, id := range ids {
			n.life.Lock()
			if l := n.lgpuOf(id); l != nil {
				if _, err := n.retire(l); err != nil {
					n.log.Warn("an lgpu stays though nobody uses it", "id", id, "error", err)
				}
			}
			n.life.Unlock()
		}
	}
}

// inUseLocked reports whether any lgpu is in use. Node.mu is held.
func (n *Node) inUseLocked() bool {
	for _, l := range n.lgpus {
		if l.record.Active {
			return true
		}
	}
	return false
}

// Create makes a persistent node: an lgpu as soon as it is used, a group as soon as it has children. Its state is on
// disk when Create returns. An error wraps a *tree.Error, ErrInvalid or ErrClosed.
func (n *Node) Create(ctx context.Context, spec CreateSpec) (NodeState, error) {
	if err := n.left(); err != nil {
		return NodeState{}, err
	}
	if spec.Sim != "" {
		o, err := n.attachSim(spec.Sim)
		if err != nil {
			return NodeState{}, err
		}
		spec.Sim = o.shape
	}
	node, err := n.create(spec)
	if err != nil {
		if spec.Sim != "" {
			n.detachSim(spec.Sim)
		}
		return NodeState{}, err
	}
	for _, s := range n.Snapshot().Nodes {
		if s.ID == node.ID {
			return s, nil
		}
	}
	return NodeState{}, fmt.Errorf("%s: %w: it has been removed already", spec.Path, ErrNotFound)
}

func (n *Node) create(spec CreateSpec) (limits.Node, error) {
	n.life.Lock()
	defer n.life.Unlock()
	node, err := n.tree.Create(limits.CreateSpec{Path: spec.Path, UID: spec.Owner.UID, GID: spec.Owner.GID,
		Writes: spec.Writes})
	if err != nil || spec.Sim == "" {
		return node, err
	}
	l := newLgpu(node.ID)
	l.record.Sim, l.attached = spec.Sim, true
	n.mu.Lock()
	n.lgpus[node.ID] = l
	n.mu.Unlock()
	if err := n.save(l); err != nil {
		return node, errors.Join(err, n.tree.Rmdir(spec.Path))
	}
	return node, nil
}

// Remove removes the node at path. An error wraps a *tree.Error: ENOENT, ENOTEMPTY with children, EBUSY while it is in
// use.
func (n *Node) Remove(ctx context.Context, path string) error { return n.tree.Rmdir(path) }
