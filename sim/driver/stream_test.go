package driver

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
)

func (c *client) event(flags uint32) wire.CUevent {
	c.t.Helper()
	e, res := c.EventCreate(c.call, flags)
	c.want(res, success)
	return e
}

func (c *client) word(p uint64) uint32 {
	c.t.Helper()
	return binary.LittleEndian.Uint32(c.get(p, 4))
}

// hold puts an op on a stream that ends when the function it returns is called.
func (c *client) hold(s wire.CUstream) func() {
	c.t.Helper()
	gate := make(chan struct{})
	fn := c.prog.function(func(wire.InvokeKind, wire.HostAddr, wire.HostAddr, wire.HostAddr) { <-gate })
	c.want(c.LaunchHostFunc(c.call, s, fn, 0), success)
	return func() { close(gate) }
}

func TestStreamOrder(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	s := c.stream(0)
	for i := range 50 {
		c.want(c.launch(f, shape(1, 32), s, p, uint64(16), uint32(i)), success)
	}
	c.want(c.StreamSynchronize(c.call, s), success)
	if v := c.word(p); v != 49 {
		t.Errorf("after the last kernel %d, want 49", v)
	}
	c.want(c.StreamQuery(c.call, s), success)
	c.want(c.StreamDestroy(c.call, s), success)
	c.want(c.StreamSynchronize(c.call, s), errInvalidHandle)
	c.want(c.StreamSynchronize(c.call, wire.CUstream(f)), errInvalidHandle)
}

func TestLegacyStreamRules(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	blocking, free := c.stream(0), c.stream(streamNonBlocking)
	open := c.hold(blocking)
	// The legacy stream waits for a blocking stream, and blocking streams wait for it; a non-blocking one does neither.
	e := c.event(0)
	c.want(c.EventRecord(c.call, e, 0), success)
	other := c.stream(0)
	e2 := c.event(0)
	c.want(c.EventRecord(c.call, e2, other), success)
	e3 := c.event(0)
	c.want(c.EventRecord(c.call, e3, free), success)
	e4 := c.event(0)
	c.want(c.EventRecord(c.call, e4, streamPerThread), success)
	c.want(c.EventQuery(c.call, e), errNotReady)
	c.want(c.EventQuery(c.call, e2), errNotReady)
	c.want(c.EventQuery(c.call, e4), errNotReady)
	within(t, "non-blocking stream", func() { c.want(c.EventSynchronize(c.call, e3), success) })
	open()
	within(t, "legacy stream", func() { c.want(c.StreamSynchronize(c.call, 0), success) })
	c.want(c.EventQuery(c.call, e2), success)
	// A destroyed blocking stream still holds the legacy stream.
	open = c.hold(blocking)
	c.want(c.StreamDestroy(c.call, blocking), success)
	c.want(c.EventRecord(c.call, e, 0), success)
	c.want(c.EventQuery(c.call, e), errNotReady)
	open()
	within(t, "legacy stream", func() { c.want(c.EventSynchronize(c.call, e), success) })
}

func TestEvents(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(kernels.Compute, "compute")
	out := c.alloc(1 << 20)
	a, b := c.stream(streamNonBlocking), c.stream(streamNonBlocking)
	start, end, none := c.event(0), c.event(0), c.event(eventDisableTiming)
	_, res := c.EventElapsedTime(c.call, start, end)
	c.want(res, errInvalidHandle)
	c.want(c.EventQuery(c.call, start), success) // never recorded counts as reached
	c.want(c.EventRecord(c.call, start, a), success)
	c.want(c.launch(f, shape(4, 256), a, uint32(1000), out), success)
	c.want(c.EventRecord(c.call, end, a), success)
	c.want(c.StreamWaitEvent(c.call, b, end, 0), success)
	g := c.kernel(store, "store")
	c.want(c.launch(g, shape(1, 32), b, out, uint64(1), uint32(77)), success)
	c.want(c.StreamSynchronize(c.call, b), success)
	if v := c.word(out); v != 77 {
		t.Errorf("the waiting stream ran too early: %d", v)
	}
	ms, res := c.EventElapsedTime(c.call, start, end)
	c.want(res, success)
	// 4 blocks on 4 units at 1 MHz: at least the 8 warps of a block for every one of the 1000 rounds.
	if ms < 8 {
		t.Errorf("kernel took %g ms", ms)
	}
	_, res = c.EventElapsedTime(c.call, start, none)
	c.want(res, errInvalidHandle)
	c.want(c.EventDestroy(c.call, end), success)
	c.want(c.EventQuery(c.call, end), errInvalidHandle)
	_, res = c.EventCreate(c.call, eventInterprocess)
	c.want(res, errInvalidValue)
}

