package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// simulate runs lgpu sim igpu.
func simulate(arguments ...string) (out string, err error) {
	c := root()
	var b bytes.Buffer
	c.SetOut(&b)
	c.SetErr(&b)
	c.SetArgs(append([]string{"sim", "igpu", "--time", "100ms"}, arguments...))
	err = c.Execute()
	return b.String(), err
}

// TestIgpu: the table, the JSON and the chart of a run; the same run is the same.
func TestIgpu(t *testing.T) {
	chart := filepath.Join(t.TempDir(), "chart.svg")
	out, err := simulate("--guests", "4", "--subslots", "32", "--predict", "--aware", "--chart", chart)
	if err != nil || !strings.Contains(out, "gscale: 4 of 4 guests admitted") || !strings.Contains(out, "guesses right") {
		t.Errorf("%v\n%s", err, out)
	}
	if svg, err := os.ReadFile(chart); err != nil || !bytes.HasPrefix(svg, []byte("<svg ")) {
		t.Errorf("the chart: %v", err)
	}
	first, err := simulate("--guests", "4", "--policy", "gvirt", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Version  int    `json:"version"`
		Admitted int    `json:"guests_admitted"`
		Refusal  string `json:"refusal"`
	}
	if err := json.Unmarshal([]byte(first), &report); err != nil || report.Version != 1 || report.Admitted != 3 || report.Refusal == "" {
		t.Errorf("%v: %+v", err, report)
	}
	if again, _ := simulate("--guests", "4", "--policy", "gvirt", "--json"); again != first {
		t.Error("the same run was another")
	}
}

// TestIgpuRefuses: options that make no sense, with status 2.
func TestIgpuRefuses(t *testing.T) {
	for _, arguments := range []string{"--guests=0", "--policy=fair", "--subslots=7", "--subslots=-1", "--slots=1000", "--time=0s", "--hostile=99", "--mix=x", "--load=x", "x"} {
		_, err := simulate(arguments)
		var e *exit
		if !errors.As(err, &e) || e.status != statusUsage {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}
