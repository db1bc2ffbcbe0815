package driver

import (
	"slices"
	"sort"

	"github.com/lgpu/lgpu/sim/ptx"
)

// code is what a program has loaded. Its source is kept, for a checkpoint.
type code struct {
	units   []ptx.Unit
	options ptx.Options
	size    uint64 // of what was loaded, in bytes: what the source takes of device memory follows from it
	parsed  *ptx.Module
}

// module is a loaded PTX module: its variables have device memory.
type module struct {
	handle    uint64
	ctx       *context
	code      *code
	parsed    *ptx.Module // of code
	image     *ptx.Image
	memory    *allocation // nil when there is nothing to hold
	globals   map[string]variable
	functions map[string]*function
	library   *library // that it was loaded for, if any
}

type variable struct{ addr, size uint64 }

// function is a kernel of a module in a context.
type function struct {
	handle     uint64
	module     *module
	kernel     *ptx.Kernel
	maxDynamic int // bytes of dynamic shared memory a launch may ask for
	carveout   int32
}

// library is code that is loaded into a context when it is first used there.
type library struct {
	handle  uint64
	code    *code
	parsed  *ptx.Module // of code
	modules map[*context]*module
	kernels map[string]*kernel
}

// kernel is a function of a library, in whatever context is current.
type kernel struct {
	handle     uint64
	library    *library
	kernel     *ptx.Kernel
	maxDynamic int // -1: not set
}

// codeBytes is what a kernel's code takes of device memory: about as much as its text.
func codeBytes(source uint64) uint64 { return roundUp(source, 4096) }

// load makes a module of code.
func (c *context) load(source *code) (*module, Result) {
	p, parsed := c.p, source.parsed
	if err := parsed.Unresolved(); err != nil {
		p.d.log.Info("module does not link", "process", p.pid, "error", err)
		return nil, errSymbolNotFound
	}
	m := &module{ctx: c, code: source, parsed: parsed, globals: map[string]variable{}, functions: map[string]*function{}}
	var size uint64
	for _, g := range parsed.Globals {
		if g.Extern {
			continue // nothing refers to it: see Unresolved
		}
		size = roundUp(size, max(uint64(g.Align), 16))
		m.globals[g.Name] = variable{size, uint64(g.Size)}
		size += uint64(g.Size)
	}
	a, res := c.allocate(roundUp(max(size, 16), 256) + codeBytes(source.size))
	if res != success {
		return nil, res
	}
	a.typ = memModule
	m.memory = a
	addrs := make(map[string]uint64, len(m.globals))
	for name, v := range m.globals {
		m.globals[name] = variable{a.base + v.addr, v.size}
		addrs[name] = a.base + v.addr
	}
	image, err := parsed.Link(addrs)
	if err != nil {
		p.d.log.Info("module does not link", "process", p.pid, "error", err)
		p.drop(a)
		return nil, errSymbolNotFound
	}
	m.image = image
	p.d.machine.Hold(func() {
		err = c.space.Fill(a.base, a.size, []byte{0})
		for _, g := range parsed.Globals {
			if err == nil && len(g.Init) > 0 {
				err = c.space.Write(image.InitData(g), addrs[g.Name])
			}
		}
	})
	if err != nil {
		p.d.log.Error("initialise module", "process", p.pid, "error", err)
		p.drop(a)
		return nil, errUnknown
	}
	m.handle = p.handles.add(kindModule, m)
	c.modules = append(c.modules, m)
	return m, success
}

// unload frees a module; the works that use its code go on.
func (p *Process) unload(m *module) {
	for _, f := range m.functions {
		p.handles.remove(f.handle)
	}
	p.handles.remove(m.handle)
	m.ctx.modules = slices.DeleteFunc(m.ctx.modules, func(o *module) bool { return o == m })
	if m.library != nil {
		delete(m.library.modules, m.ctx)
	}
	if m.memory != nil {
		p.drop(m.memory)
		m.memory = nil
	}
}

// function finds a kernel of the module by name.
func (m *module) function(name string) *function {
	if f := m.functions[name]; f != nil {
		return f
	}
	k := m.parsed.Kernels[name]
	if k == nil {
		return nil
	}
	f := &function{module: m, kernel: k, maxDynamic: max(sharedDefault-k.SharedBytes, 0), carveout: -1}
	if m.library != nil {
		if lk := m.library.kernels[name]; lk != nil && lk.maxDynamic >= 0 {
			f.maxDynamic = lk.maxDynamic
		}
	}
	f.handle = m.ctx.p.handles.add(kindFunction, f)
	m.functions[name] = f
	return f
}

// names are the kernels of a module, sorted.
func names(m *ptx.Module) []string {
	out := make([]string, 0, len(m.Kernels))
	for n := range m.Kernels {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// moduleIn is the library's module in a context; it is loaded if it is not there.
func (l *library) moduleIn(c *context) (*module, Result) {
	if m := l.modules[c]; m != nil {
		return m, success
	}
	m, res := c.load(l.code)
	if res != success {
		return nil, res
	}
	m.library = l
	l.modules[c] = m
	return m, success
}

// functionOf finds the function behind a handle of a function, or of a kernel in context c.
func (p *Process) functionOf(h uint64, c *context) (*function, Result) {
	switch o := p.handles.objects[h].(type) {
	case *function:
		return o, success
	case *kernel:
		if c == nil {
			return nil, errInvalidContext
		}
		m, res := o.library.moduleIn(c)
		if res != success {
			return nil, res
		}
		return m.function(o.kernel.Name), success
	}
	return nil, errInvalidHandle
}
