package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func on0(v uint32) map[Device]uint32 { return map[Device]uint32{0: v} }

var saturating = work{kernel: 200 * us}

func TestShares(t *testing.T) {
	type lgpu struct {
		p    Params
		w    work
		want float64
	}
	capped := func(percent uint32) lgpu { return lgpu{Params{Max: on0(percent * 100)}, saturating, float64(percent)} }
	weighted := func(w uint32, want float64) lgpu { return lgpu{Params{Weight: w}, saturating, want} }
	eight := []lgpu{}
	for i := range 8 {
		eight = append(eight, weighted(uint32(i+1)*50, float64(i+1)*100/36))
	}
	tests := []struct {
		name string
		of   []lgpu
	}{
		{"alone", []lgpu{weighted(0, 100)}},
		{"10", []lgpu{capped(10)}},
		{"25", []lgpu{capped(25)}},
		{"50", []lgpu{capped(50)}},
		{"75", []lgpu{capped(75)}},
		{"90", []lgpu{capped(90)}},
		{"30 beside 60", []lgpu{capped(30), capped(60)}},
		{"10 beside 90", []lgpu{capped(10), capped(90)}},
		{"4 x 25", []lgpu{capped(25), capped(25), capped(25), capped(25)}},
		{"equal", []lgpu{weighted(0, 50), weighted(0, 50)}},
		{"90 to 10", []lgpu{weighted(900, 90), weighted(100, 10)}},
		{"8 weights", eight},
		{"capped beside open", []lgpu{capped(30), weighted(0, 70)}},
		{"cap above weight", []lgpu{{Params{Max: on0(8000)}, saturating, 50}, weighted(0, 50)}},
		{"50 ms kernels beside 200 us", []lgpu{{Params{}, work{kernel: 50 * ms}, 50}, weighted(0, 50)}},
		{"50 ms kernels capped", []lgpu{{Params{Max: on0(3000)}, work{kernel: 50 * ms}, 30}, capped(60)}},
		{"minimum", []lgpu{{Params{Weight: 100, Min: on0(4000)}, saturating, 40}, weighted(900, 60)}},
		{"minimum beside high", []lgpu{{Params{Min: on0(2500)}, saturating, 25}, {Params{Class: High}, saturating, 75}}},
		{"high", []lgpu{{Params{Class: High, Max: on0(7000)}, saturating, 70}, weighted(1000, 30)}},
		{"latency-critical has no more", []lgpu{{Params{Latency: true}, saturating, 50}, weighted(0, 50)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, Options{})
			var all []*tenant
			for i, l := range tt.of {
				all = append(all, m.add(ID(i+1), l.p, 0, l.w))
			}
			m.reports(5 * ms)
			m.run(second)
			parts := m.windows(10, second)
			for i, x := range all {
				want, within := tt.of[i].want, 2.0
				if x.work.kernel > 10*ms {
					within = 6 // a kernel is 5 % of a window
				}
				t.Logf("%d: want %.1f, got %.2f: %.1f", i, want, mean(parts[x]), parts[x])
				if got := mean(parts[x]); math.Abs(got-want) > 1 {
					t.Errorf("lgpu %d got %.2f %%, want %.1f", i, got, want)
				}
				for _, got := range parts[x] {
					if math.Abs(got-want) > within {
						t.Errorf("lgpu %d got %.2f %% in a window, want %.1f", i, got, want)
					}
				}
			}
		})
	}
}

// part is what x had of the last while, in percent.
func (m *machine) part(x *tenant, while int64) float64 {
	before := x.busy
	m.run(while)
	return 100 * float64(x.busy-before) / float64(while)
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s: got %.2f, want %.2f", what, got, want)
	}
}

// The others have it all within two slices, by weight; capped ones keep what they have.
func TestOneStops(t *testing.T) {
	for _, end := range []string{"dies", "has no more work"} {
		m := newMachine(t, Options{})
		x := m.add(1, Params{Weight: 200}, 0, saturating)
		y := m.add(2, Params{Weight: 200}, 0, saturating)
		z := m.add(3, Params{Weight: 100, Max: on0(1000)}, 0, saturating)
		m.run(second)
		if end == "dies" {
			m.detach(x)
		} else {
			x.work = work{burst: 1, think: second * 1000}
			x.left = 0
			m.plan(x)
		}
		m.run(20 * ms)
		before := z.busy
		near(t, end+": other", m.part(y, second), 90, 1)
		near(t, end+": capped", float64(z.busy-before)/float64(second)*100, 10, 1)
	}
}

