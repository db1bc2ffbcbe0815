package schedule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Scheduler is the policy's state. Not safe for concurrent use.
type Scheduler struct {
	tree  *tree
	gangs map[string]*job
}

// New returns a scheduler without lgpus. Options out of range are brought into it.
func New(o Options) *Scheduler {
	return &Scheduler{tree: newTree(o.over(Options{}).fit()), gangs: map[string]*job{}}
}

// ErrDevice is wrapped by errors about a device number out of range.
var ErrDevice = errors.New("no such device")

// ErrEntity is wrapped by errors about groups and lgpus that do not exist or cannot be what is asked of them.
var ErrEntity = errors.New("not possible for this entity")

// ErrRange is wrapped by errors about values out of range.
var ErrRange = errors.New("out of range")

// SetDevice overrides options for one device, from its next slice on. Fields that are 0 are as given to New.
func (s *Scheduler) SetDevice(now int64, dev Device, o Options) error {
	s.setTime(now)
	d, err := s.tree.device(dev)
	if err != nil {
		return err
	}
	d.options = o.over(s.tree.options).fit()
	d.mark()
	s.tree.run()
	return nil
}

// Set creates an entity, or changes it; a change takes effect at once, also on open grants. An error changes nothing: a
// value out of range, an unknown parent, or one that has seats or is below the entity.
func (s *Scheduler) Set(now int64, id ID, p Params) error {
	s.setTime(now)
	parent, err := s.tree.check(id, p)
	if err != nil {
		return err
	}
	var before entity
	if e := s.tree.entities[id]; e != nil {
		before = *e
	}
	e := s.tree.place(id, parent)
	// The maps stay the caller's.
	p.Devices = slices.Clone(p.Devices)
	e.p = p
	s.tree.settle(e)
	for i, a := range e.accounts {
		a.limit(s.tree.now, e.devices[i])
	}
	e.p.Max, e.p.Min = maps.Clone(p.Max), maps.Clone(p.Min)
	if before.parent != parent {
		s.tree.relink()
	}
	if before.p.Gang != p.Gang {
		for _, x := range e.seats {
			s.regroup(x)
		}
	}
	s.applyToGrants(e)
	s.tree.run()
	return nil
}

// applyToGrants applies what has changed for an entity to open grants.
func (s *Scheduler) applyToGrants(e *entity) {
	for _, d := range s.tree.devices {
		if d == nil {
			continue
		}
		touched := false
		for _, x := range d.seats {
			if !x.entity.within(e) {
				continue
			}
			touched = true
			if x.granted && x.open && x.job.phase == running {
				if x.entity.mayUse(d.id) {
					x.extend(true)
				} else {
					x.job.close()
				}
			} else if x.guest {
				x.extend(true)
			}
		}
		if touched {
			d.mark()
		}
	}
}

// regroup moves a seat to the job that its lgpu's gang asks for. Its grant is over at once, since the other seats of
// the grant belong to another job: the seat is charged beside the next owner of the device until it has drained.
func (s *Scheduler) regroup(x *seat) {
	old := x.job
	x.settle()
	old.seats = without(old.seats, x)
	if x.late {
		old.late--
	}
	x.job = nil
	s.adopt(x)
	if (x.granted || x.guest) && x.open {
		if !x.closeSent {
			x.closeSent = true
			x.decide(Close)
		}
		x.decide(Overran)
		x.late, x.guest = true, false
	}
	if x.late {
		x.job.late++
	}
	if x.granted {
		x.granted = false
		old.granted = without(old.granted, x)
		x.dev.passOn(old)
	}
	old.advance()
	s.dropEmpty(old)
	for _, y := range append(slices.Clone(old.seats), x.job.seats...) {
		y.dev.mark()
	}
}

// adopt puts a seat without a job into the one it belongs to.
func (s *Scheduler) adopt(x *seat) {
	gang := x.entity.p.Gang
	var j *job
	if gang != "" {
		j = s.gangs[gang]
	} else {
		for _, y := range x.entity.seats {
			if y != x && y.job != nil && y.job.gang == "" {
				j = y.job
			}
		}
	}
	if j == nil {
		j = &job{core: s.tree.core, gang: gang}
		if gang != "" {
			s.gangs[gang] = j
		}
	}
	j.add(x)
	j.used = max(j.used, x.used)
}

// dropEmpty forgets a gang's job that has no seats any more.
func (s *Scheduler) dropEmpty(j *job) {
	if len(j.seats) == 0 && s.gangs[j.gang] == j {
		delete(s.gangs, j.gang)
	}
}

// Remove ends an entity and its seats, as Detach does. Children of a group move to its parent.
func (s *Scheduler) Remove(now int64, id ID) {
	s.setTime(now)
	e := s.tree.entities[id]
	if e == nil {
		return
	}
	for len(e.seats) > 0 {
		s.detach(e.seats[len(e.seats)-1])
	}
	s.tree.remove(e)
	s.tree.run()
}

// Attach gives an lgpu a seat on a device; busy is its Busy at present. It may decide Free at once. Errors: an unknown
// ID, a group, or a device out of range. For a seat that exists already, it is Progress.
func (s *Scheduler) Attach(now int64, id ID, dev Device, busy int64) error {
	s.setTime(now)
	e := s.tree.entities[id]
	if e == nil {
		return fmt.Errorf("attach entity %d: %w: it does not exist", id, ErrEntity)
	}
	if e.children > 0 {
		return fmt.Errorf("attach entity %d: %w: it is a group", id, ErrEntity)
	}
	d, err := s.tree.device(dev)
	if err != nil {
		return fmt.Errorf("attach entity %d: %w", id, err)
	}
	if x := e.seat(dev); x != nil {
		x.report(busy)
		s.tree.run()
		return nil
	}
	x := newSeat(e, d, busy)
	i, _ := slices.BinarySearchFunc(e.seats, x, bySeat)
	e.seats = slices.Insert(e.seats, i, x)
	i, _ = slices.BinarySearchFunc(d.seats, x, bySeat)
	d.seats = slices.Insert(d.seats, i, x)
	s.adopt(x)
	x.job.mark()
	s.tree.run()
	return nil
}

