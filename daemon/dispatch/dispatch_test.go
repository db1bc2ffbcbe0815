package dispatch

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/protocol"
)

var card = gpu.UUID{1}

// fake is a client's seat: it keeps what was sent to it, and the state of the grant that the interposer would keep.
type fake struct {
	lgpu uint64
	uuid gpu.UUID
	pid  int // 0: as lgpu

	mu      sync.Mutex
	busy    uint64
	since   int64 // when it began to work all the time; 0: it does not
	beats   int
	news    chan heard
	granted bool
	free    bool
	serial  uint64
	opened  time.Time // when the last Open came
}

func (f *fake) LGPU() uint64   { return f.lgpu }
func (f *fake) UUID() [16]byte { return f.uuid }
func (f *fake) Peer() tenant.Peer {
	pid := f.pid
	if pid == 0 {
		pid = int(f.lgpu)
	}
	return tenant.Peer{Process: tenant.Process{PID: pid}}
}

func (f *fake) Busy() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.worksTo(now())
}

// worksTo is how long it has kept the device busy up to a time. Called with mu held.
func (f *fake) worksTo(t int64) uint64 {
	if f.since == 0 {
		return f.busy
	}
	return f.busy + uint64(t-f.since)
}

// always has it keep the device busy from now on, however seldom this program runs, or no more.
func (f *fake) always(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := now()
	f.busy, f.since = f.worksTo(t), 0
	if on {
		f.since = t
	}
}

func (f *fake) Launches() uint64 { return f.Busy() / 1000 }

func (f *fake) Beat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats++
}

func (f *fake) beaten() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.beats
}

func (f *fake) Send(m protocol.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m.Kind {
	case protocol.Slice:
	case protocol.Free:
		f.free, f.granted = true, false
	case protocol.Close:
		f.granted = f.granted || f.free
		f.free = false
		f.serial = m.Serial
	default:
		f.free, f.granted, f.serial = false, true, m.Serial
	}
	late := m.Kind == protocol.Close && !f.opened.IsZero() && time.Since(f.opened) > slice
	if m.Kind == protocol.Open {
		f.opened = time.Now()
	}
	f.news <- heard{m, late}
}

// heard is a message. A Close is late if the slice is over: on a busy machine a test may take that long where it
// expects none.
type heard struct {
	protocol.Message
	late bool
}

// work keeps the device busy.
func (f *fake) work(d time.Duration) {
	for start := now(); now() < start+int64(d); {
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy += uint64(d)
}

// worked says that the device was busy, without the time that it takes.
func (f *fake) worked(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy += uint64(d)
}

func (f *fake) running() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.granted
}

func (f *fake) closed(flags uint32) protocol.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.granted = false
	return protocol.Message{Kind: protocol.Closed, Serial: f.serial, Flags: flags, Value: f.busy}
}

// expect waits for the next message, which must be of that kind.
func (f *fake) expect(t *testing.T, kind uint16) protocol.Message {
	t.Helper()
	return f.hear(t, kind, false)
}

// until waits for a message of that kind. How long work takes on a busy host decides what comes before it.
func (f *fake) until(t *testing.T, kind uint16) protocol.Message {
	t.Helper()
	return f.hear(t, kind, true)
}

// hear waits for a message of that kind, after others only if any may come before.
func (f *fake) hear(t *testing.T, kind uint16, any bool) protocol.Message {
	t.Helper()
	for end := time.After(10 * time.Second); ; {
		select {
		case m := <-f.news:
			if m.Kind == kind {
				return m.Message
			}
			if !m.late && !any {
				t.Fatalf("lgpu %d was told %+v; want kind %d", f.lgpu, m, kind)
			}
		case <-end:
			t.Fatalf("lgpu %d was told nothing; want kind %d", f.lgpu, kind)
		}
	}
}

// quiet checks that nothing has been said.
func (f *fake) quiet(t *testing.T) {
	t.Helper()
	for {
		select {
		case m := <-f.news:
			if !m.late {
				t.Fatalf("lgpu %d was told %+v; want nothing", f.lgpu, m)
			}
		default:
			return
		}
	}
}

// slice is how long an lgpu has the device while another waits.
const slice = 10 * time.Millisecond

