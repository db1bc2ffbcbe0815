package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/progress"
)

// statusLook is the time between two looks whether a daemon answers: nothing tells of a socket in a folder that may not exist
// yet.
const statusLook = 20 * time.Millisecond

func daemonStatusCommand() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "status [--wait TIME]",
		Short: "Say whether a daemon answers, or wait for one",
		Long: `Say which daemon answers the commands of this user: its process, its socket,
its version and since when it has run. None is started. With --wait, wait until
one answers, for so long at most. lgpu ps does not tell: without a daemon there
is nothing to show, and that is no error.

Exit status: 0 if a daemon answers, 1 if none does.`,
		Example: `  lgpu daemon status
  lgpu daemon & lgpu daemon status --wait 10s && lgpu ps`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := awaitDaemon(c, wait)
			if err != nil {
				return err
			}
			defer conn.Close()
			d := conn.Daemon
			return say(c.OutOrStdout(), fmt.Sprintf("process %d at %s, version %s, since %s\n", d.GetPid(), conn.Socket, d.GetVersion(),
				d.GetStarted().AsTime().Local().Format(time.DateTime)))
		},
	}
	c.Flags().DurationVar(&wait, "wait", 0, "wait for a daemon for `TIME`, such as 10s")
	socketFlag(c)
	return c
}

// awaitDaemon returns a connection to a daemon that runs within a while.
func awaitDaemon(c *cobra.Command, wait time.Duration) (*api.Conn, error) {
	line := progress.Start(c.ErrOrStderr(), "waiting for a daemon")
	defer line.Done()
	for end := time.Now().Add(wait); ; {
		conn, err := connect(c, toFind)
		var e *exit
		if err == nil || !errors.As(err, &e) || !errors.Is(e.err, api.ErrNoDaemon) || !time.Now().Before(end) {
			return conn, err
		}
		select {
		case <-c.Context().Done():
			return nil, failed(c.Context().Err())
		case <-time.After(statusLook):
		}
	}
}
