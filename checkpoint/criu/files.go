package criu

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// The list that has what the program had open, for each file a message (CRIU's fdinfo.proto), whose inner messages of a file on
// some file system (regfile.proto) and of a timer (timerfd.proto) are read here.
const (
	filesName  = "files.img"
	filesMagic = 0x56303138
	maxFiles   = 64 << 20
	fileID     = 2
	fileReg    = 3
	fileTimer  = 12
	regFlags   = 2
	regPos     = 3
	regName    = 6
	regSize    = 8
	regExt     = 9
	regMode    = 10
	timerTicks = 5 // expirations that have not been read
	// Until it expires next, and between two times, each in seconds and nanoseconds more.
	timerNext, timerNextNanos   = 7, 8
	timerEvery, timerEveryNanos = 9, 10
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
	err := editFiles(dir, forgetting(func(f openFile) bool {
		if f.External && f.Name != "" {
			all[f.Name[1:]] = f.Position
		}
		return false
	}))
	return all, err
}

// AllowGrown changes an image in a folder: CRIU would refuse each file that is not as long as it was. What a program itself
// writes, such as a log, is longer when the program has gone on after its image was taken. Such files are opened at the places
// where they were then. Names are looked up below root. Others, and those that have become shorter, are left for CRIU to refuse.
func AllowGrown(dir, root string) error {
	return editFiles(dir, forgetting(func(f openFile) bool {
		if f.External || f.Size < 0 || f.Mode&unix.S_IFMT != unix.S_IFREG || f.Flags&unix.O_ACCMODE == unix.O_RDONLY {
			return false
		}
		var now unix.Stat_t
		return unix.Stat(root+f.Name, &now) == nil && now.Size > f.Size
	}))
}

// edit returns what an entry of the list is to be, nil where it stays as it is, or dropped.
type edit func(entry []byte) ([]byte, error)

// dropped is an entry that is not to be in the list any more.
var dropped = []byte{}

// editFiles changes the list in a folder.
func editFiles(dir string, e edit) error {
	path := filepath.Join(dir, filesName)
	b, err := readList(path, maxFiles)
	if err != nil {
		return err
	}
	out, changed, err := editList(b, e)
	if err != nil {
		return fmt.Errorf("%s: %w", filesName, err)
	}
	if !changed {
		return nil
	}
	return replaceList(path, out)
}

// editList is editFiles for the text of the list.
func editList(b []byte, e edit) (out []byte, changed bool, err error) {
	out = append(out, b[:min(len(b), 8)]...)
	err = eachEntry(b, filesMagic, func(entry []byte) error {
		now, err := e(entry)
		if err != nil {
			return err
		}
		if now != nil {
			entry, changed = now, true
		}
		if now == nil || len(now) > 0 {
			out = addEntry(out, entry)
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return out, changed, nil
}

// forgetting has the size be forgotten of those files for which forget says so.
func forgetting(forget func(openFile) bool) edit {
	return func(entry []byte) ([]byte, error) {
		reg, err := inner(entry, fileReg)
		if err != nil || reg == nil {
			return nil, err
		}
		file, err := parseFile(reg)
		if err != nil || !forget(file) {
			return nil, err
		}
		m := without(entry, fileReg)
		m.inner(fileReg, without(reg, regSize))
		return m, nil
	}
}

// wind has a timer go on that expires again and again. If that has happened and was not read, the kernel says of it that it does
// not expire any more, and so it would after a restore. It expires next when the time between two has passed.
func wind(entry []byte) ([]byte, error) {
	timer, err := inner(entry, fileTimer)
	if err != nil || timer == nil {
		return nil, err
	}
	var ticks, next, every, everyNanos int64
	err = fields(timer, func(field protowire.Number, number int64, _ []byte) error {
		switch field {
		case timerTicks:
			ticks = number
		case timerNext, timerNextNanos:
			next |= number
		case timerEvery:
			every = number
		case timerEveryNanos:
			everyNanos = number
		}
		return nil
	})
	if err != nil || ticks == 0 || next != 0 || every|everyNanos == 0 {
		return nil, err
	}
	wound := without(without(timer, timerNext), timerNextNanos)
	wound.number(timerNext, every)
	wound.number(timerNextNanos, everyNanos)
	m := without(entry, fileTimer)
	m.inner(fileTimer, wound)
	return m, nil
}

// inner is an inner message of an entry, nil if there is none.
func inner(entry []byte, want protowire.Number) (m []byte, err error) {
	err = fields(entry, func(field protowire.Number, _ int64, bytes []byte) error {
		if field == want {
			m = bytes
		}
		return nil
	})
	return m, err
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
