package ptx

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// The reference of this file knows nothing of the interpreter: integers are big.Int cut to a width, floating point is
// exact big.Float rounded once.

// regClass is a register file of the generated programs.
type regClass int

const (
	classH regClass = iota // 16 bits
	classR                 // 32 bits
	classD                 // 64 bits
	classF                 // f32
	classG                 // f64
	classP                 // predicates
	classes
)

const perClass = 6

var (
	classPrefix = [classes]string{"%rs", "%r", "%rd", "%f", "%fd", "%p"}
	classDecl   = [classes]string{".b16", ".b32", ".b64", ".f32", ".f64", ".pred"}
	classBits   = [classes]int{16, 32, 64, 32, 64, 1}
)

func intClass(w int) regClass {
	switch w {
	case 16:
		return classH
	case 32:
		return classR
	}
	return classD
}

// refOp is one instruction form: its text, the classes of its operands and what it computes.
type refOp struct {
	text string // opcode and modifiers
	dst  regClass
	src  []regClass
	tail string // operands after the sources
	f    func(s []uint64) uint64
}

func cut(x *big.Int, w int) uint64 {
	m := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(w)), big.NewInt(1))
	return new(big.Int).And(x, m).Uint64() // And of a negative value is that of its two's complement
}

func val(v uint64, w int, signed bool) *big.Int {
	x := new(big.Int).SetUint64(v)
	if signed && x.Bit(w-1) == 1 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(w)))
	}
	return x
}

func clampInt(x *big.Int, w int, signed bool) uint64 {
	lo, hi := big.NewInt(0), new(big.Int).Lsh(big.NewInt(1), uint(w))
	if signed {
		hi.Rsh(hi, 1)
		lo.Neg(hi)
	}
	hi.Sub(hi, big.NewInt(1))
	if x.Cmp(lo) < 0 {
		x = lo
	}
	if x.Cmp(hi) > 0 {
		x = hi
	}
	return cut(x, w)
}

