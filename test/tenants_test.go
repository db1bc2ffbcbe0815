package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	document "github.com/lgpu/lgpu/api/state"
)

// patience bounds every wait; nothing here takes a tenth of it on an idle machine.
const patience = 60 * time.Second

const shape = "--sim=1x16GiB,sms=32"

// place is a runtime folder, in which the lgpus of one test live.
type place struct {
	t   *testing.T
	dir string
	env []string
	// sessions: each program that the test starts begins one, and not a process group alone.
	sessions bool
	criu     string // the CRIU that programs find; empty where none is wanted
}

func newPlace(t *testing.T) *place {
	t.Helper()
	// Not t.TempDir: the path of a socket must be short.
	dir, err := os.MkdirTemp("", "lgpu-")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, dir: dir, env: environment(dir)}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(dir, api.Log)); err == nil && t.Failed() {
			t.Logf("%s:\n%s", api.Log, log)
		}
		if err := p.end(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// end stops the daemon of the place and removes it. It returns an error if anything remains.
func (p *place) end() error {
	out, stopErr := p.command("lgpu", "daemon", "stop").CombinedOutput()
	if stopErr != nil {
		stopErr = fmt.Errorf("lgpu daemon stop: %w: %s", stopErr, out)
	}
	var left []string
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if left = processesOf(p.dir); len(left) == 0 || time.Since(start) > patience {
			break
		}
	}
	var leftErr error
	if len(left) > 0 {
		leftErr = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	// A daemon that was killed leaves its mount to the next, and there may have been none.
	_ = unix.Unmount(filepath.Join(p.dir, "tree"), unix.MNT_DETACH)
	return errors.Join(stopErr, leftErr, os.RemoveAll(p.dir))
}

// processesOf returns the lgpu processes that have a runtime folder.
func processesOf(dir string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte("LGPU_RUNTIME_DIR="+dir+"\x00")) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found = append(found, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return found
}

// command is a program of the test, killed at its end with all its children.
func (p *place) command(name string, args ...string) *exec.Cmd {
	path := name
	if !strings.Contains(name, "/") {
		path = filepath.Join(bin, name)
		if _, err := os.Stat(path); err != nil {
			path = name
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Env = p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !p.sessions, Setsid: p.sessions}
	return cmd
}

// tenant is a program whose output is read line by line.
type tenant struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	lines  chan string
	stderr bytes.Buffer
}

func (p *place) start(name string, args ...string) *tenant {
	p.t.Helper()
	t := &tenant{Cmd: p.command(name, args...), t: p.t, lines: make(chan string, 64)}
	t.Cmd.Stderr = &t.stderr
	var err error
	if t.in, err = t.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	out, err := t.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := t.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		unix.Kill(-t.Process.Pid, unix.SIGKILL)
		t.Wait()
	})
	go func() {
		defer close(t.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			t.lines <- s.Text()
		}
	}()
	return t
}

// until reads lines up to the one that is want, and returns those before it.
func (t *tenant) until(want string) []string {
	t.t.Helper()
	before, _ := t.read(strconv.Quote(want), func(line string) bool { return line == want })
	return before
}

// read reads lines up to the first that is wanted, and returns it and those before it. what describes it for errors.
func (t *tenant) read(what string, wanted func(line string) bool) (before []string, line string) {
	t.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-t.lines:
			if !ok {
				t.t.Fatalf("%s ended before %s; it said %q and %s", t.Path, what, before, t.stderr.String())
			}
			if wanted(line) {
				return before, line
			}
			before = append(before, line)
		case <-deadline:
			t.t.Fatalf("%s does not say %s; it said %q", t.Path, what, before)
		}
	}
}

// status waits for the end and returns the exit status.
func (t *tenant) status() int {
	t.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- t.Wait() }()
	select {
	case err := <-ended:
		var exited *exec.ExitError
		if err != nil && !errors.As(err, &exited) {
			t.t.Fatal(err)
		}
		return t.ProcessState.ExitCode()
	case <-time.After(patience):
		t.t.Fatalf("%s does not end", t.Path)
		return 0
	}
}

// state is the part of lgpu ps --json that the tests look at.
type state struct {
	Name      string
	ID        string
	State     string
	Devices   []deviceState
	Processes []processState
}

type deviceState struct {
	UUID   string
	Memory struct {
		Used, Peak, Physical uint64
		Max                  *uint64
	}
	Compute struct {
		Share    *float64
		Max      *float64
		Launches uint64
		Busy     float64 // s
	}
}

type processState struct {
	PID     int
	Command string
	Memory  []uint64
}

