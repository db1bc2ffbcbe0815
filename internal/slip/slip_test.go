package slip

import (
	"strings"
	"testing"
)

// TestNearest: a slip or two, or the beginning of one word alone, is taken for it.
func TestNearest(t *testing.T) {
	words := []string{"memory.max", "memory.high", "compute.max", "compute.min", "lgpu", "lgpu.weight", "ps", "set", "show"}
	for word, want := range map[string]string{
		"memroy.max": "memory.max", "memory.hihg": "memory.high", "compute.mn": "compute.min", "lgpu.wieght": "lgpu.weight",
		"sp": "ps", "st": "set", "colour": "", "": "", "x": "", "lgpu.w": "lgpu.weight", "memory": "", "shwo": "show",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// FuzzDistance: it is the same both ways, and no less than the difference of the lengths.
func FuzzDistance(f *testing.F) {
	f.Add("memory.max", "memroy.max")
	f.Add("", "lgpu")
	f.Add(strings.Repeat("a", 65), "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		d := Distance(a, b)
		if d != Distance(b, a) || (d == 0) != (a == b) && len(a) <= 64 && len(b) <= 64 || d > max(len(a), len(b)) ||
			d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Errorf("%q, %q: %d", a, b, d)
		}
	})
}
