// Package fatbin finds the PTX in fat binaries, the containers in which nvcc and fatbinary embed a program's device
// code:
//
//	text, err := fatbin.PTX(image, 90) // for a device of compute capability 9.0
//
// A fat binary is a header and entries, each the code for one architecture as PTX or as an ELF file, plain or
// compressed:
//
//	header  magic u32, version u16 (1), size of the header u16, bytes after it u64
//	entry   kind u16, version u16 (0x101), size of the header u32, bytes after it u64,
//	        bytes of them that are compressed u32, u32, minor u16, major u16, architecture u32,
//	        name's offset u32 and length u32, flags u64, u64, bytes when decompressed u64
//
// all little-endian. NVIDIA documents only the wrapper around it (__fatBinC_Wrapper_t in fatbinary_section.h). The rest
// is public through tools that read it: n-eiling/cuda-fatbin-decompression and vosen/ZLUDA (cuda_types, dark_api) on
// GitHub, which agree on the fields and flags here. nvcc compresses with LZ4's block format, and since CUDA 12.8 with
// Zstandard.
//
// Images come from tenants: any image gives a text or an error, and uses no more than MaxText of memory.
package fatbin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Magic begins a fat binary.
const Magic = 0xba55ed50

// MaxText bounds the PTX of one entry, in bytes.
const MaxText = 64 << 20

// Kinds of entry, and their flags.
const (
	kindPTX = 1

	flagLZ4  = 1 << 13
	flagZstd = 1 << 15
)

// Sizes in bytes.
const (
	headerSize   = 16
	entrySize    = 64   // of an entry's header; newer ones have more
	maxEntries   = 4096 // nvcc makes one for each architecture
	lz4Expansion = 255  // what a byte of LZ4 becomes at most
)

// ErrFormat is wrapped by the errors about an image that is no fat binary.
var ErrFormat = errors.New("fatbin: not a fat binary")

// ErrNoPTX says that a fat binary has no PTX that a device can run.
var ErrNoPTX = errors.New("fatbin: no PTX for this device")

// entry is one piece of code.
type entry struct {
	kind         uint16
	arch         uint32
	flags        uint64
	compressed   uint32 // bytes of data that are compressed; 0 where the data is plain
	decompressed uint64
	data         []byte
}

// PTX returns the PTX of the newest architecture that is not newer than the device's (90 is compute capability 9.0).
// The error wraps ErrFormat, or is ErrNoPTX.
func PTX(image []byte, device int) ([]byte, error) {
	entries, err := parse(image)
	if err != nil {
		return nil, err
	}
	var best *entry
	for i := range entries {
		if e := &entries[i]; e.kind == kindPTX && e.arch <= uint32(device) && (best == nil || e.arch > best.arch) {
			best = e
		}
	}
	if best == nil {
		return nil, ErrNoPTX
	}
	return best.text()
}

// parse splits an image into its entries. Data behind the last one, which files may have, is not looked at.
func parse(image []byte) ([]entry, error) {
	if len(image) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, len(image))
	}
	head, size := uint64(binary.LittleEndian.Uint16(image[6:])), binary.LittleEndian.Uint64(image[8:])
	if m, v := binary.LittleEndian.Uint32(image), binary.LittleEndian.Uint16(image[4:]); m != Magic || v != 1 {
		return nil, fmt.Errorf("%w: magic %#x, version %d", ErrFormat, m, v)
	}
	if n := uint64(len(image)); head < headerSize || head > n || size > n-head {
		return nil, fmt.Errorf("%w: %d and %d bytes of %d", ErrFormat, head, size, n)
	}
	rest := image[head : head+size]
	var entries []entry
	for len(rest) >= entrySize {
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("%w: more than %d entries", ErrFormat, maxEntries)
		}
		head, size := uint64(binary.LittleEndian.Uint32(rest[4:])), binary.LittleEndian.Uint64(rest[8:])
		if n := uint64(len(rest)); head < entrySize || head > n || size > n-head {
			return nil, fmt.Errorf("%w: entry %d has %d and %d bytes of %d", ErrFormat, len(entries), head, size, n)
		}
		entries = append(entries, entry{
			kind: binary.LittleEndian.Uint16(rest), compressed: binary.LittleEndian.Uint32(rest[16:]),
			arch: binary.LittleEndian.Uint32(rest[28:]), flags: binary.LittleEndian.Uint64(rest[40:]),
			decompressed: binary.LittleEndian.Uint64(rest[56:]), data: rest[head : head+size],
		})
		rest = rest[head+size:]
	}
	return entries, nil
}

// text is the entry's PTX without the zeros that fill it up.
func (e *entry) text() ([]byte, error) {
	data := e.data
	if e.flags&(flagLZ4|flagZstd) != 0 {
		if uint64(e.compressed) > uint64(len(data)) || e.decompressed > MaxText {
			return nil, fmt.Errorf("%w: %d of %d bytes are compressed, %d decompressed",
				ErrFormat, e.compressed, len(data), e.decompressed)
		}
		var err error
		if data, err = e.decompress(data[:e.compressed]); err != nil {
			return nil, fmt.Errorf("%w: decompress: %w", ErrFormat, err)
		}
	}
	if len(data) > MaxText {
		return nil, fmt.Errorf("%w: %d bytes of PTX", ErrFormat, len(data))
	}
	return bytes.TrimRight(data, "\x00"), nil
}

func (e *entry) decompress(data []byte) ([]byte, error) {
	size := int(e.decompressed)
	if e.flags&flagZstd != 0 {
		r, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxText))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		out, err := io.ReadAll(io.LimitReader(r, int64(size)+1))
		if err == nil && len(out) != size {
			err = fmt.Errorf("not the %d bytes that the entry has", size)
		}
		return out, err
	}
	if size > lz4Expansion*(len(data)+1) {
		return nil, fmt.Errorf("%d bytes cannot become %d", len(data), size)
	}
	out := make([]byte, size)
	n, err := lz4.UncompressBlock(data, out)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes, not %d", n, size)
	}
	return out[:max(n, 0)], err
}
