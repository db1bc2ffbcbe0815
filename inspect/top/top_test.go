package top

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
)

var update = flag.Bool("update", false, "rewrite golden files")

const (
	first  = "GPU-11223344-0000-0000-0000-000000000001"
	second = "GPU-55667788-0000-0000-0000-000000000002"
)

func pointer[T any](v T) *T { return &v }

// part is a share in hundredths of a percent.
func part(share uint32) *uint32 { return &share }

// machine is a GPU with four lgpus in a group and beside it, and a stranger; and one that is out of order and unused.
func machine() *api.Snapshot {
	at := timestamppb.New(time.Date(2026, 8, 1, 12, 4, 11, 0, time.UTC))
	effective := func(weight uint32, priority api.Priority, memory uint64) *api.Effective {
		e := &api.Effective{Count: 132, ComputeMax: 10000, LgpuWeight: weight, LgpuPriority: priority}
		if memory > 0 {
			e.MemoryMax = &memory
		}
		return e
	}
	return &api.Snapshot{
		Time:   at,
		Daemon: &api.Daemon{Version: "1.2.3", Pid: 7, Started: at},
		Devices: []*api.Device{
			{
				Uuid: first, Index: 0, Ordinal: "0", Name: "NVIDIA H200", Key: "195:0", MemoryTotal: 141 << 30, MemoryUsed: 62<<30 + 1<<27,
				Units: 132, PowerMw: pointer(uint32(351400)), Temperature: pointer(int32(64)),
				Utilisation: pointer(uint32(87)),
				Processes: []*api.DeviceProcess{
					{Pid: 812, Command: "python", Memory: 6 << 30, Path: "/team/alice"},
					{Pid: 99, Uid: 1002, Command: "blender", Memory: 3 << 30}, {Pid: 4711, Uid: 1001, Command: "ffmpeg", Memory: 1 << 29},
				},
			},
			{
				Uuid: second, Index: 1, Ordinal: "1", Name: "Software GPU", Key: second, Sim: "1x16GiB,sms=32", MemoryTotal: 16 << 30, Units: 32,
				Fault: "the hardware process has ended", Mode: api.Device_SPATIAL,
			},
		},
		Directories: []*api.Directory{
			{Path: "/", Id: 1, Kind: api.Directory_GROUP, Devices: []*api.DeviceUse{
				{Uuid: first, MemoryUsed: 58 << 30, ShareAsked: part(10000), ShareDelivered: part(8650), Effective: effective(100, 0, 0)},
			}},
			{Path: "/python-4712", Id: 5, Kind: api.Directory_LGPU, State: api.State_IDLE, Devices: []*api.DeviceUse{
				{Uuid: first, MemoryUsed: 1 << 29, Effective: effective(100, api.Priority_NORMAL, 0),
					State: api.State_RUNNING}, // not measured
			}, Clients: []*api.Client{{Pid: 4712, Uid: 1001, Command: "python", Memory: []uint64{1 << 29}}}},
			{Path: "/team", Id: 2, Kind: api.Directory_GROUP, Devices: []*api.DeviceUse{
				{Uuid: first, MemoryUsed: 57 << 30, ShareAsked: part(7500), ShareDelivered: part(6500), Effective: effective(300, 0, 64<<30)},
			}},
			{
				Path: "/team/alice", Id: 3, Kind: api.Directory_LGPU, State: api.State_RUNNING,
				Devices: []*api.DeviceUse{{
					Uuid: first, MemoryUsed: 6<<30 + 1<<29, MemoryPeak: 7 << 30, ShareAsked: part(2500), ShareDelivered: part(2490),
					State: api.State_RUNNING, Effective: &api.Effective{ComputeMax: 2500, ComputeMin: 1000, LgpuWeight: 300, LgpuPriority: 2,
						MemoryMax: pointer(uint64(8 << 30))},
					BusyNs: 90e9, Launches: 12345, PowerMw: pointer(uint32(88600)), EnergyMj: pointer(uint64(12_345_678)),
				}},
				Clients: []*api.Client{
					{Pid: 812, Uid: 1000, Command: "python", Memory: []uint64{6 << 30}},
					{Pid: 813, Uid: 1000, Command: "dataloader-0", Memory: []uint64{1 << 29}},
				},
			},
			{Path: "/team/deep/below/training-of-a-large-model", Id: 4, Kind: api.Directory_LGPU, State: api.State_WAITING,
				Devices: []*api.DeviceUse{{
					Uuid: first, MemoryUsed: 50<<30 - 1<<28, ShareAsked: part(5000), ShareDelivered: part(4010), State: api.State_WAITING,
					Effective: effective(10000, api.Priority_NORMAL, 50<<30),
				}}},
			{Path: "/voice", Id: 6, Kind: api.Directory_LGPU, State: api.State_DRAINING, Devices: []*api.DeviceUse{{
				Uuid: first, MemoryUsed: 1 << 30, ShareAsked: part(1000), ShareDelivered: part(5), State: api.State_DRAINING,
				Effective: effective(100, api.Priority_LATENCY, 2<<30),
			}}},
		},
	}
}