func TestConcurrentKernels(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	wait, set := c.kernel(kernels.Control, "wait_flag"), c.kernel(store, "store")
	flags := c.alloc(64)
	c.want(c.Memset(c.call, wire.CUdeviceptr(flags), 0, 0, 4, 16, 1, 0, 0), success)
	c.sync()
	// Each kernel but the last waits for the next stream's: they end only if all run at the same time.
	var streams []wire.CUstream
	for range 3 {
		s := c.stream(0)
		streams = append(streams, s)
		c.want(c.launch(wait, shape(1, 32), s, flags, uint32(1), flags+8), success)
	}
	c.want(c.launch(set, shape(1, 32), c.stream(0), flags, uint64(1), uint32(1)), success)
	within(t, "kernels of four streams", func() {
		for _, s := range streams {
			c.want(c.StreamSynchronize(c.call, s), success)
		}
	})
}

func TestHostFunctions(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	s := c.stream(streamNonBlocking)
	var mu sync.Mutex
	var seen []string
	note := func(what string) { mu.Lock(); seen = append(seen, what); mu.Unlock() }
	host := c.prog.function(func(k wire.InvokeKind, a, _, _ wire.HostAddr) {
		if k == wire.HostFunction && a == 5 {
			note("host")
		}
	})
	cb := c.prog.function(func(k wire.InvokeKind, a, status, data wire.HostAddr) {
		if k == wire.StreamCallback && a == wire.HostAddr(s) && status == 0 && data == 6 {
			note("callback")
		}
	})
	c.want(c.launch(f, shape(1, 32), s, p, uint64(1), uint32(1)), success)
	c.want(c.LaunchHostFunc(c.call, s, host, 5), success)
	c.want(c.StreamAddCallback(c.call, s, cb, 6, 0), success)
	c.want(c.LaunchHostFunc(c.call, s, 0, 5), errInvalidValue)
	within(t, "stream", func() { c.want(c.StreamSynchronize(c.call, s), success) })
	if len(seen) != 2 || seen[0] != "host" || seen[1] != "callback" {
		t.Errorf("functions ran as %v", seen)
	}
}

func TestWaitAndWriteValue(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	p := c.alloc(64)
	c.want(c.Memset(c.call, wire.CUdeviceptr(p), 0, 0, 4, 16, 1, 0, 0), success)
	a, b := c.stream(streamNonBlocking), c.stream(streamNonBlocking)
	c.sync()
	c.want(c.StreamWaitValue32(c.call, a, wire.CUdeviceptr(p), 3, uint32(wire.CU_STREAM_WAIT_VALUE_EQ)), success)
	c.want(c.StreamWriteValue64(c.call, a, wire.CUdeviceptr(p+8), 1<<40, 0), success)
	c.want(c.StreamQuery(c.call, a), errNotReady)
	c.want(c.StreamWriteValue32(c.call, b, wire.CUdeviceptr(p), 3, 0), success)
	within(t, "wait for a value", func() { c.want(c.StreamSynchronize(c.call, a), success) })
	if v := binary.LittleEndian.Uint64(c.get(p+8, 8)); v != 1<<40 {
		t.Errorf("written value reads %#x", v)
	}
	c.want(c.StreamWaitValue32(c.call, a, wire.CUdeviceptr(p+2), 3, 0), errInvalidValue)
	c.want(c.StreamWaitValue32(c.call, a, 0, 3, 0), errInvalidValue)
	for _, tc := range []struct {
		o    memop
		have uint64
		want bool
	}{
		{memop{value: 5, bytes: 4}, 5, true},
		{memop{value: 5, bytes: 4}, 4, false},
		{memop{value: 0xffffffff, bytes: 4}, 1, true}, // compared as a cyclic count
		{memop{value: 6, bytes: 8, flags: 2}, 2, true},
		{memop{value: 6, bytes: 8, flags: 2}, 1, false},
		{memop{value: 0xf0f0f0f0, bytes: 4, flags: 3}, 0x0f0f0f0f, false},
		{memop{value: 0, bytes: 4, flags: 3}, 0, true},
	} {
		if got := tc.o.holds(tc.have); got != tc.want {
			t.Errorf("%+v of %#x: %v", tc.o, tc.have, got)
		}
	}
}

