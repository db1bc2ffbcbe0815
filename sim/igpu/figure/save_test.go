package figure

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSave: a chart replaces a chart, an empty file and a link to a chart's place, and nothing else.
func TestSave(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "chart.svg")
	first := Chart{Title: "first", At: []string{"1"}, Series: []Series{{Name: "a", Values: []float64{1}}}}
	second := Chart{Title: "second"}
	for _, c := range []Chart{first, second} {
		if err := c.Save(path); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != c.SVG() {
			t.Errorf("%v: %s", err, data)
		}
	}
	link := filepath.Join(folder, "link.svg")
	if err := errors.Join(os.Symlink(path, link), first.Save(link)); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(path); string(data) != first.SVG() {
		t.Errorf("what the link leads to is %s", data)
	}
	empty := filepath.Join(folder, "empty")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), first.Save(empty)); err != nil {
		t.Error(err)
	}
	foreign := filepath.Join(folder, "foreign.svg")
	drawing := []byte(`<svg xmlns="http://www.w3.org/2000/svg"></svg>`)
	if err := os.WriteFile(foreign, drawing, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := first.Save(foreign); !errors.Is(err, ErrForeign) {
		t.Errorf("a foreign file: %v", err)
	}
	if data, _ := os.ReadFile(foreign); !bytes.Equal(data, drawing) {
		t.Errorf("a foreign file is now %s", data)
	}
	if err := first.Save(filepath.Join(folder, "none", "chart.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 4 {
		t.Errorf("the folder has %v", entries)
	}
}
