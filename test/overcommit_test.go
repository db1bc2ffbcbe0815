package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/users"
)

// tideShape is a device that a few tides fill: of its GiB, lgpus with memory.overcommit may have half by default.
const tideShape = "--sim=1x1GiB,sms=4,context=16MiB"

const linear = "../sim/kernels/linear.ptx"

// Sizes of what tides hold, in bytes.
const (
	tideBlock = 24 << 20
	tideCount = 8
	tideAll   = tideBlock * tideCount
)

// tide starts a program with patterns in device memory that can leave the device.
func (p *place) tide(name string, options ...string) *tenant {
	p.t.Helper()
	args := append([]string{"run", tideShape, "--overcommit", "--name", name}, options...)
	return p.start("lgpu", append(args, "--", "tide", linear, control)...)
}

// full is a tide that holds all that it has to.
func (p *place) full(name string, options ...string) *tenant {
	p.t.Helper()
	c := p.tide(name, options...)
	c.until("ready")
	c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
	return c
}

// expect sends a line and compares the answer.
func (t *tenant) expect(want, format string, args ...any) {
	t.t.Helper()
	if got := t.says(format, args...); got != want {
		t.t.Errorf("to %q it says %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

// end lets it come to its end, which has to be a good one.
func (t *tenant) end() {
	t.t.Helper()
	t.ends(0)
}

// ends lets it come to its end, which has to be with a status.
func (t *tenant) ends(status int) {
	t.t.Helper()
	t.in.Close()
	if s := t.status(); s != status {
		t.t.Errorf("status %d, %s", s, t.stderr.String())
	}
}

// snapshot is what the daemon says, nil between two daemons.
func (p *place) snapshot() *api.Snapshot {
	p.t.Helper()
	conn, err := api.Dial(p.t.Context(), api.Options{Dir: p.dir})
	if err != nil {
		return nil
	}
	defer conn.Close()
	s, err := conn.Snapshot(p.t.Context(), &api.SnapshotRequest{})
	if err != nil {
		return nil
	}
	return s
}

// directory is what the daemon says of a directory, nil for none.
func (p *place) directory(path string) *api.Directory {
	p.t.Helper()
	for _, n := range p.snapshot().GetDirectories() {
		if n.GetPath() == path {
			return n
		}
	}
	return nil
}

// suspended reports whether an lgpu is, with at least some bytes off its device.
func (p *place) suspended(path string, bytes uint64) bool {
	n := p.directory(path)
	return n != nil && n.GetState() == api.State_SUSPENDED && len(n.GetDevices()) == 1 && n.GetDevices()[0].GetMemoryEvicted() >= bytes
}

// onDevice is what the driver says is in use of the first device, in bytes.
func (p *place) onDevice() uint64 {
	p.t.Helper()
	s := p.snapshot()
	if len(s.GetDevices()) == 0 {
		p.t.Fatal("no device")
	}
	return s.GetDevices()[0].GetMemoryUsed()
}

// copies is how much host memory copies take, and how much of disks, in bytes.
func (p *place) copies() (host, disk uint64) {
	p.t.Helper()
	s := p.snapshot()
	if s == nil {
		p.t.Fatal("no daemon")
	}
	return s.GetDaemon().GetHostCopies(), s.GetDaemon().GetDiskCopies()
}

// quiet fails if a program has said something.
func (t *tenant) quiet(when string) {
	t.t.Helper()
	select {
	case line, ok := <-t.lines:
		t.t.Errorf("%s it says %q (%v)", when, line, ok)
	default:
	}
}

// tell sends a line without waiting for an answer.
func (t *tenant) tell(line string) {
	t.t.Helper()
	if _, err := fmt.Fprintln(t.in, line); err != nil {
		t.t.Fatal(err)
	}
}

// refused runs lgpu, which has to end with a status and say something.
func (p *place) refused(status int, says string, args ...string) {
	p.t.Helper()
	c := p.command("lgpu", args...)
	out, _ := c.CombinedOutput()
	if got := c.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), says) {
		p.t.Errorf("lgpu %s: status %d, %s; want %d and %q", strings.Join(args, " "), got, out, status, says)
	}
}

// Suspended memory leaves the device, so that others can have it; the program waits, and finds its memory as it was, at
// the addresses where it was.
func TestSuspendAndResume(t *testing.T) {
	p := newPlace(t)
	c := p.full("a")
	c.expect("stepped 3", "step 3")
	c.expect("small CUDA_SUCCESS", "small 50")
	p.wait("the driver's figure", func() bool { return p.onDevice() >= tideAll })
	if out := p.must("suspend", "a"); !strings.HasPrefix(out, "suspended /a: ") || !strings.Contains(out, "/s\n") {
		t.Errorf("suspend says %q", out)
	}
	if !p.suspended("/a", tideAll) {
		t.Errorf("after suspend: %v", p.directory("/a"))
	}
	p.wait("memory leaves the device", func() bool { return p.onDevice() < tideAll })
	c.tell("step 2")
	other := p.start("lgpu", "run", tideShape, "--name", "other", "--", "hold", "0", "900000000") // not with the tide beside it
	if got := other.until("ready"); got[0] != "allocate 900000000 CUDA_SUCCESS" {
		t.Errorf("another in its place says %q", got)
	}
	c.quiet("while it is suspended")
	other.end()
	if out := p.must("suspend", "a"); out != "suspended /a: nothing had to be moved\n" {
		t.Errorf("once more: %q", out)
	}
	if out := p.must("ps"); !strings.Contains(out, " suspended ") {
		t.Errorf("ps: %s", out)
	}
	var got struct{ Results []struct{ State string } }
	if out := p.must("resume", "--json", "a"); json.Unmarshal([]byte(out), &got) != nil || len(got.Results) != 1 || got.Results[0].State != "resumed" {
		t.Errorf("resume says %s", out)
	}
	c.until("stepped 2")
	c.expect("intact after 5 steps", "check")
	c.expect("small CUDA_SUCCESS", "small 50")
	c.end()
}

// Two programs that have more than there is both come to their end, by turns.
func TestTwoThatDoNotFit(t *testing.T) {
	p := newPlace(t)
	p.must("create", tideShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", tideAll*3/2>>20))
	var all []*tenant
	for _, name := range []string{"a", "b"} {
		all = append(all, p.full(name))
	}
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for round := range 3 {
				c.expect("stepped 5", "step 5")
				c.expect(fmt.Sprintf("intact after %d steps", 5*(round+1)), "check")
			}
		})
	}
	wg.Wait()
	for _, c := range all {
		c.end()
	}
	// More than the budget is never given.
	c := p.tide("c")
	c.until("ready")
	c.expect("more CUDA_ERROR_OUT_OF_MEMORY", "more %d", 2*tideAll)
	c.expect("more CUDA_SUCCESS", "more %d", tideAll)
	c.end()
}