func TestPendingIsBounded(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	s := c.stream(streamNonBlocking)
	open := c.hold(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 * c.d.options.PendingMax {
			c.launch(f, shape(1, 1), s, p, uint64(1), uint32(1))
		}
	}()
	// The launches cannot all have been taken while the stream stands still: one of them waits.
	for {
		c.d.mu.Lock()
		n := len(c.contexts[0].live)
		waits := c.contexts[0].room != nil
		c.d.mu.Unlock()
		if n > c.d.options.PendingMax {
			t.Fatalf("%d works are pending, more than %d", n, c.d.options.PendingMax)
		}
		if waits {
			break
		}
	}
	open()
	within(t, "launches", func() { <-done })
	c.sync()
}

func TestIPCEvent(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, o := b.connect(), b.connect()
	e := c.event(eventDisableTiming | eventInterprocess)
	h, res := c.IpcGetEventHandle(c.call, e)
	c.want(res, success)
	oe, res := o.IpcOpenEventHandle(o.call, h)
	o.want(res, success)
	s := c.stream(0)
	open := c.hold(s)
	c.want(c.EventRecord(c.call, e, s), success)
	o.want(o.EventQuery(o.call, oe), errNotReady)
	open()
	within(t, "the other process's event", func() { o.want(o.EventSynchronize(o.call, oe), success) })
}

func TestContexts(t *testing.T) {
	b := newBench(t, 2, 64<<20)
	c := b.connect()
	mem := b.m.Devices[1].Memory
	call := wire.NewCall(0, 1, c.prog)
	_, res := c.MemAlloc(call, 100)
	c.want(res, errInvalidContext)
	ctx, res := c.CtxCreate(call, 0, 1)
	c.want(res, success)
	_, res = c.CtxCreate(call, 3, 1)
	c.want(res, errInvalidValue)
	_, res = c.CtxCreate(call, 0, 2)
	c.want(res, errInvalidDevice)
	if mem.Total()-mem.Free() != 4<<20 {
		t.Errorf("a context takes %d bytes", mem.Total()-mem.Free())
	}
	dev, res := c.CtxGetDevice(call, ctx)
	c.want(res, success)
	if dev != 1 {
		t.Errorf("context is on device %d", dev)
	}
	in := wire.NewCall(ctx, 1, c.prog)
	p, res := c.MemAlloc(in, 4<<20)
	c.want(res, success)
	c.want(c.CtxDestroy(call, ctx), success)
	c.want(c.CtxDestroy(call, ctx), errInvalidContext)
	_, res = c.MemAlloc(in, 100)
	c.want(res, errContextIsDestroyed)
	c.want(c.MemFree(call, p), errInvalidValue)
	if mem.Free() != mem.Total() {
		t.Errorf("%d bytes are left of a destroyed context", mem.Total()-mem.Free())
	}
	c.want(c.CtxDestroy(call, c.ctx), errInvalidContext) // the primary one
	_, active, res := c.DevicePrimaryCtxGetState(call, 0)
	c.want(res, success)
	if active != 1 {
		t.Error("primary context is not active")
	}
	c.want(c.DevicePrimaryCtxRelease(call, 0), success)
	c.want(c.DevicePrimaryCtxRelease(call, 0), errInvalidContext)
}
