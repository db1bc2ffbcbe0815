package heap

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

const mib = 1 << 20

func newHeap(t testing.TB, limit, chunk, most uint64) *Heap {
	t.Helper()
	h, err := New(limit, chunk, most)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// get allocates, growing if it must, and returns the offset and the extents it took.
func get(t testing.TB, h *Heap, bytes, align uint64) (uint64, []Extent) {
	t.Helper()
	if at, ok := h.Allocate(bytes, align); ok {
		check(t, h)
		return at, nil
	}
	p, err := h.PlanGrow(bytes, align)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Extents) == 0 {
		t.Fatalf("%d bytes fit at %#x after all", bytes, p.Allocation.Offset)
	}
	h.Commit(p)
	check(t, h)
	return p.Allocation.Offset, p.Extents
}

func check(t testing.TB, h *Heap) {
	t.Helper()
	if err := h.Check(); err != nil {
		t.Fatal(err)
	}
}

func free(t testing.TB, h *Heap, at uint64) {
	t.Helper()
	if err := h.Free(at); err != nil {
		t.Fatal(err)
	}
	check(t, h)
}

func TestGrowAndShrink(t *testing.T) {
	h := newHeap(t, 64*mib, 2*mib, 8*mib)
	a, ext := get(t, h, 100, 0)
	if a != 0 || !slices.Equal(ext, []Extent{{0, 2 * mib, false}}) {
		t.Fatalf("the first is at %#x with %v", a, ext)
	}
	b, ext := get(t, h, 3*mib, 0)
	if b != 256 || !slices.Equal(ext, []Extent{{2 * mib, 2 * mib, false}}) {
		t.Fatalf("3 MiB are at %#x with %v, want after the first, using the rest of its extent", b, ext)
	}
	c, ext := get(t, h, 20*mib, 0)
	if c != 256+3*mib || len(ext) != 3 || ext[0] != (Extent{4 * mib, 8 * mib, false}) || ext[2].Bytes != 4*mib {
		t.Fatalf("20 MiB are at %#x with %v, want three extents of at most 8 MiB", c, ext)
	}
	free(t, h, b)
	if got := h.Unused(0); len(got) != 0 {
		t.Errorf("unused with both ends in use: %v", got)
	}
	free(t, h, c)
	gone := h.Unused(0)
	if len(gone) != 4 || gone[0].Offset != 2*mib {
		t.Fatalf("unused: %v", gone)
	}
	if kept := h.Unused(9 * mib); len(kept) != 2 {
		t.Errorf("keeping 9 MiB leaves %v to give back", kept)
	}
	if err := h.Drop(gone); err != nil {
		t.Fatal(err)
	}
	check(t, h)
	if h.Mapped() != 2*mib || h.Used() != 256 {
		t.Errorf("%d mapped, %d used", h.Mapped(), h.Used())
	}
	free(t, h, a)
	if err := h.Drop(h.Unused(0)); err != nil || h.Mapped() != 0 {
		t.Fatalf("%v, %d mapped", err, h.Mapped())
	}
}

// TestHoles: an extent in the middle goes, and what comes later finds its place.
func TestHoles(t *testing.T) {
	h := newHeap(t, 64*mib, 2*mib, 0)
	a, _ := get(t, h, 2*mib, 0)
	b, _ := get(t, h, 2*mib, 0)
	c, _ := get(t, h, 2*mib, 0)
	free(t, h, b)
	if err := h.Drop(h.Unused(0)); err != nil {
		t.Fatal(err)
	}
	check(t, h)
	d, ext := get(t, h, 4*mib, 0)
	if d != 6*mib || len(ext) != 1 {
		t.Fatalf("4 MiB are at %#x with %v", d, ext)
	}
	e, ext := get(t, h, 2*mib, 0)
	if e != b || len(ext) != 1 {
		t.Fatalf("2 MiB are at %#x with %v, want in the hole at %#x", e, ext, b)
	}
	if x := h.Extents(); !x.Holds(0, 10*mib) || !x.Holds(10*mib-1, 1) || x.Holds(0, 10*mib+1) || x.Holds(11*mib, 1) || !x.Holds(11*mib, 0) {
		t.Error("what lies in memory is not what was mapped")
	}
	for _, at := range []uint64{a, c, d, e} {
		free(t, h, at)
	}
}

func TestAlignment(t *testing.T) {
	h := newHeap(t, 64*mib, 2*mib, 0)
	get(t, h, 1, 0)
	for _, align := range []uint64{1, 2, 256, 512, 4096, 1 << 20, 4 << 20} {
		at, _ := get(t, h, 1000, align)
		if at%max(align, Align) != 0 {
			t.Errorf("aligned to %d: %#x", align, at)
		}
	}
	for _, bad := range []uint64{3, 768, 1 << 40} {
		if _, err := h.PlanGrow(1, bad); !errors.Is(err, ErrArgument) {
			t.Errorf("alignment %d: %v", bad, err)
		}
	}
	if _, ok := h.Allocate(0, 0); ok {
		t.Error("nothing was allocated")
	}
}

