// Package energy divides the energy that a device has drawn among the lgpus that used it. A Meter has one device: it is
// told what the device's counter says and for how long each lgpu used the device since it was last told, and answers
// with millijoules for each. What it gives is what the counter has risen by, to the millijoule. docs/energy.md describes
// the method and its error.
package energy

import (
	"math"
	"slices"
)

// Nobody is the ID of everybody who is no lgpu: strangers, and the device itself while no lgpu is on it.
const Nobody uint64 = 0

// Use is what an lgpu did on the device since the reading before.
type Use struct {
	ID   uint64 // each at most once; Nobody for strangers
	Time int64  // device time, ns
	// Weight is its part of the power that the device draws anyway, against the others' weights; 0 for one that is not
	// on the device any more, and for strangers.
	Weight uint32
}

// Share is what an lgpu has used since the reading before.
type Share struct {
	ID     uint64
	Energy uint64 // millijoules
}

// Times and bounds of a Meter. Energy is in millijoules, power in milliwatts, time in seconds.
const (
	quiet    = 1.0   // without work, after which the mean power tells what the device draws anyway
	rising   = 64    // it falls to such a mean at once, and rises by one part of so many
	lag      = 0.1   // how long the driver takes to bring its counter up to date
	restless = 0.05  // how fast the power of an lgpu may change: by this part, after a second, as a standard deviation
	unsure   = 1e6   // by how much the power of an lgpu of which nothing is known may be anything
	recent   = 1.0   // over which Power is a mean
	most     = 100e6 // what no device draws: a counter that rises faster has begun anew
)

// Meter divides the energy of one device. One goroutine at a time may use it.
type Meter struct {
	begun   bool
	at      int64 // of the last reading, ns
	counter uint64

	idle      float64 // what the device draws without work; 0: not known
	rest      float64 // seconds without work, since idle was last corrected,
	restDrawn float64 // and what the device drew in them
	late      []Use   // who worked until the last reading: the counter may still rise because of them

	users map[uint64]*user
}

// user is what is known of an lgpu, or of Nobody.
type user struct {
	power    float64 // what the device draws beyond idle while it works for the lgpu
	variance float64 // of that
	owed     float64 // of a millijoule, by roundings
	recent   float64 // what it was given lately, as power
}

// New returns a Meter of a device which draws so many milliwatts without work; 0: that is not known yet.
func New(idle uint32) *Meter { return &Meter{idle: float64(idle), users: map[uint64]*user{}} }

// Idle is what the device draws without work, in milliwatts: the lowest mean of a second in which nothing ran, which
// rises slowly if it was too low. 0 means that there was no such second yet.
func (m *Meter) Idle() uint32 { return uint32(m.idle) }

// Power is what an lgpu has drawn over about the last second, in milliwatts.
func (m *Meter) Power(id uint64) uint32 {
	if u := m.users[id]; u != nil {
		return uint32(min(u.recent, math.MaxUint32))
	}
	return 0
}

// Read takes what the counter says at a time, in ns of any clock, and what lgpus did since the reading before. It returns
// what each used; the sum is by how much the counter has risen. The first reading has nothing before it, and neither has
// one whose counter has begun anew: they return nothing.
func (m *Meter) Read(at int64, counter uint64, uses []Use) []Share {
	passed := float64(at-m.at) / 1e9
	begun, before := m.begun, m.counter
	if begun && passed <= 0 {
		return nil // it is older than the one before, and what it says will be in the next
	}
	m.begun, m.at, m.counter = true, at, counter
	if !begun || counter < before || float64(counter-before) > most*passed {
		m.rest, m.restDrawn, m.late = 0, 0, nil
		return nil
	}
	shares := m.split(counter-before, m.parts(passed, float64(counter-before), uses))
	m.note(passed, shares, uses)
	return shares
}

// part is what an lgpu should get, as a weight against the others.
type part struct {
	id     uint64
	weight float64
}

// parts says how what was drawn is to be divided.
func (m *Meter) parts(passed, drawn float64, uses []Use) []part {
	working := false
	for _, u := range uses {
		working = working || u.Time > 0
	}
	idle := min(m.idle*passed, drawn)
	switch {
	case working:
		m.learn(passed, drawn-idle, uses)
		m.rest, m.restDrawn, m.late = 0, 0, append(m.late[:0], uses...)
		return append(m.work(drawn-idle, uses), standing(idle, uses)...)
	case len(m.late) > 0:
		late := m.late
		m.late = nil
		return append(m.work(drawn-idle, late), standing(idle, uses)...)
	default:
		m.settle(passed, drawn)
		return standing(drawn, uses)
	}
}

