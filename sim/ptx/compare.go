package ptx

import "math"

func bit(c bool) uint32 {
	var r uint32
	if c {
		r = 1
	}
	return r
}

func eqI(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(a[i] == b[i]) << (i & 31)
	}
	return m
}

func ltI[T uint16 | int16 | uint32 | int32 | uint64 | int64](a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(T(a[i]) < T(b[i])) << (i & 31)
	}
	return m
}

func eqF32(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f32of(a[i]) == f32of(b[i])) << (i & 31)
	}
	return m
}

func ltF32(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f32of(a[i]) < f32of(b[i])) << (i & 31)
	}
	return m
}

func leF32(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f32of(a[i]) <= f32of(b[i])) << (i & 31)
	}
	return m
}

func numF32(a, b *vec) (m uint32) {
	for i := range a {
		x, y := f32of(a[i]), f32of(b[i])
		m |= bit(x == x && y == y) << (i & 31)
	}
	return m
}

func eqF64(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f64of(a[i]) == f64of(b[i])) << (i & 31)
	}
	return m
}

func ltF64(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f64of(a[i]) < f64of(b[i])) << (i & 31)
	}
	return m
}

func leF64(a, b *vec) (m uint32) {
	for i := range a {
		m |= bit(f64of(a[i]) <= f64of(b[i])) << (i & 31)
	}
	return m
}

func numF64(a, b *vec) (m uint32) {
	for i := range a {
		x, y := f64of(a[i]), f64of(b[i])
		m |= bit(x == x && y == y) << (i & 31)
	}
	return m
}

// invert is the complement of a comparison, swap the one with its operands exchanged, both the conjunction.
func invert(f cmpFn) cmpFn  { return func(a, b *vec) uint32 { return ^f(a, b) } }
func swap(f cmpFn) cmpFn    { return func(a, b *vec) uint32 { return f(b, a) } }
func both(f, g cmpFn) cmpFn { return func(a, b *vec) uint32 { return f(a, b) & g(a, b) } }

// viaFloat compares 16-bit floats as f64.
func viaFloat(h half, f cmpFn) cmpFn {
	return func(a, b *vec) uint32 {
		var x, y vec
		for i := range a {
			x[i], y[i] = bits64(h.toFloat(a[i]&0xffff)), bits64(h.toFloat(b[i]&0xffff))
		}
		return f(&x, &y)
	}
}

var ltInts = map[typ]cmpFn{
	tU16: ltI[uint16], tS16: ltI[int16], tU32: ltI[uint32], tS32: ltI[int32], tU64: ltI[uint64], tS64: ltI[int64],
}

// comparison returns the function of a comparison operator on a type, nil when there is none.
func comparison(op string, t typ) cmpFn {
	if t.float() {
		return floatComparison(op, t)
	}
	lt := ltInts[t]
	if op == "lo" || op == "ls" || op == "hi" || op == "hs" {
		lt = ltInts[unifyU(t)]
	}
	if t.bits() < 16 || lt == nil && op != "eq" && op != "ne" {
		return nil
	}
	switch op {
	case "eq":
		return eqI
	case "ne":
		return invert(eqI)
	case "lt", "lo":
		return lt
	case "le", "ls":
		return invert(swap(lt))
	case "gt", "hi":
		return swap(lt)
	case "ge", "hs":
		return invert(lt)
	}
	return nil
}

func floatComparison(op string, t typ) cmpFn {
	eq, lt, le, num := cmpFn(eqF32), cmpFn(ltF32), cmpFn(leF32), cmpFn(numF32)
	if t != tF32 {
		eq, lt, le, num = eqF64, ltF64, leF64, numF64
	}
	var f cmpFn
	switch op {
	case "eq":
		f = eq
	case "ne":
		f = both(invert(eq), num)
	case "lt":
		f = lt
	case "le":
		f = le
	case "gt":
		f = swap(lt)
	case "ge":
		f = swap(le)
	case "equ":
		f = invert(both(invert(eq), num))
	case "neu":
		f = invert(eq)
	case "ltu":
		f = invert(swap(le))
	case "leu":
		f = invert(swap(lt))
	case "gtu":
		f = invert(le)
	case "geu":
		f = invert(lt)
	case "num":
		f = num
	case "nan":
		f = invert(num)
	default:
		return nil
	}
	if h, ok := halves[t]; ok {
		if h.n != 1 {
			return nil
		}
		return viaFloat(h, f)
	}
	return f
}

var joins = map[string]uint8{"": joinNone, "and": joinAnd, "or": joinOr, "xor": joinXor}

// compareArgs reads the two values, flushed if asked, and the predicate that is joined, from operand 1 on.
func (a *asm) compareArgs(in *inst, join uint8, ftz bool, t typ) error {
	n := 3
	if join != joinNone {
		n = 4
	}
	if err := a.nargs(n, n); err != nil {
		return err
	}
	r, err := a.srcs(1, t, t)
	if err != nil {
		return err
	}
	if join != joinNone {
		if in.c, in.x.flip, err = a.pred(&a.ri.args[3]); err != nil {
			return err
		}
	}
	if ftz && t == tF32 {
		for i := range 2 {
			f := a.temp()
			a.emit(inst{kind: kALU, fn: flush(fmt32), d: f, a: r[i]})
			r[i] = f
		}
	}
	in.a, in.b, in.sub = r[0], r[1], join
	return nil
}