type rig struct {
	*Runner
	t      *testing.T
	slices chan Slice
}

func newRig(t *testing.T, params map[uint64]Params) rig {
	t.Helper()
	return newRigOf(t, slice, params)
}

// newRigOf is newRig with another length of a slice.
func newRigOf(t *testing.T, slice time.Duration, params map[uint64]Params) rig {
	t.Helper()
	r := rig{t: t, slices: make(chan Slice, 1000)}
	var err error
	r.Runner, err = New(Config{Options: schedule.Options{Slice: int64(slice)}, Slice: func(s Slice) { r.slices <- s }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Runner.Close)
	for id, p := range params {
		if err := r.Set(id, p); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r rig) seat(lgpu uint64) *fake {
	f := &fake{lgpu: lgpu, uuid: card, news: make(chan heard, 100)}
	r.attach(f, protocol.Message{Kind: protocol.Gate})
	return f
}

// Alone and without a maximum a gate is free; when another comes it is closed, and they take turns.
func TestFreeUntilShared(t *testing.T) {
	const slice, work = time.Hour, 12 * time.Minute // no host is so busy that a slice ends by itself
	r := newRigOf(t, slice, map[uint64]Params{1: {}, 2: {}})
	a := r.seat(1)
	a.expect(t, protocol.Free)
	r.want(a) // it asked before it heard
	a.expect(t, protocol.Free)
	b := r.seat(2)
	if m := a.expect(t, protocol.Open); m.Flags != 0 { // accounts are kept from now on
		t.Errorf("beside an idle lgpu: %+v", m)
	}
	r.want(b)
	if m := a.expect(t, protocol.Open); m.Flags != protocol.FlagWanted || m.Value > a.Busy()+uint64(slice) {
		t.Errorf("beside a waiting lgpu: %+v", m)
	}
	b.quiet(t)
	a.worked(work)
	r.closed(a, a.closed(protocol.FlagWaiting))
	b.expect(t, protocol.Open)
	a.quiet(t)
	turns := map[*fake]int{}
	for runs, waits := b, a; turns[a]+turns[b] < 10; {
		waits.quiet(t)
		turns[runs]++
		runs.worked(work)
		r.closed(runs, runs.closed(protocol.FlagWaiting))
		if waits.running() {
			runs, waits = waits, runs
		}
		runs.expect(t, protocol.Open)
	}
	if turns[a] < 3 || turns[b] < 3 {
		t.Errorf("turns: %d and %d", turns[a], turns[b])
	}
	s := <-r.slices
	if s.LGPU != 1 || s.Device != card || s.Busy != int64(work) || s.End <= s.Start {
		t.Errorf("the first turn was %+v", s)
	}
	if have := r.Stats().Grants; have != 11 {
		t.Errorf("%d grants, want 11", have)
	}
}

// What lgpus use is told once: charged time, time without accounts, and that of lgpus that have gone.
func TestUsed(t *testing.T) {
	r := newRigOf(t, time.Hour, map[uint64]Params{1: {}, 2: {}}) // no slice ends by itself
	r.Used(card, nil)
	a := r.seat(1)
	a.expect(t, protocol.Free)
	b := r.seat(2)
	a.expect(t, protocol.Open)
	r.want(b)
	a.expect(t, protocol.Open)
	a.work(2 * time.Millisecond)
	r.closed(a, a.closed(protocol.FlagWaiting))
	b.expect(t, protocol.Open)
	sum := map[uint64]Used{}
	for _, u := range r.Used(card, nil) {
		sum[u.LGPU] = u
	}
	if u := sum[1]; !u.Here || u.Time < 2e6 || u.Free <= 0 {
		t.Errorf("the first has used %+v", u)
	}
	if u := sum[2]; !u.Here || u.Free != 0 {
		t.Errorf("the second has used %+v", u)
	}
	b.work(3 * time.Millisecond)
	r.gone(b)
	again := r.Used(card, nil)
	if len(again) != 2 || again[0].Time > again[1].Time || again[1].LGPU != 2 || again[1].Here || again[1].Time < 3e6 {
		t.Errorf("after the second has gone: %+v", again)
	}
	if last := r.Used(card, []Used{{LGPU: 7}}); len(last) != 2 || last[0].LGPU != 7 || last[1].LGPU != 1 || last[1].Time != 0 || last[1].Free <= 0 {
		t.Errorf("then: %+v", last)
	}
	r.Remove(1)
	if left := r.Used(card, nil); len(left) != 1 || left[0].LGPU != 1 || left[0].Here || left[0].Free <= 0 {
		t.Errorf("after the first was removed: %+v", left)
	}
	if none := r.Used(card, nil); len(none) != 0 {
		t.Errorf("nobody has used %+v", none)
	}
}

// The processes of an lgpu share its grant, one after the other; it is over when the last is done.
func TestProcessesShareAGrant(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}, 2: {}})
	a1, a2, b := r.seat(1), r.seat(1), r.seat(2)
	a1.expect(t, protocol.Free)
	a2.expect(t, protocol.Free)
	a1.expect(t, protocol.Open) // both were free; from now on they take turns
	a2.expect(t, protocol.Open)
	r.closed(a1, a1.closed(0))
	r.want(a1)
	if m := a2.expect(t, protocol.Open); m.Flags != protocol.FlagWanted {
		t.Errorf("beside a process of its own: %+v", m)
	}
	a1.quiet(t)
	r.closed(a2, a2.closed(0)) // it had nothing to do
	a1.expect(t, protocol.Open)
	r.want(a2)
	a1.expect(t, protocol.Open)
	// After its turn it is told to stop, and goes on after the other.
	a1.expect(t, protocol.Close)
	r.closed(a1, a1.closed(protocol.FlagWaiting))
	a2.expect(t, protocol.Open)
	a1.quiet(t)
	// One that does not stop is not waited for.
	a2.expect(t, protocol.Close)
	a1.expect(t, protocol.Open)
	// For another lgpu both must.
	r.want(b)
	a1.expect(t, protocol.Close) // they have had a slice
	r.closed(a1, a1.closed(0))
	b.quiet(t)
	r.closed(a2, a2.closed(0))
	b.expect(t, protocol.Open)
	// A process that dies while it runs leaves the device to the next.
	r.want(a1)
	b.expect(t, protocol.Open)
	r.gone(b)
	a1.expect(t, protocol.Free) // nobody else is left
}

