// Package vgpu is mediated pass-through: a guest's accesses to registers and to the translation table are trapped and
// checked, its commands are read, checked and copied out of its reach, and then the GPU executes them at full speed. How
// guests share the translation table and the fences is behind an interface, Sharing; gvirt and gscale are the two ways.
//
// What a guest does wrong is an error of its own virtual GPU: its work is dropped, its register Error says so until it
// writes Reset, and nobody else notices.
package vgpu

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
)

// Causes of a guest's faults, which Fault wraps.
var (
	ErrAddress   = errors.New("address outside of the guest's part")
	ErrCommand   = errors.New("not a command")
	ErrExhausted = errors.New("nothing left")
)

// Range is a run of pages of graphics memory.
type Range struct{ First, Pages int }

// Has reports whether a page is in the range.
func (r Range) Has(page int) bool { return page >= r.First && page < r.First+r.Pages }

// holds reports whether bytes of graphics memory are.
func (r Range) holds(from, to uint64) bool {
	return from >= uint64(r.First)*register.PageSize && to <= uint64(r.First+r.Pages)*register.PageSize
}

// Sharing is how guests share the table and the fences.
type Sharing interface {
	// Admit gives a guest its ranges, of the sizes that they have, and its fences; or says what there is too little of.
	Admit(v *VGPU) error
	// Release takes back all that a guest had.
	Release(v *VGPU)
	// Entry is called when the guest has written an entry: the new one is in v.Shadow.
	Entry(v *VGPU, index int)
	// Fence sets a fence of the guest.
	Fence(v *VGPU, fence int, value uint64) error
	// Enter makes the guest's entries those of the hardware, before its work runs.
	Enter(v *VGPU)
}

// Aperture is the processor's way to the device's second range of addresses: device.Access.
type Aperture func(page uint32, offset int, data []byte, write bool) bool

// Monitor is what all virtual GPUs have in common.
type Monitor struct {
	Bus      register.Bus
	Memory   *host.Memory
	Aperture Aperture
	Sharing  Sharing
	buffer   uint32 // the first page of the ring and the batches that the hardware executes
	tail     uint32
}

// The mediator's buffer, at ReservedLow: a page of ring, and pages of batches. Most is what a guest may submit at once.
const (
	bufferPages = 128
	most        = (bufferPages - 1) * register.PageSize / 4 // words
	mostPixels  = 1 << 20
)

// Mediator is its number as an owner of memory.
const Mediator = 0

// Boot sets the hardware up: all entries lead to a page of the mediator's own, but for those of its buffer.
func (m *Monitor) Boot() error {
	scratch, err := m.Memory.Allocate(Mediator, 1)
	if err == nil {
		m.buffer, err = m.Memory.Allocate(Mediator, bufferPages)
	}
	if err != nil {
		return err
	}
	entries := make([]uint32, register.Entries)
	for i := range entries {
		entries[i] = register.Entry(scratch)
		if b := i - register.ReservedLow; b >= 0 && b < bufferPages {
			entries[i] = register.Entry(m.buffer + uint32(b))
		}
	}
	m.Bus.WriteTable(0, entries)
	m.start()
	return nil
}

// start makes the hardware's ring empty.
func (m *Monitor) start() {
	m.Bus.Write(register.Reset, 1)
	m.Bus.Write(register.RingStart, register.ReservedLow*register.PageSize)
	m.Bus.Write(register.RingControl, 1)
	m.tail = 0
}

// VGPU is a guest's virtual GPU, and the guest's machine. Its methods are what the guest can do.
type VGPU struct {
	ID        int
	Low, High Range    // of graphics memory: entries of the table
	Fences    int      // how many it has
	Shadow    []uint32 // its translation table, in pages of the machine; entries outside of its ranges are 0
	EPT       *host.EPT
	Faults    int // how often it did what it may not
	Fault     error

	m         *Monitor
	registers map[uint32]uint32
	fences    [register.Fences]uint64 // in force
	upper     [register.Fences]uint32 // their upper words, as they were written last
	queue     []work
	scratch   uint32
	shadow    uint32 // the first page of the copy of its per-process tables
	pixels    uint64 // of the submission that is being checked
}

