// Package register has what software and the modelled integrated GPU agree on: the offsets of registers, the formats of
// translation entries, fences and commands, and the geometry of graphics memory. Offsets and formats are those of Intel's
// Gen7 programmer's reference manuals where these have them; the 3D-like command and the checksum are the model's own.
package register

// Graphics memory (GM), in pages of 4 KiB, of which the table has one 4-byte entry each.
const (
	PageSize     = 4096
	Entries      = 524288               // 2 MiB of table, 2 GiB of graphics memory
	LowEntries   = 512 << 20 / PageSize // what the CPU reaches through the aperture
	PagesPerMiB  = 1 << 20 / PageSize
	Fences       = 32
	ApertureBase = uint32(0x100000)  // the page of the machine's address space at which the aperture begins
	ReservedLow  = 504 * PagesPerMiB // the mediator's own 8 MiB, at the top of the low part
	PoolFirst    = 448 * PagesPerMiB // the fence memory pool, right below
	PoolPages    = ReservedLow - PoolFirst
)

// Offsets of 32-bit registers.
const (
	RingTail     = 0x2030
	RingHead     = 0x2034
	RingStart    = 0x2038 // graphics address, page aligned
	RingControl  = 0x203c // length in bytes less a page, in bits 20:12; bit 0: enabled
	PageDir      = 0x2228 // page of a directory of per-process tables; 0: none
	Error        = 0x20b0 // what stopped the ring, an ErrorCode; writing clears it
	Reset        = 0x941c // writing 1 resets the ring
	DisplaySize  = 0x6001c
	DisplayStart = 0x7019c  // graphics address
	DisplayOn    = 0x70180  // bit 31
	Fence        = 0x100000 // 64 bits each
	Table        = 0x200000 // the global graphics translation table
	End          = Table + 4*Entries
)

// What a guest reads about its part of graphics memory, as gVirt's PVINFO page tells it: in pages, and a number.
const (
	InfoLowFirst  = 0x78000
	InfoLowPages  = 0x78004
	InfoHighFirst = 0x78008
	InfoHighPages = 0x7800c
	InfoFences    = 0x78010
)

// ErrorCode says why the ring stopped.
type ErrorCode uint32

// The codes of the register Error.
const (
	NoError ErrorCode = iota
	BadCommand
	BadAddress
)

// Bus is the only way to the GPU: what the CPU does by loads and stores to its first range of addresses. Reads of what
// does not exist are 0 and writes are lost.
type Bus interface {
	Read(offset uint32) uint32
	Write(offset, value uint32)
	// WriteTable writes entries one after the other, from one on.
	WriteTable(first int, entries []uint32)
}

// Entry is the translation entry of a page of memory: its number in bits 31:12, and bit 0 for valid.
func Entry(page uint32) uint32 { return page<<12 | 1 }

// Page is the page of an entry, if it is valid.
func Page(entry uint32) (page uint32, valid bool) { return entry >> 12, entry&1 != 0 }

// FenceValue is the value of a fence register: pages from first to last are one surface in tiles, of rows of so many bytes.
// Bits 31:12 and 63:44 are the bounds, bit 0 is valid, and bits 43:32 are the pitch in units of a tile's row, less one.
func FenceValue(first, last, pitch uint32) uint64 {
	return uint64(last)<<44 | uint64(pitch/TileRow-1)<<32 | uint64(first)<<12 | 1
}

// FenceBounds reads a fence register.
func FenceBounds(value uint64) (first, last, pitch uint32, valid bool) {
	return uint32(value>>12) & 0xfffff, uint32(value >> 44), (uint32(value>>32)&0xfff + 1) * TileRow, value&1 != 0
}

// A tile is a page: eight rows of 512 bytes (X tiling).
const (
	TileRow  = 512
	TileRows = 8
)

// Tiled is where in a surface in tiles the byte at a linear offset lies.
func Tiled(offset, pitch uint32) uint32 {
	y, x := offset/pitch, offset%pitch
	tile := y/TileRows*(pitch/TileRow) + x/TileRow
	return tile*PageSize + y%TileRows*TileRow + x%TileRow
}

// Op is the operation of a command, in bits 31:24 of its first word; bits 7:0 are how many words follow.
type Op uint32

// The commands. Addresses are graphics addresses in bytes, multiples of 4; count is in pixels of 4 bytes.
const (
	Noop     Op = 0x00 // no words follow
	BatchEnd Op = 0x05 // ends a batch
	Store    Op = 0x20 // address, value
	Batch    Op = 0x31 // address: goes on there, until BatchEnd; the word's bit 8: in per-process space
	Fill     Op = 0x50 // address, count, value: at each pixel value + its index
	Copy     Op = 0x53 // to, from, count
	Shade    Op = 0x7b // to, from, count, factor: each pixel is mixed from two of the texture
	Checksum Op = 0x7c // to, from, count: the sum of what is there, weighted by place
)

// PerProcess is the bit of Batch by which the addresses in it are those of the per-process tables.
const PerProcess = 1 << 8

// Length is how many words follow the first of a command, and false for what is no command.
func (op Op) Length() (words int, ok bool) {
	switch op {
	case Noop, BatchEnd:
		return 0, true
	case Batch:
		return 1, true
	case Store:
		return 2, true
	case Fill, Copy, Checksum:
		return 3, true
	case Shade:
		return 4, true
	}
	return 0, false
}

// Command makes the words of a command.
func Command(op Op, flags uint32, words ...uint32) []uint32 {
	return append([]uint32{uint32(op)<<24 | flags | uint32(len(words))}, words...)
}

// Decode splits the first command off a stream; ok is false if it is none, or goes beyond the end.
func Decode(stream []uint32) (op Op, flags uint32, words, rest []uint32, ok bool) {
	if len(stream) == 0 {
		return 0, 0, nil, nil, false
	}
	op, flags = Op(stream[0]>>24), stream[0]&0xffff00
	n, known := op.Length()
	if !known || int(stream[0]&0xff) != n || len(stream) < n+1 || flags&^PerProcess != 0 {
		return 0, 0, nil, nil, false
	}
	return op, flags, stream[1 : n+1], stream[n+1:], true
}

// Touched are the ranges of graphics memory, in bytes, that a command reads and writes.
func Touched(op Op, words []uint32) (ranges [][2]uint64) {
	span := func(address, bytes uint64) { ranges = append(ranges, [2]uint64{address, address + bytes}) }
	switch op {
	case Store:
		span(uint64(words[0]), 4)
	case Fill:
		span(uint64(words[0]), 4*uint64(words[1]))
	case Copy, Shade:
		span(uint64(words[0]), 4*uint64(words[2]))
		span(uint64(words[1]), 4*uint64(words[2]))
	case Checksum:
		span(uint64(words[0]), 4)
		span(uint64(words[1]), 4*uint64(words[2]))
	}
	return ranges
}

// Pixels is how many pixels a command draws or reads.
func Pixels(op Op, words []uint32) uint32 {
	switch op {
	case Fill:
		return words[1]
	case Copy, Shade, Checksum:
		return words[2]
	}
	return 0
}

// Mix is a pixel of Shade, of two neighbouring texels.
func Mix(a, b, factor uint32) uint32 { return a*factor + b>>3 ^ a<<7 }

// Sum adds a pixel to a checksum.
func Sum(sum, pixel uint32) uint32 { return sum*16777619 ^ pixel }
