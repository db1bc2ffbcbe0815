package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/users"
)

func chownCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "chown USER[:GROUP] PATH...",
		Short: "Give a group or lgpu to a user, who may do all below it",
		Long: `Give groups or lgpus to a user, and to a group of users if one is named. The
owner may create, run, change and stop everything below; the limits of the
directory itself stay with the owner of what is above it. The same is
chown in the mounted tree.

An administrator may give everything to everybody. Others may take back what
is below a directory of theirs (chown ME PATH), and give it to a group that
they are in (chown :GROUP PATH), or to none (chown :0 PATH).

Exit status: 0; 2 if there is no such user, group or path; 1 if the daemon
cannot be reached or refuses this user.`,
		Example: `  lgpu create /team memory.max=40GiB compute.max=50%
  lgpu chown alice /team
  lgpu chown :research /team/shared`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(2, "USER", "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := ownerOf(args[0])
			if err != nil {
				return err
			}
			return talk(c, toChange, func(conn *api.Conn) error {
				for _, p := range args[1:] {
					request.Path = at(conn, p)
					if _, err := conn.Chown(c.Context(), request); err != nil {
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

// ownerOf reads USER[:GROUP], names or numbers. What is left out stays as it is.
func ownerOf(text string) (*api.ChownRequest, error) {
	name, group, grouped := strings.Cut(text, ":")
	request := &api.ChownRequest{}
	if name == "" && !grouped || grouped && group == "" {
		return nil, usage("such as alice, alice:staff or :staff", "chown: %q is not USER[:GROUP]", text)
	}
	if name != "" {
		uid, err := users.ID(name)
		if err != nil {
			return nil, usage("", "chown: user %q: %w", name, err)
		}
		request.Uid = &uid
	}
	if grouped {
		gid, err := users.GroupID(group)
		if err != nil {
			return nil, usage("", "chown: group %q: %w", group, err)
		}
		request.Gid = &gid
	}
	return request, nil
}
