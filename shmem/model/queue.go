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
// # Properties
//
//	P1  no block is written before the NIC has completed what it held
//	P2  a block that the NIC may fetch is visible to it
//	P3  the doorbell never goes back, and when nobody is left to post, everything ready is posted and fetched
//	P4  quiet returns only when everything of its caller is done
//	P5  fence orders a caller's operations to a PE, over all queues
//	P6  a slot of the internal buffer has one owner until its result was read
//	P7  no deadlock
//	P8  the poller is right in spite of the wrap: the consumed count never exceeds what is complete, never goes
//	    back, and a poller whose blocks are complete comes to know it
//	P9  a signal is never seen before its data
//	P10 a get's or fetch's result is there when the call or its quiet returns
//
// Mutations lists the defects that were seen in this protocol elsewhere; each one switched on must violate its
// property.
package model

import (
	"fmt"
	"slices"
)

// The properties; see the package comment.
const (
	P1  Property = "P1"
	P2  Property = "P2"
	P3  Property = "P3"
	P4  Property = "P4"
	P5  Property = "P5"
	P6  Property = "P6"
	P7  Property = "P7"
	P8  Property = "P8"
	P9  Property = "P9"
	P10 Property = "P10"
)

// Bounds of a configuration: a State has room for no more.
const (
	MaxThreads = 4
	MaxQueues  = 2
	MaxDepth   = 8
	MaxWQEs    = 32 // in all operations together
	MaxLanes   = 4
)

// Switch is a set of defects to run with.
type Switch uint32

// The defects, in the order of the mutation list.
const (
	FenceSkipsQueue    Switch = 1 << iota // M1: fence leaves out a queue of its PE
	NoBroadcast                           // M2: lanes do not learn the leader's base
	NoWarpSync                            // M2: the leader publishes before its lanes have written
	QuietSkipsQueue                       // M3: quiet leaves out a queue
	SplitSignal                           // M4: data and signal on different queues
	WordLost                              // M5: the word for the host's thread is written elsewhere
	RecordLost                            // M5: the record is written elsewhere
	LeaderFences                          // M8: of a CTA only the first thread fences before the group sync
	RandomQueue                           // M9: each submission may go to any queue of the PE
	WaitOpcode                            // M12: a poll first waits for the first completion of all
	PlainConsumed                         // M13: the consumed count is stored, not raised
	NoSlotWait                            // M14
	NoPostedCheck                         // M15: a poll does not wait until its blocks are posted
	NoRelease                             // M16: ready is published without a fence
	NarrowRelease                         // M16: with a fence for the CTA although the queue is shared
	DoorbellFirst                         // M17: before the record
	PlainPosted                           // M17: the posted count is stored, not raised
	NoNOP                                 // M18: a two-block request asks for its completion itself
	ReleaseEarly                          // M19: the slot of a result is released before it was read
	ReleaseUnordered                      // M19: slots are released by addition, in any order
	HeadAfterPoll                         // M20: quiet reads the flush mark after its poll
	HeadNotRaised                         // M20: a get does not raise it
	DumpUnfenced                          // M20: the flush does not wait for the reads before it
	NoReread                              // the poll does not look at the consumed count again after it read the counter
	IbufAfterReserve                      // the internal buffer's slot is awaited with blocks reserved
	UnfencedDoorbell                      // no fence between record and doorbell
	LeaderFencesSignal                    // as LeaderFences, of a put with signal
)

// Kind is what an operation of a thread does.
type Kind uint8

// Operations.
const (
	Call       Kind = iota // reserves, writes, publishes and posts its WQEs; see Op
	Quiet                  // of all queues
	Fence                  // of all queues to PE
	Store                  // over load/store: data to a peer's memory
	BlockQuiet             // of the threads of a CTA, over load/store
	BlockStore             // a signal over load/store behind all of the CTA's data
)

// Work is what a work request does.
type Work uint8

// Work requests. Atomic takes two blocks.
const (
	Write Work = iota
	Signal
	Read
	Fetch
	Atomic
	NOP
	Dump
)

// Blocks is how many blocks of a queue a request takes.
func (w Work) Blocks() int {
	if w == Atomic {
		return 2
	}
	return 1
}

// answered says whether the request has an answer from the other side that comes later.
func (w Work) answered() bool { return w == Read || w == Fetch }

// Op is one operation of a thread.
type Op struct {
	Kind  Kind
	Queue int    // of a Call
	PE    int    // of a Fence
	Work  []Work // of a Call: a last request of two blocks gets a NOP behind it, reads on a flushing queue a Dump
	Wait  bool   // the Call returns when it is complete, as a blocking put or get
	// Lanes writes the requests of a Call by that many lanes of a warp, which must be as many as there are requests.
	Lanes int
}

