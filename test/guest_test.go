package test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Where lgpus are guests, a kernel that never ends keeps nobody waiting.
func TestGuests(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	endless := p.start("lgpu", "run", shape, "--name", "a", "--", "spin", "../sim/kernels/control.ptx", "3600000")
	endless.until("running")
	for _, priority := range []string{"normal", "latency"} {
		other := p.start("lgpu", "run", shape, "--priority", priority, "--", "spin", "../sim/kernels/control.ptx", "1")
		if status := other.status(); status != 0 {
			t.Errorf("priority %s: exit status %d: %s", priority, status, other.stderr.String())
		}
	}
	for _, l := range p.ps() {
		if l.State != "running" && l.State != "draining" {
			t.Errorf("the one with the endless kernel is %s", l.State)
		}
		if err := unix.Kill(l.Processes[0].PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	endless.status()
}
