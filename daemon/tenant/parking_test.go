package tenant

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// begins calls f in a goroutine and returns where its result comes.
func begins(t testing.TB, f func(context.Context, Process) error, p Process) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- f(ctx, p) }()
	return done
}

// wantResult waits for a result.
func wantResult(t testing.TB, done <-chan error, want error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Fatalf("%v; want %v", err, want)
		}
	case <-time.After(timeout):
		t.Fatal("no result")
	}
}

// hears has a client hear a message of a kind, and returns its serial number.
func (p *tenantProcess) hears(kind uint16) (serial uint64) {
	p.t.Helper()
	var is uint16
	var value uint64
	answer := p.ask("hear-serial")
	if _, err := fmt.Sscanf(answer, "%d %d %d", &is, &serial, &value); err != nil || is != kind {
		p.t.Fatalf("the client heard %q; want kind %d", answer, kind)
	}
	return serial
}

// halts has a client answer a Halt.
func (p *tenantProcess) halts(value int) {
	p.t.Helper()
	p.want("ok", "answer %d %d %d 0 0", protocol.Halted, p.hears(protocol.Halt), value)
}

// parks parks a client of d.
func (d *daemon) parks(p *tenantProcess) {
	d.t.Helper()
	done := begins(d.t, d.Parking.Halt, p.process())
	p.halts(1)
	wantResult(d.t, done, nil)
	done = begins(d.t, d.Parking.Park, p.process())
	p.hears(protocol.Park)
	p.want("ok", "answer %d 0 0 0 0", protocol.Parked)
	p.want("ok", "close")
	wantResult(d.t, done, nil)
}

// A parked client is charged for what it holds, may come back when it is called and not before, keeps its place and is
// charged once.
func TestParkAndRejoin(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.client(1)
	p := d.client(1)
	p.want("true", "alloc 0 %d", 60*mib)
	d.parks(p)
	d.wantUsed(1, 60*mib)
	p.want("refused 11 its devices are released", "hello %d", protocol.FlagRejoin)
	p.want("ok", "close")
	for len(d.events) > 0 {
		if e := <-d.events; e.what == "refused" {
			t.Error("a parked client that asks is an event")
		}
	}
	done := begins(t, d.Parking.Rejoin, p.process())
	for !strings.HasPrefix(p.ask("hello %d", protocol.FlagRejoin), "welcome 1 0x1") {
		time.Sleep(time.Millisecond) // until it may
	}
	d.wantUsed(1, 0)
	p.want("true", "alloc 0 %d", 60*mib)
	p.want("ok", "answer %d 0 1 0 0", protocol.Halted)
	wantResult(t, done, nil)
	done = begins(t, d.Parking.Proceed, p.process())
	p.halts(0)
	wantResult(t, done, nil)
	d.wantUsed(1, 60*mib)
	p.kill()
	d.await("left", p.pid())
	d.wantUsed(1, 0)
}

// What does not fit keeps a client parked.
func TestRejoinWithoutRoom(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	other, p := d.client(1), d.client(1)
	p.want("true", "alloc 0 %d", 60*mib)
	d.parks(p)
	done := d.rejoins(p)
	other.want("true", "alloc 0 %d", 60*mib)
	p.want("false", "alloc 0 %d", 60*mib)
	p.want("ok", "answer %d 0 %d %d %d", protocol.Halted, 60*mib, protocol.FlagRefused, protocol.WhyMemory)
	wantResult(t, done, ErrRoom)
	p.want("refused 11", "hello %d", protocol.FlagRejoin)
}

// Whatever a client refuses, and whenever it ends, is said to who waits.
func TestParkRefused(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	done := begins(t, d.Parking.Halt, p.process())
	p.want("ok", "answer %d %d 0 %d %d", protocol.Halted, p.hears(protocol.Halt), protocol.FlagRefused, protocol.WhyBusy)
	wantResult(t, done, ErrBusy)
	done = begins(t, d.Parking.Halt, p.process())
	p.halts(1)
	wantResult(t, done, nil)
	done = begins(t, d.Parking.Park, p.process())
	p.hears(protocol.Park)
	p.want("ok", "answer %d 0 0 %d %d", protocol.Parked, protocol.FlagRefused, protocol.WhyStore)
	wantResult(t, done, ErrCopies)
	// One that does not answer in time is told to go on.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := d.Parking.Halt(ctx, p.process()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a client that says nothing: %v", err)
	}
	if first, second := p.hears(protocol.Halt), p.hears(protocol.Halt); second != 0 {
		t.Errorf("the client heard %d, %d", first, second)
	}
	// What nobody asked is nothing.
	p.want("ok", "answer %d 99 1 0 0", protocol.Halted)
	p.want("ok", "answer %d 0 0 0 0", protocol.Parked)
	process := p.process()
	done = begins(t, d.Parking.Halt, process)
	p.hears(protocol.Halt)
	p.kill()
	wantResult(t, done, ErrEnded)
	wantResult(t, begins(t, d.Parking.Halt, process), ErrEnded)
}

// rejoins has a client of d come back that is parked, up to where it is welcome.
func (d *daemon) rejoins(p *tenantProcess) <-chan error {
	d.t.Helper()
	done := begins(d.t, d.Parking.Rejoin, p.process())
	for !strings.HasPrefix(p.ask("hello %d", protocol.FlagRejoin), "welcome") {
		time.Sleep(time.Millisecond) // it is asked for a moment later
	}
	return done
}

