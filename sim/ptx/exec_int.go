package ptx

import "math/bits"

// The functions here compute all 32 lanes of an instruction, active or not; the interpreter keeps only the active ones.
// Values come in and go out zero-extended.

type (
	uints interface{ uint16 | uint32 | uint64 }
	sints interface{ int16 | int32 | int64 }
)

func addI[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i]) + T(b[i]))
	}
}

func subI[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i]) - T(b[i]))
	}
}

func mulLo[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i]) * T(b[i]))
	}
}

func madLo[T uints](d, a, b, c *vec) {
	for i := range d {
		d[i] = uint64(T(a[i])*T(b[i]) + T(c[i]))
	}
}

// hiU returns the upper half of the product of two values of w bits, w at most 32.
func hiU(a, b uint64, w uint) uint64 { return a * b >> w & (1<<w - 1) }

func hiS(a, b int64, w uint) uint64 { return uint64(a*b) >> w & (1<<w - 1) }

func hiS64(a, b uint64) uint64 {
	h, _ := bits.Mul64(a, b)
	return h - b&uint64(int64(a)>>63) - a&uint64(int64(b)>>63)
}

func hi1(t typ, a, b uint64) uint64 {
	switch t {
	case tU16:
		return hiU(a, b, 16)
	case tS16:
		return hiS(int64(int16(a)), int64(int16(b)), 16)
	case tU32:
		return hiU(a, b, 32)
	case tS32:
		return hiS(int64(int32(a)), int64(int32(b)), 32)
	case tU64:
		h, _ := bits.Mul64(a, b)
		return h
	}
	return hiS64(a, b)
}

func mulHi(t typ) aluFn {
	if t == tU32 {
		return func(d, a, b, _ *vec) {
			for i := range d {
				d[i] = uint64(uint32(a[i])) * uint64(uint32(b[i])) >> 32
			}
		}
	}
	m := t.mask()
	return func(d, a, b, _ *vec) {
		for i := range d {
			d[i] = hi1(t, a[i]&m, b[i]&m)
		}
	}
}

func madHi(t typ) aluFn {
	m := t.mask()
	return func(d, a, b, c *vec) {
		for i := range d {
			d[i] = (hi1(t, a[i]&m, b[i]&m) + c[i]) & m
		}
	}
}

// madHiSat is mad.hi.sat.s32.
func madHiSat(d, a, b, c *vec) {
	for i := range d {
		d[i] = satS32(int64(int32(hi1(tS32, a[i], b[i]))) + int64(int32(c[i])))
	}
}

func mulWideU[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i])) * uint64(T(b[i]))
	}
}

func mulWideS16(d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(uint32(int32(int16(a[i])) * int32(int16(b[i]))))
	}
}

func mulWideS32(d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(int64(int32(a[i])) * int64(int32(b[i])))
	}
}

func madWideU16(d, a, b, c *vec) {
	for i := range d {
		d[i] = uint64(uint32(uint16(a[i]))*uint32(uint16(b[i])) + uint32(c[i]))
	}
}

func madWideS16(d, a, b, c *vec) {
	for i := range d {
		d[i] = uint64(uint32(int32(int16(a[i]))*int32(int16(b[i]))) + uint32(c[i]))
	}
}

func madWideU32(d, a, b, c *vec) {
	for i := range d {
		d[i] = uint64(uint32(a[i]))*uint64(uint32(b[i])) + c[i]
	}
}

func madWideS32(d, a, b, c *vec) {
	for i := range d {
		d[i] = uint64(int64(int32(a[i]))*int64(int32(b[i]))) + c[i]
	}
}

// product24 returns a half of the 48-bit product of the low 24 bits.
func product24(a, b uint64, signed, hi bool) uint32 {
	var p uint64
	if signed {
		p = uint64(int64(int32(a<<8)>>8) * int64(int32(b<<8)>>8))
	} else {
		p = (a & 0xffffff) * (b & 0xffffff)
	}
	if hi {
		return uint32(p >> 16)
	}
	return uint32(p)
}

func mul24(signed, hi bool) aluFn {
	return func(d, a, b, _ *vec) {
		for i := range d {
			d[i] = uint64(product24(a[i], b[i], signed, hi))
		}
	}
}

func mad24(signed, hi, sat bool) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			p := product24(a[i], b[i], signed, hi)
			if sat {
				d[i] = satS32(int64(int32(p)) + int64(int32(c[i])))
			} else {
				d[i] = uint64(p + uint32(c[i]))
			}
		}
	}
}

func satS32(v int64) uint64 {
	return uint64(uint32(max(min(v, 1<<31-1), -1<<31)))
}

func addSat(d, a, b, _ *vec) {
	for i := range d {
		d[i] = satS32(int64(int32(a[i])) + int64(int32(b[i])))
	}
}

