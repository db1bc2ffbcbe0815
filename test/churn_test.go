package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// resident is one place at a machine: a program after another, each of its own size, that end in one of the ways in which
// programs do.
type resident struct {
	*place
	number int
	r      *rand.Rand
	ends   [3]int // of programs: by themselves, killed, stopped
	moves  int
}

// live runs programs until a time.
func (w *resident) live(until time.Time) {
	for n := 0; time.Now().Before(until); n++ {
		name := fmt.Sprintf("r%d-%d", w.number, n)
		c := w.start("lgpu", "run", slowShape, "--overcommit", "--name", name, "--", "tide", linear, control)
		c.until("ready")
		c.expect("hold CUDA_SUCCESS", "hold %d %d", 1+w.r.IntN(8), (1+w.r.IntN(20))<<20) // beside four contexts
		steps := 0
		for range w.r.IntN(12) {
			count := 1 + w.r.IntN(5)
			c.tell(fmt.Sprintf("step %d", count))
			if w.r.IntN(4) == 0 {
				w.must("suspend", "/"+name)
				w.must("resume", "/"+name)
				w.moves++
			}
			c.until(fmt.Sprintf("stepped %d", count))
			steps += count
			if w.r.IntN(4) == 0 {
				c.expect(fmt.Sprintf("intact after %d steps", steps), "check")
			}
		}
		end := w.r.IntN(len(w.ends))
		w.ends[end]++
		switch end {
		case 0:
			c.expect(fmt.Sprintf("intact after %d steps", steps), "check")
			c.end()
			continue
		case 1:
			c.tell("step 1")
			unix.Kill(int(w.directory("/" + name).GetClients()[0].GetPid()), unix.SIGKILL)
		case 2:
			c.tell("step 1")
			w.must("stop", "/"+name)
		}
		if s := c.status(); s < 128 {
			c.t.Errorf("%s: status %d, %s", name, s, c.stderr.String())
		}
	}
}

// Programs that do not fit together come, go, are killed and suspended, for as long as LGPU_CHURN says: all that they
// compute is right, and nothing is left of them.
func TestChurn(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("LGPU_CHURN"))
	if err != nil {
		t.Skip("LGPU_CHURN does not say for how long, as 1h does")
	}
	p := newPlace(t)
	p.must("create", slowShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+tideAll/4)>>20), "slice.min=100ms", "slice.max=1s")
	pid := int(p.daemon().Daemon.GetPid())
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	files := func() (open []string) {
		all, err := os.ReadDir(folder)
		if err != nil {
			t.Fatalf("the daemon ended: %v", err)
		}
		for _, f := range all {
			to, err := os.Readlink(filepath.Join(folder, f.Name()))
			runtime := strings.Contains(to, "/cpu.cfs_") || strings.HasSuffix(to, "/cpu.max") // Go's, which opens them when it likes
			if err == nil && !runtime {
				open = append(open, to)
			}
		}
		return open
	}
	before := files()
	after := before
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("open before %q, and after %q", before, after)
		}
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var all []*resident
	var wg sync.WaitGroup
	until := time.Now().Add(long)
	for i := range 4 {
		w := &resident{place: p, number: i, r: rand.New(rand.NewPCG(seed, uint64(i)))}
		all = append(all, w)
		wg.Go(func() { w.live(until) })
	}
	wg.Wait()
	for _, w := range all {
		t.Logf("%d ended by themselves, %d killed, %d stopped; %d suspended", w.ends[0], w.ends[1], w.ends[2], w.moves)
	}
	p.wait("the end of what they had", func() bool {
		host, disk := p.copies()
		return host+disk == 0 && p.onDevice() == 0
	})
	p.wait("the end of the daemon's files", func() bool {
		after = files()
		return len(after) <= len(before)+1 // one more: of energy
	})
}