// processTables is how many per-process tables a guest may have, each of 4 MiB.
const processTables = 16

// New makes a guest with so many pages of memory, of which page 0 is where its unused entries lead. low and high are the
// sizes of its parts of graphics memory in pages.
func (m *Monitor) New(id, memory, low, high int) (*VGPU, error) {
	shadow, err := m.Memory.Allocate(Mediator, 1+processTables)
	if err != nil {
		return nil, err
	}
	base, err := m.Memory.Allocate(id, memory)
	if err != nil {
		return nil, err
	}
	v := &VGPU{ID: id, Low: Range{0, low}, High: Range{0, high}, m: m, registers: map[uint32]uint32{}, scratch: base, shadow: shadow,
		EPT: host.NewEPT(base, memory), Shadow: make([]uint32, register.Entries)}
	if err := m.Sharing.Admit(v); err != nil {
		return nil, fmt.Errorf("guest %d: %w", id, err)
	}
	for _, r := range []Range{v.Low, v.High} {
		for i := r.First; i < r.First+r.Pages; i++ {
			v.Shadow[i] = register.Entry(v.scratch)
			m.Sharing.Entry(v, i)
		}
	}
	for r, value := range map[uint32]int{register.InfoLowFirst: v.Low.First, register.InfoLowPages: v.Low.Pages, register.InfoFences: v.Fences,
		register.InfoHighFirst: v.High.First, register.InfoHighPages: v.High.Pages} {
		v.registers[r] = uint32(value)
	}
	return v, nil
}

// Kill ends a guest: its work is dropped, and what it had is free.
func (v *VGPU) Kill() {
	v.queue = nil
	for f := range v.Fences {
		_ = v.m.Sharing.Fence(v, f, 0) // to free one cannot fail
		v.fences[f] = 0
	}
	v.m.Sharing.Release(v)
	v.Low, v.High, v.Fences = Range{}, Range{}, 0 // what it writes from now on is refused
}

// Ready reports whether the guest has work.
func (v *VGPU) Ready() bool { return len(v.queue) > 0 }

// Fence is a fence in force, as the guest has set it.
func (v *VGPU) Fence(fence int) uint64 { return v.fences[fence] }

// Owns reports whether bytes of graphics memory are the guest's.
func (v *VGPU) Owns(from, to uint64) bool { return v.Low.holds(from, to) || v.High.holds(from, to) }

func (v *VGPU) fail(code register.ErrorCode, err error) {
	v.Faults++
	v.Fault, v.queue = err, nil
	v.registers[register.Error] = uint32(code)
}

// Read is a trapped load from a register.
func (v *VGPU) Read(offset uint32) uint32 {
	switch {
	case offset%4 != 0:
		return 0
	case offset >= register.Table && offset < register.End:
		entry := v.Shadow[(offset-register.Table)/4]
		if page, ok := register.Page(entry); ok {
			return register.Entry(page - v.EPT.Base)
		}
		return 0
	}
	if f := (offset - register.Fence) / 8; offset >= register.Fence && int(f) < v.Fences {
		if offset%8 != 0 {
			return v.upper[f]
		}
		return uint32(v.fences[f])
	}
	return v.registers[offset]
}

// Write is a trapped store to a register.
func (v *VGPU) Write(offset, value uint32) {
	if offset%4 != 0 {
		return
	}
	if offset >= register.Table && offset < register.End {
		v.entry(int(offset-register.Table)/4, value)
		return
	}
	if f := int(offset-register.Fence) / 8; offset >= register.Fence && f < v.Fences {
		if offset%8 != 0 { // counts when the lower word is written, which has the valid bit
			v.upper[f] = value
			return
		}
		v.fences[f] = uint64(v.upper[f])<<32 | uint64(value)
		if err := v.m.Sharing.Fence(v, f, v.fences[f]); err != nil {
			v.fences[f] = 0
			v.fail(register.BadAddress, fmt.Errorf("fence %d: %w", f, err))
		}
		return
	}
	switch offset {
	case register.Reset:
		v.queue, v.Fault = nil, nil
		for _, r := range []uint32{register.RingHead, register.RingTail, register.Error} {
			v.registers[r] = 0
		}
	case register.RingStart, register.RingControl, register.DisplayOn, register.DisplaySize, register.DisplayStart:
		v.registers[offset] = value
	case register.PageDir:
		if err := v.copyTables(value); err != nil {
			v.fail(register.BadAddress, err)
			return
		}
		v.registers[offset] = value
	case register.RingTail:
		if v.registers[register.Error] == 0 {
			if err := v.submit(value); err != nil {
				v.fail(register.BadCommand, err)
			}
		}
	}
}

