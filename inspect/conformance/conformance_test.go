package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// The test program also plays others, by what CONFORMANCE_TEST says: "probe" is a real probe, anything else is the lgpu
// program of a device with that property.
func TestMain(m *testing.M) {
	switch as := os.Getenv("CONFORMANCE_TEST"); as {
	case "":
		os.Exit(m.Run())
	case "probe":
		if err := Probe(ProbeSpec{Lead: 0.2, Seconds: 0.5, Iterations: 1}, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(playLgpu(as, os.Args[1:]))
	}
}

// playLgpu is an lgpu program on a device of 16 units that keeps its promises, but for the ways named in as.
func playLgpu(as string, args []string) int {
	refuse := func(text string) int {
		fmt.Fprintln(os.Stderr, "lgpu: error:", text)
		return refusedStatus
	}
	value := func(option string) string {
		if i := slices.Index(args, option); i >= 0 {
			return args[i+1]
		}
		return ""
	}
	spatial := slices.Contains(args, "--spatial")
	nodes := os.Getenv("CONFORMANCE_NODES")
	switch args[0] {
	case "create":
		if strings.Contains(as, "anonymous") {
			return refuse("units have no names")
		}
		path, file := args[1], args[2]
		_, text, _ := strings.Cut(file, " list=")
		if err := os.WriteFile(nodes+path, []byte(text), 0o600); err != nil {
			return refuse(err.Error())
		}
		return 0
	case "rm":
		if os.Remove(nodes+args[1]) != nil {
			return 1
		}
		return 0
	}
	switch {
	case strings.Contains(as, "temporal") && spatial:
		return refuse("no MPS")
	case strings.Contains(as, "mute"):
		fmt.Fprintln(os.Stderr, "lgpu: error: no daemon")
		return 1
	}
	m := Measurement{Device: "GPU-x", Units: 16, IDs: 16, Seen: "0-15", Rate: 100, DeviceTime: 1, Iterations: 1}
	part := func(n int) {
		m.Units = n
		if spatial {
			m.Rate = 100 * float64(n) / 16
		} else {
			m.Rate = 100 * float64(n) / 16
			m.DeviceTime = float64(n) / 16
		}
	}
	if n, err := strconv.Atoi(value("--units")); err == nil {
		part(n)
		if strings.Contains(as, "greedy") && n == 8 {
			m.Rate *= 1.05
		}
		if strings.Contains(as, "lying") && n == 4 {
			m.Units = 16
		}
	}
	if name := value("--name"); name != "" {
		text, err := os.ReadFile(nodes + "/" + name)
		if err != nil {
			return refuse(err.Error())
		}
		set, err := list.Parse(string(text), 16)
		if err != nil {
			return refuse(err.Error())
		}
		part(set.Count())
		m.Seen = set.String()
		if strings.Contains(as, "straying") {
			m.Seen = "0-15"
		}
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(m); err != nil {
		return 1
	}
	return 0
}

// TestRun checks what is concluded from devices that keep, break or do not make promises.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts some hundred processes")
	}
	for _, tc := range []struct {
		as     string
		status int
		want   map[Verdict]int
		broken []string // promise and what was asked
	}{
		{"honest", 0, map[Verdict]int{Kept: 2*(1+4+4+2) + 2*(3+2)}, nil},
		{"anonymous", 0, map[Verdict]int{Kept: 2 * (1 + 4 + 4 + 2), NotOffered: 2}, nil},
		{"anonymous temporal", 0, map[Verdict]int{Kept: 1 + 4 + 4 + 2, NotOffered: 2}, nil},
		{"anonymous temporal greedy", 1, map[Verdict]int{Kept: 10, Broken: 1, NotOffered: 2}, []string{"throughput count=8 (50.00 %)"}},
		{"anonymous temporal lying", 1, map[Verdict]int{Kept: 10, Broken: 1, NotOffered: 2}, []string{"units the program is told count=4"}},
		{"temporal straying", 1, map[Verdict]int{Kept: 11 + 2, Broken: 3, NotOffered: 1},
			[]string{"units by name list=0-3", "units by name list=8-14", "units by name list=0,3,6,9,12,15"}},
	} {
		t.Run(tc.as, func(t *testing.T) {
			t.Setenv("CONFORMANCE_TEST", tc.as)
			t.Setenv("CONFORMANCE_NODES", t.TempDir())
			step := 0
			progress := func(n, all int, what string) {
				if what == "" || n <= step || n > all || all != 1+2*(4+6) {
					t.Errorf("after step %d: %d of %d, %q", step, n, all, what)
				}
				step = n
			}
			report, err := Run(t.Context(), Options{Program: os.Args[0], Seconds: 0.1, Progress: progress})
			if err != nil {
				t.Fatal(err)
			}
			got := map[Verdict]int{}
			var broken []string
			for _, row := range report.Rows {
				got[row.Verdict]++
				if row.Verdict == Broken {
					broken = append(broken, row.Promise+" "+row.Asked)
				}
				if (row.Verdict == NotOffered) != (row.Note != "") {
					t.Errorf("%+v: a note says why something is not offered, and nothing else here", row)
				}
			}
			for v, n := range tc.want {
				if got[v] != n {
					t.Errorf("%d rows are %s, want %d", got[v], v, n)
				}
			}
			if !slices.Equal(broken, tc.broken) {
				t.Errorf("broken are %q, want %q", broken, tc.broken)
			}
			if report.Status() != tc.status || report.Units != 16 || report.Device != "GPU-x" {
				t.Errorf("status %d, want %d; %d units of %s", report.Status(), tc.status, report.Units, report.Device)
			}
			if left, err := os.ReadDir(os.Getenv("CONFORMANCE_NODES")); err != nil || len(left) > 0 {
				t.Errorf("nodes are left behind: %v, %v", left, err)
			}
		})
	}
}

