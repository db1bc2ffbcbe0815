package shmem

import (
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// Operations in the order of a stream. They return when the work is queued; what cannot be queued is an error now, what goes
// wrong then is found by Err and by the next call. A stream may be being captured. To a PE whose memory is mapped, copies are
// the driver's copies and signals its stream writes; to others, and for what the driver has no operation for, a small kernel
// does it. A plain CPU PE has no streams: its calls do the work at once.

// PutOnStream copies bytes from a local address to dest in a PE's heap.
func (p *PE) PutOnStream(dest, source, bytes uint64, pe int, stream uintptr) error {
	const op = "put_on_stream"
	to, err := p.target(op, dest, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	if to == 0 {
		return p.kernel(op, kernels.Put, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, stream)
	}
	if err := p.copyOn(to, source, bytes, stream); err != nil {
		return wrap(op, err)
	}
	return nil
}

// GetOnStream copies bytes from source in a PE's heap to a local address.
func (p *PE) GetOnStream(dest, source, bytes uint64, pe int, stream uintptr) error {
	const op = "get_on_stream"
	from, err := p.target(op, source, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	if from == 0 {
		return p.kernel(op, kernels.Get, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)}, stream)
	}
	if err := p.copyOn(dest, from, bytes, stream); err != nil {
		return wrap(op, err)
	}
	return nil
}

// POnStream writes one element of 1, 2, 4 or 8 bytes, given by its bits, to dest in a PE's heap.
func (p *PE) POnStream(dest, value uint64, size, pe int, stream uintptr) error {
	const op = "p_on_stream"
	if err := width(op, size); err != nil {
		return err
	}
	to, err := p.target(op, dest, uint64(size), pe)
	if err != nil {
		return err
	}
	if to == 0 {
		if size < 4 {
			return fault(layout.StatusSupport, op, pe, "the network writes elements of 4 and 8 bytes from values; put them from memory")
		}
		return p.kernel(op, kernels.Atomic, with{dest: dest, value: value, pe: uint32(pe), code: layout.AtomicSet, kind: unsigned(size)}, stream)
	}
	if p.ctx == nil {
		storeElement(to, value, size)
		return nil
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return wrap(op, err)
	}
	defer p.ctx.Leave(entered)
	switch {
	case size == 8 && dest%8 == 0 && p.memops:
		err = p.d.WriteValue64(stream, to, value)
	case size == 4 && dest%4 == 0 && p.memops:
		err = p.d.WriteValue32(stream, to, uint32(value))
	default:
		for i := 0; i < size && err == nil; i++ {
			err = p.d.SetAsync(to+uint64(i), byte(value>>(8*i)), 1, stream)
		}
	}
	if err != nil {
		return wrap(op, err)
	}
	return nil
}

// SignalOpOnStream sets a signal word in a PE's heap or adds to it, after all that the stream did before.
func (p *PE) SignalOpOnStream(signal, value uint64, code uint32, pe int, stream uintptr) error {
	const op = "signal_op_on_stream"
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := p.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	return p.signalOn(op, to, signal, value, code, pe, stream)
}

// signalOn puts a signal on a stream; to is where the word is mapped, or 0.
func (p *PE) signalOn(op string, to, signal, value uint64, code uint32, pe int, stream uintptr) error {
	if p.ctx == nil {
		return p.signal(op, signal, value, code, pe)
	}
	if to == 0 || code != layout.SignalSet || !p.memops {
		if p.choice.AMO[pe] < 0 && code == layout.SignalAdd {
			return fault(layout.StatusSupport, op, pe, "nothing here does atomic operations on its memory")
		}
		return p.kernel(op, kernels.Signal, with{signal: signal, value: value, pe: uint32(pe), code: code}, stream)
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return wrap(op, err)
	}
	err = p.d.WriteValue64(stream, to, value)
	p.ctx.Leave(entered)
	if err != nil {
		return wrap(op, err)
	}
	return nil
}

// PutSignalOnStream is PutOnStream, then SignalOpOnStream on the same PE: who sees the signal sees the data.
func (p *PE) PutSignalOnStream(dest, source, bytes, signal, value uint64, code uint32, pe int, stream uintptr) error {
	const op = "put_signal_on_stream"
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := p.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	if to == 0 && bytes > 0 {
		if _, err := p.target(op, dest, bytes, pe); err != nil {
			return err
		}
		return p.kernel(op, kernels.PutSignal, with{dest: dest, source: source, bytes: bytes, signal: signal, value: value, pe: uint32(pe), code: code}, stream)
	}
	if err := p.PutOnStream(dest, source, bytes, pe, stream); err != nil {
		return err
	}
	return p.signalOn(op, to, signal, value, code, pe, stream)
}

// SignalWaitOnStream holds a stream until a signal word of this PE compares (layout.Compare*) to a value. It ends with an error
// in Err when a PE dies or the timeout passes, unless Config.StreamWaitMemop.
func (p *PE) SignalWaitOnStream(signal uint64, compare uint32, value uint64, stream uintptr) error {
	return p.WaitUntilOnStream(signal, layout.TypeUint64, compare, value, stream)
}

// WaitUntilOnStream holds a stream until an element of an integer type in this PE's heap compares to a value.
func (p *PE) WaitUntilOnStream(address uint64, kind, compare uint32, value uint64, stream uintptr) error {
	const op = "wait_until_on_stream"
	size, err := integer(op, kind, compare)
	if err != nil {
		return err
	}
	if _, err := p.target(op, address, uint64(size), p.rank); err != nil {
		return err
	}
	if p.ctx == nil {
		_, err := p.wait(op, address, kind, compare, value)
		return err
	}
	if p.c.StreamWaitMemop && p.memops && size == 8 && (compare == layout.CompareEQ || compare == layout.CompareGE) {
		condition := uint32(cuda.WaitEqual)
		if compare == layout.CompareGE {
			condition = cuda.WaitReached
		}
		entered, err := p.ctx.Enter()
		if err != nil {
			return wrap(op, err)
		}
		defer p.ctx.Leave(entered)
		if err := p.d.WaitValue64(stream, address, value, condition); err != nil {
			return wrap(op, err)
		}
		return nil
	}
	return p.kernel(op, kernels.Wait, with{dest: address, value: value, pe: uint32(p.rank), code: compare, kind: kind}, stream)
}

// QuietOnStream holds a stream until all that it and kernels that have ended sent to other PEs has arrived.
func (p *PE) QuietOnStream(stream uintptr) error {
	const op = "quiet_on_stream"
	if err := p.check(op); err != nil {
		return err
	}
	if !p.queued || p.ctx == nil { // a stream's operations on mapped memory are complete, one by one
		return nil
	}
	return p.kernel(op, kernels.Quiet, with{pe: layout.AllPEs}, stream)
}

// FenceOnStream orders a stream's operations on each PE.
func (p *PE) FenceOnStream(stream uintptr) error { return p.QuietOnStream(stream) }

// BarrierOnStream holds a stream until those of all members of a team are at the same call, and all that they sent has arrived.
func (p *PE) BarrierOnStream(team TeamID, stream uintptr) error {
	return p.collective(kernels.Barrier, team, collect{}, stream)
}

// SyncOnStream is BarrierOnStream for the calls alone: what was sent through queues may still be under way.
func (p *PE) SyncOnStream(team TeamID, stream uintptr) error {
	return p.collective(kernels.Sync, team, collect{}, stream)
}

// BroadcastOnStream copies bytes from the root's source to everybody's dest. root is an index in the team.
func (p *PE) BroadcastOnStream(team TeamID, dest, source, bytes uint64, root int, stream uintptr) error {
	return p.data(kernels.Broadcast, team, collect{dest: dest, source: source, bytes: bytes, root: uint32(root)}, 1, 1, stream)
}

// FCollectOnStream gathers bytes from every member's source in the order of the team at everybody's dest.
func (p *PE) FCollectOnStream(team TeamID, dest, source, bytes uint64, stream uintptr) error {
	return p.data(kernels.Fcollect, team, collect{dest: dest, source: source, bytes: bytes}, -1, 1, stream)
}

// AllToAllOnStream sends the i-th piece of bytes of every member's source to member i, which puts them in the order of the team.
func (p *PE) AllToAllOnStream(team TeamID, dest, source, bytes uint64, stream uintptr) error {
	return p.data(kernels.Alltoall, team, collect{dest: dest, source: source, bytes: bytes}, -1, -1, stream)
}

// ReduceOnStream combines the members' n elements of a type (layout.Type*) by an operation (layout.Reduce*), for all.
func (p *PE) ReduceOnStream(team TeamID, kind, reduction uint32, dest, source, n uint64, stream uintptr) error {
	bytes, err := elements("reduce", kind, n)
	if err != nil {
		return err
	}
	return p.data(kernels.Reduce, team, collect{dest: dest, source: source, bytes: bytes, kind: kind, reduction: reduction}, 1, 1, stream)
}

// ReduceScatterOnStream combines the members' elements, n for each member, and gives each its part.
func (p *PE) ReduceScatterOnStream(team TeamID, kind, reduction uint32, dest, source, n uint64, stream uintptr) error {
	bytes, err := elements("reducescatter", kind, n)
	if err != nil {
		return err
	}
	return p.data(kernels.ReduceScatter, team, collect{dest: dest, source: source, bytes: bytes, kind: kind, reduction: reduction}, 1, -1, stream)
}

func elements(op string, kind uint32, n uint64) (uint64, error) {
	size := uint64(kernels.TypeBytes(kind))
	if size == 0 {
		return 0, fault(layout.StatusArgument, op, -1, "there is no type %d", kind)
	}
	if n > 1<<46/size {
		return 0, fault(layout.StatusArgument, op, -1, "%d elements of %d bytes are more than any heap has", n, size)
	}
	return n * size, nil
}

// data checks the ranges of a collective operation, of which dest and source are this many times bytes (-1: once for each
// member), and runs it.
func (p *PE) data(op kernels.Operation, id TeamID, a collect, dests, sources int, stream uintptr) error {
	t, err := p.team(op.String(), id)
	if err != nil {
		return err
	}
	if a.bytes > 0 {
		for _, r := range [2]struct {
			at    uint64
			times int
		}{{a.dest, dests}, {a.source, sources}} {
			times := uint64(1)
			if r.times < 0 {
				times = uint64(len(t.members))
			}
			if a.bytes > p.heapBytes || !p.own(r.at, times*a.bytes) {
				return fault(layout.StatusArgument, op.String(), -1, "%d times %d bytes at %#x are not in the symmetric heap, or nothing is allocated there", times, a.bytes, r.at)
			}
		}
	}
	return p.collective(op, id, a, stream)
}
