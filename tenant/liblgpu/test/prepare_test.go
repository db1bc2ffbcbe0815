package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// capped is a client with a cap that launches kernels of 20 µs, one every 2 µs unless env says otherwise, until its grant
// of a millisecond is used up, and then as many as it may; all further ones wait.
func capped(t *testing.T, env ...string) (*daemon, *client, *peer) {
	t.Helper()
	d, c, p := card(t, append([]string{"CARD_LAUNCH=2000"}, env...)...)
	d.region.SetCompute(0, 5000)
	c.do("launch 2 20 20000") // they are known from now on
	c.do("sync")
	until := d.region.Busy(0) + uint64(time.Millisecond)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: until, Flags: protocol.FlagPatient})
	c.order("launch 2 2000 20000")
	if m := p.expect(protocol.Closed); m.Flags&protocol.FlagWaiting == 0 {
		t.Errorf("%+v does not say that there is more", m)
	}
	return d, c, p
}

// prepared is how many launches were prepared so far.
func (c *client) prepared() (n int) {
	c.t.Helper()
	c.order("prepared")
	line := <-c.lines
	if _, err := fmt.Sscanf(line, "%d prepared", &n); err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	c.wait("prepared: 0")
	return n
}

// opens opens the gate for good, and sees all launches through.
func (p *peer) opens(c *client, serial uint64) {
	p.d.t.Helper()
	p.say(protocol.Message{Kind: protocol.Open, Serial: serial, Value: protocol.Forever})
	c.wait("launch 2 2000 20000: 0")
	c.do("sync")
}

// prepared runs a test with new clients until one has prepared launches: on a busy host one may have nothing queued when its
// gate closes.
func prepared(t *testing.T, test func(*daemon, *client, *peer)) {
	t.Helper()
	for deadline := time.Now().Add(patience); !t.Failed(); {
		d, c, p := capped(t)
		test(d, c, p)
		n := c.prepared()
		if n > 200 {
			t.Errorf("%d launches were prepared; 4 ms of work may be in flight", n)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Error("nothing was ever prepared")
		}
	}
}

// Behind a gate that closes since its grant is used up, as much may be launched as was queued then. It runs, and is
// charged for, when the gate opens.
func TestPrepared(t *testing.T) {
	prepared(t, func(d *daemon, c *client, p *peer) {
		if m, _, err := p.try(20 * time.Millisecond); err == nil { // by then the last work has ended, too
			t.Errorf("behind the closed gate the client said %+v", m)
		}
		closed := d.region.Busy(0)
		if m, _, err := p.try(20 * time.Millisecond); err == nil {
			t.Errorf("behind the closed gate the client said %+v", m)
		}
		if busy := d.region.Busy(0); busy != closed {
			t.Errorf("%v were charged while the gate was closed", time.Duration(busy-closed))
		}
		p.opens(c, 2)
		if busy := d.region.Busy(0); busy < closed+1500*20_000 {
			t.Errorf("%v were charged for the work after that", time.Duration(busy-closed))
		}
	})
}

// A program that the device waits for has nothing queued. Something is prepared in any case, so that the device has work
// while the program wakes up: 400 µs. On a busy host a launch may seem to take so long that next to nothing fits, or the device,
// which is a thread there, may be so late that something was queued: now and then.
func TestPreparedWithNothingQueued(t *testing.T) {
	const late = 4
	more := 0
	for deadline := time.Now().Add(patience); !t.Failed(); {
		_, c, p := capped(t, "CARD_LAUNCH=25000")
		if m, _, err := p.try(20 * time.Millisecond); err == nil { // by then it has prepared all that it may
			t.Errorf("behind the closed gate the client said %+v", m)
		}
		p.opens(c, 2)
		n := c.prepared()
		if n >= 5 && n <= 21 {
			return
		}
		if n > 21 {
			more++
		}
		if more > late || time.Now().After(deadline) {
			t.Errorf("%d launches of 20 µs were prepared, and too many %d times", n, more)
		}
	}
}

// Without a cap, and when others want the device, nothing is prepared.
func TestPreparedForNobodyElse(t *testing.T) {
	d, c, p := card(t, "CARD_LAUNCH=2000")
	c.do("launch 2 20 20000")
	d.region.SetCompute(0, 5000)
	p.say(protocol.Message{Kind: protocol.Open, Serial: 1, Value: protocol.Forever, Flags: protocol.FlagPatient})
	c.order("launch 2 2000 20000")
	c.until("launched", func() bool { return d.region.State().Devices[0].Launches > 100 })
	p.say(protocol.Message{Kind: protocol.Close, Serial: 1})
	p.expect(protocol.Closed)
	p.opens(c, 2)
	if n := c.prepared(); n != 0 {
		t.Errorf("%d launches were prepared", n)
	}
}

// What is prepared runs when there is no daemon any more, when it lets a launch through, when the gate becomes free, and
// when there is no compute any more.
func TestPreparedGoes(t *testing.T) {
	all := func(c *client) { c.wait("launch 2 2000 20000: 0") }
	for name, act := range map[string]func(*daemon, *client, *peer){
		"no daemon": func(_ *daemon, c *client, p *peer) { p.conn.Close(); all(c) },
		"free":      func(_ *daemon, c *client, p *peer) { p.say(protocol.Message{Kind: protocol.Free}); all(c) },
		"seep": func(_ *daemon, c *client, p *peer) {
			p.say(protocol.Message{Kind: protocol.Seep, Serial: 2, Value: 1})
			p.expect(protocol.Closed)
			p.opens(c, 3)
		},
		"no compute": func(d *daemon, c *client, _ *peer) {
			d.region.SetCompute(0, 0)
			c.wait("launch 2 2000 20000: 800")
		},
	} {
		t.Run(name, func(t *testing.T) {
			prepared(t, func(d *daemon, c *client, p *peer) {
				act(d, c, p)
				c.do("sync")
			})
		})
	}
}

// A driver that cannot have streams wait has launches wait at the gate.
func TestPreparedWithoutDriver(t *testing.T) {
	_, c, p := capped(t, "CARD_NO_WAIT=1")
	p.opens(c, 2)
	if n := c.prepared(); n != 0 {
		t.Errorf("%d launches were prepared", n)
	}
}
