package test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
	"github.com/lgpu/lgpu/tenant/region"
)

// The software GPU's libraries are compiled once for all tests.
var simLibraries = struct {
	sync.Once
	dir string
}{}

// device is a software GPU with the library before it.
type device struct {
	t       *testing.T
	client  *wire.Client
	env     []string // of a process without an lgpu
	uuid    [16]byte
	context uint64 // what a context takes, bytes
}

func newDevice(t *testing.T, shape string) *device {
	t.Helper()
	simLibraries.Do(func() {
		simLibraries.dir = filepath.Join(built.dir, "sim")
		if err := os.CopyFS(simLibraries.dir, os.DirFS(simtest.Libraries(t))); err != nil {
			t.Fatal(err)
		}
	})
	s, err := sim.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	socket := simtest.Serve(t, s)
	client, err := wire.Dial(socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	devices, err := client.Devices()
	if err != nil {
		t.Fatal(err)
	}
	d := &device{t: t, client: client, context: s.Context}
	for i, b := range devices[0].UUID {
		d.uuid[i] = byte(b)
	}
	libs := simLibraries.dir
	d.env = []string{"PATH=" + os.Getenv("PATH"), wire.Environment + "=" + socket, "LD_LIBRARY_PATH=" + libs,
		"LGPU_REAL_LIBCUDA=" + filepath.Join(libs, "libcuda.so.1"), "LGPU_REAL_LIBNVML=" + filepath.Join(libs, "libnvidia-ml.so.1")}
	return d
}

// lgpu makes an lgpu of the device and returns the environment of its processes and its region.
func (d *device) lgpu(memory, host uint64) (env []string, path string) {
	d.t.Helper()
	s := region.Spec{Name: "test", HostMemory: host, Devices: []region.DeviceLimits{{UUID: d.uuid, Memory: memory, Physical: 1 << 30, Compute: region.FullCompute}}}
	path = newRegion(d.t, s)
	return append(append([]string{}, d.env...), "LD_PRELOAD="+built.library, "LGPU_REGION="+path), path
}

// simProgram compiles a program against the software GPU's libraries.
func simProgram(t *testing.T, source string, flags ...string) string {
	t.Helper()
	bin := filepath.Join(built.dir, strings.TrimSuffix(filepath.Base(source), ".c")+"-sim")
	args := []string{"-std=c11", "-D_GNU_SOURCE=", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I../abi/include", source,
		filepath.Join(simLibraries.dir, "libcuda.so.1"), filepath.Join(simLibraries.dir, "libnvidia-ml.so.1"), "-o", bin}
	if err := gcc(append(args, flags...)...); err != nil {
		t.Fatal(err)
	}
	return bin
}

// counter reads what an lgpu is charged for its first device, and for page-locked memory.
func counter(t *testing.T, path string) (device, host uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u := b[region.LimitsBytes:]
	return binary.LittleEndian.Uint64(u[unsafe.Offsetof(region.Usage{}.Device):]), binary.LittleEndian.Uint64(u[unsafe.Offsetof(region.Usage{}.Host):])
}

// Every path that takes device memory takes what the limit leaves and not a byte more, ends in an error that programs
// understand, and gives everything back. The program's own exit status says so; the rows are checked for having been
// full.
func TestEveryAllocatingPath(t *testing.T) {
	d := newDevice(t, "1x1GiB,sms=4")
	env, _ := d.lgpu(256*mib, region.NoLimit)
	env = append(env, "LD_PRELOAD="+built.checked)
	out := mustRun(t, env, simProgram(t, "../../bench/memory.c"))
	rows := regexp.MustCompile(`(?m)^(\S+) +(\d+) +([\d.]+) +(\d+) +([\d.]+) +([\d.]+) +\S+ +(-?[\d.]+)$`).FindAllStringSubmatch(out, -1)
	if len(rows) < 13 {
		t.Fatalf("%d rows:\n%s", len(rows), out)
	}
	for _, r := range rows {
		used, _ := strconv.ParseFloat(r[5], 64)
		left, _ := strconv.ParseFloat(r[7], 64)
		if r[4] != "2" || used > 256 || used < 240 || left != 0 {
			t.Errorf("%s: error %s with %s of 256 MiB used, %s left", r[1], r[4], r[5], r[7])
		}
	}
	// The hardware notices the program's end a little after we do.
	for deadline := time.Now().Add(10 * time.Second); ; {
		processes, err := d.client.Processes(0)
		if err != nil {
			t.Fatal(err)
		}
		if len(processes) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the device still has %v", processes)
		}
	}
}