// A seat that has nothing to run gives its part of a gang's grant back at once. Terms of it that were decided before do
// not bring it back: its client would run while the policy believes that it waits.
func TestTermsOfAnEndedGrant(t *testing.T) {
	other := gpu.UUID{2}
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: 5000, other: 5000}}})
	runs, rests := r.seat(1), &fake{lgpu: 1, uuid: other, news: make(chan heard, 100)}
	r.attach(rests, protocol.Message{Kind: protocol.Gate})
	r.mu.Lock()
	at, s := now()+100e6, r.seatOf(rests)
	r.clients[runs].waiting = true
	r.policy.Want(at, 1, r.seatOf(runs).device, 0)
	r.policy.Progress(at, 1, s.device, 10e6) // used before the grant, which becomes shorter
	var kinds []schedule.Kind
	for _, d := range r.policy.Decisions() {
		if d.Device == s.device {
			kinds = append(kinds, d.Kind)
		}
		r.carryOut(at, r.byID[1][slices.IndexFunc(r.byID[1], func(s *seat) bool { return s.device == d.Device })], d)
	}
	have := s.phase
	r.decide(at)
	r.mu.Unlock()
	if want := []schedule.Kind{schedule.Open, schedule.Extend}; !slices.Equal(kinds, want) {
		t.Fatalf("decisions %v, want %v", kinds, want)
	}
	if have != idle {
		t.Errorf("phase %d of a seat whose client waits for nothing, want %d", have, idle)
	}
	runs.expect(t, protocol.Open)
	rests.quiet(t)
}

