package schedule

import (
	"cmp"
	"slices"
)

// Memory says where the memory of a seat is: whether it can compute.
type Memory uint8

const (
	// Here is on the device. So it is of all seats of which nothing else is said.
	Here Memory = iota
	// Away is not there, or not all of it, or it is to leave: the seat's gate is closed and stays so.
	Away
	// Coming is away, and others have made room for it. For as long as nobody can use the device meanwhile, the seat that
	// the memory comes for is charged.
	Coming
)

// SetMemory says where the memory of a seat is. Here is the answer to Prepare: the seat may be opened from now on. Away,
// for one that is open, closes it; Resting says when that is done.
func (s *Scheduler) SetMemory(now int64, id ID, dev Device, m Memory) {
	s.setTime(now)
	if x := s.tree.seat(id, dev); x != nil && x.memory != m {
		x.settle()
		x.memory = m
		if j := x.job; j.phase == reserving && !j.here() {
			j.cancel()
		}
		x.job.mark()
	}
	s.tree.run()
}

// Resting reports whether all gates of the job of an lgpu are closed and drained: of the lgpu on all its devices, and of all
// that are in its gang.
func (s *Scheduler) Resting(id ID) bool {
	e := s.tree.entities[id]
	return e == nil || !slices.ContainsFunc(e.seats, func(x *seat) bool {
		return slices.ContainsFunc(x.job.seats, func(y *seat) bool { return y.open })
	})
}

// Place is a seat's place in the order in which a device is planned to be given to those that want it, or have it.
type Place struct {
	ID   ID
	Rank int   // who has a lower one goes first, whatever Lead
	Lead int64 // by how much more device time it has had than the first, at DefaultWeight, ns
}

// Order appends the planned order of a device to dst: the seats that have it, and those that wait for it, here or not.
func (s *Scheduler) Order(now int64, dev Device, dst []Place) []Place {
	s.setTime(now)
	s.tree.run()
	d, err := s.tree.device(dev)
	if err != nil {
		return dst
	}
	from := len(dst)
	var first *seat
	for _, x := range d.seats {
		x.settle()
		if x.hungry() && (first == nil || x.before(first)) {
			first = x
		}
	}
	for _, x := range d.seats {
		if x.hungry() || x.guest {
			dst = append(dst, Place{ID: x.entity.id, Rank: x.level(), Lead: leadOver(x, first)})
		}
	}
	slices.SortStableFunc(dst[from:], func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Lead, b.Lead))
	})
	return dst
}

// Idle is for how long an lgpu has shown no sign of work, in ns; 0 where it may have some that is not seen. It is false for
// one without seats.
func (s *Scheduler) Idle(now int64, id ID) (idle int64, ok bool) {
	s.setTime(now)
	e := s.tree.entities[id]
	if e == nil || len(e.seats) == 0 {
		return 0, false
	}
	used := int64(0)
	for _, x := range e.seats {
		if x.dev.free == x || x.wants {
			return 0, true
		}
		used = max(used, x.used)
	}
	return s.tree.now - used, true
}

// here reports whether the memory of all of the job's seats is on their devices.
func (j *job) here() bool {
	return !slices.ContainsFunc(j.seats, func(x *seat) bool { return x.memory != Here })
}

// announce asks for the memory of the seat that is to have the device next, of those whose memory is away.
func (d *device) announce() {
	var first *seat
	for _, x := range d.seats {
		if x.memory != Here && x.claiming && (first == nil || x.before(first)) {
			first = x
		}
	}
	if d.announced != first {
		if d.announced = first; first != nil {
			first.decide(Prepare)
		}
	}
}

// exposed is since when a seat is charged for a device that nobody can use while its memory comes, and whether it is.
func exposed(x *seat) (since int64, is bool) {
	d := x.dev
	if x.memory != Coming || !x.wants || d.owner != nil || d.free != nil {
		return 0, false
	}
	return d.vacant, !slices.ContainsFunc(d.seats, func(y *seat) bool { return y.guest && y.now < y.used+working })
}

// leadOver is by how much more device time a seat has had than another one, or those above them that are siblings.
func leadOver(x, y *seat) int64 {
	if y == nil || x == y {
		return 0
	}
	a, b := x.account, y.account
	for a.depth > b.depth {
		a = a.parent
	}
	for b.depth > a.depth {
		b = b.parent
	}
	for a.parent != b.parent {
		a, b = a.parent, b.parent
	}
	return mulDivSigned(a.vt-b.vt, int64(DefaultWeight), vtScale)
}
