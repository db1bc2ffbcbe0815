// Package ibgda is the transport whose work requests the device posts itself: RC queue pairs in the mlx5 layout, in
// memory that the device writes, executed by a NIC (shmem/verbs), by the software HCA on the host or by the one on the
// GPU (shmem/hca).
//
//	t, err := ibgda.Open(ibgda.Config{Settings: ibgda.Defaults(), PE: pe, PEs: pes, ...})
//	if errors.Is(err, nic.ErrNoDevice) { … } // nothing to reach others with
//
// After that it is a transport.Transport, used in the order which that package states.
//
// # Resources
//
// A PE has QueuesPerPE queue pairs to every PE that it reaches this way, itself included where no other transport
// serves it. Queue i to a PE is queues[i*PEs + pe] and is on NIC i modulo the number of NICs, on both sides. Each has a
// collapsed completion queue. Work queues, completion queues, records and internal buffers are one block of memory per
// kind and NIC.
//
// # Who posts
//
// Where the device cannot reach the doorbell, or is told not to, it raises a word in host memory and a thread of the
// host (package proxy) writes the record and rings. Then the transport is named proxy; nothing else differs.
//
// # Keys
//
// The tables of keys have room for the largest heap from the start, in device memory. The first entries of the piece of
// heap at offset 0 are in the State as well. That piece must stay for the life of the PE, as the runtime's own does,
// since a captured graph has the State of its time.
package ibgda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/transport/proxy"
)

const (
	// maxLocals is the number of buffers outside of the heap that can be registered at once.
	maxLocals = 256
	// recordStride and wordStride keep what different queues write apart.
	recordStride, wordStride = 64, 64
	// connectTime bounds Connect.
	connectTime = 30 * time.Second
)

// Config is what a PE's transport is made from.
type Config struct {
	Settings
	PE, PEs int
	// HeapBase and HeapBytes are the address space of the PE's heap. All PEs have the same HeapBytes.
	HeapBase, HeapBytes uint64
	// KeyShift is log2 of the bytes of heap that one entry of the key tables covers.
	KeyShift uint
	// Platform is the memory of the PE's device. If it is an io.Closer, Close of an open transport closes it.
	Platform Platform
	// Place is where the PE's device is, and Turn the PE's number among those of this machine, to choose NICs by.
	Place Place
	Turn  int
	// OneHost: all PEs are on this machine and in one network namespace, so that nobody else needs to reach a software
	// HCA.
	OneHost bool
	// Provider overrides Settings.NIC. The transport does not close it.
	Provider nic.Provider
	// Peer is where the heap of another PE is mapped in this process, 0: nowhere. Only the GPU's HCA asks, when it
	// connects.
	Peer func(pe int) uint64
	// Log reports decisions, such as who posts; nil: nobody wants to know.
	Log func(format string, args ...any)
}

// Transport is the transport of one PE.
type Transport struct {
	c        Config
	provider nic.Provider
	own      bool // the provider is to be closed
	nics     []*port
	handler  Handler // GPU or Host
	where    Where   // GPU or Host
	deadline time.Duration

	used      []transport.Capability
	bases     []uint64 // of heaps, by PE, in their own processes
	queues    []*queue // by i*PEs + pe; nil: none
	words     nic.Buffer
	poster    *proxy.Poster
	tables    tables
	pieces    map[int]*piece // by index
	locals    map[uint64]*local
	registers map[uint64]uint64 // pages mapped for the device, by their address in this process
	closed    bool
}

// port is a NIC and the memory for its queues.
type port struct {
	nic.NIC
	caps   nic.Capabilities
	blocks [kinds]block
}

// Kinds of blocks.
const (
	blockWQ = iota
	blockCQ
	blockRecord
	blockDoorbell
	blockIbuf
	kinds
)

// block is one kind of memory of a NIC's queues.
type block struct {
	nic.Buffer
	queue  nic.QueueMemory // of all kinds but blockIbuf
	memory nic.Memory      // of blockIbuf
	stride uint64
}

