package test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// twinShape is two devices of the kind of tideShape's.
const twinShape = "--sim=2x1GiB,sms=4,context=16MiB"

// traveller starts a program on a device, in an lgpu with limits, that holds memory.
func (p *place) traveller(name, device string, options ...string) *tenant {
	p.t.Helper()
	args := append([]string{"run", twinShape, "--device", device, "--name", name}, options...)
	c := p.start("lgpu", append(args, "--", "tide", linear, control)...)
	c.until("ready")
	c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
	return c
}

// usedOf is what the driver says is in use of each device, in bytes.
func (p *place) usedOf() (all []uint64) {
	p.t.Helper()
	for _, d := range p.snapshot().GetDevices() {
		all = append(all, d.GetMemoryUsed())
	}
	return all
}

// isOn waits until an lgpu is on the device with an index, with all that its program holds.
func (p *place) isOn(path string, index int) {
	p.t.Helper()
	p.wait("the memory is where it should be", func() bool {
		return p.usedOf()[index] >= tideAll
	})
	want := p.snapshot().GetDevices()[index].GetUuid()
	if n := p.directory(path); len(n.GetDevices()) != 1 || n.GetDevices()[0].GetUuid() != want || n.GetDevices()[0].GetMemoryUsed() < tideAll {
		p.t.Errorf("%s is on %v; want %s", path, n.GetDevices(), want)
	}
}

// A program moves to another device while it runs, with the limits of its lgpu, and back. It notices nothing.
func TestMigrate(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--contain=auto"}, {"--contain=off", "--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			p := newPlace(t)
			c := p.traveller("kept", "0", append(options, "--memory", "400MiB", "--compute", "50")...)
			c.expect("stepped 3", "step 3")
			p.isOn("/kept", 0)
			p.refused(2, "on these devices already", "migrate", "--device", "0", "kept")
			for _, to := range []int{1, 0, 1} {
				out := p.must("migrate", "--device", []string{"0", "1"}[to], "kept")
				for _, want := range []string{"/kept is on " + p.snapshot().GetDevices()[to].GetUuid()[:12], "away", "back", "saved", "total"} {
					if !strings.Contains(out, want) {
						t.Errorf("lgpu migrate says %q; want %q", out, want)
					}
				}
				c.expect("intact after 3 steps", "check")
				p.isOn("/kept", to)
				if most := p.ps()[0].Devices[0].Memory.Max; most == nil || *most != 400<<20 {
					t.Errorf("its limit is %v there", most)
				}
				if used := p.usedOf(); used[1-to] >= tideAll {
					t.Errorf("the devices have %d bytes in use; it is on device %d", used, to)
				}
				if max := p.must("show", "/kept", "memory.max"); strings.Count(max, "400") != 1 {
					t.Errorf("its memory.max is %q", max)
				}
			}
			var doc struct{ Results []struct{ State string } }
			out := p.must("migrate", "--json", "--device", "0", "kept")
			if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Results) != 1 || doc.Results[0].State != "migrated" {
				t.Errorf("lgpu migrate --json: %v, %s", err, out)
			}
			if events := p.must("events", "--kind", "lgpu.migrated"); !strings.Contains(events, "has device GPU-") {
				t.Errorf("the events are %q", events)
			}
			c.expect("stepped 3", "step 3")
			c.expect("intact after 6 steps", "check")
			c.expect("hold CUDA_ERROR_OUT_OF_MEMORY after 0", "hold %d %d", 1, 300<<20)
			unix.Kill(p.ps()[0].Processes[0].PID, unix.SIGKILL)
			p.wait("its lgpu is gone", func() bool { return p.directory("/kept") == nil })
		})
	}
}

// What cannot be on the other device stays where it is, as it was.
func TestMigrateTurnedBack(t *testing.T) {
	p := newPlace(t)
	p.must("create", "/g")
	c := p.traveller("kept", "0", "--group", "/g", "--contain=off", "--memory", "400MiB")
	o := p.start("lgpu", "run", twinShape, "--device", "1", "--name", "other", "--contain=off", "--", "tide", linear, control)
	o.until("ready")
	o.expect("hold CUDA_SUCCESS", "hold %d %d", 36, tideBlock)
	second := p.snapshot().GetDevices()[1].GetUuid()
	p.refused(1, "of the memory of device "+second[:12], "migrate", "--device", "1", "/g/kept")
	p.isOn0(c)
	o.end()
	p.wait("the other is gone", func() bool { return p.directory("/other") == nil })
	p.must("set", "/g", "memory.max="+second+" 100MiB")
	p.refused(1, "its lgpu has no room for its memory", "migrate", "--device", "1", "/g/kept")
	p.isOn0(c)
	p.must("set", "/g", "memory.max=max")
	for _, bad := range []struct {
		says string
		args []string
	}{
		{"--device is missing", []string{"/g/kept"}},
		{"no such device", []string{"--device", "7", "/g/kept"}},
		{"has 1 devices, and 2 are named", []string{"--device", "0,1", "/g/kept"}},
		{"nobody", []string{"--device", "1", "nobody"}},
		{"it is no lgpu with programs", []string{"--device", "1", "/g"}},
		{"PATH is missing", []string{"--device", "1"}},
	} {
		p.refused(2, bad.says, append([]string{"migrate"}, bad.args...)...)
	}
	unix.Kill(p.ps()[0].Processes[0].PID, unix.SIGSTOP)
	pid := p.ps()[0].Processes[0].PID
	p.refused(1, "not within", "migrate", "--timeout", "300ms", "--device", "1", "/g/kept")
	unix.Kill(pid, unix.SIGCONT)
	p.isOn0(c)
	p.wait("what was begun is turned back", func() bool { return p.command("lgpu", "migrate", "--device", "1", "/g/kept").Run() == nil })
	p.isOn("/g/kept", 1)
	c.onDeviceAgain()
}

