package gpu

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// onGPUs says that tests run on the GPUs of this machine.
func onGPUs() bool { return os.Getenv("LSHMEM_TEST_GPUS") == "1" }

// driver loads a driver over a software GPU of two devices. With LSHMEM_TEST_GPUS=1 it is the machine's own.
func driver(t *testing.T) *cuda.Driver {
	t.Helper()
	if onGPUs() {
		d, err := cuda.Load()
		check(t, err)
		return d
	}
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz = 2, 1<<28, 2, 200
	t.Setenv(wire.Environment, simtest.Serve(t, shape))
	if _, err := purego.Dlopen(filepath.Join(simtest.Libraries(t), "libcuda.so.1"), purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
		t.Fatal(err)
	}
	d, err := cuda.Load()
	check(t, err)
	return d
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a device with memory of the GPU to work on.
type bench struct {
	t       testing.TB
	d       *cuda.Driver
	ctx     *cuda.Context
	device  *Device
	stream  uintptr
	memory  uint64 // of the GPU
	staging []byte // pinned
	at      uint64 // address of staging
}

const benchBytes = 1 << 20

func newBench(t testing.TB, d *cuda.Driver, ordinal int32, c Config) *bench {
	t.Helper()
	ctx, err := d.Primary(ordinal)
	check(t, err)
	b := &bench{t: t, d: d, ctx: ctx}
	check(t, ctx.Do(func() error {
		if b.stream, err = d.StreamCreate(1); err != nil {
			return err
		}
		if b.memory, err = d.Alloc(benchBytes); err != nil {
			return err
		}
		if b.at, err = d.HostAlloc(benchBytes); err != nil {
			return err
		}
		b.staging = cuda.Bytes(b.at, benchBytes)
		return nil
	}))
	c.Driver, c.Context = d, ctx
	b.device, err = New(c)
	check(t, err)
	t.Cleanup(func() { check(t, b.device.Close()) })
	return b
}

// write and read copy while the kernel runs, which copies on the default stream may not.
func (b *bench) write(to uint64, p []byte) {
	b.t.Helper()
	check(b.t, b.ctx.Do(func() error {
		copy(b.staging, p)
		if err := b.d.CopyAsync(to, b.at, uint64(len(p)), b.stream); err != nil {
			return err
		}
		return b.d.StreamSynchronize(b.stream)
	}))
}

func (b *bench) read(from uint64, n int) []byte {
	b.t.Helper()
	check(b.t, b.ctx.Do(func() error {
		if err := b.d.CopyAsync(b.at, from, uint64(n), b.stream); err != nil {
			return err
		}
		return b.d.StreamSynchronize(b.stream)
	}))
	return bytes.Clone(b.staging[:n])
}

// place puts a scene's memory into the GPU, from offset at, and returns where each part is.
func (b *bench) place(s *scene, at uint64) (addresses []uint64, end uint64) {
	for _, p := range s.parts() {
		addresses = append(addresses, b.memory+at)
		b.write(b.memory+at, *p)
		at += (uint64(len(*p)) + 255) &^ 255
	}
	return addresses, at
}

func (s *scene) parts() []*[]byte {
	return []*[]byte{&s.here, &s.there, &s.wq, &s.cq, &s.record, &s.doorbell}
}

// TestOnGPU executes scenes by the kernel and in Go.
func TestOnGPU(t *testing.T) {
	d := driver(t)
	scenes, warps := uint64(12), 2
	if onGPUs() {
		scenes, warps = 300, 16
	}
	b := newBench(t, d, 0, Config{Warps: warps, Slice: 20 * time.Millisecond, Queues: 8, Spaces: 2, Keys: 8})
	for seed := range scenes {
		r := rand.New(rand.NewPCG(seed, 99))
		want := newScene(t, r)
		got := want.clone()
		want.inGo(t)
		addresses, _ := b.place(got, 0)
		// Keys of the kernel are its own choice; entries carry those of the scene. So they are given as another side's
		// would be, the own ones too.
		ours, theirs := regions()
		for i, list := range [][]Region{ours, theirs} {
			for _, g := range list {
				g.Mapped = addresses[i]
				k, err := entry(g)
				check(t, err)
				check(t, b.device.do("test", func() error { return b.device.put(b.device.keyAt(i, g.Key), bytesOf(&k)) }))
			}
		}
		q, err := b.device.CreateQueue(QueueConfig{Number: number, WQ: addresses[2], Depth: depth, Record: addresses[4], Doorbell: addresses[5],
			Start: got.start, CQ: addresses[3], CQForm: hca.CQCyclic, CQNumber: 5})
		check(t, err)
		check(t, q.Connect(1))
		got.ring()
		b.write(addresses[4], got.record)
		if seed%3 != 0 { // else the doorbell is lost
			b.write(addresses[5], got.doorbell)
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
			if got.cq = b.read(addresses[3], len(got.cq)); got.last() != 0 {
				break
			}
			if time.Now().After(end) {
				s, n, err := q.State()
				t.Fatalf("seed %d: %v, %d completions, %v, %v, %v", seed, s, n, err, q.Err(), b.device.Err())
			}
		}
		check(t, q.Close())
		for i, p := range got.parts() {
			*p = b.read(addresses[i], len(*p))
		}
		if err := same(want, got); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	before := b.device.Turns()
	for end := time.Now().Add(10 * time.Second); b.device.Turns() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the kernel shows no sign of life")
		}
	}
	t.Run("rates", func(t *testing.T) { rates(t, d, b) })
	t.Run("beside another kernel", func(t *testing.T) { besideKernel(t, b) })
	t.Run("two GPUs", func(t *testing.T) { twoGPUs(t, d, b) })
}

