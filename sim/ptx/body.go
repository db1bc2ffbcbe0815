package ptx

import "strings"

type opKind uint8

const (
	oReg   opKind = iota + 1 // register or special register; member for %tid.x
	oSym                     // name of a variable, function or label, plus val
	oInt                     // val
	oFloat                   // decimal literal, val as f64 bits
	oF32                     // 0f literal
	oF64                     // 0d literal
	oAddr                    // [list[0] + val]
	oVec                     // {list}
	oList                    // (list), arguments of a call
	oPair                    // list[0]|list[1]
	oSink                    // _
)

// operand is one operand as written.
type operand struct {
	kind   opKind
	neg    bool // !p
	name   string
	member string
	val    uint64
	list   []operand
}

// rawInst is an instruction as written.
type rawInst struct {
	line     int32
	guardNeg bool
	guard    string
	op       string
	mods     []string
	args     []operand
	scope    *scope
	text     string
}

// regDecl is one name of a .reg declaration: a register, or count registers name0, name1, ...
type regDecl struct {
	t     typ
	count int64 // -1: a single register
	id    int32 // identifies the declaration in a function
}

// prototype is a .callprototype.
type prototype struct {
	rets, params []formal
}

// formal is one parameter or result of a function.
type formal struct {
	name  string
	t     typ
	reg   bool // passed in a register
	off   int
	size  int
	align int
}

// scope is one pair of braces of a function body.
type scope struct {
	parent *scope
	depth  int
	regs   map[string]regDecl
	vars   map[string]*variable
	labels map[string]int // index of the raw instruction that follows
	tables map[string][]string
	protos map[string]*prototype
	param  int // bytes of the frame's parameter area in use, inner scopes excluded
}

// function is a function with its raw and, later, its compiled body.
type function struct {
	name    string
	line    int32
	entry   bool
	link    linkage
	defined bool
	index   int
	params  []formal
	rets    []formal
	kernel  *Kernel
	body    []rawInst
	root    *scope

	numDecls int32
	shared   []*variable // declared in the body
	local    []*variable
	paramMax int // bytes of the frame's parameter area

	program
}

// function reads .entry or .func from that word to the end of its body.
func (p *parser) function(entry bool, link linkage, line int32) error {
	f := &function{entry: entry, link: link, line: line, root: newScope(nil)}
	if entry && link == linkLocal {
		f.link = linkVisible // a launch finds it by its name
	}
	err := p.advance()
	if err != nil {
		return err
	}
	if err := p.header(f); err != nil {
		return err
	}
	k := &Kernel{Name: f.name, fn: f}
	if entry {
		f.kernel = k
		if err := p.layoutParams(k, f); err != nil {
			return err
		}
	} else {
		off := 0
		for _, list := range [][]formal{f.rets, f.params} {
			if off, err = p.place(list, off); err != nil {
				return err
			}
		}
		f.root.param, f.paramMax = off, off
	}
	if err := p.performance(k); err != nil {
		return err
	}
	if old := p.decls[f.name]; old != nil && old.defined && p.is('{') {
		return p.fail("%s is defined twice", f.name)
	} else if old == nil || p.is('{') {
		p.decls[f.name] = f
	}
	if done, err := p.accept(';'); done || err != nil {
		return err
	}
	if !p.is('{') {
		return p.fail("%v where the body of %s was expected", p.tok, f.name)
	}
	f.defined = true
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.body(f); err != nil {
		return err
	}
	p.own = append(p.own, f)
	return nil
}

// header parses a function's results, name and parameters.
func (p *parser) header(f *function) (err error) {
	if !f.entry && p.is('(') {
		if f.rets, err = p.formals(f); err != nil {
			return err
		}
	}
	if f.name, err = p.ident(); err != nil {
		return err
	}
	if p.is('(') {
		if f.params, err = p.formals(f); err != nil {
			return err
		}
	}
	if p.vars[f.name] != nil {
		return p.fail("%s is already a variable", f.name)
	}
	return nil
}

// performance reads the directives between the parameters and the body.
func (p *parser) performance(k *Kernel) error {
	for p.tok.kind == tokDot {
		word := p.tok.text
		if err := p.advance(); err != nil {
			return err
		}
		vals := [3]int{1, 1, 1}
		n := 0
		for p.tok.kind == tokInt || p.tok.kind == tokStr {
			if n < 3 && p.tok.bits < 1<<31 {
				vals[n] = int(p.tok.bits)
			}
			n++
			if err := p.advance(); err != nil {
				return err
			}
			if more, err := p.accept(','); err != nil {
				return err
			} else if !more {
				break
			}
		}
		switch word {
		case "maxntid", "reqntid":
			prod := uint64(1)
			for _, v := range vals {
				if v == 0 || v > 1<<20 {
					return p.fail(".%s %v", word, vals)
				}
				prod *= uint64(v)
			}
			if n == 0 || n > 3 || prod > 1<<20 {
				return p.fail(".%s %v", word, vals)
			}
			k.MaxThreads = int(prod)
			if word == "reqntid" {
				k.ReqNTID = vals
			}
		case "minnctapersm":
			k.MinBlocks = vals[0]
		case "pragma":
			if err := p.expect(';'); err != nil {
				return err
			}
		case "maxnreg":
			if k.MaxRegs = vals[0]; n != 1 || k.MaxRegs == 0 {
				return p.fail(".maxnreg %v", vals)
			}
		case "maxnctapersm", "noreturn", "maxclusterrank", "abi_preserve", "abi_preserve_control":
		default:
			return p.fail("directive .%s is not supported", word)
		}
	}
	return nil
}

