package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/internal/users"
)

func psCommand() *cobra.Command {
	var p ps
	c := &cobra.Command{
		Use:   "ps [--tree] [--wide] [--json]",
		Short: "Show the logical GPUs of this machine and what they use",
		Long: `Show each logical GPU: memory in use and memory.max, the share of the device's
time over the last second and compute.max, and the processes. With --tree also
show groups, each with the use of all lgpus below it; with --wide also the power
and energy of each, and where memory may leave its device, how much has. In the
place of a share of time, released means that its programs have left the
device, suspended that its memory has, suspending that it is about to, evicted
that others have its room, next that it comes ahead of its turn, moving that its
turn has come and it comes, and unfit that it cannot come back: lgpu events says
which budget would do. A dash means "not limited" or "not measured": if an lgpu
has the device to itself and no compute.max, only the driver knows how busy it
is, and not on every machine.

No daemon is started if there is nothing to show: without one the table is
empty. lgpu daemon status says whether one answers. On a terminal the table fits
in its width, but at least in 80 columns; users are shown from 90 columns on. In
a pipe they are always shown, and nothing is cut. The JSON is described at
https://github.com/lgpu/lgpu/blob/main/docs/json.md.

Exit status: 0, also without a daemon; 1 if the one at --socket, or one that
runs, cannot be reached.`,
		Example: `  lgpu ps
  lgpu ps --tree
  lgpu ps --json | jq '.lgpus[].devices[]."memory.current"'`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(c *cobra.Command, _ []string) error { return p.show(c, c.OutOrStdout()) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&p.tree, "tree", false, "show groups, and lgpus below them")
	f.BoolVar(&p.wide, "wide", false, "show power and energy too, in more than 80 columns")
	f.BoolVar(&p.json, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// ps is one lgpu ps.
type ps struct {
	tree, wide, json bool
}

func (p ps) show(c *cobra.Command, out io.Writer) error {
	conn, err := connect(c, toLook)
	if err != nil {
		return err
	}
	s := &api.Snapshot{Time: timestamppb.Now()}
	if conn != nil {
		defer conn.Close()
		if s, err = conn.Snapshot(c.Context(), &api.SnapshotRequest{}); err != nil {
			return explain(err)
		}
	}
	if p.json {
		return written(state.Of(s).Write(out))
	}
	fits := 0
	if f, file := out.(*os.File); file && isTerminal(f) {
		fits = max(width, columnsOf(f))
	}
	return say(out, table(s, p.tree, p.wide, fits))
}

// width is what the table fits in at least, on a terminal.
const width = 80

// Columns of the table that are as wide as what is in them, and their widths at least.
const (
	nameWidth   = 18
	deviceWidth = 12
	userWidth   = 8
	shareWidth  = 7                     // of the share of time
	powerWidth  = 21                    // of power and energy together, with the spaces before them
	taken       = 67                    // by all columns but power, energy, users and pids
	withUsers   = width + userWidth + 2 // a terminal of this width has room for users

	residenceWidth = 20 // of memory on and off the device together, with the spaces before them
)

// columnsOf is the width of a terminal, 0 where it does not say.
func columnsOf(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// row is a line of the table.
type row struct {
	name, device string
	figures      []string // memory and memory.max, share of the time and compute.max
	residence    []string // memory on the device and off it
	power        []string // power and energy
	pids, users  string
}

// table is the state for people: one line for each device of each lgpu. With a width it fits in that, as far as names,
// devices, users and pids can be cut, but not in less than width, and with more columns in as much more as they take; with
// 0 nothing is cut.
func table(s *api.Snapshot, tree, wide bool, fits int) string {
	rows := []row{{"LGPU", "DEVICE", []string{"MEMORY", "MAX", "COMPUTE", "MAX"}, []string{"RESIDENT", "EVICTED"},
		[]string{"POWER", "ENERGY"}, "PIDS", "USER"}}
	empty := true
	short := fits != 0
	c := columnsFor(s, wide)
	rest := fits // what the other columns leave to the pids
	if short {
		rest = max(rest-c.more(), width) - (c.share - shareWidth)
	}
	showUsers := !short || rest >= withUsers
	rest -= taken
	if showUsers {
		rest -= userWidth + 1
	}
	for _, n := range s.GetDirectories() {
		name := strings.TrimPrefix(n.GetPath(), rootPath)
		switch {
		case tree:
			name = indented(n)
		case n.GetKind() != api.Directory_LGPU:
			continue
		}
		empty = empty && n.GetPath() == rootPath
		pids, owners := pidList(n.GetClients(), rest), userList(n)
		if short {
			name, owners = shorten(name, nameWidth), shorten(owners, userWidth)
		}
		if len(n.GetDevices()) == 0 {
			none := []string{"-", "-", "-", "-"}
			rows = append(rows, row{name, "-", none, none, none, pids, owners})
		}
		for _, d := range n.GetDevices() {
			device := shorten(d.GetUuid(), deviceWidth) // the beginning of a UUID is as good as all of it
			rows = append(rows, row{name, device, figures(d), residenceOf(d), powerOf(d), pids, owners})
			if short { // a script finds the name on each line
				name, pids, owners = "", "", ""
			}
		}
	}
	if empty {
		return "no logical GPUs; to start one: lgpu run --memory 8GiB --compute 25 -- COMMAND\n"
	}
	text := lined(rows, c, showUsers)
	if short { // a script has it in the JSON
		text += turns(s)
	}
	return text
}

// psColumns are the columns that not every table has, and the width of the share of time, which may be a state.
type psColumns struct {
	share             int
	residence, powers bool
}

// columnsFor are the columns for a snapshot.
func columnsFor(s *api.Snapshot, wide bool) psColumns {
	c := psColumns{share: shareWidth, powers: wide}
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			c.residence = c.residence || wide && d.MemoryResident != nil
			c.share = max(c.share, len(absence(d)))
		}
	}
	return c
}

// more is how much wider the table is with all its columns.
func (c psColumns) more() (width int) {
	if c.powers {
		width += powerWidth
	}
	if c.residence {
		width += residenceWidth
	}
	return width
}

// lined writes rows as lines, with some columns, and that of users or without.
func lined(rows []row, c psColumns, showUsers bool) string {
	wide, wideUsers := nameWidth, userWidth
	for _, r := range rows {
		wide, wideUsers = max(wide, utf8.RuneCountInString(r.name)), max(wideUsers, utf8.RuneCountInString(r.users))
	}
	var b strings.Builder
	for _, r := range rows {
		line := fmt.Sprintf("%-*s %-*s %9s %9s %*s %5s", wide, r.name, deviceWidth, r.device, r.figures[0], r.figures[1],
			c.share, r.figures[2], r.figures[3])
		if c.residence {
			line += fmt.Sprintf(" %9s %9s", r.residence[0], r.residence[1])
		}
		if c.powers {
			line += fmt.Sprintf(" %9s %10s", r.power[0], r.power[1])
		}
		line += "  "
		if showUsers {
			line += fmt.Sprintf("%-*s ", wideUsers, r.users)
		}
		b.WriteString(strings.TrimRight(line+r.pids, " ") + "\n")
	}
	return b.String()
}

// userList are the users whose programs are in an lgpu, or keep it, by name; a dash for none.
func userList(n *api.Directory) string {
	var names []string
	add := func(uid uint32) {
		if name := users.Name(uid); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, c := range n.GetClients() {
		add(c.GetUid())
	}
	for _, l := range n.GetLaunchers() {
		add(l.GetUid())
	}
	if len(names) == 0 {
		return "-"
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// turns says why lgpus take turns on devices that several of them use, where they do.
func turns(s *api.Snapshot) string {
	users := map[string]int{}
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			if n.GetKind() == api.Directory_LGPU {
				users[d.GetUuid()]++
			}
		}
	}
	var b strings.Builder
	for _, d := range s.GetDevices() {
		if why := d.GetNoGuests(); why != "" && users[d.GetUuid()] > 1 {
			fmt.Fprintf(&b, "\nOn %s lgpus take turns: %s.\n", shorten(d.GetUuid(), deviceWidth), why)
		}
	}
	return b.String()
}

// figures are the columns of a device: memory and memory.max, share of the time and compute.max.
func figures(d *api.DeviceUse) []string {
	memoryMax, share, computeMax := "-", "-", "-"
	if m := d.GetEffective().MemoryMax; m != nil {
		memoryMax = units.FormatSize(*m)
	}
	if d.ShareDelivered != nil {
		share = fmt.Sprintf("%.1f%%", float64(*d.ShareDelivered)/100)
	}
	if state := absence(d); state != "" {
		share = state
	}
	if most := d.GetEffective().GetComputeMax(); most < units.Whole {
		computeMax = units.FormatPercent(most) + "%"
	}
	return []string{units.FormatSize(d.GetMemoryUsed()), memoryMax, share, computeMax}
}

// absence is the state of what has its memory elsewhere, or about to be, or to come; empty for all else.
func absence(d *api.DeviceUse) string {
	switch s := d.GetState(); s {
	case api.State_SUSPENDED, api.State_RELEASED, api.State_SUSPENDING, api.State_EVICTED, api.State_NEXT, api.State_MOVING,
		api.State_UNFIT:
		return strings.ToLower(s.String())
	}
	return ""
}

// residenceOf are the columns of a device with --wide where memory may leave a device: what is on it, and what is not.
func residenceOf(d *api.DeviceUse) []string {
	if d.MemoryResident == nil {
		return []string{"-", "-"}
	}
	return []string{units.FormatSize(d.GetMemoryResident()), units.FormatSize(d.GetMemoryEvicted())}
}

// powerOf are the columns of a device with --wide: power and energy.
func powerOf(d *api.DeviceUse) []string {
	if d.EnergyMj == nil {
		return []string{"-", "-"}
	}
	return []string{fmt.Sprintf("%.1f W", float64(d.GetPowerMw())/1000), formatEnergy(float64(d.GetEnergyMj()) / 1000)}
}

// indented is a directory's name behind a space for each group that it is in; a group's ends with a slash.
func indented(n *api.Directory) string {
	if n.GetPath() == rootPath {
		return rootPath
	}
	name := strings.Repeat(" ", strings.Count(n.GetPath(), "/")) + path.Base(n.GetPath())
	if n.GetKind() == api.Directory_GROUP {
		name += "/"
	}
	return name
}

// shorten cuts text to a number of characters.
func shorten(text string, most int) string {
	letters := []rune(text)
	if len(letters) <= most {
		return text
	}
	if strings.HasPrefix(text, "GPU-") || strings.HasPrefix(text, "MIG-") {
		return string(letters[:most]) // the beginning of a UUID is as good as all of it
	}
	return string(letters[:most-1]) + "…"
}

// pidList writes the pids, or where there is a room only as many as fit in it and how many more there are.
func pidList(clients []*api.Client, room int) string {
	text := ""
	for i, c := range clients {
		next := strconv.Itoa(int(c.GetPid()))
		if i > 0 {
			next = text + "," + next
		}
		more := ""
		if left := len(clients) - i - 1; left > 0 {
			more = fmt.Sprintf(",+%d", left)
		}
		if i > 0 && room > 0 && len(next)+len(more) > room {
			return fmt.Sprintf("%s,+%d", text, len(clients)-i)
		}
		text = next
	}
	return text
}
