// Command gen writes the header of the kernels' parameters and compiles the kernels, all in the current folder.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/shmem/kernels"
)

func main() {
	if err := cheader.Write(".", []cheader.Header{header()}); err != nil {
		log.Fatal(err)
	}
	for _, m := range kernels.Modules() {
		ptx, err := compile(m, ".")
		if err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("ptx", string(m)+".ptx"), ptx, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
