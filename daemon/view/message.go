// Package view makes messages of the API of what the daemon shows: the one form of its state that the API, the page and
// all JSON have.
package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
)

// Names are how the vendor writes the UUIDs of devices, which for a MIG instance the UUID alone does not tell.
type Names map[gpu.UUID]string

// NamesIn are the names of a snapshot's devices.
func NamesIn(s daemon.Snapshot) Names {
	n := Names{}
	for _, d := range s.Devices {
		n[d.UUID] = d.Identity()
	}
	return n
}

// Of is a device's name; of one that has just gone, its UUID.
func (n Names) Of(u gpu.UUID) string {
	if name, ok := n[u]; ok {
		return name
	}
	return u.String()
}

// Snapshot is the state of everything.
func Snapshot(s daemon.Snapshot) *api.Snapshot {
	m := &api.Snapshot{Time: stamp(s.At), Daemon: Daemon(s.Daemon)}
	for _, d := range s.Devices {
		m.Devices = append(m.Devices, device(d))
	}
	known := NamesIn(s)
	for _, n := range s.Directories {
		m.Directories = append(m.Directories, directory(n, known))
	}
	return m
}

// Daemon is the process that answers.
func Daemon(d daemon.Info) *api.Daemon {
	return &api.Daemon{
		Version: d.Version, Pid: int32(d.PID), Started: stamp(d.Started), Dir: d.Dir, Tree: d.Tree, Police: string(d.Police),
		Restarts: d.Restarts, IdleNs: int64(d.Idle), HostBudget: d.HostBudget, HostCopies: d.HostCopies,
		DiskCopies: d.DiskCopies,
	}
}

func device(d daemon.Device) *api.Device {
	m := hardware(d.Device)
	m.Key, m.Sim, m.Fault, m.NoGuests = d.Key(), d.Sim, d.Fault, d.NoGuests
	m.MemoryUsed, m.Sampled = d.MemoryUsed, stamp(d.Sampled)
	m.Utilisation, m.MemoryUtilisation = percent(d.Utilisation), percent(d.MemoryUtilisation)
	m.PowerMw, m.EnergyMj, m.Temperature, m.EnergyOtherMj = d.Power, d.Energy, d.Temperature, d.OtherEnergy
	if d.Mode == "spatial" {
		m.Mode = api.Device_SPATIAL
	}
	if d.About != nil {
		m.Inventory = inventory(*d.About)
	}
	for _, p := range d.Processes {
		m.Processes = append(m.Processes, &api.DeviceProcess{
			Pid: int32(p.PID), Uid: p.UID, Command: p.Comm, Memory: p.Memory, Utilisation: percent(p.Utilisation), Path: p.Path,
		})
	}
	return m
}

// inventory is what a device is like.
func inventory(d gpu.Description) *api.Inventory {
	m := &api.Inventory{Architecture: d.Architecture, Capability: d.Capability, Driver: d.Driver, Numa: percent(d.NUMA)}
	for _, l := range d.Links {
		m.Links = append(m.Links, &api.DeviceLink{Peer: l.Peer.String(), Path: l.Path, Nvlinks: uint32(l.NVLinks)})
	}
	for _, p := range d.MIG {
		profile := &api.MigProfile{Name: p.Name, Id: uint32(p.ID), Memory: p.Memory, Units: uint32(p.Units), Count: uint32(p.Count),
			Size: uint32(p.Size)}
		for _, at := range p.Placements {
			profile.Placements = append(profile.Placements, uint32(at))
		}
		m.Mig = append(m.Mig, profile)
	}
	return m
}

// hardware is what does not change of a device.
func hardware(d gpu.Device) *api.Device {
	m := &api.Device{
		Uuid: d.Identity(), Index: int32(d.Index), Ordinal: d.Ordinal(), Name: d.Name, Pci: d.PCI, MemoryTotal: d.Memory,
		Units: uint32(max(d.Units, 0)), Partitioned: d.Partitioned,
	}
	if d.MIG() {
		m.Parent, m.GpuInstance, m.ComputeInstance = d.Parent.String(), percent(d.GPUInstance), percent(d.ComputeInstance)
	}
	return m
}

// EnergyPoint is what was used until a time, of the devices and directories whose energy is in what somebody sees now.
func EnergyPoint(at time.Time, used map[daemon.EnergyKey]uint64, seen daemon.Snapshot) *api.EnergyPoint {
	p := &api.EnergyPoint{Time: stamp(at)}
	add := func(id uint64, device gpu.UUID) {
		if mj, known := used[daemon.EnergyKey{ID: id, Device: device}]; known {
			p.Used = append(p.Used, &api.EnergyUsed{Id: id, Uuid: device.String(), EnergyMj: mj})
		}
	}
	for _, d := range seen.Devices {
		if d.OtherEnergy != nil {
			add(0, d.UUID)
		}
	}
	for _, dir := range seen.Directories {
		for _, u := range dir.Devices {
			if u.Energy != nil {
				add(dir.ID, u.Device)
			}
		}
	}
	return p
}

// percent is a part in percent, or another number that is never below 0, absent where the driver does not say.
func percent(n int) *uint32 {
	if n < 0 {
		return nil
	}
	p := uint32(n)
	return &p
}

