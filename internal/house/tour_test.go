package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tour is the page whose links are held against the source.
const tour = "docs/tour.md"

var (
	// anyLink is a link of a page to a file of the source: its text and its path.
	anyLink = regexp.MustCompile(`\[([^\]]*)\]\((\.\./[^)\s]+)\)`)
	// named is the text of a link to a function or type: its name in backticks.
	named = regexp.MustCompile("^`([A-Za-z_][A-Za-z0-9_]*)`$")
)

// TestTour: what the tour links to is where it says.
func TestTour(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, tour))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, link := range anyLink.FindAllStringSubmatch(string(page), -1) {
		text, target := link[1], path.Join(path.Dir(tour), link[2])
		name := named.FindStringSubmatch(text)
		if name == nil {
			t.Errorf("%s: the link [%s](%s) is not the name of a function or type in backticks", tour, text, link[2])
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, target))
		if err != nil {
			t.Errorf("%s: the link of %s: %v", tour, name[1], err)
			continue
		}
		if !defines(t, file{target, data}, name[1]) {
			t.Errorf("%s: %s is not defined in %s", tour, name[1], target)
		}
		checked++
	}
	if checked < 100 { // fewer are a tour with other links, or none
		t.Errorf("%s has %d links to the source", tour, checked)
	}
}

// defines reports whether a file defines a name: in Go by its syntax; in C and CUDA on a line that is neither indented
// nor a comment, as definitions, declarations and macros are; elsewhere by the word alone.
func defines(t *testing.T, f file, name string) bool {
	switch filepath.Ext(f.path) {
	case ".go":
		return defined(t, f)[name]
	case ".c", ".h", ".cu", ".cuh":
		word := regexp.MustCompile(`(?m)^[^\s/].*\b` + name + `\b|^` + name + `\b`)
		return word.Match(f.data)
	}
	return regexp.MustCompile(`\b` + name + `\b`).Match(f.data)
}

// defined are the names that a Go file defines: functions, methods (of interfaces too), types, constants, variables.
func defined(t *testing.T, f file) map[string]bool {
	parsed, err := parser.ParseFile(token.NewFileSet(), f.path, f.data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				specified(s, names)
			}
		}
	}
	return names
}

// specified adds the names that a declaration of types, constants or variables defines.
func specified(s ast.Spec, names map[string]bool) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		names[s.Name.Name] = true
		if methods, ok := s.Type.(*ast.InterfaceType); ok {
			for _, m := range methods.Methods.List {
				for _, n := range m.Names {
					names[n.Name] = true
				}
			}
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names[n.Name] = true
		}
	}
}

// TestDefines: the rule finds definitions, and nothing else.
func TestDefines(t *testing.T) {
	source := "package p\n\n// Word is not code.\nfunc (t T) Method() { called() }\n\ntype I interface{ Of() }\n"
	c := "// word in prose\nint made(void)\n{\n\tcalled();\n}\nKERNEL(by_macro, x)\n"
	for _, test := range []struct {
		path, text, name string
		want             bool
	}{
		{"a.go", source, "Method", true},
		{"a.go", source, "Of", true},
		{"a.go", source, "I", true},
		{"a.go", source, "Word", false},
		{"a.go", source, "called", false},
		{"a.c", c, "made", true},
		{"a.c", c, "by_macro", true},
		{"a.c", c, "word", false},
		{"a.c", c, "called", false},
		{"a.c", c, "mad", false},
		{"a.proto", "  rpc Attach(Request)\n", "Attach", true},
		{"a.proto", strings.Repeat(" ", 2) + "rpc Attach2(Request)\n", "Attach", false},
	} {
		if got := defines(t, file{test.path, []byte(test.text)}, test.name); got != test.want {
			t.Errorf("%s defines %s: %v, not %v", test.path, test.name, got, test.want)
		}
	}
}
