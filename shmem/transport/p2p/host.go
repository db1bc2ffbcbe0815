package p2p

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
)

// Host memory at addresses of its own choice, for heaps in host memory: a range is reserved without access, and files
// are mapped into it.

func mmap(at, size uint64, prot, flags, fd int) (uint64, error) {
	got, err := unix.MmapPtr(fd, 0, pointer(at), uintptr(size), prot, flags)
	return uint64(uintptr(got)), err
}

// pointer is an address outside of Go's memory as the system call wants it.
func pointer(at uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// ReserveHost takes a range of addresses without memory.
func ReserveHost(size uint64) (uint64, error) {
	return mmap(0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1)
}

// ReleaseHost gives a reserved range back.
func ReleaseHost(at, size uint64) error { return unix.MunmapPtr(pointer(at), uintptr(size)) }

// CreateHost makes a memory file that cannot be made smaller, so that nobody's mapping of it breaks.
func CreateHost(size uint64) (int, error) {
	fd, err := unix.MemfdCreate("lshmem-heap", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make a memory file: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("make a memory file of %d bytes: %w", size, err), unix.Close(fd))
	}
	return fd, nil
}

// MapHost maps a memory file of another process, or of this one, into a reserved range.
func MapHost(at, size uint64, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at the memory file: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || uint64(st.Size) < size {
		return fmt.Errorf("the descriptor is not a memory file of %d bytes that keeps its size", size)
	}
	if _, err := mmap(at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED, fd); err != nil {
		return fmt.Errorf("map %d bytes of a memory file: %w", size, err)
	}
	return nil
}

// UnmapHost puts addresses without memory in place of a mapping.
func UnmapHost(at, size uint64) error {
	_, err := mmap(at, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, -1)
	return err
}

// RegisterHost makes host memory known to the GPU, at the same address. The descriptor that it was mapped by must still
// be open: the software GPU shares the file's pages by it.
func RegisterHost(c *cuda.Context, at, size uint64) error {
	return c.Do(func() error {
		got, err := c.D.HostRegister(at, size)
		if err != nil {
			return fmt.Errorf("register %d bytes of host memory with the GPU: %w", size, err)
		}
		if got != at {
			return errors.Join(fmt.Errorf("the GPU has host memory at %#x, not where the CPU has it (%#x)", got, at), c.D.HostUnregister(at))
		}
		return nil
	})
}

// UnregisterHost undoes RegisterHost.
func UnregisterHost(c *cuda.Context, at uint64) error {
	return c.Do(func() error { return c.D.HostUnregister(at) })
}

// AllocateHost makes zeroed private memory outside of the Go heap, in whole pages; ReleaseHost frees it.
func AllocateHost(size uint64) (uint64, error) {
	return mmap(0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1)
}
