package hw

import (
	"errors"
	"math"
	"sync"
	"testing"
	"time"
)

// fixed is a program whose blocks each take so many cycles.
type fixed int64

func (f fixed) Block(int64) (Block, error) { return &fixedBlock{int64(f)}, nil }

type fixedBlock struct{ left int64 }

func (b *fixedBlock) Run(_ At, cycles int64) (int64, bool, error) {
	n := min(cycles, b.left)
	b.left -= n
	return n, b.left == 0, nil
}

// endless is a program that never ends.
type endless struct{}

func (endless) Block(int64) (Block, error)                  { return endless{}, nil }
func (endless) Run(_ At, cycles int64) (int64, bool, error) { return cycles, false, nil }

// broken is a program that fails.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) Block(int64) (Block, error)         { return broken{}, nil }
func (broken) Run(At, int64) (int64, bool, error) { return 5, false, errBroken }

type ending struct {
	at  Time
	err error
}

// submit runs a grid and returns where its end will be told.
func submit(t *testing.T, c *Channel, g *Grid) <-chan ending {
	t.Helper()
	done := make(chan ending, 1)
	g.Done = func(at Time, err error) { done <- ending{at, err} }
	if err := c.Submit(g); err != nil {
		t.Error(err)
	}
	return done
}

func await(t *testing.T, what string, done <-chan ending) ending {
	t.Helper()
	select {
	case e := <-done:
		return e
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not end", what)
	}
	return ending{}
}

const us = Time(time.Microsecond)

// TestDuration checks that a grid takes what its blocks need on the units, to a cycle.
func TestDuration(t *testing.T) {
	for _, tc := range []struct {
		name   string
		units  int
		blocks int64
		cycles int64
		needs  Needs
		want   Time // at 1 MHz a cycle is a microsecond
	}{
		{"one block", 4, 1, 200, Needs{Threads: 32}, 200 * us},
		{"a block a unit", 4, 4, 200, Needs{Threads: 32}, 200 * us},
		{"two blocks on one", 4, 5, 200, Needs{Threads: 32}, 400 * us},
		{"long", 4, 4, 100000, Needs{Threads: 32}, 100000 * us},
		{"many small ones", 4, 4000, 7, Needs{Threads: 32}, 7000 * us},
		{"one at a time", 4, 8, 300, Needs{Threads: 2048}, 600 * us},
		{"waves", 32, 32 * 16, 50, Needs{Threads: 256}, 800 * us},
		{"uneven wave", 4, 9, 1000, Needs{Threads: 2048}, 3000 * us},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := machine(t, Config{Units: tc.units}).Devices[0]
			c := d.NewChannel()
			e := await(t, "grid", submit(t, c, &Grid{Program: fixed(tc.cycles), Blocks: tc.blocks, Needs: tc.needs}))
			if e.err != nil || math.Abs(float64(e.at-tc.want)) > 0.02*float64(tc.want) {
				t.Errorf("ended at %v (%v), want %v", time.Duration(e.at), e.err, time.Duration(tc.want))
			}
		})
	}
}

// TestBackToBack checks that the next grid begins when the last one ended, not at the next step.
func TestBackToBack(t *testing.T) {
	d := machine(t, Config{Units: 4}).Devices[0]
	c := d.NewChannel()
	done := make(chan ending, 1)
	const n = 100
	var next func(i int, at Time)
	next = func(i int, at Time) {
		g := &Grid{Program: fixed(37), Blocks: 4, Needs: Needs{Threads: 32}, Ready: at}
		g.Done = func(at Time, err error) {
			if i+1 < n {
				next(i+1, at)
				return
			}
			done <- ending{at, err}
		}
		if err := c.Submit(g); err != nil {
			t.Error(err)
		}
	}
	next(0, 0)
	if e := await(t, "chain", done); e.at != n*37*us {
		t.Errorf("%d grids of 37 µs end at %v", n, time.Duration(e.at))
	}
}

