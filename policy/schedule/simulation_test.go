package schedule

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSimulation runs 1,000 lgpus on 128 devices: in groups, with weights, maxima and minimums, some that pause, some in
// gangs over four devices, and users who start twenty on one device. With -v it prints what each kind was entitled to and
// got. Nobody has less than that, nor more than that and its part of what others leave, by more than 1.5 points.
func TestSimulation(t *testing.T) {
	const lgpus, devices = 1000, 128
	m := newMachine(t, Options{})
	random := rand.New(rand.NewPCG(9, 9))
	m.random = random
	const groups, packers = ID(2000), ID(3000)
	for g := range ID(10) {
		m.set(groups+g, Params{Weight: uint32(50 + random.IntN(200))})
	}
	kinds := []string{"open", "capped", "bursty", "minimum", "high", "latency", "gang", "packer"}
	kind := map[*tenant]int{}
	id := ID(0)
	gangs := [devices]bool{}
	for id < lgpus {
		id++
		if user := (id - 1) / 20; user < 3 {
			if id%20 == 1 {
				m.set(packers+user, Params{})
			}
			m.set(id, Params{Parent: packers + user})
			kind[m.attach(id, Device(40*user), work{kernel: 20*us + random.Int64N(2*ms)})] = 7
			continue
		}
		dev := Device(id % devices)
		p := Params{Weight: uint32(50 + random.IntN(200)), Parent: groups + ID(random.IntN(10))}
		w := work{kernel: 20*us + random.Int64N(2*ms)}
		k := 0
		limit := map[Device]uint32{dev: uint32(200 + random.IntN(1000))}
		switch n := random.IntN(20); {
		case n < 6:
			k, p.Max = 1, limit
		case n < 11:
			k = 2
			w.burst, w.think, w.random = 100*us+random.Int64N(20*ms), random.Int64N(100*ms), true
		case n < 13:
			k, p.Min = 3, map[Device]uint32{dev: 400}
		case n == 13:
			k, p.Class, p.Max = 4, High, limit
		case n == 14:
			k, p.Latency, w.burst, w.think = 5, true, ms, 50*ms
		case n == 15 && !gangs[dev] && id > lgpus/2:
			k = 6
		}
		m.set(id, p)
		if k == 6 {
			for i := range Device(4) {
				gangs[(dev+i)%devices] = true
				kind[m.attach(id, (dev+i)%devices, w)] = k
			}
			continue
		}
		kind[m.attach(id, dev, w)] = k
	}
	m.run(2 * second)
	before := map[*tenant]int64{}
	for _, x := range m.list {
		before[x] = x.busy
		x.delays, x.slices = nil, nil
	}
	length := 20 * second
	if testing.Short() {
		length = 5 * second
	}
	m.events = 0
	began := time.Now()
	m.run(length)
	took := time.Since(began)
	if err := m.s.consistent(); err != nil {
		t.Fatal(err)
	}

	type sum struct {
		n                int
		asked, got, most float64
		delay            int64
	}
	sums := make([]sum, len(kinds))
	use := [devices]float64{}
	open := [devices]bool{}
	asked := map[string]Share{}
	for _, v := range m.s.Shares(m.now, nil) {
		asked[fmt.Sprint(v.ID, v.Device)] = v
	}
	starved := 0
	type gang struct{ least, got float64 }
	jobs := map[ID]gang{}
	for _, x := range m.list {
		v := asked[fmt.Sprint(x.id, x.dev)]
		got := 100 * float64(x.busy-before[x]) / float64(length)
		want := float64(v.Asked) / 100
		use[x.dev] += got
		k := kind[x]
		open[x.dev] = open[x.dev] || k == 0 || k == 3
		s := &sums[k]
		s.n++
		s.asked += want
		s.got += got
		for _, d := range x.delays {
			s.delay = max(s.delay, d)
		}
		if k == 6 {
			g, known := jobs[x.id]
			if !known || want < g.least {
				g.least = want
			}
			g.got += got / 4
			jobs[x.id] = g
		}
		if got == 0 {
			starved++
		}
		// What a gang loses by waiting for all its devices goes to the others; a latency-critical lgpu and a bursty
		// one use less than they may.
		if k != 2 && k != 5 && k != 6 {
			if got < want-1.5 {
				t.Errorf("lgpu %d, %s, on %d is entitled to %.2f %% and had %.2f", x.id, kinds[k], x.dev, want, got)
			}
			s.most = max(s.most, want-got)
		}
		if k == 1 || k == 4 {
			// And what was saved before.
			limit := float64(m.s.tree.entities[x.id].p.Max[x.dev]) / 100
			if got > limit+100*float64(25*ms)/float64(length) {
				t.Errorf("lgpu %d with cap %.2f had %.2f %%", x.id, limit, got)
			}
		}
	}
	for _, x := range m.list {
		if k := kind[x]; k == 2 || k == 5 || k == 6 { // as if they had asked for what they used
			used := 100 * float64(x.busy-before[x]) / float64(length)
			p := m.s.tree.entities[x.id].p
			limits := maps.Clone(p.Max)
			if limits == nil {
				limits = map[Device]uint32{}
			}
			limits[x.dev] = max(1, uint32(100*used))
			p.Max = limits
			m.set(x.id, p)
		}
	}
	above := 0.0
	for _, v := range m.s.Shares(m.now, nil) {
		x := m.tenants[v.ID][v.Device]
		got, want := 100*float64(x.busy-before[x])/float64(length), float64(v.Asked)/100
		if above = max(above, got-want); got > want+1.5 {
			t.Errorf("lgpu %d, %s, on %d is entitled to %.2f %% with what others leave, and had %.2f", x.id, kinds[kind[x]], x.dev, want, got)
		}
	}
	t.Logf("nobody had more than its part and what others leave by more than %.2f points", above)
	if starved > 0 {
		t.Errorf("%d seats had nothing", starved)
	}
	// A gang's part is that on the device where it is least.
	var sumGangs gang
	for id, g := range jobs {
		if g.got < g.least*0.4 {
			t.Errorf("gang %d is entitled to %.2f %% and had %.2f", id, g.least, g.got)
		}
		sumGangs.least += g.least
		sumGangs.got += g.got
	}
	if sumGangs.got < sumGangs.least*0.95 {
		t.Errorf("gangs are entitled to %.2f %% and had %.2f in all", sumGangs.least, sumGangs.got)
	}
	used, least := 0.0, math.Inf(1)
	n := 0
	for d, u := range use {
		if open[d] {
			n++
			used += u
			least = min(least, u)
		}
	}
	if least < 90 {
		t.Errorf("a device with work for all its time was used for %.1f %%", least)
	}
	t.Logf("%d lgpus with %d seats on %d devices, %d s: %d events, %v, %v an event",
		lgpus, len(m.list), devices, length/second, m.events, took.Round(10*time.Millisecond), took/time.Duration(m.events))
	t.Logf("devices with work for all their time are used for %.2f %%, the least for %.2f %%", used/float64(n), least)
	t.Logf("%d gangs over 4 devices each: least asked %.2f %%, got %.2f %%", len(jobs), sumGangs.least/float64(len(jobs)),
		sumGangs.got/float64(len(jobs)))
	t.Logf("%-8s %5s %8s %8s %12s %14s", "kind", "seats", "asked %", "got %", "worst miss", "longest wait")
	for k, s := range sums {
		miss, delay := "-", "-"
		if s.most > 0 {
			miss = fmt.Sprintf("%.2f points", s.most)
		}
		if s.delay > 0 {
			delay = fmt.Sprintf("%.1f ms", float64(s.delay)/float64(ms))
		}
		t.Logf("%-8s %5d %8.2f %8.2f %12s %14s", kinds[k], s.n, s.asked/float64(s.n), s.got/float64(s.n), miss, delay)
	}
}
