package energy

import (
	"math"
	"math/rand/v2"
	"testing"
)

// load is an lgpu of a model of a device.
type load struct {
	id    uint64
	power float64 // milliwatts while it works
}

// model is a device whose counter is late, as real ones are.
type model struct {
	t       *testing.T
	meter   *Meter
	idle    float64 // milliwatts
	refresh int64   // ns between two refreshes of the counter
	now     int64
	energy  float64 // exact, millijoules
	counter uint64  // as of the last refresh
	got     map[uint64]uint64
	drawn   map[uint64]float64 // by work alone
}

const ms = 1_000_000

func newModel(t *testing.T, refresh int64) *model {
	m := &model{t: t, meter: New(0), idle: 80_000, refresh: refresh, got: map[uint64]uint64{}, drawn: map[uint64]float64{}}
	m.meter.Read(0, 0, nil)
	return m
}

// run lets loads take turns of some length until their times in a period are used up, and reads the counter.
func (m *model) run(period int64, loads []*load, times []int64) {
	uses := make([]Use, len(loads))
	end := m.now + period
	for i, l := range loads {
		uses[i] = Use{ID: l.id, Weight: 100, Time: times[i]}
		m.pass(times[i], l)
	}
	m.pass(end-m.now, nil)
	for _, s := range m.meter.Read(m.now, m.counter, uses) {
		m.got[s.ID] += s.Energy
	}
}

// pass lets time pass in which a load works, or nobody.
func (m *model) pass(ns int64, l *load) {
	for ns > 0 {
		step := min(ns, m.refresh-m.now%m.refresh)
		power := m.idle
		if l != nil {
			power += l.power
			m.drawn[l.id] += l.power * float64(step) / 1e9
		}
		m.energy += power * float64(step) / 1e9
		m.now += step
		ns -= step
		if m.now%m.refresh == 0 {
			m.counter = uint64(m.energy)
		}
	}
}

func (m *model) sum() (sum uint64) {
	for _, mj := range m.got {
		sum += mj
	}
	return sum
}

// near checks what an lgpu was given against what it used.
func (m *model) near(id uint64, want, tolerance float64) {
	m.t.Helper()
	if got := float64(m.got[id]); math.Abs(got-want) > tolerance*want {
		m.t.Errorf("lgpu %d: %.0f mJ, and it used %.0f", id, got, want)
	}
}

// TestUnlike: a hot and a cool load, whose powers are known from when one ran alone, are told apart while they share the
// device by any times; and the idle power is shared by weight.
func TestUnlike(t *testing.T) {
	for _, refresh := range []int64{1 * ms, 20 * ms, 100 * ms} {
		r := rand.New(rand.NewPCG(1, 2))
		m := newModel(t, refresh)
		hot, cool := &load{id: 1, power: 500_000}, &load{id: 2, power: 100_000}
		for range 30 {
			m.run(100*ms, nil, nil)
		}
		started := m.now
		both := []*load{hot, cool}
		for range 50 { // the cool one is there and does nothing
			m.run(100*ms, both, []int64{100 * ms, 0})
		}
		for range 600 {
			mine := 30*ms + r.Int64N(40*ms)
			m.run(100*ms, both, []int64{mine, 100*ms - mine})
		}
		standing := m.idle * float64(m.now-started) / 1e9 / 2
		m.near(hot.id, m.drawn[1]+standing, 0.03)
		m.near(cool.id, m.drawn[2]+standing, 0.06)
		if got := m.meter.Idle(); got < 78_000 || got > 82_000 {
			t.Errorf("idle power is %d mW", got)
		}
		if sum := m.sum(); sum != m.counter {
			t.Errorf("the sum is %d and the counter %d", sum, m.counter)
		}
		if p := float64(m.meter.Power(1) + m.meter.Power(2)); math.Abs(p-380_000) > 80_000 {
			t.Errorf("both draw %.0f mW now", p)
		}
	}
}

