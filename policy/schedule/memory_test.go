package schedule

import "testing"

// kinds returns the decisions about a seat since the last call.
func kinds(s *Scheduler, id ID) (all []Kind) {
	for _, d := range s.Decisions() {
		if d.ID == id {
			all = append(all, d.Kind)
		}
	}
	return all
}

// A seat whose memory is away is asked for when it is next, waits for it, and is opened once it is there.
func TestPrepareAndReady(t *testing.T) {
	m := newMachine(t, Options{})
	a := m.add(1, Params{}, 0, work{kernel: 100 * us})
	m.set(2, Params{})
	b := m.attach(2, 0, work{kernel: 100 * us})
	m.s.SetMemory(m.now, 2, 0, Away)
	m.run(second)
	if b.open || b.opens > 1 {
		t.Fatalf("opened %d times without its memory", b.opens)
	}
	before := a.closes
	m.run(5 * second)
	if a.closes != before || !a.open {
		t.Errorf("closed %d times for one that could not run", a.closes-before)
	}
	if order := m.s.Order(m.now, 0, nil); len(order) != 2 || order[0].ID != 2 || order[1].Lead < 4*second {
		t.Errorf("%+v", order) // the time of a is charged though nobody else could run
	}
	// b's memory comes: it has the device for as long as a had it.
	m.s.SetMemory(m.now, 1, 0, Away)
	m.decide()
	m.run(10 * ms)
	if a.open || !m.s.Resting(1) {
		t.Error("still open, and its memory is to leave")
	}
	m.s.SetMemory(m.now, 2, 0, Here)
	m.decide()
	if !b.open {
		t.Error("not opened with its memory there")
	}
}

func TestPrepareIsAskedOnce(t *testing.T) {
	s := New(Options{})
	for id := ID(1); id <= 3; id++ {
		_ = s.Set(0, id, Params{Class: Class(id / 3)}) // the third goes first
		_ = s.Attach(0, id, 0, 0)
		s.SetMemory(0, id, 0, Away)
	}
	s.Closed(0, 1, 0, 0, false) // it was alone for a moment
	s.Decisions()
	s.Want(second, 1, 0, 0)
	if got := kinds(s, 1); len(got) != 1 || got[0] != Prepare {
		t.Fatalf("%v", got)
	}
	s.Want(2*second, 2, 0, 0)
	s.Tick(3 * second)
	if got := s.Decisions(); len(got) != 0 {
		t.Errorf("%+v although nothing has changed", got)
	}
	s.Want(4*second, 3, 0, 0)
	if got := kinds(s, 3); len(got) != 1 || got[0] != Prepare {
		t.Errorf("%v for one that goes first", got)
	}
	s.SetMemory(5*second, 3, 0, Here)
	got := s.Decisions()
	if len(got) != 2 || got[0] != (Decision{Kind: Prepare, ID: 1}) || got[1].Kind != Open || got[1].ID != 3 {
		t.Errorf("%+v", got)
	}
}

// The time in which nobody can use the device is charged to whom the memory comes for, and only that.
func TestExposedTimeIsCharged(t *testing.T) {
	m := newMachine(t, Options{})
	a := m.add(1, Params{}, 0, work{kernel: 100 * us})
	m.add(2, Params{}, 0, work{kernel: 100 * us})
	m.s.SetMemory(m.now, 2, 0, Away)
	m.decide()
	m.run(second)
	m.s.SetMemory(m.now, 1, 0, Away)
	m.s.SetMemory(m.now, 2, 0, Coming)
	m.decide()
	m.run(700 * ms)
	if spent := m.s.Spent(m.now, 2, 0); spent < 690*ms || spent > 700*ms {
		t.Errorf("charged %d ms for 700 in which its memory came", spent/ms)
	}
	m.s.SetMemory(m.now, 1, 0, Here) // somebody can use it
	m.decide()
	before := m.s.Spent(m.now, 2, 0)
	m.run(500 * ms)
	if spent := m.s.Spent(m.now, 2, 0) - before; !a.open || spent != 0 {
		t.Errorf("charged %d ms while another one had the device", spent/ms)
	}
}

// One whose memory is away does not cut short whom it goes before, and is asked for at once.
func TestLatencyWaitsForItsMemory(t *testing.T) {
	m := newMachine(t, Options{})
	a := m.add(1, Params{}, 0, work{kernel: 100 * us})
	b := m.add(2, Params{Latency: true}, 0, work{kernel: 100 * us, burst: ms, think: 20 * ms})
	m.s.SetMemory(m.now, 2, 0, Away)
	m.decide()
	m.run(100 * ms)
	before := a.closes
	m.run(300 * ms)
	if a.closes != before || b.open {
		t.Errorf("closed %d times", a.closes-before)
	}
	m.s.SetMemory(m.now, 2, 0, Here)
	m.decide()
	m.run(5 * ms)
	if a.closes == before {
		t.Error("with its memory there it does not go first")
	}
}

