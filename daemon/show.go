package daemon

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/hostcopy"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/energy"
	"github.com/lgpu/lgpu/policy/limits"
)

// Watch calls show with a Snapshot at once and then every period (at least 50 ms) until it fails, ctx ends or the
// daemon does, and returns why.
func (n *Daemon) Watch(ctx context.Context, period time.Duration, show func(Snapshot) error) error {
	tick := time.NewTicker(max(period, 50*time.Millisecond))
	defer tick.Stop()
	for {
		if err := show(n.Snapshot()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.ctx.Done():
			return ErrClosed
		}
	}
}

// Snapshot returns the present state.
func (n *Daemon) Snapshot() Snapshot {
	clients := n.tenants.Clients()
	s := Snapshot{At: time.Now(), Daemon: n.Info(), Devices: n.showDevices(clients)}
	shares := n.shares.now()
	dirs := n.tree.Directories()
	index := make(map[uint64]int, len(dirs))
	s.Directories = make([]Directory, len(dirs))
	for i, dir := range dirs {
		index[dir.ID] = i
		s.Directories[i] = n.showDirectory(dir, shares, clients)
	}
	// Children come after their parents, so from the last to the first each is complete when it is added to its parent.
	for i := len(dirs) - 1; i > 0; i-- {
		if parent, ok := index[dirs[i].Parent]; ok {
			s.Directories[parent].addUse(s.Directories[i])
		}
	}
	return s
}

// Info returns what the daemon says of itself, as Snapshot's Daemon has it.
func (n *Daemon) Info() Info {
	trouble := n.store.Trouble()
	n.mu.Lock()
	defer n.mu.Unlock()
	not := n.notReady
	if not == "" && trouble != nil {
		not = "nothing can be changed or started: " + trouble.Error()
	}
	return Info{
		Version: n.config.Version, PID: os.Getpid(), Started: n.started, Dir: n.config.Dir, Tree: n.mounted,
		Police: n.config.Police, Restarts: n.restarts, Idle: n.config.Idle, NotReady: not,
		HostBudget: n.tree.HostBudget(), HostCopies: n.residence.keeper.Used(hostcopy.Memory),
		DiskCopies: n.residence.keeper.Used(hostcopy.Disk),
	}
}

// showDevices shows what was last seen of the devices. Whose the processes are is said as of now.
func (n *Daemon) showDevices(clients []tenant.Client) []Device {
	byPID := make(map[int]uint64, len(clients))
	for _, c := range clients {
		byPID[c.Peer.PID] = c.LGPU
	}
	sights := n.inventory.sights()
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]Device, 0, len(sights))
	for _, d := range sights {
		shown := Device{
			Device: d.Device, Mode: n.modes.Mode(d.UUID).String(), Sim: d.origin.shape, Healthy: d.fault == "",
			Fault:      d.fault,
			About:      d.about,
			NoGuests:   n.noGuests(d.device),
			MemoryUsed: d.facts.MemoryUsed, Utilisation: d.facts.Utilisation,
			MemoryUtilisation: d.facts.MemoryUtilisation,
			Power:             d.facts.Power, Energy: d.facts.Energy, Temperature: d.facts.Temperature,
			Sampled: d.sampled,
		}
		shown.OtherEnergy, _ = n.energy.of(energy.Nobody, d.UUID)
		if d.sampled.IsZero() {
			shown.Utilisation, shown.MemoryUtilisation = -1, -1
		}
		for _, p := range d.facts.Processes {
			shown.Processes = append(shown.Processes, DeviceProcess{
				PID: p.PID, Memory: p.Memory, Utilisation: p.Utilisation, Path: n.paths[byPID[p.PID]],
			})
		}
		out = append(out, shown)
	}
	for i := range out {
		for k := range out[i].Processes {
			p := &out[i].Processes[k]
			p.UID, _ = uidOf(p.PID)
			if s, err := proc.Live(p.PID); err == nil {
				p.Comm = s.Comm
			}
		}
	}
	return out
}

