package driver

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
	"golang.org/x/sys/unix"
)

func (c *client) free() uint64 {
	c.t.Helper()
	free, _, res := c.MemGetInfo(c.call)
	c.want(res, success)
	return free
}

func TestMemoryIsReal(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c := b.connect()
	free, total, res := c.MemGetInfo(c.call)
	c.want(res, success)
	if total != 64<<20 || free != total-4<<20 {
		t.Fatalf("free %d of %d, want the context's 4 MiB less", free, total)
	}
	p := c.alloc(40 << 20)
	_, res = c.MemAlloc(c.call, 21<<20)
	c.want(res, errOutOfMemory)
	if got := c.free(); got != free-40<<20 {
		t.Fatalf("after a failed allocation %d bytes are free, want %d", got, free-40<<20)
	}
	_, res = c.MemAlloc(c.call, 1<<62)
	c.want(res, errOutOfMemory)
	_, res = c.MemAlloc(c.call, 0)
	c.want(res, errInvalidValue)
	c.want(c.MemFree(c.call, wire.CUdeviceptr(p+512)), errInvalidValue)
	c.want(c.MemFree(c.call, wire.CUdeviceptr(p)), success)
	c.want(c.MemFree(c.call, wire.CUdeviceptr(p)), errInvalidValue)
	if got := c.free(); got != free {
		t.Fatalf("after the free %d bytes are free, want %d", got, free)
	}
}

func TestSmallAllocationsShareFrames(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	before := c.free()
	var ps []uint64
	for range 100 {
		ps = append(ps, c.alloc(1000))
	}
	if used := before - c.free(); used != hw.FrameSize {
		t.Errorf("100 small allocations take %d bytes, want one frame", used)
	}
	for i, p := range ps {
		if p%512 != 0 || i > 0 && p < ps[i-1]+1000 {
			t.Fatalf("allocation %d at %#x", i, p)
		}
		base, size, res := c.MemGetAddressRange(c.call, wire.CUdeviceptr(p+10))
		c.want(res, success)
		if uint64(base) != p || size != 1000 {
			t.Fatalf("range of %#x is %#x with %d bytes", p, base, size)
		}
	}
	for _, p := range ps {
		c.want(c.MemFree(c.call, wire.CUdeviceptr(p)), success)
	}
	if c.free() != before {
		t.Errorf("%d bytes are not back", before-c.free())
	}
}

// Copies and memsets end where an allocation does, although what lies behind it is there, or is another one's.
func TestCopiesEndWithAllocations(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	other := c.alloc(1 << 20)
	pooled, res := c.MemAllocAsync(c.call, 1000, 0)
	c.want(res, success)
	for _, p := range []uint64{c.alloc(1000), c.alloc(3<<20 + 8), uint64(pooled)} {
		_, size, res := c.MemGetAddressRange(c.call, wire.CUdeviceptr(p))
		c.want(res, success)
		for _, past := range []uint64{0, 1, 512} {
			want := success
			if past > 0 {
				want = errInvalidValue
			}
			at := p + size - 4 + past
			c.want(c.Memcpy(c.call, wire.CUdeviceptr(other), wire.CUdeviceptr(at), 4, 0, 0, 0), want)
			c.want(c.Memcpy(c.call, wire.CUdeviceptr(at), wire.CUdeviceptr(other), 4, 0, 0, 0), want)
			c.want(c.Memset(c.call, wire.CUdeviceptr(at), 0, 1, 1, 4, 1, 0, 0), want)
		}
	}
}

func TestDeathFreesAll(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c := b.connect()
	mem := b.m.Devices[0].Memory
	c.alloc(8 << 20)
	s := c.stream(0)
	_, res := c.MemAllocAsync(c.call, 4<<20, s)
	c.want(res, success)
	f := c.kernel(kernels.Control, "wait_flag")
	flag := c.alloc(8)
	c.want(c.Memset(c.call, wire.CUdeviceptr(flag), 0, 0, 4, 2, 1, 0, 0), success)
	c.want(c.launch(f, shape(4, 32), s, flag, uint32(1), flag+4), success)
	waiting := make(chan Result)
	go func() { waiting <- c.StreamSynchronize(c.call, s) }()
	// The connection breaks: calls that wait end, and then the process is closed.
	close(c.prog.goneCh)
	within(t, "waiting call", func() { <-waiting })
	within(t, "close", c.Close)
	if mem.Free() != mem.Total() {
		t.Fatalf("%d bytes are not free", mem.Total()-mem.Free())
	}
	if n := len(b.d.processes); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	if _, res := c.MemAlloc(c.call, 1); res == success {
		t.Error("a dead process allocates")
	}
}

