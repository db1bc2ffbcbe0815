package mlx5

import (
	"encoding/binary"
	"fmt"
)

// FormatError says why bytes are no work request that a queue can execute. All of them complete with
// SyndromeLocalQueue.
type FormatError string

func (e FormatError) Error() string { return "mlx5: " + string(e) }

// Errors of Entry.Parse and Entry.Append.
const (
	ErrRing     = FormatError("the ring is not a power of two of 64-byte blocks")
	ErrSegments = FormatError("the count of segments does not fit the operation")
	ErrOpcode   = FormatError("an opcode that is not executed")
	ErrModifier = FormatError("an operation modifier that the opcode does not have")
	ErrInline   = FormatError("an inline segment where there can be none, or longer than the entry")
	ErrReserved = FormatError("reserved bytes are not zero")
	ErrPadding  = FormatError("the bytes after an inline payload are not zero")
	ErrRange    = FormatError("a value that its field cannot hold")
)

// Strictness is what Parse refuses beyond what hardware does. A real writer leaves garbage where hardware does not
// look, so it is for checking our own writers.
type Strictness uint8

const (
	StrictReserved Strictness = 1 << iota // reserved fields, the signature and the stream are zero
	StrictPadding                         // so are the bytes between an inline payload and the next segment
)

// MaxData is the most data segments of an entry, those of a SEND.
const MaxData = MaxSegments - 1

// Data is a data segment: a range of local memory.
type Data struct {
	Bytes   uint32 // 0 stands for 2^31
	Key     uint32
	Address uint64
}

// Length is the number of bytes of the range.
func (d Data) Length() uint64 {
	if d.Bytes == 0 {
		return 1 << 31
	}
	return uint64(d.Bytes)
}

// Entry is a work request. It is used again and again: Parse overwrites everything, and slices that it sets point into
// the entry itself. An entry is not for concurrent use, and not for copying.
type Entry struct {
	Opcode    uint8
	Modifier  uint8  // of the opcode; 8 and 9 are those of masked atomics on 4 and 8 bytes
	Index     uint16 // of its first block
	Queue     uint32 // 24 bits
	Segments  int    // of 16 bytes, the control segment included
	Signature uint8
	Stream    uint16
	Flags     uint8 // Ctrl* and Fence*
	Immediate uint32

	RemoteAddress uint64 // of writes, reads and atomics
	RemoteKey     uint32

	HasInline bool
	Inline    []byte // payload in the entry
	Data      []Data // or its ranges of memory; what reads and atomics return goes there

	Atomic Atomic

	WaitIndex uint32 // WAIT: goes on when that completion queue had so many completions
	WaitQueue uint32 // number of the completion queue

	raw  [MaxSegments*SegmentBytes + SegmentBytes]byte
	data [MaxData]Data
}

// Blocks is the number of basic blocks that an entry of so many segments takes.
func Blocks(segments int) int {
	return (segments + BlockBytes/SegmentBytes - 1) / (BlockBytes / SegmentBytes)
}

// Blocks is the number of basic blocks the entry takes.
func (e *Entry) Blocks() int { return Blocks(e.Segments) }

// IsAtomic says whether the operation is one of the four atomic ones.
func (e *Entry) IsAtomic() bool {
	return e.Opcode == OpCompareSwap || e.Opcode == OpFetchAdd || e.Opcode == OpMaskedSwap || e.Opcode == OpMaskedAdd
}

// WaitsForReads says whether the entry may begin only when all earlier reads and atomics are complete.
func (e *Entry) WaitsForReads() bool {
	fence := e.Flags & 0xe0
	return fence == FenceReads || fence == FenceStrong || fence == FenceAll
}

