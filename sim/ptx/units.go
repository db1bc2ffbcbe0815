package ptx

import (
	"fmt"
	"maps"
	"slices"
)

// Unit is one source of a module that is linked of several.
type Unit struct {
	Name   string // for errors
	Source []byte
}

// Options are what a compiler's command line would say.
type Options struct {
	MaxRegs int // most registers of a thread, for functions that do not say it themselves (.maxnreg); 0: no wish
}

// linkage is who may see a name of a unit, and what becomes of several definitions of it.
type linkage uint8

const (
	linkLocal   linkage = iota // its own unit
	linkVisible                // all units; there must be one definition
	linkWeak                   // all units; gives way to any other
	linkCommon                 // all units; of several the largest counts, and any of another kind before it
	linkExtern                 // defined by another unit
)

var linkages = map[string]linkage{"visible": linkVisible, "weak": linkWeak, "common": linkCommon, "extern": linkExtern}

// definition is a name that several units share.
type definition struct {
	unit int
	link linkage
	v    *variable // or
	f    *function
}

// ParseUnits reads sources and links them into one module: what one declares .extern another defines. The error is
// always an *Error. Names that no unit defines are left to Unresolved.
func ParseUnits(o Options, units ...Unit) (*Module, error) {
	parsers := make([]*parser, len(units))
	for i, u := range units {
		p, err := parse(u.Source)
		if err != nil {
			return nil, err
		}
		parsers[i] = p
	}
	m, err := joinUnits(parsers, units)
	if err != nil {
		return nil, err
	}
	for _, p := range parsers {
		for _, f := range p.own {
			if err := p.compileFunc(f); err != nil {
				return nil, err
			}
		}
	}
	if err := m.layout(o); err != nil {
		return nil, err
	}
	return m, nil
}

// joinUnits makes one module of the units: of each shared name one definition stays, and all units mean that.
func joinUnits(parsers []*parser, units []Unit) (*Module, error) {
	defs := map[string]*definition{}
	for i, p := range parsers {
		for _, name := range slices.Sorted(maps.Keys(p.vars)) {
			v := p.vars[name]
			if err := offer(defs, name, &definition{unit: i, link: v.link, v: v}, units); err != nil {
				return nil, err
			}
		}
		for _, f := range p.own {
			if err := offer(defs, f.name, &definition{unit: i, link: f.link, f: f}, units); err != nil {
				return nil, err
			}
		}
	}
	m := &Module{AddressSize: 64, Kernels: map[string]*Kernel{}, Version: parsers[0].mod.Version, Target: parsers[0].mod.Target}
	for i, p := range parsers {
		if err := p.adopt(defs, units[i].Name); err != nil {
			return nil, err
		}
	}
	taken := map[string]bool{}
	for i, p := range parsers {
		for _, g := range p.mod.Globals {
			if d := defs[g.Name]; d != nil && g.link != linkLocal && d.v.glob != g {
				continue // another definition counts
			}
			if taken[g.Name] { // a name of the unit's own, that another has too
				g.Name = fmt.Sprintf("%s$%d", g.Name, i)
			}
			taken[g.Name] = true
			m.Globals = append(m.Globals, g)
		}
		for _, f := range p.own {
			f.index = len(m.funcs)
			m.funcs = append(m.funcs, f)
			if f.entry {
				m.Kernels[f.name] = f.kernel
			}
		}
	}
	return m, nil
}

// offer enters a definition, or decides between it and the one there is.
func offer(defs map[string]*definition, name string, d *definition, units []Unit) error {
	if d.link == linkLocal || d.link == linkExtern {
		return nil
	}
	old := defs[name]
	switch {
	case old == nil, old.link == linkWeak && d.link != linkWeak, old.link == linkCommon && d.link == linkVisible:
	case d.link == linkWeak, d.link == linkCommon && old.link == linkVisible:
		return nil
	case d.link == linkCommon && old.link == linkCommon:
		if d.v == nil || old.v == nil || d.v.size <= old.v.size {
			return nil
		}
	default:
		return &Error{Msg: fmt.Sprintf("Multiple definition of '%s' in '%s', first defined in '%s'",
			name, units[d.unit].Name, units[old.unit].Name)}
	}
	defs[name] = d
	return nil
}

// adopt makes the unit's names mean the definitions that were chosen, and drops those of its own that were not.
func (p *parser) adopt(defs map[string]*definition, unit string) error {
	other := func(name, kind string) error {
		return &Error{Msg: fmt.Sprintf("'%s' in '%s' is %s elsewhere", name, unit, kind)}
	}
	for name, v := range p.vars {
		d := defs[name]
		switch {
		case v.link == linkLocal || d == nil:
			continue
		case d.v == nil:
			return other(name, "a function")
		case d.v.space != v.space:
			return other(name, "in another state space")
		}
		p.vars[name] = d.v
	}
	for name, f := range p.decls {
		d := defs[name]
		switch {
		case f.link == linkLocal || d == nil:
			continue
		case d.f == nil:
			return other(name, "a variable")
		case d.f.entry != f.entry:
			return other(name, "a kernel, or the other way round,")
		}
		p.decls[name] = d.f
	}
	p.own = slices.DeleteFunc(p.own, func(f *function) bool { return p.decls[f.name] != f })
	for _, g := range p.mod.Globals {
		for i := range g.Relocs {
			r := &g.Relocs[i]
			if v := p.vars[r.Symbol]; v != nil {
				r.global = v.glob
			}
			r.fn = p.decls[r.Symbol]
		}
	}
	return nil
}

// Unresolved is nil, or an *Error that names the first thing that the module uses and no unit defines.
func (m *Module) Unresolved() error {
	missing := func(name string, line int32, in string) error {
		return &Error{Line: int(line), Msg: fmt.Sprintf("Undefined reference to '%s' in '%s'", name, in)}
	}
	for _, f := range m.funcs {
		for i := range f.code {
			if in := &f.code[i]; in.kind == kCall && in.x.call.name != "" && in.x.call.callee == nil {
				return missing(in.x.call.name, f.body[in.raw].line, f.name)
			}
		}
		for _, r := range f.relocs {
			switch {
			case r.global != nil && r.global.Extern:
				return missing(r.global.Name, f.line, f.name)
			case r.fn != nil && !r.fn.defined:
				return missing(r.fn.name, f.line, f.name)
			}
		}
	}
	for _, g := range m.Globals {
		for _, r := range g.Relocs {
			if r.global == nil && (r.fn == nil || !r.fn.defined) || r.global != nil && r.global.Extern {
				return missing(r.Symbol, int32(g.line), g.Name)
			}
		}
	}
	return nil
}