func TestPools(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	pool, res := c.DeviceGetDefaultMemPool(c.call, 0)
	c.want(res, success)
	attr := func(a wire.CUmemPool_attribute) uint64 {
		t.Helper()
		v, res := c.MemPoolGetAttribute(c.call, pool, a)
		c.want(res, success)
		return v
	}
	s := c.stream(0)
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1<<40), success)
	p, res := c.MemAllocAsync(c.call, 6<<20, s)
	c.want(res, success)
	q, res := c.MemAllocAsync(c.call, 1000, s)
	c.want(res, success)
	if u, r := attr(wire.CU_MEMPOOL_ATTR_USED_MEM_CURRENT), attr(wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); u != 6<<20+1000 || r != 8<<20 {
		t.Errorf("used %d reserved %d", u, r)
	}
	c.want(c.MemFreeAsync(c.call, p, s), success)
	c.want(c.MemFreeAsync(c.call, p, s), errInvalidValue)
	c.want(c.StreamSynchronize(c.call, s), success)
	if r := attr(wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); r != 8<<20 {
		t.Errorf("reserved %d after a free under the threshold", r)
	}
	c.want(c.MemPoolTrimTo(c.call, pool, 0), success)
	if r := attr(wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); r != 2<<20 {
		t.Errorf("reserved %d after trim, want what is in use", r)
	}
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0), success)
	c.want(c.MemFreeAsync(c.call, q, s), success)
	c.want(c.StreamSynchronize(c.call, s), success)
	if r := attr(wire.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); r != 0 {
		t.Errorf("reserved %d after a synchronisation with threshold 0", r)
	}
	if h := attr(wire.CU_MEMPOOL_ATTR_USED_MEM_HIGH); h != 6<<20+1000 {
		t.Errorf("high-water mark %d", h)
	}
	// What a pool keeps is given up when an allocation needs it.
	c.want(c.MemPoolSetAttribute(c.call, pool, wire.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1<<40), success)
	p, res = c.MemAllocAsync(c.call, 40<<20, s)
	c.want(res, success)
	c.want(c.MemFreeAsync(c.call, p, s), success)
	c.want(c.StreamSynchronize(c.call, s), success)
	c.alloc(50 << 20)
	_, res = c.MemAllocAsync(c.call, 40<<20, s)
	c.want(res, errOutOfMemory)
	// A pool of the program's own, with a limit.
	own, res := c.MemPoolCreate(c.call, &wire.CUmemPoolProps{AllocType: wire.CU_MEM_ALLOCATION_TYPE_PINNED, MaxSize: 4 << 20,
		Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}})
	c.want(res, success)
	r, res := c.MemAllocFromPoolAsync(c.call, 4<<20, own, s)
	c.want(res, success)
	_, res = c.MemAllocFromPoolAsync(c.call, 4<<20, own, s)
	c.want(res, errOutOfMemory)
	c.want(c.MemPoolDestroy(c.call, own), success)
	c.want(c.MemFreeAsync(c.call, r, s), success)
	c.want(c.MemPoolDestroy(c.call, own), errInvalidValue)
}

// vmm maps n bytes of new physical memory, with access for device 0.
func (c *client) vmm(n uint64) (wire.CUdeviceptr, wire.CUmemGenericAllocationHandle) {
	c.t.Helper()
	p, res := c.MemAddressReserve(c.call, n, 0, 0, 0)
	c.want(res, success)
	h, res := c.MemCreate(c.call, n, &wire.CUmemAllocationProp{Type: wire.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		Location:             wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}}, 0)
	c.want(res, success)
	c.want(c.MemMap(c.call, p, n, 0, h, 0), success)
	c.allow(p, n)
	return p, h
}

func (c *client) allow(p wire.CUdeviceptr, n uint64) {
	c.t.Helper()
	c.want(c.MemSetAccess(c.call, p, n, []wire.CUmemAccessDesc{{Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE},
		Flags: wire.CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}), success)
}

