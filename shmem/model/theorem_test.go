package model

import (
	"errors"
	"fmt"
	"testing"
)

// TestInequality tries all batches and largest calls of a queue of four blocks, and the reference's examples of eight:
// there is a deadlock if and only if (batch-1) + call > depth.
func TestInequality(t *testing.T) {
	try := func(depth, batch, call int) {
		c := Config{Depth: depth, Batch: batch, Bits: 5, Start: 24 / batch * batch, PEs: []int{0}, CTAs: []int{0, 0, 0}}
		// What is left unposted is at most batch-1 blocks, of one call or two; then comes the largest call.
		first := min(batch-1, call)
		second := min(batch-1-first, call)
		for _, n := range []int{first, second, call} {
			if n > 0 {
				c.Programs = append(c.Programs, []Op{puts(n)})
			}
		}
		if len(c.Programs) < 3 { // a thread with less than the largest call changes nothing
			c.Programs = append(c.Programs, []Op{puts(min(call, 2))})
		}
		c.CTAs = c.CTAs[:len(c.Programs)]
		c.Name = fmt.Sprintf("depth %d, batch %d, calls of %d", depth, batch, call)
		_, err := check(t, c)
		var found *Counterexample
		switch {
		case err == nil:
			if batch-1+call > depth {
				t.Errorf("%s: no deadlock", c.Name)
			}
		case !errors.As(err, &found):
			t.Errorf("%s: %v", c.Name, err)
		case found.Property != P7 || batch-1+call <= depth:
			t.Errorf("%s: %v", c.Name, found)
		}
		if batch-1+call > depth && depth == 4 {
			if _, err := check(t, helped(c)); err != nil {
				t.Error(err)
			}
		}
	}
	for batch := 1; batch <= 4; batch++ {
		for call := 1; call <= 4; call++ {
			try(4, batch, call)
		}
	}
	for _, c := range [][2]int{{4, 5}, {4, 6}, {8, 7}, {8, 1}, {1, 8}, {2, 8}, {5, 4}, {5, 5}} {
		try(8, c[0], c[1])
	}
}

// TestWrapLemma proves, with counters of eight bits, that the poll's test is right exactly for -(2^8-1-n) <= idx-h <= n
// where h blocks are complete, and that the count it then derives is h.
func TestWrapLemma(t *testing.T) {
	const bits, round = 8, 1 << 8
	for n := 1; n <= round/2; n *= 2 {
		for h := 2 * round; h < 3*round; h++ {
			wc := uint64(h-1) & (round - 1)
			right := func(d int) bool { return Pending(uint64(h+d), wc, bits, uint64(n)) == (d > 0) }
			low, high := -(round - 1 - n), n
			for d := low; d <= high; d++ {
				if !right(d) {
					t.Fatalf("n %d, %d complete: wrong for idx %d", n, h, h+d)
				}
				if d <= 0 {
					if c := Consumed(uint64(h+d), wc, bits); c != uint64(h) {
						t.Fatalf("n %d, %d complete: idx %d gives %d", n, h, h+d, c)
					}
				}
			}
			if right(low-1) || right(high+1) {
				t.Fatalf("n %d, %d complete: the bounds are not tight", n, h)
			}
		}
	}
}

// TestWireWidth checks the same at the width that there is, for the largest queue and an empty completion entry.
func TestWireWidth(t *testing.T) {
	const bits, n = 16, 32768
	if !Pending(1, 0xffff, bits, n) || Pending(0, 0xffff, bits, n) {
		t.Error("an entry of 0xff bytes does not mean that nothing is complete")
	}
	for _, h := range []uint64{65499, 65535, 65536, 65537, 131072} {
		wc := (h - 1) & 0xffff
		if Pending(h, wc, bits, n) || !Pending(h+1, wc, bits, n) || !Pending(h+n, wc, bits, n) || Consumed(h, wc, bits) != h ||
			Consumed(h-20, wc, bits) != h {
			t.Errorf("wrong around %d", h)
		}
	}
}

// TestCap: a search that was ended proves nothing and says so.
func TestCap(t *testing.T) {
	p, err := New(post)
	if err != nil {
		t.Fatal(err)
	}
	var cap *TooManyStates
	if _, err := Check(System[State](p), 100); !errors.As(err, &cap) {
		t.Errorf("%v", err)
	}
}

// TestConfigurations: what does not fit a State is an error.
func TestConfigurations(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"depth":   func(c *Config) { c.Depth = 3 },
		"deeper":  func(c *Config) { c.Depth = 2 * MaxDepth },
		"threads": func(c *Config) { c.Programs = make([][]Op, MaxThreads+1); c.CTAs = make([]int, MaxThreads+1) },
		"CTAs":    func(c *Config) { c.CTAs = nil },
		"queues":  func(c *Config) { c.PEs = make([]int, MaxQueues+1) },
		"bits":    func(c *Config) { c.Bits = 8 },
		"cells":   func(c *Config) { c.IbufCells = 4 },
		"batch":   func(c *Config) { c.Batch = 0 },
		"queue":   func(c *Config) { c.Programs = [][]Op{{on(1, put1)}, {}} },
		"call":    func(c *Config) { c.Programs = [][]Op{{puts(5)}, {}} },
		"empty":   func(c *Config) { c.Programs = [][]Op{{{}}, {}} },
		"work": func(c *Config) {
			c.Programs = [][]Op{{puts(4), puts(4), puts(4), puts(4)}, {puts(4), puts(4), puts(4), puts(4), puts(4)}}
		},
		"PE":    func(c *Config) { c.Programs = [][]Op{{fence(MaxQueues)}, {}} },
		"lanes": func(c *Config) { c.Programs = [][]Op{{{Work: []Work{Write}, Lanes: 2}}, {}} },
		"start": func(c *Config) { c.Start = 250 },
	} {
		if _, err := New(with(post, change)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
