package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Times of a chip, as measured on an H200.
const (
	tick        = 10 * us
	ownSlice    = 2048 * us // the driver's
	preemption  = 200 * us  // a switch away from work that is not done
	handover    = 120 * us  // a switch away from work that is
	linger      = 20 * us   // without work until there is such a switch
	lapse       = 60 * us   // shorter pauses count as busy
	patience    = 250 * us  // how long a gate stays open without work while others wait
	inFlightNow = 500 * us  // a launch may join so much work in flight
	inFlightMax = 1 * ms    // or join if all of it is no more than this,
	deeper      = 8         // and so many times as much while nobody waits for the device
)

// chip is a device that several programs may use at once: it gives itself to those that have work in flight, one after
// the other, each for its hardware slice.
type chip struct {
	t        testing.TB
	s        *Scheduler
	now      int64
	programs []*app
	runs     *app
	ends     int64 // of its hardware slice
	ready    int64 // when the switch to it is done
	worked   int64 // ticks in which it worked, since utilised
	rested   int64 // when it last had no more work of runs
	trace    bool
	native   bool  // without gates
	switches int64 // from one program to another
	telling  int64 // from the end of the last kernel of a turn until the daemon knows of it
}

// app is a program on a chip.
type app struct {
	id            ID
	kernel, every int64 // it takes so long to launch one
	launched      int64 // when it last did
	work, pause   int64 // it launches so much, waits for it, and pauses; work 0: without end
	left          int64 // of work: not launched yet
	resumes       int64 // end of the pause
	flight        int64 // launched and not done
	used, busy    int64 // device time; time with work in flight
	ran, turns    int64 // as the hardware notes it
	launches      int64
	slice         int64 // hardware slice
	lies          bool  // it says that it was never busy
	defies        bool  // it keeps the hardware slice that it has
	asked         bool
	open, closing bool
	wanted, free  bool
	opens         int64 // launches pass from then on
	until         int64
	idle          int64 // since
	closes        int64 // when the daemon knows that it has closed; 0: it has not
	arrived       int64
	delays        []int64 // from the end of a pause to that of the work
}

func newChip(t testing.TB, o Options) *chip {
	o.Preempt = true
	return &chip{t: t, s: New(o), now: second}
}

func (c *chip) add(id ID, p Params, kernel, work, pause int64) *app {
	c.t.Helper()
	if err := c.s.Set(c.now, id, p); err != nil {
		c.t.Fatal(err)
	}
	x := &app{id: id, kernel: kernel, work: work, pause: pause, slice: ownSlice, idle: c.now, arrived: c.now}
	x.begin(c.now)
	c.programs = append(c.programs, x)
	if err := c.s.Attach(c.now, id, 0, 0); err != nil {
		c.t.Fatal(err)
	}
	c.decide()
	return x
}

func (x *app) begin(now int64) {
	if x.left, x.arrived = x.work, now; x.work == 0 {
		x.left = forever
	}
}

func (c *chip) decide() {
	for _, d := range slices.Clone(c.s.Decisions()) {
		x := c.programs[slices.IndexFunc(c.programs, func(x *app) bool { return x.id == d.ID })]
		if c.trace {
			fmt.Printf("%8d kind %d %d until %d wanted %v busy %d\n", c.now/us, d.Kind, d.ID, d.Until/us, d.Wanted, x.busy/us)
		}
		switch d.Kind {
		case Open, Free:
			if !x.open {
				x.opens = c.now + reopening
			}
			x.open, x.asked, x.closing, x.free, x.until, x.wanted = true, false, false, d.Kind == Free, d.Until, d.Wanted
			x.idle = c.now
			if x.free {
				x.until = NoLimit
			}
		case Extend:
			x.until, x.wanted, x.free = d.Until, d.Wanted, false
		case Close:
			x.closing, x.free = true, false
		case Slice:
			if x.defies {
				continue
			}
			if x.slice = d.Slice; x.slice == 0 {
				x.slice = ownSlice
			}
		}
	}
}

func (c *chip) progress() {
	for _, x := range c.programs {
		if !x.free {
			c.s.Progress(c.now, x.id, 0, x.busy)
		}
	}
}

