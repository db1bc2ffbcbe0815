package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDir(t *testing.T) {
	base := t.TempDir()
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "r"))
	dir, err := Dir()
	if err != nil || dir != filepath.Join(base, "r") {
		t.Fatalf("Dir() = %q, %v", dir, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if again, err := Dir(); err != nil || again != dir {
		t.Errorf("second Dir() = %q, %v", again, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if dir, err := Dir(); err == nil {
		t.Errorf("a folder everybody can write is accepted: %q", dir)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_RUNTIME_DIR", file)
	if dir, err := Dir(); err == nil {
		t.Errorf("a file is accepted as folder: %q", dir)
	}
	if err := os.Symlink(base, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "link"))
	if dir, err := Dir(); err == nil {
		t.Errorf("a link is accepted as folder: %q", dir)
	}
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join("/tmp", strings.Repeat("x", 90)))
	if dir, err := Dir(); err == nil || !strings.Contains(err.Error(), "95 bytes; 85 are possible") {
		t.Errorf("a path that is too long for sockets: %q, %v", dir, err)
	}
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "none", "none"))
	if dir, err := Dir(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder in a missing folder: %q, %v", dir, err)
	}
}
