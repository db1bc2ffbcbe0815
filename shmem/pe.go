package shmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// PE is this process's part of a job: one instance of the library. Its methods are those of its parts: see the package
// documentation.
type PE struct {
	*job
	*executor
	*routes
	*symmetricHeap
	*buffers
	*operations
	*streamOperations
	*teams
	*collectives

	// Init sets these; they do not change afterwards.
	c      Config
	terms  terms
	tables *tables
	state  *layout.State
	phases []Phase
	took   time.Duration
}

// Stats are how long Init took, by phase, and how often the heap has grown and shrunk.
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

// known is an error that all PEs have, so that the others need not be told.
type known struct{ error }

func (k *known) Unwrap() error { return k.error }

// Init makes this process a PE of its job. All PEs call it. Its steps are few exchanges and few driver calls:
//
//	bootstrap; device; hello: who and where the PEs are, and what they want; addresses of the heap; transports and what
//	they reach: the reachability matrix; network endpoints, if some PE needs them; first piece of heap; state and teams.
func Init(ctx context.Context, c Config) (_ *PE, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	begun := time.Now()
	p := &PE{c: c, job: newJob(&c)}
	for _, w := range c.Warnings {
		p.log.Warn(w)
	}
	through := false
	defer func() {
		if !through && err == nil { // a panic, which goes on after this: the others must not wait for this PE
			err = errors.New("a defect: it panicked")
			p.abortInit(err)
		}
		if err != nil {
			p.teardown()
			err = wrap("init", err)
		}
	}()
	last := begun
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"bootstrap", p.openJob}, {"device", p.openDevice}, {"hello", p.hello}, {"heap", p.openHeap},
		{"transports", p.openTransports}, {"network", p.connect}, {"memory", p.openMemory}, {"state", p.openState},
		{"barrier", p.meetAll},
	} {
		if err := step.do(ctx); err != nil {
			// The others must not wait for this PE until they time out.
			if !errors.As(err, new(*known)) {
				p.abortInit(err)
			}
			if errors.As(err, new(*Error)) {
				return nil, err // it says enough
			}
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		now := time.Now()
		p.phases = append(p.phases, Phase{step.name, now.Sub(last)})
		last = now
	}
	p.took = last.Sub(begun)
	p.watching.Go(p.watch)
	p.log.Info("ready", "pe", p.rank, "pes", p.size, "memory", p.terms.kind.String(), "init", p.took)
	through = true
	return p, nil
}

func (p *PE) openJob(ctx context.Context) error { return p.join(ctx, &p.c) }

func (p *PE) openDevice(context.Context) (err error) {
	p.executor, err = openExecutor(p.job, &p.c)
	return err
}

func (p *PE) hello(ctx context.Context) error {
	w, err := wishesOf(&p.c, p.executor)
	if err != nil {
		return err
	}
	p.terms, err = p.job.hello(ctx, w)
	return err
}

func (p *PE) openHeap(context.Context) (err error) {
	p.symmetricHeap, err = openHeap(p.executor, &p.terms)
	return err
}

func (p *PE) openTransports(ctx context.Context) (err error) {
	p.routes, err = openRoutes(ctx, &p.c, p.executor, p.symmetricHeap.heapRange, p.terms.uniform)
	p.symmetricHeap.routes = p.routes
	return err
}

func (p *PE) connect(ctx context.Context) error { return p.routes.connect(ctx, &p.c) }

func (p *PE) openMemory(ctx context.Context) error { return p.symmetricHeap.firstExtent(ctx) }

// openState makes what kernels see, and the parts of the PE that use it.
func (p *PE) openState(context.Context) error {
	p.locate()
	var err error
	if p.tables, err = newTables(p.ctx, p.size, p.terms.maxTeams); err != nil {
		return err
	}
	if err := p.executor.start(); err != nil {
		return err
	}
	shift := uint32(bits.TrailingZeros64(p.chunk))
	s := &layout.State{
		Version: layout.Version, PE: uint32(p.rank), PEs: uint32(p.size), HeapBase: p.heapBase, HeapBytes: p.heapBytes,
		Peers: p.tables.peers, Remote: p.tables.remote, KeyShift: shift, Teams: p.tables.teams,
		Control: p.pinned, TimeoutNanos: uint64(p.timeout), Self: p.tables.self,
	}
	for _, t := range p.transports {
		if err := t.State(s); err != nil {
			return err
		}
	}
	if s.KeyShift != shift {
		return fmt.Errorf("the network transport wants keys of %d bytes, the heap's chunks are %d", uint64(1)<<s.KeyShift, p.chunk)
	}
	for pe := range min(p.size, layout.InlinePeers) {
		s.Peer[pe] = p.peerWord(pe)
	}
	p.state = s
	p.assemble()
	return p.storeState()
}

// peerWord is what kernels see of a PE's mapping.
func (p *PE) peerWord(pe int) uint64 {
	if p.routes.atomic[pe] {
		return p.mapped[pe] | layout.PeerAtomic
	}
	return p.mapped[pe]
}

