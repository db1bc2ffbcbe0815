package ptx

type aluKey struct {
	op string
	t  typ
}

// unifyU maps the types whose operation does not depend on signedness to the unsigned one.
func unifyU(t typ) typ {
	switch t.width() {
	case tB16:
		return tU16
	case tB32:
		return tU32
	case tB64:
		return tU64
	}
	return t
}

// intOps are the integer operations by type; "lo" forms and additions are found under the unsigned type.
var intOps = map[aluKey]aluFn{
	{"add", tU16}: addI[uint16], {"add", tU32}: addI[uint32], {"add", tU64}: addI[uint64],
	{"sub", tU16}: subI[uint16], {"sub", tU32}: subI[uint32], {"sub", tU64}: subI[uint64],
	{"mul", tU16}: mulLo[uint16], {"mul", tU32}: mulLo[uint32], {"mul", tU64}: mulLo[uint64],
	{"mad", tU16}: madLo[uint16], {"mad", tU32}: madLo[uint32], {"mad", tU64}: madLo[uint64],
	{"mul.wide", tU16}: mulWideU[uint16], {"mul.wide", tU32}: mulWideU[uint32], {"mul.wide", tS16}: mulWideS16, {"mul.wide", tS32}: mulWideS32,
	{"mad.wide", tU16}: madWideU16, {"mad.wide", tU32}: madWideU32, {"mad.wide", tS16}: madWideS16, {"mad.wide", tS32}: madWideS32,
	{"div", tU16}: divU[uint16], {"div", tU32}: divU[uint32], {"div", tU64}: divU[uint64],
	{"div", tS16}: divS[int16, uint16], {"div", tS32}: divS[int32, uint32], {"div", tS64}: divS[int64, uint64],
	{"rem", tU16}: remU[uint16], {"rem", tU32}: remU[uint32], {"rem", tU64}: remU[uint64],
	{"rem", tS16}: remS[int16, uint16], {"rem", tS32}: remS[int32, uint32], {"rem", tS64}: remS[int64, uint64],
	{"abs", tS16}: absS[int16, uint16], {"abs", tS32}: absS[int32, uint32], {"abs", tS64}: absS[int64, uint64],
	{"neg", tS16}: negI[uint16], {"neg", tS32}: negI[uint32], {"neg", tS64}: negI[uint64],
	{"min", tU16}: minU[uint16], {"min", tU32}: minU[uint32], {"min", tU64}: minU[uint64],
	{"min", tS16}: minS[int16, uint16], {"min", tS32}: minS[int32, uint32], {"min", tS64}: minS[int64, uint64],
	{"max", tU16}: maxU[uint16], {"max", tU32}: maxU[uint32], {"max", tU64}: maxU[uint64],
	{"max", tS16}: maxS[int16, uint16], {"max", tS32}: maxS[int32, uint32], {"max", tS64}: maxS[int64, uint64],
	{"sad", tU16}: sadU[uint16], {"sad", tU32}: sadU[uint32], {"sad", tU64}: sadU[uint64],
	{"sad", tS16}: sadS[int16, uint16], {"sad", tS32}: sadS[int32, uint32], {"sad", tS64}: sadS[int64, uint64],
	{"not", tB16}: not[uint16], {"not", tB32}: not[uint32], {"not", tB64}: not[uint64],
	{"cnot", tB16}: cnot, {"cnot", tB32}: cnot, {"cnot", tB64}: cnot,
	{"and", tB16}: and64, {"and", tB32}: and64, {"and", tB64}: and64,
	{"or", tB16}: or64, {"or", tB32}: or64, {"or", tB64}: or64,
	{"xor", tB16}: xor64, {"xor", tB32}: xor64, {"xor", tB64}: xor64,
	{"shl", tB16}: shl[uint16], {"shl", tB32}: shl[uint32], {"shl", tB64}: shl[uint64],
	{"shr", tU16}: shrU[uint16], {"shr", tU32}: shrU[uint32], {"shr", tU64}: shrU[uint64],
	{"shr", tB16}: shrU[uint16], {"shr", tB32}: shrU[uint32], {"shr", tB64}: shrU[uint64],
	{"shr", tS16}: shrS[int16, uint16], {"shr", tS32}: shrS[int32, uint32], {"shr", tS64}: shrS[int64, uint64],
	{"popc", tB32}: popc, {"popc", tB64}: popc,
	{"clz", tB32}: clz(32), {"clz", tB64}: clz(64),
	{"brev", tB32}: brev(32), {"brev", tB64}: brev(64),
	{"bfind", tU32}: bfind(tU32, false), {"bfind", tU64}: bfind(tU64, false), {"bfind", tS32}: bfind(tS32, false), {"bfind", tS64}: bfind(tS64, false),
	{"bfe", tU32}: bfe(tU32), {"bfe", tU64}: bfe(tU64), {"bfe", tS32}: bfe(tS32), {"bfe", tS64}: bfe(tS64),
}

