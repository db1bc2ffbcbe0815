package hca

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// Memory is what a registered range consists of. Addresses are those of the range's owner, the ones that work requests
// carry. The device has checked that the whole access lies in the range. Methods are called from several goroutines at
// once.
type Memory interface {
	// ReadAt fills p with the bytes at address.
	ReadAt(p []byte, address uint64) error
	// WriteAt stores p at address. Writes of 4 or 8 bytes at a multiple of their size are seen whole and after all that
	// was written before. Of writes of up to rowBytes at a multiple of 4, so are all words of 4 and 8 bytes at
	// multiples of their size: a warp's values come as one. Memory that this process reaches through a driver keeps
	// that as far as its copies do.
	WriteAt(p []byte, address uint64) error
	// Atomic replaces the op.Bytes bytes at address, a multiple of that, by what op.Apply makes of them and returns
	// what was there. No other atomic operation, of whatever agent the memory's owner counts on, comes between.
	Atomic(address uint64, op *mlx5.Atomic) (old uint64, err error)
}

// Viewer is a Memory that this process can address; copies then need no buffer between.
type Viewer interface {
	// View is the n bytes at address, to read or to write.
	View(address, n uint64) ([]byte, error)
}

// rowBytes is what the values of a warp's lanes take at most.
const rowBytes = 32 * 8

// HostMemory is bytes of this process, which other processes and devices may share. Its atomic operations are those of
// the processor, so they hold against all of them.
type HostMemory struct {
	Start uint64 // address of Bytes[0] to those who post work requests
	Bytes []byte // its own address must be aligned to 8, as Start is
}

// NewHostMemory is the memory of b, which work requests find at start.
func NewHostMemory(start uint64, b []byte) (*HostMemory, error) {
	if start%8 != 0 || len(b) > 0 && uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		return nil, fmt.Errorf("hca: host memory of %d bytes at %#x: not aligned to 8", len(b), start)
	}
	return &HostMemory{Start: start, Bytes: b}, nil
}

// View implements Viewer.
func (m *HostMemory) View(address, n uint64) ([]byte, error) {
	offset := address - m.Start
	end, carry := bits.Add64(offset, n, 0)
	if carry != 0 || end > uint64(len(m.Bytes)) {
		return nil, fmt.Errorf("hca: %d bytes at %#x are not in host memory of %d bytes at %#x", n, address, len(m.Bytes), m.Start)
	}
	return m.Bytes[offset:end:end], nil
}

// ReadAt implements Memory.
func (m *HostMemory) ReadAt(p []byte, address uint64) error {
	b, err := m.View(address, uint64(len(p)))
	if err == nil {
		load(p, b)
	}
	return err
}

// WriteAt implements Memory.
func (m *HostMemory) WriteAt(p []byte, address uint64) error {
	b, err := m.View(address, uint64(len(p)))
	if err == nil {
		store(b, p)
	}
	return err
}

// Atomic implements Memory.
func (m *HostMemory) Atomic(address uint64, op *mlx5.Atomic) (uint64, error) {
	if op.Bytes != 4 && op.Bytes != 8 || address%uint64(op.Bytes) != 0 {
		return 0, fmt.Errorf("hca: an atomic operation on %d bytes at %#x", op.Bytes, address)
	}
	b, err := m.View(address, uint64(op.Bytes))
	if err != nil {
		return 0, err
	}
	if op.Bytes == 4 {
		p := (*uint32)(unsafe.Pointer(&b[0]))
		for {
			old := atomic.LoadUint32(p)
			if atomic.CompareAndSwapUint32(p, old, uint32(op.Apply(uint64(old)))) {
				return uint64(old), nil
			}
		}
	}
	p := (*uint64)(unsafe.Pointer(&b[0]))
	for {
		old := atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, op.Apply(old)) {
			return old, nil
		}
	}
}

// aligned says whether b is one word of n bytes.
func aligned(b []byte, n int) bool {
	return len(b) == n && uintptr(unsafe.Pointer(&b[0]))%uintptr(n) == 0
}

// load copies from shared memory; words are read whole.
func load(dst, src []byte) {
	switch {
	case aligned(src, 8):
		v := atomic.LoadUint64((*uint64)(unsafe.Pointer(&src[0])))
		*(*[8]byte)(dst) = *(*[8]byte)(unsafe.Pointer(&v))
	case aligned(src, 4):
		v := atomic.LoadUint32((*uint32)(unsafe.Pointer(&src[0])))
		*(*[4]byte)(dst) = *(*[4]byte)(unsafe.Pointer(&v))
	default:
		copy(dst, src)
	}
}

// storeRow stores words of 4 and 8 bytes whole. dst is not empty.
func storeRow(dst, src []byte) {
	if at := uintptr(unsafe.Pointer(&dst[0])) % 8; at != 0 && len(dst) >= 4 {
		store(dst[:4], src)
		dst, src = dst[4:], src[4:]
	}
	for ; len(dst) >= 8; dst, src = dst[8:], src[8:] {
		store(dst[:8], src)
	}
	if len(dst) >= 4 {
		store(dst[:4], src)
		dst, src = dst[4:], src[4:]
	}
	copy(dst, src)
}

// store copies to shared memory; words are written whole and after all earlier writes.
func store(dst, src []byte) {
	switch {
	case aligned(dst, 8):
		var v uint64
		*(*[8]byte)(unsafe.Pointer(&v)) = *(*[8]byte)(src)
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&dst[0])), v)
	case aligned(dst, 4):
		var v uint32
		*(*[4]byte)(unsafe.Pointer(&v)) = *(*[4]byte)(src)
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&dst[0])), v)
	case len(dst) > 4 && len(dst) <= rowBytes && uintptr(unsafe.Pointer(&dst[0]))%4 == 0:
		storeRow(dst, src)
	default:
		copy(dst, src)
	}
}
