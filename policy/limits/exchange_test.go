package limits

import (
	"errors"
	"reflect"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/internal/list"
)

// What a directory asks for goes with it to other devices, and comes back with the pairs the other way round. Commit gets
// the note in the same change.
func TestExchange(t *testing.T) {
	var note any
	tree := newTree(t, Options{Commit: func(c Change) error { note = c.Note; return nil }})
	if err := tree.Mkdir("/x", 0, 0); err != nil {
		t.Fatal(err)
	}
	ask := func(file, text string) {
		t.Helper()
		if err := tree.Write("/x", file, text); err != nil {
			t.Fatal(err)
		}
	}
	ask("memory.max", "1:0 1GiB")
	ask("compute.min", "1:0 1%")
	ask("lgpu", "1:0 count=2")
	ask("memory.high", "1:1 2GiB")
	before := tree.State().Directories[1].Devices
	exchange := func(pairs ...[2]string) map[string]Limits {
		t.Helper()
		if err := tree.Exchange("/x", pairs, "note"); err != nil {
			t.Fatal(err)
		}
		if note != "note" {
			t.Errorf("Commit got the note %v", note)
		}
		note = nil
		return tree.State().Directories[1].Devices
	}
	bare := func(l Limits) Limits { l.Held = list.Set{}; return l }
	after := exchange([2]string{uuidA, uuidB})
	if !reflect.DeepEqual(bare(after[uuidB]), bare(before[uuidA])) || !reflect.DeepEqual(after[uuidA], before[uuidB]) {
		t.Errorf("%+v became %+v", before, after)
	}
	if again := exchange([2]string{uuidB, uuidA}); !reflect.DeepEqual(again, before) {
		t.Errorf("%+v came back as %+v", before, again)
	}
	// In a chain what is asked for on the device that only comes goes to the one that only leaves.
	after = exchange([2]string{uuidB, uuidC}, [2]string{uuidA, uuidB})
	if !reflect.DeepEqual(bare(after[uuidB]), bare(before[uuidA])) || !reflect.DeepEqual(after[uuidC], before[uuidB]) || !after[uuidA].None() {
		t.Errorf("%+v became %+v in a chain", before, after)
	}
}

// What the other device does not have, or others are promised there, is refused, and nothing has changed.
func TestExchangeRefused(t *testing.T) {
	for _, c := range []struct {
		file, text string
		pairs      [][2]string
		errno      syscall.Errno
		in         string
	}{
		{"memory.max", "1:1 20GiB", [][2]string{{uuidB, uuidA}}, syscall.ERANGE, "memory.max"},
		{"compute.min", "1:0 60%", [][2]string{{uuidA, uuidB}}, syscall.ERANGE, "compute.min"},
		{"memory.max", "1:0 1GiB", [][2]string{{uuidA, "GPU-none"}}, syscall.ENODEV, ""},
		{"memory.max", "1:0 1GiB", [][2]string{{uuidA, uuidB}, {uuidC, uuidB}}, syscall.EINVAL, ""},
	} {
		tree := newTree(t, Options{})
		for _, path := range []string{"/x", "/other"} {
			if err := tree.Mkdir(path, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, err := range []error{tree.Write("/other", "compute.min", "1:1 50%"), tree.Write("/x", c.file, c.text)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		before := tree.State()
		err := tree.Exchange("/x", c.pairs, nil)
		var e *Error
		if !errors.As(err, &e) || e.Errno != c.errno || e.File != c.in || e.Path != "/x" {
			t.Errorf("%s %s to %v: %v", c.file, c.text, c.pairs, err)
		}
		if !reflect.DeepEqual(tree.State(), before) {
			t.Errorf("%s %s to %v was refused and has changed something", c.file, c.text, c.pairs)
		}
	}
}
