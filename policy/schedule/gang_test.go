package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// program is what each device of a gang's lgpu runs, in order and again and again. A negative kernel is a collective:
// it ends only when it has run for so long at the same time as those of the same number on all devices.
type program []int64

// worker is a seat of a gang, launch by launch.
type worker struct {
	id      ID
	dev     Device
	group   []*worker // that a collective needs
	program program

	open, closing bool
	seep, wanted  bool
	beside        bool // uses the device beside others
	until, busy   int64
	launched      int // kernels so far
	done          int
	ran           int64 // of the first not done
	held          int64 // how long that has kept its device
	had           int64 // time for which the device has run it
	idle          bool  // has told Want or Closed, waiting
	mute          bool  // launches nothing
	slow          int   // it launches so many times less often
	slice         int64 // of the hardware
}

func (w *worker) kernel(n int) int64 { return w.program[n%len(w.program)] }

// rig runs workers in steps of time.
type rig struct {
	t         testing.TB
	s         *Scheduler
	now       int64
	workers   []*worker
	early     int64 // workers say Closed when they expect to have drained so soon
	overran   int
	seeps     int
	random    *rand.Rand
	chips     map[Device]*turns // of devices that preempt
	native    bool              // without gates
	switching int64             // what these need to switch to another
}

// turns are those of a device that gives itself to the workers that have work in flight, one after the other.
type turns struct {
	on    *worker
	ready int64 // when the switch to it is done
	ends  int64 // of the time slice
}

const step = 20 * us

func newRig(t testing.TB, o Options) *rig {
	return &rig{t: t, s: New(o), now: second, random: rand.New(rand.NewPCG(5, 6))}
}

