// Package igpu simulates an integrated GPU that virtual machines share, as gVirt does it and as gScale does it, in virtual
// time. Guests draw by real commands and check what they get; a checker holds the machine against what must be true at all
// times, after every step. docs/gscale.md has the results.
//
//	report, err := igpu.Run(ctx, igpu.Config{Guests: 15, Policy: igpu.GScale, Slots: 4, Predict: true, Time: time.Minute})
//
// The parts: register has the formats; device is the GPU; host the machine's memory; vgpu traps and checks; gvirt and
// gscale share the table; guest has the drivers.
package igpu

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lgpu/lgpu/sim/igpu/device"
	"github.com/lgpu/lgpu/sim/igpu/gscale"
	"github.com/lgpu/lgpu/sim/igpu/guest"
	"github.com/lgpu/lgpu/sim/igpu/gvirt"
	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// Policy is how the translation table is shared.
type Policy string

// The policies.
const (
	GVirt  Policy = "gvirt"
	GScale Policy = "gscale"
)

// Mix is what the guests are.
type Mix string

// The mixes. Linux and Windows guests draw 2D and 3D in turns; Mixed has both; Sizes are Linux guests of several sizes.
const (
	Linux2D   Mix = "linux2d"
	Linux3D   Mix = "linux3d"
	Linux     Mix = "linux"
	Windows   Mix = "windows"
	MixedBoth Mix = "mixed"
	Sizes     Mix = "sizes"
)

// Load is when guests have work.
type Load string

// The loads: always; in phases of a second or so; at random times.
const (
	Busy   Load = "busy"
	Churn  Load = "churn"
	Random Load = "random"
)

// Policies, Mixes and Loads are all of them.
var (
	Policies = []Policy{GVirt, GScale}
	Mixes    = []Mix{Linux2D, Linux3D, Linux, Windows, MixedBoth, Sizes}
	Loads    = []Load{Busy, Churn, Random}
)

// Slice is for how long a guest has the GPU while others wait. Its last work may end later.
const Slice = 16 * time.Millisecond

// The machine's memory bounds how many guests there are where graphics memory does not. The evaluation of gScale says how
// many guests ran, 15 with Linux and 12 with Windows, and not what memory each had: these sizes are the model's.
const (
	machineMemory = 32768 // MiB
	hostMemory    = 2048
	linuxMemory   = 2048
	windowsMemory = 2560
)

// sizes are how much high memory guests of the mix Sizes have, each in turn, in MiB.
var sizes = []int{384, 192, 96}

// Config is a run.
type Config struct {
	Guests          int
	Hostile         int // of them, the last ones
	Policy          Policy
	Slots, SubSlots int // see gscale.Options
	Predict, Aware  bool
	Spread          bool
	Depth           int
	Mix             Mix
	Load            Load
	Time            time.Duration // virtual
	Seed            uint64
	Progress        func(part float64) // may be nil
}

// Report is what a run has shown. Times are virtual.
type Report struct {
	Policy   Policy        `json:"policy"`
	Asked    int           `json:"guests_asked"`
	Admitted int           `json:"guests_admitted"`
	Refusal  string        `json:"refusal,omitempty"` // why the next one was not
	Time     time.Duration `json:"time_ns"`
	Busy     time.Duration `json:"busy_ns"`    // the GPU worked
	Exposed  time.Duration `json:"exposed_ns"` // it waited for a switch
	Guests   []Guest       `json:"guests"`
	Table    gscale.Stats  `json:"table"`
	Switches int           `json:"switches"`
	Steps    int           `json:"steps_checked"`
}

// Guest is what one of them has had.
type Guest struct {
	ID     int           `json:"id"`
	Kind   string        `json:"kind"`
	Frames int           `json:"frames"`
	Busy   time.Duration `json:"busy_ns"`
	Faults int           `json:"faults"`
}

// Work is the part of the time in which the GPU worked for guests: the throughput, as all frames of a kind are alike.
func (r *Report) Work() float64 { return float64(r.Busy) / float64(r.Time) }

// PerSwitch is how many entries a switch copied while the GPU waited.
func (r *Report) PerSwitch() float64 { return float64(r.Table.Copied) / float64(max(1, r.Switches)) }

// HitRate is the part of the guesses that were right.
func (r *Report) HitRate() float64 { return float64(r.Table.Hits) / float64(max(1, r.Table.Guesses)) }

// running is a guest and its driver.
type running struct {
	*vgpu.VGPU
	driver *guest.Driver
	kind   guest.Kind
	busy   time.Duration
	wake   time.Duration // when it draws again
	phase  time.Duration // until when it draws
	random *rand.Rand
}

// world is a run under way.
type world struct {
	config  Config
	device  *device.Device
	memory  *host.Memory
	monitor *vgpu.Monitor
	table   *gscale.Table // nil with gVirt
	checker *checker
	guests  []*running
	current *running      // who has the GPU; nil: nobody had it yet
	end     time.Duration // of its slice
	now     time.Duration
	report  Report
}

