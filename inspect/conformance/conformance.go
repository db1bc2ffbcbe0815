// Package conformance measures, on the device at hand, that the units of lgpus mean to a program what they promise:
//
//  1. the device query inside returns count compute units;
//  2. throughput of compute-bound work is in proportion to count;
//  3. several lgpus at the same time get their parts;
//  4. a program that reads the number of its unit (%smid) sees those of its list and no others, and programs with
//     disjoint lists do not slow each other down, where a device grants units by name.
//
// So "what do these bits mean to an end user" has an answer that can be checked on any vendor's device:
//
//	report, err := conformance.Run(ctx, conformance.Options{Program: exe, Device: "0"})
//	err = report.Write(os.Stdout)
//	os.Exit(report.Status())
//
// The measurements are made from inside real lgpus: Run starts children by `lgpu run`, each of which is a Probe, a CUDA
// program like any other. Memory bandwidth and caches are shared without a promise, and are not measured.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/lgpu/lgpu/internal/list"
)

// Mode is a way to share a device that is measured.
type Mode string

// Modes: units as parts of the device's time, and as compute units at the same time.
const (
	Temporal Mode = "temporal"
	Spatial  Mode = "spatial"
)

// Options say what is measured and how. Zero fields get the defaults named.
type Options struct {
	// Program is the lgpu program, which Run starts as `PROGRAM run …`, and in it as `PROGRAM conformance --probe …`.
	Program string
	// Arguments come after every "run" and "create", such as --sim=SHAPE; Socket, where not empty, is the daemon to
	// use.
	Arguments []string
	Socket    string
	// Device is the device to measure, by index or UUID; default "0".
	Device string
	// Modes are what is measured; default both. A mode that the device does not have is reported as not offered.
	Modes []Mode
	// Counts are the numbers of units to measure; default an eighth, a quarter, a half and three quarters of the
	// device.
	Counts []int
	// Seconds is how long one measurement lasts, beside a second before it; default 3.
	Seconds float64
	// Tolerance is the error that is a kept promise, in points of the whole device; default 1.5.
	Tolerance float64
	// Progress, where set, is told what is measured next: step, from 1, of steps.
	Progress func(step, steps int, what string)
}

// Verdict is what came of one promise.
type Verdict string

// Verdicts. NotOffered is a promise that the device does not make, with the reason in the note; Unknown one that could
// not be measured.
const (
	Kept       Verdict = "kept"
	Broken     Verdict = "broken"
	NotOffered Verdict = "not offered"
	Unknown    Verdict = "unknown"
)

// Row is one promise and what was measured of it.
type Row struct {
	Mode    Mode     `json:"mode"`
	Promise string   `json:"promise"`
	Asked   string   `json:"asked"`
	Got     string   `json:"got"`
	Error   *float64 `json:"error"` // points of the whole device, percent for "undisturbed"; null where it is no number
	Verdict Verdict  `json:"verdict"`
	Note    string   `json:"note,omitempty"`
}

// Report is what was measured of a device.
type Report struct {
	Device    string  `json:"device"` // UUID
	Units     int     `json:"units"`  // that it has
	Tolerance float64 `json:"tolerance"`
	Rows      []Row   `json:"rows"`
}

// Status is the exit status that says how it went: 0 if every promise that is made is kept, 1 if one is broken, 3 if
// one could not be measured.
func (r *Report) Status() int {
	status := 0
	for _, row := range r.Rows {
		switch row.Verdict {
		case Broken:
			return 1
		case Unknown:
			status = 3
		}
	}
	return status
}

// tenant is what is asked of `lgpu run`.
type tenant struct {
	units   int    // 0: no limit
	list    string // units by name, in place of units
	spatial bool
}

// run is one Run.
type run struct {
	Options
	report     *Report
	iterations uint32
	step       int // that is measured now, from 1
	steps      int // that there are, those included that a device does not offer
}

// Steps of a mode beside one for each count: all units, two at once, and units by name, alone and together.
const stepsOfMode = 1 + 1 + len(namedLists) + 1

// namedLists are what is measured of units with names, of n.
var namedLists = [...]func(n int) string{
	func(n int) string { return fmt.Sprintf("0-%d", max(n/4-1, 0)) },
	func(n int) string { return fmt.Sprintf("%d-%d", n/2, max(n-2, n/2)) },
	func(n int) string { return fmt.Sprintf("0-%d:1/3", n-1) },
}

// next says what is measured next, and how much there is to do.
func (r *run) next(what string) {
	r.step++
	r.Progress(r.step, r.steps, what)
}

