package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

const (
	latest   int64 = 1 << 61 // the largest time or Busy, so that sums do not overflow
	sliceMin int64 = 2e6
	sliceMax int64 = 50e6

	lead     int64 = 2_500_000 // so long before a slice ends it is decided who is next: work in flight is shorter
	grace    int64 = 500e3     // so long after it Close is sent to a seat that has not closed by itself
	perDrain int64 = 20        // a slice is at least so many times as long as its holder drains beyond it
)

// Scheduler is the policy's state. Not safe for concurrent use.
type Scheduler struct {
	options Options
	now     int64
	nodes   map[ID]*node
	gangs   map[string]*job
	devices []*device // by Device; nil: not seen yet
	dirty   []*device
	out     []Decision
	spare   []Decision
}

// New returns a scheduler without nodes. Options out of range are brought into it.
func New(o Options) *Scheduler {
	return &Scheduler{options: o.over(Options{}).fit(), nodes: map[ID]*node{}, gangs: map[string]*job{}}
}

// over returns o with the fields of below where o has none.
func (o Options) over(below Options) Options {
	return Options{
		Slice:      cmp.Or(o.Slice, below.Slice),
		SliceMax:   cmp.Or(o.SliceMax, below.SliceMax),
		Quantum:    cmp.Or(o.Quantum, below.Quantum),
		Burst:      cmp.Or(o.Burst, below.Burst),
		DrainBound: cmp.Or(o.DrainBound, below.DrainBound),
		SeepAfter:  cmp.Or(o.SeepAfter, below.SeepAfter),
	}
}

// fit fills in defaults and keeps every field in its range.
func (o Options) fit() Options {
	within := func(v, fallback, low, high int64) int64 { return max(low, min(cmp.Or(v, fallback), high)) }
	o.Slice = within(o.Slice, 10e6, sliceMin, sliceMax)
	o.SliceMax = within(o.SliceMax, 5*o.Slice, o.Slice, 4*sliceMax)
	o.Quantum = within(o.Quantum, 5e6, 100e3, second)
	o.Burst = within(o.Burst, 20e6, o.Quantum, second)
	o.DrainBound = within(o.DrainBound, 100e6, 1e6, 60*second)
	o.SeepAfter = within(o.SeepAfter, 500e3, 100e3, second)
	return o
}

// ErrDevice is wrapped by errors about a device number out of range.
var ErrDevice = errors.New("no such device")

// ErrNode is wrapped by errors about nodes that do not exist or cannot be what is asked of them.
var ErrNode = errors.New("not possible for this node")

// ErrRange is wrapped by errors about values out of range.
var ErrRange = errors.New("out of range")

// SetDevice overrides options for one device, from its next slice on. Fields that are 0 are as given to New.
func (s *Scheduler) SetDevice(now int64, dev Device, o Options) error {
	s.advance(now)
	d, err := s.device(dev)
	if err != nil {
		return err
	}
	d.options = o.over(s.options).fit()
	s.mark(d)
	s.run()
	return nil
}

// Set makes a node, or changes it; a change takes effect at once, also on open grants. An error changes nothing: a
// value out of range, an unknown parent, or one that has seats or is below the node.
func (s *Scheduler) Set(now int64, id ID, p Params) error {
	s.advance(now)
	up, err := s.check(id, p)
	if err != nil {
		return err
	}
	n := s.nodes[id]
	if n == nil {
		n = &node{id: id}
		s.nodes[id] = n
	} else if n.up != nil {
		n.up.children--
	}
	if up != nil {
		up.children++
	}
	// The maps stay the caller's.
	p.Devices = slices.Clone(p.Devices)
	moved := n.up != up
	regroup := n.p.Gang != p.Gang
	n.up, n.p = up, p
	s.settle(n)
	for i, a := range n.accounts {
		s.limit(a, n.devices[i])
	}
	n.p.Cap, n.p.Min = maps.Clone(p.Cap), maps.Clone(p.Min)
	if moved {
		s.relink()
	}
	if regroup {
		for _, x := range n.seats {
			s.regroup(x)
		}
	}
	s.retell(n)
	s.run()
	return nil
}

