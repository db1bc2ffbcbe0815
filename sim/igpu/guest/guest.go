// Package guest has the drivers of the simulated guests. A driver maps memory, writes commands into a ring and batches,
// sets fences and draws through the aperture, and checks every result against what the processor computes. It runs on
// anything that looks like the GPU and its machine: the virtual ones, or the device itself.
package guest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// Machine is what a guest sees. Load and Store are its processor at an address: its memory from 0 on, and the aperture
// from register.ApertureBase on, in pages.
type Machine interface {
	Read(offset uint32) uint32
	Write(offset, value uint32)
	Load(address uint64, data []byte) bool
	Store(address uint64, data []byte) bool
}

// Kind is what a guest draws, and how.
type Kind struct {
	// ThreeD: pixels are mixed from textures, by per-process tables. Otherwise areas are filled and copied.
	ThreeD bool
	// Windows: buffers are swapped by writing entries, in every frame, and two fences are used. Otherwise buffers stay
	// where they are, with one fence.
	Windows bool
	// Hostile: the guest does what it must not, at random.
	Hostile bool
}

// Memory is how much memory a guest has that a driver uses, in pages; Queue is how many frames it has under way at most.
const (
	Memory = 256
	Queue  = 2
)

// Places of what a driver uses, in pages of its memory. Page 0 is where unused entries lead.
const (
	ringAt = 1 + iota
	batchAt
	resultAt  = batchAt + Queue
	directory = resultAt + 1
	tableAt   = directory + 1
	frontAt   = 16
	uploadAt  = 32
	spriteAt  = 48
	backAt    = 64 // two of them
	surface   = 16 // pages of a surface
	pixels    = surface * register.PageSize / 4
)

// variants is how many different frames a guest draws.
const variants = 4

// Driver is one guest's. It is for one goroutine at a time.
type Driver struct {
	Frames int   // drawn, with the right result
	Wrong  error // the first wrong result

	kind      Kind
	machine   Machine
	random    *rand.Rand
	low, high uint32 // graphics pages of its ranges
	lowPages  uint32
	highPages uint32
	tail      uint32
	submitted int
	done      int
	back      uint32 // which back buffer is where frames are drawn
	expected  [variants]uint32
	known     [variants]bool
	seed      uint32
}

// Start makes a driver and sets its GPU up. The same seed draws the same.
func Start(m Machine, kind Kind, seed uint64) *Driver {
	d := &Driver{kind: kind, machine: m, random: rand.New(rand.NewPCG(seed, 0)), seed: uint32(seed) * 2654435761}
	d.low, d.high = m.Read(register.InfoLowFirst), m.Read(register.InfoHighFirst)
	d.lowPages, d.highPages = m.Read(register.InfoLowPages), m.Read(register.InfoHighPages)
	for i := range uint32(1 + Queue + 1) {
		d.entry(d.low+i, ringAt+i)
	}
	for i := range uint32(surface) {
		d.entry(d.low+frontAt+i, frontAt+i)
		d.entry(d.low+uploadAt+i, uploadAt+i)
		d.entry(d.high+i, spriteAt+i)     // the first pages of the high part
		for slot := range uint32(Queue) { // and its last ones, for each frame under way
			d.entry(d.window(slot)+i, backAt+i)
		}
	}
	d.tables()
	for i := range uint32(pixels) {
		d.store(uint64(spriteAt)*register.PageSize+4*uint64(i), d.texel(i))
	}
	d.fences()
	m.Write(register.RingStart, d.low*register.PageSize)
	m.Write(register.RingControl, 1)
	return d
}

func (d *Driver) texel(i uint32) uint32 { return (i + d.seed) * 2246822519 }

// window is where in high graphics memory the back buffer of a frame under way is seen.
func (d *Driver) window(slot uint32) uint32 { return d.high + d.highPages - (1+slot)*surface }

func (d *Driver) entry(index, page uint32) {
	d.machine.Write(register.Table+4*index, register.Entry(page))
}

