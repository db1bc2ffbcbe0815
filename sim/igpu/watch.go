package igpu

import (
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// watch lets the checker know of what is written from now on: on the bus, by guests, and to their ways to memory.
func (c *checker) watch(m *vgpu.Monitor, bus *watchedBus) {
	bus.checker = c
	m.Sharing = watchedSharing{m.Sharing, c}
	for _, g := range c.guests {
		g.EPT.Watch = func(first, pages int) {
			g.ways, c.moved = note(g.ways, first, pages), true
		}
	}
}

// watchedBus is the way to the device, past the checker.
type watchedBus struct {
	register.Bus
	checker *checker // nil: nobody watches yet
}

func (b *watchedBus) Write(offset, value uint32) {
	b.Bus.Write(offset, value)
	if offset >= register.Table && offset < register.End {
		b.wrote(int(offset-register.Table)/4, 1)
	}
}

func (b *watchedBus) WriteTable(first int, entries []uint32) {
	b.Bus.WriteTable(first, entries)
	b.wrote(first, len(entries))
}

func (b *watchedBus) wrote(first, pages int) {
	c := b.checker
	if c == nil || pages == 0 {
		return
	}
	first, end := max(0, first), min(first+pages, register.Entries)
	for i := first / block; i*block < end; i++ {
		c.written[i] = c.clock
	}
	if first < register.LowEntries {
		c.low = note(c.low, first, min(end, register.LowEntries)-first)
	}
}

// watchedSharing is told of the entries that guests write.
type watchedSharing struct {
	vgpu.Sharing
	checker *checker
}

func (s watchedSharing) Entry(v *vgpu.VGPU, index int) {
	for _, g := range s.checker.guests {
		if g.VGPU == v {
			g.written[index/block] = s.checker.clock
			g.entries = note(g.entries, index, 1)
		}
	}
	s.Sharing.Entry(v, index)
}

// note adds a range to a list, in most cases at the end of the one before.
func note(list []vgpu.Range, first, pages int) []vgpu.Range {
	if n := len(list); n > 0 && list[n-1].First+list[n-1].Pages == first {
		list[n-1].Pages += pages
		return list
	}
	return append(list, vgpu.Range{First: first, Pages: pages})
}
