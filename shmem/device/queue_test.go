package device

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
)

// A posted is what testdata/queue.cpp printed of one case: queue 0 of PE 1.
type posted struct {
	name                    string
	reserved, ready, posted uint64
	atomics, reads          uint64 // Queue.Atomics and GetHead
	result                  uint64
	status                  uint64 // of Control
	other                   uint64 // blocks reserved on the PE's other queue
	record                  uint64
	doorbell                mlx5.Doorbell
	heap, outside, ibuf     uint64
	ring                    []byte
}

func parse(t *testing.T, line string) posted {
	t.Helper()
	f := strings.Fields(line)
	if len(f) != 15 {
		t.Fatalf("%d fields in %q", len(f), line)
	}
	number := func(s string, base int) uint64 {
		n, err := strconv.ParseUint(s, base, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := posted{name: f[0], reserved: number(f[1], 10), result: number(f[2], 16), status: number(f[3], 10), other: number(f[4], 16),
		record: number(f[5], 16), heap: number(f[7], 16), outside: number(f[8], 16), ibuf: number(f[9], 16),
		ready: number(f[11], 10), posted: number(f[12], 10), atomics: number(f[13], 10), reads: number(f[14], 10)}
	var bell [8]byte
	if _, err := hex.Decode(bell[:], []byte(f[6])); err != nil {
		t.Fatal(err)
	}
	p.doorbell = mlx5.ParseDoorbell(&bell)
	ring, err := hex.DecodeString(f[10])
	if err != nil {
		t.Fatal(err)
	}
	p.ring = ring
	return p
}

// Where testdata/queue.cpp has the other PE's heap, and its queue's number.
const (
	remoteHeap  = 0x7f0000000000
	queueNumber = 0xabc01
)

// place names an address by what it is in: h heap, o outside, i ibuf.
func (p *posted) place(address uint64) string {
	switch {
	case address-p.heap < 1<<18:
		return fmt.Sprintf("h+%#x", address-p.heap)
	case address-p.outside < 256:
		return fmt.Sprintf("o+%#x", address-p.outside)
	case address-p.ibuf < 5*layout.IbufCell:
		return fmt.Sprintf("i+%#x", address-p.ibuf)
	}
	return fmt.Sprintf("%#x", address)
}

// text is an entry in one line.
func (p *posted) text(e *mlx5.Entry) string {
	var b strings.Builder
	switch e.Opcode {
	case mlx5.OpNOP:
		b.WriteString("NOP")
	case mlx5.OpWrite:
		b.WriteString("WRITE")
	case mlx5.OpRead:
		b.WriteString("READ")
	case mlx5.OpDump:
		b.WriteString("DUMP")
	case mlx5.OpFetchAdd:
		fmt.Fprintf(&b, "FA %d", e.Atomic.Add)
	case mlx5.OpCompareSwap:
		fmt.Fprintf(&b, "CS %d if %d", e.Atomic.Operand, e.Atomic.Compare)
	case mlx5.OpMaskedAdd:
		fmt.Fprintf(&b, "MFA%d %d/%x", e.Atomic.Bytes, e.Atomic.Add, e.Atomic.Boundary)
	case mlx5.OpMaskedSwap:
		fmt.Fprintf(&b, "MCS%d %d/%x if %d/%x", e.Atomic.Bytes, e.Atomic.Operand, e.Atomic.SwapMask, e.Atomic.Compare, e.Atomic.CompareMask)
	default:
		fmt.Fprintf(&b, "opcode %#x", e.Opcode)
	}
	if e.RemoteAddress != 0 || e.RemoteKey != 0 {
		fmt.Fprintf(&b, " r+%#x k%x", e.RemoteAddress-remoteHeap, e.RemoteKey)
	}
	if e.HasInline {
		fmt.Fprintf(&b, " =%x", e.Inline)
	}
	for _, d := range e.Data {
		fmt.Fprintf(&b, " %d %s k%x", d.Bytes, p.place(d.Address), d.Key)
	}
	if e.Flags&mlx5.FenceReads != 0 {
		b.WriteString(" fenced")
	}
	if e.Flags&mlx5.CtrlCompletion != 0 {
		b.WriteString(" !")
	}
	return b.String()
}

// entries reads what was posted since start, as strictly as only our own writer need be read.
func (p *posted) entries(t *testing.T, start uint64) []string {
	t.Helper()
	var all []string
	e := new(mlx5.Entry)
	for i := start; i < p.reserved; i += uint64(e.Blocks()) {
		if err := e.Parse(p.ring, i, mlx5.StrictReserved|mlx5.StrictPadding); err != nil {
			t.Fatalf("%s: block %d: %v", p.name, i, err)
		}
		if e.Index != uint16(i) || e.Queue != queueNumber {
			t.Errorf("%s: block %d: index %d of queue %#x", p.name, i, e.Index, e.Queue)
		}
		if e.Flags&^(mlx5.CtrlCompletion|mlx5.FenceReads) != 0 || e.Signature != 0 || e.Immediate != 0 {
			t.Errorf("%s: block %d: flags %#x, signature %d, immediate %d", p.name, i, e.Flags, e.Signature, e.Immediate)
		}
		if e.Flags&mlx5.CtrlCompletion != 0 && e.Blocks() > 1 {
			t.Errorf("%s: block %d: an entry of %d blocks asks for a completion", p.name, i, e.Blocks())
		}
		all = append(all, p.text(e))
	}
	return all
}

const (
	word    = " r+0x8 k2010 "
	unused  = "i+0x0 k4001"
	cell    = "i+0x100 k4001"
	ones8   = "ffffffffffffffff"
	ones4   = "ffffffff"
	loaded  = 0x1122334455667788 // what the internal buffer holds
	swapped = 0x88776655         // 4 bytes of it, in network byte order
)

// lanes are the entries of 32 lanes, and what comes after them.
func lanes(entry func(l int) []string, behind ...string) []string {
	var all []string
	for l := range 32 {
		all = append(all, entry(l)...)
	}
	if behind == nil {
		all[len(all)-1] += " !"
	}
	return append(all, behind...)
}

// row is the payload of a warp's values.
func row(bytes int) string {
	b := make([]byte, 0, 256)
	for l := range uint32(32) {
		if bytes == 8 {
			b = binary.LittleEndian.AppendUint64(b, 0x100000001*uint64(l+1))
		} else {
			b = binary.LittleEndian.AppendUint32(b, l+1)
		}
	}
	return hex.EncodeToString(b)
}

// step is the announcement of a collective operation's step.
func step(n int) string {
	return fmt.Sprintf("MCS8 %d/%s if 0/0 r+0x1000 k2010 8 %s", n, ones8, unused)
}

// small are the reads of n bytes by way of the internal buffer, cell after cell.
func small(n int) []string {
	var all []string
	for at := 0; at < n; at += 28 {
		all = append(all, fmt.Sprintf("READ r+%#x k2010 %d i+%#x k4001 !", 0x200+at, min(28, n-at), 0x100+at/28%4*0x100))
	}
	return all
}

var chunked = []string{
	"WRITE r+0x18000 k2011 4096 h+0xf000 k1000", "WRITE r+0x19000 k2011 28672 h+0x10000 k1001", "WRITE r+0x20000 k2012 32768 h+0x17000 k1001",
}

// calls is every call of testdata/queue.cpp and the entries that it must post: operation, remote offset and key, bytes,
// local place and key; ! asks for a completion.
var calls = []struct {
	name    string
	entries []string
	result  uint64
}{
	{"put", []string{"WRITE r+0x100 k2010 1000 h+0x200 k1000 !"}, 0},
	{"put-blocking", []string{"WRITE r+0x100 k2010 1000 h+0x200 k1000 !"}, 0},
	{"put-zero", nil, 0},
	{"put-local", []string{"WRITE r+0x100 k2010 100 o+0x10 k3000 !"}, 0},
	{"put-unknown", []string{"WRITE r+0x100 k2010 =" + strings.Repeat("07", 28), "WRITE r+0x11c k2010 =" + strings.Repeat("07", 12) + " !"}, 0},
	{"put-chunks", []string{chunked[0], chunked[1], chunked[2][:len(chunked[2])] + " !"}, 0},
	{"put-behind", nil, uint64(layout.StatusArgument)},
	{"put-far", nil, uint64(layout.StatusArgument)},
	{"get-far", nil, uint64(layout.StatusArgument)},
	{"p-far", nil, uint64(layout.StatusArgument)},
	{"signal-far", nil, uint64(layout.StatusArgument)},
	{"add-far", nil, uint64(layout.StatusArgument)},
	{"put-queue", []string{"WRITE r+0x100 k2010 8 h+0x200 k1000 !"}, 0},
	{"put-other-queue", nil, 0},
	{"put-no-queue", nil, uint64(layout.StatusArgument)},
	{"put-warp", []string{chunked[0], chunked[1], chunked[2] + " !"}, 0},
	{"put-block", []string{chunked[0], chunked[1], chunked[2] + " !"}, 0},
	{"put-lanes", lanes(func(l int) []string {
		return []string{fmt.Sprintf("WRITE r+%#x k2010 %d h+%#x k1000", 0x1000+64*l, 8+l, 64*l)}
	}), 0},
	{"iput", []string{"WRITE r+0x100 k2010 4 h+0x200 k1000", "WRITE r+0x10c k2010 4 h+0x1fc k1000", "WRITE r+0x118 k2010 4 h+0x1f8 k1000 !"}, 0},
	{"get", []string{"READ r+0x200 k2010 1000 h+0x100 k1000 !"}, 0},
	{"get-blocking", []string{"READ r+0x200 k2010 1000 h+0x100 k1000 !"}, 0},
	{"get-unknown", []string{"READ r+0x200 k2010 8 " + cell + " !"}, loaded},
	{"get-into-local", small(200), 0},
	{"get-out-of-local", small(60), 0},
	{"iget-out-of-local", []string{"READ r+0x200 k2010 8 " + cell + " !", "READ r+0x208 k2010 8 i+0x200 k4001 !"}, 0},
	{"get-quiet", []string{"READ r+0x200 k2010 1000 h+0x100 k1000 !"}, 0},
	{"p8", []string{"WRITE r+0x108 k2010 =0807060504030201 !"}, 0},
	{"p4", []string{"WRITE r+0x104 k2010 =04030201 !"}, 0},
	{"p2", []string{"WRITE r+0x2 k2010 =0201 !"}, 0},
	{"p1", []string{"WRITE r+0x3 k2010 =05 !"}, 0},
	{"p-double", []string{"WRITE r+0x8 k2010 =000000000000f03f !"}, 0},
	{"p8-row", []string{"WRITE r+0x100 k2010 =" + row(8), "NOP !"}, 0},
	{"p4-row", []string{"WRITE r+0x100 k2010 =" + row(4), "NOP !"}, 0},
	{"p4-apart", lanes(func(l int) []string { return []string{fmt.Sprintf("WRITE r+%#x k2010 =%02x000000", 0x100+8*l, l+1)} }), 0},
	{"g8", []string{"READ r+0x108 k2010 8 " + cell + " !"}, loaded},
	{"g1", []string{"READ r+0x109 k2010 1 " + cell + " !"}, loaded & 0xff},
	{"g8-lanes", lanes(func(l int) []string {
		return []string{fmt.Sprintf("READ r+%#x k2010 8 i+%#x k4001", 0x108+16*l, 0x100+8*l)}
	}), loaded},
	{"signal-set", []string{"MCS8 77/" + ones8 + " if 0/0 r+0x40 k2010 8 " + unused, "NOP !"}, 0},
	{"signal-add", []string{"MFA8 77/0 r+0x40 k2010 8 " + unused + " !"}, 0},
	{"put-signal-set", []string{"WRITE r+0x100 k2010 8 h+0x200 k1000", "MCS8 77/" + ones8 + " if 0/0 r+0x40 k2010 8 " + unused, "NOP !"}, 0},
	{"put-signal-add", []string{"WRITE r+0x100 k2010 8 h+0x200 k1000", "MFA8 77/0 r+0x40 k2010 8 " + unused + " !"}, 0},
	{"put-signal-zero", []string{"MFA8 77/0 r+0x40 k2010 8 " + unused + " !"}, 0},
	{"put-signal-warp", append(append([]string{}, chunked...), "MCS8 77/"+ones8+" if 0/0 r+0x40 k2010 8 "+unused, "NOP !"), 0},
	{"put-signal-lanes", lanes(func(l int) []string {
		return []string{fmt.Sprintf("WRITE r+%#x k2010 8 h+%#x k1000", 0x1000+64*l, 64*l),
			fmt.Sprintf("MCS8 77/%s if 0/0 r+%#x k2010 8 %s", ones8, 64+8*l, unused)}
	}, "NOP !"), 0},
	{"add8", []string{"MFA8 3/0" + word + "8 " + unused + " !"}, 0},
	{"add4", []string{"MFA4 3/0" + word + "4 " + unused + " !"}, 0},
	{"inc8", []string{"MFA8 1/0" + word + "8 " + unused + " !"}, 0},
	{"inc4", []string{"MFA4 1/0" + word + "4 " + unused + " !"}, 0},
	{"set8", []string{"MCS8 3/" + ones8 + " if 0/0" + word + "8 " + unused, "NOP !"}, 0},
	{"set4", []string{"MCS4 3/" + ones4 + " if 0/0" + word + "4 " + unused + " !"}, 0},
	{"set-float", []string{"MCS4 1065353216/" + ones4 + " if 0/0" + word + "4 " + unused + " !"}, 0},
	{"and8", []string{"MCS8 3/fffffffffffffffc if 0/0" + word + "8 " + unused, "NOP !"}, 0},
	{"and4", []string{"MCS4 3/fffffffc if 0/0" + word + "4 " + unused + " !"}, 0},
	{"or8", []string{"MCS8 3/3 if 0/0" + word + "8 " + unused, "NOP !"}, 0},
	{"or4", []string{"MCS4 3/3 if 0/0" + word + "4 " + unused + " !"}, 0},
	{"xor8", []string{"MFA8 3/" + ones8 + word + "8 " + unused + " !"}, 0},
	{"xor4", []string{"MFA4 3/" + ones4 + word + "4 " + unused + " !"}, 0},
	{"fetch8", []string{"MFA8 0/0" + word + "8 " + cell + " !"}, loaded},
	{"fetch4", []string{"MFA4 0/0" + word + "4 " + cell + " !"}, swapped},
	{"fetch-inc8", []string{"MFA8 1/0" + word + "8 " + cell + " !"}, loaded},
	{"fetch-inc4", []string{"MFA4 1/0" + word + "4 " + cell + " !"}, swapped},
	{"fetch-add8", []string{"FA 3" + word + "8 " + cell + " !"}, loaded},
	{"fetch-add4", []string{"MFA4 3/0" + word + "4 " + cell + " !"}, swapped},
	{"fetch-and8", []string{"MCS8 3/fffffffffffffffc if 0/0" + word + "8 " + cell, "NOP !"}, loaded},
	{"fetch-or4", []string{"MCS4 3/3 if 0/0" + word + "4 " + cell + " !"}, swapped},
	{"fetch-xor8", []string{"MFA8 3/" + ones8 + word + "8 " + cell + " !"}, loaded},
	{"swap8", []string{"MCS8 3/" + ones8 + " if 0/0" + word + "8 " + cell, "NOP !"}, loaded},
	{"swap4", []string{"MCS4 3/" + ones4 + " if 0/0" + word + "4 " + cell + " !"}, swapped},
	{"cas8", []string{"CS 3 if 4" + word + "8 " + cell + " !"}, loaded},
	{"cas4", []string{"MCS4 3/" + ones4 + " if 4/" + ones4 + word + "4 " + cell + " !"}, swapped},
	{"add8-lanes", lanes(func(l int) []string { return []string{fmt.Sprintf("MFA8 3/0 r+%#x k2010 8 %s", 8+8*l, unused)} }), 0},
	{"swap8-lanes", lanes(func(l int) []string {
		return []string{fmt.Sprintf("MCS8 3/%s if 0/0 r+%#x k2010 8 i+%#x k4001", ones8, 8+8*l, 0x100+8*l)}
	}, "NOP !"), loaded},
	{"sync-blocks", []string{step(1), "NOP !", step(2), "NOP !", step(3), "NOP !"}, 0},
	{"quiet-no-queue", nil, uint64(layout.StatusArgument<<8 | layout.StatusArgument)},
	{"fence-no-queue", nil, uint64(layout.StatusArgument<<8 | layout.StatusArgument)},
	{"quiet", nil, 0},
	{"fence", nil, 0},
}

// reads are the calls that wait for what they read: a flush follows where one is needed.
func reads(name string) bool {
	return name == "get-blocking" || name == "get-unknown" || strings.HasSuffix(name, "-local") && name != "put-local" || name == "g8" || name == "g1" || name == "g8-lanes" || name == "get-quiet" ||
		strings.HasPrefix(name, "fetch") || strings.HasPrefix(name, "swap") || strings.HasPrefix(name, "cas")
}

// TestEntries: each call posts exactly the entries of the table of mlx5 operations, from any place in the ring and any
// counter, and record, doorbell and counters agree.
func TestEntries(t *testing.T) {
	const flush = "DUMP 1 i+0x0 k4001 fenced !"
	for _, at := range []struct{ start, flags uint64 }{
		{0, 0}, {101, 0}, {65500, 0}, {1<<32 - 3, uint64(layout.QueueHostMemory)}, {7, uint64(layout.QueueFlush)},
	} {
		t.Run(fmt.Sprintf("%d flags %d", at.start, at.flags), func(t *testing.T) {
			out, err := run(t, "queue.cpp", nil, strconv.FormatUint(at.start, 10), strconv.FormatUint(at.flags, 10))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != len(calls) {
				t.Fatalf("%d cases were run, %d are known", len(lines), len(calls))
			}
			for i, line := range lines {
				p, c := parse(t, line), calls[i]
				if p.name != c.name {
					t.Fatalf("case %s, want %s", p.name, c.name)
				}
				want := append([]string{}, c.entries...)
				if at.flags == uint64(layout.QueueFlush) && reads(p.name) {
					var flushed []string
					for _, e := range want { // in the place of each entry that completes, or after it
						switch {
						case !strings.HasSuffix(e, " !"):
							flushed = append(flushed, e)
						case e == "NOP !":
							flushed = append(flushed, flush)
						case p.name == "get-quiet":
							flushed = append(flushed, e, flush)
						default:
							flushed = append(flushed, strings.TrimSuffix(e, " !"), flush)
						}
					}
					want = flushed
				}
				got := p.entries(t, at.start)
				if strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Errorf("%s posts\n\t%s\nwant\n\t%s", p.name, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
				}
				if p.result != c.result {
					t.Errorf("%s returns %#x, want %#x", p.name, p.result, c.result)
				}
				fails := c.name == "put-behind" || strings.HasSuffix(c.name, "-no-queue") || strings.HasSuffix(c.name, "-far")
				if (p.status != 0) != fails {
					t.Errorf("%s: control has status %d", p.name, p.status)
				}
				if p.ready != p.reserved || p.posted != p.reserved {
					t.Errorf("%s: reserved %d, ready %d, posted %d", p.name, p.reserved, p.ready, p.posted)
				}
				if (p.other > at.start) != (p.name == "put-other-queue") {
					t.Errorf("%s: %d blocks reserved on the other queue", p.name, p.other)
				}
				if p.reserved == at.start {
					continue
				}
				if p.record != p.reserved&0xffff {
					t.Errorf("%s: record %#x at %#x blocks", p.name, p.record, p.reserved)
				}
				if p.doorbell.Index != uint16(p.reserved) || p.doorbell.Queue != queueNumber {
					t.Errorf("%s: doorbell %+v at %#x blocks", p.name, p.doorbell, p.reserved)
				}
			}
		})
	}
}

// TestSilentNIC: what waits for a NIC, and what does not, and how it ends.
func TestSilentNIC(t *testing.T) {
	if out, err := run(t, "queue.cpp", nil, "silent"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, defect := range []string{"7", "10"} {
		t.Run("M"+defect, func(t *testing.T) {
			args := []string{"silent"}
			if defect == "10" {
				args = []string{"0", "0"}
			}
			out, err := run(t, "queue.cpp", defective(defect), args...)
			if defect == "10" && err == nil {
				// A call without bytes posts nothing.
				for line := range strings.Lines(out) {
					if p := parse(t, line); p.name == "put-zero" && p.reserved != 0 {
						return
					}
				}
				t.Fatal("nothing was found")
			}
			if err == nil {
				t.Fatal("nothing was found")
			}
		})
	}
}