func subSat(d, a, b, _ *vec) {
	for i := range d {
		d[i] = satS32(int64(int32(a[i])) - int64(int32(b[i])))
	}
}

// Division by zero is undefined in PTX; here it gives all ones, and the remainder is the dividend.

func divU[T uints](d, a, b, _ *vec) {
	for i := range d {
		if y := T(b[i]); y != 0 {
			d[i] = uint64(T(a[i]) / y)
		} else {
			d[i] = uint64(^T(0))
		}
	}
}

func divS[S sints, U uints](d, a, b, _ *vec) {
	for i := range d {
		if y := S(b[i]); y != 0 {
			d[i] = uint64(U(S(a[i]) / y))
		} else {
			d[i] = uint64(^U(0))
		}
	}
}

func remU[T uints](d, a, b, _ *vec) {
	for i := range d {
		if y := T(b[i]); y != 0 {
			d[i] = uint64(T(a[i]) % y)
		} else {
			d[i] = uint64(T(a[i]))
		}
	}
}

func remS[S sints, U uints](d, a, b, _ *vec) {
	for i := range d {
		if y := S(b[i]); y != 0 {
			d[i] = uint64(U(S(a[i]) % y))
		} else {
			d[i] = uint64(U(a[i]))
		}
	}
}

func absS[S sints, U uints](d, a, _, _ *vec) {
	for i := range d {
		v := S(a[i])
		if v < 0 {
			v = -v
		}
		d[i] = uint64(U(v))
	}
}

func negI[T uints](d, a, _, _ *vec) {
	for i := range d {
		d[i] = uint64(-T(a[i]))
	}
}

func minU[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(min(T(a[i]), T(b[i])))
	}
}

func maxU[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(max(T(a[i]), T(b[i])))
	}
}

func minS[S sints, U uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(U(min(S(a[i]), S(b[i]))))
	}
}

func maxS[S sints, U uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(U(max(S(a[i]), S(b[i]))))
	}
}

func sadU[T uints](d, a, b, c *vec) {
	for i := range d {
		x, y := T(a[i]), T(b[i])
		d[i] = uint64(max(x, y) - min(x, y) + T(c[i]))
	}
}

func sadS[S sints, U uints](d, a, b, c *vec) {
	for i := range d {
		x, y := S(a[i]), S(b[i])
		d[i] = uint64(U(max(x, y)) - U(min(x, y)) + U(c[i]))
	}
}

func and64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = a[i] & b[i]
	}
}

func or64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = a[i] | b[i]
	}
}

func xor64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = a[i] ^ b[i]
	}
}

func not[T uints](d, a, _, _ *vec) {
	for i := range d {
		d[i] = uint64(^T(a[i]))
	}
}

func cnot(d, a, _, _ *vec) {
	for i := range d {
		if a[i] == 0 {
			d[i] = 1
		} else {
			d[i] = 0
		}
	}
}

func mov64(d, a, _, _ *vec) { *d = *a }

func shl[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i]) << uint32(b[i]))
	}
}

func shrU[T uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(T(a[i]) >> uint32(b[i]))
	}
}

func shrS[S sints, U uints](d, a, b, _ *vec) {
	for i := range d {
		d[i] = uint64(U(S(a[i]) >> uint32(b[i])))
	}
}

// shf is the funnel shift of b:a.
func shf(left, clamp bool) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			n := uint32(c[i])
			if clamp {
				n = min(n, 32)
			} else {
				n &= 31
			}
			v := b[i]<<32 | a[i]&0xffffffff
			if left {
				d[i] = v << n >> 32
			} else {
				d[i] = v >> n & 0xffffffff
			}
		}
	}
}

func popc(d, a, _, _ *vec) {
	for i := range d {
		d[i] = uint64(bits.OnesCount64(a[i]))
	}
}

func clz(width int) aluFn {
	return func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = uint64(bits.LeadingZeros64(a[i]) - 64 + width)
		}
	}
}

func brev(width uint) aluFn {
	return func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = bits.Reverse64(a[i]) >> (64 - width)
		}
	}
}

// bfind finds the highest bit that differs from the sign; shift gives the distance from the top instead of the
// position.
func bfind(t typ, shift bool) aluFn {
	w := t.bits()
	return func(d, a, _, _ *vec) {
		for i := range d {
			v := a[i]
			if t.signed() && v>>(w-1)&1 != 0 {
				v = ^v & t.mask()
			}
			p := bits.Len64(v) - 1
			if p >= 0 && shift {
				p = w - 1 - p
			}
			d[i] = uint64(uint32(p))
		}
	}
}

