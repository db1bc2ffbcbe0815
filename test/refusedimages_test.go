package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	images "github.com/lgpu/lgpu/checkpoint/image"
)

// An image that is damaged, of another version, for other devices, or not signed here is refused by name, and nothing of the
// program is started or left; as it was before, it is restored.
func TestRestoreRefused(t *testing.T) {
	p, folder := imagePlace(t)
	temporary, image := p.temporary(), filepath.Join(folder, "a")
	c := p.small("kept", "--contain=off")
	c.expect("stepped 3", "step 3")
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
	one := func(pattern string) string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(image, pattern))
		if err != nil || len(all) == 0 {
			t.Fatalf("%s: %v, %v", pattern, all, err)
		}
		return all[0]
	}
	manifest, signature, file := one("manifest.json"), one("manifest.sig"), one("files/core-*.img")
	name := "file " + filepath.Base(file)
	swap := func(text, with string) func(b []byte) []byte {
		return func(b []byte) []byte {
			if !strings.Contains(string(b), text) {
				t.Fatalf("there is no %s in %s", text, b)
			}
			return []byte(strings.Replace(string(b), text, with, 1))
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	anyone, other := []string{"--allow-unsigned", "--allow-foreign"}, filepath.Join(p.dir, "other.key")
	if _, err := images.MakeKey(other); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]struct {
		file    string
		change  func(b []byte) []byte // nil: it is removed
		options []string
		says    string
	}{
		"a file is flipped":       {file, flip, nil, name},
		"a file is cut":           {file, func(b []byte) []byte { return b[:len(b)/2] }, nil, name},
		"a file is missing":       {file, nil, nil, name + " is missing"},
		"the manifest is missing": {manifest, nil, nil, "it is no image of lgpu"},
		"the manifest is cut":     {manifest, func(b []byte) []byte { return b[:len(b)/2] }, nil, "manifest is not JSON"},
		// Whatever is allowed.
		"the manifest is changed":  {manifest, swap("/kept", "/held"), anyone, "its signature does not fit"},
		"the signature is flipped": {signature, flip, anyone, "its signature does not fit"},
		"nobody signed it":         {signature, nil, nil, "it is not signed"},
		"another signed it":        {"", nil, []string{"--key", other}, "it was signed by another machine"},
	} {
		var before []byte
		if try.file != "" {
			var err error
			if before, err = os.ReadFile(try.file); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(try.file); err != nil { // images share files' contents
				t.Fatal(err)
			}
			if try.change != nil {
				p.write(try.file, try.change(slices.Clone(before)))
			}
		}
		r := p.restore(image, try.options...)
		if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), try.says) {
			t.Errorf("%s: status %d, %s; want %q", what, s, r.stderr.String(), try.says)
		}
		p.nothingLeft("/kept", temporary)
		if try.file != "" {
			p.write(try.file, before)
		}
	}
	// Without a signature anybody may have written it.
	signed, whole := p.read(signature), p.read(manifest)
	if err := os.Remove(signature); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]struct{ text, with, says string }{
		"another version":         {`"version": 1`, `"version": 2`, "it has another version"},
		"another program version": {`\"version\":4`, `\"version\":99`, "it is of version 99"},
		"other devices":           {`"units": 4`, `"units": 8`, "it has 4 compute units, not 8"},
		"a device that is away":   {`"uuid": "GPU-`, `"uuid": "GPU-0`, "devices"},
		"a library is missing":    {`liblgpu.so\":\"`, `liblgpu.so.9\":\"`, "a library that its program maps is missing: "},
		"another library":         {`liblgpu.so\":\"`, `liblgpu.so\":\"00`, "liblgpu.so is of another version than"},
		"another daemon":          {`\"socket\":\"/`, `\"socket\":\"/other/`, "its program looks for the daemon at /other/"},
	} {
		p.write(manifest, swap(try.text, try.with)([]byte(whole)))
		r := p.restore(image, "--allow-unsigned")
		if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), try.says) {
			t.Errorf("%s: status %d, %s; want %q", what, s, r.stderr.String(), try.says)
		}
		p.nothingLeft("/kept", temporary)
	}
	p.write(manifest, []byte(whole))
	r := p.restore(image, "--allow-unsigned")
	r.expect("intact after 3 steps", "check")
	r.end()
	p.write(signature, []byte(signed))
	r = p.restore(image)
	r.expect("intact after 3 steps", "check")
	r.end()
}