// Config is one instance of the protocol.
type Config struct {
	Name      string
	Depth     int // blocks of each queue
	Batch     int
	Bits      uint // of counters on the wire
	CQEs      int  // size that the poll's test assumes; 0 for Depth
	Start     int  // of all counters
	IbufSlots int
	PEs       []int // of each queue
	CTAs      []int // of each thread
	Programs  [][]Op
	Shared    bool // the queues are posted to by several CTAs
	Host      bool // the queues lie in host memory
	HostPosts bool // a host thread posts
	Record    bool // the NIC takes the count from the record, the doorbell is a kick
	Lossy     bool // doorbells get lost; the NIC reads the record now and then
	Flush     int  // 0: answers are visible with their completion; else one of the two forms
	Help      bool // who waits posts what is ready; else the inequality of batch, call and depth must hold
	FreeFence bool // fence does nothing, since a caller has one queue for each PE
	Defects   Switch
}

// Forms of Config.Flush.
const (
	FlushAtOnce = 1 // each call with reads ends with a fenced Dump
	FlushLater  = 2 // quiet flushes by a Dump on a queue of its own
)

type wqe struct {
	work      Work
	thread    uint8
	queue     uint8 // as written in the program
	pe        uint8
	last      bool   // asks for a completion
	fenced    bool   // waits for the answers of earlier requests
	ordered   uint32 // requests that a fence, or its being their signal, puts before this one
	orderedOf Property
}

type call struct {
	first, count int // in wqes
	blocks       int
	queue        int
	ibuf         bool
	reads        bool
}

// State is one state of the whole. It is comparable, and has no pointers.
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

// Visibility of a store.
const (
	own uint8 = iota
	cta
	gpu
	system
)

type slot struct {
	wqe   uint8 // number + 1; 0: never written
	at    uint8 // the count it was written for
	level uint8
	owner uint8 // thread, with 0x80 for a lane of its warp other than the first
}

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
	Owner                             [2]uint8 // of ibuf slots: thread + 1
	Slots                             [MaxDepth]slot
}

