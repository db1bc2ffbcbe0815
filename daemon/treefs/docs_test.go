package treefs

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

// documented is the usage that the examples of docs/files.md show: /team/alice has processes.
type documented struct{ tree *limits.Tree }

func (d *documented) Stat(id uint64, device string) limits.Stat {
	if n, _ := d.tree.ByID(id); n.Path != "/team/alice" || device != documentedDevices()[0].UUID {
		return limits.Stat{}
	}
	return limits.Stat{
		Memory: 3 << 30, Peak: 4 << 30, BusyUsec: 1530021, Launches: 84210, Asked: 1250, Delivered: 1248,
		Energy: 86_400_250, Power: 312_500, Metered: true,
	}
}

func (d *documented) ResetPeak(uint64, string) {}

func (d *documented) Procs(id uint64) []int {
	if n, _ := d.tree.ByID(id); n.Path == "/team/alice" {
		return []int{4711, 4720}
	}
	return nil
}

func (d *documented) Events(id uint64) []limits.Count {
	if n, _ := d.tree.ByID(id); n.Path == "/team/alice" {
		return []limits.Count{{Name: "high"}, {Name: "oom", N: 2}}
	}
	return nil
}

func documentedDevices() []limits.Device {
	return []limits.Device{
		{UUID: "GPU-5ba1f2c6-0000-0000-0000-0000000000b0", Number: "195:0", Ordinal: "0", Capacity: 132, UnitsPerBit: 1, Memory: 143771 << 20},
		{UUID: "GPU-5ba1f2c6-0000-0000-0000-0000000000b1", Number: "195:1", Ordinal: "1", Capacity: 16, UnitsPerBit: 8, Remainder: 4, Kind: limits.Spatial, Memory: 16 << 30},
	}
}

var lineOfScript = regexp.MustCompile(`(?m)^bash: line \d+: `)

// TestDocumentedExamples runs the examples of docs/files.md, from the first to the last, and compares what they print.
func TestDocumentedExamples(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("the examples are for bash: %v", err)
	}
	page, err := os.ReadFile("../../docs/files.md")
	if err != nil {
		t.Fatal(err)
	}
	usage := &documented{}
	usage.tree = limits.New(limits.Options{Usage: usage, Rights: limits.Rights{Owner: uint32(os.Geteuid())}})
	dir := mountDocumented(t, usage.tree)
	examples := 0
	for _, block := range strings.Split(string(page), "```console\n")[1:] {
		block, _, closed := strings.Cut(block, "```")
		if !closed {
			t.Fatalf("a block does not end: %.60s", block)
		}
		for _, example := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(example, "\n")
			cmd := exec.Command("bash", "-c", `cd "$1" && eval "$2"`, "bash", dir, command)
			cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
			out, _ := cmd.CombinedOutput()
			got := strings.TrimSuffix(lineOfScript.ReplaceAllString(string(out), "bash: "), "\n")
			if got != strings.TrimSuffix(want, "\n") {
				t.Fatalf("$ %s\n%s\nthe page says\n%s", command, got, want)
			}
			examples++
			if command == "mkdir team team/alice" { // processes come
				if err := usage.tree.Enter("/team/alice"); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if examples < 50 {
		t.Errorf("only %d examples were found", examples)
	}
}

// mountDocumented mounts the tree of the page's machine.
func mountDocumented(t *testing.T, tr *limits.Tree) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.SetDevices(documentedDevices()); err != nil {
		t.Fatal(err)
	}
	server := mountHere(t, dir, tr, Options{})
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestDocumentedLists reads the table of lists in docs/files.md.
func TestDocumentedLists(t *testing.T) {
	page, err := os.ReadFile("../../docs/files.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| list | of 16 bits |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if !found || len(rows) < 4 {
		t.Fatalf("no table of lists: %q", table)
	}
	for _, row := range rows {
		cells := strings.Split(row, "|")
		text, want := strings.Trim(cells[1], " `"), strings.TrimSpace(cells[2])
		if set, err := list.Parse(text, 16); err != nil || set.String() != want {
			t.Errorf("%s is %s, %v; the page says %s", text, set, err, want)
		}
	}
}

// TestDocumentedFiles: the page has a row for every file.
func TestDocumentedFiles(t *testing.T) {
	page, err := os.ReadFile("../../docs/files.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range limits.Files() {
		if !strings.Contains(string(page), "| [`"+f.Name+"`]") && !strings.Contains(string(page), "| `"+f.Name+"` |") {
			t.Errorf("docs/files.md has no row for %s", f.Name)
		}
	}
}
