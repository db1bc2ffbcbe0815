package assets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

func source(change string) fstest.MapFS {
	s := fstest.MapFS{}
	for _, name := range files {
		s["lib/"+name] = &fstest.MapFile{Data: []byte(strings.Repeat(name+change, 10000))}
	}
	return s
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	t.Setenv("LGPU_LIBDIR", dir)
	libs, err := install(source(""), "lib")
	if err != nil {
		t.Fatal(err)
	}
	if libs.Interposer != filepath.Join(dir, "liblgpu.so") || libs.SimDir != filepath.Join(dir, "sim") || libs.Dir != dir || libs.Lshmem != "" {
		t.Errorf("installed to %+v", libs)
	}
	before, err := os.Stat(libs.Interposer)
	if err != nil {
		t.Fatal(err)
	}
	inUse, err := os.Open(libs.Interposer)
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.Close()

	if _, err := install(source(""), "lib"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(libs.Interposer); err != nil || !os.SameFile(before, after) {
		t.Errorf("an intact library was replaced (%v)", err)
	}

	// A damaged file, and an upgrade: both are new files.
	if err := os.WriteFile(filepath.Join(libs.SimDir, "libcuda.so.1"), []byte("torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := install(source("2"), "lib"); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != string(source("2")["lib/"+name].Data) {
			t.Errorf("%s is not the new one (%v)", name, err)
		}
	}
	if old, err := os.Stat(libs.Interposer); err != nil || os.SameFile(before, old) {
		t.Errorf("a library in use was written to (%v)", err)
	}
	noTemporaries(t, dir)
}

func TestInstallAtOnce(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LGPU_LIBDIR", dir)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			libs, err := install(source(""), "lib")
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(libs.Interposer); err != nil || len(got) != len(source("")["lib/liblgpu.so"].Data) {
				t.Errorf("half a library: %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	noTemporaries(t, dir)
}

func noTemporaries(t *testing.T, dir string) {
	t.Helper()
	for _, pattern := range []string{".new-*", "sim/.new-*"} {
		if left, _ := filepath.Glob(filepath.Join(dir, pattern)); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestInstallRefuses(t *testing.T) {
	if _, err := install(fstest.MapFS{"lib/README.md": {}}, "lib"); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("without libraries: %v", err)
	}
	t.Setenv("LGPU_LIBDIR", filepath.Join(t.TempDir(), "with space"))
	if libs, err := install(source(""), "lib"); err == nil || !strings.Contains(err.Error(), "with space") {
		t.Errorf("folder with a space: %+v, %v", libs, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_LIBDIR", filepath.Join(file, "sub"))
	if libs, err := install(source(""), "lib"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("folder below a file: %+v, %v", libs, err)
	}
}

func TestVersionedFolder(t *testing.T) {
	t.Setenv("LGPU_LIBDIR", "")
	t.Setenv("XDG_CACHE_HOME", "/somewhere/cache")
	want := "/somewhere/cache/lgpu/0011"
	if os.Getuid() == 0 {
		want = "/run/lgpu/lib/0011"
	}
	if dir, err := folder("0011"); err != nil || dir != want {
		t.Errorf("folder %q, %v; want %q", dir, err, want)
	}
}
