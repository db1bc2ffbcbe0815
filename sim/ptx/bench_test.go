package ptx

import (
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
)

// BenchmarkRun reports issue cycles a second on one core. In fma and spin every instruction takes one cycle, so there
// it is warp instructions a second.
func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		name, kernel string
		src          []byte
		s            shape
		args         func(f *fixture) []any
	}{
		{"fma", "compute", kernels.Compute, lin(1, 256), func(f *fixture) []any { return []any{uint32(1 << 20), f.a.alloc(1024)} }},
		{"fill", "fill", kernels.Linear, lin(1, 256), func(f *fixture) []any { return []any{f.a.alloc(1 << 20), uint64(1 << 18), uint32(1)} }},
		{"matmul", "matmul", kernels.Compute, shape{grid: [3]uint32{1, 1, 1}, block: [3]uint32{16, 16, 1}}, func(f *fixture) []any {
			n := 256
			return []any{uint32(n), f.a.alloc(4 * n * n), f.a.alloc(4 * n * n), f.a.alloc(4 * n * n)}
		}},
		{"collatz", "collatz", kernels.Control, lin(1, 256), func(f *fixture) []any { return []any{uint32(256), f.a.alloc(1024)} }},
		{"spin", "spin_cycles", kernels.Control, lin(1, 256), func(f *fixture) []any { return []any{uint64(1 << 40)} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := setup(b, c.src, 4<<20)
			g := f.grid(c.kernel, c.s, c.args(f)...)
			blk := g.Block(0)
			var cycles int64
			b.ReportAllocs()
			for b.Loop() {
				used, done, err := blk.Run(At{}, 10000)
				if err != nil {
					b.Fatal(err)
				}
				cycles += used
				if done {
					blk = g.Block(0)
				}
			}
			b.ReportMetric(float64(cycles)/1e6/b.Elapsed().Seconds(), "Mcycles/s")
		})
	}
}