// lgpu adds one with the same program on all its devices.
func (r *rig) lgpu(id ID, p Params, run program, devices ...Device) []*worker {
	r.t.Helper()
	if err := r.s.Set(r.now, id, p); err != nil {
		r.t.Fatal(err)
	}
	var group []*worker
	for _, dev := range devices {
		w := &worker{id: id, dev: dev, program: run, slice: ownSlice}
		group = append(group, w)
		r.workers = append(r.workers, w)
		if err := r.s.Attach(r.now, id, dev, 0); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, w := range group {
		w.group = group
	}
	r.decide()
	return group
}

func (r *rig) find(id ID, dev Device) *worker {
	for _, w := range r.workers {
		if w.id == id && w.dev == dev {
			return w
		}
	}
	r.t.Fatalf("no worker %d on %d", id, dev)
	return nil
}

func (r *rig) decide() {
	for _, d := range append([]Decision(nil), r.s.Decisions()...) {
		w := r.find(d.ID, d.Device)
		switch d.Kind {
		case Open:
			if o := r.holder(w.dev); o != nil && r.chips == nil {
				r.t.Fatalf("device %d given to %d beside %d", w.dev, w.id, o.id)
			}
			w.open, w.closing, w.until, w.wanted, w.idle = true, false, d.Until, d.Wanted, false
		case Extend:
			w.until, w.wanted = d.Until, d.Wanted
		case Free:
			w.open, w.closing, w.until, w.idle = true, false, NoLimit, false
		case Close:
			w.closing = true
		case Seep:
			r.seeps++
			w.beside = !r.s.tree.seat(w.id, w.dev).granted
			w.open, w.closing, w.seep, w.idle = true, true, true, false
		case Slice:
			if w.slice = d.Slice; w.slice == 0 {
				w.slice = ownSlice
			}
		case Overran:
			r.overran++
			w.beside = true
		}
	}
}

// holder is the lgpu that has a device to itself.
func (r *rig) holder(dev Device) *worker {
	for _, o := range r.workers {
		if o.dev == dev && o.open && !o.beside {
			return o
		}
	}
	return nil
}

func (r *rig) run(length int64) {
	for end := r.now + length; r.now < end; r.now += step {
		if r.chips != nil {
			r.turn()
		}
		for _, w := range r.workers {
			r.advance(w)
		}
		if next, ok := r.s.Next(); ok && next <= r.now {
			for _, w := range r.workers {
				r.s.Progress(r.now, w.id, w.dev, w.busy)
			}
			r.s.Tick(r.now)
			r.decide()
		}
	}
}

// turn gives devices that preempt to the next workers, and tells the scheduler whom they have run.
func (r *rig) turn() {
	for i, w := range r.workers {
		c := r.chips[w.dev]
		if c == nil {
			c = &turns{}
			r.chips[w.dev] = c
		}
		if c.on != nil && c.on.launched > c.on.done && r.now < c.ends {
			continue
		}
		last := slices.Index(r.workers, c.on)
		for n := range r.workers {
			o := r.workers[(max(last, i)+1+n)%len(r.workers)]
			if o.dev == w.dev && o.launched > o.done {
				if c.ready = r.now; o != c.on && c.on != nil {
					c.ready += r.switching
				}
				c.on, c.ends = o, c.ready+o.slice
				break
			}
		}
	}
	for _, c := range r.chips {
		if c.on != nil && r.now >= c.ready {
			c.on.had += step
		}
	}
	if r.now%(10*ms) != 0 {
		return
	}
	for dev := range Device(len(r.chips)) {
		var ran []Ran
		for _, w := range r.workers {
			if w.dev == dev {
				r.s.Progress(r.now, w.id, dev, w.busy)
				ran = append(ran, Ran{ID: w.id, Total: w.had})
			}
		}
		r.s.Measured(r.now, dev, ran)
		r.decide()
	}
}

// stuck says that the collective at the head of w waits for a worker that has not come to it.
func (w *worker) stuck() bool {
	for _, o := range w.group {
		if o.done < w.done || o.done == w.done && o.launched == o.done {
			return true
		}
	}
	return false
}

// drains says that w has drained, or expects to so soon. It does not know what a kernel waits for.
func (w *worker) drains(early int64) bool {
	left := -w.held
	for n := w.done; n < w.launched; n++ {
		left += max(w.kernel(n), -w.kernel(n))
	}
	return w.launched == w.done || left < early && w.held <= max(w.kernel(w.done), -w.kernel(w.done))
}

func (r *rig) advance(w *worker) {
	if w.launched > w.done {
		w.busy += step
		w.held += step
		k := w.kernel(w.done)
		if on := r.chips == nil || r.chips[w.dev].on == w && r.now >= r.chips[w.dev].ready; on && (k > 0 || !w.stuck()) {
			w.ran += step
		}
		if w.ran >= max(k, -k) {
			w.ran, w.held = 0, 0
			w.done++
		}
	}
	for !w.mute && w.launched < w.done+3 && r.random.IntN(3+3*w.slow) > 3*w.slow { // programs launch at no even pace
		switch {
		case w.seep:
			w.seep = false
		case r.native:
		case !w.open || w.closing || w.busy+int64(w.launched-w.done)*ms/2 >= w.until:
			if !w.open && !w.idle {
				w.idle = true
				r.s.Want(r.now, w.id, w.dev, w.busy)
				r.decide()
			}
			goto full
		}
		w.launched++
	}
full:
	over := w.closing || w.busy >= w.until-2*step || w.mute && w.wanted
	if w.open && over && !r.native && (!w.seep || w.mute) && w.drains(r.early) {
		w.open, w.closing, w.beside, w.seep, w.idle = false, false, false, false, !w.mute
		r.s.Closed(r.now, w.id, w.dev, w.busy, !w.mute)
		r.decide()
	}
}

func (r *rig) progress(n int64, groups ...[]*worker) [][]float64 {
	var all [][]float64
	for range n {
		before := make([]int, len(groups))
		for i, g := range groups {
			before[i] = g[0].done
		}
		r.run(second)
		var parts []float64
		for i, g := range groups {
			var turn int64
			for _, k := range g[0].program {
				turn += max(k, -k)
			}
			parts = append(parts, 100*float64(g[0].done-before[i])*float64(turn)/float64(len(g[0].program))/float64(second))
		}
		all = append(all, parts)
	}
	return all
}

// lgpu is one with the same program on all its devices, and what part of its way it is to make.
type lgpu struct {
	p       Params
	run     program
	devices []Device
	want    float64
}

// makeWay checks that lgpus make the parts of their ways that they are to, in each second.
func (r *rig) makeWay(of []lgpu, within float64) {
	r.t.Helper()
	var groups [][]*worker
	for i, l := range of {
		groups = append(groups, r.lgpu(ID(i+1), l.p, l.run, l.devices...))
	}
	r.run(second)
	for _, parts := range r.progress(4, groups...) {
		r.t.Logf("%.1f, %d seeps, %d overran", parts, r.seeps, r.overran)
		for i, part := range parts {
			if want := of[i].want; math.Abs(part-want) > within {
				r.t.Errorf("lgpu %d made %.1f %% of its way, want %.0f", i+1, part, want)
			}
		}
	}
	if err := r.s.consistent(); err != nil {
		r.t.Error(err)
	}
}

func TestGangs(t *testing.T) {
	training := program{400 * us, -200 * us}
	slow := program{3 * ms, -6 * ms, 200 * us}
	single := program{200 * us}
	tests := []struct {
		name   string
		of     []lgpu
		within float64
	}{
		{"two on the same two devices", []lgpu{
			{Params{}, training, []Device{0, 1}, 50}, {Params{}, training, []Device{1, 0}, 50}}, 5},
		{"by weight", []lgpu{
			{Params{Weight: 300}, training, []Device{0, 1}, 75}, {Params{}, training, []Device{1, 0}, 25}}, 5},
		{"long kernels", []lgpu{
			{Params{}, slow, []Device{0, 1}, 50}, {Params{}, slow, []Device{1, 0}, 50}}, 8},
		{"beside one single", []lgpu{
			{Params{}, training, []Device{0, 1}, 50}, {Params{}, single, []Device{0}, 50}}, 5},
		{"beside two singles on one", []lgpu{
			{Params{}, training, []Device{0, 1}, 33}, {Params{}, single, []Device{0}, 33}, {Params{}, single, []Device{0}, 33},
			{Params{}, single, []Device{1}, 65}}, 6},
		{"ring of three", []lgpu{
			{Params{}, training, []Device{0, 1}, 32}, {Params{}, training, []Device{1, 2}, 32},
			{Params{}, training, []Device{2, 0}, 32}}, 20},
		{"ring of three beside singles", []lgpu{
			{Params{}, training, []Device{0, 1}, 33}, {Params{}, training, []Device{1, 2}, 33},
			{Params{}, training, []Device{2, 0}, 33}, {Params{}, single, []Device{0}, 33}, {Params{}, single, []Device{1}, 33},
			{Params{}, single, []Device{2}, 33}}, 20},
		{"capped", []lgpu{
			{Params{Max: map[Device]uint32{0: 3000, 1: 3000}}, training, []Device{0, 1}, 29},
			{Params{}, training, []Device{1, 0}, 68}}, 6},
		{"capped alone", []lgpu{
			{Params{Max: map[Device]uint32{0: 3000, 1: 3000}}, training, []Device{0, 1}, 29}}, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			newRig(t, Options{}).makeWay(tt.of, tt.within)
		})
	}
}

