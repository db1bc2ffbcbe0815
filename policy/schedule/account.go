package schedule

import "math/bits"

// vtScale keeps the division of device time by weight exact enough: weight 1000 counts in ns.
const vtScale = 1000

// account is what one node has had of one device. Those of a device form a tree like the nodes' own, below the device's
// top, which stands for no node.
type account struct {
	node  *node
	up    *account // nil: the top
	depth int

	weight   int64
	cap, min int64 // in hundredths of a percent; 0: none

	// Fair queueing. Time had, by weight; it only matters in comparison with siblings, and wraps.
	vt     int64
	floor  int64 // least vt with which a child joins the others
	active int   // seats by which it takes part in the competition with its siblings
	rivals int   // children that take part
	last   int64 // last time with a grant: between equals, the longest ago is first
	melt   int64 // vt that children had while nobody minded; only grows
	melted int64 // that of up when the account last took part

	// The moment at which all time charged is paid for by the flow of credit: the generic cell rate algorithm (ITU-T
	// I.371), once for the cap and once for the minimum.
	paid, owed int64

	// Of the children that take part, as of the last look at all: the least vt, and the mean by weight. heft is
	// scratch.
	least, mean, heft int64
	scan, noted       uint64 // looks that saw a child, that saw the account
}

// mulDiv is a*b/c without overflow in between; what does not fit is cut. All arguments are at least 0 and c above.
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

// wall is how long credit of some amount takes to flow in at a rate.
func wall(amount, rate int64) int64 { return mulDiv(amount, int64(Whole), rate) }

// behind says that vt a is less than b. They wrap.
func behind(a, b int64) bool { return a-b < 0 }

// charge puts device time on the account and all above it. What was used while nobody else wanted it is not held
// against the account, but lets the debts of those that are away melt, as if it had been.
func (a *account) charge(now, spent, longest int64, contended bool) {
	for ; a.up != nil; a = a.up {
		if vt := mulDiv(spent, vtScale, a.weight); contended {
			a.vt += vt
		} else {
			a.up.melt += vt
		}
		if a.cap > 0 {
			a.paid = min(a.paid+wall(spent, a.cap), now+forever)
		}
		if a.min > 0 {
			// Time beyond the minimum does not take away from it later, or someone who ran alone would have
			// none when others come.
			a.owed = min(a.owed+wall(spent, a.min), now+wall(longest, a.min))
		}
	}
}

// credit is the device time left at a moment, negative when in debt. Only of a capped account.
func (a *account) credit(at int64) int64 {
	flown := at - a.paid
	if flown < 0 {
		return -mulDiv(-flown, a.cap, int64(Whole))
	}
	return mulDiv(flown, a.cap, int64(Whole))
}

// serve notes that the account has the device, or had until now.
func (a *account) serve(now int64) {
	for ; a.up != nil; a = a.up {
		a.last = now
	}
}

// cut takes away credit saved beyond burst before a moment, here and above.
func (a *account) cut(before, burst int64) {
	for ; a.up != nil; a = a.up {
		if a.cap > 0 {
			a.paid = max(a.paid, before-wall(burst, a.cap))
		}
	}
}

// due is when the credit here and above will have reached amount.
func (a *account) due(amount int64) int64 {
	due := -forever
	for ; a.up != nil; a = a.up {
		if a.cap > 0 {
			due = max(due, a.paid+wall(amount, a.cap))
		}
	}
	return due
}

// room is how long the device can be used without a pause from a moment on, until the credit here or above is gone;
// forever without a cap.
func (a *account) room(at int64) int64 {
	room := forever
	for ; a.up != nil; a = a.up {
		if a.cap > 0 {
			room = min(room, mulDiv(max(a.credit(at), 0), int64(Whole), int64(Whole)-a.cap))
		}
	}
	return room
}

// capped says whether any cap holds for the account.
func (a *account) capped() bool {
	for ; a.up != nil; a = a.up {
		if a.cap > 0 {
			return true
		}
	}
	return false
}

// shortfall is the oldest moment up to which a minimum here or above is paid for; now or later when none is missed.
func (a *account) shortfall(now int64) int64 {
	oldest := now
	for ; a.up != nil; a = a.up {
		if a.min > 0 {
			oldest = min(oldest, a.owed)
		}
	}
	return oldest
}