// entry is a write to the translation table: the page in it is one of the guest's memory.
func (v *VGPU) entry(index int, value uint32) {
	if !v.Low.Has(index) && !v.High.Has(index) {
		v.fail(register.BadAddress, fmt.Errorf("entry %d: %w", index, ErrAddress))
		return
	}
	page, valid := register.Page(value)
	if valid && page >= v.EPT.Pages {
		v.fail(register.BadAddress, fmt.Errorf("entry %d leads to page %d: %w", index, page, ErrAddress))
		return
	}
	v.Shadow[index] = register.Entry(v.scratch)
	if valid {
		v.Shadow[index] = register.Entry(v.EPT.Base + page)
	}
	v.m.Sharing.Entry(v, index)
}

// copyTables copies the guest's per-process tables, with pages of the machine in place of the guest's. What the guest
// changes in them later counts when it writes the register again.
func (v *VGPU) copyTables(directory uint32) error {
	if directory == 0 {
		return nil
	}
	if directory >= v.EPT.Pages {
		return fmt.Errorf("page directory %d: %w", directory, ErrAddress)
	}
	used := uint32(0)
	from, to := v.m.Memory.Page(v.EPT.Base+directory), v.m.Memory.Page(v.shadow)
	clear(to)
	for i := 0; i < register.PageSize; i += 4 {
		table, valid := register.Page(binary.LittleEndian.Uint32(from[i:]))
		if !valid {
			continue
		}
		if used++; used > processTables || table >= v.EPT.Pages {
			return fmt.Errorf("page table %d of %d: %w", table, used, ErrAddress)
		}
		binary.LittleEndian.PutUint32(to[i:], register.Entry(v.shadow+used))
		if err := v.copyTable(v.m.Memory.Page(v.EPT.Base+table), v.m.Memory.Page(v.shadow+used)); err != nil {
			return err
		}
	}
	return nil
}

func (v *VGPU) copyTable(from, to []byte) error {
	clear(to)
	for i := 0; i < register.PageSize; i += 4 {
		page, valid := register.Page(binary.LittleEndian.Uint32(from[i:]))
		if valid && page >= v.EPT.Pages {
			return fmt.Errorf("per-process entry leads to page %d: %w", page, ErrAddress)
		}
		if valid {
			binary.LittleEndian.PutUint32(to[i:], register.Entry(v.EPT.Base+page))
		}
	}
	return nil
}

// Load and Store are the guest's processor at an address of its own: its memory from 0 on, and the aperture from
// register.ApertureBase on. They report whether every page of it leads somewhere.
func (v *VGPU) Load(address uint64, data []byte) bool { return v.access(address, data, false) }

// Store is described with Load.
func (v *VGPU) Store(address uint64, data []byte) bool { return v.access(address, data, true) }

func (v *VGPU) access(address uint64, data []byte, write bool) bool {
	for len(data) > 0 {
		offset := int(address % register.PageSize)
		part := data[:min(len(data), register.PageSize-offset)]
		if address/register.PageSize >= 1<<31 {
			return false
		}
		page, ok := v.EPT.Translate(uint32(address / register.PageSize))
		if !ok {
			return false
		}
		if page >= register.ApertureBase {
			if !v.m.Aperture(page-register.ApertureBase, offset, part, write) {
				return false
			}
		} else if memory := v.m.Memory.Page(page)[offset:]; write {
			copy(memory, part)
		} else {
			copy(part, memory)
		}
		address, data = address+uint64(len(part)), data[len(part):]
	}
	return true
}