// Parse reads the entry that begins at block index (modulo the size of the ring). It reads every byte of the ring once,
// so a writer that does not keep to the rules changes what it finds, not whether it is sound. After an error the
// control segment's fields are set, and Segments, if it is not 0, says where the next entry would begin. Neither the
// index nor the queue number are compared with anything.
func (e *Entry) Parse(ring []byte, index uint64, strict Strictness) error {
	n := len(ring)
	if n < BlockBytes || n&(n-1) != 0 {
		e.Segments = 0
		return ErrRing
	}
	at := int(index&uint64(n/BlockBytes-1)) * BlockBytes
	copy(e.raw[:BlockBytes], ring[at:at+BlockBytes])
	b := e.raw[:]
	head := binary.BigEndian.Uint32(b)
	e.Opcode, e.Index, e.Modifier = uint8(head), uint16(head>>8), uint8(head>>24)
	tail := binary.BigEndian.Uint32(b[4:])
	e.Queue, e.Segments = tail>>8, int(tail&MaxSegments)
	e.Signature, e.Stream, e.Flags = b[8], binary.BigEndian.Uint16(b[9:]), b[11]
	e.Immediate = binary.BigEndian.Uint32(b[12:])
	e.RemoteAddress, e.RemoteKey = 0, 0
	e.HasInline, e.Inline, e.Data = false, nil, e.data[:0]
	e.Atomic = Atomic{}
	e.WaitIndex, e.WaitQueue = 0, 0
	if e.Segments == 0 || e.Blocks()*BlockBytes > n {
		e.Segments = 0
		return ErrSegments
	}
	for i := 1; i < e.Blocks(); i++ {
		at := (at + i*BlockBytes) & (n - 1)
		copy(e.raw[i*BlockBytes:], ring[at:at+BlockBytes])
	}
	if strict&StrictReserved != 0 && (e.Signature != 0 || e.Stream != 0 || tail&0xc0 != 0) {
		return ErrReserved
	}
	return e.parse(e.raw[SegmentBytes:e.Segments*SegmentBytes], strict)
}

// parse reads what follows the control segment.
func (e *Entry) parse(b []byte, strict Strictness) error {
	switch e.Opcode {
	case OpNOP:
		if strict&StrictReserved != 0 && len(b) != 0 {
			return ErrSegments
		}
		return e.unmodified()
	case OpWait:
		if len(b) != SegmentBytes {
			return ErrSegments
		}
		if strict&StrictReserved != 0 && binary.BigEndian.Uint64(b) != 0 {
			return ErrReserved
		}
		e.WaitIndex, e.WaitQueue = binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
		return nil
	case OpDump:
		if err := e.payload(b, strict); err != nil {
			return err
		}
		if e.HasInline || len(e.Data) != 1 {
			return ErrSegments
		}
		return e.unmodified()
	case OpSend, OpSendImm:
		if err := e.payload(b, strict); err != nil {
			return err
		}
		return e.unmodified()
	case OpWrite, OpWriteImm, OpRead, OpCompareSwap, OpFetchAdd, OpMaskedSwap, OpMaskedAdd:
		return e.parseRemote(b, strict)
	}
	return ErrOpcode
}

// parseRemote reads what follows the control segment of an entry that names remote memory.
func (e *Entry) parseRemote(b []byte, strict Strictness) error {
	if len(b) < SegmentBytes {
		return ErrSegments
	}
	e.RemoteAddress, e.RemoteKey = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	if strict&StrictReserved != 0 && binary.BigEndian.Uint32(b[12:]) != 0 {
		return ErrReserved
	}
	b = b[SegmentBytes:]
	if !e.IsAtomic() {
		if err := e.payload(b, strict); err != nil {
			return err
		}
		if e.HasInline && e.Opcode == OpRead {
			return ErrInline
		}
		return e.unmodified()
	}
	used, err := e.Atomic.parse(b, e.Opcode, e.Modifier, strict)
	if err != nil {
		return err
	}
	if err := e.payload(b[used:], strict); err != nil {
		return err
	}
	if e.HasInline {
		return ErrInline
	}
	if len(e.Data) != 1 {
		return ErrSegments
	}
	return nil
}

func (e *Entry) unmodified() error {
	if e.Modifier != 0 {
		return ErrModifier
	}
	return nil
}

