package hw

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// ErrFault is returned for an access to an address that is not mapped, or not mapped for writing.
var ErrFault = errors.New("address not mapped")

// Space is an address space. Readers never wait: the table is replaced as a whole.
type Space struct {
	mu    sync.Mutex
	table atomic.Pointer[[]extent]
}

// extent maps the addresses [base, base+len(mem)).
type extent struct {
	base     uint64
	mem      []byte
	writable bool
}

func (e extent) end() uint64 { return e.base + uint64(len(e.mem)) }

// NewSpace returns an address space with nothing mapped.
func NewSpace() *Space {
	s := &Space{}
	s.table.Store(&[]extent{})
	return s
}

// Map makes n bytes of st from offset off visible at addr. It is an error if an address is mapped already.
func (s *Space) Map(addr uint64, st Store, off, n uint64, writable bool) error {
	if n == 0 || addr+n < addr || off+n < off || off+n > st.Size() {
		return fmt.Errorf("map %#x: %d bytes at offset %d of %d", addr, n, off, st.Size())
	}
	var add []extent
	at := addr
	for _, mem := range st.spans() {
		if size := uint64(len(mem)); off >= size {
			off -= size
			continue
		}
		mem = mem[off:]
		off = 0
		mem = mem[:min(uint64(len(mem)), n)]
		add = append(add, extent{at, mem[:len(mem):len(mem)], writable})
		at += uint64(len(mem))
		if n -= uint64(len(mem)); n == 0 {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.table.Load()
	i := sort.Search(len(old), func(i int) bool { return old[i].end() > addr })
	if i < len(old) && old[i].base < at {
		return fmt.Errorf("map %#x: addresses from %#x are mapped already", addr, old[i].base)
	}
	next := make([]extent, 0, len(old)+len(add))
	next = append(append(append(next, old[:i]...), add...), old[i:]...)
	s.table.Store(&next)
	return nil
}

// Unmap removes what is mapped in [addr, addr+n). The step that runs may still use it; releasing the memory waits for
// that step.
func (s *Space) Unmap(addr, n uint64) {
	s.edit(addr, n, func(extent) (extent, bool) { return extent{}, false })
}

// Protect sets whether what is mapped in [addr, addr+n) may be written.
func (s *Space) Protect(addr, n uint64, writable bool) {
	s.edit(addr, n, func(e extent) (extent, bool) {
		e.writable = writable
		return e, true
	})
}

// edit replaces or drops the parts of extents that lie in [addr, addr+n).
func (s *Space) edit(addr, n uint64, f func(extent) (extent, bool)) {
	end := addr + n
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.table.Load()
	i := sort.Search(len(old), func(i int) bool { return old[i].end() > addr })
	if i == len(old) || old[i].base >= end {
		return
	}
	next := slices.Clone(old[:i])
	for ; i < len(old); i++ {
		e := old[i]
		if e.base >= end {
			break
		}
		lo, hi := max(e.base, addr)-e.base, min(e.end(), end)-e.base
		if lo > 0 {
			next = append(next, extent{e.base, e.mem[:lo:lo], e.writable})
		}
		if mid, keep := f(extent{e.base + lo, e.mem[lo:hi:hi], e.writable}); keep {
			next = append(next, mid)
		}
		if hi < uint64(len(e.mem)) {
			next = append(next, extent{e.base + hi, e.mem[hi:], e.writable})
		}
	}
	next = append(next, old[i:]...)
	s.table.Store(&next)
}

// Window is the mapped range that holds addr: its first address and its bytes. ok is false where nothing is mapped.
// The bytes may be used until the end of the step in which Window was called.
func (s *Space) Window(addr uint64) (base uint64, mem []byte, writable, ok bool) {
	t := *s.table.Load()
	lo, hi := 0, len(t)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t[mid].end() > addr {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == len(t) || t[lo].base > addr {
		return 0, nil, false, false
	}
	return t[lo].base, t[lo].mem, t[lo].writable, true
}

// Mapped reports whether all of [addr, addr+n) is mapped, and for writing if write is set.
func (s *Space) Mapped(addr, n uint64, write bool) bool {
	return s.walk(addr, n, write, func([]byte) {}) == nil
}

// walk calls f with the bytes of [addr, addr+n), part by part.
func (s *Space) walk(addr, n uint64, write bool, f func([]byte)) error {
	for n > 0 {
		base, mem, writable, ok := s.Window(addr)
		if !ok || write && !writable {
			return fmt.Errorf("%#x: %w", addr, ErrFault)
		}
		mem = mem[addr-base:]
		if uint64(len(mem)) > n {
			mem = mem[:n]
		}
		f(mem)
		addr += uint64(len(mem))
		n -= uint64(len(mem))
	}
	return nil
}

// Read fills p from addr. On ErrFault a first part may have been read. The caller must be inside a step or be sure that
// the memory is not released meanwhile.
func (s *Space) Read(p []byte, addr uint64) error {
	return s.walk(addr, uint64(len(p)), false, func(b []byte) { p = p[copy(p, b):] })
}

// Write stores p at addr; see Read.
func (s *Space) Write(p []byte, addr uint64) error {
	return s.walk(addr, uint64(len(p)), true, func(b []byte) { p = p[copy(b, p):] })
}

// Fill stores n bytes at addr that repeat pattern, whose first byte goes to addr; see Read.
func (s *Space) Fill(addr, n uint64, pattern []byte) error {
	phase := 0
	return s.walk(addr, n, true, func(b []byte) {
		if len(b) == 0 {
			return
		}
		done := 0
		for ; done < len(b) && done < len(pattern); done++ {
			b[done] = pattern[(phase+done)%len(pattern)]
		}
		for done < len(b) { // doubling keeps the phase: what is copied is a multiple of the pattern long
			done += copy(b[done:], b[:done])
		}
		phase = (phase + len(b)) % len(pattern)
	})
}

// Extents lists what is mapped, in order of address: the state that a checkpoint must keep.
func (s *Space) Extents() []Extent {
	t := *s.table.Load()
	out := make([]Extent, len(t))
	for i, e := range t {
		out[i] = Extent{e.base, uint64(len(e.mem)), e.writable}
	}
	return out
}

// Extent is a mapped range of addresses.
type Extent struct {
	Addr, Size uint64
	Writable   bool
}

// Copy moves n bytes from src to dst within the space; see Read. The ranges may overlap only by being the same.
func (s *Space) Copy(dst, src, n uint64) error {
	var failed error
	err := s.walk(src, n, false, func(b []byte) {
		if failed == nil {
			failed = s.Write(b, dst)
			dst += uint64(len(b))
		}
	})
	return errors.Join(failed, err)
}
