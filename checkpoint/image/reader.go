package image

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"lukechampine.com/blake3"
)

// Image is an image that is being read. Its methods may be called by many goroutines at once, but for Close.
type Image struct {
	Manifest
	// Signer is who signed it, nil for nobody; Own says whether that is one of the keys that Open was given.
	Signer ed25519.PublicKey
	Own    bool

	path    string
	root    *os.Root
	dir     *os.File // the same folder
	buffers *buffers
}

// Open reads and checks the manifest of an image, and whose it is. Chunks and files are checked when they are read.
func Open(name string, t Trust) (*Image, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, at(name, err)
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, at(name, errors.Join(err, root.Close()))
	}
	i := &Image{path: name, root: root, dir: dir}
	if err := i.open(t); err != nil {
		return nil, at(name, errors.Join(err, i.close()))
	}
	i.buffers = newBuffers(i.ChunkSize)
	return i, nil
}

func (i *Image) open(t Trust) error {
	text, err := i.text(manifestName, "manifest", maxManifest)
	var d *Damage
	if errors.As(err, &d) && d.What == missing {
		return ErrNoImage
	} else if err != nil {
		return err
	}
	if err := probe(text); err != nil {
		return err
	}
	signature, err := i.text(signatureName, "signature", 1<<10)
	switch {
	case errors.As(err, &d) && d.What == missing:
	case err != nil:
		return err
	default:
		if i.Signer, err = signer(signature, text); err != nil {
			return err
		}
	}
	if err := t.accept(i.Signer); err != nil {
		return err
	}
	i.Own = i.Signer != nil && t.own(i.Signer)
	m, err := parse(text)
	if err != nil {
		return err
	}
	i.Manifest = *m
	return nil
}

// Close ends the reading.
func (i *Image) Close() error { return at(i.path, i.close()) }

func (i *Image) close() error { return errors.Join(i.dir.Close(), i.root.Close()) }

// file opens a plain file of the image. No link is followed, at any place of the name.
func (i *Image) file(name, object string) (*os.File, int64, error) {
	dir := int(i.dir.Fd())
	words := strings.Split(name, "/")
	for n, w := range words {
		flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY // a pipe or device does not hold us
		if n < len(words)-1 {
			flags |= unix.O_DIRECTORY | unix.O_PATH
		}
		fd, err := unix.Openat(dir, w, flags, 0)
		if n > 0 {
			_ = unix.Close(dir)
		}
		if err != nil {
			return nil, 0, lost(object, err)
		}
		dir = fd
	}
	f := os.NewFile(uintptr(dir), name)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = damaged(object, notPlain)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// text reads one of the image's own files, of at most so many bytes.
func (i *Image) text(name, object string, most int64) ([]byte, error) {
	f, size, err := i.file(name, object)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > most {
		return nil, damaged(object, "has %d bytes, more than %d", size, most)
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", object, err)
	}
	return text, nil
}

// chunk calls a function with the contents of a chunk, which it must not keep.
func (i *Image) chunk(hash Hash, length int64, use func([]byte) error) error {
	object := "chunk " + hash.short()
	f, size, err := i.file(chunksName+"/"+hash.String(), object)
	if err != nil {
		return err
	}
	defer f.Close()
	if size > headLength+length { // what is longer than its contents is no chunk
		return damaged(object, "is too long: it has %d bytes for %d", size, length)
	}
	b, spare := i.buffers.get(), i.buffers.get()
	defer i.buffers.put(b)
	defer i.buffers.put(spare)
	file, err := readWhole(f, b, int(size))
	if err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}
	data, err := unpack(file, spare.bytes, hash, length)
	if err != nil {
		return err
	}
	return use(data)
}

// Chooser is memory that does not want, or has, all of a stream.
type Chooser interface {
	// Wants says whether it wants any of so many bytes from an offset on.
	Wants(offset, length int64) bool
}

