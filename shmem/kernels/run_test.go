package kernels_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

const (
	heapBytes  = 48 << 20
	dataOffset = 24 << 20 // after the teams' areas
	outOffset  = 32 << 20
	timeout    = 20 * time.Second
)

// operations are all that move data.
var dataOperations = []kernels.Operation{kernels.Broadcast, kernels.Fcollect, kernels.Alltoall, kernels.Reduce, kernels.ReduceScatter}

// TestOnSoftwareGPU runs the kernels on four PEs. It is one test, since a process has one driver.
func TestOnSoftwareGPU(t *testing.T) {
	d := driver(t, 4)
	j := newJob(t, d, 0, 1, 2, 3)
	shared := newJob(t, d, 0, 0, 1)
	t.Run("PEs of one GPU", func(t *testing.T) {
		shared.t = t
		testOneGPU(t, shared)
	})
	for _, x := range []struct {
		name string
		run  func(*testing.T, *job)
	}{
		{"sync", testSync}, {"data", testData}, {"types", testTypes}, {"in place", testInPlace}, {"repeated", testRepeated},
		{"graph", testGraph}, {"steps wrap", testWrap}, {"two teams", testTwoTeams}, {"RMA", testRMA}, {"wait", testWait}, {"timeout", testTimeout},
	} {
		t.Run(x.name, func(t *testing.T) {
			j.t = t
			for _, p := range j.pes {
				p.used, p.teams = 0, 0
			}
			x.run(t, j)
		})
		j.t = t
	}
}

func testSync(t *testing.T, j *job) {
	world := j.team([]int{0, 1, 2, 3}, false, 0)
	for range 50 {
		j.collective(kernels.Sync, world, kernels.Collective{}, 4)
		j.collective(kernels.Barrier, world, kernels.Collective{}, 4)
	}
	j.wait()
	for _, p := range j.pes {
		var b [8]byte
		p.do(func() error { return j.d.Read(b[:], p.counters) })
		if n := binary.LittleEndian.Uint64(b[:]); n != 100 {
			t.Errorf("%d steps after 100 operations", n)
		}
	}
}

// testOneGPU has PEs share a GPU, whose kernels must fit beside each other: with half of its units, four.
func testOneGPU(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(15, 16))
	members := []int{0, 1, 2}
	team := j.team(members, false, 0)
	for _, op := range dataOperations {
		for _, bytes := range []int{100, 70000} {
			c := kernels.Collective{Dest: outOffset, Source: dataOffset, Bytes: uint64(bytes), Type: layout.TypeUint8, Reduction: layout.ReduceXor}
			j.run(r, "one GPU", op, members, team, c, 2, false, random, xor)
		}
	}
}

func testData(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct {
		members []int
		list    bool
		any     bool // as if some were behind queues
	}{{[]int{0, 1}, false, false}, {[]int{0, 1, 2, 3}, false, false}, {[]int{3, 2, 0}, true, false}, {[]int{3, 1}, false, false},
		{[]int{2}, false, false}, {[]int{1, 2, 3}, false, true}} {
		team := j.team(x.members, x.list, 0)
		if x.any {
			for i := range team {
				team[i].Flags = 0
			}
		}
		for _, op := range dataOperations {
			for _, bytes := range []int{0, 1, 24, 4107, 40001} {
				limit := 1 + 3*r.IntN(2)
				c := kernels.Collective{Dest: outOffset + 256, Source: dataOffset, Bytes: uint64(bytes), Root: uint32(len(x.members) - 1),
					Type: layout.TypeUint8, Reduction: layout.ReduceXor}
				if bytes == 0 {
					j.collective(op, team, c, limit)
					continue
				}
				c.Dest += uint64(r.IntN(2) * 16)
				if bytes%2 != 0 {
					c.Source += uint64(r.IntN(16))
				}
				j.run(r, fmt.Sprint("limit ", limit), op, x.members, team, c, limit, false, random, xor)
			}
		}
	}
}