// On devices that preempt, gangs use them together: they do as much as without gates, and all make their way, in the
// shares asked for. Without gates, collectives that fill their devices do less than in turns, since their halves have
// their time slices at different times.
func TestGangsOnChips(t *testing.T) {
	training, single := program{400 * us, -200 * us}, program{200 * us}
	both := []Device{0, 1}
	half := Params{Max: map[Device]uint32{0: 3000, 1: 3000}}
	for _, tt := range []struct {
		name  string
		of    []lgpu  // want: the least
		least float64 // that they do together, in percent of what they do without gates
	}{
		{"two", []lgpu{{Params{}, training, both, 28}, {Params{}, training, []Device{1, 0}, 28}}, 98},
		{"three", []lgpu{{Params{}, training, both, 19}, {Params{}, training, []Device{1, 0}, 19}, {Params{}, training, both, 19}}, 98},
		{"by weight", []lgpu{{Params{Weight: 300}, training, both, 48}, {Params{}, training, []Device{1, 0}, 14}}, 98},
		{"ring of three", []lgpu{{Params{}, training, both, 28}, {Params{}, training, []Device{1, 2}, 28},
			{Params{}, training, []Device{2, 0}, 28}}, 98},
		{"beside one single", []lgpu{{Params{}, training, both, 35}, {Params{}, single, []Device{0}, 40}}, 90},
		{"capped", []lgpu{{half, training, both, 24}}, 25},
		{"capped beside", []lgpu{{half, training, both, 9}, {Params{}, training, both, 50}}, 90},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sums [2]float64
			for i, native := range []bool{true, false} {
				r := newRig(t, Options{Preempt: true})
				r.chips, r.native = map[Device]*turns{}, native
				var groups [][]*worker
				for i, l := range tt.of {
					groups = append(groups, r.lgpu(ID(i+1), l.p, l.run, l.devices...))
				}
				r.run(second)
				for _, parts := range r.progress(4, groups...) {
					t.Logf("native %v: %.1f, %d seeps, %d overran", native, parts, r.seeps, r.overran)
					for n, part := range parts {
						sums[i] += part
						if least := tt.of[n].want; !native && part < least {
							t.Errorf("lgpu %d made %.1f %% of its way, want %.0f", n+1, part, least)
						}
						if limit := float64(tt.of[n].p.Max[0]) / 100; !native && limit > 0 && part > limit+1 {
							t.Errorf("lgpu %d made %.1f %% of its way, at most %.0f", n+1, part, limit)
						}
					}
				}
				if err := r.s.consistent(); err != nil {
					t.Error(err)
				}
			}
			if got := 100 * sums[1] / sums[0]; got < tt.least {
				t.Errorf("all together did %.1f %% of what they do without gates", got)
			}
		})
	}
}