// assemble makes the parts of the PE that work once the heap has memory.
func (p *PE) assemble() {
	p.launcher.start(p.state, p.terms.ctas, p.queued)
	p.buffers = &buffers{job: p.job, exec: p.executor, routes: p.routes, tables: p.tables, bytes: map[uint64]uint64{}}
	p.operations = &operations{job: p.job, exec: p.executor, routes: p.routes, heap: p.symmetricHeap, buffers: p.buffers}
	p.streamOperations = &streamOperations{ops: p.operations, waitMemop: p.c.StreamWaitMemop}
	mail := &mailboxes{job: p.job, exec: p.executor, routes: p.routes, heap: p.symmetricHeap, ops: p.operations,
		count: make([]uint64, p.size)}
	p.teams = &teams{job: p.job, exec: p.executor, routes: p.routes, heap: p.symmetricHeap, tables: p.tables, mail: mail,
		maxTeams: p.terms.maxTeams}
	p.collectives = &collectives{job: p.job, exec: p.executor, routes: p.routes, heap: p.symmetricHeap,
		teams: p.teams}
}

// storeState writes the tables, with the teams that exist from the start, and clears the library's own part of the
// heap.
func (p *PE) storeState() error {
	t := p.tables
	image := make([]byte, t.bytes)
	for pe := range p.size {
		binary.LittleEndian.PutUint64(image[t.peers-t.base+uint64(pe)*8:], p.peerWord(pe))
		binary.LittleEndian.PutUint64(image[t.remote-t.base+uint64(pe)*8:], p.bases[pe])
	}
	copy(image[t.self-t.base:], unsafe.Slice((*byte)(unsafe.Pointer(p.state)), unsafe.Sizeof(*p.state)))
	if err := p.openTeams(image); err != nil {
		return err
	}
	if err := p.write(t.base, image); err != nil {
		return err
	}
	return p.zero(p.heapBase, p.reserved.bytes)
}

// meetAll is the last step: no PE returns from Init before the memory of all is ready.
func (p *PE) meetAll(ctx context.Context) error {
	if err := p.b.Barrier(ctx); err != nil {
		return &known{err}
	}
	return nil
}

// Finalize leaves the job: all PEs call it. Work on streams must be done. After an error, or when the other PEs are
// gone, it gives back what belongs to this PE alone.
func (p *PE) Finalize() error {
	if !p.closed.CompareAndSwap(false, true) {
		return fault(layout.StatusState, "finalize", -1, "already finalized")
	}
	var errs []error
	if !p.plain() && !p.resident() {
		// What still runs may use the heap. Work of a software HCA on the GPU never ends: then the program must wait
		// for its own work before the call.
		errs = append(errs, p.ctx.Do(p.d.Synchronize))
	}
	if p.lost.Load() == nil {
		ctx, cancel := p.context()
		// No PE uses this one's memory after the first barrier, none has it mapped after the second (in teardown).
		errs = append(errs, p.b.Barrier(ctx))
		cancel()
	}
	errs = append(errs, p.drain(), p.teardown())
	return wrap("finalize", errors.Join(errs...))
}

// teardown gives everything back. Some of it may not be there yet, if Init fails.
func (p *PE) teardown() error {
	p.stopWatching()
	var errs []error
	if p.teams != nil { // calls in progress end first
		errs = append(errs, p.teams.endAll())
	}
	if p.symmetricHeap != nil {
		errs = append(errs, p.symmetricHeap.close(p.leaveTogether))
	}
	errs = append(errs, p.tables.free())
	if p.executor != nil {
		errs = append(errs, p.executor.close())
	}
	errs = append(errs, p.leave())
	if p.executor != nil {
		errs = append(errs, p.executor.release())
	}
	return errors.Join(errs...)
}

// leaveTogether waits until no PE has this one's memory mapped, where all still can: else it would stay with them.
func (p *PE) leaveTogether() {
	if p.lost.Load() != nil {
		return
	}
	ctx, cancel := p.context()
	defer cancel()
	if err := p.b.Barrier(ctx); err != nil {
		p.log.Debug("not all PEs left together", "pe", p.rank, "error", err)
	}
}

// Kind is where the heap lies.
func (p *PE) Kind() transport.Kind { return p.terms.kind }

// State is what a kernel gets by value. It does not change after Init.
func (p *PE) State() layout.State { return *p.state }

// StateAddress is where State lies, for C; it stays valid until Finalize.
func (p *PE) StateAddress() unsafe.Pointer { return unsafe.Pointer(p.state) }

// Stats returns what was measured.
func (p *PE) Stats() Stats {
	s := Stats{Phases: append([]Phase(nil), p.phases...), Init: p.took}
	p.symmetricHeap.addStats(&s)
	return s
}

// Info collects what there is to know.
func (p *PE) Info() Info {
	mapped, used := p.HeapUse()
	i := Info{PE: p.rank, PEs: p.size, Memory: p.terms.kind.String(), HeapBase: p.heapBase, HeapMax: p.heapBytes,
		HeapMapped: mapped, HeapUsed: used, Chunk: p.chunk, Timeout: p.timeout, Teams: p.teams.infos(), Stats: p.Stats(),
		Settings: p.c.Settings}
	hosts := map[uint64]bool{}
	for pe := range p.size {
		i.RMA, i.AMO = append(i.RMA, p.transportName(p.choice.RMA[pe])), append(i.AMO, p.transportName(p.choice.AMO[pe]))
		hosts[p.peers[pe].Host] = true
	}
	i.Hosts = len(hosts)
	return i
}
