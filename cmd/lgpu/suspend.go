package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/internal/units"
)

func suspendCommand() *cobra.Command {
	c := moveCommand(false)
	c.Use = "suspend [--release] [--timeout TIME] [--json] PATH..."
	c.Short = "Move memory of logical GPUs off their devices; programs wait"
	c.Long = `Move the memory of an lgpu, or of all lgpus below a group, to the host, and wait
until it has left the devices. Its programs wait from then on where they want
to use a device; they are not ended, and notice only the pause. Other lgpus can
have the memory meanwhile. It is for lgpus with memory.overcommit: those that
lgpu run --overcommit started. What cannot be moved stays: contexts, code,
arrays, managed memory.

The command writes 1 into the file memory.suspend and waits. If it stops
waiting, after --timeout or Ctrl-C, the wish stays in the file; lgpu resume
takes it back. Suspending what is suspended is no error.

With --release the programs of each lgpu at a PATH, whatever it was started
with, leave its devices wholly: the driver writes all that it knows of them into
their own memory. They do so all or none; what fails, takes too long, or is
stopped by Ctrl-C is turned back, and they go on. While they are away they
cannot use a device, and go on once lgpu resume has brought them back.

Exit status: 0; 2 if there is no such group or lgpu, or its memory cannot leave
its devices; 1 if it did not within --timeout, or the daemon cannot be reached
or refuses this user.`
	c.Example = `  lgpu suspend /team/alice
  lgpu suspend --timeout 0 /team/alice /team/bob # wait for ever
  lgpu suspend --release /team/alice`
	return c
}

func resumeCommand() *cobra.Command {
	c := moveCommand(true)
	c.Use = "resume [--timeout TIME] [--json] PATH..."
	c.Short = "Bring the memory of suspended logical GPUs back"
	c.Long = `Let the programs of a suspended lgpu, or of all lgpus below a suspended group,
go on, and wait until their memory is back on the devices. Where others have the
room, it is given back in turns. Programs that have left their devices wholly,
by lgpu suspend --release, come back first, all of an lgpu or none; where there
is no room for them they stay away.

The command writes 0 into the file memory.suspend and waits. If it stops
waiting, after --timeout or Ctrl-C, the wish stays in the file. Resuming what
is not suspended is no error.

Exit status: 0; 2 if there is no such group or lgpu; 1 if its memory did not
come back within --timeout, it stays suspended since a group above it is, or the
daemon cannot be reached or refuses this user.`
	c.Example = `  lgpu resume /team/alice
  lgpu resume --json / | jq '.results[].bytes'`
	return c
}

