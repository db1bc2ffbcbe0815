package ibgda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/hca/gpu"
	"github.com/lgpu/lgpu/shmem/hca/gpu/state"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// maxWarps is the most warps of an HCA's kernel.
const maxWarps = 16

// resident is the software HCA on the GPU as a provider. Queues and doorbells are in the GPU's memory; the memory of
// other PEs is reached where it is mapped.
type resident struct {
	c       *Config
	context *cuda.Context
}

func newResident(c *Config) (*resident, error) {
	p, ok := c.Platform.(interface{ Context() *cuda.Context })
	if !ok {
		return nil, fmt.Errorf("ibgda: LSHMEM_NIC is gpu, but this PE computes on processors: %w", nic.ErrNoDevice)
	}
	return &resident{c: c, context: p.Context()}, nil
}

// Name implements nic.Provider.
func (r *resident) Name() string { return GPU }

// NICs implements nic.Provider: as many as are wanted.
func (r *resident) NICs() ([]nic.Info, error) {
	var list []nic.Info
	for i := range max(1, r.c.MaxNICs) {
		list = append(list, nic.Info{Name: fmt.Sprintf("resident%d", i), Port: 1, NUMA: -1, Up: true, Link: nic.Software, MTU: 4096})
	}
	return list, nil
}

// Open implements nic.Provider: it starts a kernel.
func (r *resident) Open(info nic.Info) (nic.NIC, error) {
	// A key for each piece of heap, each registered buffer, and the internal buffers.
	entries := (r.c.HeapBytes + 1<<r.c.KeyShift - 1) >> r.c.KeyShift
	keys := min(entries+maxLocals+16, 1<<(32-state.KeyShift))
	queues := r.c.QueuesPerPE * r.c.PEs
	d, err := gpu.New(gpu.Config{Driver: r.context.D, Context: r.context, Queues: queues, Spaces: r.c.PEs, Keys: int(keys),
		Warps: min(queues, maxWarps), Logf: r.c.Log}) // a warp without a queue only takes issue slots from others
	if err != nil {
		return nil, err
	}
	return &residentNIC{provider: r, info: info, device: d}, nil
}

// Close implements nic.Provider.
func (r *resident) Close() error { return nil }

// residentNIC is one kernel.
type residentNIC struct {
	provider *resident
	info     nic.Info
	device   *gpu.Device
	numbers  uint32
}

var _ nic.Mapper = (*residentNIC)(nil)

func (n *residentNIC) Info() nic.Info { return n.info }

func (n *residentNIC) Capabilities() nic.Capabilities {
	return nic.Capabilities{MaxDepth: layout.MaxDepth, MaxMessage: 1 << 30, Atomics8: true, MaskedAtomics: true, Collapsed: true,
		HostQueues: true, DeviceQueues: true, MemoryDoorbell: true, Ordered: true}
}

// space is the number by which a kernel knows a PE: 0 is its own.
func (n *residentNIC) space(pe int) int {
	if pe == n.provider.c.PE {
		return 0
	}
	return pe + 1
}

// Register implements nic.NIC. The kernel reaches no memory of the host that the driver does not know.
func (n *residentNIC) Register(b nic.Buffer, access nic.Access) (nic.Memory, error) {
	if b.Host != nil {
		err := n.provider.context.Do(func() error {
			t, err := n.provider.context.D.TypeOf(b.Address)
			if err == nil && t == 0 {
				err = fmt.Errorf("the GPU does not reach the host's memory at %#x: cuMemHostRegister it first", b.Address)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	key, err := n.device.RegisterMemory(b.Address, b.Bytes, hca.Access(access&nic.Full))
	if err != nil {
		return nil, err
	}
	return &softMemory{n.device, key}, nil
}

// SetRemote implements nic.Mapper.
func (n *residentNIC) SetRemote(r nic.Remote) error {
	return n.device.SetRemote(n.space(r.Peer), gpu.Region{Key: r.Key, Start: r.Start, Bytes: r.Bytes, Access: hca.AllAccess, Mapped: r.Mapped})
}

// RemoveRemote implements nic.Mapper.
func (n *residentNIC) RemoveRemote(peer int, key uint32) error {
	return n.device.RemoveRemote(n.space(peer), key)
}

// RegisterQueues implements nic.NIC: the kernel reaches all memory that the GPU does.
func (n *residentNIC) RegisterQueues(b nic.Buffer) (nic.QueueMemory, error) {
	return &softQueues{b}, nil
}

// CreateQueue implements nic.NIC.
func (n *residentNIC) CreateQueue(c nic.QueueConfig) (nic.Queue, error) {
	n.numbers++
	q := &residentQueue{number: 0x100 + n.numbers}
	at := func(p nic.Position) uint64 {
		m, ok := p.Memory.(*softQueues)
		if !ok || p.Offset >= m.Bytes {
			return 0 // which the device refuses
		}
		if p == c.Doorbell && m.Host != nil {
			q.doorbell = (*uint64)(unsafe.Pointer(&m.Host[p.Offset]))
		}
		return m.Address + p.Offset
	}
	made, err := n.device.CreateQueue(gpu.QueueConfig{Number: q.number, WQ: at(c.WQ), Depth: c.Depth, Record: at(c.Record), Doorbell: at(c.Doorbell),
		Producer: hca.ProducerDoorbell, CQ: at(c.CQ), CQForm: hca.CQCollapsed, CQDepth: c.Depth, CQNumber: q.number})
	if err != nil {
		return nil, err
	}
	q.nic, q.queue = n, made
	return q, nil
}

// Close implements nic.NIC.
func (n *residentNIC) Close() error { return n.device.Close() }

// residentQueue is a queue that a kernel serves.
type residentQueue struct {
	nic      *residentNIC
	queue    *gpu.Queue
	number   uint32
	doorbell *uint64 // nil: in memory that the processor does not see
}

func (q *residentQueue) Number() uint32   { return q.number }
func (q *residentQueue) Register() uint64 { return 0 }

// Ring implements nic.Queue. Only queues in host memory are rung by the host.
func (q *residentQueue) Ring(b [8]byte) {
	if q.doorbell != nil {
		atomic.StoreUint64(q.doorbell, binary.NativeEndian.Uint64(b[:]))
	}
}

func (q *residentQueue) Endpoint() nic.Endpoint {
	return nic.Endpoint{Number: q.number, Link: nic.Software, MTU: 4096}
}

// Connect implements nic.Queue.
func (q *residentQueue) Connect(_ context.Context, remote nic.Endpoint) error {
	if remote.Link != nic.Software {
		return errors.New("the other side is not a software HCA")
	}
	return q.queue.Connect(q.nic.space(remote.Peer))
}

func (q *residentQueue) Close() error { return q.queue.Close() }
