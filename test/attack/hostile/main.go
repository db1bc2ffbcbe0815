// Command hostile is a tenant that means harm, for the test that includes this folder. It runs inside an lgpu, which root
// starts, as a user without rights, and has what every tenant has: the sockets of the daemon, the tree's files, the pages
// that the daemon shares with it, and the ports of loopback.
//
//	hostile ATTACK SECONDS SEED
//
// makes one attack for so long and prints how often it struck, as "acts N". The environment says where things are; see
// world. An attack ends by itself, and everything that it holds ends with its processes. It takes no more than a part of one
// processor, at the lowest priority: what is tested is what the daemon does with what it is sent, not who gets the processor.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// User is who attacks: nobody on every machine, and neither of a group that may change things.
const user = 65534

// busyPart is the part of one processor that an attack may take, all its processes together.
const busyPart = 0.35

// world is where an attack takes place.
type world struct {
	end    time.Time
	began  time.Time
	seed   uint64
	acts   atomic.Int64
	failed sync.Map // text of an error -> *atomic.Int64, how often

	dir     string  // HOSTILE_DIR: the daemon's runtime folder
	socket  string  // LGPU_SOCKET: the tenants' socket, as the launcher gives it
	metrics string  // HOSTILE_METRICS: host:port
	page    string  // HOSTILE_PAGE: host:port
	program string  // HOSTILE_PROGRAM: a CUDA program that holds memory until its input ends
	mine    string  // HOSTILE_MINE: a folder of the mounted tree that is this user's; empty if it is not mounted
	hang    string  // HOSTILE_HANG: a file whose close never ends; empty if there is none
	part    float64 // of a processor, for this process: busyPart, or for a child what HOSTILE_PART says
}

// attacks by name. Those whose name ends in ' are of another attack's children.
var attacks = map[string]func(*world){
	"connections held":          func(w *world) { w.crowd("hold connections'", 24) },
	"hold connections'":         (*world).holdConnections,
	"connections in a loop":     (*world).loopConnections,
	"descriptors that block":    (*world).lingering,
	"descriptors of all kinds":  (*world).descriptors,
	"descriptors of hung files": (*world).hungFiles,
	"counters of others":        (*world).forgedCounters,
	"half messages":             (*world).halfMessages,
	"floods of messages":        (*world).floods,
	"gates never closed":        (*world).keepGates,
	"pages of garbage":          (*world).garbage,
	"names":                     (*world).names,
	"directories":               (*world).directories,
	"files":                     (*world).files,
	"refusals":                  (*world).refusals,
	"http that is silent":       (*world).httpSilent,
	"http byte by byte":         (*world).httpSlow,
	"http that never reads":     (*world).httpDeaf,
	"http junk":                 (*world).httpJunk,
	"streams of the page":       (*world).pageStreams,
	"streams of the API":        func(w *world) { w.crowd("hold streams'", 3) },
	"hold streams'":             (*world).apiStreams,
	"connections to the API":    func(w *world) { w.crowd("hold API'", 6) },
	"hold API'":                 (*world).holdAPI,
	"junk to the API":           (*world).apiJunk,
	"tenants that die":          (*world).dyingTenants,
	"tenants that die by steps": (*world).dieByStep,
	"die'":                      (*world).die,
}

