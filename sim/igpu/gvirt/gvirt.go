// Package gvirt shares the translation table as gVirt does: each guest has a part of it to itself, of the low and of the
// high part of graphics memory, and some of the fences. A switch copies nothing, and three guests are the most.
package gvirt

import (
	"fmt"

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

// Partition is a vgpu.Sharing.
type Partition struct {
	bus   register.Bus
	taken map[int]*vgpu.VGPU // by the number of the part
	parts map[*vgpu.VGPU]int
}

// New makes a table without guests.
func New(bus register.Bus) *Partition {
	return &Partition{bus, map[int]*vgpu.VGPU{}, map[*vgpu.VGPU]int{}}
}

// Admit implements vgpu.Sharing.
func (p *Partition) Admit(v *vgpu.VGPU) error {
	part := 0
	for p.taken[part] != nil {
		part++
	}
	low := max(v.Low.Pages, leastLow)
	v.Low.First, v.High.First, v.Fences = hostLow+part*low, register.LowEntries+hostHigh+part*v.High.Pages, perGuest
	switch {
	case v.Low.First+low > register.LowEntries:
		return fmt.Errorf("low graphics memory: %w", vgpu.ErrExhausted)
	case v.High.First+v.High.Pages > register.Entries:
		return fmt.Errorf("high graphics memory: %w", vgpu.ErrExhausted)
	case hostFences+(part+1)*perGuest > register.Fences:
		return fmt.Errorf("fences: %w", vgpu.ErrExhausted)
	}
	v.Low.Pages = min(v.Low.Pages, register.ReservedLow-v.Low.First) // the last 8 MiB are the mediator's
	p.taken[part], p.parts[v] = v, part
	for i := v.Low.First; i < v.Low.First+v.Low.Pages; i++ {
		v.EPT.Map(i, register.ApertureBase+uint32(i))
	}
	return nil
}

// Release implements vgpu.Sharing.
func (p *Partition) Release(v *vgpu.VGPU) {
	delete(p.taken, p.parts[v])
	delete(p.parts, v)
	v.EPT.Unmap(v.Low.First, v.Low.Pages)
}

// Entry implements vgpu.Sharing: the part of the table is the guest's at all times.
func (p *Partition) Entry(v *vgpu.VGPU, index int) {
	p.bus.Write(register.Table+4*uint32(index), v.Shadow[index])
}

// Fence implements vgpu.Sharing.
func (p *Partition) Fence(v *vgpu.VGPU, fence int, value uint64) error {
	if first, last, _, valid := register.FenceBounds(value); valid && (!v.Low.Has(int(first)) || !v.Low.Has(int(last)) || last < first) {
		return vgpu.ErrAddress
	}
	at := register.Fence + 8*uint32(hostFences+p.parts[v]*perGuest+fence)
	p.bus.Write(at, 0) // not valid while it changes
	p.bus.Write(at+4, uint32(value>>32))
	p.bus.Write(at, uint32(value))
	return nil
}

// Enter implements vgpu.Sharing: nothing is to be done.
func (p *Partition) Enter(*vgpu.VGPU) {}
