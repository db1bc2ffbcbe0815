package gscale

import (
	"fmt"

	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// pool gives fences their pages: graphics memory in the aperture that is nobody else's, whoever runs.
type pool struct {
	bus    register.Bus
	fences [register.Fences]pooled
	taken  [register.PoolPages]bool
}

// pooled is a hardware fence in use.
type pooled struct {
	owner *vgpu.VGPU // nil: it is free
	fence int        // the owner's number of it
	guest vgpu.Range // of the owner's low memory
	first int        // in the pool's pages of graphics memory
}

// set sets a guest's fence. What it had before is given back and mapped as it was.
func (p *pool) set(v *vgpu.VGPU, fence int, value uint64) error {
	for i := range p.fences {
		if f := &p.fences[i]; f.owner == v && f.fence == fence {
			p.free(i)
		}
	}
	first, last, _, valid := register.FenceBounds(value)
	if !valid {
		return nil
	}
	if last < first || !v.Low.Has(int(first)) || !v.Low.Has(int(last)) {
		return vgpu.ErrAddress
	}
	pages := int(last-first) + 1
	slot, at := p.room(pages)
	if slot < 0 || at < 0 {
		return fmt.Errorf("%d pages: fences or the fence memory pool: %w", pages, vgpu.ErrExhausted)
	}
	for _, f := range p.fences {
		if f.owner == v && int(first) < f.guest.First+f.guest.Pages && f.guest.First <= int(last) {
			return fmt.Errorf("pages %d to %d have a fence already: %w", first, last, vgpu.ErrAddress)
		}
	}
	p.fences[slot] = pooled{v, fence, vgpu.Range{First: int(first), Pages: pages}, at}
	for i := range pages {
		p.taken[at-register.PoolFirst+i] = true
		p.bus.Write(entryAt(at+i), v.Shadow[int(first)+i])
		v.EPT.Map(int(first)+i, register.ApertureBase+uint32(at+i))
	}
	// The attributes, the low twelve bits of both words, stay; the bounds are those in the pool.
	low, high := uint32(at)<<12|uint32(value)&0xfff, uint32(at+pages-1)<<12|uint32(value>>32)&0xfff
	p.bus.Write(register.Fence+8*uint32(slot)+4, high)
	p.bus.Write(register.Fence+8*uint32(slot), low)
	return nil
}

// room is a free fence and the first run of free pages that is long enough; -1 where there is none.
func (p *pool) room(pages int) (fence, first int) {
	fence = -1
	for i := hostFences; i < len(p.fences); i++ {
		if p.fences[i].owner == nil {
			fence = i
			break
		}
	}
	run := 0
	for i, taken := range p.taken {
		if run++; taken {
			run = 0
		} else if run == pages {
			return fence, register.PoolFirst + i - pages + 1
		}
	}
	return fence, -1
}

// free takes a fence from its owner, whose pages lead again where its entries do.
func (p *pool) free(i int) {
	f := p.fences[i]
	p.fences[i] = pooled{}
	p.bus.Write(register.Fence+8*uint32(i), 0)
	for n := range f.guest.Pages {
		p.taken[f.first-register.PoolFirst+n] = false
		p.ladder(f.owner, f.guest.First+n)
	}
}

// entry follows a change of an entry in a fence's range, and reports whether it is in one.
func (p *pool) entry(v *vgpu.VGPU, index int) bool {
	for _, f := range p.fences {
		if f.owner == v && f.guest.Has(index) {
			p.bus.Write(entryAt(f.first+index-f.guest.First), v.Shadow[index])
			return true
		}
	}
	return false
}

// ladder maps a page of the guest's aperture past the table, to the page that the guest's entry names.
func (p *pool) ladder(v *vgpu.VGPU, index int) {
	if page, ok := register.Page(v.Shadow[index]); ok {
		v.EPT.Map(index, page)
	}
}

// ranges are the pool's ranges in use.
func (p *pool) ranges() (used []vgpu.Range) {
	for _, f := range p.fences {
		if f.owner != nil {
			used = append(used, vgpu.Range{First: f.first, Pages: f.guest.Pages})
		}
	}
	return used
}
