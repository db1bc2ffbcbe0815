package model

// This file holds the steps of a call, with the numbers that docs/lshmem.md gives them: reserve, write, publish, submit
// and post; and the internal buffer for results that a thread waits for. waits.go has the other steps.

// outcome is the state after a step, and the first property that the step violates.
type outcome struct {
	State
	bad *Violation
}

// caller is a thread at one step, with what the step is about. The step makes n, which was the state before.
type caller struct {
	*Protocol
	*thread
	t    int
	n    *outcome
	q    *queue // that it works on
	op   *Op
	call *call // of a Call
	emit Emit[State]
}

// caller is thread t at its step in n.
func (p *Protocol) caller(n *outcome, t int, emit Emit[State]) caller {
	x := &n.T[t]
	c := caller{Protocol: p, thread: x, t: t, n: n, q: &n.Q[x.queue], op: &p.Programs[t][x.op], emit: emit}
	if pieces := p.calls[t][x.op]; len(pieces) != 0 {
		c.call = &pieces[x.part]
	}
	return c
}

// step takes the thread's step and says what it was. It is "" where the thread cannot go on yet, or has emitted all
// that it can do.
func (c *caller) step() string { return steps[c.pc](c) }

// steps are what a thread does at each point.
var steps = [...]func(*caller) string{
	atBegin: (*caller).begin,
	// A call.
	atTakeCell:  (*caller).takeCell,
	atAwaitCell: (*caller).awaitCell,
	atReserve:   (*caller).reserve,
	atHaveCell: func(c *caller) string {
		c.pc = atWrite
		return "ibuf: have it"
	},
	atWrite:    (*caller).write,
	atPublish:  (*caller).publish,
	atSubmit:   (*caller).submit,
	atPost:     (*caller).post,
	atLock:     (*caller).lock,
	atRaise:    (*caller).raise,
	atRecord:   (*caller).record,
	atDoorbell: (*caller).doorbell,
	atUnlock:   (*caller).unlock,
	atSent:     (*caller).sent,
	atResult:   (*caller).result,
	atGiveCell: (*caller).giveCell,
	atReadLate: func(c *caller) string {
		c.read()
		c.advance()
		return "read the result"
	},
	// Quiet and fence.
	atQuiet:      (*caller).quiet,
	atQuietReady: (*caller).quietReady,
	atQuietFlush: (*caller).quietFlush,
	atQuietTail:  (*caller).quietTail,
	atQuietEnd:   (*caller).quietEnd,
	// Load/store.
	atSync:     (*caller).sync,
	atSyncWait: (*caller).syncWait,
	atSyncEnd:  (*caller).syncEnd,
	// Poll.
	atPollOpcode: (*caller).pollOpcode,
	atPoll:       (*caller).poll,
	atPollRead:   (*caller).pollRead,
	atPollAgain:  (*caller).pollAgain,
	atPollRaise:  (*caller).pollRaise,
}

// must notes a violation.
func (c *caller) must(v *Violation) {
	if c.n.bad == nil {
		c.n.bad = v
	}
}

// to goes to a step, or with a defect to another one.
func (c *caller) to(pc uint8, defect Switch, instead uint8) {
	c.pc = pc
	if c.has(defect) {
		c.pc = instead
	}
}

// advance goes to the thread's next operation.
func (c *caller) advance() {
	*c.thread = thread{op: c.thread.op + 1, synced: c.synced}
	if int(c.thread.op) == len(c.Programs[c.t]) {
		*c.thread = thread{op: c.thread.op, pc: atEnd}
	}
}

// begin is the first step of an operation, or of a piece of a split call.
func (c *caller) begin() string {
	switch c.op.Kind {
	case Call:
		c.pc = atReserve
		if c.call.ibuf {
			c.to(atTakeCell, IbufAfterReserve, atReserve)
		}
		for q := range c.PEs {
			if c.has(RandomQueue) && c.PEs[q] == c.PEs[c.op.Queue] || q == c.call.queue {
				c.queue = uint8(q)
				c.emit(c.t, [...]string{"call on queue 0", "call on queue 1"}[q], c.n.State, nil)
			}
		}
		return ""
	case Quiet:
		c.visit(0)
		return "quiet"
	case Fence:
		if c.FreeFence {
			c.advance()
			return "fence: free"
		}
		c.visit(0)
		return "fence"
	case Store:
		c.n.Stored[c.t] = own
		c.advance()
		return "store to the peer"
	default:
		c.pc = atSync
		return "group operation"
	}
}

