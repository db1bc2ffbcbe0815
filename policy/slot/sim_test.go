package slot

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	gib   = uint64(1) << 30
	link  = 50e9      // bytes a second, each way
	piece = 128 << 20 // by which those that tell do so
)

// world is devices and tenants in virtual time. A device runs one of those that are in at a time, by weight; each has a link
// of its own, which those that move share.
type world struct {
	p       *Policy
	now     time.Time
	tick    time.Duration
	room    map[Device]uint64
	guests  []*guest
	wake    time.Time
	changed bool
	plan    Plan
	lost    map[Device]time.Duration // somebody had work and nobody could compute
	moved   uint64
	plans   int
	last    uint64 // ID given
}

// guest is a tenant with its program.
type guest struct {
	id       uint64
	device   Device
	size     uint64
	level    uint64 // ordered
	taken    uint64
	resident float64
	moving   bool
	deaf     bool
	tells    bool // how far it is
	weight   float64
	work     time.Duration // still to be done; less than nothing is endless
	since    time.Time     // it waits
	worked   time.Time     // it last had work
	ran      time.Duration
	vt       float64 // seconds by weight, with the swaps that it was the cause of
	keeps    bool    // its gate stays open without work, until its memory is to leave
	open     int     // ticks until it is closed then
	load     func(g *guest, w *world)
}

func newWorld(o Options, devices int, room uint64) *world {
	w := &world{
		p: New(o), now: time.Unix(1000, 0), tick: time.Millisecond, room: map[Device]uint64{}, lost: map[Device]time.Duration{}, changed: true,
	}
	for d := range devices {
		w.room[Device{byte(d + 1)}] = room
	}
	return w
}

func (w *world) add(device int, size uint64, load func(*guest, *world)) *guest {
	w.last++
	g := &guest{
		id: w.last, device: Device{byte(device + 1)}, size: size, weight: 1, work: -1, load: load,
		worked: w.now, since: w.now,
	}
	if load != nil {
		g.work = 0
	}
	w.guests = append(w.guests, g)
	w.changed = true
	return g
}

// state is what the policy is told.
func (w *world) state() State {
	s := State{Room: w.room}
	for _, g := range w.guests {
		part := Part{Device: g.device, Size: g.size, Level: g.level, Taken: g.taken, Resident: uint64(g.resident), Moving: g.moving, Tells: g.tells}
		s.Tenants = append(s.Tenants, Tenant{
			ID: g.id, Parts: []Part{part}, Waits: g.work != 0 && !w.plan.In[g.id], Since: g.since, Deaf: g.deaf,
			Idle: w.now.Sub(g.worked),
		})
	}
	first := map[Device]float64{}
	for _, g := range w.guests {
		if vt, had := first[g.device]; g.work != 0 && (!had || g.vt < vt) {
			first[g.device] = g.vt
		}
	}
	for _, g := range w.guests {
		if g.work != 0 || g.open > 0 {
			s.Order = append(s.Order, Place{ID: g.id, Lead: seconds(g.vt - first[g.device])})
		}
	}
	slices.SortStableFunc(s.Order, func(a, b Place) int { return cmp.Compare(a.Lead, b.Lead) })
	return s
}

// settle plans until nothing follows at once.
func (w *world) settle() {
	for w.changed || !w.wake.IsZero() && !w.now.Before(w.wake) {
		w.changed = false
		before := w.plan
		w.plan = w.p.Plan(w.now, w.state())
		w.plans++
		w.wake = w.plan.Wake
		for _, g := range w.guests {
			level := w.plan.Level[g.id][0]
			if before.In[g.id] && !w.plan.In[g.id] {
				g.since = w.now
			}
			if level != g.level && !g.deaf {
				g.level, g.moving, g.taken = level, true, max(g.taken, level)
			}
		}
	}
}

// step lets a tick pass.
func (w *world) step(t testing.TB) {
	for _, g := range w.guests {
		had := g.work != 0
		if g.load != nil {
			g.load(g, w)
		}
		if g.work != 0 {
			if !had {
				w.join(g)
			}
			g.worked = w.now
		}
	}
	w.settle()
	w.check(t)
	w.now = w.now.Add(w.tick)
	w.gates()
	w.move()
	w.compute()
}

