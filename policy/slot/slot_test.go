package slot

import (
	"slices"
	"testing"
	"time"

	"github.com/lgpu/lgpu/policy/succession"
)

var (
	gpu   = Device{1}
	other = Device{2}
	begin = time.Unix(1000, 0)
)

// part is all of a device's part that has been told what it may have, and has it.
func part(d Device, size, level uint64) Part {
	return Part{Device: d, Size: size, Level: level, Taken: level, Resident: level}
}

// waits is a tenant that waits for its memory.
func waits(id uint64, parts ...Part) Tenant {
	return Tenant{ID: id, Parts: parts, Waits: true, Since: begin}
}

// room is a state with so much of the first device.
func room(bytes uint64, tenants ...Tenant) State {
	return State{Room: map[Device]uint64{gpu: bytes}, Tenants: tenants}
}

// Who goes before all of another rank does not wait for the end of a turn, but for the least one.
func TestRank(t *testing.T) {
	p := New(Options{Min: time.Second, Max: 10 * time.Second})
	p.length[gpu] = 10 * time.Second
	s := room(100, Tenant{ID: 1, Parts: []Part{part(gpu, 80, 80)}})
	if plan := p.Plan(begin, s); !plan.In[1] {
		t.Fatal("not in, though all fits")
	}
	s.Tenants = append(s.Tenants, waits(2, part(gpu, 80, 0)))
	for _, c := range []struct {
		name  string
		order []Place
		ends  time.Duration
	}{
		{"of the same", []Place{{ID: 1}, {ID: 2}}, 10 * time.Second},
		{"of a higher one", []Place{{ID: 2}, {ID: 1, Rank: 1}}, time.Second},
	} {
		s.Order = c.order
		plan := p.Plan(begin.Add(c.ends-1), s)
		if !plan.In[1] || plan.Next[gpu] != 2 || !plan.Wake.Equal(begin.Add(c.ends)) {
			t.Errorf("%s: %+v", c.name, plan)
		}
	}
	if plan := p.Plan(begin.Add(time.Second), s); plan.In[1] || !plan.Coming[2] {
		t.Errorf("%+v", plan)
	}
}

// One that has had less device time than who waits goes on after its turn.
func TestLeadKeepsTheTurn(t *testing.T) {
	p := New(Options{Min: time.Second, Max: time.Second})
	s := room(100, Tenant{ID: 1, Parts: []Part{part(gpu, 80, 80)}})
	p.Plan(begin, s)
	s.Tenants = append(s.Tenants, waits(2, part(gpu, 80, 0)))
	s.Order = []Place{{ID: 1}, {ID: 2, Lead: 3 * time.Second}}
	if plan := p.Plan(begin.Add(2*time.Second), s); !plan.In[1] || plan.Wake.IsZero() {
		t.Errorf("%+v", plan)
	}
	s.Order = []Place{{ID: 2}, {ID: 1, Lead: time.Millisecond}}
	if plan := p.Plan(begin.Add(2*time.Second), s); plan.In[1] {
		t.Errorf("%+v", plan)
	}
}

// What is loaded ahead takes no more than what is free and what those without work have; who computes loses nothing.
func TestAheadTakesNothingFromWhoComputes(t *testing.T) {
	p := New(Options{Min: time.Minute})
	s := room(100<<20, Tenant{ID: 1, Parts: []Part{part(gpu, 60<<20, 60<<20)}},
		Tenant{ID: 2, Parts: []Part{part(gpu, 20<<20, 20<<20)}, Idle: time.Hour})
	p.Plan(begin, s)
	s.Tenants = append(s.Tenants, waits(3, part(gpu, 70<<20, 0)))
	plan := p.Plan(begin.Add(2*time.Second), s)
	if plan.Level[1][0] != 60<<20 || plan.Level[3][0] != 20<<20 || plan.Next[gpu] != 3 || plan.In[2] {
		t.Errorf("%+v", plan)
	}
	if plan.Level[2][0] >= 20<<20 {
		t.Error("one without work keeps room that is needed")
	}
}

