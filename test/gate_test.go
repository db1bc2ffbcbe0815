package test

import (
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// Every way to launch work is counted and charged to a capped lgpu, each launch once; work that is only recorded is
// not; and work in flight that waits for work that the gate keeps back does not wait for ever.
func TestEveryLaunchPassesTheGate(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--compute", "50", "--", "gate", control)
	launches, busy := uint64(0), 0.0
	for _, step := range []struct {
		name     string
		launches uint64
		least    float64 // seconds of device time
	}{
		{"nothing", 0, 0}, {"kernel", 3, 0.06}, {"default-stream", 1, 0.02}, {"per-thread-stream", 1, 0.02}, {"ex", 1, 0.02},
		{"cooperative", 1, 0.02}, {"capture", 0, 0}, {"failed-capture", 0, 0}, {"graph", 2, 0.2}, {"refused", anyNumber, 0},
		{"mutual", 4, 0}, {"destroyed-context", 1, 0.05}, {"after", 1, 0},
	} {
		if before := c.until(step.name); len(before) != 0 {
			t.Errorf("before %q: %q", step.name, before)
		}
		compute := p.ps()[0].Devices[0].Compute
		counted, charged := compute.Launches-launches, compute.Busy-busy
		launches, busy = compute.Launches, compute.Busy
		if counted != step.launches && step.launches != anyNumber {
			t.Errorf("%s: %d launches were counted, not %d", step.name, counted, step.launches)
		}
		// Up to an eighth is taken off, for what the launch cost the program; and when work ended between two looks of the gate
		// is an estimate, so far apart as a busy host lets them be.
		if charged < 0.75*step.least || (charged > 0) != (counted > 0) && step.launches != anyNumber {
			t.Errorf("%s: %v s were charged for %d launches that take %v s", step.name, charged, counted, step.least)
		}
		if _, err := io.WriteString(c.in, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d: %s", status, c.stderr.String())
	}
}

// anyNumber: a refused launch may be counted or not.
const anyNumber = math.MaxUint64

// Alone and without a cap nothing is counted: the launch path is the driver's own.
func TestUncappedLaunchesAreNotCounted(t *testing.T) {
	p := newPlace(t)
	for _, cap := range []string{"", "--compute=100"} {
		args := []string{"run", shape, "--memory", "4GiB"}
		if cap != "" {
			args = append(args, cap)
		}
		c := p.start("lgpu", append(args, "--", "gate", control)...)
		for _, step := range []string{"kernel", "graph", "mutual", "after"} {
			for done := false; !done; {
				done = <-c.lines == step
				if compute := p.ps()[0].Devices[0].Compute; compute.Launches != 0 || compute.Busy != 0 {
					t.Errorf("%s: %d launches and %v s were charged", step, compute.Launches, compute.Busy)
				}
				if _, err := io.WriteString(c.in, "go\n"); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.status()
	}
}

// A capped process that is killed while it has the device does not keep the next from it. The next waits for the 100 ms
// that the device may take to drain; where a busy host has hidden them, it is seen another time.
func TestKilledOwnerOfTheTurn(t *testing.T) {
	p := newPlace(t)
	p.serve("--guests", "off", "--mount", "off") // a guest would not wait
	daemon := p.daemon()
	began := time.Now()
	for seen, n := false, 0; !seen; n++ {
		if time.Since(began) > patience {
			t.Fatalf("of %d times nobody was seen to wait for the device that another has", n)
		}
		first, next := fmt.Sprint("a", n), fmt.Sprint("b", n)
		holder := p.start("lgpu", "run", shape, "--name", first, "--compute", "50", "--", "spin", control, "3600000")
		holder.until("running")
		other := p.start("lgpu", "run", shape, "--name", next, "--compute", "50", "--", "spin", control, "1")
		pid := 0
		for waiting := true; waiting && !seen; {
			select {
			case _, waiting = <-other.lines:
			default:
			}
			s, err := daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			states := map[string]api.State{}
			for _, d := range s.GetDirectories() {
				states[d.GetPath()] = d.GetState()
				if c := d.GetClients(); d.GetPath() == "/"+first && len(c) == 1 {
					pid = int(c[0].GetPid())
				}
			}
			has := states["/"+first] == api.State_RUNNING || states["/"+first] == api.State_DRAINING
			seen = has && states["/"+next] == api.State_WAITING
		}
		if pid == 0 {
			t.Fatal("who has the device is no client")
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if status := other.status(); status != 0 {
			t.Errorf("the next lgpu: exit status %d: %s", status, other.stderr.String())
		}
		holder.status()
	}
}