// testTypes reduces every type by every operation, in lines, in bulk and as if some members were behind queues, with
// small whole numbers, which no type rounds.
func testTypes(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(3, 4))
	members := []int{0, 1, 2}
	direct, other := j.team(members, false, 0), j.team(members, false, 0)
	for i := range other {
		other[i].Flags = 0
	}
	for typ := range layout.Types {
		size := kernels.TypeBytes(typ)
		fill := func(r *rand.Rand, n int) []byte {
			if typ < layout.TypeFloat16 {
				return random(r, n)
			}
			b := make([]byte, n)
			for i := 0; i < n; i += size {
				encode(typ, b[i:], float64(r.IntN(9)-4))
			}
			return b
		}
		for op := range layout.Reductions {
			c := kernels.Collective{Dest: outOffset + 64, Source: dataOffset, Type: typ, Reduction: op}
			for i, bytes := range []int{5 * size, 11000, 9 * size} {
				team := [][]layout.Team{direct, direct, other}[i]
				bytes = bytes / size * size
				c.Bytes = uint64(bytes)
				c.Source += uint64(size)
				if typ >= layout.TypeFloat16 && op >= layout.ReduceAnd {
					c.State.PEs = 1
					c.Team = layout.Team{PEs: 1, Flags: layout.TeamDirect}
					if _, err := c.Plan(kernels.Reduce, 4); !errors.Is(err, kernels.ErrArgument) {
						t.Errorf("type %d has a bitwise operation: %v", typ, err)
					}
					continue
				}
				if i == 1 {
					c.Source = dataOffset // aligned
				}
				what := []kernels.Operation{kernels.Reduce, kernels.ReduceScatter}[(int(op)+i)%2]
				j.run(r, fmt.Sprintf("type %d operation %d", typ, op), what, members, team, c, 1, false, fill,
					func(a, b []byte) []byte { return combine(typ, op, a, b) })
			}
		}
	}
}

func testInPlace(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(5, 6))
	members := []int{0, 1, 2, 3}
	team := j.team(members, false, 0)
	for _, bytes := range []int{40, 9999, 100000} {
		c := kernels.Collective{Dest: dataOffset, Source: dataOffset, Bytes: uint64(bytes), Type: layout.TypeUint8, Reduction: layout.ReduceXor}
		j.run(r, "in place", kernels.Reduce, members, team, c, 4, true, random, xor)
		c.Root = 2
		j.run(r, "in place", kernels.Broadcast, members, team, c, 4, true, random, xor)
	}
}

// testRepeated does operations one after the other without a pause, in a mixture, each on buffers of its own.
func testRepeated(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(7, 8))
	members := []int{0, 1, 2, 3}
	team := j.team(members, false, 0)
	const room = 96 << 10
	type one struct {
		op   kernels.Operation
		c    kernels.Collective
		want [][]byte
	}
	var all []one
	for i := range 50 {
		op := dataOperations[r.IntN(len(dataOperations))]
		bytes := []int{64, 3000, 20000}[r.IntN(3)]
		c := kernels.Collective{Source: dataOffset + uint64(i)*room, Dest: outOffset + uint64(i)*room, Bytes: uint64(bytes), Root: r.Uint32N(4),
			Type: layout.TypeUint8, Reduction: layout.ReduceXor}
		sources := make([][]byte, len(members))
		for k := range members {
			sources[k] = random(r, sourceBytes(op, len(members), bytes))
			j.pes[k].write(c.Source, sources[k])
		}
		x := one{op: op, c: c}
		for k := range members {
			x.want = append(x.want, expect(op, c, k, sources, xor))
		}
		all = append(all, x)
	}
	for i, x := range all {
		j.collective(x.op, team, x.c, 1+i%4)
	}
	j.wait()
	for i, x := range all {
		for k, want := range x.want {
			if !bytes.Equal(j.pes[k].read(x.c.Dest, len(want)), want) {
				t.Fatalf("operation %d, %v of %d bytes: wrong data at member %d", i, x.op, x.c.Bytes, k)
			}
		}
	}
}

