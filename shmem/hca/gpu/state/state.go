// Package state is what the kernel of the software HCA and its host share in memory. The Go types are the only source;
// the kernel's lshmem_hca.h is made from them (go generate ./shmem/hca/gpu).
package state

// HcaAdapter is the kernel's parameter.
type HcaAdapter struct {
	Queues     uint64 // *HcaQueue[QueueCount]
	Spaces     uint64 // *HcaSpace[SpaceCount]
	Request    uint64 // *HcaRequest
	Answer     uint64 // *HcaAnswer, in host memory
	QueueCount uint32
	SpaceCount uint32
	// SliceNanos is how long a run of the kernel lasts: what waits for everything in the context to end waits that
	// long.
	SliceNanos uint64
	// IdleNanos is how long a warp sleeps at most between two looks at its doorbells.
	IdleNanos uint32
	_         uint32
}

// HcaRequest is what the host asks of the kernel, which reads both words at once.
type HcaRequest struct {
	Ticket uint32 // every warp answers it at the end of a turn: what it did before is over
	Stop   uint32
	_      [2]uint32
}

// HcaAnswer is what the kernel says.
type HcaAnswer struct {
	Tickets [MaxWarps]uint32 // by warp, the last ticket that it saw
	Turns   [MaxWarps]uint32 // a heartbeat: it changes while the warp runs
}

// HcaKey is a registered range; the one of key k is entry k>>KeyShift of its space.
type HcaKey struct {
	Start, End uint64
	Mapped     uint64 // where the kernel finds Start
	Key        uint32 // 0: no range
	Access     uint32 // hca.Access
}

// HcaSpace is a table of keys: that of the own memory is the first, then there is one for each other adapter.
type HcaSpace struct {
	Keys  uint64 // *HcaKey[Count]
	Count uint32
	_     uint32
}

// HcaQueue is a queue pair. Up to Space it does not change while State says that the queue is there.
type HcaQueue struct {
	WQ, Record, Doorbell, CQ uint64
	RecordCQ                 uint64 // 0: overrun is ignored
	Number                   uint32
	Depth                    uint32 // blocks, a power of two
	DepthCQ                  uint32 // completions of a lap of the owner bit, a power of two
	NumberCQ                 uint32
	Flags                    uint32 // Flag*
	Space                    uint32 // of the other side
	State                    uint32 // hca.State
	Syndrome                 uint32 // of the first failed entry; 0: none

	Posted    uint64 // blocks
	Head      uint64 // the first block that was not executed
	Completed uint64 // completions
	Failed    uint64 // block of the first failed entry
	Behind    uint64 // since when, in nanoseconds, the record is ahead of the doorbell; 0: it is not
	_         [2]uint64
}

// Flags of a queue.
const (
	FlagCyclic    = 1 << iota // completions go one after the other
	FlagRecord                // the doorbell record counts, not the doorbell
	FlagHostPosts             // Doorbell is a 64-bit count in device order
	FlagOverrun               // no completion can be written any more
)

// Limits.
const (
	MaxWarps = 16
	// KeyShift: a key's upper bits are its entry in its space, the lower ones change with each use of the entry, so
	// that an old key is not a new one's.
	KeyShift = 8
	// RecoverNanos is how long a doorbell record may be ahead of the doorbell before the doorbell counts as lost.
	RecoverNanos = 100_000
	// TurnEntries bounds what a queue does before the next has its turn.
	TurnEntries = 64
	MaxMessage  = 1 << 30 // bytes of one entry
)
