package contain

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lgpu/lgpu/internal/contain/ldcache"
)

// kind is for which programs a library is.
type kind struct {
	class   elf.Class
	machine elf.Machine
}

// kindOf reads the kind of a library from the beginning of its file.
func kindOf(path string) (kind, error) { return search{open: os.Open}.kindOf(path) }

// kindOf reads the kind of a library from the beginning of its file.
func (s search) kindOf(path string) (kind, error) {
	f, err := s.open(path)
	if err != nil {
		return kind{}, fmt.Errorf("look at %s: %w", path, err)
	}
	defer f.Close()
	var head [20]byte // up to e_machine, which is at the same place in both classes
	if _, err := io.ReadFull(f, head[:]); err != nil || string(head[:4]) != elf.ELFMAG {
		return kind{}, fmt.Errorf("look at %s: it is no library", path)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	return kind{elf.Class(head[elf.EI_CLASS]), elf.Machine(order.Uint16(head[18:]))}, nil
}

// search finds libraries as the dynamic loader does.
type search struct {
	kind  kind
	path  []string // of LD_LIBRARY_PATH
	cache *ldcache.Cache
	open  func(path string) (*os.File, error) // os.Open, or that of an image
}

// defaultDirs is where the loader looks last, by its distribution.
var defaultDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// readCache reads the loader's cache.
func (s *search) readCache(path string) (*ldcache.Cache, error) {
	f, err := s.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, ldcache.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	cache, err := ldcache.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.cache = cache
	return cache, nil
}

// find returns all files that a program of the searched kind could get for a name, the one that it gets first in front,
// and whether it finds one without LD_LIBRARY_PATH. In that an empty or relative folder depends on where the program
// is, and cannot be known.
func (s *search) find(soname string) (paths []string, without bool) {
	usable := func(path string) bool {
		k, err := s.kindOf(path)
		return err == nil && k == s.kind
	}
	for _, dir := range s.path {
		if path := filepath.Join(dir, soname); filepath.IsAbs(dir) && usable(path) {
			paths = append(paths, path)
		}
	}
	before := len(paths)
	if s.cache != nil {
		for _, e := range s.cache.Lookup(soname) {
			if usable(e.Path) {
				paths = append(paths, e.Path)
			}
		}
	}
	for _, dir := range defaultDirs {
		if path := filepath.Join(dir, soname); usable(path) {
			paths = append(paths, path)
		}
	}
	return paths, len(paths) > before
}
