// Package succession says who comes after whom among tenants that take turns, so that what the next one needs can be
// loaded while the one before it still runs. It is gScale's prediction and order (docs/gscale.md), for anything that has
// turns: slots of a translation table, or lgpus whose memory does not fit together.
//
//	var h succession.History[string]
//	h.Add("a", "b")                        // b had its turn after a
//	next, ok := h.Next("a", isBusy)        // who is voted to come after a now
//
//	succession.Alternate(slots)            // an order in which neighbours have different slots, for equal slots
//	succession.Arrange(n, cost)            // an order whose neighbours cost little, for any cost
//
// The package is pure: no clock, no randomness, no goroutine. The same calls have the same results.
package succession

// Depth is over how many successors of a tenant a History votes, if it is not told.
const Depth = 8

// History remembers who came after whom. The zero value is empty and votes over the last Depth successors of each tenant.
// It is for one goroutine at a time.
type History[ID comparable] struct {
	// Depth is over how many successors of a tenant is voted; 0 is the constant Depth. With 1 the last successor is
	// the next, as in gScale's public code.
	Depth int

	after map[ID][]ID // the latest last
}

// Add notes that a turn of after followed one of before.
func (h *History[ID]) Add(before, after ID) {
	if h.after == nil {
		h.after = map[ID][]ID{}
	}
	list := append(h.after[before], after)
	if depth := h.depth(); len(list) > depth {
		copy(list, list[len(list)-depth:]) // in place: the list grows no further
		list = list[:depth]
	}
	h.after[before] = list
}

// Next is who came most often after a tenant, of those who may come: a nil function lets all. Of equals it is the one
// that came last. It is false where none of the remembered successors may come.
func (h *History[ID]) Next(before ID, may func(ID) bool) (next ID, ok bool) {
	list := h.after[before]
	votes, most := make(map[ID]int, len(list)), 0
	for _, id := range list {
		votes[id]++
	}
	for i := len(list) - 1; i >= 0; i-- { // the latest first, so that it wins a tie
		if id := list[i]; votes[id] > most && (may == nil || may(id)) {
			next, most, ok = id, votes[id], true
		}
	}
	return next, ok
}

// Forget removes a tenant that is gone, as one who came before and as one who came after.
func (h *History[ID]) Forget(id ID) {
	delete(h.after, id)
	for before, list := range h.after {
		kept := list[:0]
		for _, after := range list {
			if after != id {
				kept = append(kept, after)
			}
		}
		h.after[before] = kept
	}
}

func (h *History[ID]) depth() int {
	if h.Depth > 0 {
		return h.Depth
	}
	return Depth
}
