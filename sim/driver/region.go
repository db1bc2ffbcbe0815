package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
)

// access is what a device may do with a region.
type access uint8

const (
	accessNone  access = 0
	accessRead  access = 1
	accessWrite access = 3
)

// region is memory at its addresses: what page tables hold. It belongs to one context, whose peers see it too, or to
// the process, and then each device has its own access.
type region struct {
	base, size uint64
	store      hw.Store
	offset     uint64
	ctx        *context // nil: of the process
	access     []access // by device, where ctx is nil
}

// rights is what c may do with r.
func (r *region) rights(c *context) access {
	if r.ctx == nil {
		return r.access[c.dev.index]
	}
	if r.ctx == c || c.peers[r.ctx] {
		return accessWrite
	}
	return accessNone
}

// everywhere gives every device full access.
func (p *Process) everywhere() []access {
	all := make([]access, len(p.d.devices))
	for i := range all {
		all[i] = accessWrite
	}
	return all
}

// expose puts a region into the page tables of all contexts that may see it.
func (p *Process) expose(r *region) Result {
	if err := p.uva.Map(r.base, r.store, r.offset, r.size, true); err != nil {
		p.d.log.Error("map region", "process", p.pid, "error", err)
		return errMapFailed
	}
	p.regions.add(r.base, r.size, r)
	for _, c := range p.contexts {
		p.show(r, c)
	}
	return success
}

// show makes c's page table say what c may do with r.
func (p *Process) show(r *region, c *context) {
	c.space.Unmap(r.base, r.size)
	if rights := r.rights(c); rights != accessNone {
		if err := c.space.Map(r.base, r.store, r.offset, r.size, rights == accessWrite); err != nil {
			p.d.log.Error("map region in context", "process", p.pid, "context", c.id, "error", err)
		}
	}
}

// unmap removes a region from all page tables.
func (p *Process) unmap(r *region) {
	p.uva.Unmap(r.base, r.size)
	p.regions.remove(r.base)
	for _, c := range p.contexts {
		c.space.Unmap(r.base, r.size)
	}
}
