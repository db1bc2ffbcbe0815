package ptx

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// window is one mapped range as Memory gave it.
type window struct {
	base, size uint64
	host       unsafe.Pointer
	writable   bool
}

// global returns the host memory of [addr, addr+size), asking Memory only when the range is not among the last few.
func (b *Block) global(addr, size uint64, write bool) (unsafe.Pointer, FaultKind) {
	for i := range b.windows {
		win := &b.windows[i]
		if off := addr - win.base; off < win.size {
			if win.size-off < size {
				return nil, FaultAddress
			}
			if write && !win.writable {
				return nil, FaultReadOnly
			}
			if i != 0 {
				b.windows[0], *win = *win, b.windows[0]
				win = &b.windows[0]
			}
			return unsafe.Add(win.host, off), 0
		}
	}
	base, mem, writable, ok := b.grid.mem.Window(addr)
	if !ok || addr < base || addr-base >= uint64(len(mem)) {
		return nil, FaultAddress
	}
	copy(b.windows[1:], b.windows[:])
	b.windows[0] = window{base, uint64(len(mem)), unsafe.Pointer(unsafe.SliceData(mem)), writable}
	return b.global(addr, size, write)
}

// inside returns the place of [addr, addr+size) in mem, nil when it is not inside.
func inside(mem []byte, addr, size uint64) unsafe.Pointer {
	if n := uint64(len(mem)); addr >= n || n-addr < size {
		return nil
	}
	return unsafe.Pointer(&mem[addr])
}

// ptr resolves an address of a lane; a nil result comes with the fault.
func (w *warp) ptr(space memSpace, f *frame, lane uint, addr, size uint64, write bool) (unsafe.Pointer, FaultKind) {
	if addr&(size-1) != 0 {
		return nil, FaultMisaligned
	}
	var p unsafe.Pointer
	fault := FaultAddress
	switch space {
	case inGlobal:
		return w.block.global(addr, size, write)
	case inGeneric:
		off := addr & (windowSize - 1)
		switch addr &^ (windowSize - 1) {
		case 0:
			return w.block.global(addr, size, write)
		case SharedBase:
			return w.ptr(inShared, f, lane, off, size, write)
		case LocalBase:
			return w.ptr(inLocal, f, lane, off, size, write)
		case ParamBase:
			return w.ptr(inKernelParam, f, lane, off, size, write)
		}
	case inShared:
		p, fault = inside(w.block.shared, addr, size), FaultShared
	case inLocal:
		if n := uint64(w.block.grid.localBytes); addr < n {
			p = inside(w.local[uint64(lane)*n:uint64(lane+1)*n], addr, size)
		}
		fault = FaultLocal
	case inFrameParam:
		if n := uint64(f.stride); addr < n {
			p = inside(f.param[uint64(lane)*n:uint64(lane+1)*n], addr, size)
		}
	case inKernelParam:
		if write {
			return nil, FaultReadOnly
		}
		p = inside(w.block.grid.params, addr, size)
	}
	if p == nil {
		return nil, fault
	}
	return p, 0
}

func read(p unsafe.Pointer, size uint8) uint64 {
	switch size {
	case 4:
		return uint64(*(*uint32)(p))
	case 8:
		return *(*uint64)(p)
	case 2:
		return uint64(*(*uint16)(p))
	}
	return uint64(*(*uint8)(p))
}

func write(p unsafe.Pointer, size uint8, v uint64) {
	switch size {
	case 4:
		*(*uint32)(p) = uint32(v)
	case 8:
		*(*uint64)(p) = v
	case 2:
		*(*uint16)(p) = uint16(v)
	default:
		*(*uint8)(p) = uint8(v)
	}
}

func readStrong(p unsafe.Pointer, size uint8) uint64 {
	switch size {
	case 4:
		return uint64(atomic.LoadUint32((*uint32)(p)))
	case 8:
		return atomic.LoadUint64((*uint64)(p))
	}
	return read(p, size)
}

func writeStrong(p unsafe.Pointer, size uint8, v uint64) {
	switch size {
	case 4:
		atomic.StoreUint32((*uint32)(p), uint32(v))
	case 8:
		atomic.StoreUint64((*uint64)(p), v)
	default:
		write(p, size, v)
	}
}

// region returns the range in which the next access to a space is likely to lie; an empty one when there is none.
func (w *warp) region(space memSpace, write bool) window {
	switch space {
	case inShared:
		return window{size: uint64(len(w.block.shared)), host: unsafe.Pointer(unsafe.SliceData(w.block.shared))}
	case inGlobal, inGeneric:
		if r := w.block.windows[0]; r.writable || !write {
			return r
		}
	}
	return window{}
}

