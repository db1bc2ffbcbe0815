package ptx

import (
	"fmt"
	"strconv"
)

// asm compiles one function.
type asm struct {
	source
	p      *parser
	f      *function
	index  int32 // of ri in the body
	regs   map[regKey]int32
	consts map[constKey]int32
	shared map[*variable]bool
	starts []int32 // code index of each raw instruction
	fixes  []fix
	guard  int32
	flip   uint32
}

type regKey struct {
	decl int32
	n    int64
}

type constKey struct {
	val    uint64
	global *Global
	fn     *function
	shared *variable
}

// fix is a branch whose target is a raw index until all code is placed.
type fix struct{ code, table, raw int }

// compileFunc turns a function's raw body into code.
func (p *parser) compileFunc(f *function) error {
	a := &asm{p: p, f: f, regs: map[regKey]int32{}, consts: map[constKey]int32{}, shared: map[*variable]bool{}}
	f.numPreds = 1
	var off int64
	for _, v := range f.local {
		off = (off + v.align - 1) &^ (v.align - 1)
		v.off = off
		if off += v.size; off > MaxLocalBytes {
			return &Error{Line: int(v.line), Instr: v.name, Msg: fmt.Sprintf("more than %d bytes of local memory", MaxLocalBytes)}
		}
	}
	f.localBytes = (off + 15) &^ 15
	end := rawInst{line: f.line, op: "ret", text: "ret;", scope: f.root}
	f.body = append(f.body, end)
	a.starts = make([]int32, len(f.body))
	if err := a.prologue(); err != nil {
		return err
	}
	for i := range f.body {
		a.ri, a.index, a.used = &f.body[i], int32(i), 0
		a.starts[i] = int32(len(f.code))
		if err := a.one(); err != nil {
			return err
		}
	}
	for _, x := range a.fixes {
		to := a.starts[x.raw]
		if in := &f.code[x.code]; x.table < 0 {
			in.imm = uint64(to)
		} else {
			in.x.table[x.table] = to
		}
	}
	if f.numRegs > maxRegs || f.numPreds > maxRegs || len(f.consts) > maxRegs {
		return &Error{Line: int(f.line), Instr: f.name, Msg: fmt.Sprintf("more than %d registers or constants", maxRegs)}
	}
	shareRegisters(f)
	return nil
}

func (a *asm) one() error {
	a.guard, a.flip = 0, 0
	if a.ri.guard != "" {
		g, _, err := a.pred(&operand{kind: oSym, name: a.ri.guard})
		if err != nil {
			return err
		}
		a.guard = g
		if a.ri.guardNeg {
			a.flip = fullMask
		}
	}
	dec := decoders[a.ri.op]
	if dec == nil {
		return a.errf("instruction is not supported")
	}
	if len(a.ri.mods) > 64 {
		return a.errf("too many modifiers")
	}
	return dec(a)
}

// emit appends an instruction under the guard of the source instruction. The pointer is good until the next emit.
func (a *asm) emit(in inst) *inst {
	in.raw, in.guard, in.flip = a.index, a.guard, a.flip
	a.f.code = append(a.f.code, in)
	return &a.f.code[len(a.f.code)-1]
}

// find looks a register up from the innermost scope out.
func (a *asm) find(name string) (regKey, typ, bool) {
	prefix := len(name)
	for prefix > 0 && isDigit(name[prefix-1]) {
		prefix--
	}
	for s := a.ri.scope; s != nil; s = s.parent {
		if d, ok := s.regs[name]; ok && d.count < 0 {
			return regKey{d.id, 0}, d.t, true
		}
		for cut := prefix; cut < len(name); cut++ { // %r10 may be r<20> or r1<5>
			d, ok := s.regs[name[:cut]]
			if !ok || d.count < 0 || name[cut] == '0' && cut != len(name)-1 {
				continue
			}
			if n, err := strconv.ParseInt(name[cut:], 10, 64); err == nil && n < d.count {
				return regKey{d.id, n}, d.t, true
			}
		}
	}
	return regKey{}, tNone, false
}

// register returns the index of a named register and its type; pred registers have an index space of their own.
func (a *asm) register(o *operand) (int32, typ, error) {
	if o.kind != oReg && o.kind != oSym || o.member != "" || o.val != 0 {
		return 0, tNone, a.errf("operand is not a register")
	}
	key, t, ok := a.find(o.name)
	if !ok {
		return 0, tNone, a.errf("unknown register %s", o.name)
	}
	i, ok := a.regs[key]
	if !ok {
		if t == tPred {
			i = a.f.numPreds
			a.f.numPreds++
		} else {
			i = a.temp()
		}
		a.regs[key] = i
	}
	return i, t, nil
}

// temp makes a register of no name.
func (a *asm) temp() int32 {
	a.f.numRegs++
	return a.f.numRegs - 1
}

// pred returns the index of a predicate operand and whether it is negated.
func (a *asm) pred(o *operand) (int32, uint32, error) {
	var flip uint32
	if o.neg {
		flip = fullMask
	}
	if o.kind == oInt {
		if o.val == 0 {
			flip = ^flip
		}
		return 0, flip, nil
	}
	i, t, err := a.register(o)
	if err == nil && t != tPred {
		err = a.errf("%s is not a predicate", o.name)
	}
	return i, flip, err
}

// dst returns the register of a destination of type t; a sink gets a register that nobody reads.
func (a *asm) dst(o *operand, t typ) (int32, error) {
	if o.kind == oSink {
		return a.temp(), nil
	}
	i, rt, err := a.register(o)
	if err == nil && (rt == tPred || rt.bits() != t.bits()) {
		err = a.errf("register %s of type %v where %v was expected", o.name, rt, t)
	}
	return i, err
}

