package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A limit that did not hold on a busy machine is said with the load; nothing else is.
func TestExplain(t *testing.T) {
	broken := fmt.Errorf("%w: red got 55.7%% of the device, not 60%%", errBroken)
	if err := (load{before: 1000}).explain(broken); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "a load of 1000.0") {
		t.Errorf("on a machine that was busy before: %v", err)
	}
	if err := (load{others: 1000}).explain(broken); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "other programs had 1000.0 of ") {
		t.Errorf("on a machine that is busy meanwhile: %v", err)
	}
	if err := (load{}).explain(broken); err != broken {
		t.Errorf("on an idle machine: %v", err)
	}
	other := errors.New("no such file")
	if err := (load{before: 1000}).explain(other); err != other {
		t.Errorf("another error: %v", err)
	}
	if err := (load{before: 1000}).explain(nil); err != nil {
		t.Errorf("without an error: %v", err)
	}
}

// What the demo's own programs use does not count as others'.
func TestBetween(t *testing.T) {
	from := host{all: 1000, busy: 500, stolen: 10, own: 100}
	to := host{all: 2000, busy: 1250, stolen: 60, own: 600}
	part := between(0, from, to).others / between(0, host{}, host{all: 1, busy: 1}).others // of all processors
	if part != 0.25 {
		t.Errorf("others had %v of the processors, want a quarter", part)
	}
	if got := between(3, from, to); got.stolen != 0.05 || got.before != 3 {
		t.Errorf("got %+v", got)
	}
	to.own = 2000 // counts of different moments
	if got := between(0, from, to).others; got != 0 {
		t.Errorf("others had %v, want none", got)
	}
}

func TestProcessTime(t *testing.T) {
	for stat, want := range map[string]uint64{
		"7 (a) b) 99) S 1 7 7 0 -1 4194304 1 2 3 4 10 20 30 40 20 0": 100,
		"7 (short) S 1": 0,
		"":              0,
	} {
		if got := processTime(stat); got != want {
			t.Errorf("%q: %d, want %d", stat, got, want)
		}
	}
}
