package hw

import (
	"slices"
	"sync"
	"sync/atomic"
)

// engine is the compute engine of a device: one goroutine that gives channels their turns on the units, and workers
// that execute the units of a step.
type engine struct {
	dev     *Device
	barrier *sync.RWMutex

	mu       sync.Mutex
	wake     sync.Cond
	channels []*Channel // with grids
	turn     uint64     // counts turns and arrivals
	closed   bool

	// Of the engine's goroutine:
	at     Time    // device time up to which steps have been executed
	owners []owner // by unit
	jobs   chan *round
	ended  chan struct{}
}

// round is a set of units that workers execute in parallel.
type round struct {
	units []*unit
	next  atomic.Int64
	run   func(*unit)
	left  sync.WaitGroup // units
}

func (r *round) work() {
	for {
		i := r.next.Add(1) - 1
		if i >= int64(len(r.units)) {
			return
		}
		r.run(r.units[i])
		r.left.Done()
	}
}

func newEngine(d *Device, barrier *sync.RWMutex) *engine {
	e := &engine{
		dev: d, barrier: barrier, owners: make([]owner, d.Config.Units),
		jobs: make(chan *round, d.Config.Workers), ended: make(chan struct{}),
	}
	e.wake.L = &e.mu
	for i := 1; i < d.Config.Workers; i++ {
		go func() {
			for r := range e.jobs {
				r.work()
			}
		}()
	}
	go e.loop()
	return e
}

func (e *engine) submit(c *Channel, g *Grid) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.dead.Load() {
		return
	}
	c.seq++
	g.seq = c.seq
	i := len(c.grids)
	for i > 0 && c.grids[i-1].Priority < g.Priority {
		i--
	}
	c.grids = append(c.grids, nil)
	copy(c.grids[i+1:], c.grids[i:])
	c.grids[i] = g
	if !c.listed {
		c.listed = true
		e.turn++
		for _, u := range c.mask {
			c.turns[u] = e.turn
		}
		e.channels = append(e.channels, c)
	}
	e.wake.Signal()
}

func (e *engine) kill(c *Channel) {
	if !c.dead.Swap(true) && c.confined() {
		e.dev.confined.Add(-1)
	}
	e.mu.Lock()
	c.grids = nil
	e.mu.Unlock()
	// A round that has started is waited for; later ones see that the channel is dead.
	e.barrier.Lock()
	for i := range c.units {
		c.units[i].resident, c.units[i].used = nil, Needs{}
	}
	e.barrier.Unlock()
	e.dev.log.gone(c, e.dev.Clock.Now())
}

func (e *engine) close() {
	e.mu.Lock()
	e.closed = true
	e.wake.Broadcast()
	e.mu.Unlock()
	<-e.ended
}

func (e *engine) loop() {
	defer close(e.ended)
	defer close(e.jobs)
	defer e.dev.Clock.release()
	quantum := Time(e.dev.Config.Quantum)
	for {
		start, turns, ok := e.pick()
		if !ok {
			return
		}
		if start > e.at {
			e.dev.Clock.release()
		}
		if now := e.dev.Clock.Now(); now-start > quantum && !e.dev.Config.Virtual {
			start = now - quantum // what the host was late for is made up only so far
		}
		e.dev.Clock.Wait(start)
		e.dev.log.note(e.alone(turns), start)
		end := start + e.longestStep()
		e.dev.Clock.begin(end)
		stop := start
		if len(turns) == 0 {
			stop = end // all units that are wanted are being switched
		}
		for _, t := range turns {
			ended := e.step(t, start, end)
			if ended > start {
				t.channel.busy.add(start, ended)
			}
			stop = max(stop, ended)
		}
		e.dev.Clock.finish(stop, quantum)
		if stop > start {
			e.dev.busy.add(start, stop)
		}
		for i := range e.owners {
			e.owners[i].pass(stop - start)
		}
		e.at = stop
		e.dev.Clock.Wait(stop)
	}
}

