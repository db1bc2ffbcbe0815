package kernels_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

func TestPlans(t *testing.T) {
	for _, pes := range []uint32{1, 2, 3, 8, 61, 1000} {
		for _, direct := range []bool{true, false} {
			c := &kernels.Collective{Team: layout.Team{PEs: pes}, Type: layout.TypeUint8, Reduction: layout.ReduceSum}
			if direct {
				c.Team.Flags = layout.TeamDirect
			}
			for _, limit := range []int{1, 2, 16, 132, 1000} {
				for op := kernels.Sync; op <= kernels.ReduceScatter; op++ {
					for bytes := uint64(1); bytes < 1<<33; bytes = bytes*5/2 + 1 {
						c.Bytes = bytes
						l, err := c.Plan(op, limit)
						if err != nil {
							t.Fatal(err)
						}
						if l.Grid < 1 || int(l.Grid) > limit || l.Grid > layout.Channels || l.Block < 32 || l.Block > 512 || l.Block%32 != 0 {
							t.Fatalf("%v of %d bytes on %d PEs, limit %d: %+v", op, bytes, pes, limit, l)
						}
						if !has(l.Module, l.Function) {
							t.Fatalf("%v: module %s has no kernel %s", op, l.Module, l.Function)
						}
						if !direct && l.Grid > layout.LineChannels {
							t.Fatalf("%v on %d PEs: %d CTAs share the space of %d", op, pes, l.Grid, layout.LineChannels)
						}
						if c.Flags&kernels.CollectiveLines == 0 {
							continue
						}
						// Every channel sends something, or members would not hear from each other; no more than its lines hold.
						share := ((bytes+uint64(l.Grid)-1)/uint64(l.Grid) + 7) / 8 * 8
						if !direct || l.Grid > layout.LineChannels || share > uint64(layout.LineBytes(int(pes))) || share*uint64(l.Grid-1) >= bytes {
							t.Fatalf("%v of %d bytes on %d PEs in lines: %+v, %d bytes each", op, bytes, pes, l, share)
						}
					}
				}
			}
		}
	}
}

// entries are the kernels of modules, by module and name.
var entries = map[[2]string]bool{}

// has says whether a module has a kernel of that name.
func has(m kernels.Module, name string) bool {
	key := [2]string{string(m), name}
	found, known := entries[key]
	if !known {
		found = bytes.Contains(m.Image(), []byte(".entry "+name+"("))
		entries[key] = found
	}
	return found
}

