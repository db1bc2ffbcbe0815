package ptx

import (
	"math"
	"math/big"
	"math/bits"
)

// rounding is a PTX rounding mode.
type rounding uint8

const (
	rn rounding = iota // to nearest, ties to even
	rz                 // toward zero
	rm                 // toward minus infinity
	rp                 // toward plus infinity
)

var roundings = map[string]rounding{"rn": rn, "rz": rz, "rm": rm, "rp": rp, "rni": rn, "rzi": rz, "rmi": rm, "rpi": rp}

// floatFormat is an IEEE-like binary format.
type floatFormat struct {
	frac uint // bits of fraction
	exp  uint // bits of exponent
}

var (
	fmt16  = floatFormat{10, 5}
	fmtB16 = floatFormat{7, 8}
	fmt32  = floatFormat{23, 8}
	fmt64  = floatFormat{52, 11}
)

const (
	nan16 = 0x7fff
	nan32 = 0x7fffffff
	nan64 = 0x7fffffffffffffff
)

func (f floatFormat) nan() uint64 { return 1<<(f.frac+f.exp) - 1 }
func (f floatFormat) inf() uint64 { return (1<<f.exp - 1) << f.frac }

// pack rounds mant * 2^exp to the format. mant is not zero.
func (f floatFormat) pack(neg bool, mant uint64, exp int, mode rounding) uint64 {
	lz := bits.LeadingZeros64(mant)
	mant <<= lz
	e := exp - lz + 63 // the value is 1.x * 2^e
	bias := 1<<(f.exp-1) - 1
	drop := 63 - f.frac
	sub := e < 1-bias
	if sub {
		drop += uint(min(1-bias-e, 128))
	}
	q := mant >> drop
	var half, rest bool
	switch {
	case drop > 64:
		rest = true
	case drop > 0:
		half = mant>>(drop-1)&1 != 0
		rest = mant<<(65-drop) != 0
	}
	var up bool
	switch mode {
	case rn:
		up = half && (rest || q&1 != 0)
	case rm:
		up = neg && (half || rest)
	case rp:
		up = !neg && (half || rest)
	}
	if up {
		q++
	}
	if !sub {
		q += uint64(e+bias-1) << f.frac
	}
	if e > bias || q >= f.inf() {
		q = f.inf()
		if mode == rz || mode == rm && !neg || mode == rp && neg {
			q--
		}
	}
	if neg {
		q |= 1 << (f.frac + f.exp)
	}
	return q
}

// fromFloat rounds x to the format.
func (f floatFormat) fromFloat(x float64, mode rounding) uint64 {
	b := math.Float64bits(x)
	neg := b>>63 != 0
	mant, exp := b&(1<<52-1), int(b>>52&0x7ff)
	var r uint64
	switch {
	case x != x:
		return f.nan()
	case exp == 0x7ff:
		r = f.inf()
	case x == 0:
	case exp == 0:
		return f.pack(neg, mant, -1074, mode)
	default:
		return f.pack(neg, mant|1<<52, exp-1075, mode)
	}
	if neg {
		r |= 1 << (f.frac + f.exp)
	}
	return r
}

// toFloat widens a value of the format, f64 excluded, exactly.
func (f floatFormat) toFloat(b uint64) float64 {
	frac, exp := b&(1<<f.frac-1), int(b>>f.frac&(1<<f.exp-1))
	bias := 1<<(f.exp-1) - 1
	var x float64
	switch {
	case exp == 1<<f.exp-1 && frac != 0:
		return math.NaN()
	case exp == 1<<f.exp-1:
		x = math.Inf(1)
	case exp == 0:
		x = math.Ldexp(float64(frac), 1-bias-int(f.frac))
	default:
		x = math.Ldexp(float64(frac|1<<f.frac), exp-bias-int(f.frac))
	}
	if b>>(f.frac+f.exp)&1 != 0 {
		x = -x
	}
	return x
}

func packF16(x float64, mode rounding) uint64  { return fmt16.fromFloat(x, mode) }
func packBF16(x float64, mode rounding) uint64 { return fmtB16.fromFloat(x, mode) }

