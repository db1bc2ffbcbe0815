package image

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"lukechampine.com/blake3"
)

// Options are how Create writes.
type Options struct {
	ChunkSize int // bytes, a power of two from 4 KiB to 16 MiB; 0 is 4 MiB
	// Progress is told how many more bytes of memory are done, by many goroutines at once. May be nil.
	Progress func(bytes int64)
}

// Stats say what became of the memory and files of an image, in bytes.
type Stats struct {
	Memory  int64 `json:"memory"`  // of all streams
	Zero    int64 `json:"zero"`    // of that, not written since it is zero
	Shared  int64 `json:"shared"`  // of that, not written since it is in this image or in another one already
	Files   int64 `json:"files"`   // of CRIU's files
	Written int64 `json:"written"` // to the disk: chunks, after compression, and files
}

// Writer makes an image. Its methods may be called by many goroutines at once, but for Commit and Abort.
type Writer struct {
	path    string
	options Options
	store   *store
	name    string // of the folder, in the store
	lock    *os.File
	buffers *buffers
	mu      sync.Mutex
	streams map[string]*Writing
	chunks  map[Hash]*once // that the image has or is about to have
	made    []Hash         // that are in the store by this writer
	stats   Stats
	ended   bool
}

// once is the writing of a chunk by one of those that have it.
type once struct {
	done chan struct{}
	err  error
}

// Create begins an image at path, which must not exist; its folder must.
func Create(path string, o Options) (w *Writer, err error) {
	o.ChunkSize = cmp.Or(o.ChunkSize, defaultChunk)
	if o.ChunkSize < minChunk || o.ChunkSize > maxChunk || o.ChunkSize&(o.ChunkSize-1) != 0 {
		return nil, at(path, fmt.Errorf("chunks of %d bytes: not a power of two from %d to %d", o.ChunkSize, minChunk, maxChunk))
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, at(path, err)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, at(path, ErrExists)
	}
	s, err := openStore(filepath.Dir(path), true)
	if err != nil {
		return nil, at(path, err)
	}
	w = &Writer{path: path, options: o, store: s, buffers: newBuffers(o.ChunkSize),
		streams: map[string]*Writing{}, chunks: map[Hash]*once{}}
	if w.name, w.lock, err = s.begin(); err != nil {
		return nil, at(path, errors.Join(err, s.close()))
	}
	for _, folder := range []string{filesName, chunksName} {
		if err := s.root.Mkdir(w.inside(folder), 0o700); err != nil {
			return nil, at(path, errors.Join(err, w.Abort()))
		}
	}
	return w, nil
}

// inside is the path of something of the image, in the store.
func (w *Writer) inside(name string) string { return filepath.Join(w.name, name) }

// Path is where the image will be.
func (w *Writer) Path() string { return w.path }

// Files is the folder for plain files, which Commit takes as they are then.
func (w *Writer) Files() string { return filepath.Join(w.store.path, w.inside(filesName)) }

// ChunkSize is how many bytes a chunk has.
func (w *Writer) ChunkSize() int { return w.options.ChunkSize }

// Stats are those until now; what Commit returns has the plain files, too.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Writing is a stream that is being written.
type Writing struct {
	w      *Writer
	size   int64
	mu     sync.Mutex
	chunks map[int64]Hash
}

