package model

// This file holds what is proven: the properties, and the check of each.

import "fmt"

// The properties.
const (
	// P1: no block is written before the NIC has completed what it held.
	P1 Property = "P1"
	// P2: a block that the NIC may fetch is visible to it.
	P2 Property = "P2"
	// P3: the doorbell never goes back, and when nobody is left to post, everything ready is posted and fetched.
	P3 Property = "P3"
	// P4: quiet returns only when everything of its caller is done.
	P4 Property = "P4"
	// P5: fence orders a caller's operations to a PE, over all queues.
	P5 Property = "P5"
	// P6: a cell of the internal buffer has one owner until its result was read.
	P6 Property = "P6"
	// P7: no deadlock.
	P7 Property = "P7"
	// P8: the poller is right in spite of the wrap: the consumed count never exceeds what is complete, never goes back,
	// and a poller whose blocks are complete comes to know it.
	P8 Property = "P8"
	// P9: a signal is never seen before its data.
	P9 Property = "P9"
	// P10: a get's or fetch's result is there when the call or its quiet returns.
	P10 Property = "P10"
)

func broken(of Property, format string, args ...any) *Violation {
	return &Violation{of, fmt.Sprintf(format, args...)}
}

// reusable: P1, of the block of the ring that is about to be written.
func (p *Protocol) reusable(q *queue, block int) *Violation {
	if x := q.Ring[block%p.Depth]; x.wqe != 0 && x.at >= q.Completed {
		return broken(P1, "block %d is written over block %d, while the NIC has completed %d", block, x.at, q.Completed)
	}
	return nil
}

// fetchable: P2, of the request that the NIC is about to execute.
func (p *Protocol) fetchable(q *queue) *Violation {
	first := q.Ring[int(q.Done)%p.Depth]
	if first.wqe == 0 || first.at != q.Done {
		return broken(P2, "block %d is not written", q.Done)
	}
	for b := range p.wqes[first.wqe-1].work.Blocks() {
		at := q.Done + uint8(b)
		if x := q.Ring[int(at)%p.Depth]; x.wqe != first.wqe || x.at != at || x.level < p.nic {
			return broken(P2, "block %d is not visible to the NIC", at)
		}
	}
	return nil
}

// exists: P3, of what the NIC believes.
func (q *queue) exists() *Violation {
	if q.Known > q.Reserved {
		return broken(P3, "the NIC believes in %d blocks, %d are reserved", q.Known, q.Reserved)
	}
	return nil
}

// rings: P3, of a doorbell.
func (q *queue) rings(count uint8) *Violation {
	if count < q.Doorbell {
		return broken(P3, "the doorbell goes back from %d to %d", q.Doorbell, count)
	}
	return nil
}

// done: P4 and P10, of a call that is to be complete.
func (p *Protocol) done(s *State, c *call) *Violation {
	for i := c.first; i < c.first+c.count; i++ {
		switch {
		case s.Complete>>i&1 == 0:
			return broken(P4, "request %d is not complete", i)
		case p.wqes[i].work.answered() && s.Landed>>i&1 == 0:
			return broken(P10, "the answer of request %d is not there yet", i)
		}
	}
	return nil
}

// stored: P4, or P9 where a signal comes after it, of what a CTA's threads have stored.
func (p *Protocol) stored(s *State, threads uint8, of Property) *Violation {
	for t := range p.Programs {
		if threads>>t&1 != 0 && s.Stored[t] < system {
			return broken(of, "what thread %d stored is not visible to the system", t)
		}
	}
	return nil
}

// ordered: P5, or P9 of a signal, of a request that is executed.
func (p *Protocol) ordered(s *State, number int) *Violation {
	w := &p.wqes[number]
	if missing := w.ordered &^ s.Executed; missing != 0 {
		return broken(w.orderedOf, "request %d comes before one that it was ordered after (set %b)", number, missing)
	}
	return nil
}

// owned: P6, of a cell of the internal buffer whose owner is to be this: thread + 1, or 0 for nobody.
func (q *queue) owned(cell int, owner uint8) *Violation {
	switch now := q.Owner[cell]; {
	case now == owner:
		return nil
	case owner == 0:
		return broken(P6, "cell %d is still thread %d's", cell, now-1)
	}
	return broken(P6, "cell %d is not thread %d's", cell, owner-1)
}

// consumes: P8, of a consumed count that is raised or stored.
func (q *queue) consumes(count uint8, stored bool) *Violation {
	switch {
	case count > q.Completed:
		return broken(P8, "consumed is %d, complete are %d", count, q.Completed)
	case stored && count < q.Consumed:
		return broken(P8, "consumed goes back from %d to %d", q.Consumed, count)
	}
	return nil
}

// Final judges a state in which nothing moves (P3, P7, P8): it must be the end of all programs, with nothing ready that
// is not done.
func (p *Protocol) Final(s *State) *Violation {
	waiting, within := -1, -1
	for t := range p.Programs {
		x := &s.T[t]
		switch q := &s.Q[x.queue]; {
		case x.pc == atEnd:
		case x.pc == atPollRead && q.Completed >= x.idx:
			return broken(P8, "thread %d does not see that %d blocks are complete, of which it awaits %d", t, q.Completed, x.idx)
		case x.pc == atPoll || x.pc == atPollRead:
			waiting = t
		default:
			within = t
		}
	}
	for i := range p.PEs {
		q := &s.Q[i]
		if q.Done < q.Posted || q.Reserved == q.Ready && q.Posted < q.Ready {
			return broken(P3, "queue %d rests with %d blocks ready, %d posted, %d fetched", i, q.Ready, q.Posted, q.Done)
		}
	}
	if within >= 0 {
		return broken(P7, "thread %d cannot go on", within)
	}
	if waiting >= 0 {
		return broken(P7, "thread %d waits for %d blocks for ever", waiting, s.T[waiting].idx)
	}
	return nil
}
