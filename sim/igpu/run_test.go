package igpu

import (
	"context"
	"reflect"
	"testing"
	"time"
)

func run(t *testing.T, c Config) *Report {
	t.Helper()
	if c.Mix == "" {
		c.Mix = Linux
	}
	if c.Load == "" {
		c.Load = Busy
	}
	if c.Time == 0 {
		c.Time = 3 * time.Second
	}
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// full is gScale with everything.
func full(guests int) Config {
	return Config{Guests: guests, Policy: GScale, Slots: 4, SubSlots: 32, Predict: true, Aware: true}
}

// TestAdmitted: gVirt has room for three guests, gScale for 15 with Linux and 12 with Windows.
func TestAdmitted(t *testing.T) {
	for _, test := range []struct {
		policy Policy
		mix    Mix
		want   int
	}{{GVirt, Linux, 3}, {GVirt, Windows, 3}, {GScale, Linux, 15}, {GScale, Windows, 12}} {
		r := run(t, Config{Guests: 20, Policy: test.policy, Slots: 4, Mix: test.mix, Time: 100 * time.Millisecond})
		if r.Admitted != test.want || r.Refusal == "" {
			t.Errorf("%s with %s admits %d, not %d: %s", test.policy, test.mix, r.Admitted, test.want, r.Refusal)
		}
	}
}

// TestThroughput: what gScale keeps of gVirt's throughput.
func TestThroughput(t *testing.T) {
	for _, test := range []struct {
		guests int
		mix    Mix
		spread bool
		least  float64
	}{
		{1, Linux, false, 0.96}, {2, Linux, false, 0.96}, {3, Linux, false, 0.96}, {15, Linux, false, 0.81}, {12, Windows, false, 0.81},
		{1, Windows, true, 0.96}, {2, Windows, true, 0.96}, {3, Windows, true, 0.96}, {15, Linux, true, 0.96}, {12, Windows, true, 0.96},
	} {
		base := run(t, Config{Guests: min(3, test.guests), Policy: GVirt, Mix: test.mix})
		c := full(test.guests)
		c.Mix, c.Spread = test.mix, test.spread
		r := run(t, c)
		if got := r.Work() / base.Work(); got < test.least {
			t.Errorf("%d guests: %.3f of gVirt's, at least %.2f", test.guests, got, test.least)
		} else {
			t.Logf("%d guests: %.3f; %+v", test.guests, got, r.Table)
		}
		for _, g := range r.Guests {
			if g.Frames == 0 || g.Faults != 0 {
				t.Errorf("%d guests: %+v", test.guests, g)
			}
		}
	}
}

// TestSame: a run is the same each time, and another with another seed.
func TestSame(t *testing.T) {
	c := full(6)
	c.Load, c.Seed = Random, 7
	a, b := run(t, c), run(t, c)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
	c.Seed = 8
	if reflect.DeepEqual(a, run(t, c)) {
		t.Error("another seed changes nothing")
	}
}

// TestLoads: guests that come and go leave the GPU idle, and most guesses are right nevertheless, since the order is kept.
func TestLoads(t *testing.T) {
	for _, load := range []Load{Churn, Random} {
		c := full(15)
		c.Load = load
		if r := run(t, c); r.HitRate() < 0.6 {
			t.Errorf("%s: %.2f of the guesses are right", load, r.HitRate())
		}
		c.Guests = 2
		if r := run(t, c); r.Work() > 0.9 {
			t.Errorf("%s: two guests keep the GPU busy for %.2f of the time", load, r.Work())
		}
	}
}

// TestHostile: guests that do what they must not get faults, and the others the right results.
func TestHostile(t *testing.T) {
	for _, policy := range Policies {
		c := Config{Guests: 3, Hostile: 1, Policy: policy, Slots: 4, Predict: true, Mix: MixedBoth}
		for c.Seed = range 3 {
			r := run(t, c)
			if r.Guests[2].Faults == 0 || r.Guests[0].Frames == 0 || r.Guests[1].Frames == 0 || r.Guests[0].Faults != 0 {
				t.Errorf("%s: %+v", policy, r.Guests)
			}
		}
	}
}

// TestConfigurations: every way to share, with every mix and load, gives right results in every step.
func TestConfigurations(t *testing.T) {
	for _, mix := range Mixes {
		for _, load := range Loads {
			for _, c := range []Config{{Slots: 1}, {Slots: 4}, {Slots: 4, SubSlots: 32}, {Slots: 3, SubSlots: 16, Predict: true}, {Slots: 4, SubSlots: 32, Predict: true, Aware: true, Spread: true}} {
				c.Guests, c.Policy, c.Mix, c.Load, c.Time = 7, GScale, mix, load, 250*time.Millisecond
				run(t, c)
			}
		}
	}
}
