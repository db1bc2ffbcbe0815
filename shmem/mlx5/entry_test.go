package mlx5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"testing"
)

// entries are one of each form, with the count of segments and blocks they take.
var entries = []struct {
	name     string
	entry    Entry
	segments int
}{
	{"NOP", Entry{Opcode: OpNOP, Flags: CtrlCompletion}, 1},
	{"write", Entry{Opcode: OpWrite, RemoteAddress: 0x1122334455667788, RemoteKey: 0x99aabbcc, Data: []Data{{100, 7, 0x1000}}}, 3},
	{"write of nothing", Entry{Opcode: OpWrite, RemoteAddress: 1, RemoteKey: 2}, 2},
	{"write of four ranges", Entry{Opcode: OpWrite, Data: []Data{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {1, 1, 1}}}, 6},
	{"12 inline", Entry{Opcode: OpWrite, HasInline: true, Inline: []byte("twelve bytes")}, 3},
	{"13 inline", Entry{Opcode: OpWrite, HasInline: true, Inline: []byte("thirteen byte")}, 4},
	{"0 inline", Entry{Opcode: OpWrite, HasInline: true, Inline: []byte{}}, 3},
	{"all inline", Entry{Opcode: OpWrite, HasInline: true, Inline: bytes.Repeat([]byte("x"), 61*16-4)}, 63},
	{"immediate", Entry{Opcode: OpWriteImm, Immediate: 0xdeadbeef, Data: []Data{{1, 2, 3}}}, 3},
	{"read", Entry{Opcode: OpRead, RemoteKey: 9, Data: []Data{{100, 7, 0x1000}}}, 3},
	{"send", Entry{Opcode: OpSend, Flags: CtrlSolicited, Data: []Data{{100, 7, 0x1000}}}, 2},
	{"compare", Entry{Opcode: OpCompareSwap, Atomic: Atomic{Operand: 1, Compare: 2}, Data: []Data{{8, 7, 0x1000}}}, 4},
	{"add", Entry{Opcode: OpFetchAdd, Atomic: Atomic{Add: 1 << 63}, Data: []Data{{8, 7, 0x1000}}}, 4},
	{"add 4", Entry{Opcode: OpMaskedAdd, Modifier: 8, Atomic: Atomic{Add: 1, Boundary: 1 << 31}, Data: []Data{{4, 7, 0x1000}}}, 4},
	{"add 8", Entry{Opcode: OpMaskedAdd, Modifier: 9, Atomic: Atomic{Add: 1, Boundary: 1 << 63}, Data: []Data{{8, 7, 0x1000}}}, 4},
	{"swap 4", Entry{Opcode: OpMaskedSwap, Modifier: 8, Atomic: Atomic{Operand: 1, Compare: 2, SwapMask: 3, CompareMask: 4}, Data: []Data{{4, 7, 0x1000}}}, 4},
	{"swap 8", Entry{Opcode: OpMaskedSwap, Modifier: 9, Atomic: Atomic{Operand: 1, Compare: 2, SwapMask: 3, CompareMask: 4}, Data: []Data{{8, 7, 0x1000}}}, 5},
	{"dump", Entry{Opcode: OpDump, Flags: FenceReads, Data: []Data{{1, 7, 0x1000}}}, 2},
	{"wait", Entry{Opcode: OpWait, WaitIndex: 5, WaitQueue: 6}, 2},
}

// copyOf is an entry's fields without its buffers, comparable.
func copyOf(e *Entry) Entry {
	c := Entry{Opcode: e.Opcode, Modifier: e.Modifier, Index: e.Index, Queue: e.Queue, Segments: e.Segments, Signature: e.Signature, Stream: e.Stream,
		Flags: e.Flags, Immediate: e.Immediate, RemoteAddress: e.RemoteAddress, RemoteKey: e.RemoteKey, HasInline: e.HasInline, Atomic: e.Atomic,
		WaitIndex: e.WaitIndex, WaitQueue: e.WaitQueue}
	c.Inline = append([]byte{}, e.Inline...)
	c.Data = append([]Data{}, e.Data...)
	return c
}

