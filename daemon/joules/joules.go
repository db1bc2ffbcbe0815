// Package joules keeps the books of energy: what each group and lgpu has used of each device, and what went to nobody.
// A Ledger is told what package policy/energy has divided; what a directory has used that is removed goes to its parent,
// so that the sum of the tree never falls.
package joules

import (
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/energy"
)

// Key is a directory of the tree on a device; energy.Nobody is the ID of all who are in none.
type Key struct {
	ID     uint64
	Device gpu.UUID
}

// Amount is what a directory itself has used, without those below it but for what removed ones left.
type Amount struct {
	Energy uint64 // millijoules
	Power  uint32 // milliwatts, lately
}

// heirTime is how long energy may come for a directory that was removed: from one reading of a counter to the next.
const heirTime = time.Minute

// Ledger has the books. It may be used by any number of goroutines.
type Ledger struct {
	mu      sync.Mutex
	energy  map[Key]uint64      // millijoules
	power   map[Key]uint32      // milliwatts, of those that draw any
	idle    map[gpu.UUID]uint32 // what a device draws without work, milliwatts; 0: not known. Its keys have counters
	heirs   map[uint64]heir
	changed map[uint64]bool // IDs of what Unsaved has to return
}

// heir is who gets what comes for a directory that is gone.
type heir struct {
	id    uint64
	until time.Time
}

// New returns a Ledger with what was saved. What is in the books of directories that do not exist goes to root: they were
// removed when no daemon could write that down.
func New(saved []store.Energy, root uint64, exists func(id uint64) bool) *Ledger {
	l := &Ledger{
		energy: map[Key]uint64{}, power: map[Key]uint32{}, idle: map[gpu.UUID]uint32{}, heirs: map[uint64]heir{},
		changed: map[uint64]bool{},
	}
	for _, e := range saved {
		id := e.ID
		if id != energy.Nobody && !exists(id) {
			id = root
			l.changed[root], l.changed[e.ID] = true, true
		}
		for _, d := range e.Devices {
			l.energy[Key{id, d.Device}] += d.Energy
			if id == energy.Nobody {
				l.idle[d.Device] = d.Idle
			}
		}
	}
	return l
}

// Idle is what a device was last known to draw without work, in milliwatts; 0 if that is not known.
func (l *Ledger) Idle(device gpu.UUID) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.idle[device]
}

// Add enters what was used of a device, and the present power of everybody, of which m knows.
func (l *Ledger) Add(device gpu.UUID, shares []energy.Share, m *energy.Meter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.idle[device]; !known {
		l.changed[energy.Nobody] = true
	}
	l.idle[device] = m.Idle()
	for k := range l.power {
		if k.Device != device {
			continue
		}
		if l.power[k] = m.Power(k.ID); l.power[k] == 0 {
			delete(l.power, k)
		}
	}
	for _, s := range shares {
		if s.Energy == 0 {
			continue
		}
		k := Key{l.heir(s.ID), device}
		l.energy[k] += s.Energy
		l.power[k] = m.Power(k.ID)
		l.changed[k.ID] = true
	}
}

// heir is who gets what a directory has used. Called with mu held.
func (l *Ledger) heir(id uint64) uint64 {
	for h, gone := l.heirs[id]; gone; h, gone = l.heirs[id] {
		id = h.id
	}
	return id
}

// Inherit gives what a removed directory has used to its parent, and what is still to come.
func (l *Ledger) Inherit(parent, gone uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, h := range l.heirs {
		if time.Now().After(h.until) {
			delete(l.heirs, id)
		}
	}
	l.heirs[gone] = heir{parent, time.Now().Add(heirTime)}
	for device := range l.idle {
		k := Key{gone, device}
		used, has := l.energy[k]
		if !has {
			continue
		}
		delete(l.energy, k)
		delete(l.power, k)
		to := Key{l.heir(parent), device}
		l.energy[to] += used
		l.changed[to.ID], l.changed[gone] = true, true
	}
}

// Of is what a directory itself has used of a device, and whether the device has a counter.
func (l *Ledger) Of(k Key) (Amount, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, counted := l.idle[k.Device]
	return Amount{l.energy[k], l.power[k]}, counted
}

// Unsaved returns the records that differ from those of the call before. One without devices is to be deleted.
func (l *Ledger) Unsaved() []store.Energy {
	l.mu.Lock()
	defer l.mu.Unlock()
	var records []store.Energy
	for id := range l.changed {
		e := store.Energy{ID: id}
		for device, idle := range l.idle {
			used, has := l.energy[Key{id, device}]
			switch {
			case id == energy.Nobody:
				e.Devices = append(e.Devices, store.DeviceEnergy{Device: device, Energy: used, Idle: idle})
			case has:
				e.Devices = append(e.Devices, store.DeviceEnergy{Device: device, Energy: used})
			}
		}
		slices.SortFunc(e.Devices, func(a, b store.DeviceEnergy) int { return slices.Compare(a.Device[:], b.Device[:]) })
		records = append(records, e)
	}
	clear(l.changed)
	return records
}

// Again has Unsaved return records once more, which could not be saved.
func (l *Ledger) Again(records []store.Energy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range records {
		l.changed[e.ID] = true
	}
}
