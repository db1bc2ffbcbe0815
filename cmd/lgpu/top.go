package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/inspect/top"
)

// leastWidth is the least number of columns that a frame can be asked to fit in: paths and memory are still told apart.
const leastWidth = 40

// mostWidth is the most: a line is kept in memory.
const mostWidth = 1000

func topCommand() *cobra.Command {
	o := top.Options{In: os.Stdin, Out: os.Stdout}
	var once bool
	c := &cobra.Command{
		Use:   "top [options]",
		Short: "Watch devices and logical GPUs",
		Long: `Watch devices and logical GPUs: memory in use, shares of the device's time asked
for and delivered, users, power where it is known, and which lgpus are near a
limit. Groups and devices open and close; keys sort, filter, set limits and end
programs: ? shows them, q ends it. It is made for 60 columns or more. With
--once it prints one frame; with --once --json the same for programs. The JSON
is described at
https://github.com/lgpu/lgpu/blob/main/docs/json.md.

Exit status: 0; 1 if the daemon cannot be reached, or ends.`,
		Example: `  lgpu top
  lgpu top --once --json | jq '.devices[].utilisation'`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.JSON && !once {
				return usage("", "--json: it needs --once")
			}
			if c.Flags().Changed("width") && !once {
				return usage("a view on a terminal has its width", "--width: it needs --once")
			}
			if o.Interval < 100*time.Millisecond {
				return usage("", "--interval %v: the shortest is 100ms", o.Interval)
			}
			if o.Width < leastWidth || o.Width > mostWidth {
				return usage("", "--width %d: it must be %d to %d", o.Width, leastWidth, mostWidth)
			}
			if !once && !isTerminal(os.Stdout) {
				return usage("lgpu top --once prints a single frame", "top: standard output is not a terminal")
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			conn, err := connect(c, toAsk)
			if err != nil {
				return err
			}
			defer conn.Close()
			if once {
				return explain(top.Once(ctx, conn, o))
			}
			o.Write = func(ctx context.Context, path, assignment string) error { return assign(ctx, conn, path, assignment) }
			return explain(top.Run(ctx, conn, o))
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&once, "once", false, "print one frame and end")
	f.BoolVar(&o.JSON, "json", false, "with --once: print JSON")
	f.DurationVar(&o.Interval, "interval", time.Second, "`TIME` between two frames")
	f.IntVar(&o.Width, "width", 80, "with --once: `COLUMNS` to fit in")
	socketFlag(c)
	return c
}

// assign writes FILE=VALUE as typed in the view. The error is a sentence with what to do about it.
func assign(ctx context.Context, conn api.ControlClient, path, assignment string) error {
	files, err := assignments([]string{assignment})
	if err == nil {
		_, err = conn.Write(ctx, &api.WriteRequest{Path: path, Files: files})
		err = explain(err)
	}
	var e *exit
	if errors.As(err, &e) && e.hint != "" {
		return fmt.Errorf("%w; %s", err, e.hint)
	}
	return err
}

// isTerminal reports whether somebody reads f as it is written.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
