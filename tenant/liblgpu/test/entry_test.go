package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/region"
)

const mib = 1 << 20

// replacement puts the library in the place of the driver's two, as a container sees it, with the driver's beside.
func replacement(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	library, err := os.ReadFile(built.library)
	if err != nil {
		t.Fatal(err)
	}
	for _, real := range []string{built.cuda, built.nvml} {
		text, err := os.ReadFile(real)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.Base(real))
		if err := os.WriteFile(name, library, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name+".lgpu-real", text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// entries are the two ways in: by preload, and in the driver's place.
func entries(t *testing.T) map[string]func(regionPath string, more ...string) []string {
	dir := replacement(t)
	return map[string]func(string, ...string) []string{
		"preload": tenant,
		"replacement": func(regionPath string, more ...string) []string {
			return append([]string{"PATH=" + os.Getenv("PATH"), "LGPU_REGION=" + regionPath, "LD_LIBRARY_PATH=" + dir}, more...)
		},
	}
}

// ways are the ways in which a program reaches the driver.
func ways(t *testing.T) map[string]string {
	return map[string]string{
		"linked": program(t, "tenant", "-DLINKED", built.cuda, built.nvml, "-Wl,--allow-shlib-undefined"),
		"dlsym":  program(t, "tenant", "-ldl"),
		"proc":   program(t, "tenant", "-DPROC", "-ldl"),
	}
}

func each(t *testing.T, f func(t *testing.T, env func(string, ...string) []string, bin string)) {
	for entry, env := range entries(t) {
		for way, bin := range ways(t) {
			t.Run(entry+"/"+way, func(t *testing.T) { f(t, env, bin) })
		}
	}
}

func want(t *testing.T, out string, lines ...string) {
	t.Helper()
	if have := strings.TrimSpace(out); have != strings.Join(lines, "\n") {
		t.Errorf("printed\n%s\nwant\n%s", have, strings.Join(lines, "\n"))
	}
}

func TestLimitHoldsHoweverTheDriverIsReached(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		path := newRegion(t, spec(64*mib, 1))
		out := mustRun(t, env(path), bin, "init", "alloc:41943040", "alloc:41943040", "info", "free", "alloc:67108864", "alloc:1", "info",
			"free", "info", "devices")
		want(t, out, "init 0", "alloc 41943040 0", "alloc 41943040 2", "info 0 used 41943040 total 67108864", "free 0",
			"alloc 67108864 0", "alloc 1 2", "info 0 used 67108864 total 67108864", "free 0", "info 0 used 0 total 67108864",
			"devices 1 20/64MiB/132")
	})
}

func TestChildrenAreTenantsOfTheirOwn(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		path := newRegion(t, spec(64*mib, 0))
		// A forked child before the driver is initialised.
		want(t, mustRun(t, env(path), bin, "fork", "init", "alloc:67108864", "alloc:1"), "init 0", "alloc 67108864 0", "alloc 1 2", "child 0")
		// A new program in a child, beside its parent's memory.
		want(t, mustRun(t, env(path), bin, "init", "alloc:33554432", "exec", "init", "alloc:33554433", "alloc:33554432"),
			"init 0", "alloc 33554432 0", "init 0", "alloc 33554433 2", "alloc 33554432 0", "child 0")
		// The same process becomes another program: what it held is free.
		want(t, mustRun(t, env(path), bin, "init", "alloc:67108864", "become", "init", "alloc:67108864"),
			"init 0", "alloc 67108864 0", "init 0", "alloc 67108864 0")
	})
}

func TestThreads(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		path := newRegion(t, spec(1024*mib, 0))
		want(t, mustRun(t, env(path), bin, "init", "threads:64", "info"), "init 0", "threads 0", "info 0 used 0 total 1073741824")
	})
}

