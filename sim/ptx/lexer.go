package ptx

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

type tokKind uint8

const (
	tokEOF   tokKind = iota
	tokIdent         // name, %register, $label
	tokDot           // .word, text without the dot
	tokInt           // value in bits
	tokFloat         // decimal floating point; value in bits as f64
	tokF32           // 0fXXXXXXXX
	tokF64           // 0dXXXXXXXXXXXXXXXX
	tokStr
	tokPunct // one character
)

type token struct {
	kind  tokKind
	punct byte
	line  int32
	text  string
	bits  uint64
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of file"
	case tokDot:
		return "." + t.text
	case tokPunct:
		return string(t.punct)
	case tokStr:
		return strconv.Quote(t.text)
	}
	return t.text
}

// lexer splits the source on demand, so that tokens cost no memory.
type lexer struct {
	src  string
	pos  int
	line int32
}

func isIdentStart(c byte) bool {
	return c == '_' || c == '$' || c == '%' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isIdent(c byte) bool {
	return c == '_' || c == '$' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) errf(format string, args ...any) error {
	return &Error{Line: int(l.line), Msg: fmt.Sprintf(format, args...)}
}

// skip passes white space, comments and preprocessor line markers.
func (l *lexer) skip() error {
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		switch {
		case c == '\n':
			l.line++
			l.pos++
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == 0 && l.pos == len(l.src)-1:
			l.pos++
		case c == '/' && strings.HasPrefix(l.src[l.pos:], "//"), c == '#':
			n := strings.IndexByte(l.src[l.pos:], '\n')
			if n < 0 {
				n = len(l.src) - l.pos
			}
			l.pos += n
		case c == '/' && strings.HasPrefix(l.src[l.pos:], "/*"):
			n := strings.Index(l.src[l.pos+2:], "*/")
			if n < 0 {
				return l.errf("comment does not end")
			}
			l.line += int32(strings.Count(l.src[l.pos:l.pos+2+n], "\n"))
			l.pos += n + 4
		default:
			return nil
		}
	}
	return nil
}

func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	t := token{line: l.line}
	if l.pos >= len(l.src) {
		return t, nil
	}
	start := l.pos
	c := l.src[l.pos]
	switch {
	case isIdentStart(c):
		l.pos++
		for l.pos < len(l.src) && isIdent(l.src[l.pos]) {
			l.pos++
		}
		if t.kind, t.text = tokIdent, l.src[start:l.pos]; t.text == "WARP_SZ" {
			t.kind, t.bits = tokInt, lanes
		}
		return t, nil
	case c == '.' && l.pos+1 < len(l.src) && isIdent(l.src[l.pos+1]):
		l.pos++
		for l.pos < len(l.src) {
			if isIdent(l.src[l.pos]) {
				l.pos++
			} else if strings.HasPrefix(l.src[l.pos:], "::") {
				l.pos += 2
			} else {
				break
			}
		}
		t.kind, t.text = tokDot, l.src[start+1:l.pos]
		return t, nil
	case isDigit(c):
		return l.number(t)
	case c == '"':
		n := strings.IndexAny(l.src[l.pos+1:], "\"\n")
		if n < 0 || l.src[l.pos+1+n] == '\n' {
			return t, l.errf("string does not end")
		}
		t.kind, t.text = tokStr, l.src[l.pos+1:l.pos+1+n]
		l.pos += n + 2
		return t, nil
	case c < 0x20 || c >= 0x7f:
		return t, l.errf("unexpected byte 0x%02x", c)
	}
	l.pos++
	t.kind, t.punct, t.text = tokPunct, c, l.src[start:l.pos]
	return t, nil
}

func (l *lexer) number(t token) (token, error) {
	rest := l.src[l.pos:]
	if len(rest) > 2 && rest[0] == '0' {
		switch rest[1] {
		case 'f', 'F':
			return l.floatBits(t, tokF32, 8)
		case 'd', 'D':
			return l.floatBits(t, tokF64, 16)
		}
	}
	n, isFloat := numberLength(rest)
	text := rest[:n]
	l.pos += n
	t.text = text
	if isFloat {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !math.IsInf(f, 0) {
			return t, l.errf("bad number %s", text)
		}
		t.kind, t.bits = tokFloat, math.Float64bits(f)
		return t, nil
	}
	digits := strings.TrimRight(text, "U")
	v, err := strconv.ParseUint(digits, 0, 64)
	if err != nil || strings.Contains(digits, "_") || len(text)-len(digits) > 1 {
		return t, l.errf("bad number %s", text)
	}
	t.kind, t.bits = tokInt, v
	return t, nil
}

// floatBits reads a constant that gives the bits of a floating-point number in so many hexadecimal digits: 0f3f800000.
func (l *lexer) floatBits(t token, kind tokKind, digits int) (token, error) {
	rest := l.src[l.pos:]
	n := 2
	for n < len(rest) && isIdent(rest[n]) {
		n++
	}
	v, err := strconv.ParseUint(rest[2:n], 16, 64)
	if err != nil || n != digits+2 {
		return t, l.errf("bad floating-point constant %s", rest[:n])
	}
	t.kind, t.text, t.bits = kind, rest[:n], v
	l.pos += n
	return t, nil
}

// numberLength returns how many bytes of rest are a number, and whether it is a floating-point one.
func numberLength(rest string) (n int, isFloat bool) {
	hex := len(rest) > 1 && rest[0] == '0' && (rest[1] == 'x' || rest[1] == 'X')
	for ; n < len(rest); n++ {
		c := rest[n]
		switch {
		case isIdent(c):
			if !hex && (c == 'e' || c == 'E') {
				isFloat = true
				if n+1 < len(rest) && (rest[n+1] == '+' || rest[n+1] == '-') {
					n++
				}
			}
		case c == '.' && !hex && !isFloat:
			isFloat = true
		default:
			return n, isFloat
		}
	}
	return n, isFloat
}