// steps runs testdata/sim_paths.c, whose lines are "what error used MiB".
func steps(t *testing.T, env []string, what string, want ...string) {
	t.Helper()
	out := mustRun(t, env, simProgram(t, "testdata/sim_paths.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"), what)
	if have := strings.Split(strings.TrimSpace(strings.ReplaceAll(out, " used", "")), "\n"); strings.Join(have, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s:\nhave %s\nwant %s", what, strings.Join(have, ", "), strings.Join(want, ", "))
	}
}

func TestHandlesAndMappings(t *testing.T) {
	env, _ := newDevice(t, "1x1GiB,sms=4,context=64MiB").lgpu(256*mib, region.NoLimit)
	steps(t, env, "vmm", "begin 0 64", "create 0 72", "create 0 80", "reserve 0 80", "map 0 80", "map 0 80", "retain 0 80", "export 0 80",
		"import 0 80", "release import 0 80", "release 0 80", "release 0 80", "unmap both 0 72", "release 0 64", "bad release 1 64", "free 0 64")
}

func TestWhatFailsTakesNothing(t *testing.T) {
	env, _ := newDevice(t, "1x1GiB,sms=4,context=64MiB").lgpu(256*mib, region.NoLimit)
	steps(t, env, "failures", "begin 0 64", "nothing 1 64", "huge 2 64", "huge pitch 2 64", "no such device 101 64", "no granularity 1 64",
		"empty array 1 64", "free of nothing known 1 64", "free of zero 0 64")
}

// A context is charged, and all that was allocated in it goes with it.
func TestContexts(t *testing.T) {
	d := newDevice(t, "1x1GiB,sms=4,context=64MiB")
	env, _ := d.lgpu(256*mib, region.NoLimit)
	steps(t, env, "contexts", "begin 0 64", "second context 0 128", "its memory 0 144", "memory of the first 0 148", "destroy 0 68", "free 0 64",
		"third 0 128", "destroy 0 64", "memory 0 80", "from the pool 0 96", "reset 0 -709", "retain 0 -709", "whole again 0 192", "free 0 64")
	bin := simProgram(t, "testdata/sim_paths.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN")
	// One that does not fit is refused, by the first process, which has to make it to know, and by the next.
	env, path := d.lgpu(32*mib, region.NoLimit)
	for range 2 {
		if out := mustRun(t, env, bin); !strings.HasPrefix(out, "begin 2 ") {
			t.Errorf("printed %q", out)
		}
		if device, _ := counter(t, path); device != 0 {
			t.Errorf("%d bytes are left", device)
		}
	}
}

func TestHostMemoryLimit(t *testing.T) {
	d := newDevice(t, "1x1GiB,sms=4,context=64MiB")
	env, path := d.lgpu(256*mib, 40*mib)
	steps(t, env, "host", "begin 0 64", "host 0 64", "host 2 64", "host 0 64", "free 0 64", "host 0 64", "free 0 64", "free 0 64", "register 0 64", "unregister 0 64")
	if _, host := counter(t, path); host != 0 {
		t.Errorf("%d bytes of host memory are left", host)
	}
}

// Many processes of one lgpu fill it at once while others are killed. An observer that reads the region all the time
// never sees a byte over the limit, nor does the device hold more; and in the end there is nothing.
func TestManyProcessesShareOneLimit(t *testing.T) {
	// The driver takes small allocations out of pages of its own, which are charged once they have been measured:
	// so far may a process be ahead of its books.
	const page = 2 * mib
	const limit = 192 * mib
	d := newDevice(t, "1x1GiB,sms=4,context=4MiB")
	env, path := d.lgpu(limit, region.NoLimit)
	bin := simProgram(t, "../../bench/memory.c")
	var running sync.WaitGroup
	for i := range 6 {
		running.Add(1)
		go func() {
			defer running.Done()
			cmd := exec.Command(bin, "cuMemAlloc", "small", "cuMemCreate+cuMemMap", "cuArrayCreate", "cuMemAllocAsync")
			cmd.Env = env
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			if i%2 == 0 {
				time.AfterFunc(time.Duration(20+10*i)*time.Millisecond, func() { cmd.Process.Kill() })
			}
			cmd.Wait() // among others a path finds the lgpu full and says so; only the counters matter here
		}()
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	looks := 0
	for open := true; open; looks++ {
		select {
		case <-done:
			open = false
		default:
		}
		if device, _ := counter(t, path); device > limit {
			t.Fatalf("%d bytes are charged, %d over the limit", device, device-limit)
		}
		processes, err := d.client.Processes(0)
		if err != nil {
			t.Fatal(err)
		}
		var held, ahead uint64
		for _, p := range processes {
			if living(p.PID) { // the share of one that ends may be had again while the device still takes it apart
				held += p.MemoryUsed
				ahead += page
			}
		}
		if held > limit+ahead {
			t.Fatalf("the device holds %d bytes, %d over the limit", held, held-limit)
		}
	}
	if looks < 10 {
		t.Errorf("only %d looks", looks)
	}
	// The next process finds the dead and has it all to itself.
	out := mustRun(t, env, bin, "cuMemAlloc")
	if !strings.Contains(out, fmt.Sprintf("%10.2f %10.2f", 192.0, 192.0)) {
		t.Errorf("the whole limit cannot be had again:\n%s", out)
	}
}

// living reports whether a process exists and is not about to end.
func living(pid uint32) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	const exiting = 0x4 // PF_EXITING in the kernel's flags of a task
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&exiting == 0
}

