package wire

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// message is how one kind of call is decoded, made and answered.
type message struct {
	name   string
	drive  func(Driver, *Call, *decoder, *encoder) CUresult
	manage func(Management, *decoder, *encoder) CUresult
}

// remote marks a length whose bytes are in the program's memory.
const remote = 1 << 63

// decoder reads a request's parameters. bad is set, and stays so, by the first that does not fit.
type decoder struct {
	b      []byte
	bad    bool
	memory memory // for what is not inline
}

func (d *decoder) u64() uint64 {
	if len(d.b) < 8 {
		d.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func f32bits(f float32) uint64 { return uint64(math.Float32bits(f)) }

// next returns the next n bytes, which lie in the record, and skips their padding.
func (d *decoder) next(n int) []byte {
	padded := (n + 7) &^ 7
	if n < 0 || padded < n || len(d.b) < padded {
		d.bad = true
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[padded:]
	return p
}

// bytes returns a string's or an array's bytes, from the record or from the program's memory.
func (d *decoder) bytes(elem int) []byte {
	n := d.u64()
	if d.bad {
		return nil
	}
	far := n&remote != 0
	n &^= remote
	if n > maxArray || n%uint64(elem) != 0 {
		d.bad = true
		return nil
	}
	if !far {
		return d.next(int(n))
	}
	addr := HostAddr(d.u64())
	if d.bad || d.memory == nil {
		d.bad = true
		return nil
	}
	p := make([]byte, n)
	if d.memory.read(addr, p) != nil {
		d.bad = true
		return nil
	}
	return p
}

func (d *decoder) text() string { return string(d.bytes(1)) }

// getStruct reads a structure of numbers only. T has the layout of its C namesake (TestLayouts).
func getStruct[T any](d *decoder) (v T) {
	p := d.next(int(unsafe.Sizeof(v)))
	if p != nil {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), p)
	}
	return v
}

func getArray[T any](d *decoder) []T {
	var v T
	size := int(unsafe.Sizeof(v))
	p := d.bytes(size)
	if d.bad || len(p) == 0 {
		return nil
	}
	out := make([]T, len(p)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), len(p)), p)
	return out
}

// encoder writes a reply's results.
type encoder struct {
	b      []byte
	memory memory // for what does not fit
	err    error
}

func (e *encoder) u64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) raw(p []byte) {
	e.b = append(e.b, p...)
	for len(e.b)%8 != 0 {
		e.b = append(e.b, 0)
	}
}

func putStruct[T any](e *encoder, v *T) {
	e.raw(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}

// putArray sends at most room elements to the address to, which is 0 where the program does not want them: within the
// reply as long as that is small, else stored into the program's memory at once.
func putArray[T any](e *encoder, v []T, room uint64, to uint64) {
	if uint64(len(v)) > room {
		v = v[:room]
	}
	if len(v) == 0 || to == 0 {
		e.u64(0)
		return
	}
	p := unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
	if len(e.b)+len(p) <= maxRecord/2 {
		e.u64(uint64(len(p)))
		e.raw(p)
		return
	}
	if e.memory == nil {
		e.err = ErrGone
	} else if err := e.memory.write(HostAddr(to), p); err != nil {
		e.err = err
	}
	e.u64(uint64(len(p)) | remote)
}
