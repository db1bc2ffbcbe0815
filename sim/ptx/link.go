package ptx

import (
	"encoding/binary"
	"fmt"
)

// dynamicStack is the local memory a thread gets beyond what is known when its calls may recurse or go through
// pointers.
const dynamicStack = 16 << 10

// layout places shared variables, sums up local memory over calls, and completes the Kernels.
func (m *Module) layout(o Options) error {
	for _, f := range m.funcs {
		m.Prints = f.builtins() || m.Prints
	}
	// Shared variables named by functions other than kernels have one place in all kernels that may reach these
	// functions.
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
			f.kernel.Regs = f.kernel.registers(f.regs, o)
		}
		for _, r := range f.relocs {
			if r.shared != nil {
				f.consts[r.index] = uint64(r.shared.off) + r.add
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

// builtins finds the calls of what the device provides, and returns whether the function prints. A call of the
// assertion handler is a trap.
func (f *function) builtins() (prints bool) {
	for i := range f.code {
		in := &f.code[i]
		if in.kind != kCall || in.x.call.name == "" || in.x.call.callee != nil {
			continue
		}
		switch site := in.x.call; site.name {
		case "__assertfail":
			in.kind, in.sub = kTrap, 1
		case "vprintf":
			if len(site.rets) == 1 && len(site.args) == 2 && site.rets[0].size == 4 && site.args[0].size == 8 && site.args[1].size == 8 {
				in.kind, prints = kPrint, true
			}
		}
	}
	return prints
}

// reach returns, for each function, the local memory its calls need at most, and whether it may reach a function that
// names shared variables. Functions are finished callees first; those left over are in cycles or call such.
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
	addrs  map[*Global]uint64
	consts [][]vec // of each function
}

// Link gives the module's variables their device addresses. addrOf needs every Global of the module by name, but for
// those that are extern. The error is an *Error: a variable without address, or what Unresolved says.
func (m *Module) Link(addrOf map[string]uint64) (*Image, error) {
	if err := m.Unresolved(); err != nil {
		return nil, err
	}
	img := &Image{mod: m, addrs: map[*Global]uint64{}, consts: make([][]vec, len(m.funcs))}
	for _, g := range m.Globals {
		addr, ok := addrOf[g.Name]
		if !ok && !g.Extern {
			return nil, &Error{Line: g.line, Instr: g.Name, Msg: "variable has no address"}
		}
		img.addrs[g] = addr
	}
	for i, f := range m.funcs {
		vals := append([]uint64(nil), f.consts...)
		for _, r := range f.relocs {
			switch {
			case r.global != nil:
				vals[r.index] = img.addrs[r.global] + r.add
			case r.fn != nil:
				vals[r.index] = r.fn.address() + r.add
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

// address is the generic address of a function.
func (f *function) address() uint64 { return FuncBase + uint64(f.index)*16 }

// InitData returns the first bytes of g's value with all addresses filled in; the rest up to g.Size is zero. g is a
// Global of the image's module.
func (img *Image) InitData(g *Global) []byte {
	data := append([]byte(nil), g.Init...)
	for _, r := range g.Relocs {
		addr := img.addrs[r.global]
		if r.global == nil {
			addr = r.fn.address()
		}
		addr += uint64(r.Addend)
		if r.Size == 8 {
			binary.LittleEndian.PutUint64(data[r.Off:], addr)
		} else {
			binary.LittleEndian.PutUint32(data[r.Off:], uint32(addr))
		}
	}
	return data
}
