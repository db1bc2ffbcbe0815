package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/conformance"
)

func conformanceCommand() *cobra.Command {
	var o conformance.Options
	var spec conformance.ProbeSpec
	var mode, shape string
	var asJSON, probe bool
	c := &cobra.Command{
		Use:   "conformance [options]",
		Short: "Measure that compute units mean what they promise",
		Long: `Measure on a device that count=N gives a program N of its compute units' worth
of compute-bound throughput, alone and beside others, that the program is told
so, and, where a device grants units by name, that list=… is what the program
sees and that disjoint lists do not disturb each other. Nobody else should use
the device meanwhile.

Each line of the table is a promise: what was asked, what the program got, the
error in points of the whole device, and whether the promise was kept. What a
device does not offer is said with the reason.

Exit status: 0 if all that is promised is kept, 1 if not, 3 if something could
not be measured, 2 if an option is wrong.`,
		Example: `  lgpu conformance
  lgpu conformance --device 1 --mode temporal --json
  lgpu conformance --sim=16GiB,sms=16`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if probe {
				if err := conformance.Probe(spec, c.InOrStdin(), c.OutOrStdout()); err != nil {
					return failed(err)
				}
				return nil
			}
			switch m := conformance.Mode(mode); m {
			case "both":
			case conformance.Temporal, conformance.Spatial:
				o.Modes = []conformance.Mode{m}
			default:
				return usage("modes are temporal, spatial and both", "--mode: there is no mode %q", mode)
			}
			if c.Flags().Changed("sim") {
				o.Arguments = append(o.Arguments, "--sim="+shape)
			}
			var err error
			if o.Program, err = os.Executable(); err != nil {
				return failed(fmt.Errorf("find this program: %w", err))
			}
			o.Socket = namedSocket(c)
			if !asJSON {
				o.Progress = func(what string) { fmt.Fprintln(c.ErrOrStderr(), "lgpu: measuring", what) }
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			report, err := conformance.Run(ctx, o)
			if err != nil {
				return failed(err)
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				err = e.Encode(report)
			} else {
				err = report.Write(c.OutOrStdout())
			}
			if err != nil {
				return failed(errors.Join(errors.New("write the report"), err))
			}
			if status := report.Status(); status != 0 {
				return &exit{status: status}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.Device, "device", "0", "`DEVICE` to measure, by UUID or index")
	f.StringVar(&mode, "mode", "both", "`HOW` units are shared: temporal, spatial or both")
	f.IntSliceVar(&o.Counts, "counts", nil, "`NUMBERS` of units to measure (default: 1/8, 1/4, 1/2 and 3/4 of all)")
	f.Float64Var(&o.Seconds, "seconds", 3, "how `LONG` a measurement lasts")
	f.Float64Var(&o.Tolerance, "tolerance", 1.5, "`POINTS` of the device that a kept promise may be off")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	registerSim(f, &shape)
	socketFlag(c)
	f.BoolVar(&probe, "probe", false, "be the program that is measured")
	f.Uint32Var(&spec.Iterations, "iterations", 0, "work of a chunk, with --probe")
	f.Float64Var(&spec.Lead, "lead", 1, "seconds before the measurement, with --probe")
	for _, internal := range []string{"probe", "iterations", "lead"} {
		f.Lookup(internal).Hidden = true // how a child is started
	}
	c.PreRun = func(*cobra.Command, []string) { spec.Seconds = o.Seconds }
	return c
}