// payload reads data segments, or one inline segment.
func (e *Entry) payload(b []byte, strict Strictness) error {
	if len(b) == 0 {
		return nil
	}
	if n := binary.BigEndian.Uint32(b); n&InlineFlag != 0 {
		n &^= InlineFlag
		if uint64(n)+4 > uint64(len(b)) || (int(n)+4+SegmentBytes-1)/SegmentBytes*SegmentBytes != len(b) {
			return ErrInline
		}
		e.HasInline, e.Inline = true, b[4:4+n]
		if strict&StrictPadding != 0 {
			for _, pad := range b[4+n:] {
				if pad != 0 {
					return ErrPadding
				}
			}
		}
		return nil
	}
	for ; len(b) > 0; b = b[SegmentBytes:] {
		d := Data{Bytes: binary.BigEndian.Uint32(b), Key: binary.BigEndian.Uint32(b[4:]), Address: binary.BigEndian.Uint64(b[8:])}
		if d.Bytes&InlineFlag != 0 {
			return ErrInline
		}
		e.Data = append(e.Data, d)
	}
	return nil
}

// Append appends the entry's segments to dst and sets Segments. Its control segment has Index and Queue as they are.
// What it appends, and nothing but that, is what Parse reads as the same entry.
func (e *Entry) Append(dst []byte) ([]byte, error) {
	start := len(dst)
	if e.Queue >= 1<<24 {
		return dst, fmt.Errorf("%w: queue number %#x", ErrRange, e.Queue)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(e.Modifier)<<24|uint32(e.Index)<<8|uint32(e.Opcode))
	dst = binary.BigEndian.AppendUint32(dst, 0) // below
	dst = append(dst, e.Signature, byte(e.Stream>>8), byte(e.Stream), e.Flags)
	dst = binary.BigEndian.AppendUint32(dst, e.Immediate)
	switch e.Opcode {
	case OpNOP:
	case OpWait:
		dst = binary.BigEndian.AppendUint64(dst, 0)
		dst = binary.BigEndian.AppendUint32(dst, e.WaitIndex)
		dst = binary.BigEndian.AppendUint32(dst, e.WaitQueue)
	case OpDump, OpSend, OpSendImm:
	case OpWrite, OpWriteImm, OpRead, OpCompareSwap, OpFetchAdd, OpMaskedSwap, OpMaskedAdd:
		dst = binary.BigEndian.AppendUint64(dst, e.RemoteAddress)
		dst = binary.BigEndian.AppendUint32(dst, e.RemoteKey)
		dst = binary.BigEndian.AppendUint32(dst, 0)
		if e.IsAtomic() {
			var err error
			if dst, err = e.Atomic.append(dst, e.Opcode, e.Modifier); err != nil {
				return dst[:start], err
			}
		}
	default:
		return dst[:start], fmt.Errorf("%w: %#x", ErrOpcode, e.Opcode)
	}
	if e.Opcode != OpNOP && e.Opcode != OpWait {
		if e.HasInline {
			dst = binary.BigEndian.AppendUint32(dst, uint32(len(e.Inline))|InlineFlag)
			dst = append(dst, e.Inline...)
			for (len(dst)-start)%SegmentBytes != 0 {
				dst = append(dst, 0)
			}
		} else {
			for _, d := range e.Data {
				if d.Bytes&InlineFlag != 0 {
					return dst[:start], fmt.Errorf("%w: %d bytes in a data segment", ErrRange, d.Bytes)
				}
				dst = binary.BigEndian.AppendUint32(dst, d.Bytes)
				dst = binary.BigEndian.AppendUint32(dst, d.Key)
				dst = binary.BigEndian.AppendUint64(dst, d.Address)
			}
		}
	}
	segments := (len(dst) - start) / SegmentBytes
	if segments > MaxSegments {
		return dst[:start], fmt.Errorf("%w: %d", ErrSegments, segments)
	}
	e.Segments = segments
	binary.BigEndian.PutUint32(dst[start+4:], e.Queue<<8|uint32(segments))
	return dst, nil
}

// Put writes the entry at block index of the ring, as a driver does, and returns the index of the next one. It sets
// Index. The rest of the last block keeps what it had.
func (e *Entry) Put(ring []byte, index uint64) (uint64, error) {
	n := len(ring)
	if n < BlockBytes || n&(n-1) != 0 {
		return index, ErrRing
	}
	e.Index = uint16(index)
	b, err := e.Append(make([]byte, 0, 4*BlockBytes))
	if err != nil {
		return index, err
	}
	if len(b) > n {
		return index, ErrSegments
	}
	at := int(index&uint64(n/BlockBytes-1)) * BlockBytes
	copied := copy(ring[at:], b)
	copy(ring, b[copied:])
	return index + uint64(e.Blocks()), nil
}
