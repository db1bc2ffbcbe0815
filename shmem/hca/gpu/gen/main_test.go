package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/lgpu/lgpu/shmem/module/compile"
)

func TestFresh(t *testing.T) {
	have, err := os.ReadFile("../" + header.File)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, header.Text()) {
		t.Errorf("%s is not what the Go types give; run: go generate ./shmem/hca/gpu", header.File)
	}
	ptx, err := kernel("..").Text()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("%s is not installed", compile.Compiler)
	}
	if err != nil {
		t.Fatal(err)
	}
	if have, err = os.ReadFile("../hca.ptx.gz"); err != nil {
		t.Fatal(err)
	}
	if !compile.Same(have, ptx) {
		t.Error("hca.ptx.gz is not what the sources give; run: go generate ./shmem/hca/gpu")
	}
}
