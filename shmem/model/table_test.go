package model

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTable: the list has every row of the reference, each is caught by something, and the tests that it names exist.
func TestTable(t *testing.T) {
	const rows = 24
	seen := map[int]bool{}
	tests := map[string]map[string]bool{}
	// The keys of litmus_test.go's defects.
	source, err := os.ReadFile("../litmus/litmus_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(source), "var defects = ")
	list, _, _ = strings.Cut(list, "\n}\n")
	switches := map[int]bool{}
	for _, key := range regexp.MustCompile(`(?m)^\t(\d+): `).FindAllStringSubmatch(list, -1) {
		n, _ := strconv.Atoi(key[1])
		switches[n] = true
	}
	for _, m := range Mutations() {
		if m.Number != 0 && seen[m.Number] {
			t.Errorf("M%d is there twice", m.Number)
		}
		seen[m.Number] = true
		if m.Number < 0 || m.Number > rows || m.What == "" || m.Source == "" || m.Breaks == "" {
			t.Errorf("M%d: incomplete: %+v", m.Number, m)
		}
		if len(m.Caught) == 0 {
			t.Errorf("M%d is caught by nothing", m.Number)
		}
		for _, c := range m.Caught {
			if (c.Config == nil) == (c.Test == "") || c.Config != nil && (c.Sound == nil || c.Property == "") {
				t.Errorf("M%d: caught by neither model nor test, or by both in one: %+v", m.Number, c)
			}
			if c.Test == "" {
				continue
			}
			if tests[c.Package] == nil {
				tests[c.Package] = testsOf(t, c.Package)
			}
			if c.Switch != 0 && !switches[c.Switch] {
				t.Errorf("M%d: shmem/litmus does not try defect %d", m.Number, c.Switch)
			}
			if c.Switch != 0 && c.Switch != m.Number {
				t.Errorf("M%d: is switch %d", m.Number, c.Switch)
			}
			if !tests[c.Package][c.Test] {
				t.Errorf("M%d: no test %s in %s", m.Number, c.Test, c.Package)
			}
		}
	}
	for n := 1; n <= rows; n++ {
		if !seen[n] {
			t.Errorf("no row M%d", n)
		}
	}
}

// testsOf lists the test functions of a folder, given from the repository's root.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, 0)
		if err != nil {
			t.Logf("%s: %v", file, err) // its own package's tests say so
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