// queue is one queue pair as the host keeps it.
type queue struct {
	nic.Queue
	device layout.Queue
}

// piece is a registered piece of the heap.
type piece struct {
	transport.Chunk
	memory   []nic.Memory // by NIC
	remote   []given
	attached bool
}

// given is what a NIC was told about another PE's memory.
type given struct {
	nic.Mapper
	peer int
	key  uint32
}

// Close takes it back.
func (g given) Close() error { return g.RemoveRemote(g.peer, g.key) }

// local is a registered buffer outside of the heap.
type local struct {
	slot   int
	memory []nic.Memory
}

var (
	_ transport.Transport      = (*Transport)(nil)
	_ transport.LocalRegistrar = (*Transport)(nil)
)

// Open finds and opens the NICs and decides who posts. Without any to use, the error is nic.ErrNoDevice.
func Open(c Config) (*Transport, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.PEs < 1 || c.PE < 0 || c.PE >= c.PEs || c.KeyShift < 12 || c.KeyShift > 48 || c.HeapBytes == 0 || c.Platform == nil {
		return nil, fmt.Errorf("ibgda: PE %d of %d with a heap of %#x bytes in entries of 2^%d: not a configuration", c.PE, c.PEs,
			c.HeapBytes, c.KeyShift)
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	t := &Transport{c: c, pieces: map[int]*piece{}, locals: map[uint64]*local{}, registers: map[uint64]uint64{}, deadline: connectTime}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Transport) open() error {
	c := &t.c
	if t.provider = c.Provider; t.provider == nil {
		p, err := newProvider(c)
		if err != nil {
			return err
		}
		t.provider, t.own = p, true
	}
	infos, err := t.provider.NICs()
	if err != nil {
		return fmt.Errorf("ibgda: %w", err)
	}
	chosen, err := choose(&c.Settings, infos, c.Place, c.Turn)
	if err != nil {
		return fmt.Errorf("ibgda: %w", err)
	}
	for _, info := range chosen {
		n, err := t.provider.Open(info)
		if err != nil {
			return fmt.Errorf("ibgda: open %s:%d: %w", info.Name, info.Port, err)
		}
		t.nics = append(t.nics, &port{NIC: n, caps: n.Capabilities()})
		if err := suits(&c.Settings, n); err != nil {
			return fmt.Errorf("ibgda: %s:%d: %w (LSHMEM_NIC=host does without it, LSHMEM_HCA_LIST names others)", info.Name, info.Port, err)
		}
	}
	return t.decide()
}

// suits says whether a NIC can do what the device's protocol needs.
func suits(s *Settings, n nic.NIC) error {
	c := n.Capabilities()
	switch {
	case c.MaxDepth < uint32(s.Depth):
		return fmt.Errorf("%w: send queues have at most %d blocks, LSHMEM_QP_DEPTH is %d", nic.ErrNotSupported, c.MaxDepth, s.Depth)
	case !c.Atomics8 || !c.MaskedAtomics:
		return fmt.Errorf("%w: masked atomic operations on 4 and 8 bytes", nic.ErrNotSupported)
	case !c.Collapsed:
		return fmt.Errorf("%w: collapsed completion queues that ignore overruns", nic.ErrNotSupported)
	}
	return nil
}

// decide chooses who posts and where queues lie.
func (t *Transport) decide() error {
	gpu, device, host := true, true, true
	var why error
	for _, n := range t.nics {
		device, host = device && n.caps.DeviceQueues, host && n.caps.HostQueues
		if n.caps.MemoryDoorbell || t.c.Handler == HandlerHost {
			continue
		}
		if err := t.mapRegister(n.caps.Register); err != nil {
			gpu, why = false, fmt.Errorf("the device cannot map the doorbell of %s: %w", n.Info().Name, err)
		}
	}
	t.handler = t.c.Handler
	switch {
	case t.handler == HandlerGPU && !gpu:
		return fmt.Errorf("ibgda: LSHMEM_NIC_HANDLER is gpu, but %w", why)
	case t.handler == HandlerAuto && gpu:
		t.handler = HandlerGPU
	case t.handler == HandlerAuto:
		t.handler = HandlerHost
		t.c.Log("ibgda: a host thread posts: %v", why)
	}
	t.where = t.c.Queues
	if t.where == QueuesAuto {
		t.where = QueuesHost
		if t.handler == HandlerGPU && device || !host {
			t.where = QueuesGPU
		}
	}
	switch {
	case t.where == QueuesGPU && !device:
		return fmt.Errorf("ibgda: LSHMEM_QUEUE_MEMORY is gpumem: %w", nic.ErrNotSupported)
	case t.where == QueuesHost && !host:
		return fmt.Errorf("ibgda: LSHMEM_QUEUE_MEMORY is hostmem: %w", nic.ErrNotSupported)
	case t.where == QueuesGPU && t.handler == HandlerHost:
		return fmt.Errorf("ibgda: a host thread cannot write doorbell records in GPU memory: set LSHMEM_QUEUE_MEMORY=hostmem: %w",
			nic.ErrNotSupported)
	}
	return nil
}

// mapRegister maps a page of registers for the device, once.
func (t *Transport) mapRegister(register uint64) error {
	if register == 0 {
		return fmt.Errorf("it has no register page: %w", nic.ErrNotSupported)
	}
	page := register &^ (nic.RegisterBytes - 1)
	if t.registers[page] != 0 {
		return nil
	}
	address, err := t.c.Platform.MapRegister(page, nic.RegisterBytes)
	if err == nil {
		t.registers[page] = address
	}
	return err
}

// Name is ibgda where the device posts, proxy where a thread of the host does.
func (t *Transport) Name() string {
	if t.handler == HandlerHost {
		return "proxy"
	}
	return "ibgda"
}

// NICs are the ports in use.
func (t *Transport) NICs() []nic.Info {
	var infos []nic.Info
	for _, n := range t.nics {
		infos = append(infos, n.Info())
	}
	return infos
}

// Kind is the kind of NIC: mlx5, host or gpu.
func (t *Transport) Kind() string { return t.provider.Name() }

// Capability implements transport.Transport.
func (t *Transport) Capability(self, peer transport.PeerInfo) transport.Capability {
	c := transport.Write | transport.Read | transport.Atomics
	if t.handler == HandlerGPU {
		c |= transport.GPUInitiated
	}
	if t.provider.Name() == GPU && (self.Host != peer.Host || !self.HasGPU() || !peer.HasGPU()) {
		return 0
	}
	return c
}

// Endpoints implements transport.Transport: it makes the queue pairs.
func (t *Transport) Endpoints(peers []transport.PeerInfo, used []transport.Capability) ([][]byte, error) {
	if len(used) != t.c.PEs || t.queues != nil {
		return nil, fmt.Errorf("ibgda: endpoints for %d of %d PEs: called twice, or for another job", len(used), t.c.PEs)
	}
	t.used = slices.Clone(used)
	t.queues = make([]*queue, t.c.QueuesPerPE*t.c.PEs)
	reached := 0
	for _, u := range used {
		if u != 0 {
			reached++
		}
	}
	if err := t.allocate(reached); err != nil {
		return nil, err
	}
	hellos := make([]*hello, t.c.PEs)
	next := make([]uint64, len(t.nics)) // queues made, by NIC
	for i := range t.c.QueuesPerPE {
		for pe := range t.c.PEs {
			if used[pe] == 0 {
				continue
			}
			d := i % len(t.nics)
			q, err := t.create(i, pe, d, next[d])
			if err != nil {
				return nil, fmt.Errorf("ibgda: queue pair %d to PE %d on %s: %w", i, pe, t.nics[d].Info().Name, err)
			}
			t.queues[i*t.c.PEs+pe] = q
			next[d]++
			if hellos[pe] == nil {
				hellos[pe] = &hello{Provider: t.provider.Name(), HeapBase: t.c.HeapBase, NICs: len(t.nics), KeyShift: uint32(t.c.KeyShift)}
			}
			hellos[pe].Queues = append(hellos[pe].Queues, q.Endpoint())
		}
	}
	blobs := make([][]byte, t.c.PEs)
	for pe, h := range hellos {
		if h != nil {
			blobs[pe] = h.append(nil)
		}
	}
	return blobs, nil
}

// allocate makes the blocks of all NICs, the words of the host thread, and the device's tables.
func (t *Transport) allocate(reached int) error {
	c := &t.c
	if err := t.tables.allocate(c, len(t.nics)); err != nil {
		return err
	}
	if t.handler == HandlerHost && reached > 0 {
		var err error
		if t.words, err = c.Platform.AllocateHost(uint64(len(t.queues)) * wordStride); err != nil {
			return fmt.Errorf("ibgda: %d words to post by: %w", len(t.queues), err)
		}
	}
	for d, n := range t.nics {
		count := uint64((c.QueuesPerPE-d+len(t.nics)-1)/len(t.nics)) * uint64(reached)
		if count == 0 {
			continue
		}
		strides := [kinds]uint64{blockWQ: uint64(c.Depth) * mlx5.BlockBytes, blockCQ: uint64(c.Depth) * mlx5.BlockBytes,
			blockRecord: recordStride, blockIbuf: uint64(1+c.FetchSlots) * layout.IbufSlot}
		if n.caps.MemoryDoorbell {
			strides[blockDoorbell] = wordStride
		}
		for kind, stride := range strides {
			if stride == 0 {
				continue
			}
			if err := n.allocate(t, kind, stride, count*stride); err != nil {
				return fmt.Errorf("ibgda: %s of %d queue pairs on %s: %w", blockNames[kind], count, n.Info().Name, err)
			}
		}
	}
	return nil
}

var blockNames = [kinds]string{"work queues", "completion queues", "doorbell records", "doorbells", "internal buffers"}

// allocate makes one block.
func (n *port) allocate(t *Transport, kind int, stride, bytes uint64) error {
	b := &n.blocks[kind]
	p := t.c.Platform
	allocate := p.AllocateDevice
	if t.where == QueuesHost && kind != blockIbuf {
		allocate = p.AllocateHost
	}
	buffer, err := allocate(bytes)
	if err != nil {
		return err
	}
	b.Buffer, b.stride = buffer, stride
	if kind == blockCQ {
		// A counter of -1: nothing completed yet.
		if err := t.fill(b.Buffer, 0xff); err != nil {
			return err
		}
	}
	return t.exported(b.Buffer, func(buffer nic.Buffer) (err error) {
		if kind == blockIbuf {
			b.memory, err = n.Register(buffer, nic.LocalWrite)
		} else {
			b.queue, err = n.RegisterQueues(buffer)
		}
		return err
	})
}

// fill sets every byte of a buffer.
func (t *Transport) fill(b nic.Buffer, value byte) error {
	const step = 1 << 20
	pattern := make([]byte, min(b.Bytes, step))
	for i := range pattern {
		pattern[i] = value
	}
	for at := uint64(0); at < b.Bytes; at += step {
		if err := t.c.Platform.Write(b.Address+at, pattern[:min(step, b.Bytes-at)]); err != nil {
			return err
		}
	}
	return nil
}

// exported calls f with a buffer and, for device memory, its dma-buf, which it closes afterwards.
func (t *Transport) exported(b nic.Buffer, f func(nic.Buffer) error) error {
	b.FD = -1
	if b.Host == nil && !t.c.NoDMABuf && t.provider.Name() == MLX5 {
		exported, err := t.c.Platform.Export(b.Address, b.Bytes)
		if err != nil {
			return err
		}
		b.FD, b.Offset = exported.FD, exported.Offset
		if b.FD >= 0 {
			defer closeFD(b.FD)
		}
	}
	return f(b)
}

// create makes queue pair i to a PE, the k-th on NIC d.
func (t *Transport) create(i, pe, d int, k uint64) (*queue, error) {
	n := t.nics[d]
	place := func(kind int) nic.Place {
		return nic.Place{Memory: n.blocks[kind].queue, Offset: k * n.blocks[kind].stride}
	}
	address := func(kind int) uint64 { return n.blocks[kind].Address + k*n.blocks[kind].stride }
	created, err := n.CreateQueue(nic.QueueConfig{Depth: uint32(t.c.Depth), WQ: place(blockWQ), CQ: place(blockCQ),
		Record: place(blockRecord), Doorbell: place(blockDoorbell)})
	if err != nil {
		return nil, err
	}
	q := &queue{Queue: created, device: layout.Queue{
		WQ: address(blockWQ), CQ: address(blockCQ), Record: address(blockRecord) + nic.RecordSend, Ibuf: address(blockIbuf),
		Number: created.Number(), Depth: uint32(t.c.Depth), Batch: uint32(t.c.Batch), IbufSlots: uint32(t.c.FetchSlots),
		IbufKey: networkOrder(n.blocks[blockIbuf].memory.LocalKey()), PE: uint32(pe), NIC: uint32(d),
	}}
	if q.device.Doorbell, err = t.doorbell(created, i*t.c.PEs+pe, n, address(blockDoorbell)); err != nil {
		return nil, errors.Join(err, created.Close())
	}
	if t.where == QueuesHost {
		q.device.Flags |= layout.QueueHostMemory
	}
	if t.handler == HandlerHost {
		q.device.Flags |= layout.QueueHostPosts
	}
	if n.caps.DataDirect || !n.caps.Ordered && !t.c.Platform.WritesOrdered() {
		q.device.Flags |= layout.QueueFlush
	}
	return q, nil
}

// doorbell is what the device writes to post: a word for the host thread, memory, or a mapped register.
func (t *Transport) doorbell(q nic.Queue, index int, n *port, memory uint64) (uint64, error) {
	if t.handler == HandlerHost {
		return t.words.Address + uint64(index)*wordStride, nil
	}
	if n.caps.MemoryDoorbell {
		return memory, nil
	}
	register := q.Register()
	if err := t.mapRegister(register); err != nil {
		return 0, fmt.Errorf("map the doorbell for the device: %w", err)
	}
	page := register &^ (nic.RegisterBytes - 1)
	return t.registers[page] + register - page, nil
}

// networkOrder is a key as the device copies it into a work request.
func networkOrder(key uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], key)
	return binary.NativeEndian.Uint32(b[:])
}

