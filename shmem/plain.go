package shmem

import (
	"encoding/binary"
	"math"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// Collective operations of PEs without GPUs.

// runPlain does a collective operation by the host's processor. Each member reads what it needs of the others between
// two exchanges: in the first all say that their source is ready, in the second that they have read.
func (c *collectives) runPlain(op kernels.Operation, t *team, a collect) error {
	name := op.String()
	t.blocking.Lock()
	defer t.blocking.Unlock()
	if t.ended {
		return c.teams.ended(name, t)
	}
	if op == kernels.Sync || op == kernels.Barrier {
		return c.exchange(op, t, a)
	}
	if err := checkPlain(op, len(t.members), a); err != nil {
		return err
	}
	for _, pe := range t.members {
		if c.routes.mapped[pe] == 0 {
			return notMapped(name, pe)
		}
	}
	if err := c.exchange(op, t, a); err != nil {
		return err
	}
	out := c.compute(op, t, a) // the destination may be a member's source until all have read
	if err := c.exchange(op, t, a); err != nil {
		return err
	}
	copy(cuda.Bytes(a.dest, uint64(len(out))), out)
	return nil
}

// exchange waits until all members are at the same operation. The caller holds t.blocking.
func (c *collectives) exchange(op kernels.Operation, t *team, a collect) error {
	mine := binary.LittleEndian.AppendUint64(nil, uint64(op)<<32|uint64(t.id))
	mine = binary.LittleEndian.AppendUint64(mine, a.bytes)
	all, err := c.teams.mail.exchangeIn(op.String(), t, mine)
	if err != nil {
		return err
	}
	for i, b := range all {
		if string(b[:len(mine)]) != string(mine) {
			return fault(layout.StatusArgument, op.String(), t.members[i], "it calls another operation, or with another size")
		}
	}
	return nil
}

// checkPlain checks the arguments of an operation of n members that moves data.
func checkPlain(op kernels.Operation, n int, a collect) error {
	name := op.String()
	if op == kernels.Broadcast && uint64(a.root) >= uint64(n) {
		return fault(layout.StatusArgument, name, -1, "broadcast from member %d of %d", a.root, n)
	}
	if op != kernels.Reduce && op != kernels.ReduceScatter {
		return nil
	}
	if a.reduction >= layout.Reductions || a.kind >= layout.TypeFloat16 && a.reduction >= layout.ReduceAnd {
		return fault(layout.StatusArgument, name, -1, "reduction %d of type %d", a.reduction, a.kind)
	}
	if a.kind == layout.TypeFloat16 || a.kind == layout.TypeBFloat16 {
		return fault(layout.StatusSupport, name, -1, "no reduction of 16-bit floating-point numbers without a GPU")
	}
	return nil
}

// compute is this member's result, from the members' sources.
func (c *collectives) compute(op kernels.Operation, t *team, a collect) []byte {
	n, me := uint64(len(t.members)), uint64(t.entry.Index)
	at := func(i, offset uint64) []byte {
		return cuda.Bytes(c.routes.mapped[t.members[i]]+a.source-c.heap.heapBase+offset, a.bytes)
	}
	offset := uint64(0) // of this member's piece in each source
	if op == kernels.Alltoall || op == kernels.ReduceScatter {
		offset = me * a.bytes
	}
	switch op {
	case kernels.Broadcast:
		return append([]byte(nil), at(uint64(a.root), 0)...)
	case kernels.Fcollect, kernels.Alltoall:
		out := make([]byte, 0, n*a.bytes)
		for i := range n {
			out = append(out, at(i, offset)...)
		}
		return out
	}
	out := append([]byte(nil), at(0, offset)...)
	for i := uint64(1); i < n; i++ {
		reduce(out, at(i, offset), a.kind, a.reduction)
	}
	return out
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
		putElement(to[i:i+size], v)
	}
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
