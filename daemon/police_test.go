package daemon

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/tenant/region"
)

func waitStatus(t *testing.T, c *exec.Cmd) syscall.Signal {
	t.Helper()
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the process lives on")
	}
	return c.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func TestStranger(t *testing.T) {
	for _, c := range []struct {
		police Policy
		stops  bool
	}{{PoliceReport, false}, {PoliceStop, false}, {PoliceStopStrangers, true}} {
		t.Run(string(c.police), func(t *testing.T) {
			stranger := program(t)
			r := start(t, Config{PolicePeriod: time.Millisecond, Police: c.police})
			events := r.events(t)
			uuid := gpu.UUID{0xfa, 0xce, 15: 1}
			r.gpus.SetFacts(uuid, gpu.Facts{MemoryUsed: 5 << 30, Processes: []gpu.Process{
				{PID: stranger.Process.Pid, Memory: 5 << 30, Utilisation: 70}, {PID: os.Getpid(),
					Memory: 1}, {PID: 1 << 22, Memory: 1},
			}})
			e := events.await(t, PoliceStranger)
			if e.PID != stranger.Process.Pid || *e.Device != uuid || e.Bytes != 5<<30 || e.Path != "" ||
				!strings.Contains(e.Text, "(sleep)") {
				t.Errorf("%+v", e)
			}
			d := r.Snapshot().Devices[0]
			// One that is stopped may be gone by now, and its name with it.
			if d.MemoryUsed != 5<<30 || d.Processes[0].Comm != "sleep" && !c.stops || d.Processes[0].Path != "" ||
				d.Processes[0].Utilisation != 70 {
				t.Errorf("%+v", d)
			}
			if c.stops {
				events.await(t, PoliceStopped)
				if s := waitStatus(t, stranger); s != syscall.SIGTERM {
					t.Errorf("ended by %v", s)
				}
			} else if r.Counters().Events[PoliceStopped] != 0 {
				t.Error("stopped")
			}
			// It is reported once, however long it stays, and nobody else is.
			r.gpus.Break(uuid, errors.New("lost"))
			events.await(t, DeviceFault)
			if d := r.Snapshot().Devices[0]; d.Healthy || d.Fault != "lost" {
				t.Errorf("%+v", d)
			}
			r.gpus.Break(uuid, nil)
			events.await(t, DeviceWell)
			if got := r.Counters().Events[PoliceStranger]; got != 1 {
				t.Errorf("%d reports", got)
			}
		})
	}
}

// In a container the driver's numbers may be those of other processes: nobody is taken for one.
func TestNamespaced(t *testing.T) {
	r := start(t, Config{PolicePeriod: time.Millisecond, Police: PoliceStopStrangers})
	events := r.events(t)
	innocent := program(t)
	uuid := gpu.UUID{0xfa, 0xce, 15: 1}
	r.gpus.SetFacts(uuid, gpu.Facts{Namespaced: true, Processes: []gpu.Process{{PID: innocent.Process.Pid,
		Memory: 1 << 30}}})
	for range 2 { // two looks at least
		r.gpus.Break(gpu.UUID{0xfa, 0xce, 15: 2}, errors.New("lost"))
		events.await(t, DeviceFault)
		r.gpus.Break(gpu.UUID{0xfa, 0xce, 15: 2}, nil)
		events.await(t, DeviceWell)
	}
	if got := r.Counters().Events[PoliceStranger]; got != 0 {
		t.Errorf("%d were reported", got)
	}
}

// A process that descends from a launcher but is no client has left its limits behind: that is stopped by the policy
// stop.
func TestBypass(t *testing.T) {
	r := start(t, Config{PolicePeriod: time.Millisecond, Police: PoliceStop})
	events := r.events(t)
	// This process is the launcher, so that its child is a tenant. Neither it nor its parent may ever be stopped.
	h := r.holds(t, AttachSpec{})
	defer h.Close()
	child := program(t)
	r.gpus.SetFacts(h.Devices[0].UUID, gpu.Facts{Processes: []gpu.Process{{PID: child.Process.Pid, Memory: 1 << 30},
		{PID: os.Getppid()}}})
	e := events.await(t, PoliceStranger)
	if e.PID == os.Getppid() {
		e = events.await(t, PoliceStranger)
	}
	if e.PID != child.Process.Pid || e.Path != h.Path {
		t.Errorf("%+v", e)
	}
	if s := waitStatus(t, child); s != syscall.SIGTERM {
		t.Errorf("ended by %v", s)
	}
}

