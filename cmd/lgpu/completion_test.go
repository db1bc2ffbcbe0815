package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/api"
)

// completed are the candidates for the last of some words, without their descriptions.
func completed(t *testing.T, line ...string) []string {
	t.Helper()
	t.Setenv("LGPU_RUNTIME_DIR", t.TempDir()) // no daemon is there
	var out bytes.Buffer
	c := root()
	c.SetOut(&out)
	c.SetErr(new(bytes.Buffer))
	c.SetArgs(append([]string{"__completeNoDesc"}, line...))
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	return all[:len(all)-1] // the last says what the shell is to do
}

func TestComplete(t *testing.T) {
	for line, want := range map[string]string{
		"ev":                              "events",
		"shmem inst":                      "install",
		"daemon s":                        "status stop",
		"run --priority ":                 "normal high latency",
		"daemon --police=":                "report stop stop-strangers",
		"conformance --mode ":             "temporal spatial",
		"run --contain=":                  "on auto off",
		"events --kind police.s":          "police.stranger police.stopped police.slice",
		"events --kind oom,lgpu.st":       "oom,lgpu.stopped",
		"chown ro":                        "root",
		"events --user roo":               "root",
		"chown root /":                    "", // there is no daemon
		"stop ":                           "",
		"daemon --group ":                 "",
		"run --memory ":                   "",
		"run --device ":                   "", // there is no daemon
		"set /team lgpu.priority=":        "lgpu.priority=normal lgpu.priority=high lgpu.priority=latency",
		"set /team memory.max=":           "memory.max=max",
		"create /team memory.max=1GiB me": "",
		"ps x":                            "",
	} {
		got := completed(t, strings.Split(line, " ")...)
		typed := line[strings.LastIndexByte(line, ' ')+1:]
		if strings.HasPrefix(typed, "--") {
			_, typed, _ = strings.Cut(typed, "=")
		}
		got = slices.DeleteFunc(got, func(word string) bool { return !strings.HasPrefix(word, typed) }) // as shells do
		if strings.HasPrefix(line, "create") {                                                          // all files but the one that is there
			if slices.Contains(got, "memory.max=") || !slices.Contains(got, "memory.high=") || slices.Contains(got, "memory.current=") {
				t.Errorf("%s: %v", line, got)
			}
			continue
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	all := []*api.Directory{{Path: "/"}, {Path: "/team"}, {Path: "/team/a", Kind: api.Directory_LGPU}}
	for _, c := range []struct {
		typed  string
		except []string
		groups bool
		want   string
	}{
		{"", nil, false, "/ /team /team/a"}, {"/t", []string{"team"}, false, "/ /team/a"}, {"t", nil, false, "team team/a"},
		{"/", nil, true, "/ /team"},
	} {
		var got []string
		for _, w := range pathWords(all, c.typed, c.except, c.groups) {
			name, _, _ := strings.Cut(w, "\t")
			got = append(got, name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	devices := []*api.Device{{Uuid: "GPU-1", Name: "one"}, {Uuid: "GPU-2", Name: "two"}}
	if got := deviceWords(devices, "GPU-1,"); !slices.Equal(got, []string{"GPU-1,GPU-2\ttwo"}) {
		t.Errorf("%q", got)
	}
}

// Every completer is of an option or a command that there is.
func TestCompletersAreUsed(t *testing.T) {
	flags, commands := map[string]bool{}, map[string]bool{}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		commands[strings.TrimPrefix(c.CommandPath(), "lgpu ")] = true
		c.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(root())
	for name := range flagCompleters {
		if !flags[name] {
			t.Errorf("no command has --%s", name)
		}
	}
	for name := range argumentCompleters {
		if !commands[name] {
			t.Errorf("there is no command %s", name)
		}
	}
}
