// Command pack makes the archive of the C libraries inside lgpu. make build runs it.
//
//	pack ARCHIVE FOLDER FILE...    the files are named relative to the folder
package main

import (
	"bytes"
	"log"
	"os"

	"github.com/lgpu/lgpu/internal/assets"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("pack: ")
	if len(os.Args) < 4 {
		log.Fatal("usage: pack ARCHIVE FOLDER FILE...")
	}
	var b bytes.Buffer
	if err := assets.Pack(&b, os.DirFS(os.Args[2]), os.Args[3:]); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], b.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
