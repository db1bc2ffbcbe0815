package model

// This file holds the defects, and what finds each.

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
	NoRingWait                            // M14
	NoPostedCheck                         // M15: a poll does not wait until its blocks are posted
	NoRelease                             // M16: ready is published without a fence
	NarrowRelease                         // M16: with a fence for the CTA although the queue is shared
	DoorbellFirst                         // M17: before the record
	PlainPosted                           // M17: the posted count is stored, not raised
	NoNOP                                 // M18: a two-block request asks for its completion itself
	ReleaseEarly                          // M19: the cell of a result is released before it was read
	ReleaseUnordered                      // M19: cells are released by addition, in any order
	HeadAfterPoll                         // M20: quiet reads the flush mark after its poll
	HeadNotRaised                         // M20: a get does not raise it
	DumpUnfenced                          // M20: the flush does not wait for the reads before it
	NoReread                              // the poll does not read the consumed count again after the counter
	IbufAfterReserve                      // the internal buffer's cell is awaited with blocks reserved
	UnfencedDoorbell                      // no fence between record and doorbell
	LeaderFencesSignal                    // as LeaderFences, of a put with signal
)

// Catch is what must fail when a defect is switched on.
type Catch struct {
	// Of the model: the configuration with the defect, and the property that it then violates. The same configuration
	// without Defects, or Sound where it differs otherwise, violates none.
	Config   *Config
	Sound    *Config
	Property Property
	// Or of the code: the folder and the name of a Go test, and, where the test compiles a copy of the device header
	// that has the defects (shmem/mutation), the number that switches it on there; 0 for tests of other code.
	Package, Test string
	Switch        int
}

// Mutation is a defect of an existing implementation, or a likely slip of our own.
type Mutation struct {
	Number int // of the reference's list; 0: ours
	What   string
	Source string
	Breaks string
	Caught []Catch
}

// in is a catch by the model: configuration c with defects d violates that property.
func in(c Config, d Switch, of Property) Catch {
	sound := c
	c.Defects = d
	return Catch{Config: &c, Sound: &sound, Property: of}
}

// code is a catch by a test.
func code(pkg, test string) Catch { return Catch{Package: pkg, Test: test} }

// litmus is a catch by the run of the device header against the software adapter, with defect n.
func litmus(n int) Catch { return Catch{Package: "shmem/litmus", Test: "TestMutations", Switch: n} }

