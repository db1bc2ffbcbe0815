package hw

import (
	"slices"
	"testing"
	"time"
)

// owned opens a channel of an owner.
func owned(d *Device, owner int, slice Time) *Channel {
	c := d.NewChannel()
	c.Owner = owner
	c.SetSlice(time.Duration(slice))
	return c
}

// turnsOf reads all turns that a device remembers.
func turnsOf(t *testing.T, d *Device) []Turn {
	t.Helper()
	turns, next, ok := d.Turns(0, turnsKept+1)
	if !ok {
		t.Error("a device that is not divided has no turns")
	}
	if n := len(turns); n > 0 && turns[n-1].Unfinished && next != uint64(n-1) {
		t.Errorf("%d turns, and the next is %d", n, next)
	}
	return turns
}

// TestTurnsOfSaturating compares the turns of channels that have kernels without an end with what the kernels saw: a
// turn is a stretch in which one ran, from the end of a switch to the kernel's preemption.
func TestTurnsOfSaturating(t *testing.T) {
	const ms = 1000 * us
	const a, b, n = 7, 8, 20
	for _, tc := range []struct {
		name           string
		slices         [2]Time
		cost           Time
		wantA, wantGap Time
	}{
		{"the device's own", [2]Time{0, 0}, switching, 2 * ms, switching},
		{"short beside long", [2]Time{50 * us, 5 * ms}, switching, 50 * us, switching},
		{"long beside short", [2]Time{5 * ms, 50 * us}, 3 * ms, 5 * ms, 3 * ms},
		{"at no cost", [2]Time{ms, ms}, 0, ms, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := machine(t, Config{Units: 1, Workers: 1, Switch: time.Duration(tc.cost)}).Devices[0]
			channels := [2]*Channel{owned(d, a, tc.slices[0]), owned(d, b, tc.slices[1])}
			var programs [2]traced
			var got []Turn
			scene(t, d, func(end func(func())) {
				programs[0].at = func(Time) {
					if len(programs[0].stretches) == n {
						programs[0].at = nil
						end(func() { got = turnsOf(t, d) })
					}
				}
				for i, c := range channels {
					put(t, c, &programs[i], us, func(Time) {})
				}
			})
			for _, c := range channels {
				c.Kill()
			}
			got = slices.DeleteFunc(got, func(t Turn) bool { return t.Owner == 0 }) // the scene's own
			if len(got) < 2*n-1 {
				t.Fatalf("%d turns beside at least %d stretches", len(got), 2*n-1)
			}
			for i, turn := range got {
				stretch := programs[i%2].stretches[i/2]
				if want := (Turn{Owner: a + i%2, Start: stretch[0], End: stretch[1]}); turn != want {
					t.Fatalf("turn %d is %+v, want %+v", i, turn, want)
				}
				if i > 0 && turn.Start-got[i-1].End != tc.wantGap {
					t.Errorf("between turns %d and %d are %v, want %v", i-1, i, turn.Start-got[i-1].End, tc.wantGap)
				}
				if i%2 == 0 && turn.End-turn.Start != tc.wantA {
					t.Errorf("turn %d lasts %v, want %v", i, turn.End-turn.Start, tc.wantA)
				}
			}
		})
	}
}

// TestTurnsAndIdling checks whose the time is in which nobody has work, and what a death ends.
func TestTurnsAndIdling(t *testing.T) {
	const a, b, c = 7, 8, 9
	d := machine(t, Config{Units: 2, Workers: 1, Switch: time.Duration(switching)}).Devices[0]
	ca, cb, second, dying := owned(d, a, 0), owned(d, b, 0), owned(d, a, 0), owned(d, c, 0)
	var before, after []Turn
	scene(t, d, func(end func(func())) {
		put(t, ca, fixed(100), 10*us, func(Time) {})
		put(t, ca, fixed(100), 1000*us, func(Time) {}) // nobody came between
		put(t, cb, fixed(50), 2000*us, func(Time) {})
		put(t, cb, fixed(50), 5700*us, func(Time) {}) // does not begin
		put(t, second, fixed(10), 3000*us, func(Time) {})
		put(t, ca, fixed(10), 4000*us, func(Time) {})
		put(t, dying, fixed(10), 5000*us, func(Time) {})
		put(t, dying, fixed(10), 5500*us, func(Time) {
			dying.Kill()
			cb.Kill() // has no turn
			put(t, ca, fixed(10), 6000*us, func(Time) {
				before = turnsOf(t, d)
				end(func() { after = turnsOf(t, d) })
			})
		})
	})
	want := []Turn{
		{0, 0, 10 * us, false}, // the scene's own
		{a, 10 * us, 2000 * us, false},
		{b, 2000 * us, 3000 * us, false},
		{a, 3000 * us, 4000 * us, false}, // contexts have turns of their own, whoever's they are
		{a, 4000 * us, 5000 * us, false},
		{c, 5000 * us, 5500 * us, false},
		{a, 6000 * us, 6000 * us, true},
	}
	if !slices.Equal(before, want) {
		t.Errorf("turns are %v, want %v", before, want)
	}
	want[6].End, want[6].Unfinished = 6010*us, false
	if want := append(want, Turn{0, 6010 * us, 6010 * us, true}); !slices.Equal(after, want) {
		t.Errorf("later turns are %v, want %v", after, want)
	}
}

