package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/checkpoint"
	"github.com/lgpu/lgpu/policy/limits"
)

// Migration is how far the programs of an lgpu have come on their way to other devices.
type Migration struct {
	Away Release // off the devices that they were on
	// Back is the way to the others, which begins when Away is over. Where they were away before, and stay so, it is none.
	Back  Release
	Total time.Duration // at the end
}

// Migrate moves all programs of an lgpu, and its limits, to other devices, which are named by tokens as gpu.Select reads them:
// the first takes the place of the lgpu's first. They leave their devices as Move has them, all or none. What fails then, or
// ctx's end, has them come back to the devices that they were on. Programs that were released before stay so, and resume on
// the others. It is allowed to who may write memory.suspend.
func (r *Releases) Migrate(ctx context.Context, by limits.Author, path string, devices []string, show func(Migration)) error {
	n := r.daemon
	if err := n.tree.May(by, limits.Access{Action: limits.ActionWrite, Path: path, File: "memory.suspend"}); err != nil {
		return err
	}
	dir, err := n.tree.Directory(path)
	if err != nil {
		return err
	}
	from, to, err := r.destination(ctx, dir, devices)
	if err != nil {
		return err
	}
	begun := time.Now()
	var m Migration
	l, was, err := r.releaseFor(ctx, dir, func(l *released, was bool) { l.Moving = !was }, func(p Release) {
		if m.Away = p; p.Stage != "" {
			show(m)
		}
	})
	if l == nil {
		return err
	}
	if err == nil {
		err = n.lgpus.rehouse(dir, to)
	}
	moved := err == nil
	if moved && was {
		r.ended(l, true)
		m.Total = time.Since(begun)
		show(m)
		return nil
	}
	back := func(p Release) {
		if m.Back = p; p.Stage != "" {
			show(m)
		}
	}
	if moved {
		if err = r.comeBack(ctx, l, path, back); err == nil {
			r.ended(l, false)
			m.Total = time.Since(begun)
			show(m)
			return nil
		}
		if undone := n.lgpus.rehouse(dir, from); undone != nil {
			r.ended(l, true)
			return releaseError(ErrBusy, path, "its programs stay released; lgpu resume tries again", errors.Join(err, undone))
		}
	}
	if was {
		r.ended(l, true)
		return releaseError(ErrBusy, path, "its programs stay released, on the devices that they were on", err)
	}
	returned := r.comeBack(n.ctx, l, path, back)
	r.ended(l, returned != nil)
	if returned != nil {
		return releaseError(ErrBusy, path, "its programs stay released; lgpu resume tries again", errors.Join(err, returned))
	}
	return releaseError(ErrBusy, path, "its programs run on, on the devices that they were on", err)
}

// destination finds the devices that an lgpu is to have, and says why it cannot have them as far as that is known before
// anything is done.
func (r *Releases) destination(ctx context.Context, dir limits.Directory, tokens []string) (from, to []gpu.UUID, err error) {
	n := r.daemon
	record, known := n.lgpus.record(dir.ID)
	if !known || devicesOf(dir, record) == nil {
		return nil, nil, releaseError(ErrInvalid, dir.Path, "", errors.New("it is no lgpu with programs"))
	}
	devices, err := selected(n.inventory.usable(record.Sim), tokens)
	if err != nil {
		return nil, nil, err
	}
	from, to = record.Devices, uuidsOf(devices)
	remedy := "name other devices; lgpu devices lists those there are"
	switch {
	case len(to) != len(from):
		return nil, nil, devicesError(ErrInvalid, remedy, "%s has %d devices, and %d are named", dir.Path, len(from), len(to))
	case slices.Equal(from, to):
		return nil, nil, devicesError(ErrInvalid, remedy, "%s is on these devices already", dir.Path)
	case record.Spatial:
		return nil, nil, releaseError(ErrInvalid, dir.Path, "", errors.New("it uses its device in spatial mode (MPS), which the driver does not save"))
	}
	used, err := n.tenants.Usage(dir.ID)
	if err != nil {
		return nil, nil, err
	}
	var rooms []checkpoint.Room
	for i, d := range devices {
		old := n.inventory.device(from[i])
		if old == nil {
			return nil, nil, devicesError(ErrNoDevice, "", "%s is on device %s, which is not there", dir.Path, from[i].Short())
		}
		if d.MIG() || d.Name != old.Name || d.Memory != old.Memory || d.Units != old.Units {
			return nil, nil, devicesError(ErrInvalid, remedy, "device %s is a %s, and cannot take the place of device %s, a %s", d.Short(),
				kindOf(d), old.Short(), kindOf(old.Device))
		}
		for _, c := range n.tenants.Clients() {
			if c.LGPU == dir.ID && !mayReach(c.Peer.PID, d) {
				return nil, nil, devicesError(ErrInvalid, "start it with both devices, or with --contain=off; root's daemon can give it the other one",
					"process %d (%s) is contained without device %s", c.Peer.PID, c.Peer.Comm, d.Short())
			}
		}
		if err := n.inventory.wantMode(ctx, d, false); err != nil {
			return nil, nil, err
		}
		if facts, _, err := old.origin.facts(d.UUID); err == nil && !dir.Overcommit && !slices.Contains(from, d.UUID) && i < len(used.Devices) {
			rooms = append(rooms, checkpoint.Room{Of: "the memory of device " + d.Short(), Needed: used.Devices[i].Used,
				Free: d.Memory - min(facts.MemoryUsed, d.Memory)})
		}
	}
	if err := checkpoint.Admit(nil, nil, rooms); err != nil {
		return nil, nil, releaseError(ErrBusy, dir.Path, "its programs have not been touched", err)
	}
	return from, to, nil
}

