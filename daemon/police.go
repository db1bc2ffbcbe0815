package daemon

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/energy"
	"github.com/lgpu/lgpu/policy/limits"
)

// processKey names a process for good.
type processKey = tenant.Process

// sightings is how often in a row something must be seen before it is reported: a process that has just ended is still
// on a driver's list, and one that begins is there before its accounts are.
const sightings = 2

// Tolerance of the driver's count against a lgpu's: what is allocated between the two looks, and what drivers round up.
const (
	toleranceBytes   = 64 << 20
	toleranceDivisor = 50 // 2 %
)

// tolerance is how far the driver's count may be above an amount.
func tolerance(bytes uint64) uint64 { return max(toleranceBytes, bytes/toleranceDivisor) }

// police compares what is true on the devices with the accounts of lgpus, and acts by Config.Police. Each origin has a
// goroutine of its own that calls patrol and reconcile; what it remembers of a device is in the device.
type police struct {
	daemon *Daemon
	blind  sync.Once // for the warning that processes on devices cannot be told apart
}

// patrol looks at the devices of an origin once: what is true there, and whether that is what the accounts say.
func (w *police) patrol(o *origin) {
	w.daemon.bounds.sweep()
	for _, d := range w.daemon.inventory.devicesOf(o) {
		facts, at, err := o.facts(d.UUID)
		w.daemon.inventory.observe(d, facts, err)
		switch {
		case err != nil:
			continue
		case d.Partitioned, !w.daemon.inventory.manages(d):
			clear(d.strangers)
			w.daemon.energy.see(d, facts, at, work{})
			continue
		}
		if facts.Namespaced {
			w.blind.Do(func() {
				w.daemon.log.Warn("the daemon runs in a container, where the driver's process numbers mean nothing: " +
					"strangers on a device are not seen")
			})
			facts.Processes = nil
		}
		w.daemon.energy.see(d, facts, at, w.inspect(d, facts))
	}
	w.daemon.tree.Observe()
}

// inspect compares the driver's processes with the clients, and says for how long they used the device. Only the goroutine
// of the device's origin calls it.
func (w *police) inspect(d *device, facts gpu.Facts) work {
	did := work{known: !facts.Namespaced}
	clients := map[int]tenant.Client{}
	for _, c := range w.daemon.tenants.Clients() {
		clients[c.Peer.PID] = c
	}
	servers := w.daemon.modes.Processes(d.UUID)
	users := map[uint64][]user{}
	seen := map[processKey]bool{}
	for _, p := range facts.Processes {
		if c, ok := clients[p.PID]; ok {
			users[c.LGPU] = append(users[c.LGPU], user{c, p.Memory})
			did.add(c.LGPU, p)
			continue
		}
		if p.PID == os.Getpid() || slices.Contains(servers, p.PID) {
			continue
		}
		s, err := proc.Live(p.PID)
		if err != nil || slices.Contains(servers, s.Parent) {
			continue // it has ended, is in a PID namespace that this one does not see, or serves clients of MPS
		}
		key := processKey{PID: p.PID, Start: s.Start}
		seen[key] = true
		did.add(energy.Nobody, p)
		if d.strangers[key]++; d.strangers[key] == sightings {
			w.stranger(d, key, s, p)
		}
	}
	for key := range d.strangers {
		if !seen[key] {
			delete(d.strangers, key)
		}
	}
	w.compare(d, users)
	if facts.Utilisation >= 0 {
		w.daemon.gates.Utilised(d.UUID, facts.Utilisation)
	}
	w.watchHigh(d)
	return did
}

// user is a client with what the driver says that it uses.
type user struct {
	tenant.Client
	memory uint64
}

// stranger reports a process that uses a device without being a client of an lgpu.
func (w *police) stranger(d *device, key processKey, s proc.Status, p gpu.Process) {
	uid, _ := uidOf(key.PID)
	uuid := d.UUID
	e := Event{
		Kind: PoliceStranger, Device: &uuid, By: authorAt(key.PID, uid, s.Comm), Bytes: p.Memory,
		Text: fmt.Sprintf("process %d (%s) of user %s holds %s of device %s and is a client of no lgpu", key.PID,
			s.Comm, users.Name(uid), units.FormatSize(p.Memory), d.Short()),
	}
	belongs := false
	if evidence, err := w.daemon.tenants.Observe(key.PID); err == nil {
		var dir limits.Directory
		if dir, belongs = w.daemon.resolver.owner(evidence); belongs {
			e.Path, e.ID = dir.Path, dir.ID
			e.Text = fmt.Sprintf("process %d (%s) of user %s belongs to %s but holds %s of device %s past its limits",
				key.PID, s.Comm, users.Name(uid), dir.Path, units.FormatSize(p.Memory), d.Short())
		}
	}
	w.daemon.journal.emit(e)
	if belongs && w.daemon.config.Police != PoliceReport || w.daemon.config.Police == PoliceStopStrangers {
		w.stop(key, e)
	}
}

