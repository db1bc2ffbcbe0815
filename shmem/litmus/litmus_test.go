package litmus

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/layout"
)

// flavour is a way to compile litmus.cc.
type flavour struct {
	name  string
	flags []string
}

// withDefects makes a program of the copy of the headers that has the defects of the mutation list as switches.
const withDefects = "-DLITMUS_SWITCH"

// All flavours but one have the defects as switches. That one is as users compile it.
var (
	plain   = flavour{"plain", []string{"-O2", withDefects}}
	threads = flavour{"thread sanitizer", []string{"-O1", "-g1", "-fsanitize=thread", withDefects}}
	address = flavour{"address and undefined sanitizers", []string{"-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}}
)

// compiled is a program that is being built, or has been.
type compiled struct {
	once sync.Once
	path string
	err  error
}

var (
	programs  sync.Map                 // name -> *compiled
	compilers = make(chan struct{}, 2) // bounds how many run at once
)

// build compiles testdata/litmus.cc once for each set of flags.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	if program := os.Getenv("LITMUS_PROGRAM"); program != "" {
		return program
	}
	needs(t, "g++")
	entry, _ := programs.LoadOrStore(fmt.Sprint(flags), &compiled{})
	c := entry.(*compiled)
	c.once.Do(func() {
		compilers <- struct{}{}
		defer func() { <-compilers }()
		c.path = filepath.Join(folder, fmt.Sprintf("litmus%d", rand.Uint64()))
		headers := "../include"
		if slices.Contains(flags, withDefects) {
			headers = filepath.Join(folder, "include")
		}
		args := append([]string{"-std=c++17", "-Wall", "-Wextra", "-Werror", "-I" + headers, "-pthread", "-o", c.path, "testdata/litmus.cc"}, flags...)
		if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
			c.err = fmt.Errorf("g++ %v: %v\n%s", flags, err, out)
		}
	})
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.path
}

// usual is the world of most tests: two PEs with two adapters and three queues each, counters about to wrap, keys of 16
// KiB.
func usual() setup {
	return setup{pes: 2, nics: 2, queues: 3, depth: 128, batch: 32, heap: 1 << 20, shift: 14, start: 65500, ibufCells: 2,
		mapped: mapNone, flags: allKinds, timeout: 30 * time.Second, evil: &hca.Adversary{Scatter: 100, Late: 40, LateCompletion: 100,
			Idle: 60, DropDoorbell: 10, DelayDoorbell: 30}}
}

// allKinds: the first queue lies in host memory, the host posts to the second, the third wants flushes.
func allKinds(queue int) uint32 {
	return [...]uint32{layout.QueueHostMemory, layout.QueueHostPosts, layout.QueueFlush}[queue%3]
}

func but(s setup, change func(*setup)) setup { change(&s); return s }

// trial is one test of litmus.cc in one world.
type trial struct {
	test   string
	rounds int
	world  setup
	// across: data and signal take different ways, one of which is another process's. The thread sanitizer sees no
	// order then.
	across bool
}

var (
	// overQueues are those that everything is sent by work requests in, overMemory by loads and stores.
	overQueues = usual()
	overMemory = but(usual(), func(s *setup) { s.mapped = mapAll })
	// mixed: three PEs, each of which sees itself, and the next without atomic operations.
	mixed = but(usual(), func(s *setup) { s.pes, s.mapped = 3, mapMixed })
	// pieces: so small keys that a transfer takes many entries, more than one call holds.
	pieces = but(usual(), func(s *setup) { s.shift, s.heap = 12, 2<<20 })
	// oneQueue: one adapter with one queue for each PE, and fresh counters.
	oneQueue = but(usual(), func(s *setup) { s.nics, s.queues, s.start = 1, 1, 0 })
	// watched: the program is its own adapter, which looks at every step.
	watched = but(usual(), func(s *setup) { s.pes, s.nics, s.noAdapter = 1, 1, true })
	flooded = but(watched, func(s *setup) { s.shift, s.heap = 12, 2<<20 })
	// crowded: all threads use one queue, and mostly leave posting to others.
	crowded = but(watched, func(s *setup) { s.queues, s.batch = 1, 128 })
	// late: nothing is connected before the program says so.
	late = but(usual(), func(s *setup) { s.late = true })
	// foreign: made by a library of another version.
	foreign = but(usual(), func(s *setup) { s.version = layout.Version + 1<<16; s.timeout = time.Second })
	// twoQueues: one adapter that leaves either queue alone for long.
	twoQueues = but(usual(), func(s *setup) {
		s.nics, s.queues, s.heap, s.shift, s.flags = 1, 2, 8<<20, 16, nil
		s.evil = &hca.Adversary{Idle: 200, DelayDoorbell: 60}
	})
	// greedy: batches that the inequality forbids, so that only waiters that post save the day.
	greedy = but(oneQueue, func(s *setup) { s.batch = 128 })
)

