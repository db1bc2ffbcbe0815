// Package ptx executes PTX, the assembly language of CUDA kernels, on the host: a parser, a linker and a resumable warp
// interpreter. It exists so that the software GPU runs the very kernels a compiler emits, with a duration that depends
// on what they execute, and without any knowledge of contexts, streams or wall clocks (those are sim/hw and
// sim/driver).
//
// The calls most users need:
//
//	mod, err := ptx.Parse(src)                    // once a module; *Error names the first thing not understood
//	img, err := mod.Link(addrs)                   // once the globals have device addresses
//	grid, err := img.NewGrid(launch, memory)      // once a launch
//	used, done, err := grid.Block(i).Run(at, n)   // again and again, from any goroutine, until done
//
// # Execution
//
// A block is run by one goroutine at a time; different blocks of a grid (and different grids of an image) run
// concurrently. Run executes about the asked number of cycles and returns; it may be called again with another At
// (another SM, a later time). Nothing inside Run waits for another block: a kernel that spins on memory keeps its own
// block "not done" and stops no other. Warps of a block take turns in quanta of quantumCycles.
//
// A warp is 32 lanes with a program counter each, kept as groups of lanes that share counter and call frame. The group
// with the deepest frame and the lowest counter runs first, and groups that reach the same instruction merge:
// structured code reconverges where its branches join. A group that has not run for starveCycles gets one quantum out
// of turn, so lanes of one warp that wait for each other (a spin lock, a flag) make progress, as on devices with
// independent thread scheduling. A .sync operation waits for the lanes of its member mask that have not exited; when
// they can never reach it, it goes on with those that have.
//
// # Memory
//
// Global and constant variables and everything reached by pointers are found through Memory. Windows that it returned
// are kept for the duration of one Run call. Plain accesses are plain host accesses; .volatile, .relaxed, .acquire,
// .release, atom and red on 32 and 64 bits are sync/atomic operations (narrower atomics compare and swap the word
// around them), so they are atomic between blocks and for other users of the mapping. The host must be little-endian,
// and Window must return memory whose host address is aligned as its device address is (to 16 bytes).
//
// Shared memory belongs to the block, local memory to the thread; their generic addresses are SharedBase and LocalBase
// plus the offset, outside of any address a device hands out. An access that is not aligned to its size, or that
// nothing maps, is a Fault; it ends the block, and no later Run does anything.
//
// # Cost model
//
// Time is counted in issue cycles of one SM. A warp instruction takes, however many lanes are active:
//
//	1    integer, f32 and f16 arithmetic, moves, comparisons, conversions among types of at most 32 bits, branches, hints,
//	     membar and fences, ld.param of a kernel, ld.const with a fixed address; any instruction that is predicated off
//	2    mul.hi, mul.wide, mul24, 64-bit mul and mad, dp4a, f64 add/mul/fma/min/max, conversions from or to 64 bits, shuffles,
//	     votes and the like, brx; ld and st to shared and local memory and to parameters of functions
//	4    ld and st to global, constant and generic addresses; f32 approximations (rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh,
//	     div); barriers of the block, calls and returns
//	8    f32 division and roots rounded exactly (.rn and the like), 16- and 32-bit integer division; atom and red
//	16   64-bit integer division, f64 division and roots
//
// Loads and stores take one more for each further 32-bit word of a lane.
//
// There is no latency: a block that has several warps takes the sum of their instructions. %clock64 counts these cycles
// from At.Cycle, and %globaltimer is At.Nanos plus the cycles times At.NanosPerCycle. A nanosleep lets other warps run
// and, when there is none, passes the time idle.
//
// # Precision
//
// add, sub, mul, fma, div.r*, rcp.r*, sqrt.r* and cvt round exactly, in all four modes, f16 included. Approximate
// functions are computed in f64 and rounded, so they are better than the device's. f32 NaN results are the canonical
// 0x7fffffff.
//
// # Not understood
//
// Textures and surfaces, wmma/mma/wgmma and their loads, cp.async, mbarrier, clusters other than of one block,
// cudaGraph and tensor-map instructions, alloca, vector registers, 128-bit types, video (SIMD) instructions and 8-bit
// floats. Any of these is an *Error from Parse (a call of an undefined function: from Link), never a wrong result. Of
// the functions that a device provides, vprintf and __assertfail exist.
package ptx

import (
	"fmt"
)

// Error is what Parse and Link return: the first thing in the source that is not understood or not valid.
type Error struct {
	Line  int    // line of the source, from 1; 0 when the fault is not at one place
	Instr string // the instruction or directive, as written
	Msg   string // what is wrong with it
}