// Whatever gangs there are, all go on, whether the hardware preempts or not.
func TestGangsGoOn(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for n := range 80 {
		r := newRig(t, Options{Preempt: n%2 == 0})
		groups := r.mixture(random, func(id ID, p Params, run program, devices []Device) []*worker {
			return r.lgpu(id, p, run, devices...)
		})
		r.goOn(groups, 2, 1)
	}
}

// mixture adds some lgpus by chance, most of them on several devices.
func (r *rig) mixture(random *rand.Rand, add func(ID, Params, program, []Device) []*worker) [][]*worker {
	if r.s.tree.options.Preempt {
		r.chips = map[Device]*turns{}
	}
	var groups [][]*worker
	for i := range 2 + random.IntN(4) {
		p := Params{Weight: uint32(50 + random.IntN(400)), Latency: random.IntN(4) == 0}
		devices := []Device{Device(random.IntN(3))}
		if random.IntN(3) > 0 {
			devices = []Device{0, 1, 2}[random.IntN(2):]
		}
		if random.IntN(3) == 0 {
			p.Max = map[Device]uint32{0: 4000, 1: 4000, 2: 4000}
		}
		run := program{(50 + random.Int64N(2000)) * us, -(20 + random.Int64N(2000)) * us}
		if len(devices) == 1 {
			run = run[:1]
		}
		group := add(ID(i+1), p, run, devices)
		for _, w := range group {
			w.slow = random.IntN(2) * random.IntN(60)
		}
		groups = append(groups, group)
	}
	return groups
}

// goOn checks that all make some of their way, after 2 s and in so many times of so many seconds.
func (r *rig) goOn(groups [][]*worker, times, seconds int64) {
	r.t.Helper()
	r.run(2 * second)
	for range times {
		made := make([]float64, len(groups))
		for _, parts := range r.progress(seconds, groups...) {
			for i, part := range parts {
				made[i] += part / float64(seconds)
			}
		}
		for i, part := range made {
			if p := r.s.tree.entities[ID(i+1)].p; part < 0.5 {
				r.t.Errorf("lgpu %d of %.1f has come to a standstill: %+v, slow %d, program %v on %d devices", i+1, made, p,
					groups[i][0].slow, groups[i][0].program, len(groups[i]))
			}
		}
	}
	if err := r.s.consistent(); err != nil {
		r.t.Error(err)
	}
}