// Connect implements transport.Transport.
func (t *Transport) Connect(from [][]byte) error {
	if len(from) != t.c.PEs || t.queues == nil {
		return fmt.Errorf("ibgda: connect with %d of %d PEs: before Endpoints, or another job", len(from), t.c.PEs)
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.deadline)
	defer cancel()
	bases := make([]uint64, t.c.PEs)
	t.bases = bases
	for pe := range t.c.PEs {
		if t.used[pe] == 0 {
			continue
		}
		if len(from[pe]) == 0 {
			return fmt.Errorf("ibgda: PE %d reaches PE %d by this transport, but not the other way round", t.c.PE, pe)
		}
		h, err := parseHello(from[pe])
		if err == nil {
			err = t.matches(h)
		}
		if err != nil {
			return fmt.Errorf("ibgda: endpoints of PE %d: %w", pe, err)
		}
		bases[pe] = h.HeapBase
		for i, e := range h.Queues {
			e.Peer = pe
			q := t.queues[i*t.c.PEs+pe]
			if err := q.Connect(ctx, e); err != nil {
				return fmt.Errorf("ibgda: connect queue pair %d (%#x) to %#x of PE %d: %w", i, q.Number(), e.Number, pe, err)
			}
		}
	}
	if err := t.tables.publish(t.queues, bases); err != nil {
		return err
	}
	return t.post()
}