// testGraph captures operations that feed each other, once, and replays them.
func testGraph(t *testing.T, j *job) {
	members := []int{0, 1}
	team := j.team(members, false, 0)
	const bytes, rounds = 20000, 10
	c := kernels.Collective{Source: dataOffset, Dest: outOffset, Bytes: bytes, Type: layout.TypeUint32, Reduction: layout.ReduceSum}
	execs := make([]uintptr, len(members))
	for i := range members {
		p := j.pes[i]
		b := make([]byte, bytes)
		for k := 0; k < bytes; k += 4 {
			binary.LittleEndian.PutUint32(b[k:], uint32(k+i))
		}
		p.write(c.Source, b)
	}
	for i := range members {
		p := j.pes[i]
		p.do(func() error { return j.d.BeginCapture(p.stream, 2) })
	}
	j.collective(kernels.Reduce, team, c, 4) // in bulk: out = sum
	small := c
	small.Bytes = 4000
	j.collective(kernels.Reduce, team, small, 4) // in lines
	j.collective(kernels.Barrier, team, kernels.Collective{}, 4)
	back := c
	back.Source, back.Dest = c.Dest, c.Source
	j.collective(kernels.Reduce, team, back, 4) // source = 2 * out
	for i := range members {
		p := j.pes[i]
		p.do(func() error {
			g, err := j.d.EndCapture(p.stream)
			if err != nil {
				return err
			}
			if execs[i], err = j.d.GraphInstantiate(g); err != nil {
				return err
			}
			return j.d.GraphDestroy(g)
		})
	}
	for range rounds {
		for i := range members {
			p := j.pes[i]
			p.do(func() error { return j.d.GraphLaunch(execs[i], p.stream) })
		}
	}
	j.wait()
	want := make([]byte, bytes)
	for k := 0; k < bytes; k += 4 {
		v := uint32(k)
		other := uint32(k + 1)
		for range rounds {
			v, other = 2*(v+other), 2*(v+other)
		}
		binary.LittleEndian.PutUint32(want[k:], v)
	}
	for i := range members {
		if got := j.pes[i].read(c.Source, bytes); !equal(got, want) {
			t.Errorf("wrong data at member %d after %d replays", i, rounds)
		}
		j.pes[i].do(func() error { return j.d.GraphExecDestroy(execs[i]) })
	}
}

// testWrap begins shortly before the numbers of steps in lines come again, with old lines of every number to come.
func testWrap(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(9, 10))
	members := []int{0, 1, 2}
	for _, step := range []uint64{1<<32 - 6, 1<<31 - 6} {
		team := j.team(members, false, step)
		old := make([]byte, layout.LineChannels*2*len(members)*2*layout.LineBytes(len(members)))
		for i := 0; i < len(old); i += 8 {
			binary.LittleEndian.PutUint64(old[i:], uint64(uint32(step)+6+uint32(i/16%6))<<32|0xbad)
		}
		for _, m := range members {
			j.pes[m].write(team[m].Sync+uint64(layout.LineOffset(len(members))), old)
		}
		for i := range 12 {
			op := dataOperations[i%len(dataOperations)]
			c := kernels.Collective{Dest: outOffset, Source: dataOffset, Bytes: uint64(30 + 8000*(i%2)), Type: layout.TypeUint8, Reduction: layout.ReduceXor}
			if i < 4 { // up to where the old lines are cleared
				j.collective(kernels.Sync, team, c, 4)
				continue
			}
			j.run(r, fmt.Sprintf("step %#x+%d", step, i), op, members, team, c, 1, false, random, xor)
		}
	}
}