// launch is what a app and its gate do at a moment.
func (c *chip) launch(x *app) {
	if x.left == 0 && x.flight == 0 && x.resumes == 0 {
		x.resumes = c.now + x.pause
		x.delays = append(x.delays, c.now-x.arrived)
	}
	if x.resumes != 0 && c.now >= x.resumes {
		x.resumes = 0
		x.begin(c.now)
	}
	for (x.open && !x.closing && c.now >= x.opens || c.native) && x.left > 0 && x.flight < 1000*x.kernel {
		deep := int64(1)
		if !x.wanted {
			deep = deeper
		}
		if !c.native && x.flight > deep*inFlightNow && x.flight+x.kernel > deep*inFlightMax {
			break
		}
		if !c.native && !x.free && x.until < latest && x.busy+x.flight >= x.until {
			x.closing = true
			break
		}
		if c.now < x.launched+x.every {
			break
		}
		if gap := c.now - x.idle; gap <= lapse && x.flight == 0 && !x.lies {
			x.busy += gap
		}
		x.launched = c.now
		x.launches++
		x.flight += x.kernel
		x.left -= min(x.kernel, x.left)
	}
	switch {
	case x.flight > 0:
		x.idle = c.now
	case c.native:
	case !x.open && x.left > 0 && !x.asked:
		x.asked = true
		c.progress()
		c.s.Want(c.now, x.id, 0, x.busy)
		c.decide()
	case x.closes != 0 && c.now < x.closes:
	case x.open && !x.free && (x.closing || x.wanted && x.left == 0 && c.now-x.idle >= patience):
		if x.closes == 0 && c.telling > 0 {
			x.closes = c.now + c.telling
			return
		}
		x.closes = 0
		x.open, x.closing, x.asked = false, false, x.left > 0
		c.progress()
		c.s.Closed(c.now, x.id, 0, x.busy, x.left > 0)
		c.decide()
	}
}

// execute is what the hardware does in a tick.
func (c *chip) execute() {
	n := len(c.programs)
	if r := c.runs; r == nil || r.flight == 0 && c.now >= c.rested+linger || c.now >= c.ends {
		at := slices.Index(c.programs, r)
		for i := range n {
			x := c.programs[(at+1+i)%n]
			if x.flight == 0 {
				continue
			}
			switch {
			case x == r || r == nil:
				c.ready = c.now
			case r.flight > 0:
				c.ready = c.now + preemption
			default:
				c.ready = c.now + handover
			}
			if x != r {
				c.switches++
				x.turns++
			}
			c.runs, c.ends = x, c.ready+x.slice
			break
		}
	}
	if r := c.runs; r != nil && c.now >= c.ready {
		r.ran += tick
		if r.flight > 0 {
			ran := min(r.flight, tick)
			r.flight -= ran
			r.used += ran
			c.worked++
			c.rested = c.now
		}
	}
	for _, x := range c.programs {
		if x.flight > 0 && !x.lies {
			x.busy += tick
		}
	}
}

func (c *chip) run(length int64) {
	for end := c.now + length; c.now < end; c.now += tick {
		if at, ok := c.s.Next(); ok && at <= c.now {
			c.progress()
			c.s.Tick(c.now)
			c.decide()
		} else if c.now%(50*ms) == 0 {
			c.progress()
			c.decide()
		}
		if c.now%(10*ms) == 0 {
			c.measure()
		}
		if c.now%second == 0 {
			c.s.Utilised(c.now, 0, int(100*c.worked*tick/second))
			c.worked = 0
			c.decide()
		}
		for _, x := range c.programs {
			c.launch(x)
		}
		c.execute()
	}
}

// measure tells the scheduler what the hardware has noted.
func (c *chip) measure() {
	c.progress()
	var ran []Ran
	for _, x := range c.programs {
		ran = append(ran, Ran{x.id, x.ran, x.turns, x.launches})
	}
	c.s.Measured(c.now, 0, ran)
	c.decide()
}

// seconds runs for n seconds and returns what each app used of each, in percent.
func (c *chip) seconds(n int) map[*app][]float64 {
	parts := map[*app][]float64{}
	for range n {
		before := map[*app]int64{}
		for _, x := range c.programs {
			before[x] = x.used
		}
		c.run(second)
		for _, x := range c.programs {
			parts[x] = append(parts[x], 100*float64(x.used-before[x])/float64(second))
		}
	}
	return parts
}

