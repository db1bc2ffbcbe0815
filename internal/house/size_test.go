package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The sizes that a reader can take in. A function or a type beyond its size is in a list here, or the test fails.
const (
	maxFolders   = 17  // at the root; one more than was thought enough, for checkpoint is a subject of its own
	maxFile      = 700 // lines
	maxFunction  = 60  // lines, but for tests
	maxFunctions = 15  // longer ones
	maxMethods   = 50  // of a type
	maxLine      = 130 // columns of a comment or of a page
)

// largeTypes have more methods, and why.
var largeTypes = map[string]string{
	"sim/driver.Process": "a method for every function of the driver",
}

const root = "../.."

// generated is the line that generated files have: https://go.dev/s/generatedcode, in the comments of other languages too.
var generated = regexp.MustCompile(`(?m)^(//|/\*|#) Code generated .* DO NOT EDIT\.`)

// file is one that is written by hand.
type file struct {
	path string // from the root
	data []byte
}

func (f file) lines() []string { return strings.Split(strings.TrimSuffix(string(f.data), "\n"), "\n") }

// written returns the files of these kinds that are written by hand.
func written(t *testing.T, kinds ...string) []file {
	var files []file
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path != root && (name == "build" || name == "bin" || strings.HasPrefix(name, ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(kinds, filepath.Ext(name)) {
			return nil
		}
		data, err := os.ReadFile(path)
		if generated.Match(data) {
			return err
		}
		path, _ = filepath.Rel(root, path)
		files = append(files, file{path, data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestFolders(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, e := range entries {
		if e.IsDir() && e.Name() != "build" && e.Name() != "bin" && !strings.HasPrefix(e.Name(), ".") {
			count++
		}
	}
	if count > maxFolders {
		t.Errorf("%d folders at the root, at most %d", count, maxFolders)
	}
}

func TestFiles(t *testing.T) {
	for _, f := range written(t, ".go", ".c", ".cc", ".cu", ".h", ".cuh", ".py", ".S", ".sh", ".js", ".css") {
		if n := len(f.lines()); n > maxFile {
			t.Errorf("%s has %d lines, at most %d", f.path, n, maxFile)
		}
	}
}

// TestLines: comments and pages are read as prose, which needs shorter lines than code. What a walk's command prints is as
// it is.
func TestLines(t *testing.T) {
	for _, f := range written(t, ".go", ".c", ".cc", ".cu", ".h", ".cuh", ".py", ".md") {
		page, walk, output := strings.HasSuffix(f.path, ".md"), strings.HasPrefix(f.path, "docs/walks/"), false
		for i, line := range f.lines() {
			text := strings.TrimSpace(line)
			if strings.HasPrefix(text, "```") {
				output = walk && text == "```console"
			}
			if output && !typed.MatchString(text) {
				continue
			}
			comment := page || strings.HasPrefix(text, "//") || strings.HasPrefix(text, "/*") || strings.HasPrefix(text, "* ") ||
				strings.HasPrefix(text, "# ")
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); comment && n > maxLine && !strings.HasPrefix(text, "//go:") {
				t.Errorf("%s:%d has %d columns, at most %d", f.path, i+1, n, maxLine)
			}
		}
	}
}

// typed is a command of a walk.
var typed = regexp.MustCompile(`^[a-z]+[$#] `)

func TestFunctionsAndTypes(t *testing.T) {
	methods := map[string]int{}
	var long []string
	for _, f := range written(t, ".go") {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, f.path, f.data, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			function, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if function.Recv != nil {
				methods[filepath.Dir(f.path)+"."+receiver(function.Recv.List[0].Type)]++
			}
			if set.Position(function.End()).Line-set.Position(function.Pos()).Line >= maxFunction {
				long = append(long, f.path+": "+function.Name.Name)
			}
		}
	}
	if len(long) > maxFunctions {
		t.Errorf("%d functions have more than %d lines, at most %d may:\n%s", len(long), maxFunction, maxFunctions,
			strings.Join(long, "\n"))
	}
	for name, n := range methods {
		if n > maxMethods && largeTypes[name] == "" {
			t.Errorf("%s has %d methods, at most %d", name, n, maxMethods)
		}
	}
}

// receiver is the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
