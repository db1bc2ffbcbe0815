package assets

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
	"time"
)

// withShmem is a tree with the libraries and lshmem.
func withShmem() fstest.MapFS {
	s := tree("")
	for _, name := range []string{"liblshmem.so", "lshmem.py", "include/lshmem.h", "include/lshmem.cuh"} {
		s["lshmem/"+name] = &fstest.MapFile{Data: []byte("this is " + name)}
	}
	return s
}

func TestInstallWithShmem(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LGPU_LIBDIR", dir)
	libs, err := install(archive(t, withShmem()), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if libs.Lshmem != filepath.Join(dir, "lshmem") {
		t.Errorf("lshmem is in %q", libs.Lshmem)
	}
	for _, name := range []string{"liblshmem.so", "lshmem.py", "include/lshmem.cuh"} {
		if got, err := os.ReadFile(filepath.Join(libs.Lshmem, name)); err != nil || string(got) != "this is "+name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestInstallForDevelopers(t *testing.T) {
	dir := t.TempDir()
	got, err := installShmem(archive(t, withShmem()), dir)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"include/lshmem.cuh", "include/lshmem.h", "lib/liblshmem.so", "python/lshmem.py"} {
		want = append(want, filepath.Join(dir, name))
	}
	if !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("wrote %v, want %v", got, want)
	}
	for _, name := range want {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if executable := st.Mode()&0o111 != 0; executable != (filepath.Ext(name) == ".so") {
			t.Errorf("%s has mode %v", name, st.Mode())
		}
	}
	if _, err := installShmem(archive(t, tree("")), dir); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("without lshmem: %v", err)
	}
}