// callEnd is the end of the call's blocks.
func (c *caller) callEnd() uint8 { return c.base + uint8(c.call.blocks) }

// reserve is step 1: it takes the blocks, and waits until the blocks that they overwrite are consumed.
func (c *caller) reserve() string {
	c.base = c.q.Reserved
	c.q.Reserved = c.callEnd()
	c.pc = atWrite
	if c.call.ibuf {
		c.to(atWrite, IbufAfterReserve, atTakeCell)
	}
	if end := int(c.callEnd()) - c.Depth; end > c.Start && !c.has(NoRingWait) {
		c.await(uint8(end), c.pc)
	}
	return "reserve"
}

// write is step 2, by the thread or by lanes of its warp.
func (c *caller) write() string {
	end := c.call.first + c.call.count
	if c.op.Lanes == 0 {
		for w := c.call.first; w < end; w++ {
			c.put(w, c.base, uint8(c.t))
		}
		c.pc = atPublish
		return "write"
	}
	for lane := range c.op.Lanes {
		if c.lanes>>lane&1 != 0 {
			continue
		}
		n := *c.n
		l := c.caller(&n, c.t, c.emit)
		l.writeLane(lane)
		c.emit(laneActor+lane, "write", n.State, n.bad)
	}
	switch {
	case c.has(NoWarpSync) && c.lanes&1 != 0:
	case c.lanes != 1<<c.op.Lanes-1:
		return ""
	default:
		for i := range c.q.Ring {
			if x := &c.q.Ring[i]; x.wqe != 0 && x.owner == uint8(c.t)|otherLane && x.level == own {
				x.level = cta
			}
		}
	}
	c.lanes, c.pc = 0, atPublish
	return "warp sync"
}

// writeLane writes the lane's request, and the last lane's what is after all.
func (c *caller) writeLane(lane int) {
	base, owner := c.base, uint8(c.t)
	if lane != 0 {
		owner |= otherLane
		if c.has(NoBroadcast) {
			base = uint8(c.Start) // what happened to be in the register
		}
	}
	first, count := c.call.first+lane, 1
	if lane == c.op.Lanes-1 {
		count = c.call.count - lane
	}
	for w := first; w < first+count; w++ {
		c.put(w, base, owner)
	}
	c.lanes |= 1 << lane
}

// put writes request w of the call at its blocks after base, as that owner.
func (c *caller) put(w int, base, owner uint8) {
	at := int(base)
	for i := c.call.first; i < w; i++ {
		at += c.wqes[i].work.Blocks()
	}
	for b := range c.wqes[w].work.Blocks() {
		c.must(c.reusable(c.q, at+b))
		c.q.Ring[(at+b)%c.Depth] = written{uint8(w) + 1, uint8(at + b), own, owner}
	}
}

// publish is step 3: a fence, then ready moves in the order of reservations.
func (c *caller) publish() string {
	if c.q.Ready != c.base {
		return ""
	}
	switch {
	case c.has(NoRelease):
	case c.Host:
		c.fence(system)
	case c.Shared && !c.has(NarrowRelease):
		c.fence(gpu)
	default:
		c.fence(cta)
	}
	c.q.Ready = c.callEnd()
	c.pc = atSubmit
	return "fence; ready"
}

// submit is step 4: the last caller posts, and who ends a batch.
func (c *caller) submit() string {
	end := c.callEnd()
	if end == c.q.Reserved || int(c.base)/c.Batch != int(end)/c.Batch || c.call.blocks >= c.Batch {
		c.postTo(end, atSent)
		return "submit: post"
	}
	c.pc = atSent
	return "submit: left to a later caller"
}

// postTo sends the thread to post what is before end, and then to a step.
func (c *caller) postTo(end, after uint8) {
	c.end, c.after, c.pc = end, after, atPost
	if c.HostPosts {
		c.pc = atRaise
	}
}

// posted is the end of it.
func (c *caller) posted() { c.pc, c.end, c.after = c.after, 0, 0 }

