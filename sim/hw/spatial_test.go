package hw

import (
	"math"
	"sync/atomic"
	"testing"
	"time"
)

// until is a program whose blocks run until a time and count the cycles that each unit gave them.
type until struct {
	end  Time
	used []atomic.Int64 // by unit
}

func (u *until) Block(int64) (Block, error) { return u, nil }

func (u *until) Run(at At, cycles int64) (int64, bool, error) {
	u.used[at.Unit].Add(cycles)
	return cycles, at.Time+Time(float64(cycles)*at.NanosPerCycle) >= u.end, nil
}

// TestUnits checks who gets how much of each unit: channels of different units all of theirs at the same time, channels
// of the same unit equal parts of it.
func TestUnits(t *testing.T) {
	const span = 100 * time.Millisecond // in cycles: 100000
	for _, tc := range []struct {
		name  string
		masks [][]int
		want  [][]float64 // by channel and unit, in parts of span
	}{
		{"one", [][]int{{1, 3}}, [][]float64{{0, 1, 0, 1}}},
		{"disjoint", [][]int{{0, 2}, {1}, {3}}, [][]float64{{1, 0, 1, 0}, {0, 1, 0, 0}, {0, 0, 0, 1}}},
		{"overlapping", [][]int{{0, 1, 2}, {2, 3}}, [][]float64{{1, 1, .5, 0}, {0, 0, .5, 1}}},
		{"beside one of all", [][]int{{0, 1}, {0, 1, 2, 3}}, [][]float64{{.5, .5, 0, 0}, {.5, .5, 1, 1}}},
		{"three of one", [][]int{{2}, {2}, {2}}, [][]float64{{0, 0, 1. / 3, 0}, {0, 0, 1. / 3, 0}, {0, 0, 1. / 3, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := machine(t, Config{Units: 4}).Devices[0]
			programs := make([]until, len(tc.masks))
			dones := make(chan ending, len(tc.masks))
			// All begin at once: in a callback, when virtual time stands still.
			first := &Grid{Program: fixed(1), Blocks: 1, Needs: Needs{Threads: 32}, Done: func(at Time, _ error) {
				for i, mask := range tc.masks {
					c := d.NewChannelOn(mask)
					programs[i] = until{end: at + Time(span), used: make([]atomic.Int64, 4)}
					// One block on each unit that the channel has.
					g := &Grid{Program: &programs[i], Blocks: int64(len(mask)), Needs: Needs{Threads: 2048}, Ready: at}
					g.Done = func(at Time, err error) { dones <- ending{at, err} }
					if err := c.Submit(g); err != nil {
						t.Error(err)
						dones <- ending{at, err}
					}
				}
			}}
			if err := d.NewChannel().Submit(first); err != nil {
				t.Fatal(err)
			}
			for range tc.masks {
				if e := await(t, "grid", dones); e.err != nil {
					t.Fatal(e.err)
				}
			}
			for i := range programs {
				for u := range programs[i].used {
					got := float64(programs[i].used[u].Load()) / float64(span/time.Microsecond)
					// A turn may be cut short at the end.
					if math.Abs(got-tc.want[i][u]) > 0.05 || tc.want[i][u] == 0 && got != 0 {
						t.Errorf("channel %d got %.3f of unit %d, want %.3f", i, got, u, tc.want[i][u])
					}
				}
			}
		})
	}
}

// TestThroughputOfUnits checks that the time of a grid is in inverse proportion to the units it may use.
func TestThroughputOfUnits(t *testing.T) {
	for n := 1; n <= 8; n++ {
		d := machine(t, Config{Units: 8}).Devices[0]
		var mask []int
		for u := range n {
			mask = append(mask, 7-u)
		}
		c := d.NewChannelOn(mask)
		e := await(t, "grid", submit(t, c, &Grid{Program: fixed(100), Blocks: 840, Needs: Needs{Threads: 2048}}))
		if want := Time(840/n) * 100 * us; e.err != nil || math.Abs(float64(e.at-want)) > 0.01*float64(want) {
			t.Errorf("on %d units it took %v (%v), want %v", n, time.Duration(e.at), e.err, time.Duration(want))
		}
	}
}

// TestNoUnits checks that a channel without units refuses work instead of keeping it for ever.
func TestNoUnits(t *testing.T) {
	d := machine(t, Config{Units: 4}).Devices[0]
	for _, units := range [][]int{nil, {4, -1}} {
		if err := d.NewChannelOn(units).Submit(&Grid{Program: fixed(1), Blocks: 1}); err == nil {
			t.Errorf("a channel with units %v took a grid", units)
		}
	}
}
