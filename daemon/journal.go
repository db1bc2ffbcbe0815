package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/daemon/eventlog"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// journal numbers events, keeps the last ones and has all kept on disk, merges repeats, and counts all.
type journal struct {
	log    *slog.Logger
	disk   *eventlog.Log[Event] // nil where nothing is kept
	source source[Event]
	names  atomic.Pointer[map[gpu.UUID]string] // of devices, as their vendor writes them

	mu      sync.Mutex // guards the fields below
	seq     uint64
	last    []Event // oldest first
	repeats repeats
	timer   *time.Timer // runs until the first of repeats is due; nil while there is none
	wake    time.Time   // when timer ends
	closed  bool
	counts  map[Kind]uint64
	byID    map[uint64]map[Kind]uint64 // counts of each lgpu and group
	refused map[uint64]*Refusals
}

// Refusals are how often programs of an lgpu were denied memory, and the last time.
type Refusals struct {
	Count  uint64
	Bytes  uint64       // that were asked for
	Device *gpu.UUID    // nil for page-locked host memory
	Limit  limits.Bytes // that did not allow it; none where the device has no more
	Path   string       // of the lgpu or group whose limit it was; empty without Limit
	Mine   bool         // who asks may raise the limit
	Raiser string       // the user who may, beside administrators; empty if there is none
}

// kept is how many events Recent returns.
const kept = 256

// open begins behind what the daemons before have kept in a folder. Without the folder nothing is kept.
func (j *journal) open(dir string) {
	j.repeats, j.refused = repeats{}, map[uint64]*Refusals{}
	j.counts, j.byID = map[Kind]uint64{}, map[uint64]map[Kind]uint64{}
	disk, recent, err := eventlog.Open[Event](eventlog.Options{
		Dir: dir, Report: func(err error) { j.log.Warn("events are lost when the daemon ends", "error", err) },
	})
	if err != nil {
		j.log.Warn("events are lost when the daemon ends", "error", err)
		return
	}
	j.disk = disk
	for _, record := range recent {
		j.seq = max(j.seq, record.Number)
	}
	for _, record := range recent[max(0, len(recent)-kept):] {
		j.last = append(j.last, eventOf(record))
	}
}

// announce says that the daemon is there, which has begun anew so often.
func (j *journal) announce(restarts uint64) {
	e := Event{Kind: DaemonStarted, PID: os.Getpid(), UID: uint32(os.Getuid()), Text: "the daemon has started"}
	if restarts > 0 {
		e.Kind, e.Text = DaemonRestarted, "the daemon has taken over the state of the one before"
	}
	j.emit(e)
}

// eventOf is an event that was kept.
func eventOf(record eventlog.Record[Event]) Event {
	e := record.Value
	e.Seq, e.Time = record.Number, record.Time
	e.clean()
	return e
}

// emit notes an event that happens now. It waits for nothing but the journal's lock.
func (j *journal) emit(e Event) {
	e.Time, e.Count = time.Now(), 1
	if e.By != nil {
		e.PID, e.UID = e.By.PID, e.By.UID
	}
	e.clean()
	for _, told := range j.add(e) {
		j.write(told)
	}
}

// add counts an event and returns what is told now, if anything: what was held of an lgpu that goes comes first.
func (j *journal) add(e Event) (told []Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count(e)
	if e.Kind == LgpuRemoved {
		told = j.repeats.end(e.ID, e.Time)
	}
	if j.closed || j.repeats.add(e) {
		told = append(told, e)
	}
	if e.Kind.repeatable() {
		j.arm(e.Time.Add(shortQuiet))
	}
	j.tell(told)
	return told
}

// count counts an event. Called with mu held.
func (j *journal) count(e Event) {
	j.counts[e.Kind]++
	if e.ID == 0 || e.Kind == LgpuRemoved {
		return
	}
	if j.byID[e.ID] == nil {
		j.byID[e.ID] = map[Kind]uint64{}
	}
	j.byID[e.ID][e.Kind]++
	if e.Kind == OutOfMemory {
		r := Refusals{Count: 1, Bytes: e.Bytes, Device: e.Device, Limit: e.limit, Path: e.limitOf}
		if before := j.refused[e.ID]; before != nil {
			r.Count += before.Count
		}
		j.refused[e.ID] = &r
	}
}

// tell numbers events and gives them to all who read. Called with mu held, so that readers see the order of the numbers.
func (j *journal) tell(events []Event) {
	for i := range events {
		j.seq++
		events[i].Seq = j.seq
		if len(j.last) == kept {
			j.last = append(j.last[:0:0], j.last[1:]...)
		}
		j.last = append(j.last, events[i])
		j.source.publish(events[i])
		if j.disk != nil {
			j.disk.Append(j.seq, events[i].Time, events[i])
		}
	}
}

