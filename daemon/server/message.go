package server

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// The daemon's values as messages.

// names are how the vendor writes the UUIDs of devices, which for a MIG instance the UUID alone does not tell.
type names map[gpu.UUID]string

func namesIn(s daemon.Snapshot) names {
	n := names{}
	for _, d := range s.Devices {
		n[d.UUID] = d.Identity()
	}
	return n
}

func (n names) of(u gpu.UUID) string {
	if name, ok := n[u]; ok {
		return name
	}
	return u.String()
}

func snapshot(s daemon.Snapshot) *api.Snapshot {
	m := &api.Snapshot{Time: stamp(s.At), Daemon: daemonMessage(s.Daemon)}
	for _, d := range s.Devices {
		m.Devices = append(m.Devices, device(d))
	}
	known := namesIn(s)
	for _, n := range s.Nodes {
		m.Nodes = append(m.Nodes, nodeMessage(n, known))
	}
	return m
}

func daemonMessage(d daemon.Daemon) *api.Daemon {
	return &api.Daemon{
		Version: d.Version, Pid: int32(d.PID), Started: stamp(d.Started), Dir: d.Dir, Tree: d.Tree, Police: string(d.Police),
		Restarts: d.Restarts, IdleNs: int64(d.Idle),
	}
}

func device(d daemon.Device) *api.Device {
	m := hardware(d.Device)
	m.Key, m.Sim, m.Fault, m.MemoryUsed, m.Sampled = d.Key(), d.Sim, d.Fault, d.MemoryUsed, stamp(d.Sampled)
	m.Utilisation, m.MemoryUtilisation = percent(d.Utilisation), percent(d.MemoryUtilisation)
	if d.Mode == "spatial" {
		m.Mode = api.Device_SPATIAL
	}
	if d.MIG() {
		m.Parent = d.Parent.String()
	}
	for _, p := range d.Processes {
		m.Processes = append(m.Processes, &api.DeviceProcess{
			Pid: int32(p.PID), Uid: p.UID, Command: p.Comm, Memory: p.Memory, Utilisation: percent(p.Utilisation), Path: p.Path,
		})
	}
	return m
}

// hardware is what does not change of a device.
func hardware(d gpu.Device) *api.Device {
	return &api.Device{
		Uuid: d.Identity(), Index: int32(d.Index), Name: d.Name, Pci: d.PCI, MemoryTotal: d.Memory,
		Units: uint32(max(d.Units, 0)),
	}
}

// percent is a part in percent, absent where the driver does not say.
func percent(n int) *uint32 {
	if n < 0 {
		return nil
	}
	p := uint32(n)
	return &p
}

// limit is a limit in bytes, absent where there is none.
func limit(bytes uint64) *uint64 {
	if bytes == limits.NoLimit {
		return nil
	}
	return &bytes
}

func nodeMessage(n daemon.NodeState, known names) *api.Node {
	m := &api.Node{
		Path: n.Path, Id: n.ID, Persistent: n.Persistent, Created: stamp(n.Created), State: states[n.State], Gang: n.Gang,
		Cgroups: n.Cgroups, HostMax: n.HostMax, HostUsed: n.HostUsed,
	}
	if n.Kind == daemon.KindLgpu {
		m.Kind = api.Node_LGPU
	}
	for _, d := range n.Devices {
		device := &api.NodeDevice{
			Uuid: known.of(d.Device), Key: d.Key,
			Requested: &api.Requested{
				Lgpu: d.Requested.Lgpu, ComputeMax: d.Requested.ComputeMax, ComputeMin: d.Requested.ComputeMin,
				Weight: d.Requested.Weight, Priority: priorities[d.Requested.Priority], MemoryMax: d.Requested.MemoryMax,
				MemoryHigh: d.Requested.MemoryHigh,
			},
			Effective: &api.Effective{
				Count: uint32(max(d.Effective.Count, 0)), List: d.Effective.List, ComputeMax: d.Effective.Compute,
				ComputeMin: d.Effective.Min, Weight: d.Effective.Weight, Priority: priorities[d.Effective.Priority],
				MemoryMax: limit(d.Effective.MemoryMax),
			},
			MemoryUsed: d.MemoryUsed, MemoryPeak: d.MemoryPeak, MemoryGranted: d.MemoryGranted, BusyNs: int64(d.Busy),
			Launches: d.Launches, State: states[d.State],
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
	daemon.StateRunning: api.State_RUNNING,
}

var priorities = map[string]api.Priority{
	"": api.Priority_INHERITED, "normal": api.Priority_NORMAL, "high": api.Priority_HIGH, "latency": api.Priority_LATENCY,
}

// priorityName is the word for p that the daemon's files have.
func priorityName(p api.Priority) string {
	for name, q := range priorities {
		if p == q {
			return name
		}
	}
	return p.String() // of a later version; the daemon says that it does not know it
}

func event(e daemon.Event, known names) *api.Event {
	m := &api.Event{
		Number: e.Seq, Time: stamp(e.Time), Kind: string(e.Kind), Path: e.Path, Id: e.ID, Pid: int32(e.PID), Uid: e.UID,
		Bytes: e.Bytes, Text: e.Text,
	}
	if e.Device != nil {
		m.Device = known.of(*e.Device)
	}
	return m
}

func slice(t daemon.Slice, known names) *api.Slice {
	return &api.Slice{
		Device: known.of(t.Device), Path: t.Path, Id: t.ID, Begin: stamp(t.Start), End: stamp(t.End), UsedNs: int64(t.Used),
	}
}

func held(h *daemon.Hold) *api.Held {
	m := &api.Held{Path: h.Path, Id: h.ID, Environment: h.Environment}
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
