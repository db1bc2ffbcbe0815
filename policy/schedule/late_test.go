package schedule

import "testing"

// Busy comes late where a process has no processor to count in time: what it was at when it was last asked says little
// of the time since, and the maximum holds all the same.
func TestBusyComesLate(t *testing.T) {
	const most, ms = Whole * 30 / 100, int64(1e6)
	s := New(Options{})
	if err := s.Set(0, 1, Params{Max: map[Device]uint32{0: most}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(0, 1, 0, 0); err != nil {
		t.Fatal(err)
	}
	// Work is always there. The process counts what it has used every 30 ms, and ends its grant when it finds it spent;
	// the daemon looks every 2 ms.
	var now, used, counted, until int64
	open := false
	s.Want(now, 1, 0, 0)
	for ; now < 10*second; now += ms {
		if open {
			used += ms
		}
		if now%(30*ms) == 0 {
			counted = used
			if open && counted >= until {
				open = false
				s.Closed(now, 1, 0, counted, true)
			}
		}
		if now%(2*ms) == 0 {
			s.Progress(now, 1, 0, counted)
		}
		s.Tick(now)
		for _, d := range s.Decisions() {
			switch d.Kind {
			case Open, Extend:
				open, until = true, d.Until
			case Close:
				open, counted = false, used
				s.Closed(now, 1, 0, counted, true)
			}
		}
	}
	if got := 100 * used / now; got > 33 {
		t.Errorf("at a cap of 30 %% it got %d %%", got)
	}
}
