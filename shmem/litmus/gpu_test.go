package litmus

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needs finds a tool, which only machines of developers may lack.
func needs(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not there", name)
		}
		t.Skipf("needs %s", name)
	}
	return path
}

// ptxOf compiles the kernels of gpu/litmus.cu.
func ptxOf(arch, path string) []string {
	return []string{"-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "-Wall", "-Wextra", "-Werror", "-I../include", "-isystem",
		"testdata/stub", "--cuda-device-only", "--cuda-gpu-arch=" + arch, "--cuda-feature=+ptx80", "-O1", "-S", "-o", path, "gpu/litmus.cu"}
}

// TestGPUProgram runs the program on two software GPUs, with every test over mapped memory and those of whole warps and
// blocks over queues, too.
func TestGPUProgram(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	lgpu := needs(t, filepath.Join(root, "bin/lgpu"))
	library, cuda := filepath.Join(root, "build/lib/lshmem/liblshmem.so"), filepath.Join(root, "build/lib/sim/libcuda.so.1")
	for _, file := range []string{library, cuda} {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("%v; run: make build", err)
		}
	}
	dir := t.TempDir()
	module, program := filepath.Join(dir, "litmus.ptx"), filepath.Join(dir, "litmus")
	for _, c := range []*exec.Cmd{
		exec.Command(needs(t, "clang-19"), ptxOf("sm_90", module)...),
		exec.Command(needs(t, "g++"), "-x", "c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-DLITMUS_MODULE", "-I../include",
			"-isystem", "testdata/stub", "-isystem", "../../tenant/abi/include", "-o", program, "gpu/litmus.cu", "-x", "none", library, cuda, "-pthread"),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	for name, row := range map[string]struct {
		env   string
		tests []string
	}{
		"memory": {"LSHMEM_DISABLE_P2P=0", []string{""}},
		"queues": {"LSHMEM_DISABLE_P2P=1", []string{"put_signal_block", "nbi_quiet_warp", "put_fence_put_block"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, test := range row.tests {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, lgpu, "run", "--sim=2x16GiB,sms=4", "--pes", "2", "--", program, "2", test)
				cmd.Env = append(os.Environ(), row.env, "LITMUS_MODULE="+module, "LSHMEM_TIMEOUT=60s",
					"LD_LIBRARY_PATH="+filepath.Dir(library)+":"+filepath.Dir(cuda))
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", test, err, out)
				}
				if good := strings.Count(string(out), `"bad": 0, "status": 0`); good < 4 || good != strings.Count(string(out), `"test":`) {
					t.Errorf("%s: %d good lines:\n%s", test, good, out)
				}
			}
		})
	}
}

// TestGPUCompiles: both sides of the program for real GPUs, without CUDA.
func TestGPUCompiles(t *testing.T) {
	clang := needs(t, "clang-19")
	for name, args := range map[string][]string{
		"sm_70": ptxOf("sm_70", filepath.Join(t.TempDir(), "litmus.ptx")),
		"host": {"-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "-Wall", "-Wextra", "-Werror", "-I../include", "-isystem", "testdata/stub",
			"--cuda-host-only", "--cuda-gpu-arch=sm_90", "-fsyntax-only", "gpu/litmus.cu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := exec.Command(clang, args...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
