package schedule

import (
	"math"
	"testing"
)

// Guests of a group have their parts of what the group has, by their weights, beside heavy lgpus outside of it. What one of
// them does not use is its siblings' first.
func TestGuestsOfAGroup(t *testing.T) {
	const group, inner = 100, 101
	pauses := func(c *chip, id ID, p Params) *app { return c.add(id, p, ms, 5*ms, 2*ms) }
	seldom := func(c *chip, id ID, p Params) *app { return c.add(id, p, ms, 2*ms, 38*ms) }
	launchBound := func(c *chip, id ID, p Params) *app {
		x := c.add(id, p, 60*us, 0, 0)
		x.every = 80 * us
		return x
	}
	type member struct {
		add    func(*chip, ID, Params) *app
		parent ID
		weight uint32
		share  float64 // of what the group has, in percent
	}
	for _, tt := range []struct {
		name    string
		members []member
		heavy   int
		group   float64 // the least that the group has, in percent of the device
	}{
		{"1:1", []member{{pauses, group, 100, 50}, {pauses, group, 100, 50}}, 1, 41},
		{"3:1", []member{{pauses, group, 300, 75}, {pauses, group, 100, 25}}, 1, 41},
		{"3:1 beside two", []member{{pauses, group, 300, 75}, {pauses, group, 100, 25}}, 2, 28},
		{"5:3:2", []member{{pauses, group, 500, 50}, {pauses, group, 300, 30}, {pauses, group, 200, 20}}, 1, 41},
		{"nested", []member{{pauses, group, 300, 75}, {pauses, inner, 300, 18.75}, {pauses, inner, 100, 6.25}}, 1, 41},
		{"launch-bound 3:1", []member{{launchBound, group, 300, 75}, {launchBound, group, 100, 25}}, 1, 36},
		{"the heaviest comes seldom", []member{{seldom, group, 900, 11}, {pauses, group, 300, 67}, {pauses, group, 100, 22}}, 1, 38},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newChip(t, Options{})
			for _, e := range []struct {
				id     ID
				parent ID
			}{{group, 0}, {inner, group}} {
				if err := c.s.Set(c.now, e.id, Params{Parent: e.parent}); err != nil {
					t.Fatal(err)
				}
			}
			for i, m := range tt.members {
				m.add(c, ID(i+1), Params{Parent: m.parent, Weight: m.weight})
			}
			for i := range tt.heavy {
				c.add(ID(50+i), Params{}, 2*ms, 0, 0)
			}
			c.run(3 * second)
			parts := c.seconds(10)
			sum := 0.0
			for _, x := range c.programs[:len(tt.members)] {
				sum += mean(parts[x])
			}
			for i, x := range c.programs {
				t.Logf("%d: %.1f %%", x.id, mean(parts[x]))
				if i >= len(tt.members) {
					continue
				}
				if got, want := 100*mean(parts[x])/sum, tt.members[i].share; math.Abs(got-want) > 3 {
					t.Errorf("%d has %.1f %% of what its group has, want %.1f", x.id, got, want)
				}
			}
			if sum < tt.group {
				t.Errorf("the group has %.1f %%, want %.0f", sum, tt.group)
			}
			if err := c.s.consistent(); err != nil {
				t.Error(err)
			}
		})
	}
}
