package test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// halt has the client halted.
func (p *peer) halt(serial uint64) {
	p.d.t.Helper()
	p.say(protocol.Message{Kind: protocol.Halt, Serial: serial, Value: uint64(patience)})
	m, _ := p.read()
	for m.Kind == protocol.Closed || m.Kind == protocol.Need { // of the grant that it had; of its memory
		m, _ = p.read()
	}
	if m.Kind != protocol.Halted || m.Serial != serial || m.Value != 1 || m.Flags != 0 {
		p.d.t.Fatalf("the client was to halt, and said %+v", m)
	}
}

// proceed has a halted client go on.
func (p *peer) proceed(serial uint64) {
	p.d.t.Helper()
	p.say(protocol.Message{Kind: protocol.Halt, Serial: serial})
	if m := p.expect(protocol.Halted); m.Serial != serial || m.Value != 0 || m.Flags != 0 {
		p.d.t.Fatalf("the client was to go on, and said %+v", m)
	}
}

// quiet fails the test if the client says or prints something.
func (p *peer) quiet(c *client) {
	p.d.t.Helper()
	if m, _, err := p.try(30 * time.Millisecond); !isTimeout(err) {
		p.d.t.Fatalf("the client said %+v, %v", m, err)
	}
	select {
	case line := <-c.lines:
		p.d.t.Fatalf("the client printed %q", line)
	default:
	}
}

// park has a halted client parked, and fails the test if something leads out of it then.
func (p *peer) park(c *client) {
	p.d.t.Helper()
	p.say(protocol.Message{Kind: protocol.Park})
	if m := p.expect(protocol.Parked); m.Flags != 0 {
		p.d.t.Fatalf("the client was to park, and said %+v", m)
	}
	if m, _, err := p.try(patience); !errors.Is(err, io.EOF) {
		p.d.t.Fatalf("the client said %+v, %v", m, err)
	}
	leads := func(name string) bool {
		return strings.Contains(name, "memfd:"+region.UsageName) || strings.Contains(name, "memfd:lgpu-limits")
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.cmd.Process.Pid))
	if err != nil || leads(string(maps)) {
		p.d.t.Fatalf("a parked client maps a region: %v\n%s", err, maps)
	}
	fds := fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		p.d.t.Fatal(err)
	}
	for _, e := range entries {
		if link, _ := os.Readlink(filepath.Join(fds, e.Name())); leads(link) {
			p.d.t.Fatalf("a parked client has %s open", link)
		}
	}
}

// call has parked clients look for the daemon.
func (d *daemon) call() {
	d.t.Helper()
	if err := os.Chtimes(d.path, time.Time{}, time.Now()); err != nil {
		d.t.Fatal(err)
	}
}

// rejoins takes a parked client that comes back.
func (d *daemon) rejoins() *peer {
	d.t.Helper()
	p, hello, usage := d.accept()
	if hello.Flags != protocol.FlagRejoin || usage >= 0 {
		d.t.Fatalf("a parked client came back with %+v and descriptor %d", hello, usage)
	}
	return p
}

// back waits until a parked client has charged what it holds.
func (p *peer) back() {
	p.d.t.Helper()
	if m := p.expect(protocol.Halted); m.Serial != 0 || m.Value != 1 || m.Flags != 0 {
		p.d.t.Fatalf("a parked client came back and said %+v", m)
	}
}

// taken is what of the device all processes have, in bytes.
func (d *device) taken() uint64 {
	d.t.Helper()
	all, err := d.client.Devices()
	if err != nil || len(all) == 0 {
		d.t.Fatalf("the software GPU shows no device: %v", err)
	}
	return all[0].MemoryUsed
}

// replace gives the daemon another region.
func (d *daemon) replace(limits ...region.DeviceLimits) {
	d.t.Helper()
	shared, err := region.New(region.Spec{Name: "test", HostMemory: region.NoLimit, Devices: limits})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(shared.Close)
	d.region = shared
}

