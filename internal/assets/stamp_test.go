package assets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/internal/wholefile"
)

// later is a time at which files that were just written have settled.
func later() time.Time { return time.Now().Add(time.Hour) }

// stampedFolder has the libraries of archive "" and their stamp.
func stampedFolder(t *testing.T) (libs Libraries, again func() (library string)) {
	t.Setenv("LGPU_LIBDIR", t.TempDir())
	z := archive(t, tree(""))
	again = func() string {
		t.Helper()
		var err error
		if libs, err = install(z, later()); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(libs.Interposer)
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	again()
	again()
	if _, err := os.Stat(filepath.Join(libs.Dir, stampName)); err != nil {
		t.Fatal(err)
	}
	return libs, again
}

// forge writes the stamp that dir would have if what is in it were right.
func forge(t *testing.T, dir string) {
	t.Helper()
	text, _, err := describe(archive(t, tree("")), dir)
	if err == nil {
		err = wholefile.Write(filepath.Join(dir, stampName), strings.NewReader(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What the stamp vouches for is not read: a wrong file stays if its owner says that it is right.
func TestStampIsBelieved(t *testing.T) {
	libs, again := stampedFolder(t)
	if err := os.WriteFile(libs.Interposer, []byte("mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	forge(t, libs.Dir)
	if got := again(); got != "mine" {
		t.Errorf("the library was read although its stamp is right: %.20q", got)
	}
}

// Whatever changes a library, also with the same size and time, makes the stamp stale.
func TestStampNoticesChanges(t *testing.T) {
	right := library("liblgpu.so", "")
	same := []byte(right)
	same[0] ^= 1
	for name, change := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 5) },
		"written with its size and time kept": func(path string) error {
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path, same, 0o755); err != nil {
				return err
			}
			return os.Chtimes(path, st.ModTime(), st.ModTime())
		},
		"replaced": func(path string) error {
			if err := os.WriteFile(path+".mine", same, 0o755); err != nil {
				return err
			}
			return os.Rename(path+".mine", path)
		},
		"removed": os.Remove,
		"a link to another": func(path string) error {
			if err := os.Rename(path, path+".mine"); err != nil {
				return err
			}
			return os.Symlink(path+".other", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			libs, again := stampedFolder(t)
			if err := change(libs.Interposer); err != nil {
				t.Fatal(err)
			}
			if got := again(); got != right {
				t.Errorf("the change was not noticed: %.20q", got)
			}
		})
	}
}

// Others may not say that a library is right.
func TestStampOfOthers(t *testing.T) {
	for name, spoil := range map[string]func(stamp string) error{
		"writable by all": func(stamp string) error { return os.Chmod(stamp, 0o666) },
		"a link": func(stamp string) error {
			if err := os.Rename(stamp, stamp+"2"); err != nil {
				return err
			}
			return os.Symlink(stamp+"2", stamp)
		},
		"of another user": func(stamp string) error {
			if os.Getuid() != 0 {
				t.Skip("only root can give a file away")
			}
			return os.Chown(stamp, 12345, -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			libs, again := stampedFolder(t)
			if err := os.WriteFile(libs.Interposer, []byte("mine"), 0o755); err != nil {
				t.Fatal(err)
			}
			forge(t, libs.Dir)
			if err := spoil(filepath.Join(libs.Dir, stampName)); err != nil {
				t.Fatal(err)
			}
			if got := again(); got != library("liblgpu.so", "") {
				t.Errorf("the stamp was believed: %.20q", got)
			}
		})
	}
}

// A file that has just changed may change again within one tick of the clock: it gets no stamp.
func TestStampWaits(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LGPU_LIBDIR", dir)
	z := archive(t, tree(""))
	for range 3 {
		if _, err := install(z, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, stampName)); err == nil {
		t.Error("files have a stamp that changed a moment ago")
	}
}
