package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/gpu"
)

// Kind says what an Event is about.
type Kind string

// Kinds of events.
const (
	LgpuCreated     Kind = "lgpu.created"
	LgpuRemoved     Kind = "lgpu.removed"
	LgpuStopped     Kind = "lgpu.stopped"
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
	MPSStarted      Kind = "mps.started"
	MPSStopped      Kind = "mps.stopped"
	MPSDied         Kind = "mps.died"
)

// Event is something that happened. Numbers without a meaning for its kind are zero. Of oom, drain.overrun,
// police.slice and memory.high one of an lgpu is told at once; those of the next seconds are counted, and the next one
// told says how many.
type Event struct {
	Seq    uint64 // rises by one from event to event while the daemon lives
	Time   time.Time
	Kind   Kind
	Path   string // of the lgpu or group
	ID     uint64 // of the lgpu or group
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

// journal numbers events, keeps the last ones, and counts them all.
type journal struct {
	log    *slog.Logger
	source source[Event]

	mu     sync.Mutex // guards the fields below
	seq    uint64
	last   []Event // oldest first
	counts map[Kind]uint64
	byID   map[uint64]map[Kind]uint64 // counts of each lgpu and group
	told   map[uint64]map[Kind]told   // of each lgpu and group
}

// told says when an event of a kind was told last, and how many have not been since.
type told struct {
	at     time.Time
	untold uint64
}

// quiet is the time between two events of one lgpu and one kind that are told, where a program can cause any number:
// one that tries how much memory it gets asks until it is refused, again and again. They are to displace neither what
// others did nor what was before; all are counted.
const quiet = 10 * time.Second

// endless reports whether a program can cause any number of events of a kind.
func (k Kind) endless() bool {
	return k == OutOfMemory || k == DrainOverrun || k == MemoryHigh || k == PoliceSlice
}

// kept is how many events Recent returns.
const kept = 256

// add counts an event that happens now and tells the subscribers. It returns what was told, or false.
func (j *journal) add(e Event) (Event, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.counts == nil {
		j.counts, j.byID = map[Kind]uint64{}, map[uint64]map[Kind]uint64{}
		j.told = map[uint64]map[Kind]told{}
	}
	j.counts[e.Kind]++
	if e.ID != 0 && e.Kind != LgpuRemoved {
		if j.byID[e.ID] == nil {
			j.byID[e.ID], j.told[e.ID] = map[Kind]uint64{}, map[Kind]told{}
		}
		j.byID[e.ID][e.Kind]++
		if e.Kind.endless() && !j.tell(&e) {
			return e, false
		}
	}
	j.seq++
	e.Seq = j.seq
	if len(j.last) == kept {
		j.last = append(j.last[:0:0], j.last[1:]...)
	}
	j.last = append(j.last, e)
	j.source.publish(e) // under the lock, so that subscribers see the order of the numbers
	return e, true
}

// tell reports whether an event of an endless kind is to be told, and adds to its text what was not. Called
// with mu held.
func (j *journal) tell(e *Event) bool {
	t, before := j.told[e.ID][e.Kind]
	if before && e.Time.Sub(t.at) < quiet {
		t.untold++
		j.told[e.ID][e.Kind] = t
		return false
	}
	if t.untold > 0 {
		e.Text += fmt.Sprintf(" (and %d more times since %s)", t.untold, t.at.Format(time.TimeOnly))
	}
	j.told[e.ID][e.Kind] = told{at: e.Time}
	return true
}

func (j *journal) recent() []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.last)
}

func (j *journal) counted() map[Kind]uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.counts)
}

// of returns how often what happened to an lgpu or group.
func (j *journal) of(id uint64) map[Kind]uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.byID[id])
}

// forget drops the counts of an lgpu or group that is gone.
func (j *journal) forget(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.byID, id)
	delete(j.told, id)
}

// emit notes an event, and logs it.
func (j *journal) emit(e Event) {
	e.Time = time.Now()
	e, told := j.add(e)
	if !told {
		return
	}
	level := slog.LevelInfo
	switch e.Kind {
	case PoliceStranger, PoliceOverrun, PoliceSlice, PoliceStopped, DeviceFault, MountFailed, MPSDied, DrainOverrun:
		level = slog.LevelWarn
	}
	attributes := []any{"kind", string(e.Kind)}
	if e.Path != "" {
		attributes = append(attributes, "path", e.Path)
	}
	if e.Device != nil {
		attributes = append(attributes, "device", e.Device.String())
	}
	if e.PID != 0 {
		attributes = append(attributes, "pid", e.PID, "uid", e.UID)
	}
	j.log.Log(context.Background(), level, e.Text, attributes...)
}