// A program is suspended again and again in the middle of its work.
func TestSuspendedAgainAndAgain(t *testing.T) {
	p := newPlace(t)
	c := p.full("a")
	const rounds = 20
	done := make(chan struct{})
	steps := 0
	go func() {
		defer close(done)
		for range 3 * rounds {
			if c.says("step 5") != "stepped 5" {
				return
			}
			steps += 5
		}
	}()
	for range rounds {
		p.must("suspend", "/a")
		p.must("resume", "/a")
	}
	<-done
	c.expect(fmt.Sprintf("intact after %d steps", 15*rounds), "check")
	if steps != 15*rounds {
		t.Errorf("%d steps", steps)
	}
	c.end()
}

// A suspended program can be ended in any way, and leaves nothing behind.
func TestSuspendedProgramEnds(t *testing.T) {
	p := newPlace(t)
	p.must("create", tideShape, "/keep")
	for name, end := range map[string]func(pid int){
		"KILL": func(pid int) { unix.Kill(pid, unix.SIGKILL) },
		"TERM": func(pid int) { unix.Kill(pid, unix.SIGTERM) },
		"stop": func(int) { p.must("stop", "/stop") },
	} {
		c := p.full(name)
		p.must("suspend", name)
		c.tell("step 1") // it waits for the device
		all := p.directory("/" + name)
		if len(all.GetClients()) != 1 {
			t.Fatalf("%s: %v", name, all)
		}
		end(int(all.GetClients()[0].GetPid()))
		if s := c.status(); s < 128 {
			t.Errorf("%s: status %d", name, s)
		}
		p.wait("the end of "+name, func() bool { return p.directory("/"+name) == nil })
	}
	p.wait("the end of all copies", func() bool { host, disk := p.copies(); return host+disk == 0 })
}

// A program that ends by itself while its memory is away ends, also where something of it frees memory after the driver has
// gone, as caches of libraries do.
func TestProgramEndsWhileAway(t *testing.T) {
	p := newPlace(t)
	p.must("create", tideShape, "/keep")
	c := p.full("a")
	p.must("suspend", "a")
	c.expect("freed CUDA_ERROR_DEINITIALIZED", "quit")
	if s := c.status(); s != 0 {
		t.Errorf("status %d", s)
	}
	p.wait("the end of all copies", func() bool { host, disk := p.copies(); return host+disk == 0 })
}