// A client that is killed at any step is gone, and what it held is given back once.
func TestParkKilled(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.client(1)
	steps := []func(p *tenantProcess){
		func(p *tenantProcess) {
			begins(t, d.Parking.Halt, p.process())
			p.halts(1)
		},
		d.parks,
		func(p *tenantProcess) {
			d.parks(p)
			d.rejoins(p)
		},
	}
	for i, step := range steps {
		p := d.client(1)
		process := p.process()
		p.want("true", "alloc 0 %d", 60*mib)
		step(p)
		p.kill()
		d.await("left", process.PID)
		d.wantUsed(1, 0)
		if d.Parking.Parked(process) {
			t.Errorf("step %d: a process that has ended is kept", i)
		}
	}
}

// A daemon that follows knows a parked client, and has it come back; kept from that it stays, once the daemon has been told.
func TestParkedThroughRestart(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	p.want("true", "alloc 0 %d", 60*mib)
	d.parks(p)
	d.stop()
	d = listening(t, d.dir)
	d.launcher(p.process(), 1)
	d.lgpu(1, 0, 100)
	d.Parking.Keep(p.process(), true)
	d.run()
	p.want("refused 11 its devices are released", "hello %d", protocol.FlagRejoin)
	done := d.rejoins(p)
	p.want("true", "alloc 0 %d", 60*mib)
	p.want("ok", "answer %d 0 1 0 0", protocol.Halted)
	wantResult(t, done, nil)
	d.wantUsed(1, 60*mib)
}

// One that has come back by itself is not waited for.
func TestRejoined(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	wantResult(t, begins(t, d.Parking.Rejoin, p.process()), nil)
	// Nor is one that the daemon took for parked, and that only connects again.
	p.want("ok", "close")
	d.Parking.Keep(p.process(), true)
	done := begins(t, d.Parking.Rejoin, p.process())
	p.want("welcome 0", "resume")
	wantResult(t, done, nil)
}

// One that comes back without being waited for goes on.
func TestRejoinUnasked(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.tenant(1)
	p.want("welcome 0", "hello %d", protocol.FlagRejoin)
	p.want("ok", "answer %d 0 1 0 0", protocol.Halted)
	p.hears(protocol.Halt)
}

// elsewhere are limits on two other devices.
func elsewhere(megabytes uint64) Limits {
	l := limits(megabytes)
	for i := range l.Devices {
		l.Devices[i].UUID[1] = 1
	}
	return l
}

// An lgpu moves to other devices while its clients are parked. They are charged there, also before they come back, where there
// is room; where there is none they do not come back, and can be where they were.
func TestRehouse(t *testing.T) {
	d := serve(t)
	if err := d.SetBudgets([]Budget{{ID: 9, HostMemory: region.NoLimit, Memory: map[[16]byte]uint64{{1, 1}: 70 * mib}}}); err != nil {
		t.Fatal(err)
	}
	d.lgpu(1, 9, 100)
	p, o := d.client(1), d.client(1)
	p.want("true", "alloc 0 %d", 60*mib)
	there := LGPU{ID: 1, Name: "lgpu-1", Parent: 9, Limits: elsewhere(100)}
	d.parks(p)
	if err := d.Parking.Rehouse(there); !errors.Is(err, ErrInUse) {
		t.Fatalf("beside a client that is not parked: %v", err)
	}
	d.parks(o)
	fewer := there
	fewer.Devices = fewer.Devices[:1]
	if err := d.Parking.Rehouse(fewer); !errors.Is(err, ErrDevices) {
		t.Errorf("to one device: %v", err)
	}
	if err := d.Parking.Rehouse(LGPU{ID: 2}); !errors.Is(err, ErrUnknown) {
		t.Errorf("of an lgpu that is not there: %v", err)
	}
	comes := func(p *tenantProcess) {
		t.Helper()
		done := d.rejoins(p)
		p.want("ok", "answer %d 0 1 0 0", protocol.Halted)
		wantResult(t, done, nil)
	}
	if err := d.Parking.Rehouse(there); err != nil {
		t.Fatal(err)
	}
	d.wantUsed(1, 60*mib)
	if c := d.Clients(); len(c) != 2 || c[0].Memory[0] != 60*mib || c[1].Memory[0] != 0 {
		t.Errorf("the clients are %+v", c)
	}
	comes(p)
	d.wantUsed(1, 0) // given back, for it charges that itself
	p.want("true", "alloc 0 %d", 60*mib)
	p.want("false", "alloc 0 %d", 20*mib) // the group's budget on that device
	comes(o)
	o.want("true", "alloc 0 %d", 8*mib)
	d.wantUsed(1, 68*mib)
	d.parks(p)
	d.parks(o)
	if err := d.SetBudgets([]Budget{{ID: 9, HostMemory: region.NoLimit, Memory: map[[16]byte]uint64{{1}: 30 * mib}}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Parking.Rehouse(LGPU{ID: 1, Name: "lgpu-1", Parent: 9, Limits: limits(100)}); err != nil {
		t.Fatal(err)
	}
	d.wantUsed(1, 8*mib) // the 60 have no room
	comes(o)
	for _, end := range []*tenantProcess{o, p} {
		pid := end.process().PID
		end.kill()
		d.await("left", pid)
	}
	d.wantUsed(1, 0)
}
