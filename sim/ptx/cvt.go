package ptx

import "math"

// conversion is a cvt between scalar types.
type conversion struct {
	dt, st   typ
	mode     rounding
	integral bool // round to an integer of the same type (.rni on f32)
	sat, ftz bool
}

// fastCvt are the conversions that need no care.
var fastCvt = map[conversion]aluFn{
	{dt: tF32, st: tS32}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = uint64(math.Float32bits(float32(int32(a[i]))))
		}
	},
	{dt: tF32, st: tU32}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = uint64(math.Float32bits(float32(uint32(a[i]))))
		}
	},
	{dt: tF64, st: tS32}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = bits64(float64(int32(a[i])))
		}
	},
	{dt: tF64, st: tF32}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = bits64(float64(f32of(a[i])))
		}
	},
	{dt: tF32, st: tF64}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = bits32(float32(f64of(a[i])))
		}
	},
	{dt: tS64, st: tS32}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = uint64(int64(int32(a[i])))
		}
	},
	{dt: tU64, st: tU32}: mov64,
	{dt: tU32, st: tU64}: func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = uint64(uint32(a[i]))
		}
	},
}

// fn returns the operation; reg is the width of the destination register, to which integers are extended.
func (c conversion) fn(reg typ) aluFn {
	if c.dt.bits() == reg.bits() {
		if f := fastCvt[c]; f != nil && c.st.bits() >= 32 {
			return f
		}
	}
	keep := reg.mask()
	return func(d, a, _, _ *vec) {
		for i := range d {
			d[i] = c.one(a[i]&c.st.mask()) & keep
		}
	}
}

// one converts a value; an integer result is extended to 64 bits by the sign of its type.
func (c conversion) one(v uint64) uint64 {
	switch {
	case !c.st.float() && !c.dt.float():
		return c.intToInt(v)
	case !c.st.float():
		return c.intToFloat(v)
	}
	if c.ftz && c.st == tF32 && v&fmt32.inf() == 0 {
		v &= 1 << 31
	}
	var x float64
	switch c.st {
	case tF16:
		x = fmt16.toFloat(v)
	case tBF16:
		x = fmtB16.toFloat(v)
	case tF32:
		x = float64(f32of(v))
	default:
		x = f64of(v)
	}
	if !c.dt.float() {
		return c.floatToInt(x)
	}
	if c.integral {
		x = integral(x, c.mode)
	}
	return c.pack(x)
}

// pack rounds x to the floating-point destination.
func (c conversion) pack(x float64) uint64 {
	if c.sat {
		x = sat01(x)
	}
	switch c.dt {
	case tF16:
		return packF16(x, c.mode)
	case tBF16:
		return packBF16(x, c.mode)
	case tF32:
		r := fmt32.fromFloat(x, c.mode)
		if c.ftz && r&fmt32.inf() == 0 {
			r &= 1 << 31
		}
		return r
	}
	return bits64(x)
}

// extend sign- or zero-extends the low bits of v by the type.
func extend(v uint64, t typ) uint64 {
	if n := 64 - t.bits(); t.signed() {
		return uint64(int64(v<<n) >> n)
	}
	return v & t.mask()
}

func (c conversion) intToInt(v uint64) uint64 {
	v = extend(v, c.st)
	if !c.sat {
		return extend(v, c.dt)
	}
	top := c.dt.mask()
	if c.dt.signed() {
		top >>= 1
	}
	if c.st.signed() && int64(v) < 0 {
		if !c.dt.signed() {
			return 0
		}
		return uint64(max(int64(v), -int64(top)-1))
	}
	return min(v, top)
}

func (c conversion) intToFloat(v uint64) uint64 {
	v = extend(v, c.st)
	neg := c.st.signed() && int64(v) < 0
	if neg {
		v = -v
	}
	if c.sat {
		return c.pack(math.Copysign(float64(min(v, 1)), map[bool]float64{true: -1, false: 1}[neg]))
	}
	if v == 0 {
		return 0
	}
	f := fmt64
	switch c.dt {
	case tF16:
		f = fmt16
	case tBF16:
		f = fmtB16
	case tF32:
		f = fmt32
	}
	return f.pack(neg, v, 0, c.mode)
}

func integral(x float64, mode rounding) float64 {
	switch mode {
	case rn:
		return math.RoundToEven(x)
	case rz:
		return math.Trunc(x)
	case rm:
		return math.Floor(x)
	}
	return math.Ceil(x)
}

// floatToInt rounds and clamps. NaN gives 0, except that conversions from f64 or to 64 bits give the top bit.
func (c conversion) floatToInt(x float64) uint64 {
	w := c.dt.bits()
	if x != x {
		if c.st != tF64 && w != 64 {
			return 0
		}
		return extend(1<<(w-1), c.dt)
	}
	x = integral(x, c.mode)
	if c.dt.signed() {
		lim := math.Ldexp(1, w-1)
		switch {
		case x >= lim:
			return 1<<(w-1) - 1
		case x < -lim:
			return -(uint64(1) << (w - 1))
		}
		return uint64(int64(x))
	}
	switch {
	case x >= math.Ldexp(1, w):
		return c.dt.mask()
	case x <= 0:
		return 0
	case x >= 1<<63:
		return uint64(int64(x-1<<63)) | 1<<63
	}
	return uint64(int64(x))
}

// decodeCvt is cvt, the packing forms included.
func decodeCvt(a *asm) error {
	var c conversion
	mode := a.oneOf("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")
	c.mode = roundings[mode]
	c.integral = len(mode) == 3
	c.ftz, c.sat = a.has("ftz"), a.has("sat")
	ts, err := a.types(2)
	if err != nil {
		return err
	}
	c.dt, c.st = ts[0], ts[1]
	if c.dt == tF16x2 || c.dt == tBF16x2 {
		return a.packPair(c)
	}
	for _, t := range ts[:2] {
		if t == tPred || t == tF16x2 || t == tBF16x2 || t.isBits() {
			return a.errf("type %v is not supported", t)
		}
	}
	if c.dt == c.st && c.dt.float() && mode != "" && !c.integral {
		c.mode = rn
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	src, st, err := a.wideSrc(&a.ri.args[1], c.st)
	if err != nil {
		return err
	}
	if st != tNone && (st.bits() < c.st.bits() || c.st.float() && st.bits() != c.st.bits()) {
		return a.errf("source register of type %v", st)
	}
	var d int32
	reg := c.dt
	if a.ri.args[0].kind == oSink {
		d = a.temp()
	} else if d, reg, err = a.register(&a.ri.args[0]); err != nil {
		return err
	}
	if reg == tPred || reg.bits() < c.dt.bits() || c.dt.float() && reg.bits() != c.dt.bits() {
		return a.errf("destination register of type %v", reg)
	}
	cost := uint8(1)
	if c.dt.bits() == 64 || c.st.bits() == 64 {
		cost = 2
	}
	a.emit(inst{kind: kALU, fn: c.fn(reg), d: d, a: src, cost: cost})
	return nil
}

// packPair is cvt.rn.f16x2.f32 d, a, b: a in the upper half.
func (a *asm) packPair(c conversion) error {
	if c.st != tF32 || c.integral {
		return a.errf("type %v is not supported", c.st)
	}
	c.dt = map[typ]typ{tF16x2: tF16, tBF16x2: tBF16}[c.dt]
	return a.alu(func(d, x, y, _ *vec) {
		for i := range d {
			d[i] = c.one(x[i])<<16 | c.one(y[i])
		}
	}, 1, tB32, tF32, tF32)
}
