package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// What the driver says of cuMemAlloc's memory holds for memory that moves.
func TestMovableRules(t *testing.T) {
	k := managed(t, 1)
	native := startClient(t, k.dev.env, k.c.cmd.Path)
	native.do("init 1")
	native.do("ends")
	k.c.do("ends")
	k.c.do("rules")
	k.c.do("stale")
}

// A forked child has nothing of its parent's memory, and does it no harm: while it is away, and while it moves.
func TestMovableForks(t *testing.T) {
	children := 200
	if testing.Short() {
		children = 20
	}
	k := managed(t, 1)
	k.store(0, storeBytes)
	for _, order := range []string{"alloc 3000", "alloc 3", "pooled 7", "pooled 5000", "own 2048"} {
		k.c.do("%s", order)
	}
	k.c.do("fork 1")
	k.suspend(0)
	k.c.do("fork 3")
	k.resume(0)
	k.c.do("check")
	k.c.do("churn 3")
	k.c.order("fork %d", children)
	for moves := 0; ; moves++ {
		select {
		case line := <-k.c.lines:
			if line != fmt.Sprintf("fork %d: 0", children) || moves == 0 {
				t.Errorf("after %d moves the client printed %q", moves, line)
			}
			k.c.do("stop")
			k.c.do("check")
			return
		default:
			k.suspend(0)
			k.resume(0)
		}
	}
}

// What the library has reserved is not the program's to map at or to give back: the driver answers as for memory that no
// cuMemMap has made, and what is allocated later is as it should be.
func TestMovableRanges(t *testing.T) {
	k := managed(t, 1)
	native := startClient(t, k.dev.env, k.c.cmd.Path)
	native.do("init 1")
	native.do("ranges")
	k.c.do("ranges")
	k.store(0, storeBytes)
	for _, order := range []string{"alloc 2048", "alloc 1", "pooled 2048", "own 2048"} {
		k.c.do("%s", order)
	}
	k.suspend(0)
	k.resume(0)
	k.c.do("check")
}

// While one client's memory is away, another one is given the device's, and finds nothing of the first one there.
func TestMovableShowsNothing(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	for _, order := range []string{"alloc 40000", "pooled 40000", "own 40960"} {
		k.c.do("%s", order)
	}
	if m := k.answered(0, k.send(0, 0, false)); m.Flags != 0 {
		t.Fatalf("the client does not leave: %+v", m)
	}
	other := k.another(1)
	other.do("probe 40960")
	other.cmd.Process.Kill()
	for range other.lines {
	}
	for deadline := time.Now().Add(patience); k.used(0) > 48*mib; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are on the device", k.used(0))
		}
	}
	k.resume(0)
	k.c.do("check")
}

// A stale address of a small allocation, in memory that is still mapped, shows the program's own bytes or none: never those
// of who had the device while the memory was away.
func TestMovableStaleShowsOwn(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.c.do("ghost")
	k.c.do("haunt")
	if m := k.answered(0, k.send(0, 0, false)); m.Flags != 0 {
		t.Fatalf("the client does not leave: %+v", m)
	}
	other := k.another(1)
	other.do("flood 400000")
	other.cmd.Process.Kill()
	for range other.lines {
	}
	k.resume(0)
	k.c.do("haunt")
}

// A context that the daemon has no room for is ended again, with what it took; the program goes on, and may make one later.
func TestMovableContextRefused(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	k.c.do("alloc 3000")
	before := k.used(0)
	k.refuse(mib)
	k.c.order("second")
	k.c.wait("second: 2")
	if used := k.used(0); used != before {
		t.Errorf("%d bytes are on the device, and %d were before", used, before)
	}
	k.c.do("check")
	k.refuse(0)
	k.c.do("second")
	k.suspend(0)
	k.resume(0)
	k.c.do("destroy")
	k.c.do("check")
}

// A new daemon hears what cannot leave, and one that does not answer keeps nobody waiting.
func TestMovableContextSaid(t *testing.T) {
	k := managed(t, 1)
	k.store(0, storeBytes)
	p := k.restart()
	fixed := func() protocol.Message {
		t.Helper()
		for {
			if m, _ := p.read(); m.Kind == protocol.Need && m.Flags&protocol.FlagFixed != 0 {
				return m
			}
		}
	}
	one := fixed()
	if one.ID != 0 || one.Value < 16*mib {
		t.Errorf("after a reconnect: %+v", one)
	}
	k.c.order("second")
	if two := fixed(); two.ID == 0 || two.Value < one.Value+16*mib {
		t.Errorf("with another context: %+v", two)
	}
	k.c.wait("second: 0")
}
