// Package shmem is symmetric memory between the PEs of a job, normally one process for each GPU: every PE allocates the same
// things in its heap, and then reads, writes and signals in the others', from the host, on streams, and from inside kernels
// (lshmem.cuh, by the State that a kernel gets as a parameter).
//
//	pe, err := shmem.Init(ctx, config)      // ConfigFrom(os.Environ())
//	defer pe.Finalize()
//	a, err := pe.Malloc(1 << 20)            // all PEs, the same size
//	err = pe.PutOnStream(a, source, n, 1, stream)
//	err = pe.BarrierOnStream(layout.TeamWorld, stream)
//
// # Addresses
//
// All addresses are numbers: those of device or host memory of this process. An address in the heap also means the same place
// in another PE's heap where a call takes a PE.
//
// # Collective calls
//
// Init, Malloc and its like, Free, RegisterSymmetric and Finalize are called by all PEs, in the same order, with the same
// sizes. This is checked: if one PE asks for something else, or cannot do it, all get an error and nothing has changed.
// Calls that make or end a team are made by all PEs of its parent or, for TeamCreate, by all members. If one of them is not
// there in time, or a collective operation between PEs without GPUs ends so, the job ends for all.
//
// # Errors
//
// Every error is an *Error with a layout.Status*. No call waits longer than Config.Timeout. When a PE dies, waits end
// everywhere, those of kernels too, and every call returns an error with StatusPeer that names it. Nothing but Finalize is of
// use then.
//
// # Concurrency
//
// A PE's methods may be called by any goroutine at any time, in the same order on all PEs where they are collective. That order
// is among the blocking operations of one team, which are done one after the other; those of several teams, and calls that are
// not collective, go on beside them, so that one goroutine's may be what another's waits for. Operations of several teams that
// move data at once on one GPU must fit on it together: Config.MaxCTAs. OnStream calls return when the work is queued, allocate nothing, and may be captured into CUDA graphs, which stay valid until
// Finalize. A process may have any number of PEs, of one job or of several.
package shmem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// PE is this process's part of a job: one instance of the library.
type PE struct {
	c    Config
	log  *slog.Logger
	b    bootstrap.Bootstrap
	owns bool // b is closed by Finalize
	rank int
	size int

	ctx  *cuda.Context // nil for a plain CPU PE
	d    *cuda.Driver
	kind transport.Kind

	self  transport.PeerInfo
	peers []transport.PeerInfo

	// What all agreed on.
	heapBytes, chunk uint64
	static           uint64
	keep             uint64
	maxTeams         int
	timeout          time.Duration
	ctas             int
	uniform          bool

	mem      memory
	heapBase uint64
	tables   *tables

	// +checklocks:mu
	mu     sync.Mutex // heap, chunks, teams: what collective calls change
	heap   *heap.Heap
	chunks map[uint64]transport.Chunk // by offset

	held atomic.Pointer[heap.Extents] // those of heap, for calls that do not wait for mu

	// localsMu is apart from mu, which a collective call holds while it waits for other PEs. It is taken behind mu.
	localsMu sync.Mutex
	locals   map[uint64]uint64 // sizes of registered buffers outside of the heap, by address

	p2p        *p2p.Transport
	transports []transport.Transport
	networks   []string // by PE: why it has no network transport, "" if it has; empty where none was looked for
	reach      transport.Reachability
	matrix     transport.Matrix
	choice     transport.Choice
	mapped     []uint64 // by PE: where its heap is here, 0; what operations use
	atomic     []bool   // by PE: native atomics work there
	queued     bool     // some PE is reached by queues
	memops     bool     // streams can write and wait for words

	state       *layout.State
	control     *layout.Control
	controlAddr uint64

	internal internal

	teams [layout.MaxTeams]atomic.Pointer[team]

	hot hot

	stats    Stats
	closed   atomic.Bool
	lost     atomic.Pointer[Error]
	stop     chan struct{}
	watching sync.WaitGroup
	begun    time.Time
}

