package contain

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/contain/ldcache"
)

// Image is the root of a container that is about to start: what it was built from, and what the runtime has mounted.
// Nothing in it is trusted: paths are followed inside of it alone.
type Image struct {
	root *os.File
	kind kind
}

// OpenImage opens the root of a container in which the daemon's folders are mounted.
func OpenImage(path string) (*Image, error) {
	root, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root: %w", err)
	}
	i := &Image{root: root}
	if i.kind, err = (search{open: i.open}).kindOf(filepath.Join(LibraryDir, sonames[0])); err != nil {
		root.Close()
		return nil, fmt.Errorf("the container lacks what the specification of its lgpu mounts: %w", err)
	}
	return i, nil
}

// Close lets go of the image.
func (i *Image) Close() error { return i.root.Close() }

// open opens a file of the image for reading. A device or a pipe, which opening may wait for, is refused.
func (i *Image) open(path string) (*os.File, error) {
	place, err := i.at(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	if info, err := place.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s of the image is no file: %w", path, errors.Join(err, fs.ErrInvalid))
	}
	return os.Open(descriptor(place))
}

// at opens a path of the image.
func (i *Image) at(path string, flags, mode uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(i.root.Fd()), path, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open in the image", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// descriptor is a path of an open file that does not lead through the image again.
func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// Furnish puts the interposer into the place of the driver's libraries in a container, whose program has an environment.
// An error says why its programs could not use a GPU: then the container is not to start. It is called in the container's
// mount namespace, before its root is this process's.
func (i *Image) Furnish(env []string) error {
	s := search{kind: i.kind, open: i.open, path: filepath.SplitList(value(env, "LD_LIBRARY_PATH"))}
	cache, err := s.readCache(cachePath)
	if errors.Is(err, fs.ErrNotExist) {
		cache, err = ldcache.Empty(), nil
		s.cache = cache
	}
	if err != nil {
		return fmt.Errorf("the image's list of libraries: %w", err)
	}
	if err := i.checkLibc(s); err != nil {
		return err
	}
	if err := i.cover(s); err != nil {
		return err
	}
	return i.list(cache)
}

// compatible are folders with another libcuda.so.1 in CUDA's images, which programs come to by LD_LIBRARY_PATH.
var compatible = []string{"/usr/local/cuda/compat", "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"}

// cover mounts the interposer over all of the image's own copies of the driver's libraries.
func (i *Image) cover(s search) error {
	s.path = append(s.path, compatible...)
	var done []fs.FileInfo
	for _, soname := range sonames {
		found, _ := s.find(soname)
		for _, path := range found {
			if strings.HasPrefix(path, LibraryDir+"/") {
				continue
			}
			place, err := i.at(path, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			info, err := place.Stat()
			same := func(other fs.FileInfo) bool { return os.SameFile(info, other) }
			if err == nil && !slices.ContainsFunc(done, same) {
				err = i.bind(filepath.Join(LibraryDir, soname), place)
				done = append(done, info)
			}
			place.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// bind mounts a file of the image over another.
func (i *Image) bind(path string, over *os.File) error {
	file, err := i.at(path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Mount(descriptor(file), descriptor(over), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s over %s of the image: %w", path, over.Name(), err)
	}
	return nil
}

// list gives the image a list of libraries that has the interposer and the driver's libraries.
func (i *Image) list(cache *ldcache.Cache) error {
	flags, err := i.flags(cache)
	if err != nil {
		return err
	}
	driver, err := i.at(DriverDir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	names, err := driver.Readdirnames(-1)
	driver.Close()
	if err != nil {
		return fmt.Errorf("list the driver's libraries: %w", err)
	}
	added := []ldcache.Entry{{Name: "libcuda.so", Path: filepath.Join(LibraryDir, sonames[0]), Flags: flags}}
	for _, name := range names {
		dir := DriverDir
		if slices.Contains(sonames, name) {
			dir = LibraryDir
		}
		added = append(added, ldcache.Entry{Name: name, Path: filepath.Join(dir, name), Flags: flags})
	}
	data, err := cache.With(added...)
	if err != nil {
		return fmt.Errorf("add to the image's list of libraries: %w", err)
	}
	path := filepath.Join(CacheDir, filepath.Base(cachePath))
	file, err := i.at(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write the container's list of libraries: %w", err)
	}
	place, err := i.at(cachePath, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) { // an empty file to mount on, as runtimes make them
		place, err = i.at(cachePath, unix.O_WRONLY|unix.O_CREAT, 0o644)
	}
	if err != nil {
		return fmt.Errorf("the image has no list of libraries, and gets none: %w", err)
	}
	defer place.Close()
	return i.bind(path, place)
}

// flags are those of the image's libraries of the searched kind.
func (i *Image) flags(cache *ldcache.Cache) (uint32, error) {
	s := search{open: i.open}
	for _, e := range cache.Lookup("libc.so.6") {
		if k, err := s.kindOf(e.Path); err == nil && k == i.kind {
			return e.Flags, nil
		}
	}
	// glibc's sysdeps/generic/ldconfig.h: FLAG_ELF_LIBC6, with the machine's own flag.
	switch i.kind.machine {
	case elf.EM_X86_64:
		return 0x0303, nil
	case elf.EM_AARCH64:
		return 0x0a03, nil
	}
	return 0, fmt.Errorf("libraries of %s: %w", i.kind.machine, errors.ErrUnsupported)
}
