package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// A program may have a file, open or mapped, by a name that this has lost, while it has another: glibc makes a semaphore
// (sem_open(3)) under a name for a moment, links it to its own, and takes the first one away. CRIU makes a link of its own in the
// same folder then (its option --link-remap), which a restore uses up. So an image gets the other name instead, and no link of
// CRIU's stays: such a file is like any other that a program has by its name.

// The list that says by which files CRIU finds others, whose names are not there (CRIU's magic.h and remap-file-path.proto).
const (
	remapName   = "remap-fpath.img"
	remapMagic  = 0x59133954
	maxRemaps   = 64 << 20
	remapFile   = 1
	remapTo     = 2
	remapKind   = 3
	kindLinked  = 0
	noRemapKind = -1
	linkPrefix  = "link_remap." // begins the names of CRIU's links
	silly       = ".nfs"        // begins those that NFS gives to files that are open, for as long
)

// inode is a file, whatever its names.
type inode struct{ device, number uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{uint64(st.Dev), st.Ino} }

// links are those that a dump makes, or has made.
type links struct {
	root    *os.File        // the root folder of the program
	files   map[inode]bool  // that have lost a name by which the program has them
	folders map[string]bool // where these names were
}

// newLinks looks for what CRIU will make links of. Its remove is to be called.
func newLinks(d *Dump, pids []int) (*links, error) {
	root := "/"
	if d.Mounts != 0 {
		root = fmt.Sprintf("/proc/%d/root", d.Mounts)
	}
	f, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	l := &links{root: f, files: map[inode]bool{}, folders: map[string]bool{}}
	l.look(pids)
	return l, nil
}

// look notes what processes have by names that are lost. A process that cannot be looked at has nothing.
func (l *links) look(pids []int) {
	for _, pid := range pids {
		_ = eachNameless([]int{pid}, func(at, name string) {
			var st unix.Stat_t
			if path.IsAbs(name) && unix.Stat(at, &st) == nil && st.Nlink > 0 {
				l.add(name, &st)
			}
		})
	}
}

func (l *links) add(name string, st *unix.Stat_t) {
	l.files[inodeOf(st)] = true
	l.folders[path.Dir(name)] = true
}

// open opens a folder, or what else is at a path, as the program would find it.
func (l *links) open(name string, flags uint64) (*os.File, error) {
	return openIn(l.root, name, flags, unix.RESOLVE_IN_ROOT)
}

// openIn opens what is at a path in a folder.
func openIn(root *os.File, name string, flags, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(root.Fd()), name, &how)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// remove removes the links. Those of files that have lost their names since look are CRIU's to remove, which does so unless it is
// killed; the next dump of the program removes them else.
func (l *links) remove(pids []int) error {
	defer l.root.Close()
	l.look(pids)
	var all error
	for folder := range l.folders {
		err := l.each(folder, func(dir *os.File, name string, _ *unix.Stat_t) error {
			if !strings.HasPrefix(name, linkPrefix) {
				return nil
			}
			return unix.Unlinkat(int(dir.Fd()), name, 0)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("remove CRIU's links in %s: %w", folder, err))
		}
	}
	return all
}

// each calls a function with each name in a folder that is one of the files.
func (l *links) each(folder string, with func(dir *os.File, name string, st *unix.Stat_t) error) error {
	dir, err := l.open(folder, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && l.files[inodeOf(&st)] {
			err = errors.Join(err, with(dir, name, &st))
		}
	}
	return err
}

// relink gives the files of an image in a folder, which have links of CRIU's, the names that they have beside these.
func (l *links) relink(dir string) error {
	list := filepath.Join(dir, remapName)
	text, err := readList(list, maxRemaps)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	linked, rest, err := parseRemaps(text)
	if err != nil {
		return fmt.Errorf("%s: %w", remapName, err)
	}
	if len(linked) == 0 {
		return nil
	}
	files := filepath.Join(dir, filesName)
	if text, err = readList(files, maxFiles); err != nil {
		return err
	}
	if text, err = relinked(text, linked, l.living); err != nil {
		return err
	}
	return errors.Join(replaceList(files, text), replaceList(list, rest))
}