// moveCommand is what both commands have in common.
func moveCommand(resume bool) *cobra.Command {
	m := move{resume: resume}
	c := &cobra.Command{
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			if m.timeout < 0 {
				return usage("0 waits for ever", "--timeout %v: it is below 0", m.timeout)
			}
			return talk(c, toCommand, func(conn *api.Conn) error { return m.run(c, conn, args) })
		},
	}
	f := c.Flags()
	f.SortFlags = false
	if !resume {
		f.BoolVar(&m.release, "release", false, "have the programs leave the devices wholly, by the driver's checkpoint")
	}
	f.DurationVar(&m.timeout, "timeout", time.Minute, "wait for this `TIME`; 0 is for ever")
	f.BoolVar(&m.json, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// suspendFile is the file of the tree that both commands write.
const suspendFile = "memory.suspend"

// The state is looked at again after a part of the time that has passed, within bounds: a move that takes a tenth of a second
// is not made to look as if it took two, and one of a third of a second does not wait for the next look.
const (
	watchPart  = 100
	watchFirst = 2 * time.Millisecond
	watchLast  = 200 * time.Millisecond
)

// move is one lgpu suspend, or lgpu resume.
type move struct {
	resume  bool
	release bool          // wholly
	timeout time.Duration // 0: none
	json    bool
}

// moved is what became of one name. docs/cli.md describes the JSON.
type moved struct {
	Path     string   `json:"path"`
	State    string   `json:"state"` // suspended, suspending, resumed or resuming
	LGPUs    int      `json:"lgpus"` // at the path and below it whose memory can leave its devices
	Bytes    uint64   `json:"bytes"` // that have left the devices, or are back on them
	Left     uint64   `json:"left"`  // that have not, or are not
	Seconds  float64  `json:"seconds"`
	Failures []string `json:"failures"`
}

// verb is what the command is called.
func (m *move) verb() string {
	if m.resume {
		return "resume"
	}
	return "suspend"
}

func (m *move) run(c *cobra.Command, conn *api.Conn, args []string) error {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	before, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return err
	}
	paths, err := m.find(ctx, conn, before, args)
	if err != nil {
		return err
	}
	whole, paths, err := m.wholly(before, paths)
	if err != nil {
		return err
	}
	if m.resume && len(whole) > 0 {
		if err := m.releaseAll(c, conn, whole, m.json && len(paths) > 0); err != nil || len(paths) == 0 {
			return err
		}
	}
	if m.release {
		return m.releaseAll(c, conn, whole, false)
	}
	value := "1\n"
	if m.resume {
		value = "0\n"
	}
	for _, p := range paths {
		files := []*api.File{{Name: suspendFile, Data: []byte(value)}}
		if _, err := conn.Write(ctx, &api.WriteRequest{Path: p, Files: files}); err != nil {
			return explainFiles(c, err)
		}
	}
	line := progress.Start(c.ErrOrStderr(), m.verb()+" "+strings.Join(paths, " "))
	w := &waiter{move: m, begun: time.Now(), before: evicted(before), paths: paths, line: line, out: c.ErrOrStderr()}
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if m.timeout > 0 {
		waiting, cancel = context.WithTimeout(ctx, m.timeout)
	}
	defer cancel()
	err = w.until(waiting, conn)
	line.Done()
	if err != nil {
		return err
	}
	if err := m.report(c.OutOrStdout(), w.results); err != nil {
		return err
	}
	return m.verdict(ctx, w)
}

// wholly divides paths into those of lgpus whose programs are to leave their devices wholly, or have, and those of which only
// memory moves. Memory that has left its devices first comes back by itself.
func (m *move) wholly(s *api.Snapshot, paths []string) (whole, others []string, err error) {
	for _, p := range paths {
		at := slices.IndexFunc(s.GetDirectories(), func(n *api.Directory) bool { return n.GetPath() == p })
		switch {
		case at < 0:
			others = append(others, p)
		case m.release && s.GetDirectories()[at].GetKind() != api.Directory_LGPU:
			return nil, nil, usage("name the lgpus in it", "suspend %s: --release is for lgpus, not for groups", p)
		case m.release:
			whole = append(whole, p)
		case m.resume && s.GetDirectories()[at].GetState() == api.State_RELEASED:
			whole = append(whole, p)
			if s.GetDirectories()[at].GetMemoryOvercommit() {
				others = append(others, p)
			}
		default:
			others = append(others, p)
		}
	}
	return whole, others, nil
}

