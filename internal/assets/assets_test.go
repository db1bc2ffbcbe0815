package assets

import (
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

// library is what the tests' libraries of a version contain.
func library(name, version string) string { return strings.Repeat(name+version, 10000) }

// tree has the libraries of a version.
func tree(version string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, name := range files {
		m[name] = &fstest.MapFile{Data: []byte(library(name, version))}
	}
	return m
}

// archive packs a tree.
func archive(t *testing.T, m fstest.MapFS) *zip.Reader {
	t.Helper()
	var b bytes.Buffer
	if err := Pack(&b, m, slices.Sorted(maps.Keys(m))); err != nil {
		t.Fatal(err)
	}
	z, err := open(fstest.MapFS{"archive/libraries.zip": {Data: b.Bytes()}})
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	t.Setenv("LGPU_LIBDIR", dir)
	libs, err := install(archive(t, tree("")), time.Now())
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

	if _, err := install(archive(t, tree("")), time.Now()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(libs.Interposer); err != nil || !os.SameFile(before, after) {
		t.Errorf("an intact library was replaced (%v)", err)
	}

	// A damaged file, and an upgrade: both are new files.
	if err := os.WriteFile(filepath.Join(libs.SimDir, "libcuda.so.1"), []byte("torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := install(archive(t, tree("2")), time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != library(name, "2") {
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
	z := archive(t, tree(""))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			libs, err := install(z, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(libs.Interposer); err != nil || string(got) != library("liblgpu.so", "") {
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
	if _, err := open(fstest.MapFS{"archive/README.md": {}}); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("without an archive: %v", err)
	}
	if _, err := open(fstest.MapFS{"archive/libraries.zip": {Data: []byte("torn")}}); err == nil || errors.Is(err, ErrNotBuilt) {
		t.Errorf("a torn archive: %v", err)
	}
	if _, err := install(archive(t, fstest.MapFS{"liblgpu.so": {}}), time.Now()); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("without libraries: %v", err)
	}
	t.Setenv("LGPU_LIBDIR", filepath.Join(t.TempDir(), "with space"))
	if libs, err := install(archive(t, tree("")), time.Now()); err == nil || !strings.Contains(err.Error(), "with space") {
		t.Errorf("folder with a space: %+v, %v", libs, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_LIBDIR", filepath.Join(file, "sub"))
	if libs, err := install(archive(t, tree("")), time.Now()); err == nil || !strings.Contains(err.Error(), file) {
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

func TestPack(t *testing.T) {
	var first, second bytes.Buffer
	m := tree("")
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := Pack(b, m, files); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) || first.Len() > 10000 {
		t.Errorf("archives of the same files: %d and %d bytes, not equal or not compressed", first.Len(), second.Len())
	}
	if err := Pack(&first, m, []string{"none.so"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestBinarySize notices when lgpu grows suddenly. The usual reason is a package that calls methods by name, as
// text/template does: then the linker keeps every method of every type. go build -ldflags=-dumpdep shows which package
// it is (ReflectMethod).
func TestBinarySize(t *testing.T) {
	st, err := os.Stat("../../bin/lgpu")
	if err != nil {
		t.Skip("bin/lgpu is missing; run: make build")
	}
	if st.Size() > 27e6 {
		t.Errorf("bin/lgpu has %.1f MB, more than 27", float64(st.Size())/1e6)
	}
}

func BenchmarkInstall(b *testing.B) {
	z, err := open(embedded)
	if err != nil {
		b.Skip(err)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			b.Setenv("LGPU_LIBDIR", b.TempDir())
			if _, err := install(z, later()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		b.Setenv("LGPU_LIBDIR", b.TempDir())
		for b.Loop() {
			if _, err := install(z, later()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
