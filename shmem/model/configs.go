package model

import "slices"

// Shorthands for programs.
var (
	quiet = Op{Kind: Quiet}
	put1  = Op{Work: []Work{Write}}
	put2  = Op{Work: []Work{Write, Write}}
	put3  = Op{Work: []Work{Write, Write, Write}}
	get   = Op{Work: []Work{Read}}
	fetch = Op{Work: []Work{Fetch}}
)

func on(queue int, op Op) Op { op.Queue = queue; return op }
func fence(pe int) Op        { return Op{Kind: Fence, PE: pe} }

func with(c Config, change func(*Config)) Config { change(&c); return c }

// The configurations in which the protocol is proven. Each is as small as shows what it is for; the searches take a few
// seconds together.
var (
	// post: callers of two CTAs share a queue; counters wrap at once.
	post = Config{Name: "post", Depth: 4, Batch: 2, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 1}, Shared: true,
		Programs: [][]Op{{put2, quiet}, {put1, put3, quiet}}}
	// threePosters: one of them posts for the others.
	threePosters = Config{Name: "three posters", Depth: 4, Batch: 4, Bits: 4, Start: 14, PEs: []int{0}, CTAs: []int{0, 0, 1}, Shared: true,
		Programs: [][]Op{{put1, quiet}, {put1}, {put1, quiet}}}
	// oneCTA: the queue is not shared, so that a fence for the CTA suffices before ready.
	oneCTA = Config{Name: "one CTA", Depth: 4, Batch: 4, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 0, 0},
		Programs: [][]Op{{put1, quiet}, {put1}, {put2}}}
	// stranger: a CTA that has sent nothing waits for the queue of another one, and posts what is ready there. To it,
	// the queue is shared.
	stranger = Config{Name: "quiet by another CTA", Depth: 4, Batch: 4, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 0, 1}, Shared: true, Help: true,
		Programs: [][]Op{{put1}, {put2}, {quiet}}}
	// hostMemory: what the NIC fetches must be visible to the system.
	hostMemory = with(post, func(c *Config) { c.Name, c.Host = "queues in host memory", true })
	// record: the doorbell only wakes the NIC.
	record = with(post, func(c *Config) { c.Name, c.Record = "count from the record", true })
	// lossy: doorbells get lost.
	lossy = with(post, func(c *Config) { c.Name, c.Lossy = "lost doorbells", true })
	// lossyRecord: likewise, and the record is what counts.
	lossyRecord = with(record, func(c *Config) { c.Name, c.Lossy = "lost doorbells, count from the record", true })
	// hostPosts: a host thread posts, from a word that callers raise.
	hostPosts = with(post, func(c *Config) { c.Name, c.HostPosts, c.Host, c.Record = "host posts", true, true, true })
	// full: more is reserved than the wire's counter can tell apart.
	full = Config{Name: "many in flight", Depth: 4, Batch: 2, Bits: 4, PEs: []int{0}, CTAs: []int{0, 0, 0, 0},
		Programs: [][]Op{{put3}, {put3}, {put3}, {put3}}}
	// lag: a poller may sleep while others complete more than half a round.
	lag = Config{Name: "lagging poller", Depth: 4, Batch: 1, Bits: 3, Start: 5, PEs: []int{0}, CTAs: []int{0, 0},
		Programs: [][]Op{{put1, quiet}, {put2, put3, put3, put3, quiet}}}
	// pollers: two wait for different counts.
	pollers = Config{Name: "two pollers", Depth: 4, Batch: 2, Bits: 3, Start: 6, PEs: []int{0}, CTAs: []int{0, 0},
		Programs: [][]Op{{put1, quiet, put2, quiet}, {put1, quiet, put1, quiet}}}
	// idle: who has sent nothing has nothing to wait for.
	idle = Config{Name: "quiet without traffic", Depth: 4, Batch: 2, Bits: 4, PEs: []int{0, 1}, CTAs: []int{0, 1}, Shared: true,
		Programs: [][]Op{{on(0, put1), quiet}, {quiet}}}
	// twoBlocks: requests of two blocks, whose completion a NOP asks for.
	twoBlocks = Config{Name: "two-block requests", Depth: 8, Batch: 4, Bits: 4, Start: 14, PEs: []int{0}, CTAs: []int{0, 0},
		Programs: [][]Op{{{Work: []Work{Atomic}}, quiet}, {{Work: []Work{Write, Atomic}, Wait: true}}}}
	// queues: two queues to one PE.
	queues = Config{Name: "fence over two queues", Depth: 4, Batch: 2, Bits: 4, Start: 15, PEs: []int{0, 0}, CTAs: []int{0, 0},
		Programs: [][]Op{{on(1, put1), fence(0), on(0, put1), quiet}, {on(1, put2)}}}
	// onePerPE: a caller has one queue to each PE, so that fence is free.
	onePerPE = Config{Name: "free fence", Depth: 4, Batch: 2, Bits: 4, PEs: []int{0, 0}, CTAs: []int{0, 1}, Shared: true, FreeFence: true,
		Programs: [][]Op{{on(0, put1), fence(0), on(0, put1), quiet}, {on(1, put1), fence(0), on(1, put1)}}}
	// signals: data, and the signal after them, while another uses the queues.
	signals = Config{Name: "put with signal", Depth: 4, Batch: 2, Bits: 4, Start: 13, PEs: []int{0, 0}, CTAs: []int{0, 1}, Shared: true,
		Programs: [][]Op{{on(1, Op{Work: []Work{Write, Write, Signal}}), quiet}, {on(0, put1)}}}
	// warp: three lanes write one call.
	warp = Config{Name: "one call of a warp", Depth: 4, Batch: 2, Bits: 4, Start: 2, PEs: []int{0}, CTAs: []int{0, 0},
		Programs: [][]Op{{put2, {Work: []Work{Write, Write, Signal}, Lanes: 3}, quiet}, {put1}}}
	// fetches: more of them than cells for results.
	fetches = Config{Name: "fetches", Depth: 4, Batch: 4, Bits: 4, Start: 14, IbufCells: 2, PEs: []int{0}, CTAs: []int{0, 0, 0},
		Programs: [][]Op{{fetch}, {fetch}, {fetch}}}
	// oneCell: and with one cell.
	oneCell = with(fetches, func(c *Config) { c.Name, c.IbufCells = "fetches, one cell", 1 })
	// flushAtOnce: answers are visible after a Dump that each call sends.
	flushAtOnce = Config{Name: "flush with each get", Depth: 8, Batch: 4, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 0}, Flush: FlushAtOnce,
		Programs: [][]Op{{{Work: []Work{Read, Read}, Wait: true}}, {get, quiet}}}
	// flushLater: and after one that quiet sends on another queue.
	flushLater = Config{Name: "flush by quiet", Depth: 4, Batch: 2, Bits: 4, Start: 13, PEs: []int{0}, CTAs: []int{0, 0}, Flush: FlushLater,
		Programs: [][]Op{{put1, quiet}, {get, quiet}}}
	flushTwo = with(flushLater, func(c *Config) {
		c.Name, c.Programs = "flush by two quiets", [][]Op{{get, quiet}, {get, quiet}}
	})
	// group: three threads store over NVLink and complete together.
	group = Config{Name: "quiet of a CTA over load/store", Depth: 1, Batch: 1, Bits: 4, CTAs: []int{0, 0, 1},
		Programs: [][]Op{{{Kind: Store}, {Kind: BlockQuiet}}, {{Kind: Store}, {Kind: BlockQuiet}}, {{Kind: Store}, {Kind: BlockQuiet}}}}
	groupSignal = with(group, func(c *Config) {
		c.Name, c.Programs = "signal of a CTA over load/store", [][]Op{{{Kind: Store}, {Kind: BlockStore}}, {{Kind: Store}, {Kind: BlockStore}}}
		c.CTAs = []int{0, 0}
	})
	// within: batch-1 and the largest call fit the queue, and one block more do not.
	within = Config{Name: "depth 8, batch 4, calls of 5", Depth: 8, Batch: 4, Bits: 5, Start: 28, PEs: []int{0}, CTAs: []int{0, 0, 0},
		Programs: [][]Op{{put1}, {put2}, {puts(5)}}}
	beyond = with(within, func(c *Config) {
		c.Name, c.Programs = "depth 8, batch 4, calls of 6", [][]Op{{put1}, {put2}, {puts(6)}}
	})
	behindSingles = with(within, func(c *Config) {
		c.Name, c.Batch, c.Start, c.Programs = "depth 8, batch 8, calls of 7", 8, 24, [][]Op{{put1}, {put1}, {puts(7)}}
	})
)

// puts is a call of n writes.
func puts(n int) Op { return Op{Work: slices.Repeat([]Work{Write}, n)} }

// helped is a configuration in which waiters post.
func helped(c Config) Config {
	return with(c, func(c *Config) { c.Name, c.Help = c.Name+", waiters post", true })
}

// Configurations are those in which no property may be violated.
func Configurations() []Config {
	return []Config{post, threePosters, oneCTA, stranger, hostMemory, record, lossy, lossyRecord, hostPosts, full, lag, pollers, idle, twoBlocks,
		queues, onePerPE, signals, warp, fetches, oneCell, flushAtOnce, flushLater, flushTwo, group, groupSignal, within,
		helped(post), helped(oneCTA), helped(lossy), helped(hostPosts), helped(pollers), helped(lag),
		helped(queues), helped(oneCell), helped(flushTwo), helped(beyond)}
}