type thread struct {
	op     uint8
	pc     uint8
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

// Steps of a thread.
const (
	atBegin uint8 = iota
	atIbuf
	atIbufWait
	atReserve
	atIbufLate
	atWrite
	atReady
	atSubmit
	atLock
	atTry
	atPosted
	atRecord
	atDoorbell
	atUnlock
	atSent
	atResult
	atRelease
	atQuiet
	atQuietReady
	atQuietFlush
	atQuietTail
	atQuietEnd
	atSyncFence
	atSyncWait
	atSyncEnd
	atPollOpcode
	atPoll
	atPollRead
	atPollTest
	atPollRaise
	atEnd
)

// Actors beyond the threads.
const (
	nicActor  = MaxThreads
	hostActor = nicActor + MaxQueues
	laneActor = hostActor + MaxQueues
)

// Protocol is a System: the protocol in one configuration.
type Protocol struct {
	Config
	wqes  []wqe
	calls [][][]call // of each thread and operation, pieces
	mask  uint8
	nic   uint8 // visibility that the NIC needs
}

// New checks the configuration and makes its transition system.
func New(c Config) (*Protocol, error) {
	p := &Protocol{Config: c, mask: uint8(1<<c.Bits - 1), nic: gpu}
	if c.Host {
		p.nic = system
	}
	if p.CQEs == 0 {
		p.CQEs = c.Depth
	}
	if p.IbufSlots == 0 {
		p.IbufSlots = 1
	}
	switch {
	case c.Depth < 1 || c.Depth > MaxDepth || c.Depth&(c.Depth-1) != 0:
		return nil, fmt.Errorf("model %s: depth %d is no power of two up to %d", c.Name, c.Depth, MaxDepth)
	case len(c.Programs) > MaxThreads || len(c.Programs) == 0:
		return nil, fmt.Errorf("model %s: %d threads, not 1 to %d", c.Name, len(c.Programs), MaxThreads)
	case len(c.CTAs) != len(c.Programs):
		return nil, fmt.Errorf("model %s: CTAs of %d threads for %d programs", c.Name, len(c.CTAs), len(c.Programs))
	case len(c.PEs) > MaxQueues:
		return nil, fmt.Errorf("model %s: %d queues, more than %d", c.Name, len(c.PEs), MaxQueues)
	case c.Bits < 2 || c.Bits > 7:
		return nil, fmt.Errorf("model %s: %d bits on the wire, not 2 to 7", c.Name, c.Bits)
	case p.IbufSlots > len(queue{}.Owner):
		return nil, fmt.Errorf("model %s: %d ibuf slots, more than %d", c.Name, p.IbufSlots, len(queue{}.Owner))
	case slices.ContainsFunc(c.PEs, func(pe int) bool { return pe < 0 || pe >= MaxQueues }):
		return nil, fmt.Errorf("model %s: PEs %v", c.Name, c.PEs)
	case c.Start < 0:
		return nil, fmt.Errorf("model %s: counters start at %d", c.Name, c.Start)
	case c.Batch < 1:
		return nil, fmt.Errorf("model %s: batch %d", c.Name, c.Batch)
	}
	blocks := c.Start
	for t, program := range c.Programs {
		var calls [][]call
		var mine, epoch [MaxQueues]uint32 // requests by PE: all, and before the last fence
		for _, op := range program {
			var pieces []call
			if op.Kind == Call {
				switch {
				case op.Queue < 0 || op.Queue >= len(c.PEs):
					return nil, fmt.Errorf("model %s: no queue %d", c.Name, op.Queue)
				case len(op.Work) == 0 || len(op.Work) > MaxDepth:
					return nil, fmt.Errorf("model %s: a call of %d requests", c.Name, len(op.Work))
				case op.Lanes != 0 && (op.Lanes != len(op.Work) || op.Lanes > MaxLanes):
					return nil, fmt.Errorf("model %s: %d lanes for %d requests", c.Name, op.Lanes, len(op.Work))
				}
				pieces = p.compile(t, op, &mine, epoch)
			}
			switch op.Kind {
			case Fence:
				if op.PE < 0 || op.PE >= MaxQueues {
					return nil, fmt.Errorf("model %s: no PE %d", c.Name, op.PE)
				}
				epoch[op.PE] = mine[op.PE]
			case Quiet:
				epoch = mine
			}
			if len(p.wqes) > MaxWQEs {
				return nil, fmt.Errorf("model %s: %d work requests, more than %d", c.Name, len(p.wqes), MaxWQEs)
			}
			for _, piece := range pieces {
				if piece.blocks > c.Depth {
					return nil, fmt.Errorf("model %s: a call of %d blocks in a queue of %d", c.Name, piece.blocks, c.Depth)
				}
				blocks += piece.blocks
			}
			calls = append(calls, pieces)
		}
		p.calls = append(p.calls, calls)
	}
	if blocks > 200 {
		return nil, fmt.Errorf("model %s: counters up to %d do not fit a byte with room to spare", c.Name, blocks)
	}
	return p, nil
}

// compile numbers the requests of a call, adds NOP and Dump, and notes what must come before each.
func (p *Protocol) compile(t int, op Op, mine *[MaxQueues]uint32, epoch [MaxQueues]uint32) []call {
	pe := p.PEs[op.Queue]
	one := call{first: len(p.wqes), queue: op.Queue}
	var pieces []call
	flush := func() {
		one.count = len(p.wqes) - one.first
		if one.count == 0 {
			return
		}
		p.wqes[len(p.wqes)-1].last = true
		pieces = append(pieces, one)
		one = call{first: len(p.wqes), queue: op.Queue}
	}
	add := func(w Work, ordered uint32, of Property, fenced bool) {
		p.wqes = append(p.wqes, wqe{work: w, thread: uint8(t), queue: uint8(one.queue), pe: uint8(pe), fenced: fenced,
			ordered: ordered, orderedOf: of})
		one.blocks += w.Blocks()
		bit := uint32(1) << (len(p.wqes) - 1)
		if w != NOP && w != Dump {
			mine[pe] |= bit
		}
	}
	var data uint32
	for _, w := range op.Work {
		if w == Signal {
			if p.Defects&SplitSignal != 0 && data != 0 {
				flush()
				one.queue = (op.Queue + 1) % len(p.PEs)
			} else if p.Defects&RandomQueue != 0 && data != 0 {
				flush()
			}
			add(w, data, P9, false)
			continue
		}
		add(w, epoch[pe], P5, false)
		data |= 1 << (len(p.wqes) - 1)
		one.ibuf = one.ibuf || w == Fetch
		one.reads = one.reads || w.answered()
	}
	switch {
	case one.reads && p.Flush == FlushAtOnce:
		add(Dump, 0, "", p.Defects&DumpUnfenced == 0)
	case p.wqes[len(p.wqes)-1].work.Blocks() > 1 && p.Defects&NoNOP == 0:
		add(NOP, 0, "", false)
	}
	flush()
	return pieces
}

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

func (p *Protocol) has(d Switch) bool { return p.Defects&d != 0 }

// fence makes what thread t sees, of its own and of others, visible to that scope.
func (p *Protocol) fence(s *State, t int, scope uint8) {
	sees := func(level, owner uint8) bool {
		return owner == uint8(t) || level >= gpu || level == cta && p.CTAs[owner&0x7f] == p.CTAs[t]
	}
	for q := range p.PEs {
		u := &s.Q[q]
		for i := range u.Slots[:p.Depth] {
			if x := &u.Slots[i]; x.wqe != 0 && x.level < scope && sees(x.level, x.owner) {
				x.level = scope
				if scope >= p.nic {
					x.level, x.owner = system, 0 // nobody asks any more
				}
			}
		}
		if u.RecordLevel < scope && sees(u.RecordLevel, u.RecordOwner) {
			u.RecordLevel = scope
			p.settle(u)
		}
	}
	for o := range s.Stored[:len(p.Programs)] {
		if s.Stored[o] < scope && sees(s.Stored[o], uint8(o)) {
			s.Stored[o] = scope
		}
	}
}

// settle: a store of the record that the NIC can see is the record, and who wrote it does not matter any more.
func (p *Protocol) settle(u *queue) {
	if u.RecordLevel >= p.nic {
		u.Record, u.RecordLevel, u.RecordOwner = u.RecordNew, system, 0
	}
}

// Next emits the steps of all threads, lanes, NICs and of the host's thread.
func (p *Protocol) Next(s *State, emit Emit[State]) {
	for t := range p.Programs {
		if s.T[t].pc != atEnd {
			p.step(s, t, emit)
		}
	}
	for q := range p.PEs {
		p.nicStep(s, q, emit)
		if p.HostPosts {
			p.hostStep(s, q, emit)
		}
	}
}

func broken(of Property, format string, args ...any) *Violation {
	return &Violation{of, fmt.Sprintf(format, args...)}
}

// call is the piece of a call that thread t is at.
func (p *Protocol) call(s *State, t int) *call {
	x := &s.T[t]
	return &p.calls[t][x.op][x.part]
}

// advance goes to the thread's next operation and forgets what it no longer needs, so that states that differ only in
// the past are one.
func (p *Protocol) advance(s *State, t int) {
	x := &s.T[t]
	x.op++
	*x = thread{op: x.op, synced: x.synced}
	if int(x.op) == len(p.Programs[t]) {
		*x = thread{op: x.op, pc: atEnd}
	}
}

// poll sends thread t to wait for idx blocks of its queue and then to ret.
func (p *Protocol) poll(x *thread, idx, ret uint8) {
	x.idx, x.ret, x.pc = idx, ret, atPoll
	if p.has(WaitOpcode) {
		x.pc = atPollOpcode
	}
}

func (p *Protocol) step(s *State, t int, emit Emit[State]) {
	n := *s
	x := &n.T[t]
	u := &n.Q[x.queue]
	op := &p.Programs[t][x.op]
	do := func(what string) { emit(t, what, n, nil) }
	fail := func(what string, v *Violation) { emit(t, what, n, v) }
	switch x.pc {
	case atBegin:
		p.begin(s, t, emit)

	case atIbuf:
		x.ibuf = u.IbufHead
		u.IbufHead++
		x.pc = atIbufWait
		do("ibuf: take a number")
	case atIbufWait:
		if x.ibuf-u.IbufTail >= uint8(p.IbufSlots) {
			return
		}
		owner := &u.Owner[int(x.ibuf)%p.IbufSlots]
		x.pc = atReserve
		if p.has(IbufAfterReserve) {
			x.pc = atIbufLate
		}
		if *owner != 0 {
			fail("ibuf: acquire", broken(P6, "slot %d is still thread %d's", int(x.ibuf)%p.IbufSlots, *owner-1))
			return
		}
		*owner = uint8(t) + 1
		do("ibuf: acquire")

	case atReserve:
		c := p.call(&n, t)
		x.base = u.Reserved
		u.Reserved += uint8(c.blocks)
		next := atWrite
		if c.ibuf && p.has(IbufAfterReserve) {
			next = atIbuf
		}
		if end := int(x.base) + c.blocks - p.Depth; end > p.Start && !p.has(NoSlotWait) {
			p.poll(x, uint8(end), next)
		} else {
			x.pc = next
		}
		do("reserve")
	case atIbufLate:
		x.pc = atWrite
		do("ibuf: have it")

	case atWrite:
		p.write(s, t, emit)

	case atReady:
		if u.Ready != x.base {
			return
		}
		scope := cta
		switch {
		case p.Host:
			scope = system
		case p.Shared && !p.has(NarrowRelease):
			scope = gpu
		}
		if !p.has(NoRelease) {
			p.fence(&n, t, scope)
		}
		u.Ready += uint8(p.call(&n, t).blocks)
		x.pc = atSubmit
		do("fence; ready")
	case atSubmit:
		c := p.call(&n, t)
		end := int(x.base) + c.blocks
		x.pc = atSent
		what := "submit: left to a later caller"
		if end == int(u.Reserved) || int(x.base)/p.Batch != end/p.Batch || c.blocks >= p.Batch {
			what = "submit: post"
			p.post(x, uint8(end), atSent)
		}
		do(what)
	case atLock:
		if u.Posted >= x.end {
			p.posted(x)
			do("posted already")
			return
		}
		x.pc = atTry
		do("to be posted")
	case atTry:
		if u.Posted >= x.end && u.Lock != 0 {
			p.posted(x)
			do("posted by another")
			return
		}
		if u.Lock != 0 {
			return // tries again
		}
		u.Lock = uint8(t) + 1
		x.pc = atPosted
		do("lock")
	case atPosted:
		if p.HostPosts {
			u.Posted = max(u.Posted, x.end)
			p.fence(&n, t, system)
			if !p.has(WordLost) {
				u.Word = max(u.Word, x.end)
			}
			p.posted(x)
			do("raise posted and the host's word")
			return
		}
		x.pc = atUnlock
		if u.Posted < x.end || p.has(PlainPosted) {
			u.Posted = x.end
			x.pc = atRecord
			if p.has(DoorbellFirst) {
				x.pc = atDoorbell
			}
		}
		do("raise posted")
	case atRecord:
		p.fence(&n, t, p.nic)
		u.RecordNew, u.RecordLevel, u.RecordOwner = x.end&p.mask, own, uint8(t)
		if p.has(RecordLost) {
			u.RecordNew = u.Record
		}
		x.pc = atDoorbell
		if p.has(DoorbellFirst) {
			x.pc = atUnlock
		}
		do("fence; record")
	case atDoorbell:
		if !p.has(UnfencedDoorbell) {
			p.fence(&n, t, p.nic)
		}
		x.pc = atUnlock
		if p.has(DoorbellFirst) {
			x.pc = atRecord
		}
		if x.end < u.Doorbell {
			fail("fence; doorbell", broken(P3, "the doorbell goes back from %d to %d", u.Doorbell, x.end))
			return
		}
		u.Doorbell, u.Rung = x.end, true
		do("fence; doorbell")
	case atUnlock:
		p.fence(&n, t, gpu)
		u.Lock = 0
		p.posted(x)
		do("unlock")

	case atSent:
		c := p.call(&n, t)
		if c.reads && p.Flush == FlushLater && !p.has(HeadNotRaised) {
			u.GetHead = max(u.GetHead, x.base+uint8(c.blocks))
		}
		switch {
		case op.Wait || c.ibuf:
			x.loop = x.queue
			x.idx = x.base + uint8(c.blocks)
			x.pc = atQuiet
			do("sent; quiet of its queue")
			return
		case int(x.part)+1 < len(p.calls[t][x.op]):
			*x = thread{op: x.op, part: x.part + 1, pc: atBegin}
		default:
			p.advance(&n, t)
		}
		do("sent")
	case atResult:
		c := p.call(&n, t)
		if c.reads {
			mine := uint32(1<<c.count-1) << c.first
			for i := c.first; i < c.first+c.count; i++ {
				if !p.wqes[i].work.answered() {
					mine &^= 1 << i
				}
			}
			if n.Landed&mine != mine {
				fail("read the result", broken(P10, "the result is not there yet"))
				return
			}
		}
		if !c.ibuf {
			p.advance(&n, t)
			do("return")
			return
		}
		if !p.has(ReleaseEarly) {
			owner := &u.Owner[int(x.ibuf)%p.IbufSlots]
			if *owner != uint8(t)+1 {
				fail("read the result", broken(P6, "slot %d is not thread %d's", int(x.ibuf)%p.IbufSlots, t))
				return
			}
			*owner = 0
			x.pc = atRelease
			do("read the result")
			return
		}
		x.pc = atRelease
		do("leave the result for later")
	case atRelease:
		if p.has(ReleaseUnordered) {
			u.IbufTail++
		} else if u.IbufTail != x.ibuf {
			return
		} else {
			u.IbufTail++
		}
		if p.has(ReleaseEarly) {
			// The read comes with the next step; until then the slot holds what this thread still wants.
			x.pc = atEndOfEarly
			do("ibuf: release")
			return
		}
		p.advance(&n, t)
		do("ibuf: release")
	case atEndOfEarly:
		u.Owner[int(x.ibuf)%p.IbufSlots] = 0
		p.advance(&n, t)
		do("read the result")

	case atQuiet:
		x.queue = x.loop
		u = &n.Q[x.queue]
		if p.Flush == FlushLater && !p.has(HeadAfterPoll) {
			x.head = u.GetHead
		}
		x.pc = atQuietReady
		do("quiet: read the flush mark")
	case atQuietReady:
		idx := u.Ready
		if op.Kind == Call {
			idx = x.idx
		}
		p.poll(x, idx, atQuietFlush)
		do("quiet: read ready")
	case atQuietFlush:
		if p.Flush == FlushLater {
			if p.has(HeadAfterPoll) {
				x.head = u.GetHead
			}
			if u.GetTail < x.head {
				// A Dump on a queue of its own: pushes the answers that the NIC has.
				n.Landed |= n.Answered
				x.pc = atQuietTail
				do("quiet: flush")
				return
			}
		}
		p.quietNext(&n, t)
		do("quiet: complete")
	case atQuietTail:
		u.GetTail = max(u.GetTail, x.head)
		p.quietNext(&n, t)
		do("quiet: raise the flush tail")
	case atQuietEnd:
		p.quietEnd(s, t, emit)

	case atSyncFence:
		if !p.leaderOnly(op) || p.leader(t) == t {
			p.fence(&n, t, system)
		}
		n.Arrived |= 1 << t
		x.synced = n.Sync[p.leader(t)]
		x.pc = atSyncWait
		members := p.members(t)
		if n.Arrived&members == members {
			// The group sync orders what its threads wrote for each other.
			for o := range p.Programs {
				if members>>o&1 != 0 && n.Stored[o] < cta {
					n.Stored[o] = cta
				}
			}
			n.Arrived &^= members
			n.Sync[p.leader(t)]++
		}
		do("fence; group sync")
	case atSyncWait:
		if n.Sync[p.leader(t)] == x.synced {
			return
		}
		x.pc = atSyncEnd
		do("group sync")
	case atSyncEnd:
		for o := range p.Programs {
			if op.Kind == BlockStore && p.leader(t) != t {
				break
			}
			if p.members(t)>>o&1 != 0 && n.Stored[o] < system {
				of := P4
				if op.Kind == BlockStore {
					of = P9
				}
				fail("return", broken(of, "what thread %d stored is not visible to the system", o))
				return
			}
		}
		p.advance(&n, t)
		do("return")

	case atPollOpcode:
		if !u.Valid {
			return
		}
		x.pc = atPoll
		do("poll: there was a completion")
	case atPoll:
		switch {
		case u.Consumed >= x.idx:
			p.pollReturn(x)
			do("poll: consumed already")
		case u.Posted >= x.idx || p.has(NoPostedCheck):
			x.pc = atPollRead
			do("poll: posted")
		case p.Help && u.Ready > u.Posted:
			p.post(x, u.Ready, atPoll)
			do("poll: post what is ready")
		}
	case atPollRead:
		if u.Consumed >= x.idx && !p.has(NoReread) {
			p.pollReturn(x)
			do("poll: consumed by another")
			return
		}
		if Pending(uint64(x.idx), uint64(u.CQ), p.Bits, uint64(p.CQEs)) {
			return // reads again
		}
		x.wc = u.CQ
		x.pc = atPollTest
		do("poll: read the counter")
	case atPollTest:
		if u.Consumed >= x.idx && !p.has(NoReread) {
			p.pollReturn(x)
			do("poll: consumed by another")
			return
		}
		x.pc = atPollRaise
		do("poll: complete")
	case atPollRaise:
		c := uint8(Consumed(uint64(x.idx), uint64(x.wc), p.Bits))
		if c > u.Completed {
			fail("poll: raise consumed", broken(P8, "consumed is %d, complete are %d", c, u.Completed))
			return
		}
		if p.has(PlainConsumed) {
			if c < u.Consumed {
				fail("poll: store consumed", broken(P8, "consumed goes back from %d to %d", u.Consumed, c))
				return
			}
			u.Consumed = c
		} else {
			u.Consumed = max(u.Consumed, c)
		}
		p.pollReturn(x)
		do("poll: raise consumed")
	}
}

// atEndOfEarly is a step of ReleaseEarly only.
const atEndOfEarly = atEnd + 1

// post sends a thread to post up to end, posted back to where it came from.
func (p *Protocol) post(x *thread, end, after uint8) {
	x.end, x.after, x.pc = end, after, atLock
	if p.HostPosts {
		x.pc = atPosted
	}
}

func (p *Protocol) posted(x *thread) { x.pc, x.end, x.after = x.after, 0, 0 }

func (p *Protocol) pollReturn(x *thread) {
	x.pc, x.idx, x.wc, x.ret = x.ret, 0, 0, 0
}

// leaderOnly says whether a defect leaves the fence of a group to its first thread.
func (p *Protocol) leaderOnly(op *Op) bool {
	return op.Kind == BlockQuiet && p.has(LeaderFences) || op.Kind == BlockStore && p.has(LeaderFencesSignal)
}

// members is the set of threads in t's CTA, leader the first of them.
func (p *Protocol) members(t int) (set uint8) {
	for o := range p.Programs {
		if p.CTAs[o] == p.CTAs[t] {
			set |= 1 << o
		}
	}
	return set
}

func (p *Protocol) leader(t int) int {
	for o := range p.Programs {
		if p.CTAs[o] == p.CTAs[t] {
			return o
		}
	}
	return t
}

// begin is the first step of an operation, or of a piece of a split call.
func (p *Protocol) begin(s *State, t int, emit Emit[State]) {
	n := *s
	x := &n.T[t]
	op := &p.Programs[t][x.op]
	switch op.Kind {
	case Call:
		c := p.call(&n, t)
		x.pc = atReserve
		if c.ibuf && !p.has(IbufAfterReserve) {
			x.pc = atIbuf
		}
		for q := range p.PEs {
			if p.has(RandomQueue) && p.PEs[q] == p.PEs[op.Queue] || q == c.queue {
				x.queue = uint8(q)
				emit(t, [...]string{"call on queue 0", "call on queue 1"}[q], n, nil)
			}
		}
	case Quiet, Fence:
		x.loop = 0
		x.pc = atQuiet
		if op.Kind == Fence {
			if p.FreeFence {
				p.advance(&n, t)
				emit(t, "fence: free", n, nil)
				return
			}
			p.skip(&n, t)
		}
		emit(t, [...]string{"quiet", "fence"}[op.Kind-Quiet], n, nil)
	case Store:
		n.Stored[t] = own
		p.advance(&n, t)
		emit(t, "store to the peer", n, nil)
	case BlockQuiet, BlockStore:
		x.pc = atSyncFence
		emit(t, "group operation", n, nil)
	}
}

// skip passes queues that a fence does not concern.
func (p *Protocol) skip(n *State, t int) {
	x := &n.T[t]
	op := &p.Programs[t][x.op]
	for int(x.loop) < len(p.PEs) && op.Kind == Fence && p.PEs[x.loop] != op.PE {
		x.loop++
	}
	if int(x.loop) == len(p.PEs) {
		x.pc = atQuietEnd
	}
}

func (p *Protocol) quietNext(n *State, t int) {
	x := &n.T[t]
	op := &p.Programs[t][x.op]
	x.head, x.idx = 0, 0
	if op.Kind == Call {
		x.pc = atResult
		return
	}
	x.queue = 0
	x.loop++
	if op.Kind == Fence && p.has(FenceSkipsQueue) || op.Kind == Quiet && p.has(QuietSkipsQueue) {
		x.loop = uint8(len(p.PEs))
	}
	x.pc = atQuiet
	p.skip(n, t)
}

// quietEnd checks what quiet and fence promise.
func (p *Protocol) quietEnd(s *State, t int, emit Emit[State]) {
	n := *s
	op := p.Programs[t][s.T[t].op]
	what := [...]string{"quiet: return", "fence: return"}[op.Kind-Quiet]
	if op.Kind == Quiet {
		for k := 0; k < int(s.T[t].op); k++ {
			for _, c := range p.calls[t][k] {
				for i := c.first; i < c.first+c.count; i++ {
					bit := uint32(1) << i
					switch {
					case s.Complete&bit == 0:
						emit(t, what, n, broken(P4, "request %d is not complete", i))
						return
					case p.wqes[i].work.answered() && s.Landed&bit == 0:
						emit(t, what, n, broken(P10, "the answer of request %d is not there yet", i))
						return
					}
				}
			}
		}
	}
	p.advance(&n, t)
	emit(t, what, n, nil)
}

// put writes request w of a call at its blocks, by an owner.
func (p *Protocol) put(n *State, q int, base uint8, c *call, w int, owner uint8) *Violation {
	u := &n.Q[q]
	at := int(base)
	for i := c.first; i < w; i++ {
		at += p.wqes[i].work.Blocks()
	}
	for b := 0; b < p.wqes[w].work.Blocks(); b++ {
		if x := u.Slots[(at+b)%p.Depth]; x.wqe != 0 && x.at >= u.Completed {
			return broken(P1, "block %d is written over block %d, while the NIC has completed %d", at+b, x.at, u.Completed)
		}
		u.Slots[(at+b)%p.Depth] = slot{uint8(w) + 1, uint8(at + b), own, owner}
	}
	return nil
}

// write is the writing of a call's blocks, by the thread or by lanes of its warp.
func (p *Protocol) write(s *State, t int, emit Emit[State]) {
	n := *s
	x := &n.T[t]
	c := p.call(&n, t)
	op := &p.Programs[t][x.op]
	if op.Lanes == 0 {
		var bad *Violation
		for w := c.first; w < c.first+c.count && bad == nil; w++ {
			bad = p.put(&n, int(x.queue), x.base, c, w, uint8(t))
		}
		x.pc = atReady
		emit(t, "write", n, bad)
		return
	}
	all := uint8(1<<op.Lanes - 1)
	for lane := range op.Lanes {
		if x.lanes>>lane&1 != 0 {
			continue
		}
		n := *s
		x := &n.T[t]
		base, owner := x.base, uint8(t)
		if lane != 0 {
			owner |= 0x80
			if p.has(NoBroadcast) {
				base = uint8(p.Start) // what happened to be in the register
			}
		}
		x.lanes |= 1 << lane
		bad := p.put(&n, int(x.queue), base, c, c.first+lane, owner)
		if lane == op.Lanes-1 {
			for w := c.first + op.Lanes; w < c.first+c.count && bad == nil; w++ {
				bad = p.put(&n, int(x.queue), base, c, w, owner)
			}
		}
		emit(laneActor+lane, "write", n, bad)
	}
	if x.lanes == all || p.has(NoWarpSync) && x.lanes&1 != 0 {
		if !p.has(NoWarpSync) {
			for i := range n.Q[x.queue].Slots {
				if e := &n.Q[x.queue].Slots[i]; e.wqe != 0 && e.owner == uint8(t)|0x80 && e.level == own {
					e.level = cta
				}
			}
		}
		x.lanes = 0
		x.pc = atReady
		emit(t, "warp sync", n, nil)
	}
}

// nicStep emits what the NIC can do with queue q.
func (p *Protocol) nicStep(s *State, q int, emit Emit[State]) {
	who := nicActor + q
	u := &s.Q[q]
	learn := func(value uint8, what string, taken, lost bool) {
		n := *s
		u := &n.Q[q]
		if taken {
			u.Rung = false
		}
		if !lost && value != u.Record && value == u.RecordNew && p.Record {
			u.RecordLevel = p.nic // what was seen once stays seen
			p.settle(u)
		}
		if !lost {
			u.Known += (value - u.Known) & p.mask
			if u.Known > u.Reserved {
				emit(who, what, n, broken(P3, "the NIC believes in %d blocks, %d are reserved", u.Known, u.Reserved))
				return
			}
		}
		emit(who, what, n, nil)
	}
	if u.Rung {
		if p.Record {
			learn(u.Record, "takes the doorbell, reads the record", true, false)
			if u.RecordLevel < p.nic && u.RecordNew != u.Record {
				learn(u.RecordNew, "takes the doorbell, reads the new record", true, false)
			}
		} else {
			learn(u.Doorbell, "takes the doorbell", true, false)
		}
		if p.Lossy {
			learn(0, "loses the doorbell", true, true)
		}
	}
	if p.Lossy && u.Record != u.Known&p.mask {
		learn(u.Record, "reads the record", false, false)
	}
	if u.Done < u.Known {
		p.execute(s, q, emit)
	}
	// Answers come in any order.
	for i := range p.wqes {
		if bit := uint32(1) << i; p.wqes[i].work.answered() && s.Executed&bit != 0 && s.Answered&bit == 0 && p.where(s, i) == q {
			n := *s
			n.Answered |= bit
			emit(who, "has an answer", n, nil)
		}
	}
	if u.Completed < u.Done {
		p.complete(s, q, emit)
	}
}

// where is the queue that request i was written to.
func (p *Protocol) where(s *State, i int) int {
	for q := range p.PEs {
		for _, x := range s.Q[q].Slots[:p.Depth] {
			if int(x.wqe) == i+1 {
				return q
			}
		}
	}
	return -1
}

// execute fetches and executes the next request.
func (p *Protocol) execute(s *State, q int, emit Emit[State]) {
	const what = "fetches and executes"
	who := nicActor + q
	n := *s
	u := &n.Q[q]
	at := u.Done
	x := u.Slots[int(at)%p.Depth]
	switch {
	case x.wqe == 0 || x.at != at:
		emit(who, what, n, broken(P2, "block %d is not written", at))
		return
	case x.level < p.nic:
		emit(who, what, n, broken(P2, "block %d is not visible to the NIC", at))
		return
	}
	w := &p.wqes[x.wqe-1]
	for b := 1; b < w.work.Blocks(); b++ {
		if y := u.Slots[(int(at)+b)%p.Depth]; y.wqe != x.wqe || y.at != at+uint8(b) || y.level < p.nic {
			emit(who, what, n, broken(P2, "block %d is not visible to the NIC", int(at)+b))
			return
		}
	}
	bit := uint32(1) << (x.wqe - 1)
	if w.fenced {
		for i := range p.wqes {
			b := uint32(1) << i
			if p.wqes[i].work.answered() && n.Executed&b != 0 && n.Answered&b == 0 && p.where(s, i) == q {
				return // waits
			}
		}
	}
	if missing := w.ordered &^ n.Executed; missing != 0 {
		emit(who, what, n, broken(w.orderedOf, "request %d comes before one that it was ordered behind (set %b)", x.wqe-1, missing))
		return
	}
	n.Executed |= bit
	if w.work == Dump {
		n.Landed |= n.Answered
	}
	u.Done += uint8(w.work.Blocks())
	emit(who, what, n, nil)
}

// complete completes the next request, with an entry if it asks for one.
func (p *Protocol) complete(s *State, q int, emit Emit[State]) {
	n := *s
	u := &n.Q[q]
	x := u.Slots[int(u.Completed)%p.Depth]
	w := &p.wqes[x.wqe-1]
	bit := uint32(1) << (x.wqe - 1)
	if w.work.answered() && n.Answered&bit == 0 {
		return
	}
	n.Complete |= bit
	if p.Flush == 0 {
		n.Landed |= bit
	}
	what := "completes"
	if w.last {
		u.CQ, u.Valid = u.Completed&p.mask, true
		what = "completes, with an entry"
	}
	u.Completed += uint8(w.work.Blocks())
	emit(nicActor+q, what, n, nil)
}

// hostStep is the host's thread of the HostPosts form.
func (p *Protocol) hostStep(s *State, q int, emit Emit[State]) {
	n := *s
	u := &n.Q[q]
	switch {
	case u.HostStep == 0 && u.Word > u.HostPosted:
		u.HostPosted = u.Word
		u.HostStep = 1
		if !p.has(RecordLost) {
			u.Record, u.RecordNew = u.HostPosted&p.mask, u.HostPosted&p.mask
		}
		emit(hostActor+q, "writes the record", n, nil)
	case u.HostStep == 1:
		u.HostStep = 0
		u.Doorbell, u.Rung = u.HostPosted, true
		emit(hostActor+q, "rings", n, nil)
	}
}

// Final judges a state in which nothing moves: it must be the end of all programs, with nothing ready that is not done.
func (p *Protocol) Final(s *State) *Violation {
	waiting, within := -1, -1
	for t := range p.Programs {
		switch x := &s.T[t]; {
		case x.pc == atEnd:
		case x.pc == atPollRead && s.Q[x.queue].Completed >= x.idx:
			return broken(P8, "thread %d does not see that %d blocks are complete, of which it awaits %d", t,
				s.Q[x.queue].Completed, x.idx)
		case x.pc == atPoll || x.pc == atPollRead:
			waiting = t
		default:
			within = t
		}
	}
	for q := range p.PEs {
		u := &s.Q[q]
		if u.Done < u.Posted || u.Reserved == u.Ready && u.Posted < u.Ready {
			return broken(P3, "queue %d rests with %d blocks ready, %d posted, %d fetched", q, u.Ready, u.Posted, u.Done)
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
	for q := range p.PEs {
		u := &s.Q[q]
		b = fmt.Appendf(b, "q%d %d/%d/%d/%d rec %d nic %d/%d/%d cqe %d  ", q, u.Reserved, u.Ready, u.Posted, u.Consumed, u.Record,
			u.Known, u.Done, u.Completed, u.CQ)
	}
	return string(b)
}
