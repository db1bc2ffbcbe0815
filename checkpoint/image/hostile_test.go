package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// sample is an image with memory that can be compressed and such that cannot, and with files.
func sample(t testing.TB) (path string, trust Trust, m memories, files map[string]string) {
	t.Helper()
	key, trust := newKey(t)
	path = filepath.Join(t.TempDir(), "image")
	m = memories{"device/0": append(noise(1, 2*minChunk), bytes.Repeat([]byte("weight"), minChunk)...)}
	files = map[string]string{"pages-1.img": "pages", "core-7.img": "core"}
	write(t, path, small, m, files, key)
	return path, trust, m, files
}

// TestDamage: each kind of damage is found and named when it is read, and never more than that is.
func TestDamage(t *testing.T) {
	first := sum(noise(1, minChunk))
	packed := sum(bytes.Repeat([]byte("weight"), minChunk)[4*minChunk : 5*minChunk])
	chunk := "chunks/" + first.String()
	edit := func(path string, f func([]byte) []byte) func(string) error {
		return func(image string) error {
			name := filepath.Join(image, path)
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(name, f(text), 0o600)
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(at+len(b))%len(b)] ^= 4; return b }
	}
	replace := func(name string, make func(path string) error) func(string) error {
		return func(image string) error {
			path := filepath.Join(image, name)
			return errors.Join(os.RemoveAll(path), make(path))
		}
	}
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	for _, c := range []struct {
		name   string
		damage func(image string) error
		want   string
		more   int // damage beside it
	}{
		{"a bit of a chunk", edit(chunk, flip(-1)), "chunk " + first.short() + " " + flipped, 0},
		{"a bit of a compressed chunk", edit("chunks/"+packed.String(), flip(-3)), "chunk " + packed.short() + " " + flipped, 0},
		{"the hash in a chunk's head", edit(chunk, flip(40)), "is another chunk", 0},
		{"the magic of a chunk", edit(chunk, flip(0)), "is no chunk of lgpu", 0},
		{"the version of a chunk", edit(chunk, flip(8)), "has version 5, where this lgpu has 1", 0},
		{"the length of a chunk", edit(chunk, flip(13)), "makes no sense", 0},
		{"a chunk that is missing", func(i string) error { return os.Remove(filepath.Join(i, chunk)) }, "chunk " + first.short() + " is missing", 0},
		{"a chunk that is cut", edit(chunk, func(b []byte) []byte { return b[:len(b)/2] }), "is cut", 0},
		{"a chunk that is empty", edit(chunk, func([]byte) []byte { return nil }), "is cut: it has 0 bytes", 0},
		{"a chunk that is cut in its head", edit(chunk, func(b []byte) []byte { return b[:20] }), "is cut: it has 20 bytes", 0},
		{"a chunk that is too long", edit(chunk, func(b []byte) []byte { return append(b, 0) }), "is too long", 0},
		{"a chunk in another's place", replace(chunk, func(path string) error {
			return os.Link(filepath.Join(filepath.Dir(path), sum(noise(1, 2*minChunk)[minChunk:]).String()), path)
		}), "is another chunk", 0},
		{"a chunk that is a link", replace(chunk, link("/etc/passwd")), notPlain, 0},
		{"a chunk that is a pipe", replace(chunk, func(p string) error { return unix.Mkfifo(p, 0o600) }), notPlain, 0},
		{"a chunk that is a folder", replace(chunk, func(p string) error { return os.Mkdir(p, 0o700) }), notPlain, 0},
		{"a file that is changed", edit("files/core-7.img", flip(1)), "file core-7.img " + flipped, 0},
		{"a file that is cut", edit("files/core-7.img", func(b []byte) []byte { return b[1:] }), "file core-7.img has 3 bytes, and should have 4", 0},
		{"a file that is missing", replace("files/core-7.img", func(string) error { return nil }), "file core-7.img is missing", 0},
		{"a file that is a link", replace("files/core-7.img", link("pages-1.img")), "file core-7.img " + notPlain, 0},
		{"all files behind a link", func(i string) error {
			return errors.Join(os.Rename(filepath.Join(i, "files"), filepath.Join(i, "f")), os.Symlink("f", filepath.Join(i, "files")))
		}, "file core-7.img " + notPlain, 3},
		{"a file too many", replace("files/extra.img", func(p string) error { return os.WriteFile(p, nil, 0o600) }), "files/extra.img " + unplanned, 0},
		{"a folder too many", replace("other", func(p string) error { return os.Mkdir(p, 0o700) }), "other/ " + unplanned, 0},
		{"a link too many", replace("files/extra.img", link("/")), "files/extra.img " + unplanned, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, trust, _, _ := sample(t)
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
			i, err := Open(path, trust)
			if err != nil {
				t.Fatal(err)
			}
			defer i.Close()
			found, err := i.Verify(context.Background(), nil)
			var texts []string
			for _, d := range found {
				texts = append(texts, d.Error())
			}
			if text := strings.Join(texts, "\n"); err != nil || !strings.Contains(text, c.want) || len(texts) > c.more+1 {
				t.Errorf("Verify: %q, %v, want %q", texts, err, c.want)
			}
			var d *Damage
			memory := make([]byte, i.Streams[0].Size)
			errLoad := i.Load(context.Background(), map[string]io.WriterAt{"device/0": target{memory}}, nil)
			errExtract := i.Extract(context.Background(), t.TempDir())
			if !strings.Contains(c.want, unplanned) && errLoad == nil && errExtract == nil {
				t.Error("neither Load nor Extract sees it")
			}
			for _, err := range []error{errLoad, errExtract} {
				if err != nil && (!errors.As(err, &d) || !strings.Contains(err.Error(), c.want) && !strings.Contains(c.name, "all files")) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
		})
	}
}

