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

// TestUnits runs a program with the environments that confine it to compute units, and looks at what it sees of them.
func TestUnits(t *testing.T) {
	shape := sim.Shape{Devices: 2, Memory: 512 << 20, Units: 8, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 16 << 20}
	libraries := Libraries(t)
	program := filepath.Join(t.TempDir(), "units")
	out, err := exec.Command(CC(), "-std=c11", "-O1", "-Wall", "-Wextra", "-I", "../../tenant/abi/include", "-o", program,
		"testdata/units.c", filepath.Join(libraries, "libcuda.so.1")).CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	for _, tc := range []struct {
		name string
		env  []string
		want string // lines, joined by blanks; the units behind a colon
	}{
		{"all", nil, "count 8 nsmid 8: 0 1 2 3 4 5 6 7"},
		{"a list", []string{"LGPU_SIM_UNITS=0-3:1/2,7"}, "count 3 nsmid 8: 0 2 7"},
		{"of this device", []string{"LGPU_SIM_UNITS=1=0;0=5-6"}, "count 2 nsmid 8: 5 6"},
		{"of another device", []string{"LGPU_SIM_UNITS=1=0"}, "count 8 nsmid 8: 0 1 2 3 4 5 6 7"},
		{"of the device that is seen", []string{"CUDA_VISIBLE_DEVICES=1", "LGPU_SIM_UNITS=1=4"}, "count 1 nsmid 8: 4"},
		{"a percentage", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"}, "count 2 nsmid 8: 0 1"},
		{"a whole percentage", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=87.5"}, "count 7 nsmid 8: 0 1 2 3 4 5 6"},
		{"a small percentage", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0.1"}, "count 1 nsmid 8: 0"},
		{"both", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "LGPU_SIM_UNITS=0=6-7;1=0"}, "count 2 nsmid 8: 6 7"},
		{"none", []string{"LGPU_SIM_UNITS="}, "count 0 launch 701"},
		{"too many", []string{"LGPU_SIM_UNITS=0-8"}, "init 1"},
		{"no list", []string{"LGPU_SIM_UNITS=x"}, "init 1"},
		{"no device", []string{"LGPU_SIM_UNITS=2=0"}, "init 1"},
		{"no percentage", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0"}, "init 1"},
		{"not a number", []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=NaN"}, "init 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := Serve(t, shape) // devices of its own: units of a program that has just ended may not be free yet
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket)
			cmd.Env = append(cmd.Env, tc.env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			got := strings.Join(strings.Fields(string(out)), " ")
			if head, units, ok := strings.Cut(got, " unit "); ok {
				got = head + ": " + strings.ReplaceAll(units, " unit ", " ")
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