// TestSlices checks that channels with endless work get equal shares of the device, whatever they ask for, and that
// short work gets through. It acts in callbacks, when virtual time stands still.
func TestSlices(t *testing.T) {
	d := machine(t, Config{Units: 4}).Devices[0]
	const n = 3
	block := Needs{Threads: 32}
	put := func(c *Channel, g *Grid) {
		if err := c.Submit(g); err != nil {
			t.Error(err)
		}
	}
	var cs []*Channel
	var totals []time.Duration
	var began, ended Time
	done := make(chan ending, 1)
	short := func(at Time, err error) {
		ended = at
		done <- ending{at, err}
	}
	long := func(at Time, _ error) {
		for _, c := range cs {
			totals = append(totals, c.Total())
		}
		began = at
		put(d.NewChannel(), &Grid{Program: fixed(100), Blocks: 4, Needs: block, Ready: at, Done: short})
	}
	first := func(at Time, _ error) {
		for i := range n {
			c := d.NewChannel()
			cs = append(cs, c)
			for range i + 1 { // more grids are no larger share
				put(c, &Grid{Program: endless{}, Blocks: 4, Needs: block, Ready: at, Done: func(Time, error) {}})
			}
		}
		put(d.NewChannel(), &Grid{Program: fixed(150000), Blocks: 4, Needs: block, Ready: at, Done: long})
	}
	put(d.NewChannel(), &Grid{Program: fixed(1), Blocks: 1, Needs: block, Done: first})
	await(t, "short grid", done)
	for _, c := range cs {
		c.Kill()
	}
	slice := d.Config.Slice
	// The long grid had its 150 ms in slices; the others had as much, give or take the turn that runs.
	for i, total := range totals {
		if total < 150*time.Millisecond-slice || total > 150*time.Millisecond+slice {
			t.Errorf("channel %d had %v beside one with 150ms", i, total)
		}
	}
	if wait := time.Duration(ended - began); wait > (n+1)*slice {
		t.Errorf("a grid of 100µs waited %v among %d endless channels", wait, n)
	}
}

// TestYield checks that a channel without work costs the others nothing.
func TestYield(t *testing.T) {
	d := machine(t, Config{Units: 4}).Devices[0]
	a, b := d.NewChannel(), d.NewChannel()
	da := submit(t, a, &Grid{Program: fixed(100), Blocks: 4, Needs: Needs{Threads: 32}})
	db := submit(t, b, &Grid{Program: fixed(100), Blocks: 4, Needs: Needs{Threads: 32}})
	ea, eb := await(t, "first", da), await(t, "second", db)
	if last := max(ea.at, eb.at); last > 201*us {
		t.Errorf("two grids of 100 µs of two channels end at %v", time.Duration(last))
	}
}

// TestPriority checks that urgent grids get the units first. It submits in a callback, so that both are there at once.
func TestPriority(t *testing.T) {
	d := machine(t, Config{Units: 2}).Devices[0]
	c := d.NewChannel()
	var low, high <-chan ending
	both := make(chan struct{})
	err := c.Submit(&Grid{Program: fixed(1), Blocks: 1, Needs: Needs{Threads: 32}, Done: func(at Time, _ error) {
		low = submit(t, c, &Grid{Program: fixed(1000), Blocks: 40, Needs: Needs{Threads: 2048}, Ready: at})
		high = submit(t, c, &Grid{Program: fixed(1000), Blocks: 2, Needs: Needs{Threads: 2048}, Ready: at, Priority: 1})
		close(both)
	}})
	if err != nil {
		t.Fatal(err)
	}
	<-both
	l, h := await(t, "low", low), await(t, "high", high)
	if h.at > 1100*us || l.at < 20000*us {
		t.Errorf("urgent grid ends at %v, the other at %v", time.Duration(h.at), time.Duration(l.at))
	}
}

func TestFailure(t *testing.T) {
	d := machine(t, Config{Units: 2}).Devices[0]
	c, other := d.NewChannel(), d.NewChannel()
	rest := submit(t, c, &Grid{Program: endless{}, Blocks: 2, Needs: Needs{Threads: 32}})
	e := await(t, "broken grid", submit(t, c, &Grid{Program: broken{}, Blocks: 2, Needs: Needs{Threads: 32}}))
	if !errors.Is(e.err, errBroken) {
		t.Errorf("failed with %v", e.err)
	}
	if n := c.Pending(); n != 0 {
		t.Errorf("%d grids of a failed channel are left", n)
	}
	if e := await(t, "other channel", submit(t, other, &Grid{Program: fixed(10), Blocks: 1, Needs: Needs{Threads: 32}})); e.err != nil {
		t.Errorf("other channel: %v", e.err)
	}
	select {
	case e := <-rest:
		t.Errorf("a dropped grid is told to end: %+v", e)
	default:
	}
	for _, bad := range []*Grid{
		{Program: fixed(1), Blocks: 0, Needs: Needs{Threads: 32}},
		{Program: fixed(1), Blocks: 1, Needs: Needs{Threads: 4096}},
		{Program: fixed(1), Blocks: 1, Needs: Needs{Shared: 1 << 20}},
	} {
		if err := other.Submit(bad); err == nil {
			t.Errorf("grid of %d blocks with %+v is accepted", bad.Blocks, bad.Needs)
		}
	}
}

// TestKill checks that nothing of a channel runs after Kill has returned.
func TestKill(t *testing.T) {
	d := machine(t, Config{Units: 8}).Devices[0]
	for range 50 {
		c := d.NewChannel()
		var mu sync.Mutex
		dead := false
		runs := make(chan struct{}, 1)
		submit(t, c, &Grid{Program: watched{func() {
			select {
			case runs <- struct{}{}:
			default:
			}
			mu.Lock()
			defer mu.Unlock()
			if dead {
				t.Error("a block runs after Kill")
			}
		}}, Blocks: 64, Needs: Needs{Threads: 64}})
		<-runs
		c.Kill()
		mu.Lock()
		dead = true
		mu.Unlock()
	}
}

