package ibgda

import (
	"encoding/binary"
	"fmt"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// A blob is what a PE tells another. It begins with a magic number and a version; numbers are little-endian. All of it
// comes from another process, perhaps of another build, so that reading it trusts nothing.
const (
	endpointMagic = 0x31455053 // "SPE1"
	keysMagic     = 0x314b5053 // "SPK1"
	maxQueues     = 64         // per PE
)

// hello is what a PE tells another one to connect to it.
type hello struct {
	Provider string // kind of NIC
	HeapBase uint64 // in the PE's own process
	NICs     int
	KeyShift uint32
	Queues   []nic.Endpoint // one for each queue pair
}

// append appends the blob of h to b.
func (h *hello) append(b []byte) []byte {
	e := binary.LittleEndian
	b = e.AppendUint32(b, endpointMagic)
	b = e.AppendUint32(b, layout.Version)
	b = e.AppendUint64(b, h.HeapBase)
	b = e.AppendUint32(b, h.KeyShift)
	b = append(b, byte(h.NICs), byte(len(h.Queues)), byte(len(h.Provider)), 0)
	b = append(b, h.Provider...)
	for i := range h.Queues {
		q := &h.Queues[i]
		b = e.AppendUint32(b, q.Number)
		b = append(b, byte(q.Link), 0)
		b = e.AppendUint16(b, q.LID)
		b = e.AppendUint16(b, q.MTU)
		b = append(b, q.GID[:]...)
		b = e.AppendUint16(b, uint16(len(q.Software)))
		b = append(b, q.Software...)
	}
	return b
}

// cursor reads a blob. After the first read beyond its end, short is true and all reads give zeros.
type cursor struct {
	rest  []byte
	short bool
}

func (c *cursor) bytes(n int) []byte {
	if c.short || n > len(c.rest) {
		c.short = true
		return make([]byte, min(n, 64))
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) u8() uint8   { return c.bytes(1)[0] }
func (c *cursor) u16() uint16 { return binary.LittleEndian.Uint16(c.bytes(2)) }
func (c *cursor) u32() uint32 { return binary.LittleEndian.Uint32(c.bytes(4)) }
func (c *cursor) u64() uint64 { return binary.LittleEndian.Uint64(c.bytes(8)) }

// begin reads the head of a blob.
func (c *cursor) begin(magic uint32) error {
	if got := c.u32(); c.short || got != magic {
		return fmt.Errorf("%w: does not begin with %#x", transport.ErrBlob, magic)
	}
	if got := c.u32(); got != layout.Version {
		return fmt.Errorf("%w: of layout version %#x, this build has %#x: run the same lshmem everywhere", transport.ErrBlob, got, layout.Version)
	}
	return nil
}

// end checks that all of a blob was read, and nothing beyond.
func (c *cursor) end() error {
	if c.short {
		return fmt.Errorf("%w: too short", transport.ErrBlob)
	}
	if len(c.rest) != 0 {
		return fmt.Errorf("%w: %d bytes too many", transport.ErrBlob, len(c.rest))
	}
	return nil
}

// parseHello reads what hello.append wrote. The result shares no memory with b.
func parseHello(b []byte) (*hello, error) {
	c := cursor{rest: b}
	if err := c.begin(endpointMagic); err != nil {
		return nil, err
	}
	h := &hello{HeapBase: c.u64(), KeyShift: c.u32()}
	h.NICs = int(c.u8())
	queues, name, _ := int(c.u8()), int(c.u8()), c.u8()
	if h.NICs < 1 || h.NICs > layout.MaxNICs || queues < 1 || queues > maxQueues || name > 16 || h.KeyShift > 63 {
		return nil, fmt.Errorf("%w: %d NICs, %d queue pairs, key entries of 2^%d bytes", transport.ErrBlob, h.NICs, queues, h.KeyShift)
	}
	h.Provider = string(c.bytes(name))
	h.Queues = make([]nic.Endpoint, queues)
	for i := range h.Queues {
		q := &h.Queues[i]
		q.Number = c.u32()
		q.Link, _ = nic.Link(c.u8()), c.u8()
		q.LID, q.MTU = c.u16(), c.u16()
		copy(q.GID[:], c.bytes(len(q.GID)))
		software := int(c.u16())
		if q.Number > 0xffffff || q.Link > nic.Ethernet || software > nic.MaxSoftware {
			return nil, fmt.Errorf("%w: queue %d has number %#x on link %d, and %d bytes of software address", transport.ErrBlob, i,
				q.Number, q.Link, software)
		}
		if software > 0 {
			q.Software = append([]byte(nil), c.bytes(software)...)
		}
	}
	return h, c.end()
}

// offer is what a PE tells the others about a piece of its heap.
type offer struct {
	Offset, Bytes uint64
	Keys          []uint32 // by NIC, in host byte order
}

func (o *offer) append(b []byte) []byte {
	e := binary.LittleEndian
	b = e.AppendUint32(b, keysMagic)
	b = e.AppendUint32(b, layout.Version)
	b = e.AppendUint64(b, o.Offset)
	b = e.AppendUint64(b, o.Bytes)
	b = e.AppendUint32(b, uint32(len(o.Keys)))
	for _, k := range o.Keys {
		b = e.AppendUint32(b, k)
	}
	return b
}

// parseOffer reads what offer.append wrote.
func parseOffer(b []byte) (*offer, error) {
	c := cursor{rest: b}
	if err := c.begin(keysMagic); err != nil {
		return nil, err
	}
	o := &offer{Offset: c.u64(), Bytes: c.u64()}
	n := c.u32()
	if n < 1 || n > layout.MaxNICs || o.Offset+o.Bytes < o.Offset {
		return nil, fmt.Errorf("%w: keys of %d NICs for %d bytes at %#x", transport.ErrBlob, n, o.Bytes, o.Offset)
	}
	o.Keys = make([]uint32, n)
	for i := range o.Keys {
		o.Keys[i] = c.u32()
	}
	return o, c.end()
}