// Where a tenant stops waiting, or another one goes before it, what was loaded ahead for it leaves again and is counted.
func TestWasted(t *testing.T) {
	p := New(Options{})
	a := Tenant{ID: 1, Parts: []Part{part(gpu, 60, 60)}}
	p.Plan(begin, room(100, a))
	plan := p.Plan(begin, room(100, a, waits(2, part(gpu, 60, 0))))
	if plan.Level[2][0] != 40 {
		t.Fatalf("%+v", plan)
	}
	b := Tenant{ID: 2, Parts: []Part{part(gpu, 60, 40)}, Idle: time.Hour}
	plan = p.Plan(begin, room(100, a, b, waits(3, part(gpu, 60, 0))))
	if plan.Next[gpu] != 3 || plan.Level[2][0] != 0 || p.Stats().Wasted != 40 {
		t.Errorf("%+v, %+v", plan, p.Stats())
	}
}

// A tenant on two devices comes in on both or on none, and so do two that each have what the other needs.
func TestAllDevicesOrNone(t *testing.T) {
	p := New(Options{Min: time.Second, Max: time.Second})
	two := func(id uint64, a, b uint64) Tenant { return waits(id, part(gpu, 80, a), part(other, 80, b)) }
	s := State{Room: map[Device]uint64{gpu: 100, other: 100}, Tenants: []Tenant{two(1, 80, 20), two(2, 20, 80)}}
	plan := p.Plan(begin, s)
	if len(plan.In) != 0 || !plan.Coming[1] || plan.Level[2][0] != 20 || plan.Level[2][1] != 20 {
		t.Fatalf("%+v", plan)
	}
	s.Tenants = []Tenant{two(1, 80, 80), two(2, 20, 20)}
	if plan = p.Plan(begin, s); !plan.In[1] || plan.In[2] {
		t.Errorf("%+v", plan)
	}
}

// Who cannot be asked keeps what it has; others are served meanwhile from what is left.
func TestDeaf(t *testing.T) {
	p := New(Options{})
	deaf := Tenant{ID: 1, Parts: []Part{{Device: gpu, Size: 60, Level: 0, Taken: 60, Resident: 60, Moving: true}}, Deaf: true}
	plan := p.Plan(begin, room(100, deaf, waits(2, part(gpu, 70, 0)), waits(3, part(gpu, 30, 0))))
	if plan.Level[1][0] != 0 || plan.Level[2][0] != 0 || plan.Level[3][0] != 30 || !plan.Coming[3] {
		t.Errorf("%+v", plan)
	}
	deaf = Tenant{ID: 1, Parts: []Part{part(gpu, 60, 60)}, Deaf: true} // it could not give its memory, and goes on
	if plan = p.Plan(begin, room(100, deaf, waits(2, part(gpu, 70, 0)))); !plan.In[1] {
		t.Errorf("%+v", plan)
	}
}

// Where there is less room than was given it is taken at once, whatever turns there are, and no more of it.
func TestLessRoom(t *testing.T) {
	p := New(Options{})
	a, b := Tenant{ID: 1, Parts: []Part{part(gpu, 50, 50)}}, Tenant{ID: 2, Parts: []Part{part(gpu, 50, 50)}}
	p.Plan(begin, room(100, a, b))
	plan := p.Plan(begin, room(70, a, b))
	if plan.Level[1][0]+plan.Level[2][0] != 70 || len(plan.In) != 1 {
		t.Errorf("%+v", plan)
	}
}

