package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
)

// namedPlace is a root folder with one for files in memory, which has some, and an image of these.
type namedPlace struct {
	t            *testing.T
	root, folder string
	image        *image.Image
	all          []namedFile
	contents     map[string][]byte
}

// What a file begins and ends with, of which nothing is written, bytes. One byte is between.
const hole, behind = 64 << 20, 8 << 20

// strange are names that an image may note, and no program of lgpu's writes.
var strange = []string{".", "../small", "/small", "in/../small", "small\x00"}

func newNamedPlace(t *testing.T) *namedPlace {
	t.Helper()
	root, err := os.MkdirTemp("/dev/shm", "lgpu-test-")
	if err != nil {
		t.Skip("files in memory are NOT TESTED: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	p := &namedPlace{t: t, root: root, folder: filepath.Join(root, "dev/shm"), contents: map[string][]byte{
		"small": []byte("some words"), "sparse": slices.Concat(make([]byte, hole), []byte{7}, make([]byte, behind)), "in/a folder": []byte("more"), ".empty": {},
	}}
	if err := os.MkdirAll(filepath.Join(p.folder, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, text := range p.contents {
		names = append(names, name)
		f, err := os.OpenFile(p.path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
		if err == nil {
			err = f.Truncate(int64(len(text)))
		}
		if err == nil {
			if name == "sparse" {
				_, err = f.WriteAt([]byte{7}, hole)
			} else {
				_, err = f.Write(text)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if s := (sparse{f}); name == "sparse" && (s.Wants(0, hole) || !s.Wants(hole, 1) || s.Wants(hole+behind/2, behind/2)) {
			t.Error("what is written of it is not found")
		}
		f.Close() // it has been written
	}
	if os.Geteuid() == 0 { // only root can give a file away
		if err := os.Chown(p.path("small"), 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	w, err := image.Create(filepath.Join(t.TempDir(), "image"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	folder := p.open()
	defer folder.Close()
	if p.all, err = writeNamed(t.Context(), w, folder, names, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	for _, name := range strange {
		if _, err := w.Stream(namedFile{Name: name}.stream(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Commit(t.Context(), image.About{}, nil); err != nil {
		t.Fatal(err)
	}
	if p.image, err = image.Open(w.Path(), anyone); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.image.Close() })
	return p
}

func (p *namedPlace) path(name string) string { return filepath.Join(p.folder, name) }

func (p *namedPlace) open() *os.File {
	p.t.Helper()
	root, err := os.Open(p.root)
	if err != nil {
		p.t.Fatal(err)
	}
	defer root.Close()
	folder, err := criu.OpenNamed(root)
	if err != nil || folder == nil {
		p.t.Fatal(folder, err)
	}
	return folder
}

// bring brings the files, and expects an error with some words, or with "" none, and all files to be as they were.
func (p *namedPlace) bring(when, want string) *namedMaker {
	p.t.Helper()
	m := &namedMaker{}
	err := m.bring(context.Background(), p.image, p.all, p.root, func(int64) {})
	if want != "" {
		if err == nil || !strings.Contains(err.Error(), want) {
			p.t.Errorf("%s: %v, want %q", when, err, want)
		}
		return m
	}
	if err != nil {
		p.t.Fatalf("%s: %v", when, err)
	}
	for name, text := range p.contents {
		var st unix.Stat_t
		got, err := os.ReadFile(p.path(name))
		if err == nil {
			err = unix.Stat(p.path(name), &st)
		}
		given := name == "small" && os.Geteuid() == 0
		if err != nil || !bytes.Equal(got, text) || st.Mode != unix.S_IFREG|0o640 || st.Blocks*512 > 8<<20 ||
			given && (st.Uid != 1 || st.Gid != 2) {
			p.t.Errorf("%s: %s has other contents, or is %+v; %v", when, name, st, err)
		}
	}
	return m
}

func (p *namedPlace) there(when string, want ...string) {
	p.t.Helper()
	var all []string
	for name := range p.contents {
		if _, err := os.Lstat(p.path(name)); err == nil {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) {
		p.t.Errorf("%s there are %q, want %q", when, all, want)
	}
}

func (p *namedPlace) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestNamed: files in memory come back, where they are gone and where something else is in them. What was made goes with a
// restore that fails, and nothing else does.
func TestNamed(t *testing.T) {
	p := newNamedPlace(t)
	var before, after unix.Stat_t
	p.must(unix.Stat(p.path("small"), &before))
	m := p.bring("as they were", "")
	p.must(unix.Stat(p.path("small"), &after))
	if before.Mtim != after.Mtim || len(m.made) > 0 {
		t.Error("what is as it was is written")
	}
	m.undo()
	p.there("after that", ".empty", "in/a folder", "small", "sparse")
	p.must(os.Remove(p.path("small")))
	p.must(os.Remove(p.path("in/a folder")))
	p.must(os.WriteFile(p.path("sparse"), append(bytes.Repeat([]byte{1}, hole), 7), 0o640))
	p.must(os.Chmod(p.path("sparse"), 0o600))
	p.must(os.Chmod(p.path(".empty"), 0o600))
	m = p.bring("two gone, one changed, one with other rights", "")
	p.must(os.Rename(p.path("in/a folder"), p.path("moved"))) // somebody else's from here on
	p.must(os.WriteFile(p.path("in/a folder"), nil, 0o600))
	m.undo()
	p.there("after a restore that fails", ".empty", "in/a folder", "sparse")
	if text, err := os.ReadFile(p.path("sparse")); err != nil || len(text) != hole+1 || text[0] != 1 {
		t.Errorf("what another file had taken the place of has %d bytes, %v", len(text), err)
	}
	p.must(os.Remove(p.path("in/a folder")))
	m = p.bring("again", "")
	m.keep()
	m.undo()
	p.there("after a restore", ".empty", "in/a folder", "small", "sparse")
	for _, folder := range []string{"", "in"} {
		all, err := filepath.Glob(filepath.Join(p.path(folder), ".lgpu-*"))
		if err != nil || len(all) > 0 {
			t.Errorf("left aside are %q, %v", all, err)
		}
	}
}

// TestNamedTwice: a file that a program has by two names is not in an image, since it would come back as two.
func TestNamedTwice(t *testing.T) {
	p := newNamedPlace(t)
	p.must(os.Link(p.path("small"), p.path("other")))
	w, err := image.Create(filepath.Join(t.TempDir(), "image"), image.Options{})
	p.must(err)
	defer w.Abort()
	folder := p.open()
	defer folder.Close()
	var bytes int64
	all, err := writeNamed(t.Context(), w, folder, []string{".empty", "other", "small"}, func(n int64) { bytes = n })
	if err != nil || len(all) != 1 || all[0].Name != ".empty" || bytes != 0 {
		t.Errorf("%d bytes, %+v, %v", bytes, all, err)
	}
}

// TestNamedRefused: what another process uses, what is another user's, and what is no file, is left alone, and nothing else is
// made.
func TestNamedRefused(t *testing.T) {
	for name, one := range map[string]struct {
		with func(p *namedPlace) error
		says string
	}{
		"used": {func(p *namedPlace) error {
			f, err := os.OpenFile(p.path("sparse"), os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			c := exec.Command("sleep", "1000")
			c.ExtraFiles = []*os.File{f}
			p.t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
			return c.Start()
		}, `/dev/shm/sparse is not as its program had it, and process `},
		"another user's": {func(p *namedPlace) error {
			if os.Geteuid() != 0 {
				p.t.Skip("only root can give a file away")
			}
			return os.WriteFile(p.path("sparse"), nil, 0o600)
		}, "/dev/shm/sparse is another user's"},
		"another user's, as it was": {func(p *namedPlace) error {
			if os.Geteuid() != 0 {
				p.t.Skip("only root can give a file away")
			}
			return os.Chown(p.path("sparse"), 1, 1)
		}, "/dev/shm/sparse is another user's"},
		"link":   {func(p *namedPlace) error { return os.Symlink("small", p.path("link")) }, "sparse"},
		"folder": {func(p *namedPlace) error { return os.Mkdir(p.path("folder"), 0o700) }, "sparse"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newNamedPlace(t)
			p.must(os.Remove(p.path(".empty")))
			p.must(one.with(p))
			switch name {
			case "another user's":
				p.must(os.Chown(p.path("sparse"), 1, 1))
			case "link", "folder":
				p.must(os.Remove(p.path("sparse")))
				p.must(os.Rename(p.path(name), p.path("sparse")))
			}
			p.bring(name, one.says).undo()
			if _, err := os.Lstat(p.path(".empty")); err == nil {
				t.Error("another file is made")
			}
			if text, err := os.ReadFile(p.path("small")); err != nil || string(text) != "some words" {
				t.Errorf("what a link leads to has %q, %v", text, err)
			}
		})
	}
}

// TestNamedNames: an image may be anybody's. What it notes stays in the folder, and has the stream that it says.
func TestNamedNames(t *testing.T) {
	p := newNamedPlace(t)
	if err := checkNamed(p.image, p.all); err != nil {
		t.Error(err)
	}
	if long := strings.Repeat("ä", 100); len((namedFile{Name: long}).stream()) > longestStream ||
		(namedFile{Name: long}).stream() == (namedFile{Name: long + "ä"}).stream() {
		t.Errorf("the stream of a long name is %s", namedFile{Name: long}.stream())
	}
	if a, b := (namedFile{Name: "a/b"}).stream(), (namedFile{Name: "a=2Fb"}).stream(); a == b || a != "named/a=2Fb" {
		t.Errorf("streams %s and %s", a, b)
	}
	small := p.all[slices.IndexFunc(p.all, func(f namedFile) bool { return f.Name == "small" })]
	changed := func(change func(f *namedFile)) []namedFile {
		f := small
		change(&f)
		return []namedFile{f}
	}
	for name, all := range map[string][]namedFile{
		"empty":     changed(func(f *namedFile) { f.Name = "" }),
		"size":      changed(func(f *namedFile) { f.Size++ }),
		"negative":  changed(func(f *namedFile) { f.Size = -1 }),
		"no stream": changed(func(f *namedFile) { f.Name = "other" }),
		"mode":      changed(func(f *namedFile) { f.Mode |= unix.S_IFDIR }),
		"twice":     {small, small},
	} {
		if err := checkNamed(p.image, all); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, name := range strange {
		if err := checkNamed(p.image, changed(func(f *namedFile) { f.Name = name })); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	folder := p.open()
	defer folder.Close()
	p.must(os.Symlink("..", p.path("up")))
	p.must(os.Symlink("..", p.path("in/up")))
	for _, name := range []string{"../../dev", "/etc/passwd", "up/shm/small", "in/up/small", "in", "up"} {
		if f, err := criu.OpenName(folder, name, os.O_RDONLY, 0); err == nil {
			f.Close()
			t.Errorf("%s is opened", name)
		}
	}
}
