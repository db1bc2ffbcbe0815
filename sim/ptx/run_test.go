package ptx

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
)

// fixture is one of the kernel files in a fresh arena.
type fixture struct {
	t   testing.TB
	a   *arena
	m   *Module
	img *Image
}

func setup(t testing.TB, src []byte, memory int) *fixture {
	t.Helper()
	f := &fixture{t: t, a: newArena(memory)}
	f.m, f.img = load(t, src, f.a)
	return f
}

func (f *fixture) grid(name string, s shape, args ...any) *Grid {
	f.t.Helper()
	k := f.m.Kernels[name]
	if k == nil {
		f.t.Fatalf("no kernel %s", name)
	}
	return grid(f.t, f.img, k, s, f.a, args...)
}

// launch runs a kernel to its end.
func (f *fixture) launch(name string, s shape, args ...any) int64 {
	f.t.Helper()
	n, err := runAll(f.grid(name, s, args...), slice)
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s[%d] = %v, want %v", what, i, got[i], want[i])
		}
	}
}

func floats(n int) []float32 {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(64)) - 20
	}
	return x
}

func TestVectorAdd(t *testing.T) {
	f := setup(t, kernels.Linear, 1<<20)
	x, y := floats(777), floats(777)
	want := make([]float32, len(x))
	for i := range x {
		want[i] = x[i] + y[i]
	}
	out := f.a.alloc(4 * len(x))
	f.launch("vector_add", lin(3, 100), uint32(len(x)), put(f.a, x), put(f.a, y), out)
	equal(t, "sum", words[float32](f.a, out, len(x)), want)
}

func TestFillVerify(t *testing.T) {
	f := setup(t, kernels.Linear, 1<<20)
	n := 5000
	p, bad := f.a.alloc(4*n), put(f.a, []uint32{0})
	f.launch("fill", lin(4, 64), p, uint64(n), uint32(9))
	f.launch("verify", lin(2, 96), p, uint64(n), uint32(9), bad)
	equal(t, "bad", words[uint32](f.a, bad, 1), []uint32{0})
	words[uint32](f.a, p, n)[4321]++
	words[uint32](f.a, p, n)[17] ^= 1 << 31
	f.launch("verify", lin(2, 96), p, uint64(n), uint32(9), bad)
	equal(t, "bad", words[uint32](f.a, bad, 1), []uint32{2})
}

func TestChase(t *testing.T) {
	f := setup(t, kernels.Linear, 1<<20)
	next := make([]uint32, 1000)
	for i, v := range rand.New(rand.NewPCG(3, 3)).Perm(len(next)) {
		next[i] = uint32(v)
	}
	want := make([]uint32, 40)
	for i := range want {
		at := uint32(i + 5)
		for range 300 {
			at = next[at]
		}
		want[i] = at
	}
	out := f.a.alloc(4 * len(want))
	f.launch("chase", lin(1, 40), put(f.a, next), uint32(5), uint32(300), out)
	equal(t, "end", words[uint32](f.a, out, len(want)), want)
}

func TestCompute(t *testing.T) {
	f := setup(t, kernels.Compute, 1<<20)
	want := make([]float32, 96)
	for i := range want {
		x, y := float32(i)*0.001, float32(0.5)
		for range 50 {
			y = math.Float32frombits(uint32(fma32(y, 0.999, x)))
		}
		want[i] = y
	}
	out := f.a.alloc(4 * len(want))
	few := f.launch("compute", lin(3, 32), uint32(50), out)
	equal(t, "y", words[float32](f.a, out, len(want)), want)
	if many := f.launch("compute", lin(3, 32), uint32(5000), out); many < 50*few {
		t.Errorf("100 times the iterations took %d cycles after %d", many, few)
	}
}

func TestReductions(t *testing.T) {
	for _, name := range []string{"reduce_sum", "shuffle_sum"} {
		f := setup(t, kernels.Compute, 1<<20)
		x := floats(4001)
		var want float32
		for _, v := range x {
			want += v // whole numbers: the order does not matter
		}
		sum := put(f.a, []float32{0})
		f.launch(name, lin(5, 256), uint32(len(x)), put(f.a, x), sum)
		equal(t, name, words[float32](f.a, sum, 1), []float32{want})
	}
}

