package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/api"
)

func TestNearest(t *testing.T) {
	words := []string{"memory.max", "memory.high", "compute.max", "compute.min", "lgpu", "lgpu.weight", "ps", "set", "show"}
	for word, want := range map[string]string{
		"memroy.max": "memory.max", "memory.hihg": "memory.high", "compute.mn": "compute.min", "lgpu.wieght": "lgpu.weight",
		"sp": "ps", "st": "set", "colour": "", "": "", "x": "", "lgpu.w": "lgpu.weight", "memory": "", "shwo": "show",
	} {
		if got := nearest(word, words); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

func FuzzDistance(f *testing.F) {
	f.Add("memory.max", "memroy.max")
	f.Add("", "lgpu")
	f.Add(strings.Repeat("a", 65), "a")
	f.Fuzz(func(t *testing.T, a, b string) {
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) && len(a) <= 64 && len(b) <= 64 || d > max(len(a), len(b)) ||
			d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Errorf("%q, %q: %d", a, b, d)
		}
	})
}

// What is typed wrong is answered by what was meant.
func TestHints(t *testing.T) {
	for line, want := range map[string]string{
		"stauts":                    "lgpu --help lists the commands",
		"evnts":                     "did you mean lgpu events?",
		"daemon stpo":               "did you mean lgpu daemon stop?",
		"shmem instal":              "did you mean lgpu shmem install?",
		"run --memroy 1GiB -- true": "did you mean --memory?",
		"ps --jsn":                  "did you mean --json?",
		"ps --colour":               "lgpu ps --help lists the options",
		"ps -q":                     "lgpu ps --help lists the options",
	} {
		c := root()
		c.SetArgs(strings.Fields(line))
		err := c.Execute()
		var e *exit
		if !errors.As(err, &e) || e.status != statusUsage || e.hint != want {
			t.Errorf("%s: %v, hint %q; want %q", line, err, e.hint, want)
		}
	}
	missing := &api.Error{Errno: syscall.ENOENT, Text: "/team: memroy.max: there is no such file"}
	var e *exit
	if err := explainFiles(setCommand(), missing, "compute.max=5", "memroy.max=1GiB"); !errors.As(err, &e) ||
		e.hint != "did you mean memory.max?" {
		t.Errorf("%v, hint %q", err, e.hint)
	}
}
