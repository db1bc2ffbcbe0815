package sim_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/driver"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// metered is a device whose own slice is 2 ms.
var metered = sim.Shape{Devices: 2, Memory: 512 << 20, Units: 2, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9,
	Context: 16 << 20, Switch: 200 * time.Microsecond}

// saturating is a program that sets the slice of its context and launches a kernel that never ends.
type saturating struct{ libraries, path string }

func build(t *testing.T) saturating {
	t.Helper()
	p := saturating{simtest.Libraries(t), filepath.Join(t.TempDir(), "timeslice")}
	root := filepath.Join(simtest.Source(), "..", "..")
	out, err := exec.Command(simtest.CC(), "-std=c11", "-D_GNU_SOURCE", "-O1", "-I", filepath.Join(root, "tenant/abi/include"),
		"-o", p.path, filepath.Join(root, "sim/simtest/testdata/timeslice.c"), filepath.Join(p.libraries, "libcuda.so.1"),
		"-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	return p
}

// start returns when the kernel has been launched.
func (p saturating) start(ctx context.Context, t *testing.T, socket, slice string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, p.path, "run", slice, "0")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+p.libraries, wire.Environment+"="+socket)
	cmd.Env = append(cmd.Env, env...)
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	s := bufio.NewScanner(lines)
	for s.Scan() {
		if s.Text() == "running" {
			return cmd
		}
	}
	t.Fatal("the program does not run")
	return nil
}

