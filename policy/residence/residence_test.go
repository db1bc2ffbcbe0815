package residence

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	gpu   = Device{1}
	other = Device{2}
	start = time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
)

// machine is a policy with clients that do what they are told, after a while.
type machine struct {
	t       *testing.T
	p       *Policy
	now     time.Time
	next    time.Time
	idle    map[uint64]time.Duration
	latest  map[Client]Order
	refused map[Client]int
	orders  int
	silent  map[uint64]bool
	fixed   uint64
}

const turn = 5 * time.Second

func (m *machine) view() View {
	return View{Idle: func(id uint64) time.Duration { return m.idle[id] }}
}

func newMachine(t *testing.T, budget uint64) *machine {
	m := &machine{t: t, p: New(Options{}), now: start, idle: map[uint64]time.Duration{}, latest: map[Client]Order{},
		refused: map[Client]int{}, silent: map[uint64]bool{}}
	m.p.SetDevice(gpu, budget, 0)
	m.p.SetTurns(turn, turn, 0)
	return m
}

func of(id uint64) Client { return Client{LGPU: id} }

// A client may hold more than it has ever asked for, since its level had room: all of it comes back.
func TestHolds(t *testing.T) {
	m := newMachine(t, 100)
	m.p.Need(m.now, of(1), gpu, 80)
	m.settle()
	m.p.Kept(m.now, of(1), gpu, 0, 20, 0) // it has freed 60, and allocates 30 again
	m.p.Suspend(m.now, 1, true)
	orders, _ := m.p.Settle(m.now, View{Idle: func(uint64) time.Duration { return 0 }})
	if len(orders) != 1 || orders[0].Level != 0 {
		t.Fatalf("%+v", orders)
	}
	m.p.Holds(of(1), gpu, 50)
	m.p.Kept(m.now, of(1), gpu, orders[0].Serial, 0, 0)
	if s := m.p.Seats(1)[0]; s.Wanted != 50 || !s.Away {
		t.Errorf("%+v", s)
	}
	m.p.Suspend(m.now, 1, false)
	m.settle()
	if m.latest[of(1)].Level != 50 {
		t.Errorf("%+v", m.latest[of(1)])
	}
	m.p.Holds(of(1), gpu, 1<<63) // nobody holds more than the most that it was given
	m.p.Holds(of(2), gpu, 5)
	m.p.Holds(of(1), other, 5)
	if s := m.p.Seats(1); len(s) != 1 || s[0].Wanted != 80 {
		t.Errorf("%+v", s)
	}
}

// settle lets the policy and the clients talk until nobody says anything more.
func (m *machine) settle() {
	m.t.Helper()
	for round := 0; ; round++ {
		orders, next := m.p.Settle(m.now, m.view())
		m.next = next
		m.check()
		if len(orders) == 0 {
			return
		}
		if round > 100 {
			m.t.Fatalf("they never stop talking: %+v", orders)
		}
		for _, o := range orders {
			m.orders++
			if o.Refused {
				m.refused[o.Client]++
				continue
			}
			m.latest[o.Client] = o
			if !m.silent[o.Client.LGPU] {
				m.p.Kept(m.now, o.Client, o.Device, o.Serial, max(o.Level, m.fixed), 0)
			}
		}
	}
}

// check: never is more given out than there is.
func (m *machine) check() {
	m.t.Helper()
	for d, device := range m.p.devices {
		taken := uint64(0)
		for _, id := range m.p.LGPUs() {
			for _, s := range m.p.Seats(id) {
				if s.Level > s.Taken {
					m.t.Fatalf("level above what is taken: %+v", s)
				}
				if s.Device == d {
					taken += s.Taken
				}
			}
		}
		if taken+device.plain > device.budget {
			m.t.Fatalf("%d of %d taken", taken+device.plain, device.budget)
		}
	}
}

func (m *machine) need(id, level uint64) {
	m.t.Helper()
	m.p.Need(m.now, of(id), gpu, level)
	m.settle()
}

func (m *machine) wait(d time.Duration) {
	m.t.Helper()
	m.now = m.now.Add(d)
	m.settle()
}

func (m *machine) want(levels map[uint64]uint64) {
	m.t.Helper()
	for id, level := range levels {
		for _, s := range m.p.Seats(id) {
			if s.Device == gpu && s.Level != level {
				m.t.Errorf("%v: lgpu %d has level %d, not %d: %+v", m.now.Sub(start), id, s.Level, level, s)
			}
		}
	}
}