// post is step 5, which goes on to unlock: under the lock raise posted; if it rose: fence, record, fence, doorbell.
func (c *caller) post() string {
	if c.q.Posted >= c.end {
		c.posted()
		return "posted already"
	}
	c.pc = atLock
	return "to be posted"
}

func (c *caller) lock() string {
	switch {
	case c.q.Lock == 0:
		c.q.Lock = uint8(c.t) + 1
		c.pc = atRaise
		return "lock"
	case c.q.Posted >= c.end:
		c.posted()
		return "posted by another"
	}
	return "" // tries again
}

func (c *caller) raise() string {
	if c.HostPosts {
		c.q.Posted = max(c.q.Posted, c.end)
		c.fence(system)
		if !c.has(WordLost) {
			c.q.Word = max(c.q.Word, c.end)
		}
		c.posted()
		return "raise posted and the host's word"
	}
	c.pc = atUnlock
	if c.q.Posted < c.end || c.has(PlainPosted) {
		c.q.Posted = c.end
		c.to(atRecord, DoorbellFirst, atDoorbell)
	}
	return "raise posted"
}

func (c *caller) record() string {
	c.fence(c.nic)
	c.q.RecordNew, c.q.RecordLevel, c.q.RecordOwner = c.end&c.mask, own, uint8(c.t)
	if c.has(RecordLost) {
		c.q.RecordNew = c.q.Record
	}
	c.to(atDoorbell, DoorbellFirst, atUnlock)
	return "fence; record"
}

func (c *caller) doorbell() string {
	if !c.has(UnfencedDoorbell) {
		c.fence(c.nic)
	}
	c.must(c.q.rings(c.end))
	c.q.Doorbell, c.q.Rung = c.end, true
	c.to(atUnlock, DoorbellFirst, atRecord)
	return "fence; doorbell"
}

func (c *caller) unlock() string {
	c.fence(gpu)
	c.q.Lock = 0
	c.posted()
	return "unlock"
}

// sent is the end of a call, but for one that waits.
func (c *caller) sent() string {
	end := c.callEnd()
	if c.call.reads && c.Flush == FlushLater && !c.has(HeadNotRaised) {
		c.q.GetHead = max(c.q.GetHead, end)
	}
	switch {
	case c.op.Wait || c.call.ibuf:
		c.loop, c.idx, c.pc = c.queue, end, atQuiet
		return "sent; quiet of its queue"
	case int(c.part)+1 < len(c.calls[c.t][c.thread.op]):
		*c.thread = thread{op: c.thread.op, part: c.part + 1, pc: atBegin}
	default:
		c.advance()
	}
	return "sent"
}

// result is what follows the wait of a call that waits.
func (c *caller) result() string {
	c.must(c.done(&c.n.State, c.call))
	if !c.call.ibuf {
		c.advance()
		return "return"
	}
	c.pc = atGiveCell
	if c.has(ReleaseEarly) {
		return "leave the result for later"
	}
	c.read()
	return "read the result"
}

// cell is the cell of the internal buffer that the thread's number is for.
func (c *caller) cell() int { return int(c.ibuf) % c.IbufCells }

// takeCell takes a number, for which awaitCell waits.
func (c *caller) takeCell() string {
	c.ibuf = c.q.IbufHead
	c.q.IbufHead++
	c.pc = atAwaitCell
	return "ibuf: take a number"
}

func (c *caller) awaitCell() string {
	if c.ibuf-c.q.IbufTail >= uint8(c.IbufCells) {
		return ""
	}
	c.must(c.q.owned(c.cell(), 0))
	c.q.Owner[c.cell()] = uint8(c.t) + 1
	c.to(atReserve, IbufAfterReserve, atHaveCell)
	return "ibuf: acquire"
}

// read reads the result from the thread's cell.
func (c *caller) read() {
	c.must(c.q.owned(c.cell(), uint8(c.t)+1))
	c.q.Owner[c.cell()] = 0
}

// giveCell releases cells in the order of their numbers.
func (c *caller) giveCell() string {
	if c.q.IbufTail != c.ibuf && !c.has(ReleaseUnordered) {
		return ""
	}
	c.q.IbufTail++
	if c.has(ReleaseEarly) {
		c.pc = atReadLate // until then the cell holds what the thread still wants
	} else {
		c.advance()
	}
	return "ibuf: release"
}
