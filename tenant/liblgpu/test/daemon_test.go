package test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// A grant runs until Busy reaches its end, is reported once with whoever waits, and its charge is what the device
// worked.
func TestGrant(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: 40_000_000})
	c.wait("later 1 1000: 0")
	c.order("later 200 1000")
	m := p.expect(protocol.Closed)
	if m.Serial != 1 || m.Flags&protocol.FlagWaiting == 0 || m.Value < 30_000_000 || m.Value != d.region.Busy(0) {
		t.Errorf("the grant ended with %+v, Busy is %d", m, d.region.Busy(0))
	}
	// What crossed the end of a grant is void; what is new counts, and may be changed while it runs.
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	p.say(protocol.Message{Kind: protocol.Open, Serial: 2, Value: m.Value + 10_000_000})
	if m = p.expect(protocol.Closed); m.Serial != 2 {
		t.Errorf("the grant ended with %+v", m)
	}
	p.say(protocol.Message{Kind: protocol.Open, Serial: 3, Value: m.Value + 1_000_000_000})
	p.say(protocol.Message{Kind: protocol.Open, Serial: 3, Value: protocol.Forever})
	c.wait("later 200 1000: 0")
	c.do("sync")
	if busy := d.region.Busy(0); busy < 200_000_000 {
		t.Errorf("201 kernels of 1 ms were charged %d ns", busy)
	}
	// Close ends it, at once where nothing runs.
	p.say(protocol.Message{Kind: protocol.Close, Serial: 3})
	if m = p.expect(protocol.Closed); m.Serial != 3 || m.Flags != 0 {
		t.Errorf("the grant ended with %+v", m)
	}
	c.order("later 1 1000")
	p.expect(protocol.Want)
}

// An idle process keeps its grant, until somebody else wants the device.
func TestIdle(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.do("sync")
	if m, _, err := p.try(50 * time.Millisecond); err == nil {
		t.Fatalf("an idle client said %+v", m)
	}
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever, Flags: protocol.FlagWanted})
	if m := p.expect(protocol.Closed); m.Serial != 1 || m.Flags != 0 {
		t.Errorf("the grant ended with %+v", m)
	}
}

// A free gate keeps no accounts; when it is put back, what was launched before is waited for, whoever launched it.
func TestFree(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("sync")
	before := d.region.State().Devices[0]
	c.do("launch 100 2000")
	p.say(protocol.Message{Kind: protocol.Close, Serial: 9})
	m := p.expect(protocol.Closed)
	if after := d.region.State().Devices[0]; after.Launches != before.Launches || after.Busy != before.Busy {
		t.Errorf("a free gate counted: %+v, then %+v", before, after)
	}
	if m.Serial != 9 {
		t.Errorf("the free gate was closed with %+v", m)
	}
	c.order("later 1 1000") // before that it could still have found the gate free
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 10, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.do("sync")
	if after := d.region.State().Devices[0]; after.Launches != before.Launches+1 {
		t.Errorf("%d launches were counted behind the closed gate; want 1", after.Launches-before.Launches)
	}
}

// While a stream is being captured a free gate closes too; the capture stays good.
func TestFreeDuringCapture(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("sync")
	c.do("capture")
	p.say(protocol.Message{Kind: protocol.Close, Serial: 9})
	p.expect(protocol.Closed)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 10, Value: protocol.Forever})
}

// paused is the library with its fault points as pauses.
var paused = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built.dir, "liblgpu-paused.so")
	return path, library(path, "-DLGPU_FAULT_POINTS", "testdata/pause.c")
})

// A capture that begins while a free gate is put back, after its look at captures and before its wait, stays good.
func TestCaptureBeginsDuringFlush(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	preload, err := paused()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "paused")
	d.env = []string{"LD_PRELOAD=" + preload, "LGPU_PAUSE=flush", "LGPU_PAUSED=" + file}
	c, p := d.begin(dev)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("sync")
	p.say(protocol.Message{Kind: protocol.Close, Serial: 9})
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the gate is not put back")
		}
	}
	c.do("capture")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	p.expect(protocol.Closed)
	c.do("captured")
}