// poster is a kernel that posts an entry and waits for its completion, as a kernel of a program does.
const poster = `
.version 7.4
.target sm_70
.address_size 64
.visible .entry poster(.param .u64 record, .param .u64 doorbell, .param .u64 cq, .param .u32 be, .param .u64 bell)
{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [record];
	ld.param.u64 %rd2, [doorbell];
	ld.param.u64 %rd3, [cq];
	ld.param.u32 %r1, [be];
	ld.param.u64 %rd4, [bell];
	st.relaxed.sys.u32 [%rd1+4], %r1;
	fence.acq_rel.sys;
	st.relaxed.sys.u64 [%rd2], %rd4;
AGAIN:
	ld.acquire.sys.u32 %r2, [%rd3+60];
	setp.eq.u32 %p1, %r2, 0xffffffff;
	@%p1 bra AGAIN;
	ret;
}
`

// besideKernel: a kernel in another stream of the same context posts and waits, while the HCA's kernel runs.
func besideKernel(t *testing.T, b *bench) {
	s := &scene{here: words(256), there: words(256), wq: words(depth * 64), cq: words(64), record: words(8), doorbell: words(8)}
	for i := range s.here {
		s.here[i] = byte(i)
	}
	for i := range s.cq {
		s.cq[i] = 0xff
	}
	a, _ := b.place(s, 1<<19)
	key, err := b.device.RegisterMemory(a[0], 256, hca.AllAccess)
	check(t, err)
	other, err := b.device.RegisterMemory(a[1], 256, hca.AllAccess)
	check(t, err)
	q, err := b.device.CreateQueue(QueueConfig{Number: 7, WQ: a[2], Depth: depth, Record: a[4], Doorbell: a[5], CQ: a[3]})
	check(t, err)
	check(t, q.Connect(0))
	var next uint64
	next, err = (&mlx5.Entry{Opcode: mlx5.OpWrite, Queue: 7, Flags: mlx5.CtrlCompletion, RemoteKey: other, RemoteAddress: a[1] + 3,
		Data: []mlx5.Data{{Bytes: 200, Key: key, Address: a[0]}}}).Put(s.wq, 0)
	check(t, err)
	b.write(a[2], s.wq)
	var be [4]byte
	binary.BigEndian.PutUint32(be[:], uint32(next))
	record := binary.NativeEndian.Uint32(be[:])
	bell := mlx5.Doorbell{Index: uint16(next), Queue: 7}.Bytes()
	word := binary.NativeEndian.Uint64(bell[:])
	check(t, b.ctx.Do(func() error {
		m, err := b.d.ModuleLoad([]byte(poster + "\x00"))
		if err != nil {
			return err
		}
		f, err := b.d.Function(m, "poster")
		if err != nil {
			return err
		}
		p := func(v unsafe.Pointer) uintptr { return uintptr(v) }
		l := &cuda.Launch{Function: f, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: b.stream,
			Params: []uintptr{p(unsafe.Pointer(&a[4])), p(unsafe.Pointer(&a[5])), p(unsafe.Pointer(&a[3])), p(unsafe.Pointer(&record)),
				p(unsafe.Pointer(&word))}}
		if err := b.d.Launch(l); err != nil {
			return err
		}
		return b.d.StreamSynchronize(b.stream)
	}))
	if got := b.read(a[1], 256); !bytes.Equal(got[3:203], s.here[:200]) {
		t.Error("the write did not happen")
	}
	check(t, q.Close())
	check(t, b.device.DeregisterMemory(key))
	if err := b.device.DeregisterMemory(key); err == nil {
		t.Error("a key was deregistered twice")
	}
}

