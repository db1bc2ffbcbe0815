package slot

import (
	"cmp"
	"slices"
	"time"
)

// giver is a tenant that makes room for another.
type giver struct {
	*tenant
	class class
}

// class says who gives first.
type class uint8

const (
	out   class = iota // it does not compute
	rests              // it has no work
	had                // its turn is over
)

// when says whether a tenant that is in gives room to another one.
type when func(g *planning, t, forWhom *tenant, short []int64) bool

func resting(g *planning, t, _ *tenant, _ []int64) bool { return g.rests(t) }

func always(*planning, *tenant, *tenant, []int64) bool { return true }

// rests reports whether a tenant that is in has no work, for so long that it gives way: at once if it has had some in this
// turn, and its pauses have been long ones lately. Who has had none yet is given time to begin.
func (g *planning) rests(t *tenant) bool {
	idle, least := t.Idle, g.options.Idle
	if in := g.now.Sub(t.since); t.in && in <= idle {
		idle = in
	} else if t.longPauses() {
		least = min(least, brief)
	}
	if t.Idle > 0 {
		g.rouse(g.now.Add(least - idle))
	}
	return idle >= least
}

// over reports whether a tenant's turn is over for another one, and asks for a plan when it may be.
func (g *planning) over(_ *planning, t, forWhom *tenant, short []int64) bool {
	if g.rests(t) {
		return true
	}
	turn := g.options.Min
	if !(t.ranked && forWhom.ranked && forWhom.place.Rank < t.place.Rank) {
		for _, d := range t.dev {
			if short[d] > 0 {
				turn = max(turn, g.Turn(g.devices[d]))
			}
		}
	}
	if ends := t.since.Add(turn); g.now.Before(ends) {
		g.rouse(ends)
		return false
	}
	if t.ranked && forWhom.ranked && before(t.place, forWhom.place) < 0 {
		g.rouse(g.now.Add(max(forWhom.place.Lead-t.place.Lead, again)))
		return false
	}
	return true
}

// before compares places in the planned order.
func before(a, b Place) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Lead, b.Lead)) }

// eachGiver calls do for those that may have something of what is short. Who is served before is asked for nothing.
func (g *planning) eachGiver(forWhom *tenant, short []int64, do func(*tenant)) {
	g.scan++
	for d, bytes := range short {
		if bytes <= 0 {
			continue
		}
		for _, t := range g.on[d] {
			if t == forWhom || t.claimed || t.Deaf || t.seen == g.scan || t.spare(t.at(d)) <= 0 {
				continue
			}
			if t.seen = g.scan; !t.coming() || forWhom == nil { // else it has been chosen a moment ago
				do(t)
			}
		}
	}
}

// possible reports whether what is short can come from others at all, now or after their turns.
func (g *planning) possible(forWhom *tenant, short []int64) bool {
	left := slices.Clone(short)
	g.eachGiver(forWhom, short, func(t *tenant) {
		for i, d := range t.dev {
			left[d] -= t.spare(i)
		}
	})
	return slices.Max(left) <= 0
}

// givers returns who could make room on devices that are short, who gives first first. Of those that are in it is those
// that may says.
func (g *planning) givers(forWhom *tenant, short []int64, may when) []giver {
	var all []giver
	g.eachGiver(forWhom, short, func(t *tenant) {
		switch {
		case !t.in:
			all = append(all, giver{t, out})
		case !may(g, t, forWhom, short):
		case g.rests(t):
			all = append(all, giver{t, rests})
		default:
			all = append(all, giver{t, had})
		}
	})
	slices.SortFunc(all, func(a, b giver) int {
		return cmp.Or(cmp.Compare(a.class, b.class), g.farther(a.tenant, b.tenant), a.since.Compare(b.since), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// farther orders those first that are farther in the planned order. Who waits for nothing is farther than who waits; of
// those it is who is expected later, and then who has had no work for longer.
func (g *planning) farther(a, b *tenant) int {
	switch {
	case a.position >= 0 && b.position >= 0:
		return cmp.Compare(b.position, a.position)
	case a.position >= 0 || b.position >= 0:
		return cmp.Compare(a.position, b.position)
	case a.works() && b.works():
		return before(b.place, a.place)
	case a.works() || b.works():
		return first(b.works(), a.works())
	}
	return cmp.Or(cmp.Compare(b.expected, a.expected), cmp.Compare(g.pauseOf(b), g.pauseOf(a)))
}

// pauseOf is for how long a tenant has had no work, if that is long.
func (g *planning) pauseOf(t *tenant) time.Duration {
	if t.Idle < g.options.Idle {
		return 0
	}
	return t.Idle
}

// spare is what could leave of a device.
func (t *tenant) spare(i int) int64 { return max(t.level[i]-signed(t.Parts[i].Fixed), 0) }

// enough reports whether givers have all that is short.
func enough(short []int64, all []giver) bool {
	left := slices.Clone(short)
	for _, t := range all {
		for i, d := range t.dev {
			left[d] -= t.spare(i)
		}
	}
	return slices.Max(left) <= 0
}

// take takes from givers what is short and no more, and returns those that were in.
func (g *planning) take(short []int64, all []giver) (were []*tenant) {
	left := slices.Clone(short)
	for _, t := range all {
		gave := false
		for i, d := range t.dev {
			if bytes := min(left[d], t.spare(i)); bytes > 0 {
				left[d] -= bytes
				t.level[i] -= bytes
				g.later[d] += bytes
				gave = true
			}
		}
		if gave && t.in {
			were = append(were, t.tenant)
			t.in, t.ready = false, false
		}
	}
	return were
}

// pause notes for how long a tenant has had no work. A pause is long if it lasts for long.
func (m *member) pause(idle, long time.Duration) {
	switch {
	case idle < m.paused && m.paused >= brief:
		m.pauses = m.pauses<<1 | uint8(bit(m.paused >= long))
	case idle >= long && m.paused < long && m.pauses == 0:
		m.pauses = 1 // the first one
	}
	m.paused = idle
}

// longPauses reports whether a tenant's last pauses were long, more often than not.
func (m *member) longPauses() bool {
	last := m.pauses & 7
	return last == 7 || last == 6 || last == 5 || last == 3 || m.pauses == 1
}