// arm has wait called at a time, if not before. Called with mu held.
func (j *journal) arm(at time.Time) {
	if j.closed || !j.wake.IsZero() && !at.Before(j.wake) {
		return
	}
	j.wake = at
	if j.timer == nil {
		j.timer = time.AfterFunc(time.Until(at), j.summarize)
		return
	}
	j.timer.Reset(time.Until(at))
}

// summarize tells the repeats that are due.
func (j *journal) summarize() {
	now := time.Now()
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	events, next := j.repeats.due(now)
	slices.SortFunc(events, func(a, b Event) int { return a.First.Compare(b.First) })
	j.tell(events)
	j.wake = time.Time{}
	if !next.IsZero() {
		j.arm(next)
	}
	j.mu.Unlock()
	for _, e := range events {
		j.write(e)
	}
}

// close tells what is held, ends all subscriptions, and what is kept on disk. There may be events afterwards, of which
// nothing is kept.
func (j *journal) close() error {
	j.mu.Lock()
	events := j.repeats.end(0, time.Now())
	j.tell(events)
	j.closed = true
	if j.timer != nil {
		j.timer.Stop()
	}
	j.mu.Unlock()
	for _, e := range events {
		j.write(e)
	}
	j.source.close()
	if j.disk == nil {
		return nil
	}
	return j.disk.Close()
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

// refusals returns how often programs of an lgpu were denied memory since the daemon started, without Mine and
// Raiser.
func (j *journal) refusals(id uint64) Refusals {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.refused[id]; r != nil {
		return *r
	}
	return Refusals{}
}

// forget drops the counts of an lgpu or group that is gone.
func (j *journal) forget(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.byID, id)
	delete(j.refused, id)
}

// write writes an event to the daemon's log.
func (j *journal) write(e Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case PoliceStranger, PoliceOverrun, PoliceSlice, PoliceStopped, DeviceFault, MountFailed, MPSDied, DrainOverrun, DmemFailed:
		level = slog.LevelWarn
	}
	attributes := []any{"kind", string(e.Kind)}
	if e.Path != "" {
		attributes = append(attributes, "path", e.Path)
	}
	if e.Device != nil {
		attributes = append(attributes, "device", j.device(*e.Device))
	}
	if e.PID != 0 {
		attributes = append(attributes, "pid", e.PID, "uid", e.UID)
	}
	j.log.Log(context.Background(), level, e.Text, attributes...)
}

// know has devices written by their names from now on.
func (j *journal) know(devices []*device) {
	names := make(map[gpu.UUID]string, len(devices))
	for _, d := range devices {
		names[d.UUID] = d.Identity()
	}
	j.names.Store(&names)
}

// device is the name of a device, also of one that is gone.
func (j *journal) device(uuid gpu.UUID) string {
	if names := j.names.Load(); names != nil && (*names)[uuid] != "" {
		return (*names)[uuid]
	}
	return uuid.String()
}

// EventRange says which events somebody wants.
type EventRange struct {
	// All asks for the events on disk, too, from Since on; without it there are those that Recent returns.
	All   bool
	Since time.Time
	// Reader is the user who asks: users take turns at the disk.
	Reader uint32
	// Follow asks for new ones, after those, until ctx ends or the daemon does.
	Follow bool
}

// Events gives the events of a range, oldest first and some at a time. It is the one way by which events come to whoever
// asks for them, whose rights and wishes give looks after. The error is give's, ctx's, or with Follow ErrClosed.
func (n *Daemon) Events(ctx context.Context, r EventRange, give func([]Event) error) error {
	subscription := n.journal.source.subscribe() // before those that are kept, so that none is missed
	defer subscription.Close()
	recent := n.journal.recent()
	var last uint64
	tell := func(events []Event) error {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Seq <= last || e.Time.Before(r.Since) })
		if len(events) == 0 {
			return nil
		}
		last = events[len(events)-1].Seq
		return give(events)
	}
	if r.All && n.journal.disk != nil {
		if err := n.journal.before(ctx, r, recent, tell); err != nil {
			return err
		}
	}
	if err := tell(recent); err != nil || !r.Follow {
		return err
	}
	for {
		events, _, err := subscription.Next(ctx) // what was lost shows in the numbers
		if err != nil {
			return err
		}
		if err := tell(events); err != nil {
			return err
		}
	}
}

// before tells the events on disk of a range that are older than those of recent.
func (j *journal) before(ctx context.Context, r EventRange, recent []Event, tell func([]Event) error) error {
	reader := j.disk.Read(r.Since, r.Reader)
	defer reader.Close()
	for {
		records, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		events := make([]Event, 0, len(records))
		for _, record := range records {
			if len(recent) > 0 && record.Number >= recent[0].Seq {
				break
			}
			events = append(events, eventOf(record))
		}
		if err := tell(events); err != nil {
			return err
		}
		if len(recent) > 0 && len(events) < len(records) {
			return nil
		}
	}
}

// Recent returns the last events, at most 256, oldest first.
func (n *Daemon) Recent() []Event { return n.journal.recent() }