// testTwoTeams runs operations of disjoint and of overlapping teams at the same time.
func testTwoTeams(t *testing.T, j *job) {
	r := rand.New(rand.NewPCG(11, 12))
	teams := [][]int{{0, 1, 2}, {2, 3, 0}}
	const each, room, rounds = 9000, 64 << 10, 10
	sources := make([][][]byte, 2)
	made := make([][]layout.Team, 2)
	for k, members := range teams {
		made[k] = j.team(members, k == 1, 0)
		for _, m := range members {
			b := random(r, each)
			sources[k] = append(sources[k], b)
			j.pes[m].write(dataOffset+uint64(k)*room, b)
		}
	}
	others := make([]uintptr, len(j.pes))
	for i, p := range j.pes {
		p.do(func() error {
			var err error
			others[i], err = j.d.StreamCreate(1)
			return err
		})
	}
	for range rounds {
		for k := range teams {
			c := kernels.Collective{Source: dataOffset + uint64(k)*room, Dest: outOffset + uint64(k)*room, Bytes: each}
			if k == 1 {
				for i, p := range j.pes {
					p.stream, others[i] = others[i], p.stream
				}
			}
			j.collective(kernels.Fcollect, made[k], c, 1)
			if k == 1 {
				for i, p := range j.pes {
					p.stream, others[i] = others[i], p.stream
				}
			}
		}
	}
	for _, p := range j.pes {
		p.do(j.d.Synchronize)
	}
	j.wait()
	for k, members := range teams {
		for i, m := range members {
			want := expect(kernels.Fcollect, kernels.Collective{Bytes: each}, i, sources[k], xor)
			if !bytes.Equal(j.pes[m].read(outOffset+uint64(k)*room, len(want)), want) {
				t.Errorf("team %d: wrong data at member %d", k, i)
			}
		}
	}
	for i, p := range j.pes {
		p.do(func() error { return j.d.StreamDestroy(others[i]) })
	}
}

// testRMA runs operations on one PE, from both modules that have them.
func testRMA(t *testing.T, j *job) {
	p, q := j.pes[1], j.pes[3]
	r := rand.New(rand.NewPCG(13, 14))
	for _, module := range []kernels.Module{kernels.ModuleMemory, kernels.ModuleQueue} {
		do := func(op kernels.RMAOperation, a kernels.RMA) {
			t.Helper()
			a.State, a.PE, a.Queue = *p.state, 3, ^uint32(0)
			a.Dest, a.Source, a.Signal = a.Dest+p.heap, a.Source+p.heap, a.Signal+p.heap
			own := &a
			l, err := own.Plan(op)
			check(t, err)
			if l.Module != kernels.ModuleMemory {
				t.Errorf("%v is in module %s although the PE is mapped", op, l.Module)
			}
			l.Module = module
			p.launch(l, unsafe.Pointer(own))
			j.wait()
		}
		same := func(what string, on *pe, offset uint64, want []byte) {
			t.Helper()
			if got := on.read(offset, len(want)); !bytes.Equal(got, want) {
				t.Errorf("%s: %s: %x, want %x", module, what, got[:min(40, len(got))], want[:min(40, len(want))])
			}
		}
		data, far := random(r, 10001), random(r, 10001)
		p.write(dataOffset, data)
		q.write(dataOffset+1<<20, far)
		q.write(outOffset, make([]byte, 20000))
		do(kernels.Put, kernels.RMA{Dest: outOffset + 3, Source: dataOffset + 1, Bytes: 10000})
		same("put", q, outOffset+3, data[1:10001])
		do(kernels.Get, kernels.RMA{Dest: outOffset, Source: dataOffset + 1<<20, Bytes: 10001})
		same("get", p, outOffset, far)
		q.write(outOffset, make([]byte, 20000))
		for range 2 {
			do(kernels.PutSignal, kernels.RMA{Dest: outOffset + 16, Source: dataOffset, Bytes: 777, Signal: outOffset, Value: 5, Code: layout.SignalAdd})
		}
		same("put_signal", q, outOffset+16, data[:777])
		same("its signal", q, outOffset, []byte{10, 0, 0, 0, 0, 0, 0, 0})
		do(kernels.Signal, kernels.RMA{Signal: outOffset, Value: 3, Code: layout.SignalSet})
		same("signal", q, outOffset, []byte{3, 0, 0, 0, 0, 0, 0, 0})
		q.write(outOffset, make([]byte, 64))
		do(kernels.StridedPut, kernels.RMA{Dest: outOffset, Source: dataOffset, Bytes: 6, Type: layout.TypeInt16, DestStride: 2, SourceStride: 3})
		same("iput", q, outOffset, []byte{data[0], data[1], 0, 0, data[6], data[7], 0, 0, data[12], data[13], 0, 0})
		do(kernels.StridedGet, kernels.RMA{Dest: outOffset, Source: dataOffset + 1<<20, Bytes: 12, Type: layout.TypeFloat32, DestStride: 1, SourceStride: 2})
		same("iget", p, outOffset, append(append(bytes.Clone(far[:4]), far[8:12]...), far[16:20]...))
		for _, typ := range []uint32{layout.TypeUint32, layout.TypeInt64} {
			size := kernels.TypeBytes(typ)
			for code := range layout.AtomicCompareSwap + 1 {
				old, v := r.Uint64()>>1, r.Uint64()
				cmp := old
				want := []uint64{v, old + v, old & v, old | v, old ^ v, v}[code]
				word := func(x uint64) []byte { return binary.LittleEndian.AppendUint64(nil, x)[:size] }
				for _, op := range []kernels.RMAOperation{kernels.Atomic, kernels.Fetch} {
					q.write(outOffset, word(old))
					p.write(outOffset+64, make([]byte, 8))
					do(op, kernels.RMA{Dest: outOffset, Source: outOffset + 64, Value: v & (1<<(8*size) - 1), Compare: cmp & (1<<(8*size) - 1), Type: typ, Code: code})
					same(fmt.Sprintf("%v %d of type %d", op, code, typ), q, outOffset, word(want))
					if op == kernels.Fetch {
						same(fmt.Sprintf("the old value of fetch %d", code), p, outOffset+64, word(old))
					}
				}
			}
		}
	}
	quiet := &kernels.RMA{State: *p.state, PE: layout.AllPEs}
	l, err := quiet.Plan(kernels.Quiet)
	check(t, err)
	p.launch(l, unsafe.Pointer(quiet))
	j.wait()
}

