package assets

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/wholefile"
)

// To hash every library at every run would read nine megabytes each time. So the folder has a stamp: a file that says
// what the libraries were when they were last read and found right, as the kernel tells it, line by line. While the
// kernel tells the same, they are not read again. No process can set the time of a change (ctime), so whoever writes to
// a library, replaces it, or changes its owner or mode makes the stamp stale.
//
// What the kernel does not note it cannot tell: on a tmpfs a write through a shared mapping changes no time. Only the
// owner of the folder could make one.
const stampName = ".checked"

// settled is how long ago a file must have changed before its times can be relied upon: a second change within one tick
// of the file system's clock, which some have at two seconds, would not show.
const settled = 3 * time.Second

// describe returns the text of the stamp for the files of an archive in dir, and when the last of them changed.
func describe(z *zip.Reader, dir string) (text string, changed time.Time, err error) {
	var b strings.Builder
	for _, f := range z.File {
		var st unix.Stat_t
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := unix.Lstat(path, &st); err != nil {
			return "", time.Time{}, fmt.Errorf("look at %s: %w", path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return "", time.Time{}, fmt.Errorf("%s is not a plain file", path)
		}
		if at := time.Unix(st.Ctim.Unix()); at.After(changed) {
			changed = at
		}
		fmt.Fprintf(&b, "%s %s %d %d %d %d %d %d %o\n", f.Name, f.Comment, st.Dev, st.Ino, st.Size,
			st.Mtim.Nano(), st.Ctim.Nano(), st.Uid, st.Mode)
	}
	return b.String(), changed, nil
}

// stamped reports whether the stamp in dir has that text and was written by root or this process's user. Nobody else
// may say that a library is right.
func stamped(dir, text string) bool {
	fd, err := unix.Open(filepath.Join(dir, stampName), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), stampName)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 ||
		st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Size != int64(len(text)) {
		return false
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(len(text))+1))
	return err == nil && string(have) == text
}

// placeAll makes sure that all files of an archive are in dir and right, and reads no more of them than it must.
func placeAll(z *zip.Reader, dir string, now time.Time) error {
	if contained(dir) {
		return nil // who started this program has checked them, and they cannot be replaced
	}
	before, changed, lookErr := describe(z, dir)
	if lookErr == nil && stamped(dir, before) {
		return nil
	}
	for _, f := range z.File {
		if err := place(filepath.Join(dir, filepath.FromSlash(f.Name)), f); err != nil {
			return fmt.Errorf("install %s: %w", f.Name, err)
		}
	}
	if lookErr != nil || now.Sub(changed) < settled {
		return nil // a later run writes the stamp
	}
	// What was replaced meanwhile, here or by others, is not what was read.
	if after, _, err := describe(z, dir); err == nil && after == before {
		// Where it cannot be written the next run reads the files, too.
		_ = wholefile.Write(filepath.Join(dir, stampName), strings.NewReader(before), 0o644)
	}
	return nil
}
