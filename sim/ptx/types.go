package ptx

// typ is a fundamental PTX type.
type typ uint8

const (
	tNone typ = iota
	tPred
	tB8
	tB16
	tB32
	tB64
	tU8
	tU16
	tU32
	tU64
	tS8
	tS16
	tS32
	tS64
	tF16
	tBF16
	tF16x2
	tBF16x2
	tF32
	tF64
)

var typeNames = map[string]typ{
	"pred": tPred, "b8": tB8, "b16": tB16, "b32": tB32, "b64": tB64, "u8": tU8, "u16": tU16, "u32": tU32, "u64": tU64,
	"s8": tS8, "s16": tS16, "s32": tS32, "s64": tS64, "f16": tF16, "bf16": tBF16, "f16x2": tF16x2, "bf16x2": tBF16x2,
	"f32": tF32, "f64": tF64,
}

var typeBits = [...]uint8{
	tPred: 1, tB8: 8, tB16: 16, tB32: 32, tB64: 64, tU8: 8, tU16: 16, tU32: 32, tU64: 64, tS8: 8, tS16: 16, tS32: 32, tS64: 64,
	tF16: 16, tBF16: 16, tF16x2: 32, tBF16x2: 32, tF32: 32, tF64: 64,
}

func (t typ) String() string {
	for n, v := range typeNames {
		if v == t {
			return "." + n
		}
	}
	return "untyped"
}

// bits returns the width; 0 for tNone.
func (t typ) bits() int {
	if t == tNone {
		return 0
	}
	return int(typeBits[t])
}

func (t typ) bytes() int     { return t.bits() / 8 }
func (t typ) signed() bool   { return t >= tS8 && t <= tS64 }
func (t typ) unsigned() bool { return t >= tU8 && t <= tU64 }
func (t typ) isBits() bool   { return t >= tB8 && t <= tB64 }
func (t typ) integer() bool  { return t >= tB8 && t <= tS64 }
func (t typ) float() bool    { return t >= tF16 }

// width returns the unsigned-bits type of the same width as t, so that tables need one entry a width.
func (t typ) width() typ {
	switch t.bits() {
	case 8:
		return tB8
	case 16:
		return tB16
	case 32:
		return tB32
	case 64:
		return tB64
	}
	return t
}

// mask keeps the low bits of a value that belong to type t.
func (t typ) mask() uint64 {
	if t.bits() == 64 {
		return ^uint64(0)
	}
	return 1<<t.bits() - 1
}