func (p *place) ps() []state {
	p.t.Helper()
	out, err := p.command("lgpu", "ps", "--json").Output()
	if err != nil {
		p.t.Fatalf("lgpu ps: %v", err)
	}
	var doc document.State
	if err := json.Unmarshal(out, &doc); err != nil {
		p.t.Fatalf("lgpu ps: %v: %s", err, out)
	}
	physical := map[string]uint64{}
	for _, d := range doc.Devices {
		physical[d.UUID] = d.MemoryCapacity
	}
	var all []state
	for _, l := range doc.LGPUs {
		s := state{Name: path.Base(l.Path), ID: l.ID, State: l.State}
		for _, d := range l.Devices {
			v := deviceState{UUID: d.UUID}
			v.Memory.Used, v.Memory.Peak, v.Memory.Physical = d.MemoryCurrent, d.MemoryPeak, physical[d.UUID]
			v.Memory.Max, v.Compute.Max = d.Effective.MemoryMax, d.Effective.ComputeMax
			v.Compute.Share, v.Compute.Launches = d.ComputeStat.Delivered, d.ComputeStat.Launches
			v.Compute.Busy = float64(d.ComputeStat.BusyUsec) / 1e6
			s.Devices = append(s.Devices, v)
		}
		for _, c := range l.Processes {
			s.Processes = append(s.Processes, processState{int(c.PID), c.Command, c.MemoryCurrent})
		}
		all = append(all, s)
	}
	return all
}

// wait polls until ok holds; there is no event for what another process's end does to shared state.
func (p *place) wait(what string, ok func() bool) {
	p.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			p.t.Fatalf("%s does not happen", what)
		}
	}
}

