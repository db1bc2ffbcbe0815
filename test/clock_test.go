package test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// clock is a wall clock that a test sets for programs that the program jump starts.
type clock struct{ file string }

// jump sets how far the clock is off.
func (c clock) jump(t *testing.T, by time.Duration) {
	t.Helper()
	// In place, as the file is mapped.
	f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := binary.Write(f, binary.NativeEndian, int64(by/time.Second)); err != nil {
		t.Fatal(err)
	}
}

// The daemon's wall clock jumps years ahead and back while programs compute: limits hold as before, programs and lgpus come and
// go, and a daemon that is killed and comes back at yet another time has all that was. Events have the time that the clock shows.
func TestClockJumps(t *testing.T) {
	const year, kernels, each = 365 * 24 * time.Hour, 40, 5 * time.Millisecond
	p := newPlace(t)
	c := clock{filepath.Join(p.dir, "clock")}
	c.jump(t, 0)
	d := p.start("jump", c.file, filepath.Join(bin, "lgpu"), "daemon")
	p.wait("the daemon", func() bool {
		conn, err := api.Dial(t.Context(), api.Options{Dir: p.dir})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	a := p.start("lgpu", "run", shape, "--name", "a", "--memory", "2GiB", "--compute", "10", "--", "obey", control)
	a.until("ready")
	for i, jump := range []time.Duration{10 * year, -20 * year, 0, year} {
		c.jump(t, jump)
		if i == 3 { // the next daemon begins at another time than the last one ended
			pid := p.daemon().Daemon.GetPid()
			if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			d.Wait()
			p.start("jump", c.file, filepath.Join(bin, "lgpu"), "daemon")
			p.waitForDaemonAfter(pid)
		}
		if took, least := a.launch(kernels, each), kernels*each*4; took < least {
			t.Errorf("after a jump by %v kernels took %v, less than %v", jump, took, least)
		}
		if got := a.says("allocate 2147483648"); got != "allocate 2147483648 CUDA_ERROR_OUT_OF_MEMORY" {
			t.Errorf("after a jump by %v: %s", jump, got)
		}
		p.must("run", shape, "--name", "b", "--memory", "1GiB", "--", "obey", control) // and ends, as it is told nothing
		want, seen := time.Now().Add(jump), time.Time{}
		events, err := p.daemon().Events(t.Context(), &api.EventsRequest{Path: "/b"})
		if err != nil {
			t.Fatal(err)
		}
		for {
			e, err := events.Recv()
			if err != nil {
				break
			}
			seen = e.GetTime().AsTime()
		}
		if off := seen.Sub(want).Abs(); off > time.Hour {
			t.Errorf("after a jump by %v the last event is of %v", jump, seen)
		}
		if dir := p.directory("/a"); dir == nil || dir.GetDevices()[0].GetRequested().GetMemoryMax() != 2<<30 {
			t.Errorf("after a jump by %v /a is %v", jump, dir)
		}
	}
}
