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
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
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
	// Location is where the PE's device is, and Turn the PE's number among those of this machine, to choose NICs by.
	Location Location
	Turn     int
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
	index  int
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
	chosen, err := choose(&c.Settings, infos, c.Location, c.Turn)
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
