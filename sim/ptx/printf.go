package ptx

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"strings"
	"unsafe"
)

// A call of vprintf is turned into pieces, for whoever has a C library to format them:
//
//	kind u32, length u32, value u64, and then length bytes of text, filled up with zeros to a multiple of 8
//
// all little-endian.
const (
	PieceText    = iota // text, as it is
	PieceInt            // value is a long long, text its directive, such as "%-8llx", with a final zero
	PieceFloat          // value has the bits of a double
	PiecePointer        // value is a void *
	PieceChar           // value is an int
	PieceString         // value is the length of the directive, after which the string comes, with a final zero
)

// Bounds of a call. A kernel's format is a constant of its source, and a directive has a width and a precision.
const (
	maxFormat    = 32 << 10 // bytes of a format, or of a string
	maxDirective = 56       // bytes of a directive between its '%' and its letter
)

// directive is one conversion of a format.
type directive struct {
	flags       string
	width, prec string // digits, "*" or nothing
	dot         bool
	size        string // "hh", "h", "l", "ll", ...
	verb        byte
}

// parseDirective reads what follows a '%', and returns what is behind it. ok is false for what C does not have.
func parseDirective(s string) (d directive, rest string, ok bool) {
	span := func(set string) string {
		n := 0
		for n < len(s) && strings.IndexByte(set, s[n]) >= 0 {
			n++
		}
		t := s[:n]
		s = s[n:]
		return t
	}
	number := func() string {
		if strings.HasPrefix(s, "*") {
			s = s[1:]
			return "*"
		}
		return span("0123456789")
	}
	d.flags = span("-+ #0")
	d.width = number()
	if d.dot = strings.HasPrefix(s, "."); d.dot {
		s = s[1:]
		d.prec = number()
	}
	d.size = span("hlLjzt")
	long := len(d.flags)+len(d.width)+len(d.prec)+len(d.size) > maxDirective
	if s == "" || strings.IndexByte("diouxXcpeEfFgGaAs%", s[0]) < 0 || long {
		return d, s, false
	}
	d.verb = s[0]
	return d, s[1:], true
}

// write is the directive for a C library, with a size of its own.
func (d *directive) write(size string) string {
	t := "%" + d.flags + d.width
	if d.dot {
		t += "." + d.prec
	}
	return t + size + string(d.verb)
}

// cut is an integer argument as the size of its directive says.
func (d *directive) cut(v uint64) uint64 {
	width := 32
	switch d.size {
	case "hh":
		width = 8
	case "h":
		width = 16
	case "l", "ll", "j", "z", "t", "L":
		return v
	}
	if d.verb == 'd' || d.verb == 'i' {
		return uint64(int64(v<<(64-width)) >> (64 - width))
	}
	return v & (1<<width - 1)
}

// arguments reads a lane's variable arguments, which lie one behind the other, each aligned to its size.
type arguments struct {
	w     *warp
	f     *frame
	lane  uint
	addr  uint64
	count int
	fault FaultKind
}

func (a *arguments) next(size uint64) uint64 {
	a.addr = (a.addr + size - 1) &^ (size - 1)
	p, fault := a.w.ptr(inGeneric, a.f, a.lane, a.addr, size, false)
	if p == nil {
		a.fault = fault
		return 0
	}
	v := read(p, uint8(size))
	a.addr += size
	a.count++
	return v
}

// text reads a string of the device's.
func (a *arguments) text(addr uint64) string {
	var t []byte
	for len(t) < maxFormat {
		var p unsafe.Pointer
		if p, a.fault = a.w.ptr(inGeneric, a.f, a.lane, addr+uint64(len(t)), 1, false); p == nil {
			return ""
		}
		c := byte(read(p, 1))
		if c == 0 {
			break
		}
		t = append(t, c)
	}
	return string(t)
}

// piece appends a piece to a record.
func piece(record []byte, kind uint32, value uint64, text string) []byte {
	record = binary.LittleEndian.AppendUint32(record, kind)
	record = binary.LittleEndian.AppendUint32(record, uint32(len(text)))
	record = binary.LittleEndian.AppendUint64(record, value)
	record = append(record, text...)
	return append(record, make([]byte, -len(text)&7)...)
}

// star replaces a '*' by the argument it stands for.
func (a *arguments) star(field *string) int64 {
	if *field != "*" {
		return 0
	}
	v := int64(int32(a.next(4)))
	*field = strconv.FormatInt(v, 10)
	return v
}

// directive appends the piece of one conversion.
func (a *arguments) directive(record []byte, d directive) []byte {
	if a.star(&d.width) < 0 {
		d.width, d.flags = d.width[1:], d.flags+"-"
	}
	if a.star(&d.prec) < 0 {
		d.dot, d.prec = false, "" // as if there were none
	}
	switch d.verb {
	case '%':
		return piece(record, PieceText, 0, "%")
	case 'c':
		return piece(record, PieceChar, a.next(4), d.write("")+"\x00")
	case 'p':
		return piece(record, PiecePointer, a.next(8), d.write("")+"\x00")
	case 's':
		s := "(null)"
		if addr := a.next(8); addr != 0 && a.fault == 0 {
			s = a.text(addr)
		}
		t := d.write("") + "\x00"
		return piece(record, PieceString, uint64(len(t)), t+s+"\x00")
	case 'd', 'i', 'o', 'u', 'x', 'X':
		size := uint64(4)
		if strings.ContainsAny(d.size, "lLjzt") {
			size = 8
		}
		return piece(record, PieceInt, d.cut(a.next(size)), d.write("ll")+"\x00")
	}
	return piece(record, PieceFloat, a.next(8), d.write("")+"\x00")
}

// format makes a record of a format and its arguments.
func (a *arguments) format(format string) []byte {
	var record []byte
	for format != "" && a.fault == 0 {
		n := strings.IndexByte(format, '%')
		if n < 0 {
			n = len(format)
		}
		if n > 0 {
			record = piece(record, PieceText, 0, format[:n])
		}
		if format = format[n:]; format == "" {
			break
		}
		d, rest, ok := parseDirective(format[1:])
		if !ok {
			record = piece(record, PieceText, 0, format[:len(format)-len(rest)])
		} else {
			record = a.directive(record, d)
		}
		format = rest
	}
	return record
}

// print executes kPrint: every active lane's call by itself, in the order of lanes.
func (w *warp) print(in *inst, f *frame, act uint32) {
	site := in.x.call
	for m := act; m != 0; m &= m - 1 {
		l := bits.TrailingZeros32(m)
		mine := f.param[l*f.stride:]
		format := binary.LittleEndian.Uint64(mine[site.args[0].caller:])
		a := arguments{w: w, f: f, lane: uint(l), addr: binary.LittleEndian.Uint64(mine[site.args[1].caller:])}
		result := int32(-1) // without a format
		if format != 0 {
			t := a.text(format)
			var record []byte
			if a.fault == 0 {
				record = a.format(t)
			}
			if a.fault != 0 {
				w.fault(a.fault, a.addr, f, in)
				return
			}
			result = int32(a.count)
			if print := w.block.grid.launch.Print; print != nil && len(record) > 0 {
				print(record)
			}
		}
		binary.LittleEndian.PutUint32(mine[site.rets[0].caller:], uint32(result))
	}
}