// Tenants of which the planned order knows nothing have their turns among those that it knows.
func TestWithoutAPlace(t *testing.T) {
	p := New(Options{Min: time.Second, Max: time.Second})
	has := map[uint64]uint64{1: 80, 2: 0, 3: 0}
	var turns []uint64
	for now := begin; len(turns) < 9 && now.Before(begin.Add(time.Minute)); now = now.Add(100 * time.Millisecond) {
		s := State{Room: map[Device]uint64{gpu: 80}, Order: []Place{{ID: 1}, {ID: 2}}} // they always want, and are level
		for id := uint64(1); id <= 3; id++ {
			s.Tenants = append(s.Tenants, waits(id, part(gpu, 80, has[id])))
			s.Tenants[id-1].Since = now
		}
		plan := p.Plan(now, s)
		for id := uint64(1); id <= 3; id++ {
			has[id] = plan.Level[id][0]
			if plan.In[id] && (len(turns) == 0 || turns[len(turns)-1] != id) {
				turns = append(turns, id)
			}
		}
	}
	for id := uint64(1); id <= 3; id++ {
		if n := len(slices.DeleteFunc(slices.Clone(turns), func(o uint64) bool { return o != id })); n < 2 {
			t.Errorf("%d had %d of %v", id, n, turns)
		}
	}
}

// A turn follows the swap that is not hidden, within its bounds and the wish for latency, and small changes are not followed.
func TestTurnLength(t *testing.T) {
	p := New(Options{Min: time.Second, Max: 20 * time.Second})
	for _, c := range []struct {
		latency, took time.Duration
		rivals        int
		want          time.Duration
	}{
		{0, 10 * time.Millisecond, 2, time.Second},
		{0, 4 * time.Second, 2, 12 * time.Second}, // a mean of the last ones
		{0, 1100 * time.Millisecond, 2, 12 * time.Second},
		{0, 100 * time.Second, 2, 20 * time.Second},
		{9 * time.Second, 100 * time.Second, 4, 3 * time.Second},
		{9 * time.Second, 100 * time.Second, 100, time.Second},
	} {
		p.options.Latency = c.latency
		p.measure(gpu, c.took, c.rivals)
		if got := p.Turn(gpu); got < c.want*99/100 || got > c.want*101/100 {
			t.Errorf("%v after %v among %d: %v, not %v", c.latency, c.took, c.rivals, got, c.want)
		}
	}
}

// The cycle has as few neighbours that do not fit together as there can be.
func TestCycle(t *testing.T) {
	for _, sizes := range [][]uint64{{60, 60, 30, 30}, {60, 60, 60, 30}, {60, 60, 60, 60}, {10, 20, 30, 40}, {90, 60, 60, 30, 30, 10, 10}} {
		ids, large := make([]uint64, len(sizes)), 0
		for i, size := range sizes {
			ids[i] = uint64(i)
			if size > 50 {
				large++
			}
		}
		c := arrange(ids, sizes, 100)
		cycle := make([]int, len(c.order))
		for i, id := range c.order {
			cycle[i] = int(id)
		}
		forced := succession.Forced(cycle, func(a, b int) bool { return sizes[a]+sizes[b] <= 100 })
		if least := succession.LeastForcedCycle(len(sizes), large); forced != least || c.least != float64(least)/float64(len(sizes)) {
			t.Errorf("%v: %v has %d, at least %d; %v", sizes, c.order, forced, least, c.least)
		}
	}
}

// Pauses that are long each time have a tenant give way at once, as soon as it has had some work.
func TestPauses(t *testing.T) {
	m := &member{}
	for range 2 {
		for _, idle := range []time.Duration{0, 500 * time.Millisecond, 3 * time.Second} {
			m.pause(idle, time.Second)
		}
	}
	if !m.longPauses() {
		t.Error("long pauses are not noticed")
	}
	for range 3 {
		for _, idle := range []time.Duration{0, 30 * time.Millisecond} {
			m.pause(idle, time.Second)
		}
	}
	m.pause(0, time.Second)
	if m.longPauses() {
		t.Error("short ones are taken for long ones")
	}
}
