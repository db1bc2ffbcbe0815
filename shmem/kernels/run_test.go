package kernels_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

const (
	heapBytes  = 48 << 20
	dataOffset = 24 << 20 // behind the teams' areas
	outOffset  = 32 << 20
	timeout    = 20 * time.Second
)

// job is several PEs in this process, one on each software GPU, with states made by hand.
type job struct {
	t   *testing.T
	d   *cuda.Driver
	pes []*pe
}

type pe struct {
	j        *job
	ctx      *cuda.Context
	stream   uintptr
	heap     uint64
	state    *layout.State
	control  []byte
	counters uint64 // of all teams
	modules  map[kernels.Module]uintptr
	used     int // bytes of the heap given to teams
	teams    int
}

// driver is that of n software GPUs.
func driver(t *testing.T, n int) *cuda.Driver {
	t.Helper()
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz = n, 1<<30, 4, 200
	t.Setenv(wire.Environment, simtest.Serve(t, shape))
	if _, err := purego.Dlopen(filepath.Join(simtest.Libraries(t), "libcuda.so.1"), purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
		t.Fatal(err)
	}
	d, err := cuda.Load()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newJob starts PEs on those GPUs, of which some may be the same.
func newJob(t *testing.T, d *cuda.Driver, gpus ...int) *job {
	t.Helper()
	n := len(gpus)
	j := &job{t: t, d: d}
	for i, gpu := range gpus {
		dev, err := d.DeviceGet(gpu)
		check(t, err)
		ctx, err := d.Primary(dev)
		check(t, err)
		p := &pe{j: j, ctx: ctx, modules: map[kernels.Module]uintptr{}, state: &layout.State{Version: layout.Version, PE: uint32(i),
			PEs: uint32(n), HeapBytes: heapBytes, TimeoutNanos: uint64(timeout)}}
		p.do(func() (err error) {
			if p.heap, err = d.Alloc(heapBytes); err != nil {
				return err
			}
			if err := d.Set(p.heap, 0, heapBytes); err != nil {
				return err
			}
			host, err := d.HostAlloc(4096)
			if err != nil {
				return err
			}
			p.control = cuda.Bytes(host, 4096)
			clear(p.control)
			p.state.Control = host
			if p.counters, err = d.Alloc(layout.MaxTeams * layout.CounterBytes); err != nil {
				return err
			}
			if err := d.Set(p.counters, 0, layout.MaxTeams*layout.CounterBytes); err != nil {
				return err
			}
			if p.state.Teams, err = d.Alloc(layout.MaxTeams * uint64(unsafe.Sizeof(layout.Team{}))); err != nil {
				return err
			}
			p.stream, err = d.StreamCreate(1)
			return err
		})
		p.state.HeapBase = p.heap
		j.pes = append(j.pes, p)
	}
	for _, p := range j.pes {
		table := make([]byte, 8*n)
		for i, q := range j.pes {
			if q.ctx.Handle != p.ctx.Handle {
				p.do(func() error { return d.EnablePeerAccess(q.ctx.Handle) })
			}
			p.state.Peer[i] = q.heap | layout.PeerAtomic
			binary.LittleEndian.PutUint64(table[8*i:], q.heap|layout.PeerAtomic)
		}
		p.do(func() (err error) {
			if p.state.Peers, err = d.Alloc(uint64(len(table))); err != nil {
				return err
			}
			if err := d.Write(p.state.Peers, table); err != nil {
				return err
			}
			// What is not inlined reads the state's copy.
			b := unsafe.Slice((*byte)(unsafe.Pointer(p.state)), unsafe.Sizeof(*p.state))
			if p.state.Self, err = d.Alloc(uint64(len(b))); err != nil {
				return err
			}
			return d.Write(p.state.Self, b)
		})
	}
	return j
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do runs f with the PE's context current.
func (p *pe) do(f func() error) {
	p.j.t.Helper()
	check(p.j.t, p.ctx.Do(f))
}

// team makes a team of PEs, with its counters at step, and returns what each of its members has of it, by PE.
func (j *job) team(members []int, list bool, step uint64) []layout.Team {
	j.t.Helper()
	out := make([]layout.Team, len(j.pes))
	used := 0
	for _, p := range j.pes {
		used = max(used, p.used)
	}
	for i, m := range members {
		p := j.pes[m]
		team := layout.Team{PEs: uint32(len(members)), Index: uint32(i), Sync: uint64(used), Flags: layout.TeamDirect,
			Counters: p.counters + uint64(p.teams)*layout.CounterBytes}
		if list {
			b := make([]byte, 4*len(members))
			for k, m := range members {
				binary.LittleEndian.PutUint32(b[4*k:], uint32(m))
			}
			p.do(func() error {
				var err error
				if team.List, err = j.d.Alloc(uint64(len(b))); err != nil {
					return err
				}
				return j.d.Write(team.List, b)
			})
		} else {
			team.Start = uint32(members[0])
			team.Stride = 1
			if len(members) > 1 {
				team.Stride = uint32(members[1] - members[0]) // may wrap: a falling team
			}
		}
		steps := make([]byte, layout.CounterBytes)
		for c := range layout.Channels {
			binary.LittleEndian.PutUint64(steps[8*c:], step)
		}
		p.do(func() error {
			if err := j.d.Set(p.heap+uint64(used), 0, uint64(layout.TeamBytes(len(members)))); err != nil {
				return err
			}
			b := unsafe.Slice((*byte)(unsafe.Pointer(&team)), unsafe.Sizeof(team))
			if err := j.d.Write(p.state.Teams+uint64(p.teams)*uint64(len(b)), b); err != nil {
				return err
			}
			return j.d.Write(team.Counters, steps)
		})
		out[m] = team
		p.teams++
	}
	used += (layout.TeamBytes(len(members)) + 255) &^ 255
	if used > dataOffset {
		j.t.Fatalf("teams need %d bytes", used)
	}
	for _, m := range members {
		j.pes[m].used = used
	}
	return out
}

// launch runs a kernel on the PE's stream.
func (p *pe) launch(l kernels.Launch, args unsafe.Pointer) {
	p.j.t.Helper()
	if l.Grid == 0 {
		return
	}
	p.do(func() error {
		m, ok := p.modules[l.Module]
		if !ok {
			var err error
			if m, err = p.j.d.ModuleLoad(l.Module.Image()); err != nil {
				return fmt.Errorf("%s: %w", l.Module, err)
			}
			p.modules[l.Module] = m
		}
		f, err := p.j.d.Function(m, l.Function)
		if err != nil {
			return fmt.Errorf("%s: %w", l.Function, err)
		}
		err = p.j.d.Launch(&cuda.Launch{Function: f, Grid: [3]uint32{l.Grid, 1, 1}, Block: [3]uint32{l.Block, 1, 1},
			Stream: p.stream, Params: []uintptr{uintptr(args)}})
		runtime.KeepAlive(args)
		return err
	})
}

// collective starts an operation on all members of a team.
func (j *job) collective(op kernels.Operation, team []layout.Team, c kernels.Collective, limit int) {
	j.t.Helper()
	for i, p := range j.pes {
		if team[i].PEs == 0 {
			continue
		}
		own := new(kernels.Collective)
		*own = c
		own.State, own.Team = *p.state, team[i]
		own.Dest += p.heap
		own.Source += p.heap
		l, err := own.Plan(op, limit)
		check(j.t, err)
		p.launch(l, unsafe.Pointer(own))
	}
}

// wait ends when all PEs' streams have, and fails if one has a status.
func (j *job) wait() {
	j.t.Helper()
	for i, p := range j.pes {
		p.do(func() error { return j.d.StreamSynchronize(p.stream) })
		if s := binary.LittleEndian.Uint32(p.control[8:]); s != 0 {
			j.t.Fatalf("PE %d: status %d about PE %d", i, s, binary.LittleEndian.Uint32(p.control[12:]))
		}
	}
}

func (p *pe) write(offset uint64, b []byte) {
	p.j.t.Helper()
	if len(b) > 0 {
		p.do(func() error { return p.j.d.Write(p.heap+offset, b) })
	}
}

func (p *pe) read(offset uint64, n int) []byte {
	p.j.t.Helper()
	b := make([]byte, n)
	if n > 0 {
		p.do(func() error { return p.j.d.Read(b, p.heap+offset) })
	}
	return b
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// operations are all that move data.
var dataOperations = []kernels.Operation{kernels.Broadcast, kernels.Fcollect, kernels.Alltoall, kernels.Reduce, kernels.ReduceScatter}

// expect computes what member i has at Dest after an operation, from all members' sources; nil where nothing is said.
func expect(op kernels.Operation, c kernels.Collective, i int, sources [][]byte, combine func(a, b []byte) []byte) []byte {
	n, bytes := len(sources), int(c.Bytes)
	var out []byte
	switch op {
	case kernels.Broadcast:
		return sources[c.Root][:bytes]
	case kernels.Fcollect:
		for _, s := range sources {
			out = append(out, s[:bytes]...)
		}
	case kernels.Alltoall:
		for _, s := range sources {
			out = append(out, s[i*bytes:(i+1)*bytes]...)
		}
	case kernels.Reduce, kernels.ReduceScatter:
		from := 0
		if op == kernels.ReduceScatter {
			from = i * bytes
		}
		out = append(out, sources[0][from:from+bytes]...)
		for k := 1; k < n; k++ {
			out = combine(out, sources[k][from:from+bytes])
		}
	}
	return out
}

// sourceBytes and destBytes are the sizes of a member's buffers.
func sourceBytes(op kernels.Operation, n, bytes int) int {
	if op == kernels.Alltoall || op == kernels.ReduceScatter {
		return n * bytes
	}
	return bytes
}

func destBytes(op kernels.Operation, n, bytes int) int {
	if op == kernels.Alltoall || op == kernels.Fcollect {
		return n * bytes
	}
	return bytes
}

// run does an operation once, with random data, and compares. inPlace: Dest is where each member's own data lie.
func (j *job) run(r *rand.Rand, name string, op kernels.Operation, members []int, team []layout.Team, c kernels.Collective, limit int, inPlace bool,
	fill func(*rand.Rand, int) []byte, combine func(a, b []byte) []byte) {
	j.t.Helper()
	n := len(members)
	sources := make([][]byte, n)
	size := destBytes(op, n, int(c.Bytes))
	const guard = 64
	for i, m := range members {
		sources[i] = fill(r, sourceBytes(op, n, int(c.Bytes)))
		j.pes[m].write(c.Source, sources[i])
		if !inPlace {
			b := make([]byte, size+2*guard)
			for k := range b {
				b[k] = 0xa5
			}
			j.pes[m].write(c.Dest-guard, b)
		}
	}
	j.collective(op, team, c, limit)
	j.wait()
	for i, m := range members {
		want := expect(op, c, i, sources, combine)
		got := j.pes[m].read(c.Dest, size)
		if !bytes.Equal(got, want) {
			at := 0
			for got[at] == want[at] {
				at++
			}
			j.t.Fatalf("%s: %v of %d bytes, member %d of %v: byte %d is %#x, want %#x", name, op, c.Bytes, i, members, at, got[at], want[at])
		}
		if inPlace {
			continue
		}
		for _, b := range append(j.pes[m].read(c.Dest-guard, guard), j.pes[m].read(c.Dest+uint64(size), guard)...) {
			if b != 0xa5 {
				j.t.Fatalf("%s: %v of %d bytes, member %d of %v wrote outside of its destination", name, op, c.Bytes, i, members)
			}
		}
	}
}

func xor(a, b []byte) []byte {
	out := make([]byte, len(a))
	for i := range a {
		out[i] = a[i] ^ b[i]
	}
	return out
}

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
	const slot = 96 << 10
	type one struct {
		op   kernels.Operation
		c    kernels.Collective
		want [][]byte
	}
	var all []one
	for i := range 50 {
		op := dataOperations[r.IntN(len(dataOperations))]
		bytes := []int{64, 3000, 20000}[r.IntN(3)]
		c := kernels.Collective{Source: dataOffset + uint64(i)*slot, Dest: outOffset + uint64(i)*slot, Bytes: uint64(bytes), Root: r.Uint32N(4),
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
	const each, slot, rounds = 9000, 64 << 10, 10
	sources := make([][][]byte, 2)
	made := make([][]layout.Team, 2)
	for k, members := range teams {
		made[k] = j.team(members, k == 1, 0)
		for _, m := range members {
			b := random(r, each)
			sources[k] = append(sources[k], b)
			j.pes[m].write(dataOffset+uint64(k)*slot, b)
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
			c := kernels.Collective{Source: dataOffset + uint64(k)*slot, Dest: outOffset + uint64(k)*slot, Bytes: each}
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
			if !bytes.Equal(j.pes[m].read(outOffset+uint64(k)*slot, len(want)), want) {
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
