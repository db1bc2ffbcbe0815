package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// imageMagic begins each of CRIU's files that is a list: a second word says of what, and then there is for each entry its length
// and a message.
const imageMagic = 0x54564319

var errDamaged = errors.New("it is damaged")

// readList reads a list of at most so many bytes.
func readList(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes: %w", path, most, unix.EFBIG)
	}
	return b, err
}

// replaceList replaces a list by another, in one step.
func replaceList(path string, list []byte) error {
	if err := os.WriteFile(path+".new", list, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// eachEntry calls a function with each entry of a list. Its error is that the list is damaged.
func eachEntry(b []byte, magic uint32, each func(entry []byte) error) error {
	if len(b) < 8 || binary.LittleEndian.Uint32(b) != imageMagic || binary.LittleEndian.Uint32(b[4:]) != magic {
		return errors.New("it is none of criu's")
	}
	for b = b[8:]; len(b) > 0; {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return errDamaged
		}
		end := 4 + int(binary.LittleEndian.Uint32(b))
		if each(b[4:end]) != nil {
			return errDamaged
		}
		b = b[end:]
	}
	return nil
}

// newList is a list without entries.
func newList(magic uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, imageMagic), magic)
}

// addEntry adds an entry to a list.
func addEntry(list, entry []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(list, uint32(len(entry))), entry...)
}