// join has a guest that has work again claim nothing for the time in which it had none.
func (w *world) join(g *guest) {
	g.since, w.changed = w.now, true
	least, any := 0.0, false
	for _, o := range w.guests {
		if o != g && o.device == g.device && o.work != 0 && (!any || o.vt < least) {
			least, any = o.vt, true
		}
	}
	if any {
		g.vt = max(g.vt, least)
	}
}

// gates has gates open and close.
func (w *world) gates() {
	const closing = 3 // ticks
	for _, g := range w.guests {
		switch {
		case !g.keeps:
		case w.plan.In[g.id] && g.work != 0:
			g.open = closing
		case !w.plan.In[g.id] && g.open > 0:
			g.open--
			w.changed = true
		}
	}
}

// move copies for a tick.
func (w *world) move() {
	out, in := map[Device]int{}, map[Device]int{}
	for _, g := range w.guests {
		if g.moving && g.resident > float64(g.level) {
			out[g.device]++
		} else if g.moving && g.resident < float64(min(g.level, g.size)) {
			in[g.device]++
		}
	}
	for _, g := range w.guests {
		if !g.moving {
			continue
		}
		goal, before := float64(min(g.level, g.size)), g.resident
		if g.resident > goal {
			g.resident = max(goal, g.resident-link*w.tick.Seconds()/float64(out[g.device]))
		} else if g.resident < goal {
			g.resident = min(goal, g.resident+link*w.tick.Seconds()/float64(in[g.device]))
		}
		w.moved += uint64(max(g.resident-before, before-g.resident))
		if told := max(g.level, uint64(g.resident)); g.tells && g.taken > told+piece {
			g.taken, w.changed = told, true
		}
		if g.resident == goal {
			g.moving, g.taken, w.changed = false, g.level, true
		}
	}
}

// compute has each device compute for a tick.
func (w *world) compute() {
	for d := range w.room {
		var runs, coming *guest
		waiting := false
		for _, g := range w.guests {
			if g.device != d || g.work == 0 {
				continue
			}
			waiting = true
			if w.plan.In[g.id] && (runs == nil || g.vt < runs.vt) {
				runs = g
			}
			if w.plan.Coming[g.id] {
				coming = g
			}
		}
		switch {
		case runs != nil:
			runs.ran += w.tick
			runs.vt += w.tick.Seconds() / runs.weight
			if runs.work > 0 {
				if runs.work = max(runs.work-w.tick, 0); runs.work == 0 {
					w.changed = true
				}
			}
		case waiting:
			w.lost[d] += w.tick
			if coming != nil {
				coming.vt += w.tick.Seconds() / coming.weight
			}
		}
	}
}

// check: what is allowed never exceeds the room, and nobody computes who lacks something.
func (w *world) check(t testing.TB) {
	sum := map[Device]uint64{}
	for _, g := range w.guests {
		sum[g.device] += max(g.taken, g.level)
		if w.plan.In[g.id] && (uint64(g.resident) < g.size || g.moving) {
			t.Fatalf("%v: %d is in with %d of %d", w.now, g.id, uint64(g.resident), g.size)
		}
	}
	for d, bytes := range sum {
		if bytes > w.room[d] {
			t.Fatalf("%v: %d of %d are taken", w.now, bytes, w.room[d])
		}
	}
}

func (w *world) run(t testing.TB, d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.step(t)
	}
}

// unfair is by how many points at most the shares of a device's guests differ from equal ones. A share is the time that a
// guest has computed, and in which others could not since its memory came.
func (w *world) unfair() float64 {
	worst := 0.0
	for d := range w.room {
		var ran []float64
		sum := 0.0
		for _, g := range w.guests {
			if g.device == d {
				ran, sum = append(ran, g.vt), sum+g.vt
			}
		}
		for _, r := range ran {
			off := 100 * (r/sum - 1/float64(len(ran)))
			worst = max(worst, off, -off)
		}
	}
	return worst
}

func TestNothingMovesWhenAllFits(t *testing.T) {
	w := newWorld(Options{}, 1, 64*gib)
	w.add(0, 30*gib, nil)
	w.add(0, 30*gib, nil)
	w.run(t, 5*time.Second) // both come
	if w.moved != 60*gib {
		t.Fatalf("%d GiB have come", w.moved/gib)
	}
	w.run(t, 60*time.Second)
	if w.moved != 60*gib || w.unfair() > 2 || w.p.Stats().Switches != 0 {
		t.Errorf("%d bytes moved; unfair by %.1f points; %+v", w.moved-60*gib, w.unfair(), w.p.Stats())
	}
}

