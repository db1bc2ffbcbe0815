// Package residence decides how much of its devices' memory each client of lgpus with memory.overcommit may have
// resident: its levels. Clients say what they want and what they have; the policy answers with orders.
//
//	p := residence.New(residence.Options{})
//	p.SetDevice(gpu, budget, plain)
//	p.Need(now, client, gpu, 8<<30)
//	orders, next := p.Settle(now, view)
//
// # Rules
//
// What is given out of a device never exceeds its budget, less what lgpus without memory.overcommit are charged for.
// What was given is taken until the client has said that it is back, or has died. A program needs all its memory to run:
// so all clients of an lgpu, or of a gang, have their turn together, on all devices. Where not all fits, package slot says
// whose turn it is, whose memory comes ahead and who makes room; here that becomes levels of clients, which answer, are
// silent, refuse, and come back after a restart of the daemon.
//
// The package is pure: no clock, no I/O, no goroutine. A Policy is for one goroutine at a time.
package residence

import (
	"cmp"
	"slices"
	"time"

	"github.com/lgpu/lgpu/policy/slot"
)

// Times of Options that are left out.
const (
	DefaultStuck = 15 * time.Second // without an answer, after which nobody waits for a client's memory any more
	DefaultRetry = 5 * time.Second  // until a client that could not give memory back is asked again
	DefaultDrain = time.Second      // that closing gates are waited for before memory leaves
)

// Options of a Policy. What is left out is the default.
type Options struct {
	Stuck, Retry, Drain time.Duration
	// Serial is below those of all orders. A daemon that follows another begins above the other's.
	Serial uint64
}

// Device is the UUID of a device.
type Device = [16]byte

// Client is a client of an lgpu.
type Client struct {
	LGPU  uint64
	Index int
}

// Order is a level for a client.
type Order struct {
	Client Client
	Device Device
	Serial uint64
	Level  uint64 // bytes that may be resident from now on
	// Refused says that what was asked for will never be given. Level is what it was.
	Refused bool
}

// Seat is what a client has of a device.
type Seat struct {
	Client Client
	Device Device
	// Level is the latest that was ordered, Taken what counts as used of the budget, and Resident what the client has
	// last said that is on the device, all in bytes.
	Level, Taken, Resident uint64
	// Wanted is the level with which it could run, in bytes.
	Wanted uint64
	// Since is when the latest order was given that the client has not answered; zero where it has answered all.
	Since time.Time
	// Refused is the reason that the client gave last for not doing what was ordered; 0 if it did.
	Refused uint64
	Linked  bool // orders reach it
	// Away says that something of what it wants is not on the device.
	Away bool
}

// seat is a client on a device.
type seat struct {
	Seat
	serial uint64    // of the latest order
	most   uint64    // the highest level it has had
	answer bool      // a Need waits for an order, whatever becomes of the level
	before uint64    // what it wanted before that Need
	least  uint64    // what it holds, or is about to: it may have asked for more at once than it needs; at most Wanted counts
	retry  time.Time // before which nothing is asked of it again
	resync bool      // it is to hear its level again
	tells  bool      // it says how far its moves have come,
	heard  time.Time // and did so last
	fixed  uint64    // what stayed when all had to leave, or cannot leave by its own word
	hidden uint64    // what it has by the driver's word, where that is more than it says
}

// lgpu is what is known of one.
type lgpu struct {
	id        uint64
	suspended bool
	asking    bool      // some client wants what it has not
	since     time.Time // when it began to ask
	unit      uint64    // what it has its turns with: itself, or the first of its gang
	leaves    time.Time // since when its gates are waited for
	seats     []*seat   // by client and device
}

// device is one with a budget.
type device struct{ budget, plain uint64 }

// Policy knows levels, budgets and who waits.
type Policy struct {
	options Options
	serial  uint64
	devices map[Device]device
	lgpus   map[uint64]*lgpu
	orders  []Order
	turns   slot.Options
	slots   *slot.Policy
	plan    slot.Plan
}

// New makes a policy without devices.
func New(o Options) *Policy {
	for _, f := range []struct {
		value  *time.Duration
		normal time.Duration
	}{{&o.Stuck, DefaultStuck}, {&o.Retry, DefaultRetry}, {&o.Drain, DefaultDrain}} {
		if *f.value == 0 {
			*f.value = f.normal
		}
	}
	return &Policy{
		options: o, serial: o.Serial, devices: map[Device]device{}, lgpus: map[uint64]*lgpu{}, slots: slot.New(slot.Options{}),
	}
}

