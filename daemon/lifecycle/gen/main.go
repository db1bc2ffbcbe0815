// Command gen writes the document of package lifecycle to a file.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/daemon/lifecycle"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FILE")
	}
	if err := os.WriteFile(os.Args[1], []byte(lifecycle.Document()), 0o644); err != nil {
		log.Fatal(err)
	}
}
