package tenant

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/lgpu/lgpu/tenant/region"
)

// maxMemory bounds what an lgpu can be charged for, so that sums cannot overflow. No machine has so much.
const maxMemory = 1 << 48

// counter is an lgpu's memory of one kind, as its processes see it. After a lower Grant, a process that had added more
// than that is in the next Used, or undoes it itself.
type counter interface {
	Grant(bytes uint64)
	Used() uint64
}

// pool is the memory of one kind (that of one device, or page-locked host memory) as groups and lgpus divide it. It
// keeps, for every budget, the sum of what the lgpus below it are charged for within its max.
//
// A counter is believed in one thing only: that an lgpu uses less than it was granted.
type pool struct {
	budgets map[uint64]*budget
	quotas  map[uint64]*quota
	// order has the shares by ID, so that the same calls give the same grants.
	order []*quota
}

// budget is what a group allows.
type budget struct {
	id      uint64
	parent  *budget
	max     uint64
	charged uint64 // sum of the quotas below
	quotas  int    // below
	asked   uint64 // scratch of replan: what the quotas below may come to, up to max
	tight   bool   // the quotas below ask for more than max
}

// quota is an lgpu's part of a pool.
type quota struct {
	id      uint64
	parent  *budget
	limit   uint64  // its own
	most    uint64  // what there is at all; at most maxHeld
	granted uint64  // what it may use without asking; at most limit
	charged uint64  // the most that it can use now
	counter counter // nil while it has none
	// frozen: some of its clients may not see a lower grant yet, so charged cannot become less.
	frozen bool
	// keep is called before charged rises and after it fell, so that the next daemon knows it.
	keep func(charged uint64)
}

func newPool() *pool { return &pool{budgets: map[uint64]*budget{}, quotas: map[uint64]*quota{}} }

// setBudgets replaces all budgets. parents[id] and max[id] describe them; quotas[id] is the budget above a quota. The
// caller has checked that the parents form a tree.
func (p *pool) setBudgets(parents, max, quotas map[uint64]uint64) {
	p.budgets = make(map[uint64]*budget, len(parents))
	for id := range parents {
		p.budgets[id] = &budget{id: id, max: region.NoLimit}
		if m, ok := max[id]; ok {
			p.budgets[id].max = m
		}
	}
	for id, parent := range parents {
		p.budgets[id].parent = p.budgets[parent]
	}
	for _, s := range p.order {
		s.parent = p.budgets[quotas[s.id]]
		s.above(func(b *budget) { b.charged += s.charged; b.quotas++ })
	}
	p.replan()
}

// add adds a quota, of which up to charged is used already.
func (p *pool) add(s *quota, parent uint64) {
	s.parent = p.budgets[parent]
	s.above(func(b *budget) { b.charged += s.charged; b.quotas++ })
	p.quotas[s.id] = s
	at, _ := slices.BinarySearchFunc(p.order, s.id, func(o *quota, id uint64) int { return cmp.Compare(o.id, id) })
	p.order = slices.Insert(p.order, at, s)
	p.replan()
}

// remove forgets a quota, of which nothing is used any more.
func (p *pool) remove(id uint64) {
	s := p.quotas[id]
	s.above(func(b *budget) { b.charged -= s.charged; b.quotas-- })
	delete(p.quotas, id)
	p.order = slices.DeleteFunc(p.order, func(o *quota) bool { return o == s })
	p.replan()
}

// setLimit changes a quota's own limit.
func (p *pool) setLimit(id, limit uint64) {
	p.quotas[id].limit = limit
	p.replan()
}