// operands reads a destination, and as many sources as there are types.
func (a *asm) operands(dt typ, ts ...typ) (d int32, r [4]int32, err error) {
	if err := a.nargs(len(ts)+1, len(ts)+1); err != nil {
		return 0, r, err
	}
	if r, err = a.srcs(1, ts...); err != nil {
		return 0, r, err
	}
	d, err = a.dst(&a.ri.args[0], dt)
	return d, r, err
}

// alu emits fn with n sources of the given types, destination first.
func (a *asm) alu(fn aluFn, cost uint8, dt typ, ts ...typ) error {
	d, r, err := a.operands(dt, ts...)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kALU, fn: fn, d: d, a: r[0], b: r[1], c: r[2], cost: cost})
	return nil
}

func intCost(op string, t typ) uint8 {
	switch {
	case op == "div" || op == "rem":
		if t.bits() == 64 {
			return 16
		}
		return 8
	case (op == "mul" || op == "mad" || op == "mul.wide" || op == "mad.wide") && (t.bits() == 64 || len(op) > 3):
		return 2
	}
	return 1
}

// intOp decodes an operation of intOps with n sources; unify looks it up under the unsigned type.
func intOp(op string, n int, unify bool) func(*asm) error {
	return func(a *asm) error {
		t, err := a.typ1()
		if err != nil {
			return err
		}
		return a.intAlu(op, t, n, unify)
	}
}

func (a *asm) intAlu(op string, t typ, n int, unify bool) error {
	key := aluKey{op, t}
	if unify && (t.signed() || t.unsigned()) {
		key.t = unifyU(t)
	}
	fn := intOps[key]
	if fn == nil {
		return a.errf("type %v is not supported", t)
	}
	ts := []typ{t, t, t}[:n]
	return a.alu(fn, intCost(op, t), t, ts...)
}

func decodeAddSub(op string) func(*asm) error {
	return func(a *asm) error {
		if a.isFloat() {
			return decodeFloat(a, op)
		}
		if a.has("sat") {
			if t, err := a.typ1(); err != nil || t != tS32 {
				return a.errf("saturation of no .s32")
			}
			return a.alu(map[string]aluFn{"add": addSat, "sub": subSat}[op], 1, tS32, tS32, tS32)
		}
		if a.has("cc") {
			return a.carry(op, ccWrite)
		}
		t, err := a.typ1()
		if err != nil {
			return err
		}
		return a.intAlu(op, t, 2, true)
	}
}

// decodeCarry is addc, subc, madc.
func decodeCarry(op string) func(*asm) error {
	return func(a *asm) error {
		sub := uint8(ccRead)
		if a.has("cc") {
			sub |= ccWrite
		}
		return a.carry(op, sub)
	}
}

// carry emits an operation of the extended-precision family.
func (a *asm) carry(op string, sub uint8) error {
	hi := false
	if op == "mad" {
		form := a.oneOf("lo", "hi")
		if form == "" {
			return a.errf(".lo or .hi is missing")
		}
		hi = form == "hi"
	}
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if !t.integer() || t.isBits() || t.bits() < 32 {
		return a.errf("type %v is not supported", t)
	}
	if a.f.ccPred == 0 {
		a.f.ccPred = a.f.numPreds
		a.f.numPreds++
	}
	in := inst{kind: kCC, sub: sub, cost: 1}
	ts := []typ{t, t}
	switch op {
	case "add":
		in.x = &extra{cc: addCC(t.bits())}
	case "sub":
		in.x = &extra{cc: subCC(t.bits())}
	default:
		in.x, in.cost = &extra{cc: madCC(t, hi)}, 2
		ts = append(ts, t)
	}
	if err := a.nargs(len(ts)+1, len(ts)+1); err != nil {
		return err
	}
	r, err := a.srcs(1, ts...)
	if err != nil {
		return err
	}
	if in.d, err = a.dst(&a.ri.args[0], t); err != nil {
		return err
	}
	in.a, in.b, in.c = r[0], r[1], r[2]
	a.emit(in)
	return nil
}

