package igpu

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// harm is something that a wrong mediator might do; it returns how to undo it.
type harm func(w *world, r *rand.Rand) (undo func())

// harms are of each kind that a check is about. Some of them hit what nobody sees, or change nothing.
var harms = []struct {
	name string
	do   harm
}{
	{"entry of the table", func(w *world, r *rand.Rand) func() {
		i := someEntry(w, r)
		return poke(w, register.Table+4*uint32(i), register.Entry(r.Uint32N(uint32(w.guests[0].EPT.Pages)*8)))
	}},
	{"run of the table", func(w *world, r *rand.Rand) func() {
		v, first, pages := someGuest(w, r), someEntry(w, r), 1+r.IntN(2*block)
		first = min(first, register.Entries-pages)
		before := append([]uint32(nil), w.device.Table()[first:first+pages]...)
		w.monitor.Bus.WriteTable(first, v.Shadow[first:first+pages])
		return func() { w.monitor.Bus.WriteTable(first, before) }
	}},
	{"fence", func(w *world, r *rand.Rand) func() {
		i := uint32(r.IntN(register.Fences))
		first := uint32(register.PoolFirst + r.IntN(40))
		value := []uint64{0, w.device.FenceRegisters()[i] + 1<<12, w.device.FenceRegisters()[i] ^ 1<<33,
			register.FenceValue(first, first+r.Uint32N(20), register.TileRow)}[r.IntN(4)]
		return fenced(w, i, value)
	}},
	{"guest's fence", func(w *world, r *rand.Rand) func() {
		v, n := someGuest(w, r), r.IntN(8)
		before, sharing := v.Fence(n), w.monitor.Sharing
		set := func(value uint64) {
			w.monitor.Sharing = deaf{}
			v.Write(register.Fence+8*uint32(n)+4, uint32(value>>32))
			v.Write(register.Fence+8*uint32(n), uint32(value))
			w.monitor.Sharing = sharing
		}
		set(before ^ []uint64{1, 1 << 12, 1 << 33}[r.IntN(3)])
		return func() { set(before) }
	}},
	{"way to memory", func(w *world, r *rand.Rand) func() {
		v := someGuest(w, r)
		i := min(someEntry(w, r), register.LowEntries-1)
		before, was := v.EPT.Translate(register.ApertureBase + uint32(i))
		if v.EPT.Map(i, r.Uint32N(1<<11)); r.IntN(2) == 0 {
			v.EPT.Map(i, register.ApertureBase+uint32(register.PoolFirst+r.IntN(64)))
		}
		return func() {
			v.EPT.Unmap(i, 1)
			if was {
				v.EPT.Map(i, before)
			}
		}
	}},
	{"guest's entry", func(w *world, r *rand.Rand) func() {
		v, i := someGuest(w, r), someEntry(w, r)
		if !v.Low.Has(i) && !v.High.Has(i) {
			i = v.High.First
		}
		before := v.Shadow[i]
		sharing := w.monitor.Sharing
		if r.IntN(2) == 0 {
			sharing = watchedSharing{deaf{}, w.checker}
		}
		set := func(entry uint32) {
			v.Shadow[i] = entry
			sharing.Entry(v, i)
		}
		set(register.Entry(r.Uint32N(1 << 11)))
		return func() { set(before) }
	}},
	{"per-process table", func(w *world, r *rand.Rand) func() {
		p := w.memory.Page(w.device.Directory() + uint32(r.IntN(2)))[4*r.IntN(300):]
		before := binary.LittleEndian.Uint32(p)
		binary.LittleEndian.PutUint32(p, register.Entry(r.Uint32N(1<<11)))
		return func() { binary.LittleEndian.PutUint32(p, before) }
	}},
	{"display", func(w *world, r *rand.Rand) func() {
		return poke(w, []uint32{register.Table, register.DisplayStart, register.DisplayOn, register.DisplaySize}[r.IntN(4)], 4*r.Uint32N(2))
	}},
}

// deaf is a Sharing that does nothing for guests.
type deaf struct{ vgpu.Sharing }

func (deaf) Entry(*vgpu.VGPU, int)               {}
func (deaf) Fence(*vgpu.VGPU, int, uint64) error { return nil }

func someGuest(w *world, r *rand.Rand) *vgpu.VGPU { return w.guests[r.IntN(len(w.guests))].VGPU }

