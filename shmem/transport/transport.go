// Package transport says what carries bytes between PEs, and chooses among what there is. A transport is something that
// can reach the symmetric memory of another PE: by mapping it (p2p), by work queues that the GPU writes (ibgda), or by
// a thread that posts for the GPU (proxy). The runtime knows them only by this package's interface; package heap's
// extents are what they register.
//
// # Order of calls
//
// The runtime calls a transport from one goroutine at a time, in this order:
//
//	Capability   of every PE, from what all have told about themselves
//	Endpoints    once; the blobs are exchanged all to all
//	Connect      once, with what the others made for this PE
//	Register     for each piece of heap when it comes into being; the blobs are gathered
//	Attach       once for that piece, with everybody's blobs
//	State        after Connect: fill in what the device needs
//	Detach       when the piece goes: at all PEs before anybody releases the memory
//	Close        in the end, also after an error in any of the above
//
// # Choice
//
// Select takes, for each PE, the first transport that can do it in the order p2p, ibgda, proxy, separately for RMA and
// for atomic operations: a PE whose memory cannot take atomic operations through a mapping is still read and written
// through it.
package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/shmem/layout"
)

// Capability is what a transport can do between this PE and another: a set of bits.
type Capability uint32

// Bits of a Capability.
const (
	// Map: the peer's heap has an address here, which Ptr returns.
	Map Capability = 1 << iota
	// LoadStore: device (or, for plain CPU PEs, CPU) instructions reach it.
	LoadStore
	// Write and Read: RMA in that direction.
	Write
	Read
	// Atomics: atomic operations on 32 and 64-bit words, atomic also to the peer's own.
	Atomics
	// GPUInitiated: kernels start operations without a thread of the CPU.
	GPUInitiated
	// CPUInitiated: the host starts operations.
	CPUInitiated

	// RMA and AMO are what a transport must have to be chosen for them.
	RMA = Write | Read
	AMO = Atomics
)

// String lists the bits by name.
func (c Capability) String() string {
	var names []string
	for i, name := range []string{"map", "ldst", "write", "read", "atomics", "gpu", "cpu"} {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "|")
}

// Kind is where a heap's memory lies. All PEs of a job have the same kind.
type Kind uint32

// Kinds of memory.
const (
	Device Kind = iota // of the PE's GPU
	Host               // of the machine: PEs may be plain CPU processes
)

func (k Kind) String() string {
	switch k {
	case Device:
		return "device"
	case Host:
		return "host"
	}
	return fmt.Sprintf("Kind(%d)", uint32(k))
}

// PeerInfo is what a PE tells all others about itself, before anything else.
type PeerInfo struct {
	PE uint32
	// Host is equal for PEs that run on the same boot of the same machine.
	Host uint64
	// Network is the network namespace, within which local sockets reach each other.
	Network uint64
	PID     uint32
	UID     uint32
	Kind    Kind
	// Ordinal is the device's number in its process, -1 for a plain CPU PE; it means nothing elsewhere.
	Ordinal int32
	GPU     [16]byte // UUID; zero for a plain CPU PE
	// PCI is domain<<16 | bus<<8 | device of the GPU.
	PCI uint64
	// VMM: heap memory comes as shareable handles. Without it, the heap is static and shared by IPC handles.
	VMM bool
}

// HasGPU says whether the PE has a GPU at all.
func (p *PeerInfo) HasGPU() bool { return p.Ordinal >= 0 }

// SameGPU says whether both PEs have a GPU and it is the same one.
func (p *PeerInfo) SameGPU(q PeerInfo) bool {
	return p.HasGPU() && q.HasGPU() && p.Host == q.Host && p.GPU == q.GPU
}

// peerInfoBytes is the size of an encoded PeerInfo.
const peerInfoBytes = 72

// Append appends the encoding of p to b: fixed size, little-endian.
func (p *PeerInfo) Append(b []byte) []byte {
	e := binary.LittleEndian
	b = e.AppendUint32(b, p.PE)
	b = e.AppendUint32(b, uint32(p.Kind))
	b = e.AppendUint64(b, p.Host)
	b = e.AppendUint64(b, p.Network)
	b = e.AppendUint32(b, p.PID)
	b = e.AppendUint32(b, p.UID)
	b = e.AppendUint32(b, uint32(p.Ordinal))
	vmm := uint32(0)
	if p.VMM {
		vmm = 1
	}
	b = e.AppendUint32(b, vmm)
	b = e.AppendUint64(b, p.PCI)
	b = append(b, p.GPU[:]...)
	return e.AppendUint64(b, 0) // room
}

// PeerError is an error whose cause is a peer, not the PE that it appears at.
type PeerError struct {
	PE  int
	Err error
}

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PeerError) Unwrap() error { return e.Err }

// ErrBlob is wrapped by errors about a peer's message that does not have the form it must have.
var ErrBlob = errors.New("malformed message of a peer")

// ParsePeerInfo reads what Append wrote, and returns the rest of b.
func ParsePeerInfo(b []byte) (PeerInfo, []byte, error) {
	if len(b) < peerInfoBytes {
		return PeerInfo{}, nil, fmt.Errorf("%w: %d bytes about itself, %d needed", ErrBlob, len(b), peerInfoBytes)
	}
	e := binary.LittleEndian
	p := PeerInfo{
		PE: e.Uint32(b), Kind: Kind(e.Uint32(b[4:])), Host: e.Uint64(b[8:]), Network: e.Uint64(b[16:]), PID: e.Uint32(b[24:]),
		UID: e.Uint32(b[28:]), Ordinal: int32(e.Uint32(b[32:])), VMM: e.Uint32(b[36:]) != 0, PCI: e.Uint64(b[40:]),
	}
	copy(p.GPU[:], b[48:64])
	return p, b[peerInfoBytes:], nil
}

