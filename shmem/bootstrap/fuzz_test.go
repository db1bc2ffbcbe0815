package bootstrap

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
)

// FuzzFrame reads frames from any bytes: a value or an error, no more memory than there are bytes, and what is read is
// what was sealed.
func FuzzFrame(f *testing.F) {
	secret := []byte("secret")
	seal := func(fr frame) []byte {
		out := newSealer(secret, labelUp, [nonceSize]byte{}, [nonceSize]byte{})
		var header [headerSize]byte
		putHeader(header[:], fr)
		return append(append(header[:], fr.payload...), out.tag(header[:], fr.payload)...)
	}
	f.Add(seal(frame{kind: kindBeat}))
	f.Add(seal(frame{kind: kindCall, op: opAllGather, seq: 3, payload: putCall(time.Second, [][]byte{{1, 2, 3}})}))
	f.Add([]byte{0xff, 0xff, 0xff, 0, byte(kindCall), 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := &link{r: bufio.NewReader(bytes.NewReader(b)), in: newSealer(secret, labelUp, [nonceSize]byte{}, [nonceSize]byte{})}
		fr, err := l.receive(maxCall)
		if err != nil {
			if fr.payload != nil || fr.kind != 0 {
				t.Fatalf("an error and a value: %v, %+v", err, fr)
			}
			return
		}
		if !bytes.HasPrefix(b, seal(fr)) {
			t.Fatalf("%+v is not what was sent", fr)
		}
	})
}

// FuzzPayloads reads all payloads from any bytes: an error, or a value that is written as it was read.
func FuzzPayloads(f *testing.F) {
	j := join{1, 2, 3, 4, 5, self{6, 7, 8}, "host"}
	f.Add(byte(3), j.marshal())
	f.Add(byte(2), putParts(nil, [][]byte{{1}, nil}))
	f.Add(byte(1), putCall(time.Second, [][]byte{{1, 2, 3}}))
	f.Add(byte(1), (&ending{kind: endLost, pe: 3, other: -1, text: "why"}).marshal())
	f.Add(byte(9), putAbort(-3, "why"))
	f.Add(byte(0), putGreeting([nonceSize]byte{}))
	f.Fuzz(func(t *testing.T, n byte, b []byte) {
		size := int(n%8) + 1
		same := func(what string, again []byte) {
			if !bytes.Equal(again, b) {
				t.Fatalf("%s: read %x, written %x", what, b, again)
			}
		}
		if j, err := parseJoin(b); err == nil {
			same("join", j.marshal())
			if j.rank >= j.size || j.size > MaxPEs {
				t.Fatalf("%+v", j)
			}
		}
		if parts, err := parseParts(b, size); err == nil {
			same("parts", putParts(nil, parts))
			if len(parts) != size {
				t.Fatalf("%d parts, want %d", len(parts), size)
			}
			for _, p := range parts {
				_ = append(p, 1) // must not reach into the next
			}
			same("parts, appended to", putParts(nil, parts))
		} else if parts != nil {
			t.Fatal("an error and a value")
		}
		for o := opAllGather; o <= opBarrier; o++ {
			if timeout, parts, err := parseCall(b, o, size); err == nil {
				same("call", putCall(timeout, parts))
			}
		}
		if e, err := parseEnding(b); err == nil {
			if len(b) < maxText-64 {
				same("ending", e.marshal())
			}
			if e.err() == nil || e.err().Error() == "" && e.text != "" {
				t.Fatalf("%+v has no error", e)
			}
		}
		if code, why, err := parseAbort(b); err == nil && len(b) < maxText-64 {
			same("abort", putAbort(code, why))
		}
		if d, err := parseMilliseconds(b); err == nil {
			same("time", putMilliseconds(d))
		}
		if err := parseGreeting(b); err == nil && len(b) < 8 {
			t.Fatal("half a greeting")
		}
		if len(b) >= headerSize {
			if fr, n, err := parseHeader(b[:headerSize], maxCall); err == nil && (n < 0 || n > maxCall || fr.payload != nil) {
				t.Fatalf("%+v, %d", fr, n)
			}
		}
	})
}

// FuzzUniqueID: an id or an error, from text and from bytes, and one that is read is written the same.
func FuzzUniqueID(f *testing.F) {
	id, err := newID([secretSize]byte{1, 2, 3}, someAddresses)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(id.String(), id[:])
	f.Fuzz(func(t *testing.T, text string, b []byte) {
		if id, err := ParseUniqueID(text); err == nil {
			if again, err := ParseUniqueID(id.String()); err != nil || again != id {
				t.Fatal(err)
			}
		}
		var id UniqueID
		copy(id[:], b)
		if at, err := id.Addresses(); err == nil {
			again, err := newID(id.secret(), at)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := again.Addresses(); err != nil || len(got) != len(at) {
				t.Fatal(err)
			}
		}
	})
}

// FuzzAddress: LSHMEM_BOOTSTRAP from any text.
func FuzzAddress(f *testing.F) {
	f.Add("tcp://host:1?0123456789abcdef", "^docker,=eth0:1")
	f.Fuzz(func(t *testing.T, text, filter string) {
		if a, err := parseTCP(text); err == nil && (a.host == "" || a.port < 1 || a.port > 65535 || len(a.token) < MinToken) {
			t.Fatalf("%+v", a)
		}
		list, err := choose([]network{{name: "eth0", ips: nil}, {name: "lo", loopback: true}}, filter)
		if err == nil && len(list) == 0 {
			t.Fatal("no address and no error")
		}
		if d, err := seconds(text); err == nil && d == 0 {
			t.Fatal("no time and no error")
		}
	})
}

// A length that is not followed by as many bytes costs no memory.
func TestAnnouncedLength(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() {
		if _, err := readPayload(bytes.NewReader(make([]byte, 10)), 1<<30); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}); n > 10 {
		t.Errorf("%v allocations", n)
	}
	big := make([]byte, 3<<20+17)
	for i := range big {
		big[i] = byte(i)
	}
	got, err := readPayload(iotestHalf{bytes.NewReader(big)}, len(big))
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d of %d bytes, %v", len(got), len(big), err)
	}
}

// iotestHalf reads at most 1000 bytes at a time.
type iotestHalf struct{ r io.Reader }

func (h iotestHalf) Read(p []byte) (int, error) { return h.r.Read(p[:min(len(p), 1000)]) }
