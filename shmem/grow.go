package shmem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// How the heap grows and shrinks: at all PEs, or at none.

// together makes sure that all PEs made the same call and that it succeeded at all of them, and returns each PE's
// blobs. failure is what failed here. The error is the same at all PEs, except for the PE that it names as the caller.
func (h *symmetricHeap) together(ctx context.Context, r request, failure error, blobs [][]byte) ([][][]byte, error) {
	op := r.op.String()
	failure = wrap(op, failure) // so that the others get its status
	all, err := h.job.b.AllGather(ctx, r.message(failure, blobs))
	if err != nil {
		return nil, errors.Join(failure, wrap(op, err))
	}
	out := make([][][]byte, h.job.size)
	var first error
	for pe, m := range all {
		theirs, err := h.answer(r, pe, m, len(blobs))
		if err != nil && first == nil {
			first = err
		}
		out[pe] = theirs
	}
	if failure != nil { // this PE's own error has its whole chain
		return nil, failure
	}
	if first != nil {
		return nil, first
	}
	for pe := range out {
		if len(out[pe]) != len(blobs) {
			return nil, fault(layout.StatusSystem, op, pe, "%w: %d parts, here are %d", transport.ErrBlob, len(out[pe]), len(blobs))
		}
	}
	return out, nil
}

// answer reads what a PE says about a call: its blobs, or the error that it has or that its call differs.
func (h *symmetricHeap) answer(r request, pe int, message []byte, blobs int) ([][]byte, error) {
	op := r.op.String()
	got, status, blame, text, theirs, err := parseMessage(message, blobs)
	switch {
	case err != nil:
		return nil, fault(layout.StatusSystem, op, pe, "%w", err)
	case got != r:
		return nil, fault(layout.StatusArgument, op, pe, "the PEs do not make the same call: PE %d: %v; PE %d: %v",
			h.job.rank, r, pe, got)
	case status != layout.StatusOK:
		if blame < 0 || blame >= h.job.size {
			blame = pe // the PE that has the error
		}
		return nil, fault(status, op, blame, "%s", text)
	}
	return theirs, nil
}

// grow carries out a plan at all PEs, or at none. foreign is the program's buffer, 0 for new memory. The caller holds
// mu.
func (h *symmetricHeap) grow(ctx context.Context, r request, plan *heap.Plan, foreign uint64) error {
	begun := time.Now()
	made, blobs, failure := h.makeExtents(plan.Extents, foreign)
	all, err := h.together(ctx, r, failure, blobs)
	if err != nil { // no PE has attached anything
		h.detachAll(made)
		h.destroyAll(made)
		return err
	}
	each := len(h.routes.transports)
	failure = nil
	for i := range made {
		// After an error the others are left out: a peer that does not answer would be waited for again.
		if failure = h.routes.attach(made[i].Index, func(pe, transport int) []byte { return all[pe][i*each+transport] }); failure != nil {
			break
		}
	}
	if _, err := h.together(ctx, r, failure, nil); err != nil {
		h.detachAll(made)
		if h.job.lost.Load() == nil { // all detach before any PE releases
			if err := h.job.b.Barrier(ctx); err != nil {
				h.job.log.Debug("barrier after an error", "pe", h.job.rank, "error", err)
			}
		}
		h.destroyAll(made)
		return err
	}
	for _, c := range made {
		h.chunks[c.Offset] = c
	}
	h.space.Commit(plan)
	h.publish()
	h.grown++
	h.growTime += time.Since(begun)
	return nil
}

// makeExtents gives extents their memory and registers it. Also with an error it returns what it has made.
func (h *symmetricHeap) makeExtents(extents []heap.Extent, foreign uint64) (made []transport.Chunk, blobs [][]byte, err error) {
	for _, e := range extents {
		var c transport.Chunk
		if e.Foreign {
			c, err = h.mem.foreign(e, foreign)
		} else {
			c, err = h.mem.create(e)
		}
		if err != nil {
			return made, nil, err
		}
		made = append(made, c)
		more, err := h.routes.register(c)
		if err != nil {
			return made, nil, err
		}
		blobs = append(blobs, more...)
	}
	return made, blobs, nil
}

func (h *symmetricHeap) detachAll(made []transport.Chunk) {
	for _, c := range made {
		if err := h.routes.detach(c.Index); err != nil {
			h.job.log.Warn("detach after an error", "pe", h.job.rank, "error", err)
		}
	}
}

func (h *symmetricHeap) destroyAll(made []transport.Chunk) {
	for _, c := range made {
		if err := h.mem.destroy(c); err != nil {
			h.job.log.Warn("free heap memory after an error", "pe", h.job.rank, "error", err)
		}
	}
}

// publish makes known to all calls where the heap has memory. The caller holds mu.
func (h *symmetricHeap) publish() {
	x := h.space.Extents()
	h.held.Store(&x)
}

// shrink gives unused extents back at all PEs. The caller holds mu, and all PEs have the same extents unused.
func (h *symmetricHeap) shrink(ctx context.Context, extents []heap.Extent) error {
	if len(extents) == 0 {
		return nil
	}
	var errs []error
	for _, e := range extents {
		if err := h.routes.detach(h.chunks[e.Offset].Index); err != nil {
			errs = append(errs, fmt.Errorf("%d bytes: %w", e.Bytes, err))
		}
	}
	if err := h.job.b.Barrier(ctx); err != nil {
		return wrap("free", errors.Join(append(errs, err)...))
	}
	for _, e := range extents {
		errs = append(errs, h.mem.destroy(h.chunks[e.Offset]))
		delete(h.chunks, e.Offset)
	}
	errs = append(errs, h.space.Drop(extents))
	h.publish()
	h.shrunk++
	return wrap("free", errors.Join(errs...))
}
