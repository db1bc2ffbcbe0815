package shmem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// plainConfig is that of a PE without a GPU, with small chunks.
func plainConfig() Config {
	c := Defaults()
	c.NoGPU, c.Memory = true, MemoryHost
	c.HeapMax, c.Chunk = 256<<20, heap.MinChunk
	c.MaxTeams, c.Timeout = int(layout.TeamFirstOwned)+3, 20*time.Second
	c.Settings["LSHMEM_NIC"] = "none"
	return c
}

// plainJob runs f as each of n PEs of this process, each with a configuration that change may alter.
func plainJob(t testing.TB, n int, change func(pe int, c *Config), f func(p *PE) error) {
	t.Helper()
	if err := tryJob(n, change, f); err != nil {
		t.Fatal(err)
	}
}

func tryJob(n int, change func(pe int, c *Config), f func(p *PE) error) error {
	bs, err := bootstrap.Local(n, bootstrap.Options{Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	var g errgroup.Group
	for pe, b := range bs {
		g.Go(func() error {
			defer b.Close()
			c := plainConfig()
			c.Bootstrap = b
			if change != nil {
				change(pe, &c)
			}
			p, err := Init(context.Background(), c)
			if err != nil {
				return err
			}
			if err := f(p); err != nil {
				b.Abort(1, err.Error())
				return errors.Join(fmt.Errorf("PE %d: %w", pe, err), p.Finalize())
			}
			return p.Finalize()
		})
	}
	return g.Wait()
}

// pattern is what a PE's memory holds in tests.
func pattern(pe, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + pe*31 + i>>8)
	}
	return b
}