// at returns the host address of a naturally aligned access inside the region, nil when it is not.
func (r *window) at(addr, size uint64) unsafe.Pointer {
	off := addr - r.base
	if off >= r.size || r.size-off < size || addr&(size-1) != 0 {
		return nil
	}
	return unsafe.Add(r.host, off)
}

// locate finds the memory of an access that is not where the last one was, and the range in which the next access is
// likely to lie; nil after a fault.
func (w *warp) locate(in *inst, f *frame, lane uint, addr, size uint64, write bool) (unsafe.Pointer, window) {
	p, fault := w.ptr(in.x.space, f, lane, addr, size, write)
	if fault != 0 {
		w.fault(fault, addr, f, in)
		return nil, window{}
	}
	return p, w.region(in.x.space, write)
}

// load executes kLd for the active lanes; a fault is recorded in the block.
func (w *warp) load(in *inst, f *frame, act uint32) {
	x := in.x
	base := f.val(in.a)
	n := uint64(in.size) * uint64(len(x.regs))
	near := w.region(x.space, false)
	for l := uint(0); l < lanes; l++ {
		if act>>l&1 == 0 {
			continue
		}
		addr := base[l] + in.imm
		p := near.at(addr, n)
		if p == nil {
			if p, near = w.locate(in, f, l, addr, n, false); p == nil {
				return
			}
		}
		if n == 4 && in.size == 4 && !x.strong && x.regs[0] >= 0 {
			f.regs[x.regs[0]][l] = ((uint64(*(*uint32)(p)) ^ x.ext) - x.ext) & x.mask
			continue
		}
		for k, r := range x.regs {
			if r == sinkReg {
				continue
			}
			e := unsafe.Add(p, k*int(in.size))
			var v uint64
			if x.strong {
				v = readStrong(e, in.size)
			} else {
				v = read(e, in.size)
			}
			f.regs[r][l] = ((v ^ x.ext) - x.ext) & x.mask
		}
	}
}

// store executes kSt for the active lanes.
func (w *warp) store(in *inst, f *frame, act uint32) {
	x := in.x
	base := f.val(in.a)
	n := uint64(in.size) * uint64(len(x.regs))
	near := w.region(x.space, true)
	for l := uint(0); l < lanes; l++ {
		if act>>l&1 == 0 {
			continue
		}
		addr := base[l] + in.imm
		p := near.at(addr, n)
		if p == nil {
			if p, near = w.locate(in, f, l, addr, n, true); p == nil {
				return
			}
		}
		for k, r := range x.regs {
			e, v := unsafe.Add(p, k*int(in.size)), f.val(r)[l]
			if x.strong {
				writeStrong(e, in.size, v)
			} else {
				write(e, in.size, v)
			}
		}
	}
}

// atomFn changes the value at an address and returns the old one.
type atomFn func(p unsafe.Pointer, x, y uint64) uint64

// atomics executes kAtom lane by lane.
func (w *warp) atomics(in *inst, f *frame, act uint32) {
	base, xs, ys := f.val(in.a), f.val(in.b), f.val(in.c)
	for l := uint(0); act != 0; l, act = l+1, act>>1 {
		if act&1 == 0 {
			continue
		}
		addr := base[l] + in.imm
		p, fault := w.ptr(in.x.space, f, l, addr, uint64(in.size), true)
		if fault != 0 {
			w.fault(fault, addr, f, in)
			return
		}
		old := in.x.atom(p, xs[l], ys[l])
		if in.x.ret {
			f.regs[in.d][l] = old
		}
	}
}

// update32 and update64 apply f until nobody interferes.
func update32(p unsafe.Pointer, f func(uint32) uint32) uint64 {
	a := (*uint32)(p)
	for {
		old := atomic.LoadUint32(a)
		if atomic.CompareAndSwapUint32(a, old, f(old)) {
			return uint64(old)
		}
	}
}

func update64(p unsafe.Pointer, f func(uint64) uint64) uint64 {
	a := (*uint64)(p)
	for {
		old := atomic.LoadUint64(a)
		if atomic.CompareAndSwapUint64(a, old, f(old)) {
			return old
		}
	}
}