// What is under way when a client halts is waited for; nothing begins until it may go on, whatever the daemon opens.
func TestHalt(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
	c.do("launch 1 50000")
	p.say(protocol.Message{Kind: protocol.Halt, Serial: 7, Value: uint64(patience)})
	if m := p.expect(protocol.Closed); m.Serial != 1 || m.Flags != 0 {
		t.Errorf("the grant ended with %+v", m)
	}
	if m := p.expect(protocol.Halted); m.Serial != 7 || m.Value != 1 || m.Flags != 0 {
		t.Errorf("the client said %+v", m)
	}
	if busy := d.region.Busy(0); busy < 50_000_000 {
		t.Errorf("the client halted after %d ns of a kernel of 50 ms", busy)
	}
	c.order("later 1 1000")
	p.quiet(c)
	for _, m := range []protocol.Message{
		{Kind: protocol.Open, Serial: 2, Value: protocol.Forever}, {Kind: protocol.Seep, Serial: 3, Value: 1},
	} {
		p.say(m)
		if closed := p.expect(protocol.Closed); closed.Serial != m.Serial || closed.Flags != 0 {
			t.Errorf("grant %d ended with %+v", m.Serial, closed)
		}
	}
	p.quiet(c)
	p.say(protocol.Message{Kind: protocol.Halt, Serial: 8})
	for seen := 0; seen < 2; seen++ { // the launch may be quicker
		switch m, _ := p.read(); {
		case m.Kind == protocol.Halted && m.Serial == 8 && m.Value == 0, m.Kind == protocol.Want:
		default:
			t.Fatalf("the client said %+v", m)
		}
	}
	p.say(protocol.Message{Kind: protocol.Open, Serial: 4, Value: protocol.Forever})
	c.wait("later 1 1000: 0")
}

// A free gate halts too: what left no record is waited for. It is free again afterwards, unless the daemon says otherwise.
func TestHaltFree(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	began := time.Now()
	c.do("launch 2 20000")
	p.halt(1)
	if took := time.Since(began); took < 40*time.Millisecond {
		t.Errorf("the client halted %v after the launch of 40 ms of work", took)
	}
	c.order("later 1 1000")
	p.quiet(c)
	p.proceed(2)
	c.wait("later 1 1000: 0")
	p.halt(3)
	p.say(protocol.Message{Kind: protocol.Close, Serial: 5})
	if m := p.expect(protocol.Closed); m.Serial != 5 || m.Flags != 0 {
		t.Errorf("the gate was closed with %+v", m)
	}
	p.proceed(4)
	c.order("later 1 1000")
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
}

// Work that does not end keeps a client from halting: it says so in time, and goes on.
func TestHaltBusy(t *testing.T) {
	_, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("hold")
	p.say(protocol.Message{Kind: protocol.Halt, Serial: 1, Value: uint64(50 * time.Millisecond)})
	if m := p.expect(protocol.Halted); m.Serial != 1 || m.Flags != protocol.FlagRefused || m.Extra != protocol.WhyBusy {
		t.Errorf("the client said %+v", m)
	}
	c.do("launch 1 1000")
	// One that does not want to wait any more is heard at once.
	p.say(protocol.Message{Kind: protocol.Halt, Serial: 2, Value: uint64(patience)})
	p.proceed(3)
	c.do("launch 1 1000")
	c.do("release")
	c.do("sync")
	p.halt(4)
}

// A halted client whose daemon ends goes on.
func TestHaltLost(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	p.halt(1)
	c.order("later 1 1000")
	p.quiet(c)
	d.listener.Close()
	p.conn.Close()
	c.wait("later 1 1000: 0")
}

