package daemon

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/joules"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/energy"
	"github.com/lgpu/lgpu/policy/limits"
)

// Times of reading the devices' counters of energy. Each patrol of the police reads them, too.
const (
	energyPeriod = 100 * time.Millisecond // while several lgpus work on a device
	energyRest   = 2 * time.Second        // after which a device that they do not work on is read by the police alone
	energySave   = time.Minute            // between two writes of what was used
)

// energyBooks reads the devices' counters of energy and has it divided among lgpus.
type energyBooks struct {
	daemon  *Daemon
	ledger  *joules.Ledger // nil until the state was read
	history energyHistory
}

// wattmeter is what is known of the energy of one device.
type wattmeter struct {
	mu      sync.Mutex
	meter   *energy.Meter // guarded by mu, as what follows; nil before the first reading
	at      time.Time     // of the last reading
	work    work          // as the police has last seen it
	until   time.Time     // when a goroutine that reads often ends
	reading bool          // there is one
	used    []dispatch.Used
	uses    []energy.Use
}

// work is in which part of the last second processes used a device, by the driver's samples.
type work struct {
	all, strangers float64
	lgpus          map[uint64]float64 // all that have a process there
	known          bool               // lgpus and strangers are
}

// add notes a process of an lgpu, or of energy.Nobody.
func (w *work) add(lgpu uint64, p gpu.Process) {
	part := float64(max(p.Utilisation, 0)) / 100
	w.known = w.known && p.Utilisation >= 0
	if lgpu == energy.Nobody {
		w.strangers = min(w.strangers+part, 1)
		return
	}
	if w.lgpus == nil {
		w.lgpus = map[uint64]float64{}
	}
	w.lgpus[lgpu] = min(w.lgpus[lgpu]+part, 1)
}

// see takes what the police has seen of a device, and reads often from now on if several lgpus work there.
func (b *energyBooks) see(d *device, facts gpu.Facts, at time.Time, w work) {
	if facts.Energy == nil {
		return // it has no counter, as a MIG instance
	}
	if w.all = 1; facts.Utilisation >= 0 {
		w.all = float64(facts.Utilisation) / 100
	}
	m := &d.watts
	m.mu.Lock()
	defer m.mu.Unlock()
	m.work = w
	b.readLocked(d, *facts.Energy, at)
	if at.Before(m.until) && !m.reading && b.daemon.ctx.Err() == nil {
		m.reading = true
		b.daemon.work.Add(1)
		go func() { defer b.daemon.work.Done(); b.readOften(b.daemon.ctx, d) }()
	}
}

// readOften reads the counter of a device until lgpus do not work there together any more. The driver may hang: no lock
// is held meanwhile.
func (b *energyBooks) readOften(ctx context.Context, d *device) {
	tick := time.NewTicker(energyPeriod)
	defer tick.Stop()
	m := &d.watts
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		counter, at, err := d.origin.energy(d.UUID)
		m.mu.Lock()
		if err == nil {
			b.readLocked(d, counter, at)
		}
		if m.reading = err == nil && at.Before(m.until); !m.reading {
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
}

// readLocked divides what a device has drawn. Called with the wattmeter's mu held.
func (b *energyBooks) readLocked(d *device, counter uint64, at time.Time) {
	m := &d.watts
	passed := at.Sub(m.at)
	if m.meter == nil {
		m.meter = energy.New(b.ledger.Idle(d.UUID))
	} else if passed <= 0 {
		return // a reading that another has overtaken
	}
	m.at = at
	m.used, m.uses = b.daemon.gates.Used(d.UUID, m.used[:0]), m.uses[:0]
	spatial := b.daemon.modes.Mode(d.UUID) == mps.Spatial
	for lgpu := range m.work.lgpus { // a process that has launched nothing yet has no gate
		if !slices.ContainsFunc(m.used, func(u dispatch.Used) bool { return u.LGPU == lgpu }) {
			m.used = append(m.used, dispatch.Used{LGPU: lgpu, Here: true})
		}
	}
	for _, u := range m.used {
		use := energy.Use{ID: u.LGPU, Time: u.Time + int64(float64(u.Free)*m.work.of(u.LGPU, spatial))}
		dir, exists := b.daemon.tree.ByID(u.LGPU)
		e, has := dir.Device(d.Identity())
		if spatial && has && d.Units > 0 {
			use.Time = use.Time * int64(min(e.Units, d.Units)) / int64(d.Units)
		}
		if u.Here && exists {
			use.Weight = max(e.Weight, 1)
		}
		m.uses = append(m.uses, use)
	}
	if m.work.strangers > 0 {
		m.uses = append(m.uses, energy.Use{ID: energy.Nobody, Time: int64(m.work.strangers * float64(passed))})
	}
	working := 0
	for _, u := range m.uses {
		if u.Time > 0 {
			working++
		}
	}
	if working > 1 {
		m.until = at.Add(energyRest)
	}
	b.ledger.Add(d.UUID, m.meter.Read(at.UnixNano(), counter, m.uses), m.meter)
}

// of is in which part of the time an lgpu uses a device while it has no accounts. One that is alone there does all that
// is done there.
func (w *work) of(lgpu uint64, spatial bool) float64 {
	switch {
	case !spatial && w.strangers == 0:
		return w.all
	case w.known:
		return w.lgpus[lgpu]
	}
	return 1
}

// inherit gives what removed directories have used to those above them.
func (b *energyBooks) inherit(removed []uint64, before map[uint64]limits.DirectoryState) {
	if len(removed) == 0 {
		return
	}
	ids := make(map[string]uint64, len(before))
	for id, dir := range before {
		ids[dir.Path] = id
	}
	for i := len(removed) - 1; i >= 0; i-- { // a child's ID is above its parent's
		if dir, known := before[removed[i]]; known {
			b.ledger.Inherit(ids[path.Dir(dir.Path)], dir.ID)
		}
	}
}

// keep writes down what was used, until ctx ends.
func (b *energyBooks) keep(ctx context.Context) {
	every(ctx, energySave, func() {
		if err := b.save(); err != nil {
			b.daemon.log.Warn("what energy was used is not written down", "error", err)
		}
		if now := time.Now(); now.Sub(b.history.at) >= energyPoint || now.Before(b.history.at) {
			b.addPoint(now)
		}
	})
}

// close writes down what was used, and ends the history.
func (b *energyBooks) close() error {
	err := b.save()
	if b.history.disk != nil {
		err = errors.Join(err, b.history.disk.Close())
	}
	return err
}

// save writes down what was used since it was last called.
func (b *energyBooks) save() error {
	if b.ledger == nil {
		return nil
	}
	records := b.ledger.Unsaved()
	if len(records) == 0 {
		return nil
	}
	err := b.daemon.store.SaveEnergy(records)
	if err != nil {
		b.ledger.Again(records)
	}
	return err
}

// of is what a directory itself has used of a device; nil where the device has no counter.
func (b *energyBooks) of(id uint64, uuid gpu.UUID) (mj *uint64, mw *uint32) {
	a, counted := b.ledger.Of(joules.Key{ID: id, Device: uuid})
	if !counted {
		return nil, nil
	}
	return &a.Energy, &a.Power
}
