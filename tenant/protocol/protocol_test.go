package protocol

import (
	"errors"
	"testing"
	"unsafe"
)

func TestSize(t *testing.T) {
	if unsafe.Sizeof(Message{}) != Size || len(Message{}.Append(nil)) != Size {
		t.Fatalf("a Message has %d bytes, and %d on the way; want %d", unsafe.Sizeof(Message{}), len(Message{}.Append(nil)), Size)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Message{Kind: Hello, Version: Version, Flags: FlagReconnect, Client: 3, ID: 9}.Append(nil))
	f.Add(append(Message{Kind: Refuse, Value: 1}.Append(nil), "no such\x00lgpu"...))
	f.Add(Message{Kind: Slice, Device: 2, Value: 50}.Append(nil))
	f.Add(Message{Kind: Sliced, Device: 2, Value: 2048, Flags: FlagRefused}.Append(nil))
	f.Add(Message{Kind: Kept, Device: 1, Value: 4096, Serial: 7, Flags: FlagRefused, Extra: WhyStore}.Append(nil))
	f.Add(Message{Kind: Parked + 1}.Append(nil))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, text, err := Parse(packet)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || m != (Message{}) || text != "" {
				t.Fatalf("Parse(%x) = %v, %q, %v", packet, m, text, err)
			}
			return
		}
		if m.Kind < Hello || m.Kind > Parked || (text != "" && m.Kind != Refuse) {
			t.Fatalf("Parse(%x) = %v, %q", packet, m, text)
		}
		again, _, err := Parse(m.Append(nil))
		if err != nil || again != m {
			t.Fatalf("%v came back as %v, %v", m, again, err)
		}
	})
}
