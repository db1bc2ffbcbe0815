package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim"
)

// filesHelp is what the commands that write limits say of them.
const filesHelp = `
Limits are files of the tree, which are described at
https://github.com/lgpu/lgpu/blob/main/docs/files.md.
A value without a device is for all devices; a value with one, such as "0 8GiB",
is for that device.

  memory.max     most device memory: 8GiB, or max
  memory.high    device memory above which an event warns
  compute.max    most of the device's time: 25%, or max
  compute.min    reserved part of the device's time
  lgpu           compute units: count=8, list=0-7, max, default
  lgpu.weight    1 to 10000 against others, 100 by default
  lgpu.priority  normal, high (goes before normal), latency (is next)
  host.max       most page-locked host memory

  memory.overcommit  1: memory of its programs may leave its devices; to be set
                     before the first program starts
  memory.suspend     1: it has to, and programs wait; lgpu suspend waits for it
`

func showCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show [--json] PATH [FILE...]",
		Short: "Show the limits and the use of a group or lgpu",
		Long: `Show files of a group or lgpu. Without FILE, show every readable file with its
name; with one FILE, only its contents. If the tree is mounted, these are the
files there.

Exit status: 0; 2 if there is no such group, lgpu or file; 1 if the daemon
cannot be reached.`,
		Example: `  lgpu show /team
  lgpu show /team memory.current
  lgpu show --json /team | jq '.groups[0].devices[].effective'`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			if asJSON && len(args) > 1 {
				return usage("leave the files out", "--json: it shows all of %s", args[0])
			}
			return talk(c, toAsk, func(conn *api.Conn) error {
				if asJSON {
					return showJSON(c, conn, at(conn, args[0]))
				}
				files, err := conn.Read(c.Context(), &api.ReadRequest{Path: at(conn, args[0]), Files: args[1:]})
				if err != nil {
					return explainFiles(c, err, args[1:]...)
				}
				if all := files.GetFiles(); len(args) == 2 && len(all) == 1 {
					return say(c.OutOrStdout(), string(all[0].GetData()))
				}
				return say(c.OutOrStdout(), listing(files.GetFiles()))
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print its limits and what it uses as JSON")
	socketFlag(c)
	return c
}

// showJSON prints what the state has of the group or lgpu at p.
func showJSON(c *cobra.Command, conn *api.Conn, p string) error {
	if _, err := conn.List(c.Context(), &api.ListRequest{Path: p}); err != nil {
		return err // it may not be there
	}
	s, err := conn.Snapshot(c.Context(), &api.SnapshotRequest{})
	if err != nil {
		return err
	}
	doc := state.Of(s)
	doc.Only(p)
	return written(doc.Write(c.OutOrStdout()))
}

// listing writes files below each other, names on the left.
func listing(files []*api.File) string {
	var b strings.Builder
	for _, f := range files {
		name := f.GetName()
		for line := range strings.Lines(string(f.GetData()) + "\n") {
			line = strings.TrimRight(line, "\n")
			if line == "" && name != f.GetName() {
				continue
			}
			if line == "" {
				line = "-"
			}
			fmt.Fprintf(&b, "%-18s %s\n", name, line)
			name = ""
		}
	}
	return b.String()
}

func setCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "set PATH FILE=VALUE...",
		Short: "Change limits of a group or lgpu, even while programs run",
		Long: `Change limits of a group or lgpu: all of them, or none if one is refused. They
take effect at once for running programs: compute.max within two slices,
memory.max at the next allocation.
` + filesHelp + `
Exit status: 0; 2 if a limit is refused (then nothing has changed); 1 if the
daemon cannot be reached or refuses this user.`,
		Example: `  lgpu set /team compute.max=40%
  lgpu set /team/alice memory.max=8GiB compute.max=25% lgpu.weight=300
  lgpu set /team "lgpu=0 count=32" "memory.max=GPU-8f3c 8GiB"`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(2, "PATH", "FILE=VALUE"),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := assignments(args[1:])
			if err != nil {
				return err
			}
			return talk(c, toChange, func(conn *api.Conn) error {
				_, err := conn.Write(c.Context(), &api.WriteRequest{Path: at(conn, args[0]), Files: files})
				return explainFiles(c, err, args[1:]...)
			})
		},
	}
	socketFlag(c)
	return c
}

