package contain

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// stampSection is the place in liblgpu.so for what it reads instead of the environment (tenant/liblgpu/base/stamp.c).
const stampSection = ".lgpu_stamp"

// maxStamp bounds the size of the place in bytes; it has 8 KiB.
const maxStamp = 1 << 20

// stamp returns a copy of the library in which the values are written.
func stamp(library []byte, values map[string]string) ([]byte, error) {
	at, text, err := stampFor(bytes.NewReader(library), int64(len(library)), values)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(library)
	copy(out[at:], text)
	return out, nil
}

// Contents reads what is in a file, but for the stamp of an interposer: it is the same for all stamped copies.
func Contents(f *os.File) (io.Reader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	at, blank, err := stampFor(f, size, nil)
	if err != nil { // it is something else
		return io.NewSectionReader(f, 0, size), nil
	}
	end := at + int64(len(blank))
	return io.MultiReader(io.NewSectionReader(f, 0, at), bytes.NewReader(blank), io.NewSectionReader(f, end, size-end)), nil
}

// stampFor returns what a library of size bytes gets in its place for a stamp, and where that is: NAME=VALUE, each ended by
// a zero byte, and zero bytes to the end.
func stampFor(library io.ReaderAt, size int64, values map[string]string) (at int64, text []byte, err error) {
	f, err := elf.NewFile(library)
	if err != nil {
		return 0, nil, fmt.Errorf("read the library: %w", err)
	}
	defer f.Close()
	s := f.Section(stampSection)
	if s == nil || s.Type != elf.SHT_PROGBITS {
		return 0, nil, errors.New("the library has no place for a stamp; is it of this version?")
	}
	if s.Size == 0 || s.Size > maxStamp || s.Offset > uint64(size) || s.Size > uint64(size)-s.Offset {
		return 0, nil, errors.New("the library's place for a stamp lies outside of it")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(values[name], "\x00") {
			return 0, nil, fmt.Errorf("%q cannot be written into the library", name)
		}
		text = append(text, name+"="+values[name]+"\x00"...)
	}
	if uint64(len(text)) >= s.Size {
		return 0, nil, fmt.Errorf("what programs need to find their lgpu has %d bytes, and there is room for %d", len(text), s.Size-1)
	}
	return int64(s.Offset), append(text, make([]byte, s.Size-uint64(len(text)))...), nil
}
