package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// registerSim adds the --sim option of lgpu run.
func registerSim(f *pflag.FlagSet, shape *string) {
	f.StringVar(shape, "sim", "", "use a software GPU; `SHAPE` is such as 2x16GiB,sms=32 (see lgpu sim --help)")
	f.Lookup("sim").NoOptDefVal = sim.DefaultShape.String()
}

// isShape reports whether a word looks like the shape of a software GPU.
func isShape(word string) bool {
	_, err := sim.ParseShape(word)
	return err == nil && word != ""
}

func simCommand() *cobra.Command {
	var h hardware
	c := &cobra.Command{
		Use:   "sim [options]",
		Short: "Run a software GPU until interrupted",
		Long: `Run the hardware of a software GPU until interrupted. A program uses it with
lgpu run and a --sim of the same shape. Without it, lgpu run starts a software
GPU by itself, which ends after the last program.

A SHAPE is [COUNTx]MEMORY, then any of these, with commas between them:
  sms=N             compute units of each device (32)
  clock=MHZ         clock of a compute unit (1)
  slice=DURATION    how long a context runs while others wait (2ms)
  switch=DURATION   what preempting a context for another costs (0)
  slices=WORD       whether a context's own slice can be set: set, refuse
                    (an error) or ignore (no error, no effect) (set)
  link=SIZE/s       bandwidth between host and device, each way (4GB/s)
  context=SIZE      device memory that a context takes (64MiB)
  mig=N+N+…         MIG instances of each device: 1g, 2g, 3g, 4g or 7g, which is
                    how many of seven parts of the units each has (none)`,
		Example:               "  lgpu sim --gpus 2 --memory 16GiB --sms 32 &\n  lgpu run --sim=2x16GiB,sms=32 -- ./program",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(*cobra.Command, []string) error { return h.serve() },
	}
	f := c.Flags()
	f.SortFlags = false
	f.IntVar(&h.gpus, "gpus", sim.DefaultShape.Devices, "`NUMBER` of devices")
	f.StringVar(&h.memory, "memory", fmt.Sprintf("%dGiB", sim.DefaultShape.Memory>>30), "`SIZE` of each device's memory")
	f.IntVar(&h.sms, "sms", sim.DefaultShape.Units, "`NUMBER` of compute units of each device")
	f.Float64Var(&h.clock, "clock", sim.DefaultShape.MHz, "clock of the units in `MHZ`")
	f.StringVar(&h.log, "log", "warn", "what to log: `LEVEL` is debug, info, warn or error")
	f.StringVar(&h.inherit, "inherit", "", "listen on descriptor 3, which has this path")
	f.StringVar(&h.shape, "shape", "", "shape, with --inherit")
	f.DurationVar(&h.idle, "idle", 0, "end after so long without programs, with --inherit")
	for _, internal := range []string{"inherit", "shape", "idle"} {
		f.Lookup(internal).Hidden = true // how lgpu run starts the process
	}
	c.AddCommand(igpuCommand())
	return c
}

// oomScore says how soon the kernel ends this process where memory runs out; below zero it is spared.
const oomScore = "/proc/self/oom_score_adj"

// hardware is one lgpu sim.
type hardware struct {
	gpus, sms      int
	clock          float64
	memory, log    string
	inherit, shape string
	idle           time.Duration
}

func (h *hardware) serve() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(h.log)); err != nil {
		return usage("levels are debug, info, warn and error", "--log %q: %w", h.log, err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if h.inherit != "" {
		// systemd's daemon is spared where memory runs out. What holds the memory of programs is not.
		if text, err := os.ReadFile(oomScore); err == nil && strings.HasPrefix(string(text), "-") {
			if err := os.WriteFile(oomScore, []byte("0"), 0); err != nil {
				log.Warn("the kernel spares this process where memory runs out", "error", err)
			}
		}
		if err := sim.Inherited(ctx, h.inherit, h.shape, h.idle, log); err != nil {
			return failed(err)
		}
		return nil
	}
	shape, err := sim.ParseShape(fmt.Sprintf("%dx%s,sms=%d,clock=%g", h.gpus, h.memory, h.sms, h.clock))
	if err != nil {
		return usage("lgpu sim --help lists the options", "sim: %w", err)
	}
	dir, err := rundir.Dir()
	if err != nil {
		return failed(err)
	}
	socket := sim.SocketPath(dir, shape)
	other, err := wire.Dial(socket, 5*time.Second)
	if err == nil {
		other.Close()
		return usage("", "sim: a software GPU %s is already running", shape)
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return failed(err)
	}
	listener, err := sim.Listen(socket)
	if err != nil {
		return failed(err)
	}
	fmt.Printf("software GPU %s at %s\n", shape, filepath.Clean(socket))
	if err := sim.Serve(ctx, listener, shape, sim.ServeOptions{Log: log}); err != nil {
		return failed(err)
	}
	return nil
}