func TestPlainPutGet(t *testing.T) {
	const n = 3 << 20 // more than a chunk
	plainJob(t, 3, nil, func(p *PE) error {
		a, err := p.Malloc(n)
		if err != nil {
			return err
		}
		next, before := (p.Rank()+1)%3, (p.Rank()+2)%3
		source, err := p.Malloc(n)
		if err != nil {
			return err
		}
		copy(cuda.Bytes(source, n), pattern(p.Rank(), n))
		if err := p.Put(a, source, n, next); err != nil {
			return err
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		if !bytes.Equal(cuda.Bytes(a, n), pattern(before, n)) {
			return errors.New("what was put is not here")
		}
		there := p.Ptr(a, next)
		if there == 0 || !bytes.Equal(cuda.Bytes(there, n), pattern(p.Rank(), n)) {
			return errors.New("what was put is not where Ptr says")
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		if err := p.Get(a, source, n, before); err != nil {
			return err
		}
		if !bytes.Equal(cuda.Bytes(a, n), pattern(before, n)) {
			return errors.New("what was got is not the other's")
		}
		if err := p.BarrierAll(); err != nil { // the others still get what is written now
			return err
		}
		// Elements, strides, atomics, signals.
		if err := p.P(source, 0x1122334455667788, 8, next); err != nil {
			return err
		}
		if v, err := p.G(source, 4, next); err != nil || v != 0x55667788 {
			return fmt.Errorf("g: %#x, %v", v, err)
		}
		if err := p.IPut(source+16, a, 2, 3, 2, 5, next); err != nil {
			return err
		}
		for i := range uint64(5) {
			if v, err := p.G(source+16+4*i, 2, next); err != nil || v != loadElement(a+6*i, 2) {
				return fmt.Errorf("iput element %d: %#x, %v", i, v, err)
			}
		}
		if err := p.IGet(source+100, source+16, 1, 2, 2, 5, next); err != nil {
			return err
		}
		for i := range uint64(5) {
			if got := loadElement(source+100+2*i, 2); got != loadElement(a+6*i, 2) {
				return fmt.Errorf("iget element %d: %#x", i, got)
			}
		}
		sig, err := p.Calloc(4, 8)
		if err != nil {
			return err
		}
		for range 1000 {
			if _, err := p.Atomic(layout.AtomicAdd, layout.TypeUint64, sig, 3, 0, false, 0); err != nil {
				return err
			}
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		if v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint64, sig, 0, 0, true, 0); err != nil || v != 9000 {
			return fmt.Errorf("3000 adds of 3 make %d, %v", v, err)
		}
		if err := p.PutSignal(a, source, 8, sig+8, 5, layout.SignalAdd, next); err != nil {
			return err
		}
		if v, err := p.SignalWait(sig+8, layout.CompareGE, 5); err != nil || v != 5 {
			return fmt.Errorf("signal %d, %v", v, err)
		}
		if v := loadElement(a, 8); v != 0x1122334455667788 {
			return fmt.Errorf("the data of the signal are %#x", v)
		}
		return p.Free(a)
	})
}

func TestAtomics(t *testing.T) {
	one := math.Float32bits
	for _, c := range []struct {
		code, kind                     uint32
		before, value, compare, result uint64
	}{
		{layout.AtomicSet, layout.TypeInt32, 7, 9, 0, 9},
		{layout.AtomicAdd, layout.TypeInt64, 1 << 40, 1, 0, 1<<40 + 1},
		{layout.AtomicAdd, layout.TypeUint32, 0xffffffff, 2, 0, 1},
		{layout.AtomicAnd, layout.TypeUint32, 0xf0f0, 0xff00, 0, 0xf000},
		{layout.AtomicOr, layout.TypeUint64, 0xf0, 0x0f, 0, 0xff},
		{layout.AtomicXor, layout.TypeUint64, 0xff, 0x0f, 0, 0xf0},
		{layout.AtomicCompareSwap, layout.TypeUint64, 5, 6, 5, 6},
		{layout.AtomicCompareSwap, layout.TypeUint32, 5, 6, 4, 5},
		{layout.AtomicAdd, layout.TypeFloat32, uint64(one(1.5)), uint64(one(2)), 0, uint64(one(3.5))},
		{layout.AtomicAdd, layout.TypeFloat64, math.Float64bits(1.5), math.Float64bits(2), 0, math.Float64bits(3.5)},
	} {
		plainJob(t, 1, nil, func(p *PE) error {
			a, err := p.Calloc(2, 8)
			if err != nil {
				return err
			}
			size := 8
			if c.kind == layout.TypeInt32 || c.kind == layout.TypeUint32 || c.kind == layout.TypeFloat32 {
				size = 4
			}
			storeElement(a, c.before, size)
			old, err := p.Atomic(c.code, c.kind, a, c.value, c.compare, true, 0)
			if err != nil || old != c.before || loadElement(a, 8) != c.result {
				return fmt.Errorf("%+v: old %#x, now %#x, %v", c, old, loadElement(a, 8), err)
			}
			return nil
		})
	}
}

func TestPlainCollectives(t *testing.T) {
	const n = 4
	plainJob(t, n, nil, func(p *PE) error {
		me := uint64(p.Rank())
		a, err := p.Malloc(n * 64)
		if err != nil {
			return err
		}
		b, err := p.Malloc(n * 64)
		if err != nil {
			return err
		}
		put := func(i int, v uint64) { storeElement(a+uint64(i)*8, v, 8) }
		want := func(what string, f func(i int) uint64, count int) error {
			for i := range count {
				if v := loadElement(b+uint64(i)*8, 8); v != f(i) {
					return fmt.Errorf("%s: element %d is %d, want %d", what, i, v, f(i))
				}
			}
			return nil
		}
		for i := range n {
			put(i, me*10+uint64(i))
		}
		if err := errors.Join(p.Broadcast(World, b, a, 16, 2), want("broadcast", func(i int) uint64 { return 20 + uint64(i) }, 2)); err != nil {
			return err
		}
		if err := errors.Join(p.FCollect(World, b, a, 8), want("fcollect", func(i int) uint64 { return uint64(i) * 10 }, n)); err != nil {
			return err
		}
		if err := errors.Join(p.AllToAll(World, b, a, 8), want("alltoall", func(i int) uint64 { return uint64(i)*10 + me }, n)); err != nil {
			return err
		}
		if err := errors.Join(p.Reduce(World, layout.TypeInt64, layout.ReduceSum, b, a, n), want("sum", func(i int) uint64 { return 60 + 4*uint64(i) }, n)); err != nil {
			return err
		}
		if err := errors.Join(p.ReduceScatter(World, layout.TypeUint64, layout.ReduceMax, b, a, 1), want("max", func(int) uint64 { return 30 + me }, 1)); err != nil {
			return err
		}
		// In place, of a team of two.
		half, err := p.TeamSplitStrided(World, p.Rank()%2, 2, 2)
		if err != nil {
			return err
		}
		if err := p.Reduce(half, layout.TypeInt64, layout.ReduceMin, a, a, n); err != nil {
			return err
		}
		if v := loadElement(a, 8); v != me%2*10 {
			return fmt.Errorf("minimum in place: %d", v)
		}
		if err := p.Reduce(World, layout.TypeFloat32, layout.ReduceXor, b, a, 1); Status(err) != layout.StatusArgument {
			return fmt.Errorf("xor of floats: %v", err)
		}
		return p.TeamDestroy(half)
	})
}

func TestTeams(t *testing.T) {
	plainJob(t, 4, nil, func(p *PE) error {
		for id, n := range map[TeamID]int{World: 4, Shared: 4, Node: 4, SameMyPE: 1, SameGPU: 1} {
			if p.TeamPEs(id) != n {
				return fmt.Errorf("team %d has %d members, want %d", id, p.TeamPEs(id), n)
			}
		}
		odd, err := p.TeamSplitStrided(World, 1, 2, 2)
		if err != nil {
			return err
		}
		if (odd == InvalidTeam) != (p.Rank()%2 == 0) {
			return fmt.Errorf("PE %d is in %d", p.Rank(), odd)
		}
		if p.Rank()%2 == 1 {
			if i := p.TeamTranslate(odd, 1, World); i != 3 {
				return fmt.Errorf("the second odd one is %d", i)
			}
			if err := p.Barrier(odd); err != nil {
				return err
			}
		}
		x, y, err := p.TeamSplit2D(World, 2)
		if err != nil {
			return err
		}
		if p.TeamMyPE(x) != p.Rank()%2 || p.TeamMyPE(y) != p.Rank()/2 {
			return fmt.Errorf("row %v, column %v", p.TeamMembers(x), p.TeamMembers(y))
		}
		// The odd ones have one more, and no number is free any more; all members learn it.
		last, err := p.TeamCreate([]int{3, 1, 0, 2})
		if Status(err) != layout.StatusMemory {
			return fmt.Errorf("a team too many: %d, %v", last, err)
		}
		if err := errors.Join(p.TeamDestroy(y), p.TeamDestroy(x)); err != nil {
			return err
		}
		for range 5 {
			last, err := p.TeamCreate([]int{3, 1, 0, 2})
			if err != nil {
				return err
			}
			if e := p.teams.byID[last].Load().entry; e.Stride != 0 || p.TeamMyPE(last) != []int{2, 1, 3, 0}[p.Rank()] {
				return fmt.Errorf("%+v", e)
			}
			for i, want := range []uint32{3, 1, 0, 2} {
				if got := *hostPointer[uint32](p.teams.byID[last].Load().entry.List + uint64(i)*4); got != want {
					return fmt.Errorf("member %d in memory is %d", i, got)
				}
			}
			if err := errors.Join(p.Sync(last), p.TeamDestroy(last)); err != nil {
				return err
			}
		}
		for _, bad := range [][]int{{}, {0, 4}, {0, 0}} {
			if _, err := p.TeamCreate(bad); Status(err) != layout.StatusArgument {
				return fmt.Errorf("a team of %v: %v", bad, err)
			}
		}
		if err := p.TeamDestroy(World); Status(err) != layout.StatusArgument {
			return fmt.Errorf("destroy of the world: %v", err)
		}
		return nil
	})
}

// TestGrowShrink: memory comes on demand and goes when nothing is in it, also from the middle.
func TestGrowShrink(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		base, _ := p.HeapUse()
		var at [3]uint64
		for i := range at {
			var err error
			if at[i], err = p.Malloc(8 << 20); err != nil {
				return err
			}
		}
		if mapped, _ := p.HeapUse(); mapped < base+(22<<20) {
			return fmt.Errorf("%d bytes mapped, %d at first", mapped, base)
		}
		for _, i := range []int{1, 0, 2} {
			if err := p.Free(at[i]); err != nil {
				return err
			}
		}
		if mapped, _ := p.HeapUse(); mapped != base {
			return fmt.Errorf("%d bytes mapped after all was freed, %d at first", mapped, base)
		}
		if err := p.Free(0); err != nil {
			return err
		}
		if a, err := p.Malloc(0); a != 0 || err != nil {
			return fmt.Errorf("nothing is at %#x, %v", a, err)
		}
		a, err := p.Align(1<<20, 100)
		if err != nil || (a-p.heapBase)%(1<<20) != 0 {
			return fmt.Errorf("aligned: %#x, %v", a, err)
		}
		return nil
	})
}

