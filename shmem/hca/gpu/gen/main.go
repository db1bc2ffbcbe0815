// Command gen writes what is made from other files of package gpu, into the current folder: the header of its types,
// and the kernel's PTX.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/hca/gpu/state"
)

// compiler is the command that makes the PTX. It needs no CUDA.
const compiler = "clang-19"

var header = cheader.Header{
	File: "lshmem_hca.h", Source: "./shmem/hca/gpu", Prefix: "LSHMEM_HCA_", CPlusPlus: true,
	About: "What the kernel of the software HCA and its host share. Meaning: shmem/hca/gpu/state/state.go.",
	Constants: []cheader.Constant{
		{Name: "FLAG_CYCLIC", Value: state.FlagCyclic}, {Name: "FLAG_RECORD", Value: state.FlagRecord},
		{Name: "FLAG_HOST_POSTS", Value: state.FlagHostPosts}, {Name: "FLAG_OVERRUN", Value: state.FlagOverrun},
		{Name: "MAX_WARPS", Value: state.MaxWarps}, {Name: "KEY_SHIFT", Value: state.KeyShift},
		{Name: "RECOVER_NANOS", Value: state.RecoverNanos}, {Name: "TURN_ENTRIES", Value: state.TurnEntries},
		{Name: "MAX_MESSAGE", Value: state.MaxMessage},
	},
	Types: []any{state.HcaKey{}, state.HcaSpace{}, state.HcaQueue{}, state.HcaRequest{}, state.HcaAnswer{}, state.HcaAdapter{}},
}

// compile makes the kernel's PTX from the sources in folder. PTX 7.4 is what drivers from 470 on take.
func compile(folder string) ([]byte, error) {
	cmd := exec.Command(compiler, "-x", "cuda", "-std=c++17", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "-Xclang",
		"-target-feature", "-Xclang", "+ptx74", "-nocudainc", "-nocudalib", "-Wall", "-Wextra", "-Werror", "-O3", "-S", "-o", "-", "hca.cu")
	cmd.Dir = folder
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("compile hca.cu: %w\n%s", err, errs.Bytes())
	}
	return out.Bytes(), nil
}

func main() {
	if err := cheader.Write(".", []cheader.Header{header}); err != nil {
		log.Fatal(err)
	}
	ptx, err := compile(".")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("hca.ptx", ptx, 0o644); err != nil {
		log.Fatal(err)
	}
}
