// Package device is the modelled integrated GPU: a translation table, an aperture with fences, a ring that executes
// commands, per-process tables, and a display that reads through the same table. Software reaches it by registers
// (register.Bus) and through the aperture alone, and it reaches memory by itself.
//
// Time is virtual: Run returns how long a real device of these rates would have taken, and Spent is how long the CPU has
// been busy with its registers. A Device is for one goroutine at a time.
package device

import (
	"encoding/binary"
	"time"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// AccessTime is how long the CPU takes for one uncached access to a register or an entry of the table. It is the one
// calibrated constant of the model: with it, writing the 16 384 entries of 64 MiB takes 4 % of a slice of 16 ms, which is
// what a private table is said to cost with up to three guests (docs/gscale.md).
const AccessTime = 39 * time.Nanosecond

// Rates of the engine, for each pixel. They are slow, so that a minute's real work can be executed in seconds; only how
// long the work is against a slice matters.
const (
	pixelTime = 40 * time.Nanosecond
	shadeTime = 200 * time.Nanosecond
)

// Memory is what the device reads and writes by itself: a page, or nil where there is none.
type Memory interface{ Page(page uint32) []byte }

// Device is the GPU.
type Device struct {
	memory    Memory
	registers map[uint32]uint32
	fences    [register.Fences]uint64
	table     []uint32
	fault     register.ErrorCode
	accesses  int64
}

// New switches a device on.
func New(memory Memory) *Device {
	return &Device{memory: memory, registers: map[uint32]uint32{}, table: make([]uint32, register.Entries)}
}

// Spent is how long accesses to registers and entries have taken since the device was switched on.
func (d *Device) Spent() time.Duration { return time.Duration(d.accesses) * AccessTime }

// Table is the translation table itself, which is for tests of what is in it and must not be changed.
func (d *Device) Table() []uint32 { return d.table }

// Directory is the page of the directory of per-process tables, for tests of what is in it; 0: there is none.
func (d *Device) Directory() uint32 { return d.registers[register.PageDir] }

// FenceRegisters are the fences themselves, for tests of what is in them.
func (d *Device) FenceRegisters() [register.Fences]uint64 { return d.fences }

// Read implements register.Bus.
func (d *Device) Read(offset uint32) uint32 {
	d.accesses++
	switch {
	case offset%4 != 0:
		return 0
	case offset >= register.Table && offset < register.End:
		return d.table[(offset-register.Table)/4]
	case offset >= register.Fence && offset < register.Fence+8*register.Fences:
		return uint32(d.fences[(offset-register.Fence)/8] >> (offset % 8 * 8))
	case offset == register.Error:
		return uint32(d.fault)
	}
	return d.registers[offset]
}

// Write implements register.Bus.
func (d *Device) Write(offset, value uint32) {
	d.accesses++
	switch {
	case offset%4 != 0:
	case offset >= register.Table && offset < register.End:
		d.table[(offset-register.Table)/4] = value
	case offset >= register.Fence && offset < register.Fence+8*register.Fences:
		shift := offset % 8 * 8
		f := &d.fences[(offset-register.Fence)/8]
		*f = *f&^(0xffffffff<<shift) | uint64(value)<<shift
	case offset == register.Error:
		d.fault = register.NoError
	case offset == register.Reset:
		for _, r := range []uint32{register.RingHead, register.RingTail, register.RingControl, register.PageDir} {
			delete(d.registers, r)
		}
		d.fault = register.NoError
	case known[offset]:
		d.registers[offset] = value
	}
}

var known = map[uint32]bool{
	register.RingTail: true, register.RingHead: true, register.RingStart: true, register.RingControl: true, register.PageDir: true,
	register.DisplaySize: true, register.DisplayStart: true, register.DisplayOn: true,
}

// WriteTable implements register.Bus.
func (d *Device) WriteTable(first int, entries []uint32) {
	if first >= 0 && first <= len(d.table)-len(entries) {
		d.accesses += int64(len(entries))
		copy(d.table[first:], entries)
	}
}

// space translates graphics addresses: by the global table, or by per-process tables.
type space struct {
	d         *Device
	directory uint32 // page of the per-process directory; 0: the global table
}

// at is the memory from a graphics address to the end of its page.
func (s space) at(address uint32) []byte {
	var entry uint32
	if page := address / register.PageSize; s.directory == 0 {
		if page >= register.Entries {
			return nil
		}
		entry = s.d.table[page]
	} else {
		entry = register.Entry(s.directory)
		for _, i := range []uint32{page >> 10, page & 1023} {
			table, ok := register.Page(entry)
			memory := s.d.memory.Page(table)
			if !ok || memory == nil {
				return nil
			}
			entry = binary.LittleEndian.Uint32(memory[4*i:])
		}
	}
	page, ok := register.Page(entry)
	memory := s.d.memory.Page(page)
	if !ok || memory == nil {
		return nil
	}
	return memory[address%register.PageSize:]
}

// Access is what the CPU does at a page of the aperture: it reads or writes one byte range of it, in tiles where a fence
// covers the page.
func (d *Device) Access(page uint32, offset int, data []byte, write bool) bool {
	for _, f := range d.fences {
		first, last, pitch, valid := register.FenceBounds(f)
		if !valid || page < first || page > last {
			continue
		}
		for i := range data { // bytes of a row may lie in several tiles
			at := register.Tiled((page-first)*register.PageSize+uint32(offset+i), pitch)
			if at/register.PageSize > last-first || !d.move(first+at/register.PageSize, int(at%register.PageSize), data[i:i+1], write) {
				return false
			}
		}
		return true
	}
	return d.move(page, offset, data, write)
}

func (d *Device) move(page uint32, offset int, data []byte, write bool) bool {
	memory := space{d: d}.at(page*register.PageSize + uint32(offset))
	if len(memory) < len(data) {
		return false
	}
	if write {
		copy(memory, data)
	} else {
		copy(data, memory)
	}
	return true
}

// Scan is what the display shows: the pixels it reads through the table; nil where it is off or an entry is not valid.
func (d *Device) Scan() []uint32 {
	if d.registers[register.DisplayOn]>>31 == 0 {
		return nil
	}
	pixels := make([]uint32, d.registers[register.DisplaySize])
	at := 0
	if !each(space{d: d}, d.registers[register.DisplayStart], uint32(len(pixels)), func(p []byte) {
		pixels[at] = binary.LittleEndian.Uint32(p)
		at++
	}) {
		return nil
	}
	return pixels
}