// ThisProcess fills in what a process knows without a GPU.
func ThisProcess() PeerInfo {
	h := fnv.New64a()
	for _, path := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		text, _ := os.ReadFile(path) // a machine without one has the other
		h.Write(text)
	}
	var st syscall.Stat_t
	if syscall.Stat("/proc/self/ns/net", &st) != nil {
		st.Ino = 0
	}
	return PeerInfo{Host: h.Sum64(), Network: st.Ino, PID: uint32(os.Getpid()), UID: uint32(os.Geteuid()), Ordinal: -1}
}

// Chunk is a piece of this PE's heap that came into being at once: one driver handle, a whole number of key entries.
type Chunk struct {
	// Index is the number of its first key entry: Offset >> State.KeyShift. It names the piece among those that exist.
	Index  int
	Offset uint64 // in the heap
	Bytes  uint64
	// Address is where it is mapped in this process.
	Address uint64
	Kind    Kind
	// Handle is the driver's CUmemGenericAllocationHandle, 0 for memory that has none (host memory, static heaps
	// without VMM).
	Handle uint64
	// FD is the descriptor of host memory, -1 for memory of a device. The transport may not close it.
	FD int
}

// Transport carries bytes to other PEs. See the package comment for the order of calls. Errors name the PE they are
// about.
type Transport interface {
	// Name is p2p, ibgda or proxy: what users write in the configuration.
	Name() string
	// Capability says what the transport can do from self to peer (which may be self). It is called before Endpoints
	// and must allocate nothing.
	Capability(self, peer PeerInfo) Capability
	// Endpoints makes what the others need to connect to this PE, one blob for each PE of the job; a PE this transport
	// has nothing to do with gets an empty one. used says, by PE, what the transport was chosen for: 0 for nothing.
	Endpoints(peers []PeerInfo, used []Capability) ([][]byte, error)
	// Connect takes the blobs that the others made for this PE, by PE.
	Connect(from [][]byte) error
	// Register makes a piece of this PE's heap reachable and returns what the others need for that.
	Register(c Chunk) ([]byte, error)
	// Attach makes the others' pieces of the same index reachable from here. from is by PE. An error leaves nothing
	// attached.
	Attach(index int, from [][]byte) error
	// Detach undoes Register and Attach for a piece. It is also called for a piece that was registered, not attached.
	Detach(index int) error
	// State fills in the transport's part of the device state. Addresses it puts there stay valid until Close.
	State(s *layout.State) error
	// Close gives everything back. It is safe to call after a failure in any step, and twice.
	Close() error
}

// LocalRegistrar is implemented by transports that can use buffers outside of the heap as the local side of an
// operation only once these are registered.
type LocalRegistrar interface {
	// RegisterLocal returns how many entries of State.Local kernels must look at from now on: it never becomes less.
	RegisterLocal(address, bytes uint64) (entries uint32, err error)
	UnregisterLocal(address uint64) error
}

// Mapper is implemented by transports that have the Map capability.
type Mapper interface {
	// Address is where the heap of a PE is mapped here, 0 if it is not; atomic says whether native atomic operations
	// work on it. It is valid after Connect, for static heaps without VMM after Attach.
	Address(pe int) (base uint64, atomic bool)
}

// Order is the order of preference among transports.
var Order = []string{"p2p", "ibgda", "proxy"}

// None is the choice for a PE that no transport reaches.
const None = -1

// Choice is, by PE, the index of the transport chosen, or None.
type Choice struct {
	RMA []int
	AMO []int
}

// Reachability is what each transport can do: by transport, then by PE. Those of all PEs make the job's matrix.
type Reachability [][]Capability

// Row reduces r to one word for each PE: bit 2j says that transport j does RMA to it, bit 2j+1 that it does AMO.
func (r Reachability) Row() []uint32 {
	if len(r) == 0 {
		return nil
	}
	row := make([]uint32, len(r[0]))
	for j, caps := range r {
		for pe, c := range caps {
			if c&RMA == RMA {
				row[pe] |= 1 << (2 * j)
			}
			if c&AMO == AMO {
				row[pe] |= 2 << (2 * j)
			}
		}
	}
	return row
}

// Select chooses for each PE the first transport that does RMA, and the first that does AMO. The transports of r are in
// the order of preference.
func Select(r Reachability, pes int) Choice {
	c := Choice{RMA: make([]int, pes), AMO: make([]int, pes)}
	first := func(pe int, want Capability) int {
		for j := range r {
			if r[j][pe]&want == want {
				return j
			}
		}
		return None
	}
	for pe := range pes {
		c.RMA[pe], c.AMO[pe] = first(pe, RMA), first(pe, AMO)
	}
	return c
}

// Matrix is the job's reachability: from PE to PE, as Row has it.
type Matrix [][]uint32

// Unreachable lists the pairs that no transport serves for RMA, at most limit of them, as "a->b".
func (m Matrix) Unreachable(limit int) []string {
	var out []string
	for from, row := range m {
		for to, bits := range row {
			if bits&0x55555555 == 0 && len(out) < limit {
				out = append(out, fmt.Sprintf("%d->%d", from, to))
			}
		}
	}
	return out
}
