package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/inspect/conformance"
	"github.com/lgpu/lgpu/sim"
)

func conformanceCommand() *cobra.Command {
	o := conformance.Options{}
	var mode, shape string
	var asJSON bool
	var probe bool
	var spec conformance.ProbeSpec
	c := &cobra.Command{
		Use:   "conformance [options]",
		Short: "Measure that compute units of a device are what they promise",
		Long: `Measure, from inside real lgpus, three promises: that a program with a number of
compute units sees that number and gets their part of the device's throughput;
that several lgpus at once each get theirs; and, where units have names, that a
program runs on the units of its list and on no others. A table shows what was
asked and what was delivered. The device should have nothing else to do; the
measurement takes a minute or two.

Exit status: 0 if every promise that the device makes is kept, 1 if one is
broken or the measurement could not begin, 2 if an option is wrong, 3 if a
promise could not be measured.`,
		Example: `  lgpu conformance
  lgpu conformance --device 1 --mode temporal --json
  lgpu conformance --sim=1x16GiB,sms=32`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if probe {
				if err := conformance.Probe(spec, os.Stdin, os.Stdout); err != nil {
					return failed(err)
				}
				return nil
			}
			if mode != "" {
				o.Modes = []conformance.Mode{conformance.Mode(mode)}
				if o.Modes[0] != conformance.Temporal && o.Modes[0] != conformance.Spatial {
					return usage("it is temporal or spatial", "--mode %q: there is no such mode", mode)
				}
			}
			if o.Seconds <= 0 || o.Tolerance <= 0 {
				return usage("", "--seconds and --tolerance must be above 0")
			}
			if c.Flags().Changed("sim") {
				s, err := sim.ParseShape(shape)
				if err != nil {
					return usage("a shape is such as 2x16GiB,sms=32", "--sim: %w", err)
				}
				o.Arguments = []string{"--sim=" + s.String()}
			}
			var err error
			if o.Program, err = os.Executable(); err != nil {
				return failed(fmt.Errorf("find this program: %w", err))
			}
			o.Socket = namedSocket(c)
			if !asJSON {
				o.Progress = func(what string) { fmt.Fprintln(c.ErrOrStderr(), "lgpu:", what) }
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			report, err := conformance.Run(ctx, o)
			if errors.Is(err, conformance.ErrRefused) {
				return &exit{status: statusUsage, err: err}
			}
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
				return failed(err)
			}
			if status := report.Status(); status != 0 {
				return &exit{status: status}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.Device, "device", "0", "`DEVICE` to measure: index, UUID or its beginning")
	f.StringVar(&mode, "mode", "", "measure only `MODE`: temporal or spatial")
	f.IntSliceVar(&o.Counts, "counts", nil, "`UNITS` to measure, such as 8,16 (default: 1/8 to 3/4 of the device)")
	f.Float64Var(&o.Seconds, "seconds", 3, "length of each measurement in `SECONDS`")
	f.Float64Var(&o.Tolerance, "tolerance", 1.5, "largest error of a kept promise, in `POINTS` of the whole device")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	registerSim(f, &shape)
	socketFlag(c)
	f.BoolVar(&probe, "probe", false, "run as the program that measures from inside")
	f.Uint32Var(&spec.Iterations, "iterations", 0, "of the probe's work")
	f.IntVar(&spec.Units, "sized", 0, "units of the device that the work is for, with --probe")
	f.Float64Var(&spec.Lead, "lead", 1, "how long the probe works before it is measured, in seconds")
	for _, internal := range []string{"probe", "iterations", "sized", "lead"} {
		f.Lookup(internal).Hidden = true // how the command starts its probes
	}
	c.PreRun = func(*cobra.Command, []string) { spec.Seconds = o.Seconds }
	return c
}