// An lgpu that pauses has its share, in every second, of its native rate.
func TestPausing(t *testing.T) {
	type pausing struct{ work, pause int64 }
	for _, w := range []pausing{{ms, 100 * us}, {ms, ms}, {5 * ms, 5 * ms}, {20 * ms, 20 * ms}} {
		for _, tt := range []struct {
			name       string
			mine, its  Params
			share, all float64 // what it is entitled to; the least that both use
		}{
			{"1:1", Params{}, Params{}, 50, 80},
			{"10:1", Params{Weight: 1000}, Params{}, 1000.0 / 11, 60},
			{"1:10", Params{}, Params{Weight: 1000}, 100.0/11 - 0.5, 80}, // some seconds have one turn less than others
			{"min 40", Params{Min: on0(4000)}, Params{Weight: 1000}, 40, 80},
			{"beside latency", Params{}, Params{Latency: true}, 50, 80},
			{"latency", Params{Latency: true}, Params{}, 50, 80},
			{"high", Params{Class: High}, Params{}, 100, 60},
			{"both high", Params{Class: High}, Params{Class: High}, 50, 80},
		} {
			t.Run(fmt.Sprintf("%v+%v us %s", w.work/us, w.pause/us, tt.name), func(t *testing.T) {
				c := newChip(t, Options{})
				x := c.add(1, tt.mine, min(w.work, ms), w.work, w.pause)
				y := c.add(2, tt.its, 2*ms, 0, 0)
				c.run(second)
				x.delays = nil
				parts := c.seconds(5)
				alone := 100 * float64(w.work) / float64(w.work+w.pause)
				rate := mean(parts[x]) / alone * 100
				worst := slices.Min(parts[x]) / alone * 100
				slices.Sort(x.delays)
				t.Logf("%.1f %% of its native rate, worst second %.1f; uses %.1f, the other %.1f; p50 %d p99 %d us", rate, worst, mean(parts[x]), mean(parts[y]),
					x.delays[len(x.delays)/2]/us, x.delays[len(x.delays)*99/100]/us)
				if want := min(alone, tt.share) - 2; worst < want {
					t.Errorf("it had %.1f %% of its native rate in a second, which is less than %.1f", worst, want)
				}
				if all := mean(parts[x]) + mean(parts[y]); all < tt.all {
					t.Errorf("both used %.1f %%", all)
				}
			})
		}
	}
}

// percentile is the p-th of delays, in us.
func (x *app) percentile(p int) int64 {
	slices.Sort(x.delays)
	return x.delays[min(len(x.delays)*p/100, len(x.delays)-1)] / us
}

// Short work is done at once, whatever the others run.
func TestShortWork(t *testing.T) {
	for _, tt := range []struct {
		work, every   int64
		median, worst int64 // us
	}{{ms, 10 * ms, 1250, 1400}, {100 * us, 5 * ms, 350, 450}} {
		for _, kernel := range []int64{200 * us, 5 * ms, 50 * ms} {
			for _, latency := range []bool{false, true} {
				for _, others := range []int{1, 7} {
					c := newChip(t, Options{})
					x := c.add(1, Params{Latency: latency}, tt.work, tt.work, tt.every-tt.work)
					var all []*app
					for i := range others {
						all = append(all, c.add(ID(i+2), Params{}, kernel, 0, 0))
					}
					c.run(2 * second)
					x.delays = nil
					parts := c.seconds(4)
					what := fmt.Sprintf("%d us every %d ms, latency %v, beside %d with kernels of %d us", tt.work/us, tt.every/ms, latency, others, kernel/us)
					rest := 0.0
					for _, y := range all {
						rest += mean(parts[y])
					}
					t.Logf("%s: p50 %d p99 %d max %d us of %d; the others have %.1f %%", what, x.percentile(50), x.percentile(99), x.percentile(100), len(x.delays), rest)
					if x.percentile(50) > tt.median || x.percentile(99) > tt.worst {
						t.Errorf("%s: p50 %d p99 %d us", what, x.percentile(50), x.percentile(99))
					}
				}
			}
		}
	}
}

