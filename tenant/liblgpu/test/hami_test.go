package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/tenant/region"
)

// hami is the environment of a container as HAMi's device plugin makes it.
func hami(cache string, more ...string) []string {
	var env []string
	for _, e := range tenant("") {
		if !strings.HasPrefix(e, "LGPU_REGION=") {
			env = append(env, e)
		}
	}
	return append(append(env, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+cache), more...)
}

func TestHAMiEnvironment(t *testing.T) {
	bin := ways(t)["dlsym"]
	const all = 16384
	cases := []struct {
		env    []string
		memory [2]int // MiB that the first two devices show
		fails  string
	}{
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=3000m"}, [2]int{3000, 3000}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=3000m"}, [2]int{3000, all}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=2g", "CUDA_DEVICE_MEMORY_LIMIT_1=1G"}, [2]int{2048, 1024}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=0x10M", "CUDA_DEVICE_MEMORY_LIMIT_1=010M"}, [2]int{16, 8}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=1048576", "CUDA_DEVICE_MEMORY_LIMIT_1=2048k"}, [2]int{1, 2}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=0", "CUDA_DEVICE_MEMORY_LIMIT_1="}, [2]int{all, all}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=0m"}, [2]int{all, all}, ""},
		{[]string{"CUDA_DEVICE_SM_LIMIT=30"}, [2]int{all, all}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=lots"}, [2]int{}, "CUDA_DEVICE_MEMORY_LIMIT=lots"},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=3000mm"}, [2]int{}, "CUDA_DEVICE_MEMORY_LIMIT_0=3000mm"},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT_1=-1m"}, [2]int{}, "CUDA_DEVICE_MEMORY_LIMIT_1=-1m"},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=18014398509481984k"}, [2]int{}, "18014398509481984k"},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=99999999999999999999"}, [2]int{}, "99999999999999999999"},
		{[]string{"CUDA_DEVICE_SM_LIMIT=half"}, [2]int{}, "CUDA_DEVICE_SM_LIMIT=half"},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=3000m", "CUDA_DISABLE_CONTROL=true"}, [2]int{all, all}, ""},
		{[]string{"CUDA_DEVICE_MEMORY_LIMIT=3000m", "CUDA_DISABLE_CONTROL=false"}, [2]int{3000, 3000}, ""},
	}
	for _, c := range cases {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			cache := filepath.Join(t.TempDir(), "x.cache")
			out, errs, err := run(t, hami(cache, c.env...), "", bin, "init", "devices")
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, errs)
			}
			if c.fails != "" {
				if out != "init 101\ndevices 0\n" || !strings.Contains(errs, c.fails) {
					t.Errorf("printed %q and said %q; want no GPU and a line with %q", out, errs, c.fails)
				}
				return
			}
			if line := fmt.Sprintf("init 0\ndevices 4 10/%dMiB/132 20/%dMiB/132 ", c.memory[0], c.memory[1]); !strings.HasPrefix(out, line) {
				t.Errorf("printed %q, want %q", out, line)
			}
		})
	}
}

// projection is what HAMi's monitor reads: size, magic and major version, the first 40 bytes of each UUID, the limits,
// and the sum of the records below proc_num whose status is not 0.
type projection struct {
	devices        int
	uuids          []string
	limit, percent []uint64
	used           []uint64
	processes      int
	recentKernel   int32
	lastKernel     uint64
}

func readHAMi(t *testing.T, path string) projection {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 2008952 {
		t.Fatalf("%d bytes", len(b))
	}
	u32 := func(o int) uint32 { return binary.LittleEndian.Uint32(b[o:]) }
	u64 := func(o int) uint64 { return binary.LittleEndian.Uint64(b[o:]) }
	if u32(0) != 19920718 || u32(4) != 1 || u32(8) != 2 {
		t.Fatalf("begins with %d %d %d", u32(0), u32(4), u32(8))
	}
	p := projection{devices: int(u64(56)), recentKernel: int32(u32(2008904)), lastKernel: u64(2008912)}
	for i := range p.devices {
		p.uuids = append(p.uuids, string(b[64+96*i:64+96*i+40]))
		p.limit = append(p.limit, u64(1600+8*i))
		p.percent = append(p.percent, u64(1728+8*i))
		p.used = append(p.used, 0)
	}
	for k := range int(u32(2008896)) {
		record := 1856 + 1960*k
		if u32(record+1928) == 0 {
			continue
		}
		p.processes++
		if u64(record+1936)%2 != 0 {
			t.Errorf("record %d was left half-written", k)
		}
		for i := range p.devices {
			used := record + 8 + 64*i
			p.used[i] += u64(used + 32)
			if sum := u64(used) + u64(used+8) + u64(used+16); sum != u64(used+32) {
				t.Errorf("record %d: parts add up to %d of %d", k, sum, u64(used+32))
			}
		}
	}
	return p
}

