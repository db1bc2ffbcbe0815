package ptx

import (
	"encoding/binary"
	"math"
)

// initialiser reads the value of a variable into its Global. Bytes are kept only up to the last that is written, so
// that a large array with few values stays small.
type initialiser struct {
	p     *parser
	g     *Global
	t     typ
	limit int64 // bytes the variable has
	open  bool  // the first dimension is counted by the values
	end   int64 // bytes written
}

// value reads an aggregate or a scalar into [off, off+size) of a variable with these dimensions.
func (in *initialiser) value(dims []int64, off, size int64) error {
	p := in.p
	if !p.is('{') {
		if len(dims) != 0 {
			return p.fail("initialiser of %s is not a list", in.g.Name)
		}
		return in.scalar(off)
	}
	if len(dims) == 0 {
		return p.fail("too many braces in the initialiser of %s", in.g.Name)
	}
	if err := p.advance(); err != nil {
		return err
	}
	stride := int64(in.t.bytes())
	for _, d := range dims[1:] {
		stride *= d
	}
	at := off
	for !p.is('}') {
		inner, step := dims[1:], stride
		if !p.is('{') { // a flat list fills the inner dimensions in order
			inner, step = nil, int64(in.t.bytes())
		}
		if !(in.open && off == 0) && at+step > off+size {
			return p.fail("too many values for %s", in.g.Name)
		}
		if err := in.value(inner, at, step); err != nil {
			return err
		}
		at += step
		if more, err := p.accept(','); err != nil {
			return err
		} else if !more {
			break
		}
	}
	return p.expect('}')
}

func (in *initialiser) put(off int64, v uint64) {
	n := int64(in.t.bytes())
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	for int64(len(in.g.Init)) < off+n {
		in.g.Init = append(in.g.Init, 0)
	}
	copy(in.g.Init[off:], b[:n])
	in.end = max(in.end, off+n)
}

// scalar reads a number, or a symbol with an addend.
func (in *initialiser) scalar(off int64) error {
	p := in.p
	if p.tok.kind == tokIdent {
		return in.address(off)
	}
	o, err := p.number()
	if err != nil {
		return err
	}
	v, ok := o.constant(in.t)
	if !ok {
		return p.fail("value of %s does not fit its type", in.g.Name)
	}
	in.put(off, v)
	return nil
}

func (in *initialiser) address(off int64) error {
	p := in.p
	sym, err := p.ident()
	if err != nil {
		return err
	}
	if sym == "generic" && p.is('(') {
		if err := p.advance(); err != nil {
			return err
		}
		if sym, err = p.ident(); err != nil {
			return err
		}
		if err := p.expect(')'); err != nil {
			return err
		}
	}
	var add uint64
	if p.is('+') || p.is('-') {
		if add, err = p.offset(); err != nil {
			return err
		}
	}
	if n := in.t.bytes(); n != 8 && n != 4 || in.t.float() {
		return p.fail("address of %s in a value of type %v", sym, in.t)
	}
	in.put(off, 0)
	in.g.Relocs = append(in.g.Relocs, Reloc{Off: off, Size: in.t.bytes(), Symbol: sym, Addend: int64(add)})
	return nil
}

// constant converts a literal to the bits of a value of type t. Integers are cut to the width, as ptxas does.
func (o *operand) constant(t typ) (uint64, bool) {
	switch o.kind {
	case oInt:
		switch {
		case t == tF32:
			return uint64(math.Float32bits(float32(int64(o.val)))), true
		case t == tF64:
			return math.Float64bits(float64(int64(o.val))), true
		case t == tPred:
			return o.val, true
		}
		return o.val & t.mask(), true
	case oFloat:
		switch {
		case t == tF32:
			return uint64(math.Float32bits(float32(math.Float64frombits(o.val)))), true
		case t == tF64:
			return o.val, true
		case t == tF16:
			return packF16(math.Float64frombits(o.val), rn), true
		case t == tBF16:
			return packBF16(math.Float64frombits(o.val), rn), true
		}
	case oF32:
		switch t {
		case tF32, tB32, tU32, tS32:
			return o.val, true
		case tF64:
			return math.Float64bits(float64(math.Float32frombits(uint32(o.val)))), true
		}
	case oF64:
		switch t {
		case tF64, tB64, tU64, tS64:
			return o.val, true
		case tF32:
			return uint64(math.Float32bits(float32(math.Float64frombits(o.val)))), true
		}
	}
	return 0, false
}
