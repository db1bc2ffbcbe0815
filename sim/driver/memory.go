package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
)

// memType is how an allocation was made, and so how it is freed.
type memType uint8

const (
	memDevice       memType = iota + 1 // cuMemAlloc
	memAsync                           // from a pool
	memManaged                         // cuMemAllocManaged
	memHost                            // cuMemHostAlloc
	memRegistered                      // cuMemHostRegister
	memMapped                          // a mapping of cuMemMap
	memImported                        // another process's, by handle
	memPoolImported                    // another process's, from a pool
	memGraph                           // of a graph's allocation node
	memModule                          // the variables of a module
	memArray                           // behind an array
)

// allocation is memory that the program knows by an address.
type allocation struct {
	typ        memType
	base, size uint64
	ctx        *context // nil where it belongs to the process
	dev        *device  // nil for host memory
	id         uint64   // buffer id, unique in the machine
	flags      uint32   // of host and managed memory
	syncOps    bool     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS

	arena  *arena // where the bytes come from, if from an arena
	chunk  *chunk
	region *region       // else its own
	host   *hw.HostPages // behind region, for host and managed memory
	phys   *physical     // behind region; for managed memory what it is counted against
	pool   *pool
	freed  bool // freed in stream order, not yet done

	readMostly          bool
	preferred, prefetch location
	accessedBy          []location
	exported            *secret // of its export, nil for none
}

// location is a place of memory: a device, or the host as -1.
type location int32

const (
	locationHost    location = -1
	locationInvalid location = -2
)

// forget takes an allocation's address and its export out of the program's reach.
func (p *Process) forget(a *allocation) {
	p.allocs.remove(a.base)
	if a.exported != nil {
		delete(p.d.exports, *a.exported)
	}
}

// drop frees an allocation, whatever runs on it, and forgets its address.
func (p *Process) drop(a *allocation) {
	p.forget(a)
	switch {
	case a.chunk != nil:
		a.arena.free(a.chunk, a.base, a.size)
		if a.pool != nil {
			a.pool.ended()
		}
	case a.region != nil:
		p.unmap(a.region)
		if a.typ == memImported || a.typ == memPoolImported {
			p.addresses.release(a.region.base, a.region.size)
		}
	}
	if a.host != nil {
		if err := a.host.Release(); err != nil {
			p.d.log.Error("release host pages", "process", p.pid, "error", err)
		}
	}
	if a.phys != nil {
		a.phys.release()
	}
}

// free is cuMemFree: it waits for the work of the allocation's context first, as the real one does.
func (p *Process) free(ptr uint64) Result {
	if ptr == 0 {
		return success
	}
	a, ok := p.allocs.find(ptr)
	if !ok || a.base != ptr || a.freed {
		return errInvalidValue
	}
	switch a.typ {
	case memDevice, memManaged, memAsync, memGraph, memPoolImported:
	default:
		return errInvalidValue
	}
	for _, c := range p.contexts {
		if a.ctx == c || a.ctx == nil {
			if c.fault == success {
				c.synchronize()
			}
		}
	}
	// The lock was given up: somebody may have freed it.
	if b, ok := p.allocs.find(ptr); !ok || b != a || a.freed {
		return errInvalidValue
	}
	if a.ctx != nil && a.ctx.fault != success {
		return a.ctx.fault
	}
	p.drop(a)
	return success
}

// managed makes memory that the program and all devices share. It is counted against the device in full.
func (c *context) managed(addr, size uint64, flags uint32) (*allocation, Result) {
	p := c.p
	if size == 0 || flags != 1 && flags != 2 {
		return nil, errInvalidValue
	}
	charge, res := p.newPhysical(c.dev, size)
	if res != success {
		return nil, res
	}
	pages, err := p.d.machine.NewHostPages(roundUp(size, hostPage))
	if err != nil {
		charge.release()
		p.d.log.Error("managed memory", "process", p.pid, "error", err)
		return nil, errOutOfMemory
	}
	a := &allocation{typ: memManaged, base: addr, size: size, dev: c.dev, id: p.d.id(), flags: flags, host: pages, phys: charge,
		preferred: locationInvalid, prefetch: locationInvalid}
	if res := p.adopt(a); res != success {
		charge.release()
		return nil, res
	}
	return a, success
}

const hostPage = 4096

// adopt maps an allocation made of host pages at its address. On failure the pages are released.
func (p *Process) adopt(a *allocation) Result {
	res := errInvalidValue
	if a.base%hostPage == 0 && a.base != 0 && a.base+a.host.Size() > a.base &&
		(a.base+a.host.Size() <= addressFirst || a.base >= addressLast) {
		a.region = &region{base: a.base, size: a.host.Size(), store: a.host, access: p.everywhere()}
		if res = errHostAlreadyRegistered; p.allocs.add(a.base, a.size, a) {
			if res = p.expose(a.region); res == success {
				return success
			}
			p.allocs.remove(a.base)
		}
	}
	if err := a.host.Release(); err != nil {
		p.d.log.Error("release host pages", "process", p.pid, "error", err)
	}
	return res
}
