package ptx

// decoders turn a raw instruction into code, by its first word.
var decoders map[string]func(*asm) error

func init() {
	// Assigned here because the decoders and this table refer to each other.
	decoders = map[string]func(*asm) error{
		"add": decodeAddSub("add"), "sub": decodeAddSub("sub"), "mul": decodeMul, "mad": decodeMad, "fma": decodeFma,
		"addc": decodeCarry("add"), "subc": decodeCarry("sub"), "madc": decodeCarry("mad"),
		"mul24": decode24(false), "mad24": decode24(true), "sad": intOp("sad", 3, false), "div": decodeDiv, "rem": intOp("rem", 2, false),
		"abs": decodeSign("abs"), "neg": decodeSign("neg"), "min": decodeMinMax("min"), "max": decodeMinMax("max"),
		"and": decodeLogic("and", joinAnd), "or": decodeLogic("or", joinOr), "xor": decodeLogic("xor", joinXor),
		"not": decodeLogic("not", joinNot), "cnot": intOp("cnot", 1, false), "shl": decodeShift("shl"), "shr": decodeShift("shr"),
		"shf": decodeShf, "lop3": decodeLop3, "prmt": decodePrmt, "popc": decodeCount("popc"), "clz": decodeCount("clz"),
		"brev": intOp("brev", 1, false), "bfind": decodeBfind, "bfe": decodeBfe, "bfi": decodeBfi, "dp4a": decodeDp, "dp2a": decodeDp,

		"rcp": decodeUnary("rcp"), "sqrt": decodeUnary("sqrt"), "rsqrt": decodeApprox, "ex2": decodeApprox, "lg2": decodeApprox,
		"sin": decodeApprox, "cos": decodeApprox, "tanh": decodeApprox, "copysign": decodeCopysign, "testp": decodeTestp, "cvt": decodeCvt,

		"setp": decodeSetp, "set": decodeSet, "selp": decodeSelp, "slct": decodeSlct, "mov": decodeMov,

		"ld": decodeLd, "ldu": decodeLd, "st": decodeSt, "atom": decodeAtom, "red": decodeAtom, "cvta": decodeCvta, "isspacep": decodeIsspacep,
		"prefetch": decodeNop, "prefetchu": decodeNop, "applypriority": decodeNop, "discard": decodeNop,
		"membar": decodeFence, "fence": decodeFence,

		"bra": decodeBra, "brx": decodeBrx, "ret": decodeRet, "exit": decodePlain(kExit, 1), "trap": decodePlain(kTrap, 1),
		"brkpt": decodePlain(kTrap, 1), "call": decodeCall, "nanosleep": decodeSleep, "pmevent": decodeNop,
		"bar": decodeBar, "barrier": decodeBar, "shfl": decodeShfl, "vote": decodeVote, "match": decodeMatch,
		"activemask": decodeActive, "redux": decodeRedux, "elect": decodeElect,
	}
}

func decodePlain(kind opcode, cost uint8) func(*asm) error {
	return func(a *asm) error {
		if err := a.done(); err != nil {
			return err
		}
		if err := a.nargs(0, 0); err != nil {
			return err
		}
		a.emit(inst{kind: kind, cost: cost})
		return nil
	}
}

func decodeBra(a *asm) error {
	a.has("uni")
	if err := a.done(); err != nil {
		return err
	}
	if err := a.nargs(1, 1); err != nil {
		return err
	}
	if k := a.ri.args[0].kind; k != oSym && k != oReg {
		return a.errf("target is not a label")
	}
	to, err := a.label(a.ri.args[0].name)
	if err != nil {
		return err
	}
	a.fixes = append(a.fixes, fix{code: len(a.f.code), table: -1, raw: to})
	a.emit(inst{kind: kBra, cost: 1})
	return nil
}

