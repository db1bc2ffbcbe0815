package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon/conf"
	"github.com/lgpu/lgpu/inspect/doctor"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [--json] [PROGRAM...]",
		Short: "Say what works on this machine, and what to do about what does not",
		Long: `Check what lgpu needs and can use: driver and devices, the software GPU, the
daemon, mounting the tree, cgroups, MPS, containment, CRIU. For each PROGRAM,
say whether it can be limited. Nothing is changed, and no daemon is started.

Exit status: 0 if no check failed, 1 otherwise. Warnings do not count.`,
		Example: `  lgpu doctor
  lgpu doctor python ./train`,
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return failed(fmt.Errorf("find this program: %w", err))
			}
			said, _ := conf.Read(conf.Path) // a daemon that cannot read it does not start
			report := doctor.Examine(doctor.Look(c.Context(), doctor.Options{
				Version: version(), SimCommand: []string{self, "sim"}, Programs: args,
				Contain: tryContain, Dmem: said.Dmem,
				Daemon: func(ctx context.Context) (doctor.Daemon, error) { return askDaemon(ctx, c) },
			}))
			if asJSON {
				err = report.JSON(c.OutOrStdout())
			} else {
				color := isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == ""
				err = report.Print(c.OutOrStdout(), doctor.Style{Width: width, Color: color})
			}
			if err != nil {
				return failed(err)
			}
			if !report.OK() {
				return &exit{status: statusFailed}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// askDaemon finds out who the daemon is, if one runs.
func askDaemon(ctx context.Context, c *cobra.Command) (doctor.Daemon, error) {
	conn, err := api.Dial(ctx, api.Options{Socket: namedSocket(c)})
	if errors.Is(err, api.ErrNoDaemon) {
		return doctor.Daemon{}, fs.ErrNotExist
	}
	if err != nil {
		return doctor.Daemon{}, err
	}
	defer conn.Close()
	d := doctor.Daemon{Socket: conn.Socket, Version: conn.Daemon.GetVersion(), PID: int(conn.Daemon.GetPid()),
		Budget: conn.Daemon.GetHostBudget(), Copies: conn.Daemon.GetHostCopies()}
	s, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return d, err
	}
	for _, device := range s.GetDevices() {
		d.Shared = append(d.Shared, doctor.Shared{Device: shorten(device.GetUuid(), deviceWidth), Turns: device.GetNoGuests()})
	}
	return d, nil
}
