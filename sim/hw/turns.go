package hw

import (
	"math"
	"slices"
)

// owner is whose turn it is on a unit.
type owner struct {
	channel *Channel // nil while no channel wants the unit
	slice   Time     // how long the turn lasts while others wait: the channel's slice when the step was picked
	used    Time     // of the slice
	pause   Time     // what is left of the switch to the channel, for which nobody runs on the unit
}

// left is how long nothing changes on the unit: until the switch has been made, else until the slice has been used up.
func (o *owner) left() Time {
	if o.pause > 0 {
		return o.pause
	}
	return o.slice - o.used
}

// pass lets the time of a step pass.
func (o *owner) pass(d Time) {
	if o.pause > 0 {
		o.pause -= d
		return
	}
	o.used += d
}

// turn is what one channel executes in a step.
type turn struct {
	channel *Channel
	units   []*unit // those of its own on which it is its turn
}

// pick waits for work and returns when the next step begins and its turns: on every unit the channel that has it while
// its slice lasts, else the one that has waited longest for it. Channels of the same units so alternate on all of them
// together, and those of different units run at the same time. There are no turns while all units that are wanted are
// being switched from one channel to another; ok is false once the engine is closed.
func (e *engine) pick() (start Time, turns []turn, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.await() {
		return 0, nil, false
	}
	e.turn++
	start = e.mark()
	for i := range e.owners {
		o := &e.owners[i]
		e.hand(i)
		if o.channel == nil || o.pause > 0 {
			continue
		}
		k := slices.IndexFunc(turns, func(t turn) bool { return t.channel == o.channel })
		if k < 0 {
			k = len(turns)
			turns = append(turns, turn{channel: o.channel})
		}
		turns[k].units = append(turns[k].units, &o.channel.units[i])
	}
	return start, turns, true
}

// alone is the channel that has all units in a step; nil where several have some, or none has any.
func (e *engine) alone(turns []turn) *Channel {
	if len(turns) == 1 && len(turns[0].units) == len(e.owners) {
		return turns[0].channel
	}
	return nil
}

// await returns when a channel has work. It is false once the engine is closed.
func (e *engine) await() bool {
	for {
		if e.closed {
			return false
		}
		e.channels = slices.DeleteFunc(e.channels, func(c *Channel) bool {
			c.listed = len(c.grids) > 0
			c.wants = false
			return !c.listed
		})
		if len(e.channels) > 0 {
			return true
		}
		clear(e.owners)
		e.dev.Clock.release()
		e.wake.Wait()
	}
}

// mark finds the channels that have a grid which may run now, or where there is none, those which have one first. It
// returns when that is. Now is what the engine has reached: the clock may be ahead of it, which the engine makes up for,
// and a grid that came meanwhile must find what the device would have been doing.
func (e *engine) mark() Time {
	first := Time(math.MaxInt64)
	for _, c := range e.channels {
		c.ready = math.MaxInt64
		for _, g := range c.grids {
			c.ready = min(c.ready, g.Ready)
		}
		first = min(first, c.ready)
	}
	now := max(e.at, first)
	for _, c := range e.channels {
		c.wants = c.ready <= now
	}
	return now
}

// hand gives unit i to the channel whose turn it is now. It costs a switch where the unit is taken from a channel that
// could go on; one that has nothing to run leaves nothing to be saved.
func (e *engine) hand(i int) {
	o := &e.owners[i]
	from := o.channel
	preempted := from != nil && from.wants
	if preempted {
		o.slice = from.turnLength()
		if o.left() > 0 {
			return
		}
	}
	if from != nil {
		from.turns[i] = e.turn
	}
	next := e.longest(i)
	*o = owner{channel: next}
	if next == nil {
		return // a unit that no channel wants
	}
	o.slice = next.turnLength()
	if preempted && next != from {
		o.pause = Time(e.dev.Config.Switch)
	}
}

// longest is the channel that has waited longest for unit i; nil if none does.
func (e *engine) longest(i int) *Channel {
	var found *Channel
	for _, c := range e.channels {
		if !c.wants || found != nil && c.turns[i] >= found.turns[i] {
			continue
		}
		if _, ok := slices.BinarySearch(c.mask, i); ok {
			found = c
		}
	}
	return found
}

// longestStep is how long a step may take: a quantum, and no longer than the shortest turn or switch that is under way.
func (e *engine) longestStep() Time {
	step := Time(e.dev.Config.Quantum)
	for i := range e.owners {
		if o := &e.owners[i]; o.channel != nil {
			step = min(step, o.left())
		}
	}
	return step
}