// living is a name that a file has, by CRIU's link to it and the name that it has lost.
func (l *links) living(link, lost string) (name string, err error) {
	f, err := l.open(link, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	l.add(link, &st)
	folder := path.Dir(link)
	err = l.each(folder, func(_ *os.File, one string, other *unix.Stat_t) error {
		passing := strings.HasPrefix(one, linkPrefix) || strings.HasPrefix(one, silly)
		if inodeOf(other) == inodeOf(&st) && !passing && (name == "" || one < name) {
			name = one
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", fmt.Errorf("%q is open and has lost this name, and its other one is not in %q; give it one there, or close it",
			lost, folder)
	}
	return path.Join(folder, name), nil
}

// parseRemaps returns which files have links by which CRIU finds them, by their numbers, and the list without these.
func parseRemaps(text []byte) (linked map[int64]int64, rest []byte, err error) {
	linked, rest = map[int64]int64{}, newList(remapMagic)
	err = eachEntry(text, remapMagic, func(entry []byte) error {
		file, to, kind, err := parseRemap(entry)
		if err != nil {
			return err
		}
		if kind != kindLinked {
			rest = addEntry(rest, entry)
			return nil
		}
		if _, twice := linked[file]; twice || file == to {
			return errDamaged
		}
		linked[file] = to
		return nil
	})
	return linked, rest, err
}

func parseRemap(entry []byte) (file, to, kind int64, err error) {
	kind = noRemapKind
	err = fields(entry, func(field protowire.Number, number int64, _ []byte) error {
		switch field {
		case remapFile:
			file = number
		case remapTo:
			to = number
		case remapKind:
			kind = number
		}
		return nil
	})
	return file, to, kind, err
}

// relinked is a list of files in which those that have links have living names instead, and the links are none of them any more.
func relinked(text []byte, linked map[int64]int64, living func(link, lost string) (string, error)) ([]byte, error) {
	names, isLink := map[int64]string{}, map[int64]bool{}
	for _, link := range linked {
		isLink[link] = true
	}
	_, _, err := editList(text, func(entry []byte) ([]byte, error) {
		id, _, file, err := regularFile(entry)
		if isLink[id] {
			names[id] = file.Name
		}
		return nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filesName, err)
	}
	var nameless error // what editList returns says that the list is damaged
	done := 0
	out, _, err := editList(text, func(entry []byte) ([]byte, error) {
		id, reg, file, err := regularFile(entry)
		if err != nil || nameless != nil {
			return nil, err
		}
		if isLink[id] {
			return dropped, nil
		}
		link, is := linked[id]
		if !is || reg == nil {
			return nil, nil
		}
		done++
		var name string
		if names[link] == "" {
			return nil, errDamaged
		}
		if name, nameless = living(names[link], file.Name); nameless != nil {
			return nil, nil
		}
		now, m := without(reg, regName), without(entry, fileReg)
		now.text(regName, name)
		m.inner(fileReg, now)
		return m, nil
	})
	switch {
	case nameless != nil:
		return nil, nameless
	case err == nil && done < len(linked):
		err = errDamaged
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filesName, err)
	}
	return out, nil
}

// regularFile is the number of an entry of the list of files, and what it says of a file on some file system; reg is nil where it
// is none.
func regularFile(entry []byte) (id int64, reg []byte, file openFile, err error) {
	err = fields(entry, func(field protowire.Number, number int64, bytes []byte) error {
		switch field {
		case fileID:
			id = number
		case fileReg:
			reg = bytes
		}
		return nil
	})
	if err == nil && reg != nil {
		file, err = parseFile(reg)
	}
	return id, reg, file, err
}
