package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/checkpoint/driver"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/policy/checkpoint"
	"github.com/lgpu/lgpu/sim/wire"
)

// released is what became of an lgpu whose programs left its devices wholly, or came back. docs/cli.md describes the JSON.
type released struct {
	Path      string          `json:"path"`
	State     string          `json:"state"` // released or resumed
	Processes int             `json:"processes"`
	Phases    []releasedPhase `json:"phases"`
	Seconds   float64         `json:"seconds"`
	Rest      float64         `json:"rest"` // of that, what is no phase's
}

type releasedPhase struct {
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"`
}

// releaseOne has the programs of an lgpu leave its devices wholly, or come back.
func (m *move) releaseOne(ctx context.Context, conn *api.Conn, path string, out io.Writer) (released, error) {
	state := "released"
	if m.resume {
		state = "resumed"
	}
	line := progress.Start(out, m.verb()+" "+path)
	defer line.Done()
	shown := func() {}
	defer func() { shown() }()
	stream, err := conn.Release(ctx, &api.ReleaseRequest{Path: path, Back: m.resume})
	if err != nil {
		return released{}, err
	}
	r := released{Path: path, State: state, Phases: []releasedPhase{}}
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return released{}, err
		}
		shown()
		shown = func() {}
		if p.GetStage() == checkpoint.Evicted.String() && !m.resume {
			shown = m.showEviction(ctx, conn, path, line, out)
		}
		if p.GetStage() != "" {
			line.Set(0, 0, p.GetStage())
			continue
		}
		r.Processes, r.Seconds, r.Phases = int(p.GetProcesses()), seconds(p.GetTotal()), phasesOf(p)
		r.Rest = restOf(r.Seconds, r.Phases)
	}
}

// showEviction shows how much of an lgpu's memory has left its devices, until the function that it returns is called.
func (m *move) showEviction(ctx context.Context, conn *api.Conn, path string, line *progress.Line, out io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		before, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
		if err != nil {
			return // the release says why
		}
		w := &waiter{move: m, begun: time.Now(), before: evicted(before), paths: []string{path}, line: line, out: out}
		_ = w.follow(ctx, conn)
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// phasesOf are the phases that the daemon has timed.
func phasesOf(p *api.ReleaseProgress) []releasedPhase {
	all := []releasedPhase{}
	for _, phase := range p.GetPhases() {
		all = append(all, releasedPhase{phase.GetStage(), seconds(phase.GetTook())})
	}
	return all
}

// restOf is what of some seconds is no phase's.
func restOf(total float64, phases []releasedPhase) float64 {
	for _, p := range phases {
		total -= p.Seconds
	}
	return total
}

func seconds(nanos uint64) float64 { return time.Duration(nanos).Seconds() }

// write is a release for people.
func (r released) write(b *strings.Builder) {
	switch {
	case len(r.Phases) == 0:
		fmt.Fprintf(b, "%s is %s already\n", r.Path, r.State)
	case r.State == "released":
		fmt.Fprintf(b, "suspended %s: the devices are released\n", r.Path)
	default:
		fmt.Fprintf(b, "resumed %s: its programs are on the devices\n", r.Path)
	}
	if len(r.Phases) > 0 {
		phaseRows(b, r.Phases...)
		phaseRows(b, releasedPhase{"total", r.Seconds})
	}
}

// phaseRows writes a line for each phase.
func phaseRows(b *strings.Builder, all ...releasedPhase) {
	for _, p := range all {
		fmt.Fprintf(b, "%13s %9.1f ms\n", p.Phase, 1000*p.Seconds)
	}
}

// expired says whether the time of a call that has failed is over. The daemon is told the time, and may end the call a moment
// before it is over here.
func expired(ctx context.Context) bool {
	const moment = 100 * time.Millisecond
	if until, bounded := ctx.Deadline(); bounded && time.Until(until) < moment {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// releaseAll releases the lgpus at the paths, or brings them back. quiet: something else is said at the end.
func (m *move) releaseAll(c *cobra.Command, conn *api.Conn, paths []string, quiet bool) error {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	results := []released{}
	for _, p := range paths {
		one, cancel := ctx, context.CancelFunc(func() {})
		if m.timeout > 0 {
			one, cancel = context.WithTimeout(ctx, m.timeout)
		}
		r, err := m.releaseOne(one, conn, p, c.ErrOrStderr())
		late := err != nil && expired(one)
		cancel()
		switch {
		case ctx.Err() != nil:
			return &exit{status: statusFailed, err: fmt.Errorf("%s %s: broken off; what was begun is turned back", m.verb(), p)}
		case late:
			return &exit{status: statusFailed, err: fmt.Errorf("%s %s: not within %v; what was begun is turned back", m.verb(), p, m.timeout)}
		case err != nil:
			return explainFiles(c, err)
		}
		results = append(results, r)
	}
	if quiet {
		return nil
	}
	if m.json {
		return sayJSON(c.OutOrStdout(), struct {
			Version int        `json:"version"`
			Results []released `json:"results"`
		}{1, results})
	}
	var b strings.Builder
	for _, r := range results {
		r.write(&b)
	}
	return say(c.OutOrStdout(), b.String())
}

// checkpointHelper is how the daemon starts the process that calls the checkpoint API of the driver.
func checkpointHelper(sim string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "daemon", "checkpoint-helper")
	cmd.Env, cmd.Stderr = os.Environ(), os.Stderr
	if sim != "" {
		libs, err := assets.Install()
		if err != nil {
			return nil, err
		}
		cmd.Args = append(cmd.Args, filepath.Join(libs.SimDir, "libcuda.so.1"))
		cmd.Env = append(cmd.Env, wire.Environment+"="+sim)
	}
	return cmd, nil
}

// helperCommand is that process.
func helperCommand() *cobra.Command {
	return &cobra.Command{
		Use: "checkpoint-helper [LIBRARY]", Hidden: true, Args: cobra.MaximumNArgs(1),
		Short: "Call the checkpoint API of the driver for the daemon",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return driver.Serve(args[0], false, os.Stdin, os.Stdout)
			}
			return driver.Serve("libcuda.so.1", true, os.Stdin, os.Stdout)
		},
	}
}
