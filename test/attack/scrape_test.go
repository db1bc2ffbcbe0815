package attack

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestScrapeAtEveryMoment scrapes both ports at every moment of a daemon's and a tenant's life: before there is a device,
// before the first turn, while tenants come and go, die, and while the daemon is killed, started and stopped. A scrape may
// fail only while there is no daemon.
func TestScrapeAtEveryMoment(t *testing.T) {
	s := newSiege(t)
	var moment atomic.Pointer[string]
	say := func(text string) { moment.Store(&text) }
	say("the start")
	var away atomic.Int64 // odd while there may be no daemon; never the same number again
	away.Store(1)
	var stop atomic.Bool
	var scrapers sync.WaitGroup
	for _, address := range []string{s.metrics, s.page} {
		for range 2 {
			scrapers.Go(func() {
				for !stop.Load() {
					before, began := away.Load(), *moment.Load()
					_, err := scrape(address)
					if err != nil && before%2 == 0 && before == away.Load() {
						t.Errorf("%s, in the moments from %q to %q: %v", address, began, *moment.Load(), err)
						return
					}
				}
			})
		}
	}
	defer scrapers.Wait()
	defer stop.Store(true)
	serving := func() {
		t.Helper()
		s.wait(t, "the first scrape", func() error {
			_, err := scrape(s.metrics)
			_, pageErr := scrape(s.page)
			if !s.alive() {
				t.Fatalf("the daemon has ended at its first scrape: %v", err)
			}
			return errors.Join(err, pageErr)
		})
		away.Add(1)
	}
	run := func(args ...string) {
		t.Helper()
		say("lgpu " + args[0] + " " + args[len(args)-1])
		if out, err := s.command("lgpu", args...).CombinedOutput(); err != nil {
			t.Fatalf("lgpu %q: %v: %s", args, err, out)
		}
	}
	s.launch(t)
	serving()
	run("create", "/team")
	run("create", shape, "/team/one", "memory.max=1GiB")
	for range 3 {
		run("run", shape, "--", "true")
	}
	say("a tenant before its first turn")
	s.settle(t)
	say("tenants have turns")
	from, err := s.meter()
	for err == nil {
		var now meter
		if now, err = s.meter(); now.busy["/honest1"] > from.busy["/honest1"]+200*time.Millisecond {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		say("the daemon is killed")
		away.Add(1)
		s.kill()
		s.launch(t)
		serving()
	}
	say("a tenant is killed")
	n := s.neighbours[0]
	if err := unix.Kill(-n.cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait(t, "the end of a tenant", func() error {
		if clients, err := s.clients(); err != nil || clients != 1 {
			return errors.Join(err, errors.New("it is still there"))
		}
		return nil
	})
	run("rm", "/team/one")
	say("the daemon is stopped")
	away.Add(1)
	run("daemon", "stop")
}
