package state

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/internal/users"
)

// Of is the document of a snapshot.
func Of(s *api.Snapshot) *State {
	out := &State{
		Version: Version, Time: s.GetTime().AsTime(), Daemon: daemonOf(s.GetDaemon()), Devices: []Device{}, Groups: []Directory{},
		LGPUs: []Directory{},
	}
	for _, d := range s.GetDevices() {
		out.Devices = append(out.Devices, deviceOf(d))
	}
	for _, n := range s.GetDirectories() {
		if n.GetKind() == api.Directory_LGPU {
			out.LGPUs = append(out.LGPUs, directoryOf(n))
		} else {
			out.Groups = append(out.Groups, directoryOf(n))
		}
	}
	return out
}

// Write writes the document, indented.
func (s *State) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// Only keeps the group or the lgpu at path.
func (s *State) Only(path string) {
	keep := func(all []Directory) []Directory {
		kept := []Directory{}
		for _, d := range all {
			if d.Path == path {
				kept = append(kept, d)
			}
		}
		return kept
	}
	s.Groups, s.LGPUs = keep(s.Groups), keep(s.LGPUs)
}

func daemonOf(d *api.Daemon) *Daemon {
	if d == nil {
		return nil
	}
	out := &Daemon{
		Version: d.GetVersion(), PID: d.GetPid(), Started: d.GetStarted().AsTime(), Dir: d.GetDir(), Tree: known(d.GetTree()),
		Police: d.GetPolice(), Restarts: d.GetRestarts(), HostBudget: d.GetHostBudget(), HostCopies: d.GetHostCopies(),
		DiskCopies: d.GetDiskCopies(),
	}
	if idle := d.GetIdleNs() / int64(time.Microsecond); idle > 0 {
		out.IdleUsec = &idle
	}
	return out
}

func deviceOf(d *api.Device) Device {
	out := Device{
		UUID: d.GetUuid(), Index: d.GetOrdinal(), Name: d.GetName(), Key: d.GetKey(), PCI: known(d.GetPci()), Sim: known(d.GetSim()),
		Parent: known(d.GetParent()), Partitioned: d.GetPartitioned(), Mode: word(d.GetMode()), Fault: known(d.GetFault()),
		NoGuests: known(d.GetNoGuests()), Units: known(d.GetUnits()),
		MemoryCapacity: d.GetMemoryTotal(), MemoryCurrent: d.GetMemoryUsed(), Utilisation: d.Utilisation,
		MemoryUtilisation: d.MemoryUtilisation, Processes: []DeviceProcess{}, Sampled: moment(d.GetSampled()),
		PowerWatts: thousandths(d.PowerMw), EnergyJoules: thousandths(d.EnergyMj),
		EnergyOtherJoules: thousandths(d.EnergyOtherMj), Temperature: d.Temperature,
	}
	out.Inventory = inventoryOf(d.GetInventory())
	for _, p := range d.GetProcesses() {
		out.Processes = append(out.Processes, DeviceProcess{
			PID: p.GetPid(), UID: p.GetUid(), User: users.Name(p.GetUid()), Command: p.GetCommand(), MemoryCurrent: p.GetMemory(),
			Utilisation: p.Utilisation, Path: known(p.GetPath()),
		})
	}
	return out
}

func inventoryOf(i *api.Inventory) *Inventory {
	if i == nil {
		return nil
	}
	out := &Inventory{Architecture: known(i.GetArchitecture()), ComputeCapability: known(i.GetCapability()),
		Driver: known(i.GetDriver()), NUMA: i.Numa, Links: []Link{}, MIG: []MIGProfile{}}
	for _, l := range i.GetLinks() {
		out.Links = append(out.Links, Link{Peer: l.GetPeer(), Path: l.GetPath(), NVLinks: l.GetNvlinks()})
	}
	for _, p := range i.GetMig() {
		out.MIG = append(out.MIG, MIGProfile{Name: p.GetName(), ID: p.GetId(), MemoryCapacity: p.GetMemory(), Units: p.GetUnits(),
			Count: p.GetCount(), Placements: array(p.GetPlacements()), Size: p.GetSize()})
	}
	return out
}