// SetDevice says how many bytes of a device there are for all lgpus, and what those without memory.overcommit are charged
// for.
func (p *Policy) SetDevice(d Device, budget, plain uint64) { p.devices[d] = device{budget, plain} }

// Suspend says whether all that can be moved of an lgpu has to leave its devices. What comes back later is asked for by
// the policy itself.
func (p *Policy) Suspend(now time.Time, id uint64, suspended bool) {
	l := p.lgpu(id)
	if l.suspended && !suspended {
		l.ask(now)
	}
	l.suspended = suspended
	p.forget(l)
}

// Remove forgets an lgpu and its clients.
func (p *Policy) Remove(id uint64) { delete(p.lgpus, id) }

// Leave takes a client out, which has died. All that it had is free.
func (p *Policy) Leave(c Client) {
	l := p.lgpus[c.LGPU]
	if l == nil {
		return
	}
	l.seats = slices.DeleteFunc(l.seats, func(s *seat) bool { return s.Client == c })
	p.forget(l)
}

// Lost says that no order reaches a client until it has said Kept again.
func (p *Policy) Lost(c Client) {
	if l := p.lgpus[c.LGPU]; l != nil {
		for _, s := range l.seats {
			s.Linked = s.Linked && s.Client != c
		}
	}
}

// Restore says what a client of the daemon before had taken at most. It is taken until the client says Kept or has died.
func (p *Policy) Restore(c Client, d Device, taken uint64) {
	s := p.lgpu(c.LGPU).seat(c, d)
	s.Level, s.Taken, s.Wanted, s.most, s.Resident, s.least = taken, taken, taken, taken, taken, taken
}

// Need says that a client uses a device from now on (level 0), or wants a level.
func (p *Policy) Need(now time.Time, c Client, d Device, level uint64) {
	l := p.lgpu(c.LGPU)
	s := l.seat(c, d)
	s.Linked = true
	if level == 0 {
		return
	}
	if !s.answer {
		s.before = s.Wanted
	}
	s.Wanted, s.least = level, level
	if p.never(l, s) {
		p.refuse(s)
		return
	}
	s.answer = true
	l.ask(now)
}

// Refuses reports whether Need with this level would be refused as things are.
func (p *Policy) Refuses(c Client, d Device, level uint64) bool {
	l := p.lgpu(c.LGPU)
	s := l.seat(c, d)
	before := s.Wanted
	defer func() { s.Wanted = before }()
	s.Wanted = level
	return level != 0 && p.never(l, s)
}

// Fixed says that a client has so much of a device that cannot leave it; it wants at least that level.
func (p *Policy) Fixed(now time.Time, c Client, d Device, bytes uint64) {
	l := p.lgpu(c.LGPU)
	s := l.seat(c, d)
	s.fixed, s.least = max(s.fixed, bytes), max(s.least, bytes)
	if bytes > s.Wanted {
		s.Wanted = bytes
		l.ask(now)
	}
}

// Spoils reports whether, if a client has so much of a device that cannot leave it, an lgpu could not come back there any
// more that could before, or the client's own could have nothing there. It returns that lgpu, and the budget in bytes with
// which it could. Of one that is suspended the room has been given to others.
func (p *Policy) Spoils(c Client, d Device, bytes uint64) (unfit, budget uint64, is bool) {
	already := map[uint64]bool{}
	for id := range p.lgpus {
		_, already[id] = p.Unfit(id, d)
	}
	s := p.lgpu(c.LGPU).seat(c, d)
	before := *s
	defer func() { *s = before }()
	s.fixed, s.Wanted, s.least = max(s.fixed, bytes), max(s.Wanted, bytes), max(s.least, bytes)
	for _, id := range p.LGPUs() {
		if budget, is := p.Unfit(id, d); is && !already[id] && !p.lgpus[id].suspended {
			return id, budget, true
		}
	}
	return 0, 0, false
}

// Least says how much of what a client has just said that it needs it needs now.
func (p *Policy) Least(c Client, d Device, bytes uint64) {
	if l := p.lgpus[c.LGPU]; l != nil {
		if s := l.find(c, d); s != nil {
			s.least = min(bytes, s.Wanted)
		}
	}
}

// refuse says that what a client asked for will never be given. It wants again what it wanted before.
func (p *Policy) refuse(s *seat) {
	s.Wanted, s.answer = s.before, false
	p.serial++
	p.orders = append(p.orders, Order{Client: s.Client, Device: s.Device, Serial: p.serial, Level: s.Level, Refused: true})
}

