package shmem

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// tables are the PE's own small memory that its kernels read and count in: the peers' addresses, teams, counters. It is
// memory of the GPU, or of the machine without one.
type tables struct {
	ctx                                         *cuda.Context
	base, bytes                                 uint64
	peers, remote, teams, lists, counters, self uint64 // addresses
	pes                                         int
}

func newTables(ctx *cuda.Context, pes, teams int) (*tables, error) {
	t := &tables{ctx: ctx, pes: pes}
	at := uint64(0)
	take := func(bytes int) uint64 {
		start := at
		at = (at + uint64(bytes) + 255) &^ 255
		return start
	}
	t.teams = take(layout.MaxTeams * teamBytes)
	t.counters = take(2 * teams * layout.CounterBytes) // those of blocking calls after the others
	t.self = take(int(unsafe.Sizeof(layout.State{})))
	t.peers = take(pes * 8)
	t.remote = take(pes * 8)
	t.lists = take(teams * pes * 4)
	t.bytes = (at + 4095) &^ 4095
	var err error
	if ctx == nil {
		t.base, err = p2p.AllocateHost(t.bytes)
	} else {
		err = ctx.Do(func() (err error) {
			t.base, err = ctx.D.Alloc(t.bytes)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%d bytes for tables: %w", t.bytes, err)
	}
	for _, p := range []*uint64{&t.teams, &t.counters, &t.self, &t.peers, &t.remote, &t.lists} {
		*p += t.base
	}
	return t, nil
}

func (t *tables) free() error {
	if t == nil || t.base == 0 {
		return nil
	}
	base := t.base
	t.base = 0
	if t.ctx == nil {
		return p2p.ReleaseHost(base, t.bytes)
	}
	return t.ctx.Do(func() error { return t.ctx.D.Free(base) })
}

// showLocals tells kernels, also those that run already, how many registered buffers they must look at: in the state's
// copy that the network path reads.
func (t *tables) showLocals(x *executor, entries uint32) error {
	return x.write(t.self+uint64(unsafe.Offsetof(layout.State{}.LocalCount)), binary.LittleEndian.AppendUint32(nil, entries))
}