// twoGPUs: entries of one GPU's queue write to another's memory; a removed key is refused.
func twoGPUs(t *testing.T, d *cuda.Driver, b *bench) {
	if n, err := d.DeviceCount(); err != nil || n < 2 {
		t.Skipf("%d GPUs, %v", n, err)
	}
	ctx, err := d.Primary(1)
	check(t, err)
	var far uint64
	check(t, ctx.Do(func() error {
		if far, err = d.Alloc(4096); err != nil {
			return err
		}
		return d.Set(far, 0, 4096)
	}))
	check(t, b.ctx.Do(func() error { return d.EnablePeerAccess(ctx.Handle) }))
	s := &scene{here: words(256), there: words(256), wq: words(depth * 64), cq: words(depth * 64), record: words(8), doorbell: words(8)}
	copy(s.here, strings.Repeat("far ", 64))
	for i := range s.cq {
		s.cq[i] = 0xff
	}
	a, _ := b.place(s, 1<<19)
	key, err := b.device.RegisterMemory(a[0], 256, hca.AllAccess)
	check(t, err)
	const remote = 0x500000 // its address at the other side
	check(t, b.device.SetRemote(2, Region{Key: 0x205, Start: remote, Bytes: 4096, Access: hca.AllAccess, Mapped: far}))
	q, err := b.device.CreateQueue(QueueConfig{Number: 8, WQ: a[2], Depth: depth, Record: a[4], Doorbell: a[5], CQ: a[3], CQForm: hca.CQCyclic})
	check(t, err)
	check(t, q.Connect(2))
	post := func(entry int) mlx5.Completion {
		next, err := (&mlx5.Entry{Opcode: mlx5.OpWrite, Queue: 8, Flags: mlx5.CtrlCompletion, RemoteKey: 0x205, RemoteAddress: remote + 100,
			Data: []mlx5.Data{{Bytes: 256, Key: key, Address: a[0]}}}).Put(s.wq, s.posted)
		check(t, err)
		b.write(a[2], s.wq)
		s.posted = next
		var be [4]byte
		binary.BigEndian.PutUint32(be[:], uint32(next))
		b.write(a[4]+4, be[:])
		bell := mlx5.Doorbell{Index: uint16(next), Queue: 8}.Bytes()
		b.write(a[5], bell[:])
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
			c, err := mlx5.ParseCompletion(b.read(a[3]+uint64(entry)*64, 64))
			check(t, err)
			if c.Opcode != mlx5.CompletionInvalid {
				return c
			}
			if time.Now().After(end) {
				t.Fatalf("no completion; %v, %v", q.Err(), b.device.Err())
			}
		}
	}
	if c := post(0); c.IsError() {
		t.Fatalf("%+v", c)
	}
	got := make([]byte, 4096)
	check(t, ctx.Do(func() error { return d.Read(got, far) }))
	if !bytes.Equal(got[100:356], s.here) || got[99] != 0 || got[356] != 0 {
		t.Error("the other GPU's memory is not what was written")
	}
	check(t, b.device.RemoveRemote(2, 0x205))
	if c := post(1); c.Syndrome != mlx5.SyndromeRemoteAccess {
		t.Errorf("a key that was removed: %+v", c)
	}
	if err := q.Err(); err == nil || !strings.Contains(err.Error(), "remote access") {
		t.Errorf("%v", err)
	}
	check(t, q.Close())
}

// program is a kernel that posts n entries of which every batch-th asks for a completion, rings once a batch, and has
// at most window of them in flight. The ring holds the entries already, but for their indexes.
const program = `
.version 7.4
.target sm_70
.address_size 64
.visible .entry rate(.param .u64 wq, .param .u64 record, .param .u64 doorbell, .param .u64 cq, .param .u32 n, .param .u32 batch,
	.param .u32 window, .param .u32 number)
{
	.reg .pred %p<4>;
	.reg .b32 %r<24>;
	.reg .b64 %rd<12>;
	ld.param.u64 %rd1, [wq];
	ld.param.u64 %rd2, [record];
	ld.param.u64 %rd3, [doorbell];
	ld.param.u64 %rd4, [cq];
	ld.param.u32 %r1, [n];
	ld.param.u32 %r2, [batch];
	ld.param.u32 %r3, [window];
	ld.param.u32 %r4, [number];
	mov.u32 %r5, 0;
	mov.u32 %r6, 0;
NEXT:
	and.b32 %r7, %r5, 127;
	mul.wide.u32 %rd5, %r7, 64;
	add.s64 %rd6, %rd1, %rd5;
	and.b32 %r8, %r5, 0xffff;
	shl.b32 %r8, %r8, 8;
	or.b32 %r8, %r8, 8;
	prmt.b32 %r8, %r8, 0, 0x0123;
	st.relaxed.gpu.u32 [%rd6], %r8;
	add.s32 %r5, %r5, 1;
	add.s32 %r6, %r6, 1;
	setp.lt.u32 %p1, %r6, %r2;
	@%p1 bra NEXT;
	mov.u32 %r6, 0;
	and.b32 %r9, %r5, 0xffff;
	prmt.b32 %r10, %r9, 0, 0x0123;
	fence.acq_rel.gpu;
	st.relaxed.sys.u32 [%rd2+4], %r10;
	shl.b32 %r11, %r9, 8;
	prmt.b32 %r11, %r11, 0, 0x0123;
	mov.b64 %rd7, {%r11, %r4};
	fence.acq_rel.gpu;
	st.relaxed.sys.u64 [%rd3], %rd7;
POLL:
	ld.acquire.sys.u32 %r12, [%rd4+60];
	prmt.b32 %r12, %r12, 0, 0x0123;
	shr.u32 %r12, %r12, 16;
	add.s32 %r12, %r12, 1;
	sub.s32 %r13, %r5, %r12;
	and.b32 %r13, %r13, 0xffff;
	setp.gt.u32 %p2, %r13, %r3;
	@%p2 bra POLL;
	setp.lt.u32 %p3, %r5, %r1;
	@%p3 bra NEXT;
	ret;
}
`

