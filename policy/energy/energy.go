// Package energy divides the energy that a device has drawn among the lgpus that used it. A Meter has one device: it is
// told what the device's counter says and for how long each lgpu used the device since it was last told, and answers
// with millijoules for each. What it gives is what the counter has risen by, to the millijoule. docs/energy.md describes
// the method and its error.
package energy

import (
	"cmp"
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
	quiet  = 1.0   // without work, after which the mean power tells what the device draws anyway
	rising = 64    // it falls to such a mean at once, and rises by one part of so many
	hardly = 0.005 // of the time: who works so little draws nothing to speak of
	tail   = 0.3   // how long the counter may rise after work, and because of it
	fading = 0.5   // in which a use ceases to count when a rise is divided: longer than the counter is late
	recent = 1.0   // over which Power is a mean
	most   = 100e6 // what no device draws: a counter that rises faster has begun anew
)

// Meter divides the energy of one device. One goroutine at a time may use it.
type Meter struct {
	begun   bool
	at      int64 // of the last reading, ns
	counter uint64

	idle      float64 // what the device draws without work; 0: not known
	due       float64 // of that, what the counter was too late for
	rested    float64 // seconds since the last work
	rest      float64 // seconds without work, since idle was last corrected,
	restDrawn float64 // and what the device drew in them

	users map[uint64]*user
	learner
}

// user is what is known of an lgpu, or of Nobody.
type user struct {
	estimate
	work   float64 // what its use lately should have taken beyond idle
	owed   float64 // of a millijoule, by roundings
	recent float64 // what it was given lately, as power
}

// New returns a Meter of a device which draws so many milliwatts without work; 0: that is not known yet.
func New(idle uint32) *Meter {
	return &Meter{idle: float64(idle), rested: quiet, users: map[uint64]*user{}, learner: learner{together: map[pair]float64{}}}
}

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
		m.rested, m.rest, m.restDrawn, m.due = quiet, 0, 0, 0
		m.interrupt()
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
	m.see(passed, drawn, uses)
	var worked float64
	for _, u := range uses {
		worked += max(float64(u.Time), 0) / 1e9
	}
	rested := m.rested
	if m.rested += passed; worked > hardly*passed {
		rested, m.rested = 0, 0
	}
	if rested >= tail {
		m.due = 0
		m.settle(passed, drawn)
		return standing(drawn, uses)
	}
	m.rest, m.restDrawn = 0, 0
	m.due = min(m.due, m.idle*tail) + m.idle*passed
	idle := min(m.due, drawn)
	m.due -= idle
	return append(m.work(passed, drawn-idle, uses), standing(idle, uses)...)
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

// work divides what the device drew because it worked, by the use of each lately times its power. The counter is late: what
// it rises by is of readings before, too.
func (m *Meter) work(passed, drawn float64, uses []Use) []part {
	var time, known, knownTime float64
	for _, u := range uses {
		t := max(float64(u.Time), 0) / 1e9
		time += t
		if x := m.user(u.ID); x.known {
			known, knownTime = known+t*x.power, knownTime+t
		}
	}
	if time > 0 {
		for _, x := range m.users {
			x.work *= max(0, 1-passed/fading)
		}
	}
	for _, u := range uses {
		power := 1.0 // any, if nothing is known of anybody
		if x := m.user(u.ID); x.known {
			power = max(power, x.power)
		} else if known > 0 {
			power = known / knownTime
		}
		m.user(u.ID).work += max(float64(u.Time), 0) / 1e9 * power
	}
	var parts []part
	var sum float64
	for id, x := range m.users {
		if x.work > 0 {
			parts = append(parts, part{id, x.work})
			sum += x.work
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.id, b.id) })
	for i := range parts {
		parts[i].weight *= drawn / sum
	}
	return parts
}

// user is what is known of an lgpu.
func (m *Meter) user(id uint64) *user {
	u := m.users[id]
	if u == nil {
		u = &user{}
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
			m.forget(id)
		}
	}
	for _, s := range shares {
		m.user(s.ID).recent += (1 - fade) * float64(s.Energy) / passed
	}
}
