// Package test tests lshmem as programs outside of Go have it: the library in C, NVSHMEM's names, and the Python
// module, in processes whose memory is the host's or a software GPU's. It tests what "make build" made.
package test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

const include = "../../include"

// library is the folder of the library and the module.
func library(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../build/lib/lshmem")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "liblshmem.so")); err != nil {
		t.Fatal("liblshmem.so is missing; run: make build")
	}
	return dir
}

func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// compile makes a program or an object of a source.
func compile(t *testing.T, command ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	c := exec.Command(tool(t, command[0]), append(command[1:], "-o", out)...)
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", c.Args, err, text)
	}
	return out
}

// program makes a C program.
func program(t *testing.T, source string, more ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	flags := append(strings.Fields(os.Getenv("LSHMEM_TEST_CFLAGS")), more...) // sanitizers, by make sanitize
	return compile(t, append([]string{cc, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I", include, "testdata/" + source,
		filepath.Join(library(t), "liblshmem.so"), "-pthread"}, flags...)...)
}

// place is where PEs have their memory.
type place struct {
	name string
	env  []string
}

// places are host memory and a software GPU of two devices.
func places(t *testing.T) []place {
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz, shape.Context = 2, 1<<30, 4, 200, 16<<20
	return []place{
		{"host", []string{"LSHMEM_DEVICE=none"}},
		{"device", []string{"LD_LIBRARY_PATH=" + library(t) + ":" + filepath.Join(library(t), "../sim"), wire.Environment + "=" + simtest.Serve(t, shape)}},
	}
}

// job runs a command as n PEs and returns what each wrote and how it ended.
func job(t *testing.T, n int, p place, command []string, env ...string) ([]string, []error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	base := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LSHMEM_") || strings.HasPrefix(v, "NVSHMEM_") || strings.HasPrefix(v, "LD_LIBRARY_PATH=")
	})
	base = append(base, "LD_LIBRARY_PATH="+library(t), "PYTHONPATH="+library(t), "PYTHONDONTWRITEBYTECODE=1", "LSHMEM_CHUNK=2M", "LSHMEM_MAX_TEAMS=12",
		"LSHMEM_TIMEOUT=20s", "LSHMEM_HEAP_MAX=256M", "LSHMEM_PES="+strconv.Itoa(n), "LSHMEM_BOOTSTRAP=tcp://"+address+"?a-token-of-the-test",
		"WORLD_SIZE="+strconv.Itoa(n))
	out, ended := make([]string, n), make([]error, n)
	var g errgroup.Group
	for pe := range n {
		c := exec.Command(command[0], command[1:]...)
		c.Env = slices.Concat(base, []string{"LSHMEM_PE=" + strconv.Itoa(pe), "RANK=" + strconv.Itoa(pe), "LSHMEM_DEVICE=" + strconv.Itoa(pe%2)}, p.env, env)
		c.WaitDelay = time.Second
		var text bytes.Buffer
		c.Stdout, c.Stderr = &text, &text
		g.Go(func() error {
			if err := c.Start(); err != nil {
				ended[pe] = err
				return nil
			}
			late := time.AfterFunc(60*time.Second, func() { c.Process.Kill() })
			defer late.Stop()
			if err := c.Wait(); err != nil {
				ended[pe] = fmt.Errorf("PE %d: %w\n%s", pe, err, &text)
			}
			out[pe] = text.String()
			return nil
		})
	}
	g.Wait()
	return out, ended
}

// run is job for PEs that must all end well.
func run(t *testing.T, n int, p place, command []string, env ...string) []string {
	t.Helper()
	out, ended := job(t, n, p, command, env...)
	if err := errors.Join(ended...); err != nil {
		t.Errorf("on %s: %v", p.name, err)
	}
	return out
}

func TestEveryFunction(t *testing.T) {
	every := program(t, "every.c")
	for _, p := range places(t) {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprint(p.name, " ", n), func(t *testing.T) { run(t, n, p, []string{every}) })
		}
		t.Run(p.name+" dies", func(t *testing.T) { run(t, 3, p, []string{every, "dies"}) })
		t.Run(p.name+" exits", func(t *testing.T) { run(t, 2, p, []string{every, "exits"}) })
	}
}

// Several instances in one process, callbacks, and a unique id.
func TestThreads(t *testing.T) {
	threads := program(t, "threads.c")
	for _, p := range places(t) {
		t.Run(p.name, func(t *testing.T) { run(t, 1, p, []string{threads}) })
	}
}

