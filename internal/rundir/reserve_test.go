package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	is := func(want bool, when string) {
		t.Helper()
		if Reserved(dir) != want {
			t.Errorf("%s: reserved is %v", when, !want)
		}
	}
	is(false, "at first")
	for range 2 { // a daemon that was killed has left it
		if err := Reserve(dir); err != nil {
			t.Fatal(err)
		}
		is(true, "then")
	}
	info, err := os.Stat(filepath.Join(dir, reservation))
	if err != nil || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("others can write it: %v, %v", info, err)
	}
	for range 2 {
		if err := Unreserve(dir); err != nil {
			t.Fatal(err)
		}
		is(false, "in the end")
	}
	none := filepath.Join(dir, "none")
	if err := Reserve(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if Reserved(none) {
		t.Error("a machine without the folder is reserved")
	}
}
