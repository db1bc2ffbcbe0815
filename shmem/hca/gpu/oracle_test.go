package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/hca/gpu/state"
	"github.com/lgpu/lgpu/shmem/mlx5"
)

// The HCA in Go and the kernel's code are each the other's oracle: they execute the same random queues and must leave
// the same memory and the same completions after.

// processor compiles the kernel's code for the processor and returns its turns.
func processor(t testing.TB) func(*state.HcaAdapter, uint32) uint32 {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "hca.so")
	out, err := exec.Command("g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread",
		"-o", lib, "testdata/cpu.cc").CombinedOutput()
	if err != nil {
		t.Fatalf("g++: %v\n%s", err, out)
	}
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	var turns func(*state.HcaAdapter, uint32) uint32
	purego.RegisterLibFunc(&turns, h, "lshmem_hca_turns")
	return turns
}

// words is zeroed memory at a multiple of 64.
func words(n int) []byte {
	b := make([]byte, n+64)
	skip := -uintptr(unsafe.Pointer(&b[0])) & 63
	return b[skip : skip+uintptr(n) : skip+uintptr(n)]
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

const (
	depth      = 128
	rangeBytes = 8192
	here       = 0x7f1000000000 // address of the own memory
	there      = 0x7f2000000100 // of the other side's
	hereKey    = 1<<state.KeyShift | 0x11
	readKey    = 2<<state.KeyShift | 0x12 // the same without write access
	thereKey   = 1<<state.KeyShift | 0x33
	thereRead  = 3<<state.KeyShift | 0x34
	thereWrite = 4<<state.KeyShift | 0x35
	number     = 0x123456
)

// scene is one queue and what it works on.
type scene struct {
	here, there, wq, cq, record, doorbell []byte
	start, posted                         uint64
}

func (s *scene) clone() *scene {
	c := &scene{start: s.start, posted: s.posted}
	for _, p := range []struct{ to, from *[]byte }{{&c.here, &s.here}, {&c.there, &s.there}, {&c.wq, &s.wq}, {&c.cq, &s.cq},
		{&c.record, &s.record}, {&c.doorbell, &s.doorbell}} {
		*p.to = words(len(*p.from))
		copy(*p.to, *p.from)
	}
	return c
}

// ring posts everything.
func (s *scene) ring() {
	binary.BigEndian.PutUint32(s.record[4:], uint32(uint16(s.posted)))
	b := mlx5.Doorbell{Index: uint16(s.posted), Queue: number}.Bytes()
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&s.doorbell[0])), binary.NativeEndian.Uint64(b[:]))
}

// keys of both sides, as regions of the kernel and of the HCA in Go.
func regions() (ours, theirs []Region) {
	ours = []Region{{hereKey, here, rangeBytes, hca.AllAccess, 0}, {readKey, here, rangeBytes, hca.RemoteRead, 0}}
	theirs = []Region{{thereKey, there, rangeBytes, hca.AllAccess, 0}, {thereRead, there, rangeBytes, hca.RemoteRead, 0},
		{thereWrite, there, rangeBytes, hca.RemoteWrite, 0}}
	return ours, theirs
}

