package ptx

import "fmt"

// Generic addresses of the windows that are no device memory. They are not canonical 48-bit addresses, so no device
// range can meet them.
const (
	SharedBase uint64 = 0x0100_0000_0000_0000 // a block's shared memory
	LocalBase  uint64 = 0x0200_0000_0000_0000 // a thread's local memory
	ParamBase  uint64 = 0x0300_0000_0000_0000 // a kernel's parameters (cvta.param)
	FuncBase   uint64 = 0x0400_0000_0000_0000 // addresses of functions; not readable
	windowSize uint64 = 0x0100_0000_0000_0000
)

// Memory is the device memory that one grid sees.
type Memory interface {
	// Window returns the mapped range that holds addr: its first device address and its host memory. Run
	// keeps what it got until it returns. Window is called from every goroutine that runs a block of the grid.
	Window(addr uint64) (base uint64, mem []byte, writable, ok bool)
}

// Launch says what to run.
type Launch struct {
	Kernel        *Kernel
	Grid, Block   [3]uint32 // x, y, z; none may be 0
	SharedDynamic uint32    // bytes of dynamic shared memory
	Params        []byte    // the parameter buffer, at least Kernel.ParamBytes; copied
	Cooperative   bool      // all blocks are resident at once; the caller's promise, nothing changes here
	EnvReg        [32]uint32
	ID            uint64 // %gridid
	// Print gets the record of each call of vprintf, in pieces (PieceText and so on), from any goroutine that runs a
	// block. nil drops them. The record is the receiver's.
	Print func(record []byte)
}

// At is where and when a Run starts.
type At struct {
	SM, SMs       int     // %smid, %nsmid
	Cycle         int64   // %clock64 at the start
	Nanos         int64   // %globaltimer at the start
	NanosPerCycle float64 // length of a cycle; 1 when not positive
}

// FaultKind says how a block died.
type FaultKind uint8

// The faults.
const (
	FaultAddress     FaultKind = iota + 1 // no mapping at a global or generic address
	FaultShared                           // shared address out of the block's range
	FaultLocal                            // local address out of the thread's range
	FaultReadOnly                         // a write to a read-only mapping or to parameters
	FaultMisaligned                       // address not a multiple of the access size
	FaultTrap                             // trap instruction, or brkpt
	FaultAssert                           // a failed device assertion
	FaultDeadlock                         // threads wait at barriers that can never complete
	FaultStack                            // call depth or local memory exhausted
	FaultCall                             // call through a pointer that is no function of the wanted signature
	FaultInstruction                      // operands that no device accepts (a barrier number above 15)
)

var faultNames = [...]string{
	FaultAddress: "illegal address", FaultShared: "shared memory out of range", FaultLocal: "local memory out of range",
	FaultReadOnly: "write to read-only memory", FaultMisaligned: "misaligned address", FaultTrap: "trap",
	FaultAssert: "assertion failed", FaultDeadlock: "barrier deadlock", FaultStack: "stack overflow",
	FaultCall: "call of no function", FaultInstruction: "illegal instruction",
}

// String names the fault in words.
func (k FaultKind) String() string {
	if int(k) < len(faultNames) && faultNames[k] != "" {
		return faultNames[k]
	}
	return fmt.Sprintf("fault %d", uint8(k))
}

// Fault is the error of a block that did something no device allows.
type Fault struct {
	Kind   FaultKind
	Addr   uint64    // the address of a memory fault
	Kernel string    // name of the kernel
	PC     string    // function, line and instruction
	Line   int       // line of the source; 0 for a deadlock
	Block  [3]uint32 // index of the block
	Warp   int       // warp of the block
}

// Error says kind, address, place and block.
func (f *Fault) Error() string {
	s := fmt.Sprintf("kernel %s: %s", f.Kernel, f.Kind)
	switch f.Kind {
	case FaultAddress, FaultShared, FaultLocal, FaultReadOnly, FaultMisaligned, FaultCall:
		s += fmt.Sprintf(" 0x%x", f.Addr)
	}
	if f.PC != "" {
		s += " at " + f.PC
	}
	return fmt.Sprintf("%s (block %d,%d,%d warp %d)", s, f.Block[0], f.Block[1], f.Block[2], f.Warp)
}