// Seep lets one launch through a closed gate, or none if none waits.
func TestSeep(t *testing.T) {
	d, c, p := begun(t)
	for serial := uint64(1); serial <= 3; serial++ {
		p.say(protocol.Message{Kind: protocol.Seep, Serial: serial, Value: 1})
		c.wait("later 1 1000: 0")
		if m := p.expect(protocol.Closed); m.Serial != serial || m.Flags != 0 {
			t.Errorf("the launch ended with %+v", m)
		}
		if have := d.region.State().Devices[0].Launches; have != serial {
			t.Errorf("%d launches passed, want %d", have, serial)
		}
		if serial < 3 {
			c.order("later 1 1000")
			p.expect(protocol.Want)
		}
	}
	p.say(protocol.Message{Kind: protocol.Seep, Serial: 4, Value: 1})
	if m := p.expect(protocol.Closed); m.Serial != 4 {
		t.Errorf("an idle gate answered %+v", m)
	}
}

// Work that is slow is not work that waits for launches: a closed gate drains.
func TestSlowDrains(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.do("sync")
	c.order("later 100 300000")
	for d.region.State().Devices[0].Launches < 3 { // two, whose duration is not known, run
		time.Sleep(time.Millisecond)
	}
	p.say(protocol.Message{Kind: protocol.Close, Serial: 1})
	p.expect(protocol.Closed)
	if have := d.region.State().Devices[0].Launches; have > 50 {
		t.Errorf("the gate drained after %d launches", have)
	}
}

// A launch for which a free gate's work waits passes when that gate is put back.
func TestFreeWaitsForLaunch(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("hold")
	d.region.SetGranted(0, d.region.Used(0))
	c.order("alloc 1")
	p.expect(protocol.Need)
	d.region.SetGranted(0, 512*mib)
	p.say(protocol.Message{Kind: protocol.Close, Serial: 9})
	p.say(protocol.Message{Kind: protocol.Memory}) // it hears one after the other
	c.wait("alloc 1: 0")
	c.do("release")
	p.expect(protocol.Closed)
}

// A Seep that nobody can use any more ends.
func TestSeepRefused(t *testing.T) {
	d, c, p := begun(t)
	d.region.SetCompute(0, 0)
	p.say(protocol.Message{Kind: protocol.Seep, Serial: 1, Value: 1})
	c.wait("later 1 1000: 800")
	if m := p.expect(protocol.Closed); m.Serial != 1 {
		t.Errorf("the gate answered %+v", m)
	}
}

// Without compute launches fail, also those that wait, and again succeed when there is some.
func TestNoCompute(t *testing.T) {
	const notPermitted = 800
	d, c, p := begun(t)
	d.region.SetCompute(0, 0)
	c.wait(fmt.Sprintf("later 1 1000: %d", notPermitted))
	c.order("launch 1 1000")
	c.wait(fmt.Sprintf("launch 1 1000: %d", notPermitted))
	d.region.SetCompute(0, region.FullCompute)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.do("launch 1 1000")
	c.do("sync")
}

// Limits change under a running program.
func TestLiveLimits(t *testing.T) {
	d, c, p := joined(t)
	c.do("alloc 128")
	c.order("units")
	c.wait("4 units")
	c.wait("units: 0")
	d.region.SetUnits(0, 2)
	c.order("units")
	c.wait("2 units")
	c.wait("units: 0")
	used := d.region.Used(0)
	d.region.SetMemory(0, used)
	d.region.SetGranted(0, used)
	c.order("alloc 1")
	if m := p.expect(protocol.Need); m.Value != mib || m.Device != 0 {
		t.Errorf("the client asked for %+v", m)
	}
	p.say(protocol.Message{Kind: protocol.Memory, Value: used})
	c.wait("alloc 1: 2")
	c.order("info")
	c.wait(fmt.Sprintf("0 of %d", used/mib))
	c.wait("info: 0")
	// More is granted when it is asked for.
	d.region.SetMemory(0, used+64*mib)
	c.order("alloc 64")
	p.expect(protocol.Need)
	d.region.SetGranted(0, used+64*mib)
	p.say(protocol.Message{Kind: protocol.Memory, Value: used + 64*mib})
	c.wait("alloc 64: 0")
}