func TestCapChanges(t *testing.T) {
	for _, beside := range []bool{false, true} {
		m := newMachine(t, Options{})
		x := m.add(1, Params{}, 0, saturating)
		if beside {
			m.add(2, Params{}, 0, saturating)
		}
		m.reports(5 * ms)
		m.run(second)
		for _, limit := range []uint32{2000, 4000, 1000, 3000, 500, 4500} {
			m.set(1, Params{Max: on0(limit)})
			// From the change on, with the slice then running.
			before := x.busy
			m.run(200 * ms)
			want := float64(limit) / 10000 * 200
			near(t, "ms in the 200 after a change", float64(x.busy-before)/float64(ms), want, 20)
			near(t, "percent then", m.part(x, 2*second), float64(limit)/100, 1)
		}
		m.set(1, Params{})
		m.run(20 * ms)
		want := 100.0
		if beside {
			want = 50
		}
		near(t, "without a cap", m.part(x, second), want, 1)
	}
}

// A running grant is cut when its maximum comes, and priorities act on the next slice.
func TestGrantChangesAtOnce(t *testing.T) {
	m := newMachine(t, Options{})
	x := m.add(1, Params{}, 0, saturating)
	m.run(second)
	if !x.free {
		t.Fatal("alone and without a cap, but not free")
	}
	m.set(1, Params{Max: on0(1000)})
	if x.free || x.until > x.busy {
		t.Errorf("after a cap came: free %v, may run on for %d us", x.free, (x.until-x.busy)/us)
	}
	m.run(second)
	y := m.add(2, Params{}, 0, saturating)
	m.set(1, Params{})
	m.run(second)
	near(t, "equal", m.part(y, second), 50, 1)
	m.set(1, Params{Weight: 900})
	m.run(20 * ms)
	near(t, "weight 900", m.part(y, second), 10, 1)
	m.set(1, Params{Class: High})
	m.run(20 * ms)
	near(t, "beside high", m.part(y, second), 0, 1)
	m.set(2, Params{Min: on0(500)})
	m.run(20 * ms)
	near(t, "minimum beside high", m.part(y, second), 5, 1)
	m.set(1, Params{Devices: []Device{1}})
	m.run(20 * ms)
	near(t, "beside one that may not use the device", m.part(y, second), 100, 1)
}

func TestGroups(t *testing.T) {
	m := newMachine(t, Options{})
	m.set(10, Params{Weight: 300})
	m.set(20, Params{Weight: 100})
	m.set(30, Params{Max: on0(2000)})
	m.set(31, Params{Parent: 30})
	tenants := []*tenant{
		m.add(1, Params{Parent: 10, Weight: 100}, 0, saturating),
		m.add(2, Params{Parent: 10, Weight: 200}, 0, saturating),
		m.add(3, Params{Parent: 20}, 0, saturating),
	}
	expect := func(what string, want ...float64) {
		t.Helper()
		m.run(100 * ms)
		parts := m.windows(3, second)
		for i, x := range tenants {
			near(t, what, mean(parts[x]), want[i], 1)
		}
	}
	expect("weights of groups", 25, 50, 25)
	tenants = append(tenants, m.add(4, Params{Parent: 31}, 0, saturating), m.add(5, Params{Parent: 31, Weight: 300}, 0, saturating))
	m.set(30, Params{Weight: 10000, Max: on0(2000)})
	expect("a capped group", 20, 40, 20, 5, 15)
	m.set(10, Params{Weight: 300, Max: on0(3000)})
	expect("two capped groups", 10, 20, 50, 5, 15)
	m.set(20, Params{Max: on0(1000)})
	m.set(10, Params{Weight: 300, Max: on0(7000)})
	expect("caps that sum to 100", 70./3, 140./3, 10, 5, 15)
	m.set(20, Params{Min: on0(6000)})
	m.set(10, Params{Weight: 300})
	expect("a group's minimum", 20./3, 40./3, 60, 5, 15)
	m.set(3, Params{Parent: 10})
	expect("one that moved", 20, 40, 20, 5, 15)
	m.s.Remove(m.now, 10)
	m.set(30, Params{Weight: 100, Max: on0(2000)})
	expect("a group dissolved", 20, 40, 20, 5, 15)
}

