package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A chunk's file is a head and the contents as they are, or compressed by zstd. All numbers are little-endian.
//
//	0  "lgpuchnk"
//	8  u16 version, u16 how the contents are written
//	12 u32 bytes of the contents
//	16 u32 bytes behind the head
//	20 zeros
//	32 hash of the contents
const (
	chunkMagic   = "lgpuchnk"
	chunkVersion = 1
	headLength   = 64

	minChunk     = 4 << 10
	maxChunk     = 16 << 20 // as many are in memory as there are workers, whoever made the image
	defaultChunk = 4 << 20
)

// How the contents of a chunk are written.
const (
	plain      = 0
	compressed = 1
)

// head is the head of a chunk's file.
type head struct {
	how    uint16
	raw    int // bytes of the contents
	stored int // bytes behind the head
	hash   Hash
}

// put writes a head to the first headLength bytes of b.
func (h *head) put(b []byte) {
	clear(b[:headLength])
	copy(b, chunkMagic)
	binary.LittleEndian.PutUint16(b[8:], chunkVersion)
	binary.LittleEndian.PutUint16(b[10:], h.how)
	binary.LittleEndian.PutUint32(b[12:], uint32(h.raw))
	binary.LittleEndian.PutUint32(b[16:], uint32(h.stored))
	copy(b[32:], h.hash[:])
}

// parseHead reads the head of a file of that many bytes. What it returns is within bounds. An error is what is wrong with it.
func parseHead(b []byte, size int64) (head, error) {
	if len(b) < headLength || size < headLength {
		return head{}, fmt.Errorf("is cut: it has %d bytes", size)
	}
	h := head{
		how: binary.LittleEndian.Uint16(b[10:]), raw: int(binary.LittleEndian.Uint32(b[12:])),
		stored: int(binary.LittleEndian.Uint32(b[16:])), hash: Hash(b[32:headLength]),
	}
	version := binary.LittleEndian.Uint16(b[8:])
	switch {
	case string(b[:8]) != chunkMagic:
		return head{}, fmt.Errorf("is no chunk of lgpu")
	case version != chunkVersion:
		return head{}, fmt.Errorf("has version %d, where this lgpu has %d", version, chunkVersion)
	case h.raw < 1 || h.raw > maxChunk || h.stored < 1 || h.stored > h.raw ||
		h.how > compressed || h.how == plain && h.stored != h.raw || !zero(b[20:32]):
		return head{}, fmt.Errorf("has a head that makes no sense")
	case size < headLength+int64(h.stored):
		return head{}, fmt.Errorf("is cut: it has %d bytes of %d", size, headLength+h.stored)
	case size > headLength+int64(h.stored):
		return head{}, fmt.Errorf("is too long: it has %d bytes, and should have %d", size, headLength+h.stored)
	}
	return h, nil
}

// zeros is to compare with.
var zeros [4096]byte

// zero says whether all bytes are.
func zero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// Encoder and decoder are shared: their EncodeAll and DecodeAll may be called by many goroutines at once.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic(err) // of the options, which are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		// With its limit DecodeAll writes no more than there is room for, whatever the compressed data says.
		d, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(2*maxChunk))
		if err != nil {
			panic(err) // likewise
		}
		return d
	})
)

// Compression has to save a tenth: what saves less is not worth the time of reading it. A sample of a chunk says whether to
// try, as most memory of weights and activations cannot be compressed at all.
const (
	samples      = 16
	sampleLength = 4 << 10
)

// pays says whether that many bytes are few enough for what is compressed.
func pays(stored, raw int) bool { return stored <= raw-raw/10 }

// compress returns data compressed, in the room of to if that is enough; nil if it does not pay.
func compress(to, data []byte) []byte {
	if len(data) > 2*samples*sampleLength {
		sample := make([]byte, 0, samples*sampleLength)
		for i := range samples {
			at := len(data) / samples * i
			sample = append(sample, data[at:at+sampleLength]...)
		}
		if !pays(len(encoder().EncodeAll(sample, to[:0])), len(sample)) {
			return nil
		}
	}
	if small := encoder().EncodeAll(data, to[:0]); pays(len(small), len(data)) {
		return small
	}
	return nil
}

// pack writes the file of a chunk to a buffer, which has room for it, and returns how long it is.
func pack(to *buffer, data []byte, hash Hash) int {
	h := head{how: plain, raw: len(data), stored: len(data), hash: hash}
	room := to.bytes[headLength : headLength : headLength+len(data)]
	if small := compress(room, data); small != nil {
		h.how, h.stored = compressed, len(small)
		copy(to.bytes[headLength:], small) // it is there already, if it did not outgrow the room
	} else {
		copy(to.bytes[headLength:], data)
	}
	h.put(to.bytes)
	return headLength + h.stored
}

// unpack returns the contents of a chunk's file, in file itself or in spare, which must have room for them. Contents that
// do not have the hash are damage.
func unpack(file, spare []byte, hash Hash, length int64) ([]byte, error) {
	name := "chunk " + hash.short()
	h, err := parseHead(file, int64(len(file)))
	if err != nil {
		return nil, damaged(name, "%v", err)
	}
	if h.hash != hash {
		return nil, damaged(name, "is another chunk, %s", h.hash.short())
	}
	if int64(h.raw) != length {
		return nil, damaged(name, "has %d bytes of contents, and should have %d", h.raw, length)
	}
	data := file[headLength:]
	if h.how == compressed {
		data, err = decoder().DecodeAll(data, spare[:0:h.raw])
		if err != nil || len(data) != h.raw {
			return nil, damaged(name, "%s: they cannot be decompressed", flipped)
		}
	}
	if sum(data) != hash {
		return nil, damaged(name, flipped)
	}
	return data, nil
}
