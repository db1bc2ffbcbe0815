// Package p2p is the transport for PEs whose memory can be mapped: on the same GPU, on GPUs linked by NVLink or PCIe,
// or in host memory of the same machine. Once mapped, a peer's heap is addresses like any other, and neither this
// package nor any thread takes part in an operation.
//
// # How memory gets here
//
// Addresses for all mapped peers are reserved at once, so that a peer's heap is at a fixed place from Connect on. A
// piece of heap is passed as a file descriptor: of the driver's handle, or of a memory file. Descriptors are pulled,
// not pushed: who registers a piece puts a random token and the name of an abstract Unix socket in its blob; who
// attaches it connects, shows the token and gets the descriptor. Both sides check that the other runs as the same user
// (SO_PEERCRED), and neither waits longer than the timeout. Memory without shareable handles (no VMM) goes by the
// driver's IPC handle in the blob itself, for a heap that is one allocation.
package p2p

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// Config is what the transport needs to know.
type Config struct {
	// Context is the PE's, nil for a plain CPU PE.
	Context *cuda.Context
	Self    transport.PeerInfo
	// HeapBytes is the size of every PE's heap in addresses.
	HeapBytes uint64
	// Timeout bounds the wait for a peer's descriptor; 0 is for ever.
	Timeout time.Duration
}

// process tells this process from any other that a blob may come from.
var process = sync.OnceValue(func() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
})

// Transport implements transport.Transport and transport.Mapper.
type Transport struct {
	c       Config
	devices map[[16]byte]int32 // ordinals by UUID of the devices this process sees

	peers    []peer // by PE
	mapped   int    // how many of them are others' and mapped
	base     uint64 // of the addresses reserved for them
	server   *server
	chunks   map[int]*chunk
	attached map[int][]int // by chunk, the PEs whose piece is mapped here
	closed   bool
}

type peer struct {
	info   transport.PeerInfo
	mapped bool
	atomic bool
	base   uint64
	ipc    uint64 // address to close
}

type chunk struct {
	transport.Chunk
	token [tokenBytes]byte
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Mapper    = (*Transport)(nil)
)

// answerTimeout bounds how long a peer may take to say which descriptor it wants: it does so at once.
const answerTimeout = 10 * time.Second

// New makes the transport. It makes no driver calls.
func New(c Config) *Transport {
	return &Transport{c: c, chunks: map[int]*chunk{}, attached: map[int][]int{}}
}

// Name is p2p.
func (t *Transport) Name() string { return "p2p" }

// Capability says whether self can map peer's heap, and whether atomic operations work on it.
func (t *Transport) Capability(self, peer transport.PeerInfo) transport.Capability {
	const all = transport.Map | transport.LoadStore | transport.RMA | transport.CPUInitiated
	c := all
	if self.HasGPU() {
		c |= transport.GPUInitiated
	}
	same := self.PE == peer.PE
	switch {
	case self.Kind != peer.Kind || self.VMM != peer.VMM:
		return 0
	case !same && (self.Host != peer.Host || self.Network != peer.Network || self.UID != peer.UID):
		return 0
	case self.Kind == transport.Host:
		// A GPU's atomic operations on host memory are atomic to a CPU only where the hardware says so; among CPUs they
		// are.
		if !self.HasGPU() && !peer.HasGPU() || t.hostAtomics(self) && t.hostAtomics(peer) {
			c |= transport.Atomics
		}
		return c
	case !self.HasGPU() || !peer.HasGPU() || t.c.Context == nil:
		return 0
	case same || self.GPU == peer.GPU:
		return c | transport.Atomics
	}
	other, ok := t.ordinal(peer.GPU)
	if !ok {
		return 0
	}
	d, own := t.c.Context.D, t.c.Context.Device
	if can, err := d.CanAccessPeer(own, other); err != nil || !can {
		return 0
	}
	if v, err := d.P2P(cuda.NativeAtomicSupported, own, other); err == nil && v != 0 {
		c |= transport.Atomics
	}
	return c
}