// never reports whether an lgpu can never have what it wants on a seat's device. What was given once can be given again
// when lgpus without memory.overcommit use less, or others have ended.
func (p *Policy) never(l *lgpu, s *seat) bool {
	sum, device := p.wanted(l, s.Device), p.devices[s.Device]
	return sum > device.budget || s.Wanted > s.most && add(sum, p.stays(l, s.Device)) > device.budget
}

// wanted is what all clients of an lgpu want of a device.
func (p *Policy) wanted(l *lgpu, d Device) (sum uint64) {
	for _, s := range l.seats {
		if s.Device == d {
			sum = add(sum, s.Wanted)
		}
	}
	return sum
}

// stays is what others than an lgpu have of a device that is known not to be able to leave: lgpus without
// memory.overcommit, what cannot leave by the word of others, and what has stayed when they were to leave. Those that have
// their turns with the lgpu want all of theirs beside it.
func (p *Policy) stays(l *lgpu, d Device) uint64 {
	sum := p.devices[d].plain
	for _, other := range p.lgpus {
		switch {
		case other == l:
		case l.unit != 0 && other.unit == l.unit && !other.suspended:
			sum = add(sum, p.wanted(other, d))
		default:
			for _, s := range other.seats {
				if s.Device == d {
					sum = add(sum, min(s.fixed, max(s.Taken, s.Wanted)))
				}
			}
		}
	}
	return sum
}

// Unfit reports whether an lgpu cannot come back to a device as things are, since more stays there than there is room for
// beside it. Then it returns the budget in bytes with which it could.
func (p *Policy) Unfit(id uint64, d Device) (budget uint64, is bool) {
	l, device := p.lgpus[id], p.devices[d]
	if l == nil {
		return 0, false
	}
	needs := uint64(0)
	for _, s := range l.seats {
		if s.Device == d {
			needs = add(needs, min(s.Wanted, s.least))
		}
	}
	if needs == 0 {
		return 0, false
	}
	budget = add(needs, p.stays(l, d))
	return budget, budget > device.budget
}

// Holds says what a client holds of a device, there or not: so much it wants back, even if it never asked for it, since
// its level had room. While something is away it allocates nothing: then it is all that it wants.
func (p *Policy) Holds(c Client, d Device, bytes uint64) {
	if l := p.lgpus[c.LGPU]; l != nil {
		if s := l.find(c, d); s != nil {
			bytes = min(bytes, s.most)
			if s.Wanted, s.least = max(s.Wanted, bytes), max(s.least, bytes); s.Level < bytes && !s.answer {
				s.Wanted, s.least = bytes, bytes
			}
		}
	}
}

// Kept is what a client says that it has resident: with the serial of the order that it answers, or 0 unasked or after a
// reconnect. why is not 0 if more than the level is resident. A client gives memory back by its word, and gets none by
// it.
func (p *Policy) Kept(now time.Time, c Client, d Device, serial, resident, why uint64) {
	l := p.lgpu(c.LGPU)
	s := l.find(c, d)
	if s == nil {
		if serial != 0 {
			p.forget(l)
			return
		}
		p.Restore(c, d, min(resident, p.devices[d].budget)) // nothing is known of it: its word counts as taken
		s = l.find(c, d)
	}
	resident = min(resident, s.Taken)
	switch {
	case !s.Linked: // the first word after a reconnect
		s.Linked, s.Resident, s.resync = true, resident, true
	case serial == 0:
		s.Resident = resident
		if s.Since.IsZero() && s.Level >= s.Wanted && !s.answer {
			s.Wanted = resident // the rest was freed
		}
	case serial == s.serial && !s.Since.IsZero():
		s.Resident, s.Since, s.Refused = resident, time.Time{}, why
		s.Taken = max(s.Level, resident, s.hidden)
		if why == 0 && (s.Level == 0 || resident > s.Level) {
			s.fixed = resident
		}
		if why != 0 {
			if s.Level >= s.Wanted {
				l.ask(now) // what did not come back is tried again
			}
			s.Level, s.Taken, s.retry = resident, max(resident, s.hidden), now.Add(p.options.Retry)
		}
		s.Away = why != 0 && resident < s.Wanted || s.Level < s.Wanted
	}
}

// Latest reports whether a serial is that of the latest order to a client, 0 if there was none. What a client says unasked, and
// has looked at before it had answered that order, may be what it had in the midst of a move: no memory need have been freed.
func (p *Policy) Latest(c Client, d Device, serial uint64) bool {
	if l := p.lgpus[c.LGPU]; l != nil {
		if s := l.find(c, d); s != nil {
			return s.serial == serial
		}
	}
	return serial == 0
}

