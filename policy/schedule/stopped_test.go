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

// Whose account may be coarse is told so while others use the device too, and only then: an lgpu that merely is there does not
// count, as nobody's work is noted for as long as it has none.
func TestBeside(t *testing.T) {
	const most = Whole * 40 / 100
	s := New(Options{Preempt: true})
	for id := range ID(2) {
		if err := s.Set(0, id+1, Params{Max: map[Device]uint32{0: most}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach(0, id+1, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	var busy, until, noted [3]int64
	var open, beside [3]bool
	wants := func(id ID, now int64) bool { return id == 1 || now/second == 0 || now/second == 3 }
	for now := int64(0); now < 4*second; now += ms {
		var ran []Ran
		for id := ID(1); id <= 2; id++ {
			switch {
			case open[id] && wants(id, now) && now/ms%2 == int64(id)%2: // each uses half of it
				busy[id], noted[id] = busy[id]+ms, noted[id]+ms
			case !open[id] && wants(id, now):
				s.Want(now, id, 0, busy[id])
			}
			if open[id] && (busy[id] >= until[id] || !wants(id, now)) {
				open[id] = false
				s.Closed(now, id, 0, busy[id], wants(id, now))
			}
			s.Progress(now, id, 0, busy[id])
			ran = append(ran, Ran{ID: id, Total: noted[id]})
		}
		if now%(10*ms) == 0 {
			s.Measured(now, 0, ran)
		}
		s.Tick(now)
		for _, d := range s.Decisions() {
			switch d.Kind {
			case Open, Extend:
				open[d.ID], until[d.ID], beside[d.ID] = true, d.Until, d.Beside
			case Close:
				if open[d.ID] {
					open[d.ID] = false
					s.Closed(now, d.ID, 0, busy[d.ID], wants(d.ID, now))
				}
			}
		}
		if part := now % second; part == second/2 && now/second != 1 { // in the second one it is still company for a while
			if want := now/second != 2; beside[1] != want {
				t.Errorf("after %d ms it was told %v", now/ms, beside[1])
			}
		}
	}
}