// past gives each row a history that falls in steps, again and again, to what it has now.
func past(s *api.Snapshot, frames int) history {
	h := history{}
	h.add(s)
	for r, now := range h {
		var values []int
		for i := range frames {
			values = append(values, now[0]-max(now[0], 0)*((frames-1-i)%8)/8)
		}
		h[r] = values
	}
	return h
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
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

// view is a daemon that shows what the test says.
type view struct {
	api.ViewClient
	mu        sync.Mutex
	snapshots []*api.Snapshot // guarded by mu
	err       error           // guarded by mu; once snapshots are used up
	opened    chan int64      // gets the interval of each Watch
}

func (v *view) take() (*api.Snapshot, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.snapshots) == 0 {
		return nil, v.err
	}
	s := v.snapshots[0]
	v.snapshots = v.snapshots[1:]
	return s, nil
}

func (v *view) Snapshot(context.Context, *api.SnapshotRequest, ...grpc.CallOption) (*api.Snapshot, error) {
	return v.take()
}

type watching struct {
	grpc.ClientStream
	ctx context.Context
	v   *view
}

func (v *view) Watch(ctx context.Context, r *api.WatchRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[api.Snapshot], error) {
	select {
	case v.opened <- r.GetIntervalNs():
	default:
	}
	return &watching{ctx: ctx, v: v}, nil
}

func (w *watching) Recv() (*api.Snapshot, error) {
	s, err := w.v.take()
	if s == nil && err == nil {
		<-w.ctx.Done()
		return nil, w.ctx.Err()
	}
	return s, err
}

// people are the users of the test's machine.
func people(uid uint32) string {
	return map[uint32]string{0: "root", 1000: "alice", 1001: "bob-the-builder", 1002: "carol"}[uid]
}

// mind is a daemon that notes what is written, and says err.
type mind struct {
	writes []string
	err    error
}

func (w *mind) write(path, assignment string) error {
	w.writes = append(w.writes, path+" "+assignment)
	return w.err
}

func live(width, height int) *model {
	s := machine()
	m := newModel(nil, false, (&mind{}).write)
	m.frame.zone, m.frame.user = time.UTC, people
	m.Update(arrived{s})
	m.frame.history = past(s, longest)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return m
}

// press sends keys as bubbletea does.
func press(m *model, keys ...string) tea.Cmd {
	var command tea.Cmd
	for _, k := range keys {
		key := tea.Key{Text: k}
		switch k {
		case "down":
			key = tea.Key{Code: tea.KeyDown}
		case "up":
			key = tea.Key{Code: tea.KeyUp}
		case "end":
			key = tea.Key{Code: tea.KeyEnd}
		case "home":
			key = tea.Key{Code: tea.KeyHome}
		case "enter":
			key = tea.Key{Code: tea.KeyEnter}
		case "left":
			key = tea.Key{Code: tea.KeyLeft}
		case "right":
			key = tea.Key{Code: tea.KeyRight}
		case "esc":
			key = tea.Key{Code: tea.KeyEscape}
		case "backspace":
			key = tea.Key{Code: tea.KeyBackspace}
		case "space":
			key = tea.Key{Code: tea.KeySpace, Text: " "}
		default:
			key.Code, _ = utf8.DecodeRuneInString(k)
		}
		_, command = m.Update(tea.KeyPressMsg(key))
	}
	return command
}

