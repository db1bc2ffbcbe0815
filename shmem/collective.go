package shmem

import (
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// collectives are the operations of all members of a team, blocking and in the order of a stream. Each team's blocking
// operations have the team's own stream and lock.
type collectives struct {
	job    *job
	exec   *executor
	routes *routes
	heap   *symmetricHeap
	teams  *teams
}

// Barrier waits until all members of a team are at the same call and all that their hosts and ended kernels sent has
// arrived. It does not wait for streams, and takes no part in what the team does there. For the other blocking
// collective calls, what the team does on streams must have ended before them.
func (c *collectives) Barrier(team TeamID) error { return c.meet(kernels.Barrier, team) }

// Sync waits until all members of a team are at the same call.
func (c *collectives) Sync(team TeamID) error { return c.meet(kernels.Sync, team) }

// BarrierAll is Barrier of all PEs.
func (c *collectives) BarrierAll() error { return c.Barrier(World) }

// SyncAll is Sync of all PEs.
func (c *collectives) SyncAll() error { return c.Sync(World) }

// Broadcast is BroadcastOnStream that waits for the end.
func (c *collectives) Broadcast(team TeamID, dest, source, bytes uint64, root int) error {
	return c.blocking("broadcast", team, func(stream uintptr) error {
		return c.BroadcastOnStream(team, dest, source, bytes, root, stream)
	})
}

// FCollect is FCollectOnStream that waits for the end.
func (c *collectives) FCollect(team TeamID, dest, source, bytes uint64) error {
	return c.blocking("fcollect", team, func(stream uintptr) error {
		return c.FCollectOnStream(team, dest, source, bytes, stream)
	})
}

// AllToAll is AllToAllOnStream that waits for the end.
func (c *collectives) AllToAll(team TeamID, dest, source, bytes uint64) error {
	return c.blocking("alltoall", team, func(stream uintptr) error {
		return c.AllToAllOnStream(team, dest, source, bytes, stream)
	})
}

// Reduce is ReduceOnStream that waits for the end.
func (c *collectives) Reduce(team TeamID, kind, reduction uint32, dest, source, n uint64) error {
	return c.blocking("reduce", team, func(stream uintptr) error {
		return c.ReduceOnStream(team, kind, reduction, dest, source, n, stream)
	})
}

// ReduceScatter is ReduceScatterOnStream that waits for the end.
func (c *collectives) ReduceScatter(team TeamID, kind, reduction uint32, dest, source, n uint64) error {
	return c.blocking("reducescatter", team, func(stream uintptr) error {
		return c.ReduceScatterOnStream(team, kind, reduction, dest, source, n, stream)
	})
}

// meet is a blocking barrier or sync. These have counters of their own: see team.host.
func (c *collectives) meet(op kernels.Operation, id TeamID) error {
	return c.blocking(op.String(), id, func(stream uintptr) error {
		t, err := c.teams.team(op.String(), id)
		if err != nil {
			return err
		}
		return c.run(op, t, &t.host, collect{}, stream)
	})
}

// blocking runs a collective operation on the team's own stream and waits for it. It waits for other PEs, so that it
// holds nothing that another team's calls or one-sided calls need. Calls of one team are done one after the other.
func (c *collectives) blocking(op string, id TeamID, run func(stream uintptr) error) error {
	if c.exec.plain() { // run takes the team's lock then
		if err := run(0); err != nil {
			return err
		}
		return c.job.check(op)
	}
	if err := c.job.check(op); err != nil {
		return err
	}
	t, err := c.teams.team(op, id)
	if err != nil {
		return err
	}
	t.blocking.Lock()
	defer t.blocking.Unlock()
	if t.ended {
		return c.teams.ended(op, t)
	}
	if err := t.begin(op, c.exec); err != nil {
		return err
	}
	if err := run(t.stream); err != nil {
		return err
	}
	return c.exec.finish(op, t.stream)
}

// BarrierOnStream holds a stream until those of all members of a team are at the same call, and all that they sent has
// arrived.
func (c *collectives) BarrierOnStream(team TeamID, stream uintptr) error {
	return c.onStream(kernels.Barrier, team, collect{}, stream)
}

// SyncOnStream is BarrierOnStream for the calls alone: what was sent through queues may still be on its way.
func (c *collectives) SyncOnStream(team TeamID, stream uintptr) error {
	return c.onStream(kernels.Sync, team, collect{}, stream)
}

// BroadcastOnStream copies bytes from the root's source to everybody's dest. root is an index in the team.
func (c *collectives) BroadcastOnStream(team TeamID, dest, source, bytes uint64, root int, stream uintptr) error {
	a := collect{dest: dest, source: source, bytes: bytes, root: uint32(root)}
	return c.data(kernels.Broadcast, team, a, 1, 1, stream)
}

// FCollectOnStream gathers bytes from every member's source in the order of the team at everybody's dest.
func (c *collectives) FCollectOnStream(team TeamID, dest, source, bytes uint64, stream uintptr) error {
	return c.data(kernels.Fcollect, team, collect{dest: dest, source: source, bytes: bytes}, -1, 1, stream)
}

// AllToAllOnStream sends the i-th piece of bytes of every member's source to member i, which puts the pieces in the
// order of the team.
func (c *collectives) AllToAllOnStream(team TeamID, dest, source, bytes uint64, stream uintptr) error {
	return c.data(kernels.Alltoall, team, collect{dest: dest, source: source, bytes: bytes}, -1, -1, stream)
}

// ReduceOnStream combines the members' n elements of a type (layout.Type*) by an operation (layout.Reduce*), for all.
func (c *collectives) ReduceOnStream(team TeamID, kind, reduction uint32, dest, source, n uint64, stream uintptr) error {
	bytes, err := elements("reduce", kind, n)
	if err != nil {
		return err
	}
	a := collect{dest: dest, source: source, bytes: bytes, kind: kind, reduction: reduction}
	return c.data(kernels.Reduce, team, a, 1, 1, stream)
}

// ReduceScatterOnStream combines the members' elements, n for each member, and gives each its part.
func (c *collectives) ReduceScatterOnStream(team TeamID, kind, reduction uint32, dest, source, n uint64, stream uintptr) error {
	bytes, err := elements("reducescatter", kind, n)
	if err != nil {
		return err
	}
	a := collect{dest: dest, source: source, bytes: bytes, kind: kind, reduction: reduction}
	return c.data(kernels.ReduceScatter, team, a, 1, -1, stream)
}

// elements is the size of n elements of a type.
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

// data checks the ranges of a collective operation, of which dest and source are this many times bytes (-1: once for
// each member), and runs it.
func (c *collectives) data(op kernels.Operation, id TeamID, a collect, dests, sources int, stream uintptr) error {
	t, err := c.teams.team(op.String(), id)
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
			if a.bytes > c.heap.heapBytes || !c.heap.holds(r.at, times*a.bytes) {
				return fault(layout.StatusArgument, op.String(), -1,
					"%d times %d bytes at %#x are not in the symmetric heap, or nothing is allocated there", times, a.bytes, r.at)
			}
		}
	}
	return c.onStream(op, id, a, stream)
}

// onStream runs a collective operation on a stream.
func (c *collectives) onStream(op kernels.Operation, id TeamID, a collect, stream uintptr) error {
	if err := c.job.check(op.String()); err != nil {
		return err
	}
	t, err := c.teams.team(op.String(), id)
	if err != nil {
		return err
	}
	return c.run(op, t, &t.entry, a, stream)
}

// run runs a collective operation on a stream. entry is the team's, or the one for its blocking calls.
func (c *collectives) run(op kernels.Operation, t *team, entry *layout.Team, a collect, stream uintptr) error {
	if c.exec.plain() {
		return c.runPlain(op, t, a)
	}
	return c.exec.launcher.runCollective(op, entry, a, stream)
}
