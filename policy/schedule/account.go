package schedule

import "math/bits"

// vtScale keeps the division of device time by weight exact enough: weight 1000 counts in ns.
const vtScale = 1000

// account is what one entity has had of one device. The accounts of a device form a tree like the entities' own, below
// the device's top, which belongs to no entity.
type account struct {
	entity *entity
	parent *account // nil: the top
	depth  int

	weight   int64
	cap, min int64 // in hundredths of a percent; 0: none

	// Fair queueing. Time had, by weight; it only matters in comparison with siblings, and wraps.
	vt     int64
	floor  int64 // least vt with which a child joins the others
	active int   // seats by which it takes part in the competition with its siblings
	rivals int   // children that take part
	last   int64 // last time with a grant: between equals, the longest ago is first
	melt   int64 // vt that children had while nobody else waited; only grows
	melted int64 // melt of parent when the account last took part

	// The moment at which all time charged is paid for by the flow of credit: the generic cell rate algorithm (ITU-T
	// I.371), once for the maximum and once for the minimum.
	paid, owed int64

	// What was learned of the last seat of the account, for the next.
	known *presence

	// Of the children that take part, as of the last scan: the least vt, the mean by weight, and, as scratch, the sum
	// of their weights.
	least, mean, weights int64
	scan, noted          uint64 // the last scan that saw a child, and the account
	calm                 uint64 // the last scan in which only guests below it counted
	absent               uint64 // the last scan in which one below it waited whose memory is away
}

// mulDiv is a*b/c without overflow in between; the result is at most forever. a and b are at least 0, c is above 0.
func mulDiv(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high >= uint64(c) {
		return forever
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	return int64(min(quotient, uint64(forever)))
}

// forever is longer than any time that matters and short enough to be added to any time.
const forever int64 = 1 << 60

// wall is the time in which an amount of credit flows in at a rate.
func wall(amount, rate int64) int64 { return mulDiv(amount, int64(Whole), rate) }

// vtLess reports whether vt a is less than b. They wrap.
func vtLess(a, b int64) bool { return a-b < 0 }

// charge charges device time to the account and all above it. Time that was used while nobody else wanted it does not
// count against the account in fair queueing, but the debts of siblings that are away melt as if it had counted.
func (a *account) charge(now, spent, longest int64, contended bool) {
	for ; a.parent != nil; a = a.parent {
		a.take(now, spent, longest, contended)
	}
}

// take is charge for this account alone.
func (a *account) take(now, spent, longest int64, contended bool) {
	if vt := mulDiv(spent, vtScale, a.weight); contended {
		a.vt += vt
	} else {
		a.parent.melt += vt
	}
	if a.cap > 0 {
		a.paid = min(a.paid+wall(spent, a.cap), now+forever)
	}
	if a.min > 0 {
		// Time beyond the minimum is not taken from it later. Otherwise an lgpu that ran alone would have
		// no minimum when others come.
		a.owed = min(a.owed+wall(spent, a.min), now+wall(longest, a.min))
	}
}

// refund takes back a charge against the account and all above it, but for what it meant to siblings: they went first.
func (a *account) refund(now, spent int64) {
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 && a.paid > now { // no more than the debt
			a.paid = max(a.paid-wall(spent, a.cap), now)
		}
	}
}

// credit is the device time left at a moment, negative when in debt. Only a capped account has any.
func (a *account) credit(at int64) int64 {
	flown := at - a.paid
	if flown < 0 {
		return -mulDiv(-flown, a.cap, int64(Whole))
	}
	return mulDiv(flown, a.cap, int64(Whole))
}

// serve notes that the account has the device, or has had it until now.
func (a *account) serve(now int64) {
	for ; a.parent != nil; a = a.parent {
		a.last = now
	}
}

// cut limits credit saved before a moment to burst, here and above.
func (a *account) cut(before, burst int64) {
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 {
			a.paid = max(a.paid, before-wall(burst, a.cap))
		}
	}
}

// due is the time at which the credit here and above reaches amount.
func (a *account) due(amount int64) int64 {
	due := -forever
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 {
			due = max(due, a.paid+wall(amount, a.cap))
		}
	}
	return due
}

// room is how long the device can be used without a pause from a moment on until the credit here or above is used up;
// forever without a maximum.
func (a *account) room(at int64) int64 {
	room := forever
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 {
			room = min(room, mulDiv(max(a.credit(at), 0), int64(Whole), int64(Whole)-a.cap))
		}
	}
	return room
}

// capped reports whether any maximum holds for the account.
func (a *account) capped() bool {
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 {
			return true
		}
	}
	return false
}

// shortfall is the oldest moment up to which a minimum here or above has been met; now or later when none is missed.
func (a *account) shortfall(now int64) int64 {
	oldest := now
	for ; a.parent != nil; a = a.parent {
		if a.min > 0 {
			oldest = min(oldest, a.owed)
		}
	}
	return oldest
}

