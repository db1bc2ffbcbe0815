package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/metrics"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/daemon/web"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/inspect/top"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

// source is a daemon that always sees the same, for the page and the metrics.
type source struct{ snapshot daemon.Snapshot }

func (s source) Snapshot() daemon.Snapshot      { return s.snapshot }
func (source) Counters() daemon.Counters        { return daemon.Counters{} }
func (source) Recent() []daemon.Event           { return nil }
func (source) Slices() daemon.SliceSubscription { return nil }
func (source) Use() func()                      { return func() {} }

// service is it for commands.
type service struct {
	api.UnimplementedViewServer
	snapshot daemon.Snapshot
}

func (s service) Info(context.Context, *api.InfoRequest) (*api.Info, error) {
	return &api.Info{Daemon: view.Daemon(s.snapshot.Daemon)}, nil
}

func (s service) Snapshot(context.Context, *api.SnapshotRequest) (*api.Snapshot, error) {
	return view.Snapshot(s.snapshot), nil
}

func (s service) List(_ context.Context, r *api.ListRequest) (*api.Listing, error) {
	for _, n := range s.snapshot.Directories {
		if n.Path == r.GetPath() {
			return &api.Listing{}, nil
		}
	}
	return nil, fmt.Errorf("no %s", r.GetPath())
}

// machine is a device with an lgpu that has every limit, and one that has none and is not measured.
func machine() daemon.Snapshot {
	at, uuid := time.Unix(1_790_000_000, 250e6), gpu.UUID{0x11, 0x22, 0x33, 0x44, 15: 1}
	count, share, least, latency := 33, uint32(2550), uint32(1000), limits.Latency
	return daemon.Snapshot{
		At:     at,
		Daemon: daemon.Info{Version: "1.2.3", PID: 7, Started: at, Dir: "/run/lgpu", Police: daemon.PoliceReport},
		Devices: []daemon.Device{{
			Device: gpu.Device{UUID: uuid, Name: "NVIDIA H200", Memory: 141 << 30, Units: 132, Node: "195:0"},
			Mode:   "temporal", Healthy: true, MemoryUsed: 7 << 30, Utilisation: 25, MemoryUtilisation: -1,
			Processes: []daemon.DeviceProcess{{PID: 99, Comm: "blender", Memory: 1 << 30, Utilisation: -1}},
		}},
		Directories: []daemon.Directory{
			{Path: "/", ID: 1, Kind: daemon.KindGroup, Persistent: true, State: daemon.StateRunning},
			{Path: "/full", Name: "full", ID: 2, Kind: daemon.KindLgpu, State: daemon.StateRunning, HostMax: limits.AtMost(1 << 30),
				Devices: []daemon.DeviceUse{{
					Device: uuid, Key: "195:0", State: daemon.StateRunning, MemoryUsed: 5 << 30, MemoryPeak: 6 << 30,
					MemoryGranted: limits.AtMost(8 << 30), Busy: time.Second, Launches: 7, Asked: 2550, Delivered: 2400, Measured: true,
					Requested: limits.Limits{Count: &count, Weight: 300, Priority: &latency, ComputeMax: &share, ComputeMin: &least,
						MemoryMax: limits.AtMost(8 << 30), MemoryHigh: limits.AtMost(7 << 30)},
					Effective: limits.Effective{Bits: list.Upto(33), ComputeMax: 2500, ComputeMin: 1000, Weight: 300, Priority: latency,
						MemoryMax: limits.AtMost(8 << 30)},
				}},
				Clients: []daemon.Client{{PID: 812, UID: 1000, Comm: "python", Since: at, Memory: []uint64{5 << 30}}}},
			{Path: "/none", Name: "none", ID: 3, Kind: daemon.KindLgpu, State: daemon.StateIdle, Devices: []daemon.DeviceUse{{
				Device: uuid, Key: "195:0", State: daemon.StateIdle,
				Effective: limits.Effective{Bits: list.Upto(132), Whole: true, ComputeMax: 10000, Weight: 100}}}},
		},
	}
}

// serve answers commands at a socket.
func serve(t *testing.T, daemon api.ViewServer) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), api.Socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterViewServer(server, daemon)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return socket
}

