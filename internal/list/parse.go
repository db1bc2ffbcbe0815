package list

import (
	"fmt"
	"math"
	"syscall"
)

// Error says why a list was refused. It unwraps to its Errno.
type Error struct {
	Errno  syscall.Errno // EINVAL, ERANGE or EOVERFLOW
	Offset int           // where in the text, in bytes
	Token  string        // the offending region or number
	Reason string
}

// Error names the place, the token and the reason.
func (e *Error) Error() string {
	if e.Token == "" {
		return fmt.Sprintf("list, at byte %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("list, at byte %d: %q: %s", e.Offset, e.Token, e.Reason)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Parse reads a list of bits below nbits, the device's capacity. An error is an *Error: EINVAL for what the grammar
// does not have, EOVERFLOW for a number above 4294967295, ERANGE for a bit that the device has not. Nothing is returned
// beside an error.
func Parse(text string, nbits int) (Set, error) {
	p := parser{text: text, last: uint32(nbits) - 1}
	words := make([]uint64, (max(nbits, 0)+63)/64)
	for p.skip() {
		start := p.at
		r, err := p.region()
		if err == nil {
			err = r.check(uint32(nbits))
		}
		if err != nil {
			if err.Token == "" {
				err.Offset, err.Token = start, text[start:p.at]
			}
			return Set{}, err
		}
		r.set(words)
		if r.ends {
			break
		}
	}
	return trim(words), nil
}

// region is a run of bits with its pattern: of every group bits from first on, the first used ones, up to last.
type region struct {
	first, last uint32
	used, group uint32
	ends        bool // nothing behind it is read
}

// check reports what is wrong with a region that reads well.
func (r region) check(nbits uint32) *Error {
	switch {
	case r.first > r.last:
		return &Error{Errno: syscall.EINVAL, Reason: "the range ends before it begins"}
	case r.group == 0:
		return &Error{Errno: syscall.EINVAL, Reason: "the group of the pattern has no bits"}
	case r.used > r.group:
		return &Error{Errno: syscall.EINVAL, Reason: "the pattern uses more bits than its group has"}
	case r.last >= nbits:
		return &Error{Errno: syscall.ERANGE, Reason: fmt.Sprintf("there are %d bits, from 0", nbits)}
	}
	return nil
}

// set adds the bits of a checked region to words.
func (r region) set(words []uint64) {
	for group := uint64(r.first); group <= uint64(r.last); group += uint64(r.group) {
		for bit := group; bit < group+uint64(r.used) && bit <= uint64(r.last); bit++ {
			words[bit/64] |= 1 << (bit % 64)
		}
	}
}

// parser reads text from left to right. Bytes are compared, never runes.
type parser struct {
	text string
	at   int
	last uint32 // what N means
}

// peek returns the byte to come; NUL at the end, which also ends a list.
func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// skip passes separators and says whether a region follows.
func (p *parser) skip() bool {
	for separator(p.peek()) {
		p.at++
	}
	return p.peek() != 0
}

// region reads one region. Its bits are not checked yet.
func (p *parser) region() (r region, err *Error) {
	if p.all() {
		r.last = p.last
	} else {
		if r.first, err = p.number(); err != nil {
			return r, err
		}
		if p.peek() != '-' {
			r.last = r.first
			return p.plain(r, "a number is followed by a separator or by -")
		}
		p.at++
		if r.last, err = p.number(); err != nil {
			return r, err
		}
	}
	if p.peek() != ':' {
		return p.plain(r, "a range is followed by a separator or by :used/group")
	}
	p.at++
	if r.used, err = p.number(); err != nil {
		return r, err
	}
	if p.peek() != '/' {
		return r, p.unexpected("a pattern is :used/group")
	}
	p.at++
	r.group, err = p.number()
	return r, err
}

// plain ends a region without pattern: it is one group whose bits are all used. The end behind bit 4294967295 is no
// number, which check sees as a group of no bits.
func (p *parser) plain(r region, want string) (region, *Error) {
	c := p.peek()
	if c != 0 && !separator(c) {
		return r, p.unexpected(want)
	}
	r.ends = c == 0 || c == '\n'
	r.used, r.group = r.last+1, r.last+1
	return r, nil
}

// all passes the word all, in any case.
func (p *parser) all() bool {
	const word = "all"
	if len(p.text)-p.at < len(word) {
		return false
	}
	for i := range len(word) {
		if p.text[p.at+i]|0x20 != word[i] {
			return false
		}
	}
	p.at += len(word)
	return true
}

// number reads decimal digits or N.
func (p *parser) number() (uint32, *Error) {
	if p.peek() == 'N' {
		p.at++
		return p.last, nil
	}
	start := p.at
	n := uint64(0)
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		n = min(n*10+uint64(c-'0'), math.MaxUint32+1)
		p.at++
	}
	switch {
	case p.at == start:
		return 0, p.unexpected("a number or N is wanted here")
	case n > math.MaxUint32:
		return 0, &Error{Errno: syscall.EOVERFLOW, Offset: start, Token: p.text[start:p.at],
			Reason: "the number is above 4294967295"}
	}
	return uint32(n), nil
}

func (p *parser) unexpected(want string) *Error {
	e := &Error{Errno: syscall.EINVAL, Offset: p.at, Reason: want}
	if p.at < len(p.text) {
		e.Token = p.text[p.at : p.at+1]
	} else {
		e.Token = "end of text"
	}
	return e
}

// separator says that c parts regions: a comma or what the kernel holds for white space, which in Latin-1 includes the
// no-break space.
func separator(c byte) bool {
	return c == ',' || c == ' ' || '\t' <= c && c <= '\r' || c == 0xA0
}
