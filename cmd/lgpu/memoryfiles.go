package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/internal/progress"
)

// memoryFile is a file with what has left a device, as an image notes it: of a program of an lgpu with memory.overcommit. The
// program has it open and maps it; CRIU is told that it is somebody else's, and its contents are a stream of the image.
type memoryFile struct {
	Client int32  `json:"client"` // number of the process
	Device uint32 `json:"device"` // index among the lgpu's
	Disk   bool   `json:"disk"`
	Size   uint64 `json:"size"` // bytes
	Key    string `json:"key"`  // what CRIU calls it
}

// stream is the name of the stream with its contents.
func (f memoryFile) stream() string {
	tier := "memory"
	if f.Disk {
		tier = "disk"
	}
	return fmt.Sprintf("evicted/%d/%d/%s", f.Client, f.Device, tier)
}

// openMemory opens a file that the daemon names, and finds what CRIU calls it.
func openMemory(f *api.MemoryFile, flags int) (file *os.File, key string, err error) {
	fail := func(err error) (*os.File, string, error) {
		return nil, "", fmt.Errorf("file with memory of process %d: %w", f.GetClient(), err)
	}
	if file, err = os.OpenFile(f.GetPath(), flags, 0); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	var st unix.Stat_t
	if err = unix.Fstat(int(file.Fd()), &st); err != nil {
		return fail(err)
	}
	if st.Ino != f.GetInode() || st.Mode&unix.S_IFMT != unix.S_IFREG || uint64(st.Size) != f.GetSize() {
		err = errors.New("it is not the one that the daemon has")
		return fail(err)
	}
	own := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	if name, _ := os.Readlink(own); strings.HasPrefix(name, "/memfd:") {
		err = errors.New("CRIU would not leave it out, since the daemon could not mount a file system of its own for it")
		return fail(err)
	}
	mount, err := mountOf(int(file.Fd()))
	if err != nil {
		return fail(err)
	}
	return file, fmt.Sprintf("file[%x:%x]", mount, st.Ino), nil
}

// mountOf is the number of the mount that a descriptor's file is on.
func mountOf(fd int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if number, is := strings.CutPrefix(lines.Text(), "mnt_id:"); is {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, errors.New("the kernel does not say which mount it is on")
}

// writeMemory writes what has left devices to an image, and returns what is to be noted of it.
func writeMemory(ctx context.Context, w *image.Writer, files []*api.MemoryFile) (all []memoryFile, err error) {
	for _, f := range files {
		file, key, err := openMemory(f, os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		one := memoryFile{Client: f.GetClient(), Device: f.GetDevice(), Disk: f.GetDisk(), Size: f.GetSize(), Key: key}
		if err := errors.Join(w.Copy(ctx, one.stream(), int64(one.Size), file), file.Close()); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// memoryFiles are files that the daemon has made for what an image has of noted ones.
type memoryFiles struct {
	inherit map[string]*os.File    // by what CRIU calls them
	to      map[string]io.WriterAt // by the names of their streams
	mapped  [][]byte
}

// openFiles opens them. They are the caller's to close.
func openFiles(i *image.Image, noted []memoryFile, made []*api.MemoryFile) (m *memoryFiles, err error) {
	m = &memoryFiles{map[string]*os.File{}, map[string]io.WriterAt{}, nil}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if len(made) != len(noted) {
		return nil, fmt.Errorf("the daemon has made %d files for memory, not %d", len(made), len(noted))
	}
	for n, f := range made {
		one := noted[n]
		if s := i.Stream(one.stream()); s == nil || uint64(s.Size) != one.Size || m.inherit[one.Key] != nil {
			return nil, fmt.Errorf("what it says of its program: it has no memory %s of %d bytes", one.stream(), one.Size)
		}
		file, _, err := openMemory(f, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		m.inherit[one.Key], m.to[one.stream()] = file, file
		if one.Disk {
			continue
		}
		// All of it is there already. Whoever writes to a file waits for others that do, but not who writes to memory.
		memory, err := unix.Mmap(int(file.Fd()), 0, int(one.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("map a file with memory of process %d: %w", one.Client, err)
		}
		m.mapped, m.to[one.stream()] = append(m.mapped, memory), memoryWriter(memory)
	}
	return m, nil
}

// memoryWriter is memory as a file that is written to.
type memoryWriter []byte

// WriteAt writes as much as there is room for.
func (m memoryWriter) WriteAt(b []byte, offset int64) (int, error) {
	if offset < 0 || offset > int64(len(m)) {
		return 0, io.ErrShortWrite
	}
	n := copy(m[offset:], b)
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// unmap ends the writing.
func (m *memoryFiles) unmap() {
	for _, memory := range m.mapped {
		_ = unix.Munmap(memory) // it is a whole mapping
	}
	m.mapped, m.to = nil, nil
}

// close closes the files. May be called with nil.
func (m *memoryFiles) close() {
	if m == nil {
		return
	}
	m.unmap()
	for _, f := range m.inherit {
		f.Close()
	}
}

// measure shows how many bytes of so many are done.
func measure(line *progress.Line, done, of int64, what string) {
	line.Measure(float64(done)/float64(max(of, 1)), size(done)+" of "+size(of), what)
}

// wantedFiles are files as the daemon is asked for them.
func wantedFiles(noted []memoryFile) (all []*api.MemoryFile) {
	for _, f := range noted {
		all = append(all, &api.MemoryFile{Client: f.Client, Device: f.Device, Disk: f.Disk, Size: f.Size})
	}
	return all
}
