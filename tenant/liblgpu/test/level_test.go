package test

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// everything is a level that has room for all of a device.
const everything = 1024 * mib

// mostPiece is the most that moves as one of an allocation of at most 8 GiB.
const mostPiece = 128 * mib

// slow starts a client that has 586 MiB, which move in five pieces, over a link on which that takes two thirds of a second.
func slow(t *testing.T) *keeper {
	t.Helper()
	k := managedShape(t, "1x1GiB,sms=4,context=16MiB,link=900MB/s", built.library, "testdata/movable.c")
	k.store(0, storeBytes)
	k.c.do("alloc 600000")
	return k
}

// under waits for what the client says while the move of a Keep is under way.
func (k *keeper) under(serial uint64) protocol.Message {
	k.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case m := <-k.kept:
			if m.Flags&protocol.FlagMoving != 0 && m.ID == serial {
				return m
			}
			if m.Serial >= serial {
				k.t.Fatalf("the move has ended before the client said anything of it: %+v", m)
			}
		case <-deadline:
			k.t.Fatal("the client says nothing of a move that is under way")
		}
	}
}

// ended waits for the answer to a Keep, and returns the least and the most that was resident on the way, as the client said.
func (k *keeper) ended(serial uint64) (m protocol.Message, least, most uint64) {
	k.t.Helper()
	least = everything
	for deadline := time.After(patience); ; {
		select {
		case m := <-k.kept:
			least, most = min(least, m.Value), max(most, m.Value)
			if m.Serial >= serial {
				return m, least, most
			}
		case <-deadline:
			k.t.Fatalf("Keep %d is not answered", serial)
		}
	}
}

// TestLevels: whatever the levels are and in whatever order they come, no more is resident than the level says and no less
// than a piece below it, the client says so truthfully, and in the end all bits are what they were.
func TestLevels(t *testing.T) {
	steps := 300
	if testing.Short() {
		steps = 40
	}
	k := managed(t, 1)
	k.store(0, storeBytes)
	for _, order := range []string{"alloc 300000", "alloc 5000", "alloc 3", "pooled 30000", "pooled 7", "own 22528", "hide 4096",
		"second", "alloc 9000"} {
		k.c.do("%s", order)
	}
	fixed := k.suspend(0).Value
	k.resume(0)
	total := k.answered(0, k.send(0, everything, false)).Value
	random := rand.New(rand.NewPCG(14, 1))
	for i := range steps {
		level := random.Uint64N(total + 32*mib)
		if random.IntN(8) == 0 {
			level = 0
		}
		m := k.answered(0, k.send(0, level, true))
		want := max(min(level, total), fixed)
		if m.Flags != 0 || m.Value > want || want-m.Value > mostPiece || m.Extra != total {
			t.Fatalf("step %d: a level of %d, with %d fixed of %d, was answered with %+v", i, level, fixed, total, m)
		}
		if used := k.used(0); used != m.Value {
			t.Fatalf("step %d: the client says that %d bytes are resident; the device says %d", i, m.Value, used)
		}
		if i%20 == 19 {
			k.resume(0)
			k.c.do("check")
			k.c.do("show")
		}
	}
	k.resume(0)
	k.c.do("check")
}

// TestLevelTurnsRound: a newer level turns a move round while most of it is still to come, both ways.
func TestLevelTurnsRound(t *testing.T) {
	k := slow(t)
	before := k.under(k.send(0, 0, true)).Value
	m, least, _ := k.ended(k.send(0, everything, false))
	if m.Flags != 0 || m.Value < 580*mib || least+3*mostPiece < before {
		t.Errorf("told to come back when %d bytes were resident, the client had %d left, and answered %+v", before, least, m)
	}
	k.c.do("check")
	k.suspend(0)
	before = k.under(k.send(0, everything, true)).Value
	m, _, most := k.ended(k.send(0, 0, true))
	if m.Flags != 0 || m.Value > 48*mib || most > before+3*mostPiece {
		t.Errorf("told to leave when %d bytes were resident, the client came to %d, and answered %+v", before, most, m)
	}
	k.resume(0)
	k.c.do("check")
}