// hostAtomics says whether atomic operations of a PE's GPU on host memory are atomic to all. Only the own GPU can be
// asked; the others of the machine are taken to be like it.
func (t *Transport) hostAtomics(p transport.PeerInfo) bool {
	if !p.HasGPU() {
		return true
	}
	if t.c.Context == nil {
		return false
	}
	v, err := t.c.Context.D.DeviceAttribute(cuda.HostNativeAtomicSupported, t.c.Context.Device)
	return err == nil && v != 0
}

// ordinal finds a GPU among those that this process sees.
func (t *Transport) ordinal(uuid [16]byte) (int32, bool) {
	if t.devices == nil {
		t.devices = map[[16]byte]int32{}
		d := t.c.Context.D
		n, err := d.DeviceCount()
		if err != nil {
			return 0, false
		}
		for i := range n {
			dev, err := d.DeviceGet(i)
			if err != nil {
				continue
			}
			if id, err := d.DeviceUUID(dev); err == nil {
				t.devices[id] = dev
			}
		}
	}
	dev, ok := t.devices[uuid]
	return dev, ok
}

// Endpoints notes whom it was chosen for. Connecting needs no blobs.
func (t *Transport) Endpoints(peers []transport.PeerInfo, used []transport.Capability) ([][]byte, error) {
	t.peers = make([]peer, len(peers))
	for i, p := range peers {
		// Mapping is of use even where another transport does the atomic operations.
		t.peers[i] = peer{info: p, mapped: used[i] != 0}
		if !t.peers[i].mapped {
			continue
		}
		t.peers[i].atomic = t.Capability(t.c.Self, p)&transport.Atomics != 0
		if p.PE != t.c.Self.PE {
			t.mapped++
		}
	}
	return make([][]byte, len(peers)), nil
}

// Connect reserves the addresses of the mapped peers' heaps.
func (t *Transport) Connect([][]byte) error {
	if t.mapped == 0 || t.c.Self.Kind == transport.Device && !t.c.Self.VMM {
		return nil
	}
	size := t.reserved()
	base, err := t.reserve(size)
	if err != nil {
		return fmt.Errorf("reserve %d bytes of addresses for the heaps of %d PEs (a smaller LSHMEM_HEAP_MAX needs less): %w", size, t.mapped, err)
	}
	t.base = base
	mapped := uint64(0)
	for i := range t.peers {
		if p := &t.peers[i]; p.mapped && p.info.PE != t.c.Self.PE {
			p.base = base + mapped*t.stride()
			mapped++
		}
	}
	return nil
}

// stride is the distance of two peers' heaps: they begin where the largest pages can.
func (t *Transport) stride() uint64 {
	return (t.c.HeapBytes + cuda.LargePage - 1) &^ (cuda.LargePage - 1)
}

func (t *Transport) reserved() uint64 { return uint64(t.mapped) * t.stride() }

func (t *Transport) reserve(size uint64) (base uint64, err error) {
	if t.c.Self.Kind == transport.Host {
		return ReserveHost(size)
	}
	err = t.c.Context.Do(func() error {
		base, err = t.c.Context.D.Reserve(size, cuda.LargePage, 0)
		return err
	})
	return base, err
}

// Address is where a PE's heap is mapped.
func (t *Transport) Address(pe int) (uint64, bool) {
	if pe < 0 || pe >= len(t.peers) {
		return 0, false
	}
	return t.peers[pe].base, t.peers[pe].atomic
}