// Mutations is the list. Each row is caught by the model, by a test, or by both: a test of this package runs the
// model's part and checks that the tests named exist.
func Mutations() []Mutation {
	return []Mutation{
		{1, "fence leaves out queues of its PE", "nvshmem#44; 3.4.5, 3.5", "P5", []Catch{in(queues, FenceSkipsQueue, P5), litmus(1)}},
		{2, "call of a warp: base not broadcast, or no warp sync before submit", "3.5", "P1, P2",
			[]Catch{in(warp, NoBroadcast, P1), in(warp, NoWarpSync, P2), litmus(2)}},
		{3, "quiet of an explicit queue ignores it; PE_ALL taken for another value", "3.5", "P4",
			[]Catch{in(with(queues, func(c *Config) {
				c.Name = "quiet of two queues"
				c.FreeFence = true
				c.Programs = [][]Op{{on(1, put1), quiet}, {on(0, put1)}}
			}), QuietSkipsQueue, P4), litmus(3)}},
		{4, "put with signal in several pieces: data and signal on different queues", "3.5", "P9", []Catch{in(signals, SplitSignal, P9), litmus(4)}},
		{5, "host posts: word at the wrong offset, record in word 0", "3.5; fits DeepEP#509, #677", "P3",
			[]Catch{in(hostPosts, WordLost, P3), in(hostPosts, RecordLost, P3), litmus(5)}},
		{6, "64-bit fetch_add done with 32 bits over load/store; typed variants missing", "3.5", "API rows", []Catch{litmus(6), code("shmem/device", "TestCompiles")}},
		{7, "nbi forms that block, scopes missing", "3.5", "API rows", []Catch{litmus(7), code("shmem/device", "TestCompiles")}},
		{8, "quiet of a block: only its first thread fences before the group sync", "3.5", "P4", []Catch{in(group, LeaderFences, P4), litmus(8)}},
		{9, "a queue is chosen anew for each submission", "3.5", "P5, P9",
			[]Catch{in(onePerPE, RandomQueue, P5), in(signals, RandomQueue, P9), litmus(9)}},
		{10, "put of 0 bytes with signal: data segment with length 0", "3.5", "bytes", []Catch{litmus(10)}},
		{11, "depth and batch violate the inequality", "model; 3.0.6", "P7",
			[]Catch{{Config: &beyond, Sound: &within, Property: P7}, {Config: &behindSingles, Sound: &within, Property: P7}, litmus(11)}},
		{12, "a wait for a valid completion entry before the first one", "DeepEP#371", "P7", []Catch{in(idle, WaitOpcode, P7), litmus(12)}},
		{13, "two pollers store the consumed count", "DeepEP#702", "P8", []Catch{in(pollers, PlainConsumed, P8), litmus(13)}},
		{14, "no wait for the ring", "DeepEP#180", "P1", []Catch{in(post, NoRingWait, P1), litmus(14)}},
		{15, "poll without posted >= idx", "lemma", "P8", []Catch{in(full, NoPostedCheck, P8), litmus(15)}},
		{16, "ready published without release, or for the CTA on a shared queue", "-", "P2",
			[]Catch{in(threePosters, NoRelease, P2), in(threePosters, NarrowRelease, P2), in(stranger, NarrowRelease, P2), litmus(16)}},
		{17, "doorbell before the record; posted stored, not raised", "-", "P3",
			[]Catch{in(record, DoorbellFirst, P3), in(post, PlainPosted, P3), litmus(17)}},
		{18, "completion asked of a two-block request without a NOP", "-", "P4, P8", []Catch{in(twoBlocks, NoNOP, P8), litmus(18)}},
		{19, "ibuf cell released early or out of order; operand bytes of compare-and-swap lost", "2.0.2, 2.1.2", "P6",
			[]Catch{in(fetches, ReleaseEarly, P6), in(fetches, ReleaseUnordered, P6), litmus(19)}},
		{20, "flush mark read after the poll, or not raised; flush without fence", "-", "stale get",
			[]Catch{in(flushTwo, HeadAfterPoll, P10), in(flushLater, HeadNotRaised, P10), in(flushAtOnce, DumpUnfenced, P10), litmus(20)}},
		{21, "end of a key's chunk ignored", "cuDecomp#111", "protection error", []Catch{litmus(21)}},
		{22, "layout of the state changed without its version", "DeepEP#696", "assertions", []Catch{code("shmem/layout/gen", "TestHeadersAreFresh"), litmus(22)}},
		{23, "init and finalize leak; attributes uninitialised", "nvshmem#81, #52, #21", "cycles, sanitizers", []Catch{code("shmem", "TestCycles")}},
		{24, "bulk copy assumes that the size is a multiple of 16", "3.2.5", "size/alignment rows", []Catch{litmus(24)}},

		{0, "a poller does not look at the consumed count again after the counter", "lemma", "P8", []Catch{in(lag, NoReread, P8)}},
		{0, "ibuf cell awaited with blocks reserved", "-", "P7", []Catch{in(oneCell, IbufAfterReserve, P7)}},
		{0, "no fence between record and doorbell", "-", "P3", []Catch{in(record, UnfencedDoorbell, P3)}},
		{0, "signal of a block over load/store: only its first thread fences, before the group sync", "-", "P9", []Catch{in(groupSignal, LeaderFencesSignal, P9)}},
	}
}
