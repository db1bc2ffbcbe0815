package driver

import (
	"hash/crc32"
)

// writePieces writes what a physical memory holds but zeros, and says how many pieces that were.
func (ph *physical) writePieces(w *imageWriter, number uint32) (pieces uint64, err error) {
	buf := make([]byte, pieceHead+pieceMost)
	for _, part := range ph.frames.Touched() {
		for off, end := part.Offset, part.Offset+part.Size; off < end; off += pieceMost {
			data := buf[pieceHead:][:min(pieceMost, end-off)]
			if err := ph.frames.Read(data, off); err != nil {
				return pieces, err
			}
			if zero(data) {
				continue
			}
			piece{number, crc32.Checksum(data, castagnoli), off, uint64(len(data))}.append(buf[:0])
			if err := w.write(buf[:pieceHead+len(data)]); err != nil {
				return pieces, err
			}
			pieces++
		}
	}
	return pieces, nil
}

// zero reports whether there is nothing but zeros.
func zero(b []byte) bool {
	for len(b) >= len(zeros) {
		if string(b[:len(zeros)]) != zeros {
			return false
		}
		b = b[len(zeros):]
	}
	return string(b) == zeros[:len(b)]
}

var zeros = string(make([]byte, 4096))