func TestVMM(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c := b.connect()
	before := c.free()
	const n = 4 << 20
	p, h := c.vmm(n)
	c.put(uint64(p), []byte("mapped"))
	c.want(c.MemRelease(c.call, h), success)
	if c.free() != before-n {
		t.Error("released memory that is mapped is gone")
	}
	if got := c.get(uint64(p), 6); string(got) != "mapped" {
		t.Errorf("read %q", got)
	}
	c.want(c.MemUnmap(c.call, p, n/2), errInvalidValue)
	c.want(c.MemAddressFree(c.call, p, n), errInvalidValue)
	c.want(c.MemUnmap(c.call, p, n), success)
	if c.free() != before {
		t.Error("unmapped memory is not free")
	}
	f := c.kernel(store, "store")
	c.want(c.launch(f, shape(1, 32), 0, uint64(p), uint64(1), uint32(1)), success)
	c.want(c.CtxSynchronize(c.call), errIllegalAddress)
	c.want(c.MemAddressFree(c.call, p, n), success)
	_, res := c.MemCreate(c.call, 1000, &wire.CUmemAllocationProp{Type: wire.CU_MEM_ALLOCATION_TYPE_PINNED,
		Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}}, 0)
	c.want(res, errInvalidValue)
}

func TestVMMBetweenProcesses(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, o := b.connect(), b.connect()
	const n = 2 << 20
	p, h := c.vmm(n)
	c.put(uint64(p), []byte("shared"))
	c.want(c.MemExportToShareableHandle(c.call, h, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), success)
	fd := c.call.GivenFile()
	// The exporter dies; what it exported stays.
	c.Close()
	copyOf, err := duplicate(fd)
	if err != nil {
		t.Fatal(err)
	}
	o.call.SetFile(copyOf)
	oh, res := o.MemImportFromShareableHandle(o.call, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	o.want(res, success)
	fd.Close()
	q, res := o.MemAddressReserve(o.call, n, 0, 0, 0)
	o.want(res, success)
	o.want(o.MemMap(o.call, q, n, 0, oh, 0), success)
	o.allow(q, n)
	if got := o.get(uint64(q), 6); string(got) != "shared" {
		t.Errorf("read %q", got)
	}
	procs, _, _ := b.d.DeviceProcesses(0, 8)
	if len(procs) != 1 || procs[0].MemoryUsed != n+4<<20 {
		t.Errorf("processes %+v, want one with the imported memory", procs)
	}
	other, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	o.call.SetFile(other)
	_, res = o.MemImportFromShareableHandle(o.call, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	o.want(res, errInvalidValue)
}

func TestIPC(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, o := b.connect(), b.connect()
	c.alloc(100) // so that the shared one is not the first of its frame
	p := c.alloc(1000)
	c.put(p, []byte("between"))
	h, res := c.IpcGetMemHandle(c.call, wire.CUdeviceptr(p))
	c.want(res, success)
	_, res = o.IpcOpenMemHandle(o.call, h, 0)
	o.want(res, errInvalidValue)
	q, res := o.IpcOpenMemHandle(o.call, h, 1)
	o.want(res, success)
	if got := o.get(uint64(q), 7); string(got) != "between" {
		t.Errorf("read %q", got)
	}
	o.want(o.MemFree(o.call, q), errInvalidValue)
	c.Close()
	if got := o.get(uint64(q), 7); string(got) != "between" {
		t.Errorf("after the owner's death read %q", got)
	}
	o.want(o.IpcCloseMemHandle(o.call, q), success)
	o.want(o.IpcCloseMemHandle(o.call, q), errInvalidValue)
	_, res = o.IpcOpenMemHandle(o.call, h, 1)
	o.want(res, errInvalidValue)
}

func TestSharedPool(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, o := b.connect(), b.connect()
	props := &wire.CUmemPoolProps{AllocType: wire.CU_MEM_ALLOCATION_TYPE_PINNED, HandleTypes: wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}}
	pool, res := c.MemPoolCreate(c.call, props)
	c.want(res, success)
	p, res := c.MemAllocFromPoolAsync(c.call, 4096, pool, 0)
	c.want(res, success)
	c.put(uint64(p), []byte("pooled"))
	c.want(c.MemPoolExportToShareableHandle(c.call, pool, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), success)
	data, res := c.MemPoolExportPointer(c.call, p)
	c.want(res, success)
	o.call.SetFile(c.call.GivenFile())
	theirs, res := o.MemPoolImportFromShareableHandle(o.call, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
	o.want(res, success)
	_, res = o.MemAllocFromPoolAsync(o.call, 4096, theirs, 0)
	o.want(res, errInvalidValue)
	q, res := o.MemPoolImportPointer(o.call, theirs, &data)
	o.want(res, success)
	if got := o.get(uint64(q), 6); string(got) != "pooled" {
		t.Errorf("read %q", got)
	}
	o.want(o.MemFreeAsync(o.call, q, 0), success)
	o.sync()
	c.want(c.MemFreeAsync(c.call, p, 0), success)
	c.sync()
	_, res = o.MemPoolImportPointer(o.call, theirs, &data)
	o.want(res, errInvalidValue)
	plain, res := c.DeviceGetDefaultMemPool(c.call, 0)
	c.want(res, success)
	c.want(c.MemPoolExportToShareableHandle(c.call, plain, wire.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), errInvalidValue)
}

func TestPeerAccess(t *testing.T) {
	b := newBench(t, 2, 64<<20)
	c := b.connect()
	ctx0 := c.ctx
	p0 := c.alloc(4 << 20)
	c.use(1)
	ctx1 := c.ctx
	f := c.kernel(store, "store")
	c.want(c.CtxEnablePeerAccess(c.call, ctx1, 0), errInvalidContext)
	c.want(c.CtxEnablePeerAccess(c.call, ctx0, 0), success)
	c.want(c.CtxEnablePeerAccess(c.call, ctx0, 0), errPeerAccessAlreadyEnabled)
	c.want(c.launch(f, shape(1, 32), 0, p0, uint64(64), uint32(9)), success)
	c.sync()
	if v := binary.LittleEndian.Uint32(c.get(p0, 4)); v != 9 {
		t.Errorf("device 0 reads %d", v)
	}
	p1 := c.alloc(4096)
	c.want(c.MemcpyPeer(c.call, wire.CUdeviceptr(p1), ctx1, wire.CUdeviceptr(p0), ctx0, 256, 0, 0), success)
	if v := binary.LittleEndian.Uint32(c.get(p1, 4)); v != 9 {
		t.Errorf("copy to device 1 reads %d", v)
	}
	c.want(c.CtxDisablePeerAccess(c.call, ctx0), success)
	c.want(c.launch(f, shape(1, 32), 0, p0, uint64(64), uint32(9)), success)
	c.want(c.CtxSynchronize(c.call), errIllegalAddress)
}

// memfd makes sealed memory as the client library does.
func memfd(t *testing.T, n int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestHostMemory(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const addr, n = 0x7f0000000000, 8192
	f := memfd(t, n)
	mine, err := duplicate(f)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	c.call.SetFile(f)
	c.want(c.MemHostMap(c.call, addr, n, 0, 0, 0), success)
	k := c.kernel(store, "store")
	c.want(c.launch(k, shape(1, 32), 0, uint64(addr), uint64(16), uint32(5)), success)
	c.sync()
	got := make([]byte, 64)
	if _, err := mine.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if want := bytes.Repeat([]byte{5, 0, 0, 0}, 16); !bytes.Equal(got, want) {
		t.Errorf("the program reads %v", got)
	}
	b, res := c.PointerGetAttribute(c.call, 8, wire.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr+100)
	c.want(res, success)
	if v := binary.LittleEndian.Uint32(b); v != uint32(wire.CU_MEMORYTYPE_HOST) {
		t.Errorf("memory type %d", v)
	}
	again := memfd(t, n)
	c.call.SetFile(again)
	c.want(c.MemHostMap(c.call, addr, n, 0, 0, 0), errHostAlreadyRegistered)
	c.want(c.MemHostUnmap(c.call, addr, 1), errHostNotRegistered)
	c.want(c.MemHostUnmap(c.call, addr, 0), success)
	c.want(c.MemHostUnmap(c.call, addr, 0), errInvalidValue)
	unsealed, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c.call.SetFile(unsealed)
	c.want(c.MemHostMap(c.call, addr, n, 0, 0, 0), errInvalidValue)
}

// TestHostMemoryParts: a device sees the part of the program's file that the program names, if the file has all of it.
func TestHostMemoryParts(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const addr, page = 0x7f0000000000, hostPage
	mine := memfd(t, 3*page-100) // the third page is there in full
	defer mine.Close()
	give := func() {
		f, err := duplicate(mine)
		if err != nil {
			t.Fatal(err)
		}
		c.call.SetFile(f)
	}
	for _, part := range []struct{ offset, size uint64 }{
		{1, page}, {page / 2, page / 2}, // between pages
		{0, 3*page + 1}, {page, 2*page + 1}, {3 * page, page}, {3 * page, 1}, // beyond the end
		{1 << 63, page}, {^uint64(0) - page + 1, page}, {^uint64(0) - page + 1, 2 * page}, // beyond what there is of numbers
		{page, ^uint64(0)}, {page, ^uint64(0) - page + 1}, {page, ^uint64(0) - 2*page + 1},
		{page, 0},
	} {
		for registered := range uint32(2) {
			give()
			if res := c.MemHostMap(c.call, addr, part.size, part.offset, 0, registered); res != errInvalidValue {
				t.Errorf("%d bytes at %#x: %d", part.size, part.offset, res)
			}
		}
	}
	give()
	c.want(c.MemHostMap(c.call, addr, 2*page, page, 0, 1), success)
	c.want(c.launch(c.kernel(store, "store"), shape(1, 32), 0, uint64(addr+page), uint64(16), uint32(5)), success)
	c.sync()
	got := make([]byte, 64)
	for offset, want := range map[int64]byte{0: 0, page: 0, 2 * page: 5} {
		if _, err := mine.ReadAt(got, offset); err != nil {
			t.Fatal(err)
		}
		if got[0] != want || got[60] != want {
			t.Errorf("at %#x the program reads %v, want %d", offset, got, want)
		}
	}
	c.want(c.MemHostUnmap(c.call, addr, 1), success)
}

// TestHugePagesRefused: huge pages may be missing when a device touches them, which would be a bus error.
func TestHugePagesRefused(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const n = 2 << 20
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skip("no memory files of huge pages:", err)
	}
	f := os.NewFile(uintptr(fd), "test")
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	c.call.SetFile(f)
	c.want(c.MemHostMap(c.call, 0x7f0000000000, n, 0, 0, 1), errInvalidValue)
}

func TestManaged(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	before := c.free()
	const addr, n = 0x7e0000000000, 1 << 20
	c.want(c.MemAllocManaged(c.call, addr, n, 1), success)
	f := c.call.GivenFile()
	defer f.Close()
	if _, err := f.WriteAt([]byte{1, 0, 0, 0}, 0); err != nil {
		t.Fatal(err)
	}
	if got := c.get(addr, 4); got[0] != 1 {
		t.Errorf("device reads %v", got)
	}
	if c.free() >= before {
		t.Error("managed memory is not counted")
	}
	c.want(c.MemAllocManaged(c.call, addr+n, 1<<40, 1), errOutOfMemory)
	c.want(c.MemAllocManaged(c.call, addr+n, n, 0), errInvalidValue)
	c.want(c.MemFree(c.call, addr), success)
	if c.free() != before {
		t.Error("managed memory is not free")
	}
}

func TestPartsOfCopies(t *testing.T) {
	for _, b := range []box{
		{width: 3*stageBytes + 5, height: 1, depth: 1},
		{width: 100, height: 7, depth: 3, src: side{pitch: 100, slice: 700}, dst: side{pitch: 100, slice: 700}},
		{width: 100, height: 7, depth: 3, src: side{pitch: 128, slice: 2000}, dst: side{pitch: 100, slice: 700}},
		{width: stageBytes / 3, height: 10, depth: 2, src: side{pitch: stageBytes, slice: 20 * stageBytes}, dst: side{pitch: stageBytes / 3, slice: 10 * stageBytes}},
		{width: 2*stageBytes + 1, height: 2, depth: 1, src: side{pitch: 4 * stageBytes}, dst: side{pitch: 3 * stageBytes}},
	} {
		// Every byte of every part is the byte of the whole that it should be, in order.
		var i uint64
		for part := range b.parts() {
			if part.bytes() > stageBytes {
				t.Fatalf("part of %d bytes", part.bytes())
			}
			for j := uint64(0); j < part.bytes(); {
				from, n := part.at(&part.src, j)
				to, m := part.at(&part.dst, j)
				wantFrom, _ := b.at(&b.src, i)
				wantTo, _ := b.at(&b.dst, i)
				if from != wantFrom || to != wantTo {
					t.Fatalf("%+v: byte %d is copied from %d to %d, want %d to %d", b, i, from, to, wantFrom, wantTo)
				}
				j += min(n, m)
				i += min(n, m)
			}
		}
		if i != b.bytes() {
			t.Errorf("%+v: %d bytes of %d", b, i, b.bytes())
		}
	}
}

func TestPitchedCopies(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	p, pitch, res := c.MemAllocPitch(c.call, 100, 10, 4)
	c.want(res, success)
	if pitch != 512 {
		t.Errorf("pitch %d", pitch)
	}
	src := make([]byte, 1000)
	for i := range src {
		src[i] = byte(i % 251)
	}
	m := &wire.CUDA_MEMCPY2D{SrcMemoryType: wire.CU_MEMORYTYPE_HOST, SrcHost: c.prog.buffer(src), SrcPitch: 100,
		DstMemoryType: wire.CU_MEMORYTYPE_DEVICE, DstDevice: p, DstPitch: pitch, WidthInBytes: 100, Height: 10}
	c.want(c.Memcpy2D(c.call, m, 0, 0), success)
	if got := c.get(uint64(p)+3*pitch, 100); !bytes.Equal(got, src[300:400]) {
		t.Error("row 3 is wrong")
	}
	for _, unmapped := range []uint32{0x40, 0x80} { // sparse, deferred mapping
		free := c.d.devices[0].hw.Memory.Free()
		d := wire.CUDA_ARRAY3D_DESCRIPTOR{Width: 1024, Height: 1024, Format: wire.CU_AD_FORMAT_FLOAT, NumChannels: 1, Flags: unmapped}
		if _, res := c.ArrayCreate(c.call, &d); res != errNotSupported || c.d.devices[0].hw.Memory.Free() != free {
			t.Errorf("an array with flags %#x: %v", unmapped, res)
		}
	}
	arr, res := c.ArrayCreate(c.call, &wire.CUDA_ARRAY3D_DESCRIPTOR{Width: 25, Height: 10, Format: wire.CU_AD_FORMAT_FLOAT, NumChannels: 1})
	c.want(res, success)
	m = &wire.CUDA_MEMCPY2D{SrcMemoryType: wire.CU_MEMORYTYPE_DEVICE, SrcDevice: p, SrcPitch: pitch,
		DstMemoryType: wire.CU_MEMORYTYPE_ARRAY, DstArray: arr, WidthInBytes: 100, Height: 10}
	c.want(c.Memcpy2D(c.call, m, 0, 0), success)
	back := make([]byte, 40)
	m = &wire.CUDA_MEMCPY2D{SrcMemoryType: wire.CU_MEMORYTYPE_ARRAY, SrcArray: arr, SrcXInBytes: 10, SrcY: 2,
		DstMemoryType: wire.CU_MEMORYTYPE_HOST, DstHost: c.prog.buffer(back), DstPitch: 20, WidthInBytes: 20, Height: 2}
	c.want(c.Memcpy2D(c.call, m, 0, 0), success)
	if want := append(append([]byte(nil), src[210:230]...), src[310:330]...); !bytes.Equal(back, want) {
		t.Errorf("from the array %v, want %v", back, want)
	}
	m.WidthInBytes = 200
	c.want(c.Memcpy2D(c.call, m, 0, 0), errInvalidValue)
	c.want(c.ArrayDestroy(c.call, arr), success)
	c.want(c.ArrayDestroy(c.call, arr), errInvalidHandle)
	c.want(c.Memset(c.call, p, pitch, 0xabcd, 2, 50, 10, 0, 0), success)
	if got := c.get(uint64(p)+9*pitch, 100); !bytes.Equal(got, bytes.Repeat([]byte{0xcd, 0xab}, 50)) {
		t.Errorf("after memset %v", got)
	}
	c.want(c.Memcpy(c.call, p, 0, 16, 0, 0, 0), errInvalidValue)
	c.want(c.Memcpy(c.call, p+4<<20, p, 16, copyDtoD, 0, 0), errInvalidValue)
}
