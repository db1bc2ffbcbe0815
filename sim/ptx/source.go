package ptx

import "fmt"

// source is one instruction as written, and which of its modifiers have been read.
type source struct {
	ri   *rawInst
	used uint64 // bit i: ri.mods[i] has been read
}

// errf is an error about the instruction.
func (s *source) errf(format string, args ...any) error {
	return &Error{Line: int(s.ri.line), Instr: oneLine(s.ri.text), Msg: fmt.Sprintf(format, args...)}
}

// has consumes a modifier when the instruction has it.
func (s *source) has(name string) bool {
	for i, m := range s.ri.mods {
		if m == name && s.used&(1<<i) == 0 {
			s.used |= 1 << i
			return true
		}
	}
	return false
}

// oneOf consumes the first of the names that the instruction has; "" for none.
func (s *source) oneOf(names ...string) string {
	for _, n := range names {
		if s.has(n) {
			return n
		}
	}
	return ""
}

// optType consumes the next type modifier.
func (s *source) optType() typ {
	for i, m := range s.ri.mods {
		if t := typeNames[m]; t != tNone && s.used&(1<<i) == 0 {
			s.used |= 1 << i
			return t
		}
	}
	return tNone
}

// types consumes exactly n types and requires every other modifier to be consumed.
func (s *source) types(n int) ([3]typ, error) {
	var ts [3]typ
	for i := range n {
		if ts[i] = s.optType(); ts[i] == tNone {
			return ts, s.errf("type is missing")
		}
	}
	return ts, s.done()
}

// typ1 is types(1) for the common case.
func (s *source) typ1() (typ, error) {
	ts, err := s.types(1)
	return ts[0], err
}

// done requires that every modifier was consumed.
func (s *source) done() error {
	for i, m := range s.ri.mods {
		if s.used&(1<<i) == 0 {
			return s.errf("modifier .%s is not supported", m)
		}
	}
	return nil
}

// nargs requires between lo and hi operands.
func (s *source) nargs(lo, hi int) error {
	if n := len(s.ri.args); n < lo || n > hi {
		return s.errf("%d operands", n)
	}
	return nil
}

// isFloat reports whether the next type of the instruction is a floating-point one.
func (s *source) isFloat() bool {
	for _, m := range s.ri.mods {
		if t := typeNames[m]; t != tNone {
			return t.float()
		}
	}
	return false
}

// ordering consumes the memory-order, scope and cache modifiers, which say nothing here except that strong accesses are
// atomic.
func (s *source) ordering() (strong bool) {
	strong = s.oneOf("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio") != ""
	s.has("mmio")
	s.has("weak")
	s.oneOf("cta", "gpu", "sys", "cluster")
	s.oneOf("nc")
	s.oneOf("ca", "cg", "cs", "cv", "lu", "wb", "wt")
	for i, m := range s.ri.mods {
		if len(m) > 4 && (m[:4] == "L1::" || m[:4] == "L2::") {
			s.used |= 1 << i
		}
	}
	return strong
}

// elements returns the operands of a value of n elements.
func (s *source) elements(o *operand, n int) ([]operand, error) {
	if o.kind != oVec {
		if n != 1 {
			return nil, s.errf("operand is not a vector of %d", n)
		}
		return []operand{*o}, nil
	}
	if len(o.list) != n {
		return nil, s.errf("vector of %d elements where %d were expected", len(o.list), n)
	}
	return o.list, nil
}

// compare reads the operator, the join and the types that setp and set have in common.
func (s *source) compare(types int) (cmp cmpFn, join uint8, ftz bool, ts [3]typ, err error) {
	op := s.oneOf("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
	join = joins[s.oneOf("and", "or", "xor")]
	ftz = s.has("ftz")
	if ts, err = s.types(types); err != nil {
		return
	}
	if cmp = comparison(op, ts[types-1]); cmp == nil {
		err = s.errf("comparison .%s of type %v is not supported", op, ts[types-1])
	}
	return
}
