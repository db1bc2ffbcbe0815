// Package gvirt shares the translation table as gVirt does: each guest has a part of it to itself, of the low and of the
// high part of graphics memory, and some of the fences. A switch copies nothing, and three guests are the most.
package gvirt

import (
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// What the host keeps, in pages and in fences; and the least that a guest has of low memory here.
const (
	hostLow    = 96 * register.PagesPerMiB
	hostHigh   = 384 * register.PagesPerMiB
	hostFences = 4
	leastLow   = 128 * register.PagesPerMiB
	perGuest   = 8 // fences
)

// part is what a guest has of the table. Its number says which fences are the guest's.
type part struct {
	owner     *vgpu.VGPU // nil: nobody has it
	low, high vgpu.Range
}

// Partition is a vgpu.Sharing.
type Partition struct {
	bus   register.Bus
	parts [(register.Fences - hostFences) / perGuest]part
}

// New makes a table without guests.
func New(bus register.Bus) *Partition { return &Partition{bus: bus} }

// Admit implements vgpu.Sharing: the guest begins at the first gap that is large enough.
func (p *Partition) Admit(v *vgpu.VGPU) error {
	low := p.gap(hostLow, max(v.Low.Pages, leastLow), func(t part) vgpu.Range { return t.low })
	high := p.gap(register.LowEntries+hostHigh, v.High.Pages, func(t part) vgpu.Range { return t.high })
	number := p.of(nil)
	switch {
	case low.First+low.Pages > register.LowEntries:
		return fmt.Errorf("low graphics memory: %w", vgpu.ErrExhausted)
	case high.First+high.Pages > register.Entries:
		return fmt.Errorf("high graphics memory: %w", vgpu.ErrExhausted)
	case number < 0:
		return fmt.Errorf("fences: %w", vgpu.ErrExhausted)
	}
	p.parts[number] = part{v, low, high}
	v.Fences, v.High = perGuest, high
	v.Low = vgpu.Range{First: low.First, Pages: min(v.Low.Pages, register.ReservedLow-low.First)} // the last 8 MiB are the mediator's
	for i := v.Low.First; i < v.Low.First+v.Low.Pages; i++ {
		v.EPT.Map(i, register.ApertureBase+uint32(i))
	}
	return nil
}

// gap is the first run of so many pages from a page on that no part has. It may end beyond the table.
func (p *Partition) gap(begin, pages int, of func(part) vgpu.Range) vgpu.Range {
	found := vgpu.Range{First: begin, Pages: pages}
	for moved := true; moved; {
		moved = false
		for _, t := range p.parts {
			if r := of(t); t.owner != nil && r.First < found.First+pages && found.First < r.First+r.Pages {
				found.First, moved = r.First+r.Pages, true
			}
		}
	}
	return found
}

// of is the number of a guest's part, or of a free one; -1: there is none.
func (p *Partition) of(v *vgpu.VGPU) int {
	return slices.IndexFunc(p.parts[:], func(t part) bool { return t.owner == v })
}

// Release implements vgpu.Sharing.
func (p *Partition) Release(v *vgpu.VGPU) {
	if number := p.of(v); number >= 0 {
		p.parts[number] = part{}
		v.EPT.Unmap(v.Low.First, v.Low.Pages)
	}
}

// Entry implements vgpu.Sharing: the part of the table is the guest's at all times.
func (p *Partition) Entry(v *vgpu.VGPU, index int) {
	p.bus.Write(register.Table+4*uint32(index), v.Shadow[index])
}

// Fence implements vgpu.Sharing.
func (p *Partition) Fence(v *vgpu.VGPU, fence int, value uint64) error {
	at := register.Fence + 8*uint32(hostFences+p.of(v)*perGuest+fence)
	p.bus.Write(at, 0) // not valid while it changes
	first, last, _, valid := register.FenceBounds(value)
	if !valid {
		return nil
	}
	if last < first || !v.Low.Has(int(first)) || !v.Low.Has(int(last)) {
		return vgpu.ErrAddress
	}
	for other := range v.Fences {
		if from, to, _, valid := register.FenceBounds(v.Fence(other)); other != fence && valid && first <= to && from <= last {
			return fmt.Errorf("pages %d to %d have a fence already: %w", first, last, vgpu.ErrAddress)
		}
	}
	p.bus.Write(at+4, uint32(value>>32))
	p.bus.Write(at, uint32(value))
	return nil
}

// Enter implements vgpu.Sharing: nothing is to be done.
func (p *Partition) Enter(*vgpu.VGPU) {}
