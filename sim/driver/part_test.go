package driver

import (
	"slices"
	"testing"

	"github.com/lgpu/lgpu/sim/wire"
)

// TestPercentage checks that processes with a part of the units get those that fewest others have, in all their
// contexts, and that the units of a process that has gone are the first to be given again.
func TestPercentage(t *testing.T) {
	b := newBench(t, 1, 256<<20) // 4 units
	join := func(units, share string) *Process {
		t.Helper()
		prog := newProgram()
		p, err := b.d.Connect(wire.Peer{PID: 1, Host: prog})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		given := uint32(0)
		if units != "" {
			given = 2
		}
		call := wire.NewCall(0, 1, prog)
		if r := p.Init(call, 0, given, "", units, share); r != success {
			t.Fatal("init", r)
		}
		for range 2 {
			if _, r := p.CtxCreate(call, 0, 0); r != success {
				t.Fatal("context", r)
			}
		}
		return p
	}
	expect := func(p *Process, want ...int) {
		t.Helper()
		for _, c := range p.contexts {
			if got := c.channel.Units(); !slices.Equal(got, want) {
				t.Errorf("a context has units %v, want %v", got, want)
			}
		}
	}
	all := join("", "")
	expect(all, 0, 1, 2, 3)
	a, named, c := join("", "50"), join("2", ""), join("", "25")
	expect(a, 0, 1)
	expect(named, 2)
	expect(c, 3)
	d := join("", "50")
	expect(d, 0, 1)
	a.Close()
	d.Close()
	expect(join("", "75"), 0, 1, 2)
}