func newScope(parent *scope) *scope {
	s := &scope{parent: parent}
	if parent != nil {
		s.depth, s.param = parent.depth+1, parent.param
	}
	return s
}

// formals reads "( declarations )" of a function header.
func (p *parser) formals(f *function) ([]formal, error) {
	if err := p.expect('('); err != nil {
		return nil, err
	}
	var list []formal
	for !p.is(')') {
		if p.tok.kind != tokDot || p.tok.text != "param" && p.tok.text != "reg" {
			return nil, p.fail("%v in a parameter list", p.tok)
		}
		h, err := p.varHead()
		if err != nil {
			return nil, err
		}
		v, err := p.varName(h, true, f)
		if err != nil {
			return nil, err
		}
		if h.t == tPred || v.size == 0 && h.space == "reg" {
			return nil, p.fail("parameter %s of type %v", v.name, h.t)
		}
		fm := formal{name: v.name, t: h.t, reg: h.space == "reg", size: int(min(v.size, MaxParamBytes+1)), align: int(h.align)}
		list = append(list, fm)
		if more, err := p.accept(','); err != nil {
			return nil, err
		} else if !more {
			break
		}
	}
	return list, p.expect(')')
}

// place lays formals out from off and returns the end.
func (p *parser) place(list []formal, off int) (int, error) {
	for i := range list {
		fm := &list[i]
		off = (off + fm.align - 1) &^ (fm.align - 1)
		fm.off = off
		if off += fm.size; off > MaxParamBytes {
			return 0, p.fail("more than %d bytes of parameters", MaxParamBytes)
		}
	}
	return off, nil
}

func (p *parser) layoutParams(k *Kernel, f *function) error {
	end, err := p.place(f.params, 0)
	if err != nil {
		return err
	}
	k.ParamBytes = end
	for _, fm := range f.params {
		if fm.reg {
			return p.fail("register parameter %s of an entry", fm.name)
		}
		k.Params = append(k.Params, Param{Name: fm.name, Offset: fm.off, Size: fm.size, Align: fm.align})
	}
	return nil
}

// body reads statements up to the brace that closes the function.
func (p *parser) body(f *function) error {
	s := f.root
	for {
		switch {
		case p.tok.kind == tokEOF:
			return p.fail("end of file inside %s", f.name)
		case p.is('}'):
			if err := p.advance(); err != nil {
				return err
			}
			if s.parent == nil {
				return nil
			}
			s = s.parent
		case p.is('{'):
			if s.depth >= maxDepth {
				return p.fail("scopes nested deeper than %d", maxDepth)
			}
			s = newScope(s)
			if err := p.advance(); err != nil {
				return err
			}
		case p.is(';'):
			if err := p.advance(); err != nil {
				return err
			}
		case p.tok.kind == tokDot:
			if err := p.bodyDirective(f, s); err != nil {
				return err
			}
		case p.tok.kind == tokIdent || p.is('@'):
			if err := p.statement(f, s); err != nil {
				return err
			}
		default:
			return p.fail("%v where an instruction was expected", p.tok)
		}
	}
}

func (p *parser) bodyDirective(f *function, s *scope) error {
	switch word := p.tok.text; word {
	case "loc", "file":
		return p.skipLine()
	case "pragma":
		return p.skipTo(';')
	case "reg":
		return p.registers(f, s)
	case "shared", "local", "param", "global", "const":
		vs, err := p.varList(false, f)
		if err != nil {
			return err
		}
		for _, v := range vs {
			if err := p.declare(f, s, v); err != nil {
				return err
			}
		}
		return nil
	case "section":
		return p.section()
	default:
		return p.fail("directive .%s is not supported", word)
	}
}

// declare enters a variable of a function body.
func (p *parser) declare(f *function, s *scope, v *variable) error {
	if s.vars[v.name] != nil {
		return p.fail("%s is declared twice", v.name)
	}
	switch v.space {
	case "shared":
		f.shared = append(f.shared, v)
	case "local":
		f.local = append(f.local, v)
	case "param":
		off := (int64(s.param) + v.align - 1) &^ (v.align - 1)
		if v.size > MaxParamBytes || off+v.size > MaxParamBytes {
			return p.fail("more than %d bytes of parameters", MaxParamBytes)
		}
		v.off = off
		s.param = int(off + v.size)
		f.paramMax = max(f.paramMax, s.param)
	default: // a static variable of the function: like one of module scope, under its own name
		if err := p.enter(v); err != nil {
			return err
		}
	}
	if s.vars == nil {
		s.vars = map[string]*variable{}
	}
	s.vars[v.name] = v
	return nil
}