func matmulWant(n int, a, b []float32) []float32 {
	c := make([]float32, n*n)
	for i := range n {
		for j := range n {
			for k := range n {
				c[i*n+j] += a[i*n+k] * b[k*n+j]
			}
		}
	}
	return c
}

func TestMatmul(t *testing.T) {
	f := setup(t, kernels.Compute, 1<<20)
	n := 48
	x, y := floats(n*n), floats(n*n)
	out := f.a.alloc(4 * n * n)
	f.launch("matmul", shape{grid: [3]uint32{3, 3, 1}, block: [3]uint32{16, 16, 1}}, uint32(n), put(f.a, x), put(f.a, y), out)
	equal(t, "c", words[float32](f.a, out, n*n), matmulWant(n, x, y))
}

func TestHistogramConcurrent(t *testing.T) {
	f := setup(t, kernels.Compute, 1<<20)
	r := rand.New(rand.NewPCG(5, 5))
	data := make([]byte, 20000)
	want := make([]uint32, 256)
	for i := range data {
		data[i] = byte(r.IntN(256) * r.IntN(256) >> 8)
		want[data[i]]++
	}
	bins := put(f.a, make([]uint32, 256))
	g := f.grid("histogram", lin(16, 128), uint32(len(data)), put(f.a, data), bins)
	runConcurrently(t, g, 4, 500)
	equal(t, "bins", words[uint32](f.a, bins, 256), want)
}

