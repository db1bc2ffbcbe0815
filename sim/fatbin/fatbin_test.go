package fatbin_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/sim/fatbin"
	"github.com/lgpu/lgpu/sim/fatbin/fatbintest"
)

var long = strings.Repeat("// a line of a long text that compresses well\n", 200)

func TestPTX(t *testing.T) {
	for _, how := range []fatbintest.Compression{fatbintest.None, fatbintest.LZ4, fatbintest.Zstd} {
		image := fatbintest.Image(t, how,
			fatbintest.Entry{Kind: fatbintest.ELF, Arch: 90, Data: []byte("\x7fELF")},
			fatbintest.Entry{Kind: fatbintest.PTX, Arch: 52, Data: []byte("old " + long)},
			fatbintest.Entry{Kind: fatbintest.PTX, Arch: 80, Data: []byte("newer " + long)},
			fatbintest.Entry{Kind: fatbintest.PTX, Arch: 100, Data: []byte("too new " + long)})
		for arch, want := range map[int]string{90: "newer " + long, 80: "newer " + long, 75: "old " + long, 100: "too new " + long} {
			got, err := fatbin.PTX(image, arch)
			if err != nil || string(got) != want {
				t.Errorf("compression %v, device %d: %.20q, %v; want %.20q", how, arch, got, err, want)
			}
		}
		if _, err := fatbin.PTX(image, 50); !errors.Is(err, fatbin.ErrNoPTX) {
			t.Errorf("compression %v, a device older than all: %v", how, err)
		}
		if _, err := fatbin.PTX(append(bytes.Clone(image), "behind"...), 90); err != nil {
			t.Errorf("compression %v, data behind the image: %v", how, err)
		}
		for cut := range image {
			if _, err := fatbin.PTX(image[:cut], 90); err == nil {
				t.Fatalf("compression %v: the first %d of %d bytes are an image", how, cut, len(image))
			}
		}
	}
}

// TestHostile gives entries whose figures are not true.
func TestHostile(t *testing.T) {
	for _, how := range []fatbintest.Compression{fatbintest.LZ4, fatbintest.Zstd} {
		image := fatbintest.Image(t, how, fatbintest.Entry{Kind: fatbintest.PTX, Arch: 52, Data: []byte(long)})
		for _, bad := range []struct {
			what string
			at   int
			v    uint64
		}{
			{"an endless image", 8, 1 << 63}, {"an endless entry", 16 + 8, 1<<64 - 1}, {"all memory", 16 + 56, 1 << 40},
			{"a byte more", 16 + 56, uint64(len(long)) + 1}, {"a byte less", 16 + 56, uint64(len(long)) - 1}, {"nothing", 16 + 56, 0},
		} {
			b := bytes.Clone(image)
			binary.LittleEndian.PutUint64(b[bad.at:], bad.v)
			if _, err := fatbin.PTX(b, 90); !errors.Is(err, fatbin.ErrFormat) {
				t.Errorf("compression %v, %s: %v", how, bad.what, err)
			}
		}
	}
}

func FuzzPTX(f *testing.F) {
	for _, how := range []fatbintest.Compression{fatbintest.None, fatbintest.LZ4, fatbintest.Zstd} {
		f.Add(fatbintest.Image(f, how, fatbintest.Entry{Kind: fatbintest.ELF, Arch: 90, Data: []byte("\x7fELF")},
			fatbintest.Entry{Kind: fatbintest.PTX, Arch: 52, Data: []byte(long)}))
	}
	f.Fuzz(func(t *testing.T, image []byte) {
		text, err := fatbin.PTX(image, 90)
		if err != nil && len(text) > 0 {
			t.Errorf("%d bytes beside the error %v", len(text), err)
		}
		if err != nil && !errors.Is(err, fatbin.ErrFormat) && !errors.Is(err, fatbin.ErrNoPTX) {
			t.Errorf("an error of no kind: %v", err)
		}
	})
}