func directory(n daemon.Directory, known Names) *api.Directory {
	m := &api.Directory{
		Path: n.Path, Id: n.ID, Persistent: n.Persistent, Created: stamp(n.Created), State: states[n.State], Gang: n.Gang,
		Cgroups: n.Cgroups, HostMax: n.HostMax.Pointer(), HostUsed: n.HostUsed, Uid: n.UID, Gid: n.GID,
		MemoryOvercommit: n.Overcommit, MemorySuspend: n.Suspend,
	}
	if n.Kind == daemon.KindLgpu {
		m.Kind = api.Directory_LGPU
	}
	for _, d := range n.Devices {
		device := &api.DeviceUse{
			Uuid: known.Of(d.Device), Key: d.Key,
			Requested: requested(d.Requested), Effective: effective(d.Effective, d.Named),
			MemoryUsed: d.MemoryUsed, MemoryPeak: d.MemoryPeak, MemoryGranted: d.MemoryGranted.Pointer(),
			BusyNs: int64(d.Busy), Launches: d.Launches, State: states[d.State],
			EnergyMj: d.Energy, PowerMw: d.Power,
			MemoryResident: d.Resident, MemoryEvicted: d.Evicted, ResidenceFailure: d.ResidenceFailure,
		}
		if d.Moved != nil {
			device.ResidenceStat = &api.ResidenceStat{EvictedBytes: d.Moved.Evicted, CleanBytes: d.Moved.Clean}
		}
		if d.Measured {
			device.ShareAsked, device.ShareDelivered = &d.Asked, &d.Delivered
		}
		m.Devices = append(m.Devices, device)
	}
	for _, c := range n.Clients {
		m.Clients = append(m.Clients, &api.Client{
			Pid: int32(c.PID), Uid: c.UID, Command: c.Comm, Since: stamp(c.Since), HostMemory: c.Host, Memory: c.Memory,
		})
	}
	for _, l := range n.Launchers {
		m.Launchers = append(m.Launchers, &api.Launcher{Pid: int32(l.PID), Uid: l.UID, Command: l.Comm})
	}
	return m
}

var states = map[string]api.State{
	daemon.StateIdle: api.State_IDLE, daemon.StateWaiting: api.State_WAITING, daemon.StateDraining: api.State_DRAINING,
	daemon.StateRunning: api.State_RUNNING, daemon.StateSuspending: api.State_SUSPENDING, daemon.StateSuspended: api.State_SUSPENDED,
	daemon.StateReleased: api.State_RELEASED, daemon.StateUnfit: api.State_UNFIT,
	daemon.StateEvicted: api.State_EVICTED, daemon.StateNext: api.State_NEXT, daemon.StateMoving: api.State_MOVING,
}

// Event is something that happened.
func Event(e daemon.Event, known Names) *api.Event {
	m := &api.Event{
		Number: e.Seq, Time: stamp(e.Time), Kind: string(e.Kind), Path: e.Path, Id: e.ID, Pid: int32(e.PID), Uid: e.UID,
		Bytes: e.Bytes, Text: e.Text, Count: e.Count, First: stamp(e.First), Last: stamp(e.Last),
	}
	if e.Device != nil {
		m.Device = known.Of(*e.Device)
	}
	if by := e.By; by != nil {
		m.By = &api.Author{Uid: by.UID, User: by.User, Pid: int32(by.PID), Command: by.Command}
	}
	for _, c := range e.Changes {
		m.Changes = append(m.Changes, &api.LimitChange{File: c.File, Device: c.Device, Old: c.Old, New: c.New})
	}
	return m
}

// Refusals are how often the programs of a launcher's lgpu were denied memory.
func Refusals(r daemon.Refusals) *api.Refusals {
	m := &api.Refusals{
		Count: r.Count, Bytes: r.Bytes, Limit: r.Limit.Pointer(), Path: r.Path, MayRaise: r.Mine, Raiser: r.Raiser,
	}
	if r.Device != nil {
		m.Device = r.Device.String()
	}
	return m
}

// Release is how far the programs of an lgpu have come on their way off their devices, or back.
func Release(r daemon.Release) *api.ReleaseProgress {
	m := &api.ReleaseProgress{Processes: uint32(r.Processes), Stage: r.Stage, Total: uint64(r.Total)}
	for _, p := range r.Phases {
		m.Phases = append(m.Phases, &api.ReleasePhase{Stage: p.Stage, Took: uint64(p.Took)})
	}
	return m
}

// Migration is how far the programs of an lgpu have come on their way to other devices.
func Migration(m daemon.Migration) *api.MigrateProgress {
	return &api.MigrateProgress{Away: Release(m.Away), Back: Release(m.Back), Total: uint64(m.Total)}
}

// MemoryFiles are files with what has left devices.
func MemoryFiles(files []daemon.MemoryFile) (all []*api.MemoryFile) {
	for _, f := range files {
		all = append(all, &api.MemoryFile{Client: int32(f.Client), Device: uint32(f.Device), Disk: f.Disk, Size: f.Size, Path: f.Path, Inode: f.Inode})
	}
	return all
}

// Found is the program of an lgpu that is to be written to an image.
func Found(c *daemon.Checkpoint) *api.CheckpointFound {
	m := &api.CheckpointFound{Lock: c.Lock}
	for _, pid := range c.Processes {
		m.Processes = append(m.Processes, int32(pid))
	}
	for _, pid := range c.Clients {
		m.Clients = append(m.Clients, int32(pid))
	}
	return m
}

// Slice is a stretch of time for which an lgpu had a device.
func Slice(t daemon.Slice, known Names) *api.Slice {
	return &api.Slice{
		Device: known.Of(t.Device), Path: t.Path, Id: t.ID, Begin: stamp(t.Start), End: stamp(t.End), UsedNs: int64(t.Used),
	}
}

// Attachment is an lgpu for the launcher that is attached to it.
func Attachment(h *daemon.Attachment) *api.Attachment {
	m := &api.Attachment{Path: h.Path, Id: h.ID, Environment: h.Environment}
	for _, d := range h.Devices {
		m.Devices = append(m.Devices, hardware(d))
	}
	return m
}

// stamp is a time, absent where it is not known.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
