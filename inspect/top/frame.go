package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lgpu/lgpu/api"
)

// order is what lgpus are sorted by.
type order int

const (
	byPath order = iota
	byShare
	byMemory
	byState
	orders // their number
)

func (o order) String() string { return [...]string{"path", "share", "memory", "state"}[o] }

// frame is what one picture is made of.
type frame struct {
	snapshot *api.Snapshot
	history  history
	width    int
	order    order
	reverse  bool
	groups   bool         // show groups as well
	expanded map[row]bool // show the processes of these
	all      bool         // show all processes
	selected row          // drawn as the cursor; the zero value is none
	paint    paint
	zone     *time.Location
}

// row names a line that can be selected: an lgpu or group on a device.
type row struct {
	id     uint64
	device string
}

// line is one line of the picture.
type line struct {
	text string
	row  row // the zero value for lines that cannot be selected
}

// paint colours text, or does not.
type paint bool

var (
	plain  = lipgloss.NewStyle()
	bold   = plain.Bold(true)
	faint  = plain.Faint(true)
	good   = plain.Foreground(lipgloss.Green)
	notice = plain.Foreground(lipgloss.Yellow)
	bad    = plain.Foreground(lipgloss.Red)
	accent = plain.Foreground(lipgloss.Cyan)
	other  = plain.Foreground(lipgloss.Magenta)
	cursor = plain.Reverse(true)
)

func (p paint) with(s lipgloss.Style, text string) string {
	if !p || text == "" {
		return text
	}
	return s.Render(text)
}

// columns are the widths that depend on the terminal's.
type columns struct{ path, bar, spark int }

// Widths at 80 columns; fixed is what all other columns take.
const (
	minPath, minBar, minSpark = 17, 7, 8
	fixed                     = 48
)

// layout gives what there is beyond 80 columns to paths first, then to bars and sparklines. Without history there is
// nothing for the latter to show.
func layout(width int, sparks bool) columns {
	c := columns{minPath, minBar, minSpark}
	spare := width - (fixed + minPath + minBar + minSpark)
	if !sparks {
		c.spark, spare = 0, spare+minSpark
	}
	if spare < 0 {
		c.spark = max(0, c.spark+spare)
		return c
	}
	c.path += min(spare/2, 23)
	spare -= c.path - minPath
	if !sparks {
		c.bar += min(spare, 33)
		return c
	}
	c.bar += min(spare/3, 21)
	c.spark += min(spare-(c.bar-minBar), longest-minSpark)
	return c
}

// lines draws the frame from the top, without what is above and below the list.
func (f *frame) lines() []line {
	var lines []line
	if len(f.snapshot.GetDevices()) == 0 {
		return []line{{text: ""}, {text: "  no devices; a software GPU comes with: lgpu run --sim -- COMMAND"}}
	}
	c := layout(f.width, f.history != nil)
	for i, d := range f.snapshot.GetDevices() {
		if i > 0 {
			lines = append(lines, line{})
		}
		lines = append(lines, f.device(d)...)
		nodes := f.directories(d.GetUuid())
		if len(nodes) == 0 {
			lines = append(lines, line{text: f.paint.with(faint, "   no lgpu uses it")})
			continue
		}
		lines = append(lines, line{text: f.paint.with(faint, heading(c))})
		for _, n := range nodes {
			lines = append(lines, f.directory(n, d, c)...)
		}
	}
	return lines
}

// shortUUID is as much of a UUID as tells the devices of a machine apart, with GPU-; lgpu run takes it, too.
const shortUUID = 12

