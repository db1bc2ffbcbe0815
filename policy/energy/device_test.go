package energy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

const ms = 1_000_000

// load is an lgpu of a model of a device.
type load struct {
	id     uint64
	power  float64 // milliwatts while it works
	weight float64 // its share against the others'
	off    float64 // by which factor the time that it is charged is off
	pauses func(ms int) bool

	turns float64 // what it has had, by weight
	time  int64   // charged since the last reading, ns
	used  float64 // millijoules, by its work, since mark
	got   uint64  // what it was given since mark
}

// device is a model of one: loads take turns, the counter is late and moves in steps, and a meter reads it.
type device struct {
	idle   float64 // milliwatts
	mixed  float64 // by which factor work draws more while several loads do
	turn   int     // ms
	late   int     // ms by which the counter is late,
	later  int     // and by up to how many more, by chance
	step   int     // ms between two updates of the counter
	smooth float64 // ms over which its sensor is a mean

	r       *rand.Rand
	meter   *Meter
	loads   []*load
	now     int // ms
	busy    int // until when several work, as far as the readings tell
	next    int // reading
	sensor  float64
	energy  [1024]float64 // millijoules by the sensor, at each of the last ms
	counter float64
	last    uint64  // what the counter said
	stood   float64 // ms since mark
	rose    uint64  // since mark
	nobody  uint64
}

func (d *device) String() string {
	return fmt.Sprintf("turns of %d ms, counter late by %d to %d ms, in steps of %d, smoothed over %.0f", d.turn, d.late,
		d.late+d.later, d.step, d.smooth)
}

// devices are all models: how a counter may be late, and how long turns are. Each has a hot load and a cool one, which are
// charged a little more and less time than they use.
func devices(each func(*device)) {
	seed := uint64(0)
	for _, late := range [][2]int{{0, 0}, {50, 0}, {150, 0}, {0, 150}} {
		for _, step := range []int{1, 20, 100} {
			for _, smooth := range []float64{0, 300} {
				for _, turn := range []int{2, 10, 50} {
					seed++
					d := &device{idle: 124_000, mixed: 1.1, turn: turn, late: late[0], later: late[1], step: step, smooth: smooth,
						sensor: 124_000, next: 1000}
					d.r, d.meter = rand.New(rand.NewPCG(seed, 9)), New(0)
					d.loads = []*load{{id: 1, power: 476_000, weight: 1, off: 1.03}, {id: 2, power: 56_000, weight: 1, off: 0.97}}
					each(d)
				}
			}
		}
	}
}

// third is one more load.
func (d *device) third() *load {
	l := &load{id: 3, power: 250_000, weight: 1, off: 1}
	d.loads = append(d.loads, l)
	return l
}

// run lets some loads work for so many seconds.
func (d *device) run(seconds int, working ...*load) {
	var owner *load
	left := 0
	for end := d.now + seconds*1000; d.now < end; d.now++ {
		var ready []*load
		for _, l := range working {
			if l.pauses == nil || !l.pauses(d.now) {
				ready = append(ready, l)
			}
		}
		if left--; left <= 0 || owner != nil && owner.pauses != nil && owner.pauses(d.now) {
			owner = nil
			for _, l := range ready {
				if owner == nil || l.turns < owner.turns {
					owner = l
				}
			}
			left = d.turn + d.r.IntN(d.turn) - d.turn/2
		}
		d.tick(owner, ready)
	}
}

// tick lets a millisecond pass in which a load works, or nobody.
func (d *device) tick(owner *load, ready []*load) {
	power := 0.0
	if owner != nil {
		power = owner.power
		if len(ready) > 1 {
			power *= d.mixed
		}
		owner.used += power / 1e3
		owner.time += int64(ms * owner.off)
		owner.turns += 1 / owner.weight
	}
	least := math.Inf(1) // one that comes back has no claim on what it missed
	for _, l := range ready {
		least = min(least, l.turns)
	}
	for _, l := range d.loads {
		l.turns = max(l.turns, least-float64(d.turn))
		if math.IsInf(least, 1) {
			l.turns = 0
		}
	}
	if len(ready) > 1 {
		d.busy = d.now + 2000
	}
	d.sensor += (d.idle + power - d.sensor) / max(1, d.smooth)
	d.energy[d.now%1024] = d.energy[(d.now+1023)%1024] + d.sensor/1e3
	d.stood++
	if d.now%d.step == 0 {
		late := d.late
		if d.later > 0 {
			late += d.r.IntN(d.later)
		}
		d.counter = max(d.counter, d.energy[max(d.now-late, 0)%1024])
	}
	if d.now >= d.next {
		d.read()
	}
}

