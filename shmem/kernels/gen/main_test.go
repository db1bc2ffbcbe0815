package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/module/compile"
)

func TestHeaderIsFresh(t *testing.T) {
	have, err := os.ReadFile("../lshmem_kernels.h")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, header().Text()) {
		t.Error("lshmem_kernels.h is not what the Go types give; run: go generate ./shmem/kernels")
	}
}

// TestKernelsAreFresh compiles some of the modules, where the compiler is installed; make generate does all.
func TestKernelsAreFresh(t *testing.T) {
	if _, err := exec.LookPath(compile.Compiler); err != nil {
		t.Skip("needs " + compile.Compiler)
	}
	for _, m := range []kernels.Module{kernels.ModuleSync, kernels.ModuleWait, kernels.ModuleMove, "reduce_float32"} {
		want, err := source(m, "..").Text()
		if err != nil {
			t.Fatal(err)
		}
		if have := m.Image(); !bytes.Equal(bytes.TrimRight(have, "\x00"), want) {
			t.Errorf("the PTX of %s is not what its source gives; run: go generate ./shmem/kernels", m)
		}
	}
}