// device draws what is above a device's lgpus.
func (f *frame) device(d *api.Device) []line {
	mode := "temporal"
	if d.GetMode() == api.Device_SPATIAL {
		mode = "spatial"
	} else if d.GetNoGuests() == "" {
		mode += ", guests"
	}
	title := clean(d.GetName())
	key := clean(d.GetKey())
	if len(key) > shortUUID && strings.Contains(key, "-") {
		key = key[:shortUUID]
	}
	facts := []string{key, mode}
	if d.GetUnits() > 0 {
		facts = append(facts, fmt.Sprintf("%d units", d.GetUnits()))
	}
	if d.GetSim() != "" {
		facts = append(facts, "software GPU "+clean(d.GetSim()))
	}
	name := fmt.Sprintf("%2d %s", d.GetIndex(), title)
	rest := "  " + strings.Join(facts, " · ")
	room := f.width - ansi.StringWidth(name)
	lines := []line{{text: f.paint.with(bold, fit(name, min(f.width, ansi.StringWidth(name)), false)) +
		f.paint.with(faint, strings.TrimRight(fit(rest, max(0, room), false), " "))}}
	if fault := d.GetFault(); fault != "" {
		text := fit("   out of order: "+clean(fault), f.width, false)
		lines = append(lines, line{text: f.paint.with(bad, strings.TrimRight(text, " "))})
	}
	// Two bars share the line: "   time BAR 100%  memory BAR 62.1G/141G"
	width := max(6, (f.width-37)/2)
	busy, text := 0.0, "   -"
	if d.Utilisation != nil {
		busy = float64(d.GetUtilisation()) / 100
		text = fmt.Sprintf("%3d%%", d.GetUtilisation())
	}
	held := ratio(d.GetMemoryUsed(), d.GetMemoryTotal())
	lines = append(lines, line{text: "   time " + f.bar(busy, width, accent) + " " + text + "  memory " +
		f.bar(held, width, fullness(held)) + " " + size(d.GetMemoryUsed()) + "/" + size(d.GetMemoryTotal())})
	if text := strangers(d); text != "" {
		lines = append(lines, line{text: f.paint.with(notice, strings.TrimRight(fit("   "+text, f.width, false), " "))})
	}
	return lines
}