func decodeBrx(a *asm) error {
	a.has("idx")
	a.has("uni")
	if err := a.done(); err != nil {
		return err
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	r, err := a.srcs(0, tB32)
	if err != nil {
		return err
	}
	var names []string
	for s := a.ri.scope; s != nil && names == nil; s = s.parent {
		names = s.tables[a.ri.args[1].name]
	}
	if names == nil {
		return a.errf("%s is not a list of branch targets", a.ri.args[1].name)
	}
	in := inst{kind: kBrx, a: r[0], cost: 2, x: &extra{table: make([]int32, len(names))}}
	for i, n := range names {
		to, err := a.label(n)
		if err != nil {
			return err
		}
		a.fixes = append(a.fixes, fix{code: len(a.f.code), table: i, raw: to})
	}
	a.emit(in)
	return nil
}

// prologue moves parameters that are registers out of the parameter area.
func (a *asm) prologue() error {
	a.ri = &a.f.body[len(a.f.body)-1]
	for _, list := range [][]formal{a.f.params, a.f.rets} {
		for i := range list {
			if list[i].reg {
				if a.f.root.regs == nil {
					a.f.root.regs = map[string]regDecl{}
				}
				if _, dup := a.f.root.regs[list[i].name]; dup {
					return a.errf("register %s is declared twice", list[i].name)
				}
				a.f.root.regs[list[i].name] = regDecl{t: list[i].t, count: -1, id: a.f.numDecls}
				a.f.numDecls++
			}
		}
	}
	for i := range a.f.params {
		if fm := &a.f.params[i]; fm.reg {
			if err := a.paramReg(fm, kLd); err != nil {
				return err
			}
		}
	}
	return nil
}

// paramReg moves a register parameter between its register and the parameter area.
func (a *asm) paramReg(fm *formal, kind opcode) error {
	r, _, err := a.register(&operand{kind: oReg, name: fm.name})
	if err != nil {
		return err
	}
	a.paramMove(kind, r, fm.off, fm.t)
	return nil
}

func (a *asm) paramMove(kind opcode, r int32, off int, t typ) {
	at := a.constant(constKey{val: uint64(off)})
	a.emit(inst{kind: kind, a: at, size: uint8(t.bytes()), cost: 2, x: &extra{space: inFrameParam, regs: []int32{r}, mask: t.mask()}})
}

func decodeRet(a *asm) error {
	a.has("uni")
	if err := a.done(); err != nil {
		return err
	}
	if err := a.nargs(0, 0); err != nil {
		return err
	}
	if a.f.entry {
		a.emit(inst{kind: kExit, cost: 1})
		return nil
	}
	for i := range a.f.rets {
		if fm := &a.f.rets[i]; fm.reg {
			if err := a.paramReg(fm, kSt); err != nil {
				return err
			}
		}
	}
	a.emit(inst{kind: kRet, cost: 4})
	return nil
}

// decodeCall is call (rets), function or pointer, (args), prototype.
func decodeCall(a *asm) error {
	a.has("uni")
	if err := a.done(); err != nil {
		return err
	}
	args := a.ri.args
	var rets, params []operand
	if len(args) > 0 && args[0].kind == oList {
		rets, args = args[0].list, args[1:]
	}
	if len(args) == 0 || args[0].kind != oReg && args[0].kind != oSym {
		return a.errf("callee is missing")
	}
	target := &args[0]
	args = args[1:]
	if len(args) > 0 && args[0].kind == oList {
		params, args = args[0].list, args[1:]
	}
	site := &callSite{}
	in := inst{kind: kCall, cost: 4, x: &extra{call: site}}
	sig, err := a.callee(target, args, &in)
	if err != nil {
		return err
	}
	if len(rets) != len(sig.rets) || len(params) != len(sig.params) {
		return a.errf("call with %d results and %d arguments of a function with %d and %d",
			len(rets), len(params), len(sig.rets), len(sig.params))
	}
	if err := a.callArguments(site, params, sig.params); err != nil {
		return err
	}
	after, err := a.callResults(site, rets, sig.rets)
	if err != nil {
		return err
	}
	a.f.calls = append(a.f.calls, site)
	a.emit(in)
	for _, move := range after {
		move()
	}
	return nil
}

// signature is what a function is called with.
type signature struct{ rets, params []formal }

// callee finds the function that a call names, or the prototype of one that is called through a pointer.
func (a *asm) callee(target *operand, args []operand, in *inst) (signature, error) {
	if _, _, ok := a.find(target.name); ok {
		r, err := a.src(target, tB64)
		if err != nil {
			return signature{}, err
		}
		in.a = r
		a.f.indirect = true
		if len(args) != 1 {
			return signature{}, a.errf("call through a pointer without a prototype")
		}
		pr, f := a.prototype(args[0].name)
		switch {
		case pr != nil:
			return signature{pr.rets, pr.params}, nil
		case f != nil:
			return signature{f.rets, f.params}, nil
		default:
			return signature{}, a.errf("%s is not a prototype", args[0].name)
		}
	}
	f := a.p.decls[target.name]
	if f == nil {
		return signature{}, a.errf("unknown function %s", target.name)
	}
	if f.entry {
		return signature{}, a.errf("call of the kernel %s", f.name)
	}
	site := in.x.call
	site.name = f.name
	if f.defined {
		site.callee = f
	}
	return signature{f.rets, f.params}, nil
}

// callArguments stores the arguments of a call where the callee expects them.
func (a *asm) callArguments(site *callSite, params []operand, want []formal) error {
	for i := range params {
		c, err := a.passed(&params[i], &want[i])
		if err != nil {
			return err
		}
		if params[i].kind != oSym || c.fresh {
			r, err := a.src(&params[i], want[i].t)
			if err != nil {
				return err
			}
			a.paramMove(kSt, r, c.caller, want[i].t)
		}
		site.args = append(site.args, c.copyParam)
	}
	return nil
}

// callResults notes where the results of a call go, and returns what loads them after it.
func (a *asm) callResults(site *callSite, rets []operand, want []formal) (after []func(), err error) {
	for i := range rets {
		c, err := a.passed(&rets[i], &want[i])
		if err != nil {
			return nil, err
		}
		if c.fresh {
			d, err := a.dst(&rets[i], want[i].t)
			if err != nil {
				return nil, err
			}
			after = append(after, func() { a.paramMove(kLd, d, c.caller, want[i].t) })
		}
		site.rets = append(site.rets, c.copyParam)
	}
	return after, nil
}

// prototype looks up what a call through a pointer names: a prototype, or a list of possible targets.
func (a *asm) prototype(name string) (*prototype, *function) {
	for s := a.ri.scope; s != nil; s = s.parent {
		if p := s.protos[name]; p != nil {
			return p, nil
		}
		if t := s.tables[name]; len(t) > 0 {
			return nil, a.p.decls[t[0]]
		}
	}
	return nil, nil
}

// passing is the place of an argument or result in the caller's parameter area.
type passing struct {
	copyParam
	fresh bool // the operand is no .param variable: it goes through a place made for it
}

func (a *asm) passed(o *operand, fm *formal) (passing, error) {
	c := passing{copyParam: copyParam{callee: fm.off, size: fm.size}}
	if o.kind == oSym {
		v, own := a.variable(o.name)
		if _, _, isReg := a.find(o.name); isReg {
			v, own = nil, nil
		}
		if own != nil && !a.f.entry {
			v = &variable{space: "param", off: int64(own.off), size: int64(own.size)}
		}
		if v != nil && v.space == "param" {
			if v.size != int64(fm.size) || o.val != 0 {
				return c, a.errf("%s of %d bytes for a parameter of %d", o.name, v.size, fm.size)
			}
			c.caller = int(v.off)
			return c, nil
		}
	}
	if fm.size > 8 {
		return c, a.errf("register for a parameter of %d bytes", fm.size)
	}
	c.fresh = true
	c.caller = (a.f.paramMax + 7) &^ 7
	a.f.paramMax = c.caller + fm.size
	if a.f.paramMax > MaxParamBytes {
		return c, a.errf("more than %d bytes of parameters", MaxParamBytes)
	}
	return c, nil
}

func decodeSleep(a *asm) error {
	if t, err := a.typ1(); err != nil {
		return err
	} else if t != tU32 {
		return a.errf("type %v is not supported", t)
	}
	if err := a.nargs(1, 1); err != nil {
		return err
	}
	r, err := a.srcs(0, tU32)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kSleep, a: r[0], cost: 1})
	return nil
}
