package hca

import (
	"fmt"
	"testing"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// Benchmark posts entries in batches of 32, half a queue in flight, and counts them.
func Benchmark(b *testing.B) {
	for _, fabric := range fabrics {
		for _, n := range []int{8, 4096, 256 << 10} {
			b.Run(fmt.Sprintf("%s/write=%d", fabric.name, n), func(b *testing.B) {
				fa, fb := fabric.make(b)
				p := newPair(b, fa, fb, nil, nil)
				e := write(0, 0, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				posts(b, p.va, e)
			})
		}
		b.Run(fabric.name+"/add", func(b *testing.B) {
			fa, fb := fabric.make(b)
			p := newPair(b, fa, fb, nil, nil)
			posts(b, p.va, &mlx5.Entry{Opcode: mlx5.OpFetchAdd, Atomic: mlx5.Atomic{Add: 1}, RemoteAddress: bStart, RemoteKey: bKey, Data: local(0, 8)})
		})
		b.Run(fabric.name+"/latency", func(b *testing.B) {
			fa, fb := fabric.make(b)
			p := newPair(b, fa, fb, nil, nil)
			e := write(0, 0, 8)
			for b.Loop() {
				p.va.wait(p.va.post(e))
			}
		})
	}
}

// posts posts e again and again. The entry is encoded once: what is measured is the device.
func posts(b *testing.B, v *driver, e *mlx5.Entry) {
	const batch = 32
	e.Queue = v.config.Number
	for b.Loop() {
		if v.posted%batch == batch-1 {
			at := v.post(e)
			e.Flags = 0
			if at >= 64 {
				v.wait(at - 64)
			}
			continue
		}
		v.put(e)
	}
	v.wait(v.post(e))
}

// TestAllocations: a posted entry costs the device no memory.
func TestAllocations(t *testing.T) {
	l := NewLocal()
	p := newPair(t, l, l, nil, nil)
	e, r := write(0, 0, 100), read(0, 200, 100)
	e.Queue, r.Queue = p.va.config.Number, p.va.config.Number
	run := func() {
		for range 16 {
			p.va.put(e)
			p.va.wait(p.va.post(r))
		}
	}
	run()
	if perEntry := testing.AllocsPerRun(20, run) / 32; perEntry > 0.1 {
		t.Errorf("%.2f allocations an entry", perEntry)
	}
}