func (d *Driver) store(address uint64, value uint32) {
	if !d.machine.Store(address, binary.LittleEndian.AppendUint32(nil, value)) {
		d.wrong("a store to %#x led nowhere", address)
	}
}

func (d *Driver) load(address uint64) uint32 {
	var data [4]byte
	if !d.machine.Load(address, data[:]) {
		d.wrong("a load from %#x led nowhere", address)
	}
	return binary.LittleEndian.Uint32(data[:])
}

func (d *Driver) wrong(format string, args ...any) {
	if d.Wrong == nil {
		d.Wrong = fmt.Errorf(format, args...)
	}
}

// aperture is the address at which the processor reaches low graphics memory.
func aperture(page uint32) uint64 { return uint64(register.ApertureBase+page) * register.PageSize }

// tables makes per-process tables in which a page of memory has its own number as its address.
func (d *Driver) tables() {
	d.store(directory*register.PageSize, register.Entry(tableAt))
	for i := range uint32(Memory) {
		d.store(tableAt*register.PageSize+4*uint64(i), register.Entry(i))
	}
	d.machine.Write(register.PageDir, directory)
}

// fences cover the surface for uploads: one, or two with half of it each.
func (d *Driver) fences() {
	first, parts := d.low+uploadAt, uint32(1)
	if d.kind.Windows {
		parts = 2
	}
	for f := range parts {
		size := uint32(surface) / parts
		value := register.FenceValue(first+f*size, first+f*size+size-1, 2*register.TileRow)
		d.machine.Write(register.Fence+8*f+4, uint32(value>>32))
		d.machine.Write(register.Fence+8*f, uint32(value))
	}
}

// Submit begins frames until enough are under way.
func (d *Driver) Submit() {
	for d.submitted-d.done < Queue {
		if d.kind.Hostile {
			d.attack()
			d.submitted++
			continue
		}
		if d.submitted%16 == 0 {
			d.upload()
		}
		d.frame(d.submitted)
		d.submitted++
	}
}

// upload draws through the aperture, in a surface in tiles, and looks at the tiles in memory.
func (d *Driver) upload() {
	size := uint32(surface * register.PageSize)
	if d.kind.Windows {
		size /= 2
	}
	offset, value := 4*d.random.Uint32N(size/4), d.random.Uint32()
	d.store(aperture(d.low+uploadAt)+uint64(offset), value)
	if got := d.load(aperture(d.low+uploadAt) + uint64(offset)); got != value {
		d.wrong("the aperture has %#x at %#x of a surface in tiles, not %#x", got, offset, value)
	}
	if got := d.load(uploadAt*register.PageSize + uint64(register.Tiled(offset, 2*register.TileRow))); got != value {
		d.wrong("a tile in memory has %#x at %#x of the surface, not %#x", got, offset, value)
	}
}

// frame writes and submits the commands of a frame.
func (d *Driver) frame(number int) {
	slot, variant := uint32(number%Queue), uint32(number%variants)
	if d.kind.Windows {
		d.back = uint32(number/Queue) % 2
		for i := range uint32(surface) { // no frame under way uses this window
			d.entry(d.window(slot)+i, backAt+d.back*surface+i)
		}
	}
	const bytes = pixels * 4
	front, sprite := (d.low+frontAt)*register.PageSize, d.high*register.PageSize
	back, result := d.window(slot)*register.PageSize, (d.low+1+Queue)*register.PageSize+16*slot
	var batch []uint32
	add := func(op register.Op, words ...uint32) { batch = append(batch, register.Command(op, 0, words...)...) }
	var ring []uint32
	if d.kind.ThreeD {
		add(register.Shade, (backAt+d.back*surface)*register.PageSize, spriteAt*register.PageSize, pixels, d.seed+variant|1)
		add(register.BatchEnd)
		ring = append(ring, register.Command(register.Batch, register.PerProcess, (d.low+1+slot)*register.PageSize)...)
		d.write(d.low+1+slot, 0, batch)
		batch = nil
		add(register.Copy, front, back, pixels)
	} else {
		add(register.Fill, back, pixels, d.seed+variant)
		add(register.Copy, front, sprite, pixels/2)
		add(register.Copy, front+bytes/2, back, pixels/2)
	}
	add(register.Checksum, result, front, pixels)
	add(register.Store, result+4, uint32(number))
	add(register.BatchEnd)
	d.write(d.low+1+slot, 2048, batch)
	ring = append(ring, register.Command(register.Batch, 0, (d.low+1+slot)*register.PageSize+2048)...)
	for _, word := range ring {
		d.store(aperture(d.low)+uint64(d.tail), word)
		d.tail = (d.tail + 4) % register.PageSize
	}
	d.machine.Write(register.RingTail, d.tail)
}