// integerOps are the forms on integers of w bits.
func integerOps(w int, signed bool) []refOp {
	t := fmt.Sprintf("u%d", w)
	if signed {
		t = fmt.Sprintf("s%d", w)
	}
	c := intClass(w)
	v := func(x uint64) *big.Int { return val(x, w, signed) }
	bin := func(name string, f func(x, y *big.Int) *big.Int) refOp {
		return refOp{name + "." + t, c, []regClass{c, c}, "", func(s []uint64) uint64 { return cut(f(v(s[0]), v(s[1])), w) }}
	}
	N := func() *big.Int { return new(big.Int) }
	ops := []refOp{
		bin("add", func(x, y *big.Int) *big.Int { return N().Add(x, y) }),
		bin("sub", func(x, y *big.Int) *big.Int { return N().Sub(x, y) }),
		bin("mul.lo", func(x, y *big.Int) *big.Int { return N().Mul(x, y) }),
		bin("mul.hi", func(x, y *big.Int) *big.Int { p := N().Mul(x, y); return p.Rsh(p, uint(w)) }),
		bin("min", func(x, y *big.Int) *big.Int {
			if x.Cmp(y) < 0 {
				return x
			}
			return y
		}),
		bin("max", func(x, y *big.Int) *big.Int {
			if x.Cmp(y) > 0 {
				return x
			}
			return y
		}),
		bin("div", func(x, y *big.Int) *big.Int {
			if y.Sign() == 0 {
				return big.NewInt(-1)
			}
			return N().Quo(x, y)
		}),
		bin("rem", func(x, y *big.Int) *big.Int {
			if y.Sign() == 0 {
				return x
			}
			return N().Rem(x, y)
		}),
		{"mad.lo." + t, c, []regClass{c, c, c}, "", func(s []uint64) uint64 {
			return cut(N().Add(N().Mul(v(s[0]), v(s[1])), v(s[2])), w)
		}},
		{"mad.hi." + t, c, []regClass{c, c, c}, "", func(s []uint64) uint64 {
			p := N().Mul(v(s[0]), v(s[1]))
			return cut(N().Add(p.Rsh(p, uint(w)), v(s[2])), w)
		}},
		{"sad." + t, c, []regClass{c, c, c}, "", func(s []uint64) uint64 {
			d := N().Sub(v(s[0]), v(s[1]))
			return cut(N().Add(d.Abs(d), v(s[2])), w)
		}},
		{"shr." + t, c, []regClass{c, classR}, "", func(s []uint64) uint64 {
			return cut(N().Rsh(v(s[0]), uint(min(s[1], 200))), w)
		}},
	}
	if w < 64 {
		ops = append(ops,
			refOp{"mul.wide." + t, intClass(2 * w), []regClass{c, c}, "", func(s []uint64) uint64 { return cut(N().Mul(v(s[0]), v(s[1])), 2*w) }},
			refOp{"mad.wide." + t, intClass(2 * w), []regClass{c, c, intClass(2 * w)}, "", func(s []uint64) uint64 {
				return cut(N().Add(N().Mul(v(s[0]), v(s[1])), val(s[2], 2*w, signed)), 2*w)
			}})
	}
	if signed {
		ops = append(ops,
			refOp{"neg." + t, c, []regClass{c}, "", func(s []uint64) uint64 { return cut(N().Neg(v(s[0])), w) }},
			refOp{"abs." + t, c, []regClass{c}, "", func(s []uint64) uint64 { return cut(N().Abs(v(s[0])), w) }})
	} else {
		b := fmt.Sprintf("b%d", w)
		bits := func(name string, f func(x, y *big.Int) *big.Int) refOp {
			op := bin(name, f)
			op.text = name + "." + b
			return op
		}
		ops = append(ops,
			bits("and", func(x, y *big.Int) *big.Int { return N().And(x, y) }),
			bits("or", func(x, y *big.Int) *big.Int { return N().Or(x, y) }),
			bits("xor", func(x, y *big.Int) *big.Int { return N().Xor(x, y) }),
			refOp{"not." + b, c, []regClass{c}, "", func(s []uint64) uint64 { return cut(N().Not(v(s[0])), w) }},
			refOp{"shl." + b, c, []regClass{c, classR}, "", func(s []uint64) uint64 { return cut(N().Lsh(v(s[0]), uint(min(s[1], 200))), w) }},
			refOp{"selp." + b, c, []regClass{c, c, classP}, "", func(s []uint64) uint64 { return s[1-s[2]] }})
	}
	if w >= 32 {
		ops = append(ops, refOp{"bfe." + t, c, []regClass{c, classR, classR}, "", func(s []uint64) uint64 { return refBfe(s[0], s[1], s[2], w, signed) }})
	}
	if w == 32 && signed {
		ops = append(ops,
			refOp{"add.sat.s32", c, []regClass{c, c}, "", func(s []uint64) uint64 { return clampInt(N().Add(v(s[0]), v(s[1])), 32, true) }},
			refOp{"sub.sat.s32", c, []regClass{c, c}, "", func(s []uint64) uint64 { return clampInt(N().Sub(v(s[0]), v(s[1])), 32, true) }})
	}
	for name, f := range map[string]func(int) bool{
		"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 }, "lt": func(c int) bool { return c < 0 },
		"le": func(c int) bool { return c <= 0 }, "gt": func(c int) bool { return c > 0 }, "ge": func(c int) bool { return c >= 0 },
	} {
		ops = append(ops, refOp{"setp." + name + "." + t, classP, []regClass{c, c}, "", func(s []uint64) uint64 {
			return uint64(bit(f(v(s[0]).Cmp(v(s[1])))))
		}})
	}
	return ops
}

// refBfe takes the bits one by one, as the manual of the instruction set does.
func refBfe(a, b, c uint64, w int, signed bool) (d uint64) {
	pos, n, msb := int(b&0xff), int(c&0xff), w-1
	var sign uint64
	if signed && n != 0 {
		sign = a >> min(pos+n-1, msb) & 1
	}
	for i := 0; i <= msb; i++ {
		x := sign
		if i < n && pos+i <= msb {
			x = a >> (pos + i) & 1
		}
		d |= x << i
	}
	return d
}

// round32 rounds an exact value once to f32 or f64 in a mode; zero is the sign of an exact zero.
func refRound(x *big.Float, mode string, f64 bool, zero float64) float64 {
	if x.Sign() == 0 {
		return zero
	}
	up := func(r float64, to float64) float64 {
		if f64 {
			return math.Nextafter(r, to)
		}
		return float64(math.Nextafter32(float32(r), float32(to)))
	}
	var r float64
	if f64 {
		r, _ = x.Float64()
	} else {
		f, _ := x.Float32()
		r = float64(f)
	}
	cmp := -1 // of r with x
	if !math.IsInf(r, 0) {
		cmp = new(big.Float).SetFloat64(r).Cmp(x)
	} else if r > 0 {
		cmp = 1
	}
	switch {
	case mode == "rn" || cmp == 0:
		return r
	case (mode == "rm" || mode == "rz" && x.Sign() > 0) && cmp > 0:
		return up(r, math.Inf(-1))
	case (mode == "rp" || mode == "rz" && x.Sign() < 0) && cmp < 0:
		return up(r, math.Inf(1))
	}
	return r
}

