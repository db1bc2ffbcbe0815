package module

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"strings"
	"testing"
)

// pack compresses a text.
func pack(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestImage(t *testing.T) {
	for _, text := range []string{"", "x", ".version 7.8\n", strings.Repeat("ret;\n", 1<<16)} {
		image, err := Image(pack(t, text))
		if err != nil || string(image) != text+"\x00" {
			t.Errorf("%d bytes became %d (%v)", len(text), len(image), err)
		}
	}
}

func TestImageRefuses(t *testing.T) {
	text := strings.Repeat("bar.sync \t0;\n", 100)
	sized := func(n uint32) []byte {
		b := pack(t, text)
		binary.LittleEndian.PutUint32(b[len(b)-4:], n)
		return b
	}
	flipped := pack(t, text)
	flipped[len(flipped)-8] ^= 1 // the checksum
	whole := pack(t, text)
	for what, b := range map[string][]byte{
		"nothing": nil, "text": []byte(text), "a header": whole[:10], "half a file": whole[:len(whole)/2],
		"no end": whole[:len(whole)-1], "a wrong checksum": flipped, "more text than said": sized(7),
		"less text than said": sized(1 << 20), "an absurd size": sized(1 << 31),
		"something after it": append(bytes.Clone(whole), whole[len(whole)-9:]...),
	} {
		if image, err := Image(b); err == nil {
			t.Errorf("%s: %d bytes", what, len(image))
		}
	}
}

func FuzzImage(f *testing.F) {
	f.Add(pack(f, "ret;\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if image, err := Image(b); err == nil && image[len(image)-1] != 0 {
			t.Error("no NUL at the end")
		}
	})
}
