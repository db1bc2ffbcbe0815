package schedule

import "testing"

// Programs that keep the device busy, and pause now and then, take turns whenever they work: they are not taken for such
// that launch small kernels. As guests, those that wait for each kernel would lose a third of the device in switches.
func TestPausesOfHeavyPrograms(t *testing.T) {
	for _, w := range []struct {
		name                string
		kernel, work, pause int64
	}{{"queued", 200 * us, 0, 0}, {"each waited for", 200 * us, 200 * us, 20 * us}, {"long", 5 * ms, 0, 0}} {
		c := newChip(t, Options{})
		for i := range 2 {
			c.add(ID(i+1), Params{}, w.kernel, w.work, w.pause)
		}
		c.run(2 * second)
		for _, pause := range []int64{20 * ms, 50 * ms, 150 * ms, 2 * second} {
			for _, who := range [][]*app{c.programs[:1], c.programs} {
				for _, x := range who {
					x.left, x.resumes = 0, c.now+pause
				}
				c.run(pause + 800*ms)
				before := c.switches
				c.run(second)
				if turn := second / max(c.switches-before, 1); turn < 15*ms {
					t.Errorf("%s: after a pause of %d ms of %d, turns last %d us", w.name, pause/ms, len(who), turn/us)
				}
			}
		}
	}
}

// So do those that have a maximum.
func TestPausesBelowMaxima(t *testing.T) {
	c := newChip(t, Options{})
	maxima := []uint32{3000, 6000}
	for i := range maxima {
		c.add(ID(i+1), Params{}, 200*us, 200*us, 15*us)
	}
	c.run(2 * second)
	for i, x := range c.programs {
		x.left, x.resumes = 0, c.now+300*ms
		if err := c.s.Set(c.now, x.id, Params{Max: map[Device]uint32{0: maxima[i]}}); err != nil {
			t.Fatal(err)
		}
	}
	c.run(1500 * ms)
	parts := c.seconds(4)
	for i, x := range c.programs {
		native := 200.0 / 215
		t.Logf("maximum %d: %.1f %% of its native rate, in seconds %.1f", maxima[i], mean(parts[x])/native, parts[x])
		if of := mean(parts[x]) / native; of < 0.95*float64(maxima[i])/100 {
			t.Errorf("maximum %d: %.1f %% of its native rate", maxima[i], of)
		}
	}
}
