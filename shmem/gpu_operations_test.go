package shmem

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

func exerciseOperations(p *PE) error {
	const n = 3<<20 + 12345
	if want := p.c.Memory == MemoryHost; (p.Kind() == transport.Host) != want {
		return fmt.Errorf("the heap is in %v memory", p.Kind())
	}
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	b, err := p.Calloc(n, 1)
	if err != nil {
		return err
	}
	if err := p.expect("calloc", b, make([]byte, n)); err != nil {
		return err
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(p.Rank(), n)); err != nil {
		return err
	}
	if err := exerciseCopies(p, a, b, outside, n); err != nil {
		return err
	}
	if err := exerciseElements(p, a, b, n); err != nil {
		return err
	}
	words, err := p.Calloc(8, 8)
	if err != nil {
		return err
	}
	if done, err := exerciseWords(p, words, b, outside); done || err != nil {
		return err
	}
	if err := p.Sync(Node); err != nil {
		return err
	}
	for _, at := range []uint64{words, b, a} {
		if err := p.Free(at); err != nil {
			return err
		}
	}
	return p.Err()
}

// around are the PEs after and before this one.
func around(p *PE) (next, before int) {
	return (p.Rank() + 1) % p.Size(), (p.Rank() + p.Size() - 1) % p.Size()
}

// exerciseCopies puts n bytes from outside to a, gets them to b, and puts some to b.
func exerciseCopies(p *PE, a, b, outside uint64, n int) error {
	me := p.Rank()
	next, before := around(p)
	if err := p.Put(a, outside, uint64(n), next); err != nil {
		return err
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if err := p.expect("put", a, pattern(before, n)); err != nil {
		return err
	}
	if err := p.Get(b, a, uint64(n), next); err != nil {
		return err
	}
	if err := p.expect("get", b, pattern(me, n)); err != nil {
		return err
	}
	if at := p.Ptr(a, next); at != 0 {
		if err := p.expect("ptr", at, pattern(me, n)); err != nil {
			return err
		}
	} else if !p.c.DisableP2P {
		return errors.New("ptr of a mapped PE is 0")
	}
	if err := p.BarrierAll(); err != nil { // the other is done with b
		return err
	}
	if err := p.PutNBI(b, outside, 100, next); err != nil {
		return err
	}
	return errors.Join(p.Fence(), p.Quiet(), p.BarrierAll(), p.expect("put_nbi", b, pattern(before, 100)), p.BarrierAll())
}

// exerciseElements writes and reads single elements in b, and copies elements from a, which has the pattern of the PE
// before.
func exerciseElements(p *PE, a, b uint64, n int) error {
	next, before := around(p)
	if err := errors.Join(p.P(b, 0x0102030405060708, 8, next), p.P(b+8, 0xaabb, 2, next), p.P(b+12, 0xcc, 1, next)); err != nil {
		return err
	}
	if v, err := p.G(b, 8, next); err != nil || v != 0x0102030405060708 {
		return fmt.Errorf("g: %#x, %v", v, err)
	}
	if v, err := p.G(b+8, 8, next); err != nil || v&0xff0000ffff != 0xcc0000aabb {
		return fmt.Errorf("g of smaller elements: %#x, %v", v, err)
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if err := p.IPut(b, a, 3, 2, 4, 100, next); err != nil {
		return err
	}
	if v, err := p.G(b+12*99, 4, next); err != nil || v != element(pattern(before, n)[8*99:], 4) {
		return fmt.Errorf("iput: %#x, %v", v, err)
	}
	return p.BarrierAll()
}

// exerciseWords does atomic operations and signals on words, with data from outside to b. done says that there are no
// atomic operations here, which is all that it has tried then.
func exerciseWords(p *PE, words, b, outside uint64) (done bool, err error) {
	me, pes := p.Rank(), p.Size()
	next, before := around(p)
	if p.choice.AMO[next] < 0 { // host memory that a GPU has no atomic operations on
		_, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 7, 0, false, next)
		if Status(err) != layout.StatusSupport {
			return false, fmt.Errorf("atomic operation without: %v", err)
		}
		return true, p.BarrierAll()
	}
	for range 5 {
		if _, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 7, 0, false, 0); err != nil {
			return false, err
		}
	}
	if err := p.BarrierAll(); err != nil {
		return false, err
	}
	if v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 0, 0, true, 0); err != nil || v != uint64(pes*35) {
		return false, fmt.Errorf("fetch: %d, %v", v, err)
	}
	if v, err := p.Atomic(layout.AtomicCompareSwap, layout.TypeUint64, words+8, 5, 0, true, me); err != nil || v != 0 {
		return false, fmt.Errorf("compare and swap: %d, %v", v, err)
	}
	if err := p.PutSignal(b, outside, 1000, words+16, 3, layout.SignalAdd, next); err != nil {
		return false, err
	}
	if v, err := p.SignalWait(words+16, layout.CompareGE, 3); err != nil || v != 3 {
		return false, fmt.Errorf("signal: %d, %v", v, err)
	}
	if err := p.expect("put_signal", b, pattern(before, 1000)); err != nil {
		return false, err
	}
	if err := errors.Join(p.SignalOp(words+24, 9, layout.SignalSet, next), p.WaitUntil(words+24, layout.TypeInt32, layout.CompareEQ, 9)); err != nil {
		return false, err
	}
	if ok, err := p.Test(words+24, layout.TypeInt64, layout.CompareLT, 9); ok || err != nil {
		return false, fmt.Errorf("test: %v, %v", ok, err)
	}
	return false, nil
}