type watched struct{ run func() }

func (w watched) Block(int64) (Block, error) { return w, nil }
func (w watched) Run(_ At, cycles int64) (int64, bool, error) {
	w.run()
	return cycles, false, nil
}

// TestMoversBesideCompute checks that copies in both directions and a grid take no time from each other.
func TestMoversBesideCompute(t *testing.T) {
	d := machine(t, Config{Units: 2, LinkBandwidth: 1e9, MoveLatency: time.Microsecond}).Devices[0]
	const n = 10 << 20
	var moved [2]uint64
	dones := []<-chan ending{submit(t, d.NewChannel(), &Grid{Program: fixed(10000), Blocks: 2, Needs: Needs{Threads: 32}})}
	for i, m := range []*Mover{d.In, d.Out} {
		done := make(chan ending, 1)
		m.Submit(&Move{Bytes: n, Owner: i,
			Step: func(off, k uint64) error {
				if off != moved[i] {
					t.Errorf("mover %d goes on at %d after %d", i, off, moved[i])
				}
				moved[i] += k
				return nil
			},
			Done: func(at Time, err error) { done <- ending{at, err} }})
		dones = append(dones, done)
	}
	want := []Time{10000 * us, 10486761, 10486761} // 10 MiB at 1 byte a nanosecond, and the latency
	for i, done := range dones {
		if e := await(t, "engine", done); e.err != nil || e.at < want[i]-us || e.at > want[i]+us {
			t.Errorf("engine %d ends at %d (%v), want %d", i, e.at, e.err, want[i])
		}
	}
}

// TestMoverTurns checks that a small move does not wait for the whole of another owner's large one.
func TestMoverTurns(t *testing.T) {
	d := machine(t, Config{LinkBandwidth: 1e9}).Devices[0]
	var mu sync.Mutex
	var order []string
	gate := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	move := func(name string, bytes uint64, first func()) {
		started := false
		d.In.Submit(&Move{Bytes: bytes, Owner: name,
			Step: func(uint64, uint64) error {
				if !started && first != nil {
					first()
				}
				started = true
				return nil
			},
			Done: func(Time, error) {
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				wg.Done()
			}})
	}
	move("large", 100*moveChunk, func() { <-gate })
	move("small", moveChunk, nil)
	close(gate)
	wg.Wait()
	if order[0] != "small" {
		t.Errorf("moves ended in the order %v", order)
	}
	boom := errors.New("boom")
	done := make(chan ending, 1)
	d.In.Submit(&Move{Bytes: 10 * moveChunk, Step: func(uint64, uint64) error { return boom }, Done: func(at Time, err error) { done <- ending{at, err} }})
	if e := await(t, "failing move", done); !errors.Is(e.err, boom) {
		t.Errorf("failing move ends with %v", e.err)
	}
}

func TestMeter(t *testing.T) {
	var m meter
	second := Time(time.Second)
	m.add(0, second/2)
	m.add(second, second+second/4)
	for _, tc := range []struct {
		now  Time
		want time.Duration
	}{{second, 500 * time.Millisecond}, {2 * second, 250 * time.Millisecond}, {5 * second, 0}, {0, 0}} {
		if got := m.last(tc.now, time.Second); got != tc.want {
			t.Errorf("at %v: busy %v, want %v", time.Duration(tc.now), got, tc.want)
		}
	}
	if m.sum() != 750*time.Millisecond {
		t.Errorf("in all %v", m.sum())
	}
}

// TestClock checks the clock that follows the wall: it does not go back, and a step that takes too long stops it.
func TestClock(t *testing.T) {
	c := newClock(false)
	now := c.Now()
	c.begin(now + 1000)
	time.Sleep(2 * time.Millisecond)
	if got := c.Now(); got > now+1000 && got > c.limit {
		t.Errorf("device time %d passed the end of the step %d", got, now+1000)
	}
	c.finish(now+1000, 500)
	if got := c.Now(); got < now {
		t.Errorf("device time went back from %d to %d", now, got)
	}
	if c.lost <= 0 {
		t.Error("a step that took 2 ms for 1 µs lost no time")
	}
	// The host is late for the next step too: the clock stands until that begins, and goes on from where it stood.
	time.Sleep(2 * time.Millisecond)
	if got := c.Now(); got > now+1500 {
		t.Errorf("device time %d passed %d between two steps", got, now+1500)
	}
	lost := c.lost
	c.begin(now + 2000)
	if got := c.Now(); got > now+2000 || c.lost-lost < 1000*us {
		t.Errorf("the next step begins at %d and %v more are lost", got, time.Duration(c.lost-lost))
	}
	c.finish(now+2000, 500)
	c.release()
	target := c.Now() + 300*us
	c.Wait(target)
	if got := c.Now(); got < target {
		t.Errorf("Wait(%d) returned at %d", target, got)
	}
}
