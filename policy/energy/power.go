package energy

import (
	"maps"
	"math"
)

// Bounds of what is learned of the power of each. Time is in seconds, what has no unit is a part of the whole.
const (
	look     = 0.9  // least length of a span: a device that is not shared is read about once a second
	nearly   = 0.99 // of the work of a reading: who does so much works alone
	steady   = 0.1  // by how much shares may differ between two spans that are alike,
	calm     = 0.4  // and the time for which the device worked
	apart    = 0.15 // by how much a share must differ between mixes, so that their difference tells something
	settling = 0.25 // how much a span counts against the mix as it was
	late     = 0.06 // seconds by which the counter is late, more or less, as a standard deviation
	mixing   = 0.1  // how much more or less is drawn by work beside other work, as a standard deviation
	restless = 0.05 // how fast the power of an lgpu may change: by this part after a second, as a standard deviation
	changed  = 3    // standard deviations by which it does not differ by chance
	least    = 16   // the power of each is at least that of the mix by so much
)

// estimate is what is known of the power of an lgpu.
type estimate struct {
	known    bool
	power    float64 // what the device draws beyond idle while it works for the lgpu
	variance float64 // of that
}

// pair are two lgpus, the lower ID first.
type pair [2]uint64

// learner learns the power of each. It looks at spans of about a second, since the counter is late by up to some tenths,
// and only at those that are like the one before, so that what is late is of the same mix.
type learner struct {
	span   span
	before mix     // of the span before
	ref    mix     // with which the next is compared
	single uint64  // who works alone,
	alone  float64 // and since how many seconds
	// together is the covariance of the powers of two: below zero where more is known of what they draw together than of
	// each, so that one draws less if the other draws more. None that is not here.
	together map[pair]float64
}

// span is the sum of some readings.
type span struct {
	passed, drawn, worked float64            // worked is the sum of time
	time                  map[uint64]float64 // of those who worked
}

// mix is who worked in a span, and what power that took.
type mix struct {
	share map[uint64]float64 // of all the work; the sum is 1
	level float64            // beyond idle, while the device worked
	busy  float64            // the time for which it worked, against that which passed
	noise float64            // of the level, as a standard deviation
}

// interrupt begins a span anew.
func (l *learner) interrupt() { l.span, l.before, l.alone = span{}, mix{}, 0 }

// see adds a reading to the present span, and learns from it when it is long enough.
func (m *Meter) see(passed, drawn float64, uses []Use) {
	s := &m.span
	if s.time == nil {
		s.time = map[uint64]float64{}
	}
	var worked float64
	var first Use
	for _, u := range uses {
		if u.Time > 0 {
			s.time[u.ID] += float64(u.Time) / 1e9
			worked += float64(u.Time) / 1e9
		}
		if u.Time > first.Time {
			first = u
		}
	}
	s.passed += passed
	s.drawn += drawn
	s.worked += worked
	m.alone += passed
	if first.ID != m.single {
		m.single, m.alone = first.ID, passed
	}
	if float64(first.Time)/1e9 < nearly*worked {
		m.alone = 0
	}
	if s.passed < look {
		return
	}
	now := m.mix(*s)
	switch {
	case len(now.share) == 0 || now.noise > now.level: // nothing can be told
	case m.alone >= s.passed+tail:
		m.learnAlone(m.single, now)
	case now.alike(m.before) && !m.joined(now):
		m.learnMix(now)
	}
	m.before, m.span = now, span{}
}

// mix is what a span was. What is known of those who worked in it may have become wrong meanwhile.
func (m *Meter) mix(s span) mix {
	x := mix{share: map[uint64]float64{}, busy: s.worked / s.passed}
	if s.worked == 0 {
		return x
	}
	x.level = max(0, s.drawn-m.idle*s.passed) / s.worked
	x.noise = late * s.drawn / s.passed / s.worked
	for id, t := range s.time {
		x.share[id] = t / s.worked
		u := m.user(id)
		all := u.power * u.power
		u.variance = max(u.variance, min(u.variance+s.passed*restless*restless*all, all))
	}
	return x
}

// alike says whether two spans, one after the other, had the same mix.
func (x mix) alike(before mix) bool {
	_, largest := x.differ(before)
	return largest < steady && math.Abs(x.busy-before.busy) < calm*x.busy
}

// joined says whether there is one in a mix of which nothing is known and who was not in the span before. Only a part of
// what he draws may be in the counter.
func (m *Meter) joined(x mix) bool {
	for id := range x.share {
		if m.before.share[id] == 0 && !m.user(id).known {
			return true
		}
	}
	return false
}

