package residence

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/policy/slot"
)

// town is a policy over a long time: programs come and go, take more and give back, compute and pause, are killed in the
// midst of moves, refuse, fall silent, lose the daemon and find another one.
type town struct {
	t       *testing.T
	r       *rand.Rand
	p       *Policy
	now     time.Time
	wake    time.Time // of the last Settle
	people  []*citizen
	last    uint64 // LGPU given
	budgets map[Device]uint64
	counts  struct{ came, keptOut, killed, moves, cut, refused, denied, unfit, silent, daemons, suspended int }
	longest time.Duration // from asking to computing
}

// citizen is the one client of an lgpu, on one device or on both.
type citizen struct {
	c         Client
	devices   []Device
	fixed     uint64             // bytes on each device that cannot leave, as those of contexts
	held      map[Device]uint64  // bytes that it has, those among them
	had       map[Device]uint64  // and before it asked for more
	given     map[Device]uint64  // the highest level that it has had
	there     map[Device]float64 // and those of them that are on the device
	order     map[Device]*Order  // that it carries out
	done      map[Device]time.Time
	silent    time.Time // until when it answers nothing
	away      time.Time // until when it has no daemon
	work      bool
	change    time.Time // when it does something else
	worked    time.Time // when it last had work
	ran       time.Duration
	asked     time.Time // since when it has waited, or zero
	suspended bool
}

const (
	gibibyte = uint64(1) << 30
	rate     = 50e9 // bytes a second that a move takes
	room     = 64 * gibibyte
	most     = 56 * gibibyte // of a citizen: more than there is beside what others keep
)

func newTown(t *testing.T, seed uint64) *town {
	w := &town{
		t: t, r: rand.New(rand.NewPCG(seed, 12)), p: New(Options{}), now: start,
		budgets: map[Device]uint64{gpu: room, other: room},
	}
	w.tell()
	return w
}

// tell says what a policy is to know that is new.
func (w *town) tell() {
	for d, bytes := range w.budgets {
		w.p.SetDevice(d, bytes, 0)
	}
	w.p.SetTurns(time.Second, 10*time.Second, 0)
}

func (w *town) some(least, most time.Duration) time.Duration {
	return least + time.Duration(w.r.Int64N(int64(most-least)))
}

// come is a new program, in a new lgpu. It goes again if there is no room for its contexts.
func (w *town) come() (stays bool) {
	w.last++
	c := &citizen{
		c: Client{LGPU: w.last}, fixed: w.r.Uint64N(2 * gibibyte), held: map[Device]uint64{}, had: map[Device]uint64{},
		given: map[Device]uint64{}, there: map[Device]float64{}, order: map[Device]*Order{},
		done: map[Device]time.Time{}, worked: w.now, change: w.now,
	}
	devices := []Device{gpu, other}
	if n := w.r.IntN(5); n < 4 {
		devices = devices[n%2:][:1]
	}
	c.devices = devices
	for _, d := range devices {
		w.p.Need(w.now, c.c, d, 0)
		if _, _, spoils := w.p.Spoils(c.c, d, c.fixed); spoils {
			w.counts.keptOut++
			w.p.Leave(c.c)
			return false
		}
		w.p.Fixed(w.now, c.c, d, c.fixed)
		w.more(c, d, c.fixed)
	}
	w.counts.came++
	w.people = append(w.people, c)
	return true
}

// more has a program ask for a level.
func (w *town) more(c *citizen, d Device, level uint64) {
	c.had[d], c.held[d] = c.held[d], level
	w.p.Need(w.now, c.c, d, level)
}

// act has a program do what it does next.
func (w *town) act(c *citizen) {
	c.change = w.now.Add(w.some(200*time.Millisecond, 30*time.Second))
	switch n := w.r.IntN(100); {
	case n < 4: // it is killed, or ends
		w.p.Leave(c.c)
		w.p.Remove(c.c.LGPU)
		w.people = slices.DeleteFunc(w.people, func(o *citizen) bool { return o == c })
		w.counts.killed++
		for _, o := range c.order {
			if o != nil {
				w.counts.cut++
			}
		}
		return
	case n < 6:
		c.silent = w.now.Add(w.some(time.Second, 40*time.Second))
		w.counts.silent++
	case n < 12:
		c.suspended = !c.suspended
		w.p.Suspend(w.now, c.c.LGPU, c.suspended)
		w.counts.suspended++
		c.asked = time.Time{}
	case n < 40 && c.away.IsZero():
		for _, d := range c.devices {
			if n%2 == 0 && c.order[d] == nil && c.there[d] == float64(c.held[d]) && c.held[d] > 0 { // it frees, as it may with all of it there
				c.held[d] = max(c.held[d]/2, c.fixed)
				c.there[d] = float64(c.held[d])
				w.p.Kept(w.now, c.c, d, 0, c.held[d], 0)
			} else if wants := min(c.held[d]+w.r.Uint64N(20*gibibyte), most); wants > c.held[d] {
				w.more(c, d, wants)
			}
		}
	default:
		c.work = !c.work
	}
	if c.suspended {
		c.change = w.now.Add(w.some(200*time.Millisecond, 5*time.Second))
	}
}