// A killed process's memory can be had by a process that was there before.
func TestDeathIsNoticedWhenMemoryIsShort(t *testing.T) {
	d := newDevice(t, "1x1GiB,sms=4,context=4MiB")
	env, _ := d.lgpu(192*mib, region.NoLimit)
	bin := program(t, "tenant", "-ldl")
	// The survivor waits until the other has died.
	survivor := exec.Command(bin, "init", "wait", "alloc:192937984", "alloc:134217728")
	survivor.Env = env
	in, err := survivor.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := survivor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := survivor.Start(); err != nil {
		t.Fatal(err)
	}
	defer survivor.Wait()
	var text strings.Builder
	buffer := make([]byte, 256)
	for !strings.Contains(text.String(), "waiting\n") {
		n, err := stdout.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
		text.Write(buffer[:n])
	}
	if _, _, err := run(t, env, "", bin, "init", "alloc:134217728", "die"); err == nil {
		t.Error("the victim was not killed")
	}
	in.Close()
	rest, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	want(t, text.String()+string(rest), "init 0", "waiting", "alloc 192937984 0", "alloc 134217728 2")
}

func TestProcAddressOfTheSoftwareGPU(t *testing.T) {
	d := newDevice(t, "1x64MiB,sms=1,context=1MiB")
	env, _ := d.lgpu(32*mib, region.NoLimit)
	out, errs, err := run(t, env, answers(t), program(t, "procaddress"))
	if err != nil {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
}

func TestEverySymbolOfTheSoftwareGPUIsClassified(t *testing.T) {
	newDevice(t, "1x64MiB,sms=1,context=1MiB")
	t.Setenv("LGPU_TEST_DRIVERS", simLibraries.dir)
	TestEverySymbolOfADriverIsClassified(t)
}

// A program in an lgpu on a MIG instance sees that instance, as CUDA and NVML have it, whatever its environment says of others.
func TestInstance(t *testing.T) {
	dev := newDevice(t, "1x4GiB,sms=14,context=16MiB,mig=3g+2g+1g")
	devices, err := dev.client.Devices()
	if err != nil {
		t.Fatal(err)
	}
	s := region.Spec{Name: "test", HostMemory: region.NoLimit, Devices: []region.DeviceLimits{{Memory: 256 * mib, Physical: 1 << 30,
		Compute: region.FullCompute, Instance: 1}}}
	for i, b := range devices[2].UUID {
		s.Devices[0].UUID[i] = byte(b)
	}
	first := fmt.Sprintf("%02x", s.Devices[0].UUID[0])
	env := append(append([]string{}, dev.env...), "LD_PRELOAD="+built.library, "LGPU_REGION="+newRegion(t, s))
	bin := simProgram(t, "testdata/tenant.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN", "-DLINKED")
	for _, visible := range []string{"", "CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=MIG-" + first} {
		own := env
		if visible != "" {
			own = append(own, visible)
		}
		want(t, mustRun(t, own, bin, "smi", "init", "devices"),
			"nvml 0 devices 1 MIG-"+first+"/0/0of256MiB/0procs", "init 0", "devices 1 "+first+"/256MiB/4")
	}
	want(t, mustRun(t, append(env, "CUDA_VISIBLE_DEVICES=1"), bin, "init"), "init 100")
}