// Each of two threads that need memory waits for its own answer.
func TestNeedsAtOnce(t *testing.T) {
	d, c, p := joined(t)
	c.do("alloc 4")
	used := d.region.Used(0)
	d.region.SetGranted(0, used)
	c.order("claim 10")
	p.expect(protocol.Need)
	c.order("claim 20")
	p.expect(protocol.Need)
	d.region.SetGranted(0, used+10*mib)
	p.say(protocol.Message{Kind: protocol.Memory})
	c.wait("claim 10: 0")
	d.region.SetGranted(0, used+30*mib)
	p.say(protocol.Message{Kind: protocol.Memory})
	c.wait("claim 20: 0")
}

// Signals do not keep a program from its GPU.
func TestSignals(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	c := d.client(dev)
	c.do("alarm")
	c.order("init")
	p, _, _ := d.accept()
	for range 10 { // it waits for the answer while signals come
		if m, _, err := p.try(10 * time.Millisecond); !isTimeout(err) {
			t.Fatalf("the client said %+v, %v", m, err)
		}
	}
	p.welcome(0, true)
	c.wait("init: 0")
}

// A client of a daemon that has gone keeps its limits and goes on, and is a client of the next daemon.
func TestRestart(t *testing.T) {
	for _, compute := range []uint32{region.FullCompute, region.FullCompute / 2} {
		t.Run(fmt.Sprint(compute), func(t *testing.T) {
			dev := newDevice(t, "1x1GiB,sms=4")
			limits := whole(dev)
			limits.Compute = compute
			d := newDaemon(t, limits)
			c, p := d.begin(dev)
			p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: 5_000_000})
			c.wait("later 1 1000: 0")
			c.order("later 30 1000")
			p.expect(protocol.Closed)
			// It waits; now the daemon dies.
			d.listener.Close()
			p.conn.Close()
			c.wait("later 30 1000: 0")
			c.do("sync")
			c.order("alloc 600")
			c.wait("alloc 600: 2")

			d.listen()
			p, hello, usage := d.accept()
			if hello.Flags != protocol.FlagReconnect || hello.Client != 3 || hello.ID != 77 || usage < 0 {
				t.Fatalf("the client came back with %+v and descriptor %d", hello, usage)
			}
			inode, err := region.CheckUsage(usage)
			unix.Close(usage)
			if err != nil || inode != d.region.UsageInode() {
				t.Fatalf("the client's counters: %+v, %v; want %+v", inode, err, d.region.UsageInode())
			}
			// New limits come in place of the old.
			other := limits
			other.Memory, other.Granted = 700*mib, 700*mib
			fresh, err := region.New(region.Spec{Name: "test", HostMemory: region.NoLimit, Devices: []region.DeviceLimits{other}})
			if err != nil {
				t.Fatal(err)
			}
			defer fresh.Close()
			old := d.region
			d.region = fresh
			p.welcome(3, false)
			d.region = old
			if m := p.expect(protocol.Need); m.Value != 0 {
				t.Errorf("the client came back with %+v", m)
			}
			if m := p.expect(protocol.Gate); m.Flags != protocol.FlagRunning {
				t.Errorf("the client came back with %+v", m)
			}
			if m := p.expect(protocol.Closed); m.Serial != 0 {
				t.Errorf("the client came back with %+v", m)
			}
			c.do("alloc 600")
			c.order("later 1 1000")
			p.expect(protocol.Want)
			p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
			c.wait("later 1 1000: 0")
		})
	}
}