func TestEntries(t *testing.T) {
	for _, c := range entries {
		for _, depth := range []int{16, 64, 32768} {
			for _, index := range []uint64{0, 1, 14, 15, 65535, 1 << 40} {
				ring := make([]byte, depth*BlockBytes)
				e := c.entry
				e.Queue = 0x123456
				next, err := e.Put(ring, index)
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				if e.Segments != c.segments || next != index+uint64((c.segments+3)/4) {
					t.Errorf("%s: %d segments, from %d to %d", c.name, e.Segments, index, next)
				}
				var got Entry
				if err := got.Parse(ring, index, StrictReserved|StrictPadding); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				want := copyOf(&e)
				got.Atomic.Bytes, got.Atomic.Swap = 0, false
				if c.entry.Opcode == OpCompareSwap {
					got.Atomic.SwapMask, got.Atomic.CompareMask = 0, 0
				}
				if have := copyOf(&got); !reflect.DeepEqual(have, want) {
					t.Errorf("%s at %d of %d:\n%+v\n%+v", c.name, index, depth, have, want)
				}
			}
		}
	}
}

// TestBytes holds the layout to bytes written by hand after the hardware's documents.
func TestBytes(t *testing.T) {
	cases := []struct {
		name  string
		entry Entry
		bytes string
	}{
		{"write", Entry{Opcode: OpWrite, Index: 0x1234, Queue: 0xabcdef, Flags: CtrlCompletion | FenceAll, RemoteAddress: 0x0102030405060708,
			RemoteKey: 0x11121314, Data: []Data{{0x21222324, 0x31323334, 0x4142434445464748}}},
			"\x00\x12\x34\x08\xab\xcd\xef\x03\x00\x00\x00\x88\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x00\x00\x00\x00" +
				"\x21\x22\x23\x24\x31\x32\x33\x34\x41\x42\x43\x44\x45\x46\x47\x48"},
		{"inline", Entry{Opcode: OpWrite, Queue: 1, HasInline: true, Inline: []byte("abcde")},
			"\x00\x00\x00\x08\x00\x00\x01\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
				"\x80\x00\x00\x05abcde\x00\x00\x00\x00\x00\x00\x00"},
		{"masked add 4", Entry{Opcode: OpMaskedAdd, Modifier: ModifierAtomic4, Queue: 1, Atomic: Atomic{Add: 0x01020304, Boundary: 0x80000000}, Data: []Data{{4, 5, 6}}},
			"\x08\x00\x00\x15\x00\x00\x01\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
				"\x01\x02\x03\x04\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x06"},
		{"wait", Entry{Opcode: OpWait, Queue: 1, WaitIndex: 0x01020304, WaitQueue: 0x05060708},
			"\x00\x00\x00\x0f\x00\x00\x01\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08"},
	}
	for _, c := range cases {
		got, err := c.entry.Append(nil)
		if err != nil || string(got) != c.bytes {
			t.Errorf("%s: %v\n%x\n%x", c.name, err, got, c.bytes)
		}
	}
}