// kindOf is what a device is, for people.
func kindOf(d gpu.Device) string {
	if d.MIG() {
		return "MIG instance"
	}
	return fmt.Sprintf("%s with %d units", d.Name, d.Units)
}

// rehouse gives an lgpu, the programs of which are parked, other devices in the places of those that it has. Its limits go
// with it, in the same write to the disk. After an error it is where it was.
func (g *lgpus) rehouse(dir limits.Directory, to []gpu.UUID) (err error) {
	n := g.daemon
	g.life.Lock()
	defer g.life.Unlock()
	l := g.of(dir.ID)
	if l == nil || !l.machine.State.Ready() {
		return fmt.Errorf("lgpu %s is about to end: %w", dir.Path, ErrBusy)
	}
	from, record := l.record.Devices, g.whole(l)
	record.Devices = to
	claimed, err := n.inventory.claimFor(record, false)
	if errors.Is(err, errAgain) {
		return fmt.Errorf("a device changes its mode: %w", ErrBusy)
	}
	if err != nil {
		return err
	}
	defer func() { claimed.release() }() // those that it does not have
	if err := n.tree.Exchange(dir.Path, pairsOf(from, to), record); err != nil {
		return err
	}
	if err := g.settleIn(l, to); err != nil {
		record.Devices = from
		return errors.Join(err, n.tree.Exchange(dir.Path, pairsOf(to, from), record), g.settleIn(l, from))
	}
	claimed, l.releases = l.releases, claimed
	n.journal.emit(Event{Kind: LgpuMigrated, Path: dir.Path, ID: dir.ID, Text: fmt.Sprintf("%s has device %s in place of %s", dir.Path,
		shorts(to), shorts(from))})
	n.containers.notice() // of its devices
	n.residence.look()
	return nil
}

// settleIn has an lgpu be on devices for which it has its limits. Called with life held.
func (g *lgpus) settleIn(l *lgpu, to []gpu.UUID) error {
	n := g.daemon
	dir, exists := n.tree.ByID(l.record.ID)
	if !exists {
		return fmt.Errorf("lgpu with id %d: %w", l.record.ID, ErrNotFound)
	}
	n.pushing.Lock()
	defer n.pushing.Unlock()
	used, unknown := n.tenants.Usage(dir.ID)
	if err := n.Releases.programs.Rehouse(g.tenant(dir, to)); err != nil {
		return err
	}
	g.mu.Lock()
	if unknown == nil {
		l.addUse(used) // of the devices that it had
	}
	l.record.Devices = to
	g.mu.Unlock()
	n.pushDirectory(dir)
	if err := n.pushBudgets(); err != nil {
		return err
	}
	return g.save(l)
}

// pairsOf are devices and those in their places, by the names that the tree has for them.
func pairsOf(from, to []gpu.UUID) (pairs [][2]string) {
	for i := range from {
		if from[i] != to[i] {
			pairs = append(pairs, [2]string{from[i].String(), to[i].String()})
		}
	}
	return pairs
}

// shorts are the names of devices for people.
func shorts(devices []gpu.UUID) string {
	var all []string
	for _, d := range devices {
		all = append(all, d.Short())
	}
	return strings.Join(all, ", ")
}