// end kills a program that may have ended.
func end(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// inventory is that of a hardware process within the test process.
func inventory(t *testing.T, shape sim.Shape) (*gpusim.Inventory, []gpu.Device) {
	t.Helper()
	socket := simtest.Serve(t, shape)
	client, err := wire.Dial(socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	i := gpusim.New(&sim.Hardware{Socket: socket, Client: client})
	t.Cleanup(func() { i.Close() })
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return i, devices
}

// reading is what a meter has told.
type reading struct {
	t     *testing.T
	meter gpu.Meter
	all   []gpu.Turn // that have ended
	going *gpu.Turn  // the one that has not
}

// read reads once, and holds what comes against what came before.
func (r *reading) read() {
	r.t.Helper()
	turns, err := r.meter.Turns([]gpu.Turn{{PID: -1}})
	if err != nil {
		r.t.Fatal(err)
	}
	if turns[0] != (gpu.Turn{PID: -1}) {
		r.t.Fatalf("%+v: what was there is gone", turns)
	}
	before := r.going
	r.going = nil
	for _, turn := range turns[1:] {
		if n := len(r.all); n > 0 && turn.Start < r.all[n-1].End || turn.End < turn.Start {
			r.t.Fatalf("turn %+v follows %+v", turn, r.all[n-1])
		}
		if before != nil && (turn.PID != before.PID || turn.Start != before.Start || turn.End < before.End) {
			r.t.Fatalf("turn %+v went on as %+v", *before, turn)
		}
		before = nil
		if r.going != nil {
			r.t.Fatalf("turn %+v, which has not ended, is followed by %+v", *r.going, turn)
		}
		if turn.Unfinished {
			r.going = &turn
			continue
		}
		r.all = append(r.all, turn)
	}
	if before != nil {
		r.t.Fatalf("turn %+v is gone", *before)
	}
}

// until reads until what has been read is enough.
func (r *reading) until(what string, enough func() bool) {
	r.t.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	limit := time.After(time.Minute)
	for {
		if r.read(); enough() {
			return
		}
		select {
		case <-ticks.C:
		case <-limit:
			r.t.Fatalf("%s does not come; the last of %d turns: %+v", what, len(r.all), r.all[max(len(r.all)-10, 0):])
		}
	}
}

// lengths are the sorted lengths of one process's turns, in microseconds.
func (r *reading) lengths(pid int) []int64 {
	var all []int64
	for _, turn := range r.all {
		if turn.PID == pid {
			all = append(all, (turn.End-turn.Start)/1000)
		}
	}
	slices.Sort(all)
	return all
}

// TestMeter reads turns of programs.
func TestMeter(t *testing.T) {
	program := build(t)
	for _, tc := range []struct {
		slices driver.Slices
		want   [2]int64 // µs
	}{
		{driver.SlicesSet, [2]int64{500, 1200}},
		{driver.SlicesRefuse, [2]int64{2000, 2000}},
		{driver.SlicesIgnore, [2]int64{2000, 2000}},
	} {
		t.Run(tc.slices.String(), func(t *testing.T) { meterOfTwo(t, program, tc.slices, tc.want) })
	}
	t.Run("parts", func(t *testing.T) { meterOfParts(t, program) })
}

// meterOfTwo reads the turns of two programs that saturate a device and ask for slices of 500 and 1200 µs; then one dies.
// Most turns last as long as want says, in device time, which a busy host does not change.
func meterOfTwo(t *testing.T, program saturating, rule driver.Slices, want [2]int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shape := metered
	shape.Slices = rule
	i, devices := inventory(t, shape)
	began := time.Now()
	meter, err := i.Meter(devices[0].UUID)
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	asked := make(chan error, 1)
	stop := make(chan struct{})
	go func() { asked <- ask(i, devices[0].UUID, stop) }()
	r := &reading{t: t, meter: meter}
	r.read()
	if len(r.all) > 0 || r.going != nil {
		t.Errorf("turns of a device without work: %+v, %+v", r.all, r.going)
	}
	programs := []*exec.Cmd{program.start(ctx, t, i.Socket(), "500"), program.start(ctx, t, i.Socket(), "1200")}
	pids := [2]int{programs[0].Process.Pid, programs[1].Process.Pid}
	r.until("40 turns", func() bool { return len(r.all) >= 40 })
	for k, turn := range r.all {
		if turn.PID != pids[k%2] { // until the second came the first had one turn
			t.Fatalf("turn %d is %+v; the programs are %v", k, turn, pids)
		}
	}
	for k, pid := range pids {
		got := r.lengths(pid)
		if middle := got[len(got)/2]; middle < want[k]-25 || middle > want[k]+25 {
			t.Errorf("turns of program %d are %v µs, want %d", k, got, want[k])
		}
	}
	end(programs[0])
	r.until("a turn of who is left", func() bool {
		return r.going != nil && r.going.PID == pids[1] && r.going.End-r.going.Start > int64(5*shape.Slice)
	})
	sum := r.going.End - r.going.Start
	for _, turn := range r.all {
		sum += turn.End - turn.Start
	}
	// The clock of a device that was late may run ahead by one step, of a quarter of a millisecond.
	if passed := time.Since(began) + time.Millisecond; time.Duration(sum) > passed {
		t.Errorf("turns of %v in %v", time.Duration(sum), passed)
	}
	close(stop)
	if err := <-asked; err != nil {
		t.Errorf("asking meanwhile: %v", err)
	}
}

// ask uses an inventory beside its meter.
func ask(i *gpusim.Inventory, uuid gpu.UUID, stop <-chan struct{}) error {
	ticks := time.NewTicker(2 * time.Millisecond)
	defer ticks.Stop()
	for {
		if _, err := i.Facts(uuid); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-ticks.C:
		}
	}
}

// meterOfParts checks that a device has no turns while a program has only some of its units, and that a meter says
// so, whenever that happens. The other device does not mind.
func meterOfParts(t *testing.T, program saturating) {
	i, devices := inventory(t, metered)
	meters := make([]gpu.Meter, len(devices))
	for k, d := range devices {
		var err error
		if meters[k], err = i.Meter(d.UUID); err != nil {
			t.Fatal(err)
		}
		defer meters[k].Close()
	}
	confined := program.start(t.Context(), t, i.Socket(), "-", "LGPU_SIM_UNITS=1")
	if turns, err := meters[0].Turns(nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device of parts has turns: %v, %v", turns, err)
	}
	if _, err := i.Meter(devices[0].UUID); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device of parts has a meter: %v", err)
	}
	if turns, err := meters[1].Turns(nil); err != nil || len(turns) != 0 {
		t.Errorf("the other device: %v, %v", turns, err)
	}
	end(confined)
	gone := func() bool {
		facts, err := i.Facts(devices[0].UUID)
		return err != nil || len(facts.Processes) == 0
	}
	for limit := time.Now().Add(time.Minute); !gone() && time.Now().Before(limit); time.Sleep(time.Millisecond) {
	}
	whole, err := i.Meter(devices[0].UUID)
	if err != nil {
		t.Fatalf("when the program is gone: %v", err)
	}
	defer whole.Close()
	if turns, err := whole.Turns(nil); err != nil || len(turns) != 0 {
		t.Errorf("when the program is gone: %v, %v", turns, err)
	}
}

// TestMeterEnds checks what a meter needs: not the inventory that made it, but a known device and to be open.
func TestMeterEnds(t *testing.T) {
	i, devices := inventory(t, metered)
	if _, err := i.Meter(gpu.UUID{1}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("the meter of an unknown device: %v", err)
	}
	meter, err := i.Meter(devices[1].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := meter.Turns(nil); err != nil {
		t.Errorf("after the inventory's end: %v", err)
	}
	if err := meter.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := meter.Turns(nil); err == nil {
		t.Error("a closed meter answers")
	}
	if _, err := i.Meter(devices[1].UUID); err == nil {
		t.Error("a closed inventory makes meters")
	}
}