// floatRefs are the forms on f32 or f64.
func floatRefs(f64 bool) []refOp {
	t, c := "f32", classF
	if f64 {
		t, c = "f64", classG
	}
	dec := func(v uint64) float64 {
		if f64 {
			return math.Float64frombits(v)
		}
		return float64(math.Float32frombits(uint32(v)))
	}
	enc := func(x float64) uint64 {
		switch {
		case f64 && x != x:
			return nan64
		case f64:
			return math.Float64bits(x)
		case x != x:
			return nan32
		}
		return uint64(math.Float32bits(float32(x)))
	}
	B := func(x float64) *big.Float { return new(big.Float).SetPrec(5000).SetFloat64(x) }
	exactly := func(mode string, x []float64, native float64, f func() *big.Float) uint64 {
		if !finite(x...) || native != native {
			return enc(native)
		}
		// In the cases at hand an exact zero is a sum of opposites or has a zero factor; the native sign holds but for
		// rm.
		zero := native
		if zero != 0 {
			zero = 0
		}
		if mode == "rm" && len(x) != 2 && !(math.Signbit(x[0]) == math.Signbit(x[1]) && !math.Signbit(x[2])) {
			zero = math.Copysign(0, -1)
		}
		return enc(refRound(f(), mode, f64, zero))
	}
	var ops []refOp
	for _, mode := range []string{"rn", "rz", "rm", "rp"} {
		ops = append(ops,
			refOp{"add." + mode + "." + t, c, []regClass{c, c}, "", func(s []uint64) uint64 {
				x, y := dec(s[0]), dec(s[1])
				return exactly(mode, []float64{x, 1, y}, x+y, func() *big.Float { return B(x).Add(B(x), B(y)) })
			}},
			refOp{"sub." + mode + "." + t, c, []regClass{c, c}, "", func(s []uint64) uint64 {
				x, y := dec(s[0]), dec(s[1])
				return exactly(mode, []float64{x, 1, -y}, x-y, func() *big.Float { return B(x).Sub(B(x), B(y)) })
			}},
			refOp{"mul." + mode + "." + t, c, []regClass{c, c}, "", func(s []uint64) uint64 {
				x, y := dec(s[0]), dec(s[1])
				return exactly(mode, []float64{x, y}, x*y, func() *big.Float { return B(x).Mul(B(x), B(y)) })
			}},
			refOp{"fma." + mode + "." + t, c, []regClass{c, c, c}, "", func(s []uint64) uint64 {
				x, y, z := dec(s[0]), dec(s[1]), dec(s[2])
				native := math.FMA(x, y, z)
				return exactly(mode, []float64{x, y, z}, native, func() *big.Float { return B(0).Add(B(0).Mul(B(x), B(y)), B(z)) })
			}},
			refOp{"div." + mode + "." + t, c, []regClass{c, c}, "", func(s []uint64) uint64 {
				x, y := dec(s[0]), dec(s[1])
				if y == 0 {
					return enc(x / y)
				}
				return exactly(mode, []float64{x, y}, x/y, func() *big.Float { return B(0).Quo(B(x), B(y)) })
			}})
		if f64 {
			ops = append(ops, refOp{"cvt." + mode + ".f32.f64", classF, []regClass{c}, "", func(s []uint64) uint64 {
				x := dec(s[0])
				if !finite(x) || x == 0 {
					return bits32(float32(x))
				}
				return bits32(float32(refRound(B(x), mode, false, 0)))
			}})
		}
		for _, st := range []string{"s32", "u32", "s64", "u64"} {
			w := 32 + 32*int(bit(st[1:] == "64"))
			ops = append(ops, refOp{"cvt." + mode + "." + t + "." + st, c, []regClass{intClass(w)}, "", func(s []uint64) uint64 {
				return enc(refRound(B(0).SetInt(val(s[0], w, st[0] == 's')), mode, f64, 0))
			}})
		}
	}
	for mode, round := range map[string]func(float64) float64{"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor, "rpi": math.Ceil} {
		for _, dt := range []string{"s16", "u16", "s32", "u32", "s64", "u64"} {
			var w int
			if _, err := fmt.Sscan(dt[1:], &w); err != nil {
				panic(err)
			}
			ops = append(ops, refOp{"cvt." + mode + "." + dt + "." + t, intClass(w), []regClass{c}, "", func(s []uint64) uint64 {
				x := round(dec(s[0]))
				switch {
				case x != x && (f64 || w == 64):
					return 1 << (w - 1)
				case x != x:
					return 0
				}
				i, _ := B(math.Max(-1e30, math.Min(x, 1e30))).Int(nil)
				return clampInt(i, w, dt[0] == 's')
			}})
		}
	}
	sign := uint64(1) << (classBits[c] - 1)
	ops = append(ops,
		refOp{"neg." + t, c, []regClass{c}, "", func(s []uint64) uint64 { return s[0] ^ sign }},
		refOp{"abs." + t, c, []regClass{c}, "", func(s []uint64) uint64 { return s[0] &^ sign }},
		refOp{"setp.lt." + t, classP, []regClass{c, c}, "", func(s []uint64) uint64 { return uint64(bit(dec(s[0]) < dec(s[1]))) }},
		refOp{"setp.geu." + t, classP, []regClass{c, c}, "", func(s []uint64) uint64 { return uint64(bit(!(dec(s[0]) < dec(s[1])))) }},
		refOp{"setp.ne." + t, classP, []regClass{c, c}, "", func(s []uint64) uint64 {
			return uint64(bit(dec(s[0]) < dec(s[1]) || dec(s[0]) > dec(s[1])))
		}},
		refOp{"setp.nan." + t, classP, []regClass{c, c}, "", func(s []uint64) uint64 {
			return uint64(bit(math.IsNaN(dec(s[0])) || math.IsNaN(dec(s[1]))))
		}})
	return ops
}

