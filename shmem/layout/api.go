package layout

// Numbers that programs pass to host and device functions. Those that NVSHMEM and OpenSHMEM have too are theirs, so
// that a program that passes them on as numbers means the same.

// Comparisons of wait and test functions.
const (
	CompareEQ uint32 = iota
	CompareNE
	CompareGT
	CompareLE
	CompareLT
	CompareGE
)

// What a signal does to its word.
const (
	SignalSet uint32 = 9
	SignalAdd uint32 = 10
)

// Operations of a host-side or on-stream atomic.
const (
	AtomicSet uint32 = iota
	AtomicAdd
	AtomicAnd
	AtomicOr
	AtomicXor
	AtomicCompareSwap
)

// Element types of host and on-stream operations.
const (
	TypeInt8 uint32 = iota
	TypeUint8
	TypeInt16
	TypeUint16
	TypeInt32
	TypeUint32
	TypeInt64
	TypeUint64
	TypeFloat16
	TypeBFloat16
	TypeFloat32
	TypeFloat64
	Types // their number
)

// Operations of a reduction.
const (
	ReduceSum uint32 = iota
	ReduceProd
	ReduceMin
	ReduceMax
	ReduceAnd
	ReduceOr
	ReduceXor
	Reductions // their number
)

// Teams that every PE has from the start. Those that a program makes follow.
const (
	TeamWorld      uint32 = iota // all PEs
	TeamShared                   // those whose memory this PE's GPU maps
	TeamNode                     // those of this host
	TeamSameMyPE                 // those with this PE's index in its node's team, of all hosts
	TeamSameGPU                  // those on this PE's GPU
	TeamFirstOwned               // the first that a program can make
	TeamInvalid    = ^uint32(0)
)

// AllPEs as the PE of a fence or quiet means every one.
const AllPEs uint32 = 1 << 15

// Queues as device functions name them beside explicit indices, which are those of a PE's queues.
const (
	QueueDefault int32 = -1 // the caller's own, by the state's rule
	QueueAny     int32 = -2 // whichever; order holds on the same queue alone
)
