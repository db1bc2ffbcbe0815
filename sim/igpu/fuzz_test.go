package igpu

import (
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// hands is what a fuzzed guest does: numbers from the input, zeros beyond its end.
type hands struct{ data []byte }

func (h *hands) number() uint32 {
	var b [4]byte
	n := copy(b[:], h.data)
	h.data = h.data[n:]
	return binary.LittleEndian.Uint32(b[:])
}

// below is a number below n.
func (h *hands) below(n int) int {
	if len(h.data) == 0 {
		return 0
	}
	b := 0
	for range 3 {
		if len(h.data) > 0 && b < n {
			b, h.data = b<<8|int(h.data[0]), h.data[1:]
		}
		if n <= 256 {
			break
		}
	}
	return b % n
}

// registers that mean something.
var registers = []uint32{register.Reset, register.RingStart, register.RingControl, register.RingHead, register.RingTail, register.PageDir,
	register.Error, register.DisplayOn, register.DisplaySize, register.DisplayStart, register.InfoLowPages, register.InfoFences}

// act lets one guest do one thing, and may give it the GPU.
func act(w *world, h *hands, g *running) {
	v := g.VGPU
	low, high := func() uint32 { return uint32(v.Low.First + h.below(512)) }, func() uint32 { return uint32(v.High.First + h.below(1<<17)) }
	switch max(0, h.below(12)-3) { // commands are the most likely
	case 7:
		v.Write(registers[h.below(len(registers))], h.number())
	case 8:
		v.Write(h.number()%register.End, h.number())
	case 2:
		v.Write(register.Table+4*low(), h.number())
	case 3:
		v.Write(register.Table+4*high(), register.Entry(uint32(h.below(300))))
	case 4:
		f, first := register.Fence+8*uint32(h.below(9)), low()
		value := register.FenceValue(first, first+uint32(h.below(1<<15)), register.TileRow*(1+uint32(h.below(8))))
		v.Write(f+4, uint32(value>>32))
		v.Write(f, uint32(value)^uint32(h.below(3)))
	case 5:
		v.Store(uint64(register.ApertureBase+low())*register.PageSize+uint64(h.below(8192)), []byte{byte(h.below(256)), 1, 2, 3})
	case 6:
		v.Store(uint64(h.number())<<h.below(12), []byte{1, 2, 3, 4})
	case 0: // commands, by a ring that works
		page := uint32(v.Low.First)
		v.Write(register.Reset, 1)
		v.Write(register.Table+4*page, register.Entry(1))
		v.Write(register.RingStart, page*register.PageSize)
		v.Write(register.RingControl, 1)
		ops := []register.Op{register.Fill, register.Copy, register.Store, register.Batch, register.Shade, register.Checksum}
		op := ops[h.below(len(ops))]
		n, _ := op.Length()
		command := register.Command(op, uint32(h.below(2))*register.PerProcess)
		command[0] |= uint32(n)
		for range n {
			command = append(command, []uint32{h.number(), low() * register.PageSize, high() * register.PageSize, uint32(h.below(2048))}[h.below(4)])
		}
		if h.below(2) == 0 {
			command = register.Command(register.Noop, 0)
		}
		var data []byte
		for _, word := range command {
			data = binary.LittleEndian.AppendUint32(data, word)
		}
		v.Store(uint64(register.ApertureBase+page)*register.PageSize, data)
		v.Write(register.RingTail, uint32(len(data)))
	case 1:
		if h.below(40) == 0 {
			v.Kill()
		}
	}
	if h.below(2) == 0 && v.Ready() {
		give(w, g, h.below(1<<16))
	}
}

// give gives a guest with work the GPU for it, while so many entries may be copied ahead.
func give(w *world, g *running, ahead int) {
	w.enter(g)
	w.current = g
	w.monitor.Dispatch(g.VGPU)
	w.device.Run()
	w.monitor.Complete(g.VGPU)
	if w.table != nil {
		w.table.Ahead(g.VGPU, ahead)
	}
}

// FuzzGuests: whatever other guests do, what must be true stays true, and the memory of one that draws is its own.
func FuzzGuests(f *testing.F) {
	for seed := range uint64(8) {
		r, data := rand.New(rand.NewPCG(seed, 5)), make([]byte, 4096)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data, seed%4 == 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, partition bool) {
		c := full(4) // two in each of two slots
		c.Slots, c.SubSlots, c.Time, c.Load, c.Mix = 3, 0, time.Second, Busy, Linux
		if partition {
			c.Policy = GVirt
		}
		w, err := build(c)
		if err != nil {
			t.Fatal(err)
		}
		seed := maphash.MakeSeed()
		memory := func() uint64 {
			var m maphash.Hash
			m.SetSeed(seed)
			for i := range w.guests[0].EPT.Pages {
				_, _ = m.Write(w.memory.Page(w.guests[0].EPT.Base + i))
			}
			return m.Sum64()
		}
		others := w.guests[1:]
		w.guests = w.guests[:1] // whose driver draws
		w.step()
		before := memory()
		h := &hands{data[:min(len(data), 4096)]}
		for len(h.data) > 0 {
			act(w, h, others[h.below(len(others))])
			if err := w.checker.check(w.current.VGPU); err != nil {
				t.Fatal(err)
			}
		}
		if memory() != before {
			t.Error("the memory of a guest that did nothing has changed")
		}
		for _, g := range others {
			for g.Ready() {
				give(w, g, 1<<20)
			}
		}
		for range 4 {
			w.step()
			if err := w.check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