// settle learns what the device draws without work.
func (m *Meter) settle(passed, drawn float64) {
	m.rest += passed
	m.restDrawn += drawn
	if m.rest < quiet {
		return
	}
	mean := m.restDrawn / m.rest
	if m.idle == 0 || mean < m.idle {
		m.idle = mean
	} else {
		m.idle += (mean - m.idle) / rising
	}
	m.rest, m.restDrawn = 0, 0
}

// standing divides what the device draws anyway, by weight; it is Nobody's if no lgpu is there.
func standing(drawn float64, uses []Use) []part {
	var sum float64
	for _, u := range uses {
		sum += float64(u.Weight)
	}
	if sum == 0 {
		return []part{{Nobody, drawn}}
	}
	var parts []part
	for _, u := range uses {
		if u.Weight > 0 {
			parts = append(parts, part{u.ID, drawn * float64(u.Weight) / sum})
		}
	}
	return parts
}

// work divides what the device drew because it worked, by what is known of the power of each.
func (m *Meter) work(drawn float64, uses []Use) []part {
	var parts []part
	var sum float64
	for _, u := range uses {
		if u.Time > 0 {
			w := float64(u.Time) * max(m.user(u.ID).power, 1)
			parts = append(parts, part{u.ID, w})
			sum += w
		}
	}
	for i := range parts {
		parts[i].weight *= drawn / sum
	}
	return parts
}

// learn corrects what is known of the power of each by what the device drew because it worked. The less is known of one,
// and the longer it worked, the more of the difference is put down to it: from a time in which one works alone its power
// is known, and then another's from times in which both work. This is a Kalman filter without correlations.
func (m *Meter) learn(passed, drawn float64, uses []Use) {
	var expected, variance, time float64
	for _, u := range uses {
		time += max(float64(u.Time), 0) / 1e9
	}
	for _, u := range uses {
		if u.Time > 0 {
			x, t := m.user(u.ID), float64(u.Time)/1e9
			change := restless * max(x.power, drawn/time)
			x.variance = min(x.variance+passed*change*change, unsure*unsure)
			expected += t * x.power
			variance += t * t * x.variance
		}
	}
	noise := lag / 2 * drawn / passed // what the counter is late by
	variance += noise*noise + 1
	for _, u := range uses {
		if u.Time > 0 {
			x, t := m.user(u.ID), float64(u.Time)/1e9
			gain := t * x.variance / variance
			x.power = max(0, x.power+gain*(drawn-expected))
			x.variance *= 1 - gain*t
		}
	}
}

// user is what is known of an lgpu.
func (m *Meter) user(id uint64) *user {
	u := m.users[id]
	if u == nil {
		u = &user{variance: unsure * unsure}
		m.users[id] = u
	}
	return u
}

// split makes whole millijoules of parts, and gives all of them. What roundings take from one it gets another time.
func (m *Meter) split(drawn uint64, parts []part) []Share {
	var sum float64
	for _, p := range parts {
		sum += p.weight
	}
	if !(sum > 0) { // nothing was drawn
		parts, sum = []part{{Nobody, 1}}, 1
	}
	var shares []Share
	left := drawn
	for _, p := range parts {
		exact := float64(drawn) * (p.weight / sum)
		whole := min(uint64(exact), left)
		left -= whole
		m.user(p.id).owed += exact - float64(whole)
		i := slices.IndexFunc(shares, func(s Share) bool { return s.ID == p.id })
		if i < 0 {
			i = len(shares)
			shares = append(shares, Share{ID: p.id})
		}
		shares[i].Energy += whole
	}
	for ; left > 0; left-- {
		neediest := 0
		for i, s := range shares {
			if m.user(s.ID).owed > m.user(shares[neediest].ID).owed {
				neediest = i
			}
		}
		shares[neediest].Energy++
		m.user(shares[neediest].ID).owed--
	}
	return shares
}

// note keeps the mean power of everybody up to date, and forgets who is gone and draws nothing any more.
func (m *Meter) note(passed float64, shares []Share, uses []Use) {
	fade := math.Exp(-passed / recent)
	for id, u := range m.users {
		u.recent *= fade
		if u.recent < 1 && !slices.ContainsFunc(uses, func(u Use) bool { return u.ID == id }) {
			delete(m.users, id)
		}
	}
	for _, s := range shares {
		m.user(s.ID).recent += (1 - fade) * float64(s.Energy) / passed
	}
}