// failing is a world in which the k-th entry of each queue fails.
func failing(k uint64) setup {
	return but(usual(), func(s *setup) { s.evil = &hca.Adversary{FailAt: k, Idle: 30, LateCompletion: 60} })
}

func trials() map[string][]trial {
	big := func(s *setup) { s.heap, s.shift = 8<<20, 16 }
	return map[string][]trial{
		"queues": {{"memory", 100, overQueues, false}, {"warps", 6, overQueues, false}, {"blocks", 6, pieces, false}, {"sizes", 12, overQueues, false},
			{"signals", 25, overQueues, false}, {"signals", 10, pieces, false}, {"signals_warp", 5, pieces, false}, {"signals_block", 5, pieces, false},
			{"fence", 25, overQueues, false}, {"quiet", 25, overQueues, false}, {"quiet_block", 10, overQueues, false},
			{"atomics", 8, overQueues, false}, {"together", 4, overQueues, false}, {"types", 0, overQueues, false}, {"nonblocking", 0, late, false},
			{"version", 0, foreign, false}, {"collectives", 6, but(overQueues, big), false}},
		"memory": {{"memory", 300, overMemory, false}, {"warps", 8, overMemory, false}, {"blocks", 8, overMemory, false}, {"sizes", 64, overMemory, false},
			{"signals", 100, overMemory, false}, {"signals_warp", 10, overMemory, false}, {"signals_block", 10, overMemory, false},
			{"fence", 60, overMemory, false}, {"quiet", 60, overMemory, false}, {"quiet_block", 30, overMemory, false},
			{"atomics", 40, overMemory, false}, {"together", 12, overMemory, false}, {"types", 0, overMemory, false},
			{"collectives", 12, but(overMemory, big), false}},
		"mixed": {{"memory", 80, mixed, false}, {"blocks", 4, mixed, true}, {"signals", 20, mixed, true}, {"fence", 20, mixed, true}, {"quiet", 20, mixed, true},
			{"atomics", 4, mixed, false}, {"collectives", 6, but(mixed, big), true}},
		"one queue": {{"memory", 60, oneQueue, false}, {"signals", 20, oneQueue, false}, {"fence", 20, oneQueue, false}, {"quiet", 20, oneQueue, false},
			{"atomics", 5, oneQueue, false}, {"together", 3, greedy, false}, {"idle", 0, oneQueue, false}},
		"two queues": {{"turns", 400, twoQueues, false}},
		"watched":    {{"watched", 300, watched, false}, {"flood", 20, flooded, false}},
		"errors": {{"error", 0, failing(1), false}, {"error", 0, failing(2), false}, {"error", 0, failing(3), false}, {"error", 0, failing(17), false},
			{"error", 0, failing(150), false}},
	}
}

// run is one trial with one seed.
func (x trial) run(t *testing.T, program string, seed uint64, limit time.Duration, env ...string) result {
	t.Helper()
	s := x.world
	s.fabric = hca.NewLocal()
	if s.evil != nil {
		e := *s.evil
		e.Seed = seed
		s.evil = &e
	}
	return newWorld(t, s, seed).run(program, x.test, seed, x.rounds, limit, env...)
}

