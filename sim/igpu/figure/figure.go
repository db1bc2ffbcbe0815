// Package figure makes the figures of docs/gscale.md: what figures 10 to 16 of gScale's patent show, of the simulation.
package figure

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lgpu/lgpu/sim/igpu"
)

// length is how much virtual time a run of a figure has, unless it needs more.
const length = 5 * time.Second

// figure is one of them: what it is called on disk, and how it is made.
type figure struct {
	name string
	draw func(*runs) Chart
}

var figures = []figure{
	{"admitted", (*runs).admitted},
	{"fig10-linux", func(r *runs) Chart {
		return r.overCount("Figure 10: Linux guests", []int{1, 2, 3, 6, 9, 12, 15}, igpu.Linux2D, igpu.Linux3D)
	}},
	{"fig11-windows", func(r *runs) Chart {
		return r.overCount("Figure 11: Windows guests", []int{1, 2, 3, 6, 9, 12}, igpu.Windows)
	}},
	{"fig12-gvirt", (*runs).againstGVirt},
	{"fig13-throughput", func(r *runs) Chart {
		return r.steps("Figure 13: prediction and order, 3D", "part of gVirt's throughput", func(x, base *igpu.Report) float64 {
			return x.Work() / base.Work()
		})
	}},
	{"fig14-entries", func(r *runs) Chart {
		return r.steps("Figure 14: prediction and order, 3D", "entries copied in a switch", func(x, _ *igpu.Report) float64 {
			return x.PerSwitch()
		})
	}},
	{"fig15-private", (*runs).private},
	{"fig16-mixed", func(r *runs) Chart {
		return r.overCount("Figure 16: Linux and Windows guests", []int{1, 2, 3, 6, 9, 12}, igpu.MixedBoth)
	}},
	{"sizes", (*runs).sizes},
	{"forced", (*runs).forced},
	{"prediction", (*runs).prediction},
}

// runs makes the runs of figures; the first error ends all.
type runs struct {
	ctx  context.Context
	seed uint64
	err  error
}

// Write makes all figures in a folder and returns them as tables. step is called before each figure.
func Write(ctx context.Context, folder string, seed uint64, step func(done, of int, name string)) (tables string, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("figures: %w", err)
	}
	for i, f := range figures {
		step(i, len(figures), f.name)
		r := &runs{ctx: ctx, seed: seed}
		chart := f.draw(r)
		if r.err != nil {
			return "", fmt.Errorf("%s: %w", f.name, r.err)
		}
		if err := chart.Save(filepath.Join(folder, f.name+".svg")); err != nil {
			return "", fmt.Errorf("figures: %w", err)
		}
		tables += chart.Table() + "\n"
	}
	return tables, nil
}

func (r *runs) run(c igpu.Config) *igpu.Report {
	c.Seed = r.seed
	if c.Time == 0 {
		c.Time = length
	}
	if c.Load == "" {
		c.Load = igpu.Busy
	}
	report := &igpu.Report{Time: 1}
	if r.err == nil {
		if x, err := igpu.Run(r.ctx, c); err != nil {
			r.err = err
		} else {
			report = x
		}
	}
	return report
}

// base is gVirt with as many of the guests as it has room for.
func (r *runs) base(guests int, mix igpu.Mix) *igpu.Report {
	return r.run(igpu.Config{Guests: min(3, guests), Policy: igpu.GVirt, Mix: mix})
}

// ways are how gScale shares, from the private table alone to all of it.
var ways = []struct {
	name   string
	config igpu.Config
}{
	{"none", igpu.Config{Slots: 1}},
	{"slots", igpu.Config{Slots: 4}},
	{"sub-slots", igpu.Config{Slots: 4, SubSlots: 32}},
	{"+ predict", igpu.Config{Slots: 4, SubSlots: 32, Predict: true}},
	{"+ aware", igpu.Config{Slots: 4, SubSlots: 32, Predict: true, Aware: true}},
	{"+ spread", igpu.Config{Slots: 4, SubSlots: 32, Predict: true, Aware: true, Spread: true}},
}

// Some of the ways: what the patent has in all, and what is beyond it.
const (
	alone  = 0
	patent = 4
	beyond = 5
)

func (r *runs) gscale(way, guests int, mix igpu.Mix) *igpu.Report {
	c := ways[way].config
	c.Policy, c.Guests, c.Mix = igpu.GScale, guests, mix
	return r.run(c)
}

func labels(counts []int) (at []string) {
	for _, n := range counts {
		at = append(at, fmt.Sprint(n))
	}
	return at
}

