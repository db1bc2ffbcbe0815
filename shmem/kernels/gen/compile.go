package main

import (
	"strings"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/module/compile"
)

// header is the C header of the kernels' parameters.
func header() cheader.Header {
	return cheader.Header{
		File: "lshmem_kernels.h", Source: "./shmem/kernels", Prefix: "LSHMEM_KERNEL_", CPlusPlus: true,
		About:     "The parameters of lshmem's kernels. Meaning: shmem/kernels/kernels.go. Include lshmem_state.h before.",
		Constants: []cheader.Constant{{Name: "LINES", Value: uint64(kernels.CollectiveLines)}},
		Types:     []any{kernels.Collective{}, kernels.RMA{}},
	}
}

// source is what a module is made of, in folder.
func source(m kernels.Module, folder string) compile.Source {
	cTypes := [layout.Types]string{"int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
		"lshmem::half", "lshmem::bfloat", "float", "double"}
	s := compile.Source{Folder: folder, File: string(m) + ".cu", ISA: "78"}
	if m == kernels.ModuleMemory {
		s.File, s.Defines = "queue.cu", []string{"LSHMEM_P2P_ONLY"}
	}
	for t := range layout.Types {
		if m == kernels.ReduceModule(t) {
			name := strings.TrimPrefix(string(m), "reduce_")
			s.File = "reduce.cu"
			s.Defines = []string{"LSHMEM_TYPE=" + cTypes[t], "LSHMEM_REDUCE_NAME=lshmem_kernel_reduce_" + name,
				"LSHMEM_REDUCESCATTER_NAME=lshmem_kernel_reducescatter_" + name}
		}
	}
	return s
}
