package tenant

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/lgpu/lgpu/tenant/region"
)

// maxHeld bounds what an lgpu can hold, so that sums cannot overflow. No machine has so much.
const maxHeld = 1 << 48

// counter is an lgpu's memory of one kind, as its processes see it. After a lower Grant, whoever has added more than
// that is in the next Used, or takes it back itself.
type counter interface {
	Grant(bytes uint64)
	Used() uint64
}

// pool is the memory of one kind (that of one device, or page-locked host memory) as groups and lgpus divide it. It
// keeps, for every budget, the sum of what the lgpus below it may hold within its max.
//
// Nothing in a counter is believed but that an lgpu holds less than it was granted.
type pool struct {
	budgets map[uint64]*budget
	shares  map[uint64]*share
	// order has the shares by ID, so that the same calls give the same grants.
	order []*share
}

// budget is what a group allows.
type budget struct {
	parent *budget
	max    uint64
	held   uint64 // sum of held of the shares below
	shares int    // below
	asked  uint64 // scratch of replan: what the shares below can come to hold, up to max
	tight  bool   // asked by the shares below is more than max
}

// share is an lgpu's part of a pool.
type share struct {
	id      uint64
	parent  *budget
	limit   uint64  // its own
	most    uint64  // what there is at all; at most maxHeld
	granted uint64  // what it may hold without asking; at most limit
	held    uint64  // what it holds at most
	counter counter // nil while it has none
	// frozen: some of its clients may not see a lower grant yet, so what it holds cannot become less.
	frozen bool
	// keep is called before held rises and after it fell, so that the next daemon knows it.
	keep func(held uint64)
}

func newPool() *pool { return &pool{budgets: map[uint64]*budget{}, shares: map[uint64]*share{}} }

// setBudgets replaces all budgets. parents[id] and max[id] describe them; shares[id] is the budget above a share. The
// caller has checked that the parents form a tree.
func (p *pool) setBudgets(parents, max, shares map[uint64]uint64) {
	p.budgets = make(map[uint64]*budget, len(parents))
	for id := range parents {
		p.budgets[id] = &budget{max: region.NoLimit}
		if m, ok := max[id]; ok {
			p.budgets[id].max = m
		}
	}
	for id, parent := range parents {
		p.budgets[id].parent = p.budgets[parent]
	}
	for _, s := range p.order {
		s.parent = p.budgets[shares[s.id]]
		s.above(func(b *budget) { b.held += s.held; b.shares++ })
	}
	p.replan()
}

// add takes a share in. It holds up to held already.
func (p *pool) add(s *share, parent uint64) {
	s.parent = p.budgets[parent]
	s.above(func(b *budget) { b.held += s.held; b.shares++ })
	p.shares[s.id] = s
	at, _ := slices.BinarySearchFunc(p.order, s.id, func(o *share, id uint64) int { return cmp.Compare(o.id, id) })
	p.order = slices.Insert(p.order, at, s)
	p.replan()
}

// remove forgets a share, which holds nothing any more.
func (p *pool) remove(id uint64) {
	s := p.shares[id]
	s.above(func(b *budget) { b.held -= s.held; b.shares-- })
	delete(p.shares, id)
	p.order = slices.DeleteFunc(p.order, func(o *share) bool { return o == s })
	p.replan()
}

// setLimit changes a share's own limit.
func (p *pool) setLimit(id, limit uint64) {
	p.shares[id].limit = limit
	p.replan()
}

// replan makes the grants fit limits and budgets that have changed: it takes back what is too much, and grants those
// whom no budget can stop all that they may have.
func (p *pool) replan() {
	for _, s := range p.order {
		if s.granted > s.limit {
			s.takeBack(s.limit)
		}
	}
	for _, s := range p.order {
		if s.over() {
			s.takeBack(min(s.granted, s.inUse()))
		}
	}
	for _, s := range p.order {
		if s.over() { // more is in use than there may be: until it is less, nobody gets anything
			s.takeBack(0)
		}
	}
	p.ask()
	for _, s := range p.order {
		if !s.bound() && s.granted < s.limit {
			s.give(s.limit)
		}
	}
}