func TestFull(t *testing.T) {
	h := newHeap(t, 8*mib, 2*mib, 0)
	get(t, h, 5*mib, 0)
	for _, n := range []uint64{4 * mib, 8*mib + 1, 1 << 62, ^uint64(0)} {
		if _, err := h.PlanGrow(n, 0); !errors.Is(err, ErrFull) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	at, _ := get(t, h, 3*mib, 0)
	if at != 5*mib {
		t.Errorf("the rest is at %#x", at)
	}
	if err := h.Free(5*mib + 256); !errors.Is(err, ErrUnknown) {
		t.Errorf("free within an allocation: %v", err)
	}
	if err := h.Drop(h.Extents()[:1]); !errors.Is(err, ErrArgument) {
		t.Errorf("drop of an extent in use: %v", err)
	}
}

func TestForeign(t *testing.T) {
	h := newHeap(t, 32*mib, 4*mib, 0)
	a, _ := get(t, h, mib, 0)
	p, err := h.PlanForeign(6 * mib)
	if err != nil || p.Allocation != (Allocation{4 * mib, 6 * mib}) {
		t.Fatalf("%+v, %v", p, err)
	}
	h.Commit(p)
	check(t, h)
	// Neither the buffer nor the rest of its last chunk is anybody else's.
	b, ext := get(t, h, 4*mib, 0)
	if b != 12*mib || len(ext) != 1 {
		t.Fatalf("4 MiB are at %#x with %v", b, ext)
	}
	free(t, h, p.Allocation.Offset)
	if got := h.Unused(1 << 40); len(got) != 1 || !got[0].Foreign {
		t.Fatalf("unused: %v", got)
	}
	if err := h.Drop(h.Unused(0)); err != nil {
		t.Fatal(err)
	}
	check(t, h)
	if q, err := h.PlanForeign(8 * mib); err != nil || q.Allocation.Offset != 4*mib {
		t.Fatalf("the place of the first is not found again: %+v, %v", q, err)
	}
	free(t, h, a)
	free(t, h, b)
}

func TestNew(t *testing.T) {
	for _, c := range []struct{ max, chunk, most uint64 }{
		{0, 2 * mib, 0}, {8 * mib, mib, 0}, {8 * mib, 3 * mib, 0}, {9 * mib, 2 * mib, 0}, {8 * mib, 2 * mib, 3 * mib},
	} {
		if _, err := New(c.max, c.chunk, c.most); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// step does one operation that two bytes choose, on a heap and a list of what it holds.
func step(t testing.TB, h *Heap, live []uint64, op, arg byte) []uint64 {
	t.Helper()
	switch {
	case op < 130 || len(live) == 0:
		bytes := (uint64(arg)*uint64(arg)*uint64(op) + 1) << (arg % 5)
		align := uint64(1) << (op % 23)
		if at, ok := h.Allocate(bytes, align); ok {
			return append(live, at)
		}
		p, err := h.PlanGrow(bytes, align)
		if err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			return live
		}
		if p.Bytes() == 0 || p.Allocation.Offset%align != 0 {
			t.Fatalf("a plan of %d bytes at %#x for alignment %d", p.Bytes(), p.Allocation.Offset, align)
		}
		h.Commit(p)
		return append(live, p.Allocation.Offset)
	case op < 140:
		p, err := h.PlanForeign((uint64(arg) + 1) << 16)
		if err != nil {
			return live
		}
		h.Commit(p)
		return append(live, p.Allocation.Offset)
	default:
		i := int(arg) % len(live)
		if err := h.Free(live[i]); err != nil {
			t.Fatal(err)
		}
		if err := h.Drop(h.Unused(uint64(op%3) * 4 * mib)); err != nil {
			t.Fatal(err)
		}
		return slices.Delete(live, i, i+1)
	}
}

// FuzzHeap: any sequence keeps the invariants, two heaps that do the same agree, and a heap without allocations gives
// everything back.
func FuzzHeap(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 200, 1})
	f.Add([]byte{129, 255, 129, 254, 135, 9, 255, 0, 129, 253})
	f.Fuzz(func(t *testing.T, program []byte) {
		a, b := newHeap(t, 256*mib, 2*mib, 16*mib), newHeap(t, 256*mib, 2*mib, 16*mib)
		var x, y []uint64
		for len(program) >= 2 {
			x, y = step(t, a, x, program[0], program[1]), step(t, b, y, program[0], program[1])
			check(t, a)
			program = program[2:]
		}
		if !slices.Equal(x, y) || !slices.Equal(a.Extents(), b.Extents()) {
			t.Fatal("two PEs came to different heaps")
		}
		for _, at := range x {
			free(t, a, at)
		}
		if err := a.Drop(a.Unused(0)); err != nil || a.Mapped() != 0 || a.Used() != 0 {
			t.Fatalf("%v; %d mapped, %d used in the end", err, a.Mapped(), a.Used())
		}
	})
}

func TestRandom(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := newHeap(t, 512*mib, 2*mib, 32*mib)
		var live []uint64
		for range 400 {
			live = step(t, h, live, byte(r.Uint32()), byte(r.Uint32()))
			check(t, h)
		}
	}
}
