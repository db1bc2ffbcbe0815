// Package hca is a software network adapter: it executes mlx5 send queues that a program, or a GPU, writes into memory,
// and writes the completions that an mlx5 device would write. lshmem's device code cannot tell the two apart, so the
// same kernels run where there is no such device, and its protocol is tested against an adapter that can be told to be
// as unhelpful as the rules allow.
//
//	d, err := hca.New(hca.Config{Fabric: fabric})              // one adapter
//	err = d.RegisterMemory(key, start, bytes, access, memory)  // what work requests may touch, on both sides
//	q, err := d.CreateQueue(hca.QueueConfig{...})              // INIT
//	err = q.Connect(ctx, remote)                               // the other's q.Endpoint(); RTS: entries are executed
//
// # What is executed
//
// RDMA WRITE with data or inline segments, RDMA READ, the four atomic operations with masks and field boundaries, DUMP,
// NOP and WAIT. A queue has no receive side: SEND and the immediate forms fail with SyndromeNotReady (0x16), as on a
// device whose peer posts no receive. Everything else, and whatever is malformed, fails with SyndromeLocalQueue. A
// failed entry gets an error completion whether or not it asks for one, its queue goes to the state ERR, and all
// entries after it, also those posted later, complete with SyndromeFlushed.
//
// # Order
//
// Of one queue, writes and atomics take effect at the other side in the order posted. What reads and atomics return may
// arrive after later writes were carried out, and a read may return what a later write of its queue stored; an entry
// with one of the fence bits of FenceReads begins after all reads and atomics before it are complete. Completions are
// in the order posted and after the entry's effect. Nothing is promised between queues. Inside an entry, bytes move in
// any order, except that a transfer of 4 or 8 bytes to an aligned address is seen whole.
//
// # When the other side is gone
//
// A device that cannot be reached, does not answer within Config.Retry, or whose connection ends, fails the requests
// that are under way with SyndromeRetry (0x15), as a NIC does when its retries are exhausted. What was under way may or
// may not have happened. A new queue makes a new connection.
//
// # Who notices a doorbell
//
// One goroutine per device looks at the doorbell words of its queues: without pause while there is work and for about
// 50 microseconds after, then every 20 to 50 microseconds (a few per cent of a core) for a tenth of a second, then
// about once a millisecond, which is next to nothing. Kick ends such a sleep at once.
//
// # Concurrency
//
// Methods of Device and Queue are safe for concurrent use. Memory given to a queue or a registration is in use until
// Close, or until DeregisterMemory has returned.
package hca

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Access is what a registered range may be used for. The numbers are those of verbs.
type Access uint32

const (
	LocalWrite   Access = 1 << iota // the results of the own queues' reads and atomics go there
	RemoteWrite                     // others may write
	RemoteRead                      // others may read
	RemoteAtomic                    // others may use atomic operations

	AllAccess = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

// State is a queue's state.
type State uint32

const (
	StateReset State = iota // closed
	StateInit               // created
	StateRTR                // answers the other side
	StateRTS                // and executes its own entries
	StateError              // failed: every entry is flushed
)

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint32(s))
}

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "ERR"}

// Producer is where a device learns how far entries are posted.
type Producer uint8

const (
	// ProducerDoorbell: the doorbell word has the index of the next block (with opcode 0), as GPUs write it. When the
	// doorbell record has been ahead of it for a while, a doorbell was lost and the record counts.
	ProducerDoorbell Producer = iota
	// ProducerRecord: the doorbell record counts; what is stored to the doorbell does not matter. The form for libmlx5,
	// whose doorbell is the head of the last entry.
	ProducerRecord
	// ProducerHostPosts: layout.QueueHostPosts' word, a 64-bit count in the machine's byte order.
	ProducerHostPosts
)

// CQForm is how completions are stored.
type CQForm uint8

const (
	CQCollapsed CQForm = iota // all of them in the first 64 bytes
	CQCyclic                  // one after the other, around
)