func TestRefused(t *testing.T) {
	good := func() []byte {
		ring := make([]byte, 16*BlockBytes)
		if _, err := (&Entry{Opcode: OpWrite, Queue: 1, Data: []Data{{8, 1, 1}}}).Put(ring, 0); err != nil {
			t.Fatal(err)
		}
		return ring
	}
	cases := []struct {
		name   string
		change func(b []byte)
		strict Strictness
		want   error
	}{
		{"no segments", func(b []byte) { b[7] = 0 }, 0, ErrSegments},
		{"only a remote address is missing", func(b []byte) { b[7] = 1 }, 0, ErrSegments},
		{"opcode", func(b []byte) { b[3] = OpUMR }, 0, ErrOpcode},
		{"local invalidate", func(b []byte) { b[3] = OpLocalInv }, 0, ErrOpcode},
		{"modifier", func(b []byte) { b[0] = 9 }, 0, ErrModifier},
		{"masked without modifier", func(b []byte) { b[3], b[7] = OpMaskedAdd, 4 }, 0, ErrModifier},
		{"atomic without data", func(b []byte) { b[3] = OpFetchAdd }, 0, ErrSegments},
		{"long swap without masks", func(b []byte) { b[0], b[3], b[7] = 9, OpMaskedSwap, 4-1 }, 0, ErrSegments},
		{"inline read", func(b []byte) { b[3], b[32] = OpRead, 0x80 }, 0, ErrInline},
		{"inline too long", func(b []byte) { b[32], b[35] = 0x80, 13 }, 0, ErrInline},
		{"inline very long", func(b []byte) { copy(b[32:], "\xff\xff\xff\xff") }, 0, ErrInline},
		{"dump of two ranges", func(b []byte) { b[3] = OpDump }, 0, ErrSegments},
		{"wait with more", func(b []byte) { b[3] = OpWait }, 0, ErrSegments},
		{"reserved", func(b []byte) { b[28] = 1 }, StrictReserved, ErrReserved},
		{"signature", func(b []byte) { b[8] = 1 }, StrictReserved, ErrReserved},
		{"padding", func(b []byte) { copy(b[32:], "\x80\x00\x00\x01ab") }, StrictPadding, ErrPadding},
		{"reserved is garbage in practice", func(b []byte) { b[28] = 1 }, 0, nil},
		{"padding is garbage in practice", func(b []byte) { copy(b[32:], "\x80\x00\x00\x01ab") }, 0, nil},
	}
	for _, c := range cases {
		ring := good()
		c.change(ring)
		var e Entry
		if err := e.Parse(ring, 0, c.strict); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", c.name, err, c.want)
		}
	}
	var e Entry
	for _, n := range []int{0, 1, 63, 65, 96, 192} {
		if err := e.Parse(make([]byte, n), 0, 0); !errors.Is(err, ErrRing) {
			t.Errorf("a ring of %d bytes: %v", n, err)
		}
	}
	ring := make([]byte, 2*BlockBytes)
	ring[7] = 9
	if err := e.Parse(ring, 0, 0); !errors.Is(err, ErrSegments) {
		t.Errorf("an entry longer than the ring: %v", err)
	}
	for name, bad := range map[string]*Entry{"queue": {Queue: 1 << 24}, "opcode": {Opcode: OpUMR}, "modifier": {Opcode: OpMaskedAdd},
		"length":   {Opcode: OpWrite, Data: []Data{{Bytes: 1 << 31}}},
		"operand":  {Opcode: OpMaskedAdd, Modifier: 8, Atomic: Atomic{Add: 1 << 32}},
		"segments": {Opcode: OpWrite, HasInline: true, Inline: make([]byte, 62*16)}} {
		if b, err := bad.Append([]byte("before")); err == nil || string(b) != "before" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// slowAdd adds field by field, bit by bit.
func slowAdd(old, add, boundary uint64, bits int) (sum uint64) {
	carry := uint64(0)
	for i := range bits {
		s := old>>i&1 + add>>i&1 + carry
		sum |= s & 1 << i
		if carry = s >> 1; boundary>>i&1 == 1 {
			carry = 0
		}
	}
	return sum
}

func TestApply(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func() uint64 {
		return []uint64{0, ^uint64(0), r.Uint64(), r.Uint64() & r.Uint64() & r.Uint64(), 1 << r.IntN(64)}[r.IntN(5)]
	}
	for range 20000 {
		width := []int{4, 8}[r.IntN(2)]
		mask := ^uint64(0) >> (64 - 8*width)
		old, a, b, c, d := word()&mask, word()&mask, word()&mask, word()&mask, word()&mask
		add := Atomic{Bytes: width, Add: a, Boundary: b}
		if got, want := add.Apply(old), slowAdd(old, a, b, 8*width); got != want {
			t.Fatalf("%d bytes: %#x + %#x with boundaries %#x is %#x, not %#x", width, old, a, b, got, want)
		}
		swap := Atomic{Bytes: width, Swap: true, Operand: a, Compare: b, SwapMask: c, CompareMask: d}
		want := old
		if bits.OnesCount64((old^b)&d) == 0 {
			want = 0
			for i := range 64 {
				from := old
				if c>>i&1 == 1 {
					from = a
				}
				want |= from & (1 << i)
			}
		}
		if got := swap.Apply(old); got != want {
			t.Fatalf("swap %+v of %#x: %#x, not %#x", swap, old, got, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, c := range []Completion{
		{Opcode: CompletionRequester, Owner: 1, SendOpcode: OpRead, Queue: 0x123456, Counter: 0xfedc, ByteCount: 77, Timestamp: 1 << 60},
		{Opcode: CompletionError, SendOpcode: OpWrite, Queue: 1, Counter: 3, HWSyndrome: 1, Type: 2, Vendor: 3, Syndrome: SyndromeRemoteAccess},
	} {
		var b [BlockBytes]byte
		c.Put(&b)
		if got, err := ParseCompletion(b[:]); err != nil || got != c {
			t.Errorf("%+v, %v, not %+v", got, err, c)
		}
		if binary.BigEndian.Uint16(b[60:]) != c.Counter || b[63] != c.Opcode<<4|c.Owner {
			t.Errorf("%x", b)
		}
	}
	if c, err := ParseCompletion(bytes.Repeat([]byte{0xff}, 64)); err != nil || c.Opcode != CompletionInvalid {
		t.Errorf("an entry that was never written: %+v, %v", c, err)
	}
	if _, err := ParseCompletion(make([]byte, 63)); err == nil {
		t.Error("63 bytes are no completion")
	}
}

func TestDoorbell(t *testing.T) {
	d := Doorbell{Opcode: OpWrite, Modifier: 9, Index: 0xfffe, Queue: 0x123456, Segments: 3}
	b := d.Bytes()
	if string(b[:]) != "\x09\xff\xfe\x08\x12\x34\x56\x03" || ParseDoorbell(&b) != d {
		t.Errorf("%x, %+v", b, ParseDoorbell(&b))
	}
}

// FuzzParse: any bytes are an error or an entry, and an entry's own bytes are the same entry again.
func FuzzParse(f *testing.F) {
	for _, c := range entries {
		ring := make([]byte, 16*BlockBytes)
		e := c.entry
		if _, err := e.Put(ring, 15); err == nil {
			f.Add(ring, uint64(15), uint8(0))
		}
	}
	f.Fuzz(func(t *testing.T, ring []byte, index uint64, strict uint8) {
		before := bytes.Clone(ring)
		var e Entry
		err := e.Parse(ring, index, Strictness(strict))
		if !bytes.Equal(before, ring) {
			t.Fatal("parsing changed the ring")
		}
		if e.Segments < 0 || e.Segments > MaxSegments || err == nil && e.Blocks()*BlockBytes > len(ring) {
			t.Fatalf("%d segments in a ring of %d bytes", e.Segments, len(ring))
		}
		var format FormatError
		if err != nil {
			if !errors.As(err, &format) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		was := copyOf(&e)
		was.Data = append([]Data{}, e.Data...)
		inline := bytes.Clone(e.Inline)
		e.Inline = inline
		out, err := e.Append(nil)
		if err != nil {
			t.Fatalf("%+v does not encode: %v", was, err)
		}
		again := make([]byte, 16*BlockBytes)
		copy(again, out)
		var second Entry
		if err := second.Parse(again, 0, 0); err != nil {
			t.Fatalf("%+v encodes to what does not parse: %v", was, err)
		}
		now := copyOf(&second)
		if was.Opcode == OpNOP { // its further segments say nothing
			now.Segments = was.Segments
		}
		if !reflect.DeepEqual(was, now) {
			t.Fatalf("\n%+v\n%+v", was, now)
		}
		if Strictness(strict)&(StrictReserved|StrictPadding) == StrictReserved|StrictPadding {
			for i := range out {
				at := (int(index&uint64(len(ring)/BlockBytes-1))*BlockBytes + i) & (len(ring) - 1)
				if ring[at] != out[i] {
					t.Fatalf("byte %d is %#x, written again %#x", i, ring[at], out[i])
				}
			}
		}
	})
}

// FuzzCompletion: any 64 bytes are a completion, and writing it again keeps what it says.
func FuzzCompletion(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCompletion(b)
		if err != nil {
			if len(b) >= BlockBytes {
				t.Fatal(err)
			}
			return
		}
		var again [BlockBytes]byte
		c.Put(&again)
		if d, err := ParseCompletion(again[:]); err != nil || d != c {
			t.Fatalf("%+v, %v, not %+v", d, err, c)
		}
	})
}
