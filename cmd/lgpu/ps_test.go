package main

import (
	"strings"
	"testing"

	"github.com/lgpu/lgpu/api"
)

// On a terminal the table fits in its width. A script gets names, processes and lines whole.
func TestTable(t *testing.T) {
	const name = "training-of-a-large-model-of-language"
	share := uint32(2450)
	device := func(uuid string, share *uint32) *api.DeviceUse {
		return &api.DeviceUse{Uuid: uuid, MemoryUsed: 1 << 30, ShareDelivered: share, Effective: &api.Effective{ComputeMax: 2500}}
	}
	n := &api.Directory{Path: "/" + name, Kind: api.Directory_LGPU, Devices: []*api.DeviceUse{
		device("GPU-11111111-0000-0000-0000-000000000000", &share), device("GPU-22222222-0000-0000-0000-000000000000", nil),
	}}
	for pid := range int32(8) {
		n.Clients = append(n.Clients, &api.Client{Pid: 10000 + pid, Uid: 4000000000 + uint32(pid)/4}) // nobody's numbers
	}
	s := &api.Snapshot{Directories: []*api.Directory{{Path: "/"}, n}}

	lines := strings.Split(strings.TrimSpace(table(s, false, false, width)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%q", lines)
	}
	for _, l := range lines {
		if len([]rune(l)) > width || strings.Contains(l, name) {
			t.Errorf("on a terminal: %q", l)
		}
	}
	if !strings.Contains(lines[1], "24.5%") || !strings.Contains(lines[1], ",+") || strings.Fields(lines[2])[0] != "GPU-22222222" {
		t.Errorf("%q", lines)
	}

	for columns, users := range map[int]string{withUsers - 1: "", withUsers: " 4000000…", 2 * width: " 4000000…"} {
		for _, l := range strings.Split(strings.TrimSpace(table(s, false, false, columns)), "\n")[1:2] {
			if len([]rune(l)) > columns || !strings.Contains(l, users) || users == "" && strings.Contains(l, "40000") {
				t.Errorf("in %d columns: %q", columns, l)
			}
		}
	}

	for columns := 1; columns < 2*width; columns++ { // with power, too, in as much more
		for _, l := range strings.Split(strings.TrimSpace(table(s, false, true, columns)), "\n") {
			if len([]rune(l)) > max(columns, width+powerWidth) || strings.Contains(l, "USER") != (columns >= withUsers+powerWidth) &&
				strings.HasPrefix(l, "LGPU") {
				t.Errorf("--wide in %d columns: %q", columns, l)
			}
		}
	}

	lines = strings.Split(strings.TrimSpace(table(s, false, true, 0)), "\n")
	if !strings.HasSuffix(lines[1], "10000,10001,10002,10003,10004,10005,10006,10007") {
		t.Errorf("--wide in a pipe: %q", lines[1])
	}
	lines = strings.Split(strings.TrimSpace(table(s, false, false, 0)), "\n")
	for _, l := range lines[1:] {
		if f := strings.Fields(l); f[0] != name || f[len(f)-2] != "4000000000,4000000001" || f[len(f)-1] != "10000,10001,10002,10003,10004,10005,10006,10007" {
			t.Errorf("in a pipe: %q", l)
		}
	}
	if f := strings.Fields(lines[2]); f[5] != "-" { // a size is two words
		t.Errorf("what is not measured is shown as %q in %q", f[5], lines[2])
	}
}

// What is suspended says so in place of a share; --wide shows where the memory is if it may leave its device. The table
// still fits.
func TestTableSuspended(t *testing.T) {
	share := uint32(10000)
	use := func(state api.State, evicted *uint64) *api.DeviceUse {
		d := &api.DeviceUse{Uuid: "GPU-11111111-0000-0000-0000-000000000000", MemoryUsed: 5 << 30, State: state,
			ShareDelivered: &share, Effective: &api.Effective{ComputeMax: 2500}}
		if evicted != nil {
			resident := d.MemoryUsed - *evicted
			d.MemoryResident, d.MemoryEvicted = &resident, evicted
		}
		return d
	}
	some := uint64(4 << 30)
	n := func(path string, d *api.DeviceUse) *api.Directory {
		all := &api.Directory{Path: path, Kind: api.Directory_LGPU, Devices: []*api.DeviceUse{d}}
		for pid := range int32(8) {
			all.Clients = append(all.Clients, &api.Client{Pid: 10000 + pid})
		}
		return all
	}
	s := &api.Snapshot{Directories: []*api.Directory{
		{Path: "/"}, n("/a", use(api.State_SUSPENDED, &some)), n("/b", use(api.State_SUSPENDING, &some)), n("/c", use(api.State_RUNNING, nil))}}
	lines := strings.Split(table(s, false, false, width), "\n")
	for i, want := range []string{" COMPUTE ", "  suspended   25%  ", " suspending   25%  ", "     100.0%   25%  "} {
		if !strings.Contains(lines[i], want) || strings.Contains(lines[i], "EVICTED") {
			t.Errorf("%q has no %q", lines[i], want)
		}
	}
	lines = strings.Split(table(s, false, true, 2*width), "\n")
	for i, want := range []string{"  RESIDENT   EVICTED ", "     1 GiB     4 GiB ", "     1 GiB     4 GiB ", "         -         - "} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("--wide: %q has no %q", lines[i], want)
		}
	}
	for columns := 1; columns < 3*width; columns++ {
		for _, wide := range []bool{false, true} {
			most := width
			if wide {
				most += powerWidth + residenceWidth
			}
			for _, l := range strings.Split(table(s, false, wide, columns), "\n") {
				if len([]rune(l)) > max(columns, most) {
					t.Errorf("wide %v in %d columns: %q", wide, columns, l)
				}
			}
		}
	}
}

// Where several lgpus take turns, people hear why.
func TestTurns(t *testing.T) {
	why := "the driver refuses to set time slices"
	s := &api.Snapshot{Devices: []*api.Device{
		{Uuid: "GPU-11111111-0000-0000-0000-000000000000", NoGuests: why},
		{Uuid: "GPU-22222222-0000-0000-0000-000000000000", NoGuests: why},
		{Uuid: "GPU-33333333-0000-0000-0000-000000000000"},
	}, Directories: []*api.Directory{{Path: "/"}}}
	for _, name := range []string{"/a", "/b"} {
		n := &api.Directory{Path: name, Kind: api.Directory_LGPU}
		for i, d := range s.Devices {
			if name == "/a" || i != 1 {
				n.Devices = append(n.Devices, &api.DeviceUse{Uuid: d.Uuid, Effective: &api.Effective{}})
			}
		}
		s.Directories = append(s.Directories, n)
	}
	if shown := table(s, false, false, width); !strings.HasSuffix(shown, "\nOn GPU-11111111 lgpus take turns: "+why+".\n") || strings.Count(shown, why) != 1 {
		t.Errorf("on a terminal:\n%s", shown)
	}
	if shown := table(s, false, false, 0); strings.Contains(shown, why) {
		t.Errorf("in a pipe:\n%s", shown)
	}
}
