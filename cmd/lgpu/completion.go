package main

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/inspect/conformance"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/igpu"
)

// Completion asks the daemon that runs, and starts none: a shell waits for the answer at each press of Tab.
const completionTime = 500 * time.Millisecond

// completer says how a word may end, given the words before it; see cobra.CompletionFunc. Each candidate may have a
// description behind a tab.
type completer = cobra.CompletionFunc

// Completions of options whose values have the same meaning in every command that has them.
var flagCompleters = map[string]completer{
	"device":   completeDevices,
	"group":    completeGroups,
	"name":     completeNames,
	"gang":     completeGangs,
	"priority": words("normal", "high\tgoes before normal", "latency\tgets the device next"),
	"sim":      words(sim.DefaultShape.String()),
	"socket":   cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"dir":      cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
	"store":    cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"guests":   words(guestsAuto, guestsOff),
	"kind":     completeKinds,
	"user":     completeUsers,
	"contain":  words(containOn, containAuto, containOff),
	"config":   cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"police":   words(string(daemon.PoliceReport), string(daemon.PoliceStop), string(daemon.PoliceStopStrangers)),
	"mount":    words(string(daemon.MountAuto), string(daemon.MountOn), string(daemon.MountOff)),
	"log":      words("debug", "info", "warn", "error"),
	"mode":     words(string(conformance.Temporal), string(conformance.Spatial)),
	"policy":   words(string(igpu.GVirt), string(igpu.GScale)),
	"mix": words(string(igpu.Linux), string(igpu.Windows), string(igpu.MixedBoth), string(igpu.Linux2D), string(igpu.Linux3D),
		string(igpu.Sizes)),
	"load":    words(string(igpu.Busy), string(igpu.Churn), string(igpu.Random)),
	"key":     cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"chart":   cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"figures": cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
}

// argumentCompleters are those of the commands that take arguments, by the command without "lgpu".
var argumentCompleters = map[string]completer{
	"run":           cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"show":          completeShow,
	"set":           completeSet,
	"create":        completeCreate,
	"rm":            completePaths,
	"chown":         completeChown,
	"stop":          completePaths,
	"suspend":       completePaths,
	"resume":        completePaths,
	"checkpoint":    once(completePaths),
	"events":        once(completePaths),
	"energy":        once(completePaths),
	"doctor":        cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	"man":           once(cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)),
	"image ls":      once(cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)),
	"image gc":      once(cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)),
	"image verify":  completeImages,
	"image diff":    completeImages,
	"shmem install": once(cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)),
}

// complete gives all commands below c their completions. An option or argument of which nothing is known completes to
// nothing rather than to files.
func complete(c *cobra.Command) {
	if how := argumentCompleters[strings.TrimPrefix(c.CommandPath(), "lgpu ")]; how != nil {
		c.ValidArgsFunction = how
	} else if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		how := flagCompleters[f.Name]
		if how == nil || c.Name() == "daemon" && f.Name == "group" || // that one is a group of users
			c.Name() == "igpu" && f.Name == "guests" { // and that a number
			how = cobra.NoFileCompletions
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, how) // it fails for options that are not there, and twice
	})
	for _, below := range c.Commands() {
		complete(below)
	}
}

// words completes to some of these.
func words(all ...string) completer {
	return cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)
}

// once completes the first argument alone.
func once(how completer) completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return how(c, args, typed)
	}
}

// withDaemon calls a function with a connection to the daemon that runs, if one does and answers in time.
func withDaemon(c *cobra.Command, f func(context.Context, *api.Conn)) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	conn, err := api.Dial(ctx, api.Options{Socket: namedSocket(c)})
	if err != nil {
		return
	}
	defer conn.Close()
	f(ctx, conn)
}

// snapshot is the daemon's state, an empty one where there is none.
func snapshot(c *cobra.Command) (s *api.Snapshot) {
	withDaemon(c, func(ctx context.Context, conn *api.Conn) {
		if got, err := conn.Snapshot(ctx, &api.SnapshotRequest{}); err == nil {
			s = got
		}
	})
	return s
}

// completeDevices completes the last of some devices with commas between them.
func completeDevices(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	return deviceWords(snapshot(c).GetDevices(), before), cobra.ShellCompDirectiveNoFileComp
}