// otherOps are forms with a shape of their own.
func otherOps() []refOp {
	r := classR
	byteOf := func(v, sel uint64) uint64 {
		b := v >> (8 * (sel & 7)) & 0xff
		if sel&8 != 0 {
			b = b >> 7 * 0xff
		}
		return b
	}
	ops := []refOp{
		{"prmt.b32", r, []regClass{r, r, r}, "", func(s []uint64) (d uint64) {
			for i := range 4 {
				d |= byteOf(s[1]<<32|s[0], s[2]>>(4*i)&15) << (8 * i)
			}
			return d
		}},
		{"shf.l.clamp.b32", r, []regClass{r, r, r}, "", func(s []uint64) uint64 {
			n := min(s[2], 32)
			return (s[1]<<n | s[0]>>(32-n)) & 0xffffffff
		}},
		{"shf.r.wrap.b32", r, []regClass{r, r, r}, "", func(s []uint64) uint64 {
			n := s[2] & 31
			return (s[1]<<(32-n) | s[0]>>n) & 0xffffffff
		}},
		{"bfi.b32", r, []regClass{r, r, r, r}, "", func(s []uint64) uint64 {
			f, pos, n := s[1], int(s[2]&0xff), int(s[3]&0xff)
			for i := 0; i < n && pos+i <= 31; i++ {
				f = f&^(1<<(pos+i)) | s[0]>>i&1<<(pos+i)
			}
			return f
		}},
		{"popc.b64", r, []regClass{classD}, "", func(s []uint64) (n uint64) {
			for i := range 64 {
				n += s[0] >> i & 1
			}
			return n
		}},
		{"clz.b32", r, []regClass{r}, "", func(s []uint64) (n uint64) {
			for n < 32 && s[0]>>(31-n)&1 == 0 {
				n++
			}
			return n
		}},
		{"brev.b32", r, []regClass{r}, "", func(s []uint64) (d uint64) {
			for i := range 32 {
				d |= s[0] >> i & 1 << (31 - i)
			}
			return d
		}},
		{"bfind.s32", r, []regClass{r}, "", func(s []uint64) uint64 {
			for i := 31; i >= 0; i-- {
				if s[0]>>i&1 != s[0]>>31 {
					return uint64(i)
				}
			}
			return 0xffffffff
		}},
		{"dp4a.s32.u32", r, []regClass{r, r, r}, "", func(s []uint64) uint64 {
			sum := int64(s[2])
			for i := range 4 {
				sum += int64(int8(s[0]>>(8*i))) * int64(uint8(s[1]>>(8*i)))
			}
			return uint64(uint32(sum))
		}},
		{"xor.pred", classP, []regClass{classP, classP}, "", func(s []uint64) uint64 { return s[0] ^ s[1] }},
		{"and.pred", classP, []regClass{classP, classP}, "", func(s []uint64) uint64 { return s[0] & s[1] }},
		{"not.pred", classP, []regClass{classP}, "", func(s []uint64) uint64 { return 1 - s[0] }},
		{"mov.b32", r, []regClass{classF}, "", func(s []uint64) uint64 { return s[0] }},
		{"mov.b32", classF, []regClass{r}, "", func(s []uint64) uint64 { return s[0] }},
		{"cvt.f64.f32", classG, []regClass{classF}, "", func(s []uint64) uint64 {
			return math.Float64bits(float64(math.Float32frombits(uint32(s[0]))))
		}},
	}
	for _, lut := range []int{0x96, 0xe8, 0x3c, 0x01} {
		ops = append(ops, refOp{"lop3.b32", r, []regClass{r, r, r}, fmt.Sprintf(", %d", lut), func(s []uint64) (d uint64) {
			for i := range 32 {
				k := s[0]>>i&1<<2 | s[1]>>i&1<<1 | s[2]>>i&1
				d |= uint64(lut>>k&1) << i
			}
			return d
		}})
	}
	type it struct {
		w      int
		signed bool
	}
	for _, d := range []it{{16, true}, {16, false}, {32, true}, {32, false}, {64, true}, {64, false}} {
		for _, s := range []it{{16, true}, {16, false}, {32, true}, {32, false}, {64, true}, {64, false}} {
			name := func(t it) string { return fmt.Sprintf(".%s%d", map[bool]string{true: "s", false: "u"}[t.signed], t.w) }
			ops = append(ops,
				refOp{"cvt" + name(d) + name(s), intClass(d.w), []regClass{intClass(s.w)}, "", func(v []uint64) uint64 { return cut(val(v[0], s.w, s.signed), d.w) }},
				refOp{"cvt.sat" + name(d) + name(s), intClass(d.w), []regClass{intClass(s.w)}, "", func(v []uint64) uint64 {
					return clampInt(val(v[0], s.w, s.signed), d.w, d.signed)
				}})
		}
	}
	return ops
}

