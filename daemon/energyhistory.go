package daemon

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/lgpu/lgpu/daemon/eventlog"
	"github.com/lgpu/lgpu/daemon/joules"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/energy"
)

// Times and bounds of the history of energy.
const (
	energyPoint = time.Hour // between two points
	energyFiles = 8         // of 4 MiB: a month, where a hundred groups and lgpus use eight devices
	energyRows  = 1500      // of a record: it is a line of at most 64 KiB
	energyLook  = 25 * time.Hour
)

// energyRecord is a part of a point of the history: what each directory had used of a device until then, with all below it.
// A point is the records of one time, up to the one that is the last.
type energyRecord struct {
	Device gpu.UUID    `json:"device"`
	Used   [][2]uint64 `json:"used"` // ID, energy.Nobody too, and millijoules
	Last   bool        `json:"last,omitempty"`
}

// energyHistory keeps what was used until when, as files of a bounded size. Directories that are gone are not in it: what
// they used is their groups'.
type energyHistory struct {
	disk *eventlog.Log[energyRecord] // nil where nothing is kept
	last uint64                      // number of the last record; of the goroutine that adds, as the next one
	at   time.Time                   // of the last point
}

// openHistory begins behind what the daemons before have kept in a folder.
func (b *energyBooks) openHistory(dir string) {
	log := b.daemon.log
	disk, recent, err := eventlog.Open[energyRecord](eventlog.Options{
		Dir: dir, Files: energyFiles, Report: func(err error) { log.Warn("the history of energy has a gap", "error", err) },
	})
	if err != nil {
		log.Warn("there is no history of energy", "error", err)
		return
	}
	b.history.disk = disk
	for _, r := range recent {
		b.history.last = max(b.history.last, r.Number)
		if r.Value.Last {
			b.history.at = r.Time
		}
	}
}

// addPoint keeps what was used until now.
func (b *energyBooks) addPoint(now time.Time) {
	h := &b.history
	if h.disk == nil {
		return
	}
	used := map[gpu.UUID][][2]uint64{}
	for key, mj := range usedIn(b.daemon.Snapshot()) {
		used[key.Device] = append(used[key.Device], [2]uint64{key.ID, mj})
	}
	records := []energyRecord{}
	for _, device := range slices.SortedFunc(maps.Keys(used), func(a, b gpu.UUID) int { return slices.Compare(a[:], b[:]) }) {
		slices.SortFunc(used[device], func(a, b [2]uint64) int { return slices.Compare(a[:], b[:]) })
		for some := range slices.Chunk(used[device], energyRows) {
			records = append(records, energyRecord{Device: device, Used: some})
		}
	}
	if len(records) == 0 {
		return // no device has a counter
	}
	records[len(records)-1].Last = true
	for _, r := range records {
		h.last++
		h.disk.Append(h.last, now, r)
	}
	h.at = now
}

// EnergyKey is a directory of the tree on a device; ID 0 is all who are in none.
type EnergyKey = joules.Key

// usedIn is what each directory, and nobody, has used, as far as a snapshot says.
func usedIn(s Snapshot) map[joules.Key]uint64 {
	used := map[joules.Key]uint64{}
	for _, d := range s.Devices {
		if d.OtherEnergy != nil {
			used[joules.Key{ID: energy.Nobody, Device: d.UUID}] = *d.OtherEnergy
		}
	}
	for _, dir := range s.Directories {
		for _, u := range dir.Devices {
			if u.Energy != nil && *u.Energy > 0 {
				used[joules.Key{ID: dir.ID, Device: u.Device}] = *u.Energy
			}
		}
	}
	return used
}

// EnergyAt returns what each group and lgpu had used of each device, with all below it, at the last point of the history
// that is not after a time, and when that was. Points are an hour apart. An error wraps ErrNotFound where the history
// does not go back so far, and says how far it does. reader is the user who asks.
func (n *Daemon) EnergyAt(ctx context.Context, at time.Time, reader uint32) (time.Time, map[EnergyKey]uint64, error) {
	disk := n.energy.history.disk
	if disk == nil {
		return time.Time{}, nil, &Error{Class: ErrNotFound, Reason: "this daemon keeps no history of energy"}
	}
	var first time.Time
	for _, since := range []time.Time{at.Add(-energyLook), {}} { // nearly always there is one of the day before
		p, err := lastPoint(ctx, disk.Read(since, reader), at)
		if err != nil || p.used != nil {
			return p.at, p.used, err
		}
		first = p.first
	}
	e := &Error{Class: ErrNotFound, Reason: "there is no history of energy yet: it begins a minute after the daemon does"}
	if !first.IsZero() {
		e.Reason = "the history of energy does not go back so far: it begins at " + first.Local().Format(time.DateTime)
	}
	return time.Time{}, nil, e
}

// point is one of the history. first is when the first is that was read.
type point struct {
	at, first time.Time
	used      map[joules.Key]uint64
}

// lastPoint reads a history up to a time. One that is not complete is none: the daemon was killed as it was written.
func lastPoint(ctx context.Context, reader *eventlog.Reader[energyRecord], upto time.Time) (p point, err error) {
	defer reader.Close()
	var next point
	for {
		records, err := reader.Next(ctx)
		for _, r := range records {
			if r.Time.After(upto) && p.used != nil {
				return p, nil
			}
			if !r.Time.Equal(next.at) {
				next = point{at: r.Time, used: map[joules.Key]uint64{}}
			}
			for _, row := range r.Value.Used {
				next.used[joules.Key{ID: row[0], Device: r.Value.Device}] = row[1]
			}
			if !r.Value.Last {
				continue
			}
			if p.first.IsZero() {
				p.first = r.Time
			}
			if !r.Time.After(upto) {
				p.at, p.used = next.at, next.used
			}
		}
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
	}
}
