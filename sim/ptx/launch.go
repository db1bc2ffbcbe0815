package ptx

import "fmt"

// Generic addresses of the windows that are no device memory. They are not canonical 48-bit addresses, so no device range can
// meet them.
const (
	SharedBase uint64 = 0x0100_0000_0000_0000 // a block's shared memory
	LocalBase  uint64 = 0x0200_0000_0000_0000 // a thread's local memory
	ParamBase  uint64 = 0x0300_0000_0000_0000 // a kernel's parameters (cvta.param)
	FuncBase   uint64 = 0x0400_0000_0000_0000 // addresses of functions; not readable
	windowSize uint64 = 0x0100_0000_0000_0000
)

// Memory is the device memory that one grid sees.
type Memory interface {
	// Window returns the mapped range that holds addr: its first device address and the host memory behind it. Run keeps
	// what it got until it returns. Window is called from every goroutine that runs a block of the grid.
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
	FaultAddress     FaultKind = iota + 1 // no mapping behind a global or generic address
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