// shift charges device time to the account and all above in advance, or takes it back.
func (a *account) shift(spent int64) {
	sign := int64(1)
	if spent < 0 {
		sign, spent = -1, -spent
	}
	for ; a.parent != nil; a = a.parent {
		a.vt += sign * mulDiv(spent, vtScale, a.weight)
		if a.min > 0 {
			a.owed += sign * wall(spent, a.min)
		}
	}
}

// overdrawn reports whether a maximum here or above is exceeded by more than slack.
func (a *account) overdrawn(now, slack int64) bool {
	for ; a.parent != nil; a = a.parent {
		if a.cap > 0 && a.credit(now) < -slack {
			return true
		}
	}
	return false
}

// ahead reports whether the account has had more than its part by weight plus slack, or one above it has; groups have
// more slack, for what others in them did.
func (a *account) ahead(slack, more int64) bool {
	for ; a.parent != nil; a = a.parent {
		if a.vt-a.parent.mean > mulDiv(slack, vtScale, a.weight) {
			return true
		}
		slack = max(slack, more)
	}
	return false
}

// fairer reports whether a comes before b in fair order: their own, or that of the ancestors that are siblings. Each
// counts as having had some more device time than it was charged.
func (a *account) fairer(b *account, moreA, moreB int64) bool {
	for a.depth > b.depth {
		a = a.parent
	}
	for b.depth > a.depth {
		b = b.parent
	}
	for a.parent != b.parent {
		a, b = a.parent, b.parent
	}
	vtA, vtB := a.vt, b.vt
	if a != b {
		vtA += mulDiv(moreA, vtScale, max(a.weight, 1))
		vtB += mulDiv(moreB, vtScale, max(b.weight, 1))
	}
	switch {
	case vtA != vtB:
		return vtLess(vtA, vtB)
	case a.last != b.last:
		return a.last < b.last
	default:
		return a.entity != nil && b.entity != nil && a.entity.id < b.entity.id
	}
}

// join adds a seat to those by which the account competes with its siblings. With the first, the account has no claim
// for the time in which it did not take part.
func (a *account) join(now int64) {
	if a.active++; a.active > 1 {
		return
	}
	if a.parent.rivals++; a.parent.rivals == 1 {
		a.parent.mean = a.parent.floor
	}
	debt, melted := a.vt-a.parent.floor, a.parent.melt-a.melted
	if debt < melted || melted < 0 {
		a.vt = a.parent.floor
	} else {
		a.vt -= melted
	}
	a.owed = max(a.owed, now)
}

// leave ends join. The last sibling to leave moves the floor up to its own vt: it kept no seat from the device.
func (a *account) leave() {
	if a.active--; a.active > 0 {
		return
	}
	a.melted = a.parent.melt
	if a.parent.rivals--; a.parent.rivals == 0 {
		if vtLess(a.parent.floor, a.vt) {
			a.parent.floor = a.vt
		}
		a.parent.mean = a.parent.floor
	}
}

// note and raise bring the floors up to the least vt among those that take part: first note for each seat, then raise
// for each, on as many levels as the seat takes part in.
func (a *account) note(scan uint64, levels int, slice int64) {
	for ; levels > 0; levels, a = levels-1, a.parent {
		up := a.parent
		if up.scan != scan {
			up.scan, up.least, up.mean, up.weights = scan, a.vt, 0, 0
		} else if vtLess(a.vt, up.least) {
			up.least = a.vt
		}
		if a.noted != scan {
			a.noted = scan
			up.weights += a.weight
			// An account that is ahead by more than a slice was not served by weight.
			up.mean += min(a.weight*(a.vt-up.floor), slice*vtScale)
		}
	}
}

func (a *account) raise(scan uint64, levels int) {
	for ; levels > 0; levels, a = levels-1, a.parent {
		if a.parent.scan != scan {
			continue
		}
		if up := a.parent; up.weights > 0 {
			up.mean, up.weights = up.floor+up.mean/up.weights, 0
		}
		if vtLess(a.parent.floor, a.parent.least) {
			a.parent.floor = a.parent.least
		}
	}
}

// noteAbsent notes on all levels that a seat waits whose memory is away.
func (a *account) noteAbsent(scan uint64) {
	for ; a.parent != nil; a = a.parent {
		a.parent.absent = scan
	}
}

// short is the lowest level without that much credit: 0 for the account itself; its depth when all have it.
func (a *account) short(now, amount int64) int {
	level := 0
	for ; a.parent != nil; level, a = level+1, a.parent {
		if a.cap > 0 && a.paid+wall(amount, a.cap) > now {
			break
		}
	}
	return level
}