func TestNothingMovesWhenAllFits(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 40)
	m.need(2, 60)
	m.want(map[uint64]uint64{1: 40, 2: 60})
	for range 100 {
		m.wait(time.Second)
	}
	if m.orders != 2 || !m.next.IsZero() {
		t.Errorf("%d orders, next %v", m.orders, m.next)
	}
	m.p.Kept(m.now, of(1), gpu, 0, 10, 0) // it has freed 30
	m.need(1, 40)
	if m.orders != 3 {
		t.Errorf("%d orders after what was freed is wanted again", m.orders)
	}
}

func TestTurns(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 80)
	m.need(2, 80)
	m.want(map[uint64]uint64{1: 80, 2: 20}) // what there is room for comes ahead
	if got := m.next.Sub(m.now); got != turn {
		t.Errorf("looks again after %v", got)
	}
	m.wait(turn - 1)
	m.want(map[uint64]uint64{1: 80, 2: 20})
	for n := range uint64(6) {
		m.wait(1)
		has, waits := 1+(n+1)%2, 1+n%2
		m.want(map[uint64]uint64{has: 80, waits: 20})
		m.need(waits, 80)
		m.wait(turn - 1)
		m.want(map[uint64]uint64{has: 80, waits: 20})
	}
}

func TestWhoGivesWay(t *testing.T) {
	for _, c := range []struct {
		name  string
		idle  map[uint64]time.Duration
		gives uint64
	}{
		{"resident longest", nil, 1},
		{"without work", map[uint64]time.Duration{2: 2 * time.Second}, 2},
		{"longest without work", map[uint64]time.Duration{2: 2 * time.Second, 3: 3 * time.Second}, 3},
		{"hardly without work", map[uint64]time.Duration{3: time.Second / 2}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, 90)
			for id := uint64(1); id <= 3; id++ {
				m.need(id, 30)
				m.wait(time.Second)
			}
			m.wait(turn)
			m.idle = c.idle
			m.need(4, 20)
			for id := uint64(1); id <= 3; id++ {
				level := uint64(30)
				if id == c.gives {
					level = 10 // no more than is needed
				}
				m.want(map[uint64]uint64{id: level, 4: 20})
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 101)
	if m.refused[of(1)] != 1 {
		t.Error("more than there is was not refused")
	}
	m.p.SetDevice(gpu, 100, 30)
	m.need(2, 80)
	if m.refused[of(2)] != 1 {
		t.Error("more than others leave was not refused")
	}
	m.need(3, 60)
	m.p.Need(m.now, Client{LGPU: 3, Index: 1}, gpu, 20)
	m.settle()
	if m.refused[Client{LGPU: 3, Index: 1}] != 1 {
		t.Error("two clients of an lgpu that never fit together")
	}
	m.want(map[uint64]uint64{1: 0, 2: 0})
}

func TestSuspend(t *testing.T) {
	m := newMachine(t, 100)
	m.fixed = 5
	m.need(1, 60)
	m.p.Suspend(m.now, 1, true)
	m.settle()
	m.want(map[uint64]uint64{1: 0})
	if s := m.p.Seats(1)[0]; s.Taken != 5 || s.Resident != 5 || m.p.Waiting(1) {
		t.Errorf("what is fixed is not counted: %+v", s)
	}
	m.need(1, 60)
	m.p.Need(m.now, Client{LGPU: 1, Index: 1}, gpu, 10)
	m.settle()
	m.want(map[uint64]uint64{1: 0})
	m.p.Suspend(m.now, 1, false)
	m.settle()
	if a, b := m.p.Seats(1)[0], m.p.Seats(1)[1]; a.Level != 60 || b.Level != 10 {
		t.Errorf("resumed: %+v, %+v", a, b)
	}
}

// TestBusyClient: what a client cannot give is asked for again, and its room stays taken.
func TestBusyClient(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 60)
	m.silent[1] = true
	m.p.Suspend(m.now, 1, true)
	m.settle()
	m.p.Kept(m.now, of(1), gpu, m.latest[of(1)].Serial, 60, 7)
	m.settle()
	if s := m.p.Seats(1)[0]; s.Taken != 60 || s.Refused != 7 {
		t.Errorf("%+v", s)
	}
	m.silent[1] = false
	m.wait(DefaultRetry - 1)
	m.want(map[uint64]uint64{1: 60})
	m.wait(1)
	m.want(map[uint64]uint64{1: 0})
}