// shift moves the account and all above by device time yet to be charged, or back.
func (a *account) shift(spent int64) {
	sign := int64(1)
	if spent < 0 {
		sign, spent = -1, -spent
	}
	for ; a.up != nil; a = a.up {
		a.vt += sign * mulDiv(spent, vtScale, a.weight)
		if a.min > 0 {
			a.owed += sign * wall(spent, a.min)
		}
	}
}

// overdrawn says that a cap here or above is exceeded by more than slack.
func (a *account) overdrawn(now, slack int64) bool {
	for ; a.up != nil; a = a.up {
		if a.cap > 0 && a.credit(now) < -slack {
			return true
		}
	}
	return false
}

// ahead says that the account has had more than its part by weight and slack on top; or that one above has, with more
// slack for what others in the group did.
func (a *account) ahead(slack, more int64) bool {
	for ; a.up != nil; a = a.up {
		if a.vt-a.up.mean > mulDiv(slack, vtScale, a.weight) {
			return true
		}
		slack = max(slack, more)
	}
	return false
}

// fairer says that a comes before b in fair order: theirs, or that of the ancestors that are siblings. Each is taken
// to have had some more device time than it was charged.
func (a *account) fairer(b *account, moreA, moreB int64) bool {
	for a.depth > b.depth {
		a = a.up
	}
	for b.depth > a.depth {
		b = b.up
	}
	for a.up != b.up {
		a, b = a.up, b.up
	}
	vtA, vtB := a.vt, b.vt
	if a != b {
		vtA += mulDiv(moreA, vtScale, max(a.weight, 1))
		vtB += mulDiv(moreB, vtScale, max(b.weight, 1))
	}
	switch {
	case vtA != vtB:
		return behind(vtA, vtB)
	case a.last != b.last:
		return a.last < b.last
	default:
		return a.node != nil && b.node != nil && a.node.id < b.node.id
	}
}

// join has one more seat take part in the competition of the account with its siblings. The first brings no claim
// from the time that the account did not take part.
func (a *account) join(now int64) {
	if a.active++; a.active > 1 {
		return
	}
	if a.up.rivals++; a.up.rivals == 1 {
		a.up.mean = a.up.floor
	}
	debt, melted := a.vt-a.up.floor, a.up.melt-a.melted
	if debt < melted || melted < 0 {
		a.vt = a.up.floor
	} else {
		a.vt -= melted
	}
	a.owed = max(a.owed, now)
}

// part ends join. The last sibling to go leaves the floor where it was itself: nobody was kept from the device.
func (a *account) part() {
	if a.active--; a.active > 0 {
		return
	}
	a.melted = a.up.melt
	if a.up.rivals--; a.up.rivals == 0 {
		if behind(a.up.floor, a.vt) {
			a.up.floor = a.vt
		}
		a.up.mean = a.up.floor
	}
}

// note and raise bring the floors up to the least vt among those that take part: note for each, then raise for each, on
// so many levels as it takes part in.
func (a *account) note(scan uint64, levels int, slice int64) {
	for ; levels > 0; levels, a = levels-1, a.up {
		up := a.up
		if up.scan != scan {
			up.scan, up.least, up.mean, up.heft = scan, a.vt, 0, 0
		} else if behind(a.vt, up.least) {
			up.least = a.vt
		}
		if a.noted != scan {
			a.noted = scan
			up.heft += a.weight
			// Who is further ahead than by a slice was not served by weight.
			up.mean += min(a.weight*(a.vt-up.floor), slice*vtScale)
		}
	}
}

func (a *account) raise(levels int) {
	for ; levels > 0; levels, a = levels-1, a.up {
		if up := a.up; up.heft > 0 {
			up.mean, up.heft = up.floor+up.mean/up.heft, 0
		}
		if behind(a.up.floor, a.up.least) {
			a.up.floor = a.up.least
		}
	}
}

// short is the lowest level without that much credit: 0 for the account itself; the depth when all have it.
func (a *account) short(now, amount int64) int {
	level := 0
	for ; a.up != nil; level, a = level+1, a.up {
		if a.cap > 0 && a.paid+wall(amount, a.cap) > now {
			break
		}
	}
	return level
}
