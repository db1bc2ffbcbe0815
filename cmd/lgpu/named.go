package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
)

// namedFile is a file in memory that a program has by its name, such as a semaphore, as an image notes it. Its contents are a
// stream of the image.
type namedFile struct {
	Name  string `json:"name"`  // in the folder of such files
	Size  int64  `json:"size"`  // bytes
	Mode  uint32 `json:"mode"`  // permissions
	User  uint32 `json:"user"`  // its owner
	Group uint32 `json:"group"` // likewise
}

// stream is the name of the stream with its contents. What may not be in such a name is written as the hexadecimal number of each
// byte behind "=", as two files must not have the same.
func (f namedFile) stream() string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	var b strings.Builder
	b.WriteString("named/")
	for i := range len(f.Name) {
		if c := f.Name[i]; strings.IndexByte(plain, c) >= 0 && (i > 0 || c != '.') {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

func namedSize(all []namedFile) (bytes int64) {
	for _, f := range all {
		bytes += f.Size
	}
	return bytes
}

// checkNamed says what is wrong with the files that an image notes, which anybody may have written.
func checkNamed(i *image.Image, all []namedFile) error {
	had := map[string]bool{}
	for _, f := range all {
		if !filepath.IsLocal(f.Name) || filepath.Clean(f.Name) != f.Name || f.Name == "." || strings.ContainsRune(f.Name, 0) ||
			had[f.Name] || f.Mode&^0o777 != 0 {
			return fmt.Errorf("a file in memory cannot be called %.100q, with mode %o", f.Name, f.Mode)
		}
		had[f.Name] = true
		if s := i.Stream(f.stream()); s == nil || s.Size != f.Size {
			return fmt.Errorf("it has no memory %s of %d bytes", f.stream(), f.Size)
		}
	}
	return nil
}

// sparse is a file of which those parts are not read that were never written.
type sparse struct{ *os.File }

// Wants says whether anything is written in so many bytes from an offset on.
func (s sparse) Wants(offset, length int64) bool {
	at, err := unix.Seek(int(s.Fd()), offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // there is nothing behind it either
		return false
	}
	return err != nil || at < offset+length
}

// writeNamed writes files in memory to an image, and returns what is to be noted of them. started is told how many bytes that is.
func writeNamed(ctx context.Context, w *image.Writer, folder *os.File, names []string, started func(int64)) ([]namedFile, error) {
	var all []namedFile
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close() // it has only been read
		}
	}()
	for _, name := range names {
		f, err := criu.OpenName(folder, name, os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		all = append(all, namedFile{name, st.Size, st.Mode & 0o777, st.Uid, st.Gid})
	}
	started(namedSize(all))
	for n, f := range all {
		if err := w.Copy(ctx, f.stream(), f.Size, sparse{files[n]}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// namedMaker makes the files again that are not there any more, or have changed.
type namedMaker struct {
	folder *os.File // with all of them; nil if there are none
	made   []*os.File
}

// bringNamed sees to it that the program's files in memory are there, as they were. None is touched unless all can be.
func (s *restoreStep) bringNamed(ctx context.Context) error {
	if len(s.program.Named) == 0 {
		return nil
	}
	ctx, stop := s.bounded(ctx)
	defer stop()
	root := "/"
	if s.inside != nil {
		root = s.inside.Root()
	}
	err := s.named.bring(ctx, s.image, s.program.Named, root, s.progress("written", namedSize(s.program.Named)))
	if err != nil {
		return s.late(ctx, failed(fmt.Errorf("restore: %w", err)))
	}
	s.phases.end("named")
	return nil
}

// bring is bringNamed for files below a root folder.
func (m *namedMaker) bring(ctx context.Context, i *image.Image, all []namedFile, root string, progress func(int64)) error {
	at, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer at.Close()
	if m.folder, err = criu.OpenNamed(at); err != nil {
		return err
	}
	if m.folder == nil {
		return errors.New("its program has files in memory, and there is no /dev/shm for them that is in memory")
	}
	changed := make([]*os.File, len(all)) // nil where it is not there
	same := make([]bool, len(all))
	defer func() {
		for _, f := range changed {
			if f != nil {
				f.Close() // a write has failed before
			}
		}
	}()
	for n, f := range all {
		if changed[n], same[n], err = f.find(ctx, i, m.folder); err != nil {
			return err
		}
	}
	for n, f := range all {
		if same[n] {
			progress(f.Size)
			continue
		}
		file := changed[n]
		if file == nil {
			if file, err = criu.OpenName(m.folder, f.Name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
				return err
			}
			m.made = append(m.made, file)
		}
		if err := f.fill(ctx, i, file, progress); err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
	}
	return nil
}

// find finds the file, and says whether it is as it was. One that is not is refused where it is another's, or used.
func (f namedFile) find(ctx context.Context, i *image.Image, folder *os.File) (file *os.File, same bool, err error) {
	file, err = criu.OpenName(folder, f.Name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	defer func() {
		if err != nil {
			file.Close() // nothing was written
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, false, err
	}
	if st.Size == f.Size {
		if same, err = i.Same(ctx, f.stream(), sparse{file}); err != nil || same {
			return file, same, err
		}
	}
	if st.Uid != f.User {
		return nil, false, fmt.Errorf("%s is not as its program had it, and is another user's", harmless(file.Name()))
	}
	pid, name, err := criu.UserOf(file)
	if err == nil && pid != 0 {
		err = fmt.Errorf("%s is not as its program had it, and process %d, %s, uses it", harmless(file.Name()), pid, name)
	}
	return file, false, err
}

// fill gives a file the contents that it had.
func (f namedFile) fill(ctx context.Context, i *image.Image, file *os.File, progress func(int64)) error {
	err := file.Chown(int(f.User), int(f.Group)) // at first: what a killed restore leaves is not another's to the next one
	if err == nil {
		err = file.Truncate(0) // what is zero is not written
	}
	if err == nil {
		err = file.Truncate(f.Size)
	}
	if err == nil {
		err = i.Load(ctx, map[string]io.WriterAt{f.stream(): file}, progress)
	}
	if err == nil {
		err = file.Chmod(os.FileMode(f.Mode))
	}
	return err
}

// keep leaves the files to the program.
func (m *namedMaker) keep() {
	for _, f := range m.made {
		f.Close() // all has been written
	}
	m.made = nil
	if m.folder != nil {
		m.folder.Close()
		m.folder = nil
	}
}

// undo removes the files that were made, unless the program has them.
func (m *namedMaker) undo() {
	for _, f := range m.made {
		_ = criu.RemoveName(m.folder, f) // the next restore takes what stays
	}
	m.keep()
}
