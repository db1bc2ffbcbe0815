package main

import (
	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
)

func stopCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "stop PATH...",
		Short: "End the programs in a group or lgpu",
		Long: `End the programs of an lgpu, or of all lgpus below a group: each process that
uses a device, and each launcher, such as lgpu run, gets SIGTERM, and SIGKILL
if it has not ended after 5 s. The command does not wait for them. It writes 1
into the file procs.kill.

Exit status: 0; 2 if there is no such group or lgpu; 1 if the daemon cannot be
reached or refuses this user.`,
		Example: `  lgpu stop /team/alice
  lgpu stop / # everything`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			return talk(c, toCommand, func(conn *api.Conn) error {
				kill := []*api.File{{Name: "procs.kill", Data: []byte("1\n")}}
				for _, p := range args {
					if _, err := conn.Write(c.Context(), &api.WriteRequest{Path: at(conn, p), Files: kill}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	socketFlag(c)
	return c
}
