package test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/lgpu/lgpu/tenant/region"
)

// A region that cannot be used leaves the process without a GPU, and with one line that says why.
func TestUnusableRegionsFailClosed(t *testing.T) {
	whole, err := os.ReadFile(newRegion(t, spec(64*mib, 0)))
	if err != nil {
		t.Fatal(err)
	}
	put32 := func(offset uintptr, value uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.LittleEndian.PutUint32(b[offset:], value)
			return b
		}
	}
	compute := unsafe.Offsetof(region.Limits{}.Device) + unsafe.Offsetof(region.DeviceLimits{}.Compute)
	cases := map[string]struct {
		change func([]byte) []byte
		says   string
	}{
		"empty":              {func(b []byte) []byte { return nil }, "truncated"},
		"one page":           {func(b []byte) []byte { return b[:4096] }, "truncated"},
		"limits only":        {func(b []byte) []byte { return b[:region.LimitsBytes] }, "truncated"},
		"one byte short":     {func(b []byte) []byte { return b[:regionBytes-1] }, "truncated"},
		"magic":              {put32(0, 1), "is not a region"},
		"zeroes":             {func(b []byte) []byte { return make([]byte, len(b)) }, "is not a region"},
		"version":            {put32(unsafe.Offsetof(region.Limits{}.Version), 7), "layout"},
		"no device":          {put32(unsafe.Offsetof(region.Limits{}.Devices), 0), "number of devices"},
		"too many devices":   {put32(unsafe.Offsetof(region.Limits{}.Devices), 17), "number of devices"},
		"endless devices":    {put32(unsafe.Offsetof(region.Limits{}.Devices), 1<<31), "number of devices"},
		"no compute at all":  {put32(compute, 1<<31), "compute share"},
		"impossible compute": {put32(compute, 10001), "compute share"},
	}
	bin := ways(t)["dlsym"]
	check := func(t *testing.T, path, says string) {
		t.Helper()
		out, errs, err := run(t, tenant(path), "", bin, "init", "alloc:1", "smi")
		if err != nil || out != "init 101\nalloc 1 201\nnvml 9 devices 0\n" {
			t.Errorf("printed %q (%v)", out, err)
		}
		if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) || !strings.Contains(errs, path) {
			t.Errorf("said %q; want one line with %q", errs, says)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.region")
			if err := os.WriteFile(path, c.change(append([]byte{}, whole...)), 0o600); err != nil {
				t.Fatal(err)
			}
			check(t, path, c.says)
		})
	}
	t.Run("missing", func(t *testing.T) { check(t, filepath.Join(t.TempDir(), "none"), "No such file") })
	t.Run("folder", func(t *testing.T) { check(t, t.TempDir(), "directory") })
}

// A tenant can write over its usage. Nothing that it writes makes the library fault, hang or lift a limit of another.
func TestScribbledUsageIsHarmless(t *testing.T) {
	bin := ways(t)["dlsym"]
	for name, fill := range map[string]byte{"ones": 0xff, "pattern": 0x5a} {
		t.Run(name, func(t *testing.T) {
			path := newRegion(t, spec(64*mib, 0))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			scribble := make([]byte, regionBytes-region.LimitsBytes)
			for i := range scribble {
				scribble[i] = fill
			}
			if _, err := f.WriteAt(scribble, region.LimitsBytes); err != nil {
				t.Fatal(err)
			}
			out, errs, err := run(t, tenant(path), "", bin, "init", "alloc:4096", "info", "smi", "free")
			if err != nil {
				t.Errorf("%v\n%s%s", err, out, errs)
			}
		})
	}
}

func TestMissingDriver(t *testing.T) {
	path := newRegion(t, spec(64*mib, 0))
	bin := program(t, "tenant", "-DLINKED", built.cuda, built.nvml, "-Wl,--allow-shlib-undefined")
	env := tenant(path, "LGPU_REAL_LIBCUDA=/nonexistent/libcuda.so.1", "LGPU_REAL_LIBNVML=/nonexistent/libnvidia-ml.so.1")
	out, errs, err := run(t, env, "", bin, "init", "alloc:1", "smi")
	if err != nil || out != "init 100\nalloc 1 100\nnvml 12 devices 0\n" {
		t.Errorf("printed %q (%v)", out, err)
	}
	for _, lib := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if !strings.Contains(errs, lib) {
			t.Errorf("said %q; want a line about %s", errs, lib)
		}
	}
	if strings.Count(errs, "\n") != 2 {
		t.Errorf("said %q; want one line a library", errs)
	}
	if _, quiet, _ := run(t, append(env, "LGPU_LOG=0"), "", bin, "init"); quiet != "" {
		t.Errorf("with LGPU_LOG=0 said %q", quiet)
	}
}

// The program's environment is as it was, and its standard output is its own.
func TestGoodGuest(t *testing.T) {
	path := newRegion(t, spec(64*mib, 0))
	bin := ways(t)["dlsym"]
	script := bin + ` init >/dev/null; umask; echo "$CUDA_VISIBLE_DEVICES"`
	want(t, mustRun(t, tenant(path, "CUDA_VISIBLE_DEVICES=0"), "/bin/sh", "-c", script), "0022", "0")
}
