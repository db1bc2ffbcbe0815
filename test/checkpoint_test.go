package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// ask makes a call of the driver's checkpoint API about a process, which has to be good.
func (p *place) ask(pid int, what ...string) {
	p.t.Helper()
	libraries, err := filepath.Abs("../build/lib/sim")
	if err != nil {
		p.t.Fatal(err)
	}
	c := p.command("ask", append([]string{fmt.Sprint(pid)}, what...)...)
	c.Env = append(c.Env, "LD_LIBRARY_PATH="+libraries)
	if out, err := c.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "0 ") {
		p.t.Fatalf("%s of process %d: %s, %v", what, pid, out, err)
	}
}

// A program in an lgpu is checkpointed by the driver's calls. Others can have its memory meanwhile, and its own limit
// keeps its place in the lgpu. It goes on as if nothing had been, while others work beside it.
func TestTenantIsCheckpointed(t *testing.T) {
	for _, contain := range []string{"off", "auto"} {
		t.Run("contain "+contain, func(t *testing.T) {
			p := newPlace(t)
			c := p.start("lgpu", "run", tideShape, "--name", "kept", "--memory", "400MiB", "--compute", "50", "--contain="+contain,
				"--", "tide", linear, control)
			c.until("ready")
			c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
			p.wait("the device's memory is in use", func() bool { return p.onDevice() >= tideAll })
			s := p.ps()[0]
			charged, pid := s.Devices[0].Memory.Used, s.Processes[0].PID
			p.ask(pid, "lock", "10000")
			p.ask(pid, "checkpoint")
			p.wait("the device's memory comes back", func() bool { return p.onDevice() < tideAll })
			if now := p.ps()[0].Devices[0].Memory.Used; now < tideAll || now > charged {
				t.Errorf("%d bytes are charged, and %d were", now, charged)
			}
			// More than there would be beside the other's.
			o := p.start("lgpu", "run", tideShape, "--name", "other", "--contain="+contain, "--", "tide", linear, control)
			o.until("ready")
			const many = 36
			o.expect("hold CUDA_SUCCESS", "hold %d %d", many, tideBlock)
			o.expect("stepped 3", "step 3")
			o.expect("intact after 3 steps", "check")
			o.end()
			p.wait("there is room again", func() bool { return p.onDevice() < tideAll })
			p.ask(pid, "restore")
			p.ask(pid, "unlock")
			c.expect("intact after 0 steps", "check")
			c.expect("stepped 3", "step 3")
			c.expect("intact after 3 steps", "check")
			c.end()
		})
	}
}
