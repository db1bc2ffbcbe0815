package contain

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// stampSection is the place in liblgpu.so for what it reads instead of the environment (tenant/liblgpu/base/stamp.c).
const stampSection = ".lgpu_stamp"

// stamp returns a copy of the library in which the values are written: NAME=VALUE, each ended by a zero byte, and an
// empty one at the end.
func stamp(library []byte, values map[string]string) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return nil, fmt.Errorf("read the library: %w", err)
	}
	defer f.Close()
	s := f.Section(stampSection)
	if s == nil || s.Type != elf.SHT_PROGBITS {
		return nil, errors.New("the library has no place for a stamp; is it of this version?")
	}
	if s.Size == 0 || s.Offset > uint64(len(library)) || s.Size > uint64(len(library))-s.Offset {
		return nil, errors.New("the library's place for a stamp lies outside of it")
	}
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(values[name], "\x00") {
			return nil, fmt.Errorf("%q cannot be written into the library", name)
		}
		text = append(text, name+"="+values[name]+"\x00"...)
	}
	if uint64(len(text)) >= s.Size {
		return nil, fmt.Errorf("what programs need to find their lgpu has %d bytes, and there is room for %d", len(text), s.Size-1)
	}
	out := slices.Clone(library)
	place := out[s.Offset : s.Offset+s.Size]
	clear(place)
	copy(place, text)
	return out, nil
}
