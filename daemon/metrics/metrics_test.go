package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

var update = flag.Bool("update", false, "rewrite golden files")

// fake is a Source that shows what the test says.
type fake struct {
	snapshot daemon.Snapshot
	counters daemon.Counters
	batches  chan batch
	closed   bool
}

type batch struct {
	turns []daemon.Slice
	lost  uint64
}

func (f *fake) Snapshot() daemon.Snapshot        { return f.snapshot }
func (f *fake) Counters() daemon.Counters        { return f.counters }
func (f *fake) Slices() daemon.SliceSubscription { return f }
func (f *fake) Close()                           { f.closed = true }

func (f *fake) Next(ctx context.Context) ([]daemon.Slice, uint64, error) {
	select {
	case b, open := <-f.batches:
		if !open {
			return nil, 0, daemon.ErrClosed
		}
		return b.turns, b.lost, nil
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

var (
	whole    = gpu.UUID{0x11, 0x22, 0x33, 0x44, 15: 1}
	instance = gpu.UUID{0x55, 0x66, 0x77, 0x88, 15: 2}
	began    = time.Unix(1_790_000_000, 250_000_000)
)

func pointer[T any](v T) *T { return &v }

// machine is a GPU and a MIG instance with a group, two lgpus and a stranger.
func machine() *fake {
	free := limits.Effective{Bits: list.Upto(132), ComputeMax: 10000, Weight: 100}
	capped := limits.Effective{Bits: list.Upto(33), ComputeMax: 2500, ComputeMin: 1000, Weight: 300, Priority: limits.High,
		MemoryMax: limits.AtMost(8 << 30)}
	return &fake{
		snapshot: daemon.Snapshot{
			At: began.Add(time.Hour),
			Daemon: daemon.Info{Version: "1.2.3", PID: 7, Started: began, Police: daemon.PoliceReport, Restarts: 2,
				HostBudget: 256 << 30, HostCopies: 5 << 30, DiskCopies: 1 << 30},
			Devices: []daemon.Device{
				{
					Device: gpu.Device{UUID: whole, Name: "NVIDIA H200", Memory: 141 << 30, Units: 132, PCI: "0000:1b:00.0",
						Node: "195:0"},
					Mode:    "temporal",
					Healthy: true, MemoryUsed: 21 << 30, Utilisation: 87, MemoryUtilisation: 40,
					Power: pointer(uint32(512_250)), Energy: pointer(uint64(86_400_500)), Temperature: pointer(int32(41)),
					OtherEnergy: pointer(uint64(1_500)),
					Processes: []daemon.DeviceProcess{
						{PID: 812, Memory: 6 << 30, Path: "/team/alice"}, {PID: 99, Memory: 3 << 30}, {PID: 98, Memory: 1 << 30},
					},
				},
				{
					Device: gpu.Device{UUID: instance, Index: 1, Name: "H200 MIG 1g.18gb", Memory: 16 << 30, Units: 16, Parent: whole},
					Mode:   "spatial", Fault: "lost", Utilisation: -1, MemoryUtilisation: -1,
				},
			},
			Directories: []daemon.Directory{
				{Path: "/", Kind: daemon.KindGroup, ID: 1, Persistent: true, Devices: []daemon.DeviceUse{
					{Device: whole, Effective: free, MemoryUsed: 7 << 30, MemoryPeak: 9 << 30, Delivered: 9000, Asked: 10000, Measured: true,
						Energy: pointer(uint64(86_399_000)), Power: pointer(uint32(512_000))},
				}},
				{Path: "/job-7", Name: "job-7", Kind: daemon.KindLgpu, ID: 4, Gang: "g", Devices: []daemon.DeviceUse{
					{Device: whole, Effective: free, MemoryUsed: 1 << 30, State: daemon.StateWaiting},
				}},
				{Path: "/team", Name: "team", Kind: daemon.KindGroup, ID: 2, Persistent: true},
				{
					Path: "/team/alice", Name: "alice", Kind: daemon.KindLgpu, ID: 3, Persistent: true, Overcommit: true, Suspend: true,
					HostMax: limits.AtMost(4 << 30), HostUsed: 1 << 20,
					Clients: []daemon.Client{{PID: 812}, {PID: 813}},
					Devices: []daemon.DeviceUse{{
						Device: whole, Effective: capped, MemoryUsed: 6 << 30, MemoryPeak: 7 << 30, MemoryGranted: limits.AtMost(8 << 30),
						Busy: 90 * time.Second, Launches: 12345, Asked: 2500, Delivered: 2490, Measured: true, State: daemon.StateSuspending,
						Resident: pointer(uint64(1 << 30)), Evicted: pointer(uint64(5 << 30)), ResidenceFailure: "a kernel does not end",
						Energy: pointer(uint64(12_345)), Power: pointer(uint32(98_760)),
					}},
				},
			},
		},
		counters: daemon.Counters{Events: map[daemon.Kind]uint64{daemon.OutOfMemory: 3, daemon.DrainOverrun: 1, "new.kind": 5}},
		batches:  make(chan batch),
	}
}

func gather(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("lint: %s: %s", p.Metric, p.Text)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	text, err := testutil.CollectAndFormat(c, expfmt.TypeTextPlain, names...)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestGolden compares everything that is served, with HAMi's names, with the golden file.
func TestGolden(t *testing.T) {
	f := machine()
	c := New(f, Options{HAMi: true, Host: "node-1"})
	at := func(us int) time.Time { return began.Add(time.Duration(us) * time.Microsecond) }
	c.turns.add([]daemon.Slice{
		{Device: whole, ID: 3, Start: at(0), End: at(2000)},
		{Device: whole, ID: 4, Start: at(2030), End: at(7000)},       // a switch of 30 µs
		{Device: whole, ID: 4, Start: at(7100), End: at(9000)},       // the same again: no switch
		{Device: whole, ID: 3, Start: at(90000), End: at(93000)},     // nobody wanted it for 81 ms: no switch
		{Device: instance, ID: 3, Start: at(93010), End: at(95000)},  // another device: no switch
		{Device: whole, ID: 4, Start: at(92000), End: at(2_000_000)}, // beside the one before: no switch
	}, 0)
	c.turns.add([]daemon.Slice{{Device: whole, ID: 3, Start: at(2_000_001), End: at(2_000_002)}},
		17) // after a loss: no switch
	got := gather(t, c)
	path := filepath.Join("testdata", "metrics.txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", path, got)
	}
}

// TestHAMiIsOff: its names are there on request only.
func TestHAMiIsOff(t *testing.T) {
	if got := gather(t, New(machine(), Options{})); strings.Contains(got, "hami_") {
		t.Error("HAMi's names are shown without being asked for")
	}
}

// TestRun: turns are counted as they come, until the daemon closes its subscription.
func TestRun(t *testing.T) {
	f := machine()
	c := New(f, Options{})
	ended := make(chan error)
	go func() { ended <- c.Run(t.Context()) }()
	f.batches <- batch{turns: []daemon.Slice{{Device: whole, ID: 3, Start: began, End: began.Add(time.Millisecond)}}}
	close(f.batches)
	if err := <-ended; !errors.Is(err, daemon.ErrClosed) || !f.closed {
		t.Errorf("Run ended with %v; subscription closed: %v", err, f.closed)
	}
	want := fmt.Sprintf("lgpu_slices_total{device=%q,kind=\"lgpu\",path=\"/team/alice\"} 1\n", whole)
	if got := gather(t, c); !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

// TestScrapeBeforeTheFirstTurn: a collector can be asked at any moment, before the first turn, between turns and while
// they come.
func TestScrapeBeforeTheFirstTurn(t *testing.T) {
	f := machine()
	c := New(f, Options{HAMi: true, Host: "node-1"})
	gather(t, c)
	ended := make(chan error)
	go func() { ended <- c.Run(t.Context()) }()
	for range 100 {
		f.batches <- batch{turns: []daemon.Slice{{Device: whole, ID: 3, Start: began, End: began.Add(time.Millisecond)}}}
		gather(t, c)
	}
	close(f.batches)
	<-ended
	want := fmt.Sprintf("lgpu_slices_total{device=%q,kind=\"lgpu\",path=\"/team/alice\"} 100\n", whole)
	if got := gather(t, c); !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

// TestForget: what is counted for an lgpu or device goes with it.
func TestForget(t *testing.T) {
	f := machine()
	c := New(f, Options{})
	for id := range uint64(1000) {
		c.turns.add([]daemon.Slice{{Device: whole, ID: id}, {Device: gpu.UUID{9: byte(id)}, ID: 3}}, 0)
	}
	gather(t, c)
	if counts, devices := len(c.turns.count), len(c.turns.devices); counts != 2 || devices != 1 {
		t.Errorf("%d counts and %d devices are kept, want those of 2 lgpus and 1 device", counts, devices)
	}
}

// TestBounded: a flood of temporary lgpus adds no more series than it may, and those that stay are not pushed out.
func TestBounded(t *testing.T) {
	f := machine()
	for i := range 5000 {
		name := fmt.Sprintf("job-%d", 10000-i)
		f.snapshot.Directories = append(f.snapshot.Directories, daemon.Directory{
			Path: "/" + name, Name: name, Kind: daemon.KindLgpu, ID: uint64(100 + i), Created: began.Add(time.Duration(i)),
			Devices: []daemon.DeviceUse{{Device: whole}},
		})
	}
	got := gather(t, New(f, Options{MaxDirectories: 10}))
	if n := strings.Count(got, "lgpu_info{"); n != 10 {
		t.Errorf("%d nodes are shown", n)
	}
	for _, want := range []string{`path="/team/alice"`, `path="/job-10000"`, "lgpu_nodes_omitted 4994\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestNotMeasured: where nobody knows an lgpu's share there is none, so that no alert compares it with what was asked
// for.
func TestNotMeasured(t *testing.T) {
	got := gather(t, New(machine(), Options{HAMi: true}))
	for _, name := range []string{"lgpu_share_asked_ratio", "lgpu_share_delivered_ratio"} {
		unmeasured := fmt.Sprintf("%s{device=%q,kind=\"lgpu\",path=\"/job-7\"}", name, whole)
		if !strings.Contains(got, name+"{") || strings.Contains(got, unmeasured) {
			t.Errorf("%s: it is for what is measured, and for nothing else", name)
		}
	}
	if strings.Count(got, "\nhami_container_device_utilization_ratio{") != 1 {
		t.Errorf("HAMi's ratio is there for another than /team/alice")
	}
}

// TestHostileText: no name that somebody chose can stop the scrape.
func TestHostileText(t *testing.T) {
	f := machine()
	f.snapshot.Directories[1].Gang = "\xff\"\n\\"
	f.snapshot.Devices[0].Name = "\xc3("
	gather(t, New(f, Options{HAMi: true}))
}

func TestHandler(t *testing.T) {
	w := httptest.NewRecorder()
	New(machine(), Options{}).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"lgpu_daemon_info", "go_goroutines", "process_start_time_seconds"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s (status %d)", want, w.Code)
		}
	}
}

// TestDocumented: docs/metrics.md has a row for each metric with its type and labels, and none for another.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `((?:lgpu|hami)_[a-z_]+)` \\| (\\w+) \\| ([^|]*) \\|")
	documented := map[string]string{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		documented[match[1]] = match[2] + " " + strings.ReplaceAll(match[3], "`", "")
	}
	for _, f := range slices.Concat(families, hamiFamilies) {
		kind := map[prometheus.ValueType]string{
			prometheus.GaugeValue: "gauge", prometheus.CounterValue: "counter", prometheus.UntypedValue: "histogram",
		}[f.kind]
		want := strings.TrimSpace(kind + " " + strings.Join(f.labels, ", "))
		if got := strings.TrimSpace(documented[f.name]); got != want {
			t.Errorf("%s is documented as %q, want %q", f.name, got, want)
		}
		delete(documented, f.name)
	}
	for name := range documented {
		t.Errorf("%s is documented and does not exist", name)
	}
}

// TestDashboard: grafana.json is a dashboard that Grafana imports, and asks for nothing that is not served.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	type target struct{ Expr, RefID, LegendFormat string }
	type panel struct {
		ID         int
		Type       string
		Title      string
		GridPos    struct{ X, Y, W, H int }
		Datasource struct{ Type, UID string }
		Targets    []target
	}
	var dashboard struct {
		Title, UID    string
		SchemaVersion int
		Time          struct{ From, To string }
		Panels        []panel
		Templating    struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || dashboard.SchemaVersion < 36 || dashboard.Time.From == "" {
		t.Errorf("title %q, uid %q, schemaVersion %d", dashboard.Title, dashboard.UID, dashboard.SchemaVersion)
	}
	known := map[string]bool{"lgpu": true}
	for _, f := range families {
		known[f.name] = true
		if f.kind == prometheus.UntypedValue {
			known[f.name+"_bucket"], known[f.name+"_sum"], known[f.name+"_count"] = true, true, true
			delete(known, f.name)
		}
	}
	metric := regexp.MustCompile(`\b(lgpu|hami)_\w+`)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range dashboard.Templating.List {
		variables[v.Name] = true
		for _, name := range metric.FindAllString(string(v.Query), -1) {
			if !known[name] {
				t.Errorf("variable %s asks for %s", v.Name, name)
			}
		}
	}
	seen := map[int]bool{}
	asked := 0
	for i, p := range dashboard.Panels {
		if seen[p.ID] || p.ID == 0 || p.Title == "" || p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q: id %d, position %+v", i, p.Title, p.ID, p.GridPos)
		}
		seen[p.ID] = true
		for _, other := range dashboard.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, other.Title)
			}
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
			t.Errorf("panel %q: %d targets, datasource %q", p.Title, len(p.Targets), p.Datasource.UID)
		}
		for _, q := range p.Targets {
			found := metric.FindAllString(q.Expr, -1)
			asked += len(found)
			if len(found) == 0 || q.RefID == "" || strings.Count(q.Expr, "(") != strings.Count(q.Expr, ")") ||
				strings.Count(q.Expr, "{") != strings.Count(q.Expr, "}") {
				t.Errorf("panel %q: query %q, %q", p.Title, q.RefID, q.Expr)
			}
			for _, name := range found {
				if !known[name] {
					t.Errorf("panel %q asks for %s", p.Title, name)
				}
			}
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("panel %q: variable %s is not defined", p.Title, v[1])
				}
			}
		}
	}
	if asked < 10 {
		t.Errorf("only %d metrics are asked for", asked)
	}
}