// QueueConfig describes a queue pair whose send queue lies in memory of this process (which others may share).
type QueueConfig struct {
	Number uint32 // 1..2^24-1, unique in the device
	WQ     []byte // a power of two of 64-byte blocks, at most layout.MaxDepth; at an address that is a multiple of 8
	// Record is the doorbell record, both big-endian words; the second is the send queue's. It must hold Start when the
	// queue is created. Only ProducerHostPosts needs none.
	Record []byte
	// Doorbell is the 8-byte doorbell register; a word that does not have the queue's number was not rung yet. Only
	// ProducerDoorbell looks at it; nil: it is rung by Queue.Ring alone.
	Doorbell []byte
	// HostPosts is the 8-byte word of ProducerHostPosts.
	HostPosts []byte
	Producer  Producer
	// Start is the count of blocks that were posted and executed when the queue was created: 0, or near a wrap in
	// tests.
	Start uint64

	CQ       []byte // a power of two of 64-byte entries, one for CQCollapsed; filled with 0xff at first
	CQForm   CQForm
	CQNumber uint32 // for WAIT
	// CQDepth is how many completions make a lap of the owner bit: len(CQ)/64, or for CQCollapsed this; 0: the WQ's
	// depth.
	CQDepth int
	// CQRecord is the completion queue's doorbell record: 4 bytes, the consumer's count. With it, a cyclic queue that
	// is full is an error of the queue; without, entries are overwritten.
	CQRecord []byte
}

// Token is what one needs to know to reach a device.
type Token [32]byte

// NewToken is a random one.
func NewToken() (Token, error) {
	var t Token
	if _, err := rand.Read(t[:]); err != nil {
		return t, fmt.Errorf("hca: random token: %w", err)
	}
	return t, nil
}

// Endpoint is a queue as the one at the other side knows it.
type Endpoint struct {
	Address string // of the device in its fabric
	Token   Token
	Queue   uint32
}

// ErrEndpoint is in errors about bytes that are no Endpoint.
var ErrEndpoint = errors.New("not an endpoint")

// MarshalBinary implements encoding.BinaryMarshaler.
func (e Endpoint) MarshalBinary() ([]byte, error) {
	if len(e.Address) > 255 {
		return nil, fmt.Errorf("hca: %w: an address of %d bytes", ErrEndpoint, len(e.Address))
	}
	b := append(make([]byte, 0, 64), e.Token[:]...)
	b = binary.BigEndian.AppendUint32(b, e.Queue)
	b = append(b, byte(len(e.Address)))
	return append(b, e.Address...), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (e *Endpoint) UnmarshalBinary(b []byte) error {
	const head = len(e.Token) + 5
	if len(b) < head || len(b) != head+int(b[head-1]) {
		return fmt.Errorf("hca: %w: %d bytes", ErrEndpoint, len(b))
	}
	copy(e.Token[:], b)
	e.Queue = binary.BigEndian.Uint32(b[len(e.Token):])
	e.Address = string(b[head:])
	return nil
}

func (e Endpoint) String() string { return fmt.Sprintf("queue %#x of %s", e.Queue, e.Address) }

func (t Token) String() string { return hex.EncodeToString(t[:4]) + "…" }

// Config is what a device is made with.
type Config struct {
	// Fabric is how other devices are reached; several devices may use one. nil: none but the device itself is.
	Fabric Fabric
	// Token is asked of whoever wants to reach the device; the zero token: a random one.
	Token Token
	// Address is the device's in a Local fabric; "": one is chosen.
	Address string
	// Retry is how long another device may take to answer before requests fail with SyndromeRetry. 0: 10 seconds.
	Retry time.Duration
	// Strict makes entries fail that hardware would execute: see mlx5.Strictness.
	Strict uint8
	// Adversary makes the device as unhelpful as the rules allow. nil: it is not.
	Adversary *Adversary
	// AnyQueue makes the device answer to requests for queues that it does not have: one that only stands in for
	// another process's device, whose memory this process has mapped.
	AnyQueue bool
	// Logf reports what no completion can; nil: nothing.
	Logf func(format string, args ...any)
}

// Adversary is how a device misbehaves legally. Given the same arrivals it decides the same. The zero value of a field
// turns that part off; probabilities are in 1/256.
type Adversary struct {
	Seed uint64
	// Scatter: the payload of an entry moves in pieces of at most so many bytes, in any order, other queues' work in
	// between. Transfers of at most 8 bytes stay whole.
	Scatter int
	// Late is the probability that a read is carried out, and that what an atomic returned is stored, after later
	// entries.
	Late uint8
	// LateCompletion is the probability that a completion waits for another turn.
	LateCompletion uint8
	// Idle is the probability that a queue is passed over in a turn. Queues are visited in random order.
	Idle uint8
	// DropDoorbell and DelayDoorbell are the probabilities that a doorbell is never seen, and that it is seen some
	// turns later.
	DropDoorbell, DelayDoorbell uint8
	// FailAt makes the entry fail that is the FailAt-th (from 1) of its queue to be executed; 0: none. FailWith is the
	// syndrome; 0: SyndromeRemoteOp. FailQueue is the queue; 0: all.
	FailAt    uint64
	FailWith  uint8
	FailQueue uint32
}