// random makes an entry, mostly a good one. n is how many blocks it may have.
func random(r *rand.Rand, n int) *mlx5.Entry {
	e := &mlx5.Entry{Queue: number, Flags: []uint8{0, mlx5.CtrlCompletion, mlx5.CtrlCompletion | mlx5.FenceReads, mlx5.FenceAll}[r.IntN(4)]}
	rarely := func() bool { return r.IntN(250) == 0 }
	size := func() int {
		switch r.IntN(5) {
		case 0:
			return r.IntN(20)
		case 1:
			return 8
		case 2:
			return 4
		case 3:
			return r.IntN(300)
		}
		return r.IntN(2000)
	}
	data := func(length int) mlx5.Data {
		d := mlx5.Data{Bytes: uint32(length), Key: hereKey, Address: here + uint64(r.IntN(rangeBytes-length+1))}
		if r.IntN(2) == 0 {
			d.Address &^= 15
		}
		if rarely() {
			d.Key = []uint32{readKey, 0, thereWrite, 0xffffffff, hereKey + 1}[r.IntN(5)]
		}
		if rarely() {
			d.Address = []uint64{here - 1, here + rangeBytes - 3, 0, ^uint64(0) - 2}[r.IntN(4)]
		}
		return d
	}
	length := size()
	e.Opcode = []uint8{mlx5.OpNOP, mlx5.OpWrite, mlx5.OpWrite, mlx5.OpWrite, mlx5.OpRead, mlx5.OpRead, mlx5.OpCompareSwap, mlx5.OpFetchAdd,
		mlx5.OpMaskedSwap, mlx5.OpMaskedAdd, mlx5.OpMaskedAdd, mlx5.OpDump}[r.IntN(12)]
	if rarely() {
		e.Opcode = []uint8{mlx5.OpSend, mlx5.OpSendImm, mlx5.OpWriteImm, mlx5.OpWait}[r.IntN(4)]
	}
	switch {
	case e.Opcode == mlx5.OpNOP || e.Opcode == mlx5.OpWait:
		e.WaitQueue = 77
		return e
	case e.Opcode == mlx5.OpDump:
		e.Data = []mlx5.Data{data(1)}
		return e
	case e.IsAtomic():
		word := func() uint64 { return []uint64{0, ^uint64(0), r.Uint64(), 1 << 31, r.Uint64() & 0xff}[r.IntN(5)] }
		a := mlx5.Atomic{Add: word(), Boundary: word(), Operand: word(), Compare: word(), SwapMask: word(), CompareMask: word()}
		length = 8
		if e.Opcode == mlx5.OpMaskedSwap || e.Opcode == mlx5.OpMaskedAdd {
			e.Modifier = mlx5.ModifierAtomic8
			if r.IntN(2) == 0 {
				e.Modifier, length = mlx5.ModifierAtomic4, 4
				for _, p := range []*uint64{&a.Add, &a.Boundary, &a.Operand, &a.Compare, &a.SwapMask, &a.CompareMask} {
					*p &= 1<<32 - 1
				}
			}
		}
		e.Atomic = a
		e.Data = []mlx5.Data{data(length + 4*r.IntN(2))}
		if rarely() {
			e.Data[0].Bytes = 2
		}
	case (e.Opcode == mlx5.OpWrite || e.Opcode == mlx5.OpSend) && r.IntN(3) == 0:
		length = r.IntN(min(n*64-36, 600))
		e.HasInline, e.Inline = true, make([]byte, length)
		for i := range e.Inline {
			e.Inline[i] = byte(r.Uint32())
		}
	case r.IntN(4) == 0:
		length = 0
		for range r.IntN(min(n*4-2, 20)) {
			d := data(r.IntN(300))
			length += int(d.Bytes)
			if d.Bytes == 0 {
				d.Bytes = 1
				length++
			}
			e.Data = append(e.Data, d)
		}
	case length > 0:
		e.Data = []mlx5.Data{data(length)}
	}
	length = min(length, rangeBytes)
	e.RemoteKey, e.RemoteAddress = thereKey, there+uint64(r.IntN(rangeBytes-length+1))
	if e.IsAtomic() || r.IntN(2) == 0 {
		e.RemoteAddress &^= 7
	}
	if rarely() {
		e.RemoteKey = []uint32{thereRead, thereWrite, 0, 0xffffff00, thereKey - 1}[r.IntN(5)]
	}
	if rarely() {
		e.RemoteAddress = []uint64{there - 8, there + rangeBytes - 8, 3, ^uint64(7)}[r.IntN(4)]
	}
	return e
}