// One that does not heed SIGTERM is killed.
func TestStopInsists(t *testing.T) {
	r := start(t, Config{PolicePeriod: time.Millisecond, Police: PoliceStopStrangers, StopGrace: 50 * time.Millisecond})
	stubborn := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done")
	stubborn.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := stubborn.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stubborn.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-stubborn.Process.Pid, syscall.SIGKILL) })
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	r.gpus.SetFacts(gpu.UUID{0xfa, 0xce, 15: 2}, gpu.Facts{Processes: []gpu.Process{{PID: stubborn.Process.Pid}}})
	if s := waitStatus(t, stubborn); s != syscall.SIGKILL {
		t.Errorf("ended by %v", s)
	}
}

// The daemon, process 1 and what the daemon descends from are spared whatever they do.
func TestSpared(t *testing.T) {
	r := start(t, Config{Police: PoliceStopStrangers})
	for _, pid := range []int{1, os.Getpid(), os.Getppid()} {
		s, err := proc.Live(pid)
		if err != nil {
			t.Fatal(err)
		}
		r.police.stop(processKey{PID: pid, Start: s.Start}, Event{})
	}
	// Nor does a number that was given to another process meanwhile mean that one.
	p := program(t)
	r.police.stop(processKey{PID: p.Process.Pid, Start: 1}, Event{})
	if got := r.Counters().Events[PoliceStopped]; got != 0 {
		t.Errorf("%d were stopped", got)
	}
}

func TestOverrun(t *testing.T) {
	const mib = 1 << 20
	r := start(t, Config{PolicePeriod: time.Millisecond, Police: PoliceStop})
	events := r.events(t)
	h := r.holds(t, AttachSpec{Devices: []string{"0"}, Limits: memory(1000 * mib)})
	defer h.Close()
	if err := r.Tree().Write(h.Path, "memory.high", "195:0 524288000"); err != nil {
		t.Fatal(err)
	}
	uuid := h.Devices[0].UUID
	good, bad := program(t), program(t)
	for _, p := range []*exec.Cmd{good, bad} {
		s, err := proc.Live(p.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		r.tenants.join(tenant.Client{
			LGPU: h.ID, Linked: true, Memory: []uint64{400 * mib},
			Peer: tenant.Peer{Process: tenant.Process{PID: p.Process.Pid, Start: s.Start}},
		})
	}
	set := func(books, goods, bads uint64) {
		r.tenants.setUsage(h.ID, region.State{Devices: []region.DeviceUse{{Used: books}}})
		r.gpus.SetFacts(uuid, gpu.Facts{Processes: []gpu.Process{
			{PID: good.Process.Pid, Memory: goods}, {PID: bad.Process.Pid, Memory: bads},
		}})
	}
	set(800*mib, 430*mib, 430*mib) // 60 MiB more than the books: that is within what may be
	if e := events.await(t, MemoryHigh); e.Path != h.Path || e.Bytes != 800*mib {
		t.Errorf("%+v", e)
	}
	set(800*mib, 400*mib, 500*mib) // more than the books, within the limit
	e := events.await(t, PoliceOverrun)
	if e.PID != bad.Process.Pid || e.Bytes != 900*mib || e.Path != h.Path || strings.Contains(e.Text, "limit") {
		t.Errorf("%+v", e)
	}
	if r.Counters().Events[PoliceStopped] != 0 {
		t.Error("stopped within its limit")
	}
	// It is well again once a look at the devices has found it so: a later fault shows that there was one.
	set(0, 0, 0)
	r.gpus.Break(gpu.UUID{0xfa, 0xce, 15: 2}, errors.New("lost"))
	events.await(t, DeviceFault)
	set(800*mib, 400*mib, 900*mib)
	if e = events.await(t, PoliceOverrun); !strings.Contains(e.Text, "limit") || e.PID != bad.Process.Pid {
		t.Errorf("%+v", e)
	}
	if s := waitStatus(t, bad); s != syscall.SIGTERM {
		t.Errorf("ended by %v", s)
	}
	if n := r.Counters().Events[MemoryHigh]; n < 1 || n > 2 {
		t.Errorf("%d times above memory.high", n)
	}
}

// What the driver has reported of a device is told once, and shown as long as the driver says so.
func TestFault(t *testing.T) {
	r := start(t, Config{PolicePeriod: time.Millisecond})
	events := r.events(t)
	uuid := gpu.UUID{0xfa, 0xce, 15: 1}
	r.gpus.SetFacts(uuid, gpu.Facts{MemoryUsed: 1, Fault: "Xid 79"})
	events.await(t, DeviceFault)
	if d := r.Snapshot().Devices[0]; d.Healthy || d.Fault != "Xid 79" || d.MemoryUsed != 1 || d.About == nil || d.About.Capability != "9.0" {
		t.Errorf("%+v", d)
	}
	r.gpus.SetFacts(uuid, gpu.Facts{})
	events.await(t, DeviceWell)
	if got := r.Counters().Events[DeviceFault]; got != 1 {
		t.Errorf("%d reports", got)
	}
}
