package ptx

// Compilers number registers as if there were no end of them, nearly one a value. Here a register is 256 bytes a warp,
// so those that live inside one basic block share places; the others keep one each.

// operands calls use for each register that an instruction reads and def for each that it writes.
func (in *inst) operands(use, def func(*int32)) {
	x := in.x
	switch in.kind {
	case kALU, kCC:
		use(&in.a)
		use(&in.b)
		use(&in.c)
		def(&in.d)
	case kALU4:
		use(&in.a)
		use(&in.b)
		use(&in.c)
		use(&x.e)
		def(&in.d)
	case kSetp:
		use(&in.a)
		use(&in.b)
	case kSet, kSelp:
		use(&in.a)
		use(&in.b)
		def(&in.d)
	case kSreg, kLdParam, kActive:
		def(&in.d)
	case kLd:
		use(&in.a)
		for i := range x.regs {
			def(&x.regs[i])
		}
	case kSt:
		use(&in.a)
		for i := range x.regs {
			use(&x.regs[i])
		}
	case kAtom:
		use(&in.a)
		use(&in.b)
		use(&in.c)
		if x.ret {
			def(&in.d)
		}
	case kBrx, kSleep:
		use(&in.a)
	case kCall:
		if x.call.name == "" {
			use(&in.a)
		}
	case kBar:
		use(&in.a)
		use(&in.b)
		if in.sub == barPopc {
			def(&in.d)
		}
	case kBarWarp:
		use(&x.e)
	case kShfl, kVote, kMatch, kRedux, kElect:
		if in.kind == kShfl {
			use(&in.b)
			use(&in.c)
		}
		if in.kind == kShfl || in.kind == kMatch || in.kind == kRedux {
			use(&in.a)
		}
		if in.sub == 1 {
			use(&x.e)
		}
		if in.kind != kVote || x.mode == voteBallot {
			def(&in.d)
		}
	}
}

// liveRange is what is known of a register: the block it lives in, -1 when it is more than one or when it may be read
// before it is written there, and its first and last instruction.
type liveRange struct {
	block int32 // 0: not seen
	last  int32
	place int32
}

// leaders marks the instructions that begin a basic block.
func (f *function) leaders() []bool {
	lead := make([]bool, len(f.code)+1)
	for i := range f.code {
		switch in := &f.code[i]; in.kind {
		case kBra:
			lead[in.imm], lead[i+1] = true, true
		case kBrx:
			for _, to := range in.x.table {
				lead[to] = true
			}
			lead[i+1] = true
		case kRet, kExit, kTrap:
			lead[i+1] = true
		}
	}
	return lead
}

// shareRegisters renumbers the registers of a function.
func shareRegisters(f *function) {
	ranges := f.liveRanges()
	var next int32
	for r := range ranges {
		v := &ranges[r]
		v.place = -1
		if v.block < 0 {
			v.place = next
			next++
		}
	}
	var free []int32
	for i := range f.code {
		var ended []int32
		rename := func(r *int32) {
			if *r < 0 {
				return
			}
			v := &ranges[*r]
			if v.place < 0 {
				if n := len(free); n > 0 {
					v.place, free = free[n-1], free[:n-1]
				} else {
					v.place = next
					next++
				}
			}
			if v.block > 0 && v.last == int32(i) {
				ended = append(ended, v.place)
				v.block = 0 // once only
			}
			*r = v.place
		}
		f.code[i].operands(rename, rename)
		free = append(free, ended...)
	}
	f.numRegs = max(next, 1)
	f.regs = int(max(16, (next+7)&^7))
}

// liveRanges finds for every register the block it is used in, and its last use.
func (f *function) liveRanges() []liveRange {
	ranges := make([]liveRange, f.numRegs)
	lead := f.leaders()
	block := int32(1)
	for i := range f.code {
		if lead[i] {
			block++
		}
		in := &f.code[i]
		in.operands(func(r *int32) {
			if *r >= 0 {
				v := &ranges[*r]
				v.last = int32(i)
				if v.block != block {
					v.block = -1
				}
			}
		}, func(r *int32) {
			if *r < 0 {
				return
			}
			v := &ranges[*r]
			v.last = int32(i)
			switch {
			case v.block == 0 && in.guard == 0:
				v.block = block
			case v.block != block:
				v.block = -1
			}
		})
	}
	return ranges
}