// join makes one job of several lgpus' workers.
func join(groups ...[]*worker) []*worker {
	var all []*worker
	for _, g := range groups {
		all = append(all, g...)
	}
	for _, w := range all {
		w.group = all
	}
	return all
}

func TestGangByName(t *testing.T) {
	training := program{400 * us, -200 * us}
	r := newRig(t, Options{})
	a := join(r.lgpu(1, Params{Gang: "a"}, training, 0), r.lgpu(2, Params{Gang: "a"}, training, 1))
	b := join(r.lgpu(3, Params{Gang: "b"}, training, 1), r.lgpu(4, Params{Gang: "b"}, training, 0))
	r.run(second)
	for _, parts := range r.progress(3, a, b) {
		if math.Abs(parts[0]-50) > 3 || math.Abs(parts[1]-50) > 3 {
			t.Errorf("gangs made %.1f %% of their ways, want 50 each", parts)
		}
	}
	// Once apart, a's halves have no turn together but for chance; one of b's goes on alone.
	for id := ID(1); id <= 4; id++ {
		if err := r.s.Set(r.now, id, Params{}); err != nil {
			t.Fatal(err)
		}
	}
	r.decide()
	r.run(second)
	if err := r.s.consistent(); err != nil {
		t.Error(err)
	}
}

// Without launches let through in time, a collective of which one half was launched holds its device until the bound;
// and still everybody goes on.
func TestDrainBoundOfGangs(t *testing.T) {
	for _, o := range []Options{
		{SeepAfter: second, DrainBound: 20 * ms},
		{SeepAfter: second, DrainBound: 3 * ms},
		{SeepAfter: 200 * us, DrainBound: 5 * ms},
	} {
		r := newRig(t, o)
		a := r.lgpu(1, Params{}, program{400 * us, -200 * us, 50 * us}, 0, 1)
		b := r.lgpu(2, Params{}, program{-300 * us}, 1, 0)
		for range 10 {
			before := []int{a[0].done, b[0].done}
			r.run(second)
			if a[0].done-before[0] < 100 || b[0].done-before[1] < 100 {
				t.Errorf("%+v: in a second only %d and %d kernels", o, a[0].done-before[0], b[0].done-before[1])
			}
		}
		t.Logf("%+v: %d and %d kernels, %d seeps, %d overran", o, a[0].done, b[0].done, r.seeps, r.overran)
		if err := r.s.consistent(); err != nil {
			t.Error(err)
		}
	}
}

// A gang that uses only one of its devices for long leaves the other alone, and gets it back when it needs it.
func TestGangOnFewerDevices(t *testing.T) {
	r := newRig(t, Options{})
	a := r.lgpu(1, Params{}, program{200 * us}, 0, 1)
	b := r.lgpu(2, Params{}, program{200 * us}, 1)
	a[1].mute = true
	r.run(3 * second)
	busy := []int64{a[0].busy, b[0].busy}
	r.run(second)
	if got := a[0].busy - busy[0]; got < 990*ms {
		t.Errorf("gang alone on device 0 had it for %d ms of 1000", got/ms)
	}
	if got := b[0].busy - busy[1]; got < 990*ms {
		t.Errorf("single beside an idle seat had the device for %d ms of 1000", got/ms)
	}
	a[1].mute = false
	r.run(100 * ms)
	busy = []int64{a[1].busy, b[0].busy}
	r.run(second)
	for i, w := range []*worker{a[1], b[0]} {
		if got := w.busy - busy[i]; got < 470*ms || got > 530*ms {
			t.Errorf("seat of %d on 1 had it for %d ms of 1000, want 500", w.id, got/ms)
		}
	}
}