// Lgpus that saturate the chip take turns, and share it as exactly as where nothing is preempted.
func TestSaturatingOnChip(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   []Params
		want []float64
	}{
		{"equal", []Params{{}, {}}, []float64{50, 50}},
		{"1:2", []Params{{Weight: 100}, {Weight: 200}}, []float64{33.3, 66.7}},
		{"30 and 60", []Params{{Max: on0(3000)}, {Max: on0(6000)}}, []float64{30, 60}},
		{"25", []Params{{Max: on0(2500)}}, []float64{25}},
		{"4 x 25", []Params{{Max: on0(2500)}, {Max: on0(2500)}, {Max: on0(2500)}, {Max: on0(2500)}}, []float64{25, 25, 25, 25}},
		{"min 40 of weight 1:10", []Params{{Min: on0(4000)}, {Weight: 1000}}, []float64{40, 60}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newChip(t, Options{})
			for i, p := range tt.of {
				c.add(ID(i+1), p, 200*us, 0, 0)
			}
			c.run(2 * second)
			parts := c.seconds(5)
			for i, x := range c.programs {
				t.Logf("%d: want %.1f, used %.2f: %.1f", x.id, tt.want[i], mean(parts[x]), parts[x])
				if got := mean(parts[x]); got < tt.want[i]-2 || got > tt.want[i]+1 {
					t.Errorf("%d used %.2f %%, want %.1f", x.id, got, tt.want[i])
				}
			}
		})
	}
}

// Nobody gains by sleeping, and waking often.
func TestSleepersGainNothing(t *testing.T) {
	for _, w := range []struct{ work, pause int64 }{{100 * us, 50 * us}, {500 * us, 500 * us}, {ms, 500 * us}, {20 * ms, 5 * ms}, {60 * ms, 60 * ms}, {300 * ms, 100 * ms}} {
		c := newChip(t, Options{})
		x := c.add(1, Params{}, min(w.work, ms), w.work, w.pause)
		for i := range 4 {
			c.add(ID(i+2), Params{}, 2*ms, 0, 0)
		}
		c.run(2 * second)
		parts := c.seconds(10)
		least := 100.0
		for _, y := range c.programs[1:] {
			least = min(least, slices.Min(parts[y]))
		}
		t.Logf("%d us of work, %d us of pause: %.1f %%: %.1f; the others at least %.1f", w.work/us, w.pause/us, mean(parts[x]), parts[x], least)
		if got := mean(parts[x]); got > 21 {
			t.Errorf("%d us of work, %d us of pause: %.1f %% of 20", w.work/us, w.pause/us, got)
		}
		if least < 11 { // the rest is lost in switches
			t.Errorf("%d us of work, %d us of pause: another one had %.1f %% in a second", w.work/us, w.pause/us, least)
		}
	}
}

// Programs that leave the device idle between their small kernels use it together, and so do more than in turns.
func TestLaunchBound(t *testing.T) {
	c := newChip(t, Options{})
	for i := range 2 {
		c.add(ID(i+1), Params{}, 20*us, 0, 0).every = 50 * us
	}
	c.run(5 * second)
	parts := c.seconds(5)
	for _, x := range c.programs {
		t.Logf("%d: %.1f", x.id, parts[x])
		if got := slices.Min(parts[x]); got < 34 {
			t.Errorf("%d used %.1f %% in a second, of 40", x.id, got)
		}
	}
	y := c.add(3, Params{}, 2*ms, 0, 0)
	c.run(2 * second)
	parts = c.seconds(5)
	for _, x := range c.programs {
		t.Logf("%d: %.1f", x.id, parts[x])
	}
	if got := slices.Min(parts[y]); got < 16 {
		t.Errorf("one that saturates used %.1f %% in a second beside them", got)
	}
}

// One that does not count what it uses is charged for it all the same, once the driver has said so.
func TestLiarOnChip(t *testing.T) {
	c := newChip(t, Options{})
	x := c.add(1, Params{}, ms, 0, 0)
	x.lies = true
	y := c.add(2, Params{}, 2*ms, 0, 0)
	c.run(2 * second)
	parts := c.seconds(10)
	t.Logf("%.1f beside %.1f", parts[x], parts[y])
	if got := mean(parts[x]); got > 56 {
		t.Errorf("one that hides its use had %.1f %% of 50", got)
	}
}