// The daemon dies while an lgpu is suspended: the next one has it suspended, with its memory.
func TestDaemonDiesWhileSuspended(t *testing.T) {
	p := newPlace(t)
	c := p.full("a")
	c.expect("stepped 1", "step 1")
	p.must("suspend", "/a")
	for range 3 {
		pid := p.daemon().Daemon.GetPid()
		if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.waitForDaemonAfter(pid)
		p.wait("the suspended program's return", func() bool { return p.suspended("/a", tideAll) })
	}
	c.tell("step 1")
	p.must("resume", "/a")
	c.until("stepped 1")
	c.expect("intact after 2 steps", "check")
	// It dies while memory is on its way.
	for range 3 {
		pid := p.daemon().Daemon.GetPid()
		p.must("suspend", "--timeout", "0", "/a")
		p.must("set", "/a", "memory.suspend=0")
		if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.waitForDaemonAfter(pid)
		p.must("resume", "/a")
		c.expect("stepped 1", "step 1")
	}
	c.expect("intact after 5 steps", "check")
	c.end()
}

// An lgpu that nothing runs in can be suspended, and what starts in it waits; one that is not there cannot.
func TestSuspendOddOnes(t *testing.T) {
	p := newPlace(t)
	p.must("create", tideShape, "--overcommit", "/team")
	p.must("create", tideShape, "/team/a")
	p.must("suspend", "/team")
	c := p.start("lgpu", "run", tideShape, "--group", "/team", "--name", "a", "--", "tide", linear, control)
	p.wait("the start of a program in a suspended group", func() bool {
		n := p.directory("/team/a")
		return n != nil && len(n.GetClients()) == 1
	})
	c.tell(fmt.Sprintf("hold %d %d", tideCount, tideBlock))
	p.refused(1, "/team/a: it stays suspended, since /team is", "resume", "/team/a")
	p.must("resume", "/team")
	c.until("ready")
	c.until("hold CUDA_SUCCESS")
	c.expect("stepped 1", "step 1")
	p.refused(2, "hint: did you mean /team?", "suspend", "/taem")
	p.refused(2, "hint: did you mean /team?", "resume", "/taem")
	// While it ends.
	c.in.Close()
	p.must("suspend", "/team/a")
	p.must("resume", "/team/a")
	if s := c.status(); s != 0 {
		t.Errorf("status %d, %s", s, c.stderr.String())
	}
	plain := p.start("lgpu", "run", tideShape, "--name", "plain", "--", "hold", "0", "1000000")
	plain.until("ready")
	p.refused(2, "its memory cannot leave its devices", "suspend", "plain")
	p.refused(1, "programs have run in it", "set", "plain", "memory.overcommit=1")
	p.refused(2, "--overcommit: with --spatial", "run", tideShape, "--overcommit", "--spatial", "--", "true")
	plain.end()
}

// Who may not set limits of an lgpu may not suspend it; its owner may.
func TestStrangersDoNotSuspend(t *testing.T) {
	p, _ := governed(t)
	line := p.as(one, one, "run", shape, "--overcommit", "--name", "job", "--", filepath.Join(bin, "obey"), control)
	c := p.start(line[0], line[1:]...)
	c.until("ready")
	if got := c.says("allocate 30000000"); got != "allocate 30000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	for _, verb := range []string{"suspend", "resume"} {
		if out, status := p.by(another, another, verb, "/users/65534/job"); status != 1 || !strings.Contains(out, "user "+users.Name(another)+" may not") {
			t.Errorf("%s by a stranger: status %d, %s", verb, status, out)
		}
		if out, status := p.by(one, one, verb, "job"); status != 0 || !strings.Contains(out, "d /users/65534/job: ") {
			t.Errorf("%s by the owner: status %d, %s", verb, status, out)
		}
	}
	c.in.Close()
	c.status()
}

// configured is a daemon with lines in its configuration, for which copies go to a folder that is returned.
func configured(t *testing.T, lines ...string) (*place, string) {
	t.Helper()
	p := newPlace(t)
	folder := filepath.Join(p.dir, "copies")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(p.dir, "lgpud.conf")
	text := strings.Join(append(lines, "overcommit.dir = "+folder), "\n") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.serve("--config", file)
	p.must("create", tideShape, "/keep")
	return p, folder
}