func directoryOf(n *api.Directory) Directory {
	out := Directory{
		Path: n.GetPath(), ID: fmt.Sprintf("%016x", n.GetId()), Persistent: n.GetPersistent(), Created: moment(n.GetCreated()),
		State: word(n.GetState()), Gang: known(n.GetGang()), CgroupPath: array(n.GetCgroups()), HostMax: n.HostMax,
		HostCurrent: n.GetHostUsed(), MemoryOvercommit: n.GetMemoryOvercommit(), MemorySuspend: n.GetMemorySuspend(),
		Devices: []Use{}, Processes: []Process{}, Launchers: []Launcher{},
	}
	for _, d := range n.GetDevices() {
		out.Devices = append(out.Devices, useOf(d))
	}
	for _, c := range n.GetClients() {
		out.Processes = append(out.Processes, Process{
			PID: c.GetPid(), UID: c.GetUid(), User: users.Name(c.GetUid()), Command: c.GetCommand(), Since: moment(c.GetSince()),
			HostCurrent: c.GetHostMemory(), MemoryCurrent: array(c.GetMemory()),
		})
	}
	for _, l := range n.GetLaunchers() {
		out.Launchers = append(out.Launchers, Launcher{
			PID: l.GetPid(), UID: l.GetUid(), User: users.Name(l.GetUid()), Command: l.GetCommand(),
		})
	}
	return out
}

func useOf(d *api.DeviceUse) Use {
	out := Use{
		UUID: d.GetUuid(), Key: d.GetKey(), State: word(d.GetState()), MemoryCurrent: d.GetMemoryUsed(),
		MemoryPeak: d.GetMemoryPeak(), MemoryGranted: d.MemoryGranted,
		ComputeStat: Stat{
			BusyUsec: d.GetBusyNs() / int64(time.Microsecond), Launches: d.GetLaunches(), Asked: percent(d.ShareAsked),
			Delivered: percent(d.ShareDelivered),
		},
		MemoryResident: d.MemoryResident, MemoryEvicted: d.MemoryEvicted, ResidenceFailure: known(d.GetResidenceFailure()),
		Requested: requestedOf(d.GetRequested()), Effective: effectiveOf(d.GetEffective()),
	}
	if joules := thousandths(d.EnergyMj); joules != nil {
		out.EnergyStat = &Energy{Joules: *joules, Watts: thousandths(d.PowerMw)}
	}
	if moved := d.GetResidenceStat(); moved != nil {
		out.ResidenceStat = &Moved{Evicted: moved.GetEvictedBytes(), Clean: moved.GetCleanBytes()}
	}
	return out
}

func requestedOf(l *api.Limits) Requested {
	if l == nil {
		l = &api.Limits{}
	}
	out := Requested{
		Lgpu: bits(l.GetLgpu()), LgpuWeight: l.LgpuWeight, ComputeMax: percent(l.ComputeMax), ComputeMin: percent(l.ComputeMin),
		MemoryMax: l.MemoryMax, MemoryHigh: l.MemoryHigh,
	}
	if p := l.GetLgpuPriority(); p != api.Priority_INHERITED {
		out.LgpuPriority = known(word(p))
	}
	return out
}

// bits is a request for compute units as the file lgpu shows it.
func bits(u *api.Units) string {
	text := "max"
	switch {
	case u != nil && u.List != nil:
		text = fmt.Sprintf("count=%d list=%s", u.GetCount(), u.GetList())
	case u != nil && u.Count != nil:
		text = fmt.Sprintf("count=%d", u.GetCount())
	case u.GetDefault():
		text = "default"
	}
	if u.GetExclusive() {
		text += " exclusive=1"
	}
	return text
}

func effectiveOf(e *api.Effective) Effective {
	if e == nil {
		e = &api.Effective{}
	}
	out := Effective{
		LgpuEffective: Bits{Count: e.GetCount(), List: known(e.GetList())}, LgpuWeight: e.GetLgpuWeight(), LgpuPriority: "normal",
		ComputeMin: float64(e.GetComputeMin()) / 100, MemoryMax: e.MemoryMax,
	}
	if p := e.GetLgpuPriority(); p != api.Priority_INHERITED {
		out.LgpuPriority = word(p)
	}
	if most := e.GetComputeMax(); most < units.Whole {
		out.ComputeMax = percent(&most)
	}
	return out
}

// percent makes hundredths of a percent percent; nil stays nil.
func percent(share *uint32) *float64 {
	if share == nil {
		return nil
	}
	p := float64(*share) / 100
	return &p
}

// thousandths makes millijoules joules and milliwatts watts; nil stays nil.
func thousandths[T uint32 | uint64](milli *T) *float64 {
	if milli == nil {
		return nil
	}
	whole := float64(*milli) / 1000
	return &whole
}

// known is a value, or nil for one that is not set.
func known[T comparable](v T) *T {
	var unset T
	if v == unset {
		return nil
	}
	return &v
}

// array is never null in JSON.
func array[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

func moment(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

// word is how a value of an enumeration is said everywhere.
func word(v fmt.Stringer) string { return strings.ToLower(v.String()) }
