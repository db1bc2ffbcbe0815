package ibgda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// soft is the software HCA on the host as a provider. It executes queues in host memory. Memory of a GPU it reaches by
// the platform's copies; atomic operations on such memory are atomic among all its NICs, as those of an RDMA device
// are, not to the instructions of kernels.
type soft struct {
	nics     int
	platform Platform
	fabric   hca.Fabric
	retry    time.Duration // how long another HCA may take to answer
	log      func(string, ...any)
	mu       sync.Mutex // of atomic operations on device memory
	close    func() error
}

// fabrics are those of this process, by where they listen: PEs of one process share one and then need no connection.
var fabrics = struct {
	mu   sync.Mutex
	open map[hca.TCPConfig]*fabric
}{open: map[hca.TCPConfig]*fabric{}}

type fabric struct {
	*hca.TCP
	users int
}

// acquire finds or makes the fabric of a configuration, and what gives it back.
func acquire(c hca.TCPConfig) (*fabric, func() error, error) {
	fabrics.mu.Lock()
	defer fabrics.mu.Unlock()
	f := fabrics.open[c]
	if f == nil {
		tcp, err := hca.NewTCP(c)
		if err != nil {
			return nil, nil, err
		}
		f = &fabric{TCP: tcp}
		fabrics.open[c] = f
	}
	f.users++
	return f, func() error {
		fabrics.mu.Lock()
		defer fabrics.mu.Unlock()
		if f.users--; f.users > 0 {
			return nil
		}
		delete(fabrics.open, c)
		return f.Close()
	}, nil
}

func newSoft(c *Config) (*soft, error) {
	where := hca.TCPConfig{Listen: c.Listen, Advertise: c.Advertise}
	if where.Listen == "" && c.OneHost {
		where.Listen = "127.0.0.1:0"
	}
	f, release, err := acquire(where)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("ibgda: the software HCA cannot listen at %s, as LSHMEM_HCA_LISTEN says: somebody else does; "+
			"the processes of a machine need a port each: set LSHMEM_HCA_LISTEN with port 0, which takes a free one: %w", where.Listen, err)
	case err != nil && c.Listen != "":
		return nil, fmt.Errorf("ibgda: the software HCA cannot listen at %s, as LSHMEM_HCA_LISTEN says: %w", where.Listen, err)
	case err != nil:
		return nil, fmt.Errorf("ibgda: the software HCA's network (LSHMEM_HCA_LISTEN): %w", err)
	}
	return &soft{nics: max(1, c.MaxNICs), platform: c.Platform, fabric: f.TCP, log: c.Log, close: release,
		// As long as a NIC would try, but not so short that a busy host counts as gone.
		retry: max(time.Second, time.Duration(c.Retries)*(4096*time.Nanosecond<<c.AckTimeout))}, nil
}

// Name implements nic.Provider.
func (s *soft) Name() string { return Host }

// NICs implements nic.Provider: as many as are wanted.
func (s *soft) NICs() ([]nic.Info, error) {
	var list []nic.Info
	for i := range s.nics {
		list = append(list, nic.Info{Name: fmt.Sprintf("soft%d", i), Port: 1, NUMA: -1, Up: true, Link: nic.Software, MTU: 4096})
	}
	return list, nil
}

// Open implements nic.Provider.
func (s *soft) Open(info nic.Info) (nic.NIC, error) {
	d, err := hca.New(hca.Config{Fabric: s.fabric, Retry: s.retry, Logf: s.log})
	if err != nil {
		return nil, err
	}
	return &softNIC{provider: s, info: info, device: d}, nil
}

// Close implements nic.Provider.
func (s *soft) Close() error { return s.close() }

// softNIC is one software HCA.
type softNIC struct {
	provider *soft
	info     nic.Info
	device   *hca.Device
	keys     atomic.Uint32
	numbers  atomic.Uint32
}

func (n *softNIC) Info() nic.Info { return n.info }

func (n *softNIC) Capabilities() nic.Capabilities {
	return nic.Capabilities{MaxDepth: layout.MaxDepth, MaxMessage: 1 << 30, Atomics8: true, MaskedAtomics: true, Collapsed: true,
		HostQueues: true, MemoryDoorbell: true, Ordered: true}
}

// Register implements nic.NIC.
func (n *softNIC) Register(b nic.Buffer, access nic.Access) (nic.Memory, error) {
	var memory hca.Memory = &deviceMemory{platform: n.provider.platform, mu: &n.provider.mu}
	if b.Host != nil {
		var err error
		if memory, err = n.hostMemory(b); err != nil {
			return nil, err
		}
	}
	key := 0x1000 + n.keys.Add(1)
	// The numbers of accesses are those of verbs on both sides; the HCA knows no others.
	if err := n.device.RegisterMemory(key, b.Address, b.Bytes, hca.Access(access&nic.Full), memory); err != nil {
		return nil, err
	}
	return &softMemory{device: n.device, key: key}, nil
}

