package ptx

import (
	"math"
	"unsafe"
)

// f32at and f64at read a value where it lies, which spares moves between register files.
func f32at(v *uint64) *float32 { return (*float32)(unsafe.Pointer(v)) }
func f64at(v *uint64) *float64 { return (*float64)(unsafe.Pointer(v)) }

func addF32(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits32(*f32at(&a[i]) + *f32at(&b[i]))
	}
}

func subF32(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits32(*f32at(&a[i]) - *f32at(&b[i]))
	}
}

func mulF32(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits32(*f32at(&a[i]) * *f32at(&b[i]))
	}
}

// fmaF32 takes the quick path of fma32 (away from the middle between two results, from subnormal and from not finite
// ones) for four lanes at once: a lane alone is one long chain of dependent conversions.
func fmaF32(d, a, b, c *vec) {
	for i := 0; i < lanes; i += 4 {
		x, y, z := (*[4]uint64)(a[i:i+4]), (*[4]uint64)(b[i:i+4]), (*[4]uint64)(c[i:i+4])
		r := (*[4]uint64)(d[i : i+4])
		s0 := float64(*f32at(&x[0]))*float64(*f32at(&y[0])) + float64(*f32at(&z[0]))
		s1 := float64(*f32at(&x[1]))*float64(*f32at(&y[1])) + float64(*f32at(&z[1]))
		s2 := float64(*f32at(&x[2]))*float64(*f32at(&y[2])) + float64(*f32at(&z[2]))
		s3 := float64(*f32at(&x[3]))*float64(*f32at(&y[3])) + float64(*f32at(&z[3]))
		if easy32(s0) && easy32(s1) && easy32(s2) && easy32(s3) {
			r[0], r[1] = uint64(math.Float32bits(float32(s0))), uint64(math.Float32bits(float32(s1)))
			r[2], r[3] = uint64(math.Float32bits(float32(s2))), uint64(math.Float32bits(float32(s3)))
			continue
		}
		for k := range r {
			r[k] = fma32(f32of(x[k]), f32of(y[k]), f32of(z[k]))
		}
	}
}

// easy32 says that rounding s to f32 gives the same as rounding the exact value that s was rounded from.
func easy32(s float64) bool {
	b := math.Float64bits(s)
	return b&0x1fffffff != 0x10000000 && b>>52&0x7ff-897 < 1023+127-897
}

func divF32(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits32(*f32at(&a[i]) / *f32at(&b[i]))
	}
}

func sqrtF32(d, a, _, _ *vec) {
	for i := range d {
		d[i] = bits32(float32(math.Sqrt(float64(*f32at(&a[i])))))
	}
}

func rcpF32(d, a, _, _ *vec) {
	for i := range d {
		d[i] = bits32(1 / *f32at(&a[i]))
	}
}

func addF64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits64(*f64at(&a[i]) + *f64at(&b[i]))
	}
}

func subF64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits64(*f64at(&a[i]) - *f64at(&b[i]))
	}
}

func mulF64(d, a, b, _ *vec) {
	for i := range d {
		d[i] = bits64(*f64at(&a[i]) * *f64at(&b[i]))
	}
}

func fmaF64(d, a, b, c *vec) {
	for i := range d {
		d[i] = bits64(math.FMA(*f64at(&a[i]), *f64at(&b[i]), *f64at(&c[i])))
	}
}

// directed32 returns op in a mode other than nearest.
func directed32(op string, mode rounding) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			x, y, z := float64(f32of(a[i])), float64(f32of(b[i])), float64(f32of(c[i]))
			var r float64
			switch op {
			case "add":
				r = fmaOdd(x, 1, y, mode)
			case "sub":
				r = fmaOdd(x, 1, -y, mode)
			case "mul":
				r = x * y
			case "fma":
				r = fmaOdd(x, y, z, mode)
			case "div":
				r = divOdd(x, y)
			case "rcp":
				r = divOdd(1, x)
			case "sqrt":
				r = sqrtOdd(x)
			}
			d[i] = fmt32.fromFloat(r, mode)
		}
	}
}

// directed64 returns op in any mode.
func directed64(op string, mode rounding) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			x, y, z := f64of(a[i]), f64of(b[i]), f64of(c[i])
			var r float64
			switch op {
			case "add":
				r = fma64(x, 1, y, mode)
			case "sub":
				r = fma64(x, 1, -y, mode)
			case "mul":
				r = mul64(x, y, mode)
			case "fma":
				r = fma64(x, y, z, mode)
			case "div":
				r = div64(x, y, mode)
			case "rcp":
				r = div64(1, x, mode)
			case "sqrt":
				r = sqrt64(x, mode)
			}
			d[i] = bits64(r)
		}
	}
}