var refOps = func() []refOp {
	ops := append(otherOps(), append(floatRefs(false), floatRefs(true)...)...)
	for _, w := range []int{16, 32, 64} {
		ops = append(ops, append(integerOps(w, true), integerOps(w, false)...)...)
	}
	return ops
}()

// randomBits gives values near the edges more often than chance.
func randomBits(r *rand.Rand, c regClass) uint64 {
	w := classBits[c]
	v := r.Uint64()
	switch r.IntN(8) {
	case 0:
		v = uint64(r.IntN(70))
	case 1:
		v = -uint64(r.IntN(5))
	case 2:
		v = 1<<(w-1) + uint64(r.IntN(3)) - 1
	case 3:
		if c == classF {
			v = uint64(math.Float32bits(float32(r.IntN(2000)-1000) / 8))
		} else if c == classG {
			v = math.Float64bits(float64(r.IntN(2000)-1000) / 8)
		}
	case 4:
		if c == classF {
			v = uint64([]uint32{0, 1 << 31, 0x7f800000, 0xff800000, nan32, 1, 0x007fffff, 0x7f7fffff, 0x3f800000, 0x3f800001}[r.IntN(10)])
		} else if c == classG {
			v = []uint64{0, 1 << 63, 0x7ff << 52, 0xfff << 52, nan64, 1, 1<<52 - 1, 0x7ff<<52 - 1, 0x3ff << 52, 0x3ff<<52 + 1}[r.IntN(10)]
		}
	case 5:
		if c == classF { // close exponents, so that sums cancel and results get subnormal
			v = v&0x807fffff | uint64(1+r.IntN(3))<<23
		} else if c == classG {
			v = v&(0x800fffffffffffff) | uint64(1+r.IntN(3))<<52
		}
	}
	if w < 64 {
		v &= 1<<w - 1
	}
	if c == classF && f32of(v) != f32of(v) {
		v = nan32
	}
	if c == classG && f64of(v) != f64of(v) {
		v = nan64
	}
	return v
}