// TestSilentClient keeps its room, and others get the rest.
func TestSilentClient(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 60)
	m.wait(turn)
	m.silent[1] = true
	m.need(2, 70)
	if o := m.latest[of(1)]; o.Level != 30 {
		t.Fatalf("it was not asked: %+v", o)
	}
	m.need(3, 30)
	m.want(map[uint64]uint64{2: 0, 3: 0})
	m.wait(DefaultStuck)
	m.want(map[uint64]uint64{2: 0, 3: 30})
	if s := m.p.Seats(1)[0]; s.Taken != 60 {
		t.Errorf("its room is not taken: %+v", s)
	}
	m.p.Leave(of(1))
	m.settle()
	m.want(map[uint64]uint64{2: 70, 3: 30})
}

// TestWord: a client gets nothing by what it says that it has.
func TestWord(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 50)
	for _, serial := range []uint64{0, m.latest[of(1)].Serial, 99} {
		m.p.Kept(m.now, of(1), gpu, serial, 1<<63, 0)
		m.settle()
	}
	m.p.Kept(m.now, of(1), other, 0, 1<<63, 0)
	m.p.Kept(m.now, of(9), gpu, 3, 1<<63, 0)
	m.need(2, 50)
	m.want(map[uint64]uint64{1: 50, 2: 50})
}

// TestRestart: what clients of the daemon before had is taken until they say what they have, or die.
func TestRestart(t *testing.T) {
	m := newMachine(t, 100)
	m.p.Restore(of(1), gpu, 60)
	m.p.Restore(of(2), gpu, 30)
	m.need(3, 70)
	m.want(map[uint64]uint64{3: 0})
	m.p.Leave(of(2))
	m.settle()
	m.want(map[uint64]uint64{3: 0})
	m.p.Suspend(m.now, 1, true)
	m.p.Kept(m.now, of(1), gpu, 0, 60, 0)
	m.settle()
	m.want(map[uint64]uint64{1: 0, 3: 70})
	m.p.Lost(of(3))
	m.p.Kept(m.now, of(3), gpu, 0, 70, 0)
	before := m.orders
	m.settle()
	if m.orders != before+1 || m.latest[of(3)].Level != 70 {
		t.Error("who comes back does not hear its level")
	}
}

// TestUnknown: of a client that nobody knows, its word counts as taken, up to what there is.
func TestUnknown(t *testing.T) {
	m := newMachine(t, 100)
	m.p.Kept(m.now, of(1), gpu, 0, 1<<63, 0)
	m.need(2, 10)
	m.want(map[uint64]uint64{2: 10, 1: 90})
}

// TestTwoDevices: two that each have a half of what the other wants take turns with both.
func TestTwoDevices(t *testing.T) {
	m := newMachine(t, 100)
	m.p.SetDevice(other, 100, 0)
	ask := func(id uint64) {
		m.p.Need(m.now, of(id), gpu, 80)
		m.p.Need(m.now, of(id), other, 80)
		m.settle()
	}
	m.p.Need(m.now, of(1), gpu, 80)
	m.p.Need(m.now, of(2), other, 80)
	m.settle()
	got := map[uint64]int{}
	for range 40 {
		for id := uint64(1); id <= 2; id++ {
			if s := m.p.Seats(id); len(s) == 2 && s[0].Level == 80 && s[1].Level == 80 {
				got[id]++
			} else {
				ask(id)
			}
		}
		m.wait(time.Second)
	}
	if got[1] < 15 || got[2] < 15 {
		t.Errorf("turns of both devices: %v", got)
	}
}

// TestLessBudget: when there is less than was given, memory leaves at once.
func TestLessBudget(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 40)
	m.need(2, 40)
	m.p.SetDevice(gpu, 100, 50)
	orders, _ := m.p.Settle(m.now, View{Idle: func(uint64) time.Duration { return 0 }})
	if len(orders) != 1 || orders[0].Level != 10 || orders[0].Client != of(1) {
		t.Fatalf("%+v", orders)
	}
	m.p.Kept(m.now, of(1), gpu, orders[0].Serial, 10, 0)
	m.settle()
	m.p.Need(m.now, of(1), gpu, 40) // it had that, so it waits
	m.settle()
	if m.refused[of(1)] != 0 {
		t.Error("what it had is refused")
	}
}

