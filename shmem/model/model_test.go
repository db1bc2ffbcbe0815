package model

import (
	"testing"
	"time"
)

// limit is more than any configuration here has.
const limit = 1_000_000

func check(t *testing.T, c Config) (Result, error) {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r, err := Check(System[State](p), limit)
	t.Logf("%s: %d states, %d steps, depth %d, %d ends, %v", c.Name, r.States, r.Steps, r.Depth, r.Final, time.Since(began).Round(time.Millisecond))
	return r, err
}

func TestProtocol(t *testing.T) {
	for _, c := range Configurations() {
		t.Run(c.Name, func(t *testing.T) {
			r, err := check(t, c)
			if err != nil {
				t.Fatal(err)
			}
			if r.Final == 0 {
				t.Error("no end is reached")
			}
		})
	}
}