// checkArithmetic runs one random program over 32 lanes and compares every register with the reference.
func checkArithmetic(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	var state [lanes][classes][perClass]uint64
	for l := range state {
		for c := range classes {
			for i := range perClass {
				state[l][c][i] = randomBits(r, c)
			}
		}
	}
	a := newArena(1 << 16)
	var flat []uint64
	for l := range state {
		for c := range classes {
			flat = append(flat, state[l][c][:]...)
		}
	}
	in, out := put(a, flat), a.alloc(8*len(flat))

	var b strings.Builder
	b.WriteString(".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n")
	for c := range classes {
		fmt.Fprintf(&b, ".reg %s %s<%d>;\n", classDecl[c], classPrefix[c], perClass)
	}
	b.WriteString(".reg .b64 %in, %out;\n.reg .b32 %t;\nmov.u32 %t, %tid.x;\nld.param.u64 %in, [in];\nld.param.u64 %out, [out];\n")
	fmt.Fprintf(&b, "mad.wide.u32 %%in, %%t, %d, %%in;\nmad.wide.u32 %%out, %%t, %d, %%out;\n", 8*int(classes)*perClass, 8*int(classes)*perClass)
	each := func(f func(c regClass, i, off int)) {
		for c := range classes {
			for i := range perClass {
				f(c, i, 8*(int(c)*perClass+i))
			}
		}
	}
	each(func(c regClass, i, off int) {
		if c == classP {
			fmt.Fprintf(&b, "ld.global.u32 %%t, [%%in+%d];\nsetp.ne.u32 %%p%d, %%t, 0;\n", off, i)
			return
		}
		fmt.Fprintf(&b, "ld.global%s %s%d, [%%in+%d];\n", classDecl[c], classPrefix[c], i, off)
	})
	for range 40 {
		op := refOps[r.IntN(len(refOps))]
		d := r.IntN(perClass)
		guard, neg := -1, r.IntN(2) == 0
		if r.IntN(4) == 0 {
			guard = r.IntN(perClass)
			fmt.Fprintf(&b, "@%s%%p%d ", map[bool]string{true: "!", false: ""}[neg], guard)
		}
		fmt.Fprintf(&b, "%s %s%d", op.text, classPrefix[op.dst], d)
		type ref struct {
			imm bool
			v   uint64
			i   int
		}
		srcs := make([]ref, len(op.src))
		for k, c := range op.src {
			srcs[k].i = r.IntN(perClass)
			if c != classP && r.IntN(5) == 0 && k > 0 {
				srcs[k].imm, srcs[k].v = true, randomBits(r, c)
				f := ", %d"
				if c == classF {
					f = ", 0f%08X"
				} else if c == classG {
					f = ", 0d%016X"
				}
				fmt.Fprintf(&b, f, srcs[k].v)
				continue
			}
			fmt.Fprintf(&b, ", %s%d", classPrefix[c], srcs[k].i)
		}
		b.WriteString(op.tail + ";\n")
		for l := range state {
			if guard >= 0 && (state[l][classP][guard] != 0) == neg {
				continue
			}
			vals := make([]uint64, len(srcs))
			for k, s := range srcs {
				if vals[k] = state[l][op.src[k]][s.i]; s.imm {
					vals[k] = s.v
				}
			}
			state[l][op.dst][d] = op.f(vals)
		}
	}
	each(func(c regClass, i, off int) {
		if c == classP {
			fmt.Fprintf(&b, "selp.b32 %%t, 1, 0, %%p%d;\nst.global.u32 [%%out+%d], %%t;\n", i, off)
			return
		}
		fmt.Fprintf(&b, "st.global%s [%%out+%d], %s%d;\n", classDecl[c], off, classPrefix[c], i)
	})
	b.WriteString("ret;\n}\n")

	m, img := load(t, []byte(b.String()), a)
	if _, err := runAll(grid(t, img, m.Kernels["k"], lin(1, lanes), a, in, out), slice); err != nil {
		t.Fatal(err)
	}
	got := words[uint64](a, out, len(flat))
	n := 0
	for l := range state {
		for c := range classes {
			for i := range perClass {
				g, want := got[n], state[l][c][i]
				n++
				if c == classG && f64of(g) != f64of(g) && f64of(want) != f64of(want) {
					continue
				}
				if g != want {
					t.Fatalf("seed %d lane %d: %s%d = %#x, want %#x\n%s", seed, l, classPrefix[c], i, g, want, b.String())
				}
			}
		}
	}
}

func TestArithmetic(t *testing.T) {
	for seed := range uint64(400) {
		checkArithmetic(t, seed)
	}
}

func FuzzArithmetic(f *testing.F) {
	f.Add(uint64(12345))
	f.Fuzz(checkArithmetic)
}
