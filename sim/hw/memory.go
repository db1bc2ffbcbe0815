package hw

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// FrameSize is the unit of device memory: 2 MiB, as large pages of real devices.
const FrameSize = 2 << 20

// ErrNoMemory is returned when a device has fewer free frames than were asked for.
var ErrNoMemory = errors.New("out of device memory")

// Store is memory that a Space can map: frames of a device or pages of the host.
type Store interface {
	// Size in bytes.
	Size() uint64
	// spans are the contiguous parts, in order.
	spans() [][]byte
}

// Memory is the memory of one device.
type Memory struct {
	fd      int
	data    []byte
	barrier *sync.RWMutex

	mu    sync.Mutex
	free  []uint64 // bit set: frame is free and clean
	left  int      // free frames, those being cleaned included
	dirty int      // free frames that are being cleaned
	clean sync.Cond
	all   int
	hint  int // no free frame in words below this one
}

func newMemory(size uint64, barrier *sync.RWMutex) (*Memory, error) {
	frames := int(size / FrameSize)
	if frames == 0 {
		return nil, fmt.Errorf("device memory of %d bytes is smaller than one frame of %d", size, FrameSize)
	}
	fd, err := unix.MemfdCreate("lgpu-device", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("device memory: memfd_create: %w", err)
	}
	n := frames * FrameSize
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("device memory: size %d: %w", n, err)
	}
	data, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("device memory: map %d bytes: %w", n, err)
	}
	m := &Memory{fd: fd, data: data, barrier: barrier, all: frames, left: frames, free: make([]uint64, (frames+63)/64)}
	m.clean.L = &m.mu
	for i := 0; i < frames; i++ {
		m.free[i/64] |= 1 << (i % 64)
	}
	return m, nil
}

func (m *Memory) close() error {
	m.mu.Lock()
	for m.dirty > 0 {
		m.clean.Wait()
	}
	m.mu.Unlock()
	err := unix.Munmap(m.data)
	return errors.Join(err, unix.Close(m.fd))
}

// Total is the size of the memory in bytes.
func (m *Memory) Total() uint64 { return uint64(m.all) * FrameSize }

// Free is the number of bytes in free frames.
func (m *Memory) Free() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return uint64(m.left) * FrameSize
}

// run is a number of frames in a row.
type run struct{ first, count int }

// Frames is an allocation of device memory: whole frames, contiguous where possible.
type Frames struct {
	mem  *Memory
	runs []run
	size uint64
}

// Size in bytes, a multiple of FrameSize.
func (f *Frames) Size() uint64 { return f.size }

// Memory is the memory that the frames belong to.
func (f *Frames) Memory() *Memory { return f.mem }

func (f *Frames) spans() [][]byte {
	out := make([][]byte, len(f.runs))
	for i, r := range f.runs {
		out[i] = f.mem.data[r.first*FrameSize : (r.first+r.count)*FrameSize : (r.first+r.count)*FrameSize]
	}
	return out
}

// Alloc takes frames for size bytes, rounded up. All frames read as zero. It takes all or nothing (ErrNoMemory).
func (m *Memory) Alloc(size uint64) (*Frames, error) {
	if size == 0 || size > m.Total() {
		return nil, fmt.Errorf("%d bytes of %d: %w", size, m.Total(), ErrNoMemory)
	}
	n := int((size + FrameSize - 1) / FrameSize)
	m.mu.Lock()
	defer m.mu.Unlock()
	for n > m.left-m.dirty {
		if n > m.left {
			return nil, fmt.Errorf("%d bytes with %d free: %w", size, uint64(m.left)*FrameSize, ErrNoMemory)
		}
		m.clean.Wait()
	}
	f := &Frames{mem: m, size: uint64(n) * FrameSize}
	if first := m.findLocked(n); first >= 0 {
		f.runs = []run{{first, n}}
	} else {
		f.runs = m.scatterLocked(n)
	}
	for _, r := range f.runs {
		for i := r.first; i < r.first+r.count; i++ {
			m.free[i/64] &^= 1 << (i % 64)
		}
	}
	m.left -= n
	for m.hint < len(m.free) && m.free[m.hint] == 0 {
		m.hint++
	}
	return f, nil
}

// findLocked is the first frame of the first n free ones in a row, or -1.
func (m *Memory) findLocked(n int) int {
	length := 0
	for i := m.hint * 64; i < m.all; {
		switch w := m.free[i/64] >> (i % 64); {
		case w == 0: // the rest of the word is taken
			i, length = (i/64+1)*64, 0
		case w&1 == 0:
			i, length = i+bits.TrailingZeros64(w), 0
		default:
			free := min(bits.TrailingZeros64(^w), 64-i%64)
			if length += free; length >= n {
				return i + free - length
			}
			i += free
		}
	}
	return -1
}

// scatterLocked is the first n free frames, as runs.
func (m *Memory) scatterLocked(n int) []run {
	var runs []run
	for i := 0; n > 0; i++ {
		if m.free[i/64]&(1<<(i%64)) == 0 {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k].first+runs[k].count == i {
			runs[k].count++
		} else {
			runs = append(runs, run{i, 1})
		}
		n--
	}
	return runs
}

// Release gives the frames back. They count as free at once; their content is cleaned before the next owner gets them,
// and he reads zero. The frames must be unmapped from every Space before; a step that still runs on them is waited for.
// Releasing twice does nothing.
func (f *Frames) Release() {
	m := f.mem
	m.barrier.Lock()
	runs := f.runs
	f.runs = nil
	m.barrier.Unlock()
	count := 0
	for _, r := range runs {
		count += r.count
	}
	if count == 0 {
		return
	}
	m.mu.Lock()
	m.left += count
	m.dirty += count
	m.mu.Unlock()
	if count <= cleanAtOnce {
		m.wipe(runs)
	} else {
		go m.wipe(runs)
	}
}

// cleanAtOnce is how many frames are cleaned by the release itself: giving much touched memory back to the host
// takes long, and the caller may hold locks.
const cleanAtOnce = 32

// wipe gives the memory of free frames back to the host, which makes it zero, and the frames to Alloc.
func (m *Memory) wipe(runs []run) {
	for _, r := range runs {
		off, n := int64(r.first)*FrameSize, int64(r.count)*FrameSize
		if unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n) != nil {
			// Without holes the host does not get the memory back, but no other program may read what was in it.
			clear(m.data[off : off+n])
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range runs {
		for i := r.first; i < r.first+r.count; i++ {
			m.free[i/64] |= 1 << (i % 64)
		}
		m.dirty -= r.count
		m.hint = min(m.hint, r.first/64)
	}
	m.clean.Broadcast()
}