// find returns the paths that were typed, each once. All must be there, and what is to be suspended must be able to be.
func (m *move) find(ctx context.Context, conn *api.Conn, s *api.Snapshot, args []string) ([]string, error) {
	var paths, known []string
	for _, n := range s.GetDirectories() {
		if n.GetPath() != rootPath { // nobody means that by a slip
			known = append(known, n.GetPath())
		}
	}
	for _, a := range args {
		p := at(conn, a)
		if slices.Contains(paths, p) {
			continue
		}
		if _, err := conn.List(ctx, &api.ListRequest{Path: p}); err != nil {
			e := explain(err)
			var own *exit
			if errors.As(e, &own) && errors.Is(err, syscall.ENOENT) {
				own.hint = didYouMean("", p, known, treeHint)
			}
			return nil, e
		}
		some, movable := false, false
		for _, n := range s.GetDirectories() {
			if n.GetKind() == api.Directory_LGPU && names.Within(n.GetPath(), p) {
				some, movable = true, movable || n.GetMemoryOvercommit()
			}
		}
		if some && !movable && !m.resume && !m.release {
			return nil, usage("lgpu run --overcommit starts a program whose memory can", "suspend %s: its memory cannot leave its devices", p)
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// place is memory of an lgpu on a device.
type place struct {
	id     uint64
	device string
}

// evicted is what is off the devices in a snapshot.
func evicted(s *api.Snapshot) map[place]uint64 {
	all := map[place]uint64{}
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			all[place{n.GetId(), d.GetUuid()}] = d.GetMemoryEvicted()
		}
	}
	return all
}

// waiter follows the state until all is as it should be.
type waiter struct {
	*move
	begun   time.Time
	before  map[place]uint64
	paths   []string
	results []moved // of each path; empty until the first state
	line    *progress.Line
	out     io.Writer
	said    []string // failures that have been said
}

// until returns when all is done or ctx ends, and with an error only where the daemon has nothing more to say. A daemon
// that ends is waited for: the wish is in its store.
func (w *waiter) until(ctx context.Context, conn *api.Conn) error {
	for {
		err := w.follow(ctx, conn)
		if err == nil || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if !errors.Is(err, api.ErrGone) {
			return err
		}
		next, err := api.Dial(ctx, api.Options{Socket: conn.Socket})
		for err != nil {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(firstRetry):
			}
			next, err = api.Dial(ctx, api.Options{Socket: conn.Socket})
		}
		defer next.Close()
		conn = next
	}
}

// follow looks at the states of one daemon.
func (w *waiter) follow(ctx context.Context, conn *api.Conn) error {
	for {
		s, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
		if err != nil {
			return err
		}
		passed := time.Since(w.begun)
		if done, err := w.look(s, passed); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(max(passed/watchPart, watchFirst), watchLast)):
		}
	}
}

// look reads a state and says whether all is done.
func (w *waiter) look(s *api.Snapshot, passed time.Duration) (done bool, err error) {
	w.results = make([]moved, len(w.paths))
	done = true
	var bytes, left uint64
	for i, p := range w.paths {
		r := moved{Path: p, Seconds: passed.Seconds(), Failures: []string{}}
		finished := true
		for _, n := range s.GetDirectories() {
			if n.GetKind() != api.Directory_LGPU || !n.GetMemoryOvercommit() || !names.Within(n.GetPath(), p) {
				continue
			}
			if by := suspender(s, n.GetPath()); w.resume && by != "" {
				if !names.Within(by, p) {
					return false, &exit{status: statusFailed, err: fmt.Errorf("resume %s: it stays suspended, since %s is", p, by),
						hint: "lgpu resume " + by}
				}
				continue // by a wish of its own
			}
			r.LGPUs++
			for _, d := range n.GetDevices() {
				finished = w.device(&r, n, d) && finished
			}
		}
		r.State = strings.TrimSuffix(w.verb(), "e") + "ing"
		if finished {
			r.State = strings.TrimSuffix(w.verb(), "e") + "ed"
		}
		done = done && finished
		w.results[i] = r
		bytes, left = bytes+r.Bytes, left+r.Left
	}
	w.show(bytes, left, passed)
	return done, nil
}

// device adds what an lgpu has of a device, and says whether that is as it should be. What is evicted and asks for nothing was
// back, and has made room for others since.
func (w *waiter) device(r *moved, n *api.Directory, d *api.DeviceUse) (done bool) {
	now, before := d.GetMemoryEvicted(), w.before[place{n.GetId(), d.GetUuid()}]
	if w.resume {
		now, before = before, now
		r.Left += d.GetMemoryEvicted()
		done = d.GetMemoryEvicted() == 0 || d.GetState() == api.State_EVICTED
	} else {
		done = d.GetState() == api.State_SUSPENDED || d.GetState() == api.State_RELEASED
		if !done {
			r.Left += d.GetMemoryResident()
		}
	}
	r.Bytes += now - min(now, before)
	if why := d.GetResidenceFailure(); why != "" {
		r.Failures = append(r.Failures, fmt.Sprintf("%s on %s: %s", n.GetPath(), shorten(d.GetUuid(), deviceWidth), why))
	}
	return done
}