// Run measures. An error is one of the machine, with no report: no device, no daemon, a probe that does not run at all.
// One that wraps ErrRefused is of the options: lgpu run does not take them.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Device == "" {
		o.Device = "0"
	}
	if len(o.Modes) == 0 {
		o.Modes = []Mode{Temporal, Spatial}
	}
	if o.Seconds <= 0 {
		o.Seconds = 3
	}
	if o.Tolerance <= 0 {
		o.Tolerance = 1.5
	}
	if o.Progress == nil {
		o.Progress = func(int, int, string) {}
	}
	r := &run{Options: o, report: &Report{Tolerance: o.Tolerance}}
	r.steps = 1 + len(o.Modes)*(stepsOfMode+len(r.asked()))
	r.next("the whole device")
	whole, err := r.one(ctx, tenant{})
	if err != nil {
		return nil, fmt.Errorf("measure device %s without limits: %w", o.Device, err)
	}
	r.iterations = whole.Iterations
	r.report.Device, r.report.Units = whole.Device, whole.IDs
	for i, mode := range o.Modes {
		if err := r.mode(ctx, mode); err != nil {
			return nil, err
		}
		r.step = 1 + (i+1)*(r.steps-1)/len(o.Modes) // also where it offers less
	}
	return r.report, nil
}

// asked are the numbers of units to measure, of a device whose units may not be known yet.
func (r *run) asked() []int {
	n := r.report.Units
	if len(r.Counts) > 0 {
		return r.Counts
	}
	return []int{n / 8, n / 4, n / 2, 3 * n / 4}
}

// counts are those of asked that the device has, each once.
func (r *run) counts() []int {
	n := r.report.Units
	var out []int
	for _, c := range r.asked() {
		if c >= 1 && c <= n && (len(out) == 0 || out[len(out)-1] != c) {
			out = append(out, c)
		}
	}
	return out
}

// mode measures one way to share. Only the end of ctx is an error; all else is in the report.
func (r *run) mode(ctx context.Context, mode Mode) error {
	spatial := mode == Spatial
	if spatial {
		// The device is in spatial mode as long as a tenant that asks for it lives.
		keeper, err := r.start(ctx, tenant{spatial: true})
		if err != nil {
			r.failed(mode, "compute units at the same time", "spatial", err)
			return ctx.Err()
		}
		defer keeper.end()
		if err := keeper.ready(); err != nil {
			r.failed(mode, "compute units at the same time", "spatial", err)
			return ctx.Err()
		}
	}
	r.next(string(mode) + ": the whole device")
	before, err := r.one(ctx, tenant{spatial: spatial})
	if err != nil {
		r.failed(mode, "throughput", "all units", err)
		return ctx.Err()
	}
	r.query(mode, "all units", r.report.Units, before)
	s := shares{mode: mode, before: before, counts: r.counts()}
	if err := r.measure(ctx, &s); err != nil {
		return err
	}
	if s.after, err = r.one(ctx, tenant{spatial: spatial}); err != nil {
		r.failed(mode, "throughput", "all units", err)
		return ctx.Err()
	}
	r.reportShares(&s)
	r.lists(ctx, mode)
	return ctx.Err()
}

// shares is what was measured of parts of a device in one mode.
type shares struct {
	mode          Mode
	before, after Measurement // of the whole device
	counts        []int
	got           []Measurement // with each of counts
	errs          []error
	pair          [2]int // units of two at the same time
	both          []Measurement
	bothErr       error
}

