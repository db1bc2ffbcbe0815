package share

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// program is what each device of a gang's lgpu runs, in order and again and again. A negative kernel is a collective: it
// ends only when it has run for so long at the same time as those of the same number on all devices.
type program []int64

// worker is a seat of a gang, launch by launch.
type worker struct {
	id      ID
	dev     Device
	group   []*worker // that a collective needs
	program program

	open, closing bool
	seep          bool
	until, busy   int64
	launched      int // kernels so far
	done          int
	ran           int64 // of the first not done
	idle          bool  // has told Want or Closed, waiting
	gone          bool
}

func (w *worker) kernel(n int) int64 { return w.program[n%len(w.program)] }

// rig runs workers in steps of time.
type rig struct {
	t       testing.TB
	s       *Scheduler
	now     int64
	workers []*worker
	overran int
	seeps   int
	random  *rand.Rand
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
		w := &worker{id: id, dev: dev, program: run}
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
			for _, o := range r.workers {
				if o.dev == w.dev && o.open && r.overran == 0 && r.seeps == 0 {
					r.t.Fatalf("device %d given to %d beside %d", w.dev, w.id, o.id)
				}
			}
			w.open, w.closing, w.until, w.idle = true, false, d.Until, false
		case Extend:
			w.until = d.Until
		case Free:
			w.open, w.closing, w.until, w.idle = true, false, NoLimit, false
		case Close:
			w.closing = true
		case Seep:
			r.seeps++
			w.open, w.closing, w.seep, w.idle = true, true, true, false
		case Overran:
			r.overran++
		}
	}
}

func (r *rig) run(length int64) {
	for end := r.now + length; r.now < end; r.now += step {
		for _, w := range r.workers {
			if !w.gone {
				r.advance(w)
			}
		}
		if next, ok := r.s.Next(); ok && next <= r.now {
			r.s.Tick(r.now)
			r.decide()
		}
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

func (r *rig) advance(w *worker) {
	if w.launched > w.done {
		w.busy += step
		k := w.kernel(w.done)
		if k > 0 || !w.stuck() {
			w.ran += step
		}
		if w.ran >= max(k, -k) {
			w.ran = 0
			w.done++
		}
	}
	for w.launched < w.done+3 && r.random.IntN(3) > 0 { // programs launch at no even pace
		switch {
		case w.seep:
			w.seep = false
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
	if w.open && w.launched == w.done && (w.closing || w.busy >= w.until-2*step) {
		w.open, w.closing, w.idle = false, false, true
		r.s.Closed(r.now, w.id, w.dev, w.busy, true)
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

func TestGangs(t *testing.T) {
	training := program{400 * us, -200 * us}
	slow := program{3 * ms, -6 * ms, 200 * us}
	single := program{200 * us}
	type lgpu struct {
		p       Params
		run     program
		devices []Device
		want    float64
	}
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
			{Params{Cap: map[Device]uint32{0: 3000, 1: 3000}}, training, []Device{0, 1}, 29},
			{Params{}, training, []Device{1, 0}, 68}}, 6},
		{"capped alone", []lgpu{
			{Params{Cap: map[Device]uint32{0: 3000, 1: 3000}}, training, []Device{0, 1}, 29}}, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{})
			var groups [][]*worker
			for i, l := range tt.of {
				groups = append(groups, r.lgpu(ID(i+1), l.p, l.run, l.devices...))
			}
			r.run(second)
			for _, parts := range r.progress(4, groups...) {
				t.Logf("%.1f, %d seeps, %d overran", parts, r.seeps, r.overran)
				for i, part := range parts {
					if want := tt.of[i].want; math.Abs(part-want) > tt.within {
						t.Errorf("lgpu %d made %.1f %% of its way, want %.0f", i+1, part, want)
					}
				}
			}
			if err := r.s.consistent(); err != nil {
				t.Error(err)
			}
		})
	}
}

var _ = fmt.Sprint
