package vgpu

import (
	"encoding/binary"
	"fmt"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// work is what a guest has submitted by one write of its tail: commands that were checked, out of its reach.
type work struct {
	batches []batch
	head    uint32 // of the guest's ring, once it is done
}

// batch is a run of commands with addresses in one space.
type batch struct {
	words      []uint32
	perProcess bool
}

// submit reads the guest's ring from where the last submission ended to its tail.
func (v *VGPU) submit(tail uint32) error {
	length := v.registers[register.RingControl]&0x1ff000 + register.PageSize
	if v.registers[register.RingControl]&1 == 0 || tail%4 != 0 || tail >= length {
		return fmt.Errorf("tail %#x of a ring of %#x bytes: %w", tail, length, ErrAddress)
	}
	var stream []uint32
	for at := v.registers[register.RingTail]; at != tail; at = (at + 4) % length {
		word, ok := v.word(uint64(v.registers[register.RingStart]) + uint64(at))
		if !ok {
			return fmt.Errorf("ring: %w", ErrAddress)
		}
		stream = append(stream, word)
	}
	v.registers[register.RingTail] = tail
	v.pixels = 0
	w := work{head: tail}
	size := 0
	var own []uint32
	flush := func() {
		if len(own) > 0 {
			w.batches = append(w.batches, batch{words: own})
			own = nil
		}
	}
	for len(stream) > 0 {
		op, flags, words, rest, ok := register.Decode(stream)
		if !ok || op == register.BatchEnd {
			return fmt.Errorf("ring: %#x: %w", stream[0], ErrCommand)
		}
		if op == register.Batch {
			flush()
			b, err := v.batch(words[0], flags&register.PerProcess != 0)
			if err != nil {
				return err
			}
			w.batches = append(w.batches, b)
			size += len(b.words) + 2
		} else {
			if err := v.check(op, words, false); err != nil {
				return err
			}
			own = append(own, stream[:len(words)+1]...)
			size += len(words) + 2
		}
		stream = rest
		if size > most || len(w.batches) > 256 {
			return fmt.Errorf("%d words submitted at once: %w", size, ErrExhausted)
		}
	}
	flush()
	if len(w.batches) > 0 {
		v.queue = append(v.queue, w)
	}
	return nil
}

// word is a word of the guest's graphics memory, by its own table.
func (v *VGPU) word(address uint64) (uint32, bool) {
	if address%4 != 0 || !v.Owns(address, address+4) {
		return 0, false
	}
	page, ok := register.Page(v.Shadow[address/register.PageSize])
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint32(v.m.Memory.Page(page)[address%register.PageSize:]), true
}

// batch copies a batch out of the guest's memory, and then checks the copy.
func (v *VGPU) batch(address uint32, perProcess bool) (b batch, err error) {
	b.perProcess = perProcess
	if perProcess && v.registers[register.PageDir] == 0 {
		return b, fmt.Errorf("batch without per-process tables: %w", ErrAddress)
	}
	for at := uint64(address); len(b.words) < most; {
		word, ok := v.word(at)
		if !ok {
			return b, fmt.Errorf("batch: %w", ErrAddress)
		}
		n, _ := register.Op(word >> 24).Length()
		stream := []uint32{word}
		for i := 1; i <= n; i++ {
			word, ok := v.word(at + 4*uint64(i))
			if !ok {
				return b, fmt.Errorf("batch: %w", ErrAddress)
			}
			stream = append(stream, word)
		}
		op, _, words, _, ok := register.Decode(stream)
		if !ok || op == register.Batch {
			return b, fmt.Errorf("batch: %#x: %w", word, ErrCommand)
		}
		if op == register.BatchEnd {
			return b, nil
		}
		if err := v.check(op, words, perProcess); err != nil {
			return b, err
		}
		b.words = append(b.words, stream...)
		at += 4 * uint64(len(stream))
	}
	return b, fmt.Errorf("batch of more than %d words: %w", most, ErrExhausted)
}

// check reports whether all that a command touches by the global table is the guest's; the copy of its per-process tables
// leads nowhere else. Nor may what is submitted at once hold the GPU for long, as nothing interrupts it.
func (v *VGPU) check(op register.Op, words []uint32, perProcess bool) error {
	if v.pixels += uint64(register.Pixels(op, words)); v.pixels > mostPixels {
		return fmt.Errorf("%d pixels submitted at once: %w", v.pixels, ErrExhausted)
	}
	for _, r := range register.Touched(op, words) {
		if r[0]%4 != 0 || !perProcess && !v.Owns(r[0], r[1]) {
			return fmt.Errorf("command %#x at %#x: %w", op, r[0], ErrAddress)
		}
	}
	return nil
}

// Dispatch gives the hardware the next work of a guest whose entries are in the table.
func (m *Monitor) Dispatch(v *VGPU) {
	w := v.queue[0]
	ring := m.Memory.Page(m.buffer)
	put := func(word uint32) {
		binary.LittleEndian.PutUint32(ring[m.tail:], word)
		m.tail = (m.tail + 4) % register.PageSize
	}
	at := uint32(register.PageSize)
	for _, b := range w.batches {
		flags := uint32(0)
		if b.perProcess {
			flags = register.PerProcess
		}
		for _, word := range register.Command(register.Batch, flags, register.ReservedLow*register.PageSize+at) {
			put(word)
		}
		for _, word := range append(b.words, register.Command(register.BatchEnd, 0)...) {
			binary.LittleEndian.PutUint32(m.Memory.Page(m.buffer + at/register.PageSize)[at%register.PageSize:], word)
			at += 4
		}
	}
	m.Bus.Write(register.PageDir, v.shadow)
	m.Bus.Write(register.RingTail, m.tail)
}

// Complete notes that the hardware has done the work dispatched last, or what was wrong with it.
func (m *Monitor) Complete(v *VGPU) {
	w := v.queue[0]
	v.queue = v.queue[1:]
	if code := register.ErrorCode(m.Bus.Read(register.Error)); code != register.NoError {
		m.start()
		v.fail(code, fmt.Errorf("the GPU stopped with code %d: %w", code, ErrAddress))
		return
	}
	v.registers[register.RingHead] = w.head
}