// TestFrames compares whole screens with golden files.
func TestFrames(t *testing.T) {
	for _, width := range []int{60, 80, 120, 200} {
		m := live(width, 24)
		golden(t, fmt.Sprintf("live-%d.txt", width), m.picture()+"\n")
	}
	m := live(60, 24)
	press(m, "e", "j")
	golden(t, "energy-60.txt", m.picture()+"\n")
	m = live(80, 30)
	press(m, "g", "c", "down", "down", "down", "enter")
	golden(t, "flat-by-share.txt", m.picture()+"\n")
	m = live(60, 24)
	press(m, "p", "down")
	golden(t, "processes-60.txt", m.picture()+"\n")
	m = live(60, 24)
	press(m, "h")
	golden(t, "help.txt", m.picture()+"\n")
	f := frame{snapshot: machine(), width: 80, zone: time.UTC, once: true, user: people}
	golden(t, "once-80.txt", f.text())
	f.width, f.all = 120, true
	golden(t, "once-120.txt", f.text())
}

// TestScreenIsKept: whatever the size of the terminal and whatever is shown, the picture has its size.
func TestScreenIsKept(t *testing.T) {
	for _, painted := range []paint{false, true} {
		for _, width := range []int{1, 2, 10, 20, 37, 60, 79, 80, 81, 100, 133, 300} {
			for _, height := range []int{1, 2, 3, 5, 24, 60} {
				m := live(width, height)
				m.frame.paint = painted
				for _, keys := range [][]string{{}, {"a"}, {"g"}, {"end"}, {"home"}, {"p"}, {"p", "end", "s"}, {"esc", "k"}, {"h"}} {
					press(m, keys...)
					lines := strings.Split(m.picture(), "\n")
					if len(lines) != height {
						t.Fatalf("%d x %d after %q: %d lines", width, height, keys, len(lines))
					}
					for _, l := range lines {
						if w := ansi.StringWidth(l); w > width {
							t.Fatalf("%d x %d after %q: %d columns: %q", width, height, keys, w, l)
						}
					}
				}
			}
		}
	}
}

// TestFits: in 60 columns and more nothing of the usual is cut off, and what was asked for and got is always there.
func TestFits(t *testing.T) {
	for _, width := range []int{40, 59, 60, 61, 69, 70, 80, 90, 100, 140} {
		f := frame{snapshot: machine(), width: width, zone: time.UTC, history: past(machine(), 3), user: people}
		lines := []string{f.heading()}
		for _, l := range f.lines() {
			if l.row.id != 0 {
				lines = append(lines, l.text)
			}
		}
		for i, text := range lines {
			if w := ansi.StringWidth(text); w > width-1 {
				t.Errorf("in %d columns: %d columns: %q", width, w, text)
			}
			if want := []string{"ASKED→GOT", "→"}[min(i, 1)]; !strings.Contains(text, want) {
				t.Errorf("in %d columns: no %s: %q", width, want, text)
			}
		}
		for _, column := range []string{"USER", "STATE", "USED/MAX"} {
			if width >= 60 && !strings.Contains(lines[0], column) {
				t.Errorf("in %d columns: no %s", width, column)
			}
		}
	}
}

func TestPlain(t *testing.T) {
	m := live(80, 24)
	press(m, "down")
	if p := m.picture(); strings.Contains(p, "\x1b") {
		t.Errorf("an escape sequence without colours: %q", p)
	}
	m.frame.paint = true
	if p := m.picture(); !strings.Contains(p, "\x1b[") {
		t.Error("no colours")
	}
}

// TestHostileText: what others chose as names cannot write to the terminal.
func TestHostileText(t *testing.T) {
	s := machine()
	const evil = "\x1b]0;x\x07\x1b[2J\n\xff\u202e"
	s.Devices[0].Name, s.Devices[0].Key, s.Devices[1].Fault = evil, evil, evil
	s.Devices[0].Processes[1].Command = evil
	s.Directories[3].Path, s.Directories[3].Clients[0].Command = "/"+evil, evil
	s.Daemon.Version = evil
	m := newModel(nil, false, nil)
	m.Update(arrived{s})
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 50})
	press(m, "a")
	for _, r := range strings.ReplaceAll(m.picture(), "\n", "") {
		if r < ' ' || r == 0x202e {
			t.Fatalf("%q in %q", r, m.picture())
		}
	}
	if n := strings.Count(m.picture(), "\n"); n != 49 {
		t.Errorf("%d lines", n+1)
	}
}