// Two that need 62 % of the room each: what does not fit beside the other is what a switch waits for.
func TestLoadsAhead(t *testing.T) {
	t.Run("in steps", func(t *testing.T) { loadsAhead(t, false) })
	t.Run("told of", func(t *testing.T) { loadsAhead(t, true) })
}

func loadsAhead(t *testing.T, tells bool) {
	w := newWorld(Options{}, 1, 64*gib)
	w.add(0, 40*gib, nil).tells = tells
	w.add(0, 40*gib, nil).tells = tells
	w.run(t, 200*time.Second)
	s := w.p.Stats()
	whole := seconds(float64(40*gib) / link)
	one := s.Waited / time.Duration(s.Switches)
	t.Logf("%d switches, each %v of %v; %+v", s.Switches, one, whole, s)
	if s.Switches < 5 || one > whole*45/100 || s.Exposed*100 > s.Size*45 {
		t.Errorf("%d switches, each %v of %v; %+v", s.Switches, one, whole, s)
	}
	if w.unfair() > 2 {
		t.Errorf("unfair by %.1f points", w.unfair())
	}
}

// Two that need 90 % of the room each, in turns of so many swaps: the total over what both take one after the other.
func TestOverSerial(t *testing.T) {
	for _, c := range []struct {
		swaps int
		most  float64
	}{{23, 1.06}, {8, 1.16}, {4, 1.30}} {
		room := 64 * gib
		swap := seconds(float64(room) * 0.9 / link)
		slice := time.Duration(c.swaps) * swap
		w := newWorld(Options{Min: slice, Max: slice}, 1, room)
		w.add(0, room*9/10, nil)
		w.add(0, room*9/10, nil)
		w.run(t, 12*(slice+swap))
		over := w.now.Sub(time.Unix(1000, 0)).Seconds() / (w.guests[0].ran + w.guests[1].ran).Seconds()
		t.Logf("slice of %d swaps: %.3f", c.swaps, over)
		if over > c.most {
			t.Errorf("slice of %d swaps: %.3f over serial, not %.2f", c.swaps, over, c.most)
		}
	}
}

func TestFourInTurn(t *testing.T) {
	w := newWorld(Options{}, 1, 32*gib)
	for range 4 {
		w.add(0, 28*gib, nil)
	}
	w.run(t, 10*time.Minute)
	t.Logf("unfair by %.2f points, %.1f %% lost, %+v", w.unfair(), 100*w.lost[Device{1}].Minutes()/10, w.p.Stats())
	if w.unfair() > 2 || w.lost[Device{1}] > time.Minute {
		t.Errorf("unfair by %.2f points, %v lost", w.unfair(), w.lost[Device{1}])
	}
}

// loads are kinds of programs.
var loads = []struct {
	name string
	make func(r *rand.Rand, i, n int) func(*guest, *world)
}{
	{"busy", func(*rand.Rand, int, int) func(*guest, *world) { return nil }},
	// Called one after the other, as servers behind one client: the next call comes when the one before has ended.
	{"in turn", func(_ *rand.Rand, i, n int) func(*guest, *world) {
		return func(g *guest, w *world) {
			at := w.guests[(int(g.id)-1)/n*n:][:n]
			if slices.ContainsFunc(at, func(o *guest) bool { return o.work != 0 }) {
				return
			}
			last := slices.MaxFunc(at, func(a, b *guest) int { return cmp.Or(a.worked.Compare(b.worked), cmp.Compare(a.id, b.id)) })
			if at[(slices.Index(at, last)+1)%n] == g {
				g.work = 400 * time.Millisecond
			}
		}
	}},
	{"random", func(r *rand.Rand, _, _ int) func(*guest, *world) {
		return func(g *guest, w *world) {
			if g.work == 0 && r.IntN(int(3*time.Second/w.tick)) == 0 {
				g.work = time.Duration(100+r.IntN(1900)) * time.Millisecond
			}
		}
	}},
	// Long jobs that come and go, of other sizes each time.
	{"churn", func(r *rand.Rand, _, _ int) func(*guest, *world) {
		return func(g *guest, w *world) {
			if g.work == 0 && r.IntN(int(20*time.Second/w.tick)) == 0 {
				g.work = time.Duration(5+r.IntN(20)) * time.Second
				w.last++
				*g = guest{id: w.last, device: g.device, size: uint64(2+r.IntN(20)) * gib, weight: 1, work: g.work, load: g.load, worked: w.now}
			}
		}
	}},
}

