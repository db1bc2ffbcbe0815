// Package attack tests lgpu against a hostile tenant, while two honest tenants work beside it.
//
//	make attack               # ten minutes
//	make attack SECONDS=60    # what every change must pass
//
// The daemon serves all users, as it does as a service. When the test runs as root, so does the daemon, and the
// attackers (package hostile) run as the user "nobody". Otherwise they run as the daemon's own user, who may do more
// than other users; the test says so. Each attack runs alone first, as a subtest; then three run at a time, chosen at
// random from a seed that is printed (LGPU_ATTACK_SEED repeats it; LGPU_ATTACK_ONLY is a regular expression of
// attacks).
//
// Meanwhile a monitor measures what the daemon costs and whether it answers, and the neighbours measure what they get;
// see bounds. A bound that is broken fails the subtest of the attack that runs.
package attack

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The bounds of the daemon while it is attacked.
const (
	maxRSS     = 200 << 20 // bytes
	maxFiles   = 500       // open descriptors
	maxThreads = 100
	maxLog     = 10 << 10 // bytes a second, over all phases
	// What lgpu ps asks, on a new connection, is answered within psTime but for one of a hundred, and always within
	// psWorst. The processor is not what is fought about: attackers have the lowest priority and a bounded part of it,
	// and a call is left out where a daemon that nobody attacks, asked at the same time, took half of psTime.
	psTime  = 100 * time.Millisecond
	psWorst = time.Second
	// Points that a neighbour may get less of the device's time than it asked for, and more: over everything, and over
	// each phase that lasts so long. Over a few seconds it shows when the software GPU, which is a program, gets no
	// processor.
	shareLess, shareMore = 5, 5
	judged               = 10 * time.Second
)

// attack is one of package hostile's.
type attack struct {
	name string
	// web: it takes places that scrapers need too, which may be refused meanwhile, but not kept waiting.
	web bool
}

// hungFiles can only be made where there is FUSE.
const hungFiles = "descriptors of hung files"

var attacks = []attack{
	{name: "connections held"},
	{name: "connections in a loop"},
	{name: "descriptors that block"},
	{name: "descriptors of all kinds"},
	{name: hungFiles},
	{name: "counters of others"},
	{name: "half messages"},
	{name: "floods of messages"},
	{name: "gates never closed"},
	{name: "pages of garbage"},
	{name: "names"},
	{name: "refusals"},
	{name: "files"},
	{name: "directories"},
	{name: "http that is silent", web: true},
	{name: "http byte by byte", web: true},
	{name: "http that never reads", web: true},
	{name: "http junk", web: true},
	{name: "streams of the page", web: true},
	{name: "streams of the API"},
	{name: "connections to the API"},
	{name: "junk to the API"},
	{name: "tenants that die"},
	{name: "tenants that die by steps"},
}

// Folder of the built programs.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lgpu-attack-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		return 1
	}
	bin = dir
	return m.Run()
}

// build makes lgpu, the attackers, and the neighbours' program. All users may run them.
func build(dir string) error {
	const libcuda = "../../build/lib/sim/libcuda.so.1"
	if _, err := os.Stat(libcuda); err != nil {
		return fmt.Errorf("the C libraries are missing; run: make build")
	}
	programs := exec.Command("go", "build", "-o", dir+"/", "../../cmd/lgpu", "./hostile")
	programs.Env = append(os.Environ(), "CGO_ENABLED=0")
	commands := []*exec.Cmd{programs}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	for _, program := range []string{"obey", "hold"} {
		commands = append(commands, exec.Command(cc, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I../../tenant/abi/include",
			"-o", filepath.Join(dir, program), "../programs/"+program+".c", libcuda, "-pthread"))
	}
	for _, c := range commands {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
		}
	}
	return os.Chmod(dir, 0o755)
}

// mixes is how many times three attacks are made at once.
const mixes = 6

// TestAttack makes every attack by itself for half of the time, and any three at once for the other half.
func TestAttack(t *testing.T) {
	whole, err := time.ParseDuration(os.Getenv("LGPU_ATTACK"))
	if err != nil {
		t.Skip("make attack runs it, for as long as LGPU_ATTACK says")
	}
	only, err := regexp.Compile(os.Getenv("LGPU_ATTACK_ONLY"))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("LGPU_ATTACK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LGPU_ATTACK_SEED=%d", seed)
	s := newSiege(t)
	s.hang = hangingFile(t, filepath.Join(filepath.Dir(s.dir), "hang"))
	s.start(t)
	s.settle(t)
	s.refer(t)
	s.before = costOf(s.daemon.Process.Pid)
	chosen := slices.DeleteFunc(slices.Clone(attacks), func(a attack) bool {
		return !only.MatchString(a.name) || a.name == hungFiles && s.hang == ""
	})
	s.phase(t, "nobody attacks", nil, seed, min(whole/10, 10*time.Second))
	for i, a := range chosen {
		s.phase(t, a.name, []attack{a}, seed+uint64(i), whole/2/time.Duration(len(chosen)))
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for n := range mixes {
		if len(chosen) == 0 {
			break
		}
		mix := map[string]attack{}
		for range 3 {
			a := chosen[r.IntN(len(chosen))]
			mix[a.name] = a
		}
		name := fmt.Sprintf("mix %d: %s", n, strings.Join(slices.Sorted(maps.Keys(mix)), ", "))
		s.phase(t, name, slices.Collect(maps.Values(mix)), seed+uint64(1000*(n+1)), whole/2/mixes)
	}
	t.Run("afterwards", s.afterwards)
}

// phase makes attacks at once and fails if a bound was broken meanwhile.
func (s *siege) phase(t *testing.T, name string, made []attack, seed uint64, long time.Duration) {
	well := t.Run(name, func(t *testing.T) {
		s.begin(t)
		watch := s.watch(slices.ContainsFunc(made, func(a attack) bool { return a.web }))
		var all []*attacker
		for i, a := range made {
			all = append(all, s.strike(t, a, i, seed+uint64(i), long))
		}
		if len(all) == 0 {
			time.Sleep(long)
		}
		// Not even SIGKILL ends who closes a file that hangs.
		timer := time.AfterFunc(long+time.Second, func() { hangs.hang(false) })
		defer timer.Stop()
		for _, a := range all {
			a.await(t)
		}
		seen := watch.end()
		t.Log(seen)
		s.logged, s.long = s.logged+seen.logged, s.long+seen.long
		if len(seen.calls) < enoughCalls {
			s.calls = append(s.calls, seen.calls...)
		}
		for _, broken := range seen.broken() {
			t.Error(broken)
		}
		s.recovered(t)
	})
	s.spoilt = s.spoilt || !well
}