// replan makes the grants fit limits and budgets that have changed: it takes back what is too much, and grants their
// whole limit to those that no budget can stop.
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
		if s.over() { // more is in use than is allowed: until it is less, nobody gets anything
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

// ask finds the budgets that are less than what the quotas below may come to.
func (p *pool) ask() {
	children := map[*budget][]*budget{}
	for _, b := range p.budgets {
		b.asked, b.tight = 0, false
		children[b.parent] = append(children[b.parent], b)
	}
	for _, s := range p.order {
		if s.parent != nil {
			s.parent.asked = plus(s.parent.asked, max(min(s.limit, s.most), s.charged))
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
			b.parent.asked = plus(b.parent.asked, max(min(b.asked, b.max), b.charged))
		}
	}
	visit(nil)
}

// need grants a quota so many bytes more than it uses now, and some to spare, which saves the next question. False: the
// limit of the quota or the budget with the ID by does not allow it, even with all that the others leave unused.
func (p *pool) need(id, bytes uint64) (by uint64, ok bool) {
	s := p.quotas[id]
	if s == nil || s.counter == nil {
		return id, false
	}
	used := s.inUse()
	want := plus(used, bytes)
	if want > min(s.limit, s.most) {
		return id, false
	}
	if want <= s.granted {
		return 0, true
	}
	if !s.frozen {
		s.charge(max(s.granted, used))
	}
	enough := func(b *budget) bool { return plus(b.charged, sub(want, s.charged)) <= b.max }
	for b := s.parent; b != nil; b = b.parent {
		if !enough(b) {
			p.collect(b, s, func() bool { return enough(b) })
		}
		if !enough(b) {
			return b.id, false
		}
	}
	spare := min(s.limit, s.most) - want
	s.above(func(b *budget) { spare = min(spare, sub(b.max, plus(b.charged, sub(want, s.charged)))/2) })
	s.give(want + spare)
	return 0, true
}

// collect takes back from the quotas below b, except one, what they do not use, until it is enough. It begins with
// those that have the most unused.
func (p *pool) collect(b *budget, but *quota, enough func() bool) {
	type unused struct {
		s     *quota
		bytes uint64
	}
	var all []unused
	for _, s := range p.order {
		if s != but && s.counter != nil && !s.frozen && s.below(b) {
			if bytes := sub(s.charged, s.inUse()); bytes > 0 {
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

// attach gives a quota its counter. frozen: some of its clients still go by an older grant, which was at most charged.
func (p *pool) attach(id uint64, c counter, frozen bool) {
	s := p.quotas[id]
	s.counter, s.frozen = c, frozen
	s.granted = min(s.charged, s.limit)
	s.counter.Grant(s.granted)
	p.replan()
}

// thaw says that all clients of a quota see its grant.
func (p *pool) thaw(id uint64) {
	s := p.quotas[id]
	s.frozen = false
	s.takeBack(s.granted)
	p.replan()
}

// inUse is what a quota uses: what its counter says, as far as that can be true.
func (s *quota) inUse() uint64 {
	if s.counter == nil {
		return s.charged
	}
	return min(s.counter.Used(), s.charged)
}

// takeBack lowers the grant. What is in use by then stays charged; it can only become less.
func (s *quota) takeBack(grant uint64) {
	if s.counter == nil {
		return
	}
	s.granted = grant
	s.counter.Grant(grant)
	if !s.frozen {
		s.charge(max(grant, s.inUse()))
	}
}

// give raises the grant.
func (s *quota) give(grant uint64) {
	if s.counter == nil {
		return
	}
	s.charge(max(s.charged, grant))
	s.granted = grant
	s.counter.Grant(grant)
}

// charge sets the most that the quota can use.
func (s *quota) charge(bytes uint64) {
	bytes = min(bytes, s.most)
	if bytes == s.charged {
		return
	}
	s.above(func(b *budget) { b.charged += bytes - s.charged })
	s.charged = bytes
	if s.keep != nil {
		s.keep(bytes)
	}
}

func (s *quota) above(fn func(*budget)) {
	for b := s.parent; b != nil; b = b.parent {
		fn(b)
	}
}

func (s *quota) below(b *budget) (is bool) {
	s.above(func(above *budget) { is = is || above == b })
	return is
}

// over reports whether a budget above the quota is exceeded.
func (s *quota) over() (is bool) {
	s.above(func(b *budget) { is = is || b.charged > b.max })
	return is
}

// bound reports whether a budget above the quota may stop it.
func (s *quota) bound() (is bool) {
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