// TestTurnsOfIdleDevice checks that a turn goes on while the device has no work at all.
func TestTurnsOfIdleDevice(t *testing.T) {
	const a, b = 7, 8
	d := machine(t, Config{Units: 2, Workers: 1}).Devices[0]
	ended := func(owner int, ready Time) {
		t.Helper()
		await(t, "grid", submit(t, owned(d, owner, 0), &Grid{Program: fixed(100), Blocks: 2, Needs: whole, Ready: ready}))
	}
	ended(a, 0)
	for idle := false; !idle; time.Sleep(time.Millisecond) { // the engine says nothing when it begins to wait
		d.engine.mu.Lock()
		idle = len(d.engine.channels) == 0
		d.engine.mu.Unlock()
	}
	if got, want := turnsOf(t, d), []Turn{{a, 0, 100 * us, true}}; !slices.Equal(got, want) {
		t.Errorf("turns are %v, want %v", got, want)
	}
	ended(b, 1000*us)
	if got := turnsOf(t, d); len(got) != 2 || got[0] != (Turn{a, 0, 1000 * us, false}) || got[1].Owner != b || got[1].Start != 1000*us {
		t.Errorf("turns are %v", got)
	}
}

// TestTurnsOfUnits checks that a device is not divided into turns as long as channels have parts of it.
func TestTurnsOfUnits(t *testing.T) {
	const a, b = 7, 8
	d := machine(t, Config{Units: 2, Workers: 1}).Devices[0]
	whole, part := owned(d, a, 0), d.NewChannelOn([]int{1})
	part.Owner = b
	var got []Turn
	scene(t, d, func(end func(func())) {
		put(t, whole, fixed(100), 10*us, func(Time) {})
		put(t, part, fixed(100), 200*us, func(Time) {})
		put(t, whole, fixed(100), 400*us, func(Time) {
			if turns, next, ok := d.Turns(0, turnsKept); ok || len(turns) > 0 || next != 0 {
				t.Errorf("beside a channel that has one unit there are %v, %d, %v", turns, next, ok)
			}
			part.Kill()
			part.Kill() // again, as a fault and the process's end do
			end(func() { got = turnsOf(t, d) })
		})
	})
	want := []Turn{{0, 0, 10 * us, false}, {a, 10 * us, 200 * us, false}, {a, 400 * us, 500 * us, false}, {0, 500 * us, 500 * us, true}}
	if !slices.Equal(got, want) {
		t.Errorf("turns are %v, want %v", got, want)
	}
	if other := d.NewChannelOn([]int{1, 0}); other.confined() {
		t.Error("a channel that has all units is confined")
	}
	if _, _, ok := d.Turns(0, 1); !ok {
		t.Error("a device of whole channels has no turns")
	}
}

