package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dlsym and dlvsym, whoever calls them and with whatever handle, answer as without the library, but for the driver's
// functions.
func TestLookupsAnswerAsWithoutUs(t *testing.T) {
	dir := t.TempDir()
	library, versions := filepath.Join(dir, "libprobe.so"), filepath.Join(dir, "versions.map")
	if err := os.WriteFile(versions, []byte("CUSTOM_1 { global: custom_versioned; };\nCUSTOM_2 { global: *; } CUSTOM_1;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := gcc("-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "testdata/dl_library.c", "-Wl,--version-script,"+versions,
		"-Wl,-soname,libprobe.so", "-o", library); err != nil {
		t.Fatal(err)
	}
	bin := program(t, "dl_probe", library, "-ldl", "-rdynamic", "-Wl,-rpath,"+dir)
	probe := func(preload string) (same, driver []string) {
		env := tenant(newRegion(t, spec(64*mib, 0)))
		env = append(env, "LD_PRELOAD="+preload)
		for _, line := range strings.Split(strings.TrimSpace(mustRun(t, env, bin, library)), "\n") {
			if rest, ok := strings.CutPrefix(line, "driver: "); ok {
				driver = append(driver, rest)
			} else {
				same = append(same, line)
			}
		}
		return same, driver
	}
	without, _ := probe("")
	for _, preload := range []string{built.library, built.library + ":" + library, library + ":" + built.library} {
		with, driver := probe(preload)
		if len(with) < 100 {
			t.Errorf("%d lines: the probe sees too little", len(with))
		}
		for i := range without {
			if i >= len(with) || with[i] != without[i] {
				t.Errorf("with %s: line %d is %q, without us %q", preload, i+1, with[min(i, len(with)-1)], without[i])
			}
		}
		want(t, strings.Join(driver, "\n"),
			"hooked liblgpu.so:cuMemAlloc_v2+0",
			"hooked, by version NULL undefined symbol: cuMemAlloc_v2, version ANY",
			"next liblgpu.so:cuMemAlloc_v2+0",
			"library's next liblgpu.so:cuMemAlloc_v2+0",
			"default liblgpu.so:cuMemAlloc_v2+0",
			"passed libcuda.so.1:cuDriverGetVersion+0",
			"unknown NULL undefined symbol: cuNoSuchFunction")
	}
}
