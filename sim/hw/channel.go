package hw

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// At says where and when a block runs.
type At struct {
	Unit, Units   int
	Cycle         int64 // of the unit's clock
	Time          Time
	NanosPerCycle float64
}

// Block is a group of threads that runs on one unit. Run executes about cycles issue cycles, less when the block ends
// or waits for others, and may be called again for ever until it is done. It is called by one goroutine at a time.
type Block interface {
	Run(at At, cycles int64) (used int64, done bool, err error)
}

// Program makes the blocks of a grid, each when it is first placed. It may be called by several goroutines at once.
type Program interface {
	Block(i int64) (Block, error)
}

// Needs are what one block takes of a unit's limits.
type Needs struct {
	Threads, Registers int
	Shared             int // bytes
}

// PerUnit is how many blocks with needs n fit on one unit with these limits.
func (l Limits) PerUnit(n Needs) int {
	fit := l.Blocks
	for _, v := range [...]struct{ have, want int }{{l.Threads, n.Threads}, {l.Registers, n.Registers}, {l.Shared, n.Shared}} {
		if v.want > 0 {
			fit = min(fit, v.have/v.want)
		}
	}
	return fit
}

// Grid is work for the compute engine.
type Grid struct {
	Program  Program
	Blocks   int64
	Needs    Needs
	Priority int  // higher runs first
	Ready    Time // not before this time
	// Done is told when the last block ended, or the first error: then the grid is over, and so is its channel.
	Done func(at Time, err error)

	seq     uint64
	next    atomic.Int64 // first block not placed
	left    atomic.Int64 // blocks not ended
	end     atomic.Int64 // latest end of a block
	quotas  []int32      // by unit: blocks it may still take in this round
	failure atomic.Pointer[failure]
}

type failure struct {
	at  Time
	err error
}

func (g *Grid) ended(at Time) {
	for {
		e := g.end.Load()
		if int64(at) <= e || g.end.CompareAndSwap(e, int64(at)) {
			break
		}
	}
	g.left.Add(-1)
}

func (g *Grid) fail(at Time, err error) { g.failure.CompareAndSwap(nil, &failure{at, err}) }

// Channel is the way of one owner to the compute engine. The engine gives channels turns on their units.
type Channel struct {
	Owner int // whose work it is, for Device.Turns; it is set before the first grid is submitted

	dev   *Device
	dead  atomic.Bool
	slice atomic.Int64 // time.Duration; 0 is the device's own
	busy  meter
	mask  []int  // units it may run on, ascending
	units []unit // of the engine's goroutines, by the device's number

	// Of the engine's goroutine, as of the last pick:
	ready Time // when the first of its grids may run
	wants bool // units: one of its grids may run now

	// By engine.mu:
	grids  []*Grid // not over, by priority, then age
	seq    uint64
	listed bool
	turns  []uint64 // by unit: when it last had it or came, in turns of the engine
}

// NewChannel opens a channel to the compute engine of d, which may run on all units.
func (d *Device) NewChannel() *Channel {
	all := make([]int, d.Config.Units)
	for i := range all {
		all[i] = i
	}
	return d.NewChannelOn(all)
}

// NewChannelOn opens a channel that is confined to some units. Numbers that d does not have are left out; a channel of
// which nothing remains takes no grids. Where units are missing the device has no Turns until the channel is killed.
func (d *Device) NewChannelOn(units []int) *Channel {
	n := d.Config.Units
	c := &Channel{dev: d, units: make([]unit, n), turns: make([]uint64, n)}
	for i := range c.units {
		c.units[i].index = i
		if slices.Contains(units, i) {
			c.mask = append(c.mask, i)
		}
	}
	if c.confined() {
		d.confined.Add(1)
	}
	return c
}

func (c *Channel) confined() bool { return len(c.mask) < len(c.units) }

// Units are the numbers of the units that the channel may run on.
func (c *Channel) Units() []int { return slices.Clone(c.mask) }

// Submit queues a grid. A grid whose blocks fit on no unit is refused.
func (c *Channel) Submit(g *Grid) error {
	if len(c.mask) == 0 || g.Blocks <= 0 || c.dev.Config.Limits.PerUnit(g.Needs) == 0 {
		return fmt.Errorf("grid of %d blocks with needs %+v fits on no unit", g.Blocks, g.Needs)
	}
	g.left.Store(g.Blocks)
	g.end.Store(int64(g.Ready))
	c.dev.engine.submit(c, g)
	return nil
}

// Kill drops all work of the channel. When it returns, none of its blocks runs or will run; Done of what was dropped
// may still be called for a grid that ended meanwhile. Grids submitted later are dropped too.
func (c *Channel) Kill() { c.dev.engine.kill(c) }

// SetSlice sets how long a turn of the channel lasts while others wait: less than a cycle counts as one, and 0 or less
// is the device's own (Config.Slice). It holds from the running turn on: one that has lasted as long already ends at
// the next step. It may be called at any time.
func (c *Channel) SetSlice(d time.Duration) { c.slice.Store(int64(max(d, 0))) }

// Slice is how long a turn of the channel lasts while others wait, as SetSlice has set it last.
func (c *Channel) Slice() time.Duration {
	if d := time.Duration(c.slice.Load()); d > 0 {
		return d
	}
	return c.dev.Config.Slice
}

// turnLength is the slice as the engine can keep it: a turn in which no cycle fits would never get anything done.
func (c *Channel) turnLength() Time {
	return max(Time(c.Slice()), Time(math.Ceil(1000/c.dev.Config.MHz)))
}

// Busy is the device time in the window before now in which grids of the channel were executed. Neither its waiting for
// a turn nor a switch between channels counts.
func (c *Channel) Busy(window time.Duration) time.Duration {
	return c.busy.last(c.dev.Clock.Now(), window)
}

// Total is the device time in which grids of the channel were executed since it was opened.
func (c *Channel) Total() time.Duration { return c.busy.sum() }

// Pending is the number of grids that are not over.
func (c *Channel) Pending() int {
	e := c.dev.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(c.grids)
}
