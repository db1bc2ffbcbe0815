package schedule

import "testing"

// Many lgpus with small maxima that all want the device have what they may, and none waits for long: a grant of one percent
// begins when there is a quantum of credit, twice a second. Guests all come at once, and their work waits for that of others.
func TestManySmallMaxima(t *testing.T) {
	const n, windows, window = 50, 40, second / 2
	check := func(name string, within float64, run func(int64), used func(i int) int64) {
		run(3 * second) // what an idle lgpu has saved up is used by then
		var first, before [n]int64
		var waited [n]int
		for i := range n {
			first[i] = used(i)
		}
		for range windows {
			for i := range n {
				before[i] = used(i)
			}
			run(window)
			for i := range n {
				if waited[i]++; used(i) > before[i] {
					waited[i] = 0
				}
				if waited[i] > 2 {
					t.Fatalf("%s: lgpu %d has had nothing for over a second", name, i)
				}
			}
		}
		for i := range n {
			near(t, name+": of one percent", 100*float64(used(i)-first[i])/float64(windows*window), 1, within)
		}
	}
	p := Params{Max: on0(100)}
	m := newMachine(t, Options{})
	for id := range ID(n) {
		m.set(id+1, p)
		m.attach(id+1, 0, work{kernel: 200 * us})
	}
	check("turns", 0.03, m.run, func(i int) int64 { return m.list[i].busy })
	c := newChip(t, Options{})
	for id := range ID(n) {
		c.add(id+1, p, 200*us, 0, 0)
	}
	check("guests", 0.06, c.run, func(i int) int64 { return c.programs[i].used })
}

// What many lgpus are charged that use a device as guests is what they used, though each has work in flight while others run:
// together no more than the whole device, with a maximum or without.
func TestManyGuestsAreChargedOnce(t *testing.T) {
	const n, windows = 50, 20
	for _, kind := range []struct {
		name        string
		p           Params
		work, pause int64
	}{
		{"without end", Params{}, 0, 0},
		{"1 ms and a pause", Params{}, ms, ms},
		{"1 ms and a long pause", Params{}, ms, 20 * ms},
		{"a maximum of 3 %", Params{Max: on0(300)}, 0, 0},
	} {
		t.Run(kind.name, func(t *testing.T) {
			c := newChip(t, Options{})
			for id := range ID(n) {
				c.add(id+1, kind.p, 200*us, kind.work, kind.pause)
			}
			charged := func() (sum int64) {
				for id := range ID(n) {
					sum += c.s.Spent(c.now, id+1, 0)
				}
				return sum
			}
			used := func() (sum int64) {
				for _, x := range c.programs {
					sum += x.used
				}
				return sum
			}
			c.run(3 * second)
			spent, ran := charged(), used()
			var share int64
			for range windows {
				c.run(second)
				for _, st := range c.s.Shares(c.now, nil) {
					share += int64(st.Delivered)
				}
			}
			spent, ran = charged()-spent, used()-ran
			near(t, "charged, of all time", 100*float64(spent)/(windows*float64(second)), 100*float64(ran)/(windows*float64(second)), 5)
			// Those that take turns of many ms are seen in some seconds more often than in others.
			if got := float64(share) / (100 * windows); got > 105 {
				t.Errorf("delivered: got %.1f %% of the device", got)
			}
		})
	}
}
