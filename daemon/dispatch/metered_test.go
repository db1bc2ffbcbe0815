package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// process is a client of an lgpu, with a PID of its own.
func (r rig) process(lgpu uint64, pid int) *fake {
	f := &fake{lgpu: lgpu, uuid: card, pid: pid, news: make(chan heard, 100)}
	r.attach(f, protocol.Message{Kind: protocol.Gate})
	return f
}

// Each turn counts once, for the lgpu whose process had it, in whatever pieces it becomes known.
func TestCount(t *testing.T) {
	type ran struct{ ran, turns int64 }
	goesOn := func(pid int, start, end int64) gpu.Turn {
		return gpu.Turn{PID: pid, Start: start, End: end, Unfinished: true}
	}
	ended := func(pid int, start, end int64) gpu.Turn { return gpu.Turn{PID: pid, Start: start, End: end} }
	for name, c := range map[string]struct {
		calls        [][]gpu.Turn
		first, other ran
	}{
		"nothing": {calls: [][]gpu.Turn{nil, nil}},
		"one after the other": {
			calls: [][]gpu.Turn{{ended(11, 0, 10), ended(21, 10, 15)}, {ended(11, 15, 35)}},
			first: ran{30, 2}, other: ran{5, 1},
		},
		"a turn that goes on": {
			calls: [][]gpu.Turn{{goesOn(11, 100, 110)}, {goesOn(11, 100, 150)}, nil, {ended(11, 100, 160), goesOn(21, 160, 161)}},
			first: ran{60, 1}, other: ran{1, 1},
		},
		"the same turn once more": {
			calls: [][]gpu.Turn{{ended(11, 100, 160)}, {ended(11, 100, 160)}},
			first: ran{60, 1},
		},
		"several processes of an lgpu": {
			calls: [][]gpu.Turn{{ended(11, 0, 10), ended(12, 10, 30), goesOn(11, 30, 31)}, {ended(11, 30, 40)}},
			first: ran{40, 3},
		},
		"the same start, another process": {
			calls: [][]gpu.Turn{{ended(11, 5, 5), ended(21, 5, 25)}},
			first: ran{0, 1}, other: ran{20, 1},
		},
		"strangers": {
			calls: [][]gpu.Turn{{ended(99, 0, 1000), goesOn(11, 1000, 1010)}, {ended(11, 1000, 1020), goesOn(99, 1020, 5000)}},
			first: ran{20, 1},
		},
		"an end before the start": {
			calls: [][]gpu.Turn{{ended(11, 100, 40)}, {ended(21, 100, 110)}},
			first: ran{0, 1}, other: ran{10, 1},
		},
		"an end that goes back": {
			calls: [][]gpu.Turn{{goesOn(11, 100, 200)}, {goesOn(11, 100, 150)}, {goesOn(11, 100, 220)}},
			first: ran{120, 1},
		},
		"a clock that begins again": {
			calls: [][]gpu.Turn{{ended(11, 5000, 5100)}, {ended(21, 0, 10), ended(11, 10, 30)}},
			first: ran{120, 2}, other: ran{10, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, map[uint64]Params{1: {}, 2: {}})
			r.process(1, 11)
			r.process(1, 12)
			r.process(2, 21)
			r.mu.Lock()
			defer r.mu.Unlock()
			n := r.numbers[card]
			for i, call := range c.calls {
				before := [2]ran{}
				for k, s := range r.seats {
					before[k] = ran{s.ran, s.turns}
				}
				r.count(n, &r.devices[n].metered, call)
				for k, s := range r.seats {
					if s.ran < before[k].ran || s.turns < before[k].turns {
						t.Errorf("call %d: lgpu %d had %+v and has %d ns in %d turns", i, s.id, before[k], s.ran, s.turns)
					}
				}
			}
			for k, want := range []ran{c.first, c.other} {
				if s := r.seats[k]; (ran{s.ran, s.turns}) != want {
					t.Errorf("lgpu %d has had %d ns in %d turns, want %+v", s.id, s.ran, s.turns, want)
				}
			}
		})
	}
}

// Turns on one device are no business of an lgpu's seat on another.
func TestCountOnAnotherDevice(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}})
	r.process(1, 11)
	other := &fake{lgpu: 1, uuid: gpu.UUID{2}, pid: 11, news: make(chan heard, 100)}
	r.attach(other, protocol.Message{Kind: protocol.Gate})
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.numbers[other.uuid]
	r.count(n, &r.devices[n].metered, []gpu.Turn{{PID: 11, Start: 0, End: 10}})
	if r.seats[0].ran != 0 || r.seats[1].ran != 10 {
		t.Errorf("counted %d and %d ns, want 0 and 10", r.seats[0].ran, r.seats[1].ran)
	}
}

