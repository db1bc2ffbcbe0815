package model

// This file holds the NIC: it learns how far it may fetch, executes, gets answers, and completes. And the host's thread
// that posts in the HostPosts form.

// nicStep emits what the NIC can do with queue i.
func (p *Protocol) nicStep(s *State, i int, emit Emit[State]) {
	who, q := nicActor+i, &s.Q[i]
	if q.Rung {
		if !p.Record {
			p.learn(s, i, q.Doorbell, false, "takes the doorbell", emit)
		} else {
			p.learn(s, i, q.Record, false, "takes the doorbell, reads the record", emit)
			if q.RecordLevel < p.nic && q.RecordNew != q.Record {
				p.learn(s, i, q.RecordNew, false, "takes the doorbell, reads the new record", emit)
			}
		}
		if p.Lossy {
			n := *s
			n.Q[i].Rung = false
			emit(who, "loses the doorbell", n, nil)
		}
	}
	if p.Lossy && q.Record != q.Known&p.mask {
		p.learn(s, i, q.Record, q.Rung, "reads the record", emit)
	}
	if q.Done < q.Known {
		p.execute(s, i, emit)
	}
	// Answers come in any order.
	for w := range p.wqes {
		if p.awaited(s, i, w) {
			n := *s
			n.Answered |= 1 << w
			emit(who, "has an answer", n, nil)
		}
	}
	if q.Completed < q.Done {
		p.complete(s, i, emit)
	}
}

// learn: the NIC has the producer's count from the doorbell, of which it knows thereafter whether it is rung, or from
// the record.
func (p *Protocol) learn(s *State, i int, count uint8, rung bool, what string, emit Emit[State]) {
	n := *s
	q := &n.Q[i]
	q.Rung = rung
	if p.Record && count != q.Record && count == q.RecordNew {
		q.RecordLevel = p.nic // what was seen once stays seen
		p.settle(q)
	}
	q.Known += (count - q.Known) & p.mask
	emit(nicActor+i, what, n, q.exists())
}

// awaited says whether the NIC has sent request w of queue i and waits for its answer.
func (p *Protocol) awaited(s *State, i, w int) bool {
	return p.wqes[w].work.answered() && s.Executed>>w&1 != 0 && s.Answered>>w&1 == 0 && p.holds(&s.Q[i], w)
}

// holds says whether request w was written to the queue.
func (p *Protocol) holds(q *queue, w int) bool {
	for _, x := range q.Ring[:p.Depth] {
		if int(x.wqe) == w+1 {
			return true
		}
	}
	return false
}

// execute fetches and executes the next request.
func (p *Protocol) execute(s *State, i int, emit Emit[State]) {
	const what = "fetches and executes"
	n := *s
	q := &n.Q[i]
	if bad := p.fetchable(q); bad != nil {
		emit(nicActor+i, what, n, bad)
		return
	}
	number := int(q.Ring[int(q.Done)%p.Depth].wqe) - 1
	w := &p.wqes[number]
	for earlier := range p.wqes {
		if w.fenced && p.awaited(s, i, earlier) {
			return
		}
	}
	n.Executed |= 1 << number
	if w.work == Dump {
		n.Landed |= n.Answered
	}
	q.Done += uint8(w.work.Blocks())
	emit(nicActor+i, what, n, p.ordered(s, number))
}

// complete completes the next request, with an entry if it asks for one.
func (p *Protocol) complete(s *State, i int, emit Emit[State]) {
	n := *s
	q := &n.Q[i]
	number := q.Ring[int(q.Completed)%p.Depth].wqe - 1
	w := &p.wqes[number]
	bit := uint32(1) << number
	if w.work.answered() && n.Answered&bit == 0 {
		return
	}
	n.Complete |= bit
	if p.Flush == 0 {
		n.Landed |= bit
	}
	what := "completes"
	if w.last {
		q.CQ, q.Valid = q.Completed&p.mask, true
		what = "completes, with an entry"
	}
	q.Completed += uint8(w.work.Blocks())
	emit(nicActor+i, what, n, nil)
}

// hostStep is the host's thread of the HostPosts form.
func (p *Protocol) hostStep(s *State, i int, emit Emit[State]) {
	n := *s
	q := &n.Q[i]
	switch {
	case q.HostStep == 0 && q.Word > q.HostPosted:
		q.HostPosted = q.Word
		q.HostStep = 1
		if !p.has(RecordLost) {
			q.Record, q.RecordNew = q.HostPosted&p.mask, q.HostPosted&p.mask
		}
		emit(hostActor+i, "writes the record", n, nil)
	case q.HostStep == 1:
		q.HostStep = 0
		q.Doorbell, q.Rung = q.HostPosted, true
		emit(hostActor+i, "rings", n, nil)
	}
}
