package simtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// TestDescriptors runs a program that has as many descriptors as it may have: calls that need one more say so, and neither
// wait for it nor take the device for gone.
func TestDescriptors(t *testing.T) {
	shape := sim.Shape{Devices: 1, Memory: 512 << 20, Units: 8, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 16 << 20}
	libraries := Libraries(t)
	program := filepath.Join(t.TempDir(), "descriptors")
	out, err := exec.Command(CC(), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-pthread", "-I", "../../tenant/abi/include", "-o",
		program, "testdata/descriptors.c", filepath.Join(libraries, "libcuda.so.1")).CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+Serve(t, shape))
	out, err = cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := strings.Join(strings.Fields(string(out)), " ")
	if want := "init 304 export 304 managed 304 thread 304 export 0 managed 0 thread 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