// Of 1,000 lgpus on 128 chips, some of which pause, or are bound by their launches, nobody is starved, nor has more than it
// can use.
func TestManyChips(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 11))
	worst, bound, most := 100.0, 100.0, 0.0
	chips, lgpus := 128, 0
	if testing.Short() {
		chips = 24
	}
	for range chips {
		c := newChip(t, Options{})
		n := 4 + random.IntN(8)
		lgpus += n
		weights, wants := make([]float64, n), make([]float64, n)
		total := 0.0
		for i := range n {
			weight := uint32(50 + random.IntN(200))
			kernel, work, pause, every := (100+random.Int64N(3000))*us, int64(0), int64(0), int64(0)
			switch random.IntN(3) {
			case 0:
				work, pause = kernel*(1+random.Int64N(20*ms/kernel)), (500+random.Int64N(20000))*us
			case 1:
				kernel = (1 + random.Int64N(9)) * tick
				every = kernel + (1+random.Int64N(9))*tick
			}
			c.add(ID(i+1), Params{Weight: weight}, kernel, work, pause).every = every
			weights[i], wants[i] = float64(weight), 100
			if work > 0 {
				wants[i] = 100 * float64(work) / float64(work+pause)
			} else if every > 0 {
				wants[i] = 100 * float64(kernel) / float64(every)
			}
			total += weights[i]
		}
		c.run(2 * second)
		held := map[*app]int64{}
		for _, x := range c.programs {
			held[x] = x.ran
		}
		parts := c.seconds(4)
		for i, x := range c.programs {
			share := 100 * weights[i] / total
			got := mean(parts[x]) / min(share, wants[i])
			if x.every > 0 { // it holds the device between its kernels, too
				got = 100 * float64(x.ran-held[x]) / float64(4*second) / min(share, wants[i])
			}
			least := 0.65 // switches take some of it,
			if x.every > 0 {
				least = 0.2 // and more of one that comes whenever it has launched a kernel
				bound = min(bound, got)
			} else {
				worst = min(worst, got)
			}
			if got < least {
				t.Errorf("one of %d that wants %.0f %% (%d us and %d us pause, in kernels of %d us) and is to have %.1f had %.1f: %.1f",
					n, wants[i], x.work/us, x.pause/us, x.kernel/us, share, mean(parts[x]), parts[x])
			}
			if saturates := wants[i] == 100; saturates {
				continue
			}
			most = max(most, mean(parts[x])/wants[i])
		}
	}
	t.Logf("%d lgpus; the least part of what is due: %.2f, %.2f if bound by launches; the most of what is wanted: %.2f", lgpus, worst, bound, most)
}

// Kernels that outlast a guest's part are paid for, and do not make the switches eat the device.
func TestLongKernelsOnChip(t *testing.T) {
	for _, w := range []struct{ kernel, pause int64 }{{60, 40}, {100, 100}, {300, 300}, {150, 0}, {1000, 0}} {
		c := newChip(t, Options{})
		work := w.kernel * ms
		if w.pause == 0 {
			work = 0
		}
		x := c.add(1, Params{}, w.kernel*ms, work, w.pause*ms)
		for i := range 4 {
			c.add(ID(i+2), Params{}, 2*ms, 0, 0)
		}
		c.run(3 * second)
		parts := c.seconds(10)
		all := 0.0
		for _, y := range c.programs {
			all += mean(parts[y])
		}
		t.Logf("kernels of %d ms, %d ms of pause: %.1f %% of 20; all %.1f", w.kernel, w.pause, mean(parts[x]), all)
		if got := mean(parts[x]); got > 26 || all < 85 {
			t.Errorf("kernels of %d ms, %d ms of pause: %.1f %% of 20; all %.1f", w.kernel, w.pause, got, all)
		}
	}
}

