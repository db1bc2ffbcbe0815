package slot

import (
	"cmp"
	"slices"
	"time"
)

// tenant is one while a plan is made.
type tenant struct {
	Tenant
	*member
	dev      []int // of Parts, as numbers of planning.devices
	place    Place
	ranked   bool
	position int     // among those that wait; -1: it does not
	expected int     // how many turns from now it is voted to have one; far: nobody knows
	level    []int64 // what it is to have in the end, by Parts
	claimed  bool    // it is served before those that are looked at later: they take nothing from it
	early    bool    // what it gets is for a later turn
	seen     int     // the last givers that met it
}

const far = 1 << 20

// planning is one Plan.
type planning struct {
	*Policy
	now     time.Time
	devices []Device
	room    []int64     // by device, as all that follow
	on      [][]*tenant // by ID
	tenants []*tenant   // by ID
	byID    map[uint64]*tenant
	served  []*tenant // those that are to get more, in order
	// later is what will be free once all that is under way has been done, less what was promised; it is less than
	// nothing where somebody waits for the end of a turn.
	later []int64
	next  []uint64
	wake  time.Time
	scan  int
}

func newPlanning(p *Policy, now time.Time, s State) *planning {
	g := &planning{Policy: p, now: now, byID: make(map[uint64]*tenant, len(s.Tenants))}
	for d := range s.Room {
		g.devices = append(g.devices, d)
	}
	slices.SortFunc(g.devices, func(a, b Device) int { return slices.Compare(a[:], b[:]) })
	number := make(map[Device]int, len(g.devices))
	for i, d := range g.devices {
		number[d] = i
		g.room = append(g.room, signed(s.Room[d]))
	}
	g.later, g.next, g.on = slices.Clone(g.room), make([]uint64, len(g.room)), make([][]*tenant, len(g.room))
	for _, given := range s.Tenants {
		t := &tenant{Tenant: given, position: -1, expected: far, level: make([]int64, len(given.Parts))}
		for _, part := range t.Parts {
			t.dev = append(t.dev, number[part.Device])
		}
		g.tenants, g.byID[t.ID] = append(g.tenants, t), t
	}
	slices.SortFunc(g.tenants, func(a, b *tenant) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range g.tenants {
		for i, d := range t.dev {
			t.level[i] = signed(t.Parts[i].Level)
			g.later[d] -= t.uses(i)
			g.on[d] = append(g.on[d], t)
		}
	}
	for _, place := range s.Order {
		if t := g.byID[place.ID]; t != nil {
			t.place, t.ranked = place, true
		}
	}
	return g
}

// signed is n as a number that sums of many do not take round.
func signed(n uint64) int64 { return int64(min(n, 1<<50)) }

// at is the index among a tenant's parts of a device, or -1.
func (t *tenant) at(d int) int { return slices.Index(t.dev, d) }

// uses is what a tenant will use of a device when it has done what it is to do.
func (t *tenant) uses(i int) int64 {
	if t.Deaf {
		return signed(t.Parts[i].Taken)
	}
	return max(t.level[i], signed(t.Parts[i].Fixed))
}

// lacks is what a tenant needs of a device and is not to have.
func (t *tenant) lacks(i int) int64 { return max(signed(t.Parts[i].Size)-t.level[i], 0) }

// costs is how much of that must be free: what cannot leave is there already, at any level.
func (t *tenant) costs(i int) int64 { return max(signed(t.Parts[i].Size)-t.uses(i), 0) }

// complete reports whether a tenant has all its memory.
func (t *tenant) complete() bool {
	for i := range t.Parts {
		if p := &t.Parts[i]; p.Level < p.Size || p.Moving {
			return false
		}
	}
	return true
}

// coming reports whether a tenant has been chosen and waits for the rest of its memory.
func (t *tenant) coming() bool { return t.in && !t.ready }

// works reports whether a tenant computes, or wants to, by its place. One that has a place and no work only has its gate open
// until its memory is to leave: it waits for nothing.
func (t *tenant) works() bool { return t.ranked && t.Idle < brief }

// takesTurns reports whether a tenant computes, or wants to.
func (t *tenant) takesTurns() bool { return t.in || t.Waits || t.ranked }

// rouse asks for a plan at a time, unless that is over.
func (g *planning) rouse(at time.Time) {
	if at.After(g.now) && (g.wake.IsZero() || at.Before(g.wake)) {
		g.wake = at
	}
}

// crowded reports whether not all fit on a device.
func (g *planning) crowded(d int) bool {
	sum := int64(0)
	for _, t := range g.on[d] {
		sum += signed(t.Parts[t.at(d)].Size)
	}
	return sum > g.room[d]
}

// arrive notes whose memory has come.
func (g *planning) arrive() {
	for _, t := range g.tenants {
		t.pause(t.Idle, g.options.Idle)
		switch {
		case t.coming() && t.complete():
			g.begin(t)
		case t.coming() && t.Deaf:
			t.in = false
		case !t.in && t.complete() && (t.Deaf || !slices.ContainsFunc(t.dev, g.crowded)):
			t.in, t.ready, t.since = true, true, g.now // nobody needs its room, or it cannot give it
		}
	}
}

// begin begins a tenant's turn.
func (g *planning) begin(t *tenant) {
	t.ready, t.since = true, g.now
	if t.displaces {
		g.stats.Waited += g.now.Sub(t.chosen)
	}
	var before []uint64
	for i, part := range t.Parts {
		if t.displaces {
			g.measure(part.Device, g.now.Sub(t.chosen), len(g.cycle(t.dev[i]).order))
		}
		if last := g.last[part.Device]; last != 0 && last != t.ID && !slices.Contains(before, last) {
			before = append(before, last)
			g.history.Add(last, t.ID)
		}
		g.last[part.Device] = t.ID
	}
}

// reduce takes memory where more has been given than there is: the room is less than it was. Turns do not count then.
func (g *planning) reduce() {
	short := make([]int64, len(g.room))
	any := false
	for d, bytes := range g.later {
		short[d] = max(-bytes, 0)
		any = any || bytes < 0
	}
	if any {
		g.take(short, g.givers(nil, short, always))
	}
}

// waiting returns those that wait, who is served first first.
func (g *planning) waiting() []*tenant {
	var all, others []*tenant
	for _, t := range g.tenants {
		wants := t.coming() || t.Waits || t.works() && !t.in
		switch {
		case !wants || t.in && t.complete():
			t.asked = time.Time{}
			continue
		case t.asked.IsZero():
			t.asked = g.now
		}
		if t.Waits && t.Since.Before(t.asked) {
			t.asked = t.Since
		}
		switch {
		case t.Deaf:
		case t.ranked || t.coming():
			all = append(all, t)
		default:
			others = append(others, t)
		}
	}
	slices.SortFunc(all, func(a, b *tenant) int {
		return cmp.Or(first(a.coming(), b.coming()), a.chosen.Compare(b.chosen)*bit(a.coming()),
			cmp.Compare(a.place.Rank, b.place.Rank), cmp.Compare(a.place.Lead, b.place.Lead), cmp.Compare(a.ID, b.ID))
	})
	for d := range g.devices {
		g.follow(all, d)
	}
	slices.SortFunc(others, func(a, b *tenant) int { return cmp.Or(a.asked.Compare(b.asked), cmp.Compare(a.ID, b.ID)) })
	all = merge(all, others)
	for i, t := range all {
		t.position = i
	}
	return all
}

// merge puts those that the planned order does not know among the others: before the first of the last rank that has waited
// for less long. They have had no device time yet, or use the device without any.
func merge(all, others []*tenant) []*tenant {
	last := 0
	for _, t := range all {
		last = max(last, t.place.Rank)
	}
	for _, t := range others {
		i := slices.IndexFunc(all, func(o *tenant) bool {
			return !o.coming() && (!o.ranked || o.place.Rank == last) && t.asked.Before(o.asked)
		})
		if i < 0 {
			i = len(all)
		}
		all = slices.Insert(all, i, t)
	}
	return all
}

// first orders those first of which something holds.
func first(a, b bool) int { return bit(b) - bit(a) }

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// follow has those that are about as far as the first one of a device in the planned order follow the cycle.
func (g *planning) follow(all []*tenant, d int) {
	var places []int
	var near []*tenant
	for i, t := range all {
		switch {
		case t.at(d) < 0 || t.coming() || !t.ranked:
		case len(near) > 0 && (t.place.Rank != near[0].place.Rank || t.place.Lead-near[0].place.Lead >= g.Turn(g.devices[d])/2):
		default:
			places, near = append(places, i), append(near, t)
		}
	}
	if len(near) < 2 {
		return
	}
	c, last := g.cycle(d), g.last[g.devices[d]]
	slices.SortStableFunc(near, func(a, b *tenant) int { return cmp.Compare(c.distance(last, a.ID), c.distance(last, b.ID)) })
	for i, place := range places {
		all[place] = near[i]
	}
}

// serve gives a tenant what it lacks, or has others make room, or loads ahead what there is room for meanwhile.
func (g *planning) serve(t *tenant) {
	short := g.short(t)
	if !g.possible(t, short) {
		if t.coming() {
			t.in = false
		}
		return // others are served meanwhile
	}
	now := g.givers(t, short, g.over)
	if !enough(short, now) {
		g.prepare(t)
		return
	}
	displaces := false
	for _, v := range g.take(short, now) {
		displaces = displaces || !g.rests(v)
		t.since = g.now // also of one that is in, and needs more: what it gets is not taken back at once
	}
	g.choose(t, displaces)
	if t.coming() && t.complete() {
		g.begin(t) // all was loaded ahead
	}
	for i, d := range t.dev {
		g.later[d] -= t.costs(i)
		t.level[i] += t.lacks(i)
	}
	t.claimed = true
	g.served = append(g.served, t)
}

// short is what a tenant lacks of devices beyond what will be free.
func (g *planning) short(t *tenant) []int64 {
	short := make([]int64, len(g.room))
	for i, d := range t.dev {
		if costs := t.costs(i); costs > 0 {
			short[d] = max(costs-g.later[d], 0)
		}
	}
	return short
}

// choose lets a tenant in once its memory has come.
func (g *planning) choose(t *tenant, displaces bool) {
	if t.in {
		t.displaces = t.displaces || displaces && !t.ready
		return
	}
	t.in, t.ready, t.chosen, t.displaces = true, false, g.now, displaces
	if slices.ContainsFunc(t.dev, g.crowded) {
		g.count(t)
	}
	clear(t.ahead)
	t.next = false
}

// count counts a switch where not all fit.
func (g *planning) count(t *tenant) {
	g.stats.Switches++
	all := true
	for i, part := range t.Parts {
		costs := uint64(t.costs(i))
		all = all && costs == 0
		g.stats.Exposed += costs
		g.stats.Size += part.Size
	}
	g.stats.Hits += uint64(bit(all || t.next))
	if len(t.Parts) == 0 {
		return
	}
	d := t.dev[0]
	last := g.byID[g.last[g.devices[d]]]
	if last == nil || last == t || last.at(d) < 0 {
		return
	}
	if signed(last.Parts[last.at(d)].Size)+signed(t.Parts[0].Size) > g.room[d] {
		g.stats.Forced++
	}
	g.stats.LeastForced += g.cycle(d).least
}

// prepare loads ahead for a tenant whose turn comes when another's is over. The rest of what it lacks is promised to it.
func (g *planning) prepare(t *tenant) {
	for i, d := range t.dev {
		lacked := t.costs(i)
		g.load(t, i)
		g.later[d] -= t.costs(i)
		if lacked > 0 {
			g.next[d], t.next = t.ID, true
		}
	}
	t.claimed, t.early = true, true
	g.served = append(g.served, t)
}

// load loads ahead of a part what there is room for beside those that are in. Room comes from those that are not, too.
func (g *planning) load(t *tenant, i int) {
	if g.options.Blind {
		return
	}
	d, short := t.dev[i], make([]int64, len(g.room))
	if bytes := t.costs(i) - max(g.later[d], 0); bytes > 0 {
		short[d] = bytes
		g.take(short, g.givers(t, short, resting))
	}
	if gets := min(t.costs(i), max(g.later[d], 0)); gets > 0 {
		g.later[d] -= gets
		t.level[i] = t.uses(i) + gets
	}
}

// predict loads ahead on devices where nobody waits.
func (g *planning) predict() {
	for d := range g.devices {
		if slices.ContainsFunc(g.on[d], func(t *tenant) bool { return t.position >= 0 }) {
			continue
		}
		id, ok := g.vote(d, func(id uint64) bool {
			t := g.byID[id]
			return t != nil && !t.in && !t.Deaf && t.at(d) >= 0 && t.Idle < g.options.Quiet
		})
		if !ok {
			continue
		}
		t := g.byID[id]
		g.next[d], t.next, t.claimed, t.early = id, true, true, true
		g.load(t, t.at(d))
		g.served = append(g.served, t)
	}
}

// vote says who is likely to be next on a device.
func (g *planning) vote(d int, may func(uint64) bool) (uint64, bool) {
	switch {
	case g.options.Blind:
		return 0, false
	case g.options.Oracle != nil:
		id, ok := g.options.Oracle(g.devices[d])
		return id, ok && may(id)
	}
	return g.history.Next(g.last[g.devices[d]], may)
}

// expect finds when those that do not wait are likely to be next: each by the vote over who came after the one before.
func (g *planning) expect() {
	for d, device := range g.devices {
		at := g.last[device]
		for turns := 1; turns <= len(g.on[d]); turns++ {
			id, ok := g.history.Next(at, func(id uint64) bool {
				t := g.byID[id]
				return t != nil && t.at(d) >= 0 && t.expected == far
			})
			if !ok {
				break
			}
			g.byID[id].expected, at = turns, id
		}
	}
}

// step is by how much levels of a device change at a time.
func (g *planning) step(d int) int64 { return max(g.room[d]/steps, leastStep) }

// raise has levels rise into what nobody has, in the order in which tenants are served.
func (g *planning) raise() {
	free := slices.Clone(g.room)
	for _, t := range g.tenants {
		for i, d := range t.dev {
			free[d] -= signed(t.Parts[i].Taken)
		}
	}
	for _, t := range g.served {
		for i, d := range t.dev {
			part, goal := &t.Parts[i], t.level[i]
			level := signed(part.Level)
			if goal <= level || t.Deaf {
				continue
			}
			has := min(max(level, signed(part.Taken)), goal) // what is fixed is taken at any level
			more := min(goal-has, max(free[d], 0)) + has - level
			// Small steps are not worth it, and a move that is under way is disturbed only to let it end, unless that is cheap.
			if more < goal-level && (part.Moving && !part.Tells || more < g.step(d)) || part.Moving && part.Taken > part.Level {
				more = 0
			}
			free[d] -= goal - has // what becomes free is for it
			t.level[i] = level + more
			if t.early && more > 0 {
				t.ahead[part.Device] += uint64(more)
			}
		}
	}
}

// lower has levels fall step by step. What a tenant may have and has not goes at once.
func (g *planning) lower() {
	for _, t := range g.tenants {
		for i, d := range t.dev {
			part, goal := &t.Parts[i], t.level[i]
			level := signed(part.Level)
			switch {
			case goal >= level:
				continue
			case t.Deaf || part.Moving && part.Taken > part.Level:
				t.level[i] = level // it is at it
			case !part.Moving && !part.Tells: // else memory that was to come is not to come any more, or it tells as it leaves
				t.level[i] = max(goal, min(level, signed(part.Resident))-g.step(d))
			}
			if was := t.ahead[part.Device]; was > 0 && !t.in {
				wasted := min(was, uint64(level-t.level[i]))
				t.ahead[part.Device] -= wasted
				g.stats.Wasted += wasted
			}
		}
	}
}

// plan is what has been decided.
func (g *planning) plan() Plan {
	out := Plan{
		Level: make(map[uint64][]uint64, len(g.tenants)), In: map[uint64]bool{}, Coming: map[uint64]bool{},
		Next: map[Device]uint64{}, Wake: g.wake,
	}
	for d, id := range g.next {
		if id != 0 {
			out.Next[g.devices[d]] = id
		}
	}
	for _, t := range g.tenants {
		levels := make([]uint64, len(t.level))
		for i, level := range t.level {
			levels[i] = uint64(max(level, 0))
		}
		out.Level[t.ID] = levels
		if t.in && t.ready {
			out.In[t.ID] = true
		}
		if t.coming() {
			out.Coming[t.ID] = true
		}
	}
	return out
}