// Stream begins a stream: memory of a name. What is not written of it is zero.
func (w *Writer) Stream(name string, size int64) (*Writing, error) {
	if err := checkName(name); err != nil {
		return nil, at(w.path, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams[name] != nil || size < 0 || size > maxStream-w.stats.Memory {
		return nil, at(w.path, fmt.Errorf("stream %s of %d bytes: the name or the size is not possible", name, size))
	}
	s := &Writing{w: w, size: size, chunks: map[int64]Hash{}}
	w.streams[name] = s
	w.stats.Memory += size
	return s, nil
}

// Write writes the chunk with an index, whole: ChunkSize bytes, but for the last one of a stream. Data is not kept. It
// returns when the chunk is on the disk.
func (s *Writing) Write(index int64, data []byte) error {
	chunk := int64(s.w.options.ChunkSize)
	if index < 0 || index > s.size/chunk || int64(len(data)) != min(chunk, s.size-index*chunk) || len(data) == 0 {
		return at(s.w.path, fmt.Errorf("chunk %d of %d bytes: the stream has no such chunk", index, len(data)))
	}
	if zero(data) {
		s.w.count(func(n *Stats) { n.Zero += int64(len(data)) })
		return nil
	}
	hash := sum(data)
	s.mu.Lock()
	_, twice := s.chunks[index]
	if !twice {
		s.chunks[index] = hash
	}
	s.mu.Unlock()
	if twice {
		return at(s.w.path, fmt.Errorf("chunk %d: it is written twice", index))
	}
	return at(s.w.path, s.w.chunk(hash, data))
}

func (w *Writer) count(f func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

// Copy writes a stream, by several goroutines that read from memory at once. Chunks that memory does not want which is a Chooser,
// too, are zero, and not read.
func (w *Writer) Copy(ctx context.Context, name string, size int64, memory io.ReaderAt) error {
	s, err := w.Stream(name, size)
	if err != nil {
		return err
	}
	chunk := int64(w.options.ChunkSize)
	chooser, chooses := memory.(Chooser)
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for index := int64(0); index*chunk < size && all.Err() == nil; index++ {
		length := min(chunk, size-index*chunk)
		if chooses && !chooser.Wants(index*chunk, length) {
			w.count(func(n *Stats) { n.Zero += length })
			tell(w.options.Progress, length)
			continue
		}
		g.Go(func() error {
			if err := all.Err(); err != nil {
				return at(w.path, err)
			}
			b := w.buffers.get()
			defer w.buffers.put(b)
			if n, err := memory.ReadAt(b.bytes[:length], index*chunk); n < int(length) {
				return at(w.path, fmt.Errorf("read %s: %w", name, cmp.Or(err, io.ErrUnexpectedEOF)))
			}
			if err := s.Write(index, b.bytes[:length]); err != nil {
				return err
			}
			tell(w.options.Progress, length)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return at(w.path, context.Cause(ctx))
}

// workers is how many chunks are worked on at once: enough for processors and disks.
func workers() int { return min(max(2*runtime.GOMAXPROCS(0), 4), 64) }

// chunk sees to it that the image has a chunk.
func (w *Writer) chunk(hash Hash, data []byte) error {
	w.mu.Lock()
	o := w.chunks[hash]
	first := o == nil
	if first {
		o = &once{done: make(chan struct{})}
		w.chunks[hash] = o
	}
	w.mu.Unlock()
	if !first {
		<-o.done
		if o.err == nil {
			w.count(func(n *Stats) { n.Shared += int64(len(data)) })
		}
		return o.err
	}
	defer close(o.done)
	o.err = w.newChunk(hash, data)
	return o.err
}

// newChunk takes a chunk from the store, or writes it.
func (w *Writer) newChunk(hash Hash, data []byte) error {
	own := w.inside(filepath.Join(chunksName, hash.String()))
	if w.take(hash, own, len(data)) {
		w.count(func(n *Stats) { n.Shared += int64(len(data)) })
		return nil
	}
	b := w.buffers.get()
	defer w.buffers.put(b)
	length := pack(b, data, hash)
	if err := writeNew(w.store.root, own, b, length); err != nil {
		return err
	}
	w.count(func(n *Stats) { n.Written += int64(length) })
	return w.give(hash, own)
}

// take links the store's chunk to own and says whether that is one that can be used: its head is looked at, and the contents
// when it is read.
func (w *Writer) take(hash Hash, own string, length int) bool {
	root := w.store.root
	if root.Link(chunkPath(hash), own) != nil { // not there, or at the most links that a file can have
		return false
	}
	if w.sound(hash, own, length) {
		return true
	}
	_ = root.Remove(chunkPath(hash)) // so that ours can take its place
	_ = root.Remove(own)             // if not, writing it fails
	return false
}

func (w *Writer) sound(hash Hash, own string, length int) bool {
	f, err := w.store.root.Open(own)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !owned(info) {
		return false
	}
	b := make([]byte, headLength)
	if _, err := io.ReadFull(f, b); err != nil {
		return false
	}
	h, err := parseHead(b, info.Size())
	return err == nil && h.hash == hash && h.raw == length
}

// give puts a chunk of this image into the store. If another writer was quicker, the image shares that one's.
func (w *Writer) give(hash Hash, own string) error {
	root, path := w.store.root, chunkPath(hash)
	err := root.Link(own, path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := root.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err = root.Link(own, path)
	}
	switch {
	case err == nil:
		w.mu.Lock()
		w.made = append(w.made, hash)
		w.mu.Unlock()
	case errors.Is(err, fs.ErrExist):
		spare := own + ".new"
		if root.Link(path, spare) == nil {
			return root.Rename(spare, own)
		}
	}
	return nil // not shared
}

// Commit ends the image: from then on it is at path, on the disk. The key may be nil: then the image is not signed.
func (w *Writer) Commit(ctx context.Context, about About, key ed25519.PrivateKey) (Stats, error) {
	err := w.commit(ctx, about, key)
	if w.lock != nil && w.ended { // it is there, even if that is not yet on the disk
		err = errors.Join(err, w.close())
	}
	if err != nil {
		return Stats{}, at(w.path, err)
	}
	return w.stats, nil
}

func (w *Writer) commit(ctx context.Context, about About, key ed25519.PrivateKey) error {
	if w.ended {
		return errors.New("it is ended already")
	}
	if about.Topology == nil {
		about.Topology = []Device{}
	}
	if about.Words == nil {
		about.Words = map[string]string{}
	}
	files, folders, err := w.settle(ctx)
	if err != nil {
		return err
	}
	m := &Manifest{Format: format, Version: version, Created: time.Now().UTC().Truncate(time.Second), About: about,
		ChunkSize: w.options.ChunkSize, Streams: w.list(), Files: files}
	text, err := m.encode()
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("the manifest has %d bytes, at most %d; larger chunks make it smaller", len(text), maxManifest)
	}
	if err != nil {
		return err
	}
	if _, err := parse(text); err != nil { // what nobody could open is not written
		return err
	}
	if err := w.plain(manifestName, text); err != nil {
		return err
	}
	if key != nil {
		if err := w.plain(signatureName, sign(key, text)); err != nil {
			return err
		}
	}
	for _, folder := range append(folders, w.inside(chunksName), w.name) {
		if err := w.sync(folder); err != nil {
			return err
		}
	}
	return w.publish()
}

// list is the streams as the manifest has them.
func (w *Writer) list() []Stream {
	all := []Stream{}
	for name, s := range w.streams {
		one := Stream{Name: name, Size: s.size, Chunks: []Chunk{}}
		for index, hash := range s.chunks {
			one.Chunks = append(one.Chunks, Chunk{index, hash})
		}
		slices.SortFunc(one.Chunks, func(a, b Chunk) int { return cmp.Compare(a.Index, b.Index) })
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Stream) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// settle brings the plain files to the disk, and returns them and the folders that they are in.
func (w *Writer) settle(ctx context.Context) (files []File, folders []string, err error) {
	files = []File{}
	top := w.inside(filesName)
	err = fs.WalkDir(w.store.root.FS(), top, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			folders = append(folders, path)
		case !e.Type().IsRegular():
			return fmt.Errorf("file %s: it %s", path[len(top)+1:], notPlain)
		default:
			files = append(files, File{Name: filepath.ToSlash(path[len(top)+1:])})
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for i := range files {
		g.Go(func() error { return w.settleFile(ctx, &files[i]) })
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	slices.Reverse(folders) // the inner ones first
	for _, f := range files {
		w.stats.Files += f.Size
		w.stats.Written += f.Size
	}
	return files, folders, nil
}

// settleFile brings a file to the disk, for the owner alone, and finds its size and hash.
func (w *Writer) settleFile(ctx context.Context, file *File) (err error) {
	f, err := w.store.root.Open(w.inside(filepath.Join(filesName, file.Name)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := blake3.New(len(file.Hash), nil)
	if file.Size, err = io.Copy(h, reading{ctx, f}); err != nil {
		return err
	}
	h.Sum(file.Hash[:0])
	return errors.Join(f.Chmod(0o600), f.Sync())
}

// reading is a reader that ends with its context.
type reading struct {
	ctx context.Context
	r   io.Reader
}

func (r reading) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// plain writes one of the image's own files.
func (w *Writer) plain(name string, text []byte) error {
	f, err := w.store.root.OpenFile(w.inside(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// sync brings the names in a folder to the disk.
func (w *Writer) sync(folder string) error {
	f, err := w.store.root.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// publish gives the image its name.
func (w *Writer) publish() error {
	parent, err := os.Open(filepath.Dir(w.path))
	if err != nil {
		return err
	}
	defer parent.Close()
	from, err := w.store.root.Open(newName)
	if err != nil {
		return err
	}
	defer from.Close()
	old, name := filepath.Base(w.name), filepath.Base(w.path)
	err = unix.Renameat2(int(from.Fd()), old, int(parent.Fd()), name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // it replaces an empty folder at most
		err = unix.Renameat(int(from.Fd()), old, int(parent.Fd()), name)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return ErrExists
	}
	if err != nil {
		return err
	}
	w.ended = true
	return parent.Sync()
}

// Abort takes away what has been written, unless Commit has succeeded.
func (w *Writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	err := w.store.root.RemoveAll(w.name)
	for _, hash := range w.made {
		info, errs := w.store.root.Lstat(chunkPath(hash))
		if errs == nil && links(info) == 1 { // no other image has it
			errs = w.store.root.Remove(chunkPath(hash))
		}
		err = errors.Join(err, ignoreGone(errs))
	}
	return at(w.path, errors.Join(err, w.close()))
}

func (w *Writer) close() error {
	lock := w.lock
	w.lock = nil
	return errors.Join(lock.Close(), w.store.close())
}

// random is a name that nobody has.
func random() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}
