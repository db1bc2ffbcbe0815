package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// held starts a program in an lgpu of its own that holds memory which stays on its device.
func (p *place) held(name string, options ...string) *tenant {
	p.t.Helper()
	return p.holding(name, tideCount, tideBlock, options...)
}

// holding starts one that holds so many allocations of so many bytes.
func (p *place) holding(name string, count, block int, options ...string) *tenant {
	p.t.Helper()
	args := append([]string{"run", tideShape, "--name", name}, options...)
	c := p.start("lgpu", append(args, "--", "tide", linear, control)...)
	c.until("ready")
	c.expect("hold CUDA_SUCCESS", "hold %d %d", count, block)
	return c
}

// inState waits until an lgpu is in a state.
func (p *place) inState(path string, want api.State) {
	p.t.Helper()
	p.wait(fmt.Sprintf("%s becomes %s", path, want), func() bool {
		n := p.directory(path)
		return n != nil && n.GetState() == want
	})
}

// onDeviceAgain lets a program work on after it was away.
func (t *tenant) onDeviceAgain() {
	t.t.Helper()
	t.expect("intact after 0 steps", "check")
	t.expect("stepped 3", "step 3")
	t.expect("intact after 3 steps", "check")
	t.end()
}

// leadsOut is what a process has open that leads to another.
func leadsOut(t *testing.T, pid int) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); strings.HasPrefix(link, "socket:") {
			all = append(all, link)
		}
	}
	return all
}

// A program's devices are released wholly: nothing of it is left there, and nothing leads out of it. Others can have the
// memory meanwhile. It comes back as it was.
func TestRelease(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--contain=auto"}, {"--contain=off", "--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			p := newPlace(t)
			c := p.held("kept", append(options, "--memory", "400MiB", "--compute", "50")...)
			pid := p.ps()[0].Processes[0].PID
			out := p.must("suspend", "--release", "/kept")
			for _, want := range []string{"suspended /kept: the devices are released", "gated", "evicted", "parked", "saved", "total"} {
				if !strings.Contains(out, want) {
					t.Errorf("lgpu suspend says %q; want %q", out, want)
				}
			}
			p.inState("/kept", api.State_RELEASED)
			p.wait("the device's memory comes back", func() bool { return p.onDevice() < 16<<20 })
			if len(options) == 1 { // it looks for the daemon now and then
				p.wait("nothing leads out of it", func() bool { return len(leadsOut(t, pid)) == 0 })
			}
			if out := p.must("suspend", "--release", "/kept"); !strings.Contains(out, "released already") {
				t.Errorf("once more: %q", out)
			}
			// More than there would be beside the other's.
			o := p.start("lgpu", "run", tideShape, "--name", "other", "--contain=off", "--", "tide", linear, control)
			o.until("ready")
			const many = 36
			o.expect("hold CUDA_SUCCESS", "hold %d %d", many, tideBlock)
			o.expect("stepped 3", "step 3")
			if len(options) == 1 { // else the memory comes back later, in turns
				p.refused(1, "the device has no room for its memory", "resume", "/kept")
			}
			p.inState("/kept", api.State_RELEASED)
			o.expect("intact after 3 steps", "check")
			o.end()
			var doc struct{ Results []released }
			if err := json.Unmarshal([]byte(p.must("resume", "--json", "/kept")), &doc); err != nil || len(doc.Results) == 0 {
				t.Errorf("lgpu resume --json: %v, %+v", err, doc)
			}
			c.onDeviceAgain()
		})
	}
}

// released is a result of lgpu suspend --release.
type released struct {
	Path, State string
	Processes   int
	Phases      []struct {
		Phase   string
		Seconds float64
	}
}

// A program that does not answer in time is not released: it goes on when it can. So does one whose daemon ends meanwhile.
func TestReleaseBrokenOff(t *testing.T) {
	p := newPlace(t)
	c := p.held("kept", "--contain=off")
	pid := p.ps()[0].Processes[0].PID
	p.refused(2, "--release is for lgpus", "suspend", "--release", "/")
	unix.Kill(pid, unix.SIGSTOP)
	p.refused(1, "not within", "suspend", "--release", "--timeout", "300ms", "/kept")
	unix.Kill(pid, unix.SIGCONT)
	c.expect("intact after 0 steps", "check")
	p.wait("what was begun is turned back", func() bool {
		return p.command("lgpu", "suspend", "--release", "/kept").Run() == nil
	})
	p.must("resume", "/kept")
	c.expect("intact after 0 steps", "check")
	unix.Kill(pid, unix.SIGSTOP)
	release := p.start("lgpu", "suspend", "--release", "/kept")
	p.wait("the release begins", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.dir, "released.json"))
		return strings.Contains(string(text), `"moving":true`)
	})
	daemon := p.daemon().Daemon.GetPid()
	unix.Kill(int(daemon), unix.SIGKILL)
	unix.Kill(pid, unix.SIGCONT)
	if s := release.status(); s != 1 {
		t.Errorf("status %d of a release whose daemon ends: %s", s, release.stderr.String())
	}
	p.waitForDaemonAfter(daemon)
	p.wait("the next daemon brings it back", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.dir, "released.json"))
		return !strings.Contains(string(text), "lgpu")
	})
	c.onDeviceAgain()
	p.refused(2, "kept", "suspend", "--release", "/kept")
}

// A daemon that ends, and its helper that is killed, lose nothing: the next daemon knows what is released.
func TestReleaseOutlivesTheDaemon(t *testing.T) {
	p := newPlace(t)
	c := p.held("kept", "--contain=off")
	p.must("suspend", "--release", "/kept")
	pid := p.daemon().Daemon.GetPid()
	unix.Kill(int(pid), unix.SIGKILL)
	p.waitForDaemonAfter(pid)
	p.inState("/kept", api.State_RELEASED)
	p.must("resume", "/kept")
	c.expect("intact after 0 steps", "check")
	p.must("suspend", "--release", "/kept")
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(p.daemon().Daemon.GetPid()), "-f", "checkpoint-helper").Output()
	var helper int
	if _, scanned := fmt.Sscan(string(out), &helper); err != nil || scanned != nil {
		t.Fatalf("no helper: %v, %v", err, scanned)
	}
	unix.Kill(helper, unix.SIGKILL)
	p.must("resume", "/kept")
	c.onDeviceAgain()
}

// A released program that is killed is gone, and what it was charged for is given back.
func TestReleasedKilled(t *testing.T) {
	p := newPlace(t)
	c := p.held("kept", "--contain=off")
	pid := p.ps()[0].Processes[0].PID
	p.must("suspend", "--release", "/kept")
	unix.Kill(pid, unix.SIGKILL)
	if s := c.status(); s == 0 {
		t.Errorf("status %d", s)
	}
	p.wait("its lgpu is gone", func() bool { return p.directory("/kept") == nil })
	p.held("kept", "--contain=off").onDeviceAgain()
}