// testWait waits on one PE for what a copy of another brings.
func testWait(t *testing.T, j *job) {
	p, q := j.pes[0], j.pes[1]
	p.write(dataOffset, make([]byte, 8))
	r := &kernels.RMA{State: *p.state, Dest: p.heap + dataOffset, Value: uint64(0xffffffff), Type: layout.TypeInt32, Code: layout.CompareLT}
	r.State.PEs = 4
	l, err := r.Plan(kernels.Wait)
	check(t, err)
	p.launch(l, unsafe.Pointer(r))
	var v int32 = -2
	q.do(func() error { return j.d.WriteValue32(q.stream, p.heap+dataOffset, uint32(v)) })
	j.wait()
}

// testTimeout shows that members that nobody answers end with a status, and with the host's when it gives up. It is
// the last test: the team is out of step after it.
func testTimeout(t *testing.T, j *job) {
	team := j.team([]int{0, 1}, false, 0)
	p := j.pes[0]
	alone := func(op kernels.Operation, bytes uint64, nanos uint64) uint32 {
		clear(p.control)
		if nanos == 0 {
			binary.LittleEndian.PutUint32(p.control, layout.StatusPeer)
		}
		c := &kernels.Collective{State: *p.state, Team: team[0], Dest: p.heap + outOffset, Source: p.heap + dataOffset, Bytes: bytes}
		c.State.TimeoutNanos = nanos
		l, err := c.Plan(op, 2)
		check(t, err)
		p.launch(l, unsafe.Pointer(c))
		p.do(func() error { return j.d.StreamSynchronize(p.stream) })
		s := binary.LittleEndian.Uint32(p.control[8:])
		if about := binary.LittleEndian.Uint32(p.control[12:]); about != 1 {
			t.Errorf("%v: status %d about PE %d, not 1", op, s, about)
		}
		clear(p.control)
		return s
	}
	for _, bytes := range []uint64{64, 100000} {
		for _, op := range []kernels.Operation{kernels.Sync, kernels.Fcollect, kernels.Reduce, kernels.Broadcast} {
			if s := alone(op, bytes, 2e6); s != layout.StatusTimeout {
				t.Errorf("%v of %d bytes alone: status %d", op, bytes, s)
			}
			if s := alone(op, bytes, 0); s != layout.StatusPeer {
				t.Errorf("%v of %d bytes when the host gave up: status %d", op, bytes, s)
			}
		}
	}
}