// While it stays within its part, a latency-critical lgpu has the device as soon as the other has drained.
func TestLatency(t *testing.T) {
	for _, latency := range []bool{true, false} {
		for _, kernel := range []int64{200 * us, 5 * ms} {
			m := newMachine(t, Options{})
			x := m.add(1, Params{Latency: latency}, 0, work{kernel: 1 * ms, burst: 1 * ms, think: 9 * ms})
			y := m.add(2, Params{}, 0, work{kernel: kernel})
			m.add(3, Params{}, 0, work{kernel: kernel})
			m.run(10 * second)
			slices.Sort(x.delays)
			worst, median := x.delays[len(x.delays)-1], x.delays[len(x.delays)/2]
			t.Logf("latency-critical %v beside kernels of %d us: median %d us, worst %d us, of %d; the other has %d ms",
				latency, kernel/us, median/us, worst/us, len(x.delays), y.busy/ms)
			if latency && worst > max(inFlight, kernel)+kernel+reopening+noticing {
				t.Errorf("latency-critical lgpu waited %d us beside kernels of %d us", worst/us, kernel/us)
			}
			if !latency && worst < 5*ms {
				t.Errorf("an ordinary lgpu waited at most %d us: the test shows nothing", worst/us)
			}
		}
	}
}

// One that slept has no more than the others when it wakes, but a capped one has its burst.
func TestAwakening(t *testing.T) {
	m := newMachine(t, Options{})
	x := m.add(1, Params{}, 0, work{kernel: 200 * us, burst: 300 * ms, think: 3 * second})
	m.add(2, Params{}, 0, saturating)
	m.run(3500 * ms) // x has had its first burst and sleeps
	for x.arrive > 0 {
		m.run(ms)
	}
	near(t, "after sleep", m.part(x, 200*ms), 50, 6)

	m = newMachine(t, Options{})
	x = m.add(1, Params{Max: on0(1000)}, 0, work{kernel: 200 * us, burst: 18 * ms, think: second})
	m.run(10 * second)
	if most := slices.Max(x.slices); most < 18*ms {
		t.Errorf("a burst of 18 ms was cut at %d us", most/us)
	}

	m = newMachine(t, Options{})
	x = m.add(1, Params{Max: on0(1000)}, 0, work{kernel: 200 * us, burst: 200 * ms, think: 5 * second})
	m.add(2, Params{}, 0, saturating)
	for m.run(4 * second); x.arrive > 0; {
		m.run(ms)
	}
	if got := m.part(x, 300*ms) / 100 * 300; got > 30+20+5 {
		t.Errorf("with a cap of 10 %% there were %.0f ms of the first 300 after sleep", got)
	}

	m = newMachine(t, Options{})
	x = m.add(1, Params{Weight: 1, Min: on0(2000)}, 0, work{kernel: 200 * us, burst: 200 * ms, think: 5 * second})
	m.add(2, Params{Weight: 1000}, 0, saturating)
	for m.run(2 * second); x.arrive > 0; {
		m.run(ms)
	}
	near(t, "minimum after sleep", m.part(x, 500*ms), 20, 3)
}

// Kernels that outlast the bound do not keep others waiting, and are paid for.
func TestOverrunsArePaid(t *testing.T) {
	m := newMachine(t, Options{DrainBound: 50 * ms})
	x := m.add(1, Params{}, 0, work{kernel: 400 * ms})
	y := m.add(2, Params{}, 0, saturating)
	m.run(second)
	parts := m.windows(20, second)
	// Both run at once while x overruns, so that they may sum to more than 100.
	if got := mean(parts[y]); got < 50 {
		t.Errorf("beside kernels of 400 ms there was %.1f %%", got)
	}
	if got := mean(parts[x]); got > 55 {
		t.Errorf("with kernels of 400 ms there was %.1f %%", got)
	}
	for i, got := range parts[y] {
		if got < 10 {
			t.Errorf("in second %d there was only %.1f %%", i, got)
		}
	}
}

