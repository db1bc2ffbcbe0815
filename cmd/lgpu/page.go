package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
)

func pageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "page",
		Short: "Print the address of the daemon's page, with your token",
		Long: `Print the address of the daemon's page, with the token of this user behind its
#. Whoever has the token may do on the page what this user may. It stays the
same when the daemon is restarted. A browser on this machine needs no token,
except an administrator's: the daemon sees whose it is.

Exit status: 0; 1 if the daemon serves no page (lgpu daemon --page) or cannot be
reached.`,
		Example: `  lgpu page
  xdg-open "$(lgpu page)"`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := connect(c, toAsk)
			if err != nil {
				return err
			}
			defer conn.Close()
			reply, err := conn.Page(c.Context(), &api.PageRequest{})
			if err != nil {
				return explain(err)
			}
			if len(reply.GetUrls()) == 0 {
				return &exit{status: statusFailed, err: fmt.Errorf("the daemon at %s serves no page", conn.Socket),
					hint: "it is started with a page by: lgpu daemon --page 127.0.0.1:9465"}
			}
			for _, url := range reply.GetUrls() {
				if _, err := fmt.Fprintln(c.OutOrStdout(), url); err != nil {
					return failed(fmt.Errorf("write: %w", err))
				}
			}
			return nil
		},
	}
	socketFlag(c)
	return c
}
