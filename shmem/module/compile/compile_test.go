package compile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/module"
)

const kernel = `extern "C" __attribute__((global)) void store(int *p) { *p = VALUE; }`

// folder is one with a source.
func folder(t *testing.T, text string) Source {
	t.Helper()
	if _, err := exec.LookPath(Compiler); err != nil {
		t.Skip("needs " + Compiler)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "store.cu"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Source{Folder: dir, File: "store.cu", ISA: "74", Defines: []string{"VALUE=7007"}}
}

func TestText(t *testing.T) {
	text, err := folder(t, kernel).Text()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, []byte(".version 7.4\n.target sm_70\n")) || !bytes.Contains(text, []byte("7007;\n")) {
		t.Errorf("not the kernel:\n%s", text)
	}
	if bytes.Contains(text, []byte("//")) || bytes.Contains(text, []byte("\n\n")) {
		t.Errorf("comments or empty lines are left:\n%s", text)
	}
}

func TestTextOfNonsense(t *testing.T) {
	if text, err := folder(t, "nonsense;").Text(); err == nil || !strings.Contains(err.Error(), "store.cu") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestWrite: what is right is not written again, and everything else is.
func TestWrite(t *testing.T) {
	s := folder(t, kernel)
	path := filepath.Join(s.Folder, "store.ptx.gz")
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range [][]byte{nil, []byte("torn"), packed(t, "another")} {
		if before != nil {
			if err := os.WriteFile(path, before, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Write(path); err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadFile(path); err != nil || !Same(have, text) {
			t.Errorf("after %q: not the text (%v)", before, err)
		}
	}
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(path); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || !st.ModTime().Equal(old) {
		t.Errorf("a file that was right was written (%v)", err)
	}
	if err := s.Write(filepath.Join(s.Folder, "none", "store.ptx.gz")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into a folder that is not there: %v", err)
	}
}

func packed(t *testing.T, text string) []byte {
	t.Helper()
	b, err := pack([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPack(t *testing.T) {
	text := strings.Repeat("add.s64 \t%rd1, %rd2, 8;\n", 1000)
	file := packed(t, text)
	if len(file) > len(text)/50 || !bytes.Equal(file, packed(t, text)) {
		t.Errorf("%d bytes became %d, not the same ones each time", len(text), len(file))
	}
	if !Same(file, []byte(text)) || Same(file, []byte(text[1:])) || Same(file[1:], []byte(text)) {
		t.Error("Same cannot tell texts apart")
	}
	image, err := module.Image(file)
	if err != nil || string(image) != text+"\x00" {
		t.Errorf("the image is not the text and a NUL (%v)", err)
	}
}