// Register offers a piece to the peers.
func (t *Transport) Register(c transport.Chunk) ([]byte, error) {
	if t.mapped == 0 {
		return nil, nil
	}
	k := &chunk{Chunk: c}
	b := blob{index: uint32(c.Index), kind: uint32(c.Kind), offset: c.Offset, bytes: c.Bytes, process: process()}
	if c.Kind == transport.Device && c.Handle == 0 {
		err := t.c.Context.Do(func() (err error) {
			b.ipc, err = t.c.Context.D.IPCGet(c.Address)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("share the heap's memory by an IPC handle: %w", err)
		}
		b.address, b.context = c.Address, uint64(t.c.Context.Handle)
		t.chunks[c.Index] = k
		return b.append(nil), nil
	}
	if t.server == nil {
		s, err := serve(answerTimeout)
		if err != nil {
			return nil, err
		}
		t.server = s
	}
	rand.Read(k.token[:]) // never fails
	b.token, b.socket = k.token, t.server.name
	t.chunks[c.Index] = k
	t.server.offer(k.token, func() (int, error) {
		if c.Kind == transport.Host {
			return unix.FcntlInt(uintptr(c.FD), unix.F_DUPFD_CLOEXEC, 0)
		}
		fd := -1
		err := t.c.Context.Do(func() (err error) {
			fd, err = t.c.Context.D.Export(c.Handle)
			return err
		})
		return fd, err
	})
	return b.append(nil), nil
}

// Attach maps the peers' pieces.
func (t *Transport) Attach(index int, from [][]byte) error {
	own, ok := t.chunks[index]
	if !ok {
		if t.mapped == 0 {
			return nil
		}
		return fmt.Errorf("attach chunk %d, which was not registered", index)
	}
	for pe := range t.peers {
		p := &t.peers[pe]
		if !p.mapped || p.info.PE == t.c.Self.PE {
			continue
		}
		if err := t.attach(p, own, from[pe]); err != nil {
			err = &transport.PeerError{PE: pe, Err: fmt.Errorf("map the heap of PE %d at offset %#x: %w", pe, own.Offset, err)}
			return errors.Join(err, t.unmap(index))
		}
		t.attached[index] = append(t.attached[index], pe)
	}
	return nil
}

func (t *Transport) attach(p *peer, own *chunk, text []byte) error {
	b, err := parseBlob(text)
	if err != nil {
		return err
	}
	if b.index != uint32(own.Index) || b.offset != own.Offset || b.bytes != own.Bytes || b.kind != uint32(own.Kind) {
		return fmt.Errorf("%w: it offers %d bytes at %#x, here are %d at %#x", transport.ErrBlob, b.bytes, b.offset, own.Bytes, own.Offset)
	}
	if own.Kind == transport.Device && own.Handle == 0 {
		return t.attachIPC(p, &b)
	}
	fd, err := fetch(b.socket, b.token, t.c.Timeout)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at := p.base + own.Offset
	if own.Kind == transport.Host {
		if err := MapHost(at, own.Bytes, fd); err != nil {
			return err
		}
		if t.c.Context == nil {
			return nil
		}
		if err := RegisterHost(t.c.Context, at, own.Bytes); err != nil {
			return errors.Join(err, UnmapHost(at, own.Bytes))
		}
		return nil
	}
	return t.c.Context.Do(func() error {
		d := t.c.Context.D
		h, err := d.Import(fd)
		if err != nil {
			return err
		}
		defer d.Release(h) // the mapping holds the memory
		if err := d.Map(at, own.Bytes, h); err != nil {
			return err
		}
		if err := d.Allow(at, own.Bytes, t.c.Context.Device); err != nil {
			return errors.Join(err, d.Unmap(at, own.Bytes))
		}
		return nil
	})
}

func (t *Transport) attachIPC(p *peer, b *blob) error {
	return t.c.Context.Do(func() error {
		d := t.c.Context.D
		if b.process == process() { // a process cannot open its own handle, and need not
			if p.info.GPU != t.c.Self.GPU {
				if err := d.EnablePeerAccess(uintptr(b.context)); err != nil {
					return err
				}
			}
			p.base = b.address - b.offset
			return nil
		}
		address, err := d.IPCOpen(&b.ipc)
		if err != nil {
			return err
		}
		p.base, p.ipc = address-b.offset, address
		return nil
	})
}

// unmap takes away what is attached of a chunk.
func (t *Transport) unmap(index int) error {
	own := t.chunks[index]
	var errs []error
	for _, pe := range t.attached[index] {
		p := &t.peers[pe]
		at := p.base + own.Offset
		var err error
		switch {
		case own.Kind == transport.Host:
			if t.c.Context != nil {
				err = UnregisterHost(t.c.Context, at)
			}
			err = errors.Join(err, UnmapHost(at, own.Bytes))
		case own.Handle != 0:
			err = t.c.Context.Do(func() error { return t.c.Context.D.Unmap(at, own.Bytes) })
		default:
			if p.ipc != 0 {
				err = t.c.Context.Do(func() error { return t.c.Context.D.IPCClose(p.ipc) })
			}
			p.base, p.ipc = 0, 0
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("unmap the heap of PE %d at offset %#x: %w", pe, own.Offset, err))
		}
	}
	delete(t.attached, index)
	return errors.Join(errs...)
}

