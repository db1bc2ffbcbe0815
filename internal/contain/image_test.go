package contain

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// image makes a folder that is an image with the interposer in its place.
func image(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, data := range map[string][]byte{LibraryDir + "/libcuda.so.1": library(t), "/secret": []byte("of the image")} {
		at := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestInside: no path of an image leads out of it, and nothing that is no file is opened.
func TestInside(t *testing.T) {
	root := image(t)
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("of the machine"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 64)
	for name, target := range map[string]string{
		"absolute": outside, "up": up + outside, "own": up + "secret", "proc": "/proc/self/root" + outside, "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	i, err := OpenImage(root)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	for _, path := range []string{"/absolute", "/up", "/proc", "/loop", "/pipe", "/../.." + outside, "/"} {
		if f, err := i.open(path); err == nil {
			t.Errorf("%s is %s", path, f.Name())
		}
	}
	f, err := i.open("/own")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := make([]byte, 64)
	if n, _ := f.Read(text); string(text[:n]) != "of the image" {
		t.Errorf("/own: %q", text[:n])
	}
}

// TestUnfit: an image that cannot load the driver is refused, with the reason, and one without the daemon's folders too.
func TestUnfit(t *testing.T) {
	if _, err := OpenImage(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the interposer: %v", err)
	}
	for name, want := range map[string]string{"": "no C library", "lib/ld-musl-x86_64.so.1": "the C library musl"} {
		root := image(t)
		if name != "" {
			if err := errors.Join(os.Mkdir(filepath.Join(root, "lib"), 0o755), os.WriteFile(filepath.Join(root, name), nil, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		i, err := OpenImage(root)
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		if err := i.Furnish(nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func FuzzGlibc(f *testing.F) {
	for _, name := range []string{"GLIBC_2.36", "GLIBC_2.2.5", "GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBC_-1.x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if v, ok := parseGlibc(name); ok && !strings.HasPrefix(name, "GLIBC_") {
			t.Errorf("%q is %s", name, v)
		}
	})
}