// admitted is how many of 20 guests have room.
func (r *runs) admitted() Chart {
	c := Chart{Title: "Guests", X: "guests", Y: "how many there is room for", At: []string{"Linux", "Windows", "both"}, Bars: true}
	for _, policy := range igpu.Policies {
		s := Series{Name: string(policy)}
		for _, mix := range []igpu.Mix{igpu.Linux, igpu.Windows, igpu.MixedBoth} {
			x := r.run(igpu.Config{Guests: 20, Policy: policy, Mix: mix, Slots: 4, Time: length / 50})
			s.Values = append(s.Values, float64(x.Admitted))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// overCount is the throughput over how many guests there are.
func (r *runs) overCount(title string, counts []int, mixes ...igpu.Mix) Chart {
	c := Chart{Title: title, X: "guests", Y: "part of gVirt's throughput", At: labels(counts)}
	for _, mix := range mixes {
		for _, way := range []int{alone, patent, beyond} {
			name := map[int]string{alone: "private tables", patent: "gScale", beyond: "spread"}[way]
			s := Series{Name: fmt.Sprintf("%s, %s", mix, name)}
			for _, n := range counts {
				s.Values = append(s.Values, r.gscale(way, n, mix).Work()/r.base(n, mix).Work())
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// againstGVirt is one to three guests, of each kind, in frames.
func (r *runs) againstGVirt() Chart {
	counts := []int{1, 2, 3}
	c := Chart{Title: "Figure 12: gScale against gVirt", X: "guests", Y: "part of gVirt's frames", At: labels(counts)}
	frames := func(x *igpu.Report) (sum float64) {
		for _, g := range x.Guests {
			sum += float64(g.Frames)
		}
		return sum
	}
	for _, mix := range []igpu.Mix{igpu.Linux2D, igpu.Linux3D, igpu.Windows} {
		for _, way := range []int{patent, beyond} {
			s := Series{Name: string(mix) + map[int]string{patent: "", beyond: ", spread"}[way]}
			for _, n := range counts {
				s.Values = append(s.Values, frames(r.gscale(way, n, mix))/frames(r.base(n, mix)))
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// steps is each way to share, over how many guests there are.
func (r *runs) steps(title, y string, value func(x, base *igpu.Report) float64) Chart {
	counts := []int{1, 2, 3, 4, 6, 9, 12, 15}
	c := Chart{Title: title, X: "guests", Y: y, At: labels(counts)}
	for way := range ways {
		s := Series{Name: ways[way].name}
		for _, n := range counts {
			s.Values = append(s.Values, value(r.gscale(way, n, igpu.Linux3D), r.base(n, igpu.Linux3D)))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// private is the part of the time that private tables cost, with all entries copied and with those of low memory alone.
func (r *runs) private() Chart {
	counts := []int{1, 2, 3, 6, 9, 12, 15}
	c := Chart{Title: "Figure 15: what a private table costs", X: "guests", Y: "% of the time", At: labels(counts)}
	for way, name := range []string{"low and high memory", "with slots"} {
		s := Series{Name: name}
		for _, n := range counts {
			x := r.gscale(way, n, igpu.Linux3D)
			s.Values = append(s.Values, 100*float64(x.Exposed)/float64(x.Time))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// sizes is what slots and sub-slots are worth for guests of different sizes.
func (r *runs) sizes() Chart {
	counts := []int{3, 4, 6, 9, 12, 15}
	c := Chart{Title: "Guests with 384, 192 and 96 MiB of high memory", X: "guests", Y: "entries copied in a switch", At: labels(counts)}
	for _, way := range []igpu.Config{{}, {Predict: true}, {Predict: true, Aware: true}} {
		for _, subSlots := range []int{0, 32} {
			s := Series{Name: map[int]string{0: "slots", 32: "sub-slots"}[subSlots]}
			if way.Predict {
				s.Name += ", predict"
			}
			if way.Aware {
				s.Name += ", aware"
			}
			for _, n := range counts {
				x := way
				x.Policy, x.Mix, x.Guests, x.Slots, x.SubSlots = igpu.GScale, igpu.Sizes, n, 4, subSlots
				s.Values = append(s.Values, r.run(x).PerSwitch())
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// forced is how many switches are between guests with the same place in high memory.
func (r *runs) forced() Chart {
	counts := []int{4, 5, 6, 7, 9, 12, 15}
	c := Chart{Title: "Neighbours in the same slot", X: "guests", Y: "% of all switches", At: labels(counts)}
	for _, load := range []igpu.Load{igpu.Busy, igpu.Churn} {
		for _, aware := range []bool{false, true} {
			s := Series{Name: fmt.Sprintf("%s, %s", map[bool]string{false: "arrival", true: "slot-aware"}[aware], load)}
			for _, n := range counts {
				x := r.run(igpu.Config{Policy: igpu.GScale, Guests: n, Mix: igpu.Linux2D, Slots: 4, Predict: true, Aware: aware, Load: load,
					Time: 4 * length})
				s.Values = append(s.Values, 100*float64(x.Table.Forced)/float64(max(1, x.Table.Neighbours)))
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// prediction is how often the guess is right, by how many successors vote and in which order turns are.
func (r *runs) prediction() Chart {
	c := Chart{Title: "Prediction, 15 guests", X: "load", Y: "% of the guesses that are right"}
	for _, load := range igpu.Loads {
		c.At = append(c.At, string(load))
	}
	for _, aware := range []bool{false, true} {
		for _, depth := range []int{1, 8} {
			s := Series{Name: fmt.Sprintf("%s, last %d", map[bool]string{false: "arrival", true: "slot-aware"}[aware], depth)}
			for _, load := range igpu.Loads {
				x := r.run(igpu.Config{Policy: igpu.GScale, Guests: 15, Mix: igpu.Linux, Slots: 4, SubSlots: 32, Predict: true, Aware: aware,
					Depth: depth, Load: load, Time: 4 * length})
				s.Values = append(s.Values, 100*x.HitRate())
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// Guests is a chart of one run: how much of the GPU each guest had.
func Guests(r *igpu.Report) Chart {
	c := Chart{Title: fmt.Sprintf("%s, %d guests", r.Policy, r.Admitted), X: "guest", Y: "% of the time", Bars: true}
	s := Series{Name: "the GPU works for the guest"}
	for _, g := range r.Guests {
		c.At = append(c.At, fmt.Sprint(g.ID))
		s.Values = append(s.Values, 100*float64(g.Busy)/float64(r.Time))
	}
	c.Series = []Series{s}
	return c
}
