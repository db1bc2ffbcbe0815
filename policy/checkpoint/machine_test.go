package checkpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Unix(1000, 0)

// told is orders in words: "100+gated" for a step towards an image, "-" for one away from it, "!" for one to be broken off.
func told(orders []Order) string {
	var words []string
	for _, o := range orders {
		sign := "+"
		switch {
		case o.Stop:
			sign = "!"
		case o.To < o.From:
			sign = "-"
		}
		words = append(words, fmt.Sprintf("%d%s%s", o.Process, sign, o.To))
	}
	return strings.Join(words, " ")
}

func wants(t *testing.T, orders []Order, want string) {
	t.Helper()
	if got := told(orders); got != want {
		t.Fatalf("ordered %q, want %q", got, want)
	}
}

func ends(t *testing.T, m *Machine, cause error, stuck ...int) {
	t.Helper()
	o, ok := m.Outcome()
	if !ok || !errors.Is(o.Err, cause) || !slices.Equal(o.Stuck, stuck) {
		t.Fatalf("outcome %+v (%v), want %v and %v stuck", o, ok, cause, stuck)
	}
}

func TestTogether(t *testing.T) {
	m := New([]int{1, 2}, Running, Evicted, Options{})
	wants(t, m.Start(start), "1+gated 2+gated")
	wants(t, m.Done(2, start), "")
	if _, ok := m.Outcome(); ok {
		t.Fatal("it is over while a process is on its way")
	}
	wants(t, m.Done(1, start), "1+evicted 2+evicted")
	wants(t, m.Done(1, start), "")
	wants(t, m.Done(1, start), "") // said twice
	wants(t, m.Done(2, start), "")
	ends(t, m, nil)
	wants(t, m.Cancel(start), "")
	ends(t, m, nil)
}

// TestFailure fails each stage of each move: all go back, the farthest first.
func TestFailure(t *testing.T) {
	broken := errors.New("broken")
	for _, way := range [][2]Stage{{Running, Dumped}, {Dumped, Running}, {Saved, Running}} {
		for failing := range distance(way[0], way[1]) {
			m := New([]int{1, 2}, way[0], way[1], Options{})
			orders := m.Start(start)
			for range failing {
				m.Done(1, start)
				orders = m.Done(2, start)
			}
			from := orders[0].From
			m.Done(1, start)
			orders = m.Failed(2, broken, start)
			if len(orders) != 1 || orders[0].Process != 1 || orders[0].To != from {
				t.Fatalf("%v, stage %v: ordered %+v", way, from, orders)
			}
			for len(orders) > 0 {
				o := orders[0]
				if distance(o.To, way[0]) >= distance(o.From, way[0]) {
					t.Fatalf("%v: %+v is not the way back", way, o)
				}
				orders = append(orders[1:], m.Done(o.Process, start)...)
			}
			ends(t, m, broken)
			for id := 1; id <= 2; id++ {
				if s, ok := m.Stage(id); !ok || s != way[0] {
					t.Errorf("%v: process %d is %v", way, id, s)
				}
			}
		}
	}
}

// TestStops: steps under way are broken off when another fails; one may have been done all the same, and is undone.
func TestStops(t *testing.T) {
	m := New([]int{1, 2, 3}, Running, Saved, Options{})
	m.Start(start)
	wants(t, m.Failed(1, errors.New("no"), start), "2!gated 3!gated")
	wants(t, m.Done(2, start), "")
	wants(t, m.Failed(3, errors.New("stopped"), start), "2-running")
	wants(t, m.Done(2, start), "")
	ends(t, m, m.cause)
}

func TestDeadline(t *testing.T) {
	o := Options{Patience: time.Second}
	o.Deadline[Gated] = 2 * time.Second
	m := New([]int{1, 2}, Running, Saved, o)
	m.Start(start)
	m.Done(1, start)
	at, ok := m.Deadline()
	if !ok || at != start.Add(2*time.Second) {
		t.Fatalf("deadline %v (%v)", at, ok)
	}
	wants(t, m.Expire(at.Add(-1)), "")
	wants(t, m.Expire(at), "2!gated")
	at, _ = m.Deadline()
	wants(t, m.Expire(at), "1-running") // 2 does not answer: the other goes on without it
	wants(t, m.Done(1, at), "")
	ends(t, m, ErrDeadline, 2)
	wants(t, m.Done(2, at), "2-running") // at last
	wants(t, m.Done(2, at), "")
	ends(t, m, ErrDeadline)
}

// TestSlowUndo: a step back that takes too long is broken off before it is given up.
func TestSlowUndo(t *testing.T) {
	m := New([]int{1}, Running, Saved, Options{})
	m.Start(start)
	m.Done(1, start)
	m.Cancel(start)
	at, _ := m.Deadline()
	wants(t, m.Failed(1, errors.New("stopped"), at), "1-running")
	at, _ = m.Deadline()
	wants(t, m.Expire(at), "1!running")
	at, _ = m.Deadline()
	wants(t, m.Expire(at), "")
	ends(t, m, ErrCanceled, 1)
}

