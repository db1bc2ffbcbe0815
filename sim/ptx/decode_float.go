package ptx

import "math"

// decodeFloat is add, sub, mul, fma (and mad), div, rcp, sqrt on floating point.
func decodeFloat(a *asm, op string) error {
	mode := a.oneOf("rn", "rz", "rm", "rp")
	approx := a.oneOf("approx", "full")
	ftz, sat := a.has("ftz"), a.has("sat")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	n := map[string]int{"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}[op]
	round := roundings[mode]
	cost := uint8(1)
	if t == tF64 {
		cost = 2
	}
	if n == 1 || op == "div" {
		cost = 8
		if t == tF64 {
			cost = 16
		} else if approx != "" {
			cost = 4
		}
	}
	h, is16 := halves[t]
	var fn aluFn
	switch {
	case is16 && n >= 2 && op != "div" && round == rn:
		return a.floatAlu(h.op(sat, ftz, halfOps[op]), cost, t, n, false, false)
	case t == tF32 && approx != "" && n == 1:
		fn = approxF32[op]
	case t == tF32 && round == rn:
		fn = floatOps[aluKey{op, t}]
	case t == tF32:
		fn = directed32(op, round)
	case t == tF64 && op == "rcp" && approx != "":
		fn = rcpF64
	case t == tF64 && round == rn && floatOps[aluKey{op, t}] != nil:
		fn = floatOps[aluKey{op, t}]
	case t == tF64:
		fn = directed64(op, round)
	}
	if fn == nil || sat && t != tF32 {
		return a.errf("type %v is not supported", t)
	}
	return a.floatAlu(fn, cost, t, n, ftz && t == tF32, sat)
}

// halfOps return the exact result or one rounded to odd.
var halfOps = map[string]func(x, y, z float64) float64{
	"add": func(x, y, _ float64) float64 { return fmaOdd(x, 1, y, rn) },
	"sub": func(x, y, _ float64) float64 { return fmaOdd(x, 1, -y, rn) },
	"mul": func(x, y, _ float64) float64 { return x * y },
	"fma": func(x, y, z float64) float64 { return fmaOdd(x, y, z, rn) },
}

// floatAlu emits fn with n sources of type t; with ftz, sources and result are flushed, with sat the result is clamped.
// Each step is an instruction of its own in front or behind, so that the operations themselves stay simple.
func (a *asm) floatAlu(fn aluFn, cost uint8, t typ, n int, ftz, sat bool) error {
	if err := a.nargs(n+1, n+1); err != nil {
		return err
	}
	r, err := a.srcs(1, []typ{t, t, t}[:n]...)
	if err != nil {
		return err
	}
	d, err := a.dst(&a.ri.args[0], t)
	if err != nil {
		return err
	}
	if ftz {
		for i := range n {
			f := a.temp()
			a.emit(inst{kind: kALU, fn: flush(fmt32), d: f, a: r[i]})
			r[i] = f
		}
	}
	a.emit(inst{kind: kALU, fn: fn, d: d, a: r[0], b: r[1], c: r[2], cost: cost})
	if ftz {
		a.emit(inst{kind: kALU, fn: flush(fmt32), d: d, a: d})
	}
	if sat {
		a.emit(inst{kind: kALU, fn: satF32, d: d, a: d})
	}
	return nil
}

func decodeFma(a *asm) error {
	if a.has("relu") {
		return a.errf("modifier .relu is not supported")
	}
	return decodeFloat(a, "fma")
}

func decodeDiv(a *asm) error {
	if a.isFloat() {
		return decodeFloat(a, "div")
	}
	return intOp("div", 2, false)(a)
}

// decodeUnary is rcp and sqrt.
func decodeUnary(op string) func(*asm) error {
	return func(a *asm) error { return decodeFloat(a, op) }
}

// decodeApprox is the functions that exist as approximations only.
func decodeApprox(a *asm) error {
	a.has("approx")
	ftz := a.has("ftz")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	op := a.ri.op
	switch h, is16 := halves[t]; {
	case t == tF32:
		return a.floatAlu(approxF32[op], 4, t, 1, ftz, false)
	case t == tF64 && op == "rsqrt":
		return a.floatAlu(rsqrtF64, 16, t, 1, false, false)
	case is16 && (op == "ex2" || op == "tanh"):
		f := math.Exp2
		if op == "tanh" {
			f = math.Tanh
		}
		return a.floatAlu(h.op(false, ftz, func(x, _, _ float64) float64 { return f(x) }), 4, t, 1, false, false)
	}
	return a.errf("type %v is not supported", t)
}

func signBits(t typ) uint64 {
	switch t {
	case tF16, tBF16:
		return 0x8000
	case tF16x2, tBF16x2:
		return 0x80008000
	case tF32:
		return 1 << 31
	}
	return 1 << 63
}

// decodeSign is neg and abs.
func decodeSign(op string) func(*asm) error {
	return func(a *asm) error {
		if !a.isFloat() {
			return intOp(op, 1, false)(a)
		}
		ftz := a.has("ftz")
		t, err := a.typ1()
		if err != nil {
			return err
		}
		fn := signOp(signBits(t), 0)
		if op == "abs" {
			fn = signOp(0, signBits(t))
		}
		return a.floatAlu(fn, 1, t, 1, ftz && t == tF32, false)
	}
}

// decodeMinMax is min and max.
func decodeMinMax(op string) func(*asm) error {
	return func(a *asm) error {
		if !a.isFloat() {
			return intOp(op, 2, false)(a)
		}
		ftz, nan := a.has("ftz"), a.has("NaN")
		t, err := a.typ1()
		if err != nil {
			return err
		}
		most := op == "max"
		switch h, is16 := halves[t]; {
		case t == tF32:
			return a.floatAlu(minmaxF32(most, nan), 1, t, 2, ftz, false)
		case t == tF64:
			return a.floatAlu(minmaxF64(most, nan), 2, t, 2, false, false)
		case is16:
			return a.floatAlu(h.bitsOp(func(x, y, _ uint64) uint64 {
				if ftz {
					x, y = h.flush(x), h.flush(y)
				}
				return pick(h.toFloat(x), h.toFloat(y), x, y, nan16, most, nan)
			}), 1, t, 2, false, false)
		}
		return a.errf("type %v is not supported", t)
	}
}

func decodeCopysign(a *asm) error {
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t != tF32 && t != tF64 {
		return a.errf("type %v is not supported", t)
	}
	return a.alu(copysign(signBits(t)), 1, t, t, t)
}

// testps are the properties that testp asks for.
var testps = map[string]func(float64, bool) bool{
	"finite":     func(x float64, _ bool) bool { return finite(x) },
	"infinite":   func(x float64, _ bool) bool { return math.IsInf(x, 0) },
	"number":     func(x float64, _ bool) bool { return x == x },
	"notanumber": func(x float64, _ bool) bool { return x != x },
	"normal":     func(x float64, sub bool) bool { return finite(x) && x != 0 && !sub },
	"subnormal":  func(x float64, sub bool) bool { return sub },
}

func decodeTestp(a *asm) error {
	prop := a.oneOf("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t != tF32 && t != tF64 || prop == "" {
		return a.errf("form is not supported")
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	r, err := a.srcs(1, t)
	if err != nil {
		return err
	}
	d, err := a.dstPred(&a.ri.args[0])
	if err != nil {
		return err
	}
	f := testps[prop]
	cmp := func(v, _ *vec) (m uint32) {
		for i, b := range v {
			x, exp := f64of(b), fmt64.inf()
			if t == tF32 {
				x, exp = float64(f32of(b)), fmt32.inf()
			}
			if f(x, b&exp == 0 && x != 0) {
				m |= 1 << i
			}
		}
		return m
	}
	a.emit(inst{kind: kSetp, d: d, a: r[0], b: r[0], cost: 1, x: &extra{cmp: cmp, q: -1}})
	return nil
}
