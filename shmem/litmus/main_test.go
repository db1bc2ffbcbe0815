package litmus

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/lgpu/lgpu/shmem/mutation"
)

// folder is where programs are built, and the copy of the headers that has defects.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "litmus"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := mutation.Copy("../include", filepath.Join(folder, "include")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}