// read has the meter read the counter, some milliseconds late now and then: once a second, or ten times while several work.
func (d *device) read() {
	d.next = d.now + 1000 + d.r.IntN(5)
	if d.now < d.busy {
		d.next = d.now + 100 + d.r.IntN(5)
	}
	uses := make([]Use, len(d.loads))
	for i, l := range d.loads {
		uses[i] = Use{ID: l.id, Weight: 100, Time: l.time}
		l.time = 0
	}
	for _, s := range d.meter.Read(int64(d.now)*ms, uint64(d.counter), uses) {
		if s.ID == Nobody {
			d.nobody += s.Energy
		}
		for _, l := range d.loads {
			if l.id == s.ID {
				l.got += s.Energy
			}
		}
	}
	if d.last > 0 {
		d.rose += uint64(d.counter) - d.last
	}
	d.last = uint64(d.counter)
}

// mark has everything counted anew.
func (d *device) mark() {
	for _, l := range d.loads {
		l.used, l.got = 0, 0
	}
	d.stood, d.rose, d.nobody = 0, 0, 0
}

// error is by which part a load was given more than it used since mark.
func (d *device) error(l *load) float64 {
	should := l.used + d.idle*d.stood/1e3/float64(len(d.loads))
	return float64(l.got)/should - 1
}

// sum checks that all that the counter has risen by since mark was given away.
func (d *device) sum(t *testing.T) {
	t.Helper()
	sum := d.nobody
	for _, l := range d.loads {
		sum += l.got
	}
	if sum != d.rose {
		t.Errorf("%d mJ are given of %d: %s", sum, d.rose, d)
	}
}

// seen lets each of some loads work alone, with rests between.
func (d *device) seen(loads ...*load) {
	d.run(5)
	for _, l := range loads {
		d.run(5, l)
		d.run(3)
	}
}

// mixes are what loads do before and beside each other.
var mixes = []struct {
	name   string
	mixed  float64
	errors []float64 // at most: of the hot load, of the cool one, and of a third
	run    func(d *device, hot, cool *load)
}{
	{"both seen, 10 s", 1.1, []float64{0.05, 0.1}, func(d *device, hot, cool *load) {
		for range 2 { // the second time it has been in a mix before
			d.seen(hot, cool)
			d.mark()
			d.run(10, hot, cool)
		}
	}},
	{"both seen, 10 min", 1.1, []float64{0.05, 0.15}, func(d *device, hot, cool *load) {
		d.seen(hot, cool)
		d.mark()
		d.run(600, hot, cool)
	}},
	{"both seen, 10:90, 10 min", 1.1, []float64{0.1, 0.1}, func(d *device, hot, cool *load) {
		cool.weight = 9
		d.seen(hot, cool)
		d.mark()
		d.run(600, hot, cool)
	}},
	{"both seen, the hot one pauses often", 1.1, []float64{0.08, 0.15}, func(d *device, hot, cool *load) {
		hot.pauses = func(ms int) bool { return ms%600 < 300 }
		d.seen(hot, cool)
		d.mark()
		d.run(120, hot, cool)
	}},
	{"the hot one changed when alone", 1.1, []float64{0.1, 0.1}, func(d *device, hot, cool *load) {
		d.seen(hot, cool)
		d.run(10, hot, cool)
		hot.power = cool.power
		d.run(5, hot)
		d.run(5, hot, cool)
		d.mark()
		d.run(30, hot, cool)
	}},
	{"the cool one changed when alone", 1.1, []float64{0.15, 0.15}, func(d *device, hot, cool *load) {
		d.seen(hot, cool)
		d.run(10, hot, cool)
		cool.power = hot.power
		d.run(5, cool)
		d.run(5, hot, cool)
		d.mark()
		d.run(30, hot, cool)
	}},
	{"only the hot one seen, and a mix draws no more", 1, []float64{0.18, 0.55}, func(d *device, hot, cool *load) {
		d.seen(hot)
		d.mark()
		d.run(60, hot, cool)
	}},
	{"only the hot one seen", 1.1, []float64{0.2, 0.75}, func(d *device, hot, cool *load) {
		d.seen(hot)
		d.mark()
		d.run(60, hot, cool)
	}},
	{"only the cool one seen", 1.1, []float64{0.06, 0.2}, func(d *device, hot, cool *load) {
		d.seen(cool)
		d.mark()
		d.run(60, hot, cool)
	}},
	{"none seen", 1.1, []float64{0.36, 1.25}, func(d *device, hot, cool *load) { // as if they were alike
		d.seen()
		d.mark()
		d.run(60, hot, cool)
	}},
	{"none seen, weights change", 1.1, []float64{0.18, 0.45}, func(d *device, hot, cool *load) {
		d.seen()
		d.mark()
		for range 10 {
			cool.weight = 4 - cool.weight
			d.run(6, hot, cool)
		}
	}},
	{"none seen, three that pause", 1.1, []float64{0.12, 0.35, 0.12}, func(d *device, hot, cool *load) {
		third := d.third()
		for i, l := range d.loads {
			l.pauses = func(ms int) bool { return (ms/1000+i*7)%(17+i*4) < 6 }
		}
		d.seen()
		d.mark()
		d.run(120, hot, cool, third)
	}},
	{"both seen, a third comes", 1.1, []float64{0.18, 0.18, 0.35}, func(d *device, hot, cool *load) {
		third := d.third()
		d.seen(hot, cool)
		d.run(10, hot, cool)
		d.mark()
		d.run(60, hot, cool, third)
	}},
}

