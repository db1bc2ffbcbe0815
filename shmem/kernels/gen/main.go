// Command gen writes the header of the kernels' parameters and compiles the kernels, all in the current folder.
package main

import (
	"log"
	"path/filepath"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/kernels"
)

func main() {
	if err := cheader.Write(".", []cheader.Header{header()}); err != nil {
		log.Fatal(err)
	}
	for _, m := range kernels.Modules() {
		if err := source(m, ".").Write(filepath.Join("ptx", string(m)+".ptx.gz")); err != nil {
			log.Fatal(err)
		}
	}
}
