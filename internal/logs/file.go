package logs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// MaxFile is how many bytes a log has before it becomes the old one, in the place of the one that was old.
const MaxFile = 1 << 20

// OldSuffix is behind the name of the old log.
const OldSuffix = ".old"

// Open opens the log at path, to which several processes may write, after making it the old one if it is large. Only
// the user reads it.
func Open(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Size() > MaxFile {
		if err := os.Rename(path, path+OldSuffix); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}

// Standard is the log of a process whose standard output and error are the file at a path, as Open makes it. It is a
// writer that changes the file when it is large, under standard output and error too, so that what the runtime says at
// the end of a crash is in the log. Another process that changes it is followed. Writes may come from several
// goroutines.
type Standard struct {
	path string
	most int64

	mu  sync.Mutex // one line at a time
	out *os.File
	fds []int // what is the file beside out
}

// NewStandard returns the log at path, which standard output and error already are.
func NewStandard(path string) *Standard {
	return &Standard{path: path, most: MaxFile, out: os.Stderr, fds: []int{1, 2}}
}

// Write implements io.Writer.
func (s *Standard) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.follow(int64(len(line))); err != nil {
		line = fmt.Appendf(nil, "lgpu: warning: the log goes on in its old file: %v\n%s", err, line)
	}
	return s.out.Write(line)
}

// follow sees to it that there is room for so many bytes, and that they go to the file that is at the path.
func (s *Standard) follow(bytes int64) error {
	named, err := os.Stat(s.path)
	if err == nil && named.Size()+bytes > s.most {
		if err := os.Rename(s.path, s.path+OldSuffix); err != nil {
			return err
		}
	} else if err == nil {
		if open, err := s.out.Stat(); err == nil && os.SameFile(named, open) {
			return nil
		}
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, fd := range s.fds {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return fmt.Errorf("change the log of descriptor %d: %w", fd, err)
		}
	}
	return nil
}