// TestTrust: an image whose manifest was changed, or that is not the machine's own, is refused by name.
func TestTrust(t *testing.T) {
	_, other := newKey(t)
	edit := func(name string, f func(string) string) func(string) error {
		return func(image string) error {
			path := filepath.Join(image, name)
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, []byte(f(string(text))), 0o600))
		}
	}
	swap := func(old, new string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, new, 1) }
	}
	unsigned := func(image string) error { return os.Remove(filepath.Join(image, signatureName)) }
	for _, c := range []struct {
		name   string
		change func(image string) error
		trust  func(Trust) Trust
		want   error // nil: accepted
		words  string
	}{
		{"own", nil, nil, nil, ""},
		{"unsigned", unsigned, nil, ErrUnsigned, ""},
		{"unsigned, allowed", unsigned, func(t Trust) Trust { t.Unsigned = true; return t }, nil, ""},
		{"another's", nil, func(Trust) Trust { return other }, ErrForeign, "with the key "},
		{"another's, allowed", nil, func(Trust) Trust { return Trust{Foreign: true} }, nil, ""},
		{"another's, with unsigned ones allowed", nil, func(Trust) Trust { return Trust{Unsigned: true} }, ErrForeign, ""},
		{"changed", edit(manifestName, swap("train", "trxin")), func(t Trust) Trust { return Trust{Keys: t.Keys, Unsigned: true, Foreign: true} }, ErrSignature, ""},
		{"signature changed", edit(signatureName, swap("ed25519", "ed25518")), nil, ErrSignature, ""},
		{"signature empty", edit(signatureName, func(string) string { return "" }), func(Trust) Trust { return Trust{Unsigned: true} }, ErrSignature, ""},
		{"newer", edit(manifestName, swap(`"version": 1`, `"version": 2`)), nil, ErrVersion, "2, where this lgpu has 1"},
		{"of another program", edit(manifestName, swap("lgpu image", "tar")), nil, ErrNoImage, ""},
		{"without manifest", func(i string) error { return os.Remove(filepath.Join(i, manifestName)) }, nil, ErrNoImage, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, trust, _, _ := sample(t)
			if c.change != nil {
				if err := c.change(path); err != nil {
					t.Fatal(err)
				}
			}
			if c.trust != nil {
				trust = c.trust(trust)
			}
			i, err := Open(path, trust)
			if err == nil {
				defer i.Close()
			}
			if !errors.Is(err, c.want) || err != nil && (!strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), path)) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Manifests that are not as lgpu writes them, or that contradict themselves, are damage.