// Load writes streams to memory, by several goroutines at once. What is zero in a stream is not written: the memory must be
// zero before, as fresh memory is. Nor are chunks that memory does not want which is a Chooser, too. Every chunk is checked
// before it is written; after an error some have been written. Progress is told how many more bytes are done, those that are not
// written too, by many goroutines at once; it may be nil.
func (i *Image) Load(ctx context.Context, to map[string]io.WriterAt, progress func(bytes int64)) error {
	for name := range to {
		if i.Stream(name) == nil {
			return at(i.path, fmt.Errorf("it has no stream %s", name))
		}
	}
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for n := range i.Streams {
		s := &i.Streams[n]
		memory := to[s.Name]
		if memory == nil {
			continue
		}
		chooser, chooses := memory.(Chooser)
		rest := s.Size
		for _, c := range s.Chunks {
			length := i.chunkLength(s, c.Index)
			if chooses && !chooser.Wants(c.Index*int64(i.ChunkSize), length) {
				continue
			}
			rest -= length
			if all.Err() != nil {
				break
			}
			g.Go(func() error {
				err := i.chunk(c.Hash, length, func(data []byte) error {
					_, err := memory.WriteAt(data, c.Index*int64(i.ChunkSize))
					return err
				})
				if err != nil {
					return fmt.Errorf("stream %s: %w", s.Name, err)
				}
				tell(progress, length)
				return nil
			})
		}
		tell(progress, rest)
	}
	if err := g.Wait(); err != nil {
		return at(i.path, err)
	}
	return at(i.path, context.Cause(ctx))
}

// Same says whether memory has what a stream has, by the hashes of its chunks: none is read. Chunks that memory does not want
// which is a Chooser, too, are zero.
func (i *Image) Same(ctx context.Context, name string, memory io.ReaderAt) (bool, error) {
	s := i.Stream(name)
	if s == nil {
		return false, at(i.path, fmt.Errorf("it has no stream %s", name))
	}
	chooser, chooses := memory.(Chooser)
	chunks := s.Chunks
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for index := int64(0); index*int64(i.ChunkSize) < s.Size && all.Err() == nil; index++ {
		offset, length := index*int64(i.ChunkSize), i.chunkLength(s, index)
		var want *Hash // nil for zeros
		if len(chunks) > 0 && chunks[0].Index == index {
			want, chunks = &chunks[0].Hash, chunks[1:]
		}
		if want == nil && chooses && !chooser.Wants(offset, length) {
			continue
		}
		g.Go(func() error {
			b := i.buffers.get()
			defer i.buffers.put(b)
			data := b.bytes[:length]
			if n, err := memory.ReadAt(data, offset); n < len(data) {
				return fmt.Errorf("read for stream %s: %w", name, cmp.Or(err, io.ErrUnexpectedEOF))
			}
			if want == nil && !zero(data) || want != nil && sum(data) != *want {
				return errOther
			}
			return nil
		})
	}
	err := g.Wait()
	if errors.Is(err, errOther) {
		return false, nil
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return err == nil, at(i.path, err)
}

// errOther ends Same.
var errOther = errors.New("other contents")

func tell(progress func(int64), bytes int64) {
	if progress != nil {
		progress(bytes)
	}
}

// Extract copies the plain files to a folder, which must be empty, and checks them as it does. CRIU is to read the copies:
// what is in the image's own folder may be another's, and change after it was checked.
func (i *Image) Extract(ctx context.Context, folder string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return at(i.path, err)
	}
	defer root.Close()
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		return at(i.path, fmt.Errorf("extract to %s: it is not an empty folder", folder))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for _, f := range i.Files {
		g.Go(func() error {
			if dir := path.Dir(f.Name); dir != "." {
				if err := root.MkdirAll(dir, 0o700); err != nil {
					return err
				}
			}
			to, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			return errors.Join(i.copy(ctx, f, to), to.Close())
		})
	}
	return at(i.path, g.Wait())
}