// A client in debt, which alone would have waited long for credit, is watched again as soon as the next daemon lets
// it run: its grant is charged and ends.
func TestRestartInDebt(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	limits := whole(dev)
	limits.Compute = 1 // the least there is, 0.01 %
	d := newDaemon(t, limits)
	c, p := d.begin(dev)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.do("launch 1 50000") // at 0.01 % that is 500 s
	c.do("sync")
	d.listener.Close()
	p.conn.Close()
	d.listen()
	p, _, usage := d.accept()
	unix.Close(usage)
	// It is without a daemon for as long as this one does not answer. Until its watcher has closed the gate, and
	// gone to sleep, launches pass.
	for passes := true; passes; {
		c.order("later 1 1000")
		select {
		case <-c.lines:
		case <-time.After(200 * time.Millisecond):
			passes = false
		}
	}
	p.welcome(3, false)
	p.expect(protocol.Need)
	p.expect(protocol.Gate)
	p.expect(protocol.Closed)
	before := d.region.Busy(0)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: before + 1})
	c.wait("later 1 1000: 0")
	if m := p.expect(protocol.Closed); m.Serial != 1 || m.Value <= before {
		t.Errorf("at %d the grant ended with %+v", before, m)
	}
}

// A program that closes descriptors that it does not know comes back by itself.
func TestClosedDescriptors(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	c := d.client(dev)
	c.order("init")
	p, _, _ := d.accept()
	p.welcome(3, true)
	c.wait("init: 0")
	c.do("close 512") // below are the driver's, which it cannot do without
	c.order("context")
	p, hello, usage := d.accept()
	if hello.Flags != protocol.FlagReconnect || usage >= 0 {
		t.Errorf("the client came back with %+v and descriptor %d", hello, usage)
	}
	p.welcome(3, false)
}

// Who is refused, or finds no daemon that speaks its language, gets no GPU, and is told why.
func TestRefused(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	answers := map[string]func(p *peer){
		"no such lgpu here": func(p *peer) {
			p.conn.Write(append(protocol.Message{Kind: protocol.Refuse, Value: uint64(unix.EACCES)}.Append(nil), "no such lgpu here"...))
		},
		"Permission denied": func(p *peer) { p.say(protocol.Message{Kind: protocol.Refuse, Value: uint64(unix.EACCES)}) },
		"another version":   func(p *peer) { p.say(protocol.Message{Kind: protocol.Welcome, Version: protocol.Version + 1}) },
		"another language":  func(p *peer) { p.conn.Write([]byte("220 ESMTP")) },
		"hung up":           func(p *peer) { p.conn.Close() },
	}
	for want, answer := range answers {
		c := d.client(dev)
		c.order("init")
		p, _, _ := d.accept()
		answer(p)
		c.wait("init: 101")
		c.cmd.Process.Kill()
		for range c.lines {
		}
		c.cmd.Wait()
		if !strings.Contains(c.errs.String(), want) || !strings.Contains(c.errs.String(), d.path) {
			t.Errorf("want a message with %q, got %q", want, c.errs)
		}
	}
}

// links counts what a process has open whose name begins so.
func links(t *testing.T, pid int, prefix string) (count int) {
	t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name, _ := os.Readlink(filepath.Join(fds, e.Name())); strings.HasPrefix(name, prefix) {
			count++
		}
	}
	return count
}

// A forked child is no client: it does not speak for its parent, and has nothing open of what that has of the daemon's.
func TestFork(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.order("fork")
	var child int
	line := <-c.lines
	if _, err := fmt.Sscanf(line, "child %d", &child); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	c.wait("fork: 0")
	for _, prefix := range []string{"socket:", "/memfd:" + region.UsageName} {
		if links(t, c.cmd.Process.Pid, prefix) == 0 {
			t.Errorf("the parent has no %s", prefix)
		}
		for deadline := time.Now().Add(patience); links(t, child, prefix) != 0; time.Sleep(time.Millisecond) { // it may not have run yet
			if time.Now().After(deadline) {
				t.Errorf("the child has the parent's %s", prefix)
				break
			}
		}
	}
	unix.Kill(child, unix.SIGKILL)
	c.do("sync")
	p.say(protocol.Message{Kind: protocol.Close, Serial: 1})
	p.expect(protocol.Closed)
	if _, _, err := p.try(20 * time.Millisecond); !errors.Is(err, unix.EAGAIN) && !isTimeout(err) {
		t.Errorf("the connection: %v", err)
	}
}
