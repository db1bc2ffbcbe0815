package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"os"
)

// Format of bbolt's files, version 2.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	branchPage = 0x01
	leafPage   = 0x02

	headerSize  = 16 // id, flags, count, overflow
	metaSize    = 64
	elementSize = 16
	bucketSize  = 16 // root page, sequence

	minPage, maxPage = 1 << 10, 1 << 24
)

// boltMeta is what a meta page says.
type boltMeta struct {
	pageSize   uint32
	root       uint64 // page of the root bucket
	pages      uint64 // number of pages, those beyond are not used
	generation uint64
}

// verifyFile reports whether every page that bbolt would follow from the newest meta page lies in the file, is what it
// should be, is used once and has its keys in order. bbolt ends the process over anything else. An error wraps
// ErrDamaged, or is of reading.
func verifyFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	v := &verifier{file: f, size: info.Size(), seen: map[uint64]bool{}}
	if err := v.findMeta(); err != nil {
		return err
	}
	return v.page(v.meta.root, keys{})
}

// keys bounds those of a page: from low, below high; nil is without bound.
type keys struct{ low, high []byte }

type verifier struct {
	file io.ReaderAt
	size int64
	meta boltMeta
	seen map[uint64]bool // pages
}

// read returns n bytes at an offset.
func (v *verifier) read(offset int64, n int) ([]byte, error) {
	if offset < 0 || offset+int64(n) > v.size {
		return nil, damaged("it ends at byte %d, before byte %d that is needed", v.size, offset+int64(n))
	}
	b := make([]byte, n)
	_, err := v.file.ReadAt(b, offset)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, damaged("it has become shorter")
	}
	return b, err
}

// findMeta takes the valid meta page with the highest generation, as bbolt does.
func (v *verifier) findMeta() error {
	var size uint32
	if m, ok := v.metaAt(0); ok {
		size = m.pageSize
	}
	for at := int64(minPage); size == 0 && at <= maxPage; at *= 2 { // the first page is damaged
		if m, ok := v.metaAt(at); ok {
			size = m.pageSize
		}
	}
	if size == 0 {
		return damaged("it has no valid header")
	}
	for _, at := range []int64{0, int64(size)} {
		if m, ok := v.metaAt(at); ok && m.pageSize == size && m.generation >= v.meta.generation {
			v.meta = m
		}
	}
	return nil
}

func (v *verifier) metaAt(offset int64) (boltMeta, bool) {
	b, err := v.read(offset, headerSize+metaSize)
	if err != nil {
		return boltMeta{}, false
	}
	b = b[headerSize:]
	e := binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	m := boltMeta{pageSize: e.Uint32(b[8:]), root: e.Uint64(b[16:]), pages: e.Uint64(b[40:]),
		generation: e.Uint64(b[48:])}
	ok := e.Uint32(b) == boltMagic && e.Uint32(b[4:]) == boltVersion && e.Uint64(b[56:]) == sum.Sum64() &&
		m.pageSize >= minPage && m.pageSize <= maxPage
	return m, ok
}

// page checks a page and what is below it.
func (v *verifier) page(id uint64, bounds keys) error {
	size := uint64(v.meta.pageSize)
	if id < 2 || id >= v.meta.pages || id > uint64(v.size)/size {
		return damaged("page %d is none of its %d", id, v.meta.pages)
	}
	head, err := v.read(int64(id*size), headerSize)
	if err != nil {
		return err
	}
	e := binary.NativeEndian
	overflow := uint64(e.Uint32(head[12:]))
	if e.Uint64(head) != id || overflow >= v.meta.pages-id {
		return damaged("page %d has a wrong header", id)
	}
	for i := range overflow + 1 {
		if v.seen[id+i] {
			return damaged("page %d is used twice", id+i)
		}
		v.seen[id+i] = true
	}
	b, err := v.read(int64(id*size), int((overflow+1)*size))
	if err != nil {
		return err
	}
	return v.content(id, b, bounds)
}

// content checks the bytes of a page, or of a bucket that lies within one.
func (v *verifier) content(id uint64, b []byte, bounds keys) error {
	e := binary.NativeEndian
	flags, count := e.Uint16(b[8:]), int(e.Uint16(b[10:]))
	if flags != branchPage && flags != leafPage || headerSize+count*elementSize > len(b) || flags == branchPage &&
		count == 0 {
		return damaged("page %d has flags %#x and %d elements", id, flags, count)
	}
	names := make([][]byte, count+1)
	names[count] = bounds.high
	for i := range count {
		at := headerSize + i*elementSize
		pos, size := e.Uint32(b[at:]), e.Uint32(b[at+4:])
		if flags == leafPage {
			pos, size = e.Uint32(b[at+4:]), e.Uint32(b[at+8:])
		}
		if !within(b, at, pos, size, 0) {
			return damaged("page %d: key %d lies outside", id, i)
		}
		names[i] = b[at+int(pos):][:size]
		if i > 0 && bytes.Compare(names[i-1], names[i]) >= 0 || bytes.Compare(bounds.low, names[i]) > 0 {
			return damaged("page %d: key %d is out of order", id, i)
		}
	}
	if count > 0 && bounds.high != nil && bytes.Compare(names[count-1], bounds.high) >= 0 {
		return damaged("page %d: its last key is out of order", id)
	}
	for i := range count {
		at := headerSize + i*elementSize
		if flags == branchPage {
			if err := v.page(e.Uint64(b[at+8:]), keys{names[i], names[i+1]}); err != nil {
				return err
			}
			continue
		}
		pos, keySize, valueSize := e.Uint32(b[at+4:]), e.Uint32(b[at+8:]), e.Uint32(b[at+12:])
		if !within(b, at, pos, keySize, valueSize) {
			return damaged("page %d: record %d lies outside", id, i)
		}
		if e.Uint32(b[at:])&1 != 0 {
			start := uint64(at) + uint64(pos) + uint64(keySize)
			if err := v.bucket(id, b[start:start+uint64(valueSize)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// within reports whether a key and a value that begin pos bytes behind an element at lie in the page.
func within(b []byte, at int, pos, key, value uint32) bool {
	return uint64(at)+uint64(pos)+uint64(key)+uint64(value) <= uint64(len(b)) && pos >= elementSize
}

// bucket checks a bucket by the record that names it.
func (v *verifier) bucket(id uint64, b []byte) error {
	if len(b) < bucketSize {
		return damaged("page %d: a bucket of %d bytes", id, len(b))
	}
	if root := binary.NativeEndian.Uint64(b); root != 0 {
		return v.page(root, keys{})
	}
	if len(b) < bucketSize+headerSize {
		return damaged("page %d: a bucket of %d bytes", id, len(b))
	}
	return v.content(id, b[bucketSize:], keys{})
}
