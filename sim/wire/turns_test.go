package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// recorder is a management that knows turns. Any other call is a nil method.
type recorder struct {
	Management
	have atomic.Pointer[[]Turn] // by number; nil for a device without turns
	next atomic.Uint64          // what is answered as next beside what it must be
}

func (r *recorder) DeviceTurns(index uint32, since uint64, capacity uint32) ([]Turn, uint32, uint64, CUresult) {
	have := r.have.Load()
	switch {
	case have == nil:
		return nil, 0, 0, CUDA_ERROR_NOT_SUPPORTED
	case index != 1:
		return nil, 0, 0, CUDA_ERROR_INVALID_DEVICE
	}
	end := uint64(len(*have))
	since = min(since, end)
	turns := (*have)[since:min(end, since+uint64(capacity))]
	return turns, uint32(len(turns)), since + uint64(len(turns)) + r.next.Load(), CUDA_SUCCESS
}

// TestTurns asks for turns over a channel.
func TestTurns(t *testing.T) {
	f := serve(t)
	c, err := Dial(f.path, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Turns(1, 0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device without turns: %v", err)
	}
	have := make([]Turn, MaxTurns+100)
	for i := range have {
		have[i] = Turn{PID: uint32(1 + i%3), Start: uint64(10 * i), End: uint64(10*i + 9)}
	}
	f.turns.have.Store(&have)
	if _, _, err := c.Turns(2, 0); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an unknown device: %v", err)
	}
	got, next, err := c.Turns(1, 0)
	if err != nil || next != MaxTurns || !slices.Equal(got, have[:MaxTurns]) {
		t.Fatalf("%d turns, the next is %d, %v", len(got), next, err)
	}
	got, next, err = c.Turns(1, next)
	if err != nil || next != uint64(len(have)) || !slices.Equal(got, have[MaxTurns:]) {
		t.Errorf("%d more turns, the next is %d, %v", len(got), next, err)
	}
	if got, next, err = c.Turns(1, math.MaxUint64); err != nil || len(got) != 0 || next != uint64(len(have)) {
		t.Errorf("%d turns of those to come, the next is %d, %v", len(got), next, err)
	}
	f.turns.next.Add(math.MaxUint64 - 4)
	if _, _, err = c.Turns(1, next-1); !errors.Is(err, errProtocol) {
		t.Errorf("a number that goes back: %v", err)
	}
}

// turnsReply is the part of a reply that getTurns reads.
func turnsReply(count, next uint64, turns ...Turn) []byte {
	e := &encoder{}
	putArray(e, turns, uint64(len(turns)), 1)
	e.u64(count)
	e.u64(next)
	return e.b
}

// TestTurnsChecked reads answers that no hardware gives.
func TestTurnsChecked(t *testing.T) {
	one, two := Turn{PID: 1, Start: 10, End: 20}, Turn{PID: 2, Start: 20, End: 30}
	going := Turn{PID: 2, Start: 20, End: 30, Unfinished: 1}
	for _, tc := range []struct {
		name        string
		count, next uint64
		turns       []Turn
		ok          bool
	}{
		{"none", 0, 5, nil, true},
		{"none, and back", 0, 4, nil, true}, // 5 was beyond all
		{"two", 2, 7, []Turn{one, two}, true},
		{"later ones", 2, 700, []Turn{one, two}, true},
		{"one that goes on", 2, 6, []Turn{one, going}, true},
		{"that alone", 1, 5, []Turn{going}, true},
		{"another number", 1, 7, []Turn{one, two}, false},
		{"earlier ones", 2, 6, []Turn{one, two}, false},
		{"fewer than there are", 2, 1, []Turn{one, two}, false},
		{"out of order", 2, 7, []Turn{two, one}, false},
		{"at once", 2, 7, []Turn{one, {PID: 2, Start: 19, End: 30}}, false},
		{"backwards", 1, 6, []Turn{{PID: 1, Start: 10, End: 9}}, false},
		{"for ever", 1, 6, []Turn{{PID: 1, Start: 10, End: 1 << 63}}, false},
		{"nobody's", 1, 6, []Turn{{Start: 10, End: 20}}, false},
		{"no process's", 1, 6, []Turn{{PID: 1 << 31, Start: 10, End: 20}}, false},
		{"not finished, but not the last", 2, 6, []Turn{{PID: 1, Start: 10, End: 20, Unfinished: 1}, two}, false},
		{"too many", MaxTurns + 1, 5 + MaxTurns + 1, slices.Repeat([]Turn{{PID: 1}}, MaxTurns+1), false},
	} {
		d := &decoder{b: turnsReply(tc.count, tc.next, tc.turns...)}
		a := getTurns(d)
		if d.bad || !slices.Equal(a.turns, tc.turns) {
			t.Fatalf("%s: read as %+v, %v", tc.name, a, d.bad)
		}
		if err := a.check(5); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// FuzzTurns reads answers of any content: what is taken is in order, and asking goes on.
func FuzzTurns(f *testing.F) {
	f.Add(uint64(0), turnsReply(2, 2, Turn{PID: 1, Start: 1, End: 2}, Turn{PID: 2, Start: 2, End: 3}))
	f.Add(uint64(3), turnsReply(1, 3, Turn{PID: 1, Start: 1, End: 2, Unfinished: 1}))
	f.Add(uint64(math.MaxUint64), turnsReply(0, 7))
	f.Add(uint64(1), binary.LittleEndian.AppendUint64(nil, 48|remote))
	f.Add(uint64(1), binary.LittleEndian.AppendUint64(nil, 23))
	f.Fuzz(func(t *testing.T, since uint64, reply []byte) {
		d := &decoder{b: reply}
		a := getTurns(d)
		if d.bad || a.check(since) != nil {
			return
		}
		var end uint64
		for i, turn := range a.turns {
			if turn.Start < end || turn.End < turn.Start || turn.Unfinished != 0 && i != len(a.turns)-1 {
				t.Fatalf("turn %d of %+v", i, a.turns)
			}
			end = turn.End
		}
		if n := len(a.turns); n > 0 && (n > 1 || a.turns[0].Unfinished == 0) && a.next <= since {
			t.Fatalf("after %d turns from %d on, the next is %d", n, since, a.next)
		}
	})
}

// Who is let in has been counted: hardware without tenants may end at any moment.
func TestManagementCounts(t *testing.T) {
	f := serve(t)
	for n := range int32(200) {
		c, err := Dial(f.path, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if have := f.tenants.Load(); have != n+1 {
			t.Fatalf("%d are let in, and %d counted", n+1, have)
		}
	}
}
