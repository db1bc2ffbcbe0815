// Package mlx5 is the wire format of mlx5 send queues: what a work request, a completion and a doorbell look like in
// memory.
//
// Layouts are those of rdma-core's providers/mlx5/mlx5dv.h and, for WAIT, DUMP and the operation modifiers of extended
// atomics, of doca-gpunetio. Every field of more than a byte is big-endian.
package mlx5

// Sizes in bytes.
const (
	BlockBytes   = 64 // a basic block (WQEBB), the unit of a queue
	SegmentBytes = 16 // a segment (DS), the unit of an entry
)

// Opcodes of work requests.
const (
	OpNOP         = 0x00
	OpSendInv     = 0x01
	OpWrite       = 0x08
	OpWriteImm    = 0x09
	OpSend        = 0x0a
	OpSendImm     = 0x0b
	OpWait        = 0x0f
	OpRead        = 0x10
	OpCompareSwap = 0x11
	OpFetchAdd    = 0x12
	OpMaskedSwap  = 0x14 // masked compare and swap
	OpMaskedAdd   = 0x15 // masked fetch and add
	OpLocalInv    = 0x1b
	OpDump        = 0x23
	OpUMR         = 0x25
	ModAtomic4    = 0x08000000 // operation modifier, in place: masked atomics on 4 bytes
	ModAtomic8    = 0x09000000 // on 8
	InlineFlag    = 0x80000000 // in an inline segment's length
	DoorbellSend  = 1          // index of the send queue's word in a doorbell record
	IndexMask     = 0xffff     // of a block counter in a control segment, a doorbell and a completion
	MaxSegments   = 63
)

// Bits of the control segment's byte 11.
const (
	CtrlSolicited  = 0x02
	CtrlCompletion = 0x08 // always a completion
	FenceSmall     = 0x20 // initiator small fence
	FenceReads     = 0x40 // wait for earlier reads and atomics
	FenceStrong    = 0x60
	FenceAll       = 0x80 // small fence and FenceReads
)

// Opcodes of completions, and the owner bit of their last byte.
const (
	CompletionRequester = 0x0
	CompletionError     = 0xd // of a requester
	CompletionRespError = 0xe
	CompletionInvalid   = 0xf
	OwnerBit            = 1
)

// Offsets in a completion.
const (
	CompletionByteCount  = 44
	CompletionTimestamp  = 48
	CompletionHWSyndrome = 52
	CompletionType       = 53
	CompletionVendor     = 54
	CompletionSyndrome   = 55
	CompletionQueue      = 56 // send opcode<<24 | queue number
	CompletionCounter    = 60 // of the entry's first block
	CompletionSignature  = 62
	CompletionOwner      = 63 // opcode<<4 | format<<2 | solicited<<1 | owner
)

// Syndromes of error completions.
const (
	SyndromeLocalLength   = 0x01
	SyndromeLocalQueue    = 0x02
	SyndromeLocalProtect  = 0x04
	SyndromeFlushed       = 0x05
	SyndromeBind          = 0x06
	SyndromeBadResponse   = 0x10
	SyndromeLocalAccess   = 0x11
	SyndromeRemoteRequest = 0x12
	SyndromeRemoteAccess  = 0x13
	SyndromeRemoteOp      = 0x14
	SyndromeRetry         = 0x15
	SyndromeNotReady      = 0x16
	SyndromeRemoteAborted = 0x22
)
