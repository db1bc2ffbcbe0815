package hca

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// words is zeroed memory at a multiple of 8.
func words(n int) []byte {
	b := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&b[0])), n)
}

// driver is the other user of a queue's memory: what posts entries and polls completions.
type driver struct {
	t      testing.TB
	config QueueConfig
	queue  *Queue
	posted uint64
	// noDoorbell leaves the doorbell as it is, so that only the record says what is posted.
	noDoorbell bool
	consumed   uint64 // completions, of a cyclic queue
}

func newDriver(t testing.TB, d *Device, number uint32, change func(*QueueConfig)) *driver {
	t.Helper()
	c := QueueConfig{Number: number, WQ: words(128 * 64), Record: words(8), Doorbell: words(8), HostPosts: words(8), CQ: words(64)}
	if change != nil {
		change(&c)
	}
	for i := range c.CQ {
		c.CQ[i] = 0xff
	}
	binary.BigEndian.PutUint32(c.Record[4:], uint32(uint16(c.Start)))
	binary.NativeEndian.PutUint64(c.HostPosts, c.Start)
	q, err := d.CreateQueue(c)
	if err != nil {
		t.Fatal(err)
	}
	return &driver{t: t, config: c, queue: q, posted: c.Start}
}

func connect(t testing.TB, a, b *driver) {
	t.Helper()
	if err := a.queue.Connect(t.Context(), b.queue.Endpoint()); err != nil {
		t.Fatal(err)
	}
	if a == b {
		return
	}
	if err := b.queue.Connect(t.Context(), a.queue.Endpoint()); err != nil {
		t.Fatal(err)
	}
}

// put writes an entry without posting it, and returns the index of its first block.
func (v *driver) put(e *mlx5.Entry) uint64 {
	v.t.Helper()
	if e.Queue == 0 {
		e.Queue = v.config.Number
	}
	at := v.posted
	next, err := e.Put(v.config.WQ, at)
	if err != nil {
		v.t.Fatal(err)
	}
	v.posted = next
	return at
}

// ring posts what was put.
func (v *driver) ring() {
	store := func(b []byte, at int, raw uint32) {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[at])), raw)
	}
	var be [4]byte
	binary.BigEndian.PutUint32(be[:], uint32(uint16(v.posted)))
	store(v.config.Record, 4, binary.NativeEndian.Uint32(be[:]))
	if v.config.Producer == ProducerHostPosts {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&v.config.HostPosts[0])), v.posted)
	}
	if v.noDoorbell {
		return
	}
	d := mlx5.Doorbell{Index: uint16(v.posted), Queue: v.config.Number}.Bytes()
	if v.config.Producer == ProducerRecord { // as libmlx5
		d = mlx5.Doorbell{Opcode: mlx5.OpWrite, Index: uint16(v.posted - 1), Queue: v.config.Number, Segments: 3}.Bytes()
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&v.config.Doorbell[0])), binary.NativeEndian.Uint64(d[:]))
}

// post puts and posts an entry that asks for a completion.
func (v *driver) post(e *mlx5.Entry) uint64 {
	v.t.Helper()
	e.Flags |= mlx5.CtrlCompletion
	at := v.put(e)
	v.ring()
	return at
}

// completion is index i as it is now.
func (v *driver) completion(index int) mlx5.Completion {
	var b [64]byte
	for i := 56; i >= 0; i -= 8 { // the last word says whether the others are valid
		binary.NativeEndian.PutUint64(b[i:], atomic.LoadUint64((*uint64)(unsafe.Pointer(&v.config.CQ[index*64+i]))))
	}
	c, err := mlx5.ParseCompletion(b[:])
	if err != nil {
		v.t.Fatal(err)
	}
	return c
}

// deadline for anything that a test waits for.
const deadline = 10 * time.Second

// wait polls a collapsed queue until the entry at block index is complete.
func (v *driver) wait(index uint64) mlx5.Completion {
	v.t.Helper()
	for end := time.Now().Add(deadline); ; {
		c := v.completion(0)
		if c.Opcode != mlx5.CompletionInvalid && int16(c.Counter-uint16(index)) >= 0 {
			return c
		}
		if time.Now().After(end) {
			v.t.Fatalf("queue %#x: no completion of block %d; last %+v, %v, %v", v.config.Number, index, c, v.queue.State(), v.queue.Err())
		}
		time.Sleep(5 * time.Microsecond)
	}
}

// next polls a cyclic queue for the next completion.
func (v *driver) next() mlx5.Completion {
	v.t.Helper()
	n := uint64(len(v.config.CQ) / 64)
	for end := time.Now().Add(deadline); ; {
		c := v.completion(int(v.consumed % n))
		if c.Opcode != mlx5.CompletionInvalid && uint64(c.Owner) == v.consumed/n&1 {
			v.consumed++
			if v.config.CQRecord != nil {
				var be [4]byte
				binary.BigEndian.PutUint32(be[:], uint32(v.consumed&0xffffff))
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&v.config.CQRecord[0])), binary.NativeEndian.Uint32(be[:]))
			}
			return c
		}
		if time.Now().After(end) {
			v.t.Fatalf("queue %#x: no completion %d; %+v, %v, %v", v.config.Number, v.consumed, c, v.queue.State(), v.queue.Err())
		}
		time.Sleep(5 * time.Microsecond)
	}
}

func newDevice(t testing.TB, c Config) *Device {
	t.Helper()
	if c.Logf == nil {
		c.Logf = t.Logf
	}
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// register makes n bytes at start the memory of key.
func register(t testing.TB, d *Device, key uint32, start uint64, n int, access Access) []byte {
	t.Helper()
	m, err := NewHostMemory(start, words(n))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.RegisterMemory(key, start, uint64(n), access, m); err != nil {
		t.Fatal(err)
	}
	return m.Bytes
}

// pair is two devices with 1 MiB each and a queue between them.
type pair struct {
	a, b       *Device
	va, vb     *driver
	mem, other []byte // of a and of b
}

// Addresses and keys of a pair.
const (
	aStart, aKey = 0x10000000, 0x1100
	bStart, bKey = 0x7f0020000000, 0x2200
	pairBytes    = 1 << 20
)

func newPair(t testing.TB, fa, fb Fabric, adversary *Adversary, change func(*QueueConfig)) *pair {
	t.Helper()
	if fb == nil {
		fb = fa
	}
	p := &pair{a: newDevice(t, Config{Fabric: fa, Adversary: adversary}), b: newDevice(t, Config{Fabric: fb, Adversary: adversary})}
	p.mem = register(t, p.a, aKey, aStart, pairBytes, AllAccess)
	p.other = register(t, p.b, bKey, bStart, pairBytes, AllAccess)
	p.va, p.vb = newDriver(t, p.a, 0x11, change), newDriver(t, p.b, 0x22, change)
	connect(t, p.va, p.vb)
	return p
}

func local(at uint64, n int) []mlx5.Data {
	return []mlx5.Data{{Bytes: uint32(n), Key: aKey, Address: aStart + at}}
}

func write(from, to uint64, n int) *mlx5.Entry {
	return &mlx5.Entry{Opcode: mlx5.OpWrite, RemoteAddress: bStart + to, RemoteKey: bKey, Data: local(from, n)}
}

func read(from, to uint64, n int) *mlx5.Entry {
	return &mlx5.Entry{Opcode: mlx5.OpRead, RemoteAddress: bStart + from, RemoteKey: bKey, Data: local(to, n)}
}

func newTCP(t testing.TB) *TCP {
	t.Helper()
	f, err := NewTCP(TCPConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
