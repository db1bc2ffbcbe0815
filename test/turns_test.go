package test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// slowShape is a device whose link is so slow that moves can be met on their way.
const slowShape = "--sim=1x1GiB,sms=4,context=16MiB,link=300MB/s"

// worker is a tide that steps all the time.
type worker struct {
	*tenant
	path  string
	steps atomic.Int64
}

// worker starts one that holds all that it has to.
func (p *place) worker(name string) *worker {
	p.t.Helper()
	c := p.start("lgpu", "run", slowShape, "--overcommit", "--name", name, "--", "tide", linear, control)
	c.until("ready")
	c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
	return &worker{tenant: c, path: "/" + name}
}

// work has it step until stop is closed, or it has ended.
func (w *worker) work(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if _, err := fmt.Fprintln(w.in, "step 2"); err != nil || !w.until0("stepped 2") {
			return
		}
		w.steps.Add(2)
	}
}

// until0 waits for a line; false if the program has ended.
func (t *tenant) until0(want string) bool {
	for line := range t.lines {
		if line == want {
			return true
		}
	}
	return false
}

// on is the device of an lgpu.
func (p *place) on(path string) *api.DeviceUse {
	if n := p.directory(path); n != nil && len(n.GetDevices()) == 1 {
		return n.GetDevices()[0]
	}
	return &api.DeviceUse{}
}

// Programs that do not fit together take turns, whatever happens in the middle of a move: the daemon is killed, the budget
// changes, one of them is killed. What they compute stays right.
func TestTurns(t *testing.T) {
	p := newPlace(t)
	p.must("create", slowShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+tideAll/2)>>20), "slice.min=200ms", "slice.max=400ms")
	var all []*worker
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, p.worker(name))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, w := range all {
		wg.Go(func() { w.work(stop) })
	}
	moving := func() *worker {
		var met *worker
		p.wait("memory that comes", func() bool {
			for _, w := range all {
				if p.on(w.path).GetState() == api.State_MOVING {
					met = w
				}
			}
			return met != nil
		})
		return met
	}
	turns := func(of []*worker) {
		t.Helper()
		before := map[*worker]int64{}
		for _, w := range of {
			before[w] = w.steps.Load()
		}
		for _, w := range of {
			p.wait("a turn of "+w.path, func() bool { return w.steps.Load() > before[w] })
		}
	}
	turns(all)
	p.wait("one that is loaded ahead", func() bool {
		for _, w := range all {
			if d := p.on(w.path); d.GetState() == api.State_NEXT && strings.Contains(p.must("ps"), " next ") {
				return true
			}
		}
		return false
	})
	for range rounds(3, 100) {
		moving()
		pid := p.daemon().Daemon.GetPid()
		if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.waitForDaemonAfter(pid)
	}
	turns(all)
	moving()
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+96<<20)>>20))
	turns(all)
	p.must("set", "/", "memory.budget=default")
	p.wait("that all fit where they may", func() bool {
		for _, w := range all[:1] {
			if p.on(w.path).GetMemoryEvicted() == 0 {
				return true
			}
		}
		return false
	})
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+tideAll/2)>>20))
	dies := moving()
	var rest []*worker
	for _, w := range all {
		if w != dies {
			rest = append(rest, w)
			continue
		}
		unix.Kill(int(p.directory(w.path).GetClients()[0].GetPid()), unix.SIGKILL)
	}
	if s := dies.status(); s < 128 {
		t.Errorf("status %d", s)
	}
	turns(rest)
	close(stop)
	wg.Wait()
	for _, w := range rest {
		w.expect(fmt.Sprintf("intact after %d steps", w.steps.Load()), "check")
		w.end()
	}
	p.wait("the end of what they had", func() bool {
		host, disk := p.copies()
		return host+disk == 0
	})
}

// tight is three programs that take turns, of which the first has nearly all of memory.budget that the contexts of the
// others leave. Their sizes are in MiB.
func (p *place) tight() (a, b, c *tenant) {
	p.t.Helper()
	const most, small = 212, 18 // of the first one; context and code of each of the others, of which 16 are the context
	p.must("create", tideShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", most+2*small+4), "slice.min=100ms", "slice.max=200ms")
	a = p.full("a")
	a.expect("stepped 1", "step 1")
	b, c = p.tide("b"), p.tide("c")
	for _, o := range []*tenant{b, c} {
		o.until("ready")
		o.expect("hold CUDA_SUCCESS", "hold 1 %d", tideBlock)
		o.expect("stepped 1", "step 1")
	}
	return a, b, c
}

// failed waits for events of memory that is not where it should be, whose text has all of these parts.
func (p *place) failed(parts ...string) {
	p.t.Helper()
	p.wait(fmt.Sprintf("an event with %q", parts), func() bool {
		text := strings.Join(strings.Fields(p.must("events", "--since", "1h", "--kind", "residence.failed")), " ")
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	})
}

// What others keep on a device is not waited for: an allocation that would need it is refused, and an lgpu that has more
// than a lowered budget leaves it says so until one of the others has ended.
func TestUnfit(t *testing.T) {
	p := newPlace(t)
	a, b, c := p.tight()
	p.must("set", "/", "memory.budget=240MiB")
	a.tell("step 1") // for which the others would have to give up more than they can
	p.wait("that it says it is unfit", func() bool { return p.on("/a").GetState() == api.State_UNFIT })
	if out := p.must("ps"); !strings.Contains(out, " unfit ") {
		t.Errorf("ps: %s", out)
	}
	if why := p.on("/a").GetResidenceFailure(); !strings.Contains(why, "would be needed") {
		t.Errorf("the reason is %q", why)
	}
	p.failed("/a cannot come back to device GPU-", "memory.budget of the device is 240 MiB")
	a.quiet("while it is unfit")
	b.expect("more CUDA_ERROR_OUT_OF_MEMORY", "more %d", tideAll)
	b.expect("stepped 1", "step 1")
	c.end()
	a.until("stepped 1")
	a.expect("intact after 2 steps", "check")
	b.expect("intact after 2 steps", "check")
	b.end()
	a.end()
}

// A program whose context would make another lgpu unfit is refused the context, with the reason; the others go on. So is one
// for which the budget is too small.
func TestContextThatSpoils(t *testing.T) {
	p := newPlace(t)
	a, b, c := p.tight()
	late := func() {
		t.Helper()
		d := p.tide("d")
		_, line := d.read("why it ends", func(line string) bool { return strings.HasSuffix(line, " CUDA_ERROR_OUT_OF_MEMORY") })
		if s := d.status(); s != 1 || !strings.Contains(line, "CtxRetain") {
			t.Errorf("status %d, %q", s, line)
		}
	}
	late()
	p.failed(" of /d was refused a context on device GPU-", "with which /a could not come back there any more: memory.budget")
	for _, o := range []*tenant{a, b, c} {
		o.expect("stepped 1", "step 1")
		o.expect("intact after 2 steps", "check")
		o.end()
	}
	p.must("set", "/", "memory.budget=8MiB")
	late()
	p.failed(" of /d was refused a context on device GPU-", "which has no room for it: memory.budget of the device is 8 MiB")
	p.must("set", "/", "memory.budget=default")
	p.full("d").end()
}
