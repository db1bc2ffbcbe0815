package ptx

// lanes is the number of threads of a warp.
const lanes = 32

const fullMask = ^uint32(0)

// vec is one register of a warp: a value a lane, zero-extended from the register's width.
type vec [lanes]uint64

type (
	aluFn  func(d, a, b, c *vec)
	alu4Fn func(d, a, b, c, e *vec)
	cmpFn  func(a, b *vec) uint32
	ccFn   func(d, a, b, c *vec, carry uint32) uint32
)

// opcode selects what the interpreter does with an instruction.
type opcode uint8

const (
	kNop     opcode = iota
	kALU            // fn(d, a, b, c)
	kALU4           // x.fn4(d, a, b, c, x.e)
	kCC             // x.cc(d, a, b, c, carry); sub bits ccRead, ccWrite
	kSetp           // predicates d and x.q from x.cmp(a, b), joined with predicate c by sub
	kSet            // register d = imm where x.cmp(a, b) holds, else 0; joined likewise
	kSelp           // d = predicate c ? a : b
	kPred           // predicate d = a sub b
	kSreg           // d = special register sub, plus imm
	kLdParam        // d = kernel parameter at imm, the same for all lanes
	kLd
	kSt
	kAtom
	kFence
	kBra
	kBrx
	kRet
	kExit
	kCall
	kBar
	kBarWarp
	kShfl
	kVote
	kMatch
	kActive
	kRedux
	kElect
	kTrap
	kSleep
	kPrint // vprintf, called as x.call says
)

// inst is one decoded instruction. Operands are register indexes of the frame; a negative index i is constant ^i.
// Predicate indexes name the predicate file; number 0 there is always true.
type inst struct {
	fn    aluFn
	x     *extra
	imm   uint64
	d     int32
	a     int32
	b     int32
	c     int32
	guard int32  // predicate register
	flip  uint32 // all ones when the guard is negated
	raw   int32  // index in function.body
	kind  opcode
	sub   uint8
	cost  uint8
	size  uint8 // bytes of a memory element
}

// Bits of inst.sub of kCC.
const (
	ccRead = 1 << iota
	ccWrite
)

// How a comparison is joined with a predicate, and the operations of kPred.
const (
	joinNone = iota
	joinAnd
	joinOr
	joinXor
	joinNot // kPred only: not a
	joinMov // kPred only: a
)

// extra is what rarer instructions need beside the fields of inst.
type extra struct {
	fn4   alu4Fn
	cmp   cmpFn
	cc    ccFn
	e     int32
	q     int32  // second predicate, -1 for none
	flip  uint32 // of predicate operand c, or of a
	flipB uint32 // of predicate operand b

	// memory
	space  memSpace
	regs   []int32 // of vector elements; sinkReg for _
	ext    uint64  // sign bit of a loaded value that is extended
	mask   uint64  // of the destination register
	strong bool    // volatile, relaxed, acquire, release
	atom   atomFn
	ret    bool // atom wants the old value

	// control
	table []int32 // branch targets
	call  *callSite
	mode  uint8
}

const sinkReg = int32(-1 << 31)

// memSpace is the state space of an access.
type memSpace uint8

const (
	inGeneric memSpace = iota
	inGlobal           // and const
	inShared
	inLocal
	inKernelParam
	inFrameParam
)

// callSite is what a call copies and where it goes.
type callSite struct {
	name   string    // of the callee; empty for a call through a pointer
	callee *function // nil where it has no body, and for a pointer
	args   []copyParam
	rets   []copyParam
}

// copyParam is one parameter of a call: its place in the caller's and the callee's parameter area.
type copyParam struct{ caller, callee, size int }

// constReloc is a constant whose value depends on an address.
type constReloc struct {
	index  int32
	global *Global
	fn     *function // whose address it is
	shared *variable // static shared variable
	add    uint64
}

// program is the compiled form of a function.
type program struct {
	code       []inst
	consts     []uint64
	relocs     []constReloc
	numRegs    int32
	numPreds   int32
	ccPred     int32 // predicate that holds the carry flag; 0 when unused
	localBytes int64
	calls      []*callSite
	indirect   bool        // calls through a pointer
	usesShared []*variable // static shared variables named by the code
	regs       int         // estimate of 32-bit registers in use
}