// MaxBlockThreads is the most threads a block may have.
const MaxBlockThreads = 1024

// Bounds on the host memory of a block, for local memory and for registers.
const (
	maxBlockLocal  = 256 << 20
	maxBlockFrames = 128 << 20
)

// Grid is one launch. It is safe for concurrent use; its blocks are not.
type Grid struct {
	img         *Image
	fn          *function
	launch      Launch
	mem         Memory
	params      []byte
	threads     int // of a block
	blocks      int64
	dynamicBase int // offset of dynamic shared memory
	localBytes  int64
}

// NewGrid prepares a launch; it allocates nothing for blocks that have not begun. The error says which argument is
// wrong.
func (img *Image) NewGrid(l Launch, mem Memory) (*Grid, error) {
	if l.Kernel == nil || l.Kernel.fn == nil || img.mod.Kernels[l.Kernel.Name] != l.Kernel {
		return nil, fmt.Errorf("ptx: launch: no kernel of this module")
	}
	k := l.Kernel
	fail := func(format string, args ...any) (*Grid, error) {
		return nil, fmt.Errorf("ptx: launch %s: %s", k.Name, fmt.Sprintf(format, args...))
	}
	threads, blocks := int64(1), int64(1)
	for i := range 3 {
		if l.Block[i] == 0 || l.Block[i] > MaxBlockThreads || l.Grid[i] == 0 || l.Grid[i] > 1<<31-1 {
			return fail("grid %v of blocks %v", l.Grid, l.Block)
		}
		threads *= int64(l.Block[i])
		if blocks > 1<<62/int64(l.Grid[i]) {
			return fail("grid %v is too large", l.Grid)
		}
		blocks *= int64(l.Grid[i])
	}
	limit := int64(MaxBlockThreads)
	if k.MaxThreads > 0 {
		limit = min(limit, int64(k.MaxThreads))
	}
	if threads > limit {
		return fail("%d threads in a block, limit %d", threads, limit)
	}
	if req := k.ReqNTID; req[0] != 0 && (uint32(req[0]) != l.Block[0] || uint32(req[1]) != l.Block[1] || uint32(req[2]) != l.Block[2]) {
		return fail("block %v where %v is required", l.Block, req)
	}
	if len(l.Params) < k.ParamBytes {
		return fail("%d bytes of parameters, %d are needed", len(l.Params), k.ParamBytes)
	}
	g := &Grid{img: img, fn: k.fn, launch: l, mem: mem, threads: int(threads), blocks: blocks, localBytes: int64(k.LocalBytes)}
	g.dynamicBase = (k.SharedBytes + 15) &^ 15
	if l.SharedDynamic > MaxSharedBytes || g.dynamicBase+int(l.SharedDynamic) > MaxSharedBytes {
		return fail("%d bytes of shared memory, limit %d", k.SharedBytes+int(l.SharedDynamic), MaxSharedBytes)
	}
	if n := g.localBytes * threads; n > maxBlockLocal {
		return fail("%d bytes of local memory in a block, limit %d", n, maxBlockLocal)
	}
	if n := k.fn.frameBytes() * ((threads + lanes - 1) / lanes); n > maxBlockFrames {
		return fail("registers of a block take %d bytes, limit %d", n, maxBlockFrames)
	}
	g.params = alignedBytes(k.ParamBytes)
	copy(g.params, l.Params)
	g.launch.Params = g.params
	return g, nil
}

// Blocks returns the number of blocks.
func (g *Grid) Blocks() int64 { return g.blocks }

// Block returns block i, 0 <= i < Blocks, counted along x, then y, then z. Every call makes a fresh block that has not
// begun. It returns nil for an i out of range.
func (g *Grid) Block(i int64) *Block {
	if i < 0 || i >= g.blocks {
		return nil
	}
	nx, ny := int64(g.launch.Grid[0]), int64(g.launch.Grid[1])
	return &Block{grid: g, index: [3]uint32{uint32(i % nx), uint32(i / nx % ny), uint32(i / nx / ny)}}
}
