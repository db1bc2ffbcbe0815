package main

import (
	"errors"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/api"
)

// An error about a field of a request is one about the option that gave it, with the value as it was typed.
func TestOptionOfField(t *testing.T) {
	for _, c := range []struct {
		args []string
		err  error
		want string
	}{
		{[]string{"--memory", "20G"}, &api.Error{Errno: syscall.ERANGE, Field: "memory.max", Reason: "it has 16 GiB", Text: "/x: memory.max …"},
			"--memory 20G: it has 16 GiB"},
		{[]string{"--units", "33"}, &api.Error{Field: "lgpu", Reason: "it has 32 units", Text: "…"}, "--units 33: it has 32 units"},
		{nil, &api.Error{Field: "devices", Reason: "10 devices", Text: "…"}, "--device: 10 devices"},
		{nil, &api.Error{Field: "memory.max", Reason: "it has 16 GiB", Text: "memory.max: it has 16 GiB"}, "memory.max: it has 16 GiB"},
		{nil, &api.Error{Field: "colour", Reason: "it is red", Text: "colour: it is red"}, "colour: it is red"},
		{[]string{"--memory", "1G"}, &api.Error{Text: "/x exists"}, "/x exists"},
		{nil, errors.New("odd"), "odd"},
	} {
		run := runCommand()
		if err := run.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		if got := explainOptions(run, c.err).Error(); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	run := runCommand()
	for field, o := range fieldOptions {
		if run.Flags().Lookup(o.name) == nil {
			t.Errorf("%s: lgpu run has no --%s", field, o.name)
		}
	}
}