// matches says whether the other side is set up as this one is.
func (t *Transport) matches(h *hello) error {
	switch {
	case h.Provider != t.provider.Name():
		return fmt.Errorf("it uses %q, this PE %q: set LSHMEM_NIC alike", h.Provider, t.provider.Name())
	case h.NICs != len(t.nics):
		return fmt.Errorf("it uses %d NICs, this PE %d: set LSHMEM_MAX_NICS or LSHMEM_HCA_LIST alike", h.NICs, len(t.nics))
	case len(h.Queues) != t.c.QueuesPerPE:
		return fmt.Errorf("it has %d queue pairs per PE, this PE %d: set LSHMEM_QP_PER_PE alike", len(h.Queues), t.c.QueuesPerPE)
	case h.KeyShift != uint32(t.c.KeyShift):
		return fmt.Errorf("its key entries cover 2^%d bytes, here 2^%d: set the heap's granularity alike", h.KeyShift, t.c.KeyShift)
	}
	return nil
}

// post starts the host thread.
func (t *Transport) post() error {
	if t.handler != HandlerHost {
		return nil
	}
	var words []proxy.Word
	for index, q := range t.queues {
		if q == nil {
			continue
		}
		record := &t.nics[q.device.NIC].blocks[blockRecord]
		at := q.device.Record - record.Address
		words = append(words, proxy.Word{Posted: t.words.Host[index*wordStride : index*wordStride+8], Record: record.Host[at : at+4],
			Number: q.Number(), Ring: q.Ring})
	}
	if len(words) == 0 {
		return nil
	}
	var err error
	t.poster, err = proxy.Start(words)
	return err
}