// A debt melts by the time that others had while no one waited.
func TestDebtMelts(t *testing.T) {
	m := newMachine(t, Options{})
	x := m.add(1, Params{}, 0, work{kernel: 400 * ms, burst: 400 * ms, think: 3 * second})
	y := m.add(2, Params{}, 0, saturating)
	m.reports(5 * ms)
	for m.run(10 * ms); x.arrive == 0; {
		m.run(10 * ms)
	}
	x.work, x.arrive = saturating, m.now+2*second
	m.plan(x)
	near(t, "alone", m.part(y, 2*second), 100, 1)
	near(t, "after paying nobody back", m.part(x, 200*ms), 50, 6)
}

func TestFree(t *testing.T) {
	m := newMachine(t, Options{})
	x := m.add(1, Params{}, 0, saturating)
	if !x.free {
		t.Error("alone, but not free")
	}
	y := m.add(2, Params{}, 0, work{kernel: 200 * us, burst: ms, think: 50 * ms})
	if x.free || y.free {
		t.Error("two are free")
	}
	m.run(second)
	m.detach(y)
	m.run(50 * ms)
	if !x.free {
		t.Error("alone again, but not free")
	}
	opens := x.opens + x.extends + x.closes
	near(t, "alone", m.part(x, second), 100, 0.1)
	if x.opens+x.extends+x.closes != opens {
		t.Error("decisions about a free seat")
	}
}

// A lone capped lgpu with gaps in its work keeps its grant.
func TestStandingGrant(t *testing.T) {
	m := newMachine(t, Options{})
	x := m.add(1, Params{Max: on0(5000)}, 0, work{kernel: 200 * us, burst: ms, think: 3 * ms})
	m.reports(10 * ms)
	m.run(10 * second)
	if x.opens > 1 || x.closes > 0 {
		t.Errorf("below its cap it was opened %d times and closed %d times", x.opens, x.closes)
	}
	if x.extends > 1000 {
		t.Errorf("extended %d times in 10 s", x.extends)
	}
	near(t, "below its cap", float64(x.busy)/float64(10*second)*100, 25, 1)
}

func TestSharesView(t *testing.T) {
	m := newMachine(t, Options{})
	m.set(10, Params{Weight: 300})
	m.add(1, Params{Parent: 10, Max: on0(1000)}, 0, saturating)
	m.add(2, Params{Parent: 10}, 0, saturating)
	m.add(3, Params{Min: on0(3000)}, 0, saturating)
	m.add(4, Params{Class: High, Max: map[Device]uint32{1: 500}}, 1, saturating)
	m.add(5, Params{Weight: 1}, 1, saturating)
	m.add(6, Params{}, 2, saturating)
	m.reports(5 * ms)
	m.run(2 * second)
	want := []Share{{ID: 1, Asked: 1000}, {ID: 2, Asked: 6000}, {ID: 3, Asked: 3000}, {ID: 4, Device: 1, Asked: 500},
		{ID: 5, Device: 1, Asked: 9500}, {ID: 6, Device: 2, Asked: 10000, Free: true, State: Running}}
	got := m.s.Shares(m.now, nil)
	if len(got) != len(want) {
		t.Fatalf("%d shares, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.ID != w.ID || g.Device != w.Device || g.Asked != w.Asked || g.Free != w.Free {
			t.Errorf("got %+v, want %+v", g, w)
		}
		if !g.Free {
			near(t, "delivered", float64(g.Delivered)/100, float64(w.Asked)/100, 2)
		}
	}
}

