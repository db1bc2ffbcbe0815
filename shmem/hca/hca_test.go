package hca

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// fabrics are the ways from one device to another that every test of behaviour runs over.
var fabrics = []struct {
	name string
	make func(t testing.TB) (a, b Fabric)
}{
	{"local", func(t testing.TB) (Fabric, Fabric) { l := NewLocal(); return l, l }},
	{"tcp", func(t testing.TB) (Fabric, Fabric) { return newTCP(t), newTCP(t) }},
}

// producers are the forms in which a queue learns what is posted.
var producers = []struct {
	name   string
	change func(*QueueConfig)
}{
	{"doorbell", nil},
	{"record", func(c *QueueConfig) { c.Producer = ProducerRecord }},
	{"host posts", func(c *QueueConfig) { c.Producer = ProducerHostPosts }},
	{"near wrap", func(c *QueueConfig) { c.Start = 65500 }},
}

// adversaries are the ways of a device to be difficult, and none.
var adversaries = []struct {
	name string
	*Adversary
}{
	{"kind", nil},
	{"scatter", &Adversary{Seed: 1, Scatter: 24}},
	{"late", &Adversary{Seed: 2, Late: 200, LateCompletion: 128}},
	{"doorbells", &Adversary{Seed: 3, DropDoorbell: 128, DelayDoorbell: 128}},
	{"all", &Adversary{Seed: 4, Scatter: 100, Late: 128, LateCompletion: 128, Idle: 64, DropDoorbell: 64, DelayDoorbell: 64}},
}