// Register implements transport.Transport.
func (t *Transport) Register(c transport.Chunk) ([]byte, error) {
	entry := uint64(1) << t.c.KeyShift
	// The last entry may be a part: its key ends where the piece does. It is this piece's alone, since pieces begin with an
	// entry.
	if c.Index < 0 || c.Offset != uint64(c.Index)<<t.c.KeyShift || c.Bytes == 0 || c.Offset+c.Bytes < c.Offset ||
		c.Offset+c.Bytes > t.tables.entries<<t.c.KeyShift {
		return nil, fmt.Errorf("ibgda: register piece %d of %#x bytes at offset %#x: it does not begin with that entry of the key "+
			"table, or ends behind the table's %d entries of %#x bytes", c.Index, c.Bytes, c.Offset, t.tables.entries, entry)
	}
	for _, p := range t.pieces {
		if c.Offset < p.Offset+p.Bytes && p.Offset < c.Offset+c.Bytes {
			return nil, fmt.Errorf("ibgda: register piece %d at offset %#x: piece %d is there", c.Index, c.Offset, p.Index)
		}
	}
	b := nic.Buffer{Address: c.Address, Bytes: c.Bytes}
	if c.Kind == transport.Host {
		b.Host = hostBytes(c.Address, c.Bytes)
	}
	memory, err := t.registerAll(b, t.c.access())
	if err != nil {
		return nil, fmt.Errorf("ibgda: register piece %d of %#x bytes at %#x: %w", c.Index, c.Bytes, c.Address, err)
	}
	t.pieces[c.Index] = &piece{Chunk: c, memory: memory}
	o := offer{Offset: c.Offset, Bytes: c.Bytes}
	for _, m := range memory {
		o.Keys = append(o.Keys, m.RemoteKey())
	}
	return o.append(nil), nil
}

