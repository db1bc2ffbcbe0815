package ptx

// What kBar does.
const (
	barSync = iota
	barArrive
	barAnd
	barOr
	barPopc
)

// decodeBar is bar and barrier in all forms, the warp's included.
func decodeBar(a *asm) error {
	if a.ri.op == "bar" && a.has("warp") {
		return a.barWarp()
	}
	a.has("cta")
	form := a.oneOf("sync", "arrive", "red")
	a.has("aligned")
	op := a.oneOf("popc", "and", "or")
	t := a.optType()
	if err := a.done(); err != nil {
		return err
	}
	if form == "" || (form == "red") != (op != "") {
		return a.errf("form is not supported")
	}
	in := inst{kind: kBar, cost: 4, x: &extra{q: -1}}
	args := a.ri.args
	if form == "red" {
		if err := a.nargs(3, 4); err != nil {
			return err
		}
		if err := a.barReduction(&in, op, t); err != nil {
			return err
		}
		args = args[1 : len(args)-1]
	} else if err := a.nargs(1, 2); err != nil {
		return err
	}
	if form == "arrive" {
		in.sub = barArrive
		if len(args) != 2 {
			return a.errf("thread count is missing")
		}
	}
	var err error
	if in.a, err = a.src(&args[0], tB32); err != nil {
		return err
	}
	in.b = a.constant(constKey{})
	if len(args) == 2 {
		if in.b, err = a.src(&args[1], tB32); err != nil {
			return err
		}
	}
	a.emit(in)
	return nil
}

// barReduction decodes the predicate, the operation and the destination of bar.red.
func (a *asm) barReduction(in *inst, op string, t typ) (err error) {
	args := a.ri.args
	if in.c, in.x.flip, err = a.pred(&args[len(args)-1]); err != nil {
		return err
	}
	if op == "popc" {
		in.sub = barPopc
		if t != tU32 {
			return a.errf("type %v is not supported", t)
		}
		in.d, err = a.dst(&args[0], tU32)
	} else {
		in.sub = map[string]uint8{"and": barAnd, "or": barOr}[op]
		in.d, err = a.dstPred(&args[0])
	}
	return err
}

func (a *asm) barWarp() error {
	a.has("sync")
	if err := a.done(); err != nil {
		return err
	}
	if err := a.nargs(1, 1); err != nil {
		return err
	}
	r, err := a.srcs(0, tB32)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kBarWarp, cost: 1, x: &extra{e: r[0]}})
	return nil
}

// member reads the member mask of a .sync instruction, operand i. Without .sync the active lanes take part.
func (a *asm) member(in *inst, sync bool, i int) error {
	if !sync {
		return a.nargs(i, i)
	}
	in.sub = 1
	if err := a.nargs(i+1, i+1); err != nil {
		return err
	}
	var err error
	in.x.e, err = a.src(&a.ri.args[i], tB32)
	return err
}

// pairDst reads a destination that may have a predicate behind a bar.
func (a *asm) pairDst(in *inst, t typ) error {
	dst := &a.ri.args[0]
	var err error
	if dst.kind == oPair {
		if in.x.q, err = a.dstPred(&dst.list[1]); err != nil {
			return err
		}
		dst = &dst.list[0]
	}
	in.d, err = a.dst(dst, t)
	return err
}

const (
	shflUp = iota
	shflDown
	shflBfly
	shflIdx
)

func decodeShfl(a *asm) error {
	sync := a.has("sync")
	mode := a.oneOf("up", "down", "bfly", "idx")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t.bits() != 32 || mode == "" {
		return a.errf("form is not supported")
	}
	in := inst{kind: kShfl, cost: 2, x: &extra{q: -1}}
	in.x.mode = map[string]uint8{"up": shflUp, "down": shflDown, "bfly": shflBfly, "idx": shflIdx}[mode]
	if err := a.member(&in, sync, 4); err != nil {
		return err
	}
	r, err := a.srcs(1, t, tB32, tB32)
	if err != nil {
		return err
	}
	in.a, in.b, in.c = r[0], r[1], r[2]
	if err := a.pairDst(&in, t); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

const (
	voteAll = iota
	voteAny
	voteUni
	voteBallot
)

func decodeVote(a *asm) error {
	sync := a.has("sync")
	mode := a.oneOf("all", "any", "uni", "ballot")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	in := inst{kind: kVote, cost: 2, x: &extra{q: -1}}
	if err := a.member(&in, sync, 2); err != nil {
		return err
	}
	if in.c, in.x.flip, err = a.pred(&a.ri.args[1]); err != nil {
		return err
	}
	if mode == "ballot" && t == tB32 {
		in.x.mode = voteBallot
		in.d, err = a.dst(&a.ri.args[0], t)
	} else if mode != "" && mode != "ballot" && t == tPred {
		in.x.mode = map[string]uint8{"all": voteAll, "any": voteAny, "uni": voteUni}[mode]
		in.d, err = a.dstPred(&a.ri.args[0])
	} else {
		return a.errf("form is not supported")
	}
	if err != nil {
		return err
	}
	a.emit(in)
	return nil
}

func decodeMatch(a *asm) error {
	mode := a.oneOf("any", "all")
	sync := a.has("sync")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	if t != tB32 && t != tB64 || mode == "" || !sync {
		return a.errf("form is not supported")
	}
	in := inst{kind: kMatch, cost: 2, x: &extra{q: -1}}
	if mode == "all" {
		in.x.mode = 1
	}
	if err := a.member(&in, true, 2); err != nil {
		return err
	}
	if in.a, err = a.src(&a.ri.args[1], t); err != nil {
		return err
	}
	if err := a.pairDst(&in, tB32); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

func decodeActive(a *asm) error {
	if t, err := a.typ1(); err != nil {
		return err
	} else if t != tB32 {
		return a.errf("type %v is not supported", t)
	}
	if err := a.nargs(1, 1); err != nil {
		return err
	}
	d, err := a.dst(&a.ri.args[0], tB32)
	if err != nil {
		return err
	}
	a.emit(inst{kind: kActive, d: d, cost: 1})
	return nil
}

func decodeRedux(a *asm) error {
	a.has("sync")
	op := a.oneOf("add", "min", "max", "and", "or", "xor")
	t, err := a.typ1()
	if err != nil {
		return err
	}
	key := aluKey{op, t}
	if op == "add" {
		key.t = unifyU(t)
	}
	fn := intOps[key]
	if fn == nil || t.bits() != 32 {
		return a.errf("operation .%s on type %v is not supported", op, t)
	}
	in := inst{kind: kRedux, fn: fn, cost: 2, x: &extra{q: -1}}
	if err := a.member(&in, true, 2); err != nil {
		return err
	}
	if in.a, err = a.src(&a.ri.args[1], t); err != nil {
		return err
	}
	if in.d, err = a.dst(&a.ri.args[0], t); err != nil {
		return err
	}
	a.emit(in)
	return nil
}

func decodeElect(a *asm) error {
	a.has("sync")
	if err := a.done(); err != nil {
		return err
	}
	in := inst{kind: kElect, cost: 2, x: &extra{q: -1}}
	if err := a.member(&in, true, 1); err != nil {
		return err
	}
	if err := a.pairDst(&in, tB32); err != nil {
		return err
	}
	a.emit(in)
	return nil
}
