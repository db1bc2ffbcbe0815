package driver

import (
	"testing"

	"github.com/lgpu/lgpu/sim/wire"
)

// TestPoolOrder frees memory behind a stream that waits: the memory no longer counts as used, but stays reserved and is
// reused only by what comes after the free.
func TestPoolOrder(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	flag := wire.CUdeviceptr(c.alloc(64))
	c.want(c.Memset(c.call, flag, 0, 0, 4, 16, 1, 0, 0), success)
	held, other, writer := c.stream(streamNonBlocking), c.stream(streamNonBlocking), c.stream(streamNonBlocking)
	pool, res := c.MemPoolCreate(c.call, &wire.CUmemPoolProps{AllocType: wire.CU_MEM_ALLOCATION_TYPE_PINNED, MaxSize: 16 << 20,
		Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}})
	c.want(res, success)
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1<<40), success)
	take := func(s wire.CUstream, size uint64, want Result) wire.CUdeviceptr {
		t.Helper()
		var p wire.CUdeviceptr
		within(t, "an allocation", func() {
			var res Result
			p, res = c.MemAllocFromPoolAsync(c.call, size, pool, s)
			c.want(res, want)
		})
		return p
	}
	figures := func(used, reserved uint64) {
		t.Helper()
		u, _ := c.MemPoolGetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
		r, _ := c.MemPoolGetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
		if u != used<<20 || r != reserved<<20 {
			t.Errorf("%d bytes used, %d reserved; want %d and %d MiB", u, r, used, reserved)
		}
	}
	p := take(held, 4<<20, success)
	c.want(c.StreamWaitValue32(c.call, held, flag, 1, 0), success)
	c.want(c.MemFreeAsync(c.call, p, held), success)
	c.want(c.MemFreeAsync(c.call, p, held), errInvalidValue)
	figures(0, 4)
	free := c.free()
	c.want(c.MemPoolTrimTo(c.call, pool, 0), success)
	c.want(c.StreamSynchronize(c.call, other), success)
	figures(0, 4)
	if c.free() != free {
		t.Errorf("%d bytes are free while the free waits, before %d", c.free(), free)
	}
	// The stream itself may have it at once; another one makes the pool grow.
	if q := take(held, 4<<20, success); q != p {
		t.Errorf("the same stream gets %#x, want %#x again", q, p)
	}
	figures(4, 4)
	c.want(c.MemFreeAsync(c.call, p, held), success)
	q := take(other, 4<<20, success)
	figures(4, 8)
	// One that waits for the free may have it.
	e, res := c.EventCreate(c.call, 0)
	c.want(res, success)
	c.want(c.EventRecord(c.call, e, held), success)
	after := c.stream(streamNonBlocking)
	c.want(c.StreamWaitEvent(c.call, after, e, 0), success)
	if r := take(after, 4<<20, success); r != p {
		t.Errorf("a stream after the free gets %#x, want %#x", r, p)
	}
	c.want(c.MemFreeAsync(c.call, p, after), success)
	// Full, the pool makes a stream wait rather than fail, unless it may not.
	take(other, 8<<20, success)
	figures(12, 16)
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0), success)
	take(other, 4<<20, errOutOfMemory)
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1), success)
	c.want(c.StreamSynchronize(c.call, other), success)
	if r := take(other, 4<<20, success); r != p {
		t.Errorf("a full pool gives %#x, want %#x", r, p)
	}
	c.want(c.StreamQuery(c.call, other), errNotReady)
	c.want(c.StreamWriteValue32(c.call, writer, flag, 1, 0), success)
	within(t, "the stream that was made to wait", func() { c.want(c.StreamSynchronize(c.call, other), success) })
	c.want(c.MemFreeAsync(c.call, q, other), success)
	figures(12, 16)
}

// TestDestroyedPool destroys a pool with memory in use: it stays reserved until its last free has run.
func TestDestroyedPool(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	flag := wire.CUdeviceptr(c.alloc(64))
	c.want(c.Memset(c.call, flag, 0, 0, 4, 16, 1, 0, 0), success)
	s, writer := c.stream(streamNonBlocking), c.stream(streamNonBlocking)
	c.sync()
	free := c.free()
	pool, res := c.MemPoolCreate(c.call, &wire.CUmemPoolProps{AllocType: wire.CU_MEM_ALLOCATION_TYPE_PINNED,
		Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}})
	c.want(res, success)
	p, res := c.MemAllocFromPoolAsync(c.call, 8<<20, pool, s)
	c.want(res, success)
	c.want(c.MemPoolDestroy(c.call, pool), success)
	c.sync()
	if got := free - c.free(); got != 8<<20 {
		t.Errorf("a destroyed pool with 8 MiB in use takes %d bytes", got)
	}
	c.want(c.StreamWaitValue32(c.call, s, flag, 1, 0), success)
	c.want(c.MemFreeAsync(c.call, p, s), success)
	if got := free - c.free(); got != 8<<20 {
		t.Errorf("a destroyed pool whose free waits takes %d bytes, want 8 MiB", got)
	}
	c.want(c.StreamWriteValue32(c.call, writer, flag, 1, 0), success)
	within(t, "the free", func() { c.want(c.StreamSynchronize(c.call, s), success) })
	if c.free() != free {
		t.Errorf("%d bytes are not back", free-c.free())
	}
}