// check returns the parent that p asks for.
func (s *Scheduler) check(id ID, p Params) (*node, error) {
	if id == 0 {
		return nil, fmt.Errorf("set node 0: %w: 0 is the top", ErrNode)
	}
	if p.Weight > MaxWeight {
		return nil, fmt.Errorf("weight %d of node %d: %w 1..%d", p.Weight, id, ErrRange, MaxWeight)
	}
	for _, limits := range []map[Device]uint32{p.Cap, p.Min} {
		for dev, v := range limits {
			if v > Whole {
				return nil, fmt.Errorf("limit %d of node %d on device %d: %w 0..%d", v, id, dev, ErrRange, Whole)
			}
		}
	}
	for dev, v := range p.Cap {
		if v == 0 {
			return nil, fmt.Errorf("cap 0 of node %d on device %d: %w 1..%d", id, dev, ErrRange, Whole)
		}
	}
	if p.Parent == 0 {
		return nil, nil
	}
	up := s.nodes[p.Parent]
	switch n := s.nodes[id]; {
	case up == nil:
		return nil, fmt.Errorf("parent %d of node %d: %w: it does not exist", p.Parent, id, ErrNode)
	case len(up.seats) > 0:
		return nil, fmt.Errorf("parent %d of node %d: %w: it is an lgpu in use", p.Parent, id, ErrNode)
	case n != nil && up.below(n):
		return nil, fmt.Errorf("parent %d of node %d: %w: it is the node or below it", p.Parent, id, ErrNode)
	}
	return up, nil
}

// limit applies a node's parameters to its account on a device.
func (s *Scheduler) limit(a *account, dev Device) {
	a.weight = int64(cmp.Or(a.node.p.Weight, DefaultWeight))
	limit, floor := int64(a.node.p.Cap[dev]), int64(a.node.p.Min[dev])
	if limit == int64(Whole) {
		limit = 0
	}
	switch {
	case limit == a.cap || limit == 0:
	case a.cap == 0:
		a.paid = s.now // a cap that comes holds from now on
	default:
		// Credit and debt are amounts of device time and outlive a change of the rate.
		if credit := a.credit(s.now); credit >= 0 {
			a.paid = s.now - wall(credit, limit)
		} else {
			a.paid = s.now + wall(-credit, limit)
		}
	}
	if a.min == 0 {
		a.owed = s.now
	} else if floor != 0 && a.owed > s.now {
		a.owed = s.now + mulDiv(a.owed-s.now, a.min, floor)
	}
	a.cap, a.min = limit, floor
}

// account finds or makes a node's account on a device; of no node, the device's top.
func (s *Scheduler) account(n *node, d *device) *account {
	if n == nil {
		return d.top
	}
	i, found := slices.BinarySearch(n.devices, d.id)
	if found {
		return n.accounts[i]
	}
	up := s.account(n.up, d)
	a := &account{node: n, up: up, depth: up.depth + 1, vt: up.floor, melted: up.melt}
	s.limit(a, d.id)
	if a.cap > 0 {
		a.paid = s.now - wall(d.options.Burst, a.cap)
	}
	n.accounts = slices.Insert(n.accounts, i, a)
	n.devices = slices.Insert(n.devices, i, d.id)
	return a
}

// relink makes the accounts' trees like the nodes' again, after a node has moved: rare, so all of it.
func (s *Scheduler) relink() {
	var in []*seat
	for _, d := range s.devices {
		if d == nil {
			continue
		}
		for _, x := range d.seats {
			if x.levels > 0 {
				s.take(x, 0)
				in = append(in, x)
			}
		}
		s.mark(d)
	}
	// Parents first: an account that is made on the way needs its own parent right.
	var link func(n *node, d *device) *account
	link = func(n *node, d *device) *account {
		if n == nil {
			return d.top
		}
		up := link(n.up, d)
		a := s.account(n, d)
		if a.up != up {
			a.vt, a.up, a.melted = up.floor, up, up.melt
		}
		a.depth = up.depth + 1
		return a
	}
	for _, id := range s.ids() {
		n := s.nodes[id]
		for _, dev := range n.devices {
			link(n, s.devices[dev])
		}
	}
	for _, x := range in {
		s.take(x, x.depth)
	}
}