// write writes a file of root's.
func (p *place) write(path string, text []byte) {
	p.t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// read reads a file.
func (p *place) read(path string) string {
	p.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// A program of which a library of the driver's is gone, or is another one, is not restored.
func TestRestoreWithoutLibrary(t *testing.T) {
	p, folder := imagePlace(t)
	temporary, image := p.temporary(), filepath.Join(folder, "a")
	library := filepath.Join(p.dir, "libnvidia-ml.so.1")
	// One of that name will do.
	if out, err := p.command("cc", "-shared", "-o", library, "-x", "c", os.DevNull).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	contents := p.read(library)
	env := p.env
	p.env = append(slices.Clip(env), "LD_PRELOAD="+library)
	c := p.small("kept", "--contain=off")
	p.env = env
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
	refused := func(what, says string) {
		t.Helper()
		r := p.restore(image)
		if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), says) {
			t.Errorf("%s: status %d, %s; want %q", what, s, r.stderr.String(), says)
		}
		p.wait("/kept goes", func() bool { return p.directory("/kept") == nil })
	}
	if err := os.Rename(library, library+".old"); err != nil {
		t.Fatal(err)
	}
	refused("without it", "a library that its program maps is missing: "+library)
	p.write(library, []byte(contents+"\n"))
	refused("with another one", library+" is of another version than the one that its program maps")
	if err := os.Rename(library+".old", library); err != nil {
		t.Fatal(err)
	}
	r := p.restore(image)
	r.expect("intact after 0 steps", "check")
	r.end()
	p.nothingLeft("/kept", temporary)
}

// Where the disk has no room for an image it is refused before anything is done; where it fills up later, or there is no room for
// what is being restored, nothing is left.
func TestImagesWithoutRoom(t *testing.T) {
	p, folder := imagePlace(t)
	temporary := p.temporary()
	for _, dir := range []string{folder, temporary} {
		if err := unix.Mount("images", dir, "tmpfs", 0, "size=200m"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
	}
	fill := func(dir string, but int64) (empty func()) {
		t.Helper()
		var at unix.Statfs_t
		if err := unix.Statfs(dir, &at); err != nil {
			t.Fatal(err)
		}
		full := filepath.Join(dir, "full")
		p.write(full, make([]byte, max(int64(at.Bavail)*at.Bsize-but, 0)))
		return func() { os.Remove(full) }
	}
	c := p.holding("kept", 1, bigBlock, "--overcommit", "--contain=off")
	c.expect("stepped 1", "step 1")
	program, image := p.ps()[0].Processes[0].PID, filepath.Join(folder, "a")
	empty := fill(folder, 1<<20)
	p.refused(2, "the disk of "+folder, "checkpoint", "kept", "--to", image, p.key())
	empty()
	unix.Kill(program, unix.SIGSTOP)
	k := p.start("lgpu", "checkpoint", "kept", "--stop", "--to", image, p.key())
	p.wait("it leaves its devices", func() bool { return strings.Contains(p.released(), `"moving":true`) })
	empty = fill(folder, 1<<20)
	unix.Kill(program, unix.SIGCONT)
	if s := k.status(); s != 1 || !strings.Contains(k.stderr.String(), "no space left on device; its program goes on") {
		t.Errorf("full as its memory is copied: status %d: %s", s, k.stderr.String())
	}
	if !p.settled("/kept") || p.whole(image) {
		t.Error("the program is gone, or there is an image")
	}
	empty()
	c.expect("intact after 1 steps", "check")
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
	empty = fill(temporary, 0) // CRIU's files are small, but for those with memory, which are in memory
	r := p.restore(image)
	if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), "no space left on device") {
		t.Errorf("full as files are copied: status %d: %s", s, r.stderr.String())
	}
	empty()
	p.nothingLeft("/kept", temporary)
	r = p.restore(image)
	r.expect("intact after 1 steps", "check")
	r.end()
}