// Run simulates. An error is a wrong configuration, a result that is not right, or something untrue that the checker found.
func Run(ctx context.Context, c Config) (*Report, error) {
	w, err := build(c)
	if err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, fmt.Errorf("at %v: %w", w.now, err)
	}
	r := &w.report
	r.Time = w.now
	for _, g := range w.guests {
		r.Guests = append(r.Guests, Guest{g.ID, name(g.kind), g.driver.Frames, g.busy, g.Faults})
	}
	if w.table != nil {
		r.Table = w.table.Stats
	}
	return r, nil
}

func name(k guest.Kind) string {
	system, draws := "Linux", "2D"
	if k.Windows {
		system = "Windows"
	}
	if k.ThreeD {
		draws = "3D"
	}
	if k.Hostile {
		return "hostile"
	}
	return system + " " + draws
}

// Check says what is wrong with a configuration; Run would say the same.
func (c Config) Check() error {
	switch {
	case c.Guests < 1 || c.Guests > 64:
		return fmt.Errorf("%d guests: there are 1 to 64", c.Guests)
	case c.Hostile < 0 || c.Hostile > c.Guests:
		return fmt.Errorf("%d of %d guests cannot be hostile", c.Hostile, c.Guests)
	case c.Time <= 0:
		return fmt.Errorf("time %v: it must be above 0", c.Time)
	case c.Depth < 0 || c.Slots < 0:
		return errors.New("a number of slots or votes is below 0")
	case !slices.Contains(Policies, c.Policy):
		return fmt.Errorf("policy %q: it is one of %v", c.Policy, Policies)
	case !slices.Contains(Mixes, c.Mix):
		return fmt.Errorf("mix %q: it is one of %v", c.Mix, Mixes)
	case !slices.Contains(Loads, c.Load):
		return fmt.Errorf("load %q: it is one of %v", c.Load, Loads)
	}
	_, err := gscale.New(nil, c.options())
	return err
}

func (c Config) options() gscale.Options {
	return gscale.Options{Slots: c.Slots, SubSlots: c.SubSlots, Predict: c.Predict, Aware: c.Aware, Spread: c.Spread, Depth: c.Depth}
}

// build makes the machine and its guests.
func build(c Config) (*world, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	w := &world{config: c, memory: host.NewMemory(1 << 20)}
	w.device = device.New(w.memory)
	bus := &watchedBus{Bus: w.device}
	w.monitor = &vgpu.Monitor{Bus: bus, Memory: w.memory, Aperture: w.device.Access}
	w.monitor.Sharing = gvirt.New(bus)
	if c.Policy == GScale {
		t, err := gscale.New(bus, c.options())
		if err != nil {
			return nil, err
		}
		w.table, w.monitor.Sharing = t, t
	}
	if err := cmp.Or(w.monitor.Boot(), w.display()); err != nil {
		return nil, err
	}
	if err := w.admit(); err != nil {
		return nil, err
	}
	var guests []*vgpu.VGPU
	for _, g := range w.guests {
		guests = append(guests, g.VGPU)
	}
	w.checker = newChecker(w.device, w.memory, w.table != nil, guests)
	w.checker.watch(w.monitor, bus)
	return w, nil
}

// admit starts as many of the guests as there is room for.
func (w *world) admit() error {
	c := w.config
	w.report.Policy, w.report.Asked = c.Policy, c.Guests
	free := machineMemory - hostMemory
	for i := range c.Guests {
		kind := kindOf(c, i)
		low, high, memory := 64, 384, linuxMemory
		if kind.Windows {
			low, memory = 128, windowsMemory
		}
		if c.Mix == Sizes {
			high = sizes[i%len(sizes)]
		}
		if free -= memory; free < 0 {
			w.report.Refusal = fmt.Sprintf("guest %d: the machine's %d GiB of memory: %v", i+1, machineMemory/1024, vgpu.ErrExhausted)
			break
		}
		v, err := w.monitor.New(i+1, guest.Memory, low*register.PagesPerMiB, high*register.PagesPerMiB)
		if errors.Is(err, vgpu.ErrExhausted) {
			w.report.Refusal = err.Error()
			break
		} else if err != nil {
			return err
		}
		seed := c.Seed*1000 + uint64(i) + 1
		w.guests = append(w.guests, &running{VGPU: v, kind: kind, driver: guest.Start(v, kind, seed), random: rand.New(rand.NewPCG(seed, 1))})
	}
	w.report.Admitted = len(w.guests)
	if len(w.guests) == 0 {
		return errors.New(w.report.Refusal)
	}
	return nil
}

// screen is how many pixels the host shows, from the first page of graphics memory on.
const screen = register.PageSize / 4

// picture is a pixel that the host shows.
func picture(i uint32) uint32 { return i * 2654435761 }