// TestLitmus runs everything, over queues, over mapped memory and over both, as compiled by each flavour: with a fixed
// seed and with one that is new each time.
func TestLitmus(t *testing.T) {
	for _, f := range []flavour{threads, address, plain} {
		for name, list := range trials() {
			for i, x := range list {
				// Without sanitizers there are the rows that the thread sanitizer cannot judge, and those of
				// TestMutations.
				if x.across && f.name == threads.name || f.name == plain.name && name != "mixed" && name != "errors" && name != "watched" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s%d", f.name, name, x.test, i), func(t *testing.T) {
					t.Parallel()
					program := build(t, f.flags...)
					// Each trial has a fixed seed in one flavour and a new one each time in another.
					seed := rand.Uint64N(1 << 32)
					if f.name == address.name {
						seed = uint64(i + 1)
					}
					began := time.Now()
					if r := x.run(t, program, seed, 2*x.world.timeout); r.err != nil {
						t.Fatalf("seed %d: %v\n%s", seed, r.err, r.output)
					}
					t.Logf("seed %d: %v", seed, time.Since(began).Round(time.Millisecond))
				})
			}
		}
	}
}

// defects are the trials that must fail with a defect of the mutation list, and the flavour that they need.
var defects = map[int]struct {
	flavour flavour
	trials  []trial
}{
	1:  {plain, []trial{{"fence", 200, overQueues, false}}},
	2:  {plain, []trial{{"together", 50, overQueues, false}}},
	3:  {plain, []trial{{"quiet", 200, overQueues, false}}},
	4:  {plain, []trial{{"signals", 200, pieces, false}}},
	5:  {plain, []trial{{"watched", 300, watched, false}}},
	6:  {plain, []trial{{"types", 0, overMemory, false}}},
	7:  {plain, []trial{{"nonblocking", 0, late, false}}},
	8:  {threads, []trial{{"quiet_block", 100, overMemory, false}}},
	9:  {plain, []trial{{"signals", 300, pieces, false}}},
	10: {plain, []trial{{"sizes", 1, overQueues, false}}},
	11: {plain, []trial{{"together", 50, greedy, false}}},
	12: {plain, []trial{{"idle", 0, oneQueue, false}}},
	13: {plain, []trial{{"watched", 2000, crowded, false}}},
	14: {plain, []trial{{"flood", 20, flooded, false}}},
	15: {plain, []trial{{"flood", 20, flooded, false}}},
	16: {threads, []trial{{"watched", 300, crowded, false}}},
	17: {plain, []trial{{"watched", 500, watched, false}}},
	18: {plain, []trial{{"atomics", 20, overQueues, false}}},
	19: {threads, []trial{{"watched", 500, crowded, false}}},
	20: {plain, []trial{{"watched", 300, watched, false}}},
	21: {plain, []trial{{"memory", 200, overQueues, false}}},
	22: {plain, []trial{{"version", 0, foreign, false}}},
	24: {plain, []trial{{"sizes", 64, overMemory, false}}},
}

// TestMutations: the program fails with each defect of the header that the mutation list says is caught here.
func TestMutations(t *testing.T) {
	for n, d := range defects {
		t.Run(fmt.Sprintf("M%d", n), func(t *testing.T) {
			t.Parallel()
			program := build(t, d.flavour.flags...)
			began := time.Now()
			for seed := range uint64(100) { // on a quiet machine some need dozens
				for _, x := range d.trials {
					x.world.timeout = time.Second
					r := x.run(t, program, seed, 20*time.Second, fmt.Sprintf("LITMUS_MUTATION=%d", n))
					if r.err != nil {
						t.Logf("seed %d, after %v: %v\n%s", seed, time.Since(began).Round(time.Millisecond), r.err, r.output)
						return
					}
				}
			}
			t.Errorf("not caught in %v", time.Since(began).Round(time.Millisecond))
		})
	}
}