// A callback that returns after its timeout, when the PE has left.
func TestLateCallback(t *testing.T) {
	late := program(t, "late.c")
	// What is freed is overwritten, so that its use is noticed.
	run(t, 1, places(t)[0], []string{late}, "LSHMEM_BOOTSTRAP_TIMEOUT=1", "MALLOC_PERTURB_=165")
}

// What a lshmem_config says of a PE's number counts for more than the environment.
func TestNumbers(t *testing.T) {
	numbers := program(t, "numbers.c")
	run(t, 3, places(t)[0], []string{numbers})
	_, ended := job(t, 2, places(t)[0], []string{numbers}, "LSHMEM_BOOTSTRAP=")
	for pe, err := range ended {
		if err == nil || !strings.Contains(err.Error(), "nothing says how they find each other") {
			t.Errorf("PE %d without a way to the others: %v", pe, err)
		}
	}
}

// The library has what the header declares and nothing else, and calls nothing that a system without CUDA or NICs
// lacks.
func TestExports(t *testing.T) {
	file, err := elf.Open(filepath.Join(library(t), "liblshmem.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(include + "/lshmem.h")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(?:int|const char \*)\s*(lshmem_\w+)\(`).FindAllSubmatch(header, -1) {
		declared[string(m[1])] = true
	}
	if len(declared) < 70 {
		t.Errorf("only %d functions were found in lshmem.h", len(declared))
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		if !declared[s.Name] {
			t.Errorf("%s is exported and not declared", s.Name)
		}
		delete(declared, s.Name)
	}
	for name := range declared {
		t.Errorf("%s is declared and not exported", name)
	}
	libraries, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		if !strings.HasPrefix(l, "libc.so") && !strings.HasPrefix(l, "libpthread.so") && !strings.HasPrefix(l, "libdl.so") && !strings.HasPrefix(l, "ld-linux") {
			t.Errorf("it needs %s", l)
		}
	}
	// A thread-local block that must be static is small, or processes that load the library late cannot.
	for _, p := range file.Progs {
		if p.Type == elf.PT_TLS && p.Memsz > 64 {
			t.Errorf("%d bytes of static thread-local memory", p.Memsz)
		}
	}
}

// The header alone, in C and C++, and together with the device code.
func TestHeaders(t *testing.T) {
	for _, c := range [][]string{
		{"cc", "-std=c11", "-pedantic", "-x", "c"}, {"g++", "-std=c++11", "-pedantic", "-x", "c++"}, {"clang-19", "-std=c11", "-x", "c"},
	} {
		source := filepath.Join(t.TempDir(), "one")
		if err := os.WriteFile(source, []byte("#include \"lshmem.h\"\nint main(void) { return LSHMEM_OK; }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(c[0], func(t *testing.T) {
			compile(t, append(c, "-Wall", "-Wextra", "-Werror", "-I", include, "-fsyntax-only", source)...)
		})
	}
}

// cxx makes a C++ program, object or library.
func cxx(t *testing.T, more ...string) string {
	t.Helper()
	command := []string{"g++", "-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-I", include, "-pthread"}
	return compile(t, slices.Concat(command, strings.Fields(os.Getenv("LSHMEM_TEST_CFLAGS")), more)...)
}

// cuda has clang compile a unit of CUDA code, without CUDA's headers.
func cuda(t *testing.T, more ...string) string {
	t.Helper()
	command := []string{"clang-19", "-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "-isystem", "testdata/stub",
		"-Wall", "-Wextra", "-Werror", "-I", include}
	return compile(t, append(command, more...)...)
}

var deviceOnly = []string{"--cuda-device-only", "--cuda-gpu-arch=sm_90", "-Xclang", "-target-feature", "-Xclang",
	"+ptx80"}

func TestCompat(t *testing.T) {
	here := places(t)
	t.Run("CPU", func(t *testing.T) {
		run(t, 2, here[0], []string{cxx(t, "-O1", "testdata/compat.cpp", filepath.Join(library(t), "liblshmem.so"))})
	})
	t.Run("module", func(t *testing.T) {
		ptx := cuda(t, append(deviceOnly, "-O2", "-S", "testdata/compat.cu")...)
		host := program(t, "module.c", "-I", "../../../tenant/abi/include", filepath.Join(library(t), "../sim/libcuda.so.1"))
		run(t, 2, here[1], []string{host, ptx})
	})
}