// TestLevelAhead: what has room is loaded while the client stays stopped, and the rest once there is room for it.
func TestLevelAhead(t *testing.T) {
	k := slow(t)
	k.suspend(0)
	k.c.order("check")
	for _, level := range []uint64{200 * mib, 400 * mib, 399 * mib} {
		if m := k.answered(0, k.send(0, level, true)); m.Flags != 0 || m.Value > level || m.Value+mostPiece < level {
			t.Errorf("a level of %d was answered with %+v", level, m)
		}
	}
	select {
	case line := <-k.c.lines:
		t.Fatalf("the client ran with a part of its memory away: %q", line)
	default:
	}
	k.resume(0)
	k.c.wait("check: 0")
}

// TestLevelRises: levels rise while memory comes, and some fall; when all is done the last one holds.
func TestLevelRises(t *testing.T) {
	k := slow(t)
	random := rand.New(rand.NewPCG(14, 2))
	for range 8 {
		level, serial := k.suspend(0).Value, uint64(0)
		for range 30 {
			level += random.Uint64N(24 * mib)
			if random.IntN(10) == 0 {
				level -= min(level, 40*mib)
			}
			serial = k.send(0, level, true)
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // somewhere in the move, or after it
		}
		m := k.answered(0, serial)
		if m.Flags != 0 || m.Value > level || m.Value+mostPiece < level {
			t.Fatalf("a level of %d was answered with %+v", level, m)
		}
		if used := k.used(0); used != m.Value {
			t.Fatalf("the client says that %d bytes are resident; the device says %d", m.Value, used)
		}
	}
	k.resume(0)
	k.c.do("check")
}

// TestLevelReplaced: daemons come and go in the middle of moves.
func TestLevelReplaced(t *testing.T) {
	k := slow(t)
	for i := range 6 {
		level := uint64(i%2) * everything
		k.under(k.send(0, level, true))
		p := k.restart()
		m, fd := p.read()
		unix.Close(fd)
		if m.Kind != protocol.Kept || m.Serial != 0 || m.Flags != 0 || m.Value < 16*mib || m.Value > 640*mib {
			t.Errorf("the client came back with %+v", m)
		}
		k.goOn(p)
		if m := k.answered(0, k.send(0, level, level == 0)); m.Flags != 0 || (level == 0) != (m.Value < 48*mib) {
			t.Errorf("a level of %d was answered with %+v", level, m)
		}
	}
	k.c.do("check")
}

// TestLevelKilled: a client that is killed in the middle of a move leaves nothing, whichever way it was.
func TestLevelKilled(t *testing.T) {
	for i := range 4 {
		k := slow(t)
		if i%2 != 0 {
			k.suspend(0)
		}
		k.under(k.send(0, uint64(i%2)*everything, true))
		k.c.cmd.Process.Kill()
		for range k.c.lines {
		}
		for deadline := time.Now().Add(patience); k.used(0) != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are left on the device", k.used(0))
			}
		}
	}
}

// TestLevelFails: when the store fails in the middle of a move, what the daemon has been told has left does not come back
// before there is a level for it, and nothing is lost.
func TestLevelFails(t *testing.T) {
	k := managedShape(t, "1x1GiB,sms=4,context=16MiB,link=900MB/s", built.library, "testdata/movable.c")
	file := unwritable(t)
	k.store(0, 400*mib)
	k.disk(0, file, storeBytes)
	k.c.do("alloc 600000")
	serial := k.send(0, 0, true)
	told := k.under(serial).Value
	m, least, _ := k.ended(serial)
	if m.Flags != protocol.FlagRefused || m.Extra != protocol.WhyStore || m.Value > told || m.Value != least || m.Value < 200*mib {
		t.Errorf("told of %d bytes, at least of %d, the client answered %+v", told, least, m)
	}
	k.c.order("check")
	k.resume(0)
	k.c.wait("check: 0")
}