func TestRunSaysWhyItCannot(t *testing.T) {
	t.Setenv("CONFORMANCE_TEST", "mute")
	if _, err := Run(t.Context(), Options{Program: os.Args[0]}); err == nil || !strings.Contains(err.Error(), "no daemon") {
		t.Errorf("error %v does not say that there is no daemon", err)
	}
	if _, err := Run(t.Context(), Options{Program: "/nowhere/lgpu"}); err == nil {
		t.Error("a program that does not exist measured something")
	}
}

// TestRunEnds checks that a probe that never answers does not outlive the caller's patience.
func TestRunEnds(t *testing.T) {
	script := t.TempDir() + "/lgpu"
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, Options{Program: script}); err == nil {
		t.Error("a probe that said nothing was believed")
	}
}

func TestRate(t *testing.T) {
	const ms = 1_000_000
	for _, tc := range []struct {
		name             string
		kernels          []kernel
		lead, span       uint64
		rate, deviceTime float64
		counted          int
	}{
		{"back to back", []kernel{{1 * ms, 11 * ms}, {11 * ms, 21 * ms}, {21 * ms, 31 * ms}}, 0, 30 * ms, 100, 1, 3},
		{"the lead is left out", []kernel{{1 * ms, 2 * ms}, {11 * ms, 21 * ms}, {21 * ms, 31 * ms}}, 10 * ms, 20 * ms, 100, 1, 2},
		{"in part", []kernel{{0, 10 * ms}, {10 * ms, 20 * ms}}, 5 * ms, 10 * ms, 100, 1, 2},
		{"with pauses", []kernel{{0, 5 * ms}, {10 * ms, 15 * ms}, {20 * ms, 25 * ms}}, 0, 20 * ms, 100, 0.5, 2},
		{"stopped early", []kernel{{0, 10 * ms}}, 0, 1000 * ms, 100, 1, 1},
		{"all in the lead", []kernel{{0, 10 * ms}}, 20 * ms, 10 * ms, 0, 0, 0},
		{"none", nil, 0, 10 * ms, 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m Measurement
			rateOf(&m, tc.kernels, tc.lead, tc.span)
			if math.Abs(m.Rate-tc.rate) > 1e-6 || math.Abs(m.DeviceTime-tc.deviceTime) > 1e-9 || m.Kernels != tc.counted {
				t.Errorf("rate %v, device time %v, %d kernels; want %v, %v, %d", m.Rate, m.DeviceTime, m.Kernels, tc.rate, tc.deviceTime, tc.counted)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	e := -0.456
	r := &Report{Device: "GPU-1", Units: 132, Tolerance: 1.5, Rows: []Row{
		{Mode: Temporal, Promise: "throughput", Asked: "count=33 (25.00 %)", Got: "24.54 %", Error: &e, Verdict: Kept},
		{Mode: Temporal, Promise: "units by name", Asked: "list=0-3", Got: "-", Verdict: NotOffered, Note: "shared by time"},
		{Mode: Spatial, Promise: "units by name", Asked: "list=0-3", Got: "-", Verdict: NotOffered, Note: "shared by time"},
	}}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := `device GPU-1, 132 compute units; a promise is kept within 1.5 points

MODE      PROMISE        ASKED               GOT      ERROR  VERDICT
temporal  throughput     count=33 (25.00 %)  24.54 %  -0.46  kept
temporal  units by name  list=0-3            -        -      not offered (1)
spatial   units by name  list=0-3            -        -      not offered (1)

(1) shared by time
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestProbe runs the probe on a software GPU, confined in several ways, and looks at what it says it saw.
func TestProbe(t *testing.T) {
	if _, err := ptx.Parse(probePTX); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("compiles the software GPU's libraries")
	}
	if raceDetector {
		t.Skip("a device that the race detector interprets does no kernel in the probe's time")
	}
	shape := sim.Shape{Devices: 1, Memory: 512 << 20, Units: 8, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 16 << 20}
	libraries := simtest.Libraries(t)
	socket := simtest.Serve(t, shape)
	measure := func(env ...string) Measurement {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "CONFORMANCE_TEST=probe", "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket)
		cmd.Env = append(cmd.Env, env...)
		cmd.Stdin = strings.NewReader("go\n")
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("probe: %v: %s", err, said.String())
		}
		r := bufio.NewReader(bytes.NewReader(out))
		if line, err := r.ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("it begins with %q, %v", line, err)
		}
		var m Measurement
		if err := json.NewDecoder(r).Decode(&m); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return m
	}
	whole := measure()
	if whole.Units != 8 || whole.IDs != 8 || whole.Seen != "0-7" || whole.Rate <= 0 || !strings.HasPrefix(whole.Device, "GPU-") {
		t.Errorf("the whole device: %+v", whole)
	}
	for text, count := range map[string]float64{"1,3,5": 3, "7": 1, "0-3": 4} {
		m := measure("LGPU_SIM_UNITS=" + text)
		// By the device's clock, which a busy host does not disturb: how long a kernel takes on so many units.
		if part := whole.KernelMS / m.KernelMS; m.Units != int(count) || m.IDs != 8 || m.Seen != text || math.Abs(part-count/8) > 0.02*count/8+0.005 {
			t.Errorf("on units %s it has %.4f of the whole device's speed and saw %+v", text, part, m)
		}
	}
}

// TestProbeWithoutDriver checks that the probe says what is missing.
func TestProbeWithoutDriver(t *testing.T) {
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		t.Skip("this machine has a driver")
	}
	err := Probe(ProbeSpec{}, strings.NewReader("go\n"), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "no CUDA driver") {
		t.Errorf("error %v", err)
	}
}
