package energy

import (
	"math/rand/v2"
	"testing"
)

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
				uses[i] = Use{ID: uint64(i) * uint64(1+r.IntN(2)), Time: r.Int64N(2e8) - 1e8}
				uses[i].Weight = uint32(r.IntN(3)) * uint32(r.IntN(10_000))
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

// TestHardly: what programs do now and then while they rest is no work that keeps the idle power from being learned.
func TestHardly(t *testing.T) {
	m := New(0)
	m.Read(0, 0, nil)
	for i := range int64(5) {
		m.Read((i+1)*1e9, uint64(i+1)*40_000, []Use{{ID: 1, Weight: 1, Time: 1e6}})
	}
	if m.Idle() != 40_000 {
		t.Errorf("idle power is %d mW", m.Idle())
	}
}

// TestAlone: three readings, about a second apart, tell the power of one who works alone, and a moment of work tells none.
func TestAlone(t *testing.T) {
	m := New(40_000)
	at, counter := int64(0), uint64(0)
	read := func(rise uint64, time int64) {
		at, counter = at+999*ms, counter+rise
		m.Read(at, counter, []Use{{ID: 1, Weight: 1, Time: time}})
	}
	read(0, 0)
	read(40_000, 0)
	read(41_000, 6*ms)
	if read(41_000, 6*ms); m.users[1].known {
		t.Errorf("a moment of work told %.0f mW", m.users[1].power)
	}
	read(40_000, 0)
	for range 3 {
		read(76_000, 900*ms)
	}
	if p := m.users[1].power; p < 39_000 || p > 41_000 {
		t.Errorf("the power is %.0f mW", p)
	}
}

// TestLate: what the counter rises by soon after the last work is that work's, and later it is not.
func TestLate(t *testing.T) {
	m := New(10_000)
	m.Read(0, 0, nil)
	here := []Use{{ID: 1, Weight: 1}, {ID: 2, Weight: 1}}
	m.Read(1e8, 1000, []Use{{ID: 1, Time: 1e8, Weight: 1}, {ID: 2, Weight: 1}}) // the half of 2000
	for i, want := range []uint64{1500, 1500, 1500, 1000, 1000} {
		at, counter := int64(i+2)*1e8, uint64(i)*2000+3000
		for _, s := range m.Read(at, counter, here) {
			if s.ID == 1 && s.Energy != want || s.ID == 2 && s.Energy != 2000-want {
				t.Errorf("lgpu %d is given %d mJ %d ms after the work", s.ID, s.Energy, (at-1e8)/ms)
			}
		}
	}
}

// TestSteps: a counter that did not rise between two readings, and then by so much more, gives no more to those who work.
func TestSteps(t *testing.T) {
	m := New(10_000)
	m.Read(0, 0, nil)
	uses := []Use{{ID: 1, Time: 1e8}, {ID: 2, Weight: 1}}
	for i := range int64(10) {
		m.Read((2*i+1)*1e8, uint64(i)*4000, uses)
		for _, s := range m.Read((2*i+2)*1e8, uint64(i)*4000+4000, uses) {
			if s.Energy != 2000 {
				t.Errorf("lgpu %d is given %d mJ of 4000 in 200 ms, want 2000", s.ID, s.Energy)
			}
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
