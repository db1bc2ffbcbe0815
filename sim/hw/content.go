package hw

import (
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// Part is a part of an allocation of device memory, in bytes from its beginning.
type Part struct{ Offset, Size uint64 }

// Touched are the parts of the frames that have been written since they were allocated, in order. What is left out is
// zero; what is in may be.
func (f *Frames) Touched() []Part {
	m := f.mem
	m.barrier.RLock()
	defer m.barrier.RUnlock()
	var parts []Part
	at := uint64(0)
	for _, r := range f.runs {
		first, end := int64(r.first)*FrameSize, int64(r.first+r.count)*FrameSize
		for from, to := range m.written(first, end) {
			parts = append(parts, Part{at + uint64(from-first), uint64(to - from)})
		}
		at += uint64(end - first)
	}
	return parts
}

// written are the parts of [first, end) for which the host has pages; all of it where the host does not tell.
func (m *Memory) written(first, end int64) iter.Seq2[int64, int64] {
	return func(yield func(from, to int64) bool) {
		for first < end {
			from, err := unix.Seek(m.fd, first, unix.SEEK_DATA)
			if err == unix.ENXIO || err == nil && from >= end {
				return
			}
			to := end
			if err != nil {
				from = first
			} else if hole, err := unix.Seek(m.fd, from, unix.SEEK_HOLE); err == nil {
				to = min(hole, end)
			}
			if !yield(from, to) {
				return
			}
			first = to
		}
	}
}

// Read copies what lies at off into p.
func (f *Frames) Read(p []byte, off uint64) error {
	return f.each(off, uint64(len(p)), func(mem []byte, at uint64) { copy(p[at:], mem) })
}

// Write copies p to off.
func (f *Frames) Write(p []byte, off uint64) error {
	return f.each(off, uint64(len(p)), func(mem []byte, at uint64) { copy(mem, p[at:]) })
}

// each calls do for the contiguous parts of [off, off+n), each with how many bytes lie before it.
func (f *Frames) each(off, n uint64, do func(mem []byte, at uint64)) error {
	f.mem.barrier.RLock()
	defer f.mem.barrier.RUnlock()
	if f.runs == nil {
		return fmt.Errorf("%d bytes at %d of memory that has been released", n, off)
	}
	if off+n < off || off+n > f.size {
		return fmt.Errorf("%d bytes at %d of %d", n, off, f.size)
	}
	at := uint64(0)
	for _, mem := range f.spans() {
		size := uint64(len(mem))
		if off >= size {
			off -= size
			continue
		}
		k := min(size-off, n-at)
		do(mem[off:off+k], at)
		if at += k; at == n {
			break
		}
		off = 0
	}
	return nil
}
