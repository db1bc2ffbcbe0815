// Package ldcache reads /etc/ld.so.cache, the dynamic loader's list of libraries, and adds libraries to a copy of it.
//
// The format is that of glibc ("glibc-ld.so.cache1.1"; glibc's sysdeps/generic/dl-cache.h describes it): a header, the
// entries in falling order of their names, strings, and an extension that names hardware capabilities. An older format
// ("ld.so-1.7.0") may come first in the same file; it is skipped. Only caches of little-endian machines are understood.
package ldcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Sizes and places in the file.
const (
	oldMagic      = "ld.so-1.7.0"
	oldHeader     = 16
	oldEntry      = 12
	magic         = "glibc-ld.so.cache1.1"
	headerBytes   = 48
	entryBytes    = 24
	countAt       = 20
	flagsAt       = 28
	littleEndian  = 2
	extensionAt   = 32
	extensionMark = 0xeaa42174
	sectionBytes  = 16
	hwcapsTag     = 1 // a section of offsets of strings
	maxEntries    = 1 << 20
)

// MaxBytes is the largest file that is understood.
const MaxBytes = 64 << 20

// Entry is a library that the loader finds.
type Entry struct {
	Name string // what programs ask for, such as libcuda.so.1
	Path string
	// Flags say for which kind of program it is: word size and version of libc.
	Flags uint32

	osVersion uint32
	hwcap     uint64
}

// Cache is the contents of a cache.
type Cache struct {
	entries []Entry
	rest    []byte // what follows the entries: strings, then the extension
	refs    []ref  // of entries
	header  [headerBytes]byte
}

// ref is where the strings of an entry begin, counted from the beginning of the cache.
type ref struct{ name, path uint32 }

// Parse reads a cache. An error says what cannot be understood.
func Parse(data []byte) (*Cache, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("the cache has %d bytes, at most %d are read", len(data), MaxBytes)
	}
	if bytes.HasPrefix(data, []byte(oldMagic)) {
		if len(data) < oldHeader {
			return nil, errors.New("the cache ends in its header")
		}
		end := uint64(oldHeader) + uint64(binary.LittleEndian.Uint32(data[12:]))*oldEntry
		end = (end + 7) &^ 7 // the newer cache begins at a multiple of its alignment
		if end > uint64(len(data)) {
			return nil, errors.New("the cache ends in its entries")
		}
		data = data[end:]
	}
	if len(data) < headerBytes || !bytes.HasPrefix(data, []byte(magic)) {
		return nil, errors.New("the cache has no part of the format 1.1")
	}
	count := binary.LittleEndian.Uint32(data[countAt:])
	if count > maxEntries || headerBytes+uint64(count)*entryBytes > uint64(len(data)) {
		return nil, fmt.Errorf("the cache has %d bytes, too few for %d entries", len(data), count)
	}
	c := &Cache{rest: data[headerBytes+int(count)*entryBytes:]}
	copy(c.header[:], data)
	for i := range int(count) {
		at := data[headerBytes+i*entryBytes:]
		r := ref{binary.LittleEndian.Uint32(at[4:]), binary.LittleEndian.Uint32(at[8:])}
		name, ok := text(data, r.name)
		path, also := text(data, r.path)
		if !ok || !also {
			return nil, fmt.Errorf("entry %d of the cache has no text", i)
		}
		c.entries = append(c.entries, Entry{
			Name: name, Path: path, Flags: binary.LittleEndian.Uint32(at),
			osVersion: binary.LittleEndian.Uint32(at[12:]), hwcap: binary.LittleEndian.Uint64(at[16:]),
		})
		c.refs = append(c.refs, r)
	}
	return c, nil
}

// Empty returns a cache without a library, for a machine that has none.
func Empty() *Cache {
	c := &Cache{}
	copy(c.header[:], magic)
	c.header[flagsAt] = littleEndian
	return c
}

// text returns the string at an offset, which ends with a zero byte.
func text(data []byte, at uint32) (string, bool) {
	if uint64(at) >= uint64(len(data)) {
		return "", false
	}
	end := bytes.IndexByte(data[at:min(len(data), int(at)+4097)], 0)
	if end < 0 {
		return "", false
	}
	return string(data[at : int(at)+end]), true
}

// Lookup returns the entries with a name, those that the loader prefers first.
func (c *Cache) Lookup(name string) []Entry {
	var found []Entry
	for _, e := range c.entries {
		if e.Name == name {
			found = append(found, e)
		}
	}
	return found
}

