package e2e

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Every way to launch work is counted and charged to a capped lgpu, each launch once; work that is only recorded is not; and
// work in flight that waits for work behind the gate does not wait for ever.
func TestEveryLaunchPassesTheGate(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--compute", "50", "--", "gate", "../sim/kernels/control.ptx")
	want := []string{
		"nothing 0 free", "kernel 3 charged", "default-stream 1 charged", "per-thread-stream 1 charged", "ex 1 charged",
		"cooperative 1 charged", "capture 0 free", "graph 2 charged", "mutual 4 charged", "destroyed-context 1 charged", "after 1 charged",
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
	s := p.ps()
	if len(s) != 1 || len(s[0].Processes) != 1 {
		t.Fatalf("lgpu ps shows %+v", s)
	}
	other := p.command("lgpu", "run", shape, "--name", "b", "--compute", "50", "--", "spin", "../sim/kernels/control.ptx", "1")
	var out strings.Builder
	other.Stdout, other.Stderr = &out, &out
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("kill", "-9", strconv.Itoa(s[0].Processes[0].PID)).Run(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the next lgpu: %v: %s", err, out.String())
		}
	case <-time.After(patience):
		t.Error("the next lgpu does not get the device")
	}
	holder.status()
}
