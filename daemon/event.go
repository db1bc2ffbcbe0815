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

// Event is something that happened. Numbers without a meaning for its kind are zero. Of oom, drain.overrun and
// memory.high one of a node is told at once; those of the next seconds are counted, and the next one told says how many.
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

// journal numbers events, keeps the last ones, and counts them all.
type journal struct {
	feed source[Event]

	mu     sync.Mutex
	seq    uint64                     // guarded by mu
	last   []Event                    // guarded by mu; oldest first
	counts map[Kind]uint64            // guarded by mu
	nodes  map[uint64]map[Kind]uint64 // guarded by mu; counts of each node
	told   map[uint64]map[Kind]told   // guarded by mu; of each node
}

// told says when an event of a kind was told last, and how many have not been since.
type told struct {
	at     time.Time
	untold uint64
}

// quiet is the time between two events of one node and one kind that are told, where a program can cause any number:
// one that tries how much memory it gets asks until it is refused, again and again. They are to displace neither what
// others did nor what was before; all are counted.
const quiet = 10 * time.Second

// endless reports whether a program can cause any number of events of a kind.
func (k Kind) endless() bool { return k == OutOfMemory || k == DrainOverrun || k == MemoryHigh }

// kept is how many events Recent returns.
const kept = 256

// add counts an event that happens now and tells the feeds. It returns what was told, or false.
func (j *journal) add(e Event) (Event, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.counts == nil {
		j.counts, j.nodes = map[Kind]uint64{}, map[uint64]map[Kind]uint64{}
		j.told = map[uint64]map[Kind]told{}
	}
	j.counts[e.Kind]++
	if e.ID != 0 && e.Kind != LgpuRemoved {
		if j.nodes[e.ID] == nil {
			j.nodes[e.ID], j.told[e.ID] = map[Kind]uint64{}, map[Kind]told{}
		}
		j.nodes[e.ID][e.Kind]++
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
	j.feed.publish(e) // under the lock, so that feeds see the order of the numbers
	return e, true
}

// tell reports whether an event of an endless kind is to be told, and adds to its text what was not. mu is held.
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

// of returns how often what happened in a node.
func (j *journal) of(id uint64) map[Kind]uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.nodes[id])
}

// forget drops the counts of a node that is gone.
func (j *journal) forget(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.nodes, id)
	delete(j.told, id)
}

// emit notes an event, and logs it.
func (n *Node) emit(e Event) {
	e.Time = time.Now()
	e, told := n.journal.add(e)
	if !told {
		return
	}
	level := slog.LevelInfo
	switch e.Kind {
	case PoliceStranger, PoliceOverrun, PoliceStopped, DeviceFault, MountFailed, MPSDied, DrainOverrun:
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
	n.log.Log(context.Background(), level, e.Text, attributes...)
}