func TestErrors(t *testing.T) {
	s := New(Options{})
	tests := []struct {
		name string
		id   ID
		p    Params
		want error
	}{
		{"the top", 0, Params{}, ErrEntity},
		{"weight", 1, Params{Weight: 10001}, ErrRange},
		{"cap", 1, Params{Max: on0(10001)}, ErrRange},
		{"no cap", 1, Params{Max: on0(0)}, ErrRange},
		{"minimum", 1, Params{Min: on0(10001)}, ErrRange},
		{"unknown parent", 1, Params{Parent: 7}, ErrEntity},
		{"good", 1, Params{}, nil},
		{"child", 2, Params{Parent: 1}, nil},
		{"own parent", 2, Params{Parent: 2}, ErrEntity},
		{"circle", 1, Params{Parent: 2}, ErrEntity},
		{"lgpu", 3, Params{}, nil},
	}
	for _, tt := range tests {
		if err := s.Set(0, tt.id, tt.p); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	for _, tt := range []struct {
		id   ID
		dev  Device
		want error
	}{{9, 0, ErrEntity}, {1, 0, ErrEntity}, {3, -1, ErrDevice}, {3, MaxDevices, ErrDevice}, {3, 0, nil}, {3, 0, nil}} {
		if err := s.Attach(0, tt.id, tt.dev, 0); !errors.Is(err, tt.want) {
			t.Errorf("attach %d to %d: %v, want %v", tt.id, tt.dev, err, tt.want)
		}
	}
	if err := s.Set(0, 4, Params{Parent: 3}); !errors.Is(err, ErrEntity) {
		t.Errorf("a child of an lgpu in use: %v", err)
	}
}

// Random lgpus: whatever they do, these hold.
func TestProperties(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := newMachine(t, Options{})
		m.random = random
		n := 2 + random.IntN(8)
		type lgpu struct {
			*tenant
			p Params
		}
		var all []lgpu
		minimums := uint32(0)
		for i := range n {
			p := Params{Weight: uint32(10 + random.IntN(300))}
			if random.IntN(3) == 0 {
				p.Max = on0(uint32(200 + random.IntN(6000)))
			}
			if floor := uint32(random.IntN(3000)); random.IntN(4) == 0 && minimums+floor <= 8000 && (p.Max == nil || p.Max[0] > floor) {
				p.Min = on0(floor)
				minimums += floor
			}
			p.Latency = random.IntN(6) == 0
			w := work{kernel: 20*us + random.Int64N(3*ms)}
			if random.IntN(2) == 0 {
				w.burst, w.think, w.random = 100*us+random.Int64N(60*ms), random.Int64N(60*ms), true
			}
			all = append(all, lgpu{m.add(ID(i+1), p, 0, w), p})
		}
		m.reports(5 * ms)
		m.run(second)
		m.windows(3, second)
		saturated := false
		for _, l := range all {
			saturated = saturated || l.work.burst == 0 && l.p.Max == nil
		}
		const windows = 10
		parts := m.windows(windows, second)
		if err := m.s.consistent(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sum := 0.0
		asked := m.s.Shares(m.now, nil)
		for i, l := range all {
			got := mean(parts[l.tenant])
			sum += got
			limit := 100.0
			if l.p.Max != nil {
				limit = float64(l.p.Max[0]) / 100
				for _, part := range parts[l.tenant] {
					// In any window: what was saved, and what came in during a wait; and a kernel.
					if most := limit + 2 + 20*limit/100 + float64(l.work.kernel)/1e7; part > most {
						t.Errorf("seed %d: lgpu %d with cap %.1f had %.1f %% of a second", seed, i, limit, part)
					}
				}
				if got > limit+0.5 {
					t.Errorf("seed %d: lgpu %d with cap %.1f had %.1f %% of %d s", seed, i, limit, got, windows)
				}
			}
			if l.work.burst == 0 {
				if want := float64(asked[i].Asked) / 100; got < want-1-want/50 {
					t.Errorf("seed %d: lgpu %d is entitled to %.1f %% and had %.1f: %+v", seed, i, want, got, l.p)
				}
			}
		}
		if saturated && sum < 97 {
			t.Errorf("seed %d: device used for %.1f %%", seed, sum)
		}
	}
}

// Equal lgpus have equal shares, whatever the lengths of their kernels.
func TestJain(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for range 10 {
		m := newMachine(t, Options{})
		n := 2 + random.IntN(15)
		for i := range n {
			m.add(ID(i+1), Params{}, 0, work{kernel: 10*us + random.Int64N(8*ms)})
		}
		m.run(second)
		parts := m.windows(1, 10*second)
		var sum, squares float64
		for _, p := range parts {
			sum += p[0]
			squares += p[0] * p[0]
		}
		if index := sum * sum / (float64(n) * squares); index < 0.999 {
			t.Errorf("%d lgpus: Jain's index %.5f", n, index)
		}
	}
}