// A gang is opened only when the memory of all of it is there.
func TestGangWaitsForAllItsMemory(t *testing.T) {
	m := newMachine(t, Options{})
	for id := ID(1); id <= 2; id++ {
		m.set(id, Params{Gang: "g"})
		m.attach(id, Device(id-1), work{kernel: 100 * us})
	}
	m.run(10 * ms)
	m.s.SetMemory(m.now, 2, 1, Away)
	m.decide()
	m.run(100 * ms)
	for id := ID(1); id <= 2; id++ {
		if m.tenants[id][Device(id-1)].open {
			t.Errorf("%d is open without the other's memory", id)
		}
	}
	if !m.s.Resting(1) || !m.s.Resting(2) {
		t.Error("not at rest")
	}
	m.s.SetMemory(m.now, 2, 1, Here)
	m.decide()
	m.run(10 * ms)
	for id := ID(1); id <= 2; id++ {
		if !m.tenants[id][Device(id-1)].open {
			t.Errorf("%d is not open with all memory there", id)
		}
	}
}

// One that is alone on its device gives its gate back when its memory is to leave; so does a guest.
func TestAwayClosesEveryGate(t *testing.T) {
	m := newMachine(t, Options{})
	a := m.add(1, Params{}, 0, work{kernel: 100 * us})
	if !a.free {
		t.Fatal("not free")
	}
	m.s.SetMemory(m.now, 1, 0, Away)
	m.decide()
	m.run(100 * ms)
	if a.open {
		t.Error("still open")
	}
	m.s.SetMemory(m.now, 1, 0, Here)
	m.decide()
	m.run(ms)
	if !a.free {
		t.Error("not free again")
	}

	s := New(Options{Preempt: true})
	for id := ID(1); id <= 2; id++ {
		_ = s.Set(0, id, Params{})
		_ = s.Attach(0, id, 0, 0)
		s.Want(ms, id, 0, 0)
	}
	if !s.tree.seat(2, 0).guest {
		t.Fatal("no guest")
	}
	s.Decisions()
	s.SetMemory(2*ms, 2, 0, Away)
	if got := kinds(s, 2); len(got) != 1 || got[0] != Close {
		t.Errorf("%v", got)
	}
	s.Closed(3*ms, 2, 0, 0, true)
	s.Tick(second)
	if got := kinds(s, 2); len(got) != 1 || got[0] != Prepare {
		t.Errorf("%v", got)
	}
}

func TestIdle(t *testing.T) {
	s := New(Options{})
	if _, ok := s.Idle(0, 1); ok {
		t.Error("known without seats")
	}
	for id := ID(1); id <= 2; id++ {
		_ = s.Set(0, id, Params{})
		_ = s.Attach(0, id, 0, 0)
	}
	s.Want(second, 1, 0, 0)
	s.Closed(second+5*ms, 1, 0, 5*ms, false)
	if idle, ok := s.Idle(2*second+5*ms, 1); !ok || idle != second {
		t.Errorf("%d ms", idle/ms)
	}
	s.Want(3*second, 2, 0, 0)
	s.SetMemory(3*second, 1, 0, Away)
	s.Want(3*second, 1, 0, 5*ms)
	if idle, _ := s.Idle(4*second, 1); idle != 0 {
		t.Errorf("%d ms, and it waits", idle/ms)
	}
}

// A guest that is ahead of one whose memory is away goes on: that one could not use the device. But it is charged for what
// it uses, so that the other one goes first once its memory is there; however small a part of the device that is, and whether
// its gate closes at each pause or stays open.
func TestGuestAheadOfOneThatIsAway(t *testing.T) {
	for _, each := range []int64{2 * ms, 4 * ms, 9 * ms} {
		for _, pauses := range []bool{true, false} {
			s := New(Options{Preempt: true})
			for id := ID(1); id <= 2; id++ {
				_ = s.Set(0, id, Params{})
				_ = s.Attach(0, id, 0, 0)
			}
			s.Closed(0, 1, 0, 0, false)
			s.SetMemory(ms, 2, 0, Away)
			s.Want(ms, 2, 0, 0)
			busy := int64(0)
			for now := 2 * ms; now < second; now += 10 * ms {
				s.Decisions()
				if pauses || busy == 0 {
					s.Want(now, 1, 0, busy)
					if got := kinds(s, 1); len(got) == 0 || got[0] != Open {
						t.Fatalf("not opened after %d ms: %v", busy/ms, got)
					}
				}
				busy += each
				s.Progress(now+each, 1, 0, busy)
				if pauses {
					s.Closed(now+each, 1, 0, busy, false)
				}
			}
			s.Want(second, 1, 0, busy)
			order := s.Order(second, 0, nil)
			if len(order) != 2 || order[0].ID != 2 || order[1].Lead < busy/2 {
				t.Errorf("%d ms of 10, pauses: %v: %+v", each/ms, pauses, order)
			}
		}
	}
}