// A new meter does not know the turn that is under way: nothing is said of it until the next one.
func TestNewMeter(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}})
	r.process(1, 11)
	known := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.devices[r.numbers[card]].metered.known
	}
	r.Ran(card, []gpu.Turn{{PID: 11, Start: 0, End: 10, Unfinished: true}})
	if !known() {
		t.Error("it is not known whose turn it is")
	}
	r.Metered(card)
	r.Metered(gpu.UUID{99}) // that nobody has asked for
	if r.Ran(card, nil); known() {
		t.Error("whose turn it is was taken from the meter before")
	}
	if r.Ran(card, []gpu.Turn{{PID: 11, Start: 20, End: 30}}); !known() {
		t.Error("it is not known whose turn it is after the next one")
	}
}

// court judges a device, at times of its own. It has the Runner's lock, so that the policy says nothing in between.
type court struct {
	rig
	t    *testing.T
	n    schedule.Device
	time int64
}

const courtPeriod = 10 * time.Millisecond

// newCourt is a court over lgpus of one process each, with the PIDs 1 and so on.
func newCourt(t *testing.T, lgpus int) *court {
	params := map[uint64]Params{}
	for i := range lgpus {
		params[uint64(i+1)] = Params{}
	}
	r := newRig(t, params)
	for i := range lgpus {
		r.seat(uint64(i + 1))
	}
	r.mu.Lock()
	t.Cleanup(r.mu.Unlock)
	c := &court{rig: r, t: t, n: r.numbers[card], time: 1e12}
	c.look(nil, nil) // the first one knows no time before it
	return c
}

// told gives an lgpu a short slice, of which its only client says the one or the other.
func (c *court) told(lgpu int, obeys bool) {
	s := c.seats[lgpu-1]
	s.slice = shortSlice
	o := s.clients[0]
	o.slice, o.sliced, o.refused, o.obeyed, o.settled = shortSlice, obeys, !obeys, obeys, c.time
}

// look lets a period pass, in which some lgpus had work all the time, and some had turns of a length.
func (c *court) look(work []int, turns map[int]time.Duration) Verdict {
	return c.after(courtPeriod, work, turns)
}

func (c *court) after(passed time.Duration, work []int, turns map[int]time.Duration) Verdict {
	c.time += int64(passed)
	for _, lgpu := range work {
		c.busies(lgpu, passed)
	}
	for lgpu, length := range turns {
		s := c.seats[lgpu-1]
		s.ran += 3 * int64(length)
		s.turns += 3
	}
	return c.judge(c.time, c.n, &c.devices[c.n].metered)
}

func (c *court) busies(lgpu int, d time.Duration) {
	f := c.seats[lgpu-1].clients[0].gate.(*fake)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy += uint64(d)
}

// none checks that periods that are all the same bring no verdict.
func (c *court) none(looks int, work []int, turns map[int]time.Duration) {
	c.t.Helper()
	for i := range looks {
		if v := c.look(work, turns); v != (Verdict{}) {
			c.t.Fatalf("look %d: %+v", i, v)
		}
	}
}

// What turns last while another lgpu waits shows whether slices work.
func TestVerdict(t *testing.T) {
	for name, v := range map[string]struct {
		turn time.Duration
		want Verdict
	}{
		"works":   {100 * time.Microsecond, Verdict{Known: true, Works: true, Slice: 50 * time.Microsecond}},
		"ignored": {2 * time.Millisecond, Verdict{Known: true, Turn: 2 * time.Millisecond, Slice: 50 * time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCourt(t, 2)
			turns := map[int]time.Duration{1: v.turn, 2: v.turn}
			c.told(1, true)
			c.none(1, []int{1, 2}, turns) // it has not had it for long
			for range 2 {                 // the second one is as thorough as the first
				c.none(looks-1, []int{1, 2}, turns)
				if have := c.look([]int{1, 2}, turns); have != v.want {
					t.Errorf("%+v, want %+v", have, v.want)
				}
			}
		})
	}
}

