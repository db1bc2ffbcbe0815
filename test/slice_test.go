package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// long is the longest time slice that a process can give itself, µs.
const long = 1_000_000

// say writes a line to a program's input.
func (t *tenant) say(format string, args ...any) {
	t.t.Helper()
	if _, err := fmt.Fprintf(t.in, format+"\n", args...); err != nil {
		t.t.Fatal(err)
	}
}

// besides starts a guest and a program that keeps the device busy, in so many contexts, and waits until that has short slices.
func (p *place) besides(contexts int) (guest, busy *tenant) {
	p.t.Helper()
	guest = p.start("lgpu", "run", shape, "--name", "guest", "--", "obey", control)
	guest.until("ready")
	busy = p.start("lgpu", "run", shape, "--name", "busy", "--", "sliced", control, fmt.Sprint(contexts))
	busy.until("ready")
	guest.visit(busy, shortSlices(contexts))
	return guest, busy
}

// end has programs end by themselves.
func end(programs ...*tenant) {
	for _, c := range programs {
		c.t.Helper()
		c.in.Close()
		if status := c.status(); status != 0 {
			c.t.Errorf("exit status %d: %s", status, c.stderr.String())
		}
	}
}

// A latency-critical tenant goes on at its full rate beside a kernel that never ends: its gate does not close while it works.
func TestFullRateBesideEndless(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	endless := p.start("lgpu", "run", shape, "--name", "endless", "--", "spin", control, "3600000")
	endless.until("running")
	guest := p.start("lgpu", "run", shape, "--name", "guest", "--priority", "latency", "--", "obey", control)
	guest.until("ready")
	guest.launch(1, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	turns, err := p.daemon().Slices(ctx, &api.SlicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		guest.launch(1, time.Millisecond)
		time.Sleep(5 * time.Millisecond) // it pauses: that is what such a tenant does
	}
	worked := time.Now()
	end(guest)
	ended := 0
	for last := false; !last; {
		batch, err := turns.Recv()
		if err != nil {
			t.Fatalf("its gate has closed %d times before it ended: %v", ended, err)
		}
		for _, turn := range batch.Slices {
			if turn.Path == "/guest" {
				ended++
				last = turn.End.AsTime().After(worked)
			}
		}
	}
	if ended != 1 {
		t.Errorf("its gate has closed %d times", ended)
	}
}

// A tenant that lengthens its own time slice is put back although it is in the middle of it, and an event names it. Nobody
// waits for the device longer than that.
func TestLengthenedSliceIsPutBack(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	guest, busy := p.besides(3)
	busy.say("long %d", long)
	busy.until(fmt.Sprintf("3 contexts: %d to %d us", long, long))
	guest.launch(1, time.Millisecond)
	busy.until(shortSlices(3))
	p.wait("the event", func() bool {
		return strings.Contains(p.must("events", "--kind", "police.slice"), "has set itself a time slice of 1s")
	})
	end(guest, busy)
}

// A guest that is killed in the middle of a kernel, of which the device has run a part, takes nothing from the one that keeps
// the device busy, nor from the next guest.
func TestGuestThatDiesPreempted(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	guest, busy := p.besides(1)
	for range 3 {
		guest.say("launch 1 %d", 3600*long)
		p.goOn(5, "busy") // it is stopped for them
		for _, l := range p.ps() {
			if l.Name != "guest" {
				continue
			}
			if err := unix.Kill(l.Processes[0].PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		guest.status()
		guest = p.start("lgpu", "run", shape, "--name", "guest", "--", "obey", control)
		guest.until("ready")
		guest.launch(3, time.Millisecond)
		p.goOn(5, "busy")
	}
	end(guest, busy)
}

// Of jobs on several devices, those with a smaller weight have shorter time slices than the driver's, and none has longer ones:
// the work of the others would wait for them.
func TestSlicesOfGangs(t *testing.T) {
	p := newPlace(t)
	p.serve("--mount", "off")
	start := func(name, weight string) *tenant {
		c := p.start("lgpu", "run", shape, "--name", name, "--gang", name, "--weight", weight, "--", "sliced", control, "1")
		c.until("ready")
		return c
	}
	heavier, lighter := start("heavier", "200"), start("lighter", "100")
	lighter.until("1 contexts: 1024 to 1024 us")
	p.goOn(20, "heavier", "lighter")
	end(lighter)
	heavier.in.Close()
	for said := range heavier.lines {
		if said != ownSlices(1) {
			t.Errorf("the one with more weight has %s", said)
		}
	}
	end(heavier)
}