func (p *parser) registers(f *function, s *scope) error {
	h, err := p.varHead()
	if err != nil {
		return err
	}
	if h.vec > 1 {
		return p.fail("vector registers are not supported")
	}
	if s.regs == nil {
		s.regs = map[string]regDecl{}
	}
	for {
		name, err := p.ident()
		if err != nil {
			return err
		}
		d := regDecl{t: h.t, count: -1, id: f.numDecls}
		f.numDecls++
		if p.is('<') {
			if err := p.advance(); err != nil {
				return err
			}
			if p.tok.kind != tokInt || p.tok.bits > 1<<31 {
				return p.fail("count %v of registers %s", p.tok, name)
			}
			d.count = int64(p.tok.bits)
			if err := p.advance(); err != nil {
				return err
			}
			if err := p.expect('>'); err != nil {
				return err
			}
		}
		if _, dup := s.regs[name]; dup {
			return p.fail("register %s is declared twice", name)
		}
		s.regs[name] = d
		if more, err := p.accept(','); err != nil {
			return err
		} else if !more {
			return p.expect(';')
		}
	}
}

// statement reads "label:" or "[@p] op operands;".
func (p *parser) statement(f *function, s *scope) error {
	in := rawInst{line: p.tok.line, scope: s}
	begin := p.start
	if p.is('@') {
		if err := p.advance(); err != nil {
			return err
		}
		var err error
		if in.guardNeg, err = p.accept('!'); err != nil {
			return err
		}
		if in.guard, err = p.ident(); err != nil {
			return err
		}
	}
	var err error
	if in.op, err = p.ident(); err != nil {
		return err
	}
	if p.is(':') && in.guard == "" {
		if err := p.advance(); err != nil {
			return err
		}
		return p.label(f, s, in.op)
	}
	for p.tok.kind == tokDot {
		in.mods = append(in.mods, p.tok.text)
		if err := p.advance(); err != nil {
			return err
		}
	}
	for !p.is(';') {
		o, err := p.operand(0)
		if err != nil {
			return p.inInstr(begin, err)
		}
		in.args = append(in.args, o)
		if more, err := p.accept(','); err != nil {
			return err
		} else if !more {
			break
		}
	}
	if !p.is(';') {
		return p.inInstr(begin, p.fail("%v where ';' was expected", p.tok))
	}
	in.text = p.src[begin:p.start]
	f.body = append(f.body, in)
	return p.advance()
}

// inInstr adds the text of the instruction that begins there to an error.
func (p *parser) inInstr(begin int, err error) error {
	if e, ok := err.(*Error); ok && e.Instr == "" {
		text := p.src[begin:]
		if n := strings.IndexAny(text, ";\n"); n >= 0 {
			text = text[:n]
		}
		e.Instr = oneLine(text)
	}
	return err
}

// oneLine returns the text with its white space made single blanks and a bounded length.
func oneLine(s string) string {
	if len(s) > 400 {
		s = s[:400]
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 120 {
		s = s[:120] + "..."
	}
	return s
}

func (p *parser) label(f *function, s *scope, name string) error {
	_, dup := s.labels[name]
	if dup || s.tables[name] != nil || s.protos[name] != nil {
		return p.fail("label %s is defined twice", name)
	}
	if p.tok.kind == tokDot {
		switch p.tok.text {
		case "branchtargets", "calltargets":
			return p.targets(s, name)
		case "callprototype":
			return p.callPrototype(f, s, name)
		}
	}
	if s.labels == nil {
		s.labels = map[string]int{}
	}
	s.labels[name] = len(f.body)
	return nil
}

func (p *parser) targets(s *scope, name string) error {
	if err := p.advance(); err != nil {
		return err
	}
	list := []string{}
	for {
		l, err := p.ident()
		if err != nil {
			return err
		}
		list = append(list, l)
		if more, err := p.accept(','); err != nil {
			return err
		} else if !more {
			break
		}
	}
	if s.tables == nil {
		s.tables = map[string][]string{}
	}
	s.tables[name] = list
	return p.expect(';')
}

func (p *parser) callPrototype(f *function, s *scope, name string) error {
	if err := p.advance(); err != nil {
		return err
	}
	pr := &prototype{}
	var err error
	if p.is('(') {
		if pr.rets, err = p.formals(f); err != nil {
			return err
		}
	}
	if _, err = p.ident(); err != nil {
		return err
	}
	if p.is('(') {
		if pr.params, err = p.formals(f); err != nil {
			return err
		}
	}
	for p.tok.kind == tokDot && p.tok.text == "noreturn" {
		if err := p.advance(); err != nil {
			return err
		}
	}
	off := 0
	for _, list := range [][]formal{pr.rets, pr.params} {
		if off, err = p.place(list, off); err != nil {
			return err
		}
	}
	if s.protos == nil {
		s.protos = map[string]*prototype{}
	}
	s.protos[name] = pr
	return p.expect(';')
}