// strangers says in words who uses a device without an lgpu.
func strangers(d *api.Device) string {
	var names []string
	var held uint64
	for _, p := range d.GetProcesses() {
		if p.GetPath() == "" {
			names = append(names, fmt.Sprintf("%s (%d)", clean(p.GetCommand()), p.GetPid()))
			held += p.GetMemory()
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("without an lgpu: %s holding %s: %s", plural(len(names), "process"), size(held),
		strings.Join(names, ", "))
}

// directories returns the directories to show of a device, in their order.
func (f *frame) directories(device string) []*api.Directory {
	var directories []*api.Directory
	for _, n := range f.snapshot.GetDirectories() {
		if on(n, device) != nil && (n.GetKind() == api.Directory_LGPU || f.groups) {
			directories = append(directories, n)
		}
	}
	slices.SortStableFunc(directories, func(a, b *api.Directory) int {
		x, y := on(a, device), on(b, device)
		c := 0
		switch f.order {
		case byShare:
			c = -cmp.Compare(delivered(x), delivered(y))
		case byMemory:
			c = -cmp.Compare(x.GetMemoryUsed(), y.GetMemoryUsed())
		case byState:
			c = -cmp.Compare(x.GetState(), y.GetState())
		}
		if c == 0 {
			c = cmp.Compare(a.GetPath(), b.GetPath())
		}
		if f.reverse {
			return -c
		}
		return c
	})
	return directories
}

// on returns what a directory has of a device, or nil.
func on(n *api.Directory, device string) *api.DeviceUse {
	for _, d := range n.GetDevices() {
		if d.GetUuid() == device {
			return d
		}
	}
	return nil
}

func heading(c columns) string {
	return " " + fit("LGPU", c.path, false) + " " + right("PR", 3) + " " + fit("MEMORY", c.bar, false) + " " +
		right("USED/MAX", 11) + " " + right("ASKED→GOT", 9) + " " + fit("LATELY", c.spark, false) + " " +
		right("WEIGHT", 7) + "  " + "STATE"
}

// directory draws one directory of a device, and its processes if they are to be seen.
func (f *frame) directory(n *api.Directory, device *api.Device, c columns) []line {
	d := on(n, device.GetUuid())
	r := row{n.GetId(), device.GetUuid()}
	limit, text := device.GetMemoryTotal(), "-"
	if e := d.GetEffective(); e != nil && e.MemoryMax != nil && e.GetMemoryMax() < limit {
		limit = e.GetMemoryMax()
		text = size(limit)
	}
	held := ratio(d.GetMemoryUsed(), limit)
	processes := ""
	if n.GetKind() == api.Directory_LGPU {
		processes = strconv.Itoa(len(n.GetClients()))
	}
	path := fit(clean(n.GetPath()), c.path, true)
	switch {
	case r == f.selected && bool(f.paint):
		path = cursor.Render(path)
	case r == f.selected:
		path = fit(">"+clean(n.GetPath()), c.path, true)
	case n.GetKind() == api.Directory_GROUP:
		path = f.paint.with(faint, path)
	}
	share := right(percent(d.ShareAsked), 4) + "→" + fit(percent(d.ShareDelivered), 4, false)
	if behind(d) {
		share = f.paint.with(notice, share)
	}
	state, style := words(d.GetState())
	if n.GetKind() == api.Directory_GROUP {
		state, style = "group", faint
	}
	text = " " + path + " " + right(processes, 3) + " " + f.bar(held, c.bar, fullness(held)) + " " +
		right(size(d.GetMemoryUsed())+"/"+text, 11) + " " + share + " " +
		f.paint.with(accent, spark(f.history[r], d.GetShareAsked(), c.spark)) + " " +
		right(weight(d.GetEffective()), 7) + "  " + f.paint.with(style, state)
	lines := []line{{text: text, row: r}}
	if n.GetKind() != api.Directory_LGPU || !f.all && !f.expanded[r] {
		return lines
	}
	index := slices.Index(n.GetDevices(), d)
	for _, p := range n.GetClients() {
		held := uint64(0)
		if index < len(p.GetMemory()) {
			held = p.GetMemory()[index]
		}
		text := fmt.Sprintf("   %7d %s %s  user %d", p.GetPid(), fit(clean(p.GetCommand()), 15, false), right(size(held), 5),
			p.GetUid())
		lines = append(lines, line{text: f.paint.with(faint, strings.TrimRight(fit(text, f.width, false), " "))})
	}
	if len(n.GetClients()) == 0 {
		lines = append(lines, line{text: f.paint.with(faint, "           no processes")})
	}
	return lines
}

// behind reports whether an lgpu that wants its device has clearly less of it than it is entitled to.
func behind(d *api.DeviceUse) bool {
	return (d.GetState() == api.State_WAITING || d.GetState() == api.State_RUNNING) &&
		d.ShareDelivered != nil && d.GetShareDelivered()+300 < d.GetShareAsked()
}

// unmeasured stands for a share that is not known, in a history and in the order of rows.
const unmeasured = -1

// delivered is what a directory got over the last second, in hundredths of a percent, or unmeasured.
func delivered(d *api.DeviceUse) int {
	if d.ShareDelivered == nil {
		return unmeasured
	}
	return int(*d.ShareDelivered)
}

func words(s api.State) (string, lipgloss.Style) {
	switch s {
	case api.State_RUNNING:
		return "running", good
	case api.State_WAITING:
		return "waiting", notice
	case api.State_DRAINING:
		return "draining", other
	}
	return "idle", faint
}

// weight is the weight with the priority, where that is not the usual one.
func weight(e *api.Effective) string {
	mark := ""
	switch e.GetLgpuPriority() {
	case api.Priority_HIGH:
		mark = "H"
	case api.Priority_LATENCY:
		mark = "L"
	}
	return strconv.FormatUint(uint64(e.GetLgpuWeight()), 10) + mark
}

func (f *frame) bar(part float64, width int, style lipgloss.Style) string {
	filled, rest := bar(part, width)
	return f.paint.with(style, filled) + f.paint.with(faint, rest)
}

func fullness(part float64) lipgloss.Style {
	switch {
	case part >= .97:
		return bad
	case part >= .85:
		return notice
	}
	return good
}

// title is the line above all devices.
func (f *frame) title(paused bool, trouble string) string {
	s := f.snapshot
	lgpus, processes := 0, 0
	for _, n := range s.GetDirectories() {
		if n.GetKind() == api.Directory_LGPU {
			lgpus++
			processes += len(n.GetClients())
		}
	}
	left := fmt.Sprintf(" lgpu %s  %s, %s, %s", clean(s.GetDaemon().GetVersion()), plural(len(s.GetDevices()), "device"),
		plural(lgpus, "lgpu"), plural(processes, "process"))
	end := s.GetTime().AsTime().In(f.zone).Format("15:04:05") + " "
	if paused {
		end = "paused " + end
	}
	if trouble != "" {
		left = " " + clean(trouble)
	}
	left = fit(left, f.width-len(end)-1, false)
	if trouble != "" {
		return f.paint.with(bad, left+" "+end)
	}
	return f.paint.with(bold, left) + " " + end
}

// history is what each row had at the newest frames, oldest first.
type history map[row][]int

// longest is the widest that a sparkline gets.
const longest = 60

// add takes the shares of a snapshot and forgets rows that are gone.
func (h history) add(s *api.Snapshot) {
	seen := make(map[row]bool, len(h))
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			r := row{n.GetId(), d.GetUuid()}
			seen[r] = true
			h[r] = append(h[r], delivered(d))
			if extra := len(h[r]) - longest; extra > 0 {
				h[r] = append(h[r][:0], h[r][extra:]...)
			}
		}
	}
	for r := range h {
		if !seen[r] {
			delete(h, r)
		}
	}
}

func ratio(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func plural(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return strconv.Itoa(n) + " " + thing + "es"
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
