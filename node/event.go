package node

import (
	"time"

	"github.com/lgpu/lgpu/gpu"
)

// Kind says what an Event is about.
type Kind string

// Kinds of events.
const (
	LgpuCreated     Kind = "lgpu.created"
	LgpuRemoved     Kind = "lgpu.removed"
	ClientJoined    Kind = "client.joined"
	ClientLeft      Kind = "client.left"
	ClientRefused   Kind = "client.refused"
	LimitChanged    Kind = "limit.changed"
	MemoryHigh      Kind = "memory.high"
	OutOfMemory     Kind = "oom"
	PoliceStranger  Kind = "police.stranger"
	PoliceOverrun   Kind = "police.overrun"
	PoliceStopped   Kind = "police.stopped"
	DrainOverrun    Kind = "drain.overrun"
	DeviceFault     Kind = "device.fault"
	DeviceWell      Kind = "device.well"
	DaemonStarted   Kind = "daemon.started"
	DaemonRestarted Kind = "daemon.restarted"
	MountFailed     Kind = "mount.failed"
	MPSStarted      Kind = "mps.started"
	MPSStopped      Kind = "mps.stopped"
	MPSDied         Kind = "mps.died"
)

// Event is something that happened. Numbers without a meaning for its kind are zero.
type Event struct {
	Seq    uint64 // rises by one from event to event while the daemon lives
	Time   time.Time
	Kind   Kind
	Path   string // of the node
	ID     uint64 // of the node
	Device *gpu.UUID
	PID    int
	UID    uint32
	Bytes  uint64
	Text   string // a sentence for people
}

// Slice is a stretch of time for which an lgpu had a device.
type Slice struct {
	Device     gpu.UUID
	Path       string
	ID         uint64
	Start, End time.Time
	Used       time.Duration // device time that was charged
}
