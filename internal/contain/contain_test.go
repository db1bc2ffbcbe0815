package contain

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// interposer is the built library; without it there is nothing to stamp.
const interposer = "../../build/lib/liblgpu.so"

func library(t *testing.T) []byte {
	data, err := os.ReadFile(interposer)
	if err != nil {
		t.Skip("not built: ", err)
	}
	return data
}

// TestStamp: the copy differs from the library in the text alone, and a second stamp leaves nothing of the first.
func TestStamp(t *testing.T) {
	plain := library(t)
	first, err := stamp(plain, map[string]string{"LGPU_SOCKET": "/run/a", "LGPU_SIM": strings.Repeat("x", 1000)})
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(first, []byte("LGPU_SIM=xxx"))
	if at < 0 || len(first) != len(plain) {
		t.Fatalf("%d bytes, not %d; the text at %d", len(first), len(plain), at)
	}
	text := "LGPU_SIM=" + strings.Repeat("x", 1000) + "\x00LGPU_SOCKET=/run/a\x00\x00"
	if got := string(first[at : at+len(text)]); got != text {
		t.Errorf("%q", got)
	}
	second, err := stamp(first, nil)
	if err != nil || !bytes.Equal(second, plain) {
		t.Errorf("an empty stamp leaves the first: %v", err)
	}
}

func TestStampRefused(t *testing.T) {
	plain := library(t)
	for _, values := range []map[string]string{
		{"A": strings.Repeat("x", 8200)}, {"A": "x\x00B=y"}, {"": "x"}, {"A=B": "x"},
	} {
		if out, err := stamp(plain, values); err == nil || out != nil {
			t.Errorf("%.40v is written", values)
		}
	}
	if _, err := stamp([]byte("#!/bin/sh"), nil); err == nil {
		t.Error("a script has been stamped")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stamp(self, nil); err == nil || !strings.Contains(err.Error(), "no place for a stamp") {
		t.Errorf("another program: %v", err)
	}
}

// FuzzStamp: a broken library gives an error, or a copy of equal length.
func FuzzStamp(f *testing.F) {
	if data, err := os.ReadFile(interposer); err == nil {
		f.Add(data[:4096], "v")
	}
	f.Add([]byte("\x7fELF"), "")
	f.Fuzz(func(t *testing.T, data []byte, value string) {
		if out, err := stamp(data, map[string]string{"N": value}); err == nil && len(out) != len(data) {
			t.Error("another length")
		}
	})
}

// TestMake: what LD_LIBRARY_PATH has is the driver's; its links are followed; what lies in a folder that the loader does
// not know is named in a cache of its own; other programs' libraries are left alone.
func TestMake(t *testing.T) {
	library(t)
	dir := t.TempDir()
	sim, err := filepath.Abs("../../build/lib/sim")
	if err != nil {
		t.Fatal(err)
	}
	real, text := filepath.Join(dir, "libcuda.so.580.1"), filepath.Join(dir, "text")
	data, err := os.ReadFile(filepath.Join(sim, "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(real), filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(text, "libcuda.so.1"), []byte("no library"), 0o755); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "contained")
	p, err := Make(Options{
		Interposer: interposer, Dir: own, Stamp: map[string]string{"LGPU_SOCKET": "/s"},
		Environment: []string{"LD_LIBRARY_PATH=" + strings.Join([]string{text, "", "relative", dir, sim}, ":")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.Real["libcuda.so.1"] != real || p.Real["libnvidia-ml.so.1"] != filepath.Join(sim, "libnvidia-ml.so.1") {
		t.Errorf("the driver's: %v", p.Real)
	}
	for _, want := range []string{real, filepath.Join(sim, "libcuda.so.1"), filepath.Join(sim, "libnvidia-ml.so.1")} {
		if !slices.Contains(p.Covers, want) {
			t.Errorf("%s is not covered: %v", want, p.Covers)
		}
	}
	if slices.Contains(p.Covers, filepath.Join(text, "libcuda.so.1")) {
		t.Error("a file that is no library is covered")
	}
	if p.Stamp["LGPU_REAL_LIBCUDA"] != filepath.Join(own, "real/libcuda.so.1") || p.Stamp["LGPU_SOCKET"] != "/s" {
		t.Errorf("stamp: %v", p.Stamp)
	}
	env := p.Environment([]string{"A=b", "LGPU_REAL_LIBCUDA=" + real, "LGPU_REAL_LIBNVML="})
	if !slices.Equal(env, []string{"A=b", "LGPU_REAL_LIBCUDA=" + p.Stamp["LGPU_REAL_LIBCUDA"], "LGPU_REAL_LIBNVML=" + p.Stamp["LGPU_REAL_LIBNVML"]}) {
		t.Errorf("environment: %v", env)
	}
}
