package device

import (
	"encoding/binary"
	"time"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// most is how many commands one run executes: a stream may jump in a circle.
const most = 1 << 16

// Run executes the ring from its head to its tail, or until a command is wrong, which the register Error then says. It
// returns how long that takes.
func (d *Device) Run() (busy time.Duration) {
	control := d.registers[register.RingControl]
	length := control&0x1ff000 + register.PageSize
	if control&1 == 0 || d.fault != register.NoError {
		return 0
	}
	ring := space{d: d}
	var words [5]uint32
	for range most {
		head, tail := d.registers[register.RingHead]%length, d.registers[register.RingTail]%length
		if head == tail {
			return busy
		}
		n, ok := d.fetch(ring, words[:], func(i uint32) uint32 { return d.registers[register.RingStart] + (head+4*i)%length })
		if !ok {
			return busy
		}
		took, ok := d.command(ring, words[:n], 0)
		busy += took
		if !ok {
			return busy
		}
		d.registers[register.RingHead] = (head + 4*uint32(n)) % length
	}
	d.fault = register.BadCommand
	return busy
}

// fetch reads the words of one command.
func (d *Device) fetch(from space, words []uint32, address func(i uint32) uint32) (n int, ok bool) {
	n = 1
	for i := 0; i < n; i++ {
		memory := from.at(address(uint32(i)))
		if len(memory) < 4 {
			d.fault = register.BadAddress
			return 0, false
		}
		words[i] = binary.LittleEndian.Uint32(memory)
		if i == 0 {
			follow, known := register.Op(words[0] >> 24).Length()
			if !known {
				d.fault = register.BadCommand
				return 0, false
			}
			n += follow
		}
	}
	return n, true
}

// command executes one command. A batch is in no other batch.
func (d *Device) command(in space, stream []uint32, depth int) (busy time.Duration, ok bool) {
	op, flags, words, _, ok := register.Decode(stream)
	if !ok {
		d.fault = register.BadCommand
		return 0, false
	}
	switch op {
	case register.Noop, register.BatchEnd:
		return 0, true
	case register.Batch:
		if depth > 0 {
			d.fault = register.BadCommand
			return 0, false
		}
		return d.batch(in, words[0], flags)
	}
	busy = time.Duration(register.Pixels(op, words)) * pixelTime
	if op == register.Shade {
		busy = time.Duration(register.Pixels(op, words)) * shadeTime
	}
	if !d.draw(in, op, words) {
		d.fault = register.BadAddress
		return busy, false
	}
	return busy, true
}

// batch executes a batch: its commands lie in the global space, and their addresses are in that or in per-process space.
func (d *Device) batch(ring space, address, flags uint32) (busy time.Duration, ok bool) {
	in := ring
	if flags&register.PerProcess != 0 {
		if in.directory = d.registers[register.PageDir]; in.directory == 0 {
			d.fault = register.BadAddress
			return 0, false
		}
	}
	var words [5]uint32
	for range most {
		n, ok := d.fetch(ring, words[:], func(i uint32) uint32 { return address + 4*i })
		if !ok {
			return busy, false
		}
		if register.Op(words[0]>>24) == register.BatchEnd {
			return busy, true
		}
		took, ok := d.command(in, words[:n], 1)
		if busy += took; !ok {
			return busy, false
		}
		address += 4 * uint32(n)
	}
	d.fault = register.BadCommand
	return busy, false
}

// draw executes a command that touches memory, page by page.
func (d *Device) draw(in space, op register.Op, words []uint32) bool {
	for _, w := range register.Touched(op, words) {
		if w[0]%4 != 0 || w[1] > 1<<32 {
			return false
		}
	}
	switch op {
	case register.Store:
		memory := in.at(words[0])
		if memory != nil {
			binary.LittleEndian.PutUint32(memory, words[1])
		}
		return memory != nil
	case register.Fill:
		value := words[2]
		return each(in, words[0], words[1], func(p []byte) {
			binary.LittleEndian.PutUint32(p, value)
			value++
		})
	case register.Checksum:
		sum := uint32(0)
		memory := in.at(words[0])
		ok := memory != nil && each(in, words[1], words[2], func(p []byte) { sum = register.Sum(sum, binary.LittleEndian.Uint32(p)) })
		if ok {
			binary.LittleEndian.PutUint32(memory, sum)
		}
		return ok
	case register.Shade:
		factor, before := words[3], uint32(0)
		return pairs(in, words, func(to, from []byte) {
			texel := binary.LittleEndian.Uint32(from)
			binary.LittleEndian.PutUint32(to, register.Mix(texel, before, factor))
			before = texel
		})
	}
	return runs(in, words[0], words[1], 4*words[2], func(to, from []byte) { copy(to, from) })
}

// each calls a function with each pixel.
func each(in space, address, count uint32, use func([]byte)) bool {
	for count > 0 {
		memory := in.at(address)
		if len(memory) < 4 {
			return false
		}
		n := min(count, uint32(len(memory)/4))
		for i := uint32(0); i < 4*n; i += 4 {
			use(memory[i : i+4])
		}
		address, count = address+4*n, count-n
	}
	return true
}

// pairs calls a function with each pixel of a command's two surfaces.
func pairs(in space, words []uint32, use func(to, from []byte)) bool {
	return runs(in, words[0], words[1], 4*words[2], func(to, from []byte) {
		for i := 0; i < len(to); i += 4 {
			use(to[i:i+4], from[i:i+4])
		}
	})
}

// runs calls a function with what lies in one page of each of two surfaces.
func runs(in space, to, from, bytes uint32, use func(to, from []byte)) bool {
	for bytes > 0 {
		t, f := in.at(to), in.at(from)
		n := min(bytes, uint32(len(t)), uint32(len(f)))
		if n == 0 {
			return false
		}
		use(t[:n], f[:n])
		to, from, bytes = to+n, from+n, bytes-n
	}
	return true
}
