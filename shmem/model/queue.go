// Package model proves the queue protocol of lshmem's device code, at small sizes, in every order of events: how
// callers reserve, write, publish and post work requests, how a NIC fetches and completes them, how pollers follow its
// 16-bit counter, and what quiet, fence, fetches and signals promise. The device code has the same steps in the same
// order; what a test of it would meet once in a million runs, the search here meets always.
//
// # What is modelled
//
// Callers are threads of CTAs, each with a list of operations on queues. Atomic operations take effect at once. A plain
// store (work request, doorbell record) is at first visible to its thread only, and becomes visible to its CTA, the GPU
// and the system by fences of that scope, also of others who can see it; without a fence it may stay where it is, and
// who fetches it then fails. A NIC takes the producer's count from the doorbell or from the record, may lose doorbells
// (and then reads the record), executes in order, gets the answers of reads late, and rewrites one completion entry.
// Counters on the wire have few bits, so that they wrap within the search; those of the device are full.
//
// # Where it is
//
//	queue.go       the state, its initial value, and who takes steps
//	config.go      what the callers' programs and the queues are; configs.go has those that are tried
//	callers.go     threads: reserve, write, publish, submit, post, and the internal buffer
//	waits.go       threads: poll, quiet, fence, and the group sync over load/store
//	nic.go         the NIC, and the host's thread that posts
//	properties.go  P1 to P10, which no step may violate
//	wrap.go        the poll's arithmetic
//	check.go       the search
//	queue.pml      the same protocol once more, for SPIN
//	mutations.go   defects that were seen in this protocol elsewhere: each one switched on must violate its property
package model

// This file holds the state of the protocol and the order of things: who takes steps, from which state on.

import "fmt"

// Bounds of a configuration: a State has room for no more.
const (
	MaxThreads = 4
	MaxQueues  = 2
	MaxDepth   = 8
	MaxWQEs    = 32 // in all operations together
	MaxLanes   = 4
)

// State is one state of the whole. It is comparable, and has no pointers. Its sets of requests have a bit for each.
type State struct {
	Q        [MaxQueues]queue
	T        [MaxThreads]thread
	Executed uint32 // requests whose effect the other side has seen
	Answered uint32 // whose answer has reached the NIC
	Complete uint32
	Landed   uint32            // whose answer the GPU can read
	Stored   [MaxThreads]uint8 // visibility of what a thread stored over load/store
	Arrived  uint8             // threads at the group sync
	Sync     [MaxThreads]uint8 // generation of it, by the first thread of the CTA
}

// queue is a queue pair. Counters are of blocks, and full but for those on the wire: Record, RecordNew and CQ.
type queue struct {
	Reserved, Ready, Posted, Consumed uint8
	Lock                              uint8
	Record, RecordNew                 uint8 // settled value; latest store and who sees it
	RecordLevel, RecordOwner          uint8
	Doorbell                          uint8 // latest value, full
	Rung                              bool
	Word, HostPosted, HostStep        uint8
	Known                             uint8 // to the NIC: may fetch below
	Done                              uint8 // NIC: executed below
	Completed                         uint8 // NIC: complete below
	CQ                                uint8 // counter in the completion entry
	Valid                             bool  // there was a completion
	GetHead, GetTail                  uint8
	IbufHead, IbufTail                uint8
	Owner                             [2]uint8 // of ibuf cells: thread + 1
	Ring                              [MaxDepth]written
}

// written is what is in a block of the ring.
type written struct {
	wqe   uint8 // number + 1; 0: never written
	at    uint8 // the count it was written for
	level uint8
	owner uint8 // thread, with otherLane for a lane of its warp other than the first
}

const otherLane = 0x80

// thread is a caller's registers. What it no longer needs is 0, so that states that differ only in the past are one.
type thread struct {
	op     uint8 // number of its operation
	pc     uint8 // its next step
	part   uint8 // piece of a split call
	queue  uint8
	base   uint8
	end    uint8 // what it posts up to
	after  uint8 // where posting returns to
	idx    uint8 // poll's argument
	wc     uint8 // poll's reading
	ret    uint8 // where the poll returns to
	ibuf   uint8
	loop   uint8 // queue of quiet or fence
	head   uint8 // get head that quiet read
	lanes  uint8 // that have written
	synced uint8
}

