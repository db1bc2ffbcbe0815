package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/api"
)

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
		"hlep":                      "did you mean lgpu help?",
		"help zzzzz":                "lgpu --help",
		"help evnts":                "did you mean lgpu events?",
		"help daemon stpo":          "did you mean lgpu daemon stop?",
		"help run nix":              "lgpu run --help",
		"help help me":              "lgpu help --help",
		"complation bash":           "did you mean lgpu completion?",
		"completion":                "lgpu completion --help",
		"completion tcsh":           "those are known: bash, zsh, fish, powershell",
		"completion bsh":            "those are known: bash, zsh, fish, powershell",
		"completion bash nix":       "lgpu completion bash --help",
		"daemon status nix":         "lgpu daemon status --help",
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

// TestValues: what an option cannot be is said in words of ours, and no width takes all memory.
func TestValues(t *testing.T) {
	for line, want := range map[string]string{
		"ps --json=maybe":                          `--json "maybe": it is true or false`,
		"top --once --width wide":                  `--width "wide": this is no number`,
		"top --once --width 999999999999999999999": `--width "999999999999999999999": this number is not possible`,
		"top --once --width 999999999999":          "--width 999999999999: it must be 40 to 1000",
		"top --once --width 39":                    "--width 39: it must be 40 to 1000",
		"top --interval soon":                      `--interval "soon": this is no time`,
	} {
		c := root()
		c.SetArgs(strings.Fields(line))
		err := c.Execute()
		var e *exit
		if !errors.As(err, &e) || e.status != statusUsage || err.Error() != want {
			t.Errorf("%s: %v; want %s", line, err, want)
		}
	}
}

// TestEmptyArguments: a path from a variable that is not set is not the place of the user, whose programs would be ended.
func TestEmptyArguments(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"stop: PATH is empty", []string{"stop", ""}},
		{"stop: an argument is empty", []string{"stop", "a", ""}},
		{"rm: an argument is empty", []string{"rm", "-r", "a", ""}},
		{"suspend: an argument is empty", []string{"suspend", "a", "", "b"}},
		{"chown: USER is empty", []string{"chown", "", "a"}},
		{"chown: PATH is empty", []string{"chown", "root", ""}},
	} {
		command := root()
		command.SetArgs(c.args)
		err := command.Execute()
		var e *exit
		if !errors.As(err, &e) || e.status != statusUsage || err.Error() != c.want {
			t.Errorf("%q: %v; want %s", c.args, err, c.want)
		}
	}
}

// TestKinds: a kind of events that there is not has the one meant named, or what kinds there are.
func TestKinds(t *testing.T) {
	for typed, want := range map[string]string{
		"oome": "did you mean oom?", "limit.chnged": "did you mean limit.changed?", "polcie": "did you mean police?",
		"no such kind": "kinds are such as oom, limit.changed, police",
	} {
		e := events{kinds: []string{"oom", typed}}
		err := e.explain(&api.Error{Field: "kinds", Reason: "there is none"})
		var told *exit
		if !errors.As(err, &told) || told.hint != want {
			t.Errorf("%q: %v, hint %q, want %q", typed, err, told.hint, want)
		}
	}
}
