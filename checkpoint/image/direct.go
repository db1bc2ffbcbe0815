package image

import (
	"errors"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// page is what offset, length and address of a direct transfer are multiples of. Disks want 512 or 4096.
const page = 4096

// buffer is memory for the file of one chunk, which begins at a multiple of page, with room behind it up to the next one.
type buffer struct{ bytes []byte }

// buffers of images with chunks of a size.
type buffers struct{ pool sync.Pool }

func newBuffers(chunk int) *buffers {
	length := (headLength + chunk + page - 1) / page * page
	return &buffers{sync.Pool{New: func() any {
		all := make([]byte, length+page)
		skip := (page - int(uintptr(unsafe.Pointer(&all[0]))%page)) % page
		return &buffer{all[skip : skip+length]}
	}}}
}

func (b *buffers) get() *buffer  { return b.pool.Get().(*buffer) }
func (b *buffers) put(x *buffer) { b.pool.Put(x) }

// undirect are the errors by which file systems say that they do not transfer directly, some as late as at the first try.
func undirect(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// writeNew makes a file of the first length bytes of a buffer and brings it to the disk: past the page cache, which would
// only take memory from the program that is being written, if the file system can do that.
func writeNew(dir *os.Root, name string, b *buffer, length int) (err error) {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := writeDirect(f, b, length); undirect(err) {
		if _, err = f.WriteAt(b.bytes[:length], 0); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return f.Sync()
}

// writeDirect writes past the page cache whole pages, and takes the rest of the last one off again.
func writeDirect(f *os.File, b *buffer, length int) error {
	if err := setDirect(f, true); err != nil {
		return err
	}
	whole := (length + page - 1) / page * page
	clear(b.bytes[length:whole])
	_, err := f.WriteAt(b.bytes[:whole], 0)
	if err == nil {
		err = f.Truncate(int64(length))
	}
	if undirect(err) {
		return errors.Join(err, setDirect(f, false))
	}
	return err
}

func setDirect(f *os.File, on bool) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if on {
		flags |= unix.O_DIRECT
	} else {
		flags &^= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags)
	return err
}

// readWhole reads a file of size bytes into a buffer with room for it: out of the page cache what is there, and if that is
// not all, past it. It returns fewer bytes where the file is shorter than it was.
func readWhole(f *os.File, b *buffer, size int) ([]byte, error) {
	n, err := unix.Preadv2(int(f.Fd()), [][]byte{b.bytes[:size]}, 0, unix.RWF_NOWAIT)
	if err == nil && n == size {
		return b.bytes[:n], nil
	}
	if setDirect(f, true) == nil {
		n, err := readDirect(f, b, size)
		if !undirect(err) {
			return b.bytes[:min(n, size)], err
		}
		if err := setDirect(f, false); err != nil {
			return nil, err
		}
	}
	n, err = f.ReadAt(b.bytes[:size], 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b.bytes[:n], err
}

// readDirect reads whole pages, of which the last one of the file is a part.
func readDirect(f *os.File, b *buffer, size int) (n int, err error) {
	for n < size && n%page == 0 {
		r, err := unix.Pread(int(f.Fd()), b.bytes[n:], int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || r == 0 {
			return n, err
		}
		n += r
	}
	return n, nil
}