// Detach takes the seat away; a grant or drain ends here.
func (s *Scheduler) Detach(now int64, id ID, dev Device) {
	s.setTime(now)
	if x := s.tree.seat(id, dev); x != nil {
		s.detach(x)
		s.tree.run()
	}
}

func (s *Scheduler) detach(x *seat) {
	d, j := x.dev, x.job
	x.settle()
	x.compete(0)
	x.account.known = &x.presence
	x.entity.seats = without(x.entity.seats, x)
	d.seats = without(d.seats, x)
	j.seats = without(j.seats, x)
	x.endBeside()
	if d.free == x {
		d.free = nil
	}
	if d.announced == x {
		d.announced = nil
	}
	if x.granted {
		j.granted = without(j.granted, x)
		x.granted = false
		d.passOn(j)
	}
	s.dropEmpty(j)
	j.advance()
	j.mark()
	d.mark()
	s.tree.forget(x)
}

// report moves the time forward and tells a seat its Busy; nil if there is no such seat.
func (s *Scheduler) report(now int64, id ID, dev Device, busy int64) *seat {
	s.setTime(now)
	x := s.tree.seat(id, dev)
	if x != nil {
		x.report(busy)
	}
	return x
}

// Want says that the seat has work and its gate is closed.
func (s *Scheduler) Want(now int64, id ID, dev Device, busy int64) {
	x := s.report(now, id, dev, busy)
	if x == nil {
		return
	}
	x.want()
	s.tree.run()
}

// Closed says that the grant has ended and the device is drained of its work; waiting says that there is more.
func (s *Scheduler) Closed(now int64, id ID, dev Device, busy int64, waiting bool) {
	x := s.report(now, id, dev, busy)
	if x == nil {
		return
	}
	x.dev.mark()
	if x.open {
		x.drained(waiting)
	} else if waiting {
		x.want()
	}
	s.tree.run()
}

// Progress says how far Busy has come.
func (s *Scheduler) Progress(now int64, id ID, dev Device, busy int64) {
	s.ProgressAll(now, []Used{{id, dev, busy}})
}

// progressed has the terms of a grant follow the seat's Busy.
func progressed(x *seat) {
	switch {
	case x.guest:
		x.dev.mark()
	case x.granted && x.open && !x.dev.contended && x.job.phase == running:
		x.extend(false)
	}
}

// Used is how far the Busy of a seat has come.
type Used struct {
	ID     ID
	Device Device
	Busy   int64
}

// ProgressAll is Progress for several seats at once: the policy then looks at each device once.
func (s *Scheduler) ProgressAll(now int64, all []Used) {
	for _, u := range all {
		if x := s.report(now, u.ID, u.Device, u.Busy); x != nil {
			progressed(x)
		}
	}
	s.tree.run()
}

// Measured says for how long the hardware has run the work of seats on a device, by its own notes. Busy, of which a
// Progress should have come just before, is the time with work in flight, in which the device may have worked for
// others, or for nobody. Guests are charged what they really use; between two calls, the part of their Busy that was
// device time before. A device with Options.Preempt needs it some ten times a second.
func (s *Scheduler) Measured(now int64, dev Device, ran []Ran) {
	s.setTime(now)
	if d, err := s.tree.device(dev); err == nil {
		d.measured(ran)
	}
	s.tree.run()
}

// Preempted says whether the hardware stops a seat's kernels at the end of its time slice, on a device where it can. It
// does until something else is said. While a seat that it does not stop uses the device, nobody is a guest there.
func (s *Scheduler) Preempted(now int64, id ID, dev Device, stops bool) {
	s.setTime(now)
	if x := s.tree.seat(id, dev); x != nil && x.presence.unstopped == stops {
		x.presence.unstopped = !stops
		x.dev.mark()
	}
	s.tree.run()
}

// Utilised says in which part of the last second the device worked, in percent.
func (s *Scheduler) Utilised(now int64, dev Device, percent int) {
	s.setTime(now)
	if d, err := s.tree.device(dev); err == nil {
		d.utilised(percent)
	}
	s.tree.run()
}

// Tick lets time pass. Call it at Next, or whenever convenient.
func (s *Scheduler) Tick(now int64) {
	s.setTime(now)
	s.tree.run()
}

// Next is the time at which Tick must be called unless something happens before; false: not at all.
func (s *Scheduler) Next() (int64, bool) {
	next := forever + latest
	for _, d := range s.tree.devices {
		if d != nil {
			next = min(next, d.tick)
		}
	}
	if next >= latest {
		return 0, false
	}
	return next, true
}

// Decisions returns what has been decided since the last call, in order. The slice is valid until Decisions is called
// again. There is none for a seat that has been detached since.
func (s *Scheduler) Decisions() []Decision { return s.tree.fetch() }

// setTime moves the time forward and marks the devices that are due.
func (s *Scheduler) setTime(now int64) {
	s.tree.now = max(s.tree.now, clampTime(now))
	for _, d := range s.tree.devices {
		if d != nil && d.tick <= s.tree.now {
			d.lapsed(s.tree.now - d.tick)
			d.mark()
		}
	}
}

func clampTime(v int64) int64 { return max(0, min(v, latest)) }
