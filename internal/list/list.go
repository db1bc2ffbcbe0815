// Package list is the list grammar of lgpu files and the sets it denotes: which of a device's lgpu bits somebody may
// use.
//
//	set, err := list.Parse("0-3,8-N:1/2", 16) // bits 0 1 2 3 8 10 12 14
//	set.String()                              // "0-3,8,10,12,14"
//
// The grammar is that of the kernel's bitmap lists, so that what people know from cpuset.cpus and taskset holds here:
//
//   - regions separated by commas or white space: a number, a range a-b, or all;
//   - N is the last bit;
//   - a range or all may carry a pattern a-b:used/group: of every group bits, counted from a, the first used ones;
//   - a newline directly after a region without pattern ends the list.
package list

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxBits is the largest capacity of a device in bits, and the bound of every set read from text of unknown capacity.
const MaxBits = 4096

// Set is a set of bit numbers. The zero Set is empty. Sets are values: no method changes its receiver or its arguments,
// and one Set may be used by several goroutines.
type Set struct {
	words []uint64 // without zero words at the end, never written after construction
}

// Of returns the set of the given bits. Negative ones are left out.
func Of(members ...int) Set {
	var words []uint64
	for _, bit := range members {
		if bit < 0 {
			continue
		}
		for bit/64 >= len(words) {
			words = append(words, 0)
		}
		words[bit/64] |= 1 << (bit % 64)
	}
	return trim(words)
}

// Upto returns the bits 0 to n-1.
func Upto(n int) Set {
	if n <= 0 {
		return Set{}
	}
	words := make([]uint64, (n+63)/64)
	for i := range words {
		words[i] = ^uint64(0)
	}
	if n%64 != 0 {
		words[len(words)-1] = 1<<(n%64) - 1
	}
	return Set{words}
}

// Count is the number of bits in s.
func (s Set) Count() int {
	n := 0
	for _, word := range s.words {
		n += bits.OnesCount64(word)
	}
	return n
}

// Empty says that s has no bit.
func (s Set) Empty() bool { return len(s.words) == 0 }

// Has says whether bit is in s.
func (s Set) Has(bit int) bool {
	return bit >= 0 && bit/64 < len(s.words) && s.words[bit/64]>>(bit%64)&1 != 0
}

// Equal says that s and t have the same bits.
func (s Set) Equal(t Set) bool {
	if len(s.words) != len(t.words) {
		return false
	}
	for i, word := range s.words {
		if word != t.words[i] {
			return false
		}
	}
	return true
}

// And returns the bits that are in both.
func (s Set) And(t Set) Set {
	words := make([]uint64, min(len(s.words), len(t.words)))
	for i := range words {
		words[i] = s.words[i] & t.words[i]
	}
	return trim(words)
}

// Or returns the bits that are in either.
func (s Set) Or(t Set) Set {
	if len(s.words) < len(t.words) {
		s, t = t, s
	}
	words := append([]uint64(nil), s.words...)
	for i, word := range t.words {
		words[i] |= word
	}
	return trim(words)
}

// Without returns the bits of s that are not in t.
func (s Set) Without(t Set) Set {
	words := append([]uint64(nil), s.words...)
	for i := range min(len(words), len(t.words)) {
		words[i] &^= t.words[i]
	}
	return trim(words)
}

// In says that every bit of s is in t.
func (s Set) In(t Set) bool {
	for i, word := range s.words {
		if i >= len(t.words) || word&^t.words[i] != 0 {
			return false
		}
	}
	return true
}

// Overlaps says that some bit is in both.
func (s Set) Overlaps(t Set) bool {
	for i := range min(len(s.words), len(t.words)) {
		if s.words[i]&t.words[i] != 0 {
			return true
		}
	}
	return false
}

// Lowest returns the n lowest bits of s, or s if it has fewer.
func (s Set) Lowest(n int) Set {
	words := append([]uint64(nil), s.words...)
	n = max(n, 0)
	for i := range words {
		have := bits.OnesCount64(words[i])
		for ; have > n; have-- {
			words[i] &^= 1 << (63 - bits.LeadingZeros64(words[i]))
		}
		n -= have
	}
	return trim(words)
}

// All yields the bits of s in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range s.words {
			for ; word != 0; word &= word - 1 {
				if !yield(i*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// String writes s as Parse reads it: ascending, neighbours joined to ranges, comma-separated, empty for the empty set.
func (s Set) String() string {
	var b strings.Builder
	first, last := -1, -2
	flush := func() {
		if first < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	for bit := range s.All() {
		if bit != last+1 {
			flush()
			first = bit
		}
		last = bit
	}
	flush()
	return b.String()
}

// MarshalText writes s as String does.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a list of bits below MaxBits.
func (s *Set) UnmarshalText(text []byte) error {
	set, err := Parse(string(text), MaxBits)
	if err != nil {
		return err
	}
	*s = set
	return nil
}

// trim makes a Set of words that nobody else holds.
func trim(words []uint64) Set {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return Set{words}
}