// daemon is another one that follows.
func (w *town) daemon() {
	w.counts.daemons++
	w.p = New(Options{Serial: uint64(w.now.Sub(start))})
	w.tell()
	for _, c := range w.people {
		for _, d := range c.devices {
			taken := uint64(c.there[d])
			if o := c.order[d]; o != nil {
				taken = max(taken, o.Level)
			}
			w.p.Restore(c.c, d, taken)
			c.order[d] = nil
		}
		w.p.Suspend(w.now, c.c.LGPU, c.suspended)
		c.away = w.now.Add(w.some(time.Millisecond, time.Second))
		c.asked = time.Time{}
	}
}

// back has a program find the new daemon.
func (w *town) back(c *citizen) {
	c.away = time.Time{}
	for _, d := range c.devices {
		w.p.Need(w.now, c.c, d, 0)
		w.p.Kept(w.now, c.c, d, 0, uint64(c.there[d]), 0)
		w.p.Fixed(w.now, c.c, d, c.fixed)
		w.p.Holds(c.c, d, c.held[d])
		if c.held[d] > 0 {
			w.p.Need(w.now, c.c, d, c.held[d])
		}
	}
}

// obey has the program that an order is for begin with it.
func (w *town) obey(o Order) {
	at := slices.IndexFunc(w.people, func(c *citizen) bool { return c.c == o.Client })
	if at < 0 {
		return
	}
	c := w.people[at]
	if o.Refused {
		w.counts.denied++
		if others := room - c.held[o.Device]; w.stay(c, o.Device) <= others {
			w.t.Fatalf("%v: %d bytes are refused, and there was room", w.now.Sub(start), c.held[o.Device])
		}
		c.held[o.Device] = c.had[o.Device]
		return
	}
	w.counts.moves++
	c.given[o.Device] = max(c.given[o.Device], o.Level)
	bytes := w.reach(c, o.Device, o.Level) - c.there[o.Device]
	c.order[o.Device] = &o
	c.done[o.Device] = w.now.Add(time.Duration(max(bytes, -bytes)/rate*1e9) + time.Millisecond)
}

// reach is what a program has on a device once it has done what it was told.
func (w *town) reach(c *citizen, d Device, level uint64) float64 {
	return max(float64(min(level, c.held[d])), min(c.there[d], float64(c.fixed)))
}

// stay is what others than a program have on a device that cannot leave.
func (w *town) stay(c *citizen, d Device) (bytes uint64) {
	for _, o := range w.people {
		if o != c && slices.Contains(o.devices, d) {
			bytes += o.fixed
		}
	}
	return bytes
}

// unfit reports whether a program cannot come back as things are, and has asked for nothing more than it has had.
func (w *town) unfit(c *citizen) bool {
	is := false
	for _, d := range c.devices {
		_, unfit := w.p.Unfit(c.c.LGPU, d)
		if is = is || unfit; c.held[d] > c.given[d] {
			return false
		}
	}
	return is
}

// answer is what a program says when it has done what it was told.
func (w *town) answer(c *citizen, d Device) {
	o := c.order[d]
	c.order[d] = nil
	if w.r.IntN(200) == 0 {
		w.counts.refused++
		c.there[d] = min(c.there[d], float64(o.Level)) + max(c.there[d]-float64(o.Level), 0)
		w.p.Kept(w.now, c.c, d, o.Serial, uint64(c.there[d]), 1)
		return
	}
	c.there[d] = w.reach(c, d, o.Level)
	w.p.Holds(c.c, d, c.held[d])
	w.p.Kept(w.now, c.c, d, o.Serial, uint64(c.there[d]), 0)
}

// computes reports whether a program has all of its memory, and its turn.
func (w *town) computes(c *citizen) bool {
	for _, d := range c.devices {
		if uint64(c.there[d]) < c.held[d] || c.order[d] != nil {
			return false
		}
	}
	return !c.suspended && w.p.Memory(c.c.LGPU) == Here
}

