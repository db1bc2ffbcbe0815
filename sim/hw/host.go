package hw

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// HostPages is host memory that devices can reach: a memfd mapped here and, through its descriptor, in a program.
type HostPages struct {
	file    *os.File
	barrier *sync.RWMutex
	data    []byte
	offset  uint64 // in the file
	size    uint64
}

// NewHostPages makes size bytes of host memory, rounded up to whole pages. The memfd is sealed against a change of
// size, so that no program can take the pages from under a device.
func (m *Machine) NewHostPages(size uint64) (*HostPages, error) {
	page := uint64(os.Getpagesize())
	n := (size + page - 1) / page * page
	if n == 0 || n < size || n > 1<<46 {
		return nil, fmt.Errorf("host pages: size %d", size)
	}
	fd, err := unix.MemfdCreate("lgpu-host", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("host pages: memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "lgpu-host")
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		file.Close()
		return nil, fmt.Errorf("host pages: size %d: %w", n, err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, fmt.Errorf("host pages: seal: %w", err)
	}
	return m.mapHost(file, 0, n)
}

// AdoptHostPages maps size bytes of a memfd that a program made, from offset on, a multiple of the page size. It must
// be sealed against shrinking and have all these pages. The file is owned by the result, also on error.
func (m *Machine) AdoptHostPages(file *os.File, offset, size uint64) (*HostPages, error) {
	if err := adoptable(int(file.Fd()), offset, size); err != nil {
		file.Close()
		return nil, fmt.Errorf("host pages: %w", err)
	}
	return m.mapHost(file, offset, size)
}

// adoptable says why a program's file is not to be mapped. Pages that were not there when a device touches them would
// be the end of all programs.
func adoptable(fd int, offset, size uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("descriptor is not sealed against shrinking (seals %#x, %v)", seals, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || uint32(fs.Type) == unix.HUGETLBFS_MAGIC {
		return fmt.Errorf("descriptor is of huge pages, of which there may be none left (%v)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("size of the descriptor: %w", err)
	}
	page := uint64(os.Getpagesize())
	pages := (uint64(st.Size) + page - 1) / page * page
	if size == 0 || offset%page != 0 || size > pages || offset > pages-size {
		return fmt.Errorf("the pages of %d bytes hold none of %d bytes at %#x", st.Size, size, offset)
	}
	return nil
}

func (m *Machine) mapHost(file *os.File, offset, n uint64) (*HostPages, error) {
	data, err := unix.Mmap(int(file.Fd()), int64(offset), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("host pages: map %d bytes: %w", n, err)
	}
	return &HostPages{file: file, barrier: &m.barrier, data: data, offset: offset, size: n}, nil
}

// Size in bytes, a multiple of the page size when made by NewHostPages.
func (h *HostPages) Size() uint64 { return h.size }

// File is the memfd of the pages. It is closed by Release.
func (h *HostPages) File() *os.File { return h.file }

// Offset is where in the file the pages begin, in bytes.
func (h *HostPages) Offset() uint64 { return h.offset }

// Bytes are the pages as mapped here. They must not be used after Release.
func (h *HostPages) Bytes() []byte { return h.data }

func (h *HostPages) spans() [][]byte { return [][]byte{h.data} }

// Release unmaps the pages. They must be unmapped from every Space before; a step that still runs on them is waited
// for. The program's own mapping stays. Releasing twice does nothing.
func (h *HostPages) Release() error {
	h.barrier.Lock()
	data := h.data
	h.data = nil
	h.barrier.Unlock()
	if data == nil {
		return nil
	}
	h.file.Close()
	if err := unix.Munmap(data); err != nil {
		return fmt.Errorf("host pages: unmap: %w", err)
	}
	return nil
}
