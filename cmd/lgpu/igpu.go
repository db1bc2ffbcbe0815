package main

import (
	"cmp"
	"fmt"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/sim/igpu"
	"github.com/lgpu/lgpu/sim/igpu/device"
	"github.com/lgpu/lgpu/sim/igpu/figure"
)

func igpuCommand() *cobra.Command {
	var r igpuRun
	o := &r.config
	c := &cobra.Command{
		Use:   "igpu [options]",
		Short: "Simulate an integrated GPU that guests share by gScale",
		Long: `Simulate an integrated GPU that virtual machines share by its registers: as
gVirt does, with a part of the translation table for each, or as gScale does,
with private tables, slots, prediction and a slot-aware order. The guests
execute real commands and check each result, and after every step a checker
looks at what must be true. Time is virtual, and the same seed gives the same
run. It prints a table and writes a chart. What it shows:
https://github.com/lgpu/lgpu/blob/main/docs/gscale.md.

Exit status: 0; 2 if an option makes no sense; 1 if a result is wrong, the
checker found something untrue, or a file that was named cannot be written.`,
		Example: `  lgpu sim igpu --guests 3 --policy gvirt
  lgpu sim igpu --guests 15 --slots 4 --subslots 32 --predict --aware
  lgpu sim igpu --figures /tmp/figures`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.IntVar(&o.Guests, "guests", 15, "`NUMBER` of guests that want to run")
	f.StringVar((*string)(&o.Policy), "policy", string(igpu.GScale), "how they share: `POLICY` is gvirt or gscale")
	f.IntVar(&o.Slots, "slots", 4, "`NUMBER` of slots of high graphics memory, one of them the host's")
	f.IntVar(&o.SubSlots, "subslots", 0, "`NUMBER` of sub-slots with an owner each; 0: the slots themselves")
	f.BoolVar(&o.Predict, "predict", false, "copy the entries of the likely next guest ahead")
	f.BoolVar(&o.Aware, "aware", false, "order turns by slots")
	f.BoolVar(&o.Spread, "spread", true, "place the low memory of guests apart too, where there is room; "+
		"--spread=false is gScale as it was published")
	f.IntVar(&o.Depth, "votes", 0, "how many last successors vote on the next guest: `NUMBER`; 0: 8")
	f.StringVar((*string)(&o.Mix), "mix", string(igpu.Linux), "`MIX` of guests: linux, windows, mixed, linux2d, linux3d or sizes")
	f.StringVar((*string)(&o.Load), "load", string(igpu.Busy), "when they draw: `LOAD` is busy, churn or random")
	f.IntVar(&o.Hostile, "hostile", 0, "`NUMBER` of the guests that do what they must not")
	f.DurationVar(&o.Time, "time", 10*time.Second, "virtual `TIME` to simulate")
	f.Uint64Var(&o.Seed, "seed", 1, "`SEED` of all that is random")
	f.StringVar(&r.chart, "chart", "", "write the chart (SVG) to `FILE`, or none: no chart; "+
		"by default it is igpu-POLICY-GUESTS.svg here, or none with --json")
	f.StringVar(&r.figures, "figures", "", "instead write all figures of the documentation to `FOLDER`")
	f.BoolVar(&r.json, "json", false, "print JSON")
	return c
}

// igpuRun is one lgpu sim igpu.
type igpuRun struct {
	config         igpu.Config
	chart, figures string
	json           bool
}

func (r *igpuRun) run(c *cobra.Command) error {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	line := progress.Start(c.ErrOrStderr(), "simulating")
	defer line.Done()
	if r.figures != "" {
		tables, err := figure.Write(ctx, r.figures, r.config.Seed, line.Set)
		line.Done()
		if err != nil {
			return r.ended(ctx.Err(), err)
		}
		return say(c.OutOrStdout(), tables)
	}
	if err := r.config.Check(); err != nil {
		return usage("lgpu sim igpu --help lists the options", "sim igpu: %w", err)
	}
	r.config.Progress = func(part float64) {
		line.Measure(part, fmt.Sprintf("%.0f %% of %v", 100*part, r.config.Time), "simulating")
	}
	report, err := igpu.Run(ctx, r.config)
	line.Done()
	if err != nil {
		return r.ended(ctx.Err(), err)
	}
	if r.json {
		err = sayJSON(c.OutOrStdout(), struct {
			Version int `json:"version"`
			*igpu.Report
		}{1, report})
	} else {
		err = say(c.OutOrStdout(), r.table(report))
	}
	return cmp.Or(err, r.draw(c, report))
}

// noChart is the FILE that is none.
const noChart = "none"

// draw writes the chart and says where it is. Where it was not named, a run is none the worse for not having one.
func (r *igpuRun) draw(c *cobra.Command, report *igpu.Report) error {
	path := r.chart
	if path == noChart || path == "" && r.json {
		return nil
	}
	if path == "" {
		path = fmt.Sprintf("igpu-%s-%d.svg", report.Policy, report.Admitted)
	}
	err := figure.Guests(report).Save(path)
	switch {
	case err == nil && r.json:
		return nil
	case err == nil:
		return say(c.OutOrStdout(), "chart: "+path+"\n")
	case r.chart == "":
		fmt.Fprintf(c.ErrOrStderr(), "lgpu: warning: there is no chart: %v; --chart FILE writes it elsewhere\n", err)
		return nil
	}
	return failed(fmt.Errorf("write the chart: %w", err))
}

// ended is a run that did not come to its end: interrupted, or by an error.
func (r *igpuRun) ended(interrupted, err error) error {
	if interrupted != nil {
		return &exit{status: 128 + int(unix.SIGINT)}
	}
	return failed(fmt.Errorf("sim igpu: %w", err))
}

// table is a report for people.
func (r *igpuRun) table(p *igpu.Report) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GUEST\tKIND\tFRAMES\tGPU\tFAULTS")
	for _, g := range p.Guests {
		fmt.Fprintf(t, "%d\t%s\t%d\t%.1f %%\t%d\n", g.ID, g.Kind, g.Frames, percent(g.Busy, p.Time), g.Faults)
	}
	t.Flush()
	fmt.Fprintf(&b, "\n%s: %d of %d guests admitted, %v simulated, %d steps checked\n", p.Policy, p.Admitted, p.Asked,
		p.Time.Round(time.Millisecond), p.Steps)
	if p.Refusal != "" {
		fmt.Fprintf(&b, "the next was refused: %s\n", p.Refusal)
	}
	fmt.Fprintf(&b, "the GPU worked for guests %.1f %% of the time, and waited for switches %.1f %%\n", percent(p.Busy, p.Time), percent(p.Exposed, p.Time))
	if p.Policy == igpu.GScale {
		copied := time.Duration(p.PerSwitch() * float64(device.AccessTime))
		fmt.Fprintf(&b, "%d switches, %.0f entries copied in each: %v, %.1f %% of a slice\n", p.Switches, p.PerSwitch(),
			copied.Round(time.Microsecond), percent(copied, igpu.Slice))
		fmt.Fprintf(&b, "%d of %d switches between guests of the same slot\n", p.Table.Forced, p.Table.Neighbours)
	}
	if p.Table.Guesses > 0 {
		fmt.Fprintf(&b, "%d of %d guesses right (%.1f %%), %d entries copied ahead, %d of them for nothing\n", p.Table.Hits, p.Table.Guesses,
			100*p.HitRate(), p.Table.Ahead, p.Table.Wasted)
	}
	return b.String()
}

func percent(part, of time.Duration) float64 { return 100 * float64(part) / float64(of) }