// Stats are how long Init took, by phase, and what the PE holds.
type Stats struct {
	// Phases of Init, in order.
	Phases []Phase       `json:"phases"`
	Init   time.Duration `json:"init_ns"`
	// Grown and Shrunk count changes of the heap's memory, GrowTime is the sum of the time that growing took.
	Grown    int           `json:"grown"`
	Shrunk   int           `json:"shrunk"`
	GrowTime time.Duration `json:"grow_time_ns"`
}

// Phase is one step of Init.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took_ns"`
}

// Rank is the number of this PE.
func (p *PE) Rank() int { return p.rank }

// Size is the number of PEs.
func (p *PE) Size() int { return p.size }

// Context is the CUDA context that the PE works in, nil for a plain CPU PE.
func (p *PE) Context() *cuda.Context { return p.ctx }

// Kind is where the heap lies.
func (p *PE) Kind() transport.Kind { return p.kind }

// State is what a kernel gets by value. It does not change after Init.
func (p *PE) State() layout.State { return *p.state }

// StateAddress is where State lies, for C; it stays valid until Finalize.
func (p *PE) StateAddress() unsafe.Pointer { return unsafe.Pointer(p.state) }

// HeapRange is the address of the heap and its size in addresses.
func (p *PE) HeapRange() (base, bytes uint64) { return p.heapBase, p.heapBytes }

// HeapUse is how much memory the heap has, and how much of that is allocated, the library's own included.
func (p *PE) HeapUse() (mapped, used uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heap.Mapped(), p.heap.Used()
}

// Stats returns what was measured.
func (p *PE) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Phases = append([]Phase(nil), s.Phases...)
	return s
}

// Info is what there is to know about a PE, for people and tools. Memory is in bytes.
type Info struct {
	PE         int           `json:"pe"`
	PEs        int           `json:"pes"`
	Memory     string        `json:"memory"` // device or host
	HeapBase   uint64        `json:"heap_base"`
	HeapMax    uint64        `json:"heap_max"`
	HeapMapped uint64        `json:"heap_mapped"`
	HeapUsed   uint64        `json:"heap_used"`
	Chunk      uint64        `json:"chunk"`
	Timeout    time.Duration `json:"timeout_ns"`
	// RMA and AMO are the transport to each PE, "" where there is none.
	RMA []string `json:"rma"`
	AMO []string `json:"amo"`
	// Hosts is how many machines the job has.
	Hosts    int               `json:"hosts"`
	Teams    []TeamInfo        `json:"teams"`
	Stats    Stats             `json:"stats"`
	Settings map[string]string `json:"settings"`
}

// TeamInfo is a team in Info.
type TeamInfo struct {
	ID      TeamID `json:"id"`
	Members []int  `json:"members"`
	Direct  bool   `json:"direct"` // each maps the memory of all others
}

// Info collects what there is to know.
func (p *PE) Info() Info {
	mapped, used := p.HeapUse()
	i := Info{PE: p.rank, PEs: p.size, Memory: p.kind.String(), HeapBase: p.heapBase, HeapMax: p.heapBytes, HeapMapped: mapped,
		HeapUsed: used, Chunk: p.chunk, Timeout: p.timeout, Stats: p.Stats(), Settings: p.c.Settings}
	name := func(j int) string {
		if j == transport.None {
			return ""
		}
		return p.transports[j].Name()
	}
	hosts := map[uint64]bool{}
	for pe := range p.size {
		i.RMA, i.AMO = append(i.RMA, name(p.choice.RMA[pe])), append(i.AMO, name(p.choice.AMO[pe]))
		hosts[p.peers[pe].Host] = true
	}
	i.Hosts = len(hosts)
	for id := range p.teams {
		if t := p.teams[id].Load(); t != nil {
			i.Teams = append(i.Teams, TeamInfo{TeamID(id), append([]int(nil), t.members...), t.entry.Flags&layout.TeamDirect != 0})
		}
	}
	return i
}

// Abort ends the job at all PEs with an error there.
func (p *PE) Abort(code int, why string) { p.b.Abort(code, why) }

