// Package layout is what lshmem's host runtime writes and its device code reads: the state of a PE, its teams, its
// queue pairs and its key tables. The Go types are the only source; include/lshmem_state.h is generated from them (go
// generate ./shmem/layout) with a compiled check of every size and offset.
//
// # State
//
// A kernel gets its State by value, as a parameter. It stays valid until the PE is finalized, also in a captured graph:
// what changes when the heap grows (keys) lies in memory, and its tables have room for the largest heap from the start.
//
// All addresses are 64-bit device addresses of the PE's own process, unless a field says otherwise. Counts of queue
// entries are counts of 64-byte basic blocks since the queue was made, never reduced: consumed <= posted <= ready <=
// reserved.
//
// # Concurrency
//
// State, Team, Key and the first half of Queue are constant to the device. Words in the second half of Queue and the
// counters of a team change by atomic operations. Control is shared with the host.
package layout

import "unsafe"

// Limits of the layout.
const (
	// InlinePeers is the number of PEs whose heap address is in the State itself; those of more are in memory.
	InlinePeers = 16
	// InlineKeys is the number of entries of each key table that are in the State itself.
	InlineKeys = 8
	// MaxNICs is the number of network interfaces one PE can use.
	MaxNICs = 8
	// MaxTeams is the number of teams a PE can be in at once.
	MaxTeams = 64
	// IbufCell is the size of a cell of a queue's internal buffer in bytes: 8 for each lane of a warp. Cell 0 takes
	// results that nobody wants and is the target of DUMP; the others are a ring.
	IbufCell = 256
	// MinDepth and MaxDepth bound a send queue's depth in basic blocks, a power of two. The upper bound is that of the
	// 16-bit completion counter: see the wrap lemma in docs/lshmem.md.
	MinDepth, MaxDepth = 128, 32768
	// MaxCall is the most basic blocks that one call reserves at once: 32 lanes of a two-block atomic and its NOP, and
	// a DUMP.
	MaxCall = 97
	// PeerAtomic, in the lowest bit of a peer's address, says that its memory takes native atomic operations as well as
	// loads and stores.
	PeerAtomic = 1
)

// Version of a layout with states of that size: what the device compares with its own. A change of any type must change
// it, by the size or, where that stays, by revision.
const (
	revision = 3
	Version  = uint32(revision<<16) + uint32(unsafe.Sizeof(State{}))
)

// Statuses: what device functions return, what Control says and, negated, nothing; lshmem.h has the same numbers.
const (
	StatusOK       uint32 = iota
	StatusTimeout         // a wait passed the state's timeout
	StatusPeer            // a PE died
	StatusQueue           // a work request completed in error; Control has the syndrome
	StatusArgument        // a PE or address that does not exist or is not reachable that way
	StatusMemory          // out of memory
	StatusSystem          // the driver, the kernel or the network refused; the text says what
	StatusVersion         // device code and library were built with different layouts
	StatusState           // not possible now, such as after finalize
	StatusSupport         // this machine or build cannot do it
)

// Flags of a State.
const (
	// StateCaller* say by what a caller picks its queue among those of a PE; none: by CTA.
	StateCallerWarp uint32 = 1 << iota
	StateCallerSM
)

// Flags of a Queue.
const (
	// QueueHostMemory: the queue lies in host memory; fences before the doorbell must reach the system.
	QueueHostMemory uint32 = 1 << iota
	// QueueHostPosts: the device only raises the word at Doorbell (8 bytes, device byte order: the posted count) by a
	// system-scope maximum; a host thread writes the doorbell record and rings.
	QueueHostPosts
	// QueueFlush: a DUMP must follow reads and fetches before their results are read (GPU_DIRECT_RDMA_WRITES_ORDERING
	// below OWNER).
	QueueFlush
)

