// Package kernels is lshmem's device code for operations on a stream: its CUDA source, the PTX that clang makes of
// it, and how to launch each kernel. It exists so that the library brings its kernels along and needs no compiler,
// and so that the software GPU runs the very same.
//
// The calls most users need:
//
//	c := kernels.Collective{State: state, Team: team, Dest: d, Source: s, Bytes: n}
//	l, err := c.Plan(kernels.Alltoall, limit)  // which kernel, how many CTAs; completes c
//	image := l.Module.Image()                  // PTX for cuModuleLoadData, once a context
//	// cuLaunchKernel(function l.Function, l.Grid, l.Block, one parameter: the address of c)
//
// # Modules
//
// A module is loaded when an operation first needs it: the driver compiles it then, which takes the longer the larger
// it is. Those named "queue..." are for teams without layout.TeamDirect and for RMA to PEs that are reached through
// queues; the others have no code for queues.
//
// The sources are the .cu files here and the device header (shmem/include). "go generate" compiles each module with
// clang and writes its PTX, compressed, to the folder ptx, which the library embeds; package module says how to read it
// and how to see what a change of the sources did to it. Building lgpu needs no CUDA compiler. Reductions on direct
// teams have a module for each type, since a program uses few of them; all are compiled from reduce.cu, for the type
// and with the names that gen/compile.go defines.
//
// # Deadlock
//
// CTA b of a collective kernel waits for CTA b of the other members' kernels, never for another CTA of its own. So a
// kernel ends even if its CTAs run one after the other, as long as each member's GPU runs CTA b at some time without
// waiting for the end of a higher one: GPUs start CTAs in the order of their numbers, and a CTA that has started
// stays until its end. Suppose kernels are stuck, and b is the smallest number of a CTA that has not ended anywhere.
// CTA b has not started on some member, else all of them would go on; but there all lower ones have ended, so that it
// waits for a place that others hold: CTAs of other kernels, or higher CTAs of its own, which start after it. Hence a
// kernel needs one CTA's place on each GPU, which it gets when whatever else runs there ends. What must not be is
// that those others wait for this very kernel: PEs that share a GPU need room for one CTA of each, which is why limit
// divides the GPU's units among its PEs, and teams that work at the same time on several streams divide what is left.
package kernels

//go:generate go run ./gen

import (
	"embed"
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/module"
)

//go:embed ptx/*.ptx.gz
var images embed.FS

// Module is the name of a PTX module.
type Module string

// The modules. Those of reductions on direct teams are by type: ReduceModule.
const (
	ModuleSync        Module = "sync"         // sync and barrier of direct teams
	ModuleWait        Module = "wait"         // wait
	ModuleMove        Module = "move"         // broadcast, fcollect, alltoall of direct teams
	ModuleMemory      Module = "memory"       // RMA, atomics, signals, quiet where memory is mapped
	ModuleQueue       Module = "queue"        // RMA, atomics, signals, quiet by whatever reaches the PE
	ModuleQueueMove   Module = "queue_move"   // sync, barrier, broadcast, fcollect, alltoall of any team
	ModuleQueueReduce Module = "queue_reduce" // reductions of any team, all types
)

// element is a type of elements. Names are whole words here and below, since a launch should not build strings.
type element struct {
	name                  string
	bytes                 int
	module                Module
	reduce, reducescatter string
}

// elements are by layout.Type*.
var elements = [layout.Types]element{
	{"int8", 1, "reduce_int8", "lshmem_kernel_reduce_int8", "lshmem_kernel_reducescatter_int8"},
	{"uint8", 1, "reduce_uint8", "lshmem_kernel_reduce_uint8", "lshmem_kernel_reducescatter_uint8"},
	{"int16", 2, "reduce_int16", "lshmem_kernel_reduce_int16", "lshmem_kernel_reducescatter_int16"},
	{"uint16", 2, "reduce_uint16", "lshmem_kernel_reduce_uint16", "lshmem_kernel_reducescatter_uint16"},
	{"int32", 4, "reduce_int32", "lshmem_kernel_reduce_int32", "lshmem_kernel_reducescatter_int32"},
	{"uint32", 4, "reduce_uint32", "lshmem_kernel_reduce_uint32", "lshmem_kernel_reducescatter_uint32"},
	{"int64", 8, "reduce_int64", "lshmem_kernel_reduce_int64", "lshmem_kernel_reducescatter_int64"},
	{"uint64", 8, "reduce_uint64", "lshmem_kernel_reduce_uint64", "lshmem_kernel_reducescatter_uint64"},
	{"float16", 2, "reduce_float16", "lshmem_kernel_reduce_float16", "lshmem_kernel_reducescatter_float16"},
	{"bfloat16", 2, "reduce_bfloat16", "lshmem_kernel_reduce_bfloat16", "lshmem_kernel_reducescatter_bfloat16"},
	{"float32", 4, "reduce_float32", "lshmem_kernel_reduce_float32", "lshmem_kernel_reducescatter_float32"},
	{"float64", 8, "reduce_float64", "lshmem_kernel_reduce_float64", "lshmem_kernel_reducescatter_float64"},
}