func TestHAMisMonitorCanReadTheRegion(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "x.cache")
	bin := ways(t)["dlsym"]
	env := hami(cache, "CUDA_DEVICE_MEMORY_LIMIT_0=64m", "CUDA_DEVICE_SM_LIMIT=30", "GPU_CORE_UTILIZATION_POLICY=force")
	want(t, mustRun(t, env, bin, "init", "alloc:33554432", "exec", "init", "alloc:33554433", "alloc:16777216", "die"),
		"init 0", "alloc 33554432 0", "init 0", "alloc 33554433 2", "alloc 16777216 0", "child 9")
	p := readHAMi(t, cache)
	if p.devices != 4 || p.uuids[0] != "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f" {
		t.Errorf("devices %d %q", p.devices, p.uuids)
	}
	if p.limit[0] != 64*mib || p.limit[1] != 0 || p.percent[0] != 30 || p.percent[1] != 30 {
		t.Errorf("limits %v, percents %v", p.limit, p.percent)
	}
	if p.processes != 2 || p.used[0] != 48*mib || p.used[1] != 0 {
		t.Errorf("%d processes hold %v; want 2 with 48 MiB", p.processes, p.used)
	}
	// The next process finds both dead; a new limit beats the old file.
	env = hami(cache, "CUDA_DEVICE_MEMORY_LIMIT_0=128m")
	want(t, mustRun(t, env, bin, "init", "alloc:134217728", "alloc:1"), "init 0", "alloc 134217728 0", "alloc 1 2")
	if p = readHAMi(t, cache); p.limit[0] != 128*mib || p.percent[0] != 100 || p.processes != 1 || p.used[0] != 128*mib {
		t.Errorf("%+v", p)
	}
	// Our own part lies behind HAMi's.
	b, err := os.ReadFile(cache)
	if err != nil || len(b) < region.HAMiBase+regionBytes || binary.LittleEndian.Uint64(b[region.HAMiBase:]) != region.Magic {
		t.Errorf("there is no region in %d bytes, %v", len(b), err)
	}
}

// The monitor writes into the file, too. It is no authority.
func TestHAMisMonitorWritesAreTolerated(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "x.cache")
	bin := ways(t)["dlsym"]
	env := hami(cache, "CUDA_DEVICE_MEMORY_LIMIT=64m")
	mustRun(t, env, bin, "init")
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ones := make([]byte, 2008952-16)
	for i := range ones {
		ones[i] = 0xff
	}
	if _, err := f.WriteAt(ones, 16); err != nil {
		t.Fatal(err)
	}
	want(t, mustRun(t, env, bin, "init", "alloc:67108864", "alloc:1"), "init 0", "alloc 67108864 0", "alloc 1 2")
}

func TestHAMiCacheThatCannotBeMade(t *testing.T) {
	bin := ways(t)["dlsym"]
	for name, cache := range map[string]string{"no folder": "/nonexistent/x.cache", "a folder": t.TempDir(), "proc": "/proc/x.cache"} {
		out, errs, err := run(t, hami(cache, "CUDA_DEVICE_MEMORY_LIMIT=64m"), "", bin, "init")
		if err != nil || out != "init 101\n" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: printed %q, said %q (%v)", name, out, errs, err)
		}
	}
	foreign := filepath.Join(t.TempDir(), "x.cache")
	if err := os.WriteFile(foreign, make([]byte, 2008953), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, errs, _ := run(t, hami(foreign, "CUDA_DEVICE_MEMORY_LIMIT=64m"), "", bin, "init"); out != "init 101\n" || !strings.Contains(errs, foreign) {
		t.Errorf("a file of another library: printed %q, said %q", out, errs)
	}
}

func TestHAMiManyStartAtOnce(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "x.cache")
	bin := ways(t)["dlsym"]
	script := fmt.Sprintf("i=0; while [ $i -lt 64 ]; do %s init alloc:1048576 </dev/null & i=$((i+1)); done; wait", bin)
	out := mustRun(t, hami(cache, "CUDA_DEVICE_MEMORY_LIMIT=64m"), "/bin/sh", "-c", script)
	if strings.Count(out, "init 0\n") != 64 || strings.Count(out, "alloc 1048576 0\n") != 64 {
		t.Errorf("not all have started:\n%s", out)
	}
	left, err := os.ReadDir(filepath.Dir(cache))
	if err != nil || len(left) != 1 {
		t.Errorf("left %v (%v); want the one file", left, err)
	}
}