// TestParts: how far off are the parts of loads that share devices whose counters are late? docs/energy.md has the table.
func TestParts(t *testing.T) {
	for _, c := range mixes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			squares, worst, n := make([]float64, len(c.errors)), make([]float64, len(c.errors)), 0.0
			devices(func(d *device) {
				d.mixed = c.mixed
				c.run(d, d.loads[0], d.loads[1])
				d.run(2)
				d.sum(t)
				n++
				for i, l := range d.loads {
					e := d.error(l)
					squares[i] += e * e
					worst[i] = max(worst[i], math.Abs(e))
					if math.Abs(e) > c.errors[i] {
						t.Errorf("load %d is given %+.1f %% of what it used: %s", l.id, 100*e, d)
					}
				}
			})
			for i := range squares {
				t.Logf("load %d is off by %.1f %% (root of the mean square), at most %.1f %%", i+1, 100*math.Sqrt(squares[i]/n), 100*worst[i])
			}
		})
	}
}

// TestOneTellsOfOthers: of two who were seen together first, one that is then seen alone tells of the other, too; not of a
// third, and not after a change.
func TestOneTellsOfOthers(t *testing.T) {
	m := New(0)
	power := func(id uint64, want float64) {
		t.Helper()
		if got := m.user(id).power; math.Abs(got-want) > 0.1*want {
			t.Errorf("the power of %d is %.0f, not about %.0f", id, got, want)
		}
	}
	m.learnAlone(3, mix{share: map[uint64]float64{3: 1}, level: 50_000, noise: 1000})
	m.learnMix(mix{share: map[uint64]float64{1: 0.5, 2: 0.5}, level: 100_000, noise: 1000})
	power(1, 100_000)
	power(2, 100_000)
	m.learnAlone(1, mix{share: map[uint64]float64{1: 1}, level: 60_000, noise: 1000})
	power(1, 60_000)
	power(2, 140_000) // what the mix leaves
	power(3, 50_000)
	m.learnAlone(1, mix{share: map[uint64]float64{1: 1}, level: 200_000, noise: 1000}) // another program
	power(1, 200_000)
	power(2, 140_000)
	for _, id := range []uint64{1, 2} {
		m.forget(id)
	}
	if len(m.together) > 0 {
		t.Errorf("of those who are forgotten there is %v", m.together)
	}
}

// TestMixTellsNothing: where shares stay as they are, nothing is learned, however long.
func TestMixTellsNothing(t *testing.T) {
	devices(func(d *device) {
		if d.turn > 10 {
			return
		}
		d.seen(d.loads...)
		d.run(20, d.loads...)
		powers := [2]float64{d.meter.users[1].power, d.meter.users[2].power}
		d.run(100, d.loads...)
		if now := [2]float64{d.meter.users[1].power, d.meter.users[2].power}; now != powers {
			t.Errorf("%.0f mW became %.0f: %s", powers, now, d)
		}
	})
}