// registerAll registers memory with every NIC, or with none.
func (t *Transport) registerAll(b nic.Buffer, access nic.Access) (memory []nic.Memory, err error) {
	err = t.exported(b, func(b nic.Buffer) error {
		for _, n := range t.nics {
			m, err := n.Register(b, access)
			if err != nil {
				return fmt.Errorf("%s: %w", n.Info().Name, err)
			}
			memory = append(memory, m)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(memory))
	}
	return memory, nil
}

func closeAll[T interface{ Close() error }](list []T) error {
	var errs []error
	for _, x := range slices.Backward(list) {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}

// Attach implements transport.Transport.
func (t *Transport) Attach(index int, from [][]byte) error {
	p := t.pieces[index]
	if p == nil || p.attached || len(from) != t.c.PEs {
		return fmt.Errorf("ibgda: attach piece %d of %d PEs: not registered, or attached", index, len(from))
	}
	keys := make([][]uint32, t.c.PEs)
	for pe := range t.c.PEs {
		if t.used[pe] == 0 {
			continue
		}
		o, err := parseOffer(from[pe])
		if err == nil && (o.Offset != p.Offset || o.Bytes != p.Bytes || len(o.Keys) != len(t.nics)) {
			err = fmt.Errorf("%w: %#x bytes at %#x on %d NICs, expected %#x at %#x on %d", transport.ErrBlob, o.Bytes, o.Offset, len(o.Keys),
				p.Bytes, p.Offset, len(t.nics))
		}
		if err != nil {
			return fmt.Errorf("ibgda: piece %d of PE %d: %w", index, pe, err)
		}
		keys[pe] = o.Keys
	}
	err := t.give(p, keys)
	if err == nil {
		err = t.tables.set(p.Offset, p.Bytes, p.memory, keys)
	}
	if err != nil {
		remote := p.remote
		p.remote = nil
		return errors.Join(fmt.Errorf("ibgda: keys of piece %d: %w", index, err), t.tables.clear(p.Offset, p.Bytes), closeAll(remote))
	}
	p.attached = true
	return nil
}

// give tells NICs that want to know it what the other PEs registered.
func (t *Transport) give(p *piece, keys [][]uint32) error {
	for d, n := range t.nics {
		m, ok := n.NIC.(nic.Mapper)
		if !ok {
			continue
		}
		for pe, k := range keys {
			if len(k) == 0 || pe == t.c.PE {
				continue
			}
			mapped := uint64(0)
			if t.c.Peer != nil {
				mapped = t.c.Peer(pe)
			}
			if mapped == 0 {
				return fmt.Errorf("the memory of PE %d is not mapped here, which LSHMEM_NIC=%s needs: %w", pe, t.provider.Name(), nic.ErrNotSupported)
			}
			r := nic.Remote{Peer: pe, Key: k[d], Start: t.bases[pe] + p.Offset, Bytes: p.Bytes, Mapped: mapped + p.Offset}
			if err := m.SetRemote(r); err != nil {
				return fmt.Errorf("PE %d: %w", pe, err)
			}
			p.remote = append(p.remote, given{m, pe, k[d]})
		}
	}
	return nil
}

// Detach implements transport.Transport. A piece that Register refused, or that is detached already, is nothing.
func (t *Transport) Detach(index int) error {
	p := t.pieces[index]
	if p == nil {
		return nil
	}
	delete(t.pieces, index)
	var err error
	if p.attached {
		err = t.tables.clear(p.Offset, p.Bytes)
	}
	if err = errors.Join(err, closeAll(p.remote), closeAll(p.memory)); err != nil {
		return fmt.Errorf("ibgda: detach piece %d: %w", index, err)
	}
	return nil
}

// RegisterLocal implements transport.LocalRegistrar.
func (t *Transport) RegisterLocal(address, bytes uint64) (uint32, error) {
	end, carry := bits.Add64(address, bytes, 0)
	if bytes == 0 || carry != 0 || t.tables.entries == 0 {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: not a buffer", bytes, address)
	}
	taken := make([]bool, maxLocals)
	for start, l := range t.locals {
		taken[l.slot] = true
		if e := t.tables.locals[l.slot].End; address < e && start < end {
			return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %#x to %#x is registered", bytes, address, start, e)
		}
	}
	slot := slices.Index(taken, false)
	if slot < 0 {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %d buffers are registered, the most there can be", bytes, address, maxLocals)
	}
	buffer, err := t.c.Platform.Export(address, bytes)
	if err != nil {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err)
	}
	if buffer.FD >= 0 {
		closeFD(buffer.FD) // registerAll makes another
	}
	memory, err := t.registerAll(buffer, nic.LocalWrite)
	if err != nil {
		return 0, fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err)
	}
	entry := layout.Local{Start: address, End: end}
	for d, m := range memory {
		entry.Keys[d] = networkOrder(m.LocalKey())
	}
	if err := t.tables.setLocal(slot, entry); err != nil {
		return 0, errors.Join(fmt.Errorf("ibgda: register %d bytes at %#x: %w", bytes, address, err), closeAll(memory))
	}
	t.locals[address] = &local{slot: slot, memory: memory}
	return t.tables.localCount, nil
}