// showDirectory shows a directory with what its own processes use.
func (n *Daemon) showDirectory(dir limits.Directory, shares map[seat]dispatch.Share, clients []tenant.Client) Directory {
	s := Directory{
		Path: dir.Path, ID: dir.ID, Kind: KindGroup, Persistent: !dir.Temporary, State: StateIdle, Gang: dir.Gang,
		UID: dir.UID, GID: dir.GID,
		Cgroups: dir.Cgroups, HostMax: dir.HostMax,
		Overcommit: dir.Overcommit, Suspend: dir.Suspend,
	}
	if dir.Path != limits.Root {
		s.Name = nameOf(dir.Path)
	}
	var mine []gpu.UUID
	if record, known := n.lgpus.record(dir.ID); known {
		mine = devicesOf(dir, record)
		s.Created = record.Created
		s.Launchers = n.lgpus.launchersOf(dir.ID)
		if mine != nil {
			s.Kind = KindLgpu
		}
		if used, err := n.tenants.Usage(dir.ID); err == nil {
			s.HostUsed = used.Host
		}
	}
	uses, isReleased := n.usageOf(dir.ID), n.Releases.is(dir.ID)
	for _, d := range n.shown(dir, mine) {
		use, share := uses[d.Device], shares[seat{dir.ID, d.Device}]
		d.MemoryUsed, d.MemoryPeak, d.MemoryGranted = use.Used, use.Peak, fromRegion(use.Granted)
		d.Busy, d.Launches = use.Busy, use.Launches
		d.Energy, d.Power = n.energy.of(dir.ID, d.Device)
		if evicted, why, managed := n.residence.of(dir.ID, d.Device, use.Used); managed {
			resident := use.Used - evicted
			d.Resident, d.Evicted, d.ResidenceFailure = &resident, &evicted, why
			d.Moved = &Moved{Evicted: use.Evicted, Clean: use.Clean}
		}
		t := n.timeOn(dir.ID, d.Device, share, clients)
		d.Asked, d.Delivered, d.Measured, d.State = t.asked, t.delivered, t.measured, t.state
		switch {
		case isReleased:
			d.State = StateReleased
		case !dir.Overcommit || s.Kind != KindLgpu:
		case !dir.Suspended:
			d.State = n.residence.stage(dir.ID, d.Device, d.State)
		case n.residence.gone(dir.ID, d.Device):
			d.State = StateSuspended
		default:
			d.State = StateSuspending
		}
		s.State = busier(s.State, d.State)
		s.Devices = append(s.Devices, d)
	}
	for _, c := range clients {
		if c.LGPU == dir.ID {
			s.Clients = append(s.Clients, Client{
				PID: c.Peer.PID, UID: c.Peer.UID, Comm: c.Peer.Comm, Since: c.Joined, Index: c.Index, Linked: c.Linked,
				Host: c.Host, Memory: c.Memory,
			})
		}
	}
	return s
}

// devicesOf are those that a directory's own processes have or had, nil where it is none of an lgpu: a directory that
// has others below it is a group, whatever once ran in it.
func devicesOf(dir limits.Directory, record store.Lgpu) []gpu.UUID {
	if len(dir.Children) > 0 {
		return nil
	}
	return record.Devices
}

// shown are the limits of a directory for the devices that it has: those of an lgpu in their order, a group's all.
func (n *Daemon) shown(dir limits.Directory, mine []gpu.UUID) []DeviceUse {
	var out []DeviceUse
	all := n.inventory.present()
	for i, e := range dir.Devices {
		uuid, err := gpu.ParseUUID(e.Device)
		at := slices.IndexFunc(all, func(d *device) bool { return d.UUID == uuid })
		if err != nil || at < 0 || mine != nil && !slices.Contains(mine, uuid) {
			continue
		}
		out = append(out, DeviceUse{
			Device: uuid, Key: all[at].Key(), State: StateIdle, Requested: dir.Requests[i], Effective: e,
			Named: n.modes.Mode(uuid) == mps.Spatial,
		})
	}
	slices.SortStableFunc(out, func(a, b DeviceUse) int {
		return slices.Index(mine, a.Device) - slices.Index(mine,
			b.Device)
	})
	return out
}

// busier returns the state that says more.
func busier(a, b string) string {
	if slices.Index(States, a) >= slices.Index(States, b) {
		return a
	}
	return b
}

// addResidence adds what a child has on the device and elsewhere.
func (d *DeviceUse) addResidence(child DeviceUse) {
	if child.Resident == nil || child.Evicted == nil {
		return
	}
	resident, evicted := *child.Resident, *child.Evicted
	if d.Resident != nil && d.Evicted != nil {
		resident, evicted = resident+*d.Resident, evicted+*d.Evicted
	}
	d.Resident, d.Evicted = &resident, &evicted
	moved := *child.Moved
	if d.Moved != nil {
		moved = Moved{Evicted: moved.Evicted + d.Moved.Evicted, Clean: moved.Clean + d.Moved.Clean}
	}
	d.Moved = &moved
	if d.ResidenceFailure == "" {
		d.ResidenceFailure = child.ResidenceFailure
	}
}

// addUse adds what a child uses.
func (s *Directory) addUse(child Directory) {
	s.HostUsed += child.HostUsed
	s.State = busier(s.State, child.State)
	for _, c := range child.Devices {
		for i := range s.Devices {
			d := &s.Devices[i]
			if d.Device != c.Device {
				continue
			}
			d.MemoryUsed += c.MemoryUsed
			d.MemoryPeak += c.MemoryPeak
			d.MemoryGranted = d.MemoryGranted.Plus(c.MemoryGranted)
			d.Busy += c.Busy
			d.Launches += c.Launches
			if d.Energy != nil && c.Energy != nil {
				*d.Energy += *c.Energy
				*d.Power += *c.Power
			}
			d.addResidence(c)
			d.Asked += c.Asked
			d.Delivered += c.Delivered
			d.Measured = d.Measured && c.Measured
			d.State = busier(d.State, c.State)
		}
	}
}