// Nothing is said of slices that nobody has, or while nobody else had work all the time, or of single turns.
func TestNoVerdict(t *testing.T) {
	long := map[int]time.Duration{1: 2 * time.Millisecond, 2: 2 * time.Millisecond}
	t.Run("no slice", func(t *testing.T) {
		newCourt(t, 2).none(20*looks, []int{1, 2}, long)
	})
	t.Run("nobody else", func(t *testing.T) {
		c := newCourt(t, 2)
		c.told(1, true)
		c.none(20*looks, []int{1}, long)
	})
	t.Run("pauses", func(t *testing.T) {
		c := newCourt(t, 2)
		c.told(1, true)
		for range 20 * looks {
			c.busies(2, courtPeriod*9/10)
			c.none(1, []int{1}, long)
		}
	})
	t.Run("others have turns", func(t *testing.T) {
		c := newCourt(t, 2)
		c.told(1, true)
		c.none(20*looks, []int{1, 2}, map[int]time.Duration{2: 2 * time.Millisecond})
	})
	t.Run("new slices", func(t *testing.T) {
		c := newCourt(t, 2)
		for range 20 * looks {
			c.told(1, true)
			c.none(1, []int{1, 2}, long)
		}
	})
	t.Run("too soon", func(t *testing.T) {
		c := newCourt(t, 2)
		c.told(1, true)
		c.none(2, nil, nil)
		for i := range 20 * looks {
			v := c.after(time.Duration(least)/10, []int{1, 2}, map[int]time.Duration{1: 2 * time.Millisecond})
			if v.Known && i < 10*(looks-1) {
				t.Fatalf("after %d looks in %v: %+v", i, time.Duration(i)*time.Duration(least)/10, v)
			} else if v.Known {
				return
			}
		}
		t.Error("the whole of many short times brings no verdict")
	})
}

// Where one client keeps the device, or says that it cannot have a slice, and others obey, the driver is not to blame.
func TestVerdictOnHostileClients(t *testing.T) {
	t.Run("long turns", func(t *testing.T) {
		c := newCourt(t, 3)
		c.told(1, true)
		c.told(2, true)
		turns := map[int]time.Duration{1: 4 * time.Millisecond, 2: 100 * time.Microsecond}
		c.none(50*looks, []int{1, 2, 3}, turns)
	})
	t.Run("refusal", func(t *testing.T) {
		c := newCourt(t, 3)
		c.told(1, false)
		c.told(2, true)
		c.none(50*looks, []int{1, 2}, nil)
	})
	t.Run("refusal while others have new slices", func(t *testing.T) {
		c := newCourt(t, 3)
		c.told(1, false)
		c.told(2, true)
		o := c.seats[1].clients[0]
		o.sliced = false // it has been told to have another one, and has not answered
		c.none(50*looks, []int{1, 2}, nil)
	})
	t.Run("one process", func(t *testing.T) {
		c := newCourt(t, 2)
		c.told(1, false)
		s := c.seats[0]
		s.clients = append(s.clients, &client{gate: s.clients[0].gate, slice: shortSlice})
		c.none(50*looks, []int{1, 2}, nil)
	})
}

// Once it is known that the hardware stops programs, one that keeps the device is no guest for a while, and the others
// stay guests.
func TestOneThatStays(t *testing.T) {
	const long, short = 4 * time.Millisecond, 740 * time.Microsecond
	begin := func(t *testing.T, first time.Duration) (*court, *[]uint64) {
		c, told := newCourt(t, 3), new([]uint64)
		c.config.Stayed = func(lgpu uint64, device gpu.UUID, turn, slice time.Duration) {
			if device != card || turn != long || slice != 50*time.Microsecond {
				t.Errorf("%v for %v instead of %v", device, turn, slice)
			}
			*told = append(*told, lgpu)
		}
		c.told(1, true)
		c.told(2, true)
		for range 3 * looks {
			c.look([]int{1, 2, 3}, map[int]time.Duration{1: first, 2: first})
		}
		return c, told
	}
	stays := func(c *court) []bool {
		return []bool{c.seats[0].stays != 0, c.seats[1].stays != 0, c.seats[2].stays != 0}
	}
	t.Run("alone with a slice", func(t *testing.T) {
		c, told := begin(t, short)
		c.seats[1].slice = 0
		turns := map[int]time.Duration{1: long}
		c.none(9*looks, []int{1, 3}, turns)
		if have := stays(c); !slices.Equal(have, []bool{true, false, false}) || !slices.Equal(*told, []uint64{1}) {
			t.Fatalf("who stays: %v, told: %v", have, *told)
		}
		for range 9 * looks {
			if v := c.look([]int{1, 3}, map[int]time.Duration{1: short}); v.Known && !v.Works {
				t.Fatalf("%+v", v)
			}
		}
		if have := stays(c); slices.Contains(have, true) {
			t.Errorf("after it gave way: %v", have)
		}
	})
	t.Run("for a minute", func(t *testing.T) {
		c, told := begin(t, short)
		c.none(9*looks, []int{1, 3}, map[int]time.Duration{1: long})
		c.seats[0].slice = 0
		c.after(time.Duration(leave), nil, nil)
		if have := stays(c); slices.Contains(have, true) || len(*told) != 1 {
			t.Errorf("after a minute: %v, told %v", have, *told)
		}
	})
	t.Run("hardware that has stopped nobody", func(t *testing.T) {
		c, told := begin(t, 20*time.Microsecond) // turns that ended by themselves
		for i := range 9 * looks {
			if v := c.look([]int{1, 3}, map[int]time.Duration{1: long}); v.Known && !v.Works {
				return
			} else if i == 9*looks-1 {
				t.Errorf("no verdict; who stays: %v, told %v", stays(c), *told)
			}
		}
	})
}