func TestPlanAllocatesNothing(t *testing.T) {
	c := &kernels.Collective{Team: layout.Team{PEs: 2, Flags: layout.TeamDirect}, Bytes: 4096, Type: layout.TypeFloat32}
	r := &kernels.RMA{State: layout.State{PEs: 2}, Code: layout.SignalSet}
	n := testing.AllocsPerRun(100, func() {
		if _, err := c.Plan(kernels.Reduce, 4); err != nil {
			t.Error(err)
		}
		if _, err := r.Plan(kernels.Signal); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPlanRefuses(t *testing.T) {
	team := layout.Team{PEs: 2, Flags: layout.TeamDirect}
	for _, x := range []struct {
		what string
		op   kernels.Operation
		c    kernels.Collective
		max  int
	}{
		{"no CTAs", kernels.Sync, kernels.Collective{Team: team}, 0},
		{"no such operation", 99, kernels.Collective{Team: team}, 4},
		{"no team", kernels.Sync, kernels.Collective{}, 4},
		{"not in the team", kernels.Sync, kernels.Collective{Team: layout.Team{PEs: 2, Index: 2}}, 4},
		{"no such root", kernels.Broadcast, kernels.Collective{Team: team, Bytes: 1, Root: 2}, 4},
		{"no such type", kernels.Reduce, kernels.Collective{Team: team, Bytes: 8, Type: layout.Types}, 4},
		{"no such reduction", kernels.Reduce, kernels.Collective{Team: team, Bytes: 8, Reduction: layout.Reductions}, 4},
		{"bits of a float", kernels.Reduce, kernels.Collective{Team: team, Bytes: 8, Type: layout.TypeFloat32, Reduction: layout.ReduceOr}, 4},
		{"half an element", kernels.ReduceScatter, kernels.Collective{Team: team, Bytes: 6, Type: layout.TypeFloat32}, 4},
		{"an element at an odd address", kernels.Reduce, kernels.Collective{Team: team, Bytes: 8, Source: 2, Type: layout.TypeFloat32}, 4},
	} {
		if l, err := x.c.Plan(x.op, x.max); !errors.Is(err, kernels.ErrArgument) {
			t.Errorf("%s: %+v, %v", x.what, l, err)
		}
	}
	state := layout.State{PEs: 2}
	for _, x := range []struct {
		what string
		op   kernels.RMAOperation
		r    kernels.RMA
	}{
		{"no such operation", 99, kernels.RMA{}},
		{"no such PE", kernels.Put, kernels.RMA{PE: 2}},
		{"all PEs", kernels.Put, kernels.RMA{PE: layout.AllPEs}},
		{"no such signal", kernels.Signal, kernels.RMA{Code: 1}},
		{"an atomic on a byte", kernels.Atomic, kernels.RMA{Type: layout.TypeUint8}},
		{"no such atomic", kernels.Fetch, kernels.RMA{Type: layout.TypeUint64, Code: 99}},
		{"a sum of floats", kernels.Atomic, kernels.RMA{Type: layout.TypeFloat32, Code: layout.AtomicAdd, Value: 1}},
		{"no such comparison", kernels.Wait, kernels.RMA{Type: layout.TypeUint64, Code: layout.CompareGE + 1}},
		{"half an element", kernels.StridedPut, kernels.RMA{Type: layout.TypeUint64, Bytes: 4}},
	} {
		x.r.State = state
		if l, err := x.r.Plan(x.op); !errors.Is(err, kernels.ErrArgument) {
			t.Errorf("%s: %+v, %v", x.what, l, err)
		}
	}
}

// TestQueues: what needs queues, and only that, comes from modules that have them.
func TestQueues(t *testing.T) {
	r := kernels.RMA{State: layout.State{PEs: 3, Queues: 1}, Type: layout.TypeUint64}
	r.State.Peer = [layout.InlinePeers]uint64{1 << 20, 1<<20 | layout.PeerAtomic}
	for _, x := range []struct {
		op    kernels.RMAOperation
		pe    uint32
		code  uint32
		queue bool
	}{
		{kernels.Put, 0, 0, false}, {kernels.Put, 2, 0, true}, {kernels.Atomic, 0, 0, true}, {kernels.Atomic, 1, 0, false},
		{kernels.Signal, 0, layout.SignalSet, false}, {kernels.Signal, 0, layout.SignalAdd, true}, {kernels.Signal, 1, layout.SignalAdd, false},
		{kernels.Quiet, layout.AllPEs, 0, true}, {kernels.Wait, 2, 0, false},
	} {
		r.PE, r.Code = x.pe, x.code
		l, err := r.Plan(x.op)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.HasPrefix(string(l.Module), "queue"); got != x.queue {
			t.Errorf("%v with PE %d: module %s", x.op, x.pe, l.Module)
		}
	}
}

func TestModules(t *testing.T) {
	for _, m := range kernels.Modules() {
		image := m.Image()
		if len(image) == 0 || image[len(image)-1] != 0 || !bytes.HasPrefix(image, []byte(".version 7.")) {
			t.Errorf("module %s is no PTX of version 7", m)
		}
	}
	if kernels.Module("none").Image() != nil || kernels.ReduceModule(layout.Types) != "" || kernels.TypeBytes(layout.Types) != 0 {
		t.Error("there is a module that does not exist")
	}
}

// BenchmarkImage unpacks modules that a program may need for its first collective operation, among them the smallest
// and the largest of all.
func BenchmarkImage(b *testing.B) {
	for _, m := range []kernels.Module{kernels.ModuleSync, kernels.ModuleMove, "reduce_float32", "reduce_bfloat16"} {
		b.Run(string(m), func(b *testing.B) {
			b.SetBytes(int64(len(m.Image())))
			b.ReportAllocs()
			for b.Loop() {
				m.Image()
			}
		})
	}
}