func TestJoinByName(t *testing.T) {
	p := newPlace(t)
	first := p.start("lgpu", "run", shape, "--name", "team", "--memory", "2GiB", "--compute", "50", "--", "hold", "0", "1200000000")
	if got := first.until("ready"); got[0] != "allocate 1200000000 CUDA_SUCCESS" {
		t.Fatalf("the first says %q", got)
	}
	second := p.start("lgpu", "run", shape, "--name", "team", "--", "hold", "0", "1200000000", "500000000")
	if got := second.until("ready"); got[0] != "allocate 1200000000 CUDA_ERROR_OUT_OF_MEMORY" || got[1] != "allocate 500000000 CUDA_SUCCESS" {
		t.Fatalf("the second says %q; the limit is for both", got)
	}
	same := p.start("lgpu", "run", shape, "--name", "team", "--memory", "2048M", "--compute", "50%", "--", "true")
	if s := same.status(); s != 0 {
		t.Errorf("joining with the same limits written otherwise: status %d, %s", s, same.stderr.String())
	}
	for limit, says := range map[string]string{
		"--memory=1GiB": `lgpu: error: lgpu "/team" exists with memory.max 2 GiB, not 1 GiB`,
		"--compute=50":  `lgpu: error: lgpu "/team" exists with memory.max 2 GiB, not max`,
		"--units=2":     `lgpu: error: lgpu "/team" exists with memory.max 2 GiB, not max`,
	} {
		c := p.start("lgpu", "run", shape, "--name", "team", limit, "--", "true")
		if s := c.status(); s != 2 || !strings.Contains(c.stderr.String(), says+"\n") {
			t.Errorf("%s: status %d, %s", limit, s, c.stderr.String())
		}
	}
	other := p.start("lgpu", "run", "--sim=2x1GiB,sms=2", "--name", "team", "--", "true")
	if s := other.status(); s != 2 || !strings.Contains(other.stderr.String(), `lgpu "team" is on the software GPU 1x16GiB,sms=32, not on the software GPU 2x1GiB,sms=2`) {
		t.Errorf("on another software GPU: status %d, %s", s, other.stderr.String())
	}

	all := p.ps()
	if len(all) != 1 || all[0].Name != "team" || len(all[0].Processes) != 2 || len(all[0].Devices) != 1 {
		t.Fatalf("lgpu ps shows %+v", all)
	}
	d := all[0].Devices[0]
	if d.Memory.Max == nil || *d.Memory.Max != 2<<30 || d.Memory.Used < 1700000000 || d.Memory.Used > 2<<30 || d.Memory.Peak < d.Memory.Used || d.Memory.Physical != 16<<30 {
		t.Errorf("memory is %+v", d.Memory)
	}
	if d.Compute.Max == nil || *d.Compute.Max != 50 || d.Compute.Share == nil {
		t.Errorf("compute is %+v", d.Compute)
	}
	var sum uint64
	for _, process := range all[0].Processes {
		if process.Command != "hold" {
			t.Errorf("process %+v", process)
		}
		sum += process.Memory[0]
	}
	if sum != d.Memory.Used {
		t.Errorf("processes hold %d, the lgpu %d", sum, d.Memory.Used)
	}
	table, err := p.command("script", "-qec", "stty cols 80; lgpu", "/dev/null").Output() // on a terminal
	if err != nil || !strings.Contains(string(table), "team ") {
		t.Fatalf("%v: %q", err, table)
	}
	for line := range strings.Lines(string(table)) {
		if n := len([]rune(strings.TrimRight(line, "\r\n"))); n > 80 {
			t.Errorf("a line of %d characters: %q", n, line)
		}
	}

	for _, c := range []*tenant{first, second} {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
	if left := p.ps(); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
}

// A program that dies at once, or whose launcher does, leaves its memory to the next.
func TestKilledTenantIsReclaimed(t *testing.T) {
	p := newPlace(t)
	keeper := p.start("lgpu", "run", shape, "--name", "k", "--memory", "1GiB", "--", "sh", "-c", "echo ready; read x")
	keeper.until("ready")
	for i := range 5 {
		c := p.start("lgpu", "run", shape, "--name", "k", "--", "hold", "0", "900000000")
		if got := c.until("ready"); got[0] != "allocate 900000000 CUDA_SUCCESS" {
			t.Fatalf("round %d: %q", i, got)
		}
		s := p.ps()
		if len(s) != 1 || len(s[0].Processes) != 1 || s[0].Devices[0].Memory.Used < 900000000 {
			t.Fatalf("round %d: lgpu ps shows %+v", i, s)
		}
		if i%2 == 0 {
			if err := unix.Kill(s[0].Processes[0].PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if status := c.status(); status != 137 {
				t.Errorf("the launcher of a killed program ends with %d, want 137", status)
			}
		} else {
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			c.status()
			pid := s[0].Processes[0].PID
			p.wait("the end of a killed launcher's program", func() bool { return unix.Kill(pid, 0) != nil })
		}
		if s := p.ps(); len(s) != 1 || s[0].Devices[0].Memory.Used != 0 || len(s[0].Processes) != 0 {
			t.Errorf("round %d: after the kill lgpu ps shows %+v", i, s)
		}
	}
	keeper.in.Close()
	keeper.status()
}

// The tests pass where signals are ignored that they send, as under nohup and in a shell's background.
func TestUnderNohup(t *testing.T) {
	c := exec.Command("sh", "-c", `trap '' HUP INT QUIT; exec "$@"`, "sh", os.Args[0], "-test.run=^TestSignalsAreForwarded$/^SIGHUP$",
		"-test.timeout=5m")
	c.Env = append(os.Environ(), builtEnvironment+"="+bin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("with signals ignored: %v\n%s", err, out)
	}
}

// A signal that lgpu run is told to ignore is none for its program either.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	p := newPlace(t)
	c := p.start("sh", "-c", `trap '' HUP; exec lgpu run `+shape+` -- sh -c 'echo ready; cat; exit 7'`)
	c.until("ready")
	if err := c.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	c.in.Close()
	if status := c.status(); status != 7 {
		t.Errorf("status %d, want 7", status)
	}
}

// Signals sent to lgpu run reach the program, whose handling decides.
func TestSignalsAreForwarded(t *testing.T) {
	p := newPlace(t)
	for _, s := range tried {
		t.Run(unix.SignalName(s), func(t *testing.T) {
			name := strings.TrimPrefix(unix.SignalName(s), "SIG")
			p := &place{t: t, dir: p.dir, env: p.env}
			c := p.start("lgpu", "run", shape, "--", "bash", "-c", `trap 'echo got; exit 42' `+name+`; echo ready; while :; do read -t 1 x; [ $? -gt 128 ] || exit 9; done`)
			c.until("ready")
			if err := c.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			c.until("got")
			if status := c.status(); status != 42 {
				t.Errorf("status %d, want 42", status)
			}
		})
	}
	t.Run("default", func(t *testing.T) {
		p := &place{t: t, dir: p.dir, env: p.env}
		c := p.start("lgpu", "run", shape, "--", "sh", "-c", "echo ready; exec cat")
		c.until("ready")
		if err := c.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if status := c.status(); status != 128+15 {
			t.Errorf("status %d, want %d", status, 128+15)
		}
	})
	t.Run("stop", func(t *testing.T) {
		p := &place{t: t, dir: p.dir, env: p.env}
		c := p.start("lgpu", "run", shape, "--", "sh", "-c", "echo $$; exec cat")
		pid := (<-c.lines)
		if err := c.Process.Signal(unix.SIGTSTP); err != nil {
			t.Fatal(err)
		}
		state := func() string {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil {
				t.Fatal(err)
			}
			return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
		}
		p.wait("the program's stop", func() bool { return state() == "T" })
		var ws unix.WaitStatus
		if _, err := unix.Wait4(c.Process.Pid, &ws, unix.WUNTRACED, nil); err != nil || !ws.Stopped() {
			t.Fatalf("lgpu run did not stop with it: %v, %v", ws, err)
		}
		if err := c.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		p.wait("the program's continuation", func() bool { return state() == "S" })
		c.in.Close()
		if status := c.status(); status != 0 {
			t.Errorf("status %d", status)
		}
	})
}

// Processes of one lgpu that start at once all come up, and their limit holds.
func TestManyAtOnce(t *testing.T) {
	p := newPlace(t)
	const processes = 64
	script := fmt.Sprintf(`for i in $(seq %d); do hold 0 2097152 <&3 & done; wait`, processes)
	c := p.command("lgpu", "run", shape, "--name", "many", "--memory", "16GiB", "--", "bash", "-c", "exec 3<&0; "+script)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(-c.Process.Pid, unix.SIGKILL); c.Wait() })
	timer := time.AfterFunc(patience, func() { unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	defer timer.Stop()
	ready := 0
	for s := bufio.NewScanner(out); ready < processes && s.Scan(); {
		switch {
		case s.Text() == "ready":
			ready++
		case strings.HasPrefix(s.Text(), "allocate") && !strings.HasSuffix(s.Text(), "CUDA_SUCCESS"):
			t.Error(s.Text())
		}
	}
	if ready != processes {
		t.Fatalf("%d of %d processes came up: %s", ready, processes, stderr.String())
	}
	all := p.ps()
	if len(all) != 1 || len(all[0].Processes) != processes || all[0].Devices[0].Memory.Used < processes*2<<20 {
		t.Errorf("lgpu ps shows %+v", all)
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Errorf("%v, %s", err, stderr.String())
	}
}

// When the hardware dies under its tenants, they get errors and end.
func TestSimKilled(t *testing.T) {
	p := newPlace(t)
	hardware := p.start("lgpu", "sim", "--gpus", "1", "--memory", "16GiB", "--sms", "32")
	if line := <-hardware.lines; !strings.HasPrefix(line, "software GPU 1x16GiB,sms=32 at ") {
		t.Fatalf("lgpu sim says %q, %s", line, hardware.stderr.String())
	}
	var tenants []*tenant
	for range 3 {
		c := p.start("lgpu", "run", shape, "--memory", "1GiB", "--compute", "25", "--", "hold", "0", "1000000")
		c.until("ready")
		tenants = append(tenants, c)
	}
	if err := hardware.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range tenants {
		c.in.Close()
		wg.Go(func() {
			line, ok := <-c.lines
			if !ok || line != "at the end CUDA_ERROR_DEVICE_UNAVAILABLE" {
				t.Errorf("the tenant says %q", line)
			}
		})
	}
	wg.Wait()
	for _, c := range tenants {
		if s := c.status(); s != 1 {
			t.Errorf("status %d, want the program's own 1; %s", s, c.stderr.String())
		}
	}
	again := p.start("lgpu", "run", shape, "--", "hold", "0", "1000000")
	if got := again.until("ready"); got[0] != "allocate 1000000 CUDA_SUCCESS" {
		t.Errorf("on a fresh software GPU: %q", got)
	}
	again.in.Close()
	again.status()
}

// The software GPU that lgpu run starts ends after the last tenant.
func TestSimEndsAfterLastTenant(t *testing.T) {
	p := newPlace(t)
	c := p.start("lgpu", "run", shape, "--", "hold", "0")
	c.until("ready")
	sockets := func() int {
		found, err := filepath.Glob(filepath.Join(p.dir, "sim-*.sock"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if n := sockets(); n != 1 {
		t.Fatalf("%d sockets while a tenant runs", n)
	}
	c.in.Close()
	if s := c.status(); s != 0 {
		t.Fatalf("status %d, %s", s, c.stderr.String())
	}
	p.wait("the end of the software GPU", func() bool { return sockets() == 0 })
}

// machine is a software GPU that daemons of their own take for the machine's: devices come from the management library
// without --sim, and here that is the software GPU's.
func machine(t *testing.T, shape string) (daemon func() *place) {
	t.Helper()
	keeper := newPlace(t).start("lgpu", "run", "--sim="+shape, "--", "sh", "-c", `echo "$LD_LIBRARY_PATH"; echo "$LGPU_SIM"; read x`)
	path, socket := <-keeper.lines, <-keeper.lines
	return func() *place {
		p := newPlace(t)
		p.env = append(p.env, "LD_LIBRARY_PATH="+path, "LGPU_SIM="+socket, "LGPU_REAL_LIBNVML="+filepath.Join(path, "libnvidia-ml.so.1"))
		return p
	}
}

// Two daemons on a machine without a system daemon have one device each. Who wants the other's is told whose it is, and has
// it when its program has ended.
func TestTwoDaemonsThroughNVML(t *testing.T) {
	daemon := machine(t, "2x16GiB,sms=32")
	one, other := daemon(), daemon()
	hold := func(p *place, name string, args ...string) *tenant {
		t.Helper()
		c := p.start("lgpu", append(append([]string{"run", "--name=" + name, "--memory=1GiB"}, args...), "--", "hold", "0")...)
		if got := c.until("ready"); len(got) != 1 || !strings.HasPrefix(got[0], "devices 1 ") {
			t.Fatalf("%s sees %q; %s", name, got, c.stderr.String())
		}
		return c
	}
	first := hold(one, "first", "--device=0")
	beside := hold(other, "beside") // all that nobody has
	refused := other.start("lgpu", "run", "--device=0", "--", "true")
	if s := refused.status(); s == 0 || !strings.Contains(refused.stderr.String(), "is managed by the daemon of user") {
		t.Errorf("status %d, %s", s, refused.stderr.String())
	}
	for _, c := range []*tenant{first, beside} {
		c.in.Close()
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
	last := hold(other, "last", "--device=0")
	last.in.Close()
	if s := last.status(); s != 0 {
		t.Errorf("status %d, %s", s, last.stderr.String())
	}
}

func TestInventoryThroughNVML(t *testing.T) {
	p := machine(t, "2x16GiB,sms=32")()
	c := p.start("lgpu", "run", "--device", "1", "--memory", "1GiB", "--units", "8", "--", "hold", "0")
	if got := c.until("ready"); len(got) != 1 || got[0] != "devices 1 units 8 total 1073741824 available sane" {
		t.Errorf("inside: %q", got)
	}
	for _, s := range p.ps() {
		if d := s.Devices[0]; d.Memory.Max != nil && (*d.Memory.Max != 1<<30 || d.Compute.Max == nil || *d.Compute.Max != 25 || d.Memory.Physical != 16<<30) {
			t.Errorf("lgpu ps shows %+v", d)
		}
	}
	c.in.Close()
	if s := c.status(); s != 0 {
		t.Errorf("status %d, %s", s, c.stderr.String())
	}
	for option, says := range map[string]string{"--device=2": `device "2": no such device`, "--memory=17GiB": "has 16 GiB", "--units=33": "has 32 units"} {
		c := p.start("lgpu", "run", option, "--", "true")
		if s := c.status(); s != 2 || !strings.Contains(c.stderr.String(), says) {
			t.Errorf("%s: status %d, %s", option, s, c.stderr.String())
		}
	}
}

// HAMi's environment limits a program without lgpu run.
func TestHAMiEnvironment(t *testing.T) {
	p := newPlace(t)
	keeper := p.start("lgpu", "run", shape, "--contain=off", "--", "sh", "-c", `echo "$LD_PRELOAD"; echo "$LD_LIBRARY_PATH"; echo "$LGPU_SIM"; read x`)
	preload, path, socket := <-keeper.lines, <-keeper.lines, <-keeper.lines
	cache := filepath.Join(p.dir, "hami.cache")
	p.env = append(p.env, "LD_PRELOAD="+preload, "LD_LIBRARY_PATH="+path, "LGPU_SIM="+socket,
		"LGPU_REAL_LIBNVML="+filepath.Join(path, "libnvidia-ml.so.1"),
		"CUDA_DEVICE_MEMORY_LIMIT=1024m", "CUDA_DEVICE_SM_LIMIT=50", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+cache)
	c := p.start("hold", "0", "600000000", "600000000")
	got := c.until("ready")
	if got[0] != "allocate 600000000 CUDA_SUCCESS" || got[1] != "allocate 600000000 CUDA_ERROR_OUT_OF_MEMORY" || !strings.Contains(got[2], "total 1073741824 available sane") {
		t.Errorf("under HAMi's environment: %q", got)
	}
	header := make([]byte, 12)
	f, err := os.Open(cache)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	if want := []byte{0x4e, 0xf7, 0x2f, 0x01, 1, 0, 0, 0, 2, 0, 0, 0}; !bytes.Equal(header, want) {
		t.Errorf("the cache file begins %x, want %x", header, want)
	}
	c.in.Close()
	c.status()
}