// update16 changes half a word through the word that holds it.
func update16(p unsafe.Pointer, f func(uint16) uint16) uint64 {
	shift := uint(uintptr(p)&2) * 8
	word := unsafe.Add(p, -int(uintptr(p)&2))
	old := update32(word, func(v uint32) uint32 {
		return v&^(0xffff<<shift) | uint32(f(uint16(v>>shift)))<<shift
	})
	return old >> shift & 0xffff
}

// updateOp returns the new value of an atomic operation as a function of the old one; nil when there is none.
func updateOp(op string, t typ) func(old, x, y uint64) uint64 {
	switch op {
	case "exch":
		if t.isBits() && t.bits() >= 16 {
			return func(_, x, _ uint64) uint64 { return x }
		}
	case "cas":
		if t.isBits() && t.bits() >= 16 {
			return func(old, x, y uint64) uint64 {
				if old == x {
					return y
				}
				return old
			}
		}
	case "and", "or", "xor":
		if t == tB32 || t == tB64 {
			return map[string]func(old, x, _ uint64) uint64{
				"and": func(old, x, _ uint64) uint64 { return old & x },
				"or":  func(old, x, _ uint64) uint64 { return old | x },
				"xor": func(old, x, _ uint64) uint64 { return old ^ x },
			}[op]
		}
	case "inc":
		if t == tU32 {
			return func(old, x, _ uint64) uint64 {
				if old >= x {
					return 0
				}
				return old + 1
			}
		}
	case "dec":
		if t == tU32 {
			return func(old, x, _ uint64) uint64 {
				if old == 0 || old > x {
					return x
				}
				return old - 1
			}
		}
	case "min", "max":
		return atomicMinMax(t, op == "max")
	case "add":
		return atomicAdd(t)
	}
	return nil
}

func atomicMinMax(t typ, most bool) func(old, x, y uint64) uint64 {
	if t != tU32 && t != tS32 && t != tU64 && t != tS64 {
		return nil
	}
	return func(old, x, _ uint64) uint64 {
		less := x < old
		if t.signed() {
			less = int64(extend(x, t)) < int64(extend(old, t))
		}
		if less != most && x != old {
			return x
		}
		return old
	}
}

func atomicAdd(t typ) func(old, x, y uint64) uint64 {
	switch t {
	case tU32, tS32, tU64, tS64:
		return func(old, x, _ uint64) uint64 { return (old + x) & t.mask() }
	case tF32:
		return func(old, x, _ uint64) uint64 { return bits32(f32of(old) + f32of(x)) }
	case tF64:
		return func(old, x, _ uint64) uint64 { return math.Float64bits(f64of(old) + f64of(x)) }
	case tF16, tBF16, tF16x2, tBF16x2:
		h := halves[t]
		return func(old, x, _ uint64) uint64 {
			var r uint64
			for s := 0; s < 16*h.n; s += 16 {
				r |= h.fromFloat(h.toFloat(old>>s&0xffff)+h.toFloat(x>>s&0xffff), rn) << s
			}
			return r
		}
	}
	return nil
}

// atomicOp returns the operation of atom and red on a type, nil when there is none.
func atomicOp(op string, t typ) atomFn {
	switch {
	case op == "add" && t.integer() && t.bits() == 32 && !t.isBits():
		return func(p unsafe.Pointer, x, _ uint64) uint64 {
			return uint64(atomic.AddUint32((*uint32)(p), uint32(x)) - uint32(x))
		}
	case op == "add" && t.integer() && t.bits() == 64 && !t.isBits():
		return func(p unsafe.Pointer, x, _ uint64) uint64 { return atomic.AddUint64((*uint64)(p), x) - x }
	case op == "exch" && t == tB32:
		return func(p unsafe.Pointer, x, _ uint64) uint64 { return uint64(atomic.SwapUint32((*uint32)(p), uint32(x))) }
	case op == "exch" && t == tB64:
		return func(p unsafe.Pointer, x, _ uint64) uint64 { return atomic.SwapUint64((*uint64)(p), x) }
	}
	f := updateOp(op, t)
	if f == nil {
		return nil
	}
	switch t.bits() {
	case 16:
		return func(p unsafe.Pointer, x, y uint64) uint64 {
			return update16(p, func(v uint16) uint16 { return uint16(f(uint64(v), x, y)) })
		}
	case 32:
		return func(p unsafe.Pointer, x, y uint64) uint64 {
			return update32(p, func(v uint32) uint32 { return uint32(f(uint64(v), x, y)) })
		}
	}
	return func(p unsafe.Pointer, x, y uint64) uint64 {
		return update64(p, func(v uint64) uint64 { return f(v, x, y) })
	}
}