// src returns the index of a source of type t: register, special register, literal or address.
func (a *asm) src(o *operand, t typ) (int32, error) {
	i, rt, err := a.wideSrc(o, t)
	if err == nil && rt != tNone && rt.bits() != t.bits() {
		err = a.errf("register %s of type %v where %v was expected", o.name, rt, t)
	}
	return i, err
}

// wideSrc is src for instructions that take a wider register too; it returns the register's type, tNone for other
// operands.
func (a *asm) wideSrc(o *operand, t typ) (int32, typ, error) {
	if o.neg {
		return 0, tNone, a.errf("'!' before %s", o.name)
	}
	switch o.kind {
	case oInt, oFloat, oF32, oF64:
		v, ok := o.constant(t)
		if !ok {
			return 0, tNone, a.errf("literal does not fit type %v", t)
		}
		return a.constant(constKey{val: v}), tNone, nil
	case oReg, oSym:
		if _, rt, ok := a.find(o.name); ok {
			if rt == tPred {
				return 0, tNone, a.errf("predicate %s where a value was expected", o.name)
			}
			i, rt, err := a.register(o)
			return i, rt, err
		}
		if o.kind == oReg {
			i, err := a.special(o, t)
			return i, tNone, err
		}
		if t.bits() < 32 {
			return 0, tNone, a.errf("address of %s in type %v", o.name, t)
		}
		i, _, err := a.symbol(o.name, o.val)
		return i, tNone, err
	}
	return 0, tNone, a.errf("operand is not a value")
}

// srcs reads operands from..from+n as sources of the given types.
func (a *asm) srcs(from int, ts ...typ) (r [4]int32, err error) {
	for i, t := range ts {
		if r[i], err = a.src(&a.ri.args[from+i], t); err != nil {
			return r, err
		}
	}
	return r, nil
}

// constant returns the index of a constant.
func (a *asm) constant(k constKey) int32 {
	if i, ok := a.consts[k]; ok {
		return i
	}
	index := int32(len(a.f.consts))
	a.f.consts = append(a.f.consts, k.val)
	if k.global != nil || k.fn != nil || k.shared != nil {
		a.f.relocs = append(a.f.relocs, constReloc{index: index, global: k.global, fn: k.fn, shared: k.shared, add: k.val})
	}
	a.consts[k] = ^index
	return ^index
}

// variable looks a name up in the scopes, the formals and the module.
func (a *asm) variable(name string) (*variable, *formal) {
	for s := a.ri.scope; s != nil; s = s.parent {
		if v := s.vars[name]; v != nil {
			return v, nil
		}
	}
	for _, list := range [][]formal{a.f.params, a.f.rets} {
		for i := range list {
			if list[i].name == name && !list[i].reg {
				return nil, &list[i]
			}
		}
	}
	return a.p.vars[name], nil
}

// symbol returns the operand that holds the address of a symbol, in its own space, plus add.
func (a *asm) symbol(name string, add uint64) (int32, memSpace, error) {
	v, fm := a.variable(name)
	switch {
	case fm != nil && a.f.entry:
		return a.constant(constKey{val: uint64(fm.off) + add}), inKernelParam, nil
	case fm != nil:
		return a.constant(constKey{val: uint64(fm.off) + add}), inFrameParam, nil
	case v == nil && a.p.decls[name] != nil:
		return a.constant(constKey{val: add, fn: a.p.decls[name]}), inGeneric, nil
	case v == nil:
		return 0, 0, a.errf("unknown name %s", name)
	}
	switch v.space {
	case "param":
		return a.constant(constKey{val: uint64(v.off) + add}), inFrameParam, nil
	case "local":
		if a.f.entry {
			return a.constant(constKey{val: uint64(v.off) + add}), inLocal, nil
		}
		return a.readSpecial(srLocalBase, uint64(v.off)+add, a.temp()), inLocal, nil
	case "shared":
		if v.extern {
			return a.readSpecial(srDynamicShared, add, a.temp()), inShared, nil
		}
		if !a.shared[v] {
			a.shared[v] = true
			a.f.usesShared = append(a.f.usesShared, v)
		}
		return a.constant(constKey{val: add, shared: v}), inShared, nil
	}
	return a.constant(constKey{val: add, global: v.glob}), inGlobal, nil
}

// readSpecial emits the read of a special register plus add into d and returns d.
func (a *asm) readSpecial(sub uint8, add uint64, d int32) int32 {
	a.emit(inst{kind: kSreg, d: d, sub: sub, imm: add, cost: 1})
	return d
}

// special reads a special register as a source of type t.
func (a *asm) special(o *operand, t typ) (int32, error) {
	if t.float() || t.bits() < 16 {
		return 0, a.errf("unknown register %s", o.name)
	}
	name := o.name
	if o.member != "" {
		name += "." + o.member
	}
	if o.val != 0 {
		return 0, a.errf("offset after %s", name)
	}
	sub, ok := specials[name]
	if !ok {
		return 0, a.errf("unknown register %s", name)
	}
	d := a.readSpecial(sub, 0, a.temp())
	if t.bits() < 64 {
		m := a.constant(constKey{val: t.mask()})
		a.emit(inst{kind: kALU, fn: and64, d: d, a: d, b: m})
	}
	return d, nil
}

// label returns the raw index a label stands for.
func (a *asm) label(name string) (int, error) {
	for s := a.ri.scope; s != nil; s = s.parent {
		if i, ok := s.labels[name]; ok {
			return i, nil
		}
	}
	return 0, a.errf("unknown label %s", name)
}
