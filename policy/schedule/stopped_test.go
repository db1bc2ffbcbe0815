package schedule

import "testing"

// While the daemon does not run, programs share the device without it. Who had it in its turn then is not charged for more
// than its Busy says.
func TestNobodyKeepsTime(t *testing.T) {
	const most, stopped, used = Whole * 30 / 100, 2 * second, 300 * ms
	s := New(Options{})
	for id := range ID(2) {
		if err := s.Set(0, id+1, Params{Max: map[Device]uint32{0: most}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach(0, id+1, 0, 0); err != nil {
			t.Fatal(err)
		}
		s.Want(0, id+1, 0, 0)
	}
	holder := ID(0)
	for _, d := range s.Decisions() {
		if d.Kind == Open {
			holder = d.ID
		}
	}
	if holder == 0 {
		t.Fatal("the device was granted to nobody")
	}
	s.Closed(stopped, holder, 0, used, true)
	// Both have used their credit at most, and are paid up in used/30 %, plus that of a slice.
	for now := stopped; now < stopped+(used+DefaultSlice*5)*10/3; now += ms {
		s.Tick(now)
		for _, d := range s.Decisions() {
			if d.Kind != Open {
				continue
			}
			if d.ID == holder {
				return
			}
			s.Closed(now, d.ID, 0, 0, false)
		}
	}
	t.Error("it waits as if it had used the device while the daemon was stopped")
}

// A guest that the hardware notes nothing of is given no credit back: if nobody else had the device, it did not wait.
func TestNothingIsNoted(t *testing.T) {
	const most = Whole * 30 / 100
	s := New(Options{Preempt: true})
	for id := range ID(2) {
		if err := s.Set(0, id+1, Params{Max: map[Device]uint32{0: most}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach(0, id+1, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	var now, busy, until int64
	open := false
	s.Want(now, 1, 0, 0)
	for ; now < second/4; now += ms {
		if open {
			if busy += ms; busy >= until {
				open = false
				s.Closed(now, 1, 0, busy, true)
			}
		}
		s.Progress(now, 1, 0, busy)
		if now%(10*ms) == 0 {
			s.Measured(now, 0, []Ran{{ID: 1, Total: 0}, {ID: 2, Total: 0}})
		}
		s.Tick(now)
		for _, d := range s.Decisions() {
			switch {
			case d.ID != 1:
			case d.Kind == Open || d.Kind == Extend:
				open, until = true, d.Until
			case d.Kind == Close && open:
				open = false
				s.Closed(now, 1, 0, busy, true)
			}
		}
	}
	if got, most := busy, now*int64(most)/int64(Whole)+2*DefaultBurst; got > most {
		t.Errorf("at a cap of 30 %% it had the device for %d ms of %d", got/ms, now/ms)
	}
}