func (w *town) view() View {
	v := View{Idle: func(id uint64) time.Duration {
		for _, c := range w.people {
			if c.c.LGPU == id && !c.work {
				return w.now.Sub(c.worked)
			}
		}
		return 0
	}}
	least := time.Duration(-1)
	for _, c := range w.people {
		if c.work && (least < 0 || c.ran < least) {
			least = c.ran
		}
	}
	for _, c := range w.people {
		if c.work && !c.suspended {
			v.Order = append(v.Order, slot.Place{ID: c.c.LGPU, Lead: c.ran - least})
		}
	}
	slices.SortStableFunc(v.Order, func(a, b slot.Place) int { return cmp.Compare(a.Lead, b.Lead) })
	return v
}

// settle lets the policy and the programs talk, and looks at what must hold.
func (w *town) settle() {
	for round := 0; ; round++ {
		orders, next := w.p.Settle(w.now, w.view())
		if w.wake = next; round > 200 {
			w.t.Fatalf("%v: they never stop talking: %+v", w.now.Sub(start), orders)
		}
		for _, o := range orders {
			w.obey(o)
		}
		if len(orders) == 0 {
			break
		}
	}
	taken := map[Device]uint64{}
	for _, id := range w.p.LGPUs() {
		for _, s := range w.p.Seats(id) {
			taken[s.Device] += s.Taken
		}
	}
	for d, bytes := range taken {
		on := 0.0
		for _, c := range w.people {
			on += c.there[d]
		}
		if bytes > room || uint64(on) > bytes {
			w.t.Fatalf("%v: %d bytes are taken and %.0f there, of %d", w.now.Sub(start), bytes, on, room)
		}
	}
}

// next is the time at which something happens.
func (w *town) next() time.Time {
	at := w.now.Add(time.Second)
	sooner := func(t time.Time) {
		if t.After(w.now) && t.Before(at) {
			at = t
		}
	}
	sooner(w.wake)
	for _, c := range w.people {
		sooner(c.change)
		sooner(c.silent)
		sooner(c.away)
		for _, done := range c.done {
			sooner(done)
		}
	}
	return at
}

// pass lets time pass, in which those compute that can.
func (w *town) pass(at time.Time) {
	on := map[Device]int{}
	for _, c := range w.people {
		if c.work && w.computes(c) {
			for _, d := range c.devices {
				on[d]++
			}
		}
	}
	for _, c := range w.people {
		wants := c.work && !c.suspended && c.away.IsZero() && !w.now.Before(c.silent)
		switch {
		case !wants:
			c.asked = time.Time{}
		case w.computes(c):
			for _, d := range c.devices {
				c.ran += at.Sub(w.now) / time.Duration(on[d]*len(c.devices))
			}
			c.asked = time.Time{}
		case w.unfit(c):
			w.counts.unfit++
			c.asked = time.Time{}
		case c.asked.IsZero():
			c.asked = w.now
		default:
			w.longest = max(w.longest, w.now.Sub(c.asked))
		}
		if c.work {
			c.worked = at
		}
	}
	w.now = at
}

// Twelve hours of a machine on which programs that do not fit come and go: never is more given out than there is, all that
// want to compute do so before long, and nothing is remembered of those that are gone.
func TestTwelveHours(t *testing.T) {
	const people, patience = 8, 5 * time.Minute
	w := newTown(t, 1)
	hours := 12 * time.Hour
	if testing.Short() {
		hours = time.Hour
	}
	for w.now.Sub(start) < hours {
		w.pass(w.next())
		for _, c := range slices.Clone(w.people) {
			if !c.away.IsZero() && !w.now.Before(c.away) {
				w.back(c)
			}
			for _, d := range c.devices {
				if o := c.order[d]; o != nil && c.away.IsZero() && !w.now.Before(c.done[d]) && !w.now.Before(c.silent) {
					w.answer(c, d)
				}
			}
			if !w.now.Before(c.change) {
				w.act(c)
			}
		}
		for len(w.people) < people && w.come() {
		}
		if w.r.IntN(20000) == 0 {
			w.daemon()
		}
		w.settle()
		if w.longest > patience {
			t.Fatalf("%v: somebody has waited for %v", w.now.Sub(start), w.longest)
		}
	}
	t.Logf("%+v; the longest wait was %v; %+v", w.counts, w.longest, w.p.Stats())
	for _, c := range w.people {
		w.p.Leave(c.c)
		w.p.Remove(c.c.LGPU)
	}
	w.people = nil
	w.settle()
	if left := w.p.LGPUs(); len(left) != 0 {
		t.Errorf("of those that are gone the policy knows %v", left)
	}
}