// TestNotTogether: what one PE asks for that the others do not is an error at all, and changes nothing.
func TestNotTogether(t *testing.T) {
	plainJob(t, 3, nil, func(p *PE) error {
		before, used := p.HeapUse()
		for _, try := range []func() error{
			func() error { _, err := p.Malloc(uint64(100 + p.Rank()/2)); return err },
			func() error { _, err := p.Malloc(uint64(p.Rank()/2*5) << 20); return err },
			func() error { _, err := p.Malloc(uint64(1+p.Rank()/2*7) << 20); return err },
			func() error { return p.Free(p.heapBase + 256) },
			func() error { return p.Free(12345) },
			func() error {
				if p.Rank() == 1 {
					return p.Free(0)
				}
				_, err := p.Malloc(8)
				return err
			},
		} {
			if err := try(); Status(err) != layout.StatusArgument {
				return fmt.Errorf("status %d: %v", Status(err), err)
			}
		}
		if _, err := p.Malloc(1 << 40); Status(err) != layout.StatusMemory {
			return fmt.Errorf("a terabyte: %v", err)
		}
		if _, err := p.Calloc(1<<40, 1<<40); Status(err) != layout.StatusMemory {
			return fmt.Errorf("more than there is: %v", err)
		}
		if mapped, u := p.HeapUse(); mapped != before || u != used {
			return fmt.Errorf("%d mapped, %d used; before %d, %d", mapped, u, before, used)
		}
		_, err := p.Malloc(8)
		return err
	})
}

