package model

// This file holds the steps of a thread that waits: poll, quiet and fence over queues, and the group sync of a CTA over
// load/store.

import "slices"

// await sends the thread to poll for idx blocks of its queue, and then to a step.
func (c *caller) await(idx, ret uint8) {
	c.idx, c.ret = idx, ret
	c.to(atPoll, WaitOpcode, atPollOpcode)
}

// polled is the end of it.
func (c *caller) polled() { c.pc, c.idx, c.wc, c.ret = c.ret, 0, 0, 0 }

func (c *caller) pollOpcode() string {
	if !c.q.Valid {
		return ""
	}
	c.pc = atPoll
	return "poll: there was a completion"
}

// poll is step 6, which goes on to pollRaise: wait until posted has reached idx, read the counter, raise consumed.
func (c *caller) poll() string {
	switch {
	case c.q.Consumed >= c.idx:
		c.polled()
		return "poll: consumed already"
	case c.q.Posted >= c.idx || c.has(NoPostedCheck):
		c.pc = atPollRead
		return "poll: posted"
	case c.Help && c.q.Ready > c.q.Posted:
		c.postTo(c.q.Ready, atPoll)
		return "poll: post what is ready"
	}
	return ""
}

// overtaken says whether another thread has raised the consumed count meanwhile, which ends the poll.
func (c *caller) overtaken() bool {
	if c.q.Consumed < c.idx || c.has(NoReread) {
		return false
	}
	c.polled()
	return true
}

func (c *caller) pollRead() string {
	switch {
	case c.overtaken():
		return "poll: consumed by another"
	case Pending(uint64(c.idx), uint64(c.q.CQ), c.Bits, uint64(c.CQEs)):
		return "" // reads again
	}
	c.wc = c.q.CQ
	c.pc = atPollAgain
	return "poll: read the counter"
}

func (c *caller) pollAgain() string {
	if c.overtaken() {
		return "poll: consumed by another"
	}
	c.pc = atPollRaise
	return "poll: complete"
}

func (c *caller) pollRaise() string {
	count := uint8(Consumed(uint64(c.idx), uint64(c.wc), c.Bits))
	c.must(c.q.consumes(count, c.has(PlainConsumed)))
	c.polled()
	if c.has(PlainConsumed) {
		c.q.Consumed = count
		return "poll: store consumed"
	}
	c.q.Consumed = max(c.q.Consumed, count)
	return "poll: raise consumed"
}

// visit sends the thread to the next queue that quiet or fence concerns, from number loop on, or to the end of it.
func (c *caller) visit(loop int) {
	for loop < len(c.PEs) && c.op.Kind == Fence && c.PEs[loop] != c.op.PE {
		loop++
	}
	c.loop, c.pc = uint8(loop), atQuiet
	if loop == len(c.PEs) {
		c.pc = atQuietEnd
	}
}

// quiet waits until everything is complete that is ready in a queue; a call that waits does so up to its own end.
func (c *caller) quiet() string {
	c.queue = c.loop
	if c.Flush == FlushLater && !c.has(HeadAfterPoll) {
		c.head = c.n.Q[c.queue].GetHead
	}
	c.pc = atQuietReady
	return "quiet: read the flush mark"
}

func (c *caller) quietReady() string {
	idx := c.q.Ready
	if c.op.Kind == Call {
		idx = c.idx
	}
	c.await(idx, atQuietFlush)
	return "quiet: read ready"
}

func (c *caller) quietFlush() string {
	if c.Flush == FlushLater && c.has(HeadAfterPoll) {
		c.head = c.q.GetHead
	}
	if c.q.GetTail >= c.head {
		c.quietNext()
		return "quiet: complete"
	}
	// A Dump on a queue of its own: pushes the answers that the NIC has.
	c.n.Landed |= c.n.Answered
	c.pc = atQuietTail
	return "quiet: flush"
}

func (c *caller) quietTail() string {
	c.q.GetTail = max(c.q.GetTail, c.head)
	c.quietNext()
	return "quiet: raise the flush tail"
}

// quietNext is what follows the quiet of one queue.
func (c *caller) quietNext() {
	c.head, c.idx = 0, 0
	if c.op.Kind == Call {
		c.pc = atResult
		return
	}
	c.queue = 0
	next := int(c.loop) + 1
	if c.op.Kind == Fence && c.has(FenceSkipsQueue) || c.op.Kind == Quiet && c.has(QuietSkipsQueue) {
		next = len(c.PEs)
	}
	c.visit(next)
}

func (c *caller) quietEnd() string {
	kind := c.op.Kind
	if kind == Quiet {
		for _, pieces := range c.calls[c.t][:c.thread.op] {
			for i := range pieces {
				c.must(c.done(&c.n.State, &pieces[i]))
			}
		}
	}
	c.advance()
	return [...]string{"quiet: return", "fence: return"}[kind-Quiet]
}

// members is the set of threads in the thread's CTA.
func (c *caller) members() (set uint8) {
	for o := range c.Programs {
		if c.CTAs[o] == c.CTAs[c.t] {
			set |= 1 << o
		}
	}
	return set
}

// leader is the first of them.
func (c *caller) leader() int { return slices.Index(c.CTAs, c.CTAs[c.t]) }

// sync is the group sync after each thread's fence.
func (c *caller) sync() string {
	leaderOnly := c.op.Kind == BlockQuiet && c.has(LeaderFences) || c.op.Kind == BlockStore && c.has(LeaderFencesSignal)
	if !leaderOnly || c.leader() == c.t {
		c.fence(system)
	}
	c.n.Arrived |= 1 << c.t
	c.synced = c.n.Sync[c.leader()]
	c.pc = atSyncWait
	if members := c.members(); c.n.Arrived&members == members {
		// It orders what its threads wrote for each other.
		for o := range c.Programs {
			if members>>o&1 != 0 {
				c.n.Stored[o] = max(c.n.Stored[o], cta)
			}
		}
		c.n.Arrived &^= members
		c.n.Sync[c.leader()]++
	}
	return "fence; group sync"
}

func (c *caller) syncWait() string {
	if c.n.Sync[c.leader()] == c.synced {
		return ""
	}
	c.pc = atSyncEnd
	return "group sync"
}

// syncEnd returns, or with a signal stores it: the first thread does so.
func (c *caller) syncEnd() string {
	switch {
	case c.op.Kind == BlockQuiet:
		c.must(c.stored(&c.n.State, c.members(), P4))
	case c.leader() == c.t:
		c.must(c.stored(&c.n.State, c.members(), P9))
	}
	c.advance()
	return "return"
}