// display lets the host show a picture of its own.
func (w *world) display() error {
	page, err := w.memory.Allocate(0, 1)
	if err != nil {
		return err
	}
	for i := range uint32(screen) {
		binary.LittleEndian.PutUint32(w.memory.Page(page)[4*i:], picture(i))
	}
	w.device.Write(register.Table, register.Entry(page))
	w.device.Write(register.DisplayStart, 0)
	w.device.Write(register.DisplaySize, screen)
	w.device.Write(register.DisplayOn, 1<<31)
	return nil
}

// kindOf is what a guest is: of a mix that has several, each in turn.
func kindOf(c Config, i int) guest.Kind {
	return guest.Kind{
		ThreeD:  c.Mix == Linux3D || c.Mix != Linux2D && i%2 == 1,
		Windows: c.Mix == Windows || c.Mix == MixedBoth && i/2%2 == 1,
		Hostile: i >= c.Guests-c.Hostile,
	}
}

// run goes from step to step and checks what each has left.
func (w *world) run(ctx context.Context) error {
	for w.now < w.config.Time {
		if w.report.Steps++; w.report.Steps%256 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if w.config.Progress != nil {
				w.config.Progress(float64(w.now) / float64(w.config.Time))
			}
		}
		w.step()
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

// step is a guest's next work, after a switch if there must be one, or the time until somebody wakes.
func (w *world) step() {
	w.wake()
	next := w.next()
	if next == nil {
		w.idle()
		return
	}
	if next != w.current || w.now >= w.end {
		w.enter(next)
		w.current, w.end = next, w.now+Slice
	}
	w.work(next)
}

// wrong is the first wrong result that a guest got.
func (w *world) wrong() error {
	for _, g := range w.guests {
		if g.driver.Wrong != nil {
			return fmt.Errorf("guest %d: %w", g.ID, g.driver.Wrong)
		}
	}
	return nil
}

// check says what a guest got wrong, or what the checker found.
func (w *world) check() error {
	if err := w.wrong(); err != nil {
		return err
	}
	var v *vgpu.VGPU
	if w.current != nil {
		v = w.current.VGPU
	}
	return w.checker.check(v)
}

// next is who has the GPU now: the same guest until its slice ends, then the next one with work.
func (w *world) next() *running {
	var v *vgpu.VGPU
	if w.current != nil {
		if v = w.current.VGPU; v.Ready() && w.now < w.end {
			return w.current
		}
	}
	if w.table != nil {
		v = w.table.Next(v)
		for _, g := range w.guests {
			if g.VGPU == v {
				return g
			}
		}
		return nil
	}
	at := -1
	for i, g := range w.guests {
		if g == w.current {
			at = i
		}
	}
	for i := range w.guests {
		if g := w.guests[(at+1+i)%len(w.guests)]; g.Ready() {
			return g
		}
	}
	return nil
}

// enter switches; the GPU waits for as long as the registers take.
func (w *world) enter(to *running) {
	if w.current == to {
		return
	}
	before := w.device.Spent()
	w.monitor.Sharing.Enter(to.VGPU)
	took := w.device.Spent() - before
	w.report.Switches++
	w.now, w.report.Exposed = w.now+took, w.report.Exposed+took
}

// work executes the next work of a guest; the processor copies ahead meanwhile.
func (w *world) work(g *running) {
	w.monitor.Dispatch(g.VGPU)
	took := w.device.Run()
	w.monitor.Complete(g.VGPU)
	if w.table != nil {
		w.table.Ahead(g.VGPU, int(took/device.AccessTime))
	}
	took = max(took, time.Microsecond) // a submission is not for nothing, even an empty one
	w.now, g.busy, w.report.Busy = w.now+took, g.busy+took, w.report.Busy+took
	g.driver.Done()
	g.wake = max(g.wake, w.now+w.pause(g)) // a frame that was under way does not end the pause
}

// pause is how long a guest waits before it draws the next frame.
func (w *world) pause(g *running) time.Duration {
	switch w.config.Load {
	case Churn:
		if w.now >= g.phase {
			idle := time.Duration(g.random.ExpFloat64() * float64(time.Second))
			g.phase = w.now + idle + time.Duration(g.random.ExpFloat64()*float64(time.Second))
			return idle
		}
	case Random:
		if g.random.IntN(8) == 0 {
			return time.Duration(g.random.ExpFloat64() * float64(300*time.Millisecond))
		}
	}
	return 0
}

// wake lets guests draw whose time has come.
func (w *world) wake() {
	for _, g := range w.guests {
		if g.wake <= w.now {
			g.driver.Submit()
			if g.kind.Hostile && !g.Ready() { // what it did was refused
				g.driver.Done()
				g.driver.Done()
				g.wake = w.now + time.Millisecond
			}
		}
	}
}

// idle goes to where somebody wakes.
func (w *world) idle() {
	first := w.config.Time
	for _, g := range w.guests {
		if !g.Ready() {
			first = min(first, g.wake)
		}
	}
	w.now = max(w.now+time.Microsecond, cmp.Or(first, w.now))
}
