package model

import (
	"errors"
	"fmt"
	"slices"
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

func TestMutations(t *testing.T) {
	for _, m := range Mutations() {
		for _, c := range m.Caught {
			if c.Config == nil {
				continue
			}
			t.Run(fmt.Sprintf("M%d %s", m.Number, m.What), func(t *testing.T) {
				// TestProtocol has judged the others.
				if !slices.ContainsFunc(Configurations(), func(o Config) bool { return o.Name == c.Sound.Name }) {
					if _, err := check(t, *c.Sound); err != nil {
						t.Fatalf("without the defect: %v", err)
					}
				}
				_, err := check(t, *c.Config)
				var found *Counterexample
				if !errors.As(err, &found) {
					t.Fatalf("not caught (%v)", err)
				}
				if found.Property != c.Property {
					t.Errorf("violates %s, not %s:\n%v", found.Property, c.Property, found)
				}
				if testing.Verbose() {
					t.Log(found)
				}
			})
		}
	}
}
