package model

import (
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	for _, c := range []Config{
		{Name: "two", Depth: 4, Batch: 2, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 1}, Shared: true,
			Programs: [][]Op{{{Work: []Work{Write, Write}}, {Kind: Quiet}}, {{Work: []Work{Write}}, {Work: []Work{Write, Write, Write}}, {Kind: Quiet}}}},
		{Name: "three", Depth: 4, Batch: 2, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 1, 2}, Shared: true,
			Programs: [][]Op{{{Work: []Work{Write, Write}}, {Kind: Quiet}}, {{Work: []Work{Write}}, {Work: []Work{Write, Write, Write}}, {Kind: Quiet}}, {{Work: []Work{Write}}, {Kind: Quiet}}}},
	} {
		p, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		b := time.Now()
		r, err := Check[State](p, 5000000)
		t.Log(c.Name, r, err, time.Since(b))
	}
}
