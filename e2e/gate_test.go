package e2e

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Every way to launch work is counted and charged to a capped lgpu, each launch once; work that is only recorded is not; and
// work in flight that waits for work behind the gate does not wait for ever.
func TestEveryLaunchPassesTheGate(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--compute", "50", "--", "gate", "../sim/kernels/control.ptx")
	want := []string{
		"nothing 0 free", "kernel 3 charged", "default-stream 1 charged", "per-thread-stream 1 charged", "ex 1 charged",
		"cooperative 1 charged", "capture 0 free", "failed-capture 0 free", "graph 2 charged", "mutual 4 charged", "destroyed-context 1 charged", "after 1 charged",
	}
	for _, line := range want {
		if before := c.until(line); len(before) != 0 {
			t.Errorf("before %q: %q", line, before)
		}
	}
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d: %s", status, c.stderr.String())
	}
}

// Without a cap nothing is counted: the launch path is the driver's own.
func TestUncappedLaunchesAreNotCounted(t *testing.T) {
	p := newPlace(t)
	for _, cap := range []string{"", "--compute=100"} {
		args := []string{"run", shape, "--memory", "4GiB"}
		if cap != "" {
			args = append(args, cap)
		}
		c := p.start("lgpu", append(args, "--", "gate", "../sim/kernels/control.ptx")...)
		for _, line := range []string{"kernel 0 free", "graph 0 free", "mutual 0 free", "after 0 free"} {
			c.until(line)
		}
		c.status()
	}
}

// A capped process that is killed while it has the device does not keep the next from it.
func TestKilledOwnerOfTheTurn(t *testing.T) {
	p := newPlace(t)
	holder := p.start("lgpu", "run", shape, "--name", "a", "--compute", "50", "--", "spin", "../sim/kernels/control.ptx", "3600000")
	holder.until("running")
	other := p.start("lgpu", "run", shape, "--name", "b", "--compute", "50", "--", "spin", "../sim/kernels/control.ptx", "1")
	p.wait("one that has the device and one that waits for it", func() bool {
		running, waiting := 0, 0
		for _, l := range p.ps() {
			switch l.State {
			case "running", "draining":
				running = l.Processes[0].PID
			case "waiting":
				waiting++
			}
		}
		if running == 0 || waiting != 1 {
			return false
		}
		if err := unix.Kill(running, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if status := other.status(); status != 0 {
		t.Errorf("the next lgpu: exit status %d: %s", status, other.stderr.String())
	}
	holder.status()
}
