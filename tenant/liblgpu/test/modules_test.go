package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A module includes what the table in README.md says, and nothing else; and only modules above it there.
func TestModulesIncludeWhatTheTableSays(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile("`([a-z]+)`")
	var order []string
	may := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|([^|]*)\\|[^|]*\\|$").FindAllStringSubmatch(string(readme), -1) {
		for _, m := range word.FindAllStringSubmatch(row[2], -1) {
			if !slices.Contains(order, m[1]) {
				t.Errorf("the table has %s include %s, which is not above it", row[1], m[1])
			}
			may[row[1]] = append(may[row[1]], m[1])
		}
		order = append(order, row[1])
	}
	files, err := filepath.Glob("*/*.[chS]")
	if err != nil {
		t.Fatal(err)
	}
	include := regexp.MustCompile(`(?m)^#include "([a-z]+)/`)
	does := map[string][]string{}
	for _, file := range files {
		module := filepath.Dir(file)
		if module == "testdata" {
			continue
		}
		if !slices.Contains(order, module) {
			t.Errorf("%s is of no module of the table", file)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			if m[1] == module {
				continue
			}
			does[module] = append(does[module], m[1])
			if !slices.Contains(may[module], m[1]) {
				t.Errorf("%s includes %s, which the table does not have for %s", file, m[1], module)
			}
		}
	}
	for _, module := range order {
		for _, m := range may[module] {
			if !slices.Contains(does[module], m) {
				t.Errorf("the table has %s include %s; no file does", module, m)
			}
		}
	}
	if len(order) < 5 || !strings.HasPrefix(order[0], "base") {
		t.Errorf("the table in README.md has the modules %v", order)
	}
}
