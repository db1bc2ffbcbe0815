package house

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// readmeLines is how long README.md may be.
const readmeLines = 240

// sources are where README.md has its figures from. Each row of its tables has them from one section of one of these.
var sources = []string{"docs/benchmarks.md", "docs/design.md"}

// decimal is a figure that has been measured: what was asked for mostly has no decimals.
var decimal = regexp.MustCompile(`[0-9]+\.[0-9]+`)

// TestFigures: the figures in the tables of README.md are those of the measurements, rounded. All of a cell are in one
// section there, so none stays behind when a measurement is made anew.
func TestFigures(t *testing.T) {
	page, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), "\n"); n > readmeLines {
		t.Errorf("README.md has %d lines, at most %d", n, readmeLines)
	}
	var sections [][]float64
	for _, source := range sources {
		text, err := os.ReadFile(root + "/" + source)
		if err != nil {
			t.Fatal(err)
		}
		for section := range strings.SplitSeq(string(text), "\n## ") {
			var figures []float64
			for _, f := range regexp.MustCompile(`[0-9]+(\.[0-9]+)?`).FindAllString(section, -1) {
				figures = append(figures, number(t, f))
			}
			sections = append(sections, figures)
		}
	}
	compared := 0
	for row := range strings.Lines(string(page)) {
		if !strings.HasPrefix(row, "|") {
			continue
		}
		for _, cell := range strings.Split(strings.Trim(row, "|\n"), "|")[1:] {
			figures := decimal.FindAllString(cell, -1)
			compared += len(figures)
			if !anySection(t, sections, figures) {
				t.Errorf("README.md: no section of %v has all figures of %q", sources, strings.TrimSpace(cell))
			}
		}
	}
	if compared < 40 {
		t.Errorf("only %d figures are in the tables of README.md", compared)
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// anySection reports whether a section has all figures, to as many decimals as these have.
func anySection(t *testing.T, sections [][]float64, figures []string) bool {
	t.Helper()
	for _, section := range sections {
		all := true
		for _, f := range figures {
			_, decimals, _ := strings.Cut(f, ".")
			half, found := 0.501*math.Pow10(-len(decimals)), false
			for _, s := range section {
				found = found || math.Abs(s-number(t, f)) <= half
			}
			all = all && found
		}
		if all {
			return true
		}
	}
	return false
}
