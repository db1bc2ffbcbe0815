package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim/wire"
)

// A program that uses the driver of a managed software GPU past the interposer is found by what the device says: one
// that has nothing to do with an lgpu is reported, one that descends from a launcher is stopped.
func TestStrangerOnDevice(t *testing.T) {
	hold := compile(t, "../test/programs/hold.c")
	_, driver := libraries(t)
	n, err := Open(Config{
		Dir: shortDir(t), SimCommand: simCommand(), Inventories: []gpu.Inventory{}, Mount: MountOff, Police: PoliceStop,
		PolicePeriod: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Daemon: n}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	events := r.events(t)
	launcher := newTenantGroup(t)
	h := r.holds(t, AttachSpec{Sim: "1x256MiB,sms=2,context=16MiB", Launcher: limits.Author{PID: launcher.launcher.Process.Pid}})
	launcher.held = *h
	defer h.Close()

	past := func() *exec.Cmd {
		c := exec.Command(hold, "0", "50331648")
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+driver, wire.Environment+"="+h.Environment[wire.Environment])
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		return c
	}
	stranger := past()
	e := events.await(t, PoliceStranger)
	if e.PID != stranger.Process.Pid || e.Path != "" || e.Bytes < 16<<20 {
		t.Errorf("%+v", e)
	}

	// Input that never ends, so that programs stay.
	fifo := filepath.Join(t.TempDir(), "input")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stays := []string{"sh", "-c", "'" + hold + " 0 50331648 <>" + fifo + "'"}
	launcher.run(t, "env", append([]string{"-u", "LD_PRELOAD"}, stays...)...) // the tenant drops the library
	e = events.await(t, PoliceStranger)
	if e.Path != h.Path || e.PID == stranger.Process.Pid {
		t.Errorf("%+v", e)
	}
	if stopped := events.await(t, PoliceStopped); stopped.PID != e.PID {
		t.Errorf("%+v", stopped)
	}
	// A program that keeps the library is a client, and is left alone.
	launcher.run(t, stays[0], stays[1:]...)
	joined := events.await(t, ClientJoined)
	for {
		s := n.Snapshot()
		d := s.Devices[0]
		// The driver's figures are of its last look, those of the lgpu of now.
		seen := slices.ContainsFunc(d.Processes, func(p DeviceProcess) bool { return p.PID == joined.PID && p.Memory >= 48<<20 })
		if len(d.Processes) == 2 && seen && s.Directories[1].Devices[0].MemoryUsed >= 48<<20 {
			for _, p := range d.Processes {
				if p.PID == joined.PID && p.Path != h.Path || p.PID == stranger.Process.Pid &&
					p.Path != "" {
					t.Errorf("%+v", p)
				}
			}
			break
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the device does not show the client")
		case <-time.After(time.Millisecond):
		}
	}
	for _, e := range n.Recent() {
		if e.Kind == PoliceStopped && e.PID == joined.PID || e.Kind == PoliceOverrun || strings.Contains(e.Text,
			"cannot") {
			t.Errorf("%+v", e)
		}
	}
}
