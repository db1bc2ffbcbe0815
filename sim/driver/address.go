package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
)

// The device addresses of a process. They lie above what a 64-bit program can map without asking for more (47 bits on
// x86, 48 on Arm), as a device's 49-bit addresses may, so that no device address is a host address: programs put their
// heaps anywhere below, and Go's at random.
const (
	addressFirst = uint64(1) << 48
	addressLast  = addressFirst + 1<<45
)

// addresses hands out address ranges. It takes the next free ones after the last, so that an address is used again as
// late as possible and a stale pointer faults.
type addresses struct {
	free holes
	next uint64
}

type hole struct{ base, size uint64 }

// holes are free ranges, by address.
type holes []hole

// add makes a range free, joined with the free ranges beside it.
func (free *holes) add(base, size uint64) {
	i, _ := slices.BinarySearchFunc(*free, base, func(h hole, b uint64) int {
		if h.base < b {
			return -1
		}
		return 1
	})
	all := slices.Insert(*free, i, hole{base, size})
	if i+1 < len(all) && base+size == all[i+1].base {
		all[i].size += all[i+1].size
		all = slices.Delete(all, i+1, i+2)
	}
	if i > 0 && all[i-1].base+all[i-1].size == base {
		all[i-1].size += all[i].size
		all = slices.Delete(all, i, i+1)
	}
	*free = all
}

func newAddresses() addresses {
	return addresses{free: []hole{{addressFirst, addressLast - addressFirst}}, next: addressFirst}
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

// reserve reserves size bytes at a multiple of align; ok is false when there are none. Between two ranges one frame
// stays free, so that running off the end of an allocation faults.
func (a *addresses) reserve(size, align uint64) (uint64, bool) {
	size = roundUp(size, hw.FrameSize) + hw.FrameSize
	align = max(align, hw.FrameSize)
	for _, from := range [2]uint64{a.next, addressFirst} {
		for i, h := range a.free {
			base := roundUp(max(h.base, from), align)
			if base < h.base || base+size > h.base+h.size || base+size < base {
				continue
			}
			a.cut(i, base, size)
			a.next = base + size
			return base, true
		}
	}
	return 0, false
}

// reserveAt reserves exactly [base, base+size) and its guard frame.
func (a *addresses) reserveAt(base, size uint64) bool {
	size = roundUp(size, hw.FrameSize) + hw.FrameSize
	for i, h := range a.free {
		if base >= h.base && base+size <= h.base+h.size {
			a.cut(i, base, size)
			return true
		}
	}
	return false
}

func (a *addresses) cut(i int, base, size uint64) {
	h := a.free[i]
	var rest []hole
	if base > h.base {
		rest = append(rest, hole{h.base, base - h.base})
	}
	if end := base + size; end < h.base+h.size {
		rest = append(rest, hole{end, h.base + h.size - end})
	}
	a.free = slices.Replace(a.free, i, i+1, rest...)
}

// release returns what reserve or reserveAt reserved; size as asked for.
func (a *addresses) release(base, size uint64) {
	size = roundUp(size, hw.FrameSize) + hw.FrameSize
	a.free.add(base, size)
}