// Steps of a thread; see caller.step.
const (
	atBegin uint8 = iota
	atTakeCell
	atAwaitCell
	atReserve
	atHaveCell
	atWrite
	atPublish
	atSubmit
	atPost
	atLock
	atRaise
	atRecord
	atDoorbell
	atUnlock
	atSent
	atResult
	atGiveCell
	atReadLate
	atQuiet
	atQuietReady
	atQuietFlush
	atQuietTail
	atQuietEnd
	atSync
	atSyncWait
	atSyncEnd
	atPollOpcode
	atPoll
	atPollRead
	atPollAgain
	atPollRaise
	atEnd
)

// Visibility of a store.
const (
	own uint8 = iota
	cta
	gpu
	system
)

// settle: a store of the record that the NIC can see is the record, and who wrote it does not matter any more.
func (p *Protocol) settle(q *queue) {
	if q.RecordLevel >= p.nic {
		q.Record, q.RecordLevel, q.RecordOwner = q.RecordNew, system, 0
	}
}

// fence makes what the thread sees, of its own and of others, visible to that scope.
func (c *caller) fence(scope uint8) {
	raised := func(level, owner uint8) bool {
		return level < scope && (owner == uint8(c.t) || level >= gpu || level == cta && c.CTAs[owner&^otherLane] == c.CTAs[c.t])
	}
	for i := range c.PEs {
		q := &c.n.Q[i]
		for j := range q.Ring[:c.Depth] {
			if x := &q.Ring[j]; x.wqe != 0 && raised(x.level, x.owner) {
				x.level = scope
				if scope >= c.nic {
					x.level, x.owner = system, 0 // nobody asks any more
				}
			}
		}
		if raised(q.RecordLevel, q.RecordOwner) {
			q.RecordLevel = scope
			c.settle(q)
		}
	}
	for o := range c.Programs {
		if raised(c.n.Stored[o], uint8(o)) {
			c.n.Stored[o] = scope
		}
	}
}

// Protocol is a System: the protocol in one configuration.
type Protocol struct {
	Config
	wqes  []wqe
	calls [][][]call // of each thread and operation, pieces
	mask  uint8      // of counters on the wire
	nic   uint8      // visibility that the NIC needs
}

var _ System[State] = (*Protocol)(nil)

func (p *Protocol) has(d Switch) bool { return p.Defects&d != 0 }

// Initial has all counters at Start and, if that is not 0, a completion entry that says so.
func (p *Protocol) Initial() State {
	var s State
	n := uint8(p.Start)
	for q := range p.PEs {
		s.Q[q] = queue{Reserved: n, Ready: n, Posted: n, Consumed: n, Record: n & p.mask, RecordNew: n & p.mask,
			RecordLevel: system, Doorbell: n, Word: n, HostPosted: n, Known: n, Done: n, Completed: n, CQ: (n - 1) & p.mask,
			Valid: n != 0}
	}
	for t := range s.T {
		if t >= len(p.Programs) || len(p.Programs[t]) == 0 {
			s.T[t].pc = atEnd
		}
	}
	return s
}

// Next emits the steps of all threads, lanes, NICs and of the host's thread.
func (p *Protocol) Next(s *State, emit Emit[State]) {
	for t := range p.Programs {
		if s.T[t].pc == atEnd {
			continue
		}
		n := outcome{State: *s}
		c := p.caller(&n, t, emit)
		if what := c.step(); what != "" {
			emit(t, what, n.State, n.bad)
		}
	}
	for q := range p.PEs {
		p.nicStep(s, q, emit)
		if p.HostPosts {
			p.hostStep(s, q, emit)
		}
	}
}

// Actors beyond the threads.
const (
	nicActor  = MaxThreads
	hostActor = nicActor + MaxQueues
	laneActor = hostActor + MaxQueues
)

// Actor names who takes a step.
func (p *Protocol) Actor(who int) string {
	switch {
	case who >= laneActor:
		return fmt.Sprintf("lane %d", who-laneActor)
	case who >= hostActor:
		return fmt.Sprintf("host q%d", who-hostActor)
	case who >= nicActor:
		return fmt.Sprintf("NIC q%d", who-nicActor)
	}
	return fmt.Sprintf("T%d", who)
}

// Describe is the state in one line: of each queue reserved/ready/posted/consumed, the record, and what the NIC knows,
// has executed and has completed.
func (p *Protocol) Describe(s *State) string {
	var b []byte
	for i := range p.PEs {
		q := &s.Q[i]
		b = fmt.Appendf(b, "q%d %d/%d/%d/%d rec %d nic %d/%d/%d cqe %d  ", i, q.Reserved, q.Ready, q.Posted, q.Consumed, q.Record,
			q.Known, q.Done, q.Completed, q.CQ)
	}
	return string(b)
}
