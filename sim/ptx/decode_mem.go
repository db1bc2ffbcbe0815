package ptx

// spaceOf consumes the state space; a generic address when there is none.
func (a *asm) spaceOf() (string, memSpace, error) {
	s := a.oneOf("global", "shared", "local", "const", "param", "shared::cta", "param::entry", "param::func")
	switch s {
	case "":
		return s, inGeneric, nil
	case "global", "const":
		return s, inGlobal, nil
	case "shared", "shared::cta":
		return s, inShared, nil
	case "local":
		return s, inLocal, nil
	}
	if a.f.entry && s != "param::func" {
		return "param", inKernelParam, nil
	}
	return "param", inFrameParam, nil
}

// base resolves an address operand: the index of the base, the offset, and the space that a parameter's name implies.
func (a *asm) base(o *operand, space memSpace) (int32, uint64, memSpace, error) {
	if o.kind != oAddr {
		return 0, 0, space, a.errf("operand is not an address")
	}
	b := &o.list[0]
	if b.kind == oInt {
		return a.constant(constKey{val: b.val + o.val}), 0, space, nil
	}
	if b.member != "" || b.neg {
		return 0, 0, space, a.errf("address is not a register")
	}
	if _, t, ok := a.find(b.name); ok {
		if t == tPred || t.bits() < 32 {
			return 0, 0, space, a.errf("address register %s of type %v", b.name, t)
		}
		i, _, err := a.register(b)
		return i, o.val, space, err
	}
	if b.kind == oReg {
		return 0, 0, space, a.errf("unknown register %s", b.name)
	}
	i, own, err := a.symbol(b.name, o.val)
	if err != nil {
		return 0, 0, space, err
	}
	param := func(s memSpace) bool { return s == inKernelParam || s == inFrameParam }
	switch {
	case param(own) && param(space), space == inGeneric:
		// A generic access to a variable by name is an access to the space of the variable.
		space = own
	case own != space && own != inGeneric:
		return 0, 0, space, a.errf("%s is in another state space", b.name)
	}
	return i, 0, space, nil
}

var memCost = [...]uint8{inGeneric: 4, inGlobal: 4, inShared: 2, inLocal: 2, inKernelParam: 1, inFrameParam: 2}

// memory reads what ld and st have in common: space, order, vector length and type. It leaves no modifier unread.
func (a *asm) memory() (space memSpace, name string, strong bool, n int, t typ, err error) {
	strong = a.ordering()
	if name, space, err = a.spaceOf(); err != nil {
		return
	}
	n = map[string]int{"": 1, "v2": 2, "v4": 4, "v8": 8}[a.oneOf("v2", "v4", "v8")]
	if t, err = a.typ1(); err != nil {
		return
	}
	if t == tPred || t == tF16x2 || t == tBF16x2 || t.bytes()*n > 32 {
		err = a.errf("type %v is not supported", t)
	}
	return
}

