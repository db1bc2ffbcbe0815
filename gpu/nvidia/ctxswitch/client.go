package ctxswitch

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files is what a client needs of the kernel; tests have a driver of their own behind it.
type files interface {
	open(path string) (fd int, err error)
	// ioctl hands argument, of the size that request says, to the driver behind fd.
	ioctl(fd int, request uintptr, argument unsafe.Pointer) error
	mmap(fd, length int) ([]byte, error) // read only, shared, from the file's beginning
	munmap(memory []byte) error
	close(fd int) error
}

// kernel is the real one.
type kernel struct{}

func (kernel) open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}

func (kernel) ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

func (kernel) mmap(fd, length int) ([]byte, error) {
	return unix.Mmap(fd, 0, length, unix.PROT_READ, unix.MAP_SHARED)
}

func (kernel) munmap(memory []byte) error { return unix.Munmap(memory) }
func (kernel) close(fd int) error         { return unix.Close(fd) }

// request is the number of an ioctl that reads and writes an argument of size bytes (asm-generic/ioctl.h: _IOWR).
func request(number, size uintptr) uintptr { return 3<<30 | size<<16 | ioctlMagic<<8 | number }

// client is a client of the driver's resource manager: objects in a tree, each with a handle. The driver frees them
// when the file of the client is closed. The argument of commands is a part of it, so that a command needs no memory.
type client struct {
	files   files
	control int    // the file of the client, or -1
	root    uint32 // handle of the client itself
	open    []int  // further files
	memory  [][]byte
	call    control
}

// connect opens the file of the client and makes its root.
func (c *client) connect() error {
	fd, err := c.files.open(controlFile)
	if err != nil {
		return err
	}
	c.control = fd
	// The driver chooses the root's handle.
	c.root, err = c.allocate("a client", 0, 0, classClient, nil, 0)
	return err
}

// hold opens a file that stays open as long as the client.
func (c *client) hold(path string) (int, error) {
	fd, err := c.files.open(path)
	if err == nil {
		c.open = append(c.open, fd)
	}
	return fd, err
}

// allocate makes an object with this handle and returns its handle. An error names it by what.
func (c *client) allocate(
	what string, parent, object, class uint32, params unsafe.Pointer, size uintptr,
) (uint32, error) {
	a := &allocation{client: c.root, parent: parent, object: object, class: class, params: params, size: uint32(size)}
	err := c.files.ioctl(c.control, request(ioctlAlloc, unsafe.Sizeof(*a)), unsafe.Pointer(a))
	if err == nil && a.status != 0 {
		err = a.status
	}
	if err != nil {
		return 0, fmt.Errorf("allocate %s (class %#x): %w", what, class, err)
	}
	return a.object, nil
}

// command has an object do something. An error names it by what.
func (c *client) command(what string, object, command uint32, params unsafe.Pointer, size uintptr) error {
	c.call = control{client: c.root, object: object, command: command, params: params, size: uint32(size)}
	err := c.files.ioctl(c.control, request(ioctlControl, unsafe.Sizeof(c.call)), unsafe.Pointer(&c.call))
	if err == nil && c.call.status != 0 {
		err = c.call.status
	}
	if err != nil {
		return fmt.Errorf("%s (command %#x): %w", what, command, err)
	}
	return nil
}

// share maps length bytes of a memory object for reading. An error names it by what.
func (c *client) share(what string, object uint32, length int) ([]byte, error) {
	fd, err := c.hold(controlFile)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", what, err)
	}
	m := &mapping{
		client: c.root, device: c.root, memory: object, length: uint64(length), flags: mapReadOnly, file: int32(fd),
	}
	err = c.files.ioctl(c.control, request(ioctlMap, unsafe.Sizeof(*m)), unsafe.Pointer(m))
	if err == nil && m.status != 0 {
		err = m.status
	}
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", what, err)
	}
	memory, err := c.files.mmap(fd, length)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", what, err)
	}
	c.memory = append(c.memory, memory)
	return memory, nil
}

// release gives everything back, also after an error on the way here, and returns the first thing that went wrong.
func (c *client) release() error {
	var first error
	note := func(act string, err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("%s: %w", act, err)
		}
	}
	for _, memory := range c.memory {
		note("munmap", c.files.munmap(memory))
	}
	for _, fd := range c.open {
		note("close a device file", c.files.close(fd))
	}
	if c.control >= 0 {
		note("close "+controlFile, c.files.close(c.control))
	}
	c.memory, c.open, c.control = nil, nil, -1
	return first
}