// What others keep on a device though all has to leave is not there to be given. Who asks for it is refused as soon as that
// is known, and does not wait for ever; who had it before comes back when they have ended.
func TestWhatStays(t *testing.T) {
	m := newMachine(t, 100)
	m.fixed = 10
	for id := uint64(1); id <= 4; id++ {
		m.need(id, 20)
	}
	m.need(1, 75) // that the others keep 10 each is not known yet
	for range 8 {
		m.wait(turn)
	}
	if m.refused[of(1)] != 1 || m.refused[of(2)]+m.refused[of(3)]+m.refused[of(4)] != 0 {
		t.Errorf("refused: %v", m.refused)
	}
	m.need(2, 71)
	if m.refused[of(2)] != 1 {
		t.Errorf("refused: %v", m.refused)
	}
	m.need(2, 70)
	for range 8 {
		m.wait(turn)
	}
	if s := m.p.Seats(2)[0]; m.refused[of(2)] != 1 || s.Wanted != 70 || s.Level != 70 && s.Level != 10 && s.Level != 0 {
		t.Errorf("%+v; refused: %v", s, m.refused)
	}
	for id := uint64(1); id <= 4; id++ {
		if budget, unfit := m.p.Unfit(id, gpu); unfit {
			t.Errorf("lgpu %d would need %d", id, budget)
		}
	}
	m.need(5, 20) // a fifth one: 70 does not fit beside four
	m.need(2, 70)
	for range 10 {
		m.wait(turn)
	}
	if budget, unfit := m.p.Unfit(2, gpu); !unfit || budget != 110 {
		t.Errorf("lgpu 2 would need %d, unfit: %v", budget, unfit)
	}
	m.p.Leave(of(5))
	m.wait(turn)
	if budget, unfit := m.p.Unfit(2, gpu); unfit {
		t.Errorf("lgpu 2 would need %d", budget)
	}
}

// A context that would leave an lgpu unfit which was not is let in nowhere; what fits is. An lgpu that is suspended, and one
// that is unfit already, keep nobody out.
func TestSpoils(t *testing.T) {
	m := newMachine(t, 100)
	spoils := func(id, bytes, want uint64) {
		t.Helper()
		unfit, budget, is := m.p.Spoils(of(id), gpu, bytes)
		if unfit != want || is != (want != 0) || is && budget <= m.p.devices[gpu].budget {
			t.Errorf("%d of lgpu %d: %d, %d, %v; want %d", bytes, id, unfit, budget, is, want)
		}
	}
	m.p.Fixed(m.now, of(1), gpu, 10)
	m.need(1, 80)
	spoils(2, 20, 0)
	spoils(2, 21, 1)
	m.p.Need(m.now, of(2), gpu, 0)
	m.p.Fixed(m.now, of(2), gpu, 15) // it has no level yet
	spoils(3, 5, 0)
	spoils(3, 6, 1)
	spoils(2, 20, 0)
	m.settle()
	m.want(map[uint64]uint64{1: 80, 2: 15})
	spoils(2, 101, 1)
	spoils(1, 86, 1) // its own
	m.p.Suspend(m.now, 1, true)
	spoils(3, 6, 0)
	spoils(3, 75, 0)
	spoils(3, 76, 2)
	spoils(3, 1<<63, 2)
	m.p.Suspend(m.now, 1, false)
	m.p.SetDevice(gpu, 90, 0) // lgpu 1 is unfit
	spoils(3, 6, 0)
	spoils(3, 65, 0)
	spoils(3, 66, 2)
	m.p.SetDevice(gpu, 100, 0)
	m.settle()
	m.p.Need(m.now, of(1), gpu, 90)
	m.p.Least(of(1), gpu, 80) // it has asked for some to spare, which it does not hold
	m.settle()
	spoils(2, 20, 0)
	spoils(2, 21, 1)
	m.need(2, 90) // beside the 10 of lgpu 1, which are known though it never had to leave
	m.need(2, 91)
	if m.refused[of(2)] != 1 {
		t.Errorf("refused: %v", m.refused)
	}
}

