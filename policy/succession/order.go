package succession

// Alternate is gScale's slot-aware order (claim 8): of tenants with these slots, the order of turns as a list of their
// numbers, for a cycle. It takes one from the slot with most tenants left and one from the fullest of the others, until
// one slot only is left, whose rest it appends. Slots may be any numbers.
//
// The claim does not say what to do about ties, and they decide whether the ends of the cycle meet well. Of slots with
// equally many, the first of a pair is not from the slot that was appended last, then from the one that opened the cycle,
// then from the lowest; the second is not from the opener, then from the lowest. With this rule the number of neighbours
// with the same slot is LeastForced and LeastForcedCycle.
func Alternate(slots []int) []int {
	left := map[int][]int{} // the tenants of a slot that have no place yet
	for tenant, s := range slots {
		left[s] = append(left[s], tenant)
	}
	var order []int
	take := func(slot int) {
		order = append(order, left[slot][0])
		if left[slot] = left[slot][1:]; len(left[slot]) == 0 {
			delete(left, slot)
		}
	}
	for len(left) > 1 {
		last, opener, begun := 0, 0, len(order) > 0
		if begun {
			last, opener = slots[order[len(order)-1]], slots[order[0]]
		}
		first := fullest(left, func(s int) (bool, bool) { return begun && s != last, begun && s == opener })
		take(first)
		opener = slots[order[0]]
		others := make(map[int][]int, len(left))
		for s, tenants := range left {
			if s != first {
				others[s] = tenants
			}
		}
		take(fullest(others, func(s int) (bool, bool) { return s != opener, false }))
	}
	for slot := range left {
		for left[slot] != nil {
			take(slot)
		}
	}
	return order
}

// fullest is the slot with most tenants: of equals one that is preferred for the first reason, then for the second, then
// the lowest.
func fullest(left map[int][]int, prefer func(slot int) (first, second bool)) (best int) {
	found := false
	for s := range left {
		if !found || better(left, prefer, s, best) {
			best, found = s, true
		}
	}
	return best
}

func better(left map[int][]int, prefer func(slot int) (first, second bool), a, b int) bool {
	if len(left[a]) != len(left[b]) {
		return len(left[a]) > len(left[b])
	}
	a1, a2 := prefer(a)
	b1, b2 := prefer(b)
	switch {
	case a1 != b1:
		return a1
	case a2 != b2:
		return a2
	}
	return a < b
}

// Arrange orders n tenants in a cycle whose neighbours cost little: cost(a, b) is what it costs, 0 or more, that b comes
// after a, and must be the same the other way round. Such as: 1 where two do not fit together; by how much they do not;
// how many sub-slots both have. Finding the least is the problem of the travelling salesman; this takes the nearest
// neighbour each time, the lowest number among equals, and then reverses parts and moves single tenants for as long as
// that makes it cheaper. That is about n³ calls of cost. An order that is kept while its tenants stay is cheap enough for
// hundreds of them.
func Arrange(n int, cost func(a, b int) int) []int {
	order := make([]int, 0, n)
	used := make([]bool, n)
	for len(order) < n {
		next := -1
		for c := range n {
			if used[c] {
				continue
			}
			if next < 0 || len(order) > 0 && cost(order[len(order)-1], c) < cost(order[len(order)-1], next) {
				next = c
			}
		}
		order, used[next] = append(order, next), true
	}
	for n > 3 && (reverse(order, cost) || move(order, cost)) {
	}
	return order
}

// reverse reverses a part of the cycle if that makes it cheaper.
func reverse(order []int, cost func(a, b int) int) bool {
	n := len(order)
	for i := range n - 1 {
		for j := i + 2; j < n; j++ {
			a, b, c, d := order[i], order[i+1], order[j], order[(j+1)%n]
			if d != a && cost(a, c)+cost(b, d) < cost(a, b)+cost(c, d) {
				for k, l := i+1, j; k < l; k, l = k+1, l-1 {
					order[k], order[l] = order[l], order[k]
				}
				return true
			}
		}
	}
	return false
}

// move moves one tenant between two others if that makes the cycle cheaper.
func move(order []int, cost func(a, b int) int) bool {
	n := len(order)
	for i, m := range order {
		before, after := order[(i+n-1)%n], order[(i+1)%n]
		gain := cost(before, m) + cost(m, after) - cost(before, after)
		for j, a := range order {
			b := order[(j+1)%n]
			if a == m || b == m || cost(a, m)+cost(m, b)-cost(a, b) >= gain {
				continue
			}
			if i < j { // what is between moves down by one
				copy(order[i:j], order[i+1:j+1])
				order[j] = m
			} else {
				copy(order[j+2:i+1], order[j+1:i])
				order[j+1] = m
			}
			return true
		}
	}
	return false
}

// Forced is how many neighbours of a cycle do not fit together. One tenant has no neighbour; two are neighbours twice, as
// each of the cycle's turns is followed by another.
func Forced(cycle []int, fits func(a, b int) bool) (forced int) {
	if len(cycle) < 2 {
		return 0
	}
	for i, a := range cycle {
		if !fits(a, cycle[(i+1)%len(cycle)]) {
			forced++
		}
	}
	return forced
}

// LeastForced is how many neighbours of n tenants at least have the same slot in one pass, where the fullest slot has most
// of them: between each two of its tenants must be another one.
func LeastForced(n, most int) int { return max(0, 2*most-n-1) }

// LeastForcedCycle is LeastForced for a cycle, in which the first follows the last.
func LeastForcedCycle(n, most int) int {
	if n < 2 {
		return 0
	}
	return max(0, 2*most-n)
}
