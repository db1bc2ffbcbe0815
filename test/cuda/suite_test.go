// Package cuda runs the conformance suite of the driver API, C programs that know nothing of lgpu, on the software GPU.
// The same suite runs on a real one by run.sh.
package cuda

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

var shape = sim.Shape{Devices: 2, Memory: 1 << 30, Units: 4, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 64 << 20}

// build compiles the suite with extra flags and returns the program.
func build(t *testing.T, libraries string, flags ...string) string {
	t.Helper()
	sources, err := filepath.Glob("suite/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources of the suite: %v", err)
	}
	program := filepath.Join(t.TempDir(), "suite")
	args := append([]string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-I", "../../tenant/abi/include", "-o", program}, flags...)
	args = append(append(args, sources...), filepath.Join(libraries, "libcuda.so.1"), "-pthread")
	out, err := exec.Command(simtest.CC(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("compile the suite: %v\n%s", err, out)
	}
	return program
}

func TestSuite(t *testing.T) { runSuite(t, nil) }

// sanitizers are AddressSanitizer and UBSan.
var sanitizers = []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}

// TestSuiteSanitized is the same with the client libraries and the suite under sanitizers.
func TestSuiteSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles and runs all again under sanitizers")
	}
	runSuite(t, nil, sanitizers...)
}

// TestSuiteCheckpointed is the same, and each program is checkpointed and restored after every call that is checked.
func TestSuiteCheckpointed(t *testing.T) { runCheckpointed(t) }

// TestSuiteCheckpointedSanitized is that under sanitizers.
func TestSuiteCheckpointedSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles and runs all again under sanitizers")
	}
	runCheckpointed(t, sanitizers...)
}

// runCheckpointed fails if fewer checkpoints are made than calls of the suite allow, or refused where nothing is shared.
func runCheckpointed(t *testing.T, flags ...string) {
	restored := 0
	for _, line := range runSuite(t, []string{"SUITE_CHECKPOINT=1"}, flags...) {
		var name string
		var done, refused, busy int
		if n, _ := fmt.Sscanf(line, "# %s restored %d, refused %d, busy %d", &name, &done, &refused, &busy); n < 4 {
			continue
		}
		if restored += done; refused > 0 && name != "ipc_memory:" && name != "vmm_shared_by_descriptor:" {
			t.Errorf("%s %d checkpoints were refused", name, refused)
		}
	}
	if restored < 1500 {
		t.Errorf("%d checkpoints were made", restored)
	}
}

// runSuite runs all cases, and returns what they noted.
func runSuite(t *testing.T, env []string, flags ...string) (notes []string) {
	libraries := simtest.Libraries(t, flags...)
	program := build(t, libraries, flags...)
	socket := simtest.Serve(t, shape)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "../../sim/kernels")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket,
		"ASAN_OPTIONS=detect_leaks=0") // a case ends without giving all back, as programs do
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	var since int // notes of the case
	passed := 0
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		line := s.Text()
		switch {
		case strings.HasPrefix(line, "# "):
			notes = append(notes, line)
		case strings.HasPrefix(line, "not ok "):
			t.Errorf("%s\n%s", line, strings.Join(notes[since:], "\n"))
			since = len(notes)
		case strings.HasPrefix(line, "ok "):
			if strings.Contains(line, "# SKIP") {
				t.Errorf("%s: the software GPU has all that the suite wants (%s)", line, strings.Join(notes[since:], "\n"))
			}
			since = len(notes)
			passed++
		case strings.HasPrefix(line, "1.."):
		default:
			t.Log(line)
		}
	}
	if err != nil && !t.Failed() || passed < 57 {
		t.Errorf("%d cases passed, %v\n%s", passed, err, out)
	}
	return notes
}