// TestTurnsAreForgotten reads the turns of a device that has had more than it remembers, from several numbers on and in
// parts.
func TestTurnsAreForgotten(t *testing.T) {
	const all = turnsKept + 3000
	d := machine(t, Config{Units: 1, Workers: 1}).Devices[0]
	channels := [2]*Channel{owned(d, 7, 20*us), owned(d, 8, 20*us)}
	var got, late, tail []Turn
	var numbers [4]uint64
	scene(t, d, func(end func(func())) {
		first := &traced{}
		first.at = func(Time) {
			if len(first.stretches) == all/2 {
				first.at = nil
				end(func() {
					got, numbers[0], _ = d.Turns(0, turnsKept+1)
					late, numbers[1], _ = d.Turns(numbers[0]-5, 3)
					tail, numbers[2], _ = d.Turns(numbers[1], 100)
					_, numbers[3], _ = d.Turns(1<<64-1, 100)
				})
			}
		}
		put(t, channels[0], first, us, func(Time) {})
		put(t, channels[1], endless{}, us, func(Time) {})
	})
	for _, c := range channels {
		c.Kill()
	}
	if len(got) != turnsKept+1 || !got[turnsKept].Unfinished || numbers[0] < all {
		t.Fatalf("%d turns, the next is %d", len(got), numbers[0])
	}
	for i, turn := range got[:turnsKept-1] {
		if want := got[i+1].Start; turn.End != want || turn.Owner == got[i+1].Owner || turn.Unfinished {
			t.Fatalf("turn %d is %+v, before %+v", i, turn, got[i+1])
		}
	}
	if !slices.Equal(late, got[turnsKept-5:turnsKept-2]) || numbers[1] != numbers[0]-2 {
		t.Errorf("the fifth last and two more are %v, the next is %d of %d", late, numbers[1], numbers[0])
	}
	if !slices.Equal(tail, got[turnsKept-2:]) || numbers[2] != numbers[0] {
		t.Errorf("the rest are %v, the next is %d of %d", tail, numbers[2], numbers[0])
	}
	if numbers[3] != numbers[0]+1 {
		t.Errorf("turn %d is under way, and the first after it is %d", numbers[0], numbers[3])
	}
}

// TestTurnLog checks that what was told of a turn holds, whatever the engine does to a clock that is ahead of it.
func TestTurnLog(t *testing.T) {
	d := machine(t, Config{Units: 1}).Devices[0]
	a, b, dead := owned(d, 7, 0), owned(d, 8, 0), owned(d, 9, 0)
	dead.Kill()
	var l turnLog
	is := func(what string, since uint64, room int, now Time, next uint64, want ...Turn) {
		t.Helper()
		if got, n := l.read(since, room, now); !slices.Equal(got, want) || n != next {
			t.Errorf("%s: %v, the next is %d; want %v, %d", what, got, n, want, next)
		}
	}
	is("nothing", 0, 10, 5, 0)
	is("from the next on, of nothing", 1<<64-1, 10, 5, 0)
	l.note(nil, 10)
	is("nobody", 0, 10, 15, 0)
	l.note(a, 20)
	is("the first", 0, 10, 100, 0, Turn{7, 20, 100, true})
	is("from the next on", 1<<64-1, 10, 100, 1)
	is("from the next on, again", 1, 10, 100, 1)
	is("no room", 0, 0, 100, 0)
	is("less than no room", 0, -1, 100, 0)
	l.note(a, 110)
	l.note(b, 90) // the engine is behind the clock that was read
	is("the second", 0, 10, 95, 1, Turn{7, 20, 100, false}, Turn{8, 100, 100, true})
	l.note(nil, 98)
	is("a switch", 0, 10, 99, 2, Turn{7, 20, 100, false}, Turn{8, 100, 100, false})
	l.note(a, 120)
	l.gone(b, 125)
	is("another's death", 2, 10, 130, 2, Turn{7, 120, 130, true})
	l.gone(a, 128)
	is("a death", 2, 10, 135, 3, Turn{7, 120, 130, false})
	l.note(dead, 140)
	is("picked and killed", 2, 10, 150, 3, Turn{7, 120, 130, false})
}

// TestTurnsWhileTheyRun reads turns of a device that follows the wall clock, while two channels saturate it.
func TestTurnsWhileTheyRun(t *testing.T) {
	m, err := NewMachine(Config{Memory: 64 << 20, Units: 1, Workers: 1, Switch: 20 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d := m.Devices[0]
	for owner := range 2 {
		c := owned(d, owner, 100*us)
		defer c.Kill()
		put(t, c, endless{}, 0, func(Time) {})
	}
	began := d.Clock.Now()
	_, next, _ := d.Turns(1<<64-1, 0)
	var last Turn // that was read
	var sum Time
	for finished := 0; finished < 200; {
		var turns []Turn
		turns, next, _ = d.Turns(next, 16)
		for _, turn := range turns {
			switch {
			case last.Unfinished && (turn.Start != last.Start || turn.Owner != last.Owner || turn.End < last.End):
				t.Fatalf("turn %+v went on as %+v", last, turn)
			case !last.Unfinished && (turn.Start < last.End || turn.Start < began):
				t.Fatalf("turn %+v follows %+v", turn, last)
			}
			if last = turn; !turn.Unfinished {
				finished++
				sum += turn.End - turn.Start
			}
		}
		d.Clock.Wait(d.Clock.Now() + 150*us)
	}
	if now := d.Clock.Now(); sum > now-began {
		t.Errorf("turns of %v in %v", time.Duration(sum), time.Duration(now-began))
	}
}