// write writes words into low graphics memory, through the aperture.
func (d *Driver) write(page uint32, offset uint64, words []uint32) {
	data := make([]byte, 0, 4*len(words))
	for _, w := range words {
		data = binary.LittleEndian.AppendUint32(data, w)
	}
	if !d.machine.Store(aperture(page)+offset, data) {
		d.wrong("the aperture leads nowhere at page %d", page)
	}
}

// Done checks the oldest frame under way, which the GPU has ended.
func (d *Driver) Done() {
	number := d.done
	d.done++
	if d.kind.Hostile {
		return
	}
	slot, variant := uint64(number%Queue), number%variants
	if code := d.machine.Read(register.Error); code != 0 {
		d.wrong("frame %d: the GPU stopped with code %d", number, code)
		return
	}
	if got := d.load(resultAt*register.PageSize + 16*slot + 4); got != uint32(number) {
		d.wrong("frame %d: the GPU says that it drew frame %d", number, got)
	}
	if got, want := d.load(aperture(d.low+1+Queue)+16*slot), d.expect(variant); got != want {
		d.wrong("frame %d: the sum of its pixels is %#x, not %#x", number, got, want)
	}
	if d.Wrong == nil {
		d.Frames++
	}
}

// expect is what the processor computes for a frame.
func (d *Driver) expect(variant int) uint32 {
	if d.known[variant] {
		return d.expected[variant]
	}
	sum, before := uint32(0), uint32(0)
	for i := range uint32(pixels) {
		pixel := d.texel(i)
		switch {
		case d.kind.ThreeD:
			pixel, before = register.Mix(pixel, before, d.seed+uint32(variant)|1), pixel
		case i >= pixels/2:
			pixel = d.seed + uint32(variant) + i - pixels/2
		}
		sum = register.Sum(sum, pixel)
	}
	d.expected[variant], d.known[variant] = sum, true
	return sum
}

// attack does one of the things that a guest must not do, and resets its GPU.
func (d *Driver) attack() {
	r := d.random
	d.machine.Write(register.Reset, 1)
	d.tail = 0
	switch r.IntN(6) {
	case 0: // entries of others, or that lead to their memory
		for range 8 {
			d.machine.Write(register.Table+4*r.Uint32N(register.Entries), register.Entry(r.Uint32N(1<<20)))
		}
	case 1: // registers
		for range 8 {
			d.machine.Write(4*r.Uint32N(register.End/4), r.Uint32())
		}
	case 2: // fences
		d.machine.Write(register.Fence+8*r.Uint32N(register.Fences), r.Uint32()|1)
	case 3: // tables
		d.machine.Write(register.PageDir, r.Uint32N(1<<20))
	case 4: // the processor, at addresses that are nobody's
		var data [16]byte
		d.machine.Store(r.Uint64()>>r.IntN(64), data[:])
	}
	d.machine.Write(register.Reset, 1)
	d.machine.Write(register.RingStart, d.low*register.PageSize)
	d.machine.Write(register.RingControl, 1)
	command := register.Command(register.Fill, 0, r.Uint32(), r.Uint32N(1<<14), r.Uint32())
	if r.IntN(2) == 0 {
		command = []uint32{r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()}
	}
	d.write(d.low, 0, command)
	d.machine.Write(register.RingTail, 4*uint32(len(command)))
}
