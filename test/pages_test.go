package test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/test/walks"
)

var update = flag.Bool("update", false, "write what the examples of pages print now into the pages")

// settled is how long programs run before what they do is written down.
const settled = 10 * time.Second

// pages are those whose examples TestPages runs. (Those of docs/files.md run in daemon/treefs, on devices of their own.)
var pages = []string{"README.md", "docs/lshmem.md"}

// An example is a block of the page marked as console: commands behind "$ ", each with what it prints below it. The
// commands of a block run in one shell, at the root of the source.
var example = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// lines are those of a text.
func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// TestPages: the examples of pages work as they stand and print what is below them, up to what varies. Those of a page
// run in one shell, so an example may go on with what one before it has started.
func TestPages(t *testing.T) {
	for _, name := range pages {
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile("../" + name)
			if err != nil {
				t.Fatal(err)
			}
			shell := newPlace(t).start("bash", "-c", "cd .. && exec bash 2>&1")
			var ran strings.Builder
			examples, end := example.FindAllSubmatchIndex(page, -1), 0
			for _, at := range examples {
				ran.Write(page[end:at[2]])
				ran.WriteString(shell.runExample(string(page[at[2]:at[3]])))
				end = at[3]
			}
			ran.Write(page[end:])
			if len(examples) == 0 {
				t.Error("there is no example")
			}
			if *update {
				if err := os.WriteFile("../"+name, []byte(ran.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// runExample runs the commands of an example and returns it with what they have printed.
func (t *tenant) runExample(text string) string {
	t.t.Helper()
	var ran strings.Builder
	for _, step := range strings.Split("\n"+text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(strings.TrimSuffix(step, "\n"), "\n")
		if want != "" {
			want += "\n"
		}
		looks := walks.Looks(command)
		if looks && *update {
			time.Sleep(settled)
		}
		got := t.obey(command)
		for begin := time.Now(); looks && !*update && !walks.Like(lines(want), lines(got)) && time.Since(begin) < patience; {
			time.Sleep(20 * time.Millisecond)
			got = t.obey(command)
		}
		if !walks.Like(lines(want), lines(got)) && !*update {
			t.t.Errorf("$ %s\nprints\n%s\nnot\n%s\nif that is right: go test ./test -run TestPages -update", command, got, want)
		}
		fmt.Fprintf(&ran, "$ %s\n%s", command, got)
	}
	return ran.String()
}

// obey has a shell run a command and returns what that prints.
func (t *tenant) obey(command string) string {
	t.t.Helper()
	const done = "-- the command has ended --"
	// The shell's status stays that of the command, for an echo $?.
	if _, err := fmt.Fprintf(t.in, "%s\nstatus=$?; echo %q; (exit $status)\n", command, done); err != nil {
		t.t.Fatal(err)
	}
	var out strings.Builder
	for _, line := range t.until(done) {
		out.WriteString(line + "\n")
	}
	return out.String()
}