// someEntry is one of those that matter more often than others.
func someEntry(w *world, r *rand.Rand) int {
	v := someGuest(w, r)
	switch r.IntN(4) {
	case 0:
		return v.Low.First + r.IntN(64)
	case 1:
		return v.High.First + r.IntN(v.High.Pages)
	case 2:
		return register.PoolFirst + r.IntN(64)
	}
	return r.IntN(register.Entries)
}

// poke writes a register.
func poke(w *world, offset, value uint32) (undo func()) {
	before := w.device.Read(offset)
	w.monitor.Bus.Write(offset, value)
	return func() { w.monitor.Bus.Write(offset, before) }
}

func fenced(w *world, i uint32, value uint64) (undo func()) {
	high := poke(w, register.Fence+8*i+4, uint32(value>>32))
	low := poke(w, register.Fence+8*i, uint32(value))
	return func() { low(); high() }
}

// stir lets guests do what they may and their drivers do not: move and end fences, and write entries, under fences too.
func stir(w *world, r *rand.Rand) {
	v := someGuest(w, r)
	const first, pages = 256, 64 // of low memory, which drivers leave alone: 16 for each of four fences
	n := r.IntN(4)
	fence, value := register.Fence+8*uint32(4+n), uint64(0)
	if r.IntN(4) > 0 {
		from := uint32(v.Low.First + first + 16*n + r.IntN(8))
		value = register.FenceValue(from, from+r.Uint32N(8), register.TileRow*(1+r.Uint32N(3)))
	}
	v.Write(fence+4, uint32(value>>32))
	v.Write(fence, uint32(value))
	for range 8 {
		at := []int{v.Low.First + first + r.IntN(pages), v.High.First + 1024 + r.IntN(v.High.Pages/2)}
		v.Write(register.Table+4*uint32(at[r.IntN(len(at))]), register.Entry(r.Uint32N(v.EPT.Pages)))
	}
}

// TestChecks: whatever harm is done, a checker that looks at what was written finds what one that looks at everything finds,
// at once and in later steps; and it finds nothing where the harm was undone.
func TestChecks(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(12) {
		c := full(3)
		c.Load, c.Mix, c.Seed, c.Time, c.Spread = Loads[seed%3], Mixes[seed%5], seed, time.Minute, seed%2 == 0
		if c.Policy = GScale; seed%4 == 3 {
			c.Policy = GVirt
		}
		w, err := build(c)
		if err != nil {
			t.Fatal(err)
		}
		var guests []*vgpu.VGPU
		for _, g := range w.guests {
			guests = append(guests, g.VGPU)
		}
		all := newChecker(w.device, w.memory, w.table != nil, guests)
		agree := func(when string) bool {
			t.Helper()
			all.forget()
			want, got := all.check(w.current.VGPU), w.checker.check(w.current.VGPU)
			if (want == nil) != (got == nil) {
				t.Fatalf("seed %d, %s: looking at everything finds %v, looking at what was written finds %v", seed, when, want, got)
			}
			return got == nil
		}
		r := rand.New(rand.NewPCG(seed, 17))
		for range 8 {
			w.step()
			stir(w, r)
			if !agree("after a step") || w.wrong() != nil { // for harm that was left
				break
			}
			for _, h := range harms {
				undo := h.do(w, r)
				if !agree(h.name) {
					found[h.name]++
				} else if r.IntN(16) == 0 {
					continue // it may show later
				}
				if undo(); !agree(h.name + ", undone") {
					t.Fatalf("seed %d: %s: it was undone", seed, h.name)
				}
			}
		}
	}
	for _, h := range harms {
		if found[h.name] == 0 {
			t.Errorf("%s was never found", h.name)
		}
	}
	t.Log(found)
}

// BenchmarkCheck is what a check takes, of what was written and of everything, with 15 guests.
func BenchmarkCheck(b *testing.B) {
	for _, name := range []string{"written", "everything"} {
		b.Run(name, func(b *testing.B) {
			c := full(15)
			c.Load, c.Mix, c.Time = Busy, Linux, time.Minute
			w, err := build(c)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				w.step()
				if name == "everything" {
					w.checker.forget()
				}
				b.StartTimer()
				if err := w.checker.check(w.current.VGPU); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
