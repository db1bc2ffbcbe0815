package ptx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/lgpu/lgpu/sim/kernels"
)

// arena is a device memory of one range that hands out pieces.
type arena struct {
	base uint64
	mem  []byte
	next uint64
}

func newArena(n int) *arena { return &arena{base: 0x7f0000000000, mem: alignedBytes(n)} }

func (a *arena) Window(addr uint64) (uint64, []byte, bool, bool) {
	if addr < a.base || addr >= a.base+uint64(len(a.mem)) {
		return 0, nil, false, false
	}
	return a.base, a.mem, true, true
}

func (a *arena) alloc(n int) uint64 {
	p := a.base + a.next
	a.next += (uint64(n) + 255) &^ 255
	if a.next > uint64(len(a.mem)) {
		panic("arena of the test is too small")
	}
	return p
}

func words[T any](a *arena, addr uint64, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&a.mem[addr-a.base])), n)
}

func put[T any](a *arena, vals []T) uint64 {
	var z T
	p := a.alloc(len(vals) * int(unsafe.Sizeof(z)))
	copy(words[T](a, p, len(vals)), vals)
	return p
}

// load parses, places globals in the arena and links.
func load(t testing.TB, src []byte, a *arena) (*Module, *Image) {
	t.Helper()
	m, err := Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	return m, loadModule(t, m, a)
}

// loadModule places a module's globals in the arena and links the module.
func loadModule(t testing.TB, m *Module, a *arena) *Image {
	t.Helper()
	addrs := map[string]uint64{}
	for _, g := range m.Globals {
		addrs[g.Name] = a.alloc(int(g.Size))
	}
	img, err := m.Link(addrs)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range m.Globals {
		copy(a.mem[addrs[g.Name]-a.base:], img.InitData(g))
	}
	return img
}

// params encodes arguments at the offsets of the kernel.
func params(t testing.TB, k *Kernel, args ...any) []byte {
	t.Helper()
	if len(args) != len(k.Params) {
		t.Fatalf("%d arguments for %d parameters of %s", len(args), len(k.Params), k.Name)
	}
	b := make([]byte, k.ParamBytes)
	for i, a := range args {
		p := k.Params[i]
		if n := binary.Size(a); n != p.Size {
			t.Fatalf("argument %d of %s has %d bytes, want %d", i, k.Name, n, p.Size)
		}
		if _, err := binary.Encode(b[p.Offset:], binary.LittleEndian, a); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

type shape struct {
	grid, block [3]uint32
	dynamic     uint32
}

func lin(blocks, threads uint32) shape {
	return shape{grid: [3]uint32{blocks, 1, 1}, block: [3]uint32{threads, 1, 1}}
}

// slice is the cycles of a Run in tests that do not care.
const slice = 1 << 30

func grid(t testing.TB, img *Image, k *Kernel, s shape, mem Memory, args ...any) *Grid {
	t.Helper()
	g, err := img.NewGrid(Launch{Kernel: k, Grid: s.grid, Block: s.block, SharedDynamic: s.dynamic, Params: params(t, k, args...)}, mem)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// runAll runs the blocks of a grid one after the other in slices of some cycles and returns the cycles of all.
func runAll(g *Grid, cycles int64) (int64, error) {
	var total int64
	for i := range g.Blocks() {
		b := g.Block(i)
		for {
			used, done, err := b.Run(At{SM: int(i % 4), SMs: 4, Cycle: total, Nanos: total, NanosPerCycle: 1}, cycles)
			total += used
			if err != nil {
				return total, err
			}
			if done {
				break
			}
		}
	}
	return total, nil
}

func TestSaxpy(t *testing.T) {
	a := newArena(1 << 20)
	m, img := load(t, kernels.Linear, a)
	r := rand.New(rand.NewPCG(1, 2))
	n := 1000
	x, y, want := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = r.Float32(), r.Float32()
		want[i] = float32(math.FMA(3, float64(x[i]), float64(y[i])))
	}
	px, py := put(a, x), put(a, y)
	if _, err := runAll(grid(t, img, m.Kernels["saxpy"], lin(8, 128), a, uint32(n), float32(3), px, py), slice); err != nil {
		t.Fatal(err)
	}
	for i, v := range words[float32](a, py, n) {
		if v != want[i] {
			t.Fatalf("y[%d] = %v, want %v", i, v, want[i])
		}
	}
}
