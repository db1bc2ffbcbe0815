package shmem

import (
	"encoding/binary"
	"math"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// Barrier waits until all members of a team are at the same call and all that their hosts and ended kernels sent has arrived.
// It does not wait for streams, nor take part in what the team does there. The other blocking collective calls do: what the
// team does on streams must have ended before them.
func (p *PE) Barrier(team TeamID) error {
	return p.blocking("barrier", team, func(stream uintptr) error { return p.collectiveOf(kernels.Barrier, team, true, collect{}, stream) })
}

// Sync waits until all members of a team are at the same call.
func (p *PE) Sync(team TeamID) error {
	return p.blocking("sync", team, func(stream uintptr) error { return p.collectiveOf(kernels.Sync, team, true, collect{}, stream) })
}

// BarrierAll is Barrier of all PEs.
func (p *PE) BarrierAll() error { return p.Barrier(World) }

// SyncAll is Sync of all PEs.
func (p *PE) SyncAll() error { return p.Sync(World) }

// Broadcast is BroadcastOnStream that waits for the end.
func (p *PE) Broadcast(team TeamID, dest, source, bytes uint64, root int) error {
	return p.blocking("broadcast", team, func(stream uintptr) error { return p.BroadcastOnStream(team, dest, source, bytes, root, stream) })
}

// FCollect is FCollectOnStream that waits for the end.
func (p *PE) FCollect(team TeamID, dest, source, bytes uint64) error {
	return p.blocking("fcollect", team, func(stream uintptr) error { return p.FCollectOnStream(team, dest, source, bytes, stream) })
}

// AllToAll is AllToAllOnStream that waits for the end.
func (p *PE) AllToAll(team TeamID, dest, source, bytes uint64) error {
	return p.blocking("alltoall", team, func(stream uintptr) error { return p.AllToAllOnStream(team, dest, source, bytes, stream) })
}

// Reduce is ReduceOnStream that waits for the end.
func (p *PE) Reduce(team TeamID, kind, reduction uint32, dest, source, n uint64) error {
	return p.blocking("reduce", team, func(stream uintptr) error { return p.ReduceOnStream(team, kind, reduction, dest, source, n, stream) })
}

// ReduceScatter is ReduceScatterOnStream that waits for the end.
func (p *PE) ReduceScatter(team TeamID, kind, reduction uint32, dest, source, n uint64) error {
	return p.blocking("reducescatter", team, func(stream uintptr) error {
		return p.ReduceScatterOnStream(team, kind, reduction, dest, source, n, stream)
	})
}

// blocking runs a collective operation on the team's own stream and waits for it. It waits for other PEs, so that it holds
// nothing that another team's calls or one-sided calls need; calls of one team are done one after the other.
func (p *PE) blocking(op string, id TeamID, run func(stream uintptr) error) error {
	if p.plain() { // which does that itself
		if err := run(0); err != nil {
			return err
		}
		return p.check(op)
	}
	if err := p.check(op); err != nil {
		return err
	}
	t, err := p.team(op, id)
	if err != nil {
		return err
	}
	t.blocking.Lock()
	defer t.blocking.Unlock()
	if err := p.begin(op, t); err != nil {
		return err
	}
	if err := run(t.stream); err != nil {
		return err
	}
	return p.finish(op, t.stream)
}

// begin makes a team's stream if it is the first to need it, and waits for what the PE's own stream still has to send: a
// collective call tells others that all of that is there. t.blocking is held.
func (p *PE) begin(op string, t *team) error {
	if t.ended {
		return p.gone(op, t)
	}
	return wrap(op, p.ctx.Do(func() (err error) {
		if t.stream == 0 {
			if t.stream, err = p.d.StreamCreate(cuda.StreamNonBlocking); err != nil {
				return err
			}
		}
		p.hot.serial.Lock()
		defer p.hot.serial.Unlock()
		return p.d.StreamSynchronize(p.hot.stream)
	}))
}

// gone is the error of a call that waited for another of its team until that ended.
func (p *PE) gone(op string, t *team) error {
	if err := p.check(op); err != nil {
		return err
	}
	return p.noTeam(op, t.id)
}

// end ends a team's blocking calls: one under way is waited for, later ones fail.
func (p *PE) end(t *team) error {
	t.blocking.Lock()
	defer t.blocking.Unlock()
	t.ended = true
	if t.stream == 0 {
		return nil
	}
	stream := t.stream
	t.stream = 0
	return p.ctx.Do(func() error { return p.d.StreamDestroy(stream) })
}

// plainCollective does a collective operation of PEs without GPUs: each reads what it needs of the others between two
// exchanges, in the first of which all say that their source is ready, in the second that they have read.
func (p *PE) plainCollective(op kernels.Operation, t *team, a collect) error {
	name := op.String()
	t.blocking.Lock()
	defer t.blocking.Unlock()
	if t.ended {
		return p.gone(name, t)
	}
	meet := func() error {
		mine := binary.LittleEndian.AppendUint64(nil, uint64(op)<<32|uint64(t.id))
		mine = binary.LittleEndian.AppendUint64(mine, a.bytes)
		all, err := p.exchangeIn(name, t, mine)
		if err != nil {
			return err
		}
		for i, b := range all {
			if string(b[:len(mine)]) != string(mine) {
				return fault(layout.StatusArgument, name, t.members[i], "it calls another operation, or with another size")
			}
		}
		return nil
	}
	if op == kernels.Sync || op == kernels.Barrier {
		return meet()
	}
	n := uint64(len(t.members))
	me := uint64(t.entry.Index)
	if op == kernels.Broadcast && uint64(a.root) >= n {
		return fault(layout.StatusArgument, name, -1, "broadcast from member %d of %d", a.root, n)
	}
	reduces := op == kernels.Reduce || op == kernels.ReduceScatter
	if reduces && (a.reduction >= layout.Reductions || a.kind >= layout.TypeFloat16 && a.reduction >= layout.ReduceAnd) {
		return fault(layout.StatusArgument, name, -1, "reduction %d of type %d", a.reduction, a.kind)
	}
	if reduces && (a.kind == layout.TypeFloat16 || a.kind == layout.TypeBFloat16) {
		return fault(layout.StatusSupport, name, -1, "no reduction of 16-bit floating-point numbers without a GPU")
	}
	for _, pe := range t.members {
		if p.mapped[pe] == 0 {
			return p.notMapped(name, pe)
		}
	}
	if err := meet(); err != nil {
		return err
	}
	at := func(i, offset uint64) []byte {
		return cuda.Bytes(p.mapped[t.members[i]]+a.source-p.heapBase+offset, a.bytes)
	}
	out := make([]byte, a.bytes) // the destination may be somebody's source until all have read
	switch op {
	case kernels.Broadcast:
		copy(out, at(uint64(a.root), 0))
	case kernels.Fcollect, kernels.Alltoall:
		out = make([]byte, n*a.bytes)
		for i := range n {
			offset := uint64(0)
			if op == kernels.Alltoall {
				offset = me * a.bytes
			}
			copy(out[i*a.bytes:], at(i, offset))
		}
	default:
		offset := uint64(0)
		if op == kernels.ReduceScatter {
			offset = me * a.bytes
		}
		copy(out, at(0, offset))
		for i := uint64(1); i < n; i++ {
			reduce(out, at(i, offset), a.kind, a.reduction)
		}
	}
	if err := meet(); err != nil {
		return err
	}
	copy(cuda.Bytes(a.dest, uint64(len(out))), out)
	return nil
}

// reduce combines elements of from into to.
func reduce(to, from []byte, kind, operation uint32) {
	size := kernels.TypeBytes(kind)
	for i := 0; i+size <= len(to); i += size {
		a, b := element(to[i:], size), element(from[i:], size)
		var v uint64
		switch kind {
		case layout.TypeFloat32:
			v = uint64(math.Float32bits(reduceReal(math.Float32frombits(uint32(a)), math.Float32frombits(uint32(b)), operation)))
		case layout.TypeFloat64:
			v = math.Float64bits(reduceReal(math.Float64frombits(a), math.Float64frombits(b), operation))
		default:
			v = reduceInteger(kind, a, b, operation)
		}
		for j := range size {
			to[i+j] = byte(v >> (8 * j))
		}
	}
}

func element(b []byte, size int) (v uint64) {
	for i, x := range b[:size] {
		v |= uint64(x) << (8 * i)
	}
	return v
}

func reduceReal[T float32 | float64](a, b T, operation uint32) T {
	switch operation {
	case layout.ReduceProd:
		return a * b
	case layout.ReduceMin:
		return min(a, b)
	case layout.ReduceMax:
		return max(a, b)
	}
	return a + b
}

func reduceInteger(kind uint32, a, b uint64, operation uint32) uint64 {
	switch operation {
	case layout.ReduceSum:
		return a + b
	case layout.ReduceProd:
		return a * b
	case layout.ReduceAnd:
		return a & b
	case layout.ReduceOr:
		return a | b
	case layout.ReduceXor:
		return a ^ b
	case layout.ReduceMin:
		if compares(kind, layout.CompareLT, b, a) {
			return b
		}
	case layout.ReduceMax:
		if compares(kind, layout.CompareGT, b, a) {
			return b
		}
	}
	return a
}
