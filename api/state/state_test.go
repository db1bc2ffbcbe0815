package state

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
)

var update = flag.Bool("update", false, "rewrite golden files")

func pointer[T any](v T) *T { return &v }

// nobody is a number that no user of any machine has, so that its name is the number.
const nobody = 4000001000

// machine has one of everything that a document can have, set and not set.
func machine() *api.Snapshot {
	at := timestamppb.New(time.Date(2026, 8, 1, 12, 4, 11, 250e6, time.UTC))
	const gpu = "GPU-11223344-0000-0000-0000-000000000001"
	return &api.Snapshot{
		Time: at,
		Daemon: &api.Daemon{Version: "1.2.3", Pid: 7, Started: at, Dir: "/run/lgpu", Tree: "/run/lgpu/tree", Police: "report",
			Restarts: 2, IdleNs: 60e9, HostBudget: 64 << 30, HostCopies: 2 << 30, DiskCopies: 1 << 30},
		Devices: []*api.Device{
			{Uuid: gpu, Ordinal: "0", Name: "NVIDIA H200", Key: "195:0", Pci: "0000:1b:00.0", MemoryTotal: 141 << 30,
				MemoryUsed: 62 << 30, Units: 132, Utilisation: pointer(uint32(87)), MemoryUtilisation: pointer(uint32(40)), Sampled: at,
				PowerMw: pointer(uint32(512_250)), EnergyMj: pointer(uint64(86_400_500)), Temperature: pointer(int32(41)),
				EnergyOtherMj: pointer(uint64(1_500)),
				Processes: []*api.DeviceProcess{
					{Pid: 812, Uid: nobody, Command: "python", Memory: 6 << 30, Path: "/team/alice", Utilisation: pointer(uint32(24))},
					{Pid: 99, Command: "blender", Memory: 3 << 30}}},
			{Uuid: "MIG-55667788-0000-0000-0000-000000000002", Ordinal: "1:0", Name: "MIG 1g.18gb", Parent: gpu,
				Mode: api.Device_SPATIAL, Fault: "lost", Sim: "1x16GiB",
				Inventory: &api.Inventory{Architecture: "Hopper", Capability: "9.0", Driver: "580.1", Numa: pointer(uint32(1)),
					Links: []*api.DeviceLink{{Peer: gpu, Path: "NV", Nvlinks: 18}},
					Mig: []*api.MigProfile{{Name: "1g.10gb", Id: 19, Memory: 10 << 30, Units: 16, Count: 7,
						Placements: []uint32{0, 1}, Size: 1}}}},
		},
		Directories: []*api.Directory{
			{Path: "/", Id: 1},
			{Path: "/team", Id: 2, Persistent: true, HostMax: pointer(uint64(1 << 30)), Cgroups: []string{"/slurm"}, MemorySuspend: true,
				Devices: []*api.DeviceUse{{Uuid: gpu, Key: "195:0",
					Requested: &api.Limits{Lgpu: &api.Units{Default: true}}, Effective: &api.Effective{Count: 132, ComputeMax: 10000, LgpuWeight: 100}}}},
			{Path: "/team/alice", Id: 1 << 63, Kind: api.Directory_LGPU, Created: at, State: api.State_RUNNING, Gang: "g", HostUsed: 4096,
				MemoryOvercommit: true,
				Devices: []*api.DeviceUse{{
					Uuid: gpu, Key: "195:0", State: api.State_RUNNING, MemoryUsed: 6 << 30, MemoryPeak: 7 << 30,
					MemoryGranted: pointer(uint64(8 << 30)), BusyNs: 90e9 + 1500, Launches: 12345,
					ShareAsked: pointer(uint32(2500)), ShareDelivered: pointer(uint32(2490)),
					EnergyMj: pointer(uint64(12_345)), PowerMw: pointer(uint32(98_760)),
					MemoryResident: pointer(uint64(4 << 30)), MemoryEvicted: pointer(uint64(2 << 30)),
					ResidenceStat:    &api.ResidenceStat{EvictedBytes: 5 << 30, CleanBytes: 4 << 30},
					ResidenceFailure: "a kernel does not end",
					Requested: &api.Limits{MemoryMax: pointer(uint64(8 << 30)), MemoryHigh: pointer(uint64(7 << 30)),
						ComputeMax: pointer(uint32(2550)), ComputeMin: pointer(uint32(1000)), LgpuWeight: pointer(uint32(300)),
						LgpuPriority: api.Priority_HIGH,
						Lgpu:         &api.Units{Count: pointer(uint32(3)), List: pointer("0-1,5"), Exclusive: true}},
					Effective: &api.Effective{Count: 3, List: "0-1,5", ComputeMax: 2500, ComputeMin: 1000, LgpuWeight: 300,
						LgpuPriority: api.Priority_HIGH, MemoryMax: pointer(uint64(8 << 30))},
				}},
				Clients:   []*api.Client{{Pid: 812, Uid: nobody, Command: "python", Since: at, HostMemory: 4096, Memory: []uint64{6 << 30}}},
				Launchers: []*api.Launcher{{Pid: 800, Uid: nobody, Command: "lgpu"}}},
			{Path: "/voice", Id: 4, Kind: api.Directory_LGPU, State: api.State_DRAINING,
				Devices: []*api.DeviceUse{{Uuid: gpu, Requested: &api.Limits{Lgpu: &api.Units{Count: pointer(uint32(8))}}}}},
		},
	}
}