// compare reports lgpus that use more of a device than their accounts or their limit say.
func (w *police) compare(d *device, all map[uint64][]user) {
	for id, users := range all {
		var sum uint64
		for _, u := range users {
			sum += u.memory
		}
		dir, ok := w.daemon.tree.ByID(id)
		account, kept := w.daemon.usageOf(id)[d.UUID]
		if !ok || !kept {
			continue
		}
		e, _ := dir.Device(d.Identity())
		limit, limited := e.MemoryMax.Limit()
		overLimit := limited && sum > limit && sum-limit > tolerance(limit)
		// The accounts of an lgpu whose clients have not come back after a restart are with them.
		linked := !slices.ContainsFunc(users, func(u user) bool { return !u.Linked })
		overAccount := linked && sum > account.Used && sum-account.Used > tolerance(account.Used)
		if !overLimit && !overAccount {
			delete(d.overruns, id)
			continue
		}
		if d.overruns[id]++; d.overruns[id] != sightings {
			continue
		}
		w.overrun(d, dir, users, sum, account.Used, limit, overLimit)
	}
	for id := range d.overruns {
		if all[id] == nil {
			delete(d.overruns, id)
		}
	}
}

// overrun reports an lgpu that uses too much, and its client that does most of it.
func (w *police) overrun(d *device, dir limits.Directory, users []user, sum, account, limit uint64, overLimit bool) {
	excess := func(u user) uint64 {
		record, _ := w.daemon.lgpus.record(dir.ID)
		if i := slices.Index(record.Devices, d.UUID); i >= 0 && i < len(u.Memory) {
			return u.memory - min(u.memory, u.Memory[i])
		}
		return u.memory
	}
	worst := slices.MaxFunc(users, func(a, b user) int {
		if ea, eb := excess(a), excess(b); ea != eb {
			return int(ea/1024) - int(eb/1024)
		}
		return b.Peer.PID - a.Peer.PID
	})
	uuid := d.UUID
	e := Event{
		Kind: PoliceOverrun, Path: dir.Path, ID: dir.ID, Device: &uuid, By: authorIn(worst.Peer), Bytes: sum,
		Text: fmt.Sprintf("%s holds %s of device %s by the driver's count, where its own says %s", dir.Path,
			units.FormatSize(sum),
			d.Short(), units.FormatSize(account)),
	}
	if overLimit {
		e.Text += fmt.Sprintf(" and its limit is %s", units.FormatSize(limit))
	}
	w.daemon.journal.emit(e)
	if overLimit && w.daemon.config.Police != PoliceReport {
		w.stop(worst.Peer.Process, e)
	}
}

// watchHigh reports lgpus that have come above their memory.high.
func (w *police) watchHigh(d *device) {
	for _, dir := range w.daemon.tree.Directories() {
		e, ok := dir.Device(d.Identity())
		if !ok || w.daemon.lgpus.of(dir.ID) == nil {
			continue
		}
		used := w.daemon.usageOf(dir.ID)[d.UUID].Used
		most, limited := e.MemoryHigh.Limit()
		if w.daemon.lgpus.rises(dir.ID, d.UUID, limited && used > most) {
			uuid := d.UUID
			w.daemon.journal.emit(Event{
				Kind: MemoryHigh, Path: dir.Path, ID: dir.ID, Device: &uuid, Bytes: used,
				Text: fmt.Sprintf("%s uses %s of device %s, above its memory.high of %s", dir.Path,
					units.FormatSize(used), d.Short(),
					units.FormatSize(most)),
			})
		}
	}
}

// stop ends a process for what it did.
func (w *police) stop(p processKey, why Event) {
	why.Kind = PoliceStopped
	why.Text = fmt.Sprintf("process %d is stopped: %s", p.PID, why.Text)
	w.daemon.stopper.end(p, func() { w.daemon.journal.emit(why) })
}
