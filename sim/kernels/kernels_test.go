package kernels

import (
	"bytes"
	"os/exec"
	"testing"
)

// TestGenerated compiles the sources again and compares, where the compiler of the go:generate lines is installed.
func TestGenerated(t *testing.T) {
	clang, err := exec.LookPath("clang-14")
	if err != nil {
		t.Skip("needs clang-14")
	}
	for file, want := range map[string][]byte{"linear.cu": Linear, "compute.cu": Compute, "control.cu": Control} {
		cmd := exec.Command(clang, "-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-Xclang", "-target-feature", "-Xclang", "+ptx60",
			"-nocudainc", "-nocudalib", "-O2", "-S", file, "-o", "-")
		got, err := cmd.Output()
		if err != nil {
			t.Fatalf("compile %s: %v", file, err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the PTX of %s is not what its source gives: run go generate", file)
		}
	}
}