// What host.budget has no room for goes to a disk, and comes back as it was.
func TestCopiesOnDisk(t *testing.T) {
	for _, budget := range []uint64{1, 100} { // MiB: for nothing, and for a part
		p, _ := configured(t)
		p.must("set", "/", fmt.Sprintf("host.budget=%dMiB", budget))
		c := p.full("a")
		c.expect("stepped 1", "step 1")
		p.must("suspend", "/a")
		host, disk := p.copies()
		if !p.suspended("/a", tideAll) || host > budget<<20 || host+disk < tideAll {
			t.Errorf("%d bytes in host memory, %d on disks, %v", host, disk, p.directory("/a"))
		}
		p.must("resume", "/a")
		c.expect("stepped 1", "step 1")
		c.expect("intact after 2 steps", "check")
		c.end()
	}
}

// Host memory is gone while programs run: what has copies already has them still. Where the disk has no room either,
// suspending is refused with the reason, which names the budget and the disk, and the program goes on: it is not even
// stopped, as a kernel that does not end shows.
func TestHostIsFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	p, folder := configured(t)
	if err := unix.Mount("none", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { unix.Unmount(folder, unix.MNT_DETACH) })
	c := p.full("a")
	c.expect("stepped 1", "step 1")
	p.must("suspend", "/a")
	p.must("set", "/", "host.budget=1MiB")
	p.must("resume", "/a")
	c.expect("stepped 1", "step 1")
	p.must("suspend", "/a")
	p.must("resume", "/a")
	c.expect("hold CUDA_SUCCESS", "hold 4 %d", tideBlock)
	c.expect("stepped 1", "step 1")
	c.expect("spinning", "spin 6000")
	p.refused(1, "host.budget has less than", "suspend", "--timeout", "5s", "/a")
	for _, part := range []string{"host.budget has less than", "the disk of " + folder + " has"} {
		if why := p.directory("/a").GetDevices()[0].GetResidenceFailure(); !strings.Contains(why, part) {
			t.Errorf("the reason %q does not say %q", why, part)
		}
	}
	p.must("resume", "/a")
	c.expect("synced", "sync")
	c.expect("stepped 1", "step 1")
	c.expect("intact after 4 steps", "check")
	p.must("set", "/", "host.budget=default")
	p.must("suspend", "/a")
	p.must("resume", "/a")
	c.expect("intact after 4 steps", "check")
	c.end()
}

// A kernel that does not end keeps memory on the device: suspending says so by name, others wait, and the program goes on.
// Once it has ended, the others have their turn.
func TestKernelDoesNotEnd(t *testing.T) {
	p := newPlace(t)
	p.must("create", tideShape, "/keep")
	p.must("set", "/", fmt.Sprintf("memory.budget=%dMiB", (tideAll+tideAll/2)>>20))
	c := p.full("a")
	c.expect("stepped 1", "step 1")
	c.expect("spinning", "spin 18000")
	b := p.tide("b")
	b.until("ready")
	b.tell(fmt.Sprintf("hold %d %d", tideCount, tideBlock))
	p.refused(1, "suspend /a: not done after 13s: /a on GPU-", "suspend", "--timeout", "13s", "/a")
	p.failed("of /a on device GPU-", "its work does not end: a kernel runs, or a stream waits")
	b.quiet("while the kernel runs")
	p.must("resume", "/a")
	c.expect("synced", "sync")
	b.until("hold CUDA_SUCCESS")
	for _, o := range []*tenant{b, c} {
		o.expect("stepped 1", "step 1")
	}
	c.expect("intact after 2 steps", "check")
	b.expect("intact after 1 steps", "check")
	b.end()
	c.end()
}

// rounds is how often a test does something that takes long: seldom, and as often as is to be tried where LGPU_LONG is set.
func rounds(usually, long int) int {
	if os.Getenv("LGPU_LONG") != "" {
		return long
	}
	return usually
}

// The daemon dies again and again, while memory is on its way or away, and each new one finds everything.
func TestDaemonDiesAgainAndAgain(t *testing.T) {
	p := newPlace(t)
	c := p.full("a")
	c.expect("stepped 1", "step 1")
	for i := range rounds(8, 100) {
		pid := p.daemon().Daemon.GetPid()
		p.must("set", "/a", fmt.Sprintf("memory.suspend=%d", (i+1)%2))
		if i%4 == 0 { // as the daemons before have left it, it may be anywhere
			p.wait("memory leaves the device", func() bool { return p.suspended("/a", tideAll) })
		}
		if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.waitForDaemonAfter(pid)
	}
	p.must("suspend", "/a")
	if !p.suspended("/a", tideAll) {
		t.Errorf("after many daemons: %v", p.directory("/a"))
	}
	p.must("resume", "/a")
	c.expect("stepped 1", "step 1")
	c.expect("intact after 2 steps", "check")
	c.end()
}

