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
