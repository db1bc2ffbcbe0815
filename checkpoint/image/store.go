package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// store is the folder .lgpu-images beside images: chunks that they share, and images that are not complete.
//
// Nothing in it is locked against others but by one rule: who makes an image has the lock of its folder in new, and Collect
// takes only folders away whose lock is free. Chunks need none. Whoever uses a chunk has a link of its own, so that the
// store's can go at any time; and a chunk is in the store only once it is on the disk.
type store struct {
	root *os.Root
	path string
}

// openStore opens the store in a folder, and makes it where there is none if that is asked for. It must be the caller's
// own, for who may write to it may change images that are being made.
func openStore(dir string, mk bool) (*store, error) {
	path := filepath.Join(dir, storeName)
	if mk {
		if err := os.Mkdir(path, 0o700); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("make the folder %s first: %w", dir, err)
		} else if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if info, err := os.Lstat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s: it is no folder", path)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	s := &store{root, path}
	err = s.ours()
	for _, name := range []string{chunksName, newName} {
		if err == nil && mk {
			if err = root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

// ours says that what was opened belongs to this user alone.
func (s *store) ours() error {
	info, err := s.root.Stat(".")
	if err != nil {
		return err
	}
	if !owned(info) {
		return fmt.Errorf("%s: %w", s.path, ErrForeigner)
	}
	return nil
}

// owned says whether nobody but this user, or root, may write to a file or folder.
func owned(info fs.FileInfo) bool {
	st := status(info)
	return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0
}

// links is by how many names a file is known.
func links(info fs.FileInfo) uint64 { return uint64(status(info).Nlink) }

// allocated is how many bytes of the disk a file takes.
func allocated(info fs.FileInfo) int64 { return status(info).Blocks * 512 }

// status is what the kernel says of a file; nothing for an info that is not the kernel's.
func status(info fs.FileInfo) *syscall.Stat_t {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st
	}
	return &syscall.Stat_t{Mode: 0o777}
}

func (s *store) close() error { return s.root.Close() }

// chunkPath is where the store has a chunk.
func chunkPath(h Hash) string {
	text := h.String()
	return filepath.Join(chunksName, text[:2], text)
}

// begin makes the folder of a new image and takes its lock, which is held until the returned file is closed, or the process
// ends.
func (s *store) begin() (name string, lock *os.File, err error) {
	for {
		name = filepath.Join(newName, random())
		if err := s.root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return "", nil, err
		}
		lock, err := s.root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // Collect saw it before it was locked
		} else if err != nil {
			return "", nil, err
		}
		if err := flock(lock, unix.LOCK_EX); err != nil {
			return "", nil, errors.Join(err, lock.Close())
		}
		if _, err := s.root.Lstat(name); err == nil {
			return name, lock, nil
		}
		if err := lock.Close(); err != nil {
			return "", nil, err
		}
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Collected is what Collect took away.
type Collected struct {
	Images int   `json:"images"` // that were not complete, and whose writer is gone
	Chunks int   `json:"chunks"` // that no image has
	Bytes  int64 `json:"bytes"`  // of the disk, without those of Images
}

// Collect takes away from a folder of images what none of them needs. Others may write, read and remove images meanwhile:
// what is under way is left alone. It does nothing, and is no error, where there has never been an image.
func Collect(dir string) (c Collected, err error) {
	s, err := openStore(dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return c, err
		}
		return c, nil
	} else if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if c.Images, err = s.collectNew(); err != nil {
		return c, err
	}
	err = fs.WalkDir(s.root.FS(), chunksName, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return ignoreGone(err)
		}
		info, err := e.Info()
		if err != nil {
			return ignoreGone(err)
		}
		if !info.Mode().IsRegular() || links(info) > 1 {
			return nil
		}
		if err := s.root.Remove(path); err != nil {
			return ignoreGone(err)
		}
		c.Chunks++
		c.Bytes += allocated(info)
		return nil
	})
	return c, err
}

// collectNew takes away images that are not complete and whose lock is free.
func (s *store) collectNew() (n int, err error) {
	entries, err := fs.ReadDir(s.root.FS(), newName)
	if err != nil {
		return 0, ignoreGone(err)
	}
	for _, e := range entries {
		left, err := s.collectOne(filepath.Join(newName, e.Name()))
		if left {
			n++
		}
		if err := ignoreGone(err); err != nil {
			return n, err
		}
	}
	return n, nil
}

// collectOne says whether a writer had left something in a folder, which is gone now.
func (s *store) collectOne(name string) (left bool, err error) {
	f, err := s.root.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	// Its writer may have come to its end meanwhile, or may not have begun.
	entries, err := fs.ReadDir(s.root.FS(), name)
	if err != nil {
		return false, err
	}
	return len(entries) > 0, s.root.RemoveAll(name)
}

// ignoreGone is err, but for what another has taken away meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns the names of the images in a folder: of the folders that have a manifest.
func List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && Is(filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Is says whether a folder looks like an image: it has a manifest.
func Is(path string) bool {
	_, err := os.Lstat(filepath.Join(path, manifestName))
	return err == nil
}
