package daemon

import (
	"strings"
	"time"
	"unicode"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Kind says what an Event is about.
type Kind string

// Kinds of events.
const (
	LgpuCreated     Kind = "lgpu.created"
	LgpuRemoved     Kind = "lgpu.removed"
	LgpuStopped     Kind = "lgpu.stopped"
	LgpuRefused     Kind = "lgpu.refused"
	ClientJoined    Kind = "client.joined"
	ClientLeft      Kind = "client.left"
	ClientRefused   Kind = "client.refused"
	LimitChanged    Kind = "limit.changed"
	MemoryHigh      Kind = "memory.high"
	OutOfMemory     Kind = "oom"
	PoliceStranger  Kind = "police.stranger"
	PoliceOverrun   Kind = "police.overrun"
	PoliceStopped   Kind = "police.stopped"
	PoliceSlice     Kind = "police.slice"
	DrainOverrun    Kind = "drain.overrun"
	DeviceFault     Kind = "device.fault"
	DeviceWell      Kind = "device.well"
	DaemonStarted   Kind = "daemon.started"
	DaemonRestarted Kind = "daemon.restarted"
	MountFailed     Kind = "mount.failed"
	MPSAdopted      Kind = "mps.adopted"
	MPSStarted      Kind = "mps.started"
	MPSStopped      Kind = "mps.stopped"
	MPSDied         Kind = "mps.died"
	MPSFailed       Kind = "mps.failed"
	LgpuSuspended   Kind = "lgpu.suspended"
	LgpuResumed     Kind = "lgpu.resumed"
	LgpuReleased    Kind = "lgpu.released"
	LgpuReturned    Kind = "lgpu.returned"
	LgpuMigrated    Kind = "lgpu.migrated"
	ResidenceFailed Kind = "residence.failed"
	DmemFailed      Kind = "dmem.failed"
)

// Kinds are all kinds of events.
func Kinds() []Kind {
	return []Kind{
		LgpuCreated, LgpuRemoved, LgpuStopped, LgpuRefused, ClientJoined, ClientLeft, ClientRefused, LimitChanged, MemoryHigh,
		OutOfMemory, PoliceStranger, PoliceOverrun, PoliceStopped, PoliceSlice, DrainOverrun, DeviceFault, DeviceWell, DaemonStarted,
		DaemonRestarted, MountFailed, MPSAdopted, MPSStarted, MPSStopped, MPSDied, MPSFailed,
		LgpuSuspended, LgpuResumed, LgpuReleased, LgpuReturned, LgpuMigrated, ResidenceFailed, DmemFailed,
	}
}

// Event is something that happened. Numbers without a meaning for its kind are zero. Its texts are printable. It is
// shared by all who read it, and not changed.
type Event struct {
	Seq    uint64    `json:"-"` // rises by one from event to event, also over restarts of the daemon
	Time   time.Time `json:"-"`
	Kind   Kind      `json:"kind"`
	Path   string    `json:"path,omitempty"` // of the lgpu or group
	ID     uint64    `json:"id,omitempty"`   // of the lgpu or group
	Device *gpu.UUID `json:"device,omitempty"`
	PID    int       `json:"pid,omitempty"`
	UID    uint32    `json:"uid,omitempty"`
	Bytes  uint64    `json:"bytes,omitempty"`
	// By is who did it; nil where nobody did, or the daemon itself.
	By *Author `json:"by,omitempty"`
	// Changes are what lgpu.created and limit.changed changed, all in one transaction; at most 64.
	Changes []limits.Difference `json:"changes,omitempty"`
	// Count is how many events this is: more than one where a kind was repeated, of which the first was at First and
	// the last at Last. All else is that of the last one.
	Count uint64    `json:"count,omitempty"`
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	Text  string    `json:"text"` // a sentence for people

	limit   limits.Bytes // of OutOfMemory: see Refusals
	limitOf string
}

// Bounds of an event, so that nobody fills the disk with one.
const (
	maxText    = 4096 // bytes
	maxChanges = 64
)

// clean makes an event's texts harmless for a terminal, and bounds it.
func (e *Event) clean() {
	e.Path, e.Text = printable(e.Path), printable(e.Text)
	if e.By != nil {
		by := *e.By
		by.User, by.Command = printable(by.User), printable(by.Command)
		e.By = &by
	}
	var changes []limits.Difference
	for _, c := range e.Changes[:min(len(e.Changes), maxChanges)] {
		changes = append(changes, limits.Difference{
			File: printable(c.File), Device: printable(c.Device), Old: printable(c.Old), New: printable(c.New),
		})
	}
	e.Changes = changes
}

// printable is a text with a mark in place of what is not printable (control characters, marks that turn the direction
// of writing, bytes that are no text), and not too long.
func printable(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// Slice is a stretch of time for which an lgpu had a device.
type Slice struct {
	Device     gpu.UUID
	Path       string
	ID         uint64
	Start, End time.Time
	Used       time.Duration // device time that was charged
}