// State is what a kernel needs to know of its PE.
type State struct {
	Version uint32
	PE      uint32 // this PE
	PEs     uint32 // of the job
	Flags   uint32 // State*

	HeapBase  uint64 // address of the heap
	HeapBytes uint64 // of address space; offsets in the heap are smaller
	// Peer is where the heaps of PEs 0.. are mapped here, 0 for those that are not, with PeerAtomic in the lowest bit.
	// A PE's own heap is there too.
	Peer   [InlinePeers]uint64
	Peers  uint64 // *uint64[PEs]: the same for all
	Remote uint64 // *uint64[PEs]: the address of each PE's heap in its own process, which work requests carry

	Queues       uint64 // *Queue[PEs*QueuesPerPE], of pe and i at i*PEs + pe; 0 without a network
	QueuesPerPE  uint32
	NICs         uint32
	KeyShift     uint32          // log2 of the bytes of heap that one key entry covers
	LocalCount   uint32          // of Local; the host raises it in the copy at Self
	LocalKeys    uint64          // *Key: of chunk c and NIC d at c*NICs + d
	RemoteKeys   uint64          // *Key: of chunk c, pe and d at (c*PEs + pe)*NICs + d
	Local        uint64          // *Local[LocalCount]: registered buffers outside of the heap
	LocalInline  [InlineKeys]Key // the first of LocalKeys; those with End 0 must be looked up
	RemoteInline [InlineKeys]Key // the first of RemoteKeys

	Teams   uint64 // *Team[MaxTeams]
	Control uint64 // *Control, host memory
	// TimeoutNanos is how long a wait lasts at most, 0 for ever.
	TimeoutNanos uint64
	_            uint64
	// Self is the address of a copy of this State in memory of the GPU. What is not inlined, which is the network path
	// and the collective operations, reads it: a pointer to a kernel's argument would make compilers copy that to local
	// memory in every thread.
	Self uint64
	_    [7]uint64
}

// Key is the key of a registered range as a work request carries it.
type Key struct {
	End uint64 // offset in the heap, or for Local the address, after the registered range; 0: no such range
	Key uint32 // in network byte order
	_   uint32
}

// Local is a registered buffer outside of the heap.
type Local struct {
	Start, End uint64
	Keys       [MaxNICs]uint32 // by NIC, in network byte order
}

// Queue is one RC queue pair to one PE, and its completion queue.
type Queue struct {
	WQ        uint64 // Depth blocks of 64 bytes
	Record    uint64 // doorbell record: the big-endian word of the send queue
	Doorbell  uint64 // 8-byte doorbell register, or QueueHostPosts' word
	CQ        uint64 // the collapsed completion queue's one 64-byte entry
	Ibuf      uint64 // (1 + IbufCells) cells of IbufCell bytes
	Number    uint32 // of the queue pair, 24 bits
	Depth     uint32 // blocks, a power of two
	Batch     uint32 // ready blocks that a caller may leave to a later one's doorbell
	IbufCells uint32 // a power of two
	IbufKey   uint32 // in network byte order
	PE        uint32
	NIC       uint32
	Flags     uint32 // Queue*
	_         [7]uint64

	Reserved uint64
	Ready    uint64
	_        [2]uint64 // one sector each for what is written by different steps
	Posted   uint64
	Lock     uint32
	Status   uint32 // the first error's Status; 0: none
	_        [2]uint64
	Consumed uint64
	GetHead  uint64 // Ready of the last read or fetch that wants a flush
	GetTail  uint64 // flushed up to
	Atomics  uint64 // end of the last atomic without a result, which a later write may overtake: what a fence waits for
	IbufHead uint64
	IbufTail uint64
	_        [2]uint64
}

// Team is a set of PEs. Its members are Start + i*Stride, or in List where Stride is 0.
type Team struct {
	PEs    uint32 // 0: no such team
	Index  uint32 // of this PE in it
	Start  uint32
	Stride uint32
	List   uint64 // *uint32[PEs]
	Sync   uint64 // offset in the heap of its synchronization area: see collective.go
	// Counters is local memory of CounterBytes: the steps that each channel has done: see collective.go.
	Counters uint64
	Flags    uint32 // Team*
	_        uint32
	_        [2]uint64
}

// Control is where host and device tell each other that something is wrong.
type Control struct {
	Abort   uint32 // the host's: a Status; every wait ends with it
	AbortPE uint32 // the PE that died, for StatusPeer
	Status  uint32 // the device's first error; the following are there before it is
	PE      uint32 // whom it was about
	Queue   uint32 // index in Queues
	// Syndrome is of the error completion: hardware syndrome<<24, type<<16, vendor<<8, syndrome.
	Syndrome uint32
	Index    uint64 // block counter of the entry
	Claim    uint32 // the first error's Status, set by compare-and-swap from 0; the host does not look at it
	_        uint32
	_        [3]uint64
}