// TypeBytes is the size of an element of a layout.Type*, 0 if there is no such type.
func TypeBytes(t uint32) int {
	if t >= layout.Types {
		return 0
	}
	return elements[t].bytes
}

// ReduceModule is the module of reductions of elements of a layout.Type* on direct teams.
func ReduceModule(t uint32) Module {
	if t >= layout.Types {
		return ""
	}
	return elements[t].module
}

// Modules lists all modules.
func Modules() []Module {
	all := []Module{ModuleSync, ModuleWait, ModuleMove, ModuleMemory, ModuleQueue, ModuleQueueMove, ModuleQueueReduce}
	for t := range layout.Types {
		all = append(all, ReduceModule(t))
	}
	return all
}

// Image returns the PTX text with a NUL at its end, as cuModuleLoadData wants it; nil if there is no such module.
func (m Module) Image() []byte {
	packed, err := images.ReadFile("ptx/" + string(m) + ".ptx.gz")
	if err != nil {
		return nil
	}
	image, err := module.Image(packed)
	if err != nil { // never: the tests read every module
		return nil
	}
	return image
}

// Launch says how to run a kernel. Its only parameter is the struct whose Plan gave the Launch, by value. It needs no
// dynamic shared memory and no cooperative launch.
type Launch struct {
	Module      Module
	Function    string
	Grid, Block uint32 // CTAs and threads, one-dimensional
}

// Operation is a collective operation.
type Operation uint32

// The collective operations.
const (
	Sync      Operation = iota
	Barrier             // quiet, then sync
	Broadcast           // Bytes from Source of member Root to Dest of all
	Fcollect            // Bytes from Source of member i to Dest + i*Bytes of all
	Alltoall            // Bytes from Source + j*Bytes of member i to Dest + i*Bytes of member j
	// Reduce: Bytes from each Source, combined element by element, to Dest of all. Dest may be Source; they must not
	// overlap otherwise.
	Reduce
	// ReduceScatter: Dest of member i, Bytes long, gets the reduction of Source + i*Bytes of all. Dest must not
	// overlap Source, except that it may be the member's own Source + i*Bytes.
	ReduceScatter
	operations
)

const prefix = "lshmem_kernel_"

var operationKernels = [operations]string{"lshmem_kernel_sync", "lshmem_kernel_barrier", "lshmem_kernel_broadcast", "lshmem_kernel_fcollect",
	"lshmem_kernel_alltoall", "lshmem_kernel_reduce", "lshmem_kernel_reducescatter"}

// String returns the operation's name in the API.
func (o Operation) String() string {
	if o < operations {
		return operationKernels[o][len(prefix):]
	}
	return fmt.Sprintf("operation %d", uint32(o))
}

// Flags of a Collective.
const (
	// CollectiveLines: data travel in lines, see package layout.
	CollectiveLines uint32 = 1 << iota
)

// Collective is the parameter of a collective kernel. Addresses are those of the PE's own process. Source and Dest
// are in the heap, at the same offset on all members of the team.
type Collective struct {
	State     layout.State
	Team      layout.Team
	Dest      uint64
	Source    uint64
	Bytes     uint64 // see Operation; equal on all members
	Root      uint32 // index in the team
	Type      uint32 // layout.Type*
	Reduction uint32 // layout.Reduce*
	Flags     uint32 // Collective*; Plan's
}

// ErrArgument is what is wrong with a Collective or RMA that has no kernel.
var ErrArgument = errors.New("argument out of range")

const (
	lineThreads = 512
	bulkThreads = 512
	// bulkShare is how many bytes to one destination make a CTA of a bulk operation worth while.
	bulkShare = 8 << 10
)

