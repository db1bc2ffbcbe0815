package criu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// The list that has what the program had open, for each file a message (CRIU's fdinfo.proto), whose inner message of a file on
// some file system (regfile.proto) is read here.
const (
	filesName  = "files.img"
	filesMagic = 0x56303138
	maxFiles   = 64 << 20
	fileReg    = 3
	regFlags   = 2
	regPos     = 3
	regName    = 6
	regSize    = 8
	regExt     = 9
	regMode    = 10
)

// openFile is one that a program has open on some file system, as an image has it.
type openFile struct {
	Name     string
	Flags    int   // open(2)
	Mode     int   // stat(2)
	Position int64 // bytes
	Size     int64 // bytes; -1 where it is not said
	External bool  // known by its name alone, see externalFile
}

// Positions are those of external files in an image, by Stream.Key.
func Positions(dir string) (map[string]int64, error) {
	all := map[string]int64{}
	_, err := editFiles(dir, func(f openFile) bool {
		if f.External && f.Name != "" {
			all[f.Name[1:]] = f.Position
		}
		return false
	})
	return all, err
}

// AllowGrown changes an image in a folder: CRIU would refuse each file that is not as long as it was. What a program itself
// writes, such as a log, is longer when the program has gone on after its image was taken. Such files are opened at the places
// where they were then. Names are looked up below root. Others, and those that have become shorter, are left for CRIU to refuse.
func AllowGrown(dir, root string) error {
	b, err := editFiles(dir, func(f openFile) bool {
		if f.External || f.Size < 0 || f.Mode&unix.S_IFMT != unix.S_IFREG || f.Flags&unix.O_ACCMODE == unix.O_RDONLY {
			return false
		}
		var now unix.Stat_t
		return unix.Stat(root+f.Name, &now) == nil && now.Size > f.Size
	})
	if err != nil || b == nil {
		return err
	}
	path := filepath.Join(dir, filesName)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// editFiles calls a function with each file of an image, which says whether its size is to be forgotten. It returns the file
// of files with that done, nil if there was nothing to do.
func editFiles(dir string, forget func(openFile) bool) ([]byte, error) {
	b, err := readList(filepath.Join(dir, filesName), maxFiles)
	if err != nil {
		return nil, err
	}
	out, changed, err := editList(b, forget)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filesName, err)
	}
	if !changed {
		return nil, nil
	}
	return out, nil
}

// editList is editFiles for the text of the file.
func editList(b []byte, forget func(openFile) bool) (out []byte, changed bool, err error) {
	out = append(out, b[:min(len(b), 8)]...)
	err = eachEntry(b, filesMagic, func(entry []byte) error {
		reg, err := regular(entry)
		if err != nil {
			return err
		}
		if reg != nil {
			file, err := parseFile(reg)
			if err != nil {
				return err
			}
			if forget(file) {
				m := without(entry, fileReg)
				m.inner(fileReg, without(reg, regSize))
				entry, changed = m, true
			}
		}
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(entry))), entry...)
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return out, changed, nil
}

// regular is the inner message of an entry for a file on some file system, nil if it is for something else.
func regular(entry []byte) (reg []byte, err error) {
	err = fields(entry, func(field protowire.Number, _ int64, bytes []byte) error {
		if field == fileReg {
			reg = bytes
		}
		return nil
	})
	return reg, err
}

func parseFile(reg []byte) (openFile, error) {
	f := openFile{Size: -1}
	err := fields(reg, func(field protowire.Number, number int64, bytes []byte) error {
		switch field {
		case regFlags:
			f.Flags = int(number)
		case regPos:
			f.Position = number
		case regName:
			f.Name = string(bytes)
		case regSize:
			f.Size = number
		case regExt:
			f.External = number != 0
		case regMode:
			f.Mode = int(number)
		}
		return nil
	})
	return f, err
}

// without is a message, which fields has read, but for one of its fields.
func without(m []byte, field protowire.Number) (out message) {
	for len(m) > 0 {
		is, _, n := protowire.ConsumeField(m)
		if n < 0 {
			return append(out, m...)
		}
		if is != field {
			out = append(out, m[:n]...)
		}
		m = m[n:]
	}
	return out
}
