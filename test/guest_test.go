package test

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	document "github.com/lgpu/lgpu/api/state"
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

// A program that dies in the middle of kernels, of which the device runs one at a time, takes nothing from the other.
func TestGuestOfOneThatDies(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	guest := p.start("lgpu", "run", shape, "--name", "guest", "--", "obey", control)
	guest.until("ready")
	for range 3 {
		endless := p.start("lgpu", "run", shape, "--name", "endless", "--", "spin", control, "3600000")
		endless.until("running")
		guest.launch(1, time.Millisecond)
		if _, err := io.WriteString(guest.in, "launch 1 200000\n"); err != nil {
			t.Fatal(err)
		}
		for _, l := range p.ps() {
			if l.Name != "endless" {
				continue
			}
			if err := unix.Kill(l.Processes[0].PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		guest.read("the end of its kernel", func(line string) bool { return strings.HasPrefix(line, "launched ") })
		endless.status()
		guest.launch(3, time.Millisecond)
	}
	guest.in.Close()
	if status := guest.status(); status != 0 {
		t.Errorf("exit status %d: %s", status, guest.stderr.String())
	}
}

// shortSlices says that so many contexts have the slices that the policy gives to those that keep a device busy, and
// ownSlices that they have the driver's.
func shortSlices(contexts int) string { return fmt.Sprintf("%d contexts: 50 to 50 us", contexts) }
func ownSlices(contexts int) string   { return fmt.Sprintf("%d contexts: 2000 to 2000 us", contexts) }

// visit has a guest come now and then, until the program that keeps the device busy says something.
func (t *tenant) visit(busy *tenant, until string) {
	t.t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(5 * time.Millisecond) {
		t.launch(1, 100*time.Microsecond)
		for more := true; more; {
			select {
			case line, ok := <-busy.lines:
				if !ok {
					t.t.Fatalf("the busy one has ended: %s", busy.stderr.String())
				}
				if line == until {
					return
				}
			default:
				more = false
			}
		}
	}
	t.t.Fatalf("the busy one does not say %q", until)
}

// Beside a guest, all of hundreds of contexts of a program that keeps the device busy have short slices, those made later too,
// and none of them is without limits.
func TestManyContextsAreSliced(t *testing.T) {
	const contexts = 110
	p := newPlace(t)
	p.serve("--mount", "off")
	guest := p.start("lgpu", "run", shape, "--name", "guest", "--", "obey", control)
	guest.until("ready")
	busy := p.start("lgpu", "run", shape, "--name", "busy", "--", "sliced", control, fmt.Sprint(contexts))
	busy.until("ready")
	guest.visit(busy, shortSlices(contexts))
	if _, err := io.WriteString(busy.in, "more\n"); err != nil {
		t.Fatal(err)
	}
	guest.visit(busy, shortSlices(2*contexts))
	guest.in.Close()
	busy.in.Close()
	for _, c := range []*tenant{guest, busy} {
		if status := c.status(); status != 0 {
			t.Errorf("exit status %d: %s", status, c.stderr.String())
		}
		if said := c.stderr.String(); said != "" {
			t.Errorf("it says %s", said)
		}
	}
}

// Where the daemon is killed under load, a program has its driver's slice again, and short ones from the next daemon.
func TestSlicesEndWithTheDaemon(t *testing.T) {
	p := newPlace(t)
	guest := p.start("lgpu", "run", shape, "--name", "guest", "--", "obey", control)
	guest.until("ready")
	busy := p.start("lgpu", "run", shape, "--name", "busy", "--", "sliced", control, "1")
	busy.until("ready")
	guest.visit(busy, shortSlices(1))
	daemon := p.daemon().Daemon.GetPid()
	if err := unix.Kill(int(daemon), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	guest.visit(busy, ownSlices(1)) // beside a guest, no daemon would take the short ones back
	p.waitForDaemonAfter(daemon)
	guest.visit(busy, shortSlices(1))
	p.goOn(20, "busy")
	guest.in.Close()
	busy.in.Close()
	for _, c := range []*tenant{guest, busy} {
		if status := c.status(); status != 0 {
			t.Errorf("exit status %d: %s", status, c.stderr.String())
		}
	}
}

// noGuests is why lgpus take turns on the only device of a place; empty: they are guests.
func (p *place) noGuests() string {
	p.t.Helper()
	var doc document.State
	if err := json.Unmarshal([]byte(p.must("ps", "--json")), &doc); err != nil {
		p.t.Fatal(err)
	}
	if len(doc.Devices) != 1 {
		p.t.Fatalf("there are %d devices", len(doc.Devices))
	}
	if why := doc.Devices[0].NoGuests; why != nil {
		return *why
	}
	return ""
}

// works starts a program that launches kernels of a length, µs, all the time.
func (p *place) works(shape, name string, micros int) *tenant {
	p.t.Helper()
	c := p.start("lgpu", "run", shape, "--name", name, "--", "obey", control)
	c.until("ready")
	if _, err := fmt.Fprintf(c.in, "launch 100000000 %d\n", micros); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// goOn waits until each of some lgpus has launched a number of kernels, and used the device.
func (p *place) goOn(kernels uint64, names ...string) {
	p.t.Helper()
	before := map[string]deviceState{}
	for _, l := range p.ps() {
		before[l.Name] = l.Devices[0]
	}
	p.wait("that all go on", func() bool {
		for _, l := range p.ps() {
			now, then := l.Devices[0].Compute, before[l.Name].Compute
			if !slices.Contains(names, l.Name) {
				continue
			}
			if now.Launches < then.Launches+kernels || now.Busy <= then.Busy {
				return false
			}
		}
		return true
	})
}

// On a device whose driver does not do what it is asked for, programs that keep it busy take turns, and the user can
// see why.
func TestNoSlices(t *testing.T) {
	for _, answer := range []string{"refuse", "ignore"} {
		t.Run(answer, func(t *testing.T) {
			p := newPlace(t)
			p.serve("--mount", "off")
			for _, name := range []string{"a", "b"} {
				p.works(shape+",slices="+answer, name, 300)
			}
			p.wait("a word of time slices", func() bool { return strings.Contains(p.noGuests(), "time slices") })
			if top := p.must("top", "--once"); strings.Contains(top, "guests") {
				t.Errorf("lgpu top speaks of guests: %s", top)
			}
			p.goOn(20, "a", "b")
		})
	}
}

// Without guests, lgpu says that this is by choice.
func TestGuestsOff(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off", "--guests", "off")
	for _, name := range []string{"a", "b"} {
		p.works(shape, name, 300)
	}
	if why := p.noGuests(); !strings.Contains(why, "--guests off") {
		t.Errorf("no guests because %q", why)
	}
	p.goOn(20, "a", "b")
}
