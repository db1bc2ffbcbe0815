package ptx

import (
	"math/bits"
	"unsafe"
)

// Why a group does not run.
const (
	waitNone  uint8 = iota
	waitBar         // at a barrier of the block
	waitConv        // at a .sync operation, for the other lanes of its mask
	waitWarp        // at bar.warp.sync
	waitSleep       // in nanosleep
)

// group is a set of lanes of a warp that execute together.
type group struct {
	mask   uint32
	pc     int32
	wait   uint8
	bar    uint8  // number of the barrier of waitBar
	member uint32 // lanes of waitWarp
	forced bool   // goes on at a .sync operation without the missing lanes
	frame  *frame
	turn   uint64 // when it last ran
	wake   int64  // nanoseconds, of waitSleep
}

// frame is one activation of a function, shared by the lanes that called it together.
type frame struct {
	fn        *function
	consts    []vec
	regs      []vec
	preds     []uint32
	param     []byte // stride bytes a lane
	stride    int
	localBase int64 // start of its local memory in the thread's
	parent    *frame
	ret       int32 // where the parent goes on
	site      *callSite
	live      uint32
	depth     int32
	next      *frame // of the free list
}

func (f *frame) val(i int32) *vec {
	if i < 0 {
		return &f.consts[^i]
	}
	return &f.regs[i]
}

// pred returns a predicate operand as a mask.
func (f *frame) pred(i int32, flip uint32) uint32 { return f.preds[i] ^ flip }

// setPred writes the active lanes of a predicate.
func (f *frame) setPred(i int32, v, act uint32) { f.preds[i] = f.preds[i]&^act | v&act }

// warp is 32 lanes of a block.
type warp struct {
	block   *Block
	id      int
	live    uint32 // lanes that exist and have not exited
	groups  []group
	cur     int
	limit   int32 // counter at which another group of the frame waits to be joined
	blocked bool  // no group can run
	starved int64 // cycles since groups last met
	turn    uint64
	tid     [3]vec
	tmp     vec
	local   []byte
	free    *frame
}

const noLimit = int32(1<<31 - 1)

const (
	quantumCycles = 128  // a warp's turn
	starveCycles  = 1024 // after which a group that is kept back runs out of turn
	maxCallDepth  = 256
)

// frameBytes is about what an activation takes of the host's memory.
func (fn *function) frameBytes() int64 {
	return int64(fn.numRegs)*int64(unsafe.Sizeof(vec{})) + int64(fn.paramMax+16)*lanes + int64(fn.numPreds)*4
}

// newFrame makes an activation of fn for the lanes of mask; nil when the block has no room for one.
func (w *warp) newFrame(fn *function, mask uint32) *frame {
	var f *frame
	for p := &w.free; *p != nil; p = &(*p).next {
		if (*p).fn == fn {
			f = *p
			*p = f.next
			f.next = nil
			break
		}
	}
	if f == nil {
		size := fn.frameBytes()
		if w.block.frameBytes += size; w.block.frameBytes > maxBlockFrames {
			return nil
		}
		stride := (fn.paramMax + 15) &^ 15
		if fn.entry || fn.paramMax == 0 {
			stride = fn.paramMax
		}
		f = &frame{
			fn: fn, consts: w.block.grid.img.consts[fn.index], regs: make([]vec, fn.numRegs), preds: make([]uint32, fn.numPreds),
			param: alignedBytes(stride * lanes), stride: stride,
		}
		f.preds[0] = fullMask
	}
	f.live = mask
	return f
}

// dead marks lanes of a frame as gone and frees it with the last one.
func (w *warp) dead(f *frame, mask uint32) {
	if f.live &^= mask; f.live == 0 {
		f.parent = nil
		f.next = w.free
		w.free = f
	}
}

// drop takes group i out.
func (w *warp) drop(i int) {
	last := len(w.groups) - 1
	w.groups[i] = w.groups[last]
	w.groups[last].frame = nil
	w.groups = w.groups[:last]
}

// split adds a group of lanes that go on elsewhere.
func (w *warp) split(mask uint32, pc int32, f *frame) {
	if mask != 0 {
		w.groups = append(w.groups, group{mask: mask, pc: pc, frame: f, turn: w.turn})
	}
}

// pick chooses the group to run, joins those at the same place to it, and sets the limit up to which it runs alone.
// It returns false when all groups wait.
func (w *warp) pick() bool {
	if len(w.groups) == 1 {
		if w.groups[0].wait != waitNone {
			w.blocked = true
			return false
		}
		w.cur, w.limit = 0, noLimit
		return true
	}
	oldest := w.starved > starveCycles
	best, parts := w.first(oldest)
	if parts > 1 && w.join() {
		return w.pick()
	}
	if best < 0 {
		w.blocked = true
		return false
	}
	if oldest {
		w.starved = 0
	}
	w.merge(best, oldest)
	return true
}