// Err is what is wrong with the job: a dead PE, or the first error that a kernel met; nil if nothing is.
func (p *PE) Err() error { return p.check("state") }

// check is asked by every call. It must be cheap: three loads.
func (p *PE) check(op string) error {
	if p.closed.Load() {
		return fault(layout.StatusState, op, -1, "after Finalize")
	}
	if e := p.lost.Load(); e != nil {
		return &Error{Status: e.Status, Op: op, PE: e.PE, Err: e.Err}
	}
	if s := atomic.LoadUint32(&p.control.Status); s != layout.StatusOK {
		return p.deviceError(op, s)
	}
	return nil
}

// deviceError is the error that a kernel left in Control.
func (p *PE) deviceError(op string, status uint32) error {
	c := p.control
	pe := int(atomic.LoadUint32(&c.PE))
	if pe >= p.size {
		pe = -1
	}
	if status == layout.StatusQueue {
		s := atomic.LoadUint32(&c.Syndrome)
		text := fmt.Sprintf("a kernel's work request %d on queue %d completed in error: syndrome %#02x, type %#02x, vendor %#02x, hardware %#02x",
			atomic.LoadUint64(&c.Index), atomic.LoadUint32(&c.Queue), s&0xff, s>>16&0xff, s>>8&0xff, s>>24)
		if s&0xff == mlx5.SyndromeFlushed { // the one completion entry of a queue holds the last that the NIC wrote
			text += "; it was flushed because an earlier one had failed, whose completion it has overwritten"
		}
		return fault(status, op, pe, "%s", text)
	}
	return fault(status, op, pe, "in a kernel: %s", statusText(status))
}

// watch waits for the job's end and tells the kernels.
func (p *PE) watch() {
	select {
	case <-p.stop:
		return
	case <-p.b.Lost():
	}
	p.lose(p.lostError("job"))
}

// lostError is the error of a job that is lost, as the bootstrap says.
func (p *PE) lostError(op string) *Error {
	pe, err := p.b.LostPE()
	if err == nil {
		err = errors.New("the job cannot go on")
	}
	e := &Error{Status: Status(wrap(op, err)), Op: op, PE: pe, Err: err} // wrap's may be anything that has an Error in its chain
	if e.Status == layout.StatusSystem || e.Status == layout.StatusState {
		e.Status = layout.StatusPeer
	}
	return e
}

// lose ends all waits with an error. Only watch calls it.
func (p *PE) lose(e *Error) {
	pe := ^uint32(0)
	if e.PE >= 0 {
		pe = uint32(e.PE)
	}
	atomic.StoreUint32(&p.control.AbortPE, pe)
	atomic.StoreUint32(&p.control.Abort, e.Status)
	p.lost.Store(e)
	p.log.Error("the job cannot go on", "pe", p.rank, "error", e.Err)
}

// context bounds one wait for the others.
func (p *PE) context() (context.Context, context.CancelFunc) {
	if p.timeout == 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), p.timeout)
}

// deadline is when a wait that begins now ends.
func (p *PE) deadline() time.Time {
	if p.timeout == 0 {
		return time.Now().Add(1 << 60)
	}
	return time.Now().Add(p.timeout)
}

// quietLogger is the logger of who gives none.
func quietLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// hot is what calls on streams use again and again: one at a time, under mu.
type hot struct {
	mu     sync.Mutex
	loader *loader
	ready  chan struct{} // closed when the core is loaded
	// rma and collective are the parameters of the kernel being launched; params points to one of them.
	rma        *kernels.RMA
	collective *kernels.Collective
	launch     *cuda.Launch
	params     [1]uintptr
	functions  map[functionKey]uintptr
	// stream is the PE's own, for blocking calls with one PE; serial keeps these apart, and none of them waits for other PEs.
	serial sync.Mutex
	stream uintptr
	stage  uint64 // pinned host memory of stageBytes, for values
}

// stageBytes is room for what blocking calls pass between host and device.
const stageBytes = 64 << 10
