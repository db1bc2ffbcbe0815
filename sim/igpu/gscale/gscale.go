// Package gscale shares the translation table as gScale does: each guest has a private table, in memory, which is copied
// to the hardware when the guest's turn comes. So guests may have the same part of graphics memory, and there can be many.
// It knows the GPU by its registers alone.
//
// Four things make that work, and cheap:
//   - Low memory, which the CPU reaches through the aperture, is mapped past the table: the guest's page of the aperture
//     leads straight to the page of memory that the guest's own entry names (ladder mapping).
//   - A fence needs an address that is valid whoever runs: it gets pages of a pool, to which the entries are copied (Fence).
//   - High memory is cut into slots, or finer into sub-slots, which remember whose entries they have: only what changes
//     hands is copied (Enter).
//   - Who comes next is guessed, and the entries of slots that the running guest does not use are copied ahead (Ahead).
//
// A Table is for one goroutine at a time.
package gscale

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/policy/succession"
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// What the host keeps, in pages and in fences; and how many fences a guest sees, which are taken when they are set.
const (
	hostLow    = 64 * register.PagesPerMiB
	hostHigh   = 384 * register.PagesPerMiB
	hostFences = 4
	perGuest   = 8
	lowPiece   = 16 * register.PagesPerMiB
)

// Options of a Table.
type Options struct {
	Slots    int  // of high memory, one of which is the host's; 1 or less: all guests share one place
	SubSlots int  // pieces of high memory with an owner each, of which a guest has a run; 0: the slots are the pieces
	Predict  bool // copy ahead
	Aware    bool // turns in the slot-aware order, else in that of arrival
	Spread   bool // place low memory apart too, where there is room; else all guests have the same place, as in gScale
	Depth    int  // how many successors vote; 0: succession.Depth
}

// Stats count what a Table has done.
type Stats struct {
	Switches, Copied   int // switches to another guest, and entries that they copied while the GPU waited
	Ahead, Wasted      int // entries copied ahead, and those of them that were overwritten before they were used
	Guesses, Hits      int // guests guessed, and those that came next
	Forced, Neighbours int // switches between guests with a common place in high memory, of those between guests
	Refused            int // fences for which the pool or the registers had no room
}

// piece is a run of entries that belong together.
type piece struct {
	first, end int
	owner      *vgpu.VGPU // whose entries they are; nil: nobody's
	ahead      bool       // copied ahead, and not used yet
}

// Table is a vgpu.Sharing.
type Table struct {
	Stats   Stats
	bus     register.Bus
	options Options
	pieces  []piece
	starts  []int // in high memory, where guests may begin
	guests  []*vgpu.VGPU
	pool    pool
	history succession.History[*vgpu.VGPU]
	last    *vgpu.VGPU
	guess   *vgpu.VGPU   // who is copied ahead
	guessed bool         // in this turn
	done    int          // entries of the piece under way that are copied already
	cycle   []*vgpu.VGPU // the slot-aware order; nil: to be made
}

// New makes a table without guests.
func New(bus register.Bus, o Options) (*Table, error) {
	t := &Table{bus: bus, options: o, pool: pool{bus: bus}, history: succession.History[*vgpu.VGPU]{Depth: o.Depth}}
	for at := hostLow; at < register.PoolFirst; at += lowPiece {
		t.pieces = append(t.pieces, piece{first: at, end: at + lowPiece})
	}
	const begin, all = register.LowEntries + hostHigh, register.Entries - register.LowEntries
	slots := max(1, o.Slots-1)
	size := (register.Entries - begin) / slots
	unit := size
	switch {
	case o.Slots > 64 || o.SubSlots > 1024:
		return nil, fmt.Errorf("%d slots, %d sub-slots: the most are 64 and 1024", o.Slots, o.SubSlots)
	case o.SubSlots < 0 || o.SubSlots > 0 && (all%o.SubSlots != 0 || hostHigh%(all/o.SubSlots) != 0 || size%(all/o.SubSlots) != 0):
		return nil, fmt.Errorf("%d sub-slots do not divide %d slots and the host's part evenly", o.SubSlots, max(1, o.Slots))
	case o.SubSlots > 0:
		unit = all / o.SubSlots
	}
	for at := begin; at+unit <= register.Entries; at += unit {
		t.pieces = append(t.pieces, piece{first: at, end: at + unit})
		if (at-begin)%size == 0 || o.SubSlots > 0 && slots > 1 {
			t.starts = append(t.starts, at)
		}
	}
	return t, nil
}

