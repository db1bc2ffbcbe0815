package daemon

import (
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
)

// secondLook is when what seems to be gone of a device is looked at again: a driver's figures are not all of one
// moment.
const secondLook = 100 * time.Millisecond

// orphanWatch tells whether a device still has memory that clients gave away under descriptors and that is charged to
// their lgpus: that of dead clients, and that which live ones have released. Such memory is no process's, or that of a
// client that has imported it and is not charged for it yet. The driver says only how much there is of it altogether.
// So where several lgpus claim some, nothing is gone until all of it is.
type orphanWatch struct {
	base   uint64            // in use and no process's, while nothing was claimed
	before uint64            // the same, at the last look
	seems  map[uint64]uint64 // gone of the claim of each lgpu, at the last look
}

// look takes what a driver says of a device, and what is claimed of it. It returns how much of the claim of which lgpu
// is gone for certain, and whether another look may find that more is: a driver's figures are not all of one moment.
func (w *orphanWatch) look(facts gpu.Facts, e tenant.Exports) (gone map[uint64]uint64, again bool) {
	total, smallest := uint64(0), ^uint64(0)
	for _, c := range e.Claims {
		total += c.Orphans + c.Released
		smallest = min(smallest, c.Orphans+c.Released)
	}
	var processes, uncharged uint64
	for _, p := range facts.Processes {
		processes += p.Memory
		if charged, claims := e.Charged[p.PID]; claims {
			uncharged += p.Memory - min(p.Memory, charged)
		}
	}
	nobodys := facts.MemoryUsed - min(facts.MemoryUsed, processes)
	if total == 0 {
		w.base, w.before, w.seems = min(w.before, nobodys), nobodys, nil
		return nil, false
	}
	w.base = min(w.base, nobodys)
	alive := nobodys - w.base + min(uncharged, total)
	seems := map[uint64]uint64{}
	for _, c := range e.Claims {
		switch claim := c.Orphans + c.Released; {
		case len(e.Claims) == 1 && alive > claim/driverPart:
			seems[c.LGPU] = claim - min(claim, alive)
		case len(e.Claims) == 1:
			seems[c.LGPU] = claim
		case alive < smallest/exportTolerance:
			seems[c.LGPU] = claim
		}
	}
	gone = map[uint64]uint64{}
	for lgpu, bytes := range seems {
		if sure := min(bytes, w.seems[lgpu]); sure != 0 {
			gone[lgpu] = sure
		}
		again = again || bytes > gone[lgpu]
	}
	w.seems = seems
	return gone, again
}

// driverPart: a driver keeps some memory of its own for what was given away, 0.16 MiB for each 64 MiB on an H200. Up to
// this part of a claim is taken for that.
const driverPart = 64

// exportTolerance is the part of the smallest claim that may seem to be there when nothing is: drivers take memory of
// their own for every process.
const exportTolerance = 4

// reconcile gives back what is charged for memory that clients gave away and the devices of an origin have no more. It
// reports whether it should be called again soon. Only the goroutine of the origin calls it.
func (w *police) reconcile(o *origin) (again bool) {
	for _, d := range w.daemon.inventory.devicesOf(o) {
		facts, _, err := o.facts(d.UUID)
		if err != nil || facts.Namespaced {
			continue
		}
		gone, more := d.orphans.look(facts, w.daemon.tenants.Exports(d.UUID))
		for lgpu, bytes := range gone {
			w.daemon.tenants.ReleaseExports(d.UUID, lgpu, bytes)
		}
		again = again || more
	}
	return again
}

// bereave has all devices looked at on which a client that has left may have memory that it gave away.
func (v *inventory) bereave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.origins {
		select {
		case o.bereaved <- struct{}{}:
		default: // it is asked for already
		}
	}
}