func wider(t typ) typ {
	switch t.bits() {
	case 16:
		return tB32
	case 32:
		return tB64
	}
	return tNone
}

func decodeMul(a *asm) error {
	if a.isFloat() {
		return decodeFloat(a, "mul")
	}
	form := a.oneOf("lo", "hi", "wide")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if !t.signed() && !t.unsigned() || t.bits() < 16 {
		return a.errf("type %v is not supported", t)
	}
	switch form {
	case "lo":
		return a.intAlu("mul", t, 2, true)
	case "hi":
		return a.alu(mulHi(t), 2, t, t, t)
	case "wide":
		if fn := intOps[aluKey{"mul.wide", t}]; fn != nil {
			return a.alu(fn, 2, wider(t), t, t)
		}
	}
	return a.errf("needs .lo, .hi or .wide")
}

func decodeMad(a *asm) error {
	if a.isFloat() {
		return decodeFloat(a, "fma")
	}
	if a.has("cc") {
		return a.carry("mad", ccWrite)
	}
	form, sat := a.oneOf("lo", "hi", "wide"), a.has("sat")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if !t.signed() && !t.unsigned() || t.bits() < 16 {
		return a.errf("type %v is not supported", t)
	}
	switch {
	case sat && form == "hi" && t == tS32:
		return a.alu(madHiSat, 2, t, t, t, t)
	case sat:
		return a.errf("saturation is for .hi.s32")
	case form == "lo":
		return a.intAlu("mad", t, 3, true)
	case form == "hi":
		return a.alu(madHi(t), 2, t, t, t, t)
	case form == "wide":
		if fn := intOps[aluKey{"mad.wide", t}]; fn != nil {
			return a.alu(fn, 2, wider(t), t, t, wider(t))
		}
	}
	return a.errf("needs .lo, .hi or .wide")
}

func decode24(mad bool) func(*asm) error {
	return func(a *asm) error {
		form, sat := a.oneOf("lo", "hi"), a.has("sat")
		t, err := a.typ1()
		if err != nil {
			return err
		}
		if t != tS32 && t != tU32 || form == "" || sat && (!mad || t != tS32 || form != "hi") {
			return a.errf("form is not supported")
		}
		if mad {
			return a.alu(mad24(t == tS32, form == "hi", sat), 2, t, t, t, t)
		}
		return a.alu(mul24(t == tS32, form == "hi"), 2, t, t, t)
	}
}

// decodeLogic is and, or, xor, not on registers and predicates.
func decodeLogic(op string, join uint8) func(*asm) error {
	return func(a *asm) error {
		t, err := a.typ1()
		if err != nil {
			return err
		}
		n := 2
		if op == "not" {
			n = 1
		}
		if t != tPred {
			return a.intAlu(op, t, n, false)
		}
		return a.predOp(join, n)
	}
}

// predOp emits an operation on predicates.
func (a *asm) predOp(join uint8, n int) error {
	if err := a.nargs(n+1, n+1); err != nil {
		return err
	}
	in := inst{kind: kPred, sub: join, cost: 1, x: &extra{q: -1}}
	var err error
	if in.d, err = a.dstPred(&a.ri.args[0]); err != nil {
		return err
	}
	if in.a, in.x.flip, err = a.pred(&a.ri.args[1]); err != nil {
		return err
	}
	if n == 2 {
		if in.b, in.x.flipB, err = a.pred(&a.ri.args[2]); err != nil {
			return err
		}
	}
	a.emit(in)
	return nil
}

