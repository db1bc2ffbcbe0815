package daemon

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// usage gives the tree its live numbers. It implements limits.Usage.
type usage struct{ n *Daemon }

var _ limits.Usage = usage{}

// Stat implements limits.Usage.
func (u usage) Stat(id uint64, device string) limits.Stat {
	uuid, err := gpu.ParseUUID(device)
	if err != nil {
		return limits.Stat{}
	}
	var s limits.Stat
	if mj, mw := u.n.energy.of(id, uuid); mj != nil {
		s.Energy, s.Power, s.Metered = *mj, *mw, true
	}
	use, ok := u.n.usageOf(id)[uuid]
	if !ok {
		return s
	}
	s.Memory, s.Peak, s.BusyUsec, s.Launches = use.Used, use.Peak, uint64(use.Busy.Microseconds()), use.Launches
	s.Evicted, _, _ = u.n.residence.of(id, uuid, use.Used)
	t := u.n.timeOn(id, uuid, u.n.shares.now()[seat{id, uuid}], u.n.tenants.Clients())
	s.Asked, s.Delivered, s.Unmeasured = t.asked, t.delivered, !t.measured
	return s
}

// seat is an lgpu on a device.
type seat struct {
	id   uint64
	uuid gpu.UUID
}

// sharesAge is how old the answer of shares may be: the figures are means of a second, and a reader of one file asks
// for those of every directory below.
const sharesAge = 20 * time.Millisecond

// shares keeps for a moment what lgpus are entitled to and get.
type shares struct {
	daemon *Daemon

	mu   sync.Mutex // guards the fields below
	at   time.Time
	last map[seat]dispatch.Share
}

// now returns what every lgpu on every device is entitled to and gets. Callers do not change the map.
func (s *shares) now() map[seat]dispatch.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > sharesAge {
		all := s.daemon.gates.Shares()
		s.last, s.at = make(map[seat]dispatch.Share, len(all)), time.Now()
		for _, share := range all {
			s.last[seat{share.LGPU, share.Device}] = share
		}
	}
	return s.last
}

// usageOf returns what an lgpu uses of each of its devices, and used before; nothing for other directories. Whatever
// its tenant has written, it is no more than the device has.
func (n *Daemon) usageOf(id uint64) map[gpu.UUID]region.DeviceUse {
	l := n.lgpus.of(id)
	if l == nil {
		return nil
	}
	now, err := n.tenants.Usage(id)
	devices := n.inventory.present()
	n.lgpus.mu.Lock()
	defer n.lgpus.mu.Unlock()
	out := make(map[gpu.UUID]region.DeviceUse, len(l.record.Devices))
	for i, uuid := range l.record.Devices {
		base := l.base[uuid]
		use := region.DeviceUse{Peak: base.Peak, Busy: base.Busy, Launches: base.Launches, Evicted: base.Evicted, Clean: base.Clean}
		if err == nil && l.machine.Has&lifecycle.Tenants != 0 && i < len(now.Devices) {
			d := now.Devices[i]
			use.Used, use.Share, use.Granted = d.Used, d.Share, d.Granted
			use.Busy += d.Busy
			use.Launches += d.Launches
			use.Evicted += d.Evicted
			use.Clean += d.Clean
			use.Peak = max(use.Peak, d.Peak)
		}
		for _, d := range devices {
			if d.UUID == uuid {
				use.Used, use.Peak = min(use.Used, d.Memory), min(use.Peak, d.Memory)
			}
		}
		if p, reset := l.peaks[uuid]; reset && use.Peak <= p.before {
			p.seen = max(p.seen, use.Used)
			l.peaks[uuid] = p
			use.Peak = p.seen
		}
		out[uuid] = use
	}
	return out
}

// ResetPeak implements limits.Usage.
func (u usage) ResetPeak(id uint64, device string) {
	uuid, err := gpu.ParseUUID(device)
	l := u.n.lgpus.of(id)
	if err != nil || l == nil {
		return
	}
	u.n.lgpus.mu.Lock()
	delete(l.peaks, uuid)
	u.n.lgpus.mu.Unlock()
	use := u.n.usageOf(id)[uuid]
	u.n.lgpus.mu.Lock()
	defer u.n.lgpus.mu.Unlock()
	if l.peaks == nil {
		l.peaks = map[gpu.UUID]peak{}
	}
	l.peaks[uuid] = peak{before: use.Peak, seen: use.Used}
}

// Procs implements limits.Usage.
func (u usage) Procs(id uint64) []int {
	var pids []int
	for _, c := range u.n.tenants.Clients() {
		if c.LGPU == id {
			pids = append(pids, c.Peer.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// Events implements limits.Usage.
func (u usage) Events(id uint64) []limits.Count {
	counts := u.n.journal.of(id)
	out := []limits.Count{
		{Name: "high", N: counts[MemoryHigh]}, {Name: "oom", N: counts[OutOfMemory]},
		{Name: "overrun", N: counts[PoliceOverrun]}, {Name: "stranger", N: counts[PoliceStranger]},
		{Name: "stopped", N: counts[PoliceStopped]}, {Name: "drain_overrun", N: counts[DrainOverrun]},
	}
	slices.SortFunc(out, func(a, b limits.Count) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