// What a client has asked for to spare and does not hold is not waited for, once all has left the device.
func TestToSpare(t *testing.T) {
	m := newMachine(t, 100)
	m.need(1, 96)
	m.p.Least(of(1), gpu, 80)
	m.p.Suspend(m.now, 1, true)
	orders, _ := m.p.Settle(m.now, m.view())
	if len(orders) != 1 {
		t.Fatalf("%+v", orders)
	}
	m.p.Holds(of(1), gpu, 80)
	m.p.Kept(m.now, of(1), gpu, orders[0].Serial, 0, 0)
	m.need(2, 20)
	m.p.Suspend(m.now, 1, false)
	m.settle()
	m.want(map[uint64]uint64{1: 80, 2: 20})
}

// TestRandom: whatever happens, never is more given out than there is, and who could be served by turns is.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { random(t, rand.New(rand.NewPCG(seed, 13))) })
	}
}

func random(t *testing.T, r *rand.Rand) {
	m := newMachine(t, 100)
	var pending []Order
	served := 0
	const lgpus = 6
	for range 3000 {
		m.now = m.now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
		id := 1 + r.Uint64N(lgpus)
		switch r.IntN(8) {
		case 0, 1, 2:
			size := 10 + r.Uint64N(90)
			if s := m.p.Seats(id); len(s) == 1 && s[0].Wanted > 0 {
				size = s[0].Wanted
			}
			m.p.Need(m.now, of(id), gpu, size)
		case 3:
			m.idle[id] = time.Duration(r.IntN(4000)) * time.Millisecond
		case 4:
			if r.IntN(10) == 0 {
				m.p.Leave(of(id))
			}
		case 5:
			m.p.Suspend(m.now, id, r.IntN(3) == 0)
		case 6:
			m.p.Lost(of(id))
			if s := m.p.Seats(id); len(s) == 1 {
				m.p.Kept(m.now, of(id), gpu, 0, s[0].Resident, 0)
			}
		}
		orders, _ := m.p.Settle(m.now, m.view())
		pending = append(pending, orders...)
		m.check()
		for len(pending) > 0 && r.IntN(3) > 0 {
			o := pending[0]
			pending = pending[1:]
			if o.Refused {
				continue
			}
			why, resident := uint64(0), o.Level
			if r.IntN(10) == 0 {
				why, resident = 1, r.Uint64N(100)
			}
			m.p.Kept(m.now, o.Client, o.Device, o.Serial, resident, why)
			served++
		}
		m.check()
	}
	if served < 500 {
		t.Errorf("only %d orders", served)
	}
	// Now all behave, and all want: everybody gets a turn.
	for id := uint64(1); id <= lgpus; id++ {
		m.p.Suspend(m.now, id, false)
	}
	for _, o := range pending {
		m.p.Kept(m.now, o.Client, o.Device, o.Serial, o.Level, 0)
	}
	had := map[uint64]bool{}
	for range 6 * lgpus * 3 {
		for id := uint64(1); id <= lgpus; id++ {
			size := uint64(70)
			m.p.Need(m.now, of(id), gpu, size)
			if s := m.p.Seats(id); len(s) == 1 && s[0].Level >= size {
				had[id] = true
			}
		}
		m.settle()
		m.wait(time.Second)
	}
	if len(had) != lgpus {
		t.Errorf("only %v had a turn", had)
	}
}

// What a client says of its move frees what has left, if it speaks of the latest order: an older one may still bring memory
// back.
func TestWordInMidMove(t *testing.T) {
	m := newMachine(t, 100)
	if !m.p.Latest(of(1), gpu, 0) || m.p.Latest(of(1), gpu, 1) {
		t.Error("there was an order before there was a client")
	}
	m.need(1, 60)
	m.silent[1] = true
	m.p.Suspend(m.now, 1, true)
	m.settle()
	latest := m.latest[of(1)].Serial
	if !m.p.Latest(of(1), gpu, latest) || m.p.Latest(of(1), gpu, latest-1) || m.p.Latest(of(1), gpu, 0) {
		t.Error("another order than the latest is the latest")
	}
	m.p.Moving(m.now, of(1), gpu, latest-1, 20)
	if s := m.p.Seats(1)[0]; s.Taken != 60 {
		t.Errorf("by a word of an older order: %+v", s)
	}
	m.p.Moving(m.now, of(1), gpu, latest, 40)
	if s := m.p.Seats(1)[0]; s.Taken != 40 || s.Resident != 40 {
		t.Errorf("by a word of the latest order: %+v", s)
	}
}