// newScene fills a queue.
func newScene(t testing.TB, r *rand.Rand) *scene {
	s := &scene{here: words(rangeBytes), there: words(rangeBytes), wq: words(depth * 64), cq: words(depth * 64), record: words(8), doorbell: words(8)}
	for _, b := range [][]byte{s.here, s.there, s.wq} {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
	for i := range s.cq {
		s.cq[i] = 0xff
	}
	s.start = []uint64{0, 65500, 1 << 20, uint64(r.IntN(1 << 18))}[r.IntN(4)]
	s.posted = s.start
	for {
		left := int(s.start + depth - 1 - s.posted)
		if left < 17 || r.IntN(30) == 0 {
			break
		}
		at := s.posted
		next, err := random(r, left).Put(s.wq, at)
		if err != nil {
			t.Fatal(err)
		}
		if r.IntN(150) == 0 { // break it
			b := s.wq[at%depth*64:]
			b[r.IntN(48)] = byte(r.Uint32())
			if b[3] == mlx5.OpWait {
				b[3] = 0x30
			}
		}
		s.posted = next
	}
	next, err := (&mlx5.Entry{Opcode: mlx5.OpNOP, Queue: number, Flags: mlx5.CtrlCompletion}).Put(s.wq, s.posted)
	if err != nil {
		t.Fatal(err)
	}
	s.posted = next
	binary.BigEndian.PutUint32(s.record[4:], uint32(uint16(s.start)))
	return s
}

// last is the number of completions up to that of the last entry, once that is there; it is for a writer at rest or in
// Go.
func (s *scene) last() int {
	for i := range depth {
		c, err := mlx5.ParseCompletion(s.cq[i*64:])
		if err != nil || c.Opcode == mlx5.CompletionInvalid {
			return 0
		}
		if c.Counter == uint16(s.posted-1) {
			return i + 1
		}
	}
	return 0
}

// inGo executes the scene by the HCA in Go.
func (s *scene) inGo(t testing.TB) {
	t.Helper()
	fabric := hca.NewLocal()
	a, err := hca.New(hca.Config{Fabric: fabric})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	b, err := hca.New(hca.Config{Fabric: fabric})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	ours, theirs := regions()
	for i, list := range [][]Region{ours, theirs} {
		for _, g := range list {
			d, mem := a, s.here
			if i == 1 {
				d, mem = b, s.there
			}
			m, err := hca.NewHostMemory(g.Start, mem)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.RegisterMemory(g.Key, g.Start, g.Bytes, g.Access, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	q, err := a.CreateQueue(hca.QueueConfig{Number: number, WQ: s.wq, Record: s.record, Doorbell: s.doorbell, Start: s.start, CQ: s.cq,
		CQForm: hca.CQCyclic, CQNumber: 5})
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.CreateQueue(hca.QueueConfig{Number: 9, WQ: words(64), Record: words(8), Doorbell: words(8), CQ: words(64)})
	if err != nil {
		t.Fatal(err)
	}
	s.ring()
	if err := q.Connect(t.Context(), other.Endpoint()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Microsecond) {
		if n := q.Completions(); n > 0 { // an atomic load: what was written before it is visible
			c, err := mlx5.ParseCompletion(s.cq[(n-1)%depth*64:])
			if err == nil && c.Counter == uint16(s.posted-1) && q.Completions() == n {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%d completions, %v, %v", q.Completions(), q.State(), q.Err())
		}
	}
}

// adapterOf builds what the kernel needs for a scene in memory of the processor.
func (s *scene) adapterOf(keep *[]any) *state.HcaAdapter {
	ours, theirs := regions()
	spaces := make([]state.HcaSpace, 2)
	for i, list := range [][]Region{ours, theirs} {
		keys := make([]state.HcaKey, 8)
		for _, g := range list {
			g.Mapped = addressOf([][]byte{s.here, s.there}[i])
			k, err := entry(g)
			if err != nil {
				panic(err)
			}
			keys[g.Key>>state.KeyShift] = k
		}
		spaces[i] = state.HcaSpace{Keys: uint64(uintptr(unsafe.Pointer(&keys[0]))), Count: uint32(len(keys))}
		*keep = append(*keep, keys)
	}
	queues := []state.HcaQueue{{}, {WQ: addressOf(s.wq), Record: addressOf(s.record), Doorbell: addressOf(s.doorbell), CQ: addressOf(s.cq),
		Number: number, Depth: depth, DepthCQ: depth, NumberCQ: 5, Flags: state.FlagCyclic, Space: 1, State: uint32(hca.StateRTS),
		Posted: s.start, Head: s.start}}
	*keep = append(*keep, spaces, queues)
	return &state.HcaAdapter{Queues: uint64(uintptr(unsafe.Pointer(&queues[0]))), QueueCount: 2,
		Spaces: uint64(uintptr(unsafe.Pointer(&spaces[0]))), SpaceCount: 2}
}

// same compares two scenes after their execution; times are not compared.
func same(a, b *scene) error {
	for i := range depth {
		ca, cb := a.cq[i*64:i*64+64], b.cq[i*64:i*64+64]
		for _, c := range [][]byte{ca, cb} {
			if c[mlx5.CompletionOwner]>>4 == mlx5.CompletionRequester {
				clear(c[mlx5.CompletionTimestamp : mlx5.CompletionTimestamp+8])
			}
		}
		if !bytes.Equal(ca, cb) {
			pa, _ := mlx5.ParseCompletion(ca)
			pb, _ := mlx5.ParseCompletion(cb)
			return fmt.Errorf("completion %d: in Go %+v, kernel %+v\n%x\n%x", i, pa, pb, ca, cb)
		}
	}
	for _, p := range []struct {
		what string
		a, b []byte
	}{{"own memory", a.here, b.here}, {"other memory", a.there, b.there}} {
		for i := range p.a {
			if p.a[i] != p.b[i] {
				return fmt.Errorf("%s: byte %d is %#x in Go, %#x by the kernel", p.what, i, p.a[i], p.b[i])
			}
		}
	}
	return nil
}

// TestRows: the values of a warp, which lie in one entry four bytes beside their alignment, are seen whole. Entries
// begin at every block of the ring, so that some go around its end.
func TestRows(t *testing.T) {
	turns := processor(t)
	for _, size := range []int{8, 4} { // of a value
		s := &scene{here: words(rangeBytes), there: words(rangeBytes), wq: words(depth * 64), cq: words(depth * 64), record: words(8), doorbell: words(8)}
		var keep []any
		a := s.adapterOf(&keep)
		at := 256 + size%8 // there + at is aligned as its place in memory is
		row := s.there[at : at+32*size]
		var stop atomic.Bool
		done := make(chan string)
		go func() {
			for k := 0; !stop.Load(); k++ {
				i := [4]int{0, 1, 31, k / 4 % 32}[k%4] // those at the ends most of all
				p := unsafe.Pointer(&row[i*size])
				if size == 8 {
					if v := atomic.LoadUint64((*uint64)(p)); v != 0 && v != ^uint64(0) {
						done <- fmt.Sprintf("value %d is %#x", i, v)
						return
					}
				} else if v := atomic.LoadUint32((*uint32)(p)); v != 0 && v != ^uint32(0) {
					done <- fmt.Sprintf("value %d is %#x", i, v)
					return
				}
			}
			done <- ""
		}()
		e := &mlx5.Entry{Opcode: mlx5.OpWrite, Queue: number, RemoteKey: thereKey, RemoteAddress: there + uint64(at), HasInline: true}
		for i := range 60000 {
			e.Inline = bytes.Repeat([]byte{byte(-(i & 1))}, 32*size)
			next, err := e.Put(s.wq, s.posted)
			if err != nil {
				t.Fatal(err)
			}
			s.posted = next
			s.ring()
			turns(a, 1)
			if row[0] != e.Inline[0] || row[32*size-1] != e.Inline[0] {
				t.Fatalf("row %d of %d-byte values was not written", i, size)
			}
		}
		stop.Store(true)
		if torn := <-done; torn != "" {
			t.Errorf("%d-byte values: %s", size, torn)
		}
		runtime.KeepAlive(keep)
	}
}

func TestOracle(t *testing.T) {
	turns := processor(t)
	failed, flushed, good := 0, 0, 0
	for seed := range uint64(700) {
		r := rand.New(rand.NewPCG(seed, 77))
		a := newScene(t, r)
		b := a.clone()
		a.inGo(t)
		var keep []any
		b.ring()
		turns(b.adapterOf(&keep), 8)
		runtime.KeepAlive(keep)
		if err := same(a, b); err != nil {
			t.Fatalf("seed %d, blocks %d..%d: %v", seed, a.start, a.posted, err)
		}
		for i := range a.last() {
			c, _ := mlx5.ParseCompletion(a.cq[i*64:])
			switch {
			case !c.IsError():
				good++
			case c.Syndrome == mlx5.SyndromeFlushed:
				flushed++
			default:
				failed++
			}
		}
	}
	t.Logf("%d good completions, %d errors, %d flushed", good, failed, flushed)
	if good < 5000 || failed < 200 || flushed < 1000 {
		t.Errorf("%d good completions, %d errors, %d flushed: the scenes do not test much", good, failed, flushed)
	}
}