func TestManifest(t *testing.T) {
	path, _, _, _ := sample(t)
	text, err := os.ReadFile(filepath.Join(path, manifestName))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(text); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new string }{
		{`"chunk_size": 4096`, `"chunk_size": 0`}, {`"chunk_size": 4096`, `"chunk_size": 1073741824`}, {`"chunk_size": 4096`, `"chunk_size": -4096`},
		{`"chunk_size": 4096`, `"chunk_size": 5000`}, {`"chunk_size"`, `"CHUNK_SIZE"`}, {`"chunk_size"`, `"more": 1, "chunk_size"`},
		{`"version": 1`, `"version": 1, "version": 1`}, {"}\n", "}\n\n"}, {"}\n", "}\n{}\n"}, {`"core-7.img"`, `"../../core"`},
		{`"core-7.img"`, `"/etc/passwd"`}, {`"core-7.img"`, `"zzz"`}, {`"core-7.img"`, `"pages-1.img/x"`}, {`"device/0"`, `"device/../0"`},
		{`"size": 4,`, `"size": -4,`}, {`"size": 32768`, `"size": 9223372036854775807`}, {`"size": 32768`, `"size": 4096`}, {`"1 `, `"0 `},
		{`"1 `, `"-1 `}, {`"1 `, `"9223372036854775807 `}, {`"1 `, `"01 `}, {`"1 `, `"1x`}, {`"uuid": "GPU-1"`, `"uuid": ""`},
		{`"lgpu image"`, `"lgpu\u0020image"`}, {`"name": "sim"`, `"name": "\u001b[2J"`},
	} {
		changed := bytes.Replace(text, []byte(c.old), []byte(c.new), 1)
		if bytes.Equal(changed, text) {
			t.Errorf("%s is not in the manifest:\n%s", c.old, text)
		}
		var d *Damage
		if _, err := parse(changed); !errors.As(err, &d) || d.Object != "manifest" {
			t.Errorf("%s instead of %s: %v", c.new, c.old, err)
		}
	}
}

// Chunks that would take more memory than they may are refused for that, not for the hash that they have.
func TestBombs(t *testing.T) {
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := e.EncodeAll(make([]byte, 64<<20), nil)
	hash := sum(noise(1, minChunk))
	file := make([]byte, headLength, headLength+len(bomb))
	h := head{how: compressed, raw: max(minChunk, len(bomb)), stored: len(bomb), hash: hash}
	h.put(file)
	file = append(file, bomb...)
	spare := make([]byte, h.raw)
	allocated := testing.AllocsPerRun(1, func() { // and to have the decoder made
		if _, err := unpack(file, spare, hash, int64(h.raw)); err == nil || !strings.Contains(err.Error(), "decompressed") {
			t.Errorf("%v", err)
		}
	})
	if allocated > 100 {
		t.Errorf("%v allocations", allocated)
	}
	// A frame that wants a window of 2 GiB.
	wide := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00}
	h.stored = len(wide)
	file = append(make([]byte, headLength), wide...)
	h.put(file)
	if _, err := unpack(file, spare, hash, int64(h.raw)); err == nil {
		t.Error("a wide window is accepted")
	}
	// A manifest of a gigabyte, that takes no disk.
	path, trust, _, _ := sample(t)
	if err := os.Truncate(filepath.Join(path, manifestName), 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, trust); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%v", err)
	}
	path, trust, _, _ = sample(t)
	chunk := filepath.Join(path, chunksName, hash.String())
	if err := os.Truncate(chunk, 1<<40); err != nil {
		t.Fatal(err)
	}
	i, err := Open(path, trust)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	found, err := i.Verify(context.Background(), nil)
	if err != nil || len(found) != 1 || !strings.Contains(found[0].What, "is too long: it has 1099511627776 bytes") {
		t.Errorf("%v, %v", found, err)
	}
}

