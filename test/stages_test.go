package test

import (
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// A program that takes turns with another one is killed at each stage of that: the other one goes on, and has all it had. What
// the killed one had is free.
func TestKilledAtEachStage(t *testing.T) {
	p := newPlace(t)
	p.must("create", slowShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+tideAll/2)>>20), "slice.min=200ms", "slice.max=400ms")
	other := p.worker("other")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { other.work(stop) })
	victim := func(name string) *worker {
		c := p.start("lgpu", "run", slowShape, "--overcommit", "--name", name, "--", "tide", linear, control)
		c.until("ready")
		return &worker{tenant: c, path: "/" + name}
	}
	full := func(name string) *worker {
		w := victim(name)
		w.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
		return w
	}
	works := func(name string) *worker {
		w := full(name)
		wg.Go(func() { w.work(stop) })
		return w
	}
	is := func(w *worker, state api.State, least, most uint64) bool {
		d := p.on(w.path)
		away := d.GetMemoryEvicted()
		return d.GetState() == state && away >= least && away <= most
	}
	stages := []struct {
		name  string
		begin func(name string) *worker
		there func(w *worker) bool
	}{
		{"comes", works, func(w *worker) bool { return is(w, api.State_MOVING, 1, tideAll-1) }},
		{"loaded-ahead", works, func(w *worker) bool { return is(w, api.State_NEXT, 1, tideAll-1) }},
		{"drains", func(name string) *worker { // for which its kernel is waited for
			w := full(name)
			w.expect("spinning", "spin 60000")
			p.must("set", w.path, "memory.suspend=1")
			return w
		}, func(w *worker) bool { return p.directory(w.path).GetState() == api.State_SUSPENDING }},
		{"computes", works, func(w *worker) bool { return is(w, api.State_RUNNING, 0, 0) }},
		{"leaves", works, func(w *worker) bool { return is(w, api.State_WAITING, 1, tideAll/2-1) }},
		{"away", func(name string) *worker {
			w := full(name)
			p.must("suspend", w.path)
			w.tell("step 1")
			return w
		}, func(w *worker) bool { return p.suspended(w.path, tideAll) }},
		{"allocates", func(name string) *worker { // and waits for room
			w := victim(name)
			p.must("suspend", w.path)
			w.tell("hold 1 50000000")
			return w
		}, func(w *worker) bool { return p.on(w.path).GetMemoryUsed() > 50000000 }},
	}
	for _, stage := range stages[:rounds(3, len(stages))] {
		w := stage.begin(stage.name)
		p.wait(stage.name, func() bool { return stage.there(w) })
		unix.Kill(int(p.directory(w.path).GetClients()[0].GetPid()), unix.SIGKILL)
		if s := w.status(); s < 128 {
			t.Errorf("%s: status %d", stage.name, s)
		}
		p.wait("the end of what it had", func() bool { return p.directory(w.path) == nil })
		before := other.steps.Load()
		p.wait("that the other one goes on after "+stage.name, func() bool { return other.steps.Load() > before+2 })
	}
	close(stop)
	wg.Wait()
	other.expect(fmt.Sprintf("intact after %d steps", other.steps.Load()), "check")
	other.end()
	p.wait("the end of all copies", func() bool { host, disk := p.copies(); return host+disk == 0 && p.onDevice() == 0 })
}
