package joules

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/energy"
)

var (
	one, two = gpu.UUID{1}, gpu.UUID{2}
	all      = func(uint64) bool { return true }
)

// TestInherit: what a removed directory has used is its parent's, also what comes late, and that of a removed parent.
func TestInherit(t *testing.T) {
	l, m := New(nil, 1, all), energy.New(50_000)
	l.Add(one, []energy.Share{{ID: 3, Energy: 100}, {ID: 2, Energy: 10}, {ID: energy.Nobody, Energy: 1}}, m)
	l.Inherit(2, 3)
	l.Add(one, []energy.Share{{ID: 3, Energy: 5}}, m)
	l.Inherit(1, 2)
	l.Add(one, []energy.Share{{ID: 3, Energy: 6}}, m)
	for id, want := range map[uint64]uint64{energy.Nobody: 1, 1: 121, 2: 0, 3: 0} {
		if a, counted := l.Of(Key{id, one}); a.Energy != want || !counted {
			t.Errorf("%d has used %d mJ, want %d", id, a.Energy, want)
		}
	}
	if _, counted := l.Of(Key{1, two}); counted {
		t.Error("a device that was never read has a counter")
	}
}

// TestSave: the next ledger has what the one before saved, whatever was removed between, and records are written once.
func TestSave(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	saved := map[uint64]store.Energy{}
	var sum uint64
	exists := map[uint64]bool{1: true, 2: true, 3: true, 4: true}
	for range 50 {
		var records []store.Energy
		for _, e := range saved {
			records = append(records, e)
		}
		l, m := New(records, 1, func(id uint64) bool { return exists[id] }), energy.New(50_000)
		for range 20 {
			mj := r.Uint64N(1000)
			sum += mj
			l.Add([]gpu.UUID{one, two}[r.IntN(2)], []energy.Share{{ID: r.Uint64N(5), Energy: mj}}, m)
		}
		if gone := 2 + r.Uint64N(3); r.IntN(3) == 0 {
			exists[gone] = false
			if r.IntN(2) == 0 { // else the daemon died before it could tell
				l.Inherit(1, gone)
			}
		} else {
			exists[gone] = true
		}
		written := l.Unsaved()
		l.Again(written)
		if got := l.Unsaved(); len(got) != len(written) {
			t.Fatalf("%d records could not be saved, and %d are left", len(written), len(got))
		}
		if got := l.Unsaved(); len(got) != 0 {
			t.Fatalf("saved twice: %v", got)
		}
		for _, e := range written {
			if saved[e.ID] = e; len(e.Devices) == 0 {
				delete(saved, e.ID)
			}
		}
	}
	var total uint64
	for _, e := range saved {
		for _, d := range e.Devices {
			total += d.Energy
			if e.ID == energy.Nobody && d.Idle != 50_000 {
				t.Errorf("idle power %d", d.Idle)
			}
		}
	}
	if total != sum {
		t.Errorf("%d mJ were used and %d saved", sum, total)
	}
	l := New([]store.Energy{saved[0]}, 1, all)
	if l.Idle(one) != 50_000 || !reflect.DeepEqual(l.Unsaved(), []store.Energy(nil)) {
		t.Error("what was saved is not as it was")
	}
}
