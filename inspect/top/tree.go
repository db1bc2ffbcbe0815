package top

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/lgpu/lgpu/api"
)

// order is what is sorted by.
type order int

const (
	byName order = iota
	byShare
	byMemory
	byState
	byUser
	byPower
	byEnergy
	orders // their number
)

func (o order) String() string {
	return [...]string{"name", "share", "memory", "state", "user", "power", "energy"}[o]
}

// tree is what is shown of a device's groups and lgpus.
type tree struct {
	top   []*api.Directory
	below map[string][]*api.Directory // by the path of what they are in
	lgpus []*api.Directory
	in    map[string][]*api.Directory // the lgpus at and below a path
	names map[*api.Directory]string   // below what they are in
}

// tree reads the directories that use a device and are as the filter says, or have something that is. The root is the
// device's own line.
func (f *frame) tree(device *api.Device) *tree {
	t := &tree{below: map[string][]*api.Directory{}, in: map[string][]*api.Directory{}, names: map[*api.Directory]string{}}
	var here []*api.Directory
	known := map[string]bool{}
	for _, n := range f.snapshot.GetDirectories() {
		if on(n, device.GetUuid()) != nil && n.GetPath() != "/" {
			here = append(here, n)
			known[n.GetPath()] = true
		}
	}
	ground := deviceText(device)
	wanted := map[string]bool{}
	for _, n := range slices.Backward(here) { // what is in a group comes after it
		own := f.directoryText(n)
		if n.GetKind() == api.Directory_LGPU {
			own += ground
		}
		if !wanted[n.GetPath()] && !f.found(own) {
			continue
		}
		for up := n.GetPath(); up != "/" && up != "."; up = path.Dir(up) {
			wanted[up] = true
		}
	}
	full := f.full(device.GetUuid())
	for _, n := range here {
		if !wanted[n.GetPath()] || n.GetKind() == api.Directory_GROUP && !full[n.GetPath()] {
			continue
		}
		if n.GetKind() == api.Directory_LGPU {
			t.lgpus = append(t.lgpus, n)
			for at := n.GetPath(); at != "/" && at != "."; at = path.Dir(at) {
				t.in[at] = append(t.in[at], n)
			}
		}
		up := path.Dir(n.GetPath())
		for up != "/" && up != "." && !known[up] {
			up = path.Dir(up)
		}
		t.names[n] = strings.Trim(strings.TrimPrefix(n.GetPath(), up), "/")
		if known[up] {
			t.below[up] = append(t.below[up], n)
		} else {
			t.top = append(t.top, n)
		}
	}
	return t
}

// full are the paths of the groups that a device shows: those with an lgpu on it, and on its first device one that is
// empty, so that it is seen, but not on each device.
func (f *frame) full(device string) map[string]bool {
	somewhere, here := map[string]bool{}, map[string]bool{}
	for _, n := range f.snapshot.GetDirectories() {
		for at := path.Dir(n.GetPath()); n.GetKind() == api.Directory_LGPU && at != "/" && at != "."; at = path.Dir(at) {
			somewhere[at] = true
			here[at] = here[at] || on(n, device) != nil
		}
	}
	for _, n := range f.snapshot.GetDirectories() {
		if d := n.GetDevices(); n.GetKind() == api.Directory_GROUP && !somewhere[n.GetPath()] && len(d) > 0 && d[0].GetUuid() == device {
			here[n.GetPath()] = true
		}
	}
	return here
}

// branch draws directories that are in the same one, each with what is in it.
func (f *frame) branch(t *tree, nodes []*api.Directory, device *api.Device, c columns, depth int, up row) []line {
	f.sort(nodes, device.GetUuid())
	var lines []line
	for _, n := range nodes {
		r := row{id: n.GetId(), device: device.GetUuid()}
		below := t.below[n.GetPath()]
		open := f.opened(r, true) || len(f.words) > 0
		mark := "  "
		switch {
		case len(below) > 0 && open:
			mark = "▾ "
		case len(below) > 0:
			mark = "▸ "
		}
		lines = append(lines, f.directory(n, device, c, strings.Repeat("  ", depth)+mark+clean(t.names[n]), up, t.in[n.GetPath()])...)
		if open {
			lines = append(lines, f.branch(t, below, device, c, depth+1, r)...)
		}
	}
	return lines
}

// sort sorts what is in the same group, or all lgpus.
func (f *frame) sort(nodes []*api.Directory, device string) {
	slices.SortStableFunc(nodes, func(a, b *api.Directory) int {
		x, y := on(a, device), on(b, device)
		c := 0
		switch f.order {
		case byShare:
			c = -cmp.Compare(delivered(x), delivered(y))
		case byMemory:
			c = -cmp.Compare(x.GetMemoryUsed(), y.GetMemoryUsed())
		case byState:
			c = -cmp.Compare(busy(x.GetState()), busy(y.GetState()))
		case byUser:
			c = cmp.Compare(f.owners(a), f.owners(b))
		case byPower:
			c = -cmp.Compare(x.GetPowerMw(), y.GetPowerMw())
		case byEnergy:
			c = -cmp.Compare(x.GetEnergyMj(), y.GetEnergyMj())
		}
		if c == 0 {
			c = cmp.Compare(a.GetPath(), b.GetPath())
		}
		if f.reverse {
			return -c
		}
		return c
	})
}

// busy is the place of a state in their order: what says more of what goes on comes later.
func busy(s api.State) int {
	return slices.Index([]api.State{api.State_IDLE, api.State_EVICTED, api.State_SUSPENDED, api.State_RELEASED,
		api.State_SUSPENDING, api.State_WAITING, api.State_UNFIT, api.State_NEXT, api.State_MOVING, api.State_DRAINING, api.State_RUNNING}, s)
}

// owners are the users whose programs are in lgpus or keep them, by name.
func (f *frame) owners(lgpus ...*api.Directory) string {
	var names []string
	add := func(uid uint32) {
		if name := f.user(uid); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, n := range lgpus {
		for _, p := range n.GetClients() {
			add(p.GetUid())
		}
		for _, p := range n.GetLaunchers() {
			add(p.GetUid())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// found reports whether text, in lower case, has all that is looked for.
func (f *frame) found(text string) bool {
	for _, w := range f.words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// deviceText is what a filter looks for of a device.
func deviceText(d *api.Device) string {
	return strings.ToLower(fmt.Sprintf("\ndevice %s\n%s\n%s\n%s\n%s", d.GetOrdinal(), d.GetName(), d.GetUuid(), d.GetKey(), d.GetSim()))
}

// directoryText is what a filter looks for of a group or an lgpu.
func (f *frame) directoryText(n *api.Directory) string {
	var b strings.Builder
	b.WriteString(n.GetPath() + "\n" + f.owners(n))
	for _, p := range n.GetClients() {
		fmt.Fprintf(&b, "\n%s %d", p.GetCommand(), p.GetPid())
	}
	return strings.ToLower(b.String())
}
