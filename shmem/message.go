package shmem

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// op is a collective call that changes the heap.
type op uint32

const (
	opInit op = iota + 1
	opMalloc
	opFree
	opForeign
	opForeignEnd
)

func (o op) String() string {
	switch o {
	case opInit:
		return "init"
	case opMalloc:
		return "malloc"
	case opFree:
		return "free"
	case opForeign:
		return "register symmetric buffer"
	case opForeignEnd:
		return "unregister symmetric buffer"
	}
	return fmt.Sprintf("call %d", uint32(o))
}

// request is a collective call as all PEs must have made it.
type request struct {
	op           op
	bytes, align uint64
	offset       uint64
}

func (r request) String() string {
	switch r.op {
	case opMalloc:
		return fmt.Sprintf("%v of %d bytes aligned to %d", r.op, r.bytes, r.align)
	case opFree, opForeignEnd:
		return fmt.Sprintf("%v of offset %#x", r.op, r.offset)
	}
	return fmt.Sprintf("%v of %d bytes", r.op, r.bytes)
}

// A message of a PE in a collective call: the request, how it went here, and for each new piece the transports' blobs.
//
//	op u32, status u32, bytes u64, align u64, offset u64, PE to blame u32 (none: all bits), length of text u32, text,
//	then blobs: each length u32, bytes
const messageHeader = 4 + 4 + 8 + 8 + 8 + 4 + 4

func (r request) message(err error, blobs [][]byte) []byte {
	e := binary.LittleEndian
	text, blame := "", -1
	if err != nil {
		text = err.Error()
		var whose *Error
		if errors.As(err, &whose) {
			blame = whose.PE
		}
		if e, ok := err.(*Error); ok { // the others know the call
			text = e.Err.Error()
		}
		text = text[:min(len(text), 1000)]
	}
	b := e.AppendUint32(nil, uint32(r.op))
	b = e.AppendUint32(b, Status(err))
	b = e.AppendUint64(b, r.bytes)
	b = e.AppendUint64(b, r.align)
	b = e.AppendUint64(b, r.offset)
	b = e.AppendUint32(b, uint32(blame))
	b = e.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	for _, blob := range blobs {
		b = e.AppendUint32(b, uint32(len(blob)))
		b = append(b, blob...)
	}
	return b
}

// parseMessage reads a message with the number of blobs that it must have if all went well.
func parseMessage(b []byte, blobs int) (r request, status uint32, blame int, text string, out [][]byte, err error) {
	e := binary.LittleEndian
	short := fmt.Errorf("%w: %d bytes of a collective call", transport.ErrBlob, len(b))
	if len(b) < messageHeader {
		return r, 0, -1, "", nil, short
	}
	r = request{op: op(e.Uint32(b)), bytes: e.Uint64(b[8:]), align: e.Uint64(b[16:]), offset: e.Uint64(b[24:])}
	status = e.Uint32(b[4:])
	blame = int(int32(e.Uint32(b[32:])))
	n := int(e.Uint32(b[36:]))
	b = b[messageHeader:]
	if n > len(b) {
		return r, 0, -1, "", nil, short
	}
	text, b = string(b[:n]), b[n:]
	if status != layout.StatusOK {
		return r, status, blame, text, nil, nil
	}
	for len(b) >= 4 {
		n := int(e.Uint32(b))
		if n > len(b)-4 {
			return r, 0, -1, "", nil, short
		}
		out, b = append(out, b[4:4+n:4+n]), b[4+n:]
	}
	if len(b) != 0 {
		return r, 0, -1, "", nil, short
	}
	return r, status, blame, text, out, nil
}
