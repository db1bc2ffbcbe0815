package ptx

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// merge copies the active lanes.
func merge(d, s *vec, act uint32) {
	for m := act; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = s[i]
	}
}

// exec runs the current group until cycle end, or until it merges with, splits from or waits for others, and returns
// the cycle.
func (w *warp) exec(used, end int64) int64 {
	g := &w.groups[w.cur]
	f := g.frame
	code, preds := f.fn.code, f.preds
	pc, mask := g.pc, g.mask
	gone := ^w.live // lanes whose registers nobody reads any more
	for used < end && pc < w.limit {
		in := &code[pc]
		act := mask & (preds[in.guard] ^ in.flip)
		if act == 0 {
			used += int64(in.cost & 1) // micro-operations of one instruction are free
			if in.cost != 0 && in.cost&1 == 0 {
				used++
			}
			pc++
			continue
		}
		used += int64(in.cost)
		switch in.kind {
		case kALU:
			if act|gone == fullMask {
				in.fn(&f.regs[in.d], f.val(in.a), f.val(in.b), f.val(in.c))
			} else {
				in.fn(&w.tmp, f.val(in.a), f.val(in.b), f.val(in.c))
				merge(&f.regs[in.d], &w.tmp, act)
			}
		case kALU4:
			in.x.fn4(&w.tmp, f.val(in.a), f.val(in.b), f.val(in.c), f.val(in.x.e))
			merge(&f.regs[in.d], &w.tmp, act)
		case kCC:
			var carry uint32
			if in.sub&ccRead != 0 {
				carry = preds[f.fn.ccPred]
			}
			carry = in.x.cc(&w.tmp, f.val(in.a), f.val(in.b), f.val(in.c), carry)
			merge(&f.regs[in.d], &w.tmp, act)
			if in.sub&ccWrite != 0 {
				f.setPred(f.fn.ccPred, carry, act)
			}
		case kSetp:
			r := in.x.cmp(f.val(in.a), f.val(in.b))
			if in.sub != joinNone || in.x.q >= 0 {
				c := f.pred(in.c, in.x.flip)
				if in.x.q >= 0 {
					q := join(in.sub, ^r, c)
					r = join(in.sub, r, c)
					f.setPred(in.x.q, q, act)
				} else {
					r = join(in.sub, r, c)
				}
			}
			preds[in.d] = preds[in.d]&^act | r&act
		case kSet:
			r := join(in.sub, in.x.cmp(f.val(in.a), f.val(in.b)), f.pred(in.c, in.x.flip))
			d := &f.regs[in.d]
			for m := act; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m)
				d[i&31] = in.imm & -uint64(r>>i&1)
			}
		case kSelp:
			d, x, y, p := &f.regs[in.d], f.val(in.a), f.val(in.b), f.pred(in.c, in.x.flip)
			merge2(d, x, y, p, act)
		case kPred:
			f.setPred(in.d, join(in.sub, f.pred(in.a, in.x.flip), f.pred(in.b, in.x.flipB)), act)
		case kSreg:
			w.special(&w.tmp, in.sub, in.imm, f, used)
			if act|gone == fullMask {
				f.regs[in.d] = w.tmp
			} else {
				merge(&f.regs[in.d], &w.tmp, act)
			}
		case kLdParam:
			v := readParam(w.block.grid.params[in.imm:], in.size)
			if in.x.ext != 0 {
				v = ((v ^ in.x.ext) - in.x.ext) & in.x.mask
			}
			d := &f.regs[in.d]
			for m := act; m != 0; m &= m - 1 {
				d[bits.TrailingZeros32(m)&31] = v
			}
		case kLd:
			w.load(in, f, act)
		case kSt:
			w.store(in, f, act)
		case kAtom:
			w.atomics(in, f, act)
		case kFence:
			// A locked instruction orders all accesses before and after it.
			atomic.AddUint32(&w.block.fence, 1)
		case kNop:
		case kBra:
			if act == mask {
				pc = int32(in.imm)
				continue
			}
			w.split(act, int32(in.imm), f)
			g.mask, g.pc = mask&^act, pc+1
			return used
		default:
			g.pc = pc
			if !w.control(in, f, g, act, used) {
				return used
			}
		}
		if w.block.err != nil {
			return used
		}
		pc++
	}
	g.pc = pc
	return used
}

func merge2(d, x, y *vec, p, act uint32) {
	for m := act; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		v := y[i&31]
		if p>>i&1 != 0 {
			v = x[i&31]
		}
		d[i&31] = v
	}
}

