package schedule

import (
	"fmt"
	"slices"
	"testing"
)

// Requests that follow one another, each of some small kernels, wait for a fraction of a millisecond beside one that keeps
// the device busy, and not for turns: its time slices become longer until both have their parts.
func TestRequestsInARow(t *testing.T) {
	for _, tt := range []struct {
		weight uint32 // of the other
		keeps  float64
	}{{100, 48}, {50, 31}} {
		c := newChip(t, Options{})
		x := c.add(1, Params{}, 10*us, 80*us, 150*us)
		x.every = 30 * us
		y := c.add(2, Params{Weight: tt.weight}, 200*us, 0, 0)
		c.run(2 * second)
		x.delays = nil
		parts := c.seconds(5)
		t.Logf("weight %d: the other has %.1f %%, %d requests a second, p50 %d, p99 %d, longest %d us", tt.weight, mean(parts[y]), len(x.delays)/5,
			x.percentile(50), x.percentile(99), x.percentile(100))
		if keeps := slices.Min(parts[y]); keeps < tt.keeps {
			t.Errorf("beside weight %d: the other had %.1f %% in a second", tt.weight, keeps)
		}
		if x.percentile(50) > 900 || x.percentile(100) > 1300 {
			t.Errorf("beside weight %d: requests took %d, p99 %d us", tt.weight, x.percentile(50), x.percentile(99))
		}
	}
}

// Requests of some 20 launch-bound kernels, with hardly a pause between them, look as if they kept the device busy while all
// are guests. A latency-critical lgpu must not take turns for that; another one not for longer than it takes to see what
// its turns leave idle.
func TestRequestsThatLookHeavy(t *testing.T) {
	for _, tt := range []struct {
		name    string
		p       Params
		settles int64 // ns
	}{{"latency", Params{Latency: true}, 500 * ms}, {"normal", Params{}, 4 * second}} {
		for _, kernel := range []int64{200 * us, 2 * ms} {
			for _, r := range []struct{ every, kernels int64 }{{20 * us, 20}, {30 * us, 12}, {30 * us, 20}} {
				c := newChip(t, Options{})
				x := c.add(1, tt.p, 10*us, 10*us*r.kernels, 30*us)
				x.every = r.every
				y := c.add(2, Params{}, kernel, 0, 0)
				c.run(tt.settles)
				x.delays = nil
				parts := c.seconds(5)
				what := fmt.Sprintf("%s: %d kernels, one each %d us, beside %d us", tt.name, r.kernels, r.every/us, kernel/us)
				t.Logf("%s: p50 %d, p99 %d, longest %d us; the other has %.1f %%", what, x.percentile(50), x.percentile(99), x.percentile(100), parts[y])
				if x.percentile(50) > 1100 || x.percentile(99) > 1300 || x.percentile(100) > 5000 {
					t.Errorf("%s: requests took %d, p99 %d, the longest %d us", what, x.percentile(50), x.percentile(99), x.percentile(100))
				}
				if keeps := slices.Min(parts[y]); keeps < 47 {
					t.Errorf("%s: the other had %.1f %% in a second", what, keeps)
				}
			}
		}
	}
}

// One that keeps the device beyond its time slice gets no more than its part, once that is known, and is charged for it.
func TestDefiantOnChip(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    Params
		work int64
		want float64 // the least that it is to use
	}{{"normal", Params{}, 5 * ms, 46}, {"latency", Params{Latency: true}, ms, 15}} {
		c := newChip(t, Options{})
		x := c.add(1, tt.p, ms, tt.work, 2*ms)
		y := c.add(2, Params{}, 2*ms, 0, 0)
		c.run(second)
		y.defies, y.slice = true, 500*ms
		starved := mean(c.seconds(2)[x])
		c.s.Preempted(c.now, y.id, 0, false)
		c.decide()
		c.run(second)
		parts := c.seconds(5)
		t.Logf("%s: %.1f %% before it is known, then %.1f beside %.1f", tt.name, starved, parts[x], parts[y])
		if starved > 20 {
			t.Errorf("%s: long slices keep nobody from the device: %.1f %%", tt.name, starved)
		}
		if least := slices.Min(parts[x]); least < tt.want {
			t.Errorf("%s: it used %.1f %% in a second beside one that keeps the device, want %.0f", tt.name, least, tt.want)
		}
		for _, share := range c.s.Shares(c.now, nil) {
			if used := 100 * slices.Min(parts[y]); share.ID == y.id && float64(share.Delivered) < used-200 {
				t.Errorf("%s: the one that keeps the device used %.0f and was charged %d", tt.name, used, share.Delivered)
			}
		}
		if err := c.s.consistent(); err != nil {
			t.Error(err)
		}
	}
}
