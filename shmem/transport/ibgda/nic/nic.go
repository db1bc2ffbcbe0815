// Package nic is what a network interface offers to the transport that lets a GPU post to it: registered memory, queue
// pairs over memory that the transport chose, and a doorbell. An mlx5 NIC (shmem/verbs), the software HCA on the
// processor and the one on the GPU (shmem/hca) all are providers, so that everything above this interface is the same
// for them, and is tested without hardware.
//
// A provider's methods may be called from any goroutine; those of one NIC, and of the queues and memory of that NIC,
// from one at a time, but for Queue.Ring, which belongs to the thread that posts.
package nic

import (
	"context"
	"errors"
	"fmt"
)

// ErrNoDevice: the provider has no NIC on this machine. It is what "no mlx5 device" means to a program: choose another.
var ErrNoDevice = errors.New("no such network interface")

// ErrNotSupported: the NIC or its driver cannot do it.
var ErrNotSupported = errors.New("not supported by the network interface")

// Provider is a kind of NIC.
type Provider interface {
	// Name is mlx5, host or gpu.
	Name() string
	// NICs are those of this machine, one entry for each port, by name and port. Without any it returns ErrNoDevice,
	// wrapped with the reason.
	NICs() ([]Info, error)
	// Open opens a port that NICs returned.
	Open(Info) (NIC, error)
	// Close gives back what the provider holds; its NICs are closed before.
	Close() error
}

// Link is a kind of link.
type Link uint8

// Kinds of links.
const (
	Software   Link = iota // none: memory or TCP
	InfiniBand             // addressed by LID, or by GID beyond the subnet
	Ethernet               // RoCE, addressed by GID
)

func (l Link) String() string {
	switch l {
	case Software:
		return "software"
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return fmt.Sprintf("link %d", uint8(l))
}

// Info is one port of a NIC.
type Info struct {
	Name string // such as mlx5_0
	Port int    // from 1
	PCI  string // bus id such as 0000:3b:00.0; "" for software
	Path string // of the device in sysfs, with all bridges above it; "" for software
	NUMA int    // node, -1 where unknown
	Up   bool   // the link is active
	Link Link
	LID  uint16 // InfiniBand
	GID  [16]byte
	// GIDIndex is of GID in the port's table.
	GIDIndex int
	MTU      int // bytes of an active path
	Mbps     int // of the link, 0 where unknown
}

// Capabilities are what a NIC can do beyond writes and reads.
type Capabilities struct {
	MaxDepth   uint32 // basic blocks of a send queue
	MaxMessage uint64 // bytes of one work request
	// Atomics8: compare-and-swap and fetch-and-add on 8 bytes. MaskedAtomics: those with masks, on 4 and 8 bytes.
	Atomics8, MaskedAtomics bool
	// Collapsed: completion queues of one entry that is rewritten, whose overrun is ignored.
	Collapsed bool
	// HostQueues and DeviceQueues: where queues, records and completions may lie.
	HostQueues, DeviceQueues bool
	// MemoryDoorbell: the doorbell is memory that the caller provides, of the same kind as the queues. Otherwise it is
	// a register.
	MemoryDoorbell bool
	// Register is the address of a page of registers in this process, for a GPU to try to map; 0: there is none.
	Register uint64
	// Ordered: what the NIC wrote is visible to the GPU with the completion, whatever the GPU says of itself.
	Ordered bool
	// DataDirect: inbound writes reach the GPU past the root complex, so that they need a flush whatever the GPU says.
	DataDirect bool
}

// RegisterBytes is the size of a page of registers.
const RegisterBytes = 4096

// Buffer is a range of memory in this process.
type Buffer struct {
	Address uint64 // of the device: what the GPU uses, and work requests carry
	Bytes   uint64
	// Host is the same memory as the processor sees it, nil where it cannot.
	Host []byte
	// FD is a dma-buf of it, at Offset, or -1. It stays the caller's, who may close it when the call returns.
	FD     int
	Offset uint64
}

// Access is what is allowed to do with registered memory.
type Access uint32

// Accesses; the values are those of libibverbs' ibv_access_flags.
const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	RelaxedOrdering Access = 1 << 20
)

// Full is the access that a symmetric heap has.
const Full = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

// Memory is registered memory.
type Memory interface {
	// LocalKey and RemoteKey are in host byte order.
	LocalKey() uint32
	RemoteKey() uint32
	// Close takes back the keys. Work that still uses them completes in error.
	Close() error
}

// QueueMemory is memory that queues may lie in.
type QueueMemory interface {
	// Close gives it back, after the queues in it.
	Close() error
}

// Position is a position in queue memory.
type Position struct {
	Memory QueueMemory
	Offset uint64
}

// QueueConfig is a queue pair with its completion queue.
type QueueConfig struct {
	Depth    uint32   // basic blocks, a power of two
	WQ       Position // Depth blocks
	CQ       Position // Depth entries of 64 bytes, 0xff; the first is rewritten
	Record   Position // RecordBytes, zero: the queue pair's record, then the completion queue's
	Doorbell Position // 8 bytes, zero, for a NIC with MemoryDoorbell
}

// Offsets in a queue's Record.
const (
	RecordSend  = 4 // the send queue's word
	RecordCQ    = 8 // the completion queue's
	RecordBytes = 16
)

// Queue is one RC queue pair.
type Queue interface {
	// Number is 24 bits.
	Number() uint32
	// Register is the 8-byte doorbell register in this process, 0 for a NIC with MemoryDoorbell.
	Register() uint64
	// Ring rings from the processor: the 8 bytes go to the doorbell at once, in the order in which they are in memory.
	Ring([8]byte)
	// Endpoint is what the other side needs to connect.
	Endpoint() Endpoint
	// Connect makes the queue ready to send to, and receive from, the other side's queue.
	Connect(context.Context, Endpoint) error
	// Close ends the queue. Nothing touches its memory afterwards.
	Close() error
}

// NIC is an open port.
type NIC interface {
	Info() Info
	Capabilities() Capabilities
	Register(Buffer, Access) (Memory, error)
	// RegisterQueues makes memory usable for queues.
	RegisterQueues(Buffer) (QueueMemory, error)
	CreateQueue(QueueConfig) (Queue, error)
	// Close closes the port, after its queues and memory.
	Close() error
}

// Remote is what another PE registered.
type Remote struct {
	Peer         int // its PE
	Key          uint32
	Start, Bytes uint64 // as work requests name it
	Mapped       uint64 // where this process's device finds Start
}

// Mapper is a NIC that reaches other PEs' memory by itself, where it is mapped, and must know what they registered.
type Mapper interface {
	SetRemote(Remote) error
	// RemoveRemote takes back what SetRemote said; nothing touches the memory afterwards.
	RemoveRemote(peer int, key uint32) error
}