// suspender is the path of the lgpu at path, or of the highest group above it, that is suspended; empty for none.
func suspender(s *api.Snapshot, path string) string {
	for _, n := range s.GetDirectories() { // groups come before what is in them
		if n.GetMemorySuspend() && names.Within(path, n.GetPath()) {
			return n.GetPath()
		}
	}
	return ""
}

// show brings the line on the terminal up to date, and says each failure once.
func (w *waiter) show(bytes, left uint64, passed time.Duration) {
	what := fmt.Sprintf("%s %s", w.verb(), strings.Join(w.paths, " "))
	if rate := rateOf(bytes, passed.Seconds()); rate != "" {
		what += ", " + rate
	}
	if whole := bytes + left; whole > 0 {
		w.line.Measure(float64(bytes)/float64(whole), units.FormatSize(bytes)+" of "+units.FormatSize(whole), what)
	}
	for _, r := range w.results {
		for _, f := range r.Failures {
			if !slices.Contains(w.said, f) {
				w.said = append(w.said, f)
				w.line.Print(w.out, "lgpu: "+f)
			}
		}
	}
}

// rateOf is bytes in a time for people, empty where there is nothing to measure.
func rateOf(bytes uint64, seconds float64) string {
	if bytes == 0 || seconds <= 0 {
		return ""
	}
	return units.FormatSize(uint64(float64(bytes)/seconds)) + "/s"
}

// report prints what is done, or as JSON everything.
func (m *move) report(out io.Writer, results []moved) error {
	if m.json {
		if results == nil {
			results = []moved{}
		}
		return sayJSON(out, struct {
			Version int     `json:"version"`
			Results []moved `json:"results"`
		}{1, results})
	}
	var b strings.Builder
	for _, r := range results {
		if !r.done() {
			continue
		}
		what := "nothing had to be moved"
		if rate := rateOf(r.Bytes, r.Seconds); rate != "" {
			what = fmt.Sprintf("%s in %.1f s, %s", units.FormatSize(r.Bytes), r.Seconds, rate)
		}
		if r.Left != 0 {
			what += fmt.Sprintf("; %s made room for others", units.FormatSize(r.Left))
		}
		fmt.Fprintf(&b, "%s %s: %s\n", r.State, r.Path, what)
	}
	return say(out, b.String())
}

// done says whether it came to its end.
func (r moved) done() bool { return strings.HasSuffix(r.State, "ed") }

// verdict is what the command ends with: nothing, if all was done before ctx or the timeout ended.
func (m *move) verdict(ctx context.Context, w *waiter) error {
	var open, reasons []string
	for _, p := range w.paths {
		i := slices.IndexFunc(w.results, func(r moved) bool { return r.Path == p })
		if i >= 0 && w.results[i].done() {
			continue
		}
		open = append(open, p)
		if i < 0 {
			continue
		}
		if r := w.results[i]; len(r.Failures) > 0 {
			reasons = append(reasons, r.Failures...)
		} else if m.resume {
			reasons = append(reasons, fmt.Sprintf("%s of %s have not come back", units.FormatSize(r.Left), p))
		} else {
			reasons = append(reasons, fmt.Sprintf("%s of %s are still on the device", units.FormatSize(r.Left), p))
		}
	}
	if len(open) == 0 {
		return nil
	}
	all := strings.Join(open, " ")
	back := "it goes on; to take it back: lgpu resume " + all
	if m.resume {
		back = "it goes on; to take it back: lgpu suspend " + all
	}
	if ctx.Err() != nil {
		return &exit{status: 128 + int(unix.SIGINT), err: fmt.Errorf("%s %s: not waited for", m.verb(), all), hint: back}
	}
	reason := strings.Join(reasons, "; ")
	if reason == "" {
		reason = "the daemon says nothing"
	}
	return &exit{status: statusFailed, err: fmt.Errorf("%s %s: not done after %v: %s", m.verb(), all, m.timeout, reason), hint: back}
}
