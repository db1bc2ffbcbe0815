package daemon

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim"
)

// tenantGroup is a launcher and its programs.
type tenantGroup struct {
	launcher *exec.Cmd // a shell that runs what it is told
	in       io.Writer
	lines    chan string // what programs say
	held     Attachment
}

// newTenantGroup starts a launcher. The test's end kills it and all its programs.
func newTenantGroup(t *testing.T) *tenantGroup {
	t.Helper()
	g := &tenantGroup{launcher: exec.Command("sh"), lines: make(chan string, 100)}
	g.launcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := g.launcher.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := g.launcher.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	g.launcher.Stderr = os.Stderr
	if err := g.launcher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.kill)
	g.in = in
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			g.lines <- lines.Text()
		}
		close(g.lines)
	}()
	return g
}

func (g *tenantGroup) kill() {
	syscall.Kill(-g.launcher.Process.Pid, syscall.SIGKILL)
	g.launcher.Wait()
}

// run starts a program as a child of the launcher.
func (g *tenantGroup) run(t *testing.T, program string, args ...string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("env")
	for _, v := range tenantEnvironment(t, g.held.Environment)[len(os.Environ()):] {
		fmt.Fprintf(&b, " '%s'", v)
	}
	fmt.Fprintf(&b, " %s %s &\n", program, strings.Join(args, " "))
	if _, err := io.WriteString(g.in, b.String()); err != nil {
		t.Fatal(err)
	}
}

// says waits for a line of a program.
func (g *tenantGroup) says(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-g.lines:
		if got != want {
			t.Fatalf("a program says %q, not %q", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("a program does not say %q", want)
	}
}

// The daemon is killed a hundred times under programs that allocate as fast as they can. Whatever the moment, the
// software GPU never holds more for an lgpu, or for a group that promises less than its members have, than the limit;
// every program goes on; and the last daemon's books are the device's truth.
func TestDaemonKilledHundredTimes(t *testing.T) {
	const (
		mib        = 1 << 20
		limit      = 200 * mib
		groupLimit = 300 * mib
		programs   = 3 // of each lgpu
	)
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	shape := sim.Shape{Devices: 1, Memory: 1 << 30, Units: 2, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9,
		Context: 16 * mib}
	churn := compile(t, "testdata/churn.c")
	dir := shortDir(t)
	daemon, _ := spawn(t, dir)
	groups := []*tenantGroup{newTenantGroup(t), newTenantGroup(t)}
	for i, g := range groups {
		spec := AttachSpec{
			Path: fmt.Sprintf("/g/%c", 'a'+i), Sim: shape.String(), Limits: memory(limit),
			Launcher: limits.Author{PID: g.launcher.Process.Pid},
		}
		g.held = ask[Attachment](t, daemon, asked{Attach: &spec})
	}
	ask[bool](t, daemon, asked{Write: []string{"/g", "memory.max", fmt.Sprint(groupLimit)}})
	hardware, err := sim.Start(shape, sim.StartOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer hardware.Close()
	for i, g := range groups {
		for p := range programs {
			g.run(t, churn, fmt.Sprint(10*i+p))
			g.says(t, "ready")
		}
	}

	// truth is what the device holds for each launcher's programs.
	truth := func() (held [2]uint64) {
		processes, err := hardware.Client.Processes(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			s, err := proc.Live(int(p.PID))
			if err != nil {
				t.Fatalf("a program has ended: %v", err)
			}
			for i, g := range groups {
				if s.Parent == g.launcher.Process.Pid {
					held[i] += p.MemoryUsed
				}
			}
		}
		return held
	}
	var most [3]uint64
	look := func() {
		held := truth()
		for i := range groups {
			most[i] = max(most[i], held[i])
			if held[i] > limit {
				t.Fatalf("the device holds %d MiB for an lgpu of %d MiB", held[i]/mib, limit/mib)
			}
		}
		most[2] = max(most[2], held[0]+held[1])
		if held[0]+held[1] > groupLimit {
			t.Fatalf("the device holds %d and %d MiB for a group of %d MiB", held[0]/mib, held[1]/mib, groupLimit/mib)
		}
	}
	for round := range rounds {
		for until := time.Now().Add(time.Duration(rand.IntN(40)) * time.Millisecond); time.Now().Before(until); {
			look()
		}
		daemon.kill()
		if round%4 == 0 { // most often the next one is there at once
			for until := time.Now().Add(20 * time.Millisecond); time.Now().Before(until); {
				look()
			}
		}
		var s Snapshot
		daemon, s = spawn(t, dir)
		if s.Daemon.Restarts != uint64(round)+1 {
			t.Fatalf("restart %d is counted as %d", round+1, s.Daemon.Restarts)
		}
		look()
	}
	// The last one learns everything again.
	clients := func(s Snapshot) (n int) {
		for _, node := range s.Directories {
			for _, c := range node.Clients {
				if c.Linked {
					n++
				}
			}
		}
		return n
	}
	deadline := time.Now().Add(30 * time.Second)
	for s := (Snapshot{}); ; {
		look()
		if s = ask[Snapshot](t, daemon, asked{}); clients(s) == 2*programs {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d clients have come back", clients(s), 2*programs)
		}
	}
	// While all stand still, the books are the truth.
	for _, g := range groups {
		syscall.Kill(-g.launcher.Process.Pid, syscall.SIGSTOP)
	}
	for {
		s, held := ask[Snapshot](t, daemon, asked{}), truth()
		var books [2]uint64
		for _, node := range s.Directories {
			for i, g := range groups {
				if node.Path == g.held.Path {
					books[i] = node.Devices[0].MemoryUsed
				}
			}
		}
		// A program may have been stopped between the device's answer and its note of it.
		const inFlight = programs * 25 * mib
		if books[0]+inFlight >= held[0] && books[1]+inFlight >= held[1] && books[0] <= held[0]+inFlight &&
			books[1] <= held[1]+inFlight {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the books say %v, the device %v", books, held)
		}
	}
	for _, g := range groups {
		syscall.Kill(-g.launcher.Process.Pid, syscall.SIGCONT)
	}
	for _, g := range groups {
		select {
		case line := <-g.lines:
			t.Errorf("a program says %q", line)
		default:
		}
	}
	// Everything is given back when all have gone, launchers too.
	for _, g := range groups {
		g.kill()
	}
	for {
		s := ask[Snapshot](t, daemon, asked{})
		if len(s.Directories) == 2 && s.Directories[0].State == StateIdle {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nodes stay: %+v", s.Directories)
		}
	}
	t.Logf("at most %d and %d MiB of %d, together %d of %d", most[0]/mib, most[1]/mib, limit/mib, most[2]/mib,
		groupLimit/mib)
	if most[2] < groupLimit/2 {
		t.Error("the limits were never tried")
	}
}
