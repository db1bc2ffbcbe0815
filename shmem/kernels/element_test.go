package kernels_test

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// The meaning of reductions, written a second time and as simply as possible.

func equal(a, b []byte) bool { return bytes.Equal(a, b) }

// decode16 is a 16-bit floating-point number with so many bits of fraction.
func decode16(v uint16, fraction int) float64 {
	bias := 1<<(14-fraction) - 1
	f := float64(v & (1<<fraction - 1))
	e := int(v) >> fraction & (2*bias + 1)
	if e == 0 {
		e = 1
	} else {
		f += float64(int(1) << fraction)
	}
	f = math.Ldexp(f, e-bias-fraction)
	if v>>15 != 0 {
		f = -f
	}
	return f
}

// encode16 is decode16's inverse for the numbers that are exact.
func encode16(f float64, fraction int) uint16 {
	for v := range uint32(1 << 15) {
		if decode16(uint16(v), fraction) == math.Abs(f) {
			if f < 0 {
				v |= 1 << 15
			}
			return uint16(v)
		}
	}
	return 0xffff
}

func encode(typ uint32, b []byte, f float64) {
	switch typ {
	case layout.TypeFloat16:
		binary.LittleEndian.PutUint16(b, exact16(f, 10))
	case layout.TypeBFloat16:
		binary.LittleEndian.PutUint16(b, exact16(f, 7))
	case layout.TypeFloat32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(f)))
	case layout.TypeFloat64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(f))
	}
}

var encoded16 = map[[2]float64]uint16{}

func exact16(f float64, fraction int) uint16 {
	key := [2]float64{f, float64(fraction)}
	if v, ok := encoded16[key]; ok {
		return v
	}
	v := encode16(f, fraction)
	encoded16[key] = v
	return v
}

func decode(typ uint32, b []byte) float64 {
	switch typ {
	case layout.TypeFloat16:
		return decode16(binary.LittleEndian.Uint16(b), 10)
	case layout.TypeBFloat16:
		return decode16(binary.LittleEndian.Uint16(b), 7)
	case layout.TypeFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	default:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
}

// combine applies a reduction to elements. Signs of zeros follow the order of a and b.
func combine(typ, op uint32, a, b []byte) []byte {
	size := kernels.TypeBytes(typ)
	out := make([]byte, len(a))
	for i := 0; i < len(a); i += size {
		if typ >= layout.TypeFloat16 {
			x, y := decode(typ, a[i:]), decode(typ, b[i:])
			switch op {
			case layout.ReduceSum:
				x += y
			case layout.ReduceProd:
				x *= y
			case layout.ReduceMin:
				x = min(x, y)
			case layout.ReduceMax:
				x = max(x, y)
			}
			encode(typ, out[i:], x)
			if x == 0 && math.Signbit(x) { // a map's key does not tell -0 from 0
				clear(out[i : i+size])
				out[i+size-1] = 0x80
			}
			continue
		}
		var wa, wb [8]byte
		copy(wa[:], a[i:i+size])
		copy(wb[:], b[i:i+size])
		x, y := binary.LittleEndian.Uint64(wa[:]), binary.LittleEndian.Uint64(wb[:])
		less := x < y
		if typ%2 == layout.TypeInt8%2 {
			shift := 64 - 8*size
			less = int64(x<<shift) < int64(y<<shift)
		}
		switch op {
		case layout.ReduceSum:
			x += y
		case layout.ReduceProd:
			x *= y
		case layout.ReduceMin:
			if !less {
				x = y
			}
		case layout.ReduceMax:
			if less {
				x = y
			}
		case layout.ReduceAnd:
			x &= y
		case layout.ReduceOr:
			x |= y
		case layout.ReduceXor:
			x ^= y
		}
		binary.LittleEndian.PutUint64(wa[:], x)
		copy(out[i:i+size], wa[:])
	}
	return out
}
