package share

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
	active int   // seats below that take part
	last   int64 // last time a grant began: between equals, the longest ago is first
	melt   int64 // vt that children had while nobody minded; only grows
	melted int64 // that of up when the account last took part

	// The moment at which all time charged is paid for by the flow of credit: the generic cell rate algorithm (ITU-T
	// I.371), once for the cap and once for the minimum.
	paid, owed int64

	least int64  // scratch of floors
	scan  uint64 // that least is of
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

// charge puts device time on the account and all above it. What was used while nobody else wanted it is not held against
// the account, but lets the debts of those that are away melt, as if it had been.
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

// ahead says that the account, or one above, has had more than its part by weight and slack on top.
func (a *account) ahead(slack int64) bool {
	for ; a.up != nil; a = a.up {
		if a.vt-a.up.floor > mulDiv(slack, vtScale, a.weight) {
			return true
		}
	}
	return false
}

// fairer says that a comes before b in fair order: theirs, or that of the ancestors that are siblings.
func (a *account) fairer(b *account) bool {
	for a.depth > b.depth {
		a = a.up
	}
	for b.depth > a.depth {
		b = b.up
	}
	for a.up != b.up {
		a, b = a.up, b.up
	}
	switch {
	case a.vt != b.vt:
		return behind(a.vt, b.vt)
	case a.last != b.last:
		return a.last < b.last
	default:
		return a.node != nil && b.node != nil && a.node.id < b.node.id
	}
}

// join has a seat's account take part, with no claim from the time that it did not.
func (a *account) join(now int64) {
	for ; a.up != nil; a = a.up {
		if a.active == 0 {
			debt, melted := a.vt-a.up.floor, a.up.melt-a.melted
			if debt < melted || melted < 0 {
				a.vt = a.up.floor
			} else {
				a.vt -= melted
			}
			if behind(a.vt, a.up.floor) {
				a.vt = a.up.floor
			}
			a.owed = max(a.owed, now)
		}
		a.active++
	}
	a.active++
}

// part ends join. The last to go leaves the floor where it was itself: nobody was kept from the device.
func (a *account) part() {
	for b := a; b != nil; b = b.up {
		if b.active--; b.active == 0 && b.up != nil {
			b.melted = b.up.melt
		}
	}
	for ; a.up != nil; a = a.up {
		if a.up.active == 0 && behind(a.up.floor, a.vt) {
			a.up.floor = a.vt
		}
	}
}

// note and raise bring the floors up to the least vt among those that take part: note for each, then raise for each.
func (a *account) note(scan uint64) {
	for ; a.up != nil; a = a.up {
		if a.up.scan != scan || behind(a.vt, a.up.least) {
			a.up.scan, a.up.least = scan, a.vt
		}
	}
}

func (a *account) raise() {
	for ; a.up != nil; a = a.up {
		if behind(a.up.floor, a.up.least) {
			a.up.floor = a.up.least
		}
	}
}