// Plan says which kernel does the operation, and sets c.Flags. Limit is the most CTAs it may have: no more than fit
// on the GPU at once beside the other PEs' of that GPU. It, Bytes and the kind of team must be equal on all members,
// or they wait for each other in vain. A Launch with Grid 0 means that there is nothing to do.
func (c *Collective) Plan(op Operation, limit int) (Launch, error) {
	n := int(c.Team.PEs)
	direct := c.Team.Flags&layout.TeamDirect != 0
	switch {
	case op >= operations:
		return Launch{}, fmt.Errorf("%w: %v", ErrArgument, op)
	case limit < 1:
		return Launch{}, fmt.Errorf("%w: %v with a limit of %d CTAs", ErrArgument, op, limit)
	case n < 1 || c.Team.Index >= c.Team.PEs:
		return Launch{}, fmt.Errorf("%w: %v on a team of %d PEs as number %d", ErrArgument, op, n, c.Team.Index)
	case op == Broadcast && c.Root >= c.Team.PEs:
		return Launch{}, fmt.Errorf("%w: broadcast from member %d of %d", ErrArgument, c.Root, n)
	}
	c.Flags = 0
	if op == Sync || op == Barrier {
		l := Launch{ModuleSync, operationKernels[Sync], 1, uint32(min(512, (n+31)/32*32))}
		// A barrier completes what went through queues to any PE, member or not.
		if !direct || op == Barrier && c.State.Queues != 0 {
			l.Module, l.Function = ModuleQueueMove, operationKernels[op]
		}
		return l, nil
	}
	if c.Bytes == 0 {
		return Launch{}, nil
	}
	l := Launch{Module: ModuleMove, Function: operationKernels[op]}
	reduces := op == Reduce || op == ReduceScatter
	if reduces {
		if err := c.reducible(op, TypeBytes(c.Type)); err != nil {
			return Launch{}, err
		}
	}
	switch e := &elements[c.Type%layout.Types]; {
	case direct && op == Reduce:
		l.Module, l.Function = e.module, e.reduce
	case direct && op == ReduceScatter:
		l.Module, l.Function = e.module, e.reducescatter
	case !direct && reduces:
		l.Module = ModuleQueueReduce // of any type
	case !direct:
		l.Module = ModuleQueueMove
	}
	if !direct {
		limit = min(limit, layout.LineChannels) // they read into the lines' space
	}
	ctas := func(bytes, most int) uint32 { return uint32(min(limit, most, int((c.Bytes-1)/uint64(bytes)+1))) }
	if direct {
		l.Grid = ctas(lineThreads*8, layout.LineChannels)
		if c.Bytes <= uint64(l.Grid)*uint64(layout.LineBytes(n)) {
			c.Flags |= CollectiveLines
			share := (c.Bytes + uint64(l.Grid) - 1) / uint64(l.Grid)
			l.Block = uint32(min(lineThreads, (share/8+32)/32*32))
			l.Block = max(l.Block, uint32(min(512, (n+31)/32*32)))
			return l, nil
		}
	}
	l.Grid, l.Block = ctas(bulkShare, layout.Channels), bulkThreads
	return l, nil
}

// reducible says whether there is such a reduction.
func (c *Collective) reducible(op Operation, size int) error {
	real := c.Type >= layout.TypeFloat16
	switch {
	case size == 0 || c.Reduction >= layout.Reductions:
		return fmt.Errorf("%w: %v of type %d with operation %d", ErrArgument, op, c.Type, c.Reduction)
	case real && c.Reduction >= layout.ReduceAnd:
		return fmt.Errorf("%w: %v: no bitwise operation on %s", ErrArgument, op, elements[c.Type].name)
	case c.Bytes%uint64(size) != 0 || c.Source%uint64(size) != 0 || c.Dest%uint64(size) != 0:
		return fmt.Errorf("%w: %v: %d bytes from %#x to %#x are not whole elements of %s", ErrArgument, op, c.Bytes, c.Source, c.Dest,
			elements[c.Type].name)
	}
	return nil
}

// RMAOperation is an operation with one other PE on a stream.
type RMAOperation uint32