func createCommand() *cobra.Command {
	var parents, overcommit bool
	var shape string
	c := &cobra.Command{
		Use:   "create [-p] [--overcommit] PATH [FILE=VALUE...]",
		Short: "Create a group, or an lgpu to run programs in",
		Long: `Create a group or lgpu, which stays until it is removed, also when the daemon or
the machine restarts. It becomes an lgpu when a program runs in it (lgpu run
--group GROUP --name NAME), and a group when something is created below it.
` + filesHelp + `
Exit status: 0; 2 if it exists, a limit is refused or there is no such parent
(then nothing has been created); 1 if the daemon cannot be reached or refuses
this user.`,
		Example: `  lgpu create /team memory.max=40GiB compute.max=50%
  lgpu create /team/alice lgpu.weight=200
  lgpu run --group /team --name alice -- python train.py`,
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			request := &api.CreateRequest{}
			var err error
			if request.Files, err = assignments(args[1:]); err != nil {
				return err
			}
			if overcommit {
				request.Files = append(request.Files, &api.File{Name: "memory.overcommit", Data: []byte("1\n")})
			}
			if c.Flags().Changed("sim") {
				s, err := sim.ParseShape(shape)
				if err != nil {
					return usage("a shape is such as 2x16GiB,sms=32", "--sim: %w", err)
				}
				request.Sim = s.String()
			}
			return talk(c, toChange, func(conn *api.Conn) error {
				request.Path = at(conn, args[0])
				if parents {
					if err := makeParents(c, conn, request.GetPath()); err != nil {
						return err
					}
				}
				_, err := conn.Create(c.Context(), request)
				return explainFiles(c, err, args[1:]...)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&parents, "parents", "p", false, "also create missing groups above it")
	f.BoolVar(&overcommit, "overcommit", false, "memory.overcommit=1: memory of its programs may leave its devices")
	registerSim(f, &shape)
	socketFlag(c)
	return c
}

// makeParents makes the groups above the directory at p that do not exist.
func makeParents(c *cobra.Command, conn *api.Conn, p string) error {
	var missing []string
	for parent := path.Dir(p); parent != rootPath; parent = path.Dir(parent) {
		missing = append([]string{parent}, missing...)
	}
	for _, parent := range missing {
		if names.Within(conn.Place, parent) {
			continue // the daemon makes it
		}
		if _, err := conn.List(c.Context(), &api.ListRequest{Path: parent}); err == nil {
			continue
		}
		if _, err := conn.Create(c.Context(), &api.CreateRequest{Path: parent}); err != nil {
			return err
		}
	}
	return nil
}

func rmCommand() *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "rm [-r] PATH...",
		Short: "Remove groups and lgpus in which nothing runs",
		Long: `Remove empty groups, and lgpus without processes. With -r also remove everything
below a group, the lowest first.

Exit status: 0; 2 if there is no such group or lgpu; 1 if it is in use, or the
daemon cannot be reached or refuses this user. After an error, everything that
was removed before it stays removed.`,
		Example:               "  lgpu rm /team/alice /team\n  lgpu rm -r /team",
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			return talk(c, toChange, func(conn *api.Conn) error {
				for _, p := range args {
					full := at(conn, p)
					if full == rootPath {
						return usage("name the groups below it", "rm %s: the root cannot be removed", p)
					}
					if err := remove(c.Context(), conn, full, recursive); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "also remove everything below it")
	socketFlag(c)
	return c
}

// remove removes the directory at p, and if recursive is set those below it before. One below it may have gone by itself
// since it was listed: the lgpu of a program that has ended.
func remove(ctx context.Context, conn *api.Conn, p string, recursive bool) error {
	if recursive {
		list, err := conn.List(ctx, &api.ListRequest{Path: p})
		if err != nil {
			return err
		}
		for _, child := range list.GetChildren() {
			if err := remove(ctx, conn, path.Join(p, child), true); err != nil && !errors.Is(err, syscall.ENOENT) {
				return err
			}
		}
	}
	_, err := conn.Remove(ctx, &api.RemoveRequest{Path: p})
	return err
}

// atLeast refuses fewer arguments than n, of which the first are called what, and empty ones: as a path it would be the
// user's place or the root, and it comes from a variable that is not set.
func atLeast(n int, what ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		hint := c.CommandPath() + " --help has examples"
		if len(args) < n {
			return usage(hint, "%s: %s is missing", c.Name(), what[len(args)])
		}
		for i, arg := range args {
			if arg == "" && i < len(what) {
				return usage(hint+"; the root is /", "%s: %s is empty", c.Name(), what[i])
			} else if arg == "" {
				return usage(hint, "%s: an argument is empty", c.Name())
			}
		}
		return nil
	}
}

// rooted is a path of the tree as typed, from the root: the leading slash may be left out, as lgpu ps does.
func rooted(p string) string { return path.Join(rootPath, p) }

// at is a path of the tree as typed: without a leading slash it is in the user's place, which for administrators is the
// root. A path that begins with the place is from the root, too, as lgpu ps prints it.
func at(conn *api.Conn, p string) string {
	place := conn.Place
	if strings.HasPrefix(p, rootPath) || place == "" || names.Within(rooted(p), place) {
		return rooted(p)
	}
	return path.Join(place, p)
}

// assignments reads FILE=VALUE.
func assignments(args []string) ([]*api.File, error) {
	var files []*api.File
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, usage("such as memory.max=8GiB", "%q is not FILE=VALUE", a)
		}
		var slip *limits.Error
		if errors.As(limits.Typed(name, value), &slip) {
			return nil, usage(slip.Hint(), "%s: %q: %s", name, slip.Token, slip.Reason)
		}
		files = append(files, &api.File{Name: name, Data: []byte(value + "\n")})
	}
	return files, nil
}