func TestShellAndWhatItStarts(t *testing.T) {
	for entry, env := range entries(t) {
		t.Run(entry, func(t *testing.T) {
			path := newRegion(t, spec(64*mib, 0))
			bin := ways(t)["dlsym"]
			want(t, mustRun(t, env(path), "/bin/sh", "-c", bin+" init alloc:67108865; "+bin+" init alloc:1"),
				"init 0", "alloc 67108865 2", "init 0", "alloc 1 0")
			// Programs that use no GPU load no driver.
			for _, command := range []string{"ls /", "cat /proc/self/maps", "bash -c 'cat /proc/$$/maps'"} {
				out := mustRun(t, env(path), "/bin/sh", "-c", command)
				if strings.Contains(out, "libcuda") || strings.Contains(out, "libnvidia-ml") {
					t.Errorf("%s loads the driver:\n%s", command, out)
				}
				if strings.Contains(command, "maps") && entry == "preload" && !strings.Contains(out, "liblgpu") {
					t.Errorf("%s: the library is not there; the test sees nothing", command)
				}
			}
		})
	}
}

func TestOnlyTheLgpusDevicesAreSeen(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		s := spec(64*mib, 2, 0)
		s.Devices[1].Memory, s.Devices[1].Units = region.NoLimit, 33
		path := newRegion(t, s)
		both := "devices 2 30/64MiB/132 10/16384MiB/33"
		for visible, line := range map[string]string{
			"":           both,
			"0,1":        both,
			"1":          "devices 1 10/16384MiB/33",
			"1,0":        "devices 2 10/16384MiB/33 30/64MiB/132",
			"0,7,1":      "devices 1 30/64MiB/132",
			"GPU-101112": "devices 1 10/16384MiB/33",
		} {
			more := []string{}
			if visible != "" {
				more = append(more, "CUDA_VISIBLE_DEVICES="+visible)
			}
			want(t, mustRun(t, env(path, more...), bin, "init", "devices"), "init 0", line)
		}
		// One of another tenant, or none.
		for _, visible := range []string{"GPU-2021", "2", "-1", "0,0"} {
			want(t, mustRun(t, env(path, "CUDA_VISIBLE_DEVICES="+visible), bin, "init"), "init 100")
		}
	})
}

func TestNVMLShowsTheLgpu(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		path := newRegion(t, spec(64*mib, 2, 0))
		// Before and after memory is held, and with a program that only looks.
		out := mustRun(t, env(path), bin, "smi", "init", "alloc:33554432", "smi", "exec", "smi")
		want(t, out, "nvml 0 devices 2 GPU-30/0/0of64MiB/0procs GPU-10/1/0of64MiB/0procs", "init 0", "alloc 33554432 0",
			"nvml 0 devices 2 GPU-30/0/32of64MiB/1procs/known GPU-10/1/0of64MiB/0procs",
			"nvml 0 devices 2 GPU-30/0/32of64MiB/1procs/known GPU-10/1/0of64MiB/0procs", "child 0")
	})
}

// Processes of others are on no device, whether it is the lgpu's or its handle was guessed; nor are their accounts and
// sessions. Who asks how many there are is told the lgpu's number, and room for those is enough.
func TestNVMLHidesStrangers(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		path := newRegion(t, spec(64*mib, 2))
		out := mustRun(t, env(path, "STUB_PROCESSES=3"), bin, "init", "alloc:4096", "strangers")
		other, own := " 0/0:6:0:1own:1own:1own:7/1:0/1own", " 0/1:6:0:1own:1own:1own:7/1:0/1own"
		want(t, out, "init 0", "alloc 4096 0", "strangers 0"+other+other+own+other)
	})
}

