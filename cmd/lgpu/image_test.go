package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/checkpoint/image"
)

// checkpointed makes an image of memory and a file, signed with the key in a file if one is named.
func checkpointed(t *testing.T, path, key string, memory []byte) {
	t.Helper()
	w, err := image.Create(path, image.Options{ChunkSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Copy(t.Context(), "device/0", int64(len(memory)), bytes.NewReader(memory)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.Files(), "core-1.img"), []byte("core"), 0o600); err != nil {
		t.Fatal(err)
	}
	about := image.About{}
	if key == "" {
		_, err = w.Commit(t.Context(), about, nil)
	} else if own, e := image.MakeKey(key); e != nil {
		t.Fatal(e)
	} else {
		_, err = w.Commit(t.Context(), about, own)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lgpu runs a command line in this process.
func lgpu(args ...string) (stdout, stderr string, status int) {
	c := root()
	var out, said bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&said)
	c.SetArgs(args)
	err := c.ExecuteContext(context.Background())
	var e *exit
	switch {
	case errors.As(err, &e):
		return out.String(), e.Error() + "\n" + e.hint, e.status
	case err != nil:
		return out.String(), err.Error(), statusFailed
	}
	return out.String(), said.String(), 0
}

func TestImageCommands(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	key := filepath.Join(t.TempDir(), "image.key")
	memory := bytes.Repeat([]byte{1, 2, 3, 4}, 4096) // the four chunks are the same
	checkpointed(t, path("monday"), key, memory)
	memory[5000] = 9
	checkpointed(t, path("tuesday"), "", memory)
	checkpointed(t, path("else"), key+"2", memory)
	for _, c := range []struct {
		args   string // DIR and KEY are replaced
		status int
		words  []string // of the output and what is said
	}{
		{"image ls --key KEY DIR", 0, []string{"NAME", "monday", "16 KiB", "here\n", "tuesday", "no\n", "else"}},
		{"image ls --key KEY DIR/monday", 0, []string{"monday", "here"}},
		{"image ls DIR/none", 1, []string{"no such file"}},
		{"image ls --key DIR/none DIR", 1, []string{"no such file"}},
		{"image verify --key KEY DIR/monday", 0, []string{"monday: whole, 16 KiB of memory, signed: here"}},
		{"image verify --key KEY DIR/tuesday", 1, []string{"it is not signed", "1 of 1 images"}},
		{"image verify --key KEY DIR/else", 1, []string{"signed by another machine"}},
		{"image verify --key KEY --allow-unsigned --allow-foreign DIR/tuesday DIR/else", 0, []string{"signed: no", "signed: elsewhere"}},
		{"image verify --key KEY DIR", 1, []string{"it is no image of lgpu"}},
		{"image verify", 2, []string{"IMAGE is missing"}},
		{"image diff DIR/monday DIR/tuesday", 0, []string{"NAME", "device/0  16 KiB  16 KiB  4 KiB    4 KiB"}},
		{"image diff DIR/monday DIR/monday", 0, []string{"no difference"}},
		{"image diff DIR/monday", 2, []string{"name two images"}},
		{"image diff DIR/monday DIR/none", 1, []string{"no such file"}},
		{"image gc DIR/monday", 2, []string{"it is an image", "lgpu image gc " + dir}},
		{"image gc DIR", 0, []string{"freed 0 B: chunks 0, unfinished images 0"}},
		{"image gc DIR DIR", 2, []string{"unknown argument"}},
		{"image", 2, []string{"a command is missing"}},
		{"image verfy", 2, []string{"lgpu image verify"}},
	} {
		args := strings.Fields(strings.NewReplacer("DIR", dir, "KEY", key).Replace(c.args))
		out, said, status := lgpu(args...)
		if status != c.status {
			t.Errorf("lgpu %s: status %d, want %d: %s%s", c.args, status, c.status, out, said)
		}
		for _, w := range c.words {
			if !strings.Contains(out+said, w) {
				t.Errorf("lgpu %s: %q is not in:\n%s%s", c.args, w, out, said)
			}
		}
	}

	// What no other image has is freed when an image is removed.
	if err := os.RemoveAll(path("monday")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(path("tuesday")), os.RemoveAll(path("else"))); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := lgpu("image", "gc", dir); !strings.Contains(out, ": chunks 2, ") {
		t.Errorf("%s", out)
	}
	if out, _, _ := lgpu("image", "ls", "--key", key, dir); out != "no images\n" {
		t.Errorf("%s", out)
	}
}

// Damage is listed, and nothing of it reaches a terminal that a terminal obeys.
func TestImageDamage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	checkpointed(t, path, "", bytes.Repeat([]byte{1}, 9000))
	if err := errors.Join(os.WriteFile(filepath.Join(path, "files", "\x1b[2Jx"), nil, 0o600), os.Remove(filepath.Join(path, "files", "core-1.img"))); err != nil {
		t.Fatal(err)
	}
	out, said, status := lgpu("image", "verify", "--allow-unsigned", path)
	want := path + ": damaged\n  \"files/\\x1b[2Jx\" is not in the manifest\n  file core-1.img is missing\n"
	if out != want || status != 1 || !strings.Contains(said, "1 of 1 images are damaged or refused") {
		t.Errorf("%d, %q, %s; want %q", status, out, said, want)
	}
	if err := os.WriteFile(filepath.Join(path, "manifest.json"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, status = lgpu("image", "verify", "--allow-unsigned", path)
	if status != 1 || !strings.Contains(out, "manifest is not JSON") {
		t.Errorf("%d, %q", status, out)
	}
	out, said, status = lgpu("image", "ls", dir)
	if status != 1 || !strings.Contains(out, "image  cannot be read") || !strings.Contains(said, "manifest is not JSON") {
		t.Errorf("%d, %q, %q", status, out, said)
	}
}

func TestImageJSON(t *testing.T) {
	dir := t.TempDir()
	checkpointed(t, filepath.Join(dir, "image"), "", bytes.Repeat([]byte{1}, 9000))
	for _, args := range [][]string{
		{"image", "ls", "--json", dir}, {"image", "verify", "--json", "--allow-unsigned", filepath.Join(dir, "image")},
		{"image", "diff", "--json", filepath.Join(dir, "image"), filepath.Join(dir, "image")}, {"image", "gc", "--json", dir},
	} {
		out, said, status := lgpu(args...)
		var document map[string]any
		if err := json.Unmarshal([]byte(out), &document); err != nil || status != 0 || document["version"] != 1.0 {
			t.Errorf("%v: %d, %v, %s%s", args, status, err, out, said)
		}
		if strings.Contains(out, "null") {
			t.Errorf("%v: %s", args, out)
		}
	}
}