// runConcurrently runs the blocks on several goroutines, in slices.
func runConcurrently(t *testing.T, g *Grid, workers int, cycles int64) {
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := int64(w); i < g.Blocks(); i += int64(workers) {
				for b := g.Block(i); ; {
					_, done, err := b.Run(At{SM: w, SMs: workers}, cycles)
					if err != nil {
						t.Error(err)
					}
					if done {
						break
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestAtomicsConcurrent(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	g := f.grid("count", lin(64, 64), uint32(4000))
	runConcurrently(t, g, 4, 50)
	var addr uint64
	for g, a := range f.img.addrs {
		if g.Name == "counter" {
			addr = a
		}
	}
	equal(t, "counter", words[uint32](f.a, addr, 1), []uint32{4005})
}

func TestDynamicShared(t *testing.T) {
	f := setup(t, kernels.Compute, 1<<20)
	p := make([]uint32, 3*96)
	want := make([]uint32, len(p))
	for i := range p {
		p[i] = uint32(i * i)
		want[i/96*96+95-i%96] = p[i]
	}
	out := put(f.a, p)
	f.launch("dynamic_reverse", shape{grid: [3]uint32{3, 1, 1}, block: [3]uint32{96, 1, 1}, dynamic: 96 * 4}, out)
	equal(t, "reversed", words[uint32](f.a, out, len(p)), want)
	_, err := runAll(f.grid("dynamic_reverse", shape{grid: [3]uint32{1, 1, 1}, block: [3]uint32{96, 1, 1}, dynamic: 90 * 4}, out), slice)
	wantFault(t, err, FaultShared)
}

func wantFault(t *testing.T, err error, kind FaultKind) *Fault {
	t.Helper()
	var fault *Fault
	if !errors.As(err, &fault) || fault.Kind != kind {
		t.Fatalf("error %v, want fault %q", err, kind)
	}
	return fault
}

func TestDivergence(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	want := make([]uint32, 200)
	for i := range want {
		for v := i + 1; v != 1; want[i]++ {
			if v&1 != 0 {
				v = 3*v + 1
			} else {
				v /= 2
			}
		}
	}
	out := f.a.alloc(4 * 256)
	f.launch("collatz", lin(2, 128), uint32(len(want)), out)
	equal(t, "steps", words[uint32](f.a, out, len(want)), want)
}

func TestSpinLockWithinWarp(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	lock, count := put(f.a, []uint32{0}), put(f.a, []uint32{0})
	runConcurrently(t, f.grid("spin_lock", lin(4, 64), lock, count), 4, 1000)
	equal(t, "count", words[uint32](f.a, count, 1), []uint32{256})
}

func TestCalls(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	fib := make([]uint32, 16)
	fib[1] = 1
	for i := 2; i < len(fib); i++ {
		fib[i] = fib[i-1] + fib[i-2]
	}
	out := f.a.alloc(4 * 64)
	f.launch("fibonacci", lin(1, 64), out)
	for i, v := range words[uint32](f.a, out, 64) {
		if v != fib[i&15] {
			t.Fatalf("fib(%d) = %d, want %d", i&15, v, fib[i&15])
		}
	}
	x := floats(50)
	want := make([]float32, len(x))
	for i, v := range x {
		want[i] = [2]float32{v * 2, v * v}[i&1]
	}
	p := put(f.a, x)
	f.launch("apply", lin(1, 50), p)
	equal(t, "applied", words[float32](f.a, p, len(x)), want)
}

func TestVariables(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	x := floats(70)
	want := make([]float32, len(x))
	for i, v := range x {
		want[i] = ((4*v+3)*v+2)*v + 1
	}
	out := f.a.alloc(4 * len(x))
	f.launch("polynomial", lin(1, 70), uint32(len(x)), put(f.a, x), out)
	equal(t, "y", words[float32](f.a, out, len(x)), want)
}

func TestTimeAndPlace(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	if n := f.launch("spin", lin(1, 1), uint64(10000)); n < 10000 || n > 10100 {
		t.Errorf("spin(10000 ns) at 1 ns a cycle took %d cycles", n)
	}
	if n := f.launch("spin_cycles", lin(1, 1), uint64(5000)); n < 5000 || n > 5100 {
		t.Errorf("spin_cycles(5000) took %d cycles", n)
	}
	g := f.grid("spin", lin(1, 32), uint64(1000_000))
	n, done, err := g.Block(0).Run(At{NanosPerCycle: 1000}, 1<<40)
	if err != nil || !done || n < 1000 || n > 1100 {
		t.Errorf("spin(1 ms) at 1 us a cycle: %d cycles, done %v, %v", n, done, err)
	}
	units := f.a.alloc(4 * 8)
	f.launch("smid", lin(8, 32), units)
	equal(t, "unit", words[uint32](f.a, units, 8), []uint32{0, 1, 2, 3, 0, 1, 2, 3})
}

func TestResume(t *testing.T) {
	for _, cycles := range []int64{1, 7, 100, 1000} {
		f := setup(t, kernels.Compute, 1<<20)
		n := 32
		x, y := floats(n*n), floats(n*n)
		px, py, out := put(f.a, x), put(f.a, y), f.a.alloc(4*n*n)
		s := shape{grid: [3]uint32{2, 2, 1}, block: [3]uint32{16, 16, 1}}
		whole := f.launch("matmul", s, uint32(n), px, py, out)
		clear(words[float32](f.a, out, n*n))
		parts, err := runAll(f.grid("matmul", s, uint32(n), px, py, out), cycles)
		if err != nil {
			t.Fatal(err)
		}
		if parts != whole {
			t.Errorf("slices of %d: %d cycles, whole %d", cycles, parts, whole)
		}
		equal(t, "c", words[float32](f.a, out, n*n), matmulWant(n, x, y))
	}
}

func TestSpinningBlockYields(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	flag, done := put(f.a, []uint32{0}), put(f.a, []uint32{0})
	b := f.grid("wait_flag", lin(1, 64), flag, uint32(3), done).Block(0)
	for range 10 {
		used, end, err := b.Run(At{}, 1000)
		if err != nil || end || used < 1000 || used > 1100 {
			t.Fatalf("spinning: used %d, done %v, %v", used, end, err)
		}
	}
	words[uint32](f.a, flag, 1)[0] = 3
	if _, end, err := b.Run(At{}, 1000); err != nil || !end {
		t.Fatalf("flag is set: done %v, %v", end, err)
	}
	equal(t, "done", words[uint32](f.a, done, 1), []uint32{4})
}

func TestOutOfBounds(t *testing.T) {
	f := setup(t, kernels.Control, 1<<20)
	p := f.a.alloc(4)
	b := f.grid("out_of_bounds", lin(1, 32), p, uint64(1<<30)).Block(0)
	_, done, err := b.Run(At{}, 1000)
	fault := wantFault(t, err, FaultAddress)
	if !done || fault.Addr != p+4<<30 || fault.Kernel != "out_of_bounds" || fault.Line == 0 {
		t.Errorf("done %v, fault %+v", done, fault)
	}
	if _, _, again := b.Run(At{}, 1000); again != err {
		t.Errorf("later Run: %v", again)
	}
}