// What an image has too much of takes neither time nor memory without end.
func TestTooMuch(t *testing.T) {
	path, trust, _, _ := sample(t)
	for n := range maxExtra + 10 {
		if err := os.WriteFile(filepath.Join(path, fmt.Sprint("extra-", n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := Open(path, trust)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if found, err := i.Verify(context.Background(), nil); err != nil || len(found) != maxExtra {
		t.Errorf("%d, %v; want %d", len(found), err, maxExtra)
	}
	m := i.Manifest
	m.Topology = nil
	for n := range maxDevices + 1 {
		m.Topology = append(m.Topology, Device{UUID: fmt.Sprint(n)})
	}
	text, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(text); err == nil || !strings.Contains(err.Error(), "more than 1024") {
		t.Errorf("%v", err)
	}
}

// Plain files of a writer that are none are refused.
func TestWriterRefuses(t *testing.T) {
	for name, make := range map[string]func(string) error{
		"link": func(p string) error { return os.Symlink("/etc/passwd", p) },
		"pipe": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a b":  func(p string) error { return os.WriteFile(p, nil, 0o600) },
		".hid": func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		path := filepath.Join(t.TempDir(), "image")
		w, err := Create(path, small)
		if err != nil {
			t.Fatal(err)
		}
		if err := make(filepath.Join(w.Files(), name)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(context.Background(), About{}, nil); err == nil || Is(path) {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
}

// A store that another has made, or may write to, is refused.
func TestForeignStore(t *testing.T) {
	dir := t.TempDir()
	store := filepath.Join(dir, storeName)
	if err := errors.Join(os.Mkdir(store, 0o700), os.Chmod(store, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(dir, "image"), small); !errors.Is(err, ErrForeigner) {
		t.Errorf("one that all may write to: %v", err)
	}
	if _, err := Collect(dir); !errors.Is(err, ErrForeigner) {
		t.Errorf("one that all may write to: %v", err)
	}
	if err := errors.Join(os.Remove(store), os.Symlink(t.TempDir(), store)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(dir, "image"), small); err == nil {
		t.Error("a link is accepted")
	}
	if os.Geteuid() != 0 {
		return
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err == nil {
		err = errors.Join(os.Remove(store), os.Mkdir(store, 0o700), os.Chown(store, uid, -1))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(dir, "image"), small); !errors.Is(err, ErrForeigner) {
		t.Errorf("another's: %v", err)
	}
}

func TestKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "image.key")
	if _, err := ReadKey(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	keys := make(chan string, 8)
	for range cap(keys) { // at once
		go func() {
			key, err := MakeKey(path)
			keys <- fmt.Sprint(key, err)
		}()
	}
	first := <-keys
	for range cap(keys) - 1 {
		if other := <-keys; other != first {
			t.Errorf("%s, and %s", first, other)
		}
	}
	key, err := ReadKey(path)
	if fmt.Sprint(key, err) != first || err != nil {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("one that others may read: %v", err)
	}
	if err := os.WriteFile(path+"2", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path + "2"); err == nil {
		t.Error("nonsense is a key")
	}
	if err := os.Symlink(path, path+"3"); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path + "3"); err == nil {
		t.Error("a link is accepted")
	}
	t.Setenv("XDG_STATE_HOME", "/state")
	if name, err := KeyFile(); err != nil || os.Geteuid() != 0 && name != "/state/lgpu/image.key" || os.Geteuid() == 0 && name != "/var/lib/lgpu/image.key" {
		t.Errorf("%s, %v", name, err)
	}
}

// killVariable makes this test binary write images in the folder that it names until it is killed.
const killVariable = "LGPU_TEST_IMAGE_WRITER"

func TestMain(m *testing.M) {
	dir := os.Getenv(killVariable)
	if dir == "" {
		os.Exit(m.Run())
	}
	for n := 0; ; n++ {
		memory := noise(uint64(n%7), 40*minChunk)
		path := filepath.Join(dir, fmt.Sprintf("%d-%d", os.Getpid(), n))
		if _, err := try(path, small, memories{"memory": memory}, map[string]string{"core.img": strings.Repeat("x", 9000)}, nil); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// TestKilledWriters: whenever a writer is killed, what can be seen is whole, and what it left can be collected.
func TestKilledWriters(t *testing.T) {
	dir := t.TempDir()
	whole := 0
	for n := range 30 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), killVariable+"="+dir)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if n%3 > 0 { // in the first image, or after it
			_, _ = out.Read(make([]byte, 1))
		}
		time.Sleep(time.Duration(n*n) * 50 * time.Microsecond) // to spread the kills over the writing: any time will do
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the writer ended by itself: %v", err)
		}
		names, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			i, err := Open(filepath.Join(dir, name), Trust{Unsigned: true})
			if err != nil {
				t.Fatal(err)
			}
			found, err := i.Verify(context.Background(), nil)
			if err := errors.Join(err, i.Close()); err != nil || len(found) > 0 {
				t.Fatal(found, err)
			}
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			whole++
		}
	}
	if whole == 0 {
		t.Error("no writer came to the end of an image")
	}
	if c, err := Collect(dir); err != nil || c.Images == 0 {
		t.Errorf("%+v, %v", c, err)
	}
	entries := 0
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			entries++
		}
		return err
	})
	if entries != 0 {
		t.Errorf("%d files are left", entries)
	}
}

// TestDiskFull: where there is no room, the error says so, nothing can be seen, and the room is free again.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("lgpu-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0700"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	free := func() uint64 {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil {
			t.Fatal(err)
		}
		return s.Bfree
	}
	m := memories{"memory": noise(1, 100*minChunk)}
	write(t, filepath.Join(dir, "first"), small, m, nil, nil)
	before := free()
	for n := range 3 {
		_, err := try(filepath.Join(dir, "second"), small, memories{"memory": noise(uint64(2+n), 300*minChunk)}, nil, nil)
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(dir, "second")) {
			t.Fatalf("%v", err)
		}
	}
	// What CRIU writes may be what is too much, too.
	if _, err := try(filepath.Join(dir, "second"), small, nil, map[string]string{"f": string(noise(1, 1<<20))}, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if names, err := List(dir); err != nil || fmt.Sprint(names) != "[first]" {
		t.Errorf("%v, %v", names, err)
	}
	if after := free(); after+40 < before { // folders of the store stay
		t.Errorf("%d blocks are free, before %d", after, before)
	}
	load(t, filepath.Join(dir, "first"), Trust{Unsigned: true}, m, nil)
}