// Detach takes away the peers' pieces and offers the own one no longer.
func (t *Transport) Detach(index int) error {
	own, ok := t.chunks[index]
	if !ok {
		return nil
	}
	err := t.unmap(index)
	if t.server != nil {
		t.server.withdraw(own.token)
	}
	delete(t.chunks, index)
	return err
}

// State has nothing to add: addresses are the runtime's to fill in.
func (t *Transport) State(*layout.State) error { return nil }

// Close detaches everything, stops serving descriptors and gives the addresses back.
func (t *Transport) Close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	var errs []error
	for index := range t.chunks {
		errs = append(errs, t.Detach(index))
	}
	if t.server != nil {
		errs = append(errs, t.server.close())
	}
	if t.base != 0 {
		size := t.reserved()
		if t.c.Self.Kind == transport.Host {
			errs = append(errs, ReleaseHost(t.base, size))
		} else {
			errs = append(errs, t.c.Context.Do(func() error { return t.c.Context.D.Unreserve(t.base, size) }))
		}
	}
	return errors.Join(errs...)
}

const tokenBytes = 16

// blob is what Register says about a piece.
type blob struct {
	kind, index      uint32
	offset, bytes    uint64
	process          uint64
	address, context uint64 // of memory without a handle, for the same process
	token            [tokenBytes]byte
	ipc              cuda.IPCHandle
	socket           string
}

const (
	blobVersion = 1
	blobBytes   = 4 + 4 + 4 + 8*5 + tokenBytes + 64 + 2
	maxSocket   = 100
)

func (b *blob) append(to []byte) []byte {
	e := binary.LittleEndian
	to = e.AppendUint32(to, blobVersion)
	to = e.AppendUint32(to, b.kind)
	to = e.AppendUint32(to, b.index)
	for _, v := range []uint64{b.offset, b.bytes, b.process, b.address, b.context} {
		to = e.AppendUint64(to, v)
	}
	to = append(to, b.token[:]...)
	to = append(to, b.ipc[:]...)
	to = e.AppendUint16(to, uint16(len(b.socket)))
	return append(to, b.socket...)
}

func parseBlob(p []byte) (blob, error) {
	e := binary.LittleEndian
	if len(p) < blobBytes || e.Uint32(p) != blobVersion {
		return blob{}, fmt.Errorf("%w: %d bytes about a piece of heap", transport.ErrBlob, len(p))
	}
	b := blob{kind: e.Uint32(p[4:]), index: e.Uint32(p[8:])}
	p = p[12:]
	for _, v := range []*uint64{&b.offset, &b.bytes, &b.process, &b.address, &b.context} {
		*v, p = e.Uint64(p), p[8:]
	}
	p = p[copy(b.token[:], p):]
	p = p[copy(b.ipc[:], p):]
	n := int(e.Uint16(p))
	if n > maxSocket || n != len(p)-2 {
		return blob{}, fmt.Errorf("%w: a socket's name of %d bytes in %d", transport.ErrBlob, n, len(p)-2)
	}
	b.socket = string(p[2:])
	return b, nil
}
