package image

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// small makes images of little memory that have many chunks.
var small = Options{ChunkSize: minChunk}

// newKey is a key of some machine.
func newKey(t testing.TB) (ed25519.PrivateKey, Trust) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key, Trust{Keys: []ed25519.PublicKey{public}}
}

// random bytes that are the same for the same seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(b) // it never fails
	return b
}

// memories is a program's memory by name.
type memories map[string][]byte

// write makes an image of memory and of plain files.
func write(t testing.TB, path string, o Options, m memories, files map[string]string, key ed25519.PrivateKey) Stats {
	t.Helper()
	stats, err := try(path, o, m, files, key)
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func try(path string, o Options, m memories, files map[string]string, key ed25519.PrivateKey) (s Stats, err error) {
	w, err := Create(path, o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, w.Abort()) }()
	for name, b := range m {
		if err := w.Copy(context.Background(), name, int64(len(b)), bytes.NewReader(b)); err != nil {
			return s, err
		}
	}
	for name, text := range files {
		file := filepath.Join(w.Files(), name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return s, err
		}
	}
	about := About{Words: map[string]string{"name": "train"}, Topology: []Device{{UUID: "GPU-1", Name: "sim", Kind: "8.0", Units: 4, Memory: 1 << 30}}}
	return w.Commit(context.Background(), about, key)
}

// at is memory that is written to at an offset.
type target struct{ b []byte }

func (m target) WriteAt(p []byte, at int64) (int, error) { return copy(m.b[at:], p), nil }

// load reads an image and compares it with what it was made of.
func load(t testing.TB, path string, trust Trust, m memories, files map[string]string) {
	t.Helper()
	i, err := Open(path, trust)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	to, have := map[string]io.WriterAt{}, memories{}
	for _, s := range i.Streams {
		have[s.Name] = make([]byte, s.Size)
		to[s.Name] = target{have[s.Name]}
	}
	var done atomic.Int64
	if err := i.Load(context.Background(), to, func(n int64) { done.Add(n) }); err != nil {
		t.Fatal(err)
	}
	if len(have) != len(m) || done.Load() != i.Memory() {
		t.Errorf("%d streams, want %d; progress up to %d of %d", len(have), len(m), done.Load(), i.Memory())
	}
	for name, want := range m {
		if !bytes.Equal(have[name], want) {
			t.Errorf("stream %s: not as it was", name)
		}
	}
	folder := t.TempDir()
	if err := i.Extract(context.Background(), folder); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if text, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(text) != want {
			t.Errorf("file %s: %q, %v", name, text, err)
		}
	}
	if found, err := i.Verify(context.Background(), nil); err != nil || len(found) > 0 {
		t.Error(found, err)
	}
}

// What is written is read, whatever it is: zeros, noise, what can be compressed, pieces that are there twice, odd sizes.
func TestWhatIsWrittenIsRead(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	key, trust := newKey(t)
	for n := range 30 {
		o := Options{ChunkSize: minChunk << r.IntN(5)}
		m := memories{}
		for s := range r.IntN(4) {
			b := make([]byte, r.IntN(20*minChunk))
			for at := 0; at < len(b); {
				piece := b[at:min(len(b), at+r.IntN(3*minChunk)+1)]
				switch r.IntN(4) {
				case 0:
				case 1:
					copy(piece, bytes.Repeat([]byte("weight"), len(piece)/6+1))
				case 2:
					copy(piece, noise(7, len(piece)))
				case 3:
					copy(piece, noise(r.Uint64(), len(piece)))
				}
				at += len(piece)
			}
			m[fmt.Sprintf("device/%d", s)] = b
		}
		files := map[string]string{"pages-1.img": string(noise(uint64(n), r.IntN(9000))), "empty.img": "", "a/b/c": "deep"}
		path := filepath.Join(dir, fmt.Sprint(n))
		stats := write(t, path, o, m, files, key)
		if stats.Zero+stats.Shared > stats.Memory {
			t.Errorf("%+v", stats)
		}
		load(t, path, trust, m, files)
	}
}