// Guests that together want more than there is have their parts, too, while no heavy one is there.
func TestGuestsAlone(t *testing.T) {
	for _, tt := range []struct {
		name         string
		mine, others Params
		n            int
		least, rest  float64 // of the one, and of another
	}{
		{"weight", Params{Weight: 1000}, Params{}, 1, 66, 20},
		{"minimum", Params{Min: on0(6000)}, Params{}, 4, 54, 2},
		{"high", Params{Class: High}, Params{}, 4, 55, 2}, // of 71: the others take turns in what it leaves
		{"equal", Params{}, Params{}, 3, 20, 20},
	} {
		c := newChip(t, Options{})
		x := c.add(1, tt.mine, ms, 5*ms, 2*ms)
		for i := range tt.n {
			c.add(ID(i+2), tt.others, ms, 5*ms, 2*ms)
		}
		c.run(3 * second)
		parts := c.seconds(10)
		t.Logf("%s: %.1f beside %.1f", tt.name, parts[x], parts[c.programs[1]])
		if got := slices.Min(parts[c.programs[1]]); got < tt.rest {
			t.Errorf("%s: another one had %.1f %% in a second", tt.name, got)
		}
		if got := mean(parts[x]); got < tt.least {
			t.Errorf("%s: %.1f %%, want at least %.0f", tt.name, got, tt.least)
		}
	}
}

// An lgpu that uses a second device while it is a guest on the first has both together from then on.
func TestSecondDeviceOfGuest(t *testing.T) {
	s := New(Options{Preempt: true})
	now := second
	for id := ID(1); id <= 3; id++ {
		if err := s.Set(now, id, Params{}); err != nil {
			t.Fatal(err)
		}
	}
	attach := func(id ID, dev Device) {
		if err := s.Attach(now, id, dev, 0); err != nil {
			t.Fatal(err)
		}
	}
	attach(1, 0)
	attach(2, 0)
	attach(3, 1)
	s.Want(now, 1, 0, 0)
	if x := s.tree.seat(1, 0); !x.guest {
		t.Fatalf("on its first device it is %+v", x.state())
	}
	attach(1, 1)
	s.Want(now, 1, 1, 0)
	both := func(when string, open, leaving bool) {
		t.Helper()
		for _, dev := range []Device{0, 1} {
			if x := s.tree.seat(1, dev); x.open != open || x.guest != open || x.closeSent != leaving {
				t.Errorf("%s, on device %d: open %v, guest %v, asked to close %v", when, dev, x.open, x.guest, x.closeSent)
			}
		}
	}
	both("with work on both", true, false)
	now += ms
	s.Closed(now, 1, 0, ms, true)
	if x := s.tree.seat(1, 1); !x.closeSent {
		t.Error("the gate of the second device stays open although that of the first has closed")
	}
	now += 100 * us
	s.Closed(now, 1, 1, ms, true)
	both("when both have drained", true, false)
}

// What an lgpu used while it was alone, without accounts, is not held against what it reports later.
func TestFreeIsNoLiar(t *testing.T) {
	c := newChip(t, Options{})
	x := c.add(1, Params{}, ms, 5*ms, 5*ms)
	c.run(2 * second)
	c.add(2, Params{}, 2*ms, 0, 0)
	for range 20 {
		c.run(50 * ms)
		if y := c.s.tree.seat(x.id, 0); y.presence.hides {
			t.Fatalf("it is taken for a liar: %+v", y.presence)
		}
	}
}

// One that the hardware does not stop is no guest until it does again; it takes turns, and has its share.
func TestUnstoppedTakesTurns(t *testing.T) {
	c := newChip(t, Options{})
	pausing := c.add(1, Params{}, 200*us, ms, ms)
	c.add(2, Params{}, 2*ms, 0, 0)
	c.run(second)
	x := c.s.tree.seat(pausing.id, 0)
	for _, stops := range []bool{false, true} {
		c.s.Preempted(c.now, pausing.id, 0, stops)
		c.decide()
		visits := 0
		for range 100 {
			c.run(10 * ms)
			if x.guest && !x.closeSent {
				visits++
			}
		}
		if (visits > 0) != stops {
			t.Errorf("stopped by the hardware: %v; it was a guest %d times of 100", stops, visits)
		}
		if got := mean(c.seconds(1)[pausing]); got < 10 {
			t.Errorf("stopped by the hardware: %v; it had %.1f %%", stops, got)
		}
	}
	if err := c.s.consistent(); err != nil {
		t.Error(err)
	}
}