// Moving is what a client has resident in the midst of the move that the order of that serial asked for. If that is the
// latest one, what has left by its word is free: an older one may still bring memory back.
func (p *Policy) Moving(now time.Time, c Client, d Device, serial, resident uint64) {
	l := p.lgpus[c.LGPU]
	if l == nil {
		return
	}
	s := l.find(c, d)
	if s == nil || !s.Linked || s.Since.IsZero() {
		return
	}
	s.tells, s.heard, s.Resident = true, now, min(resident, s.Taken)
	if serial != s.serial {
		return
	}
	s.Taken, s.Away = max(s.Level, s.Resident, s.hidden), s.Away || s.Level < s.Wanted
}

// slack is by how much more than a client says the driver may say, as both are not seen at the same time.
const slack = 256 << 20

// Seen is what the driver says that a client has of a device, some time after the client has answered all orders. It
// reports whether that is more than the client may have and says that it has: then what it has stays taken.
func (p *Policy) Seen(c Client, d Device, bytes uint64) (more bool) {
	l := p.lgpus[c.LGPU]
	if l == nil {
		return false
	}
	s := l.find(c, d)
	if s == nil || !s.Linked || !s.Since.IsZero() {
		return false
	}
	said := max(s.Level, s.Resident)
	switch more = bytes > add(said, slack+said/16); {
	case more:
		s.hidden, s.fixed, s.Taken = bytes, bytes, max(said, bytes)
	case s.hidden > 0:
		s.hidden, s.fixed, s.Taken = 0, 0, said
	}
	return more
}

// Retry lets a client be asked again at once that has refused an order: what it lacked is there.
func (p *Policy) Retry(c Client, d Device) {
	if l := p.lgpus[c.LGPU]; l != nil {
		if s := l.find(c, d); s != nil {
			s.retry = time.Time{}
		}
	}
}

// Seats returns what the clients of an lgpu have, by client and device.
func (p *Policy) Seats(id uint64) []Seat {
	l := p.lgpus[id]
	if l == nil {
		return nil
	}
	out := make([]Seat, 0, len(l.seats))
	for _, s := range l.seats {
		out = append(out, s.Seat)
	}
	return out
}

// Asks reports whether an lgpu waits for memory to come back, or for more.
func (p *Policy) Asks(id uint64) bool {
	l := p.lgpus[id]
	return l != nil && l.asking && !l.suspended
}

// Waiting reports whether an lgpu waits for memory to come back, or to leave.
func (p *Policy) Waiting(id uint64) bool {
	l := p.lgpus[id]
	return l != nil && (l.asking && !l.suspended || !l.answered())
}

// LGPUs returns all that the policy knows, in ascending order.
func (p *Policy) LGPUs() (ids []uint64) {
	for id := range p.lgpus {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (p *Policy) lgpu(id uint64) *lgpu {
	if p.lgpus[id] == nil {
		p.lgpus[id] = &lgpu{id: id}
	}
	return p.lgpus[id]
}

// forget drops an lgpu of which nothing is to be known.
func (p *Policy) forget(l *lgpu) {
	if len(l.seats) == 0 && !l.suspended {
		delete(p.lgpus, l.id)
	}
}

// answered reports whether all clients have answered their orders.
func (l *lgpu) answered() bool {
	return !slices.ContainsFunc(l.seats, func(s *seat) bool { return !s.Since.IsZero() })
}

// ask has an lgpu wait for its memory, if some is missing.
func (l *lgpu) ask(now time.Time) {
	if !l.asking {
		l.asking, l.since = true, now
	}
}

func (l *lgpu) find(c Client, d Device) *seat {
	for _, s := range l.seats {
		if s.Client == c && s.Device == d {
			return s
		}
	}
	return nil
}

func (l *lgpu) seat(c Client, d Device) *seat {
	if s := l.find(c, d); s != nil {
		return s
	}
	s := &seat{Seat: Seat{Client: c, Device: d}}
	l.seats = append(l.seats, s)
	slices.SortFunc(l.seats, func(a, b *seat) int {
		return cmp.Or(cmp.Compare(a.Client.Index, b.Client.Index), slices.Compare(a.Device[:], b.Device[:]))
	})
	return s
}

// order gives a client a level.
func (p *Policy) order(now time.Time, s *seat, level uint64) {
	p.serial++
	s.serial, s.Level, s.Since = p.serial, level, now
	s.Taken, s.most = max(s.Taken, level), max(s.most, level)
	s.resync, s.answer = false, s.answer && level < s.Wanted
	p.orders = append(p.orders, Order{Client: s.Client, Device: s.Device, Serial: s.serial, Level: level})
}

// add adds without going round.
func add(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}
