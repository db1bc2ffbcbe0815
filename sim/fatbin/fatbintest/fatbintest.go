// Package fatbintest writes fat binaries for tests, in the layout that package fatbin describes.
package fatbintest

import (
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Kinds of entry.
const (
	PTX = 1
	ELF = 2
)

// Compression is how the data of entries is compressed.
type Compression int

// The compressions, as nvcc has had them.
const (
	None Compression = iota
	LZ4
	Zstd
)

// Entry is the code for one architecture.
type Entry struct {
	Kind uint16
	Arch uint32
	Data []byte
}

// Image makes a fat binary of entries.
func Image(t testing.TB, how Compression, entries ...Entry) []byte {
	t.Helper()
	var body []byte
	for _, e := range entries {
		data, flags := e.Data, uint64(0x11) // for a 64-bit Linux program
		switch how {
		case LZ4:
			out := make([]byte, lz4.CompressBlockBound(len(data)))
			n, err := lz4.CompressBlock(data, out, nil)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 { // else it does not compress
				data, flags = out[:n], flags|1<<13
			}
		case Zstd:
			w, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			data, flags = w.EncodeAll(data, nil), flags|1<<15
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		padded := (len(data) + 8) &^ 7 // text ends with a zero
		head := make([]byte, 64, 64+padded)
		binary.LittleEndian.PutUint16(head, e.Kind)
		binary.LittleEndian.PutUint16(head[2:], 0x101)
		binary.LittleEndian.PutUint32(head[4:], 64)
		binary.LittleEndian.PutUint64(head[8:], uint64(padded))
		if flags>>13 != 0 {
			binary.LittleEndian.PutUint32(head[16:], uint32(len(data)))
			binary.LittleEndian.PutUint64(head[56:], uint64(len(e.Data)))
		}
		binary.LittleEndian.PutUint32(head[28:], e.Arch)
		binary.LittleEndian.PutUint64(head[40:], flags)
		body = append(body, append(append(head, data...), make([]byte, padded-len(data))...)...)
	}
	image := binary.LittleEndian.AppendUint32(nil, 0xba55ed50)
	image = binary.LittleEndian.AppendUint16(image, 1)
	image = binary.LittleEndian.AppendUint16(image, 16)
	image = binary.LittleEndian.AppendUint64(image, uint64(len(body)))
	return append(image, body...)
}