// newStream makes a stream of the program's own.
func (p *PE) newStream() (s uintptr, err error) {
	err = p.ctx.Do(func() error {
		s, err = p.d.StreamCreate(cuda.StreamNonBlocking)
		return err
	})
	return s, err
}

func (p *PE) wait4(s uintptr) error {
	return errors.Join(p.ctx.Do(func() error { return p.d.StreamSynchronize(s) }), p.Err())
}

func streams(p *PE) error {
	const n = 1 << 20
	me := p.Rank()
	other := 1 - me
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	words, err := p.Calloc(16, 8)
	if err != nil {
		return err
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(me, n)); err != nil {
		return err
	}
	for _, err := range []error{
		p.PutSignalOnStream(a, outside, n, words, 1, layout.SignalSet, other, s),
		p.SignalWaitOnStream(words, layout.CompareEQ, 1, s),
		p.GetOnStream(outside, a, n, other, s), // what this PE put there
		p.SignalOpOnStream(words+8, 5, layout.SignalAdd, other, s),
		p.SignalWaitOnStream(words+8, layout.CompareGE, 5, s),
		p.POnStream(words+16, 77, 8, other, s),
		p.POnStream(words+24, 0x1234, 2, other, s),
		p.AtomicOnStream(layout.AtomicAdd, layout.TypeUint64, words+32, 3, 0, words+40, 0, s),
		p.BarrierOnStream(World, s),
		p.IPutOnStream(words+64, words+16, 1, 1, 8, 1, other, s),
		p.FenceOnStream(s), p.QuietOnStream(s),
		p.BarrierOnStream(World, s),
		p.PutOnStream(a, outside, 100, me, s),
		p.wait4(s),
		p.expect("put on stream", a, pattern(me, 100)),
		p.expect("put with signal", a+100, pattern(other, n)[100:]),
		p.expect("get on stream", outside, pattern(me, n)),
		p.expectWord("p", words+16, 77), p.expectWord("small p", words+24, 0x1234), p.expectWord("iput", words+64, 77),
	} {
		if err != nil {
			return err
		}
	}
	if v, err := p.G(words+32, 8, 0); err != nil || v != 6 {
		return fmt.Errorf("two atomic adds of 3: %d, %v", v, err)
	}
	old, err := p.readWord(words + 40)
	if err != nil || old != 0 && old != 3 {
		return fmt.Errorf("fetched %d, %v", old, err)
	}
	// Barriers of the host beside those on streams that nobody has waited for; Finalize waits.
	for range 5 {
		if err := p.BarrierOnStream(World, s); err != nil {
			return err
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
	}
	return p.BarrierOnStream(World, 0)
}

// leave leaves the job with work on streams that nobody has waited for.
func leave(p *PE) error {
	s, err := p.newStream()
	if err != nil {
		return err
	}
	for range 2 {
		if err := errors.Join(p.BarrierOnStream(World, 0), p.BarrierOnStream(Node, s)); err != nil {
			return err
		}
	}
	return nil
}

func graph(p *PE) error {
	const n = 64 << 10
	other := 1 - p.Rank()
	a, err := p.Calloc(3, n)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	words := a + 2*n
	source, err := p.scratch(n)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // a capture of this mode is ended by the thread that began it
	defer runtime.UnlockOSThread()
	// Everything a graph needs is loaded while it is captured, if it was not before.
	for _, err := range []error{
		p.ctx.Do(func() error { return p.d.BeginCapture(s, cuda.CaptureThreadLocal) }),
		p.PutSignalOnStream(a, source, n, words, 1, layout.SignalAdd, other, s),
		p.BarrierOnStream(World, s),
		p.GetOnStream(a+n, a, n, other, s),
		p.BarrierOnStream(World, s),
	} {
		if err != nil {
			return err
		}
	}
	var exec uintptr
	if err := p.ctx.Do(func() error {
		g, err := p.d.EndCapture(s)
		if err != nil {
			return err
		}
		exec, err = p.d.GraphInstantiate(g)
		return errors.Join(err, p.d.GraphDestroy(g))
	}); err != nil {
		return err
	}
	const rounds = 3
	for round := range rounds {
		if err := p.write(source, pattern(p.Rank()+round, n)); err != nil {
			return err
		}
		if err := errors.Join(p.ctx.Do(func() error { return p.d.GraphLaunch(exec, s) }), p.wait4(s)); err != nil {
			return err
		}
		if err := errors.Join(p.expect("put in a graph", a, pattern(other+round, n)), p.expect("get in a graph", a+n, pattern(p.Rank()+round, n)),
			p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	if err := p.expectWord("signals", words, rounds); err != nil {
		return err
	}
	return p.ctx.Do(func() error { return p.d.GraphExecDestroy(exec) })
}

func exerciseCollectives(p *PE) error {
	const n = 4 << 10
	me, pes := p.Rank(), p.Size()
	a, err := p.Malloc(n * uint64(pes))
	if err != nil {
		return err
	}
	b, err := p.Malloc(n * uint64(pes))
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.write(a, pattern(me, n*pes)); err != nil {
		return err
	}
	var all, mine []byte
	for pe := range pes {
		all = append(all, pattern(pe, n)...)
		mine = append(mine, pattern(pe, n*pes)[me*n:me*n+n]...)
	}
	for _, err := range []error{
		p.BroadcastOnStream(World, b, a, n, 1, s), p.wait4(s), p.expect("broadcast", b, pattern(1, n)), p.BarrierAll(),
		p.FCollectOnStream(World, b, a, n, s), p.wait4(s), p.expect("fcollect", b, all), p.BarrierAll(),
		p.AllToAll(World, b, a, n), p.expect("alltoall", b, mine), p.SyncAll(),
	} {
		if err != nil {
			return err
		}
	}
	ones := bytes.Repeat([]byte{1, 0, 0, 0}, n/4)
	sum := bytes.Repeat([]byte{byte(pes), 0, 0, 0}, n/4)
	for _, err := range []error{
		p.write(a, ones), p.BarrierAll(),
		p.ReduceOnStream(World, layout.TypeInt32, layout.ReduceSum, b, a, n/4, s), p.wait4(s), p.expect("sum", b, sum), p.BarrierAll(),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// gpuTeams: barriers of a team do not wait for who is not in it, and a number that is used again begins anew.
func gpuTeams(p *PE) error {
	for range 3 {
		t, err := p.TeamSplitStrided(World, 0, 2, 2)
		if err != nil {
			return err
		}
		if p.Rank() == 1 {
			continue
		}
		for range 3 {
			if err := p.Barrier(t); err != nil {
				return err
			}
		}
		if err := p.TeamDestroy(t); err != nil {
			return err
		}
	}
	return p.BarrierAll()
}

// network: operations through queues, a few bytes each, since the software GPU interprets the device's part.
func network(p *PE) error {
	const n = 64
	next, before := around(p)
	a, err := p.Calloc(4, n)
	if err != nil {
		return err
	}
	words := a + 3*n
	if p.Ptr(a, next) != 0 || p.Info().RMA[next] == "p2p" {
		return fmt.Errorf("PE %d is mapped", next)
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(p.Rank(), n)); err != nil {
		return err
	}
	at, err := p2p.AllocateHost(4096)
	if err != nil {
		return err
	}
	defer p2p.ReleaseHost(at, 4096)
	for i, b := range pattern(p.Rank()+1, n) {
		storeElement(at+uint64(i), uint64(b), 1)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"put", func() error { return p.Put(a, outside, n, next) }}, // by way of the heap: it is not registered
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a, pattern(before, n)) }},
		{"get", func() error { return p.Get(a+n, a, n, next) }},
		{"expect", func() error { return p.expect("get", a+n, pattern(p.Rank(), n)) }},
		{"put_nbi", func() error { return p.PutNBI(a+2*n, a+n, n, next) }},
		{"quiet", p.Quiet},
		{"put_signal", func() error { return p.PutSignal(a+2*n, a, 8, words, 5, layout.SignalAdd, next) }},
		{"wait", func() error { _, err := p.SignalWait(words, layout.CompareEQ, 5); return err }},
		{"expect", func() error { return p.expect("put_signal", a+2*n, pattern((before+p.Size()-1)%p.Size(), 8)) }},
		{"atomic", func() error {
			for range 10 {
				if _, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words+8, 7, 0, false, 0); err != nil {
					return err
				}
			}
			return nil
		}},
		{"barrier", p.BarrierAll},
		{"fetch", func() error {
			v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words+8, 0, 0, true, 0)
			if err == nil && v != uint64(p.Size()*70) {
				err = fmt.Errorf("%d after %d adds of 7", v, p.Size()*10)
			}
			return err
		}},
		{"register", func() error { return p.RegisterBuffer(outside, n) }},
		{"seen by kernels", func() error {
			var count [4]byte
			err := p.read(count[:], p.tables.self+uint64(unsafe.Offsetof(p.state.LocalCount)))
			if err == nil && count != [4]byte{1} {
				err = fmt.Errorf("%v buffers", count)
			}
			return err
		}},
		{"put", func() error { return p.Put(a+n, outside, n, next) }},
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a+n, pattern(before, n)) }},
		{"get", func() error { return p.Get(outside, a+n, n, next) }},
		{"expect", func() error { return p.expect("get", outside, pattern(p.Rank(), n)) }},
		{"register memory that the GPU does not reach", func() error { return p.RegisterBuffer(at, n) }},
		{"barrier", p.BarrierAll},
		{"put", func() error { return p.Put(a+n, at, 8, next) }},
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a+n, pattern(before+1, 8)) }},
		{"unregister", p.UnregisterAllBuffers},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// resident: the software HCA on the GPU, which the software GPU interprets too.
func resident(p *PE) error {
	const n = 64
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	if err := errors.Join(p.write(a, pattern(p.Rank(), n)), p.BarrierAll()); err != nil {
		return err
	}
	next, plain := (p.Rank()+1)%p.Size(), make([]byte, n)
	if err := errors.Join(p.Get(a+n/2, a, n/2, next), p.expect("get", a+n/2, pattern(next, n/2))); err != nil {
		return err
	}
	if err := p.RegisterBuffer(uint64(uintptr(unsafe.Pointer(&plain[0]))), n); err == nil {
		return errors.New("memory was registered that the GPU does not reach")
	}
	return nil
}