func bfe(t typ) aluFn {
	w := uint64(t.bits())
	return func(d, a, b, c *vec) {
		for i := range d {
			pos, n := b[i]&0xff, c[i]&0xff
			v := a[i]
			var sign uint64
			if t.signed() && n != 0 {
				sign = -(v >> min(pos+n-1, w-1) & 1)
			}
			field := uint64(1)<<n - 1
			if pos < w {
				field &= (1<<(w-pos) - 1)
			} else {
				field = 0
			}
			d[i] = (v>>pos&field | sign&^field) & t.mask()
		}
	}
}

func bfi(t typ) alu4Fn {
	w := uint64(t.bits())
	return func(d, a, b, c, e *vec) {
		for i := range d {
			pos, n := c[i]&0xff, e[i]&0xff
			field := (uint64(1)<<n - 1) << pos & t.mask()
			if pos >= w {
				field = 0
			}
			d[i] = a[i]<<pos&field | b[i]&^field
		}
	}
}

func lop3(d, a, b, c, e *vec) {
	lut := e[0]
	for i := range d {
		x, y, z := uint32(a[i]), uint32(b[i]), uint32(c[i])
		var r uint32
		for k := range 8 {
			if lut>>k&1 != 0 {
				// Minterm k: each input as it is where k has its bit, inverted where not.
				r |= (x ^ (uint32(k)>>2&1 - 1)) & (y ^ (uint32(k)>>1&1 - 1)) & (z ^ (uint32(k)&1 - 1))
			}
		}
		d[i] = uint64(r)
	}
}

// prmt picks bytes of b:a. The modes are those of the instruction, "" for the general form.
func prmt(mode string) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			v, sel := b[i]<<32|a[i]&0xffffffff, uint32(c[i])
			switch n := sel & 3; mode {
			case "f4e":
				sel = [4]uint32{0x3210, 0x4321, 0x5432, 0x6543}[n]
			case "b4e":
				sel = [4]uint32{0x5670, 0x6701, 0x7012, 0x0123}[n]
			case "rc8":
				sel = n * 0x1111
			case "ecl":
				sel = [4]uint32{0x3210, 0x3211, 0x3222, 0x3333}[n]
			case "ecr":
				sel = [4]uint32{0x0000, 0x1110, 0x2210, 0x3210}[n]
			case "rc16":
				sel = [4]uint32{0x1010, 0x3232, 0x1010, 0x3232}[n]
			}
			var r uint64
			for k := range 4 {
				s := sel >> (4 * k)
				x := v >> (8 * (s & 7)) & 0xff
				if s&8 != 0 {
					x = -(x >> 7) & 0xff
				}
				r |= x << (8 * k)
			}
			d[i] = r
		}
	}
}

// dot returns the byte or half k of v, extended.
func dot(v uint64, k, width uint, signed bool) int64 {
	x := v >> (k * width) & (1<<width - 1)
	if signed {
		return int64(x<<(64-width)) >> (64 - width)
	}
	return int64(x)
}

func dp4a(sa, sb bool) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			sum := int64(c[i])
			for k := range uint(4) {
				sum += dot(a[i], k, 8, sa) * dot(b[i], k, 8, sb)
			}
			d[i] = uint64(uint32(sum))
		}
	}
}

func dp2a(sa, sb, hi bool) aluFn {
	first := uint(0)
	if hi {
		first = 2
	}
	return func(d, a, b, c *vec) {
		for i := range d {
			sum := int64(c[i])
			for k := range uint(2) {
				sum += dot(a[i], k, 16, sa) * dot(b[i], first+k, 8, sb)
			}
			d[i] = uint64(uint32(sum))
		}
	}
}

// add3 is a + b + carry of w bits with the carry out.
func add3(a, b uint64, cin uint32, w int) (uint64, uint32) {
	s, c := bits.Add64(a, b, uint64(cin))
	if w == 32 {
		return s & 0xffffffff, uint32(s>>32) & 1
	}
	return s, uint32(c)
}

func addCC(w int) ccFn {
	return func(d, a, b, _ *vec, carry uint32) (out uint32) {
		for i := range d {
			s, c := add3(a[i], b[i], carry>>i&1, w)
			d[i] = s
			out |= c << i
		}
		return out
	}
}

func subCC(w int) ccFn {
	return func(d, a, b, _ *vec, carry uint32) (out uint32) {
		for i := range d {
			s, c := bits.Sub64(a[i], b[i], uint64(carry>>i&1))
			if w == 32 {
				s &= 0xffffffff
			}
			d[i] = s
			out |= uint32(c) << i
		}
		return out
	}
}

func madCC(t typ, hi bool) ccFn {
	w, m := t.bits(), t.mask()
	return func(d, a, b, c *vec, carry uint32) (out uint32) {
		for i := range d {
			p := a[i] * b[i] & m
			if hi {
				p = hi1(t, a[i], b[i])
			}
			s, co := add3(p, c[i], carry>>i&1, w)
			d[i] = s
			out |= co << i
		}
		return out
	}
}