// TestHistory: it is bounded in length and in rows.
func TestHistory(t *testing.T) {
	h := history{}
	s := machine()
	for range 3 * longest {
		h.add(s)
	}
	if n := len(h[row{id: 3, device: first}]); n != longest {
		t.Errorf("%d values", n)
	}
	s.Directories = s.Directories[:1]
	h.add(s)
	if len(h) != 1 {
		t.Errorf("%d rows", len(h))
	}
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		part  float64
		width int
		want  string
	}{
		{0, 4, "░░░░"}, {1, 4, "████"}, {.5, 4, "██░░"}, {.0001, 4, "▏░░░"}, {.9999, 4, "███▉"}, {.125, 1, "▏"},
		{2, 2, "██"}, {-1, 2, "░░"}, {.5, 0, ""}, {.5, -3, ""},
	} {
		filled, rest := bar(test.part, test.width)
		if filled+rest != test.want {
			t.Errorf("bar(%v, %d) = %q, want %q", test.part, test.width, filled+rest, test.want)
		}
	}
}

func TestSpark(t *testing.T) {
	for _, test := range []struct {
		values []int
		full   uint32
		width  int
		want   string
	}{
		{nil, 100, 3, "   "}, {[]int{0, 50, 100}, 100, 4, " ▁▄█"}, {[]int{1, 2, 300}, 100, 2, "▁█"},
		{[]int{25, 25}, 2500, 2, "▁▁"}, {[]int{5}, 5, 0, ""},
		{[]int{unmeasured, 50, unmeasured, 100}, 100, 4, " ▄ █"}, {[]int{unmeasured}, 0, 1, " "},
	} {
		if got := spark(test.values, test.full, test.width); got != test.want {
			t.Errorf("spark(%v, %d, %d) = %q, want %q", test.values, test.full, test.width, got, test.want)
		}
	}
}

