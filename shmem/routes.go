package shmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// routes are the ways to the other PEs: the transports, which of them is used for which PE, and where heaps are mapped.
// Init sets all fields; they do not change afterwards.
type routes struct {
	job     *job
	exec    *executor
	heap    heapRange
	uniform bool // atomic operations on one PE go the same way from all

	p2p        *p2p.Transport
	transports []transport.Transport
	networks   []string // by PE: why it has no network transport, "" if it has one; empty where none was looked for
	reach      transport.Reachability
	matrix     transport.Matrix
	choice     transport.Choice

	bases  []uint64 // by PE: where its heap is in its own process
	mapped []uint64 // by PE: where its heap is here, 0 if it is not mapped or another way is used
	atomic []bool   // by PE: native atomic operations work there
	queued bool     // some PE is reached by queues

	// mu makes calls that register memory with the transports one at a time. It is not held while a call waits for
	// other PEs, except in attach.
	mu sync.Mutex
}

// openRoutes finds out what mapped memory reaches, here and, by an exchange, at all PEs.
func openRoutes(ctx context.Context, c *Config, x *executor, heap heapRange, uniform bool) (*routes, error) {
	j := x.job
	r := &routes{job: j, exec: x, heap: heap, uniform: uniform}
	// Half a wait for a peer's descriptor, so that a PE that has waited in vain can still tell the others while they
	// wait, and is not taken for the one that did not come.
	r.p2p = p2p.New(p2p.Config{Context: x.ctx, Self: j.self, HeapBytes: heap.heapBytes, Timeout: j.timeout / 2})
	r.transports = []transport.Transport{r.p2p}
	caps := make([]transport.Capability, j.size)
	for pe := range caps {
		caps[pe] = r.p2p.Capability(j.self, j.peers[pe])
		if c.DisableP2P && pe != j.rank {
			caps[pe] &= transport.Map // the software HCA on a GPU still maps what it moves
		}
	}
	r.reach = transport.Reachability{caps}
	mine := binary.LittleEndian.AppendUint64(nil, heap.heapBase)
	for _, bits := range r.reach.Row() {
		mine = binary.LittleEndian.AppendUint32(mine, bits)
	}
	all, err := j.b.AllGather(ctx, mine)
	if err != nil {
		return r, &known{err}
	}
	r.bases = make([]uint64, j.size)
	for pe, text := range all {
		if len(text) != len(mine) {
			return r, &known{fault(layout.StatusVersion, "init", pe, "%w: %d bytes of reachability", transport.ErrBlob, len(text))}
		}
		r.bases[pe] = binary.LittleEndian.Uint64(text)
		bits := make([]uint32, j.size)
		for i := range bits {
			bits[i] = binary.LittleEndian.Uint32(text[8+4*i:])
		}
		r.matrix = append(r.matrix, bits)
	}
	return r, nil
}

// direct says whether one PE loads from and stores to another's heap.
func (r *routes) direct(from, to int) bool { return r.matrix[from][to]&1 != 0 }

// needNetwork says whether some PE needs more than mapped memory: the same answer at all PEs.
func (r *routes) needNetwork() bool {
	for _, row := range r.matrix {
		for _, bits := range row {
			if bits&3 != 3 {
				return true
			}
		}
	}
	return false
}

// connect opens the network transport if it is needed, chooses a transport for each PE, and connects.
func (r *routes) connect(ctx context.Context, c *Config) error {
	if err := r.allMapped(); err != nil {
		return &known{err}
	}
	if r.needNetwork() {
		if err := r.openNetwork(ctx, c); err != nil {
			return err
		}
	}
	r.choice = transport.Select(r.reach, r.job.size)
	r.sameWay()
	for i, t := range r.transports {
		blobs, err := t.Endpoints(r.job.peers, r.uses(i))
		if err != nil {
			return err
		}
		if i > 0 { // mapping needs no blobs
			if blobs, err = r.job.b.AllToAll(ctx, blobs); err != nil {
				return &known{err}
			}
		}
		if err := t.Connect(blobs); err != nil {
			return err
		}
	}
	if none := slices.Index(r.choice.RMA, transport.None); none >= 0 {
		return fault(layout.StatusSupport, "init", none, "PE %d cannot reach it: %s", r.job.rank, r.whyNot(c, none))
	}
	return nil
}

// uses are, by PE, what a transport was chosen for.
func (r *routes) uses(index int) []transport.Capability {
	used := make([]transport.Capability, r.job.size)
	for pe := range used {
		if r.choice.RMA[pe] == index {
			used[pe] |= transport.RMA
		}
		if r.choice.AMO[pe] == index {
			used[pe] |= transport.AMO
		}
		if index == 0 && len(r.transports) > 1 {
			used[pe] |= r.reach[0][pe] & transport.Map
		}
	}
	return used
}

// locate notes where heaps are mapped, once their first pieces are attached.
func (r *routes) locate() {
	r.mapped, r.atomic = make([]uint64, r.job.size), make([]bool, r.job.size)
	for pe := range r.mapped {
		base, native := r.p2p.Address(pe)
		if pe == r.job.rank {
			base, native = r.heap.heapBase, r.reach[0][pe]&transport.Atomics != 0
		}
		if r.choice.RMA[pe] == 0 {
			r.mapped[pe], r.atomic[pe] = base, native && r.choice.AMO[pe] == 0
		} else {
			r.queued = true
		}
		r.queued = r.queued || r.choice.AMO[pe] > 0
	}
}

