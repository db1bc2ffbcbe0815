package simtest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/driver"
	"github.com/lgpu/lgpu/sim/wire"
)

// slicedShape is a device whose own slice is 2 ms.
var slicedShape = sim.Shape{Devices: 1, Memory: 512 << 20, Units: 2, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 16 << 20}

// run makes a command of testdata/timeslice.c.
type run func(ctx context.Context, socket string, args ...string) *exec.Cmd

// TestTimeslice runs programs that set the slices of their contexts.
func TestTimeslice(t *testing.T) {
	libraries := Libraries(t)
	program := filepath.Join(t.TempDir(), "timeslice")
	out, err := exec.Command(CC(), "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-I", "../../tenant/abi/include", "-o", program,
		"testdata/timeslice.c", filepath.Join(libraries, "libcuda.so.1"), "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	command := func(ctx context.Context, socket string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket)
		return cmd
	}
	t.Run("calls", func(t *testing.T) { timesliceCalls(t, command) })
	t.Run("holds", func(t *testing.T) { timesliceHolds(t, command) })
}

// timesliceCalls looks at what the calls answer.
func timesliceCalls(t *testing.T, command run) {
	// The answers that depend on what the driver does with slices stand for: set, asked for, the slices that then hold.
	const want = `before cuInit: 3
new: %[2]d %[3]d
set 50: %[1]d
now: %[2]d %[4]d
made later: %[2]d %[3]d
set 1000000: %[1]d
now: %[2]d %[5]d
too long: 1
of no context: 201
of no context: 201 0
to nowhere: 1
of one that is gone: 201
the first: %[2]d %[4]d
set 0: %[1]d
now: %[2]d %[3]d
looked up: 0
found: 0
`
	for _, tc := range []struct {
		slices driver.Slices
		want   string
	}{
		{driver.SlicesSet, fmt.Sprintf(want, 0, 0, 2000, 50, 1000000)},
		{driver.SlicesRefuse, fmt.Sprintf(want, 801, 801, 0, 0, 0)},
		{driver.SlicesIgnore, fmt.Sprintf(want, 0, 0, 2000, 2000, 2000)},
	} {
		t.Run(tc.slices.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			shape := slicedShape
			shape.Slices = tc.slices
			out, err := command(ctx, Serve(t, shape), "state").CombinedOutput()
			if err != nil || string(out) != tc.want {
				t.Errorf("%v\n%s\nwant\n%s", err, out, tc.want)
			}
		})
	}
}

// timesliceHolds runs two programs that want the device all the time. One looks at the device's clock: it runs for
// its own slice, and stands still for the other's and two switches. All times are the device's, so that a busy host
// changes nothing.
func timesliceHolds(t *testing.T, command run) {
	const turns = 20
	for _, tc := range []struct {
		name            string
		slices          driver.Slices
		mine, others    string
		turn, otherTurn int // µs
		set             int
	}{
		{"own", driver.SlicesSet, "500", "1200", 500, 1200, 0},
		{"beside the device's own", driver.SlicesSet, "300", "-", 300, 2000, 0},
		{"refused", driver.SlicesRefuse, "500", "1200", 2000, 2000, 801},
		{"ignored", driver.SlicesIgnore, "500", "1200", 2000, 2000, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			shape := slicedShape
			shape.Slices, shape.Switch = tc.slices, 200*time.Microsecond
			socket := Serve(t, shape)
			other := command(ctx, socket, "run", tc.others, "0")
			lines, err := other.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			defer other.Wait()
			defer other.Process.Kill()
			for s := bufio.NewScanner(lines); s.Scan() && s.Text() != "running"; {
			}
			out, err := command(ctx, socket, "run", tc.mine, fmt.Sprint(turns)).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var code, n int
			text := strings.NewReader(string(out))
			if _, err := fmt.Fscanf(text, "set: %d\n", &code); err != nil || code != tc.set {
				t.Errorf("setting the slice answers %d (%v), want %d", code, err, tc.set)
			}
			for n = 1; n < turns; n++ {
				var ran, stood int
				if _, err := fmt.Fscan(text, &ran, &stood); err != nil {
					t.Fatalf("turn %d of\n%s: %v", n, out, err)
				}
				// A look at the clock takes the kernel some 10 µs.
				if pause := tc.otherTurn + 2*200; ran > tc.turn || ran < tc.turn-25 || stood < pause || stood > pause+25 {
					t.Errorf("turn %d: ran for %d µs, stood still for %d; want %d and %d", n, ran, stood, tc.turn, pause)
				}
			}
		})
	}
}