// Having waited for its turn on one device gives a gang no claim to monopolize another.
func TestGangClaimsAreBounded(t *testing.T) {
	r := newRig(t, Options{})
	training := program{400 * us, -200 * us}
	r.lgpu(1, Params{}, training, 0, 1)
	b := r.lgpu(2, Params{}, program{200 * us}, 0)
	for id := ID(3); id < 7; id++ {
		r.lgpu(id, Params{}, program{200 * us}, 1)
	}
	r.run(10 * second)
	for id := ID(3); id < 7; id++ {
		r.find(id, 1).mute = true
	}
	r.run(100 * ms)
	busy := b[0].busy
	r.run(second)
	if got := b[0].busy - busy; got < 400*ms {
		t.Errorf("beside a gang that had waited there was the device for %d ms of 1000, want 500", got/ms)
	}
}

// A gang that is stuck for good keeps no other from its devices, and pays for the time that it uses.
func TestGangThatNeverDrains(t *testing.T) {
	r := newRig(t, Options{})
	a := r.lgpu(1, Params{}, program{-200 * us}, 0, 1)
	b := r.lgpu(2, Params{}, program{200 * us}, 0)
	c := r.lgpu(3, Params{}, program{200 * us}, 1)
	r.run(second)
	a[1].mute = true
	r.run(second)
	busy := []int64{b[0].busy, c[0].busy}
	r.run(second)
	if got := b[0].busy - busy[0]; got < 950*ms {
		t.Errorf("single beside a stuck gang had device 0 for %d ms of 1000", got/ms)
	}
	if got := c[0].busy - busy[1]; got < 950*ms {
		t.Errorf("single beside a stuck gang had device 1 for %d ms of 1000", got/ms)
	}
	if r.overran == 0 {
		t.Error("a stuck gang did not overrun")
	}
	var states []State
	for _, v := range r.s.Shares(r.now, nil) {
		states = append(states, v.State)
	}
	if !slices.Contains(states, Overrun) {
		t.Errorf("states %v of a stuck gang and others", states)
	}
}

// A seat that has said Closed may still hold half of a collective. Its debt grows then, and must not keep its gang from
// the launch that the half waits for.
func TestCappedGangsThatCloseEarly(t *testing.T) {
	half := Params{Max: map[Device]uint32{0: 5000, 1: 5000}}
	for _, tt := range []struct {
		name string
		run  program
		runs int // gangs
	}{
		{"one", program{400 * us, -200 * us}, 1},
		{"two", program{400 * us, -200 * us}, 2},
		{"two, collectives only", program{-300 * us}, 2},
		{"two, long", program{-300 * us, 2 * ms}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{})
			r.early = 600 * us
			var gangs [][]*worker
			for i := range tt.runs {
				gangs = append(gangs, r.lgpu(ID(i+1), half, tt.run, Device(i), Device(1-i)))
			}
			r.run(second)
			var before []int64
			for _, w := range r.workers {
				before = append(before, w.busy)
			}
			for _, parts := range r.progress(5, gangs...) {
				t.Logf("%.1f, %d seeps, %d overran", parts, r.seeps, r.overran)
				for i, part := range parts {
					if part < 30 {
						t.Errorf("lgpu %d made %.1f %% of its way", i+1, part)
					}
				}
			}
			for i, w := range r.workers {
				if used := w.busy - before[i]; used > 2550*ms {
					t.Errorf("lgpu %d used device %d for %d ms of 5000; its maximum is 50 %%", w.id, w.dev, used/ms)
				}
			}
			if err := r.s.consistent(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Launches that are let through beside another job do not set each other off: the gang then stays in debt for good, and
// has its kernels one by one.
func TestGangsThatCloseEarlyTakeTurns(t *testing.T) {
	for seed := range uint64(40) {
		r := newRig(t, Options{})
		r.random, r.early = rand.New(rand.NewPCG(seed+1, 6)), 600*us
		a := r.lgpu(1, Params{}, program{400 * us, -200 * us}, 0, 1)
		b := r.lgpu(2, Params{}, program{-300 * us}, 1, 0)
		r.run(second)
		for _, parts := range r.progress(4, a, b) {
			if min(parts[0], parts[1]) < 20 {
				t.Fatalf("seed %d: gangs made %.1f %% of their ways, %d seeps", seed, parts, r.seeps)
			}
		}
	}
}