// hostMemory is memory of the host at any alignment: the HCA wants words aligned, which an aligned superset gives.
func (n *softNIC) hostMemory(b nic.Buffer) (hca.Memory, error) {
	start := b.Address &^ 7
	return hca.NewHostMemory(start, hostBytes(addressOf(b.Host)-(b.Address-start), b.Bytes+b.Address-start))
}

// RegisterQueues implements nic.NIC.
func (n *softNIC) RegisterQueues(b nic.Buffer) (nic.QueueMemory, error) {
	if b.Host == nil {
		return nil, fmt.Errorf("queues in GPU memory: %w: the software HCA on the host cannot see them", nic.ErrNotSupported)
	}
	return &softQueues{b}, nil
}

// CreateQueue implements nic.NIC.
func (n *softNIC) CreateQueue(c nic.QueueConfig) (nic.Queue, error) {
	var errs []error
	bytes := func(what string, p nic.Position, size uint64) []byte {
		m, ok := p.Memory.(*softQueues)
		if !ok || p.Offset+size > uint64(len(m.Host)) || p.Offset+size < p.Offset {
			errs = append(errs, fmt.Errorf("%s: %d bytes at offset %#x are not in the memory given", what, size, p.Offset))
			return nil
		}
		return m.Host[p.Offset : p.Offset+size : p.Offset+size]
	}
	queue := uint64(c.Depth) * mlx5.BlockBytes
	wq, cq := bytes("work queue", c.WQ, queue), bytes("completion queue", c.CQ, mlx5.BlockBytes)
	record, doorbell := bytes("record", c.Record, nic.RecordBytes), bytes("doorbell", c.Doorbell, 8)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	number := 0x100 + n.numbers.Add(1)
	q, err := n.device.CreateQueue(hca.QueueConfig{Number: number, WQ: wq, Record: record[:8], Doorbell: doorbell,
		Producer: hca.ProducerDoorbell, CQ: cq, CQForm: hca.CQCollapsed, CQNumber: number, CQDepth: int(c.Depth)})
	if err != nil {
		return nil, err
	}
	endpoint, err := q.Endpoint().MarshalBinary()
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return &softQueue{Queue: q, endpoint: nic.Endpoint{Number: number, Link: nic.Software, MTU: 4096, Software: endpoint}}, nil
}

// Close implements nic.NIC.
func (n *softNIC) Close() error { return n.device.Close() }

// softQueues is memory of the host.
type softQueues struct{ nic.Buffer }

func (*softQueues) Close() error { return nil }

// softMemory is memory that is registered with a software HCA, on the host or on the GPU.
type softMemory struct {
	device interface{ DeregisterMemory(key uint32) error }
	key    uint32
}

func (m *softMemory) LocalKey() uint32  { return m.key }
func (m *softMemory) RemoteKey() uint32 { return m.key }
func (m *softMemory) Close() error      { return m.device.DeregisterMemory(m.key) }

// softQueue is a queue pair of the software HCA.
type softQueue struct {
	*hca.Queue
	endpoint nic.Endpoint
}

func (q *softQueue) Register() uint64       { return 0 }
func (q *softQueue) Ring(b [8]byte)         { q.Queue.Ring(mlx5.ParseDoorbell(&b)) }
func (q *softQueue) Endpoint() nic.Endpoint { return q.endpoint }

func (q *softQueue) Connect(ctx context.Context, remote nic.Endpoint) error {
	var e hca.Endpoint
	if err := e.UnmarshalBinary(remote.Software); err != nil {
		return err
	}
	if e.Queue != remote.Number {
		return fmt.Errorf("%w: queue %#x, said to be %#x", hca.ErrEndpoint, e.Queue, remote.Number)
	}
	return q.Queue.Connect(ctx, e)
}

// deviceMemory is memory of a GPU.
type deviceMemory struct {
	platform Platform
	mu       *sync.Mutex
}

func (m *deviceMemory) ReadAt(p []byte, address uint64) error  { return m.platform.Read(address, p) }
func (m *deviceMemory) WriteAt(p []byte, address uint64) error { return m.platform.Write(address, p) }

func (m *deviceMemory) Atomic(address uint64, op *mlx5.Atomic) (uint64, error) {
	if op.Bytes != 4 && op.Bytes != 8 || address%uint64(op.Bytes) != 0 {
		return 0, fmt.Errorf("an atomic operation on %d bytes at %#x", op.Bytes, address)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var word [8]byte // little-endian, as all devices are
	if err := m.platform.Read(address, word[:op.Bytes]); err != nil {
		return 0, err
	}
	old := littleEndian(word[:])
	putLittleEndian(word[:], op.Apply(old))
	return old, m.platform.Write(address, word[:op.Bytes])
}