// TestRollBack: memory that one PE cannot have is given back by all.
func TestRollBack(t *testing.T) {
	plainJob(t, 3, nil, func(p *PE) error {
		before, _ := p.HeapUse()
		real := p.mem
		if p.Rank() == 1 {
			p.mem = failing{p.mem}
		}
		_, err := p.Malloc(20 << 20)
		if err == nil || !strings.Contains(err.Error(), "no memory today") {
			return fmt.Errorf("malloc: %v", err)
		}
		var e *Error
		if p.Rank() != 1 && (!errors.As(err, &e) || e.PE != 1) {
			return fmt.Errorf("the error does not name PE 1: %v", err)
		}
		p.mem = real
		if mapped, _ := p.HeapUse(); mapped != before || len(p.chunks) != len(*p.held.Load()) {
			return fmt.Errorf("%d mapped in %d chunks, before %d", mapped, len(p.chunks), before)
		}
		a, err := p.Malloc(20 << 20)
		if err != nil {
			return err
		}
		return p.Free(a)
	})
}

func TestArguments(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		a, err := p.Malloc(64)
		if err != nil {
			return err
		}
		for name, err := range map[string]error{
			"PE beyond":        p.Put(a, a, 8, 2),
			"negative PE":      p.Put(a, a, 8, -1),
			"not in the heap":  p.Put(a-p.heapBase, a, 8, 1),
			"beyond the heap":  p.Put(p.heapBase+p.heapBytes-4, a, 8, 1),
			"no memory":        p.Put(a+64<<20, a, 8, 1),
			"not all memory":   p.Get(a, a, 64<<20, 1),
			"no signal word":   p.SignalOp(a&^7+64<<20, 1, layout.SignalSet, 1),
			"no word":          p.WaitUntil(a&^7+64<<20, layout.TypeInt64, 0, 0),
			"huge":             p.Get(a, a, 1<<63, 1),
			"width":            p.P(a, 1, 3, 1),
			"stride":           p.IPut(a, a, 0, 1, 8, 4, 1),
			"huge stride":      p.IPut(a, a, 1<<62, 1, 8, 4, 1),
			"signal operation": p.SignalOp(a, 1, 3, 1),
			"signal alignment": p.SignalOp(a+4, 1, layout.SignalSet, 1),
			"comparison":       p.WaitUntil(a, layout.TypeInt32, 9, 0),
			"float wait":       p.WaitUntil(a, layout.TypeFloat32, 0, 0),
			"team":             p.Barrier(77),
			"root":             p.Broadcast(World, a, a, 8, 5),
			"collective range": p.FCollect(World, 8, a, 8),
			"not collective":   p.FCollect(World, a, a, 64<<20),
			"registration":     p.UnregisterBuffer(5),
		} {
			if Status(err) != layout.StatusArgument {
				return fmt.Errorf("%s: status %d, %v", name, Status(err), err)
			}
		}
		if _, err := p.Atomic(layout.AtomicAdd, layout.TypeInt16, a, 1, 0, false, 1); Status(err) != layout.StatusArgument {
			return fmt.Errorf("atomic on 16 bits: %v", err)
		}
		if p.Ptr(a, 7) != 0 || p.Ptr(12, 0) != 0 {
			return errors.New("ptr of nothing")
		}
		return p.BarrierAll()
	})
}

