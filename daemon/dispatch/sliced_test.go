package dispatch

import (
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// shortSlice is what the policy gives to those that keep a device busy, in µs.
const shortSlice = 50

// On a device that preempts, an lgpu that uses it all the time has a short slice of the hardware, its later processes
// too, and one that does not is let in beside it at once.
func TestGuest(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}, 2: {}})
	if err := r.SetDevice(card, false, schedule.Options{Preempt: true}); err != nil {
		t.Fatal(err)
	}
	a, b := r.seat(1), r.seat(2)
	a.expect(t, protocol.Free)
	a.expect(t, protocol.Open)
	began := now()
	a.always(true)
	told := func() *protocol.Message {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			// As the daemon does now and then: the policy sees how far it is.
			r.Ran(card, []gpu.Turn{{PID: 1, Start: began, End: now(), Unfinished: true}})
			select {
			case m := <-a.news:
				if m.Kind == protocol.Slice {
					return &m.Message
				}
			case <-time.After(5 * time.Millisecond):
			}
		}
		return nil
	}
	if m := told(); m == nil {
		t.Fatal("it works all the time and keeps the slice of the driver")
	} else if m.Value != shortSlice {
		t.Fatalf("it works all the time and is told %+v", m)
	}
	a.always(false)
	a2 := r.seat(1)
	if m := a2.expect(t, protocol.Slice); m.Value != shortSlice {
		t.Errorf("a second process is told %+v", m)
	}
	r.gone(a2)
	a.until(t, protocol.Close) // it is no guest any more, and takes turns
	r.closed(a, a.closed(protocol.FlagWaiting))
	if m := a.until(t, protocol.Open); m.Flags&protocol.FlagPatient == 0 {
		t.Errorf("in its turn it is told %+v", m)
	}
	r.want(b)
	if m := b.until(t, protocol.Open); m.Flags != protocol.FlagPatient|protocol.FlagNoted {
		t.Errorf("beside it, one that has been idle is told %+v", m)
	}
	if !a.running() {
		t.Error("the one that had the device has not any more")
	}
	if err := r.SetDevice(card, false, schedule.Options{}); err != nil {
		t.Fatal(err)
	}
	if m := a.until(t, protocol.Slice); m.Value != 0 {
		t.Errorf("where there are no guests any more, it is told %+v", m)
	}
}

// A client that lengthens its slice is reported, once each time, and not what it says before it could know.
func TestResliced(t *testing.T) {
	var reports []time.Duration
	r := newRig(t, map[uint64]Params{1: {}})
	r.config.Resliced = func(lgpu uint64, device gpu.UUID, pid int, found time.Duration) {
		if lgpu != 1 || device != card || pid != 1 {
			t.Errorf("reported lgpu %d, device %s, process %d", lgpu, device, pid)
		}
		reports = append(reports, found)
	}
	var again []time.Duration
	r.config.Stayed = func(lgpu uint64, device gpu.UUID, turn, slice time.Duration) {
		if lgpu != 1 || device != card || slice != 50*time.Microsecond {
			t.Errorf("lgpu %d keeps device %s although it has %v", lgpu, device, slice)
		}
		again = append(again, turn)
	}
	a := r.seat(1)
	keeps := func(want bool) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if s := r.seatOf(a); s.keeps != want {
			t.Errorf("it is known to keep the device: %v", s.keeps)
		}
	}
	say := func(micros uint64, flags uint32) {
		r.sliced(a, protocol.Message{Kind: protocol.Sliced, Value: micros, Flags: flags})
	}
	say(1000, 0) // it was told nothing
	r.mu.Lock()
	r.clients[a].slice = shortSlice
	r.mu.Unlock()
	say(2048, 0) // it is on its way
	say(2048, protocol.FlagRefused)
	say(shortSlice, 0)
	say(0, 0)
	say(1_000_000, 0)
	say(1_000_000, 0)
	keeps(false) // that may have been by mistake
	say(shortSlice, 0)
	say(3_000, 0) // too soon for another report
	keeps(true)
	r.mu.Lock()
	r.clients[a].reported = 0
	r.mu.Unlock()
	say(shortSlice, 0)
	say(3_000, 0)
	if len(reports) != 2 || reports[0] != time.Second || reports[1] != 3*time.Millisecond {
		t.Errorf("reported %v", reports)
	}
	if len(again) != 1 || again[0] != 3*time.Millisecond {
		t.Errorf("again and again: %v", again)
	}
	r.mu.Lock()
	r.seatOf(a).preempted(now()+leave, r.policy)
	r.mu.Unlock()
	keeps(false)
	r.gone(a)
	say(5_000, 0) // of one that has gone
	if len(reports) != 2 {
		t.Errorf("reported %v", reports)
	}
}