// copy copies a plain file and checks it.
func (i *Image) copy(ctx context.Context, file File, to io.Writer) error {
	object := "file " + file.Name
	f, size, err := i.file(filesName+"/"+file.Name, object)
	if err != nil {
		return err
	}
	defer f.Close()
	if size != file.Size {
		return damaged(object, "has %d bytes, and should have %d", size, file.Size)
	}
	h := blake3.New(len(file.Hash), nil)
	// No more than the size, even if somebody writes on.
	if _, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(reading{ctx, f}, size)); err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}
	if Hash(h.Sum(nil)) != file.Hash {
		return damaged(object, flipped)
	}
	return nil
}

// Verify reads everything and returns all damage there is. The error is what kept it from reading something, such as ctx.
// Progress is told how many more bytes of Size are done, by many goroutines at once; it may be nil.
func (i *Image) Verify(ctx context.Context, progress func(bytes int64)) ([]*Damage, error) {
	var mu sync.Mutex
	var found []*Damage
	note := func(err error) error {
		var d *Damage
		if !errors.As(err, &d) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		found = append(found, d)
		return nil
	}
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	check := func(length int64, f func() error) {
		if all.Err() != nil {
			return
		}
		g.Go(func() error {
			err := note(f())
			tell(progress, length)
			return err
		})
	}
	for hash, length := range i.unique() {
		check(length, func() error { return i.chunk(hash, length, func([]byte) error { return nil }) })
	}
	for _, f := range i.Files {
		check(f.Size, func() error { return i.copy(all, f, io.Discard) })
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = i.extra(note)
	}
	slices.SortFunc(found, func(a, b *Damage) int { return strings.Compare(a.Error(), b.Error()) })
	return found, at(i.path, err)
}

// unique are the chunks of all streams, each once, and how long their contents are. If the same chunk is to have two
// lengths, one of the two is damage wherever it is read.
func (i *Image) unique() map[Hash]int64 {
	all := map[Hash]int64{}
	for n := range i.Streams {
		s := &i.Streams[n]
		for _, c := range s.Chunks {
			all[c.Hash] = i.chunkLength(s, c.Index)
		}
	}
	return all
}

// Size is how many bytes Verify reads, uncompressed: each chunk once, and the plain files.
func (i *Image) Size() int64 {
	var n int64
	for _, length := range i.unique() {
		n += length
	}
	for _, f := range i.Files {
		n += f.Size
	}
	return n
}

// extra notes what is in the image's folder and not in its manifest, the first maxExtra of it.
func (i *Image) extra(note func(error) error) error {
	known := map[string]bool{manifestName: true, signatureName: true}
	for _, f := range i.Files {
		known[filesName+"/"+f.Name] = true
	}
	for hash := range i.unique() {
		known[chunksName+"/"+hash.String()] = true
	}
	folders := map[string]bool{".": true, filesName: true, chunksName: true}
	for name := range known {
		for folder := path.Dir(name); !folders[folder]; folder = path.Dir(folder) {
			folders[folder] = true
		}
	}
	found := 0
	return fs.WalkDir(i.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || e.IsDir() && folders[name] || !e.IsDir() && known[name]:
			return err
		case known[name]: // which is found to be no file
			return fs.SkipDir
		case e.IsDir():
			name += "/"
		}
		if checkName(strings.TrimSuffix(name, "/")) != nil {
			name = strconv.Quote(name) // whoever put it there may have meant it for a terminal
		}
		if err := note(damaged(name, unplanned)); err != nil {
			return err
		}
		if found++; found == maxExtra {
			return fs.SkipAll
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// Disk is what an image takes of the disk, in bytes.
type Disk struct {
	Whole int64 // with what it shares
	Own   int64 // what would be free without it, after Collect
}

// Disk looks at the image's files.
func (i *Image) Disk() (Disk, error) {
	var d Disk
	err := fs.WalkDir(i.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		d.Whole += allocated(info)
		if links(info) == 1 || links(info) == 2 && strings.HasPrefix(name, chunksName+"/") { // its own, and the store's
			d.Own += allocated(info)
		}
		return nil
	})
	return d, at(i.path, err)
}
