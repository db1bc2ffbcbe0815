package ptx

// operand reads one operand, nested at most twice (vectors and call lists hold plain operands).
func (p *parser) operand(depth int) (operand, error) {
	if depth > 2 {
		return operand{}, p.fail("operand nested too deep")
	}
	switch {
	case p.is('{'):
		return p.operandList(oVec, '}', depth)
	case p.is('('):
		return p.operandList(oList, ')', depth)
	case p.is('['):
		return p.address(depth)
	case p.is('!'):
		if err := p.advance(); err != nil {
			return operand{}, err
		}
		o, err := p.operand(depth + 1)
		if err == nil && (o.kind != oReg && o.kind != oSym || o.neg) {
			err = p.fail("'!' before no predicate")
		}
		o.neg = true
		return o, err
	}
	o, err := p.simple()
	if err != nil || !p.is('|') {
		return o, err
	}
	if err := p.advance(); err != nil {
		return o, err
	}
	second, err := p.simple()
	return operand{kind: oPair, list: []operand{o, second}}, err
}

// simple reads a number, a register, a symbol or a sink.
func (p *parser) simple() (operand, error) {
	if p.tok.kind != tokIdent {
		return p.number()
	}
	o := operand{kind: oSym, name: p.tok.text}
	if err := p.advance(); err != nil {
		return o, err
	}
	if o.name == "_" {
		o.kind = oSink
		return o, nil
	}
	if o.name[0] == '%' {
		o.kind = oReg
	}
	if p.tok.kind == tokDot {
		o.member = p.tok.text
		return o, p.advance()
	}
	if p.is('+') || p.is('-') {
		var err error
		o.val, err = p.offset()
		return o, err
	}
	return o, nil
}

// offset reads "+n", "-n" or "+-n", once or more.
func (p *parser) offset() (uint64, error) {
	var sum uint64
	for p.is('+') || p.is('-') {
		neg := p.is('-')
		if err := p.advance(); err != nil {
			return 0, err
		}
		if p.is('-') {
			neg = !neg
			if err := p.advance(); err != nil {
				return 0, err
			}
		}
		if p.tok.kind != tokInt {
			return 0, p.fail("offset %v", p.tok)
		}
		if neg {
			sum -= p.tok.bits
		} else {
			sum += p.tok.bits
		}
		if err := p.advance(); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// number reads a literal with signs, and sums of integers.
func (p *parser) number() (operand, error) {
	neg, inv := false, false
	for n := 0; p.is('-') || p.is('+') || p.is('~'); n++ {
		if inv || n > 8 {
			return operand{}, p.fail("too many signs")
		}
		if p.is('-') {
			neg = !neg
		}
		inv = p.is('~')
		if err := p.advance(); err != nil {
			return operand{}, err
		}
	}
	o := operand{val: p.tok.bits}
	switch p.tok.kind {
	case tokInt:
		o.kind = oInt
		if inv {
			o.val = ^o.val
		}
		if neg {
			o.val = -o.val
		}
	case tokFloat:
		o.kind = oFloat
		if neg {
			o.val ^= 1 << 63
		}
	case tokF32:
		o.kind = oF32
		if neg {
			o.val ^= 1 << 31
		}
	case tokF64:
		o.kind = oF64
		if neg {
			o.val ^= 1 << 63
		}
	default:
		return o, p.fail("%v where an operand was expected", p.tok)
	}
	if inv && o.kind != oInt {
		return o, p.fail("'~' before no integer")
	}
	if err := p.advance(); err != nil {
		return o, err
	}
	if o.kind == oInt && (p.is('+') || p.is('-')) {
		add, err := p.offset()
		o.val += add
		return o, err
	}
	return o, nil
}

func (p *parser) operandList(kind opKind, end byte, depth int) (operand, error) {
	o := operand{kind: kind}
	if err := p.advance(); err != nil {
		return o, err
	}
	for !p.is(end) {
		e, err := p.operand(depth + 1)
		if err != nil {
			return o, err
		}
		o.list = append(o.list, e)
		if more, err := p.accept(','); err != nil {
			return o, err
		} else if !more {
			break
		}
	}
	return o, p.expect(end)
}

// address reads "[base + offset]".
func (p *parser) address(depth int) (operand, error) {
	o := operand{kind: oAddr}
	if err := p.advance(); err != nil {
		return o, err
	}
	base, err := p.operand(depth + 1)
	if err != nil {
		return o, err
	}
	switch base.kind {
	case oReg, oSym, oInt:
	default:
		return o, p.fail("address is not a register, variable or number")
	}
	o.val = base.val
	base.val = 0
	if base.kind == oInt {
		base = operand{kind: oInt, val: o.val}
		o.val = 0
	}
	o.list = []operand{base}
	return o, p.expect(']')
}