// command is what a command prints.
func command(t *testing.T, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(args)
	c.SetOut(&out)
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("lgpu %q: %v", args, err)
	}
	return out.Bytes()
}

// TestOneState: whatever shows the state shows the same document, and the metrics have its figures.
func TestOneState(t *testing.T) {
	snapshot := machine()
	socket := serve(t, service{snapshot: snapshot})
	read := func(what string, data []byte) *state.State {
		var s state.State
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			t.Fatalf("%s: %v in %s", what, err, data)
		}
		return &s
	}
	want := read("the state", marshal(t, state.Of(view.Snapshot(snapshot))))

	if got := read("ps", command(t, "ps", "--json", "--socket", socket)); !reflect.DeepEqual(got, want) {
		t.Errorf("lgpu ps has\n%+v, not\n%+v", got, want)
	}
	var once bytes.Buffer
	conn, err := api.Dial(t.Context(), api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := top.Once(t.Context(), conn, top.Options{JSON: true, Out: &once}); err != nil {
		t.Fatal(err)
	}
	if got := read("top", once.Bytes()); !reflect.DeepEqual(got, want) {
		t.Errorf("lgpu top has\n%+v, not\n%+v", got, want)
	}
	page, err := web.New(source{snapshot}, web.Options{Keys: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequest("GET", "http://localhost/api/state", nil))
	if got := read("the page", answer.Body.Bytes()); !reflect.DeepEqual(got, want) {
		t.Errorf("the page has\n%+v, not\n%+v", got, want)
	}
	for _, path := range []string{"/", "/full"} {
		part := *want
		part.Only(path)
		if got := read("show", command(t, "show", "--json", "--socket", socket, path)); !reflect.DeepEqual(got, &part) {
			t.Errorf("lgpu show %s has\n%+v, not\n%+v", path, got, &part)
		}
	}
	checkMetrics(t, snapshot, want)
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// checkMetrics compares the metrics of limits with the document.
func checkMetrics(t *testing.T, snapshot daemon.Snapshot, want *state.State) {
	t.Helper()
	answer := httptest.NewRecorder()
	metrics.New(source{snapshot}, metrics.Options{}).Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string, l *state.Directory, device string, value *float64) {
		labels := fmt.Sprintf("kind=\"lgpu\",path=%q} ", l.Path)
		if device != "" {
			labels = fmt.Sprintf("device=%q,", device) + labels
		}
		line := name + "{" + labels
		_, after, there := strings.Cut(string(text), line)
		after, _, _ = strings.Cut(after, "\n")
		switch {
		case there != (value != nil):
			t.Errorf("%sis there: %v, and the state has %v", line, there, value)
		case there && after != fmt.Sprint(*value):
			t.Errorf("%s%s, and the state has %v", line, after, *value)
		}
	}
	bytes := func(p *uint64) *float64 {
		if p == nil {
			return nil
		}
		return number(float64(*p))
	}
	for i := range want.LGPUs {
		l := &want.LGPUs[i]
		has("lgpu_host_max_bytes", l, "", bytes(l.HostMax))
		for _, d := range l.Devices {
			most := 100.0
			if d.Effective.ComputeMax != nil {
				most = *d.Effective.ComputeMax
			}
			has("lgpu_memory_max_bytes", l, d.UUID, bytes(d.Effective.MemoryMax))
			has("lgpu_memory_used_bytes", l, d.UUID, number(float64(d.MemoryCurrent)))
			has("lgpu_compute_max_ratio", l, d.UUID, number(most/100))
			has("lgpu_compute_min_ratio", l, d.UUID, number(d.Effective.ComputeMin/100))
			has("lgpu_weight", l, d.UUID, number(float64(d.Effective.LgpuWeight)))
			if d.ComputeStat.Delivered == nil {
				has("lgpu_share_delivered_ratio", l, d.UUID, nil)
			} else {
				has("lgpu_share_delivered_ratio", l, d.UUID, number(*d.ComputeStat.Delivered/100))
			}
		}
	}
}

func number(v float64) *float64 { return &v }
