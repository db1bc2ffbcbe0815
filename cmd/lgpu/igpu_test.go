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
	if !strings.HasSuffix(out, "chart: "+chart+"\n") {
		t.Errorf("where the chart is: %s", out)
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

// TestIgpuChart: by default the chart is in the working folder, replaces the one before, and nothing else; without one
// there is still the table. A chart that was named must be written.
func TestIgpuChart(t *testing.T) {
	t.Chdir(t.TempDir())
	const name = "igpu-gscale-2.svg"
	for range 2 {
		if out, err := simulate("--guests", "2"); err != nil || !strings.HasSuffix(out, "\nchart: "+name+"\n") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	for _, arguments := range [][]string{{"--chart", "none"}, {"--json"}} {
		os.Remove(name)
		if _, err := simulate(append(arguments, "--guests", "2")...); err != nil {
			t.Error(err)
		}
		if entries, _ := os.ReadDir("."); len(entries) != 0 {
			t.Errorf("%v left %v", arguments, entries)
		}
	}
	for _, there := range []string{"a file of the user's", "a folder"} {
		if err := os.WriteFile(name, []byte(there), 0o600); err != nil {
			t.Fatal(err)
		}
		if there == "a folder" {
			if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
				t.Fatal(err)
			}
		}
		out, err := simulate("--guests", "2")
		if err != nil || !strings.Contains(out, "2 of 2 guests admitted") || !strings.Contains(out, "there is no chart") {
			t.Errorf("%s: %v\n%s", there, err, out)
		}
		if out, err = simulate("--guests", "2", "--chart", name); err == nil || !strings.Contains(out, "2 of 2 guests admitted") {
			t.Errorf("%s, named: %v\n%s", there, err, out)
		}
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