// Error formats the line, the instruction and what is wrong with it.
func (e *Error) Error() string {
	switch {
	case e.Line == 0 && e.Instr == "":
		return "ptx: " + e.Msg
	case e.Instr == "":
		return fmt.Sprintf("ptx: line %d: %s", e.Line, e.Msg)
	case e.Line == 0:
		return fmt.Sprintf("ptx: %s: %s", e.Instr, e.Msg)
	}
	return fmt.Sprintf("ptx: line %d: %s: %s", e.Line, e.Instr, e.Msg)
}

// Limits on what a module may ask for. They bound the memory of hostile input; real modules stay far below.
const (
	MaxSource      = 64 << 20  // bytes of PTX text
	MaxParamBytes  = 32764     // parameters of one kernel or function, as CUDA's limit on sm_70 and later
	MaxLocalBytes  = 512 << 10 // local memory of a thread, as CUDA's limit
	MaxSharedBytes = 1 << 20   // shared memory of a block; the driver enforces the device's own, lower, limit
	MaxGlobalBytes = 1 << 40   // size of one variable
	maxRegs        = 1 << 16   // registers of a function, and constants, after parsing
)

// Module is a parsed PTX module. It is immutable and safe for concurrent use.
type Module struct {
	Version     string             // ".version" as written, for example "6.0"
	Target      string             // first name of ".target", for example "sm_70"
	AddressSize int                // bits of an address: always 64
	Kernels     map[string]*Kernel // the .entry functions by name
	Globals     []*Global          // module-scope .global and .const variables in order of declaration

	Prints bool // a function calls vprintf

	funcs []*function // all functions with a body, kernels included
}

// Space is the state space of a module variable.
type Space uint8

// The spaces a module variable may live in that need device memory.
const (
	SpaceGlobal Space = iota
	SpaceConst
)

// String returns the PTX name of the space.
func (s Space) String() string {
	if s == SpaceConst {
		return "const"
	}
	return "global"
}

// Global is a module-scope variable that needs device memory before Link.
type Global struct {
	Name    string
	Space   Space
	Size    int64   // bytes; 0 for an array of unknown size (extern only)
	Align   int64   // bytes, a power of two
	Init    []byte  // first bytes of the value, before relocations; the rest up to Size is zero
	Relocs  []Reloc // places in Init that hold addresses
	Extern  bool    // declared here, defined elsewhere: Link needs its address all the same
	Visible bool    // .visible, .weak, .common or .extern: other modules may see it
	Managed bool    // .attribute(.managed)

	line int
	link linkage
}

// Reloc is one address inside an initialiser.
type Reloc struct {
	Off    int64  // offset in Init
	Size   int    // bytes: 4 or 8, little endian
	Symbol string // name of a Global or of a function
	Addend int64

	global *Global   // that Symbol means, or
	fn     *function // nil for an unknown name
}

// Kernel is an .entry function.
type Kernel struct {
	Name        string
	Params      []Param
	ParamBytes  int    // size of the parameter buffer of a launch
	SharedBytes int    // static shared memory of a block
	LocalBytes  int    // local memory (stack) of a thread, called functions included
	Regs        int    // registers a thread is said to use, for occupancy; see registers
	MaxRegs     int    // .maxnreg; 0 when the source says nothing
	MaxThreads  int    // .maxntid or .reqntid product; 0 when the source says nothing
	ReqNTID     [3]int // .reqntid; zero when the source says nothing
	MinBlocks   int    // .minnctapersm; 0 when the source says nothing

	fn *function
}

// Bounds of Kernel.Regs.
const (
	minThreadRegs     = 16
	defaultThreadRegs = 64 // so that a block of 1024 threads fits the 65536 registers of a unit
	maxThreadRegs     = 255
)

// registers is what a thread of the kernel is said to use, of the estimate used. As for a real compiler, who wishes for
// a bound gets at most that many; only then there may be so many that large blocks do not fit.
func (k *Kernel) registers(used int, o Options) int {
	limit := defaultThreadRegs
	switch {
	case k.MaxRegs > 0:
		limit = k.MaxRegs
	case o.MaxRegs > 0:
		limit = o.MaxRegs
	}
	return min(used, max(minThreadRegs, min(limit, maxThreadRegs)))
}

// Param is one kernel parameter's place in the parameter buffer.
type Param struct {
	Name                string
	Offset, Size, Align int // bytes
}