func FuzzManifest(f *testing.F) {
	path, _, _, _ := sample(f)
	text, err := os.ReadFile(filepath.Join(path, manifestName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"format": "lgpu image", "version": 1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parse(text)
		if (m == nil) == (err == nil) {
			t.Fatal("neither an error nor a manifest, or both")
		}
		if err != nil {
			return
		}
		if again, err := m.encode(); err != nil || !bytes.Equal(again, text) {
			t.Errorf("another text: %v", err)
		}
		for i := range m.Streams {
			s := &m.Streams[i]
			for _, c := range s.Chunks {
				if n := m.chunkLength(s, c.Index); n < 1 || n > maxChunk {
					t.Errorf("a chunk of %d bytes", n)
				}
			}
		}
		_ = Diff(m, m)
	})
}

func FuzzChunk(f *testing.F) {
	for _, data := range [][]byte{noise(1, minChunk), bytes.Repeat([]byte("weight"), 1000)} {
		b := newBuffers(2 * minChunk).get()
		f.Add(bytes.Clone(b.bytes[:pack(b, data, sum(data))]))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := parseHead(file, int64(len(file)))
		if err != nil || h.raw > 1<<20 {
			return
		}
		again := make([]byte, headLength)
		h.put(again)
		if !bytes.Equal(again, file[:headLength]) {
			t.Error("another head")
		}
		spare := make([]byte, h.raw)
		data, err := unpack(file, spare, h.hash, int64(h.raw))
		if err == nil && (len(data) != h.raw || sum(data) != h.hash) {
			t.Error("not what the head says")
		}
		file = bytes.Clone(file)
		binary.LittleEndian.PutUint64(file[len(file)-8:], ^binary.LittleEndian.Uint64(file[len(file)-8:]))
		if _, err := unpack(file, spare, h.hash, int64(h.raw)); err == nil && h.how == plain && h.stored >= 8 {
			t.Error("changed contents are accepted")
		}
	})
}
