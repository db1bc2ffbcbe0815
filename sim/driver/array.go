package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// array is a CUDA array: memory for copies, with a layout of its own.
type array struct {
	handle uint64
	ctx    *context
	desc   wire.CUDA_ARRAY3D_DESCRIPTOR
	alloc  *allocation // nil for a level of a mipmapped array
	base   uint64
	pitch  uint64 // bytes of a row
	rows   uint64
	slices uint64
	mip    *mipmap
}

// mipmap is a mipmapped array.
type mipmap struct {
	handle uint64
	ctx    *context
	desc   wire.CUDA_ARRAY3D_DESCRIPTOR
	alloc  *allocation
	levels []*array
}

// Flags of arrays that change how many slices there are.
const (
	arrayLayered = 1
	arrayCubemap = 4
	arrayKnown   = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
	// Sparse arrays and those with deferred mapping have no memory until cuMemMapArrayAsync gives them some, which is
	// not there: one that took memory at once would be another thing than the program asked for.
	arrayUnmapped = 0x40 | 0x80
)

// elementBytes is the size of one element, 0 for a format that arrays do not have.
func elementBytes(f wire.CUarray_format, channels uint32) uint64 {
	if channels != 1 && channels != 2 && channels != 4 {
		return 0
	}
	switch f {
	case wire.CU_AD_FORMAT_UNSIGNED_INT8, wire.CU_AD_FORMAT_SIGNED_INT8:
		return uint64(channels)
	case wire.CU_AD_FORMAT_UNSIGNED_INT16, wire.CU_AD_FORMAT_SIGNED_INT16, wire.CU_AD_FORMAT_HALF:
		return 2 * uint64(channels)
	case wire.CU_AD_FORMAT_UNSIGNED_INT32, wire.CU_AD_FORMAT_SIGNED_INT32, wire.CU_AD_FORMAT_FLOAT:
		return 4 * uint64(channels)
	}
	return 0
}

// layout says what an array of this description takes; pitch 0 for one that cannot be.
func layout(d *wire.CUDA_ARRAY3D_DESCRIPTOR) (pitch, rows, slices uint64) {
	elem := elementBytes(d.Format, d.NumChannels)
	if elem == 0 || d.Width == 0 || d.Width > 131072 || d.Height > 131072 || d.Depth > 16384 || d.Flags&^arrayKnown != 0 ||
		d.Height == 0 && d.Depth != 0 && d.Flags&arrayLayered == 0 || d.Flags&arrayCubemap != 0 && (d.Width != d.Height || d.Depth%6 != 0) {
		return 0, 0, 0
	}
	return roundUp(d.Width*elem, 32), d.Height, d.Depth
}

func layoutBytes(pitch, rows, slices uint64) uint64 {
	return roundUp(pitch*max(rows, 1)*max(slices, 1), 512)
}

// newArray allocates an array.
func (c *context) newArray(d *wire.CUDA_ARRAY3D_DESCRIPTOR) (*array, Result) {
	pitch, rows, slices := layout(d)
	if pitch == 0 {
		return nil, errInvalidValue
	}
	if d.Flags&arrayUnmapped != 0 {
		return nil, errNotSupported
	}
	al, res := c.allocate(layoutBytes(pitch, rows, slices))
	if res != success {
		return nil, res
	}
	al.typ = memArray
	a := &array{ctx: c, desc: *d, alloc: al, base: al.base, pitch: pitch, rows: rows, slices: slices}
	a.handle = c.p.handles.add(kindArray, a)
	return a, success
}

// newMipmap allocates a mipmapped array with all its levels.
func (c *context) newMipmap(d *wire.CUDA_ARRAY3D_DESCRIPTOR, levels uint32) (*mipmap, Result) {
	if pitch, _, _ := layout(d); pitch == 0 || levels == 0 {
		return nil, errInvalidValue
	}
	if d.Flags&arrayUnmapped != 0 {
		return nil, errNotSupported
	}
	m := &mipmap{ctx: c, desc: *d}
	var size uint64
	level := *d
	for i := uint32(0); i < levels; i++ {
		pitch, rows, slices := layout(&level)
		m.levels = append(m.levels, &array{ctx: c, desc: level, base: size, pitch: pitch, rows: rows, slices: slices, mip: m})
		size += layoutBytes(pitch, rows, slices)
		if level.Width <= 1 && level.Height <= 1 && (level.Depth <= 1 || d.Flags&arrayLayered != 0) {
			break
		}
		level.Width = max(level.Width/2, 1)
		if level.Height > 0 {
			level.Height = max(level.Height/2, 1)
		}
		if level.Depth > 0 && d.Flags&arrayLayered == 0 {
			level.Depth = max(level.Depth/2, 1)
		}
	}
	al, res := c.allocate(size)
	if res != success {
		return nil, res
	}
	al.typ = memArray
	m.alloc = al
	for _, l := range m.levels {
		l.base += al.base
		l.handle = c.p.handles.add(kindArray, l)
	}
	m.handle = c.p.handles.add(kindMipmap, m)
	return m, success
}