// floatOps are the operations rounded to nearest.
var floatOps = map[aluKey]aluFn{
	{"add", tF32}: addF32, {"sub", tF32}: subF32, {"mul", tF32}: mulF32, {"fma", tF32}: fmaF32, {"div", tF32}: divF32,
	{"rcp", tF32}: rcpF32, {"sqrt", tF32}: sqrtF32,
	{"add", tF64}: addF64, {"sub", tF64}: subF64, {"mul", tF64}: mulF64, {"fma", tF64}: fmaF64,
}

// via64 makes an operation of one f32 source from a function of f64.
func via64(f func(float64) float64) aluFn {
	return func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = bits32(float32(f(float64(f32of(a[i])))))
		}
	}
}

func log2(x float64) float64 {
	if x < 0 {
		return math.NaN()
	}
	return math.Log2(x)
}

// approxF32 are the approximate functions.
var approxF32 = map[string]aluFn{
	"rcp": rcpF32, "sqrt": sqrtF32, "rsqrt": via64(func(x float64) float64 { return 1 / math.Sqrt(x) }),
	"ex2": via64(math.Exp2), "lg2": via64(log2), "sin": via64(math.Sin), "cos": via64(math.Cos), "tanh": via64(math.Tanh),
}

func rcpF64(d, a, _, _ *vec) {
	for i := range d {
		d[i] = bits64(1 / f64of(a[i]))
	}
}

func rsqrtF64(d, a, _, _ *vec) {
	for i := range d {
		d[i] = bits64(1 / math.Sqrt(f64of(a[i])))
	}
}

// signOp changes the sign bits of a register: flip them, or clear them first.
func signOp(flip, clear uint64) aluFn {
	return func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = a[i]&^clear ^ flip
		}
	}
}

func copysign(sign uint64) aluFn {
	return func(d, a, b, _ *vec) {
		for i := range d {
			d[i] = a[i]&sign | b[i]&^sign
		}
	}
}

// pick is min or max of two values that are of the bits x and y: numbers win over NaN unless nan, minus zero is below
// zero.
func pick(x, y float64, xb, yb, quiet uint64, most, nan bool) uint64 {
	switch {
	case x != x || y != y:
		if nan || x != x && y != y {
			return quiet
		}
		if x != x {
			return yb
		}
		return xb
	case x == y:
		if math.Signbit(x) == most {
			return yb
		}
		return xb
	case (x < y) == most:
		return yb
	}
	return xb
}

func minmaxF32(most, nan bool) aluFn {
	return func(d, a, b, _ *vec) {
		for i := range d {
			d[i] = pick(float64(f32of(a[i])), float64(f32of(b[i])), a[i], b[i], nan32, most, nan)
		}
	}
}

func minmaxF64(most, nan bool) aluFn {
	return func(d, a, b, _ *vec) {
		for i := range d {
			d[i] = pick(f64of(a[i]), f64of(b[i]), a[i], b[i], nan64, most, nan)
		}
	}
}

// flush replaces subnormal values by zero of their sign.
func flush(f floatFormat) aluFn {
	expMask, sign := f.inf(), uint64(1)<<(f.frac+f.exp)
	return func(d, a, _, _ *vec) {
		for i := range d {
			v := a[i]
			if v&expMask == 0 {
				v &= sign
			}
			d[i] = v
		}
	}
}

func sat01(x float64) float64 {
	if x > 0 { // false for NaN
		return math.Min(x, 1)
	}
	return 0
}

func satF32(d, a, _, _ *vec) {
	for i := range d {
		d[i] = bits32(float32(sat01(float64(f32of(a[i])))))
	}
}

// half is the 16-bit float type of a register and how many a register holds.
type half struct {
	floatFormat
	n int
}

var halves = map[typ]half{tF16: {fmt16, 1}, tF16x2: {fmt16, 2}, tBF16: {fmtB16, 1}, tBF16x2: {fmtB16, 2}}

// op makes an operation on each element from a function that returns a value rounded to odd or exact.
func (h half) op(sat, ftz bool, f func(x, y, z float64) float64) aluFn {
	return h.bitsOp(func(x, y, z uint64) uint64 {
		if ftz {
			x, y, z = h.flush(x), h.flush(y), h.flush(z)
		}
		r := f(h.toFloat(x), h.toFloat(y), h.toFloat(z))
		if sat {
			r = sat01(r)
		}
		b := h.fromFloat(r, rn)
		if ftz {
			b = h.flush(b)
		}
		return b
	})
}

func (h half) flush(v uint64) uint64 {
	if v&h.inf() == 0 {
		v &= 0x8000
	}
	return v
}

func (h half) bitsOp(f func(x, y, z uint64) uint64) aluFn {
	return func(d, a, b, c *vec) {
		for i := range d {
			r := f(a[i]&0xffff, b[i]&0xffff, c[i]&0xffff)
			if h.n == 2 {
				r |= f(a[i]>>16&0xffff, b[i]>>16&0xffff, c[i]>>16&0xffff) << 16
			}
			d[i] = r
		}
	}
}