func decodeSetp(a *asm) error {
	cmp, join, ftz, ts, err := a.compare(1)
	if err != nil {
		return err
	}
	in := inst{kind: kSetp, cost: 1, x: &extra{cmp: cmp, q: -1}}
	if err := a.compareArgs(&in, join, ftz, ts[0]); err != nil {
		return err
	}
	dst := &a.ri.args[0]
	if dst.kind == oPair {
		if in.x.q, err = a.dstPred(&dst.list[1]); err != nil {
			return err
		}
		dst = &dst.list[0]
	}
	if in.d, err = a.dstPred(dst); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

func decodeSet(a *asm) error {
	cmp, join, ftz, ts, err := a.compare(2)
	if err != nil {
		return err
	}
	in := inst{kind: kSet, cost: 1, x: &extra{cmp: cmp, q: -1}}
	switch ts[0] {
	case tU32, tS32:
		in.imm = 0xffffffff
	case tF32:
		in.imm = uint64(math.Float32bits(1))
	default:
		return a.errf("type %v is not supported", ts[0])
	}
	if err := a.compareArgs(&in, join, ftz, ts[1]); err != nil {
		return err
	}
	if in.d, err = a.dst(&a.ri.args[0], ts[0]); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

func decodeSelp(a *asm) error {
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if err := a.nargs(4, 4); err != nil {
		return err
	}
	if t.bits() < 16 {
		return a.errf("type %v is not supported", t)
	}
	r, err := a.srcs(1, t, t)
	if err != nil {
		return err
	}
	in := inst{kind: kSelp, a: r[0], b: r[1], cost: 1, x: &extra{q: -1}}
	if in.c, in.x.flip, err = a.pred(&a.ri.args[3]); err != nil {
		return err
	}
	if in.d, err = a.dst(&a.ri.args[0], t); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

// decodeSlct is slct: the third source decides by its sign.
func decodeSlct(a *asm) error {
	ftz := a.has("ftz")
	ts, err := a.types(2)
	if err != nil {
		return err
	}
	t, ct := ts[0], ts[1]
	var fn aluFn
	switch {
	case ct == tS32:
		fn = func(d, a, b, c *vec) {
			for i := range d {
				v := b[i]
				if int32(c[i]) >= 0 {
					v = a[i]
				}
				d[i] = v
			}
		}
	case ct == tF32:
		fn = func(d, a, b, c *vec) {
			for i := range d {
				v := b[i]
				// A flushed subnormal counts as zero, which is not negative.
				if f := f32of(c[i]); f >= 0 || ftz && c[i]&fmt32.inf() == 0 {
					v = a[i]
				}
				d[i] = v
			}
		}
	default:
		return a.errf("type %v is not supported", ct)
	}
	if t.bits() < 16 {
		return a.errf("type %v is not supported", t)
	}
	return a.alu(fn, 1, t, t, t, ct)
}

// decodeMov is mov of values, addresses, predicates, and packs and unpacks vectors.
func decodeMov(a *asm) error {
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	dst, src := &a.ri.args[0], &a.ri.args[1]
	switch {
	case t == tPred:
		return a.predOp(joinMov, 1)
	case t.bits() < 16:
		return a.errf("type %v is not supported", t)
	case src.kind == oVec:
		return a.packVector(t, dst, src.list)
	case dst.kind == oVec:
		return a.unpackVector(t, dst.list, src)
	}
	return a.alu(mov64, 1, t, t)
}

func (a *asm) element(t typ, n int) (typ, error) {
	if n == 2 || n == 4 {
		switch t.bits() / n {
		case 8:
			return tB8, nil
		case 16:
			return tB16, nil
		case 32:
			return tB32, nil
		}
	}
	return tNone, a.errf("vector of %d elements in type %v", n, t)
}

func (a *asm) packVector(t typ, dst *operand, list []operand) error {
	e, err := a.element(t, len(list))
	if err != nil {
		return err
	}
	d, err := a.dst(dst, t)
	if err != nil {
		return err
	}
	w := uint(e.bits())
	acc := a.constant(constKey{})
	for i := range list {
		r, err := a.src(&list[i], e)
		if err != nil {
			return err
		}
		sh := uint(i) * w
		to := a.temp()
		if i == len(list)-1 {
			to = d
		}
		a.emit(inst{kind: kALU, d: to, a: r, b: acc, cost: bit8(i == 0), fn: func(d, a, b, _ *vec) {
			for i := range d {
				d[i] = a[i]<<sh | b[i]
			}
		}})
		acc = to
	}
	return nil
}

func bit8(c bool) uint8 { return uint8(bit(c)) }

func (a *asm) unpackVector(t typ, list []operand, src *operand) error {
	e, err := a.element(t, len(list))
	if err != nil {
		return err
	}
	r, err := a.src(src, t)
	if err != nil {
		return err
	}
	// The source may be among the destinations.
	tmp := a.temp()
	a.emit(inst{kind: kALU, fn: mov64, d: tmp, a: r, cost: 1})
	w, m := uint(e.bits()), e.mask()
	for i := range list {
		d, err := a.dst(&list[i], e)
		if err != nil {
			return err
		}
		sh := uint(i) * w
		a.emit(inst{kind: kALU, d: d, a: tmp, fn: func(d, a, _, _ *vec) {
			for i := range d {
				d[i] = a[i] >> sh & m
			}
		}})
	}
	return nil
}
