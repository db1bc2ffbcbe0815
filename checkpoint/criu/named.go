package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory that processes share may have a name (shm_open(3), sem_open(3)), and then it is a file to CRIU, which is to be there at
// a restore as it was. But it is gone when its name is, or after the machine has been off, as memory is.

// namedFolder is where such files are, on a file system in memory.
const namedFolder = "/dev/shm"

// OpenNamed opens the folder with files in memory below a root folder; nil if there is none in memory.
func OpenNamed(root *os.File) (*os.File, error) {
	f, err := openIn(root, namedFolder, unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenName opens a file in that folder. No link is followed, and nothing outside is opened. Flags are those of open(2).
func OpenName(folder *os.File, name string, flags int, mode os.FileMode) (*os.File, error) {
	how := unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK, Mode: uint64(mode.Perm()),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT == 0 {
		how.Mode = 0
	}
	fd, err := unix.Openat2(int(folder.Fd()), name, &how)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path.Join(namedFolder, name), Err: err}
	}
	f := os.NewFile(uintptr(fd), path.Join(namedFolder, name))
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no file", f.Name()), f.Close())
	}
	return f, nil
}

// RemoveName removes a name in that folder, if it is that of a file.
func RemoveName(folder *os.File, name string, f *os.File) error {
	err := inFolderOf(folder, name, f, func(dir int, last string) error { return unix.Unlinkat(dir, last, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ExchangeNames has two files in that folder have each other's names, which are in the same folder. f is the one that has the
// first name; if it has that no more, the error is fs.ErrNotExist.
func ExchangeNames(folder *os.File, name, other string, f *os.File) error {
	return inFolderOf(folder, name, f, func(dir int, last string) error {
		return unix.Renameat2(dir, last, dir, path.Base(other), unix.RENAME_EXCHANGE)
	})
}

// inFolderOf does something in the folder of a name, if it is that of a file; else the error is fs.ErrNotExist.
func inFolderOf(folder *os.File, name string, f *os.File, do func(dir int, last string) error) error {
	dir, err := openIn(folder, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return err
	}
	defer dir.Close()
	var named, own unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &own); err != nil {
		return err
	}
	err = unix.Fstatat(int(dir.Fd()), path.Base(name), &named, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err != nil:
	case inodeOf(&named) != inodeOf(&own):
		err = fs.ErrNotExist
	default:
		err = do(int(dir.Fd()), path.Base(name))
	}
	return err
}

// NamedIn are the names, without their folder, of the files that the processes of an image in a folder have there.
func NamedIn(dir string) (names []string, err error) {
	ghosts := map[int64]bool{}
	text, err := readList(filepath.Join(dir, remapName), maxRemaps)
	if err == nil {
		err = eachEntry(text, remapMagic, func(entry []byte) error {
			file, _, _, err := parseRemap(entry)
			ghosts[file] = true // it has no name, and is in the image
			return err
		})
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", remapName, err)
	}
	err = editFiles(dir, func(entry []byte) ([]byte, error) {
		id, _, file, err := regularFile(entry)
		name, is := strings.CutPrefix(file.Name, namedFolder+"/")
		if is && !file.External && !ghosts[id] && file.Mode&unix.S_IFMT == unix.S_IFREG && !slices.Contains(names, name) {
			names = append(names, name)
		}
		return nil, err
	})
	slices.Sort(names)
	return names, err
}

// UserOf is a process other than this one that has a file in memory open or mapped, and what that process is called; 0 if there
// is none.
func UserOf(f *os.File) (pid int, name string, err error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &want); err != nil {
		return 0, "", err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, "", err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && (hasMapped(pid, &want) || hasOpen(pid, &want)) {
			return pid, called(pid), nil
		}
	}
	return 0, "", nil
}

// hasMapped says whether a process maps a file, as its list has it: no file of another's is touched.
func hasMapped(pid int, want *unix.Stat_t) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // one that has ended maps none
	like := fmt.Sprintf(" %02x:%02x %d ", unix.Major(uint64(want.Dev)), unix.Minor(uint64(want.Dev)), want.Ino)
	return strings.Contains(string(text), like)
}

func hasOpen(pid int, want *unix.Stat_t) bool {
	fds, _ := descriptors(pid)
	return slices.ContainsFunc(fds, func(fd int) bool {
		number := descriptorNumber(pid, fd, "ino", 10) // 0: the kernel is older than 5.14
		var st unix.Stat_t
		return (number == 0 || uint64(number) == want.Ino) && unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), &st) == nil &&
			inodeOf(&st) == inodeOf(want)
	})
}
