// Package house tests the rules of the house: imports go one way, down the table "Arrows" of docs/design.md; files,
// functions, types and lines have a size that a reader can take in.
package house

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lgpu/lgpu/"

// layer is a line of the table: a folder, and the folders that its packages may import.
type layer struct {
	folder string
	below  []string
}

// table reads the lines of the fenced block "arrows" of a page.
func table(t *testing.T, page string) []layer {
	_, block, found := strings.Cut(page, "```arrows\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal("docs/design.md has no block that begins with ```arrows")
	}
	var layers []layer
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case strings.HasPrefix(line, " "): // the line before goes on
			last := &layers[len(layers)-1]
			last.below = append(last.below, words...)
		default:
			layers = append(layers, layer{words[0], words[1:]})
		}
	}
	return layers
}

// of is the index of the layer that a package is in: that of the longest folder that holds it.
func of(layers []layer, folder string) int {
	best := -1
	for i, l := range layers {
		if within(folder, l.folder) && (best < 0 || len(l.folder) > len(layers[best].folder)) {
			best = i
		}
	}
	return best
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// TestTable: a layer imports those below it, so the whole has no circle.
func TestTable(t *testing.T) {
	layers := design(t)
	for i, l := range layers {
		for _, b := range l.below {
			if j := of(layers, b); j <= i {
				t.Errorf("%s may import %s, which is not below it", l.folder, b)
			}
		}
	}
}

// TestImports: what a package imports, but for its tests, is in its own layer or in one that its layer may import.
func TestImports(t *testing.T) {
	layers := design(t)
	for _, root := range []string{"../..", "../../kube"} { // each module
		imports(t, layers, root)
	}
}

func imports(t *testing.T, layers []layer, root string) {
	list := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	list.Dir = root
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err == nil {
		err = list.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	packages := json.NewDecoder(out)
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		check(t, layers, strings.TrimPrefix(p.ImportPath, module), p.Imports)
	}
	if err := list.Wait(); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, layers []layer, name string, imports []string) {
	from := of(layers, name)
	if from < 0 {
		t.Errorf("the folder %s is in no line of the table", name)
		return
	}
	for _, path := range imports {
		to, ours := strings.CutPrefix(path, module)
		if !ours || of(layers, to) == from {
			continue
		}
		if !slices.ContainsFunc(layers[from].below, func(b string) bool { return within(to, b) && of(layers, b) == of(layers, to) }) {
			t.Errorf("%s imports %s; by the table %s may import %v", name, to, layers[from].folder, layers[from].below)
		}
	}
}

func design(t *testing.T) []layer {
	page, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	return table(t, string(page))
}
