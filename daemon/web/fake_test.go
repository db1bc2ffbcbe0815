package web

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

var (
	first  = gpu.UUID{0x11, 0x22, 0x33, 0x44, 15: 1}
	second = gpu.UUID{0x55, 0x66, 0x77, 0x88, 15: 2}
)

func pointer[T any](v T) *T { return &v }

// fake is a daemon with two devices that six lgpus share, and a stranger. Shares move with the clock.
type fake struct {
	mu            sync.Mutex
	change        func(*daemon.Snapshot) // guarded by mu; a test's own touch
	subscriptions int                    // guarded by mu; subscriptions open now
	uses          int                    // guarded by mu; users now
	slices        chan []daemon.Slice    // turns that a test sends; nil makes them up
	writes        chan change            // what was written
	writeErr      error                  // what Write says
}

func newFake() *fake { return &fake{writes: make(chan change, 8)} }

func (f *fake) Snapshot() daemon.Snapshot {
	s := machine(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.change != nil {
		f.change(&s)
	}
	return s
}

// touch changes what snapshots show from now on.
func (f *fake) touch(change func(*daemon.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change = change
}

func (f *fake) Recent() []daemon.Event {
	at := time.Now().Add(-10 * time.Minute)
	return []daemon.Event{
		{Seq: 1, Time: at, Kind: daemon.DaemonStarted, Text: "the daemon has started"},
		{Seq: 2, Time: at.Add(time.Minute), Kind: daemon.LgpuCreated, Path: "/vision/train",
			Text: "/vision/train was made for user 1000"},
		{Seq: 3, Time: at.Add(2 * time.Minute), Kind: daemon.ClientJoined, Path: "/vision/train", PID: 812,
			Text: "python (812) joined /vision/train"},
		{Seq: 4, Time: at.Add(5 * time.Minute), Kind: daemon.PoliceStranger, PID: 99,
			Text: "blender (99) uses device 0 without an lgpu and holds 3 GiB"},
		{Seq: 5, Time: at.Add(9 * time.Minute), Kind: daemon.LimitChanged, Path: "/voice/live",
			Text: "compute.min of /voice/live is now 10 %"},
	}
}

func (f *fake) Use() func() {
	f.count(&f.uses, 1)
	return func() { f.count(&f.uses, -1) }
}

func (f *fake) count(n *int, by int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n += by
}

func (f *fake) open() (subscriptions, uses int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subscriptions, f.uses
}

func (f *fake) Write(_ context.Context, _ limits.Author, path string, files map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writeErr != nil {
		return f.writeErr
	}
	f.writes <- change{path, files}
	return nil
}

func (f *fake) Slices() daemon.SliceSubscription {
	f.count(&f.subscriptions, 1)
	return &subscription{f, time.Now().Add(-2 * time.Second)}
}

type subscription struct {
	f  *fake
	at time.Time
}

func (d *subscription) Close() { d.f.count(&d.f.subscriptions, -1) }

func (d *subscription) Next(ctx context.Context) ([]daemon.Slice, uint64, error) {
	select {
	case s, open := <-d.f.slices:
		if !open {
			return nil, 0, daemon.ErrClosed
		}
		return s, 0, nil
	case <-time.After(30 * time.Millisecond):
		if d.f.slices != nil {
			return d.Next(ctx)
		}
		return d.imagine(), 0, nil
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

// imagine makes up turns on the first device from the last until now.
func (d *subscription) imagine() []daemon.Slice {
	var out []daemon.Slice
	order := []struct {
		id     uint64
		length time.Duration
	}{{3, 20}, {4, 10}, {3, 20}, {6, 4}, {4, 10}, {3, 20}, {4, 10}, {6, 4}}
	for i := 0; d.at.Before(time.Now()); i++ {
		turn := order[(i+int(d.at.UnixMilli()))%len(order)]
		length := turn.length*time.Millisecond - time.Duration(d.at.UnixMicro()%900)*time.Microsecond
		out = append(out, daemon.Slice{Device: first, ID: turn.id, Start: d.at, End: d.at.Add(length), Used: length})
		d.at = d.at.Add(length + 60*time.Microsecond)
	}
	return out
}

// machine is what the fake shows at a time.
func machine(at time.Time) daemon.Snapshot {
	wave := math.Sin(float64(at.UnixMilli()) / 9000)
	share := func(v, swing float64) uint32 { return uint32(math.Round(v + swing*wave)) }
	type asks struct{ asked, delivered uint32 }
	lgpu := func(id uint64, path, name string, device gpu.UUID, used uint64, limit limits.Bytes, a asks, state string,
		clients ...daemon.Client) daemon.Directory {
		e := limits.Effective{Bits: list.Upto(132), ComputeMax: 10000, Weight: 100, MemoryMax: limit}
		r := limits.Limits{MemoryMax: limit}
		return daemon.Directory{
			Path: path, Name: name, ID: id, Kind: daemon.KindLgpu, State: state, Clients: clients, Created: at.Add(-time.Hour),
			Devices: []daemon.DeviceUse{{
				Device: device, Effective: e, Requested: r, MemoryUsed: used, MemoryPeak: used, Asked: a.asked,
				Delivered: a.delivered, Measured: true, State: state,
				Busy: 90 * time.Second, Launches: 12345,
			}},
		}
	}
	group := func(id uint64, path, name string, used uint64, limit limits.Bytes, delivered uint32) daemon.Directory {
		return daemon.Directory{Path: path, Name: name, ID: id, Kind: daemon.KindGroup, Persistent: true,
			Devices: []daemon.DeviceUse{
				{Device: first, MemoryUsed: used, Delivered: delivered, Asked: delivered, Measured: true,
					Effective: limits.Effective{ComputeMax: 10000, Weight: 100, MemoryMax: limit}},
			}}
	}
	train := lgpu(3, "/vision/train", "train", first, 48<<30, limits.AtMost(64<<30), asks{5000, share(4990, 60)}, daemon.StateRunning,
		daemon.Client{PID: 812, UID: 1000, Comm: "python", Memory: []uint64{46 << 30}},
		daemon.Client{PID: 813, UID: 1000, Comm: "dataloader-0", Memory: []uint64{2 << 30}})
	train.Devices[0].Energy, train.Devices[0].Power = pointer(uint64(12.4e6)), pointer(uint32(200e3))
	train.Devices[0].Effective.Weight, train.Devices[0].Requested.Weight = 300, 300
	eval := lgpu(4, "/vision/eval", "eval", first, 15<<30, limits.AtMost(16<<30), asks{2500, share(2490, 40)}, daemon.StateWaiting,
		daemon.Client{PID: 901, UID: 1001, Comm: "python", Memory: []uint64{15 << 30}})
	eval.Devices[0].Effective.ComputeMax, eval.Devices[0].Requested.ComputeMax = 2500, pointer(uint32(2500))
	live := lgpu(6, "/voice/live", "live", first, 9<<30, limits.AtMost(10<<30), asks{1400, share(700, 300)}, daemon.StateDraining,
		daemon.Client{PID: 77, UID: 1002, Comm: "whisper", Memory: []uint64{9 << 30}})
	live.Devices[0].Effective.Priority, live.Devices[0].Requested.Priority = limits.Latency, pointer(limits.Latency)
	live.Devices[0].Effective.ComputeMin = 1000
	return daemon.Snapshot{
		At: at,
		Daemon: daemon.Info{Version: "1.2.3", PID: 7, Started: at.Add(-3 * time.Hour), Dir: "/run/lgpu",
			Tree: "/run/lgpu/tree", Police: daemon.PoliceReport, Restarts: 1},
		Devices: []daemon.Device{
			{
				Device: gpu.Device{UUID: first, Name: "NVIDIA H200", Memory: 141 << 30, Units: 132, PCI: "0000:1b:00.0",
					Node: "195:0"},
				Mode: "temporal", Healthy: true, MemoryUsed: 76 << 30, Utilisation: 91, MemoryUtilisation: 40, Sampled: at,
				Power: pointer(uint32(351400)), Energy: pointer(uint64(4500e6)), Temperature: pointer(int32(64)),
				Processes: []daemon.DeviceProcess{
					{PID: 812, Memory: 48 << 30, Path: "/vision/train"}, {PID: 99, Comm: "blender", Memory: 3 << 30},
				},
			},
			{
				Device: gpu.Device{UUID: second, Index: 1, Name: "Software GPU", Memory: 16 << 30, Units: 32},
				Mode:   "temporal", Sim: "1x16GiB,sms=32", Healthy: true, MemoryUsed: 5 << 30, Utilisation: -1,
				MemoryUtilisation: -1, Sampled: at,
			},
		},
		Directories: []daemon.Directory{
			group(1, "/", "", 73<<30, limits.Bytes{}, 8300),
			lgpu(5, "/python-4712", "python-4712", second, 4<<30, limits.Bytes{}, asks{10000, share(6200, 1500)},
				daemon.StateRunning,
				daemon.Client{PID: 4712, UID: 1000, Comm: "python", Memory: []uint64{4 << 30}}),
			group(2, "/vision", "vision", 63<<30, limits.AtMost(96<<30), 7500), eval, train,
			group(7, "/voice", "voice", 9<<30, limits.AtMost(32<<30), 800), live,
			lgpu(8, "/voice/night-batch", "night-batch", first, 1<<30, limits.AtMost(8<<30), asks{}, daemon.StateIdle),
		},
	}
}

// many makes a snapshot one of so many devices, each with what the fake's first has, in a group of its own.
func many(s *daemon.Snapshot, devices int) {
	first, root, rest := s.Devices[0], s.Directories[0], s.Directories[2:]
	s.Devices = nil
	var uses []daemon.DeviceUse
	var below []daemon.Directory
	for i := range devices {
		d, rack, use := first, root, root.Devices[0]
		d.UUID[15], d.Index, d.Node = byte(i+1), i, fmt.Sprintf("195:%d", i)
		s.Devices = append(s.Devices, d)
		use.Device = d.UUID
		uses = append(uses, use)
		rack.Path, rack.ID, rack.Devices = fmt.Sprintf("/rack-%02d", i), uint64(10000+i), []daemon.DeviceUse{use}
		below = append(below, rack)
		for _, n := range rest {
			use := n.Devices[0]
			use.Device = d.UUID
			n.Path, n.ID, n.Devices = rack.Path+n.Path, n.ID+uint64(100*i), []daemon.DeviceUse{use}
			below = append(below, n)
		}
	}
	root.Devices = uses
	s.Directories = append([]daemon.Directory{root}, below...)
}

// story fills a history with ten minutes.
func story(h *history) {
	now := time.Now()
	for i := range maxSamples - 5 {
		s := machine(now.Add(time.Duration(i-maxSamples+5) * time.Second))
		for j := range s.Directories {
			d := &s.Directories[j].Devices[0]
			if s.Directories[j].ID == 4 && i > 200 && i < 330 {
				d.Delivered, d.Asked = 0, 0
			}
			if s.Directories[j].ID == 3 && i > 200 && i < 330 {
				d.Delivered, d.Asked = d.Delivered+2400, 7500
			}
			d.Delivered -= min(d.Delivered, uint32(i*7919%97))
		}
		h.add(&s)
	}
}

// identity is what the page calls a device.
func identity(u gpu.UUID) string {
	d := gpu.Device{UUID: u}
	return d.Identity()
}