// What fails at one PE has the same status at all.
func TestOneFails(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		var failure error
		if p.Rank() == 0 {
			failure = fmt.Errorf("64 bytes of device memory: %w", &cuda.Error{Call: "cuMemCreate", Code: cuda.OutOfMemory})
		}
		ctx, cancel := p.context()
		defer cancel()
		_, err := p.together(ctx, request{op: opMalloc, bytes: 64}, failure, nil)
		if Status(err) != layout.StatusMemory || strings.Count(err.Error(), "malloc") != 1 || !strings.Contains(err.Error(), "64 bytes of device memory") {
			return fmt.Errorf("status %d, %v", Status(err), err)
		}
		return nil
	})
}

// TestDeath: who aborts or is gone ends the others' waits with an error that names it.
func TestDeath(t *testing.T) {
	bs, err := bootstrap.Local(3, bootstrap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	for pe, b := range bs {
		g.Go(func() error {
			defer b.Close()
			c := plainConfig()
			c.Bootstrap = b
			p, err := Init(context.Background(), c)
			if err != nil {
				return err
			}
			defer p.Finalize()
			if pe == 1 {
				p.Abort(3, "no more")
				return nil
			}
			err = p.BarrierAll()
			var e *Error
			if !errors.As(err, &e) || e.Status != layout.StatusPeer || e.PE != 1 {
				return fmt.Errorf("PE %d: %v", pe, err)
			}
			if p.control.Abort != layout.StatusPeer || p.control.AbortPE != 1 {
				return fmt.Errorf("control: %+v", *p.control)
			}
			_, err = p.Malloc(8)
			if Status(err) != layout.StatusPeer || Status(p.Err()) != layout.StatusPeer {
				return fmt.Errorf("afterwards: %v, %v", err, p.Err())
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestCarriedError: a bootstrap of callbacks may say with an error of this package's why it fails, somewhere in the
// chain.
func TestCarriedError(t *testing.T) {
	fail := make(chan struct{})
	why := fmt.Errorf("carried by another instance: %w", fault(layout.StatusTimeout, "put", 1, "too late"))
	b, err := bootstrap.FromCallbacks(0, 1, bootstrap.Callbacks{AllGather: func(_ context.Context, mine []byte) ([][]byte, error) {
		select {
		case <-fail:
			return nil, why
		default:
			return [][]byte{mine}, nil
		}
	}}, bootstrap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c := plainConfig()
	c.Bootstrap = b
	p, err := Init(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	close(fail)
	if _, err := p.Malloc(100); Status(err) != layout.StatusTimeout {
		t.Errorf("malloc: %v", err)
	}
	<-b.Lost()
	p.watching.Wait() // the watch has ended the job
	if e := p.lost.Load(); e == nil || e.Status != layout.StatusTimeout || e.Op != "job" || e.PE != -1 || !errors.Is(e, why) {
		t.Errorf("lost: %+v", e)
	}
	if err := p.Err(); Status(err) != layout.StatusTimeout || !strings.Contains(err.Error(), "carried by another instance") {
		t.Errorf("state: %v", err)
	}
	if err := p.Finalize(); err != nil {
		t.Errorf("finalize: %v", err)
	}
}

// TestForeign: memory that cannot be part of the heap is refused at all PEs, as not supported.
func TestForeign(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		if _, err := p.RegisterSymmetric(1<<40, heap.MinChunk); Status(err) != layout.StatusSupport {
			return fmt.Errorf("a buffer for a heap in host memory: %v", err)
		}
		return p.BarrierAll()
	})
}

func TestTimeout(t *testing.T) {
	plainJob(t, 2, func(_ int, c *Config) { c.Timeout = 100 * time.Millisecond }, func(p *PE) error {
		a, err := p.Calloc(1, 8)
		if err != nil {
			return err
		}
		if err := p.WaitUntil(a, layout.TypeInt64, layout.CompareEQ, 5); Status(err) != layout.StatusTimeout {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
}

// TestCycles: what Init takes Finalize gives back.
func TestCycles(t *testing.T) {
	cycle := func() { plainJob(t, 2, nil, func(p *PE) error { _, err := p.Malloc(5 << 20); return err }) }
	cycle()
	before, maps := descriptors(t), mappings(t)
	for range 20 {
		cycle()
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors after 20 cycles, %d before", after, before)
	}
	if after := mappings(t); after > maps {
		t.Errorf("%d mappings of heaps after 20 cycles, %d before", after, maps)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func mappings(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "lshmem-heap")
}

// TestConcurrent: operations of many goroutines do not disturb each other.
func TestConcurrent(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		a, err := p.Calloc(64, 8)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				for k := range 200 {
					if err := p.P(a+uint64(i)*8, uint64(k), 8, 1-p.Rank()); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(append(errs, p.BarrierAll())...); err != nil {
			return err
		}
		for i := range uint64(8) {
			if v := loadElement(a+i*8, 8); v != 199 {
				return fmt.Errorf("word %d is %d", i, v)
			}
		}
		return p.BarrierAll()
	})
}

func TestState(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		s := p.State()
		if s.Version != layout.Version || s.PE != uint32(p.Rank()) || s.PEs != 2 || s.HeapBase != p.heapBase || s.Queues != 0 {
			return fmt.Errorf("%+v", s)
		}
		for pe := range 2 {
			inMemory := binary.LittleEndian.Uint64(cuda.Bytes(s.Peers+uint64(pe)*8, 8))
			if s.Peer[pe] != inMemory || s.Peer[pe] != p.mapped[pe]|layout.PeerAtomic {
				return fmt.Errorf("peer %d: %#x, in memory %#x, mapped %#x", pe, s.Peer[pe], inMemory, p.mapped[pe])
			}
		}
		if p.Info().RMA[1-p.Rank()] != "p2p" {
			return fmt.Errorf("%+v", p.Info())
		}
		return nil
	})
}

// failing is memory that makes no extents.
type failing struct{ memory }

func (failing) create(heap.Extent) (transport.Chunk, error) {
	return transport.Chunk{}, errors.New("no memory today")
}
