package wholefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

// writers are the two ways to write.
var writers = map[string]func(string, io.Reader, fs.FileMode) error{"Write": Write, "WriteDurably": WriteDurably}

// alone says that nothing but some files is in a folder.
func alone(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if strings.Join(have, " ") != strings.Join(names, " ") {
		t.Errorf("the folder has %q, want %q", have, names)
	}
}

func TestWrite(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, mode := range []fs.FileMode{0o644, 0o600, 0o755} {
				text := "with mode " + mode.String()
				if err := write(path, strings.NewReader(text), mode); err != nil {
					t.Fatal(err)
				}
				have, err := os.ReadFile(path)
				if err != nil || string(have) != text {
					t.Errorf("%q, %v; want %q", have, err, text)
				}
				if info, err := os.Stat(path); err != nil || info.Mode() != mode {
					t.Errorf("mode %v, %v; want %v", info.Mode(), err, mode)
				}
			}
			alone(t, dir, "file")
		})
	}
}

// Who has the old file open keeps what it had, and so does a link to it.
func TestTheOldFileIsNotWrittenTo(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := Write(path, strings.NewReader("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := Write(path, strings.NewReader("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(open); err != nil || string(text) != "old" {
		t.Errorf("the open file has %q, %v", text, err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "old" {
		t.Errorf("the link has %q, %v", text, err)
	}
}

// Until the contents are complete, others see the file of before, and nobody but the owner reads the new one.
func TestNotBeforeItIsComplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, strings.NewReader("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	look := func() {
		if text, err := os.ReadFile(path); err != nil || string(text) != "old" {
			t.Errorf("in between the file has %q, %v", text, err)
		}
		found, _ := filepath.Glob(filepath.Join(dir, hidden+"*"))
		if len(found) != 1 {
			t.Fatalf("hidden files: %q", found)
		}
		if info, err := os.Stat(found[0]); err != nil || info.Mode() != 0o600 {
			t.Errorf("in between the new one has mode %v, %v", info.Mode(), err)
		}
	}
	if err := Write(path, io.MultiReader(strings.NewReader("n"), calling(look), strings.NewReader("ew")), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("then it has %q, %v", text, err)
	}
}

// calling is a reader without contents that calls a function when it is read.
type calling func()

func (c calling) Read([]byte) (int, error) { c(); return 0, io.EOF }

func TestErrors(t *testing.T) {
	broken := errors.New("broken contents")
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := Write(path, strings.NewReader("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := write(path, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)), 0o644)
			if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "write "+path+": ") {
				t.Errorf("%v", err)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "old" {
				t.Errorf("after an error the file has %q, %v", text, err)
			}
			alone(t, dir, "file")
			folder := filepath.Join(dir, "folder")
			if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, bad := range []string{filepath.Join(dir, "missing", "file"), folder} {
				err := write(bad, strings.NewReader("x"), 0o644)
				if err == nil || !strings.HasPrefix(err.Error(), "write "+bad+": ") || strings.Contains(err.Error(), hidden) {
					t.Errorf("%s: %v", bad, err)
				}
			}
			if err := write(filepath.Join(dir, "missing", "file"), strings.NewReader("x"), 0o644); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v", err)
			}
			alone(t, dir, "file", "folder")
			// The contents' own file keeps its name in the message.
			other := &fs.PathError{Op: "read", Path: "/source", Err: syscall.EIO}
			if err := write(path, iotest.ErrReader(other), 0o644); !strings.Contains(err.Error(), "/source") {
				t.Errorf("%v", err)
			}
		})
	}
}
