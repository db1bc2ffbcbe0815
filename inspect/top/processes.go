package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/api"
)

// process is one that uses a device.
type process struct {
	row     row
	ordinal string // of the device
	place   int    // of the device, among those there are
	user    string
	command string
	memory  uint64
	share   int    // what its lgpu got of the device, or unmeasured
	path    string // of its lgpu; empty for a stranger
}

// processHeading is above the list of processes.
const processHeading = "     PID USER     COMMAND         MEMORY DEV LGPU"

// processLines draws the processes of all devices that are as the filter says.
func (f *frame) processLines() []line {
	var lines []line
	for _, p := range f.allProcesses() {
		name := p.path
		if name == "" {
			name = "without an lgpu"
		}
		text := fmt.Sprintf("%s %s %s %s %s %s", right(f.marked(p.row, strconv.Itoa(int(p.row.pid))), 8),
			fit(clean(p.user), 8, false), fit(clean(p.command), 15, false), right(size(p.memory), 6), right(p.ordinal, 3),
			fit(clean(name), max(1, f.width-45), true))
		text = strings.TrimRight(text, " ")
		switch {
		case p.row == f.selected && bool(f.paint):
			text = cursor.Render(text)
		case p.path == "":
			text = f.paint.with(notice, text)
		}
		lines = append(lines, line{text: text, row: p.row, path: p.path})
	}
	if len(lines) == 0 {
		return []line{{text: f.paint.with(faint, "  no process")}}
	}
	return lines
}

// allProcesses are those of all devices, sorted.
func (f *frame) allProcesses() []process {
	var all []process
	for i, d := range f.snapshot.GetDevices() {
		all = append(all, f.processesOf(i, d)...)
	}
	slices.SortStableFunc(all, func(a, b process) int {
		c := 0
		switch f.order {
		case byName:
			c = cmp.Compare(a.path, b.path)
		case byShare:
			c = -cmp.Compare(a.share, b.share)
		case byUser:
			c = cmp.Compare(a.user, b.user)
		}
		c = cmp.Or(c, -cmp.Compare(a.memory, b.memory), cmp.Compare(a.row.pid, b.row.pid), cmp.Compare(a.place, b.place))
		if f.reverse {
			return -c
		}
		return c
	})
	return all
}

// processesOf are the clients of lgpus on a device, which has a place among all, and strangers.
func (f *frame) processesOf(place int, device *api.Device) []process {
	var all []process
	ground := deviceText(device)
	add := func(p process, pid int32) {
		p.row.device, p.row.pid, p.ordinal, p.place = device.GetUuid(), pid, device.GetOrdinal(), place
		if f.found(strings.ToLower(fmt.Sprintf("%s\n%s\n%s %d", p.path, p.user, p.command, pid)) + ground) {
			all = append(all, p)
		}
	}
	for _, n := range f.snapshot.GetDirectories() {
		d := on(n, device.GetUuid())
		if d == nil || n.GetKind() != api.Directory_LGPU {
			continue
		}
		for _, p := range n.GetClients() {
			add(process{row: row{id: n.GetId()}, user: f.user(p.GetUid()), command: p.GetCommand(), memory: held(n, d, p),
				share: delivered(d), path: n.GetPath()}, p.GetPid())
		}
	}
	for _, p := range device.GetProcesses() {
		if p.GetPath() == "" {
			add(process{user: f.user(p.GetUid()), command: p.GetCommand(), memory: p.GetMemory(), share: unmeasured}, p.GetPid())
		}
	}
	return all
}