func TestSizeAndPercent(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0", 1023: "1023", 1024: "1K", 1536: "1.5K", 8 << 30: "8G", 8<<30 + 1<<29: "8.5G", 141 << 30: "141G",
		1<<40 - 1: "1T", 99<<30 + 1<<29: "99.5G", 1 << 62: "4E", 1<<64 - 1: "16E", 1023 << 20: "1023M", 1<<20 - 1: "1M",
		10<<30 - 1: "10G",
	} {
		if got := size(n); got != want || len(got) > 5 {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
	for n, want := range map[uint32]string{0: "0", 5: "0.1", 2490: "24.9", 2500: "25", 9995: "100", 10000: "100",
		9994: "99.9"} {
		if got := percent(nil); got != "-" {
			t.Errorf("what is not measured is %q", got)
		}
		if got := percent(&n); got != want {
			t.Errorf("percent(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestOnceJSON(t *testing.T) {
	var out bytes.Buffer
	if err := Once(t.Context(), &view{snapshots: []*api.Snapshot{machine()}}, Options{Out: &out, JSON: true}); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out.Bytes()) {
		t.Fatal("not JSON")
	}
	golden(t, "once.json", out.String())
	out.Reset()
	if err := Once(t.Context(), &view{snapshots: []*api.Snapshot{{}}}, Options{Out: &out, JSON: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"devices": []`) {
		t.Errorf("an empty machine: %s", out.String())
	}
}

func TestOnce(t *testing.T) {
	var out bytes.Buffer
	if err := Once(t.Context(), &view{snapshots: []*api.Snapshot{machine()}}, Options{Out: &out}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "▾ team") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%s", out.String())
	}
	err := Once(t.Context(), &view{err: status.Error(codes.Unavailable, "dial unix: connection refused")},
		Options{Out: &out})
	if err == nil || err.Error() != "ask the daemon: it does not answer" {
		t.Errorf("no daemon: %v", err)
	}
}

// TestRun types keys at a view that gets a snapshot, loses the daemon and finds it again.
func TestRun(t *testing.T) {
	in, keys := io.Pipe()
	v := &view{
		snapshots: []*api.Snapshot{machine()}, err: status.Error(codes.Unavailable, "gone"), opened: make(chan int64, 8),
	}
	var out bytes.Buffer
	ended := make(chan error)
	go func() {
		ended <- run(t.Context(), v, Options{In: in, Out: &out, Interval: 250 * time.Millisecond}, tea.WithWindowSize(80, 24))
	}()
	if interval := <-v.opened; interval != 250e6 {
		t.Errorf("interval %d", interval)
	}
	<-v.opened // it tries again
	v.mu.Lock()
	v.snapshots, v.err = []*api.Snapshot{machine()}, nil
	v.mu.Unlock()
	if _, err := keys.Write([]byte("cq")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if !strings.Contains(out.String(), "NVIDIA H200") {
		t.Errorf("nothing was shown: %q", out.String())
	}
}

func TestRunWithoutDaemon(t *testing.T) {
	err := Run(t.Context(), &view{err: status.Error(codes.Unavailable, "gone")},
		Options{In: strings.NewReader(""), Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Run: %v", err)
	}
}

func TestRunEndsWithContext(t *testing.T) {
	in, _ := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	v := &view{snapshots: []*api.Snapshot{machine()}, opened: make(chan int64, 1)}
	go func() {
		<-v.opened
		cancel()
	}()
	if err := Run(ctx, v, Options{In: in, Out: io.Discard}); err != nil && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("Run: %v", err)
	}
}

// TestBehind: the share of an lgpu is marked where it wants its device and has clearly less than it is entitled to.
func TestBehind(t *testing.T) {
	for _, test := range []struct {
		state            api.State
		asked, delivered uint32
		want             bool
	}{
		{api.State_WAITING, 5000, 4000, true}, {api.State_RUNNING, 5000, 4000, true}, {api.State_RUNNING, 5000, 4900, false},
		{api.State_RUNNING, 100, 0, false}, {api.State_IDLE, 5000, 0, false}, {api.State_DRAINING, 5000, 0, false},
	} {
		d := &api.DeviceUse{State: test.state, ShareAsked: &test.asked, ShareDelivered: &test.delivered}
		if got := behind(d); got != test.want {
			t.Errorf("behind(%v) = %v", d, got)
		}
	}
}

// What is suspended says so in a column that is wide enough, and its bar shows what has left the device.
func TestSuspended(t *testing.T) {
	s := machine()
	for _, n := range s.GetDirectories() {
		if n.GetPath() != "/team/alice" {
			continue
		}
		d := n.GetDevices()[0]
		n.State, d.State = api.State_SUSPENDING, api.State_SUSPENDING
		d.MemoryResident, d.MemoryEvicted = pointer(uint64(3<<30+1<<28)), pointer(uint64(3<<30+1<<28)) // halves of 6.5 GiB of 8
	}
	for _, width := range []int{60, 80, 120, 200} {
		f := frame{snapshot: s, width: width, once: true, zone: time.UTC, user: people, history: past(s, longest)}
		found := false
		for _, l := range f.lines() {
			if len([]rune(l.text)) > width {
				t.Errorf("in %d columns: %q", width, l.text)
			}
			if !strings.Contains(l.text, "suspending") {
				continue
			}
			found = true
			on, off := strings.Count(l.text, "█"), strings.Count(l.text, "▒")
			if c := f.layout(); c.bar > 0 && (off == 0 || on+off >= c.bar || width == 200 && on-off > 1) {
				t.Errorf("in %d columns %d cells on the device and %d off: %q", width, on, off, l.text)
			}
		}
		if !found {
			t.Errorf("in %d columns nothing is suspending", width)
		}
	}
}

// TestJoules: an energy has six cells at most, whatever it is.
func TestJoules(t *testing.T) {
	for mj, want := range map[uint64]string{
		0: "0.0J", 830: "0.8J", 9_960: "10J", 351_400: "351J", 999_499: "999J", 999_500: "1.0kJ", 12_345_678: "12.3kJ",
		99_949_999: "99.9kJ", 99_950_000: "100kJ", 3_600_000_000: "3.6MJ", 1 << 63: "9.2PJ", 1<<64 - 1: "18.4PJ",
	} {
		if got := joules(&mj); got != want {
			t.Errorf("%d mJ: %q, want %q", mj, got, want)
		}
	}
	if got := joules(nil); got != "" {
		t.Errorf("no counter: %q", got)
	}
}