// TestDatacentre is 200 tenants on 16 devices, and prints what loading ahead is worth under each load. The oracle says who is
// called next; where several wait, the planned order says it.
func TestDatacentre(t *testing.T) {
	t.Logf("%-8s %-7s %8s %7s %7s %9s %8s %7s %7s %9s %8s", "load", "vote", "time", "works", "lost", "switches", "exposed",
		"hits", "wasted", "forced", "unfair")
	for _, load := range loads {
		for _, vote := range []string{"none", "vote", "oracle"} {
			long := 30 * time.Second
			switch {
			case vote == "oracle" && load.name != "in turn":
				continue
			case load.name == "busy" && vote == "vote":
				long = 3 * time.Minute
			case load.name == "busy":
				long = time.Minute
			}
			s := datacentre(t, load.name, vote, long, load.make)
			if s.Wasted*20 > s.Size {
				t.Errorf("%s, %s: %d of %d bytes were loaded in vain", load.name, vote, s.Wasted, s.Size)
			}
			switch hidden := 100 - percent(s.Exposed, s.Size); {
			case vote == "none" && hidden > 10: // what had not left yet
				t.Errorf("%s: %.0f %% were there without loading ahead", load.name, hidden)
			case vote != "none" && hidden < 8:
				t.Errorf("%s, %s: %.0f %% were there", load.name, vote, hidden)
			case load.name == "in turn" && vote != "none" && (hidden < 60 || percent(s.Hits, s.Switches) < 80):
				t.Errorf("%s, %s: %.0f %% were there, %.0f %% hits", load.name, vote, hidden, percent(s.Hits, s.Switches))
			}
		}
	}
}

// datacentre runs one load.
func datacentre(t *testing.T, name, vote string, long time.Duration, load func(*rand.Rand, int, int) func(*guest, *world)) Stats {
	const devices, per = 16, 200 / 16
	w := newWorld(Options{Blind: vote == "none", Max: 2 * time.Second}, devices, 32*gib)
	w.tick = 5 * time.Millisecond
	if vote == "oracle" {
		w.p.options.Oracle = w.oracle
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range devices * per {
		w.add(i/per, uint64(4+r.IntN(20))*gib, load(r, i, per))
	}
	w.run(t, long)
	s, ran, lost, unfair := w.p.Stats(), time.Duration(0), time.Duration(0), "-"
	for _, g := range w.guests {
		ran += g.ran
	}
	for _, l := range w.lost {
		lost += l
	}
	if name == "busy" && vote == "vote" {
		if unfair = fmt.Sprintf("%.2f", w.unfair()); w.unfair() > 2 {
			t.Errorf("unfair by %.2f points", w.unfair())
		}
	}
	all := devices * long.Seconds()
	t.Logf("%-8s %-7s %6.0f s %6.1f%% %6.1f%% %9d %7.1f%% %6.1f%% %6.1f%% %4.0f/%3.0f%% %8s", name, vote, long.Seconds(),
		100*ran.Seconds()/all, 100*lost.Seconds()/all, s.Switches, percent(s.Exposed, s.Size), percent(s.Hits, s.Switches),
		percent(s.Wasted, s.Size), percent(s.Forced, s.Switches), 100*s.LeastForced/float64(max(s.Switches, 1)), unfair)
	return s
}

func percent(a, b uint64) float64 { return 100 * float64(a) / float64(max(b, 1)) }

// oracle knows who is called next.
func (w *world) oracle(d Device) (uint64, bool) {
	var at []*guest
	for _, g := range w.guests {
		if g.device == d {
			at = append(at, g)
		}
	}
	i := slices.IndexFunc(at, func(g *guest) bool { return g.work != 0 })
	return at[(i+1)%len(at)].id, i >= 0
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
