// Package wholefile writes files that others read at any time: who opens one sees the contents of before or those of after,
// and never a part.
//
//	err := wholefile.Write(path, strings.NewReader(text), 0o644)
//	err := wholefile.WriteDurably(path, bytes.NewReader(key), 0o600) // there after a crash of the machine, too
//
// A new file takes the place of the old one, which is never written to: who has it open or mapped keeps what it had. So
// links to the old file stay with it, and a symbolic link at path is replaced. Until it is complete the new file has a
// hidden name in the same folder, which begins with ".new-", and mode 0600. After an error it is gone, and what was at
// path is there still.
//
// Any number of processes may write the same file at once; one of them is the last.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write makes what contents has the file at path, with that mode whatever the umask says. The folder must exist. An error
// names path, and wraps what the kernel or contents said.
func Write(path string, contents io.Reader, mode fs.FileMode) error {
	return write(path, contents, mode, false)
}

// WriteDurably is Write, and returns when the contents and the name are on the disk. If only the name could not be
// brought there, the file is at path and there is an error.
func WriteDurably(path string, contents io.Reader, mode fs.FileMode) error {
	return write(path, contents, mode, true)
}

// hidden begins the names of files that are not complete.
const hidden = ".new-"

func write(path string, contents io.Reader, mode fs.FileMode, durably bool) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, hidden+"*")
	if err != nil {
		return failed(path, err)
	}
	err = fill(temp, contents, mode, durably)
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(failed(path, err), os.Remove(temp.Name()))
	}
	if !durably {
		return nil
	}
	if err := syncFolder(dir); err != nil {
		return failed(path, err)
	}
	return nil
}

// fill writes the new file, and closes it.
func fill(temp *os.File, contents io.Reader, mode fs.FileMode, durably bool) error {
	_, err := io.Copy(temp, contents)
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil && durably {
		err = temp.Sync()
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	return err
}

// syncFolder brings the names in a folder to the disk.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// failed is the error of a file that was not written, without its hidden name, which nobody knows.
func failed(path string, err error) error {
	var at *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at) && strings.HasPrefix(filepath.Base(at.Path), hidden):
		err = at.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return fmt.Errorf("write %s: %w", path, err)
}