// Admit implements vgpu.Sharing: the guest begins where the fewest others are.
func (t *Table) Admit(v *vgpu.VGPU) error {
	v.Fences = perGuest
	lows := []int{hostLow}
	for at := hostLow + v.Low.Pages; t.options.Spread && at+v.Low.Pages <= register.PoolFirst; at += v.Low.Pages {
		lows = append(lows, at)
	}
	v.Low.First = t.place(lows, v.Low.Pages, register.PoolFirst, func(g *vgpu.VGPU) vgpu.Range { return g.Low })
	v.High.First = t.place(t.starts, v.High.Pages, register.Entries, func(g *vgpu.VGPU) vgpu.Range { return g.High })
	if v.Low.First < 0 {
		return fmt.Errorf("low graphics memory: %w", vgpu.ErrExhausted)
	}
	if last := t.pieces[len(t.pieces)-1]; v.High.First < 0 || t.options.SubSlots == 0 && v.High.Pages > last.end-last.first {
		return fmt.Errorf("no slot has room for %d MiB of high graphics memory: %w", v.High.Pages/register.PagesPerMiB, vgpu.ErrExhausted)
	}
	t.guests, t.cycle = append(t.guests, v), nil
	return nil
}

// place is where the least of the other guests is in the way, of these places, for so many pages; -1: none has room.
func (t *Table) place(starts []int, pages, end int, of func(*vgpu.VGPU) vgpu.Range) (best int) {
	best = -1
	least := 0
	for _, start := range starts {
		load := 0
		for _, g := range t.guests {
			load += overlap(vgpu.Range{First: start, Pages: pages}, of(g))
		}
		if start+pages <= end && (best < 0 || load < least) {
			best, least = start, load
		}
	}
	return best
}

// Release implements vgpu.Sharing.
func (t *Table) Release(v *vgpu.VGPU) {
	t.guests = slices.DeleteFunc(t.guests, func(g *vgpu.VGPU) bool { return g == v })
	for i := range t.pieces {
		if p := &t.pieces[i]; p.owner == v {
			if p.ahead {
				t.Stats.Wasted += p.within(v)
			}
			p.owner, p.ahead = nil, false
		}
	}
	v.EPT.Unmap(v.Low.First, v.Low.Pages)
	t.history.Forget(v)
	switch v {
	case t.guess:
		t.guess, t.done = nil, 0
	case t.last:
		t.finish() // which piece is under way depends on who runs
		t.guess, t.last = nil, nil
	}
	t.cycle = nil
}

// Entry implements vgpu.Sharing. The hardware gets the entry too while the piece that it is in has the guest's entries, be
// it the guest's turn or not: else a later turn would find a stale one.
func (t *Table) Entry(v *vgpu.VGPU, index int) {
	entry := v.Shadow[index]
	if i := t.piece(index); i >= 0 {
		under := t.guess == v && t.done > 0 && t.next() == i // a copy under way may have passed it
		if t.pieces[i].owner == v || under {
			t.bus.Write(entryAt(index), entry)
		}
	}
	if v.Low.Has(index) && !t.pool.entry(v, index) {
		t.pool.ladder(v, index)
	}
}

// piece is in which piece an entry is; -1: in none.
func (t *Table) piece(index int) int {
	i, _ := slices.BinarySearchFunc(t.pieces, index+1, func(p piece, end int) int { return p.end - end }) // they are in order
	if i == len(t.pieces) || index < t.pieces[i].first {
		return -1
	}
	return i
}

// Fence implements vgpu.Sharing.
func (t *Table) Fence(v *vgpu.VGPU, fence int, value uint64) error {
	err := t.pool.set(v, fence, value)
	if errors.Is(err, vgpu.ErrExhausted) {
		t.Stats.Refused++
	}
	return err
}

// Fences are the ranges of the pool in use.
func (t *Table) Fences() []vgpu.Range { return t.pool.ranges() }

// Enter implements vgpu.Sharing: it copies what is not the guest's yet.
func (t *Table) Enter(v *vgpu.VGPU) {
	if v == t.last {
		return
	}
	t.Stats.Switches++
	if t.last != nil {
		t.Stats.Neighbours++
		if overlap(t.last.High, v.High) > 0 {
			t.Stats.Forced++
		}
		t.history.Add(t.last, v)
	}
	if t.guess != nil {
		if t.guess == v {
			t.Stats.Hits++
		}
		t.finish()
	}
	t.guess, t.guessed, t.last = nil, false, v
	for i := range t.pieces {
		if p := &t.pieces[i]; p.within(v) > 0 {
			if p.owner != v {
				t.Stats.Copied += t.copy(i, v)
			}
			p.ahead = false
		}
	}
}

// within is how many entries of a piece are a guest's.
func (p *piece) within(v *vgpu.VGPU) int {
	from, to := p.part(v)
	return max(0, to-from)
}

// part is which entries of a piece are a guest's.
func (p *piece) part(v *vgpu.VGPU) (from, to int) {
	r := v.High
	if p.first < register.LowEntries {
		r = v.Low
	}
	return max(p.first, r.First), min(p.end, r.First+r.Pages)
}

// copy makes a piece a guest's.
func (t *Table) copy(i int, v *vgpu.VGPU) int {
	p := &t.pieces[i]
	if p.ahead {
		t.Stats.Wasted += p.within(p.owner)
	}
	from, to := p.part(v)
	t.bus.WriteTable(from, v.Shadow[from:to])
	p.owner, p.ahead = v, false
	return to - from
}

// overlap is how many pages two ranges have in common.
func overlap(a, b vgpu.Range) int {
	return max(0, min(a.First+a.Pages, b.First+b.Pages)-max(a.First, b.First))
}
