package hw

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

func machine(t *testing.T, configs ...Config) *Machine {
	t.Helper()
	for i := range configs {
		if configs[i].Memory == 0 {
			configs[i].Memory = 64 << 20
		}
		configs[i].Virtual = true
	}
	m, err := NewMachine(configs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func TestFrames(t *testing.T) {
	m := machine(t, Config{}).Devices[0].Memory
	if m.Total() != 64<<20 || m.Free() != m.Total() {
		t.Fatalf("total %d free %d", m.Total(), m.Free())
	}
	for _, bad := range []uint64{0, m.Total() + 1, 1 << 63, ^uint64(0)} {
		if _, err := m.Alloc(bad); !errors.Is(err, ErrNoMemory) {
			t.Errorf("Alloc(%d): %v", bad, err)
		}
	}
	f, err := m.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if f.Size() != FrameSize || m.Free() != m.Total()-FrameSize {
		t.Errorf("one byte takes %d bytes, free %d", f.Size(), m.Free())
	}
	if _, err := m.Alloc(m.Total()); !errors.Is(err, ErrNoMemory) {
		t.Errorf("all with one taken: %v", err)
	}
	s := NewSpace()
	if err := s.Map(0x1000000, f, 0, f.Size(), true); err != nil {
		t.Fatal(err)
	}
	if err := s.Write([]byte("secret"), 0x1000000); err != nil {
		t.Fatal(err)
	}
	s.Unmap(0x1000000, f.Size())
	f.Release()
	f.Release()
	if m.Free() != m.Total() {
		t.Errorf("free %d after release", m.Free())
	}
	// The next owner reads zero.
	g, err := m.Alloc(m.Total())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range g.spans() {
		if !bytes.Equal(b[:4096], make([]byte, 4096)) {
			t.Error("a freed frame kept what was in it")
		}
	}
	g.Release()
}

// TestFramesAtRandom allocates and frees until the memory is in pieces, and checks that no frame has two owners.
func TestFramesAtRandom(t *testing.T) {
	m := machine(t, Config{Memory: 256 << 20}).Devices[0].Memory
	r := rand.New(rand.NewPCG(1, 2))
	var live []*Frames
	used := 0
	for range 5000 {
		if len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			used -= int(live[i].Size() / FrameSize)
			live[i].Release()
			live = append(live[:i], live[i+1:]...)
			continue
		}
		n := 1 + r.IntN(20)
		f, err := m.Alloc(uint64(n) * FrameSize)
		if used+n > m.all {
			if err == nil {
				t.Fatalf("%d frames with %d free were given", n, m.all-used)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d frames with %d free: %v", n, m.all-used, err)
		}
		used += n
		live = append(live, f)
		owner := make([]bool, m.all)
		for _, f := range live {
			for _, run := range f.runs {
				for i := run.first; i < run.first+run.count; i++ {
					if owner[i] {
						t.Fatalf("frame %d has two owners", i)
					}
					owner[i] = true
				}
			}
		}
		if m.Free() != uint64(m.all-used)*FrameSize {
			t.Fatalf("free %d, want %d frames", m.Free(), m.all-used)
		}
	}
}

func TestSpace(t *testing.T) {
	m := machine(t, Config{})
	f, err := m.Devices[0].Memory.Alloc(4 * FrameSize)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	s := NewSpace()
	const base = 0x4000_0000
	if err := s.Map(base, f, FrameSize, 2*FrameSize, true); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct{ addr, off, n uint64 }{
		{base, 0, FrameSize}, {base + FrameSize, 0, FrameSize}, {base - 1, 0, 2}, // mapped already
		{1, 3 * FrameSize, 2 * FrameSize}, {1, ^uint64(0), 2}, {^uint64(0), 0, FrameSize}, {1, 0, 0}, // out of range
	} {
		if err := s.Map(bad.addr, f, bad.off, bad.n, true); err == nil {
			t.Errorf("Map(%#x, %#x, %#x) is accepted", bad.addr, bad.off, bad.n)
		}
	}
	data := []byte("across the border of frames")
	if err := s.Write(data, base+FrameSize-5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if err := s.Read(got, base+FrameSize-5); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %q, %v", got, err)
	}
	for _, addr := range []uint64{base - 1, base + 2*FrameSize, 0} {
		if err := s.Read(make([]byte, 1), addr); !errors.Is(err, ErrFault) {
			t.Errorf("read of %#x: %v", addr, err)
		}
	}
	s.Protect(base, FrameSize, false)
	if err := s.Write([]byte{1}, base); !errors.Is(err, ErrFault) {
		t.Errorf("write to read-only memory: %v", err)
	}
	if !s.Mapped(base, 2*FrameSize, false) || s.Mapped(base, 2*FrameSize, true) {
		t.Error("Mapped does not tell reading from writing")
	}
	// A hole in the middle leaves both sides.
	s.Protect(base, FrameSize, true)
	s.Unmap(base+4096, 4096)
	if s.Mapped(base+4096, 1, false) || !s.Mapped(base, 4096, true) || !s.Mapped(base+8192, 2*FrameSize-8192, true) {
		t.Errorf("after a hole: %+v", s.Extents())
	}
	if b, mem, _, ok := s.Window(base + 10000); !ok || b+uint64(len(mem)) <= base+10000 || b > base+10000 {
		t.Errorf("window of %#x is %#x with %d bytes", base+10000, b, len(mem))
	}
	s.Unmap(0, ^uint64(0))
	if len(s.Extents()) != 0 {
		t.Errorf("after unmapping all: %+v", s.Extents())
	}
}

func TestFillAndCopy(t *testing.T) {
	m := machine(t, Config{})
	h, err := m.NewHostPages(3 * 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	s := NewSpace()
	// Two mappings that lie next to each other.
	if err := s.Map(0x1000, h, 0, 4096, true); err != nil {
		t.Fatal(err)
	}
	if err := s.Map(0x2000, h, 4096, 8192, true); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{1, 3, 4, 5, 4000, 8000} {
		if err := s.Fill(0x1000+3, n, []byte{1, 2, 3, 4}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, n)
		if err := s.Read(got, 0x1000+3); err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			if b != byte(i%4+1) {
				t.Fatalf("fill of %d: byte %d is %d", n, i, b)
			}
		}
	}
	if err := s.Copy(0x3000, 0x1003, 4096); err != nil {
		t.Fatal(err)
	}
	if b := h.Bytes()[0x2000:]; b[0] != 1 || b[4095] != 4 {
		t.Errorf("copied %d ... %d", b[0], b[4095])
	}
	if err := s.Copy(0x3fff, 0x1003, 2); !errors.Is(err, ErrFault) {
		t.Errorf("copy over the end: %v", err)
	}
	if err := s.Copy(0x1000, 0x3fff, 2); !errors.Is(err, ErrFault) {
		t.Errorf("copy from over the end: %v", err)
	}
}