// everywhere runs a test on every fabric, with every producer and adversary.
func everywhere(t *testing.T, f func(t *testing.T, p *pair)) {
	for _, fabric := range fabrics {
		for _, producer := range producers {
			for i, adversary := range adversaries {
				if fabric.name == "tcp" && (producer.change != nil && producer.name != "near wrap" || i%(len(adversaries)-1) != 0) {
					continue // what lies before the fabric is the same
				}
				t.Run(fmt.Sprintf("%s/%s/%s", fabric.name, producer.name, adversary.name), func(t *testing.T) {
					a, b := fabric.make(t)
					f(t, newPair(t, a, b, adversary.Adversary, producer.change))
				})
			}
		}
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func TestWriteAndRead(t *testing.T) {
	everywhere(t, func(t *testing.T, p *pair) {
		fill(p.mem[:400000], 7)
		sizes := []int{1, 2, 3, 4, 7, 8, 9, 16, 63, 64, 65, 4096, 100001}
		to := uint64(3)
		var last uint64
		for _, n := range sizes {
			last = p.va.post(write(uint64(n), to, n))
			to += uint64(n) + 5
		}
		if c := p.va.wait(last); c.Opcode != mlx5.CompletionRequester || c.SendOpcode != mlx5.OpWrite || c.Queue != 0x11 {
			t.Fatalf("completion %+v", c)
		}
		to = 3
		for _, n := range sizes {
			if !bytes.Equal(p.other[to:to+uint64(n)], p.mem[n:2*n]) {
				t.Fatalf("%d bytes written to %d are not what was there", n, to)
			}
			if to > 0 && p.other[to-1] != 0 || p.other[to+uint64(n)] != 0 {
				t.Fatalf("writing %d bytes touched others", n)
			}
			to += uint64(n) + 5
		}
		to = 3
		for _, n := range sizes {
			e := read(to, 500000+to, n)
			e.Flags |= mlx5.CtrlCompletion
			if c := p.va.wait(p.va.post(e)); c.Opcode != mlx5.CompletionRequester || int(c.ByteCount) != n {
				t.Fatalf("completion %+v of a read of %d", c, n)
			}
			to += uint64(n) + 5
		}
		if !bytes.Equal(p.other[3:to], p.mem[500003:500000+to]) {
			t.Fatal("what was read is not what was written")
		}
	})
}

func TestManyRangesAndInline(t *testing.T) {
	everywhere(t, func(t *testing.T, p *pair) {
		fill(p.mem[:4096], 8)
		e := write(0, 100, 0)
		e.Data = nil
		var want []byte
		for i := range 20 { // 22 segments: six blocks
			n := 1 + 13*i
			e.Data = append(e.Data, local(uint64(17*i), n)...)
			want = append(want, p.mem[17*i:17*i+n]...)
		}
		for range 15 { // around the ring's end
			p.va.wait(p.va.post(e))
		}
		if !bytes.Equal(p.other[100:100+len(want)], want) {
			t.Fatal("a write of 20 ranges")
		}
		back := read(100, 9000, 0)
		back.Data = nil
		for i := 19; i >= 0; i-- {
			back.Data = append(back.Data, local(uint64(9000+500*i), 1+13*i)...)
		}
		p.va.wait(p.va.post(back))
		at := 0
		for i := 19; i >= 0; i-- {
			n := 1 + 13*i
			if !bytes.Equal(p.mem[9000+500*i:9000+500*i+n], want[at:at+n]) {
				t.Fatalf("range %d of a read", i)
			}
			at += n
		}
		for n := 0; n <= 700; n += 7 {
			in := &mlx5.Entry{Opcode: mlx5.OpWrite, RemoteAddress: bStart + 20000, RemoteKey: bKey, HasInline: true, Inline: p.mem[n : 2*n]}
			p.va.wait(p.va.post(in))
			if !bytes.Equal(p.other[20000:20000+n], p.mem[n:2*n]) {
				t.Fatalf("%d inline bytes", n)
			}
		}
	})
}

func TestAtomics(t *testing.T) {
	ones := ^uint64(0)
	cases := []struct {
		name     string
		opcode   uint8
		modifier uint8
		atomic   mlx5.Atomic
		old, new uint64
	}{
		{"fetch and add", mlx5.OpFetchAdd, 0, mlx5.Atomic{Add: 5}, ones - 1, 3},
		{"swap that compares", mlx5.OpCompareSwap, 0, mlx5.Atomic{Operand: 77, Compare: 1 << 40}, 1 << 40, 77},
		{"swap that does not", mlx5.OpCompareSwap, 0, mlx5.Atomic{Operand: 77, Compare: 1<<40 + 1}, 1 << 40, 1 << 40},
		{"add 4", mlx5.OpMaskedAdd, 8, mlx5.Atomic{Add: 2}, 0xffffffff, 1},
		{"add 8", mlx5.OpMaskedAdd, 9, mlx5.Atomic{Add: 2}, 0xffffffff, 0x100000001},
		{"xor 8", mlx5.OpMaskedAdd, 9, mlx5.Atomic{Add: 0xf0f0f0f0f0f0f0f0, Boundary: ones}, 0xff00ff00ff00ff00, 0x0ff00ff00ff00ff0},
		{"xor 4", mlx5.OpMaskedAdd, 8, mlx5.Atomic{Add: 0xf0f0f0f0, Boundary: 0xffffffff}, 0xff00ff00, 0x0ff00ff0},
		{"two fields", mlx5.OpMaskedAdd, 9, mlx5.Atomic{Add: 0x0000000100000001, Boundary: 1 << 31}, 0x00000005ffffffff, 0x0000000600000000},
		{"bytes", mlx5.OpMaskedAdd, 8, mlx5.Atomic{Add: 0x01010101, Boundary: 0x80808080}, 0xff7f00fe, 0x008001ff},
		{"set 4", mlx5.OpMaskedSwap, 8, mlx5.Atomic{Operand: 0x12345678, SwapMask: 0xffffffff}, 5, 0x12345678},
		{"or 8", mlx5.OpMaskedSwap, 9, mlx5.Atomic{Operand: 0xf0, SwapMask: 0xf0}, 0x0f, 0xff},
		{"and 8", mlx5.OpMaskedSwap, 9, mlx5.Atomic{Operand: 0xf0, SwapMask: ^uint64(0xf0)}, 0xff, 0xf0},
		{"compare 4", mlx5.OpMaskedSwap, 8, mlx5.Atomic{Operand: 9, Compare: 4, SwapMask: 0xffffffff, CompareMask: 0xffffffff}, 4, 9},
		{"compare half", mlx5.OpMaskedSwap, 9, mlx5.Atomic{Operand: 9, Compare: 4, SwapMask: 0xff, CompareMask: 0xffff}, 0xaa0004, 0xaa0009},
		{"compare fails", mlx5.OpMaskedSwap, 9, mlx5.Atomic{Operand: 9, Compare: 4, SwapMask: 0xff, CompareMask: 0xffff}, 0xaa0104, 0xaa0104},
	}
	everywhere(t, func(t *testing.T, p *pair) {
		for i, c := range cases {
			size := 8
			if c.modifier == mlx5.ModifierAtomic4 {
				size = 4
			}
			target := p.other[256+16*i:]
			binary.NativeEndian.PutUint64(target[8:], 0x5555555555555555)
			if size == 4 {
				binary.NativeEndian.PutUint32(target, uint32(c.old))
			} else {
				binary.NativeEndian.PutUint64(target, c.old)
			}
			e := &mlx5.Entry{Opcode: c.opcode, Modifier: c.modifier, Atomic: c.atomic, RemoteAddress: bStart + 256 + 16*uint64(i),
				RemoteKey: bKey, Data: local(64, size)}
			p.va.put(e)
			got := p.va.wait(p.va.post(&mlx5.Entry{Opcode: mlx5.OpNOP, Flags: mlx5.FenceReads}))
			if got.IsError() {
				t.Fatalf("%s: %+v", c.name, got)
			}
			var now, old uint64
			if size == 4 {
				now, old = uint64(binary.NativeEndian.Uint32(target)), uint64(binary.BigEndian.Uint32(p.mem[64:]))
			} else {
				now, old = binary.NativeEndian.Uint64(target), binary.NativeEndian.Uint64(p.mem[64:])
			}
			if now != c.new || old != c.old {
				t.Errorf("%s: %#x became %#x, not %#x; returned %#x", c.name, c.old, now, c.new, old)
			}
			if binary.NativeEndian.Uint64(target[8:]) != 0x5555555555555555 {
				t.Errorf("%s: touched what is after it", c.name)
			}
		}
	})
}

// TestRow: words of a write that is no longer than a warp's values are seen whole, and all bytes arrive.
func TestRow(t *testing.T) {
	b := make([]byte, 320)
	if uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		t.Fatal("memory is not aligned")
	}
	m, err := NewHostMemory(0x1000, b)
	if err != nil {
		t.Fatal(err)
	}
	src := make([]byte, 320)
	fill(src, 1)
	for at := range 9 {
		for n := range 300 {
			clear(b)
			if err := m.WriteAt(src[3:3+n], 0x1000+8+uint64(at)); err != nil {
				t.Fatal(err)
			}
			want := make([]byte, 320)
			copy(want[8+at:], src[3:3+n])
			if !bytes.Equal(b, want) {
				t.Fatalf("%d bytes at %d: %x", n, at, b)
			}
		}
	}
	var stop atomic.Bool
	done := make(chan uint64)
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), 40)
	clear(b)
	go func() {
		for i := 0; !stop.Load(); i++ {
			if v := atomic.LoadUint64(&words[1+i%31]); v != 0 && v != ^uint64(0) {
				done <- v
				return
			}
		}
		done <- 0
	}()
	rows := [2][]byte{make([]byte, 256), bytes.Repeat([]byte{0xff}, 256)}
	for i := range 20000 {
		_ = m.WriteAt(rows[i&1][:252], 0x1000+4) // the last word's half stays
		_ = m.WriteAt(rows[i&1], 0x1000)
	}
	stop.Store(true)
	if v := <-done; v != 0 {
		t.Errorf("a value of %#x", v)
	}
}
