package gscale

import (
	"slices"

	"github.com/lgpu/lgpu/policy/succession"
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// Ahead copies entries of the guest that is likely to come next, at most so many, while v runs, and returns how many. It
// leaves alone what v has: of two with the same place nothing is copied. A guest without work is not guessed.
func (t *Table) Ahead(v *vgpu.VGPU, most int) (copied int) {
	if !t.options.Predict {
		return 0
	}
	if t.guess != nil && !t.guess.Ready() {
		t.finish() // it has gone idle: what was begun is ended, and nothing more
		t.guess = nil
	}
	if t.guess == nil && !t.guessed {
		next, ok := t.history.Next(v, func(g *vgpu.VGPU) bool { return g != v && g.Ready() })
		if !ok {
			return 0
		}
		t.guess, t.guessed = next, true
		t.Stats.Guesses++
	}
	for t.guess != nil && copied < most {
		i := t.next()
		if i < 0 {
			break
		}
		p := &t.pieces[i]
		from, to := p.part(t.guess)
		if t.done == 0 {
			if p.ahead {
				t.Stats.Wasted += p.within(p.owner)
			}
			p.owner, p.ahead = nil, false // nobody's, until all of it is there
		}
		n := min(most-copied, to-from-t.done)
		t.bus.WriteTable(from+t.done, t.guess.Shadow[from+t.done:from+t.done+n])
		copied, t.done = copied+n, t.done+n
		t.Stats.Ahead += n
		if t.done == to-from {
			p.owner, p.ahead, t.done = t.guess, true, 0
		}
	}
	return copied
}

// next is the piece that is to be copied ahead; -1: none.
func (t *Table) next() int {
	return slices.IndexFunc(t.pieces, func(p piece) bool {
		return p.within(t.guess) > 0 && p.owner != t.guess && (t.last == nil || p.within(t.last) == 0)
	})
}

// finish ends the copy of the piece that is under way: a switch waits for it.
func (t *Table) finish() {
	if t.done == 0 {
		return
	}
	i := t.next()
	p := &t.pieces[i]
	from, to := p.part(t.guess)
	t.bus.WriteTable(from+t.done, t.guess.Shadow[from+t.done:to])
	t.Stats.Copied += to - from - t.done
	p.owner, p.ahead, t.done = t.guess, true, 0
}

// Next is who has the next turn after v, of the guests with work; it is nil where nobody has. The slot-aware order is made
// of all guests and kept until others are admitted, and those without work are passed over: an order made anew of those
// that happen to have work would put somebody else behind v each time, and the vote would be wrong.
func (t *Table) Next(v *vgpu.VGPU) *vgpu.VGPU {
	if !t.options.Aware {
		return after(t.guests, v)
	}
	if t.cycle == nil {
		t.cycle = t.order(t.guests)
	}
	return after(t.cycle, v)
}

// order is the slot-aware order: claim 8 where the places of two guests are the same or apart, and for places that overlap
// in part the order in which neighbours have least in common.
func (t *Table) order(guests []*vgpu.VGPU) []*vgpu.VGPU {
	slots, partly := make([]int, len(guests)), false
	for i, g := range guests {
		slots[i] = g.High.First
		for _, o := range guests[:i] {
			partly = partly || overlap(g.High, o.High) > 0 && g.High.First != o.High.First
		}
	}
	numbers := succession.Alternate(slots)
	if partly {
		numbers = succession.Arrange(len(guests), func(a, b int) int { return overlap(guests[a].High, guests[b].High) })
	}
	order := make([]*vgpu.VGPU, len(guests))
	for i, n := range numbers {
		order[i] = guests[n]
	}
	return order
}

// after is the next guest with work behind v in a list that begins anew at its end.
func after(list []*vgpu.VGPU, v *vgpu.VGPU) *vgpu.VGPU {
	at := slices.Index(list, v)
	for i := range list {
		if g := list[(at+1+i)%len(list)]; g.Ready() {
			return g
		}
	}
	return nil
}

var _ vgpu.Sharing = (*Table)(nil)

// entryAt is the offset of an entry's register.
func entryAt(index int) uint32 { return register.Table + 4*uint32(index) }