// With returns a cache in which the loader finds added before whatever has the same name.
func (c *Cache) With(added ...Entry) ([]byte, error) {
	shift := uint32(len(added)) * entryBytes
	rest, err := c.shifted(shift)
	if err != nil {
		return nil, err
	}
	size := headerBytes + (len(c.entries)+len(added))*entryBytes + len(rest)
	for _, a := range added {
		size += len(a.Name) + len(a.Path) + 2
	}
	if size > MaxBytes {
		return nil, fmt.Errorf("the cache would have %d bytes, at most %d", size, MaxBytes)
	}
	entries, refs := slices.Clone(c.entries), slices.Clone(c.refs)
	for i := range refs {
		refs[i].name += shift
		refs[i].path += shift
	}
	end := headerBytes + (len(entries)+len(added))*entryBytes
	for _, a := range added {
		r := ref{name: uint32(end + len(rest))}
		rest = append(append(rest, a.Name...), 0)
		r.path = uint32(end + len(rest))
		rest = append(append(rest, a.Path...), 0)
		at := slices.IndexFunc(entries, func(e Entry) bool { return compare(e.Name, a.Name) <= 0 })
		if at < 0 {
			at = len(entries)
		}
		entries, refs = slices.Insert(entries, at, a), slices.Insert(refs, at, r)
	}
	out := make([]byte, 0, size)
	header := c.header
	binary.LittleEndian.PutUint32(header[countAt:], uint32(len(entries)))
	if at := binary.LittleEndian.Uint32(header[extensionAt:]); at != 0 {
		binary.LittleEndian.PutUint32(header[extensionAt:], at+shift)
	}
	out = append(out, header[:]...)
	for i, e := range entries {
		for _, v := range []uint32{e.Flags, refs[i].name, refs[i].path, e.osVersion} {
			out = binary.LittleEndian.AppendUint32(out, v)
		}
		out = binary.LittleEndian.AppendUint64(out, e.hwcap)
	}
	return append(out, rest...), nil
}

// shifted returns what follows the entries, with the offsets in its extension raised.
func (c *Cache) shifted(shift uint32) ([]byte, error) {
	rest, start := slices.Clone(c.rest), uint64(headerBytes+len(c.entries)*entryBytes)
	// place returns the bytes of the file from an offset to an end, or nil.
	place := func(at, n uint64) []byte {
		if at < start || at+n > start+uint64(len(rest)) || at > math.MaxUint32 {
			return nil
		}
		return rest[at-start : at-start+n]
	}
	at := uint64(binary.LittleEndian.Uint32(c.header[extensionAt:]))
	if at == 0 {
		return rest, nil
	}
	head := place(at, 8)
	if head == nil || binary.LittleEndian.Uint32(head) != extensionMark {
		return nil, errors.New("the cache's extension is not understood")
	}
	count := binary.LittleEndian.Uint32(head[4:])
	if count > 64 {
		return nil, fmt.Errorf("the cache's extension has %d sections", count)
	}
	for i := range uint64(count) {
		section := place(at+8+i*sectionBytes, sectionBytes)
		if section == nil {
			return nil, errors.New("the cache ends in its extension")
		}
		offset, bytes := binary.LittleEndian.Uint32(section[8:]), binary.LittleEndian.Uint32(section[12:])
		content := place(uint64(offset), uint64(bytes))
		if content == nil {
			return nil, errors.New("a section of the cache's extension lies outside of it")
		}
		if binary.LittleEndian.Uint32(section) == hwcapsTag {
			for ; len(content) >= 4; content = content[4:] {
				binary.LittleEndian.PutUint32(content, binary.LittleEndian.Uint32(content)+shift)
			}
		}
		binary.LittleEndian.PutUint32(section[8:], offset+shift)
	}
	return rest, nil
}

// compare orders names as the loader does, which searches for them by halves: digits by the number that they are.
func compare(a, b string) int {
	digit := func(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }
	number := func(s *string) (n int32) {
		for digit(*s) {
			n, *s = n*10+int32((*s)[0]-'0'), (*s)[1:]
		}
		return n
	}
	for a != "" {
		switch {
		case digit(a) && digit(b):
			if x, y := number(&a), number(&b); x != y {
				return int(x) - int(y)
			}
		case digit(a):
			return 1
		case digit(b):
			return -1
		case b == "" || a[0] != b[0]:
			if b == "" {
				return 1
			}
			return int(a[0]) - int(b[0])
		default:
			a, b = a[1:], b[1:]
		}
	}
	return -len(b)
}