// ask finds the budgets that are less than what the shares below can come to hold.
func (p *pool) ask() {
	children := map[*budget][]*budget{}
	for _, b := range p.budgets {
		b.asked, b.tight = 0, false
		children[b.parent] = append(children[b.parent], b)
	}
	for _, s := range p.order {
		if s.parent != nil {
			s.parent.asked = plus(s.parent.asked, max(min(s.limit, s.most), s.held))
		}
	}
	var visit func(b *budget)
	visit = func(b *budget) {
		for _, child := range children[b] {
			visit(child)
		}
		if b == nil {
			return
		}
		b.tight = b.asked > b.max
		if b.parent != nil {
			b.parent.asked = plus(b.parent.asked, max(min(b.asked, b.max), b.held))
		}
	}
	visit(nil)
}

// need grants a share that wants to have more bytes than it uses now as much, and some more to spare it the next
// question. False: its limit or a budget does not allow it, even with all that the others leave unused.
func (p *pool) need(id, bytes uint64) bool {
	s := p.shares[id]
	if s == nil || s.counter == nil {
		return false
	}
	used := s.inUse()
	want := plus(used, bytes)
	if want > min(s.limit, s.most) {
		return false
	}
	if want <= s.granted {
		return true
	}
	if !s.frozen {
		s.hold(max(s.granted, used))
	}
	enough := func(b *budget) bool { return plus(b.held, sub(want, s.held)) <= b.max }
	for b := s.parent; b != nil; b = b.parent {
		if !enough(b) {
			p.collect(b, s, func() bool { return enough(b) })
		}
		if !enough(b) {
			return false
		}
	}
	spare := min(s.limit, s.most) - want
	s.above(func(b *budget) { spare = min(spare, sub(b.max, plus(b.held, sub(want, s.held)))/2) })
	s.give(want + spare)
	return true
}

// collect takes back from the shares below b, all but one, what they do not use, until it is enough. Those that have
// the most go first.
func (p *pool) collect(b *budget, but *share, enough func() bool) {
	type unused struct {
		s     *share
		bytes uint64
	}
	var all []unused
	for _, s := range p.order {
		if s != but && s.counter != nil && !s.frozen && s.below(b) {
			if bytes := sub(s.held, s.inUse()); bytes > 0 {
				all = append(all, unused{s, bytes})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y unused) int { return cmp.Compare(y.bytes, x.bytes) })
	for _, u := range all {
		if enough() {
			return
		}
		u.s.takeBack(min(u.s.granted, u.s.inUse()))
	}
}

// attach gives a share its counter. frozen: some of its clients still go by an older grant, which was at most what the
// share holds.
func (p *pool) attach(id uint64, c counter, frozen bool) {
	s := p.shares[id]
	s.counter, s.frozen = c, frozen
	s.granted = min(s.held, s.limit)
	s.counter.Grant(s.granted)
	p.replan()
}

// thaw says that all clients of a share see its grant.
func (p *pool) thaw(id uint64) {
	s := p.shares[id]
	s.frozen = false
	s.takeBack(s.granted)
	p.replan()
}

// inUse is what a share uses, as far as that can be true.
func (s *share) inUse() uint64 {
	if s.counter == nil {
		return s.held
	}
	return min(s.counter.Used(), s.held)
}

// takeBack lowers the grant. What is in use by then stays held, though it can only become less.
func (s *share) takeBack(grant uint64) {
	if s.counter == nil {
		return
	}
	s.granted = grant
	s.counter.Grant(grant)
	if !s.frozen {
		s.hold(max(grant, s.inUse()))
	}
}

// give raises the grant.
func (s *share) give(grant uint64) {
	if s.counter == nil {
		return
	}
	s.hold(max(s.held, grant))
	s.granted = grant
	s.counter.Grant(grant)
}

// hold sets what the share holds at most.
func (s *share) hold(bytes uint64) {
	bytes = min(bytes, s.most)
	if bytes == s.held {
		return
	}
	s.above(func(b *budget) { b.held += bytes - s.held })
	s.held = bytes
	if s.keep != nil {
		s.keep(bytes)
	}
}

func (s *share) above(fn func(*budget)) {
	for b := s.parent; b != nil; b = b.parent {
		fn(b)
	}
}

func (s *share) below(b *budget) (is bool) {
	s.above(func(above *budget) { is = is || above == b })
	return is
}

// over reports whether a budget above the share is exceeded.
func (s *share) over() (is bool) {
	s.above(func(b *budget) { is = is || b.held > b.max })
	return is
}

// bound reports whether a budget above the share may stop it.
func (s *share) bound() (is bool) {
	s.above(func(b *budget) { is = is || b.tight })
	return is
}

// plus adds and stays at the greatest number instead of overflowing; sub subtracts and stays at zero.
func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return region.NoLimit
	}
	return sum
}

func sub(a, b uint64) uint64 { return a - min(a, b) }