// The operations on one PE. All are complete when the kernel ends: a put has arrived, a fetched value is at Source.
const (
	Put        RMAOperation = iota // Bytes from Source here to Dest at PE
	Get                            // Bytes from Source at PE to Dest here
	PutSignal                      // a Put, then Value into Signal at PE by Code (layout.Signal*)
	StridedPut                     // Bytes/size elements of Type at every SourceStride-th to every DestStride-th
	StridedGet
	Signal // Value into Signal at PE by Code (layout.Signal*)
	Atomic // Code (layout.Atomic*) on the Type at Dest at PE with Value, for compare-and-swap if it is Compare
	Fetch  // Atomic, with the old value stored at Source here
	Wait   // until the Type at Dest here compares by Code (layout.Compare*) to Value
	Quiet  // until all that this PE has sent through queues to PE, or all with layout.AllPEs, is done
	rmaOperations
)

var rmaKernels = [rmaOperations]string{"lshmem_kernel_put", "lshmem_kernel_get", "lshmem_kernel_put_signal", "lshmem_kernel_iput",
	"lshmem_kernel_iget", "lshmem_kernel_signal", "lshmem_kernel_atomic", "lshmem_kernel_fetch", "lshmem_kernel_wait", "lshmem_kernel_quiet"}

// String returns the operation's name in the API.
func (o RMAOperation) String() string {
	if o < rmaOperations {
		return rmaKernels[o][len(prefix):]
	}
	return fmt.Sprintf("operation %d", uint32(o))
}

// RMA is the parameter of an RMA kernel. Addresses are those of the PE's own process, also for what they mean at PE.
type RMA struct {
	State        layout.State
	Dest         uint64
	Source       uint64
	Bytes        uint64
	Signal       uint64
	Value        uint64 // bits of an element of Type, zero-extended
	Compare      uint64
	DestStride   int64 // elements
	SourceStride int64 // elements
	PE           uint32
	Code         uint32
	Type         uint32 // layout.Type*
	Queue        uint32 // index of the PE's queue; layout.QueueDefault as uint32 for that of the kernel's only CTA
}

// Plan says which kernel does the operation.
func (r *RMA) Plan(op RMAOperation) (Launch, error) {
	size := TypeBytes(r.Type)
	pe := r.PE < r.State.PEs
	codes := layout.AtomicCompareSwap
	switch op {
	case Wait:
		codes = layout.CompareGE
		pe = true
	case Quiet:
		pe = pe || r.PE == layout.AllPEs
	}
	switch {
	case op >= rmaOperations:
		return Launch{}, fmt.Errorf("%w: %v", ErrArgument, op)
	case !pe:
		return Launch{}, fmt.Errorf("%w: %v with PE %d of %d", ErrArgument, op, r.PE, r.State.PEs)
	case (op == PutSignal || op == Signal) && r.Code != layout.SignalSet && r.Code != layout.SignalAdd:
		return Launch{}, fmt.Errorf("%w: %v with signal operation %d", ErrArgument, op, r.Code)
	case (op == StridedPut || op == StridedGet) && (size == 0 || r.Bytes%uint64(size) != 0):
		return Launch{}, fmt.Errorf("%w: %v of %d bytes of type %d", ErrArgument, op, r.Bytes, r.Type)
	case (op == Atomic || op == Fetch) && r.Type >= layout.TypeFloat16 && r.Code != layout.AtomicSet &&
		(r.Code != layout.AtomicAdd || r.Value != 0): // adding 0 is a fetch
		return Launch{}, fmt.Errorf("%w: atomic operation %d on %s, which can be set, swapped and fetched only", ErrArgument, r.Code,
			elements[min(r.Type, layout.Types-1)].name)
	case (op == Atomic || op == Fetch || op == Wait) && (size < 4 && op != Wait || size == 0 || r.Code > codes):
		return Launch{}, fmt.Errorf("%w: %v with code %d on type %d", ErrArgument, op, r.Code, r.Type)
	}
	l := Launch{ModuleQueue, rmaKernels[op], 1, 32}
	switch op {
	case Put, Get, PutSignal, StridedPut, StridedGet:
		l.Block = bulkThreads
	case Wait:
		l.Module = ModuleWait
		return l, nil
	}
	if r.mapped(op) {
		l.Module = ModuleMemory
	}
	return l, nil
}

// mapped says whether the operation needs no queue.
func (r *RMA) mapped(op RMAOperation) bool {
	if r.State.Queues == 0 {
		return true
	}
	if op == Quiet || r.PE >= layout.InlinePeers {
		return false
	}
	peer := r.State.Peer[r.PE]
	if op == Atomic || op == Fetch || (op == Signal || op == PutSignal) && r.Code == layout.SignalAdd {
		return peer&layout.PeerAtomic != 0
	}
	return peer != 0
}