// A client that had work in flight when the daemon came is not charged for it, and asks like any other after it.
func TestReconnect(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: 5000}}})
	a := &fake{lgpu: 1, uuid: card, news: make(chan heard, 100), granted: true}
	r.attach(a, protocol.Message{Kind: protocol.Gate, Flags: protocol.FlagRunning})
	a.quiet(t)
	r.closed(a, a.closed(protocol.FlagWaiting))
	m := a.expect(t, protocol.Open)
	if m.Value == protocol.Forever {
		t.Errorf("a capped lgpu was granted %+v", m)
	}
	r.closed(a, protocol.Message{Kind: protocol.Closed, Serial: m.Serial + 9}) // nonsense hurts nobody
	r.closed(a, a.closed(0))
}

// On a device in spatial mode every gate is free, and the mode stays while an lgpu is there.
func TestSpatial(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: 5000}}, 2: {}})
	if err := r.SetDevice(card, true, schedule.Options{}); err != nil {
		t.Fatal(err)
	}
	a, b := r.seat(1), r.seat(2)
	a.expect(t, protocol.Free)
	b.expect(t, protocol.Free)
	if err := r.SetDevice(card, false, schedule.Options{}); err == nil {
		t.Error("the mode changed under two lgpus")
	}
	r.gone(a)
	r.gone(b)
	if err := r.SetDevice(card, false, schedule.Options{}); err != nil {
		t.Error(err)
	}
}

// A maximum holds by the clock: an lgpu alone on its device gets its maximum, and a changed maximum at once.
func TestCapAlone(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: 2000}}})
	a := r.seat(1)
	start := time.Now()
	r.want(a)
	var granted time.Duration
	for time.Since(start) < 300*time.Millisecond {
		m := a.expect(t, protocol.Open)
		if d := time.Duration(m.Value - a.Busy()); d > 0 {
			granted += d
			a.work(d)
		}
		r.closed(a, a.closed(protocol.FlagWaiting))
	}
	if most := time.Since(start)/5 + 30*time.Millisecond; granted > most || granted < 40*time.Millisecond {
		t.Errorf("a cap of 20 %% let %v pass in %v", granted, time.Since(start))
	}
}

// A client that waits for its turn sees that the daemon lives, however long it waits.
func TestBeats(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: 1}}})
	waits := r.seat(1)
	r.want(waits)
	waits.expect(t, protocol.Open)
	waits.work(100 * time.Millisecond) // a debt of many seconds
	r.closed(waits, waits.closed(protocol.FlagWaiting))
	for before, deadline := waits.beaten(), time.Now().Add(20*time.Second); waits.beaten() < before+5; {
		if time.Now().After(deadline) {
			t.Fatalf("%d beats for who waits", waits.beaten()-before)
		}
		time.Sleep(time.Millisecond)
	}
	r.mu.Lock() // a daemon that hangs
	hung := waits.beaten()
	time.Sleep(3 * protocol.Beat)
	if n := waits.beaten() - hung; n > 1 { // one may have been on its way
		t.Errorf("a daemon that hangs beats %d times", n)
	}
	r.mu.Unlock()
}

// What a process has used by its own credit while the daemon hung counts when it comes back: no grant begins before all
// that was used is paid for.
func TestChargeAfterHang(t *testing.T) {
	const limit, burst, used = 5000, int64(20e6), 200 * time.Millisecond
	began := now()
	r := newRig(t, map[uint64]Params{1: {Max: map[gpu.UUID]uint32{card: limit}}})
	f := r.seat(1)
	r.want(f)
	f.expect(t, protocol.Open)
	for range used / time.Millisecond { // a debt, as the tenant counts it
		f.work(time.Millisecond)
	}
	r.closed(f, f.closed(protocol.FlagWaiting))
	r.mu.Lock() // the daemon hangs
	f.work(used)
	r.mu.Unlock()
	r.gone(f)
	again := &fake{lgpu: 1, uuid: card, busy: f.Busy(), news: make(chan heard, 100)}
	r.attach(again, protocol.Message{Kind: protocol.Gate, Flags: protocol.FlagRunning})
	r.closed(again, again.closed(protocol.FlagWaiting))
	again.expect(t, protocol.Open)
	if flown := (now() - began) * limit / int64(schedule.Whole); int64(again.Busy()) > burst+flown {
		t.Errorf("a grant after %v of use; %v of credit have flown in, and %v were there", time.Duration(again.Busy()),
			time.Duration(flown), time.Duration(burst))
	}
}
