//go:build cgo

package main

import (
	"encoding/binary"
	"errors"
)

// padded makes an all-to-all of parts of any lengths out of one of parts of a single length, which is found by
// gathering. A part goes with 4 bytes of its length.
func padded(pes int, parts [][]byte, gather func(mine, all []byte) error, exchange func(send []byte, each int) ([]byte, error)) ([][]byte, error) {
	longest := 0
	for _, p := range parts {
		longest = max(longest, len(p))
	}
	mine, all := binary.LittleEndian.AppendUint32(nil, uint32(longest)), make([]byte, 4*pes)
	if err := gather(mine, all); err != nil {
		return nil, err
	}
	each := 0
	for pe := range pes {
		each = max(each, int(binary.LittleEndian.Uint32(all[4*pe:])))
	}
	each += 4
	send := make([]byte, each*pes)
	for pe, p := range parts {
		binary.LittleEndian.PutUint32(send[pe*each:], uint32(len(p)))
		copy(send[pe*each+4:], p)
	}
	got, err := exchange(send, each)
	if err != nil {
		return nil, err
	}
	if len(got) != len(send) {
		return nil, errors.New("an all-to-all of another length than was sent")
	}
	out := make([][]byte, pes)
	for pe := range out {
		part := got[pe*each : (pe+1)*each]
		n := int(binary.LittleEndian.Uint32(part))
		if n > each-4 {
			return nil, errors.New("an all-to-all part that is longer than its frame")
		}
		out[pe] = part[4 : 4+n : 4+n]
	}
	return out, nil
}