func (s *Scheduler) ids() []ID {
	ids := make([]ID, 0, len(s.nodes))
	for id := range s.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// settle charges what the clock says to all seats below n, before what they are charged by changes.
func (s *Scheduler) settle(n *node) {
	for _, d := range s.devices {
		if d == nil {
			continue
		}
		for _, x := range d.seats {
			if x.node.below(n) {
				s.count(x)
			}
		}
	}
}

// retell has what changed for n reach open grants.
func (s *Scheduler) retell(n *node) {
	for _, d := range s.devices {
		if d == nil {
			continue
		}
		touched := false
		for _, x := range d.seats {
			if !x.node.below(n) {
				continue
			}
			touched = true
			if x.held && x.open && x.job.phase == running {
				if x.node.mayUse(d.id) {
					s.extend(x, true)
				} else {
					s.close(x.job)
				}
			}
		}
		if touched {
			s.mark(d)
		}
	}
}

// regroup moves a seat to the job that its node's gang says. Its grant is over at once, as others hold it to be another
// job's: it is charged beside whoever gets the device until it has drained.
func (s *Scheduler) regroup(x *seat) {
	old := x.job
	s.count(x)
	old.seats = without(old.seats, x)
	if x.late {
		old.late--
	}
	x.job = nil
	s.adopt(x)
	if x.held && x.open && !x.told {
		x.told = true
		s.decide(Close, x)
	}
	if x.held && x.open {
		s.decide(Overran, x)
		x.late = true
	}
	if x.late {
		x.job.late++
	}
	if x.held {
		x.held = false
		old.held = without(old.held, x)
		s.leave(x.dev, old)
	}
	s.ended(old)
	if len(old.seats) == 0 && s.gangs[old.gang] == old {
		delete(s.gangs, old.gang)
	}
	for _, y := range append(slices.Clone(old.seats), x.job.seats...) {
		s.mark(y.dev)
	}
}

// adopt puts a seat without a job into the one it belongs to.
func (s *Scheduler) adopt(x *seat) {
	gang := x.node.p.Gang
	var j *job
	if gang != "" {
		j = s.gangs[gang]
	} else {
		for _, y := range x.node.seats {
			if y != x && y.job != nil && y.job.gang == "" {
				j = y.job
			}
		}
	}
	if j == nil {
		j = &job{gang: gang}
		if gang != "" {
			s.gangs[gang] = j
		}
	}
	j.add(x)
	j.used = max(j.used, x.used)
}

// Remove ends a node and its seats, as Detach does. Children of a group move to its parent.
func (s *Scheduler) Remove(now int64, id ID) {
	s.advance(now)
	n := s.nodes[id]
	if n == nil {
		return
	}
	for len(n.seats) > 0 {
		s.detach(n.seats[len(n.seats)-1])
	}
	delete(s.nodes, id)
	if n.up != nil {
		n.up.children--
	}
	if n.children > 0 {
		for _, id := range s.ids() {
			if m := s.nodes[id]; m.up == n {
				m.up = n.up
				m.p.Parent = n.p.Parent
				if n.up != nil {
					n.up.children++
				}
			}
		}
		s.relink()
	}
	s.run()
}

// Attach gives an lgpu a seat on a device; busy is where its Busy stands. It may decide Free at once. Errors: unknown
// node, a group, or a device out of range. Again for a seat that exists, it is Progress.
func (s *Scheduler) Attach(now int64, id ID, dev Device, busy int64) error {
	s.advance(now)
	n := s.nodes[id]
	if n == nil {
		return fmt.Errorf("attach node %d: %w: it does not exist", id, ErrNode)
	}
	if n.children > 0 {
		return fmt.Errorf("attach node %d: %w: it is a group", id, ErrNode)
	}
	d, err := s.device(dev)
	if err != nil {
		return fmt.Errorf("attach node %d: %w", id, err)
	}
	if x := n.seat(dev); x != nil {
		s.report(x, busy)
		s.run()
		return nil
	}
	x := &seat{node: n, dev: d, account: s.account(n, d), busy: within(busy), reported: s.now, marked: s.now, moved: s.now,
		since: s.now, used: s.now}
	i, _ := slices.BinarySearchFunc(n.seats, x, bySeat)
	n.seats = slices.Insert(n.seats, i, x)
	i, _ = slices.BinarySearchFunc(d.seats, x, bySeat)
	d.seats = slices.Insert(d.seats, i, x)
	s.adopt(x)
	s.mark(d)
	s.run()
	return nil
}

// Detach takes the seat away; a grant or drain ends here.
func (s *Scheduler) Detach(now int64, id ID, dev Device) {
	s.advance(now)
	if x := s.seat(id, dev); x != nil {
		s.detach(x)
		s.run()
	}
}

func (s *Scheduler) detach(x *seat) {
	d, j := x.dev, x.job
	s.count(x)
	s.take(x, 0)
	x.node.seats = without(x.node.seats, x)
	d.seats = without(d.seats, x)
	j.seats = without(j.seats, x)
	s.punctual(x)
	if d.free == x {
		d.free = nil
	}
	if x.held {
		j.held = without(j.held, x)
		x.held = false
		s.leave(d, j)
	}
	if len(j.seats) == 0 && s.gangs[j.gang] == j {
		delete(s.gangs, j.gang)
	}
	s.ended(j)
	for _, y := range j.seats {
		s.mark(y.dev)
	}
	s.mark(d)
	s.out = slices.DeleteFunc(s.out, func(o Decision) bool { return o.ID == x.node.id && o.Device == d.id })
}

// Want says that the seat has work and its gate is closed.
func (s *Scheduler) Want(now int64, id ID, dev Device, busy int64) {
	s.advance(now)
	x := s.seat(id, dev)
	if x == nil {
		return
	}
	s.report(x, busy)
	s.want(x)
	s.run()
}

func (s *Scheduler) want(x *seat) {
	s.worked(x)
	if x.open {
		x.wants = x.told // for after Closed; or it need not have asked
		return
	}
	if !x.wants {
		x.wants, x.since = true, s.now
	}
	s.mark(x.dev)
	j := x.job
	if j.phase != running {
		return
	}
	if x.held { // yielded while the rest of its gang went on
		s.open(x)
	} else if d := x.dev; d.holder != j && d.next != j {
		// A gang that needs another device than it was thought to.
		if d.holder == nil && d.next == nil && s.funded(x) {
			d.holder = j
			x.held = true
			j.held = append(j.held, x)
			slices.SortFunc(j.held, bySeat)
			s.open(x)
		} else {
			s.close(j)
		}
	}
}

// Closed says that the grant has ended and the device is drained of its work; waiting, that there is more.
func (s *Scheduler) Closed(now int64, id ID, dev Device, busy int64, waiting bool) {
	s.advance(now)
	x := s.seat(id, dev)
	if x == nil {
		return
	}
	s.report(x, busy)
	d, j := x.dev, x.job
	s.mark(d)
	if !x.open {
		if waiting {
			s.want(x)
		}
		s.run()
		return
	}
	waiting = waiting || x.wants
	x.open, x.told, x.since, x.wants = false, false, s.now, waiting
	if waiting {
		s.worked(x)
	}
	if d.free == x {
		d.free = nil
	}
	s.punctual(x)
	if x.held {
		if j.last && j.ends != 0 && s.now >= j.ends {
			over := s.now - j.ends
			x.drain += (over - x.drain) / 4
		}
		if waiting && j.phase == running {
			s.close(j)
		}
		s.ended(j)
	}
	for _, y := range j.seats {
		s.mark(y.dev)
	}
	s.run()
}

// Progress says how far Busy has come.
func (s *Scheduler) Progress(now int64, id ID, dev Device, busy int64) {
	s.advance(now)
	x := s.seat(id, dev)
	if x == nil {
		return
	}
	s.report(x, busy)
	if x.held && x.open && !x.dev.contended && x.job.phase == running {
		s.extend(x, false)
	}
	s.run()
}

// Tick lets time pass. Call it at Next, or whenever convenient.
func (s *Scheduler) Tick(now int64) {
	s.advance(now)
	s.run()
}

// Next is the time at which Tick must be called unless something happens before; false: not at all.
func (s *Scheduler) Next() (int64, bool) {
	next := forever + latest
	for _, d := range s.devices {
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
func (s *Scheduler) Decisions() []Decision {
	out := s.out
	s.out, s.spare = s.spare[:0], out
	return out
}

func within(v int64) int64 { return max(0, min(v, latest)) }

func (s *Scheduler) advance(now int64) {
	s.now = max(s.now, within(now))
	for _, d := range s.devices {
		if d != nil && d.tick <= s.now {
			s.mark(d)
		}
	}
}

func (s *Scheduler) device(dev Device) (*device, error) {
	if dev < 0 || dev >= MaxDevices {
		return nil, fmt.Errorf("device %d: %w: 0..%d", dev, ErrDevice, MaxDevices-1)
	}
	for int(dev) >= len(s.devices) {
		s.devices = append(s.devices, nil)
	}
	if s.devices[dev] == nil {
		s.devices[dev] = &device{id: dev, options: s.options, top: &account{}, tick: forever + latest}
	}
	return s.devices[dev], nil
}

func (s *Scheduler) seat(id ID, dev Device) *seat {
	if n := s.nodes[id]; n != nil {
		return n.seat(dev)
	}
	return nil
}

func (s *Scheduler) mark(d *device) {
	if !d.dirty {
		d.dirty = true
		s.dirty = append(s.dirty, d)
	}
}

// run looks at every device that something happened to until all is decided.
func (s *Scheduler) run() {
	for i := 0; i < len(s.dirty); i++ {
		d := s.dirty[i]
		d.dirty = false
		s.step(d)
	}
	s.dirty = s.dirty[:0]
}