func TestUndoFails(t *testing.T) {
	m := New([]int{1}, Running, Parked, Options{Retries: 2})
	m.Start(start)
	wants(t, m.Done(1, start), "1+evicted")
	wants(t, m.Cancel(start), "1!evicted")
	wants(t, m.Failed(1, errors.New("stopped"), start), "1-running")
	wants(t, m.Failed(1, errors.New("no"), start), "1-running")
	wants(t, m.Failed(1, errors.New("no"), start), "1-running")
	wants(t, m.Failed(1, errors.New("no"), start), "")
	ends(t, m, ErrCanceled, 1)
}

func TestEnds(t *testing.T) {
	m := New([]int{1, 2}, Running, Saved, Options{})
	m.Start(start)
	m.Done(1, start)
	wants(t, m.Ended(2, start), "1-running")
	wants(t, m.Ended(1, start), "")
	ends(t, m, ErrEnded)
	m = New([]int{1}, Running, Saved, Options{})
	m.Start(start)
	wants(t, m.Ended(1, start), "")
	ends(t, m, ErrEnded)
	m = New([]int{1}, Saved, Dumped, Options{})
	m.Start(start)
	m.Done(1, start)
	wants(t, m.Ended(1, start), "") // it is on disk
	ends(t, m, nil)
	m = New([]int{1, 2}, Parked, Evicted, Options{})
	wants(t, m.Start(start), "1-evicted 2-evicted")
	wants(t, m.Ended(1, start), "") // the other comes back all the same
	wants(t, m.Done(2, start), "")
	ends(t, m, nil)
}

// TestRandom plays programs of which anything can happen at any time, and looks at what must always hold.
func TestRandom(t *testing.T) {
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		ids := []int{1, 2, 3, 4}[:1+r.IntN(4)]
		from, to := Stage(r.IntN(int(stages))), Stage(r.IntN(int(stages)))
		play(t, seed, r, ids, from, to)
	}
}

// play moves processes, with whatever r says happens, until the outcome.
func play(t *testing.T, seed uint64, r *rand.Rand, ids []int, from, to Stage) {
	m := New(ids, from, to, Options{})
	now, under := start, map[int]Order{} // under way
	dead := map[int]bool{}
	take := func(orders []Order) {
		for _, o := range orders {
			if have, busy := under[o.Process]; o.Stop != busy || busy && (have.From != o.From || have.To != o.To) || dead[o.Process] {
				t.Fatalf("seed %d: ordered %+v while %+v is under way", seed, o, have)
			}
			if distance(o.From, o.To) != 1 {
				t.Fatalf("seed %d: %+v is no step", seed, o)
			}
			if !o.Stop {
				under[o.Process] = o
			}
			for _, other := range under { // nobody is two stages away from who begins
				if d := distance(other.From, o.From); !o.Stop && d > 1 && len(m.stuck()) == 0 {
					t.Fatalf("seed %d: %+v beside %+v", seed, o, other)
				}
			}
		}
	}
	take(m.Start(now))
	for steps := 0; ; steps++ {
		if o, ok := m.Outcome(); ok {
			check(t, seed, m, o, dead, from, to)
			return
		}
		if steps > 500 {
			t.Fatalf("seed %d: it does not end", seed)
		}
		id := ids[r.IntN(len(ids))]
		_, busy := under[id]
		switch k := r.IntN(40); {
		case k == 0:
			take(m.Cancel(now))
		case k == 1 && !dead[id] && (from < Dumped && to < Dumped):
			delete(under, id)
			dead[id] = true
			take(m.Ended(id, now))
		case k < 4:
			if at, ok := m.Deadline(); ok {
				now = at
				take(m.Expire(now))
			}
		case k < 8 && busy:
			delete(under, id)
			take(m.Failed(id, errors.New("no"), now))
		case busy:
			delete(under, id)
			take(m.Done(id, now))
		}
	}
}

func (m *Machine) stuck() (ids []int) {
	for _, p := range m.processes {
		if p.stuck {
			ids = append(ids, p.id)
		}
	}
	return ids
}

// check looks at where everybody is in the end.
func check(t *testing.T, seed uint64, m *Machine, o Outcome, dead map[int]bool, from, to Stage) {
	goal := to
	if o.Err != nil {
		goal = from
	} else if len(o.Stuck) > 0 || len(dead) > 0 && from < to {
		t.Errorf("seed %d: a success with %v stuck and %v ended", seed, o.Stuck, dead)
	}
	for _, p := range m.processes {
		if !dead[p.id] && !p.stuck && p.at != goal {
			t.Errorf("seed %d: process %d is %v, and should be %v (%v)", seed, p.id, p.at, goal, o.Err)
		}
	}
}
