package ptx

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Block is one thread block of a grid in execution. It belongs to one goroutine at a time.
type Block struct {
	grid  *Grid
	index [3]uint32

	at       At
	err      error
	started  bool
	warps    []warp
	next     int // warp whose turn it is
	threads  int // lanes that have not exited
	sleepers bool
	shared   []byte
	barriers [16]barrier
	windows  [4]window
	fence    uint32

	frameBytes int64 // host memory of all frames
}

// barrier is one of the 16 barriers of a block.
type barrier struct {
	expect  int // threads, 0 for all
	count   int // lanes that have arrived
	arrived []uint32
	and     uint32 // 1 while all predicates of a reduction were true
	or      uint32
	popc    uint32
}

// alignedBytes makes zeroed memory whose address is a multiple of 8.
func alignedBytes(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// Index returns the position of the block in the grid, %ctaid.
func (b *Block) Index() [3]uint32 { return b.index }

// start makes the warps.
func (b *Block) start() {
	b.started = true
	g := b.grid
	dim := g.launch.Block
	b.threads = g.threads
	n := (g.threads + lanes - 1) / lanes
	b.warps = make([]warp, n)
	b.shared = alignedBytes(g.dynamicBase + int(g.launch.SharedDynamic))
	arrived := make([]uint32, n*len(b.barriers))
	for i := range b.barriers {
		b.barriers[i].arrived = arrived[i*n : (i+1)*n]
		b.barriers[i].and = 1
	}
	for i := range b.warps {
		w := &b.warps[i]
		w.block, w.id = b, i
		w.live = fullMask
		if left := g.threads - i*lanes; left < lanes {
			w.live = 1<<left - 1
		}
		w.local = alignedBytes(int(g.localBytes) * lanes)
		for l := range uint32(lanes) {
			t := uint32(i*lanes) + l
			w.tid[0][l], w.tid[1][l], w.tid[2][l] = uint64(t%dim[0]), uint64(t/dim[0]%dim[1]), uint64(t/dim[0]/dim[1])
		}
		w.groups = make([]group, 0, lanes+1)
		w.split(w.live, 0, w.newFrame(g.fn, w.live))
	}
}

// nanos is %globaltimer at a cycle of the Run.
func (b *Block) nanos(used int64) int64 {
	return b.at.Nanos + int64(float64(used)*b.at.NanosPerCycle)
}

// Run executes the block for about the given number of cycles, from where it stopped, and returns the cycles it took
// and whether the block has ended. The error, a *Fault, ends the block; it is returned by every later Run too. A call
// that is not "done" has used at least one cycle when cycles is positive.
func (b *Block) Run(at At, cycles int64) (used int64, done bool, err error) {
	if b.err != nil {
		return 0, true, b.err
	}
	if !b.started {
		b.start()
	}
	if !(at.NanosPerCycle > 0) || math.IsInf(at.NanosPerCycle, 0) {
		at.NanosPerCycle = 1
	}
	b.at = at
	clear(b.windows[:])
	for used < cycles && b.threads > 0 {
		if b.sleepers {
			b.wakeUp(used)
		}
		ran := false
		for range b.warps {
			w := &b.warps[b.next]
			if b.next++; b.next == len(b.warps) {
				b.next = 0
			}
			if w.live == 0 || w.blocked {
				continue
			}
			from := used
			used = w.run(used, min(used+quantumCycles, cycles))
			if b.err != nil {
				b.release()
				return used, true, b.err
			}
			ran = ran || used > from
			if used >= cycles {
				break
			}
		}
		if !ran && b.threads > 0 {
			if used = b.idle(used, cycles); b.err != nil {
				b.release()
				return used, true, b.err
			}
		}
	}
	if b.threads == 0 {
		b.release()
	}
	return used, b.threads == 0, nil
}

// release gives the memory of a block that has ended back.
func (b *Block) release() {
	b.warps, b.shared = nil, nil
	for i := range b.barriers {
		b.barriers[i].arrived = nil
	}
}

// wakeUp ends the sleep of groups whose time has come.
func (b *Block) wakeUp(used int64) {
	now := b.nanos(used)
	b.sleepers = false
	for i := range b.warps {
		w := &b.warps[i]
		for k := range w.groups {
			g := &w.groups[k]
			if g.wait != waitSleep {
				continue
			}
			if g.wake <= now {
				g.wait, w.blocked = waitNone, false
			} else {
				b.sleepers = true
			}
		}
	}
}

// idle is called when no warp can run: time passes until a sleeper wakes, or lanes go on without those they wait for,
// or the block is stuck.
func (b *Block) idle(used, cycles int64) int64 {
	for i := range b.warps {
		if w := &b.warps[i]; w.live != 0 && !w.blocked {
			return used // a group was released in the meantime
		}
	}
	if b.sleepers {
		wake := int64(math.MaxInt64)
		for i := range b.warps {
			for _, g := range b.warps[i].groups {
				if g.wait == waitSleep {
					wake = min(wake, g.wake)
				}
			}
		}
		left := math.Ceil(float64(wake-b.nanos(used)) / b.at.NanosPerCycle)
		if left >= float64(cycles-used) {
			return cycles
		}
		return used + max(1, int64(left))
	}
	forced := false
	for i := range b.warps {
		forced = b.warps[i].force() || forced
	}
	if !forced {
		f := &Fault{Kind: FaultDeadlock, Kernel: b.grid.fn.name, Block: b.index}
		for i := range b.warps {
			if w := &b.warps[i]; len(w.groups) > 0 {
				g := &w.groups[0]
				f.Warp, f.PC, f.Line = i, g.frame.place(&g.frame.fn.code[g.pc]), g.frame.fn.lineOf(g.pc)
				break
			}
		}
		b.err = f
	}
	return used
}

// barrier executes kBar. It returns true when the group goes straight on.
func (b *Block) barrier(w *warp, in *inst, f *frame, g *group, act uint32) bool {
	lane := bits.TrailingZeros32(act)
	id, n := f.val(in.a)[lane], f.val(in.b)[lane]
	if id >= uint64(len(b.barriers)) || n > 1<<20 {
		w.fault(FaultInstruction, id, f, in)
		return false
	}
	bar := &b.barriers[id]
	bar.expect = int(n)
	bar.count += bits.OnesCount32(act &^ bar.arrived[w.id])
	bar.arrived[w.id] |= act
	if in.sub >= barAnd {
		v := f.pred(in.c, in.x.flip) & act
		bar.popc += uint32(bits.OnesCount32(v))
		bar.or |= bit(v != 0)
		bar.and &= bit(v == act)
	}
	if in.sub == barArrive {
		b.complete(int(id))
		return true
	}
	w.split(g.mask&^act, g.pc+1, f)
	g.mask, g.wait, g.bar = act, waitBar, uint8(id)
	b.complete(int(id))
	return false
}

// complete releases the groups of a barrier when all threads that it expects have arrived.
func (b *Block) complete(id int) {
	bar := &b.barriers[id]
	if bar.expect == 0 {
		if bar.count < b.threads {
			return
		}
	} else {
		n := 0
		for i := range b.warps {
			// Threads are counted by whole warps: those that have exited or never were count with the others.
			if a, live := bar.arrived[i], b.warps[i].live; a != 0 && live&^a == 0 {
				n += lanes
			} else {
				n += bits.OnesCount32(a)
			}
		}
		if n < bar.expect {
			return
		}
	}
	for i := range b.warps {
		w := &b.warps[i]
		for k := range w.groups {
			g := &w.groups[k]
			if g.wait != waitBar || int(g.bar) != id {
				continue
			}
			bar.result(&g.frame.fn.code[g.pc], g.frame, g.mask)
			g.wait = waitNone
			g.pc++
			w.blocked = false
		}
	}
	clear(bar.arrived)
	bar.count, bar.and, bar.or, bar.popc = 0, 1, 0, 0
}

// result writes the value of a barrier reduction.
func (bar *barrier) result(in *inst, f *frame, act uint32) {
	switch in.sub {
	case barAnd:
		f.setPred(in.d, -bar.and, act)
	case barOr:
		f.setPred(in.d, -bar.or, act)
	case barPopc:
		d := &f.regs[in.d]
		for m := act; m != 0; m &= m - 1 {
			d[bits.TrailingZeros32(m)&31] = uint64(bar.popc)
		}
	}
}

// exited is called when n lanes have exited; barriers may be complete without them.
func (b *Block) exited(n int) {
	b.threads -= n
	for i := range b.barriers {
		if b.barriers[i].count > 0 {
			b.complete(i)
		}
	}
}

// fault ends the block.
func (w *warp) fault(kind FaultKind, addr uint64, f *frame, in *inst) {
	if w.block.err == nil {
		w.block.err = &Fault{
			Kind: kind, Addr: addr, Kernel: w.block.grid.fn.name, Block: w.block.index, Warp: w.id,
			PC: f.place(in), Line: int(f.fn.body[in.raw].line),
		}
	}
}

// place names an instruction of the frame's function.
func (f *frame) place(in *inst) string {
	r := &f.fn.body[in.raw]
	return fmt.Sprintf("%s line %d: %s", f.fn.name, r.line, oneLine(r.text))
}

// lineOf returns the source line of an instruction.
func (f *function) lineOf(pc int32) int { return int(f.body[f.code[pc].raw].line) }
