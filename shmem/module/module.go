// Package module reads the kernels inside lshmem: modules of PTX, made from CUDA sources by package compile. Each is a
// file of text compressed by gzip.
//
//	//go:embed ptx/sync.ptx.gz
//	var sync []byte
//
//	image, err := module.Image(sync) // for cuModuleLoadData
//
// To read one: gzip -dc sync.ptx.gz. After git config diff.gzip.textconv "gzip -dc", git diff and git log -p show the
// text too.
package module

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// maxText is more than any module has.
const maxText = 64 << 20

// Image returns a module's PTX with a NUL at its end, as cuModuleLoadData wants it. It is the caller's own.
func Image(packed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack a module: %w", err)
	}
	size := binary.LittleEndian.Uint32(packed[len(packed)-4:]) // how the format ends
	if size > maxText {
		return nil, fmt.Errorf("unpack a module: its size is said to be %d bytes, more than %d", size, maxText)
	}
	image := make([]byte, size+1)
	if _, err := io.ReadFull(z, image[:size]); err != nil {
		return nil, fmt.Errorf("unpack a module of %d bytes: %w", size, err)
	}
	// The end of the text is where the reader compares its checksum.
	if n, err := z.Read(image[size:]); n != 0 {
		return nil, fmt.Errorf("unpack a module of %d bytes: there are more", size)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("unpack a module of %d bytes: %w", size, err)
	}
	return image, nil
}
