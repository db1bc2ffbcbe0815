package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/progress"
)

func migrateCommand() *cobra.Command {
	var m migrating
	c := &cobra.Command{
		Use:   "migrate --device DEVICE[,...] [--timeout TIME] [--json] PATH...",
		Short: "Move logical GPUs, and the programs in them, to another device",
		Long: `Move each lgpu with its limits, and all programs in it, to another device of the
same kind, while they run. They leave their device wholly, as by
lgpu suspend --release, and come back on the other one; they notice nothing but
the pause. An lgpu of several devices needs as many others: the first that is
named takes the place of its first. Some of its own may be among them.

Those of an lgpu move all or none. What fails, takes too long, or is stopped by
Ctrl-C is turned back, and they go on where they were. If there is no room on
the other device, or less is allowed there, nothing has changed. Programs that
had been released stay so, and lgpu resume brings them back on the other device.

Exit status: 0; 2 if there is no such lgpu, or it cannot be on these devices; 1
if it was turned back, or the daemon cannot be reached or refuses this user.`,
		Example: `  lgpu migrate --device 1 /team/alice
  lgpu migrate --device GPU-8c9b2f41 --timeout 10s train evaluate`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case m.timeout < 0:
				return usage("0 waits for ever", "--timeout %v: it is below 0", m.timeout)
			case len(m.devices) == 0:
				return usage("lgpu devices lists those there are", "--device is missing: where should it go?")
			}
			return talk(c, toCommand, func(conn *api.Conn) error { return m.all(c, conn, args) })
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringSliceVar(&m.devices, "device", nil, "move to this `DEVICE`: its index, its UUID, or the beginning of that")
	f.DurationVar(&m.timeout, "timeout", 10*time.Minute, "turn it back after this `TIME`; 0 is never")
	f.BoolVar(&m.json, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// migrating is one lgpu migrate.
type migrating struct {
	devices []string
	timeout time.Duration
	json    bool
}

// migrated is what became of it. docs/cli.md describes the JSON.
type migrated struct {
	Path      string          `json:"path"`
	State     string          `json:"state"` // migrated, or released where its programs had been
	Devices   []string        `json:"devices"`
	Processes int             `json:"processes"`
	Away      []releasedPhase `json:"away"`
	Back      []releasedPhase `json:"back"`
	Seconds   float64         `json:"seconds"`
	Rest      float64         `json:"rest"` // of that, what is no phase's
}

func (m *migrating) all(c *cobra.Command, conn *api.Conn, args []string) error {
	results := []migrated{}
	for _, a := range args {
		r, err := m.run(c, conn, at(conn, a))
		if err != nil {
			return err
		}
		results = append(results, r)
		if m.json {
			continue
		}
		var b strings.Builder
		r.write(&b)
		if err := say(c.OutOrStdout(), b.String()); err != nil {
			return err
		}
	}
	if !m.json {
		return nil
	}
	return sayJSON(c.OutOrStdout(), struct {
		Version int        `json:"version"`
		Results []migrated `json:"results"`
	}{1, results})
}

// run moves one.
func (m *migrating) run(c *cobra.Command, conn *api.Conn, path string) (r migrated, err error) {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if m.timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, m.timeout)
	}
	defer cancel()
	line := progress.Start(c.ErrOrStderr(), "migrate "+path)
	last, err := m.follow(bounded, conn, path, line)
	line.Done()
	switch {
	case err != nil && ctx.Err() != nil:
		return r, failed(fmt.Errorf("migrate %s: broken off; what was begun is turned back", path))
	case err != nil && expired(bounded):
		return r, failed(fmt.Errorf("migrate %s: not within %v; what was begun is turned back", path, m.timeout))
	case err != nil:
		return r, explainFiles(c, err)
	}
	r = migrated{Path: path, State: "migrated", Processes: int(last.GetAway().GetProcesses()), Seconds: seconds(last.GetTotal()),
		Away: phasesOf(last.GetAway()), Back: phasesOf(last.GetBack())}
	if len(r.Back) == 0 {
		r.State = "released"
	}
	r.Rest = restOf(r.Seconds, slices.Concat(r.Away, r.Back))
	r.Devices, err = devicesAt(c.Context(), conn, path)
	return r, err
}

// follow has it done, and returns the last that the daemon says.
func (m *migrating) follow(ctx context.Context, conn *api.Conn, path string, line *progress.Line) (last *api.MigrateProgress, err error) {
	stream, err := conn.Migrate(ctx, &api.MigrateRequest{Path: path, Devices: m.devices})
	for err == nil {
		var p *api.MigrateProgress
		if p, err = stream.Recv(); err != nil {
			break
		}
		last = p
		switch away, back := p.GetAway().GetStage(), p.GetBack().GetStage(); {
		case back != "":
			line.Set(0, 0, "back: "+back)
		case away != "":
			line.Set(0, 0, "away: "+away)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return last, err
}

// devicesAt are the UUIDs of the devices that an lgpu has.
func devicesAt(ctx context.Context, conn *api.Conn, path string) ([]string, error) {
	s, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return nil, explain(err)
	}
	all := []string{}
	for _, n := range s.GetDirectories() {
		if n.GetPath() == path {
			for _, d := range n.GetDevices() {
				all = append(all, d.GetUuid())
			}
		}
	}
	return all, nil
}

// write is a migration for people: each phase, on the way away and on the way back.
func (r migrated) write(b *strings.Builder) {
	var devices []string
	for _, d := range r.Devices {
		devices = append(devices, shorten(d, deviceWidth))
	}
	fmt.Fprintf(b, "%s is on %s", r.Path, strings.Join(devices, ", "))
	if r.State == "released" {
		fmt.Fprint(b, "; its programs stay released, and lgpu resume brings them back there")
	}
	fmt.Fprintln(b)
	if len(r.Away)+len(r.Back) == 0 {
		return
	}
	fmt.Fprintf(b, "%13s %12s %12s\n", "", "away", "back")
	for i, p := range r.Away {
		back := ""
		if at := len(r.Away) - 1 - i; at < len(r.Back) && r.Back[at].Phase == p.Phase {
			back = fmt.Sprintf("%9.1f ms", 1000*r.Back[at].Seconds)
		}
		fmt.Fprintln(b, strings.TrimRight(fmt.Sprintf("%13s %9.1f ms %s", p.Phase, 1000*p.Seconds, back), " "))
	}
	phaseTable(b, nil, r.Seconds, r.Rest)
}
