package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/lgpu/lgpu/api"
)

// frame is what one picture is made of.
type frame struct {
	snapshot  *api.Snapshot
	history   history
	width     int
	order     order
	reverse   bool
	flat      bool         // lgpus by their whole paths, without groups
	processes bool         // processes in place of the tree
	energy    bool         // power and energy before other columns
	open      map[row]bool // what the user has opened or closed; the rest is as opened says
	all       bool         // show the processes of all lgpus
	once      bool         // nobody can open anything
	words     []string     // what is looked for, in lower case; nil is all
	selected  row          // drawn as the cursor; the zero value is none
	paint     paint
	zone      *time.Location
	user      func(uid uint32) string
}

// row names a line that can be selected: a device, a group or lgpu on a device, or a process of a device.
type row struct {
	id     uint64 // of a group or lgpu; 0 for a device, and for a process of no lgpu
	device string
	pid    int32 // 0 but for a process
}

// line is one line of the picture.
type line struct {
	text string
	row  row    // the zero value for lines that cannot be selected
	path string // the group or lgpu that keys are about here; empty for none
	up   row    // what the line is in, the zero value for none
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

// lines draws the frame from the top, without what is above and below the list.
func (f *frame) lines() []line {
	switch {
	case len(f.snapshot.GetDevices()) == 0:
		return []line{{text: ""}, {text: "  no devices; a software GPU comes with: lgpu run --sim -- COMMAND"}}
	case f.processes:
		return f.processLines()
	}
	var lines []line
	c := f.layout()
	for _, d := range f.snapshot.GetDevices() {
		t := f.tree(d)
		if len(f.words) > 0 && len(t.top) == 0 && !f.found(deviceText(d)) {
			continue
		}
		r := row{device: d.GetUuid()}
		open := f.opened(r, f.once || f.usual(r))
		lines = append(lines, f.device(d, len(t.lgpus), open)...)
		if !open {
			continue
		}
		if text := strangers(d); text != "" {
			lines = append(lines, line{text: f.paint.with(notice, strings.TrimRight(fit("     "+text, f.width, false), " "))})
		}
		before := len(lines)
		if f.flat {
			f.sort(t.lgpus, d.GetUuid())
			for _, n := range t.lgpus {
				lines = append(lines, f.directory(n, d, c, clean(n.GetPath()), r, []*api.Directory{n})...)
			}
		} else {
			lines = append(lines, f.branch(t, t.top, d, c, 0, r)...)
		}
		if len(lines) == before && !d.GetPartitioned() {
			lines = append(lines, line{text: f.paint.with(faint, "     no lgpu uses it")})
		}
	}
	if len(lines) == 0 {
		return []line{{text: f.paint.with(faint, "  nothing is as the filter says")}}
	}
	return lines
}

// fewDevices is the number of devices that are all shown with their lgpus at first; of more only one line each.
const fewDevices = 4

// opened reports whether what is in a row is shown: as the user said last, else as usual.
func (f *frame) opened(r row, usual bool) bool {
	if open, said := f.open[r]; said {
		return open
	}
	return usual
}

// shortUUID is as much of a UUID as tells the devices of a machine apart, with GPU-; lgpu run takes it, too.
const shortUUID = 12

// Widths of the line of a device: its name at least, and what is beside it but bars.
const (
	deviceName  = 16
	deviceFacts = 43
)

// device draws the line of a device and, where it is open or out of order, what there is to say of it:
// " ▾ 0 NVIDIA H200     87% BAR  62.1G/141G BAR  351W  64°C   4 lgpus".
func (f *frame) device(d *api.Device, lgpus int, open bool) []line {
	r := row{device: d.GetUuid()}
	mark := "▸ "
	if open {
		mark = "▾ "
	}
	spare := f.width - 1 - deviceFacts - deviceName
	name := deviceName + max(0, min(spare, 12))
	width := max(0, min((spare-12)/2-1, 24))
	busy, text := 0.0, "-"
	if d.Utilisation != nil {
		busy = float64(d.GetUtilisation()) / 100
		text = fmt.Sprintf("%d%%", d.GetUtilisation())
	}
	held := ratio(d.GetMemoryUsed(), d.GetMemoryTotal())
	label := fit(mark+f.marked(r, d.GetOrdinal()+" "+clean(d.GetName())), name, false)
	if r == f.selected && bool(f.paint) {
		label = cursor.Render(label)
	} else {
		label = f.paint.with(bold, label)
	}
	parts := []string{label, right(text, 9)}
	if width > 0 {
		parts = append(parts, f.bar(busy, width, accent))
	}
	parts = append(parts, f.paint.with(fullness(held), right(size(d.GetMemoryUsed())+"/"+size(d.GetMemoryTotal()), 11)))
	if width > 0 {
		parts = append(parts, f.bar(held, width, fullness(held)))
	}
	parts = append(parts, right(watts(d.PowerMw), 5), right(degrees(d.Temperature), 5), right(plural(lgpus, "lgpu"), 8))
	lines := []line{{text: " " + strings.Join(parts, " "), row: r, path: "/"}}
	say := func(style lipgloss.Style, text string) {
		lines = append(lines, line{text: f.paint.with(style, strings.TrimRight(fit("     "+text, f.width, false), " "))})
	}
	if fault := d.GetFault(); fault != "" {
		say(bad, "out of order: "+clean(fault))
	}
	if open {
		say(faint, deviceWords(d))
	}
	return lines
}

// deviceWords are what does not change of a device.
func deviceWords(d *api.Device) string {
	mode := "temporal"
	switch {
	case d.GetPartitioned():
		mode = "in MIG mode"
	case d.GetMode() == api.Device_SPATIAL:
		mode = "spatial"
	case d.GetNoGuests() == "":
		mode += ", guests"
	}
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
	return strings.Join(facts, " · ")
}

// marked is the text of a row, with a mark where the cursor is on it and cannot be told by its colour.
func (f *frame) marked(r row, text string) string {
	if r == f.selected && !bool(f.paint) {
		return ">" + text
	}
	return text
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

// on returns what a directory has of a device, or nil.
func on(n *api.Directory, device string) *api.DeviceUse {
	for _, d := range n.GetDevices() {
		if d.GetUuid() == device {
			return d
		}
	}
	return nil
}

// directory draws one directory of a device by a name, with what lgpus in it have, and the processes of an lgpu if they
// are to be seen.
func (f *frame) directory(n *api.Directory, device *api.Device, c columns, name string, up row, lgpus []*api.Directory) []line {
	d := on(n, device.GetUuid())
	r := row{id: n.GetId(), device: device.GetUuid()}
	limit, most := device.GetMemoryTotal(), "-"
	if e := d.GetEffective(); e != nil && e.MemoryMax != nil && e.GetMemoryMax() < limit {
		limit = e.GetMemoryMax()
		most = size(limit)
	}
	held := ratio(d.GetMemoryUsed(), limit)
	lgpu := n.GetKind() == api.Directory_LGPU
	state, style := "group", faint
	processes := 0
	for _, n := range lgpus {
		processes += len(n.GetClients())
	}
	if lgpu {
		state, style = words(d.GetState())
	}
	name = fit(f.marked(r, name), c.name, f.flat)
	switch {
	case r == f.selected && bool(f.paint):
		name = cursor.Render(name)
	case !lgpu:
		name = f.paint.with(bold, name)
	}
	share := right(percent(d.ShareAsked), 4) + "→" + fit(percent(d.ShareDelivered), 4, false)
	if behind(d) {
		share = f.paint.with(notice, share)
	}
	memory := right(size(d.GetMemoryUsed())+"/"+most, 11)
	if most != "-" {
		memory = f.paint.with(fullness(held), memory)
	}
	cells := []cell{
		{c.name, name}, {c.user, fit(clean(f.owners(lgpus...)), c.user, false)}, {c.processes, right(strconv.Itoa(processes), c.processes)},
		{c.bar, f.memoryBar(d, limit, c.bar)}, {11, memory}, {9, share},
		{c.spark, f.paint.with(accent, spark(f.history[r], d.GetShareAsked(), c.spark))},
		{c.power, right(watts(d.PowerMw), c.power)}, {c.energy, right(joules(d.EnergyMj), c.energy)}, {c.weight, right(weight(d.GetEffective()), c.weight)},
		{c.state, " " + f.paint.with(style, state)},
	}
	lines := []line{{text: join(cells), row: r, path: n.GetPath(), up: up}}
	if lgpu && (f.all || f.opened(r, false)) {
		lines = append(lines, f.clients(n, d, up)...)
	}
	return lines
}

// clients draws the processes of an lgpu on a device.
func (f *frame) clients(n *api.Directory, d *api.DeviceUse, up row) []line {
	var lines []line
	for _, p := range n.GetClients() {
		text := fmt.Sprintf("     %7d %s %s %s", p.GetPid(), fit(clean(f.user(p.GetUid())), 12, false),
			fit(clean(p.GetCommand()), 15, false), right(size(held(n, d, p)), 5))
		lines = append(lines, line{text: f.paint.with(faint, strings.TrimRight(fit(text, f.width, false), " "))})
	}
	if len(n.GetClients()) == 0 {
		lines = append(lines, line{text: f.paint.with(faint, "             no processes")})
	}
	return lines
}

// held is the memory of a device that a process of an lgpu has.
func held(n *api.Directory, d *api.DeviceUse, p *api.Client) uint64 {
	for i, use := range n.GetDevices() {
		if use == d && i < len(p.GetMemory()) {
			return p.GetMemory()[i]
		}
	}
	return 0
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
	case api.State_SUSPENDING:
		return "suspending", notice
	case api.State_SUSPENDED:
		return "suspended", other
	case api.State_RELEASED:
		return "released", other
	case api.State_EVICTED:
		return "evicted", faint
	case api.State_UNFIT:
		return "unfit", bad
	case api.State_NEXT:
		return "next", notice
	case api.State_MOVING:
		return "moving", notice
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

// memoryBar is a bar of the memory of an lgpu or a group with what has left the device in another style.
func (f *frame) memoryBar(d *api.DeviceUse, limit uint64, width int) string {
	held := ratio(d.GetMemoryUsed(), limit)
	if d.GetMemoryEvicted() == 0 || width <= 0 {
		return f.bar(held, width, fullness(held))
	}
	all, _ := bar(held, width)
	off := min(max(1, int(float64(len([]rune(all)))*ratio(d.GetMemoryEvicted(), d.GetMemoryUsed())+.5)), len([]rune(all)))
	on := len([]rune(all)) - off
	return f.paint.with(fullness(held), strings.Repeat("█", on)) + f.paint.with(other, strings.Repeat("▒", off)) +
		f.paint.with(faint, strings.Repeat("░", width-on-off))
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
