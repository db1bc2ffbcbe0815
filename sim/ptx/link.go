package ptx

import (
	"encoding/binary"
	"fmt"
)

// dynamicStack is the local memory a thread gets beyond what is known when its calls may recurse or go through pointers.
const dynamicStack = 16 << 10

// layout places shared variables, sums up local memory over calls, and completes the Kernels.
func (p *parser) layout() error {
	m := p.mod
	for _, f := range m.funcs {
		f.resolve(m)
	}
	// Shared variables named by functions other than kernels have one place in all kernels that may reach these functions.
	var common int64
	fixed := map[*variable]bool{}
	for _, f := range m.funcs {
		if f.entry {
			continue
		}
		for _, v := range append(f.shared, f.usesShared...) {
			if !v.extern && !fixed[v] {
				fixed[v] = true
				if err := place(v, &common); err != nil {
					return err
				}
			}
		}
	}
	stack, needs, err := m.reach()
	if err != nil {
		return err
	}
	for i, f := range m.funcs {
		if f.entry {
			var off int64
			for _, v := range f.usesShared {
				needs[i] = needs[i] || fixed[v]
			}
			if needs[i] {
				off = common
			}
			own := map[*variable]bool{}
			for _, v := range append(f.shared, f.usesShared...) {
				if !v.extern && !fixed[v] && !own[v] {
					own[v] = true
					if err := place(v, &off); err != nil {
						return err
					}
				}
			}
			f.kernel.SharedBytes, f.kernel.LocalBytes = int(off), int(stack[i])
			f.kernel.Regs = f.regs
		}
		for _, r := range f.relocs {
			if r.shared != nil {
				f.consts[r.slot] = uint64(r.shared.off) + r.add
			}
		}
	}
	return nil
}

func place(v *variable, off *int64) error {
	v.off = (*off + v.align - 1) &^ (v.align - 1)
	if *off = v.off + v.size; *off > MaxSharedBytes || v.size > MaxSharedBytes {
		return &Error{Line: int(v.line), Instr: v.name, Msg: fmt.Sprintf("more than %d bytes of shared memory", MaxSharedBytes)}
	}
	return nil
}

// resolve finds the callees. A call of the assertion handler, which the device provides, is a trap.
func (f *function) resolve(m *Module) {
	for i := range f.code {
		in := &f.code[i]
		if in.kind != kCall || in.x.call.name == "" {
			continue
		}
		site := in.x.call
		if site.callee = m.byName[site.name]; site.callee == nil && site.name == "__assertfail" {
			in.kind, in.sub = kTrap, 1
		}
	}
}

// reach returns, for each function, the local memory its calls need at most, and whether it may reach a function that names
// shared variables. Functions are finished callees first; those left over are in cycles or call such.
func (m *Module) reach() (stack []int64, needs []bool, err error) {
	n := len(m.funcs)
	stack, needs = make([]int64, n), make([]bool, n)
	open := make([]int, n)
	callers := make([][]int, n)
	for i, f := range m.funcs {
		stack[i] = 0
		needs[i] = f.indirect || !f.entry && len(f.usesShared)+len(f.shared) > 0
		for _, c := range f.calls {
			if c.callee != nil {
				open[i]++
				callers[c.callee.index] = append(callers[c.callee.index], i)
			}
		}
	}
	var ready []int
	for i := range m.funcs {
		if open[i] == 0 {
			ready = append(ready, i)
		}
	}
	total := func(i int) int64 {
		f := m.funcs[i]
		s := stack[i] + f.localBytes
		if f.indirect {
			s += dynamicStack
		}
		return s
	}
	done := make([]bool, n)
	for len(ready) > 0 {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		done[i] = true
		stack[i] = total(i)
		if stack[i] > MaxLocalBytes {
			f := m.funcs[i]
			return nil, nil, &Error{Line: int(f.line), Instr: f.name, Msg: fmt.Sprintf("more than %d bytes of local memory", MaxLocalBytes)}
		}
		for _, c := range callers[i] {
			stack[c] = max(stack[c], stack[i])
			needs[c] = needs[c] || needs[i]
			if open[c]--; open[c] == 0 {
				ready = append(ready, c)
			}
		}
	}
	for i := range m.funcs {
		if !done[i] {
			stack[i] = min(total(i)+dynamicStack, MaxLocalBytes)
			needs[i] = true
		}
	}
	return stack, needs, nil
}

// Image is a module whose symbols have addresses. It is immutable and safe for concurrent use.
type Image struct {
	mod    *Module
	addrs  map[string]uint64
	consts [][]vec // of each function
}

// Link gives the module's variables their device addresses. addrOf needs every Global of the module by name.
// The error is an *Error: a variable without address, or a function that is called or pointed to but has no body.
func (m *Module) Link(addrOf map[string]uint64) (*Image, error) {
	img := &Image{mod: m, addrs: map[string]uint64{}, consts: make([][]vec, len(m.funcs))}
	for _, g := range m.Globals {
		addr, ok := addrOf[g.Name]
		if !ok {
			return nil, &Error{Line: g.line, Instr: g.Name, Msg: "variable has no address"}
		}
		img.addrs[g.Name] = addr
	}
	for _, g := range m.Globals {
		for _, r := range g.Relocs {
			if _, ok := img.address(r.Symbol); !ok {
				return nil, &Error{Line: g.line, Instr: g.Name, Msg: "initialiser names the unknown symbol " + r.Symbol}
			}
		}
	}
	for i, f := range m.funcs {
		for k := range f.code {
			if in := &f.code[k]; in.kind == kCall && in.x.call.name != "" && in.x.call.callee == nil {
				r := &f.body[in.raw]
				return nil, &Error{Line: int(r.line), Instr: oneLine(r.text), Msg: "function " + in.x.call.name + " has no body"}
			}
		}
		vals := append([]uint64(nil), f.consts...)
		for _, r := range f.relocs {
			switch {
			case r.global != nil:
				vals[r.slot] = img.addrs[r.global.Name] + r.add
			case r.fn != "":
				addr, ok := img.address(r.fn)
				if !ok {
					return nil, &Error{Line: int(f.line), Instr: f.name, Msg: "function " + r.fn + " has no body"}
				}
				vals[r.slot] = addr + r.add
			}
		}
		vs := make([]vec, len(vals))
		for k, v := range vals {
			for l := range vs[k] {
				vs[k][l] = v
			}
		}
		img.consts[i] = vs
	}
	return img, nil
}

// address returns the generic address of a variable or function.
func (img *Image) address(name string) (uint64, bool) {
	if a, ok := img.addrs[name]; ok {
		return a, true
	}
	if f := img.mod.byName[name]; f != nil {
		return FuncBase + uint64(f.index)*16, true
	}
	return 0, false
}

// InitData returns the first bytes of g's value with all addresses filled in; the rest up to g.Size is zero. g is a Global
// of the image's module.
func (img *Image) InitData(g *Global) []byte {
	data := append([]byte(nil), g.Init...)
	for _, r := range g.Relocs {
		addr, _ := img.address(r.Symbol)
		addr += uint64(r.Addend)
		if r.Size == 8 {
			binary.LittleEndian.PutUint64(data[r.Off:], addr)
		} else {
			binary.LittleEndian.PutUint32(data[r.Off:], uint32(addr))
		}
	}
	return data
}
