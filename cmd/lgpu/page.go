package main

import (
	"fmt"
	"strings"

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
			// One that were started for it would have no page.
			return talk(c, toFind, func(conn *api.Conn) error {
				reply, err := conn.Page(c.Context(), &api.PageRequest{})
				if err != nil {
					return err
				}
				if len(reply.GetUrls()) == 0 {
					return &exit{status: statusFailed, err: fmt.Errorf("the daemon at %s serves no page", conn.Socket),
						hint: "it is started with a page by: lgpu daemon --page 127.0.0.1:9465"}
				}
				return say(c.OutOrStdout(), strings.Join(reply.GetUrls(), "\n")+"\n")
			})
		},
	}
	socketFlag(c)
	return c
}
