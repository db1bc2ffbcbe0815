package hw

import (
	"bytes"
	"slices"
	"testing"
)

// TestContent reads and writes an allocation in pieces that lie apart, and asks what of it has been written.
func TestContent(t *testing.T) {
	m := machine(t, Config{Memory: 8 * FrameSize}).Devices[0].Memory
	var taken []*Frames
	for range 8 {
		f, err := m.Alloc(FrameSize)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, f)
	}
	for i := 1; i < 8; i += 2 {
		taken[i].Release()
	}
	f, err := m.Alloc(3 * FrameSize)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.runs) < 2 {
		t.Fatalf("the frames %v are in a row", f.runs)
	}
	if parts := f.Touched(); len(parts) != 0 {
		t.Errorf("%v is touched before anything was written", parts)
	}
	text := []byte("over the border of frames")
	const at = 2*FrameSize - 7
	if err := f.Write(text, at); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if err := f.Read(got, at); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %q, %v", got, err)
	}
	const page = 4096
	want := []Part{{2*FrameSize - page, page}, {2 * FrameSize, page}}
	if parts := f.Touched(); !slices.Equal(parts, want) {
		t.Errorf("touched %v, want %v", parts, want)
	}
	for _, off := range []uint64{3*FrameSize - 1, ^uint64(0)} {
		if err := f.Read(got, off); err == nil {
			t.Errorf("%d bytes at %d can be read", len(got), off)
		}
	}
	f.Release()
	if err := f.Read(got, 0); err == nil {
		t.Error("released memory can be read")
	}
	for i := 0; i < 8; i += 2 {
		taken[i].Release()
	}
}