// A program that is killed while its memory is on its way, out or in, leaves nothing, on the device or on the host.
func TestKilledOnTheWay(t *testing.T) {
	const slow = "--sim=1x1GiB,sms=4,context=16MiB,link=150MB/s"
	p := newPlace(t)
	p.must("create", slow, "/keep")
	for _, out := range []bool{true, false} {
		c := p.start("lgpu", "run", slow, "--overcommit", "--name", "a", "--", "tide", linear, control)
		c.until("ready")
		c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
		if !out {
			p.must("suspend", "/a")
		}
		p.must("set", "/a", fmt.Sprintf("memory.suspend=%d", bit(out)))
		var pid int32
		p.wait("memory on its way", func() bool {
			n := p.directory("/a")
			if n == nil || len(n.GetClients()) != 1 {
				return false
			}
			pid = n.GetClients()[0].GetPid()
			used, away := p.onDevice(), n.GetDevices()[0].GetMemoryEvicted()
			return used > tideBlock && (used < tideAll-tideBlock || !out && away > 0) // what comes back has room at once
		})
		unix.Kill(int(pid), unix.SIGKILL)
		if s := c.status(); s < 128 {
			t.Errorf("status %d", s)
		}
		p.wait("the end of what it had", func() bool {
			host, disk := p.copies()
			return p.directory("/a") == nil && host+disk == 0 && p.onDevice() == 0
		})
	}
}

// The devices of a program move at the same time: each has a link of its own to the host.
func TestDevicesMoveTogether(t *testing.T) {
	const slow = "--sim=2x1GiB,sms=4,context=16MiB,link=60MB/s" // the daemon looks once a second
	p := newPlace(t)
	p.must("create", slow, "/keep")
	c := p.start("lgpu", "run", slow, "--overcommit", "--name", "a", "--", "tide", linear, control)
	c.until("ready")
	for device := range 2 {
		c.expect(fmt.Sprintf("on device %d", device), "device %d", device)
		c.expect("hold CUDA_SUCCESS", "hold %d %d", tideCount, tideBlock)
	}
	// used reports whether something holds for what the driver says is in use of each device.
	used := func(holds func(bytes uint64) bool) bool {
		s := p.snapshot()
		if len(s.GetDevices()) != 2 {
			t.Fatalf("two devices: %v", s.GetDevices())
		}
		return holds(s.GetDevices()[0].GetMemoryUsed()) && holds(s.GetDevices()[1].GetMemoryUsed())
	}
	onWay := func(bytes uint64) bool { return bytes > 2*tideBlock && bytes < tideAll-tideBlock }
	p.must("set", "/a", "memory.suspend=1")
	p.wait("both devices on their way out", func() bool { return used(onWay) })
	p.wait("the end of that", func() bool { return used(func(bytes uint64) bool { return bytes < tideBlock }) })
	p.must("resume", "/a")
	c.expect("intact after 0 steps", "check")
	c.end()
}

func bit(on bool) int {
	if on {
		return 1
	}
	return 0
}

// A program that does not answer keeps its room, and is ended where the daemon may end programs; then others have the room.
func TestSilentProgram(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.dir, "lgpud.conf")
	if err := os.WriteFile(file, []byte("residence.patience = 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.serve("--config", file, "--police", "stop")
	c := p.full("a")
	pid := int(p.directory("/a").GetClients()[0].GetPid())
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.must("set", "/", fmt.Sprintf("memory.budget=0 %dB", tideAll+tideAll/2))
	b := p.start("lgpu", "run", tideShape, "--overcommit", "--name", "b", "--", "tide", linear, control)
	b.until("ready")
	b.tell(fmt.Sprintf("hold %d %d", tideCount, tideBlock))
	p.wait("the report", func() bool { return strings.Contains(p.must("events", "--since", "1h"), "it has not answered for 1s") })
	b.quiet("while the room is taken")
	if s := c.status(); s < 128 {
		t.Errorf("status %d", s)
	}
	b.until("hold CUDA_SUCCESS")
	b.expect("stepped 1", "step 1")
	b.end()
}