// dstPred returns a predicate destination; a sink gets one that nobody reads.
func (a *asm) dstPred(o *operand) (int32, error) {
	if o.kind == oSink {
		a.f.numPreds++
		return a.f.numPreds - 1, nil
	}
	if o.kind == oInt || o.neg {
		return 0, a.errf("destination is not a predicate")
	}
	i, _, err := a.pred(o)
	return i, err
}

// intOp finds the function of an operation on the instruction's one type.
func (a *asm) intOp(op string) (aluFn, typ, error) {
	t, err := a.typ1()
	if err != nil {
		return nil, t, err
	}
	fn := intOps[aluKey{op, t}]
	if fn == nil {
		return nil, t, a.errf("type %v is not supported", t)
	}
	return fn, t, nil
}

// decodeShift is shl and shr: the amount is 32 bits whatever the type.
func decodeShift(op string) func(*asm) error {
	return func(a *asm) error {
		fn, t, err := a.intOp(op)
		if err != nil {
			return err
		}
		return a.alu(fn, 1, t, t, tB32)
	}
}

// decodeCount is popc, clz: 32-bit results.
func decodeCount(op string) func(*asm) error {
	return func(a *asm) error {
		fn, t, err := a.intOp(op)
		if err != nil {
			return err
		}
		return a.alu(fn, 1, tB32, t)
	}
}

func decodeBfind(a *asm) error {
	shift := a.has("shiftamt")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if intOps[aluKey{"bfind", t}] == nil {
		return a.errf("type %v is not supported", t)
	}
	return a.alu(bfind(t, shift), 1, tB32, t)
}

func decodeBfe(a *asm) error {
	t, err := a.typ1()
	if err != nil {
		return err
	}
	fn := intOps[aluKey{"bfe", t}]
	if fn == nil {
		return a.errf("type %v is not supported", t)
	}
	return a.alu(fn, 1, t, t, tB32, tB32)
}

// alu4 emits a function of four sources.
func (a *asm) alu4(fn alu4Fn, dt typ, ts ...typ) error {
	d, r, err := a.operands(dt, ts...)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kALU4, d: d, a: r[0], b: r[1], c: r[2], cost: 1, x: &extra{fn4: fn, e: r[3]}})
	return nil
}

func decodeBfi(a *asm) error {
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t != tB32 && t != tB64 {
		return a.errf("type %v is not supported", t)
	}
	return a.alu4(bfi(t), t, t, t, tB32, tB32)
}

func decodeLop3(a *asm) error {
	if t, err := a.typ1(); err != nil {
		return err
	} else if t != tB32 {
		return a.errf("type %v is not supported", t)
	}
	if err := a.nargs(5, 5); err != nil {
		return err
	}
	if lut := &a.ri.args[4]; lut.kind != oInt || lut.val > 255 {
		return a.errf("look-up table is not a constant from 0 to 255")
	}
	return a.alu4(lop3, tB32, tB32, tB32, tB32, tB32)
}

func decodePrmt(a *asm) error {
	t := a.optType()
	mode := a.oneOf("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
	if err := a.done(); err != nil {
		return err
	}
	if t != tB32 {
		return a.errf("type %v is not supported", t)
	}
	return a.alu(prmt(mode), 1, tB32, tB32, tB32, tB32)
}

func decodeShf(a *asm) error {
	dir, mode := a.oneOf("l", "r"), a.oneOf("clamp", "wrap")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t != tB32 || dir == "" || mode == "" {
		return a.errf("form is not supported")
	}
	return a.alu(shf(dir == "l", mode == "clamp"), 1, tB32, tB32, tB32, tB32)
}

func decodeDp(a *asm) error {
	half := a.oneOf("lo", "hi")
	ts, err := a.types(2)
	if err != nil {
		return err
	}
	for _, t := range ts[:2] {
		if t != tU32 && t != tS32 {
			return a.errf("type %v is not supported", t)
		}
	}
	sa, sb := ts[0] == tS32, ts[1] == tS32
	if a.ri.op == "dp4a" {
		return a.alu(dp4a(sa, sb), 2, tB32, tB32, tB32, tB32)
	}
	if half == "" {
		return a.errf(".lo or .hi is missing")
	}
	return a.alu(dp2a(sa, sb, half == "hi"), 2, tB32, tB32, tB32, tB32)
}
