package hca

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// piece is a range of a work's bytes.
type piece struct{ offset, n uint64 }

// part is what a link carries at once: a piece of a write or read, or an atomic.
type part struct {
	work *work
	piece
}

// partDone ends a part of which submit said that it was begun.
func (w *work) partDone(syndrome uint8) {
	if syndrome != 0 {
		w.failure.CompareAndSwap(0, uint32(syndrome))
	}
	w.left.Add(-1)
}

// word is the address of b's first n bytes.
func word(what string, b []byte, n int) (unsafe.Pointer, error) {
	if len(b) < n {
		return nil, fmt.Errorf("%s has %d bytes, not %d", what, len(b), n)
	}
	p := unsafe.Pointer(&b[0])
	if uintptr(p)%8 != 0 {
		return nil, fmt.Errorf("%s is not at a multiple of 8", what)
	}
	return p, nil
}

// scatterOld stores what an atomic found: 8 bytes in the machine's order, 4 bytes big-endian.
func (q *Queue) scatterOld(w *work) uint8 {
	b := q.small[:w.atomic.Bytes]
	if w.atomic.Bytes == 4 {
		binary.BigEndian.PutUint32(b, uint32(w.old))
	} else {
		binary.NativeEndian.PutUint64(b, w.old)
	}
	return q.device.scatter(w, 0, b)
}

// find is where the byte at offset of a list of ranges is.
func find(data []mlx5.Data, offset uint64) (i int, within uint64) {
	for i < len(data) && offset >= data[i].Length() {
		offset -= data[i].Length()
		i++
	}
	return i, offset
}

// scatter stores b, which arrived for a work, from offset of its local ranges.
func (d *Device) scatter(w *work, offset uint64, b []byte) (syndrome uint8) {
	return d.move(w, offset, b, LocalWrite, Memory.WriteAt)
}

// gather fills b with a work's bytes from offset.
func (d *Device) gather(w *work, offset uint64, b []byte) (syndrome uint8) {
	if w.inline != nil {
		copy(b, w.inline[offset:])
		return 0
	}
	return d.move(w, offset, b, 0, Memory.ReadAt)
}

// move moves bytes between b and a work's local ranges from offset, range by range.
func (d *Device) move(w *work, offset uint64, b []byte, access Access, do func(Memory, []byte, uint64) error) (syndrome uint8) {
	i, within := find(w.data, offset)
	for ; len(b) > 0 && i < len(w.data); i++ {
		s := w.data[i]
		n := min(s.Length()-within, uint64(len(b)))
		r := d.acquire(s.Key, s.Address+within, n, access)
		if r == nil {
			return mlx5.SyndromeLocalProtect
		}
		err := do(r.memory, b[:n], s.Address+within)
		r.release()
		if err != nil {
			d.config.Logf("hca: queue %#x: %v", w.queue.config.Number, err)
			return mlx5.SyndromeLocalProtect
		}
		b, within = b[n:], 0
	}
	return 0
}