// UnregisterLocal implements transport.LocalRegistrar. Operations on the buffer must be complete.
func (t *Transport) UnregisterLocal(address uint64) error {
	l := t.locals[address]
	if l == nil {
		return fmt.Errorf("ibgda: no buffer is registered at %#x", address)
	}
	delete(t.locals, address)
	if err := errors.Join(t.tables.setLocal(l.slot, layout.Local{}), closeAll(l.memory)); err != nil {
		return fmt.Errorf("ibgda: unregister the buffer at %#x: %w", address, err)
	}
	return nil
}

// State implements transport.Transport.
func (t *Transport) State(s *layout.State) error {
	if t.tables.entries == 0 {
		return errors.New("ibgda: state before Endpoints")
	}
	s.QueuesPerPE, s.NICs, s.KeyShift = uint32(t.c.QueuesPerPE), uint32(len(t.nics)), uint32(t.c.KeyShift)
	s.Flags = s.Flags&^(layout.StateCallerWarp|layout.StateCallerSM) | t.c.By.flags()
	permanent := uint64(0)
	if p := t.pieces[0]; p != nil && p.attached {
		permanent = t.tables.count(p.Bytes)
	}
	t.tables.state(s, permanent)
	return nil
}

// Queues is a snapshot of the device's queues, for diagnosis: those not in use are zero.
func (t *Transport) Queues() ([]layout.Queue, error) {
	list := make([]layout.Queue, len(t.queues))
	if len(list) == 0 || t.tables.entries == 0 {
		return list, nil
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), len(list)*int(unsafe.Sizeof(list[0])))
	return list, t.c.Platform.Read(t.tables.queues, b)
}