// TestGolden: names, units and nulls are promises.
func TestGolden(t *testing.T) {
	var out bytes.Buffer
	if err := Of(machine()).Write(&out); err != nil {
		t.Fatal(err)
	}
	const path = "testdata/state.json"
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", path, out.String())
	}
}

// TestNothingIsLeftOut: every name is there, also of a daemon that has nothing and of none; arrays are no null.
func TestNothingIsLeftOut(t *testing.T) {
	for _, s := range []*api.Snapshot{{}, {Daemon: &api.Daemon{}, Devices: []*api.Device{{}}, Directories: []*api.Directory{
		{Kind: api.Directory_LGPU, Devices: []*api.DeviceUse{{}}, Clients: []*api.Client{{}}, Launchers: []*api.Launcher{{}}}}}} {
		data, err := json.Marshal(Of(s))
		if err != nil {
			t.Fatal(err)
		}
		var back State
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err := d.Decode(&back); err != nil || back.Devices == nil || back.Groups == nil || back.LGPUs == nil {
			t.Errorf("%v: %s", err, data)
		}
		for _, l := range back.LGPUs {
			if l.CgroupPath == nil || l.Processes[0].MemoryCurrent == nil || l.Devices[0].Requested.Lgpu != "max" {
				t.Errorf("%+v", l)
			}
		}
	}
}

// TestEvent: nothing of an event is left out, and what it does not have is null.
func TestEvent(t *testing.T) {
	for want, e := range map[string]*api.Event{
		`{"number":0,"time":"1970-01-01T00:00:00Z","kind":"","path":null,"device":null,"pid":null,"bytes":null,"by":null,` +
			`"changes":[],"count":1,"first":null,"last":null,"text":""}`: {},
		`{"number":7,"time":"1970-01-01T00:00:09Z","kind":"limit.changed","path":"/a","device":"GPU-1","pid":8,"bytes":9,` +
			`"by":{"uid":0,"user":"root","pid":null,"command":null},"changes":[{"file":"gang","device":null,"old":"","new":"x"}],` +
			`"count":3,"first":"1970-01-01T00:00:01Z","last":"1970-01-01T00:00:02Z","text":"t"}`: {
			Number: 7, Time: &timestamppb.Timestamp{Seconds: 9}, Kind: "limit.changed", Path: "/a", Device: "GPU-1", Pid: 8,
			Bytes: 9, By: &api.Author{User: "root"}, Changes: []*api.LimitChange{{File: "gang", New: "x"}}, Count: 3,
			First: &timestamppb.Timestamp{Seconds: 1}, Last: &timestamppb.Timestamp{Seconds: 2}, Text: "t",
		},
	} {
		if got, err := json.Marshal(EventOf(e)); err != nil || string(got) != want {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
}

func TestOnly(t *testing.T) {
	s := Of(machine())
	s.Only("/team")
	if len(s.Groups) != 1 || s.Groups[0].Path != "/team" || len(s.LGPUs) != 0 || s.LGPUs == nil {
		t.Errorf("%+v", s)
	}
}

// TestDocumented: docs/json.md has a table for each object, with its names and types in their order, and no other.
func TestDocumented(t *testing.T) {
	objects := map[string]any{
		"Document": State{}, "Daemon": Daemon{}, "Device": Device{}, "Inventory": Inventory{}, "Link": Link{},
		"MIG profile": MIGProfile{}, "Process of a device": DeviceProcess{},
		"Group or lgpu": Directory{}, "Use of a device": Use{}, "compute.stat": Stat{}, "energy.stat": Energy{},
		"residence.stat": Moved{}, "requested": Requested{},
		"effective": Effective{}, "lgpu.effective": Bits{}, "Process": Process{}, "Launcher": Launcher{},
		"Event": Event{}, "Author": Author{}, "Change": Change{},
	}
	text, err := os.ReadFile("../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([a-z ]+) \\|")
	sections := strings.Split(string(text), "\n## ")
	for _, section := range sections[1:] {
		title, body, _ := strings.Cut(section, "\n")
		object, known := objects[title]
		if !known {
			t.Errorf("%q is documented and does not exist", title)
			continue
		}
		delete(objects, title)
		var got, want []string
		for _, match := range row.FindAllStringSubmatch(body, -1) {
			got = append(got, match[1]+" "+match[2])
		}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(object)) {
			want = append(want, f.Tag.Get("json")+" "+kind(f.Type))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is documented as\n%q\nand is\n%q", title, got, want)
		}
	}
	for title := range objects {
		t.Errorf("%q is not documented", title)
	}
	if !strings.Contains(string(text), "`version` is 1.") || Version != 1 {
		t.Error("the version is not documented")
	}
}

// kind is what JSON has for a type.
func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "string"
	case t.Kind() == reflect.Pointer:
		return kind(t.Elem()) + " or null"
	case t.Kind() == reflect.Struct:
		return "object"
	case t.Kind() == reflect.Slice:
		return "array"
	case t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Bool:
		return "boolean"
	}
	return "number"
}