// rates measures how long a put takes, by a thread that posts and polls, and how many a second a queue does.
func rates(t *testing.T, d *cuda.Driver, b *bench) {
	far := b.memory + 1<<19
	where := "the same GPU"
	if n, err := d.DeviceCount(); err == nil && n > 1 {
		ctx, err := d.Primary(1)
		check(t, err)
		check(t, ctx.Do(func() error { far, err = d.Alloc(1 << 20); return err }))
		check(t, b.ctx.Do(func() error { return d.EnablePeerAccess(ctx.Handle) }))
		where = "another GPU"
	}
	key, err := b.device.RegisterMemory(b.memory, 1<<18, hca.AllAccess)
	check(t, err)
	check(t, b.device.SetRemote(1, Region{Key: 0x301, Start: far, Bytes: 1 << 18, Access: hca.AllAccess, Mapped: far}))
	for _, c := range []struct {
		name             string
		bytes            uint32
		n, batch, window uint32
	}{{"latency of 8 B", 8, 2000, 1, 0}, {"8 B", 8, 20000, 32, 64}, {"4 KiB", 4096, 20000, 32, 64}, {"64 KiB", 65536, 4000, 16, 64}} {
		if !onGPUs() {
			c.n = 64
		}
		s := &scene{here: words(64), there: words(64), wq: words(depth * 64), cq: words(64), record: words(8), doorbell: words(8)}
		for i := range s.cq {
			s.cq[i] = 0xff
		}
		for i := range uint64(depth) {
			e := &mlx5.Entry{Opcode: mlx5.OpWrite, Queue: 9, RemoteAddress: far, RemoteKey: 0x301, Data: []mlx5.Data{{Bytes: c.bytes, Key: key, Address: b.memory}}}
			if i%uint64(c.batch) == uint64(c.batch)-1 {
				e.Flags = mlx5.CtrlCompletion
			}
			_, err := e.Put(s.wq, i)
			check(t, err)
		}
		a, _ := b.place(s, 1<<19+1<<18)
		q, err := b.device.CreateQueue(QueueConfig{Number: 9, WQ: a[2], Depth: depth, Record: a[4], Doorbell: a[5], CQ: a[3]})
		check(t, err)
		check(t, q.Connect(1))
		bell := mlx5.Doorbell{Queue: 9}.Bytes()
		number := binary.NativeEndian.Uint32(bell[4:])
		var took time.Duration
		check(t, b.ctx.Do(func() error {
			m, err := d.ModuleLoad([]byte(program + "\x00"))
			if err != nil {
				return err
			}
			f, err := d.Function(m, "rate")
			if err != nil {
				return err
			}
			p := func(v unsafe.Pointer) uintptr { return uintptr(v) }
			l := &cuda.Launch{Function: f, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: b.stream,
				Params: []uintptr{p(unsafe.Pointer(&a[2])), p(unsafe.Pointer(&a[4])), p(unsafe.Pointer(&a[5])), p(unsafe.Pointer(&a[3])),
					p(unsafe.Pointer(&c.n)), p(unsafe.Pointer(&c.batch)), p(unsafe.Pointer(&c.window)), p(unsafe.Pointer(&number))}}
			began := time.Now()
			if err := d.Launch(l); err != nil {
				return err
			}
			err = d.StreamSynchronize(b.stream)
			took = time.Since(began)
			return err
		}))
		check(t, q.Err())
		per := took / time.Duration(c.n)
		if onGPUs() {
			t.Logf("to %s, %s: %v each, %.2f M/s, %.2f GB/s", where, c.name, per, 1e3/float64(per), float64(c.bytes)/float64(per))
		}
		check(t, q.Close())
	}
	check(t, b.device.RemoveRemote(1, 0x301))
	check(t, b.device.DeregisterMemory(key))
}
