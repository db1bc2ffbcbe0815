package model

// This file holds what a configuration says, and makes work requests of its programs.

import (
	"fmt"
	"slices"
)

// Config is one instance of the protocol.
type Config struct {
	Name      string
	Depth     int // blocks of each queue
	Batch     int
	Bits      uint // of counters on the wire
	CQEs      int  // size that the poll's test assumes; 0 for Depth
	Start     int  // of all counters
	IbufCells int
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

// Op is one operation of a thread.
type Op struct {
	Kind  Kind
	Queue int    // of a Call
	PE    int    // of a Fence
	Work  []Work // of a Call: a last request of two blocks gets a NOP after it, reads on a flushing queue a Dump
	Wait  bool   // the Call returns when it is complete, as a blocking put or get
	// Lanes writes the requests of a Call by that many lanes of a warp, which must be as many as there are requests.
	Lanes int
}

// Kind is what an operation of a thread does.
type Kind uint8

// Operations.
const (
	Call       Kind = iota // reserves, writes, publishes and posts its WQEs; see Op
	Quiet                  // of all queues
	Fence                  // of all queues to PE
	Store                  // over load/store: data to a peer's memory
	BlockQuiet             // of the threads of a CTA, over load/store
	BlockStore             // a signal over load/store after all of the CTA's data
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

// wqe is a work request.
type wqe struct {
	work      Work
	last      bool   // asks for a completion
	fenced    bool   // waits for the answers of earlier requests
	ordered   uint32 // requests that a fence, or its being their signal, puts before this one
	orderedOf Property
}

// call is a Call, or a piece of one that a defect splits.
type call struct {
	first, count int // in wqes
	blocks       int
	queue        int
	ibuf         bool
	reads        bool
}

// New checks the configuration and makes its transition system.
func New(c Config) (*Protocol, error) {
	p := &Protocol{Config: c, mask: uint8(1<<c.Bits - 1), nic: gpu}
	if c.Host {
		p.nic = system
	}
	if c.CQEs == 0 {
		p.CQEs = c.Depth
	}
	if c.IbufCells == 0 {
		p.IbufCells = 1
	}
	err := p.bounds()
	for t := 0; t < len(c.Programs) && err == nil; t++ {
		err = p.compile(t)
	}
	if err == nil {
		err = p.fit()
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", c.Name, err)
	}
	return p, nil
}

// bounds checks what does not depend on the programs.
func (p *Protocol) bounds() error {
	switch {
	case p.Depth < 1 || p.Depth > MaxDepth || p.Depth&(p.Depth-1) != 0:
		return fmt.Errorf("depth %d is not a power of two up to %d", p.Depth, MaxDepth)
	case len(p.Programs) > MaxThreads || len(p.Programs) == 0:
		return fmt.Errorf("%d threads, not 1 to %d", len(p.Programs), MaxThreads)
	case len(p.CTAs) != len(p.Programs):
		return fmt.Errorf("CTAs of %d threads for %d programs", len(p.CTAs), len(p.Programs))
	case len(p.PEs) > MaxQueues:
		return fmt.Errorf("%d queues, more than %d", len(p.PEs), MaxQueues)
	case p.Bits < 2 || p.Bits > 7:
		return fmt.Errorf("%d bits on the wire, not 2 to 7", p.Bits)
	case p.IbufCells > len(queue{}.Owner):
		return fmt.Errorf("%d ibuf cells, more than %d", p.IbufCells, len(queue{}.Owner))
	case slices.ContainsFunc(p.PEs, func(pe int) bool { return pe < 0 || pe >= MaxQueues }):
		return fmt.Errorf("PEs %v", p.PEs)
	case p.Start < 0:
		return fmt.Errorf("counters start at %d", p.Start)
	case p.Batch < 1:
		return fmt.Errorf("batch %d", p.Batch)
	}
	return nil
}

// compile makes the calls of thread t, and notes what each request must come after.
func (p *Protocol) compile(t int) error {
	calls := make([][]call, len(p.Programs[t]))
	var mine, epoch [MaxQueues]uint32 // requests by PE: all, and before the last fence
	for i, op := range p.Programs[t] {
		switch op.Kind {
		case Call:
			switch {
			case op.Queue < 0 || op.Queue >= len(p.PEs):
				return fmt.Errorf("no queue %d", op.Queue)
			case len(op.Work) == 0 || len(op.Work) > MaxDepth:
				return fmt.Errorf("a call of %d requests", len(op.Work))
			case op.Lanes != 0 && (op.Lanes != len(op.Work) || op.Lanes > MaxLanes):
				return fmt.Errorf("%d lanes for %d requests", op.Lanes, len(op.Work))
			}
			pe := p.PEs[op.Queue]
			calls[i] = p.compileCall(op, &mine[pe], epoch[pe])
		case Fence:
			if op.PE < 0 || op.PE >= MaxQueues {
				return fmt.Errorf("no PE %d", op.PE)
			}
			epoch[op.PE] = mine[op.PE]
		case Quiet:
			epoch = mine
		}
	}
	p.calls = append(p.calls, calls)
	return nil
}

// compileCall numbers the requests of a call, which it adds to mine, and adds NOP and Dump.
func (p *Protocol) compileCall(op Op, mine *uint32, epoch uint32) (pieces []call) {
	one := call{first: len(p.wqes), queue: op.Queue}
	end := func() {
		one.count = len(p.wqes) - one.first
		p.wqes[len(p.wqes)-1].last = true
		pieces = append(pieces, one)
		one = call{first: len(p.wqes), queue: op.Queue}
	}
	add := func(w wqe) (bit uint32) {
		bit = 1 << len(p.wqes)
		p.wqes = append(p.wqes, w)
		one.blocks += w.work.Blocks()
		return bit
	}
	var data uint32
	for _, w := range op.Work {
		if w == Signal {
			if data != 0 && p.has(SplitSignal|RandomQueue) {
				end()
			}
			if data != 0 && p.has(SplitSignal) {
				one.queue = (op.Queue + 1) % len(p.PEs)
			}
			*mine |= add(wqe{work: w, ordered: data, orderedOf: P9})
			continue
		}
		bit := add(wqe{work: w, ordered: epoch, orderedOf: P5})
		data |= bit
		*mine |= bit
		one.ibuf = one.ibuf || w == Fetch
		one.reads = one.reads || w.answered()
	}
	switch {
	case one.reads && p.Flush == FlushAtOnce:
		add(wqe{work: Dump, fenced: !p.has(DumpUnfenced)})
	case p.wqes[len(p.wqes)-1].work.Blocks() > 1 && !p.has(NoNOP):
		add(wqe{work: NOP})
	}
	end()
	return pieces
}

// fit checks what the programs came to.
func (p *Protocol) fit() error {
	if len(p.wqes) > MaxWQEs {
		return fmt.Errorf("%d work requests, more than %d", len(p.wqes), MaxWQEs)
	}
	blocks := p.Start
	for _, c := range slices.Concat(slices.Concat(p.calls...)...) {
		if c.blocks > p.Depth {
			return fmt.Errorf("a call of %d blocks in a queue of %d", c.blocks, p.Depth)
		}
		blocks += c.blocks
	}
	if blocks > 200 {
		return fmt.Errorf("counters up to %d do not fit a byte with room to spare", blocks)
	}
	return nil
}
