package gscale

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/lgpu/lgpu/sim/igpu/device"
	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// Sizes of the guests here, in pages.
const (
	memory = 64
	low    = 64 * register.PagesPerMiB
	high   = 384 * register.PagesPerMiB
)

// rig is a machine with guests that share by a Table.
type rig struct {
	t       testing.TB
	device  *device.Device
	memory  *host.Memory
	monitor *vgpu.Monitor
	table   *Table
	guests  []*vgpu.VGPU
}

func newRig(t testing.TB, o Options, guests int) *rig {
	t.Helper()
	r := &rig{t: t, memory: host.NewMemory(1 << 16)}
	r.device = device.New(r.memory)
	table, err := New(r.device, o)
	if err != nil {
		t.Fatal(err)
	}
	r.table = table
	r.monitor = &vgpu.Monitor{Bus: r.device, Memory: r.memory, Aperture: r.device.Access, Sharing: table}
	if err := r.monitor.Boot(); err != nil {
		t.Fatal(err)
	}
	for i := range guests {
		r.guests = append(r.guests, r.add(i+1, high))
	}
	return r
}

func (r *rig) add(id, high int) *vgpu.VGPU {
	r.t.Helper()
	v, err := r.monitor.New(id, memory, low, high)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// entry writes an entry, counted from the guest's first of low or high memory.
func entry(v *vgpu.VGPU, index int, page uint32) {
	v.Write(register.Table+4*uint32(index), register.Entry(page))
}

// enter makes it a guest's turn, and holds the table against its entries.
func (r *rig) enter(v *vgpu.VGPU) {
	r.t.Helper()
	r.table.Enter(v)
	for _, part := range []vgpu.Range{v.Low, v.High} {
		from, to := part.First, part.First+part.Pages
		if !slices.Equal(r.device.Table()[from:to], v.Shadow[from:to]) {
			r.t.Errorf("the table has not the entries of guest %d", v.ID)
		}
	}
}

// busy gives a guest work.
func busy(v *vgpu.VGPU) {
	if v.Ready() {
		return
	}
	page := uint32(v.Low.First)
	entry(v, v.Low.First, 1)
	v.Write(register.Reset, 1)
	v.Write(register.RingStart, page*register.PageSize)
	v.Write(register.RingControl, 1)
	v.Store(uint64(register.ApertureBase+page)*register.PageSize, make([]byte, 4)) // a Noop
	v.Write(register.RingTail, 4)
}

// TestOwner: a guest that is alone in its slot has its high entries copied once.
func TestOwner(t *testing.T) {
	r := newRig(t, Options{Slots: 4}, 3)
	for range 3 {
		for _, v := range r.guests {
			r.enter(v)
		}
	}
	if want := 3*high + 9*low; r.table.Stats.Copied != want {
		t.Errorf("%d entries were copied, not %d", r.table.Stats.Copied, want)
	}
}

// TestSpread: guests whose low memory is apart as well have all entries copied once.
func TestSpread(t *testing.T) {
	r := newRig(t, Options{Slots: 4, Spread: true}, 3)
	for range 3 {
		for _, v := range r.guests {
			r.enter(v)
		}
	}
	if want := 3 * (high + low); r.table.Stats.Copied != want {
		t.Errorf("%d entries were copied, not %d", r.table.Stats.Copied, want)
	}
}

// TestSubSlots: of places that overlap in part only that part is copied again.
func TestSubSlots(t *testing.T) {
	r := newRig(t, Options{Slots: 4, SubSlots: 32}, 3)
	// A fourth guest of two slots' size overlaps two of the others.
	big := r.add(4, 2*high)
	r.enter(r.guests[2])
	r.enter(big)
	before := r.table.Stats.Copied
	r.enter(r.guests[2])
	common := overlap(big.High, r.guests[2].High)
	if got := r.table.Stats.Copied - before - low; got != common {
		t.Errorf("%d high entries were copied, not the %d that the two have in common", got, common)
	}
}

// TestStale: an entry that is written while another guest runs is in the hardware when the guest's slot is still its own
// (defect 5 of the public code), also if it was copied ahead.
func TestStale(t *testing.T) {
	r := newRig(t, Options{Slots: 4, Predict: true}, 2)
	a, b := r.guests[0], r.guests[1]
	r.enter(a)
	r.enter(b)
	entry(a, a.High.First+5, 9)
	r.enter(a)
	entry(b, b.High.First+5, 9)
	r.enter(b)

	c := newRig(t, Options{Slots: 4, Predict: true}, 4) // the first and the last share a slot
	for range 2 {
		for _, v := range c.guests {
			c.enter(v)
		}
	}
	busy(c.guests[3])
	c.enter(c.guests[0])
	c.enter(c.guests[2])
	c.table.Ahead(c.guests[2], high/2) // half of it is there
	entry(c.guests[3], c.guests[3].High.First+1, 7)
	entry(c.guests[3], c.guests[3].High.First+high-1, 8)
	c.enter(c.guests[3])
	if c.table.Stats.Ahead != high/2 || c.table.Stats.Hits == 0 {
		t.Errorf("the case did not happen: %+v", c.table.Stats)
	}
}

// TestFirstHigh: the first entry of high memory is copied and written through as the others are (defect 6).
func TestFirstHigh(t *testing.T) {
	r := newRig(t, Options{Slots: 1}, 2)
	a, b := r.guests[0], r.guests[1]
	entry(a, a.High.First, 3)
	entry(b, b.High.First, 4)
	r.enter(a)
	r.enter(b)
	entry(b, b.High.First, 5)
	if got := r.device.Table()[b.High.First]; got != b.Shadow[b.High.First] {
		t.Errorf("the first high entry is %#x, not %#x", got, b.Shadow[b.High.First])
	}
}

// TestLadder: the processor reaches what the guest's entry names, whoever runs, after any number of entries that lead to
// the same page (defect 7).
func TestLadder(t *testing.T) {
	r := newRig(t, Options{Slots: 4}, 2)
	a, b := r.guests[0], r.guests[1]
	for i := range 40 {
		entry(a, a.Low.First+i, 7)
		entry(b, b.Low.First+i, 7)
	}
	r.enter(b)
	for i := range 40 {
		address := uint64(register.ApertureBase+uint32(a.Low.First+i)) * register.PageSize
		if !a.Store(address, []byte{byte(i)}) || r.memory.Page(a.EPT.Base + 7)[0] != byte(i) {
			t.Errorf("page %d of the aperture does not lead to the guest's page 7", i)
		}
	}
	if got := r.memory.Page(b.EPT.Base + 7)[0]; got != 0 {
		t.Errorf("the other guest's memory has %d", got)
	}
}

// fence sets a guest's fence over pages of its low memory.
func fence(v *vgpu.VGPU, number, first, pages int) {
	value := uint64(0)
	if pages > 0 {
		value = register.FenceValue(uint32(v.Low.First+first), uint32(v.Low.First+first+pages-1), register.TileRow)
	}
	v.Write(register.Fence+8*uint32(number)+4, uint32(value>>32))
	v.Write(register.Fence+8*uint32(number), uint32(value))
}

// TestPool: the pool's ranges do not overlap, follow the entries, and what was mapped comes back exactly; where there is no
// room, that guest has an error and nobody else (defect 8).
func TestPool(t *testing.T) {
	r := newRig(t, Options{Slots: 4}, 2)
	a, b := r.guests[0], r.guests[1]
	before := map[int]uint32{}
	for i := range a.Low.Pages {
		before[i], _ = a.EPT.Translate(register.ApertureBase + uint32(a.Low.First+i))
	}
	fence(a, 0, 8, 4)
	fence(a, 1, 20, 8)
	fence(b, 0, 8, 4)
	fence(a, 0, 40, 2) // it moves
	entry(a, a.Low.First+40, 11)
	used := r.table.Fences()
	if len(used) != 3 {
		t.Fatalf("the pool has %v", used)
	}
	for i, u := range used {
		for _, o := range used[:i] {
			if u.First < o.First+o.Pages && o.First < u.First+u.Pages {
				t.Errorf("%v overlaps %v", u, o)
			}
		}
	}
	page, _ := a.EPT.Translate(register.ApertureBase + uint32(a.Low.First+40))
	if got := r.device.Table()[page-register.ApertureBase]; got != a.Shadow[a.Low.First+40] {
		t.Errorf("the pool's entry is %#x, not the guest's new one, %#x", got, a.Shadow[a.Low.First+40])
	}
	entry(a, a.Low.First+40, 0)
	fence(a, 0, 0, 0)
	fence(a, 1, 0, 0)
	for i, want := range before {
		if got, _ := a.EPT.Translate(register.ApertureBase + uint32(a.Low.First+i)); got != want {
			t.Errorf("page %d of the aperture leads to %d, not %d as before the fences", i, got, want)
		}
	}
	fence(a, 0, 0, a.Low.Pages) // 64 MiB of a pool of 56
	if !errors.Is(a.Fault, vgpu.ErrExhausted) || r.table.Stats.Refused != 1 || b.Fault != nil {
		t.Errorf("%v, %v, %+v", a.Fault, b.Fault, r.table.Stats)
	}
}

// TestIdle: a guest without work is not guessed, nor has it a turn.
func TestIdle(t *testing.T) {
	r := newRig(t, Options{Slots: 4, Predict: true, Aware: true}, 3)
	for range 2 {
		for _, v := range r.guests {
			r.enter(v)
		}
	}
	if n := r.table.Ahead(r.guests[2], high); n != 0 {
		t.Errorf("%d entries of an idle guest were copied", n)
	}
	if next := r.table.Next(r.guests[2]); next != nil {
		t.Errorf("guest %d has a turn without work", next.ID)
	}
	busy(r.guests[1])
	if next := r.table.Next(r.guests[2]); next != r.guests[1] {
		t.Errorf("the next is %v", next)
	}
}

// TestKilled: what a guest had is free when it is gone, and the others go on.
func TestKilled(t *testing.T) {
	r := newRig(t, Options{Slots: 4, Predict: true}, 4)
	a := r.guests[0]
	fence(a, 0, 0, 4)
	for _, v := range r.guests {
		r.enter(v)
	}
	busy(a)
	r.table.Ahead(r.guests[3], 10)
	a.Kill()
	if used := r.table.Fences(); len(used) != 0 {
		t.Errorf("the pool has %v", used)
	}
	for _, v := range r.guests[1:] {
		r.enter(v)
	}
	r.enter(r.add(9, high))
}

// TestKilledAhead: a guest that is gone when its entries were copied ahead for it leaves its place to others.
func TestKilledAhead(t *testing.T) {
	r := newRig(t, Options{Slots: 4, Predict: true}, 4) // the first and the last share a slot
	for range 2 {
		for _, v := range r.guests {
			r.enter(v)
		}
	}
	gone := r.guests[3]
	busy(gone)
	r.enter(r.guests[0])
	r.enter(r.guests[2])
	if n := r.table.Ahead(r.guests[2], high); n != high {
		t.Fatalf("%d entries were copied ahead", n)
	}
	gone.Kill()
	r.enter(r.guests[0])
	if r.table.Stats.Wasted != high {
		t.Errorf("%d entries were copied for nothing, not %d", r.table.Stats.Wasted, high)
	}
	if gone.Write(register.Table+4*uint32(r.guests[0].High.First), register.Entry(1)); gone.Fault == nil {
		t.Error("a guest that is gone writes entries")
	}
}

// TestHog: a guest cannot hold the GPU with one submission for as long as it likes.
func TestHog(t *testing.T) {
	r := newRig(t, Options{Slots: 1}, 1)
	a := r.guests[0]
	entry(a, a.Low.First, 1)
	page := uint32(a.Low.First)
	a.Write(register.RingStart, page*register.PageSize)
	a.Write(register.RingControl, 1)
	var data []byte
	for range 2 {
		for _, w := range register.Command(register.Fill, 0, uint32(a.High.First)*register.PageSize, 1<<20, 0) {
			data = binary.LittleEndian.AppendUint32(data, w)
		}
	}
	a.Store(uint64(register.ApertureBase+page)*register.PageSize, data)
	a.Write(register.RingTail, uint32(len(data)))
	if a.Ready() || !errors.Is(a.Fault, vgpu.ErrExhausted) {
		t.Errorf("it has work: %v; %v", a.Ready(), a.Fault)
	}
}

// FuzzCommands: whatever is in a guest's ring, its GPU may stop, and nothing of another guest changes.
func FuzzCommands(f *testing.F) {
	words := func(w ...uint32) (data []byte) {
		for _, x := range w {
			data = binary.LittleEndian.AppendUint32(data, x)
		}
		return data
	}
	for _, address := range []uint32{0, hostLow * register.PageSize, (register.LowEntries + hostHigh) * register.PageSize, 1<<32 - 4} {
		f.Add(words(register.Command(register.Fill, 0, address, 64, 1)...))
		f.Add(words(register.Command(register.Copy, 0, address, address, 1<<20)...))
		f.Add(words(register.Command(register.Batch, 0, address)...))
		f.Add(words(register.Command(register.Store, 0, address, 7)...))
	}
	r := newRig(f, Options{Slots: 1}, 2)
	a, b := r.guests[0], r.guests[1]
	for i := range uint32(memory) {
		copy(r.memory.Page(b.EPT.Base+i), []byte("untouched"))
	}
	entry(a, a.Low.First, 1)
	r.enter(a)
	ring := uint32(a.Low.First)
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), register.PageSize-4)/4*4]
		for i := range uint32(memory) {
			clear(r.memory.Page(a.EPT.Base + i))
		}
		a.Write(register.Reset, 1)
		a.Write(register.RingStart, ring*register.PageSize)
		a.Write(register.RingControl, 1)
		a.Store(uint64(register.ApertureBase+ring)*register.PageSize, data)
		a.Write(register.RingTail, uint32(len(data)))
		for a.Ready() {
			r.monitor.Dispatch(a)
			r.device.Run()
			r.monitor.Complete(a)
		}
		for i := range uint32(memory) {
			if p := r.memory.Page(b.EPT.Base + i); string(p[:9]) != "untouched" || slices.Max(p[9:]) != 0 {
				t.Fatalf("page %d of the other guest was written", i)
			}
		}
	})
}