func join(op uint8, a, b uint32) uint32 {
	switch op {
	case joinAnd:
		return a & b
	case joinOr:
		return a | b
	case joinXor:
		return a ^ b
	case joinNot:
		return ^a
	}
	return a
}

func readParam(p []byte, size uint8) uint64 {
	switch size {
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	case 8:
		return binary.LittleEndian.Uint64(p)
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	}
	return uint64(p[0])
}

// control executes an instruction that may end, split or stop the group. It returns false when the group does not
// simply continue after the instruction; then the group's counter is set already.
func (w *warp) control(in *inst, f *frame, g *group, act uint32, used int64) bool {
	switch in.kind {
	case kBrx:
		w.branchIndexed(in, f, g, act)
		return false
	case kExit:
		w.leave(g, act, false)
		w.exit(f, act)
		return false
	case kRet:
		w.returns(f, g, act)
		return false
	case kCall:
		w.call(in, f, g, act)
		return false
	case kTrap:
		kind := FaultTrap
		if in.sub != 0 {
			kind = FaultAssert
		}
		w.fault(kind, 0, f, in)
		return false
	case kPrint:
		w.print(in, f, act)
		return true
	case kSleep:
		t := f.val(in.a)[bits.TrailingZeros32(act)]
		if act == g.mask && t != 0 {
			g.pc++
			g.wait, g.wake = waitSleep, w.block.nanos(used)+int64(uint32(t))
			w.block.sleepers = true
			return false
		}
		return true
	case kBar:
		return w.block.barrier(w, in, f, g, act)
	case kBarWarp:
		return w.barWarp(in, f, g, act)
	}
	lanes := w.ready(in, f, g, act)
	if lanes == 0 {
		g.wait = waitConv
		return false
	}
	w.collective(in, f, lanes)
	g.forced = false
	if lanes != act {
		w.part(g, act&^lanes, waitConv)
		g.pc++
	}
	return lanes == act
}

// branchIndexed is brx.idx: the lanes with the first target branch together, the others execute the instruction again.
func (w *warp) branchIndexed(in *inst, f *frame, g *group, act uint32) {
	idx := f.val(in.a)
	first := idx[bits.TrailingZeros32(act)]
	if first >= uint64(len(in.x.table)) {
		w.fault(FaultInstruction, 0, f, in)
		return
	}
	sel := same(idx, first, act)
	w.split(g.mask&^act, g.pc+1, f)
	w.split(act&^sel, g.pc, f)
	g.mask, g.pc = sel, in.x.table[first]
}

// returns returns lanes from a function to its caller, with the results.
func (w *warp) returns(f *frame, g *group, act uint32) {
	site, parent := f.site, f.parent
	for m := act; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		for _, c := range site.rets {
			copy(parent.param[l*parent.stride+c.caller:][:c.size], f.param[l*f.stride+c.callee:])
		}
	}
	to := f.ret
	w.leave(g, act, false)
	w.split(act, to, parent)
	w.dead(f, act)
}

// barWarp is bar.warp.sync: lanes with another member mask leave the group first. It returns false when the group
// waits.
func (w *warp) barWarp(in *inst, f *frame, g *group, act uint32) bool {
	other := w.others(in, f, act)
	if other != 0 {
		w.part(g, other, waitNone)
	}
	if !w.reconverge(in, f, g, act&^other) {
		return false
	}
	g.forced = false
	if other != 0 {
		g.pc++
	}
	return other == 0
}

// leave takes lanes out of the current group, which continues after its instruction if any stay.
func (w *warp) leave(g *group, act uint32, again bool) {
	g.mask &^= act
	if g.mask == 0 {
		w.drop(w.cur)
	} else if !again {
		g.pc++
	}
}

// same returns the active lanes that hold v.
func same(x *vec, v uint64, act uint32) (m uint32) {
	for i, e := range x {
		m |= bit(e == v) << i
	}
	return m & act
}

