package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/inspect/conformance"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/sim"
)

// conformanceRun is one lgpu conformance.
type conformanceRun struct {
	options     conformance.Options
	mode, shape string
	asJSON      bool
	probe       bool                  // be the program that measures
	spec        conformance.ProbeSpec // what it does
}

func conformanceCommand() *cobra.Command {
	var r conformanceRun
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
		RunE:                  func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	r.register(c)
	return c
}

// register adds the options.
func (r *conformanceRun) register(c *cobra.Command) {
	o, spec := &r.options, &r.spec
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.Device, "device", "0", "`DEVICE` to measure: index, UUID or its beginning")
	f.StringVar(&r.mode, "mode", "", "measure only `MODE`: temporal or spatial")
	f.IntSliceVar(&o.Counts, "counts", nil, "`UNITS` to measure, such as 8,16 (default: 1/8 to 3/4 of the device)")
	f.Float64Var(&o.Seconds, "seconds", 3, "length of each measurement in `SECONDS`")
	f.Float64Var(&o.Tolerance, "tolerance", 1.5, "largest error of a kept promise, in `POINTS` of the whole device")
	f.BoolVar(&r.asJSON, "json", false, "print JSON")
	registerSim(f, &r.shape)
	socketFlag(c)
	f.BoolVar(&r.probe, "probe", false, "run as the program that measures from inside")
	f.Uint32Var(&spec.Iterations, "iterations", 0, "of the probe's work")
	f.IntVar(&spec.Units, "sized", 0, "units of the device that the work is for, with --probe")
	f.Float64Var(&spec.Lead, "lead", 1, "how long the probe works before it is measured, in seconds")
	for _, internal := range []string{"probe", "iterations", "sized", "lead"} {
		f.Lookup(internal).Hidden = true // how the command starts its probes
	}
	c.PreRun = func(*cobra.Command, []string) { spec.Seconds = o.Seconds }
}

// run measures, or is the program that does so inside an lgpu.
func (r *conformanceRun) run(c *cobra.Command) error {
	if r.probe {
		if err := conformance.Probe(r.spec, os.Stdin, os.Stdout); err != nil {
			return failed(err)
		}
		return nil
	}
	if err := r.check(c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	line := progress.Start(c.ErrOrStderr(), "measuring")
	r.options.Progress = func(step, steps int, what string) {
		line.Set(step, steps, what)
		if line == nil && !r.asJSON {
			fmt.Fprintf(c.ErrOrStderr(), "lgpu: %d of %d: %s\n", step, steps, what)
		}
	}
	report, err := conformance.Run(ctx, r.options)
	line.Done()
	if errors.Is(err, conformance.ErrRefused) {
		return &exit{status: statusUsage, err: err}
	}
	if err != nil {
		return failed(err)
	}
	if r.asJSON {
		err = sayJSON(c.OutOrStdout(), report)
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
}

// check completes the options, or says what is wrong with them.
func (r *conformanceRun) check(c *cobra.Command) error {
	o := &r.options
	if r.mode != "" {
		o.Modes = []conformance.Mode{conformance.Mode(r.mode)}
		if o.Modes[0] != conformance.Temporal && o.Modes[0] != conformance.Spatial {
			return usage("it is temporal or spatial", "--mode %q: there is no such mode", r.mode)
		}
	}
	if o.Seconds <= 0 || o.Tolerance <= 0 {
		return usage("", "--seconds and --tolerance must be above 0")
	}
	if c.Flags().Changed("sim") {
		s, err := sim.ParseShape(r.shape)
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
	return nil
}