// TestExact: whatever is read, each rise of the counter is given away to the millijoule, or dropped whole.
func TestExact(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := New(uint32(r.IntN(2) * r.IntN(200_000)))
		at, counter := r.Int64N(1e12), r.Uint64N(1<<60)
		if got := m.Read(at, counter, nil); got != nil {
			t.Fatalf("the first reading gives %v", got)
		}
		for range 200 {
			uses := make([]Use, r.IntN(6))
			for i := range uses {
				uses[i] = Use{ID: uint64(i) * uint64(1+r.IntN(2)), Time: r.Int64N(2e8) - 1e8, Weight: uint32(r.IntN(3)) * uint32(r.IntN(10_000))}
				if i > 0 && uses[i].ID <= uses[i-1].ID {
					uses[i].ID = uses[i-1].ID + 1
				}
			}
			passed, rise := r.Int64N(2e9), r.Uint64N(1<<uint(r.IntN(18)))
			reset := r.IntN(20) == 0
			if reset {
				counter = r.Uint64N(counter)
			}
			at, counter = at+passed, counter+rise
			var sum uint64
			for _, s := range m.Read(at, counter, uses) {
				sum += s.Energy
			}
			switch {
			case passed == 0:
				counter -= rise // a reading of no time says nothing
			case reset || float64(rise) > most*float64(passed)/1e9:
				if sum != 0 {
					t.Fatalf("seed %d: a counter that begins anew gives %d", seed, sum)
				}
			case sum != rise:
				t.Fatalf("seed %d: %d given of %d", seed, sum, rise)
			}
		}
	}
}

// TestStanding: what the device draws without work is shared by weight, and nobody's while nobody is there; shares of
// less than a millijoule are not lost.
func TestStanding(t *testing.T) {
	m, got := New(0), map[uint64]uint64{}
	add := func(shares []Share) {
		for _, s := range shares {
			got[s.ID] += s.Energy
		}
	}
	m.Read(0, 0, nil)
	add(m.Read(1e9, 1000, nil))
	if got[Nobody] != 1000 || m.Idle() != 1000 {
		t.Fatalf("%v, idle %d mW", got, m.Idle())
	}
	for i := range int64(1000) {
		add(m.Read(1e9+(i+1)*ms, 1001+uint64(i), []Use{{ID: 1, Weight: 300}, {ID: 2, Weight: 100}}))
	}
	if got[1] < 749 || got[1] > 751 || got[2] != 1000-got[1] {
		t.Errorf("of 1000 mJ by 3:1: %v", got)
	}
}

// TestLate: what the counter rises by after the last work is that work's, and once only.
func TestLate(t *testing.T) {
	m := New(10_000)
	m.Read(0, 0, nil)
	here := []Use{{ID: 1, Weight: 1}, {ID: 2, Weight: 1}}
	m.Read(1e8, 1000, []Use{{ID: 1, Time: 1e8, Weight: 1}, {ID: 2, Weight: 1}}) // the half of 2000
	for _, s := range m.Read(2e8, 3000, here) {
		if want := map[uint64]uint64{1: 1500, 2: 500}[s.ID]; s.Energy != want {
			t.Errorf("lgpu %d is given %d mJ of what is late, want %d", s.ID, s.Energy, want)
		}
	}
	for _, s := range m.Read(3e8, 5000, here) {
		if s.Energy != 1000 {
			t.Errorf("then lgpu %d is given %d mJ, want 1000", s.ID, s.Energy)
		}
	}
}

// TestStrangers: a stranger's work is nobody's.
func TestStrangers(t *testing.T) {
	m := New(50_000)
	m.Read(0, 0, nil)
	for _, s := range m.Read(1e9, 350_000, []Use{{ID: 4, Weight: 100}, {ID: Nobody, Time: 1e9}}) {
		if want := map[uint64]uint64{4: 50_000, Nobody: 300_000}[s.ID]; s.Energy != want {
			t.Errorf("%d is given %d mJ, want %d", s.ID, s.Energy, want)
		}
	}
	for at := int64(2e9); at < 60e9; at += 1e9 {
		m.Read(at, 350_000, nil)
	}
	if m.Power(4) != 0 || m.users[4] != nil {
		t.Error("an lgpu that is gone is remembered")
	}
}