// step executes the grids of a channel on the units of its turn from start until end, or until there are none that may
// run, and returns when that was.
func (e *engine) step(t turn, start, end Time) Time {
	c := t.channel
	cycle := Time(1000 / e.dev.Config.MHz)
	stop := start
	first := true
	for {
		grids := e.grids(c, end)
		if !slices.ContainsFunc(grids, func(g *Grid) bool { return g.Ready <= stop }) {
			return stop
		}
		e.barrier.RLock()
		if c.dead.Load() {
			e.barrier.RUnlock()
			return stop
		}
		for _, u := range t.units {
			// A unit that was in the middle of a cycle goes on from there; one that was idle starts now.
			if first && (u.at < start-cycle || len(u.resident) == 0 && u.at < start) {
				u.at = start
			}
		}
		first = false
		units := e.assign(t, grids, end)
		e.execute(units, end, grids)
		idle := false
		for _, u := range units {
			stop = max(stop, u.at)
			idle = idle || len(u.resident) == 0 && u.at+cycle <= end
		}
		idle = idle && unplaced(grids)
		e.barrier.RUnlock()
		if over := e.retire(c, grids); !over && !idle {
			return max(stop, end)
		}
	}
}

// unplaced reports whether a grid has blocks that are on no unit yet.
func unplaced(grids []*Grid) bool {
	for _, g := range grids {
		if g.next.Load() < g.Blocks && g.failure.Load() == nil {
			return true
		}
	}
	return false
}

// grids are those of c that may run before end.
func (e *engine) grids(c *Channel, end Time) []*Grid {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*Grid, 0, len(c.grids))
	for _, g := range c.grids {
		if g.Ready < end {
			out = append(out, g)
		}
	}
	return out
}

// assign places blocks on units, emptiest first, and shares out what does not fit yet, so that no unit takes more than
// its part of a grid in one round, in whatever order the host executes the units. It returns the units with work.
func (e *engine) assign(t turn, grids []*Grid, end Time) []*unit {
	limits := &e.dev.Config.Limits
	n := int64(len(t.units))
	for _, g := range grids {
		if g.quotas == nil {
			g.quotas = make([]int32, len(t.channel.units))
		}
		clear(g.quotas)
		pending := g.Blocks - g.next.Load()
		for level, full := 0, false; !full && pending > 0 && g.failure.Load() == nil; level++ {
			full = true
			for _, u := range t.units {
				if !u.fits(limits, g.Needs) {
					continue
				}
				full = false
				if len(u.resident) > level || pending == 0 {
					continue
				}
				if len(u.resident) == 0 {
					u.at = max(u.at, g.Ready)
				}
				if u.at >= end {
					continue
				}
				u.place(g, u.at)
				pending--
			}
			if level >= limits.Blocks {
				break
			}
		}
		for i, u := range t.units {
			q := pending / n
			if int64(i) < pending%n {
				q++
			}
			g.quotas[u.index] = int32(min(q, 1<<30))
		}
	}
	var units []*unit
	for _, u := range t.units {
		if len(u.resident) > 0 {
			units = append(units, u)
		}
	}
	return units
}

// execute runs the units with the help of those workers that come in time: on a busy host one may get its CPU after the
// others have done all there is, and finds nothing then.
func (e *engine) execute(units []*unit, end Time, grids []*Grid) {
	var before, after Time
	for _, u := range units {
		before += u.at
	}
	r := &round{units: units, run: func(u *unit) { u.run(e.dev, end, grids) }}
	r.left.Add(len(units))
	for i := 1; i < min(e.dev.Config.Workers, len(units)); i++ {
		select {
		case e.jobs <- r:
		default: // the workers have not even taken the last rounds
		}
	}
	r.work()
	r.left.Wait()
	for _, u := range units {
		after += u.at
	}
	e.dev.unitTime.note(end, after-before)
}

// retire tells the ends of grids that are over, and reports whether there were any. A failed grid takes its channel
// with it.
func (e *engine) retire(c *Channel, grids []*Grid) bool {
	over := false
	for _, g := range grids {
		f := g.failure.Load()
		if f == nil && g.left.Load() > 0 {
			continue
		}
		over = true
		e.mu.Lock()
		for i := range c.grids {
			if c.grids[i] == g {
				c.grids = append(c.grids[:i], c.grids[i+1:]...)
				break
			}
		}
		e.mu.Unlock()
		if f != nil {
			c.Kill()
			g.Done(f.at, f.err)
			return true
		}
		g.Done(Time(g.end.Load()), nil)
	}
	return over
}