// first finds the group to run next: the deepest with the lowest counter or, where oldest is set, the one that has
// waited longest; -1 if all wait. parts is the number of groups that wait for the others of a collective operation.
func (w *warp) first(oldest bool) (best, parts int) {
	best = -1
	for i := range w.groups {
		g := &w.groups[i]
		if g.wait == waitConv {
			parts++
		}
		if g.wait != waitNone {
			continue
		}
		if best < 0 {
			best = i
			continue
		}
		b := &w.groups[best]
		switch {
		case oldest:
			if g.turn < b.turn {
				best = i
			}
		case g.frame.depth != b.frame.depth:
			if g.frame.depth > b.frame.depth {
				best = i
			}
		case g.pc < b.pc:
			best = i
		}
	}
	return best, parts
}

// merge makes a group the current one, with the lanes of all groups at the same instruction. It runs until it reaches
// another group's instruction.
func (w *warp) merge(best int, oldest bool) {
	b := w.groups[best]
	w.limit = noLimit
	for i := 0; i < len(w.groups); i++ {
		g := &w.groups[i]
		if i == best || g.frame != b.frame || g.wait != waitNone && g.wait != waitConv {
			continue
		}
		switch {
		case g.pc == b.pc:
			b.mask |= g.mask
			w.starved = 0
			w.drop(i)
			if best == len(w.groups) {
				best = i
			}
			i--
		case g.pc > b.pc && !oldest:
			w.limit = min(w.limit, g.pc)
		}
	}
	w.turn++
	b.turn = w.turn
	w.groups[best] = b
	w.cur = best
}

// join merges groups that wait at the same .sync operation, which a group that ran out of turn reaches without being
// stopped at the others' place. It returns whether there were any.
func (w *warp) join() bool {
	for i := range w.groups {
		for k := i + 1; k < len(w.groups); k++ {
			a, b := &w.groups[i], &w.groups[k]
			if a.wait == waitConv && b.wait == waitConv && a.pc == b.pc && a.frame == b.frame {
				a.mask |= b.mask
				a.wait = waitNone
				w.starved = 0
				w.drop(k)
				return true
			}
		}
	}
	return false
}

// run executes the warp's groups from cycle used of the Run to end, or until all wait or have exited, and returns the
// cycle.
func (w *warp) run(used, end int64) int64 {
	for used < end && w.live != 0 && w.block.err == nil && w.pick() {
		from := used
		used = w.exec(used, end)
		if len(w.groups) > 1 {
			w.starved += used - from
		}
	}
	return used
}

// exit ends lanes of a group.
func (w *warp) exit(f *frame, act uint32) {
	w.live &^= act
	for f != nil {
		parent := f.parent
		w.dead(f, act)
		f = parent
	}
	// Lanes that waited for these need not any more; they look again.
	for i := range w.groups {
		if g := &w.groups[i]; g.wait == waitConv || g.wait == waitWarp {
			g.wait = waitNone
		}
	}
	w.block.exited(bits.OnesCount32(act))
}

// force lets the groups that wait for lanes of their warp go on without them; it returns whether there was any.
func (w *warp) force() bool {
	any := false
	for i := range w.groups {
		if g := &w.groups[i]; g.wait == waitConv || g.wait == waitWarp {
			g.wait, g.forced, any = waitNone, true, true
			w.blocked = false
		}
	}
	return any
}

// ready returns which of the active lanes of a group can do a .sync operation: lanes that name the same members, if all
// of these are there; 0 if none can. Lanes that name different ones can be at the same place, and so in one group.
func (w *warp) ready(in *inst, f *frame, g *group, act uint32) uint32 {
	if in.sub == 0 || g.forced {
		return act
	}
	members := f.val(in.x.e)
	for rest := act; rest != 0; {
		m := uint32(members[bits.TrailingZeros32(rest)])
		lanes := naming(members, m, act)
		if m&w.live&^lanes&^(g.mask&^act) == 0 {
			return lanes
		}
		rest &^= lanes
	}
	return 0
}

// naming returns the active lanes that name those members.
func naming(members *vec, m, act uint32) (lanes uint32) {
	for ; act != 0; act &= act - 1 {
		i := bits.TrailingZeros32(act)
		lanes |= bit(uint32(members[i]) == m) << i
	}
	return lanes
}

// part makes some lanes of the current group one of their own, at the same place. (The slice has room for one for each
// lane.)
func (w *warp) part(g *group, lanes uint32, wait uint8) {
	w.groups = append(w.groups, group{mask: lanes, pc: g.pc, frame: g.frame, turn: w.turn, wait: wait})
	g.mask &^= lanes
}

// others returns the active lanes at a bar.warp.sync that name other members than the first one does.
func (w *warp) others(in *inst, f *frame, act uint32) uint32 {
	members := f.val(in.x.e)
	return act &^ naming(members, uint32(members[bits.TrailingZeros32(act)]), act)
}

// reconverge releases the groups that name the same members as this one, when all of these have come.
func (w *warp) reconverge(in *inst, f *frame, g *group, act uint32) bool {
	if g.forced {
		return true
	}
	m := uint32(f.val(in.x.e)[bits.TrailingZeros32(act)])
	missing := m & w.live &^ g.mask
	for i := range w.groups {
		if o := &w.groups[i]; o.wait == waitWarp && o.member == m {
			missing &^= o.mask
		}
	}
	if missing != 0 {
		g.wait, g.member = waitWarp, m
		return false
	}
	for i := range w.groups {
		if o := &w.groups[i]; o.wait == waitWarp && o.member == m {
			o.wait = waitNone
			o.pc++
		}
	}
	return true
}
