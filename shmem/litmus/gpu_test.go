package litmus

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGPUCompiles: both sides of the program for real GPUs, without CUDA.
func TestGPUCompiles(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("clang-19 is not installed")
		}
		t.Skip("needs clang-19")
	}
	common := []string{"-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "-Wall", "-Wextra", "-Werror", "-I../include",
		"-isystem", "testdata/stub"}
	for name, args := range map[string][]string{
		"sm_70": {"--cuda-device-only", "--cuda-gpu-arch=sm_70", "--cuda-feature=+ptx80", "-O1", "-S", "-o", filepath.Join(t.TempDir(), "70.ptx")},
		"host":  {"--cuda-host-only", "--cuda-gpu-arch=sm_90", "-fsyntax-only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := exec.Command("clang-19", append(append(args, common...), "gpu/litmus.cu")...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