// Chunks may be written in any order, by anyone, and each once.
func TestWriteChunks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	w, err := Create(path, small)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	want := noise(1, 9*minChunk+100)
	clear(want[3*minChunk : 4*minChunk])
	s, err := w.Stream("memory", int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, i := range []int{9, 2, 4, 1, 0, 8, 7, 6, 5} { // not 3, which is zero
		all.Go(func() {
			if err := s.Write(int64(i), want[i*minChunk:min((i+1)*minChunk, len(want))]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for index, length := range map[int64]int{-1: minChunk, 10: minChunk, 9: minChunk, 3: minChunk - 1, 1 << 62: 1, 4: minChunk} {
		if err := s.Write(index, noise(3, length)); err == nil {
			t.Errorf("chunk %d of %d bytes is accepted", index, length)
		}
	}
	for name, size := range map[string]int64{"memory": 1, "../x": 1, "n": -1, "huge": 1 << 60, "": 1, "/a": 1, "a//b": 1, ".a": 1, "a\nb": 1} {
		if _, err := w.Stream(name, size); err == nil {
			t.Errorf("stream %q of %d bytes is accepted", name, size)
		}
	}
	if _, err := w.Commit(context.Background(), About{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(context.Background(), About{}, nil); err == nil {
		t.Error("it is committed twice")
	}
	load(t, path, Trust{Unsigned: true}, memories{"memory": want}, nil)
}

// A second image writes what has changed.
func TestSecondImage(t *testing.T) {
	dir := t.TempDir()
	const chunks = 400
	memory := noise(1, chunks*minChunk)
	first := write(t, filepath.Join(dir, "1"), small, memories{"memory": memory}, nil, nil)
	for i := range chunks / 20 { // 5 %
		copy(memory[i*20*minChunk:], "changed")
	}
	second := write(t, filepath.Join(dir, "2"), small, memories{"memory": memory}, nil, nil)
	if second.Written*100 > first.Written*8 {
		t.Errorf("the second image writes %d bytes of %d, more than 8 %%", second.Written, first.Written)
	}
	load(t, filepath.Join(dir, "2"), Trust{Unsigned: true}, memories{"memory": memory}, nil)
	if err := os.RemoveAll(filepath.Join(dir, "1")); err != nil {
		t.Fatal(err)
	}
	c, err := Collect(dir)
	if err != nil || c.Chunks != chunks/20 || c.Images != 0 {
		t.Errorf("%+v, %v; want the %d chunks that only the first had", c, err, chunks/20)
	}
	load(t, filepath.Join(dir, "2"), Trust{Unsigned: true}, memories{"memory": memory}, nil)
}

// Ten replicas that are written at the same time store everything once.
func TestReplicas(t *testing.T) {
	dir := t.TempDir()
	memory := noise(1, 50*minChunk)
	var all sync.WaitGroup
	for n := range 10 {
		all.Go(func() {
			if _, err := try(filepath.Join(dir, fmt.Sprint(n)), small, memories{"memory": memory}, nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	files := map[any]bool{}
	for n := range 10 {
		path := filepath.Join(dir, fmt.Sprint(n))
		load(t, path, Trust{Unsigned: true}, memories{"memory": memory}, nil)
		chunks, err := os.ReadDir(filepath.Join(path, chunksName))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chunks {
			info, err := c.Info()
			if err != nil {
				t.Fatal(err)
			}
			files[status(info).Ino] = true
		}
	}
	if len(files) != 50 {
		t.Errorf("%d chunks on the disk, want 50", len(files))
	}
}

// A chunk of the store that is cut, or that others may write to, is not linked: the image gets its own.
func TestStoreChunksAreChecked(t *testing.T) {
	dir := t.TempDir()
	memory := noise(1, 3*minChunk)
	write(t, filepath.Join(dir, "1"), small, memories{"memory": memory}, nil, nil)
	h := sum(memory[:minChunk])
	other := sum(memory[minChunk : 2*minChunk])
	if err := os.Truncate(filepath.Join(dir, storeName, chunkPath(h)), 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, storeName, chunkPath(other)), 0o622); err != nil {
		t.Fatal(err)
	}
	for n := 2; n < 4; n++ { // the third shares those of the second
		path := filepath.Join(dir, fmt.Sprint(n))
		stats := write(t, path, small, memories{"memory": memory}, nil, nil)
		if want := int64(5-n) * minChunk; stats.Shared != int64(min(3, 2*n-3))*minChunk {
			t.Errorf("%+v, want %d shared", stats, want)
		}
		load(t, path, Trust{Unsigned: true}, memories{"memory": memory}, nil)
	}
}

func TestExists(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	w, err := Create(path, small)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, small, memories{"memory": noise(1, 5000)}, nil, nil)
	if _, err := w.Commit(context.Background(), About{}, nil); !errors.Is(err, ErrExists) {
		t.Errorf("a second image of the same name: %v", err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	load(t, path, Trust{Unsigned: true}, memories{"memory": noise(1, 5000)}, nil)
	if _, err := Create(path, small); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := Create(filepath.Join(dir, "none", "image"), small); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "make the folder "+filepath.Join(dir, "none")) {
		t.Errorf("%v", err)
	}
	if _, err := Create(filepath.Join(dir, "other"), Options{ChunkSize: 5000}); err == nil {
		t.Error("chunks of 5000 bytes are accepted")
	}
}

// What is given up leaves nothing, but for what others have.
func TestAbort(t *testing.T) {
	dir := t.TempDir()
	memory := noise(1, 20*minChunk)
	write(t, filepath.Join(dir, "1"), small, memories{"memory": memory[:10*minChunk]}, nil, nil)
	w, err := Create(filepath.Join(dir, "2"), small)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Copy(context.Background(), "memory", int64(len(memory)), bytes.NewReader(memory)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Abort(), w.Abort()); err != nil {
		t.Fatal(err)
	}
	if c, err := Collect(dir); err != nil || c != (Collected{}) {
		t.Errorf("left: %+v, %v", c, err)
	}
	if names, err := List(dir); err != nil || fmt.Sprint(names) != "[1]" {
		t.Errorf("images: %v, %v", names, err)
	}
	load(t, filepath.Join(dir, "1"), Trust{Unsigned: true}, memories{"memory": memory[:10*minChunk]}, nil)
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	memory := noise(1, 20*minChunk)
	write(t, filepath.Join(dir, "1"), small, memories{"memory": memory}, map[string]string{"f": "x"}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w, err := Create(filepath.Join(dir, "2"), small)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Copy(ctx, "memory", int64(len(memory)), bytes.NewReader(memory)); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy: %v", err)
	}
	i, err := Open(filepath.Join(dir, "1"), Trust{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if err := i.Load(ctx, map[string]io.WriterAt{"memory": target{memory}}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Load: %v", err)
	}
	if _, err := i.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify: %v", err)
	}
	if err := i.Extract(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("Extract: %v", err)
	}
}

// Collect leaves alone what is being written, and takes away what a writer that is gone has left.
func TestCollectBesideWriters(t *testing.T) {
	dir := t.TempDir()
	var writers sync.WaitGroup
	for n := range 6 {
		writers.Go(func() {
			for round := range 5 {
				m := memories{"memory": noise(uint64(round), 30*minChunk)}
				path := filepath.Join(dir, fmt.Sprintf("%d-%d", n, round))
				if _, err := try(path, small, m, nil, nil); err != nil {
					t.Error(err)
					return
				}
				load(t, path, Trust{Unsigned: true}, m, nil)
				if round%2 == 0 {
					if err := os.RemoveAll(path); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		default:
		}
		if c, err := Collect(dir); err != nil || c.Images > 0 {
			t.Errorf("%+v, %v", c, err)
		}
	}
	names, err := List(dir)
	if err != nil || len(names) != 12 {
		t.Errorf("%v, %v", names, err)
	}
	chunks := 0
	_ = filepath.WalkDir(filepath.Join(dir, storeName, chunksName), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			chunks++
		}
		return err
	})
	if chunks > 60 {
		t.Errorf("%d chunks in the store, of 60 that are used", chunks)
	}
	if _, err := Collect(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if c, err := Collect(t.TempDir()); err != nil || c != (Collected{}) {
		t.Errorf("a folder without images: %+v, %v", c, err)
	}
}

func TestDiff(t *testing.T) {
	dir := t.TempDir()
	before := noise(1, 10*minChunk)
	after := bytes.Clone(before)
	copy(after[2*minChunk:], noise(2, minChunk))          // new
	copy(after[4*minChunk:5*minChunk], before[:minChunk]) // moved
	clear(after[6*minChunk : 7*minChunk])                 // zero now
	same := noise(3, minChunk+10)
	write(t, filepath.Join(dir, "1"), small, memories{"m": before, "same": same, "gone": same}, map[string]string{"a": "1", "b": "1", "c": "1"}, nil)
	write(t, filepath.Join(dir, "2"), small, memories{"m": after, "same": same, "new": same}, map[string]string{"a": "1", "b": "22", "d": "1"}, nil)
	var m [2]*Manifest
	for n := range m {
		i, err := Open(filepath.Join(dir, fmt.Sprint(n+1)), Trust{Unsigned: true})
		if err != nil {
			t.Fatal(err)
		}
		defer i.Close()
		m[n] = &i.Manifest
	}
	want := "[{m 40960 40960 12288 4096} {new -1 4106 4106 0} {gone 4106 -1 0 0} {files/b 1 2 2 2} {files/d -1 1 1 1} {files/c 1 -1 0 0}]"
	if got := fmt.Sprint(Diff(m[0], m[1])); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := Diff(m[0], m[0]); len(got) != 0 {
		t.Errorf("from itself: %v", got)
	}
}

func TestMatch(t *testing.T) {
	one := Device{UUID: "1", Name: "A", Kind: "8.0", Units: 4, Memory: 100}
	two, three, other := one, one, one
	two.UUID, three.UUID, other.UUID, other.Memory = "2", "3", "4", 50
	here := []Device{two, one, three, other}
	a := About{Topology: []Device{one, two}}
	for _, c := range []struct {
		have  []Device
		pairs map[string]string
		want  string
	}{
		{here, nil, "map[1:1 2:2]"},
		{here, map[string]string{"1": "2", "2": "1"}, "map[1:2 2:1]"},
		{here, map[string]string{"2": "3"}, "map[1:1 2:3]"},
		{here, map[string]string{"2": "4"}, "4 cannot take the place of 2: it has 50 bytes of memory, not 100"},
		{here, map[string]string{"2": "1"}, "1 is to take the place of both 1 and 2"},
		{here, map[string]string{"9": "1"}, "9 is no device of the image"},
		{here[1:], nil, "A 2 is not here"},
	} {
		got, err := a.Match(c.have, c.pairs)
		text := fmt.Sprint(got)
		if err != nil {
			text = strings.TrimPrefix(err.Error(), ErrTopology.Error()+": ")
			if !errors.Is(err, ErrTopology) {
				t.Errorf("%v is no ErrTopology", err)
			}
		}
		if text != c.want {
			t.Errorf("%v: %s, want %s", c.pairs, text, c.want)
		}
	}
	for _, change := range []func(*Device){func(d *Device) { d.Name = "B" }, func(d *Device) { d.Kind = "9.0" }, func(d *Device) { d.Units = 5 }} {
		d := one
		change(&d)
		if one.differs(d) == "" {
			t.Errorf("%+v can take the place of %+v", d, one)
		}
	}
}

// holed is memory of which nothing is written behind a place.
type holed struct {
	*bytes.Reader
	end, reads int64
}

func (h *holed) Wants(offset, _ int64) bool { return offset < h.end }

func (h *holed) ReadAt(b []byte, offset int64) (int, error) {
	atomic.AddInt64(&h.reads, 1)
	return h.Reader.ReadAt(b, offset)
}

// TestSame: memory is compared with what an image has, and neither reads nor writes where there is nothing.
func TestSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	b := append(append(noise(1, 2*minChunk), make([]byte, 20*minChunk)...), 0, 0, 0)
	was := func() *holed { return &holed{Reader: bytes.NewReader(b), end: 2 * minChunk} }
	w, err := Create(path, small)
	if err != nil {
		t.Fatal(err)
	}
	one := was()
	if err := w.Copy(t.Context(), "m", int64(len(b)), one); err != nil || one.reads != 2 || w.Stats().Zero != 20*minChunk+3 {
		t.Fatalf("%v, %d chunks read, %+v", err, one.reads, w.Stats())
	}
	if _, err := w.Commit(t.Context(), About{}, nil); err != nil {
		t.Fatal(err)
	}
	load(t, path, Trust{Unsigned: true}, memories{"m": b}, nil)
	i, err := Open(path, Trust{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	one = was()
	if same, err := i.Same(t.Context(), "m", one); !same || err != nil || one.reads != 2 {
		t.Errorf("%v, %v, %d chunks read", same, err, one.reads)
	}
	for _, at := range []int{0, 2*minChunk - 1, 5 * minChunk, len(b) - 1} {
		other := bytes.Clone(b)
		other[at] ^= 1
		if same, err := i.Same(t.Context(), "m", bytes.NewReader(other)); same || err != nil {
			t.Errorf("byte %d is another: %v, %v", at, same, err)
		}
	}
	if same, err := i.Same(t.Context(), "m", bytes.NewReader(b[:len(b)-1])); same || err == nil {
		t.Errorf("it is shorter: %v, %v", same, err)
	}
	if same, err := i.Same(t.Context(), "n", was()); same || err == nil {
		t.Errorf("there is no such stream: %v, %v", same, err)
	}
}