// differ is by how much each share differs, and the largest of these differences.
func (x mix) differ(from mix) (by map[uint64]float64, largest float64) {
	by = map[uint64]float64{}
	for id, share := range x.share {
		by[id] += share
	}
	for id, share := range from.share {
		by[id] -= share
	}
	for _, d := range by {
		largest = max(largest, math.Abs(d))
	}
	return by, largest
}

// expected is what power a mix should take, by what is known; false if one of it is not known.
func (m *Meter) expected(x mix) (level float64, known bool) {
	for id, share := range x.share {
		u := m.users[id]
		if u == nil || !u.known {
			return 0, false
		}
		level += share * u.power
	}
	return level, true
}

// learnAlone learns from a span in which one worked alone: its power is what was drawn.
func (m *Meter) learnAlone(id uint64, now mix) {
	m.meet(now)
	u := m.user(id)
	more := now.level - u.power
	if more*more > changed*changed*(u.variance+now.noise*now.noise) {
		m.forget(id)
		u.variance = more * more // it does something else now
	}
	m.correct(map[uint64]float64{id: 1}, more, now.noise, now.level)
	m.ref = mix{share: map[uint64]float64{id: 1}, level: u.power}
}

// learnMix learns from a span in which several worked. What they draw together tells nothing of any of them, since work
// may draw more or less beside other work; only one of which nothing is known is given what the others leave. What tells
// something is that they draw more or less than before when the shares of a mix have changed; after one who worked alone,
// it is only that a mix draws more. Where shares hardly differ from those of the mix before, nothing is learned: the
// counter's lateness would put the energy of one down to another.
func (m *Meter) learnMix(now mix) {
	noise := math.Hypot(mixing*now.level, now.noise)
	if m.meet(now) {
		should, _ := m.expected(now)
		m.correct(now.share, now.level-should, noise, now.level)
		m.ref = now
		return
	}
	by, largest := now.differ(m.ref)
	should, _ := m.expected(now)
	then, known := m.expected(m.ref)
	if largest >= apart || !known {
		if known && then > 0 && len(m.ref.share) > 1 && len(now.share) > 1 {
			m.correct(by, now.level-m.ref.level*should/then, math.Hypot(noise, m.ref.noise*should/then), now.level)
		}
		m.ref = now
		return
	}
	m.ref.share = maps.Clone(m.ref.share) // it may be that of the span before, too
	for id, d := range by {
		m.ref.share[id] += d * settling
	}
	m.ref.level += (now.level - m.ref.level) * settling
}

// meet begins to know those of which nothing was known. It says whether there were any.
func (m *Meter) meet(now mix) (met bool) {
	for id := range now.share {
		if u := m.user(id); !u.known {
			u.estimate, met = estimate{true, now.level, now.level*now.level + now.noise*now.noise}, true
		}
	}
	return met
}

// covariance is that of the powers of two, or the variance of one.
func (m *Meter) covariance(a, b uint64) float64 {
	if a == b {
		return m.user(a).variance
	}
	return m.together[pair{min(a, b), max(a, b)}]
}

// forget has what is learned of one tell nothing of others any more.
func (m *Meter) forget(id uint64) {
	maps.DeleteFunc(m.together, func(p pair, _ float64) bool { return p[0] == id || p[1] == id })
}

// correct puts down to some by how much more was drawn than expected, by the shares of each: the less is known of one, the
// more of it. Who is not among them is corrected, too, as far as what is known of him came from a mix with one of them. This
// is a Kalman filter.
func (m *Meter) correct(shares map[uint64]float64, more, noise, level float64) {
	var known []uint64
	for id, u := range m.users {
		if u.known {
			known = append(known, id)
		}
	}
	with := map[uint64]float64{} // covariance of the power of each with what was drawn
	for _, id := range known {
		for other, share := range shares {
			with[id] += share * m.covariance(id, other)
		}
	}
	variance := noise*noise + 1
	for id, share := range shares {
		variance += share * with[id]
	}
	for _, id := range known {
		u := m.user(id)
		u.power = max(level/least, u.power+with[id]/variance*more)
		u.variance = max(0, u.variance-with[id]*with[id]/variance)
		for _, other := range known {
			if id < other && with[id] != 0 && with[other] != 0 {
				m.together[pair{id, other}] -= with[id] * with[other] / variance
			}
		}
	}
}