// call enters a function; lanes that call another through a pointer come again.
func (w *warp) call(in *inst, f *frame, g *group, act uint32) {
	site := in.x.call
	callee, sel := site.callee, act
	if site.name == "" {
		to := f.val(in.a)
		first := to[bits.TrailingZeros32(act)]
		callee = w.block.grid.img.mod.at(first)
		if callee == nil || !site.fits(callee) {
			w.fault(FaultCall, first, f, in)
			return
		}
		sel = same(to, first, act)
	}
	base := f.localBase + f.fn.localBytes
	if f.depth >= maxCallDepth || base+callee.localBytes > w.block.grid.localBytes {
		w.fault(FaultStack, uint64(base), f, in)
		return
	}
	nf := w.newFrame(callee, sel)
	if nf == nil {
		w.fault(FaultStack, uint64(base), f, in)
		return
	}
	nf.parent, nf.ret, nf.site, nf.depth, nf.localBase = f, g.pc+1, site, f.depth+1, base
	for m := sel; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		for _, c := range site.args {
			copy(nf.param[l*nf.stride+c.callee:][:c.size], f.param[l*f.stride+c.caller:])
		}
	}
	w.split(g.mask&^act, g.pc+1, f)
	w.split(act&^sel, g.pc, f)
	g.mask, g.pc, g.frame = sel, 0, nf
}

// fits says whether a function has the parameters that a call through a pointer passes.
func (s *callSite) fits(f *function) bool {
	match := func(list []copyParam, formals []formal) bool {
		if len(list) != len(formals) {
			return false
		}
		for i, c := range list {
			if c.callee != formals[i].off || c.size != formals[i].size {
				return false
			}
		}
		return true
	}
	return !f.entry && match(s.args, f.params) && match(s.rets, f.rets)
}

// at returns the function at a generic address, nil when there is none.
func (m *Module) at(addr uint64) *function {
	if i := (addr - FuncBase) / 16; addr >= FuncBase && addr%16 == 0 && i < uint64(len(m.funcs)) {
		return m.funcs[i]
	}
	return nil
}

// collective executes the operations across the lanes of a warp.
func (w *warp) collective(in *inst, f *frame, act uint32) {
	x := in.x
	switch in.kind {
	case kActive:
		w.spread(in, f, uint64(act), act)
	case kShfl:
		w.shuffle(in, f, act)
	case kVote:
		v := f.pred(in.c, x.flip) & act
		switch x.mode {
		case voteBallot:
			w.spread(in, f, uint64(v), act)
		case voteAll:
			f.setPred(in.d, -bit(v == act), act)
		case voteAny:
			f.setPred(in.d, -bit(v != 0), act)
		case voteUni:
			f.setPred(in.d, -bit(v == act || v == 0), act)
		}
	case kMatch:
		a := f.val(in.a)
		if x.mode == 1 {
			m := same(a, a[bits.TrailingZeros32(act)], act)
			if x.q >= 0 {
				f.setPred(x.q, -bit(m == act), act)
			}
			if m != act {
				m = 0
			}
			w.spread(in, f, uint64(m), act)
			return
		}
		for m := act; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			w.tmp[i] = uint64(same(a, a[i], act))
		}
		merge(&f.regs[in.d], &w.tmp, act)
	case kRedux:
		var acc, v vec
		a := f.val(in.a)
		acc[0] = a[bits.TrailingZeros32(act)]
		for m := act & (act - 1); m != 0; m &= m - 1 {
			v[0] = a[bits.TrailingZeros32(m)]
			in.fn(&acc, &acc, &v, &v)
		}
		w.spread(in, f, acc[0], act)
	case kElect:
		lead := bits.TrailingZeros32(act)
		if x.q >= 0 {
			f.setPred(x.q, 1<<lead, act)
		}
		w.spread(in, f, uint64(lead), act)
	}
}

// spread writes one value to the active lanes of the destination.
func (w *warp) spread(in *inst, f *frame, v uint64, act uint32) {
	d := &f.regs[in.d]
	for m := act; m != 0; m &= m - 1 {
		d[bits.TrailingZeros32(m)&31] = v
	}
}

// shuffle reads another lane's value. A lane that is not active gives its register as it is.
func (w *warp) shuffle(in *inst, f *frame, act uint32) {
	a, b, c := f.val(in.a), f.val(in.b), f.val(in.c)
	var ok uint32
	for m := act; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		n, clamp, seg := int(b[i]&31), int(c[i]&31), int(c[i]>>8&31)
		top, low := i&seg|clamp&^seg, i&seg
		var j int
		var good bool
		switch in.x.mode {
		case shflUp: // here the clamp is the lowest lane
			j = i - n
			good = j >= top
		case shflDown:
			j = i + n
			good = j <= top
		case shflBfly:
			j = i ^ n
			good = j <= top
		default:
			j = low | n&^seg
			good = j <= top
		}
		if !good {
			j = i
		}
		ok |= bit(good) << i
		w.tmp[i] = a[j&31]
	}
	if in.x.q >= 0 {
		f.setPred(in.x.q, ok, act)
	}
	merge(&f.regs[in.d], &w.tmp, act)
}