// No call that lists devices gives the handle of one that is not the lgpu's, nor counts it; an instance of another has none.
func TestNVMLHidesOtherDevices(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		two := mustRun(t, env(newRegion(t, spec(64*mib, 2, 0))), bin, "others")
		want(t, two, "others 0 0/2:0,2 0/1:0 0/2 0/1:2 0/1:2 0/1 0/2:0,2 7/2 7/2 0= 6 0= 6")
		all := mustRun(t, env(""), bin, "others")
		want(t, all, "others 0 0/4:0,1,2,3 0/4:0 0/4 0/3:1,2,3 0/3:1 0/3 0/4:0,1,2,3 7/4 7/4 0= 0= 0= 0=")
	})
}

func TestWithoutAnLgpuNothingChanges(t *testing.T) {
	each(t, func(t *testing.T, env func(string, ...string) []string, bin string) {
		out := mustRun(t, env(""), bin, "init", "alloc:33554432", "info", "devices", "smi")
		want(t, out, "init 0", "alloc 33554432 0", "info 0 used 33554432 total 17179869184",
			"devices 4 10/16384MiB/132 20/16384MiB/132 30/16384MiB/132 40/16384MiB/132",
			"nvml 0 devices 4 GPU-10/0/0of16384MiB/0procs GPU-20/1/0of16384MiB/0procs GPU-30/2/0of16384MiB/0procs GPU-40/3/0of16384MiB/0procs")
	})
}

// A program that closes every descriptor keeps its account: nobody takes it for dead, and it is not charged twice.
func TestProgramThatClosesAllDescriptors(t *testing.T) {
	path := newRegion(t, spec(64*mib, 0))
	bin := ways(t)["dlsym"]
	want(t, mustRun(t, tenant(path), bin, "init", "alloc:33554432", "closeall", "alloc:67108864", "exec", "init", "alloc:33554433",
		"alloc:33554432"),
		"init 0", "alloc 33554432 0", "alloc 67108864 2", "init 0", "alloc 33554433 2", "alloc 33554432 0", "child 0")
}

// kill -9 at every step from the first call on: the next process has the whole limit.
func TestDeathAnywhereLeavesTheWholeLimit(t *testing.T) {
	bin := ways(t)["dlsym"]
	for _, point := range []string{"claimed", "named", "live", "begin", "half-recorded", "recorded", "begun", "noted", "swapped"} {
		for n := 1; n <= 3; n++ {
			path := newRegion(t, spec(64*mib, 0))
			env := append(tenant(path), "LD_PRELOAD="+built.faults, fmt.Sprintf("LGPU_FAULT=%s:%d", point, n))
			_, _, err := run(t, env, "", bin, "init", "alloc:10485760", "alloc:20971520", "free", "alloc:1048576", "die")
			if err == nil || !strings.Contains(err.Error(), "killed") {
				t.Errorf("%s:%d: %v; want it killed", point, n, err)
			}
			// The one that finds the dead may die of it as well.
			for _, second := range []string{"settle", "swapped", "settled", "freed"} {
				run(t, append(tenant(path), "LD_PRELOAD="+built.faults, "LGPU_FAULT="+second), "", bin, "init")
			}
			want(t, mustRun(t, tenant(path), bin, "init", "alloc:67108864", "alloc:1"), "init 0", "alloc 67108864 0", "alloc 1 2")
		}
	}
}

func TestManyStartAtOnce(t *testing.T) {
	const n = 64
	path := newRegion(t, spec(64*mib, 0))
	bin := ways(t)["dlsym"]
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s init alloc:1048576 wait </dev/null & i=$((i+1)); done; wait", n, bin)
	out := mustRun(t, tenant(path), "/bin/sh", "-c", script)
	if got := len(regexp.MustCompile(`(?m)^init 0$`).FindAllString(out, -1)); got != n {
		t.Errorf("%d of %d processes initialised:\n%s", got, n, out)
	}
	if got := len(regexp.MustCompile(`(?m)^alloc 1048576 0$`).FindAllString(out, -1)); got != n {
		t.Errorf("%d of %d processes have their memory", got, n)
	}
	want(t, mustRun(t, tenant(path), bin, "init", "info"), "init 0", "info 0 used 0 total 67108864")
}