// isOn0 checks that a program works on the first device.
func (p *place) isOn0(c *tenant) {
	p.t.Helper()
	p.isOn("/g/kept", 0)
	c.expect("intact after 0 steps", "check")
}

// A released program stays so while its lgpu moves, also if the daemon ends after that, and comes back on the other device.
func TestMigrateReleased(t *testing.T) {
	p := newPlace(t)
	c := p.traveller("kept", "0", "--contain=off", "--memory", "400MiB")
	p.must("suspend", "--release", "kept")
	if out := p.must("migrate", "--device", "1", "kept"); !strings.Contains(out, "stay released") {
		t.Errorf("lgpu migrate says %q", out)
	}
	p.inState("/kept", api.State_RELEASED)
	pid := p.daemon().Daemon.GetPid()
	unix.Kill(int(pid), unix.SIGKILL)
	p.waitForDaemonAfter(pid)
	p.inState("/kept", api.State_RELEASED)
	p.must("resume", "kept")
	p.isOn("/kept", 1)
	c.expect("intact after 0 steps", "check")
	p.must("suspend", "--release", "kept")
	p.must("migrate", "--device", "0", "kept")
	p.must("migrate", "--device", "1", "kept") // back to what it has left
	p.must("resume", "kept")
	p.isOn("/kept", 1)
	c.onDeviceAgain()
}

// A daemon that is killed on the way leaves a program that the next one brings to one device or the other.
func TestMigrateOutlivesTheDaemon(t *testing.T) {
	p := newPlace(t)
	c := p.traveller("kept", "0", "--contain=off", "--memory", "400MiB")
	program := p.ps()[0].Processes[0].PID
	for _, at := range []string{`"moving":true`, "rehoused"} {
		before := p.whichDevice("/kept")
		pid := p.daemon().Daemon.GetPid()
		if at != "rehoused" {
			unix.Kill(program, unix.SIGSTOP)
		}
		m := p.start("lgpu", "migrate", "--device", []string{"1", "0"}[before], "kept")
		p.wait("it is on its way: "+at, func() bool {
			if at == "rehoused" {
				return p.command("lgpu", "events", "--kind", "lgpu.migrated").Run() == nil && p.whichDevice("/kept") != before
			}
			text, _ := os.ReadFile(filepath.Join(p.dir, "released.json"))
			return strings.Contains(string(text), at)
		})
		unix.Kill(int(pid), unix.SIGKILL)
		unix.Kill(program, unix.SIGCONT)
		m.status()
		p.waitForDaemonAfter(pid)
		p.wait("the next daemon brings it back", func() bool {
			text, _ := os.ReadFile(filepath.Join(p.dir, "released.json"))
			return !strings.Contains(string(text), "lgpu")
		})
		c.expect("intact after 0 steps", "check")
		p.isOn("/kept", p.whichDevice("/kept"))
		if most := p.ps()[0].Devices[0].Memory.Max; most == nil || *most != 400<<20 {
			t.Errorf("its limit is %v", most)
		}
	}
	c.onDeviceAgain()
}

// However often daemons are killed while a program moves, at any moment, it is on one device or the other after that, whole.
func TestMigrateKilledOften(t *testing.T) {
	t.Run("", func(t *testing.T) { killedOften(t) })
	t.Run("overcommit", func(t *testing.T) { killedOften(t, "--overcommit") })
}

func killedOften(t *testing.T, options ...string) {
	p := newPlace(t)
	c := p.traveller("kept", "0", append(options, "--contain=off", "--memory", "400MiB")...)
	for i := range rounds(3, 60) {
		pid := p.daemon().Daemon.GetPid()
		on := p.whichDevice("/kept")
		m := p.start("lgpu", "migrate", "--device", []string{"1", "0"}[on], "kept")
		time.Sleep(rand.N(600 * time.Millisecond)) // any moment will do
		unix.Kill(int(pid), unix.SIGKILL)
		m.status()
		p.waitForDaemonAfter(pid)
		p.wait("nothing is on its way any more", func() bool {
			text, _ := os.ReadFile(filepath.Join(p.dir, "released.json"))
			return !strings.Contains(string(text), `"moving":true`)
		})
		if text, _ := os.ReadFile(filepath.Join(p.dir, "released.json")); strings.Contains(string(text), "lgpu") {
			t.Errorf("round %d: it is not back: %s", i, text)
			p.must("resume", "kept")
		}
		c.expect("intact after 0 steps", "check")
		p.isOn("/kept", p.whichDevice("/kept"))
		if d := p.ps()[0].Devices[0]; d.Memory.Max == nil || *d.Memory.Max != 400<<20 || d.Memory.Used > 400<<20 {
			t.Errorf("round %d: its memory is %+v", i, d.Memory)
		}
	}
	c.onDeviceAgain()
}

// whichDevice is the index of the device that an lgpu is on.
func (p *place) whichDevice(path string) (index int) {
	p.t.Helper()
	s := p.snapshot()
	for _, n := range s.GetDirectories() {
		if n.GetPath() == path && n.GetDevices()[0].GetUuid() != s.GetDevices()[0].GetUuid() {
			index = 1
		}
	}
	return index
}
