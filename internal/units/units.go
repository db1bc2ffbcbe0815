// Package units reads and writes amounts the way people type them, so that the command line, shapes of software GPUs and
// messages agree on what "8G" means.
//
//	units.ParseSize("8GiB")     // 8589934592
//	units.ParsePercent("12.5%") // 1250, in hundredths of a percent
//	units.FormatSize(5 << 29)   // "2.5 GiB"
package units

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Causes that ParseSize and ParsePercent wrap. The error's text names the token as well.
var (
	ErrSyntax = errors.New("not understood")
	ErrRange  = errors.New("out of range")
)

// Whole is a share of all of something, in hundredths of a percent.
const Whole uint32 = 10000

// factors of the unit letters. GiB is binary and GB decimal as the standards have it; a bare G is binary, which is what
// GPU tools and HAMi mean by it.
var factors = map[string]uint64{
	"": 1, "b": 1,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// ParseSize reads an amount of memory: a decimal number, optionally with a fraction, and a unit in either case. KiB, MiB,
// GiB, TiB and the bare letters K, M, G, T are powers of 1024; KB, MB, GB, TB powers of 1000; B or nothing is bytes. A
// fraction of a byte is dropped. The result is in bytes; zero is a valid size.
func ParseSize(s string) (uint64, error) {
	number, unit := split(s)
	factor, known := factors[strings.ToLower(unit)]
	whole, fraction, scale, ok := decimal(number)
	switch {
	case !ok:
		return 0, fmt.Errorf("size %q: %w; sizes look like 8GiB, 512MiB or 1.5G", s, ErrSyntax)
	case !known:
		return 0, fmt.Errorf("size %q: unit %q %w; units are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, K, M, G, T", s, unit, ErrSyntax)
	}
	high, low := bits.Mul64(whole, factor)
	fractionHigh, fractionLow := bits.Mul64(fraction, factor)
	part, _ := bits.Div64(fractionHigh, fractionLow, scale) // fraction < scale, so the quotient is below factor
	sum, carry := bits.Add64(low, part, 0)
	if high != 0 || carry != 0 {
		return 0, fmt.Errorf("size %q: %w; the largest is 16 EiB - 1", s, ErrRange)
	}
	return sum, nil
}

// IsUnit reports whether a word can be the unit behind a number: of an amount of memory, or a percent sign.
func IsUnit(word string) bool {
	_, known := factors[strings.ToLower(word)]
	return known && word != "" || word == "%"
}

// Bare reports whether s is a number without a unit.
func Bare(s string) bool {
	number, unit := split(s)
	_, _, _, ok := decimal(number)
	return ok && unit == ""
}

// Guess says what somebody may have meant by a bare number, and how bytes are written.
func Guess(s string) string {
	number, _ := split(s)
	whole, _, _, ok := decimal(number)
	switch {
	case !ok:
		return "sizes look like 8GiB, 512MiB or 1.5G"
	case whole < 1<<10:
		return fmt.Sprintf("%sGiB? bytes are written %[1]sB", number)
	case whole < 1<<20:
		return fmt.Sprintf("%sMiB? bytes are written %[1]sB", number)
	}
	return fmt.Sprintf("%sB, if it is bytes", number)
}

// ParsePercent reads a share with or without its percent sign, in steps of 0.01. The result is in hundredths of a percent
// and lies in 1..Whole.
func ParsePercent(s string) (uint32, error) {
	number := strings.TrimSuffix(strings.TrimSpace(s), "%")
	whole, fraction, scale, ok := decimal(strings.TrimSpace(number))
	if !ok {
		return 0, fmt.Errorf("percentage %q: %w; percentages look like 25, 25%% or 12.5", s, ErrSyntax)
	}
	if whole > 100 || (whole == 100 && fraction != 0) || (whole == 0 && fraction == 0) {
		return 0, fmt.Errorf("percentage %q: %w; it must be above 0 and at most 100", s, ErrRange)
	}
	if scale > 100 && fraction%(scale/100) != 0 {
		return 0, fmt.Errorf("percentage %q: %w; the smallest step is 0.01", s, ErrSyntax)
	}
	if scale > 100 {
		return uint32(whole*100 + fraction/(scale/100)), nil
	}
	return uint32(whole*100 + fraction*(100/scale)), nil
}

// FormatSize writes n bytes for people in the largest binary unit that keeps the number at 1 or more, with at most one
// digit behind the point: "16 GiB", "2.5 GiB", "300 MiB", "0 B". The value is rounded to nearest; ParseSize reads it back.
func FormatSize(n uint64) string {
	names := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for limit := uint64(1023); unit < len(names)-1 && n > limit; unit++ {
		// A value that would round to 1024.0 of a unit is 1 of the next.
		limit = uint64(1)<<(10*(unit+2)) - uint64(1)<<(10*(unit+1))/20 - 1
	}
	shift := 10 * unit
	tenths := n >> shift * 10
	if unit > 0 {
		rest := n & (1<<shift - 1)
		tenths += (rest*10 + 1<<(shift-1)) >> shift
	}
	if tenths%10 == 0 {
		return fmt.Sprintf("%d %s", tenths/10, names[unit])
	}
	return fmt.Sprintf("%d.%d %s", tenths/10, tenths%10, names[unit])
}

// FormatPercent writes a share in hundredths of a percent without its sign: "25", "12.5", "0.01".
func FormatPercent(hundredths uint32) string {
	return strconv.FormatFloat(float64(hundredths)/100, 'f', -1, 64)
}

// split parts a token into its number and its unit.
func split(s string) (number, unit string) {
	s = strings.TrimSpace(s)
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return s, ""
	}
	return s[:end], strings.TrimSpace(s[end:])
}

// decimal reads digits with an optional fraction: the value is whole + fraction/scale.
func decimal(s string) (whole, fraction, scale uint64, ok bool) {
	digits, tail, point := strings.Cut(s, ".")
	if !allDigits(digits) || point && !allDigits(tail) {
		return 0, 0, 0, false
	}
	if len(tail) > 18 {
		tail = tail[:18] // 10^-18 of a TiB is below a byte
	}
	whole, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, 0, 0, false
	}
	scale = 1
	for _, r := range tail {
		fraction = fraction*10 + uint64(r-'0')
		scale *= 10
	}
	return whole, fraction, scale, true
}

func allDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
