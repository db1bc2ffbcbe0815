package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
)

func some[T any](v T) *T { return &v }

// energies is a device with a group, an lgpu in it and one outside, and one device without a counter.
func energies(times uint64) *api.Snapshot {
	use := func(mj uint64) []*api.DeviceUse {
		return []*api.DeviceUse{{Uuid: "GPU-1", EnergyMj: some(mj * times), PowerMw: some(uint32(mj / 2))}, {Uuid: "MIG-2"}}
	}
	return &api.Snapshot{
		Devices: []*api.Device{{Uuid: "GPU-1", EnergyMj: some(uint64(1 << 40)), EnergyOtherMj: some(2000 * times)}, {Uuid: "MIG-2"}},
		Directories: []*api.Directory{
			{Path: "/", Id: 1, Devices: use(8000)}, {Path: "/a", Id: 2, Devices: use(7000)},
			{Path: "/a/b", Id: 3, Kind: api.Directory_LGPU, Devices: use(5000)},
			{Path: "/ab", Id: 4, Kind: api.Directory_LGPU, Devices: use(1000)},
		},
	}
}

func TestEnergyRows(t *testing.T) {
	e := &energyReport{price: some(0.5), currency: "€", co2: some(360.0)}
	rows, found := e.rows(nil, used(energies(1)), energies(1), "/a")
	if !found || len(rows) != 2 || *rows[0].Path != "/a" || *rows[1].Path != "/a/b" {
		t.Fatalf("%+v, %v", rows, found)
	}
	if r := rows[1]; r.Joules != 5 || *r.Watts != 2.5 || r.Part != 50 || *r.Cost != 2.5/joulesPerKWh || *r.CO2 != 5*360.0/joulesPerKWh {
		t.Errorf("%+v", r)
	}
	if _, found := e.rows(nil, used(energies(1)), energies(1), "/b"); found {
		t.Error("a path that is not there is found")
	}
	e.over = 2e9
	rows, _ = e.rows(used(energies(1)), used(energies(3)), energies(3), "/")
	if len(rows) != 5 || rows[4].Path != nil || rows[4].Joules != 4 || rows[4].Part != 20 || *rows[3].Watts != 1 {
		t.Errorf("%+v", rows)
	}
	text := e.table(rows)
	for _, want := range []string{"LGPU ", "/a/b ", "(no lgpu) ", " 10.0 J ", " 20.0%", "€\n", " g\n"} {
		if !strings.Contains(strings.ReplaceAll(text, "€ ", "€\n"), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if rows, _ := e.rows(used(energies(3)), used(energies(1)), energies(1), "/ab"); len(rows) != 1 || rows[0].Joules != 0 {
		t.Errorf("of a counter that went back: %+v", rows)
	}
}

// history is a daemon with a history of energy: at each hour, as much as the hour's number.
type history struct {
	service
	begins time.Time
}

func (h history) Snapshot(context.Context, *api.SnapshotRequest) (*api.Snapshot, error) {
	s := energies(100)
	s.Time = timestamppb.New(h.begins.Add(100 * time.Hour))
	return s, nil
}

func (h history) Energy(_ context.Context, r *api.EnergyRequest) (*api.EnergyPoint, error) {
	hours := r.GetAt().AsTime().Sub(h.begins).Truncate(time.Hour)
	if hours < 0 {
		return nil, status.Error(codes.NotFound, "the history does not go back so far")
	}
	p := &api.EnergyPoint{Time: timestamppb.New(h.begins.Add(hours))}
	for id, devices := range used(energies(uint64(hours / time.Hour))) {
		for device, mj := range devices {
			p.Used = append(p.Used, &api.EnergyUsed{Id: id, Uuid: device, EnergyMj: mj})
		}
	}
	return p, nil
}

// TestEnergySince: what was used in a time that is past, between the points of the history before its ends.
func TestEnergySince(t *testing.T) {
	begins := time.Date(2026, 11, 1, 0, 0, 0, 0, time.Local)
	socket := serve(t, history{begins: begins})
	run := func(args ...string) (struct {
		Since, Until time.Time
		Rows         []energyRow
	}, error) {
		t.Helper()
		var answer struct {
			Since, Until time.Time
			Rows         []energyRow
		}
		var out bytes.Buffer
		c := root()
		c.SetArgs(append([]string{"energy", "--json", "--socket", socket}, args...))
		c.SetOut(&out)
		err := c.Execute()
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &answer)
		}
		return answer, err
	}
	for _, test := range []struct {
		args         []string
		since, until time.Duration
	}{
		{[]string{"--since", "2026-11-01 10:59", "--until", "2026-11-01 20:01"}, 10 * time.Hour, 20 * time.Hour},
		{[]string{"--since", "2026-11-02"}, 24 * time.Hour, 100 * time.Hour},
	} {
		got, err := run(append(test.args, "/ab")...)
		if err != nil || !got.Since.Equal(begins.Add(test.since)) || !got.Until.Equal(begins.Add(test.until)) || len(got.Rows) != 1 {
			t.Fatalf("%v: %+v, %v", test.args, got, err)
		}
		joules := (test.until - test.since).Hours()
		if r := got.Rows[0]; r.Joules != joules || r.Part != 10 || math.Abs(*r.Watts-1.0/3600) > 1e-9 {
			t.Errorf("%v: %+v, not %v J", test.args, r, joules)
		}
	}
	for _, args := range [][]string{
		{"--until", "2026-11-02"}, {"--since", "2026-11-02", "--until", "2026-11-01"}, {"--since", "x"}, {"--since", "2026-10-01"},
		{"--since", "2026-11-01 10:05", "--until", "2026-11-01 10:55"}, {"--since", "2026-11-02", "--over", "2s"},
	} {
		if got, err := run(args...); err == nil {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestFormatEnergy(t *testing.T) {
	for joules, want := range map[float64]string{0: "0.0 J", 3599.9: "3599.9 J", 3600: "1.00 Wh", 9e6: "2.50 kWh"} {
		if got := formatEnergy(joules); got != want {
			t.Errorf("%v J is %q, want %q", joules, got, want)
		}
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]struct {
		amount float64
		unit   string
	}{
		"0.30": {0.3, ""}, "0.30/kWh": {0.3, ""}, "0.3€/kWh": {0.3, "€"}, "$.25": {0.25, "$"}, "0.30 EUR/KWH": {0.3, "EUR"}, "380g": {380, "g"},
	} {
		if n, unit, err := parseRate(text); err != nil || *n != want.amount || unit != want.unit {
			t.Errorf("%q: %v, %q, %v", text, n, unit, err)
		}
	}
	if n, _, err := parseRate(""); n != nil || err != nil {
		t.Errorf("nothing: %v, %v", n, err)
	}
	for _, text := range []string{"/kWh", "x", "-1", "1e5", "0.3 per kWh", "1.2.3", "1/h", "1\x1b", "1..", "NaN", "Inf"} {
		if n, _, err := parseRate(text); err == nil {
			t.Errorf("%q is %v", text, *n)
		}
	}
}

// FuzzParseRate: an amount that is one, with a unit that can be printed, or an error.
func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"", "0.30€/kWh", "$1", "380", "\x00", "9" + strings.Repeat("9", 400)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, unit, err := parseRate(text)
		switch {
		case err != nil && (n != nil || unit != ""):
			t.Errorf("%q: %v, %q and %v", text, n, unit, err)
		case n != nil && (math.IsNaN(*n) || math.IsInf(*n, 0) || *n < 0):
			t.Errorf("%q is %v", text, *n)
		}
	})
}

// --wide adds the columns of energy before the processes; nothing else shows them.
func TestWide(t *testing.T) {
	s := energies(1)
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			d.Effective = &api.Effective{ComputeMax: 10000}
		}
	}
	if text := table(s, false, true, 0); !strings.Contains(text, " POWER ") || !strings.Contains(text, " 2.5 W ") || !strings.Contains(text, " 5.0 J  ") {
		t.Errorf("with --wide:\n%s", text)
	}
	if text := table(s, false, false, 0); strings.Contains(text, "POWER") || strings.Contains(text, " W") {
		t.Errorf("without:\n%s", text)
	}
}

// A measurement lasts as long as it was said to, unless it is interrupted.
func TestWaits(t *testing.T) {
	if !waits(t.Context(), io.Discard, time.Millisecond) {
		t.Error("it was not interrupted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if waits(ctx, io.Discard, time.Hour) {
		t.Error("it was interrupted")
	}
}
