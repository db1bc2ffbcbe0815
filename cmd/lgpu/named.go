package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
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
	Mode  uint32 `json:"mode"`  // chmod(2)
	User  uint32 `json:"user"`  // its owner
	Group uint32 `json:"group"` // likewise
}

// longestStream is how long the name of a stream may be that is made of a file's.
const longestStream = 200

// stream is the name of the stream with its contents. What may not be in such a name is written as the hexadecimal number of each
// byte behind "=", as two files must not have the same; a long one as its SHA-256 behind "==".
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
	if b.Len() > longestStream {
		return fmt.Sprintf("named/==%x", sha256.Sum256([]byte(f.Name)))
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
			had[f.Name] || f.Mode&^0o7777 != 0 {
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
// One that the program has by two names is left to be there at a restore, as other files are: made again, it would be two.
func writeNamed(ctx context.Context, w *image.Writer, folder *os.File, names []string, started func(int64)) ([]namedFile, error) {
	var all []namedFile
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close() // it has only been read
		}
	}()
	type inode struct{ device, number uint64 }
	of, count := map[string]inode{}, map[inode]int{}
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
		all = append(all, namedFile{name, st.Size, st.Mode & 0o7777, st.Uid, st.Gid})
		of[name] = inode{uint64(st.Dev), st.Ino}
		count[of[name]]++
	}
	twice := func(f namedFile) bool { return count[of[f.Name]] > 1 }
	started(namedSize(slices.DeleteFunc(slices.Clone(all), twice)))
	for n, f := range all {
		if twice(f) {
			continue
		}
		if err := w.Copy(ctx, f.stream(), f.Size, sparse{files[n]}); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all, twice), nil
}

// namedMaker makes the files again that are not there any more, or have changed.
type namedMaker struct {
	folder *os.File // with all of them; nil if there are none
	made   []madeFile
}

// madeFile is one that was made, and what it has taken the place of. Both are open by their path alone, since a program that is
// restored may run one of them.
type madeFile struct {
	name string
	file *os.File
	// What was there before, and the name in the same folder that it has now; nil if nothing was.
	before *os.File
	aside  string
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
				f.Close() // it has only been read
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
		} else if err := m.makeFile(ctx, i, f, changed[n], progress); err != nil {
			return err
		}
	}
	return nil
}

// find finds the file, and says whether it is as it was. One that is not is refused where it is another's, or used.
func (f namedFile) find(ctx context.Context, i *image.Image, folder *os.File) (file *os.File, same bool, err error) {
	file, err = criu.OpenName(folder, f.Name, os.O_RDONLY, 0)
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
	if st.Uid != f.User {
		return nil, false, fmt.Errorf("%s is another user's, and not that of its program", harmless(file.Name()))
	}
	if st.Size == f.Size && st.Gid == f.Group && st.Mode&0o7777 == f.Mode {
		if same, err = i.Same(ctx, f.stream(), sparse{file}); err != nil || same {
			return file, same, err
		}
	}
	pid, name, err := criu.UserOf(file)
	if err == nil && pid != 0 {
		err = fmt.Errorf("%s is not as its program had it, and process %d, %s, uses it", harmless(file.Name()), pid, name)
	}
	return file, false, err
}

// makeFile makes a file, in the place of what is there, if that is not nil.
func (m *namedMaker) makeFile(ctx context.Context, i *image.Image, f namedFile, before *os.File, progress func(int64)) error {
	name := f.Name
	if before != nil {
		name = path.Join(path.Dir(name), ".lgpu-"+rand.Text())
	}
	w, err := criu.OpenName(m.folder, name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer w.Close() // what it has written is in memory
	file, err := pathOnly(w)
	if err != nil {
		return err
	}
	m.made = append(m.made, madeFile{name: name, file: file})
	if err := f.fill(ctx, i, w, progress); err != nil {
		return fmt.Errorf("%s: %w", w.Name(), err)
	}
	if before == nil {
		return nil
	}
	old, err := pathOnly(before)
	if err == nil {
		err = criu.ExchangeNames(m.folder, f.Name, name, old)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", before.Name(), err)
	}
	m.made[len(m.made)-1] = madeFile{f.Name, file, old, name}
	return nil
}

// pathOnly opens a file by its path alone (O_PATH).
func pathOnly(f *os.File) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// fill gives a new file the contents that it had.
func (f namedFile) fill(ctx context.Context, i *image.Image, file *os.File, progress func(int64)) error {
	err := file.Chown(int(f.User), int(f.Group)) // at first: what a killed restore leaves is not another's to the next one
	if err == nil {
		err = file.Truncate(f.Size) // what is zero is not written
	}
	if err == nil {
		err = i.Load(ctx, map[string]io.WriterAt{f.stream(): file}, progress)
	}
	if err == nil {
		err = unix.Fchmod(int(file.Fd()), f.Mode)
	}
	return err
}

// keep leaves the files to the program.
func (m *namedMaker) keep() {
	for _, f := range m.made {
		if f.before != nil {
			_ = criu.RemoveName(m.folder, f.aside, f.before) // else it stays, under a name that nobody asks for
		}
	}
	m.close()
}

// undo removes the files that were made, unless somebody else has the name by now, and puts back what was there.
func (m *namedMaker) undo() {
	for _, f := range m.made { // what fails here stays, for the next restore
		name := f.name
		if f.before != nil {
			_ = criu.ExchangeNames(m.folder, f.name, f.aside, f.file)
			name = f.aside
		}
		_ = criu.RemoveName(m.folder, name, f.file)
	}
	m.close()
}

func (m *namedMaker) close() {
	for _, f := range m.made {
		f.file.Close() // it is open by its path alone
		if f.before != nil {
			f.before.Close()
		}
	}
	m.made = nil
	if m.folder != nil {
		m.folder.Close()
		m.folder = nil
	}
}