func decodeLd(a *asm) error {
	space, name, strong, n, t, err := a.memory()
	if err != nil {
		return err
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	list, err := a.elements(&a.ri.args[0], n)
	if err != nil {
		return err
	}
	in := inst{kind: kLd, size: uint8(t.bytes()), x: &extra{strong: strong, mask: t.mask()}}
	if in.a, in.imm, in.x.space, err = a.base(&a.ri.args[1], space); err != nil {
		return err
	}
	in.cost = memCost[in.x.space] + uint8((t.bytes()*n-1)/4)
	if name == "const" && in.a < 0 {
		in.cost = 1
	}
	for i := range list {
		o := &list[i]
		if o.kind == oSink {
			in.x.regs = append(in.x.regs, sinkReg)
			continue
		}
		d, rt, err := a.register(o)
		if err != nil {
			return err
		}
		if rt == tPred || rt.bits() < t.bits() {
			return a.errf("register %s of type %v for a value of %v", o.name, rt, t)
		}
		if t.signed() {
			in.x.ext = 1 << (t.bits() - 1)
			in.x.mask = rt.mask()
		}
		in.x.regs = append(in.x.regs, d)
	}
	if in.x.space == inKernelParam && in.a < 0 && n == 1 && in.x.regs[0] != sinkReg {
		in.kind, in.d, in.imm = kLdParam, in.x.regs[0], a.f.consts[^in.a]+in.imm
		if in.imm > uint64(a.f.kernel.ParamBytes) || in.imm+uint64(in.size) > uint64(a.f.kernel.ParamBytes) {
			return a.errf("parameter access past the %d bytes of the parameters", a.f.kernel.ParamBytes)
		}
	}
	a.emit(in)
	return nil
}

func decodeSt(a *asm) error {
	space, _, strong, n, t, err := a.memory()
	if err != nil {
		return err
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	list, err := a.elements(&a.ri.args[1], n)
	if err != nil {
		return err
	}
	in := inst{kind: kSt, size: uint8(t.bytes()), x: &extra{strong: strong}}
	if in.a, in.imm, in.x.space, err = a.base(&a.ri.args[0], space); err != nil {
		return err
	}
	in.cost = memCost[in.x.space] + uint8((t.bytes()*n-1)/4)
	for i := range list {
		r, rt, err := a.wideSrc(&list[i], t)
		if err != nil {
			return err
		}
		if rt != tNone && rt.bits() < t.bits() {
			return a.errf("register %s of type %v for a value of %v", list[i].name, rt, t)
		}
		in.x.regs = append(in.x.regs, r)
	}
	a.emit(in)
	return nil
}

// decodeAtom is atom and red.
func decodeAtom(a *asm) error {
	a.ordering()
	_, space, err := a.spaceOf()
	if err != nil {
		return err
	}
	a.has("noftz")
	op := a.oneOf("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	fn := atomicOp(op, t)
	if fn == nil || space == inKernelParam || space == inFrameParam {
		return a.errf("operation .%s on type %v is not supported", op, t)
	}
	in := inst{kind: kAtom, size: uint8(t.bytes()), cost: 8, x: &extra{atom: fn}}
	srcs := 1
	if op == "cas" {
		srcs = 2
	}
	args := a.ri.args
	if a.ri.op == "atom" {
		if err := a.nargs(srcs+2, srcs+2); err != nil {
			return err
		}
		in.x.ret = true
		if in.d, err = a.dst(&args[0], t); err != nil {
			return err
		}
		args = args[1:]
	} else if err := a.nargs(srcs+1, srcs+1); err != nil {
		return err
	}
	if in.a, in.imm, in.x.space, err = a.base(&args[0], space); err != nil {
		return err
	}
	if in.b, err = a.src(&args[1], t); err != nil {
		return err
	}
	in.c = in.b
	if srcs == 2 {
		if in.c, err = a.src(&args[2], t); err != nil {
			return err
		}
	}
	a.emit(in)
	return nil
}

// decodeNop is hints about caches.
func decodeNop(a *asm) error {
	a.emit(inst{kind: kNop, cost: 1})
	return nil
}

func decodeFence(a *asm) error {
	a.oneOf("sc", "acq_rel", "acquire", "release")
	a.oneOf("cta", "gl", "sys", "gpu", "cluster")
	if err := a.done(); err != nil {
		return err
	}
	a.emit(inst{kind: kFence, cost: 1})
	return nil
}

var spaceBases = map[string]uint64{
	"global": 0, "const": 0, "shared": SharedBase, "shared::cta": SharedBase, "local": LocalBase, "param": ParamBase,
	"param::entry": ParamBase,
}

// decodeCvta converts between generic addresses and those of a space, which differ by the window's base.
func decodeCvta(a *asm) error {
	to := a.has("to")
	name := a.oneOf("global", "const", "shared", "shared::cta", "local", "param", "param::entry")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	base, ok := spaceBases[name]
	if !ok || t != tU64 {
		return a.errf("form is not supported")
	}
	if to {
		base = -base
	}
	b := a.constant(constKey{val: base})
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	r, err := a.srcs(1, t)
	if err != nil {
		return err
	}
	d, err := a.dst(&a.ri.args[0], t)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kALU, fn: addI[uint64], d: d, a: r[0], b: b, cost: 1})
	return nil
}

func decodeIsspacep(a *asm) error {
	name := a.oneOf("global", "const", "shared", "shared::cta", "local", "param", "param::entry")
	if err := a.done(); err != nil {
		return err
	}
	base, ok := spaceBases[name]
	if !ok || name == "const" {
		return a.errf("form is not supported")
	}
	if err := a.nargs(2, 2); err != nil {
		return err
	}
	r, err := a.srcs(1, tB64)
	if err != nil {
		return err
	}
	d, err := a.dstPred(&a.ri.args[0])
	if err != nil {
		return err
	}
	cmp := func(v, _ *vec) (m uint32) {
		for i, x := range v {
			m |= bit(x&^(windowSize-1) == base) << i
		}
		return m
	}
	a.emit(inst{kind: kSetp, d: d, a: r[0], b: r[0], cost: 1, x: &extra{cmp: cmp, q: -1}})
	return nil
}