func f32of(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64of(v uint64) float64 { return math.Float64frombits(v) }

// bits32 returns the bits of x with every NaN made the canonical one.
func bits32(x float32) uint64 {
	if x != x {
		return nan32
	}
	return uint64(math.Float32bits(x))
}

func bits64(x float64) uint64 { return math.Float64bits(x) }

// toOdd corrects s, the nearest f64 to an exact value that is greater by err (of any size below the last place, only
// its sign matters), to the exact value rounded to odd. Rounding that once more to f32 or f16 gives the same as
// rounding the exact value, in every mode.
func toOdd(s, err float64) float64 {
	if err == 0 || s == 0 || math.IsInf(s, 0) || s != s || err != err {
		return s
	}
	b := math.Float64bits(s)
	if (err > 0) != (s > 0) {
		b--
	}
	return math.Float64frombits(b | 1)
}

// twoSum returns the sum of p and c and its rounding error.
func twoSum(p, c float64) (s, err float64) {
	s = p + c
	bb := s - p
	return s, (p - (s - bb)) + (c - bb)
}

// fmaOdd is a*b + c rounded to odd, for a and b of at most 26 significant bits; zero has the sign of the mode.
func fmaOdd(a, b, c float64, mode rounding) float64 {
	p := a * b
	s, err := twoSum(p, c)
	if s == 0 && mode == rm && (math.Signbit(p) || math.Signbit(c)) {
		return math.Copysign(0, -1)
	}
	return toOdd(s, err)
}

// fma32 is fma.rn.f32.
func fma32(a, b, c float32) uint64 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	sb := math.Float64bits(s)
	// Rounding twice differs from rounding once only where s lies half-way between two f32 values, or the result is
	// subnormal.
	if sb&0x1fffffff == 0x10000000 || sb>>52&0x7ff < 897 && s != 0 {
		s, err := twoSum(p, float64(c))
		return bits32(float32(toOdd(s, err)))
	}
	return bits32(float32(s))
}

// divOdd is a/b rounded to odd, for f32 values.
func divOdd(a, b float64) float64 {
	q := a / b
	r := math.FMA(-q, b, a)
	if b < 0 {
		r = -r
	}
	if math.IsInf(b, 0) {
		return q
	}
	return toOdd(q, r)
}

// sqrtOdd is the square root rounded to odd, for f32 values.
func sqrtOdd(a float64) float64 {
	s := math.Sqrt(a)
	return toOdd(s, math.FMA(-s, s, a))
}

// round64 rounds an exact or nearly exact x to f64. The value is exact, or x has so many bits that it lies on the right
// side of every f64 and of every middle between two.
func round64(x *big.Float, mode rounding) float64 {
	r, acc := x.Float64()
	if acc == big.Exact || mode == rn {
		return r
	}
	above := acc == big.Above
	down := mode == rm || mode == rz && x.Sign() > 0
	switch {
	case down && above:
		return math.Nextafter(r, math.Inf(-1))
	case !down && !above:
		return math.Nextafter(r, math.Inf(1))
	}
	return r
}

func finite(xs ...float64) bool {
	for _, x := range xs {
		if x != x || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// exact has room for the sum of any product of two f64 values and a third.
func exact(x float64) *big.Float { return new(big.Float).SetPrec(4400).SetFloat64(x) }

// fma64 is a*b + c in any mode.
func fma64(a, b, c float64, mode rounding) float64 {
	r := math.FMA(a, b, c)
	if mode == rn || !finite(a, b, c) {
		return r
	}
	x := exact(a)
	x.Mul(x, exact(b))
	x.Add(x, exact(c))
	if x.Sign() == 0 {
		if (a == 0 || b == 0) && c == 0 && math.Signbit(a) != math.Signbit(b) == math.Signbit(c) {
			return c
		}
		if mode == rm {
			return math.Copysign(0, -1)
		}
		return 0
	}
	return round64(x, mode)
}

// mul64 is a*b in any mode.
func mul64(a, b float64, mode rounding) float64 {
	if mode == rn || !finite(a, b) || a == 0 || b == 0 {
		return a * b
	}
	return round64(exact(a).Mul(exact(a), exact(b)), mode)
}

// div64 is a/b in any mode.
func div64(a, b float64, mode rounding) float64 {
	if mode == rn || !finite(a, b) || a == 0 || b == 0 {
		return a / b
	}
	return round64(new(big.Float).SetPrec(4400).Quo(exact(a), exact(b)), mode)
}

// sqrt64 is the square root in any mode.
func sqrt64(a float64, mode rounding) float64 {
	if mode == rn || !finite(a) || a <= 0 {
		return math.Sqrt(a)
	}
	return round64(new(big.Float).SetPrec(300).Sqrt(new(big.Float).SetPrec(300).SetFloat64(a)), mode)
}
