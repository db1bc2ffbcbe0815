package ptx

import (
	"fmt"
	"strings"
)

// maxDepth bounds nested scopes, initialiser braces and array dimensions.
const maxDepth = 32

// variable is a declared memory variable of any space.
type variable struct {
	name   string
	space  string // "global", "const", "shared", "local", "param"
	size   int64
	align  int64
	line   int32
	extern bool // dynamic shared memory when the space is shared
	link   linkage

	off   int64     // place in its space, once laid out
	owner *function // function whose body declares it; nil at module scope
	glob  *Global
}

// parser turns tokens into declarations and raw instructions; compile turns those into code.
type parser struct {
	lexer
	tok   token
	start int // position of tok in the source
	mod   *Module
	vars  map[string]*variable // module scope
	decls map[string]*function // every function named so far, with or without a body
	own   []*function          // those with a body
}

// Parse reads a module. The error is always an *Error; input of any content gives a module or an error.
func Parse(src []byte) (*Module, error) { return ParseUnits(Options{}, Unit{Source: src}) }

// parse reads the declarations of a source, and its code as written.
func parse(src []byte) (*parser, error) {
	if len(src) > MaxSource {
		return nil, &Error{Msg: fmt.Sprintf("source of %d bytes, limit %d", len(src), MaxSource)}
	}
	p := &parser{
		lexer: lexer{src: strings.TrimRight(string(src), "\x00"), line: 1},
		mod:   &Module{},
		vars:  map[string]*variable{},
		decls: map[string]*function{},
	}
	if err := p.module(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *parser) advance() error {
	if err := p.skip(); err != nil {
		return err
	}
	p.start = p.pos
	t, err := p.next()
	p.tok = t
	return err
}

func (p *parser) fail(format string, args ...any) error {
	return &Error{Line: int(p.tok.line), Msg: fmt.Sprintf(format, args...)}
}

func (p *parser) is(c byte) bool { return p.tok.kind == tokPunct && p.tok.punct == c }

func (p *parser) accept(c byte) (bool, error) {
	if !p.is(c) {
		return false, nil
	}
	return true, p.advance()
}

func (p *parser) expect(c byte) error {
	if !p.is(c) {
		return p.fail("%v where %q was expected", p.tok, c)
	}
	return p.advance()
}

func (p *parser) ident() (string, error) {
	if p.tok.kind != tokIdent {
		return "", p.fail("%v where a name was expected", p.tok)
	}
	s := p.tok.text
	return s, p.advance()
}

// skipLine passes the rest of the line of the current token.
func (p *parser) skipLine() error {
	line := p.tok.line
	for p.tok.kind != tokEOF && p.tok.line == line {
		if err := p.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) module() error {
	if err := p.advance(); err != nil {
		return err
	}
	for p.tok.kind != tokEOF {
		if p.tok.kind != tokDot {
			return p.fail("%v where a directive was expected", p.tok)
		}
		if err := p.directive(); err != nil {
			return err
		}
	}
	if p.mod.Version == "" || p.mod.Target == "" {
		return &Error{Line: int(p.tok.line), Msg: "no .version and .target: this is no PTX"}
	}
	return nil
}

func (p *parser) directive() error {
	switch p.tok.text {
	case "version":
		if err := p.advance(); err != nil {
			return err
		}
		p.mod.Version = p.tok.text
		if p.tok.kind != tokFloat && p.tok.kind != tokInt {
			return p.fail("version %v", p.tok)
		}
		return p.advance()
	case "target":
		return p.target()
	case "address_size":
		if err := p.advance(); err != nil {
			return err
		}
		if p.tok.kind != tokInt || p.tok.bits != 64 {
			return p.fail(".address_size %v: only 64 is supported", p.tok)
		}
		return p.advance()
	case "file", "loc":
		return p.skipLine()
	case "section":
		return p.section()
	case "pragma":
		return p.skipTo(';')
	}
	return p.declaration()
}

func (p *parser) target() error {
	if err := p.advance(); err != nil {
		return err
	}
	for first := true; ; first = false {
		name, err := p.ident()
		if err != nil {
			return err
		}
		if first {
			if !strings.HasPrefix(name, "sm_") && !strings.HasPrefix(name, "compute_") {
				return p.fail("target %s", name)
			}
			p.mod.Target = name
		}
		if more, err := p.accept(','); !more || err != nil {
			return err
		}
	}
}

func (p *parser) skipTo(c byte) error {
	for !p.is(c) {
		if p.tok.kind == tokEOF {
			return p.fail("end of file where %q was expected", c)
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	return p.advance()
}

// section passes debug information: a name and a block of data.
func (p *parser) section() error {
	for !p.is('{') {
		if p.tok.kind == tokEOF || p.is(';') {
			return p.fail("section without a body")
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	return p.skipTo('}')
}

// declaration reads [linkage] .entry, .func or a variable.
func (p *parser) declaration() error {
	line := p.tok.line
	link := linkLocal
	for {
		if p.tok.kind != tokDot {
			return p.fail("%v in a declaration", p.tok)
		}
		word := p.tok.text
		switch word {
		case "extern", "visible", "weak", "common":
			link = max(link, linkages[word])
			if err := p.advance(); err != nil {
				return err
			}
			continue
		case "entry", "func":
			return p.function(word == "entry", link, line)
		case "global", "const", "shared":
			return p.variables(link)
		}
		return &Error{Line: int(line), Instr: "." + word, Msg: "directive is not supported here"}
	}
}

// variables reads a variable declaration from its space to the semicolon and enters it at module scope.
func (p *parser) variables(link linkage) error {
	vs, err := p.varList(link == linkExtern, nil)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if v.link = link; v.glob != nil {
			v.glob.Visible, v.glob.link = link != linkLocal, link
		}
		if err := p.enter(v); err != nil {
			return err
		}
	}
	return nil
}

// enter records a variable of module scope; an extern declaration and the definition of one name are one variable.
func (p *parser) enter(v *variable) error {
	if p.decls[v.name] != nil {
		return &Error{Line: int(v.line), Msg: fmt.Sprintf("%s is already a function", v.name)}
	}
	old := p.vars[v.name]
	if old != nil && (old.space != v.space || !old.extern && !v.extern) {
		return &Error{Line: int(v.line), Msg: fmt.Sprintf("%s is declared twice", v.name)}
	}
	if old != nil {
		if v.extern {
			return nil
		}
		// The definition takes the place of the declaration, where earlier code already refers to it by name only.
		if old.glob != nil {
			*old.glob = *v.glob
			v.glob = old.glob
		}
	} else if v.glob != nil {
		p.mod.Globals = append(p.mod.Globals, v.glob)
	}
	p.vars[v.name] = v
	return nil
}

// varType reads the part of a declaration before the names: attributes, alignment and type.
type varType struct {
	space   string
	t       typ
	vec     int64
	align   int64
	managed bool
}

func (p *parser) varHead() (varType, error) {
	h := varType{space: p.tok.text, vec: 1}
	if err := p.advance(); err != nil {
		return h, err
	}
	for p.tok.kind == tokDot {
		word := p.tok.text
		if err := p.advance(); err != nil {
			return h, err
		}
		switch word {
		case "align":
			if p.tok.kind != tokInt || p.tok.bits == 0 || p.tok.bits&(p.tok.bits-1) != 0 || p.tok.bits > 1<<16 {
				return h, p.fail("alignment %v", p.tok)
			}
			h.align = int64(p.tok.bits)
			if err := p.advance(); err != nil {
				return h, err
			}
		case "attribute":
			if err := p.expect('('); err != nil {
				return h, err
			}
			h.managed = h.managed || p.tok.kind == tokDot && p.tok.text == "managed"
			if err := p.skipTo(')'); err != nil {
				return h, err
			}
		case "v2":
			h.vec = 2
		case "v4":
			h.vec = 4
		case "ptr", "global", "const", "shared", "local", "param":
			// attributes of a pointer parameter
		default:
			h.t = typeNames[word]
			if h.t == tNone || h.t == tPred && h.space != "reg" {
				return h, p.fail("type .%s is not supported", word)
			}
		}
	}
	if h.t == tNone {
		return h, p.fail("declaration without a type")
	}
	if n := int64(h.t.bytes()) * h.vec; h.align < n {
		h.align = n
	}
	return h, nil
}

// varList reads "space type name[dims] = init, ... ;".
func (p *parser) varList(extern bool, owner *function) ([]*variable, error) {
	h, err := p.varHead()
	if err != nil {
		return nil, err
	}
	var vs []*variable
	for {
		v, err := p.varName(h, extern, owner)
		if err != nil {
			return nil, err
		}
		vs = append(vs, v)
		if more, err := p.accept(','); err != nil {
			return nil, err
		} else if !more {
			return vs, p.expect(';')
		}
	}
}

// varName reads one declarator: name, dimensions, initialiser.
func (p *parser) varName(h varType, extern bool, owner *function) (*variable, error) {
	v := &variable{space: h.space, align: h.align, extern: extern, owner: owner, line: p.tok.line}
	var err error
	if v.name, err = p.ident(); err != nil {
		return nil, err
	}
	elem := int64(h.t.bytes()) * h.vec
	dims, open, err := p.dimensions(v.name)
	if err != nil {
		return nil, err
	}
	v.size = elem
	for i, d := range dims {
		if i == 0 && open {
			d = 1
		}
		if d != 0 && v.size > MaxGlobalBytes/d {
			return nil, p.fail("%s is larger than %d bytes", v.name, int64(MaxGlobalBytes))
		}
		v.size *= d
	}
	if h.space == "global" || h.space == "const" {
		v.glob = &Global{Name: v.name, Align: v.align, Extern: extern, Managed: h.managed, line: int(v.line)}
		if h.space == "const" {
			v.glob.Space = SpaceConst
		}
	}
	if p.is('=') {
		if v.glob == nil || extern {
			return nil, p.fail("%s cannot have an initialiser", v.name)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		in := initialiser{p: p, g: v.glob, t: h.t, limit: v.size, open: open}
		if h.vec > 1 {
			dims = append(dims, h.vec)
		}
		if err := in.value(dims, 0, v.size); err != nil {
			return nil, err
		}
		if open {
			v.size = (in.end + elem - 1) / elem * elem
			open = false
		}
	}
	if open {
		if !extern {
			return nil, p.fail("%s has no size", v.name)
		}
		v.size = 0
	}
	if v.glob != nil {
		v.glob.Size = v.size
	}
	return v, nil
}

// dimensions parses the dimensions of an array; open says that the first is left open, and 0 here.
func (p *parser) dimensions(name string) (dims []int64, open bool, err error) {
	dims = []int64{}
	for p.is('[') {
		if err := p.advance(); err != nil {
			return nil, false, err
		}
		if p.is(']') && len(dims) == 0 {
			open = true
			dims = append(dims, 0)
		} else {
			if p.tok.kind != tokInt || p.tok.bits > MaxGlobalBytes || len(dims) >= maxDepth {
				return nil, false, p.fail("dimension %v of %s", p.tok, name)
			}
			dims = append(dims, int64(p.tok.bits))
			if err := p.advance(); err != nil {
				return nil, false, err
			}
		}
		if err := p.expect(']'); err != nil {
			return nil, false, err
		}
	}
	return dims, open, nil
}
