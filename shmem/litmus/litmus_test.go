package litmus

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

var (
	plain   = flavour{"plain", []string{"-O2"}}
	threads = flavour{"thread sanitizer", []string{"-O1", "-g1", "-fsanitize=thread"}}
	address = flavour{"address and undefined sanitizers", []string{"-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}}
)

// compiled is a program that is being built, or has been.
type compiled struct {
	once sync.Once
	path string
	err  error
}

var (
	programs sync.Map // name -> *compiled
	slots    = make(chan struct{}, 2)
)

// build compiles testdata/litmus.cc once for each set of flags.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	if program := os.Getenv("LITMUS_PROGRAM"); program != "" {
		return program
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("g++ is not installed; on Debian: apt install g++")
	}
	entry, _ := programs.LoadOrStore(fmt.Sprint(flags), &compiled{})
	c := entry.(*compiled)
	c.once.Do(func() {
		slots <- struct{}{}
		defer func() { <-slots }()
		c.path = filepath.Join(folder, fmt.Sprintf("litmus%d", rand.Uint64()))
		args := append([]string{"-std=c++17", "-Wall", "-Wextra", "-Werror", "-I../include", "-pthread", "-o", c.path, "testdata/litmus.cc"}, flags...)
		if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
			c.err = fmt.Errorf("g++ %v: %v\n%s", flags, err, out)
		}
	})
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.path
}

// usual is the world of most tests: two PEs with two adapters and three queues each, counters about to wrap, keys of 16 KiB.
func usual() setup {
	return setup{pes: 2, nics: 2, queues: 3, depth: 128, batch: 32, heap: 1 << 20, shift: 14, start: 65500, ibufSlots: 2,
		mapped: mapNone, flags: allKinds, timeout: 5 * time.Second, evil: &hca.Adversary{Scatter: 100, Late: 40, LateCompletion: 100,
			Idle: 60, DropDoorbell: 10, DelayDoorbell: 30}}
}

// allKinds: the first queue lies in host memory, the host posts to the second, the third wants flushes.
func allKinds(queue int) uint32 {
	return [...]uint32{layout.QueueShared | layout.QueueHostMemory, layout.QueueShared | layout.QueueHostPosts,
		layout.QueueShared | layout.QueueFlush}[queue%3]
}

func but(s setup, change func(*setup)) setup { change(&s); return s }

// trial is one test of litmus.cc in one world.
type trial struct {
	test   string
	rounds int
	world  setup
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
	// patient: batches as long as can be.
	watched = but(usual(), func(s *setup) { s.pes, s.nics, s.noAdapter = 1, 1, true })
)

func trials() map[string][]trial {
	return map[string][]trial{
		"queues": {{"memory", 150, overQueues}, {"warps", 12, overQueues}, {"blocks", 12, pieces}, {"sizes", 40, overQueues}, {"signals", 40, overQueues},
			{"signals_warp", 10, pieces}, {"signals_block", 10, pieces}, {"fence", 40, overQueues}, {"quiet", 40, overQueues},
			{"quiet_block", 20, overQueues}, {"atomics", 25, overQueues}, {"together", 12, overQueues}, {"types", 0, overQueues}},
		"memory": {{"memory", 300, overMemory}, {"warps", 12, overMemory}, {"blocks", 12, overMemory}, {"sizes", 64, overMemory}, {"signals", 100, overMemory},
			{"signals_warp", 10, overMemory}, {"signals_block", 10, overMemory}, {"fence", 60, overMemory}, {"quiet", 60, overMemory},
			{"quiet_block", 30, overMemory}, {"atomics", 60, overMemory}, {"together", 12, overMemory}, {"types", 0, overMemory}},
		"mixed": {{"memory", 150, mixed}, {"blocks", 8, mixed}, {"signals", 40, mixed}, {"fence", 40, mixed}, {"quiet", 40, mixed}, {"atomics", 15, mixed}},
		"one queue": {{"memory", 100, oneQueue}, {"signals", 40, oneQueue}, {"fence", 40, oneQueue}, {"quiet", 40, oneQueue}, {"atomics", 15, oneQueue},
			{"together", 10, oneQueue}},
		"watched": {{"watched", 300, watched}},
	}
}

// run is one trial with one seed.
func (x trial) run(t *testing.T, program string, seed uint64, limit time.Duration) result {
	t.Helper()
	s := x.world
	s.fabric = hca.NewLocal()
	if s.evil != nil {
		e := *s.evil
		e.Seed = seed
		s.evil = &e
	}
	return newWorld(t, s, seed).run(program, x.test, seed, x.rounds, limit)
}

// seeds are the fixed ones and one that is new each time.
func seeds() []uint64 { return []uint64{1, rand.Uint64N(1 << 32)} }

// TestLitmus runs everything, over queues, over mapped memory and over both, as compiled by each flavour.
func TestLitmus(t *testing.T) {
	for _, f := range []flavour{threads, address, plain} {
		for name, list := range trials() {
			for _, x := range list {
				t.Run(fmt.Sprintf("%s/%s/%s", f.name, name, x.test), func(t *testing.T) {
					t.Parallel()
					program := build(t, f.flags...)
					for _, seed := range seeds() {
						began := time.Now()
						if r := x.run(t, program, seed, 40*time.Second); r.err != nil {
							t.Fatalf("seed %d: %v\n%s", seed, r.err, r.output)
						}
						t.Logf("seed %d: %v", seed, time.Since(began).Round(time.Millisecond))
						if f.name != threads.name {
							break
						}
					}
				})
			}
		}
	}
}
