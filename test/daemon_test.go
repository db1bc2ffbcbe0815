package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	document "github.com/lgpu/lgpu/api/state"
)

const control = "../sim/kernels/control.ptx"

// serve starts a daemon with these options, and returns when it answers.
func (p *place) serve(options ...string) *tenant {
	p.t.Helper()
	d := p.start("lgpu", append([]string{"daemon"}, options...)...)
	p.wait("the daemon", func() bool {
		c, err := api.Dial(p.t.Context(), api.Options{Dir: p.dir})
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return d
}

// daemon returns a connection to the place's daemon, which has to run.
func (p *place) daemon() *api.Conn {
	p.t.Helper()
	c, err := api.Dial(p.t.Context(), api.Options{Dir: p.dir})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

// says sends a line to a program that obeys and returns its answer.
func (t *tenant) says(format string, args ...any) string {
	t.t.Helper()
	if _, err := fmt.Fprintf(t.in, format+"\n", args...); err != nil {
		t.t.Fatal(err)
	}
	select {
	case line, ok := <-t.lines:
		if !ok {
			t.t.Fatalf("it ended: %s", t.stderr.String())
		}
		return line
	case <-time.After(patience):
		t.t.Fatalf("no answer to "+format, args...)
		return ""
	}
}

// launch returns how long a number of kernels took.
func (t *tenant) launch(count int, each time.Duration) time.Duration {
	t.t.Helper()
	var ns int64
	answer := t.says("launch %d %d", count, each.Microseconds())
	if _, err := fmt.Sscanf(answer, "launched %d", &ns); err != nil {
		t.t.Fatalf("%q: %v", answer, err)
	}
	return time.Duration(ns)
}

// waitForDaemonAfter waits until another daemon than the one with this pid answers.
func (p *place) waitForDaemonAfter(pid int32) {
	p.t.Helper()
	p.wait("the next daemon", func() bool {
		ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
		defer cancel()
		c, err := api.Dial(ctx, api.Options{Dir: p.dir})
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Daemon.GetPid() != pid
	})
}

// must runs lgpu and returns its output.
func (p *place) must(args ...string) string {
	p.t.Helper()
	out, err := p.command("lgpu", args...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("lgpu %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A changed limit holds at once, for running programs too.
func TestLimitsChangeUnderARunningProgram(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--name", "a", "--memory", "2GiB", "--compute", "10", "--", "obey", control)
	c.until("ready")
	const kernels, each = 60, 5 * time.Millisecond
	slow := c.launch(kernels, each)
	if least := kernels * each * 4; slow < least {
		t.Errorf("at 10 %% %d kernels of %v took %v, less than %v", kernels, each, slow, least)
	}
	p.must("set", "/a", "compute.max=max")
	if fast := c.launch(kernels, each); fast > slow/2 {
		t.Errorf("without the cap of 10 %% they took %v, after %v with it", fast, slow)
	}
	if got := c.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	if got := c.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Error(got)
	}
	p.must("set", "/a", "memory.max=4GiB")
	if got := c.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	p.must("set", "/a", "memory.max=1GiB") // less than it holds: it keeps that and gets no more
	if got := c.says("allocate 1048576"); got != "allocate 1048576 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Error(got)
	}
	if got := p.must("show", "/a", "memory.max"); !strings.HasSuffix(got, " 1073741824\n") {
		t.Errorf("memory.max shows %q", got)
	}
	c.in.Close()
	if s := c.status(); s != 0 {
		t.Errorf("status %d, %s", s, c.stderr.String())
	}
}

// The same, written to a file of the mounted tree.
func TestLimitsAreFiles(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--name", "a", "--memory", "1GiB", "--", "obey", control)
	c.until("ready")
	tree := p.daemon().Daemon.GetTree()
	if tree == "" {
		if _, err := os.Stat("/dev/fuse"); err == nil && os.Getuid() == 0 {
			t.Fatal("the tree is not mounted, though it can be")
		}
		t.Skip("no FUSE here")
	}
	file := filepath.Join(tree, "a", "memory.max")
	if err := os.WriteFile(file, []byte("3GiB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := c.says("allocate 2000000000"); got != "allocate 2000000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	if err := os.WriteFile(file, []byte("3GiX\n"), 0o644); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a size that is none: %v", err)
	}
	if err := os.Mkdir(filepath.Join(tree, "team"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := p.must("show", "team", "procs"); got != "" {
		t.Errorf("processes of a new group: %q", got)
	}
	if err := os.Remove(filepath.Join(tree, "team")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(tree, "team")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its end: %v", err)
	}
	c.in.Close()
	c.status()
}

// A group's memory is for all below it together.
func TestGroupHoldsForAllBelow(t *testing.T) {
	p := newPlace(t)
	p.must("create", shape, "/team", "memory.max=2GiB")
	a := p.start("lgpu", "run", shape, "--group", "/team", "--name", "a", "--", "obey", control)
	b := p.start("lgpu", "run", shape, "--group", "/team", "--name", "b", "--", "obey", control)
	a.until("ready")
	b.until("ready")
	if got := a.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	if got := b.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Error(got)
	}
	if got := b.says("allocate 500000000"); got != "allocate 500000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	busy := p.start("lgpu", "rm", "/team")
	if s := busy.status(); s != 1 {
		t.Errorf("removing a group in use: status %d, %s", s, busy.stderr.String())
	}
	for _, c := range []*tenant{a, b} {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
	p.must("rm", "team")
}

// A process that leaves its parent, its session and its environment still belongs to the lgpu.
func TestDescentSaysWhose(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--name", "a", "--memory", "1GiB", "--", "obey", control)
	c.until("ready")
	if got := c.says("allocate 1000000000"); got != "allocate 1000000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	if got := c.says("fork"); !strings.Contains(got, "CUDA_ERROR_OUT_OF_MEMORY") { // be it the allocation or the context
		t.Error(got)
	}
	c.in.Close()
	c.status()
}

// The daemon is killed again and again under running programs: they go on, keep what they have, and never get more than
// their limit.
func TestDaemonIsKilled(t *testing.T) {
	p := newPlace(t)
	var tenants []*tenant
	for _, name := range []string{"a", "b"} {
		c := p.start("lgpu", "run", shape, "--name", name, "--memory", "1GiB", "--compute", "40", "--", "obey", control)
		c.until("ready")
		if got := c.says("allocate 700000000"); got != "allocate 700000000 CUDA_SUCCESS" {
			t.Fatal(got)
		}
		tenants = append(tenants, c)
	}
	before := p.ps()
	for round := range 100 {
		daemon := p.daemon()
		var wg sync.WaitGroup
		for _, c := range tenants {
			wg.Go(func() { c.launch(50, time.Millisecond) })
		}
		if err := unix.Kill(int(daemon.Daemon.GetPid()), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		for _, c := range tenants { // whether the next daemon is there yet or not
			if got := c.says("allocate 700000000"); got != "allocate 700000000 CUDA_ERROR_OUT_OF_MEMORY" {
				t.Errorf("round %d: %s", round, got)
			}
		}
		p.waitForDaemonAfter(daemon.Daemon.GetPid())
		p.wait("the return of all programs", func() bool {
			now := p.ps()
			for i, s := range now {
				if len(s.Processes) != 1 || s.Devices[0].Memory.Used != before[i].Devices[0].Memory.Used {
					return false
				}
			}
			return len(now) == 2
		})
		for i, s := range p.ps() {
			has, had := s.Devices[0].Memory, before[i].Devices[0].Memory
			if s.ID != before[i].ID || has.Used != had.Used || *has.Max != 1<<30 {
				t.Errorf("round %d: before %+v, after %+v", round, before[i], s)
			}
		}
	}
	for _, c := range tenants {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
	p.wait("the end of the lgpus", func() bool { return len(p.ps()) == 0 })
}

// The daemon is killed while programs wait for credit: with the next one, each gets what its cap allows, and is charged
// for that and no more.
func TestDaemonIsKilledInDebt(t *testing.T) {
	p := newPlace(t)
	const percent, kernels, each = 20, 40, 5 * time.Millisecond
	var tenants []*tenant
	for _, name := range []string{"a", "b"} {
		c := p.start("lgpu", "run", shape, "--name", name, "--compute", fmt.Sprint(percent), "--", "obey", control)
		c.until("ready")
		tenants = append(tenants, c)
	}
	for round := range 3 {
		for _, c := range tenants {
			c.launch(1, 400*time.Millisecond) // paid for in two seconds
		}
		before := p.ps()
		daemon := p.daemon()
		took := make([]time.Duration, len(tenants))
		var wg sync.WaitGroup
		for i, c := range tenants {
			wg.Go(func() { took[i] = c.launch(kernels, each) })
		}
		if err := unix.Kill(int(daemon.Daemon.GetPid()), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		p.wait("the return of all programs", func() bool {
			c, err := api.Dial(t.Context(), api.Options{Dir: p.dir})
			if err != nil {
				return false
			}
			c.Close()
			now := p.ps()
			for i, s := range now {
				if len(s.Processes) != 1 || s.Devices[0].Compute.Busy < before[i].Devices[0].Compute.Busy {
					return false
				}
			}
			return len(now) == len(tenants)
		})
		for i, s := range p.ps() {
			// The next daemon knows of no debt. Saved are 20 ms, and what flowed in while others had the device: 200
			// ms.
			busy := s.Devices[0].Compute.Busy - before[i].Devices[0].Compute.Busy
			if most := took[i].Seconds()*percent/100 + 0.5; busy > most {
				t.Errorf("round %d: %s was charged %.2f s in %v, more than %.2f s", round, s.Name, busy, took[i], most)
			}
			if least := (kernels * each).Seconds() * 0.9; busy < least {
				t.Errorf("round %d: %s was charged %.2f s for %d kernels of %v", round, s.Name, busy, kernels, each)
			}
			if took[i] < kernels*each*2 {
				t.Errorf("round %d: at %d %% %d kernels of %v took %v", round, percent, kernels, each, took[i])
			}
		}
	}
	for _, c := range tenants {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
}

// The daemon hangs: programs go on within their caps, by their own credit, and are the daemon's again when it lives.
// One that hangs for good is ended and started anew.
func TestDaemonHangs(t *testing.T) {
	p := newPlace(t)
	var tenants []*tenant
	for _, name := range []string{"a", "b"} {
		c := p.start("lgpu", "run", shape, "--name", name, "--memory", "1GiB", "--compute", "30", "--", "obey", control)
		c.until("ready")
		c.launch(20, 5*time.Millisecond)
		tenants = append(tenants, c)
	}
	before := p.daemon().Daemon.GetPid()
	const kernels, each = 60, 5 * time.Millisecond
	run := func() {
		var wg sync.WaitGroup
		for _, c := range tenants {
			wg.Go(func() {
				// In 300 ms of device time at 30 % are 20 ms saved, and what flowed in while others had the device.
				if took := c.launch(kernels, each); took < 500*time.Millisecond {
					t.Errorf("at 30 %% %d kernels of %v took %v", kernels, each, took)
				}
			})
		}
		wg.Wait()
	}
	for range 3 {
		if err := unix.Kill(int(before), unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		run()
		if err := unix.Kill(int(before), unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		run()
	}
	if err := unix.Kill(int(before), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	run()
	p.waitForDaemonAfter(before)
	p.wait("the return of all programs", func() bool {
		now := p.ps()
		return len(now) == 2 && len(now[0].Processes) == 1 && len(now[1].Processes) == 1
	})
	run()
	for _, c := range tenants {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
}

// After lgpu daemon stop, programs go on without a daemon, and none is started for them until the next command.
func TestDaemonIsStopped(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--name", "a", "--memory", "1GiB", "--compute", "50", "--", "obey", control)
	c.until("ready")
	p.must("daemon", "stop")
	if got := c.says("allocate 2000000000"); got != "allocate 2000000000 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Error(got)
	}
	c.launch(20, time.Millisecond)
	if _, err := api.Dial(t.Context(), api.Options{Dir: p.dir}); !errors.Is(err, api.ErrNoDaemon) {
		t.Errorf("a daemon after its end: %v", err)
	}
	p.must("set", "a", "memory.max=4GiB")
	p.wait("the new limit", func() bool { return c.says("allocate 2000000000") == "allocate 2000000000 CUDA_SUCCESS" })
	p.must("daemon", "stop")
	c.in.Close()
	if s := c.status(); s != 0 {
		t.Errorf("status %d, %s", s, c.stderr.String())
	}
	p.must("daemon", "stop") // none runs: nothing to do
}

// A program that ends while its launcher starts the next daemon leaves none that begins to serve after lgpu daemon stop.
func TestDaemonIsStartedAtTheEnd(t *testing.T) {
	for range rounds(3, 30) {
		p := newPlace(t)
		c := p.start("lgpu", "run", shape, "--", "cat")
		p.wait("it runs", func() bool { s := p.snapshot(); return s != nil && len(s.GetDirectories()) > 1 })
		daemon := p.daemon().Daemon.GetPid()
		unix.Kill(int(daemon), unix.SIGKILL)
		p.wait("the next one is started", func() bool {
			starts := func(command string) bool { return strings.HasSuffix(command, "daemon --on-demand") }
			return slices.ContainsFunc(processesOf(p.dir), starts) || p.snapshot() != nil // it was quicker
		})
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
		p.must("daemon", "stop")
		p.wait("the daemon's end", func() bool {
			if p.snapshot() != nil {
				t.Fatal("a daemon serves after lgpu daemon stop")
			}
			return len(processesOf(p.dir)) == 0
		})
	}
}

// A program starts whatever the daemon is just doing: there is none, it starts, it leaves.
func TestRunWhileTheDaemonLeaves(t *testing.T) {
	p := newPlace(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if out, err := p.command("lgpu", "daemon", "stop").CombinedOutput(); err != nil {
				t.Errorf("lgpu daemon stop: %v: %s", err, out)
			}
		}
	})
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			for range 5 {
				if out, err := p.command("lgpu", "run", shape, "--", "true").CombinedOutput(); err != nil {
					t.Errorf("lgpu run: %v: %s", err, out)
				}
			}
		})
	}
	runs.Wait()
	stop()
	wg.Wait()
}

// A daemon that a command started ends when it has nothing to do; lgpus that were created to stay are there again with
// the next daemon.
func TestDaemonLeavesWhenIdle(t *testing.T) {
	p := newPlace(t)
	d := p.start("lgpu", "daemon", "--idle", "1ms", "--mount", "off")
	if s := d.status(); s != 0 {
		t.Errorf("status %d, %s", s, d.stderr.String())
	}
	p.must("create", shape, "/team", "lgpu.weight=300")
	p.must("daemon", "stop")
	if got := p.must("show", "team", "lgpu.weight"); !strings.Contains(got, "300") {
		t.Errorf("lgpu.weight of the next daemon: %q", got)
	}
	if got := p.must("ps", "--tree"); !strings.Contains(got, "team/") {
		t.Errorf("lgpu ps --tree shows %q", got)
	}
}

// A daemon does not take the place of one whose lgpus programs use. It does of one that a command has started and nobody
// uses: the tree stays as it is.
func TestSecondDaemon(t *testing.T) {
	p := newPlace(t)
	p.must("create", "/x")
	used := p.start("lgpu", "run", shape, "--name", "used", "--", "cat")
	p.wait("the program", func() bool { return p.directory("/used") != nil })
	pid := p.daemon().Daemon.GetPid()
	second := p.start("lgpu", "daemon")
	if s := second.status(); s != 1 || !strings.Contains(second.stderr.String(), "running already") {
		t.Errorf("status %d, %s", s, second.stderr.String())
	}
	if now := p.daemon().Daemon.GetPid(); now != pid {
		t.Errorf("daemon %d in place of %d", now, pid)
	}
	used.end()
	third := p.start("lgpu", "daemon")
	p.waitForDaemonAfter(pid)
	if p.directory("/x") == nil {
		t.Error("/x is gone")
	}
	p.must("daemon", "stop")
	if s := third.status(); s != 0 {
		t.Errorf("status %d, %s", s, third.stderr.String())
	}
}

// A daemon as a service: it tells the service manager when it serves, and shows metrics and the page to this machine
// only.
func TestDaemonAsAService(t *testing.T) {
	p := newPlace(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(p.dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	notified := func() string {
		t.Helper()
		b := make([]byte, 100)
		if err := manager.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	d := p.command("lgpu", "daemon", "--metrics", "127.0.0.1:0", "--page", "127.0.0.1:0", "--mount", "off")
	d.Env = append(d.Env, "NOTIFY_SOCKET="+filepath.Join(p.dir, "notify"))
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.Stderr = log
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer d.Process.Kill()
	if got := notified(); got != "READY=1" {
		t.Errorf("the daemon begins with %q", got)
	}
	p.must("create", shape, "/team")
	said, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	text := string(said)
	for face, want := range map[string]string{"metrics": "lgpu_daemon_info{", "page": "<html"} {
		_, after, _ := strings.Cut(text, "msg="+face+" url=")
		url, _, _ := strings.Cut(after, " ")
		url, _, _ = strings.Cut(url, "\n")
		reply, err := http.Get(url)
		if err != nil {
			t.Errorf("%s: %v; the log is %s", face, err, text)
			continue
		}
		body, err := io.ReadAll(reply.Body)
		reply.Body.Close()
		if err != nil || reply.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v: %.200s", face, reply.Status, err, body)
		}
		base := strings.TrimSuffix(strings.TrimSuffix(url, "metrics"), "/")
		p.wait(face+" is ready", func() bool { return statusOf(t, base+"/readyz", "") == http.StatusOK })
		if status := statusOf(t, base+"/healthz", ""); status != http.StatusOK {
			t.Errorf("%s: the daemon is not well: %d", face, status)
		}
		for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
			if status := statusOf(t, base+path, "evil.example"); status != http.StatusMisdirectedRequest {
				t.Errorf("%s: %s for another host is answered with %d", face, path, status)
			}
		}
	}
	if err := d.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := notified(); got != "STOPPING=1" {
		t.Errorf("the daemon ends with %q", got)
	}
	if err := d.Wait(); err != nil {
		said, _ := os.ReadFile(log.Name())
		t.Errorf("%v: %s", err, said)
	}
}

// statusOf asks for a URL, by the name of another host unless that is empty.
func statusOf(t *testing.T, url, host string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	return reply.StatusCode
}

// An lgpu that has its device for itself, without a cap, keeps no accounts; it is shown as busy as the driver says, and
// at first as unknown, never as idle.
func TestLoneUncappedIsNotIdle(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--name", "a", "--", "obey", control)
	c.until("ready")
	p.wait("a share of more than half in lgpu top", func() bool {
		c.launch(100, 5*time.Millisecond)
		var s document.State
		if err := json.Unmarshal([]byte(p.must("top", "--once", "--json")), &s); err != nil {
			t.Fatal(err)
		}
		a := s.LGPUs[0].Devices[0]
		if a.Effective.ComputeMax != nil {
			t.Errorf("a compute.max of %v", *a.Effective.ComputeMax)
		}
		if a.ComputeStat.Delivered == nil {
			if a.State != "running" {
				t.Errorf("not measured and %s", a.State)
			}
			return false
		}
		if *a.ComputeStat.Asked != *a.ComputeStat.Delivered {
			t.Errorf("asked for %v, got %v: an alert compares them", *a.ComputeStat.Asked, *a.ComputeStat.Delivered)
		}
		return *a.ComputeStat.Delivered > 50
	})
	p.wait("a share of more than half in lgpu ps", func() bool {
		c.launch(100, 5*time.Millisecond)
		share := p.ps()[0].Devices[0].Compute.Share
		return share != nil && *share > 50
	})
	c.in.Close()
	c.status()
}
