package kernels_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
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