// Close implements transport.Transport.
func (t *Transport) Close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	var errs []error
	add := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("ibgda: close %s: %w", what, err))
		}
	}
	if t.poster != nil {
		add("the posting thread", t.poster.Close())
	}
	for _, q := range slices.Backward(t.queues) {
		if q != nil {
			add(fmt.Sprintf("queue pair %#x", q.Number()), q.Close())
		}
	}
	for _, index := range slices.Sorted(maps.Keys(t.pieces)) {
		p := t.pieces[index]
		add(fmt.Sprintf("piece %d", index), errors.Join(closeAll(p.remote), closeAll(p.memory)))
	}
	for address, l := range t.locals {
		add(fmt.Sprintf("the buffer at %#x", address), closeAll(l.memory))
	}
	for page := range t.registers {
		add("a register page", t.c.Platform.UnmapRegister(page))
	}
	for _, n := range slices.Backward(t.nics) {
		add(n.Info().Name, n.close(t.c.Platform))
	}
	if t.words.Bytes != 0 {
		add("words", t.c.Platform.Free(t.words))
	}
	add("tables", t.tables.free())
	if t.own && t.provider != nil {
		add(t.provider.Name(), t.provider.Close())
	}
	if p, ok := t.c.Platform.(io.Closer); ok {
		add("the platform", p.Close())
	}
	return errors.Join(errs...)
}

// close gives back a port's memory and closes it.
func (n *port) close(p Platform) error {
	var errs []error
	for kind := range n.blocks {
		b := &n.blocks[kind]
		if b.queue != nil {
			errs = append(errs, b.queue.Close())
		}
		if b.memory != nil {
			errs = append(errs, b.memory.Close())
		}
		if b.Bytes != 0 {
			errs = append(errs, p.Free(b.Buffer))
		}
	}
	return errors.Join(append(errs, n.NIC.Close())...)
}
