// Command gen writes what is made from other files of package gpu, into the current folder: the header of its types,
// and the kernel's PTX.
package main

import (
	"log"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/hca/gpu/state"
	"github.com/lgpu/lgpu/shmem/module/compile"
)

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

// kernel is what the PTX is made of, in folder.
func kernel(folder string) compile.Source {
	return compile.Source{Folder: folder, File: "hca.cu", ISA: "74"}
}

func main() {
	if err := cheader.Write(".", []cheader.Header{header}); err != nil {
		log.Fatal(err)
	}
	if err := kernel(".").Write("hca.ptx.gz"); err != nil {
		log.Fatal(err)
	}
}