// Nothing leads out of a parked client. It comes back when it is called, and is a client of the same or of another lgpu
// that is charged what it holds, once.
func TestPark(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprintf("other region %v", other), func(t *testing.T) {
			dev := newDevice(t, "1x1GiB,sms=4")
			d := newDaemon(t, whole(dev))
			c, p := d.begin(dev)
			p.say(protocol.Message{Kind: protocol.Free})
			c.wait("later 1 1000: 0")
			c.do("alloc 100")
			c.do("stack 8192")
			used, taken := d.region.Used(0), dev.taken()
			p.halt(1)
			p.park(c)
			// 4 units with 2,048 threads each have only the stacks without which there is no context.
			if now := dev.taken(); now != taken-4*2048*(8192-1024) {
				t.Errorf("%d bytes of the device are taken by a parked program, and %d were", now, taken)
			}
			c.order("later 1 1000")
			c.order("stacks 8192") // waits
			d.call()
			p = d.rejoins()
			p.conn.Write(append(protocol.Message{Kind: protocol.Refuse, Value: uint64(unix.EAGAIN)}.Append(nil), "it is to wait"...))
			p.conn.Close()
			d.call()
			p = d.rejoins()
			index := uint32(3)
			if other {
				d.replace(whole(dev))
				index = 5
			} else if !d.region.Settle(3, nil) {
				t.Fatal("what the client held cannot be given back")
			}
			p.welcome(index, true)
			p.back()
			c.wait("stacks 8192: 0")
			if now := d.region.Used(0); now != used {
				t.Errorf("%d bytes are charged, and %d were", now, used)
			}
			p.quiet(c)
			p.say(protocol.Message{Kind: protocol.Halt, Serial: 2})
			for seen := 0; seen < 3; seen++ { // the launch may be quicker
				switch m, _ := p.read(); {
				case m.Kind == protocol.Halted && m.Serial == 2 && m.Value == 0:
				case m.Kind == protocol.Gate && m.Flags == 0, m.Kind == protocol.Want:
				default:
					t.Fatalf("the client said %+v", m)
				}
			}
			p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever})
			c.wait("later 1 1000: 0")
			c.do("alloc 100")
			if now := d.region.Used(0); now != used+100*mib {
				t.Errorf("%d bytes are charged after 100 MiB more; %d were before", now, used)
			}
			// And again: the stacks of a program that has a graph go, too.
			c.do("graph")
			taken = dev.taken()
			p.halt(3)
			p.park(c)
			if now := dev.taken(); now != taken-4*2048*(8192-1024) {
				t.Errorf("%d bytes of the device are taken by a parked program with a graph, and %d were", now, taken)
			}
		})
	}
}

// A parked client comes back only once all that it holds fits, and says what does not.
func TestRejoinWithoutRoom(t *testing.T) {
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	c, p := d.begin(dev)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	c.do("alloc 100")
	used := d.region.Used(0)
	p.halt(1)
	p.park(c)
	narrow := whole(dev)
	narrow.Granted = 50 * mib
	d.replace(narrow)
	d.call()
	p = d.rejoins()
	p.welcome(0, true)
	need := func() {
		t.Helper()
		if m := p.expect(protocol.Need); m.Value != used || m.Device != 0 || m.Flags != 0 {
			t.Fatalf("the client asked for %+v, and holds %d", m, used)
		}
	}
	need()
	p.say(protocol.Message{Kind: protocol.Memory, Value: 50 * mib})
	if m := p.expect(protocol.Halted); m.Serial != 0 || m.Flags != protocol.FlagRefused || m.Extra != protocol.WhyMemory || m.Value != used {
		t.Fatalf("the client said %+v", m)
	}
	need()
	if now := d.region.Used(0); now != 0 {
		t.Errorf("%d bytes are charged of what does not fit", now)
	}
	// A connection that ends leaves it parked.
	p.conn.Close()
	d.call()
	p = d.rejoins()
	p.welcome(0, true)
	need()
	d.region.SetGranted(0, 512*mib)
	p.say(protocol.Message{Kind: protocol.Memory, Value: 512 * mib})
	p.back()
	if now := d.region.Used(0); now != used {
		t.Errorf("%d bytes are charged, and %d were", now, used)
	}
	p.proceed(1)
	c.do("sync")
}

// A parked client finds the next daemon by itself.
func TestParkedThroughRestart(t *testing.T) {
	d, c, p := begun(t)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
	p.halt(1)
	p.park(c)
	d.listener.Close()
	d.listen()
	p = d.rejoins()
	p.welcome(3, true)
	p.back()
	p.proceed(2)
	c.order("later 1 1000")
	p.expect(protocol.Gate)
	p.expect(protocol.Want)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
}

// A client is not parked that has not halted.
func TestNotParked(t *testing.T) {
	refused := func(p *peer, why uint64) {
		t.Helper()
		p.say(protocol.Message{Kind: protocol.Park})
		if m := p.expect(protocol.Parked); m.Flags != protocol.FlagRefused || m.Extra != why {
			t.Errorf("the client said %+v", m)
		}
	}
	_, c, p := begun(t)
	refused(p, protocol.WhyBusy)
	p.say(protocol.Message{Kind: protocol.Free})
	c.wait("later 1 1000: 0")
}