// A main.cpp that no CUDA compiler sees, alone and in programs with units of other kinds. Nothing is inlined, so that
// linkers keep one of the functions that several units have, that of the unit that comes first: each does once.
func TestCompatUnits(t *testing.T) {
	here := places(t)[0]
	object := func(t *testing.T, source string, flags ...string) string {
		return cxx(t, append(flags, "-O0", "-c", "testdata/"+source)...)
	}
	runs := func(t *testing.T, objects ...string) {
		t.Helper()
		run(t, 2, here, []string{cxx(t, append(objects, filepath.Join(library(t), "liblshmem.so"))...)})
	}
	t.Run("alone", func(t *testing.T) { runs(t, object(t, "host.cpp")) })
	t.Run("with CPU code", func(t *testing.T) {
		host, cpu := object(t, "host.cpp", "-DCPU_UNIT"), object(t, "unit.cpp")
		runs(t, host, cpu)
		runs(t, cpu, host)
	})
	t.Run("with a library", func(t *testing.T) {
		host := object(t, "host.cpp", "-DCPU_UNIT", "-fvisibility=hidden")
		cpu := object(t, "unit.cpp", "-fPIC", "-fvisibility=hidden")
		runs(t, host, cxx(t, "-shared", cpu))
	})
	t.Run("with CUDA code", func(t *testing.T) {
		cuda(t, append(deviceOnly, "-S", "testdata/unit.cu")...)
		host, cpu := object(t, "host.cpp", "-DCPU_UNIT", "-DCUDA_UNIT"), object(t, "unit.cpp")
		gpu := cuda(t, "--cuda-host-only", "-O0", "-c", "testdata/unit.cu")
		runs(t, host, cpu, gpu)
		runs(t, cpu, gpu, host)
		runs(t, gpu, host, cpu)
		run(t, 2, places(t)[1], []string{cxx(t, object(t, "devices.cpp"), gpu, filepath.Join(library(t), "liblshmem.so"))})
	})
}

// CUDA's headers may come before or after, whether the compiler finds them by itself or not.
func TestCompatCUDAHeaders(t *testing.T) {
	dir := t.TempDir()
	header := filepath.Join(dir, "cuda_runtime_api.h")
	if err := os.WriteFile(header, []byte("typedef struct CUstream_st *cudaStream_t;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compat, theirs := "#include \"lshmem_compat.h\"\n", "#include \""+header+"\"\n"
	for order, text := range map[string]string{"before": theirs + compat, "after": compat + theirs} {
		source := filepath.Join(dir, order+".cpp")
		use := "void f(cudaStream_t s) { nvshmemx_barrier_all_on_stream(s); }\n"
		if err := os.WriteFile(source, []byte(text+use), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"-ULSHMEM_COMPAT_CPU", "-DLSHMEM_COMPAT_CPU"} {
			cxx(t, part, "-fsyntax-only", source)
			cxx(t, part, "-fsyntax-only", "-I", dir, source)
		}
	}
}

func TestPython(t *testing.T) {
	here := places(t)
	python := tool(t, "python3")
	for _, how := range []string{"env", "store", "uniqueid"} {
		for _, p := range here {
			t.Run(how+" "+p.name, func(t *testing.T) {
				for pe, out := range run(t, 2, p, []string{python, "testdata/pe.py", how, p.name}, "STORE="+t.TempDir()) {
					if !strings.Contains(out, "all well") {
						t.Errorf("PE %d: %s", pe, out)
					}
				}
			})
		}
	}
}

// All versions of Python that are here import the module.
func TestPythonVersions(t *testing.T) {
	var wg sync.WaitGroup
	for minor := 9; minor < 16; minor++ {
		path, err := exec.LookPath(fmt.Sprint("python3.", minor))
		if err != nil {
			continue
		}
		wg.Go(func() {
			c := exec.Command(path, "-c", "import lshmem; print(lshmem.version())")
			c.Env = append(os.Environ(), "PYTHONPATH="+library(t), "PYTHONDONTWRITEBYTECODE=1")
			if out, err := c.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "lshmem 1.") {
				// A name on the path may be a wrapper for a version that is not there.
				if !strings.Contains(string(out), "not found") && !strings.Contains(string(out), "not installed") {
					t.Errorf("%s: %v\n%s", path, err, out)
				}
			}
		})
	}
	wg.Wait()
}