// measure measures every count of units, and two lgpus at the same time. Only the end of ctx is an error.
func (r *run) measure(ctx context.Context, s *shares) error {
	spatial := s.mode == Spatial
	s.got = make([]Measurement, len(s.counts))
	s.errs = make([]error, len(s.counts))
	for i, n := range s.counts {
		r.next(fmt.Sprintf("%s: count=%d", s.mode, n))
		s.got[i], s.errs[i] = r.one(ctx, tenant{units: n, spatial: spatial})
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.next(string(s.mode) + ": two at once")
	s.pair = [2]int{max(r.report.Units*30/100, 1), max(r.report.Units*60/100, 1)}
	s.both, s.bothErr = r.together(ctx, tenant{units: s.pair[0], spatial: spatial}, tenant{units: s.pair[1], spatial: spatial})
	return nil
}

// reportShares compares what was measured with the whole device.
func (r *run) reportShares(s *shares) {
	// The device may have become warmer, and slower, meanwhile.
	whole := (s.before.pace() + s.after.pace()) / 2
	drift := ""
	if d := 100 * math.Abs(s.after.pace()/s.before.pace()-1); d > 1 {
		drift = fmt.Sprintf("the whole device's own rate changed by %.1f %% meanwhile", d)
	}
	// All units for some of the time show in how much is done in all, some units all the time in how fast a kernel is
	// done.
	part := func(m Measurement) float64 {
		if s.mode == Spatial {
			return m.pace() / whole
		}
		return m.Rate / whole
	}
	for i, n := range s.counts {
		asked := "count=" + strconv.Itoa(n)
		if s.errs[i] != nil {
			r.failed(s.mode, "throughput", asked, s.errs[i])
			continue
		}
		r.query(s.mode, asked, n, s.got[i])
		r.reportShare(s.mode, "throughput", asked, n, part(s.got[i]), drift)
	}
	for i, n := range s.pair {
		asked := fmt.Sprintf("count=%d beside count=%d", n, s.pair[1-i])
		if s.bothErr != nil {
			r.failed(s.mode, "throughput at once", asked, s.bothErr)
			continue
		}
		r.reportShare(s.mode, "throughput at once", asked, n, part(s.both[i]), drift)
	}
}

// lists measures units by name.
func (r *run) lists(ctx context.Context, mode Mode) {
	n := r.report.Units
	spatial := mode == Spatial
	low, high := namedLists[0](n), namedLists[1](n)
	alone := map[string]Measurement{}
	for _, named := range namedLists {
		l := named(n)
		r.next(fmt.Sprintf("%s: list=%s", mode, l))
		m, err := r.one(ctx, tenant{list: l, spatial: spatial})
		if err != nil {
			r.failed(mode, "units by name", "list="+l, err)
			if errors.Is(err, ErrRefused) {
				return
			}
			continue
		}
		alone[l] = m
		want, err := list.Parse(l, n)
		if err != nil {
			r.failed(mode, "units by name", "list="+l, err)
			continue
		}
		verdict := Kept
		if m.Seen != want.String() || m.Units != want.Count() {
			verdict = Broken
		}
		r.add(Row{Mode: mode, Promise: "units by name", Asked: "list=" + want.String(),
			Got: fmt.Sprintf("%%smid %s, %s", m.Seen, count(m.Units)), Verdict: verdict})
	}
	if _, ok := alone[high]; !ok || alone[low].Rate == 0 {
		return
	}
	r.next(string(mode) + ": disjoint lists at once")
	both, err := r.together(ctx, tenant{list: low, spatial: spatial}, tenant{list: high, spatial: spatial})
	if err != nil {
		r.failed(mode, "undisturbed", low+" beside "+high, err)
		return
	}
	for i, l := range []string{low, high} {
		part := 100 * both[i].pace() / alone[l].pace()
		e := part - 100
		verdict := Kept
		if e < -2*r.Tolerance { // to be faster is no disturbance
			verdict = Broken
		}
		other := []string{high, low}[i]
		r.add(Row{Mode: mode, Promise: "undisturbed", Asked: fmt.Sprintf("list=%s beside list=%s", l, other),
			Got: fmt.Sprintf("%.2f %% of alone", part), Error: &e, Verdict: verdict})
	}
}

// query adds the row of the device query. A device may grant its units in steps: MPS gives an H200's in pairs.
func (r *run) query(mode Mode, asked string, want int, m Measurement) {
	row := Row{Mode: mode, Promise: "units the program is told", Asked: asked, Got: count(m.Units), Verdict: Kept}
	if m.Units != want {
		e := 100 * float64(m.Units-want) / float64(r.report.Units)
		row.Error, row.Note = &e, "the device grants its units in larger steps"
		if math.Abs(e) > r.Tolerance || mode == Temporal {
			row.Verdict, row.Note = Broken, ""
		}
	}
	r.add(row)
}

// count writes a number of units.
func count(n int) string {
	if n == 1 {
		return "1 unit"
	}
	return fmt.Sprintf("%d units", n)
}

// reportShare adds a row of throughput: part of the whole device's, for n units.
func (r *run) reportShare(mode Mode, promise, asked string, n int, part float64, note string) {
	want := 100 * float64(n) / float64(r.report.Units)
	e := 100*part - want
	verdict := Kept
	if math.Abs(e) > r.Tolerance || math.IsNaN(e) {
		verdict = Broken
	}
	r.add(Row{Mode: mode, Promise: promise, Asked: fmt.Sprintf("%s (%.2f %%)", asked, want),
		Got: fmt.Sprintf("%.2f %%", 100*part), Error: &e, Verdict: verdict, Note: note})
}

// failed adds a row that could not be measured: because it was refused, or otherwise.
func (r *run) failed(mode Mode, promise, asked string, err error) {
	verdict := Unknown
	if errors.Is(err, ErrRefused) {
		verdict = NotOffered
	}
	r.add(Row{Mode: mode, Promise: promise, Asked: asked, Got: "-", Verdict: verdict, Note: err.Error()})
}

func (r *run) add(row Row) { r.report.Rows = append(r.report.Rows, row) }

// one measures one tenant alone.
func (r *run) one(ctx context.Context, t tenant) (Measurement, error) {
	ms, err := r.together(ctx, t)
	if err != nil {
		return Measurement{}, err
	}
	return ms[0], nil
}

// lead is how long tenants work before they are measured: a cap's first moments are not typical of it.
const lead = 1.0

// together measures tenants at the same time.
func (r *run) together(ctx context.Context, tenants ...tenant) ([]Measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.Seconds*1e9)+90*time.Second)
	defer cancel()
	children := make([]*child, 0, len(tenants))
	defer func() {
		for _, c := range children {
			c.end()
		}
	}()
	for _, t := range tenants {
		c, err := r.start(ctx, t)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.ready(); err != nil {
			return nil, err
		}
	}
	for _, c := range children {
		if err := c.begin(); err != nil {
			return nil, err
		}
	}
	out := make([]Measurement, len(children))
	for i, c := range children {
		var err error
		if out[i], err = c.result(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
