package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// compiler is the command that makes the PTX.
const compiler = "clang-19"

// header is the C header of the kernels' parameters.
func header() cheader.Header {
	return cheader.Header{
		File: "lshmem_kernels.h", Source: "./shmem/kernels", Prefix: "LSHMEM_KERNEL_", CPlusPlus: true,
		About:     "The parameters of lshmem's kernels. Meaning: shmem/kernels/kernels.go. Include lshmem_state.h before.",
		Constants: []cheader.Constant{{Name: "LINES", Value: uint64(kernels.CollectiveLines)}},
		Types:     []any{kernels.Collective{}, kernels.RMA{}},
	}
}

// comments are those that the compiler puts into PTX, a third of the text, and empty lines.
var comments = regexp.MustCompile(`(?m)^[ \t]*(//.*)?\n|[ \t]+//.*$`)

// compile makes a module's PTX from the sources in folder. It needs the compiler, and no CUDA.
func compile(m kernels.Module, folder string) ([]byte, error) {
	source, defines := string(m), []string(nil)
	cTypes := [layout.Types]string{"int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
		"lshmem::half", "lshmem::bfloat", "float", "double"}
	if m == kernels.ModuleMemory {
		source, defines = "queue", []string{"-DLSHMEM_P2P_ONLY"}
	}
	for t := range layout.Types {
		if m == kernels.ReduceModule(t) {
			source = "reduce"
			name := strings.TrimPrefix(string(m), "reduce_")
			defines = []string{"-DLSHMEM_TYPE=" + cTypes[t], "-DLSHMEM_REDUCE_NAME=lshmem_kernel_reduce_" + name,
				"-DLSHMEM_REDUCESCATTER_NAME=lshmem_kernel_reducescatter_" + name}
		}
	}
	// PTX 7.8 is what drivers from 520 on take.
	args := append([]string{"-x", "cuda", "-std=c++17", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-Xclang", "-target-feature",
		"-Xclang", "+ptx78", "-nocudainc", "-nocudalib", "-Wall", "-Wextra", "-Werror", "-O3", "-S", "-o", "-"}, defines...)
	cmd := exec.Command(compiler, append(args, source+".cu")...)
	cmd.Dir = folder
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, err
		}
		return nil, fmt.Errorf("compile %s: %w\n%s", m, err, errs.Bytes())
	}
	return comments.ReplaceAll(out.Bytes(), nil), nil
}