// completeKinds completes the last of some kinds of events with commas between them.
func completeKinds(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var all []string
	for _, kind := range daemon.Kinds() {
		if !slices.Contains(strings.Split(before, ","), string(kind)) {
			all = append(all, before+string(kind))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// completeUsers completes to the users of this machine.
func completeUsers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return users.List(), cobra.ShellCompDirectiveNoFileComp
}

// completeChown completes a user, and then groups and lgpus.
func completeChown(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completeUsers(c, args, typed)
	}
	return completePaths(c, args[1:], typed)
}

// deviceWords are the names of the devices that are not in a list already, behind that list.
func deviceWords(devices []*api.Device, list string) []string {
	had := strings.Split(list, ",")
	var all []string
	for _, d := range devices {
		if slices.Contains(had, d.GetUuid()) {
			continue
		}
		all = append(all, list+d.GetUuid()+"\t"+d.GetName())
	}
	return all
}

// completePaths completes to groups and lgpus that are not among the arguments.
func completePaths(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return pathWords(snapshot(c).GetDirectories(), typed, args, false), cobra.ShellCompDirectiveNoFileComp
}

// completeGroups completes to groups.
func completeGroups(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return pathWords(snapshot(c).GetDirectories(), typed, nil, true), cobra.ShellCompDirectiveNoFileComp
}

// completeCreate completes the group that something is to be created in.
func completeCreate(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return fileWords(limitFiles(), args[1:], typed)
	}
	var groups []string
	for _, p := range pathWords(snapshot(c).GetDirectories(), typed, nil, true) {
		name, _, _ := strings.Cut(p, "\t")
		groups = append(groups, strings.TrimSuffix(name, "/")+"/")
	}
	return groups, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// pathWords are the paths of directories but those of except, with a slash in front unless the user leaves it out.
func pathWords(all []*api.Directory, typed string, except []string, groups bool) []string {
	skip := map[string]bool{}
	for _, p := range except {
		skip[rooted(p)] = true
	}
	var found []string
	for _, d := range all {
		if skip[d.GetPath()] || groups && d.GetKind() != api.Directory_GROUP {
			continue
		}
		word, kind := d.GetPath(), "lgpu"
		if d.GetKind() == api.Directory_GROUP {
			kind = "group"
		}
		if typed != "" && !strings.HasPrefix(typed, rootPath) {
			word = strings.TrimPrefix(word, rootPath)
		}
		if word != "" {
			found = append(found, word+"\t"+kind)
		}
	}
	return found
}

// completeNames completes to lgpus of the group that is named before.
func completeNames(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	group := rootPath
	if f := c.Flags().Lookup("group"); f != nil {
		group = rooted(f.Value.String())
	}
	var names []string
	for _, d := range snapshot(c).GetDirectories() {
		if d.GetPath() != rootPath && path.Dir(d.GetPath()) == group {
			names = append(names, path.Base(d.GetPath()))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeGangs completes to the gangs that there are.
func completeGangs(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var gangs []string
	for _, d := range snapshot(c).GetDirectories() {
		if g := d.GetGang(); g != "" && !slices.Contains(gangs, g) {
			gangs = append(gangs, g)
		}
	}
	return gangs, cobra.ShellCompDirectiveNoFileComp
}

// completeShow completes a path, and then files of it.
func completeShow(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completePaths(c, nil, typed)
	}
	var names []string
	for _, f := range listed(c, args[0]) {
		if !slices.Contains(args[1:], f.GetName()) {
			names = append(names, f.GetName())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSet completes a path, and then files of it that can be written, and the values that are words.
func completeSet(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return completePaths(c, nil, typed)
	}
	var names []string
	for _, f := range listed(c, args[0]) {
		if f.GetWritable() {
			names = append(names, f.GetName())
		}
	}
	return fileWords(names, args[1:], typed)
}

// listed are the files of the directory at p.
func listed(c *cobra.Command, p string) (files []*api.File) {
	withDaemon(c, func(ctx context.Context, conn *api.Conn) {
		if list, err := conn.List(ctx, &api.ListRequest{Path: rooted(p)}); err == nil {
			files = list.GetFiles()
		}
	})
	return files
}

// limitFiles are the files that a new directory can have.
func limitFiles() []string {
	var names []string
	for _, f := range limits.Files() {
		if f.Writable && !f.Root {
			names = append(names, f.Name)
		}
	}
	return names
}

// fileWords completes FILE=VALUE: the file, or a value that is a word.
func fileWords(names, had []string, typed string) ([]string, cobra.ShellCompDirective) {
	file, _, valued := strings.Cut(typed, "=")
	if valued {
		var all []string
		switch file {
		case "lgpu.priority":
			all = []string{file + "=normal", file + "=high", file + "=latency"}
		case "memory.overcommit":
			all = []string{file + "=1\tits memory may leave its devices", file + "=0"}
		case suspendFile:
			all = []string{file + "=1\tits memory has to leave its devices", file + "=0"}
		case "memory.max", "memory.high", "compute.max", "host.max":
			all = []string{file + "=max\tno limit"}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, name := range names {
		if !slices.ContainsFunc(had, func(a string) bool { return strings.HasPrefix(a, name+"=") }) {
			all = append(all, name+"=")
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
