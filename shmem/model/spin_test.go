package model

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestSpin lets SPIN judge queue.pml: the protocol holds, and each defect violates the assertion named.
func TestSpin(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed; on Debian: apt install spin gcc", tool)
		}
	}
	source, err := filepath.Abs("queue.pml")
	if err != nil {
		t.Fatal(err)
	}
	errorCount := regexp.MustCompile(`errors: (\d+)`)
	for _, c := range []struct{ defines, assertion string }{
		{"", ""},
		{"-DM13", "c>=consumed"},
		{"-DM14", "at[spot]<completed"},
		{"-DM15 -DFULL", "c<=completed"},
		{"-DM16", "level[spot]==2"},
		{"-DM17", "done==posted"},
		{"-DM17PLAIN", "end>=doorbell"},
		{"-DM18", "finished=="},
		{"-DUNFENCED", "done==posted"},
		{"-DBATCH=4 -DSTART=12", "finished=="},
		{"-DCALL=4", "finished=="},
	} {
		name := c.defines
		if name == "" {
			name = "no defect"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			dir := t.TempDir()
			run := func(name string, arg ...string) string {
				t.Helper()
				cmd := exec.CommandContext(ctx, name, arg...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "LC_ALL=C")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %v\n%s", cmd, err, out)
				}
				return string(out)
			}
			run("spin", append(strings.Fields(c.defines), "-a", source)...)
			run("gcc", "-w", "-O1", "-DSAFETY", "-o", "pan", "pan.c")
			out := run("./pan", "-m100000")
			found := errorCount.FindStringSubmatch(out)
			switch {
			case found == nil || strings.Contains(out, "max search depth too small") || strings.Contains(out, "out of memory"):
				t.Fatalf("no verdict:\n%s", out)
			case c.assertion == "" && found[1] != "0":
				t.Errorf("violated:\n%s", out)
			case c.assertion != "" && (found[1] == "0" || !strings.Contains(out, c.assertion)):
				t.Errorf("does not violate %s:\n%s", c.assertion, out)
			}
		})
	}
}