func main() {
	if len(os.Args) != 4 || attacks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: hostile ATTACK SECONDS SEED")
		os.Exit(2)
	}
	if os.Getuid() == 0 {
		os.Exit(drop())
	}
	// Its own priority falls even where it was not root before.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	seconds, err1 := strconv.ParseFloat(os.Args[2], 64)
	seed, err2 := strconv.ParseUint(os.Args[3], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(2)
	}
	now := time.Now()
	w := &world{
		began: now, end: now.Add(time.Duration(seconds * float64(time.Second))), seed: seed,
		dir: os.Getenv("HOSTILE_DIR"), socket: os.Getenv("LGPU_SOCKET"), metrics: os.Getenv("HOSTILE_METRICS"),
		page: os.Getenv("HOSTILE_PAGE"), program: os.Getenv("HOSTILE_PROGRAM"), mine: os.Getenv("HOSTILE_MINE"),
		hang: os.Getenv("HOSTILE_HANG"), part: busyPart,
	}
	if text := os.Getenv("HOSTILE_PART"); text != "" {
		if w.part, err1 = strconv.ParseFloat(text, 64); err1 != nil || w.part <= 0 {
			fmt.Fprintln(os.Stderr, "hostile: HOSTILE_PART:", text)
			os.Exit(2)
		}
	}
	// An attack that is stuck, as one is that closes its own trap, ends all the same.
	time.AfterFunc(time.Until(w.end)+2*time.Second, func() { w.report(); os.Exit(0) })
	attacks[os.Args[1]](w)
	w.report()
}

// drop makes the attack as a user without rights, in a process of its own, and returns its exit status.
func drop() int {
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if err := self.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		return 1
	}
	return 0
}

// report says how often the attack struck, and what it was told most often.
func (w *world) report() {
	w.failed.Range(func(text, count any) bool {
		fmt.Printf("told %d times: %.200s\n", count.(*atomic.Int64).Load(), text)
		return true
	})
	fmt.Printf("acts %d\n", w.acts.Load())
}

// more says whether to go on. It counts an act, and sleeps where the attack has had its part of the processor.
func (w *world) more() bool {
	if w.acts.Add(1)%16 == 0 {
		var used unix.Rusage
		if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
			busy := time.Duration(used.Utime.Nano() + used.Stime.Nano())
			if over := time.Duration(float64(busy)/w.part) - time.Since(w.began); over > 0 {
				time.Sleep(min(over, 100*time.Millisecond))
			}
		}
	}
	return time.Now().Before(w.end)
}

// note counts what an act was told.
func (w *world) note(err error) {
	if err == nil {
		return
	}
	text := "error"
	var errno unix.Errno
	if errors.As(err, &errno) {
		text = errno.Error()
	}
	count, _ := w.failed.LoadOrStore(text, new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
}

// rest waits for the end with what it holds.
func (w *world) rest() { time.Sleep(time.Until(w.end)) }

// dice are a goroutine's own.
func (w *world) dice(n uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, n)) }

// each runs an act in so many goroutines until the end.
func (w *world) each(goroutines int, act func(*rand.Rand)) {
	var all sync.WaitGroup
	for n := range goroutines {
		all.Go(func() {
			r := w.dice(uint64(n))
			for w.more() {
				act(r)
			}
		})
	}
	all.Wait()
}

// child is this program with another attack, to the end of this one's.
func (w *world) child(attack string, n int) *exec.Cmd {
	seconds := strconv.FormatFloat(max(time.Until(w.end).Seconds(), 0), 'f', 3, 64)
	c := exec.Command("/proc/self/exe", attack, seconds, strconv.FormatUint(w.seed+uint64(n), 10))
	c.Stderr = os.Stderr
	return c
}

// crowd makes an attack by so many processes, since some bounds are those of a process.
func (w *world) crowd(attack string, processes int) {
	var all sync.WaitGroup
	for n := range processes {
		c := w.child(attack, n)
		c.Env = append(os.Environ(), fmt.Sprintf("HOSTILE_PART=%f", busyPart/float64(processes)))
		out, err := c.StdoutPipe()
		if err != nil || c.Start() != nil {
			w.note(errors.New("no process"))
			continue
		}
		all.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var acts int64
				if n, _ := fmt.Sscanf(lines.Text(), "acts %d", &acts); n == 1 {
					w.acts.Add(acts)
				}
			}
			_ = c.Wait()
		})
	}
	all.Wait()
}

// tree is the mounted tree, or empty.
func (w *world) tree() string {
	if w.mine == "" {
		return ""
	}
	return filepath.Dir(w.mine)
}
