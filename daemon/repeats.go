package daemon

import (
	"fmt"
	"time"
)

// Times for which an event of a kind is not told again of the same lgpu, or user where it is about none. A program that
// tries how much memory it gets asks until it is refused, again and again. Its events are to displace neither what
// others did nor what was before: the first is told at once, those of each such time that follows as one. The time
// doubles while they go on.
const (
	shortQuiet = 10 * time.Second
	longQuiet  = 10 * time.Minute
)

// maxRepeats bounds the users and lgpus of which repeats are held; beyond it they share one place for each kind.
const maxRepeats = 1 << 15

// repeatable reports whether a program can cause any number of events of a kind.
func (k Kind) repeatable() bool {
	switch k {
	case OutOfMemory, DrainOverrun, MemoryHigh, PoliceSlice, ClientRefused, LgpuRefused, ResidenceFailed, LgpuSuspended, LgpuResumed,
		LgpuReleased, LgpuReturned, LgpuMigrated, DmemFailed:
		return true
	}
	return false
}

// repeatKey is what repeats have in common.
type repeatKey struct {
	kind Kind
	id   uint64
	uid  uint32 // where there is no id
}

// repeat is an event that was told not long ago.
type repeat struct {
	until time.Time // when those that came since are told
	quiet time.Duration
	held  Event // those that came since as one; Count is 0 if there are none
}

// repeats merges repeated events. It is pure: what time it is, it is told. Not for several goroutines.
type repeats map[repeatKey]*repeat

// add returns whether an event is to be told now; else it is held.
func (r repeats) add(e Event) bool {
	if !e.Kind.repeatable() {
		return true
	}
	key := repeatKey{kind: e.Kind, id: e.ID}
	if e.ID == 0 {
		key.uid = e.UID
	}
	if r[key] == nil && len(r) >= maxRepeats {
		key = repeatKey{kind: e.Kind}
	}
	known := r[key]
	if known == nil {
		r[key] = &repeat{until: e.Time.Add(shortQuiet), quiet: shortQuiet}
		return true
	}
	e.First, e.Last = e.Time, e.Time
	if known.held.Count > 0 {
		e.First = known.held.First
	}
	e.Count = known.held.Count + 1
	known.held = e
	return false
}

// due returns what is to be told at a time, and when there will be more; the zero time is never.
func (r repeats) due(now time.Time) (events []Event, next time.Time) {
	for key, known := range r {
		if !known.until.After(now) {
			if known.held.Count == 0 {
				delete(r, key)
				continue
			}
			events = append(events, known.take(now))
			known.quiet = min(2*known.quiet, longQuiet)
			known.until = now.Add(known.quiet)
		}
		if next.IsZero() || known.until.Before(next) {
			next = known.until
		}
	}
	return events, next
}

// end returns what is held of an lgpu that goes, or with id 0 of all, and forgets it.
func (r repeats) end(id uint64, now time.Time) (events []Event) {
	for key, known := range r {
		if id != 0 && key.id != id {
			continue
		}
		if known.held.Count > 0 {
			events = append(events, known.take(now))
		}
		delete(r, key)
	}
	return events
}

// take returns what is held as one event that is told at a time.
func (k *repeat) take(now time.Time) Event {
	e := k.held
	k.held = Event{}
	e.Time = now
	if e.Count == 1 {
		e.First, e.Last = time.Time{}, time.Time{}
	} else {
		e.Text += fmt.Sprintf(" (the last of %d in %v)", e.Count, e.Last.Sub(e.First).Round(time.Millisecond))
	}
	return e
}