// allMapped refuses a job of PEs without GPUs of which some do not map each other's memory: no code of a processor uses
// the network transport. All PEs get the same answer.
func (r *routes) allMapped() error {
	if !r.exec.plain() {
		return nil
	}
	for from := range r.matrix {
		for to := range r.matrix[from] {
			if r.direct(from, to) {
				continue
			}
			why := apart(r.job.peers[from], r.job.peers[to])
			if why == "" {
				why = "LSHMEM_DISABLE_P2P"
			}
			return fault(layout.StatusSupport, "init", to,
				"its memory is not mapped at PE %d (%s), and PEs without a GPU need that", from, why)
		}
	}
	return nil
}

// sameWay sends atomic operations on a PE by the network from everywhere if some PE has no other way, and that is
// wanted.
func (r *routes) sameWay() {
	if !r.uniform || len(r.transports) < 2 {
		return
	}
	for pe := range r.job.size {
		all := true
		for _, row := range r.matrix {
			all = all && row[pe]&2 != 0
		}
		if !all && r.reach[1][pe]&transport.AMO == transport.AMO {
			r.choice.AMO[pe] = 1
		}
	}
}

// noAtomics is the error of an atomic operation on a PE that no transport does them on, nil if one does.
func (r *routes) noAtomics(op string, pe int) error {
	if r.choice.AMO[pe] >= 0 {
		return nil
	}
	return fault(layout.StatusSupport, op, pe, "nothing here does atomic operations on its memory")
}

// notMapped is the error of a PE without a GPU about one whose memory it does not map, which Init refuses.
func notMapped(op string, pe int) error {
	return fault(layout.StatusSupport, op, pe, "its memory is not mapped here, and PEs without a GPU need that")
}

// Ptr returns where an address of the heap is in another PE's heap, as loads and stores reach it; 0 if they do not, or
// if there is no such PE.
func (r *routes) Ptr(address uint64, pe int) uint64 {
	offset := address - r.heap.heapBase
	if offset >= r.heap.heapBytes || pe < 0 || pe >= r.job.size || r.mapped[pe] == 0 || r.job.closed.Load() {
		return 0
	}
	return r.mapped[pe] + offset
}

// transportName is the name of a transport of choice, "" for none.
func (r *routes) transportName(index int) string {
	if index == transport.None {
		return ""
	}
	return r.transports[index].Name()
}

// register makes a piece of this PE's heap reachable, and returns what the others need for that, by transport.
func (r *routes) register(c transport.Chunk) (blobs [][]byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		blob, err := t.Register(c)
		if err != nil {
			return nil, fmt.Errorf("%s: register %d bytes of heap: %w", t.Name(), c.Bytes, err)
		}
		blobs = append(blobs, blob)
	}
	return blobs, nil
}

// attach makes the others' pieces of an index reachable. from gives what a PE's register returned for a transport. All
// transports attach, also after an error of one, so that detach undoes the same everywhere.
func (r *routes) attach(index int, from func(pe, transport int) []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failure error
	for i, t := range r.transports {
		blobs := make([][]byte, r.job.size)
		for pe := range blobs {
			blobs[pe] = from(pe, i)
		}
		if err := t.Attach(index, blobs); err != nil && failure == nil {
			failure = fmt.Errorf("%s: %w", t.Name(), err)
		}
	}
	return failure
}

// detach undoes register and attach of a piece.
func (r *routes) detach(index int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, t := range r.transports {
		if err := t.Detach(index); err != nil {
			errs = append(errs, fmt.Errorf("%s: detach a piece of the heap: %w", t.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// registerLocal registers memory outside of the heap with the transports that need it. entries is how many
// registrations kernels must look at from now on.
func (r *routes) registerLocal(address, bytes uint64) (entries uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, t := range r.transports {
		l, ok := t.(transport.LocalRegistrar)
		if !ok {
			continue
		}
		n, err := l.RegisterLocal(address, bytes)
		if err != nil {
			return 0, errors.Join(err, r.unregisterLocked(r.transports[:i], address))
		}
		entries = max(entries, n)
	}
	return entries, nil
}

func (r *routes) unregisterLocal(address uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unregisterLocked(r.transports, address)
}

func (r *routes) unregisterLocked(transports []transport.Transport, address uint64) error {
	var errs []error
	for _, t := range transports {
		if l, ok := t.(transport.LocalRegistrar); ok {
			errs = append(errs, l.UnregisterLocal(address))
		}
	}
	return errors.Join(errs...)
}

// resident says whether a kernel of the network transport runs on the GPU until that is closed.
func (r *routes) resident() bool {
	return slices.ContainsFunc(r.transports, func(t transport.Transport) bool {
		n, ok := t.(*ibgda.Transport)
		return ok && n.Kind() == ibgda.GPU
	})
}

// close detaches these pieces of the heap, and closes the transports.
func (r *routes) close(pieces []int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, t := range slices.Backward(r.transports) {
		for _, index := range pieces {
			errs = append(errs, t.Detach(index))
		}
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