// Where all that are to have short slices say for a while that they cannot, that is the driver.
func TestRefused(t *testing.T) {
	c := newCourt(t, 3)
	c.told(1, false)
	c.told(2, false)
	c.none(1, []int{1, 2}, nil) // it may be on its way
	if v := c.look([]int{1, 2}, nil); v != (Verdict{Known: true, Refused: true}) {
		t.Errorf("%+v", v)
	}
}

// What a client says of its slice: a driver that takes what is set, and ignores it, is one that refuses.
func TestSaysOfSlice(t *testing.T) {
	for name, c := range map[string]struct {
		says []protocol.Message
		want client
	}{
		"has it":            {[]protocol.Message{{Value: shortSlice}}, client{sliced: true, obeyed: true}},
		"refused":           {[]protocol.Message{{Flags: protocol.FlagRefused}}, client{refused: true}},
		"ignored":           {[]protocol.Message{{Value: 2000}}, client{refused: true}},
		"has it in the end": {[]protocol.Message{{Value: 2000}, {Value: shortSlice}}, client{sliced: true, obeyed: true}},
		"no context":        {[]protocol.Message{{}}, client{}},
		"lengthened":        {[]protocol.Message{{Value: shortSlice}, {Value: 9000}}, client{obeyed: true}},
		"lost":              {[]protocol.Message{{Value: shortSlice}, {Flags: protocol.FlagRefused}}, client{refused: true, obeyed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, map[uint64]Params{1: {}})
			f := r.seat(1)
			r.mu.Lock()
			o := r.clients[f]
			o.slice = shortSlice
			r.mu.Unlock()
			for _, m := range c.says {
				r.sliced(f, m)
			}
			r.mu.Lock()
			if o.sliced != c.want.sliced || o.refused != c.want.refused || o.obeyed != c.want.obeyed {
				t.Errorf("sliced %v, refused %v, obeyed %v; want %+v", o.sliced, o.refused, o.obeyed, c.want)
			}
			before := o.settled
			r.mu.Unlock()
			r.sliced(f, c.says[len(c.says)-1]) // to repeat it does not put off the judgement
			if r.mu.Lock(); name != "lengthened" && o.settled != before {
				t.Error("what is said again counts from now on")
			}
			r.mu.Unlock()
		})
	}
}

// Whoever meters a device hears when a second lgpu comes, and when lgpus that are there become guests.
func TestShared(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}, 2: {}})
	calls := 0
	r.config.Shared = func(device gpu.UUID) {
		if device != card {
			t.Errorf("device %s is shared", device)
		}
		calls++
	}
	set := func(preempt bool) {
		if err := r.SetDevice(card, false, schedule.Options{Preempt: preempt}); err != nil {
			t.Fatal(err)
		}
	}
	step := func(what string, most int, shared bool) {
		t.Helper()
		if calls != most || r.Shared(card) != shared {
			t.Errorf("%s: %d calls, shared %v; want %d and %v", what, calls, r.Shared(card), most, shared)
		}
		calls = 0
	}
	step("an unknown device", 0, false)
	set(true)
	step("nobody is there", 0, false)
	r.process(1, 11)
	r.process(1, 12)
	step("one lgpu", 0, false)
	b := r.process(2, 21)
	step("another one", 1, true)
	b2 := r.process(2, 22)
	step("another process", 0, true)
	r.gone(b)
	step("without that", 0, true)
	r.gone(b2)
	step("without the lgpu", 0, false)
	r.process(2, 21)
	step("again", 1, true)
	set(false)
	step("without guests", 0, false)
	set(true)
	step("with guests", 1, true)
	r.Remove(2)
	step("after the end of one", 0, false)
}

// What is said of devices that are not known, or where lgpus take turns, has no effect.
func TestUnknownDevices(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}})
	unknown := gpu.UUID{9}
	r.Utilised(unknown, 50)
	if v := r.Ran(unknown, []gpu.Turn{{PID: 1, End: 10}}); v != (Verdict{}) || r.Shared(unknown) {
		t.Errorf("%+v", v)
	}
	r.process(1, 11)
	r.Utilised(card, 50)
	if v := r.Ran(card, []gpu.Turn{{PID: 11, End: 10}}); v != (Verdict{}) {
		t.Errorf("where lgpus take turns: %+v", v)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.numbers[unknown]; known {
		t.Error("the device is known now")
	}
	if at := r.devices[r.numbers[card]].metered.at; at != 0 {
		t.Error("where lgpus take turns, slices are judged")
	}
}
