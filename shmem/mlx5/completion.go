package mlx5

import (
	"encoding/binary"
	"fmt"
)

// Completion is a completion queue's entry, as far as send queues have use for it.
type Completion struct {
	Opcode     uint8 // Completion*
	Owner      uint8 // 0 or 1
	SendOpcode uint8 // of the work request
	Queue      uint32
	Counter    uint16 // of the work request's first block
	ByteCount  uint32 // of reads and atomics
	Timestamp  uint64 // nanoseconds of the device's clock; errors have none

	// Of errors:
	HWSyndrome, Type, Vendor, Syndrome uint8
}

// IsError says whether the completion is one of a failed request.
func (c *Completion) IsError() bool {
	return c.Opcode == CompletionError || c.Opcode == CompletionRespError
}

// Put writes the completion's 64 bytes.
func (c *Completion) Put(b *[BlockBytes]byte) {
	*b = [BlockBytes]byte{}
	if c.IsError() {
		b[CompletionHWSyndrome], b[CompletionType], b[CompletionVendor], b[CompletionSyndrome] = c.HWSyndrome, c.Type, c.Vendor, c.Syndrome
	} else {
		binary.BigEndian.PutUint32(b[CompletionByteCount:], c.ByteCount)
		binary.BigEndian.PutUint64(b[CompletionTimestamp:], c.Timestamp)
	}
	binary.BigEndian.PutUint32(b[CompletionQueue:], uint32(c.SendOpcode)<<24|c.Queue&0xffffff)
	binary.BigEndian.PutUint16(b[CompletionCounter:], c.Counter)
	b[CompletionOwner] = c.Opcode<<4 | c.Owner&OwnerBit
}

// ParseCompletion reads a completion of at least 64 bytes. One that no device wrote yet has the opcode
// CompletionInvalid.
func ParseCompletion(b []byte) (Completion, error) {
	if len(b) < BlockBytes {
		return Completion{}, FormatError(fmt.Sprintf("a completion of %d bytes", len(b)))
	}
	last := b[CompletionOwner]
	head := binary.BigEndian.Uint32(b[CompletionQueue:])
	c := Completion{Opcode: last >> 4, Owner: last & OwnerBit, SendOpcode: uint8(head >> 24), Queue: head & 0xffffff,
		Counter: binary.BigEndian.Uint16(b[CompletionCounter:])}
	if c.IsError() {
		c.HWSyndrome, c.Type, c.Vendor, c.Syndrome = b[CompletionHWSyndrome], b[CompletionType], b[CompletionVendor], b[CompletionSyndrome]
	} else {
		c.ByteCount = binary.BigEndian.Uint32(b[CompletionByteCount:])
		c.Timestamp = binary.BigEndian.Uint64(b[CompletionTimestamp:])
	}
	return c, nil
}

// SyndromeText says what a completion's syndrome means.
func SyndromeText(syndrome uint8) string {
	switch syndrome {
	case SyndromeLocalLength:
		return "local length"
	case SyndromeLocalQueue:
		return "local queue operation"
	case SyndromeLocalProtect:
		return "local protection"
	case SyndromeFlushed:
		return "flushed after an earlier error"
	case SyndromeBind:
		return "memory window bind"
	case SyndromeBadResponse:
		return "bad response"
	case SyndromeLocalAccess:
		return "local access"
	case SyndromeRemoteRequest:
		return "remote invalid request"
	case SyndromeRemoteAccess:
		return "remote access"
	case SyndromeRemoteOp:
		return "remote operation"
	case SyndromeRetry:
		return "retries exceeded: the other side does not answer"
	case SyndromeNotReady:
		return "the other side has no receive buffer"
	case SyndromeRemoteAborted:
		return "remote aborted"
	}
	return fmt.Sprintf("syndrome %#x", syndrome)
}

// Doorbell is the 8-byte word that is stored to a doorbell register: the head of a control segment. Writers disagree on
// which: GPUs put the index of the next block with opcode 0 there, libmlx5 the head of the last entry.
type Doorbell struct {
	Opcode, Modifier uint8
	Index            uint16
	Queue            uint32
	Segments         uint8
}

// ParseDoorbell reads the 8 bytes at the beginning of b.
func ParseDoorbell(b *[8]byte) Doorbell {
	head, tail := binary.BigEndian.Uint32(b[:]), binary.BigEndian.Uint32(b[4:])
	return Doorbell{Opcode: uint8(head), Index: uint16(head >> 8), Modifier: uint8(head >> 24), Queue: tail >> 8, Segments: uint8(tail)}
}

// Bytes is the doorbell in memory.
func (d Doorbell) Bytes() (b [8]byte) {
	binary.BigEndian.PutUint32(b[:], uint32(d.Modifier)<<24|uint32(d.Index)<<8|uint32(d.Opcode))
	binary.BigEndian.PutUint32(b[4:], d.Queue<<8|uint32(d.Segments))
	return b
}
