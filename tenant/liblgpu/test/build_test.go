package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/tenant/abi"
	"github.com/lgpu/lgpu/tenant/region"
)

// built holds what all tests share: the library and a driver without a device, in one folder.
var built struct {
	dir     string
	library string // liblgpu.so
	faults  string // the same with fault points
	checked string // the same, stopping at undefined behaviour
	cuda    string // the stub driver's libraries
	nvml    string
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lgpu-interposer-")
	if err == nil {
		err = os.Chdir("..") // where the sources are
	}
	if err == nil {
		built.dir = dir
		err = build(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// variables reads the assignments of sources.mk.
func variables() (map[string][]string, error) {
	text, err := os.ReadFile("sources.mk")
	if err != nil {
		return nil, err
	}
	vars := map[string][]string{}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)^(\w+) = (.*)$`).FindAllStringSubmatch(joined, -1) {
		vars[m[1]] = strings.Fields(m[2])
	}
	return vars, nil
}

func gcc(args ...string) error {
	out, err := exec.Command("gcc", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("gcc %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// library links liblgpu.so with flags and sources besides its own.
func library(out string, extra ...string) error {
	vars, err := variables()
	if err != nil {
		return err
	}
	args := append(append([]string{}, vars["LGPU_CFLAGS"]...), extra...)
	args = append(append(args, vars["LGPU_SOURCES"]...), vars["LGPU_LDFLAGS"]...)
	return gcc(append(args, "-o", out)...)
}

func build(dir string) error {
	built.library, built.faults = filepath.Join(dir, "liblgpu.so"), filepath.Join(dir, "liblgpu-faults.so")
	built.checked = filepath.Join(dir, "liblgpu-checked.so")
	var group errgroup.Group
	group.Go(func() error { return library(built.library) })
	group.Go(func() error { return library(built.faults, "-DLGPU_FAULT_POINTS", "testdata/fault.c") })
	group.Go(func() error { return library(built.checked, "-fsanitize=undefined", "-fno-sanitize-recover=all") })
	group.Go(func() error { return buildStubs(dir) })
	return group.Wait()
}

func buildStubs(dir string) error {
	stubs := filepath.Join(dir, "stub")
	if err := os.Mkdir(stubs, 0o755); err != nil {
		return err
	}
	generated := filepath.Join(dir, "stub_gen.c")
	text, err := stubSource("testdata/stub_driver.c")
	if err != nil {
		return err
	}
	if err := os.WriteFile(generated, text, 0o644); err != nil {
		return err
	}
	built.cuda, built.nvml = filepath.Join(stubs, "libcuda.so.1"), filepath.Join(stubs, "libnvidia-ml.so.1")
	for _, so := range []string{built.cuda, built.nvml} {
		// libcuda is bound to its own symbols, NVML is not.
		binding := map[bool]string{true: "-Wl,-Bsymbolic", false: "-fPIC"}[so == built.cuda]
		if err := gcc("-O1", "-g", "-shared", "-fPIC", binding, "-Wl,-soname,"+filepath.Base(so), "-DLGPU_CUDA_PLAIN",
			"-DLGPU_NVML_PLAIN", "-I../abi/include", "testdata/stub_driver.c", generated, "-o", so); err != nil {
			return err
		}
	}
	return nil
}

// stubSource writes the part of the stub driver that follows from the list of symbols: a function for each symbol that
// the files written by hand do not define, and the table of cuGetProcAddress.
func stubSource(files ...string) ([]byte, error) {
	var hand []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		hand = append(hand, text...)
	}
	cuda, nvml, err := symbols()
	if err != nil {
		return nil, err
	}
	var b, table bytes.Buffer
	for _, s := range append(append([]abi.Symbol{}, cuda...), nvml...) {
		isNVML := strings.HasPrefix(s.Name, "nvml")
		if s.Base != "" {
			fmt.Fprintf(&table, "\t{\"%s\", %d, %d, (void *)%s},\n", s.Base, s.Since, s.Flags, s.Name)
		}
		if regexp.MustCompile(`(?m)^\w+ ` + s.Name + `\(`).Match(hand) {
			if s.Base != "" {
				fmt.Fprintf(&b, "int %s();\n", s.Name)
			}
			continue
		}
		// Pointers travel as pointers whatever they point to; an argument that is none has room in a long.
		var params, faults []string
		for i, p := range s.Params {
			if strings.HasSuffix(p.Type, "*") {
				params = append(params, fmt.Sprintf("void *a%d", i))
				faults = append(faults, fmt.Sprintf("!a%d", i))
			} else if structure(p.Type) {
				params, faults = nil, nil
				break
			} else {
				params = append(params, fmt.Sprintf("long a%d", i))
			}
		}
		fault := map[bool]int{false: 1, true: 2}[isNVML]
		body := "return 0;"
		if len(faults) > 0 {
			body = fmt.Sprintf("return %s ? %d : 0;", strings.Join(faults, " || "), fault)
		}
		fmt.Fprintf(&b, "int %s(%s) { %s }\n", s.Name, strings.Join(params, ", "), body)
	}
	fmt.Fprintf(&b, "const struct stub_row { const char *base; int since; unsigned flags; void *function; } stub_rows[] = {\n%s\t{0, 0, 0, 0},\n};\n", table.Bytes())
	return append([]byte("#define NULL ((void *)0)\n"), b.Bytes()...), nil
}

// structure reports whether a parameter of this type is passed as a structure.
func structure(t string) bool {
	return t == "CUmemLocation" || t == "CUipcMemHandle" || t == "CUipcEventHandle"
}

// symbols returns the functions that both lists declare: debuggers' variables are left out.
func symbols() (cuda, nvml []abi.Symbol, err error) {
	if cuda, err = abi.CUDA(); err != nil {
		return nil, nil, err
	}
	functions := cuda[:0:0]
	for _, s := range cuda {
		if !variable(s.Name) {
			functions = append(functions, s)
		}
	}
	nvml, err = abi.NVML()
	return functions, nvml, err
}

// variable reports whether the symbol is one of the driver's variables for debuggers.
func variable(name string) bool {
	switch name {
	case "cudbgApiAttach", "cudbgApiDetach", "cudbgApiInit", "cudbgGetAPI", "cudbgGetAPIVersion", "cudbgMain",
		"cudbgReportDriverApiError", "cudbgReportDriverInternalError":
		return false
	}
	return strings.HasPrefix(name, "cudbg")
}

var programs struct {
	sync.Mutex
	paths map[string]string
}

// program compiles testdata/name.c once and returns the path of the result.
func program(t *testing.T, name string, flags ...string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	key := name + " " + strings.Join(flags, " ")
	if path, ok := programs.paths[key]; ok {
		return path
	}
	if programs.paths == nil {
		programs.paths = map[string]string{}
	}
	path := filepath.Join(built.dir, fmt.Sprintf("%s-%d", name, len(programs.paths)))
	args := []string{"-std=c11", "-D_GNU_SOURCE=", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-DLGPU_CUDA_PLAIN",
		"-DLGPU_NVML_PLAIN", "-I../abi/include", "-I.", filepath.Join("testdata", name+".c")}
	if err := gcc(append(append(args, flags...), "-o", path)...); err != nil {
		t.Fatal(err)
	}
	programs.paths[key] = path
	return path
}

// uuid is the UUID of one of the stub driver's four devices.
func uuid(device int) (u [16]byte) {
	for i := range u {
		u[i] = byte(0x10*(device+1) + i)
	}
	return u
}

// spec is an lgpu on the stub driver's devices.
func spec(memory uint64, devices ...int) region.Spec {
	s := region.Spec{Name: "test", HostMemory: region.NoLimit}
	for _, d := range devices {
		s.Devices = append(s.Devices, region.DeviceLimits{UUID: uuid(d), Memory: memory, Physical: 16 << 30, Compute: region.FullCompute})
	}
	return s
}

// newRegion makes a region file.
func newRegion(t *testing.T, s region.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.region")
	limits, err := s.Limits()
	if err != nil {
		t.Fatal(err)
	}
	file := make([]byte, regionBytes)
	copy(file, unsafe.Slice((*byte)(unsafe.Pointer(&limits)), unsafe.Sizeof(limits)))
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// regionBytes is the size of a region file.
const regionBytes = region.LimitsBytes + int(unsafe.Sizeof(region.Usage{}))

// tenant is the environment of a process inside an lgpu whose driver is the stub.
func tenant(regionPath string, more ...string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LD_PRELOAD=" + built.library, "LGPU_REGION=" + regionPath,
		"LGPU_REAL_LIBCUDA=" + built.cuda, "LGPU_REAL_LIBNVML=" + built.nvml, "LD_LIBRARY_PATH=" + filepath.Dir(built.cuda)}
	return append(env, more...)
}

// run runs a command to its end and returns what it printed and its exit status.
func run(t *testing.T, env []string, stdin string, name string, args ...string) (string, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stdout.String(), stderr.String(), err
}

// mustRun is run for a command that must succeed.
func mustRun(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, errs, err := run(t, env, "", name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", filepath.Base(name), args, err, out, errs)
	}
	return out
}
