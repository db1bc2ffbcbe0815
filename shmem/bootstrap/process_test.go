package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// scriptVariable says what this program does as a PE that a test started, in words:
//
//	allgather, alltoall, barrier   call it; an error is printed
//	word W                         print W
//	hang                           stop until killed
//	lost                           wait for the end and print who is to blame
//	close                          leave, print
//	abort                          abort with code 5
//	exit                           end without leaving
//	fork                           start a process that has all descriptors of this one
//	cycles N                       leave, and then join and leave N instances more, one after the other
const scriptVariable = "BOOTSTRAP_TEST_SCRIPT"

// process is the PE.
func process() int {
	script := strings.Fields(os.Getenv(scriptVariable))
	ctx := context.Background()
	b, err := FromEnv(ctx, Options{})
	if err != nil {
		fmt.Println("join:", err)
		return 1
	}
	for i := 0; i < len(script); i++ {
		var err error
		switch script[i] {
		case "allgather":
			_, err = b.AllGather(ctx, make([]byte, 1000))
		case "alltoall":
			_, err = b.AllToAll(ctx, make([][]byte, b.Size()))
		case "barrier":
			err = b.Barrier(ctx)
		case "word":
			i++
			fmt.Println(script[i])
		case "hang":
			time.Sleep(time.Hour)
		case "lost":
			<-b.Lost()
			pe, err := b.LostPE()
			fmt.Println("lost", pe, err)
		case "close":
			fmt.Println("left", b.Close())
		case "abort":
			b.Abort(5, "on purpose")
		case "exit":
			return 3
		case "cycles":
			i++
			n, _ := strconv.Atoi(script[i])
			fmt.Println("cycled", cycles(ctx, b, n))
		case "fork":
			for fd := 3; fd < 100; fd++ {
				syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, 0)
			}
			child := exec.Command("sleep", "30")
			err = child.Start()
			fmt.Println("child", child.Process.Pid)
		}
		if err != nil {
			fmt.Println("error", err)
		}
	}
	return 0
}

// cycles leaves b, and joins and leaves n instances more.
func cycles(ctx context.Context, b Bootstrap, n int) error {
	for k := range n {
		if err := b.Close(); err != nil {
			return fmt.Errorf("cycle %d: %w", k, err)
		}
		var err error
		if b, err = FromEnv(ctx, Options{}); err != nil {
			return fmt.Errorf("cycle %d: %w", k, err)
		}
		all, err := b.AllGather(ctx, []byte{byte(k)})
		if err != nil {
			return fmt.Errorf("cycle %d: %w", k, err)
		}
		for pe, p := range all {
			if len(p) != 1 || p[0] != byte(k) {
				return fmt.Errorf("cycle %d: PE %d is in another: %v", k, pe, p)
			}
		}
	}
	return b.Close()
}

// pe is a process of a test.
type pe struct {
	*exec.Cmd
	t    *testing.T
	mu   sync.Mutex
	all  []string
	line chan string
}

// startPE starts a PE that does a script, with settings on top of the environment.
func startPE(t *testing.T, rank, size int, at, script string, settings ...string) *pe {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &pe{Cmd: exec.Command(self), t: t, line: make(chan string, 64)}
	p.Env = append(os.Environ(), scriptVariable+"="+script, EnvBootstrap+"="+at,
		EnvPE+"="+strconv.Itoa(rank), EnvPEs+"="+strconv.Itoa(size))
	p.Env = append(p.Env, settings...)
	p.Stderr = os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(p.line)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.all = append(p.all, s.Text())
			p.mu.Unlock()
			p.line <- s.Text()
		}
		io.Copy(io.Discard, out)
	}()
	t.Cleanup(func() {
		p.Process.Kill()
		<-done
		p.Wait()
		if t.Failed() {
			t.Logf("PE %d of %d:\n%s", rank, size, strings.Join(p.all, "\n"))
		}
	})
	return p
}

// until waits for a line that contains text, and returns it.
func (p *pe) until(text string) string {
	p.t.Helper()
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-p.line:
			if !ok {
				p.t.Fatalf("no line with %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-timer.C:
			p.t.Fatalf("no line with %q yet", text)
		}
	}
}

// launcher makes a root as lgpu run does, and says where it is.
func launcher(t *testing.T) (*Root, string) {
	t.Helper()
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, "uid:" + r.ID().String()
}

// A PE that is killed while others are in, before or after each collective ends the job for all, at once and by name.
func TestKilled(t *testing.T) {
	for _, op := range []string{"allgather", "alltoall", "barrier", "lost"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			_, at := launcher(t)
			victim := startPE(t, 1, 3, at, "barrier word ready hang")
			others := []*pe{
				startPE(t, 0, 3, at, "barrier word ready "+op+" lost close"),
				startPE(t, 2, 3, at, "barrier word ready "+op+" lost close"),
			}
			for _, p := range append(others, victim) {
				p.until("ready")
			}
			killed := time.Now()
			victim.Process.Kill()
			for _, p := range others {
				if op != "lost" {
					p.until("error bootstrap: " + op + ": PE 1 died: its process ended without leaving the job (process " + strconv.Itoa(victim.Process.Pid))
				}
				p.until("lost 1 PE 1 died")
				p.until("left <nil>")
			}
			if took := time.Since(killed); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// One that is killed while PEs still join, and one that ends without having joined where its launcher says so.
func TestKilledJoining(t *testing.T) {
	t.Run("joined", func(t *testing.T) {
		t.Parallel()
		root, at := launcher(t)
		waiting := startPE(t, 0, 3, at, "")
		victim := startPE(t, 1, 3, at, "")
		waitConnected(t, root, 2)
		victim.Process.Kill()
		waiting.until("join: bootstrap: join as PE 0 of 3: PE 1 died: its process ended")
	})
	t.Run("never", func(t *testing.T) {
		t.Parallel()
		root, at := launcher(t)
		waiting := startPE(t, 0, 2, at, "")
		waitConnected(t, root, 1)
		root.Ended(1, "was killed by SIGSEGV")
		waiting.until("join: bootstrap: join as PE 0 of 2: PE 1 died: was killed by SIGSEGV")
		startPE(t, 0, 2, at, "").until("PE 1 died: was killed by SIGSEGV")
	})
	t.Run("exit", func(t *testing.T) {
		t.Parallel()
		_, at := launcher(t)
		p := startPE(t, 0, 2, at, "barrier lost")
		startPE(t, 1, 2, at, "barrier exit")
		p.until("lost 1 PE 1 died: its process ended without leaving the job")
	})
}

// A connection that a process inherited from a PE does not keep the PE alive.
func TestKilledWithHeirs(t *testing.T) {
	_, at := launcher(t)
	p := startPE(t, 0, 2, at, "barrier word ready lost")
	victim := startPE(t, 1, 2, at, "barrier fork word ready hang")
	heir, err := strconv.Atoi(strings.TrimPrefix(victim.until("child"), "child "))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(heir, syscall.SIGKILL)
	victim.until("ready")
	p.until("ready")
	victim.Process.Kill()
	p.until("lost 1 PE 1 died: its process ended")
}

// waitConnected waits until n PEs are connected.
func waitConnected(t *testing.T, r *Root, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		connected := 0
		for _, j := range r.jobs {
			j.mu.Lock()
			connected += j.joined
			j.mu.Unlock()
		}
		r.mu.Unlock()
		if connected == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d PEs joined, want %d", connected, n)
		}
	}
}

// freePort is one that nobody has now.
func freePort(t *testing.T) string {
	t.Helper()
	r, err := Listen(t.Context(), ListenOptions{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return r.listeners[0].Addr().String()
}

// Without a launcher PE 0 has the root. It is found whoever comes first; its death ends the job too, and its Close lets
// the others leave first.
func TestRootInPE0(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		at := "tcp://" + freePort(t) + "?0123456789abcdef"
		p := startPE(t, 1, 2, at, "barrier word ready lost close")
		root := startPE(t, 0, 2, at, "barrier hang")
		p.until("ready")
		root.Process.Kill()
		p.until("lost -1 the bootstrap's root died: its process ended")
		p.until("left")
	})
	t.Run("leaves", func(t *testing.T) {
		t.Parallel()
		at := "tcp://" + freePort(t) + "?0123456789abcdef"
		var all []*pe
		for rank := range 4 {
			all = append(all, startPE(t, rank, 4, at, "allgather barrier close word done"))
		}
		for _, p := range all {
			if got := p.until("left"); got != "left <nil>" {
				t.Error(got)
			}
			p.until("done")
		}
	})
	t.Run("aborts", func(t *testing.T) {
		t.Parallel()
		at := "tcp://" + freePort(t) + "?0123456789abcdef"
		root := startPE(t, 0, 3, at, "barrier abort exit")
		others := []*pe{startPE(t, 1, 3, at, "barrier lost"), startPE(t, 2, 3, at, "barrier lost")}
		for _, p := range others {
			p.until("lost 0 PE 0 aborted the job with code 5: on purpose")
		}
		if err := root.Wait(); err == nil || err.Error() != "exit status 3" {
			t.Error(err)
		}
	})
}

// Instances one after the other, whose root is PE 0's: who is faster meets the end of the root before, and gets over
// it.
func TestCycles(t *testing.T) {
	at := "tcp://" + freePort(t) + "?0123456789abcdef"
	var all []*pe
	for rank := range 3 {
		all = append(all, startPE(t, rank, 3, at, "cycles 20"))
	}
	for _, p := range all {
		if got := p.until("cycled"); got != "cycled <nil>" {
			t.Error(got)
		}
	}
}

// A PE that waits in the next instance when PE 0 leaves this one neither keeps PE 0's root open nor stays with it. One
// that was told of an id whose root ends is not kept: there will be no other.
func TestRootReturns(t *testing.T) {
	env := map[string]string{EnvBootstrap: "tcp://" + freePort(t) + "?0123456789abcdef", EnvPEs: "2"}
	a, err := parseTCP(env[EnvBootstrap])
	if err != nil {
		t.Fatal(err)
	}
	join := func(rank int, instance uint32) (Bootstrap, error) {
		o := quick
		o.Instance = instance
		if rank > 0 {
			id, err := a.id(t.Context())
			if err != nil {
				return nil, err
			}
			return joinAt(t.Context(), id, rank, 2, o, nil, true)
		}
		root, err := holdRoot(t.Context(), env[EnvBootstrap], a, o)
		if err != nil {
			return nil, err
		}
		return joinAt(t.Context(), root.ID(), rank, 2, o, root, false)
	}
	first := make([]Bootstrap, 2)
	for pe, err := range each(2, func(pe int) (err error) { first[pe], err = join(pe, 0); return err }) {
		if err != nil {
			t.Fatalf("PE %d: %v", pe, err)
		}
	}
	heldRoots.Lock()
	old := heldRoots.by[env[EnvBootstrap]]
	heldRoots.Unlock()
	if err := first[1].Close(); err != nil {
		t.Error(err)
	}
	var next Bootstrap
	early := make(chan error, 1)
	go func() {
		var err error
		next, err = join(1, 1)
		early <- err
	}()
	waitJob(t, old, 1)
	gone := make(chan error, 1)
	go func() {
		o := quick
		o.Instance = 2
		_, err := Join(t.Context(), old.ID(), 1, 2, o)
		gone <- err
	}()
	waitJob(t, old, 2)
	left := time.Now()
	if err := first[0].Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(left); took > closeGrace/2 {
		t.Errorf("PE 0 waited %v for a job that it is not in", took)
	}
	select {
	case <-old.Done():
	default:
		t.Error("the root is still there")
	}
	if err := <-gone; !errors.Is(err, errRootLeft) {
		t.Errorf("join by an id: %v", err)
	}
	select {
	case err := <-early:
		t.Fatalf("PE 1 without PE 0: %v", err)
	default:
	}
	zero, err := join(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-early; err != nil {
		t.Fatalf("PE 1 was too early: %v", err)
	}
	for pe, err := range each(2, func(pe int) error { return []Bootstrap{zero, next}[pe].Barrier(t.Context()) }) {
		if err != nil {
			t.Errorf("PE %d: %v", pe, err)
		}
	}
	closeAll(t, []Bootstrap{zero, next})
}

// waitJob waits until a PE waits in an instance.
func waitJob(t *testing.T, r *Root, instance uint32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		j := r.jobs[instance]
		r.mu.Unlock()
		if j != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nobody joins instance %d", instance)
		}
	}
}

// Between machines silence counts as death, within one a stopped PE is alive.
func TestStopped(t *testing.T) {
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true, Heartbeat: 1500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		at := "uid:" + r.ID().String()
		victim := startPE(t, 0, 2, at, "barrier word ready hang")
		p := startPE(t, 1, 2, at, "barrier word ready lost", EnvHeartbeat+"=1.5")
		victim.until("ready")
		p.until("ready")
		time.Sleep(2 * time.Second) // both only beat
		select {
		case line := <-p.line:
			t.Fatalf("before anybody is stopped: %s", line)
		default:
		}
		victim.Process.Signal(syscall.SIGSTOP)
		p.until("lost 0 PE 0 died: nothing was heard of its machine for 1.5s")
	})
	t.Run("alive", func(t *testing.T) {
		t.Parallel()
		_, at := launcher(t)
		stopped := startPE(t, 0, 2, at, "barrier word ready barrier word after")
		p := startPE(t, 1, 2, at, "barrier word ready barrier word after")
		stopped.until("ready")
		p.until("ready")
		stopped.Process.Signal(syscall.SIGSTOP)
		time.Sleep(300 * time.Millisecond)
		stopped.Process.Signal(syscall.SIGCONT)
		p.until("after")
		stopped.until("after")
	})
}

// A process may have several jobs with one environment.
func TestFromEnvAgain(t *testing.T) {
	for _, kind := range []string{"uid", "tcp"} {
		t.Run(kind, func(t *testing.T) {
			at := "tcp://" + freePort(t) + "?0123456789abcdef"
			if kind == "uid" {
				_, at = launcher(t)
			}
			env := map[string]string{EnvBootstrap: at, "PMI_RANK": "0", "PMI_SIZE": "1", EnvTimeout: "5"}
			o := Options{Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
			var open []Bootstrap
			for cycle := range 6 {
				b, err := FromEnv(t.Context(), o)
				if err != nil {
					t.Fatalf("cycle %d: %v", cycle, err)
				}
				if _, err := b.AllGather(t.Context(), nil); err != nil {
					t.Errorf("cycle %d: %v", cycle, err)
				}
				if open = append(open, b); cycle%2 == 1 { // two at once
					closeAll(t, open)
					open = nil
				}
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	const good = "tcp://127.0.0.1:1?0123456789abcdef"
	for _, c := range []struct{ text, pe, pes, at, timeout string }{
		{ErrNotSet.Error(), "", "", "", ""},
		{"LSHMEM_PE is set but not LSHMEM_BOOTSTRAP", "0", "1", "", ""},
		{"LSHMEM_BOOTSTRAP is set but not LSHMEM_PE and LSHMEM_PES", "0", "", good, ""},
		{`LSHMEM_PES="0": a number from 1 to 16384 is needed`, "0", "0", good, ""},
		{`LSHMEM_PE="2": a number from 0 to 1 is needed`, "2", "2", good, ""},
		{`LSHMEM_PE="-1": a number`, "-1", "2", good, ""},
		{`LSHMEM_PES="100000"`, "0", "100000", good, ""},
		{"neither uid:HEX nor tcp://", "0", "1", "udp://a:1", ""},
		{"unique id: 2 characters", "0", "1", "uid:12", ""},
		{"is not HOST:PORT", "0", "1", "tcp://host?0123456789abcdef", ""},
		{"which host?", "0", "1", "tcp://:1?0123456789abcdef", ""},
		{"a port is a number", "0", "1", "tcp://a:0?0123456789abcdef", ""},
		{"a port is a number", "0", "1", "tcp://a:65536?0123456789abcdef", ""},
		{"the token has 15 characters; at least 16", "0", "1", "tcp://a:1?0123456789abcde", ""},
		{"the token has 0 characters", "0", "1", "tcp://a:1", ""},
		{`LSHMEM_BOOTSTRAP_TIMEOUT: "soon" is not a duration`, "0", "1", good, "soon"},
		{`LSHMEM_BOOTSTRAP_TIMEOUT: "0" is not a duration`, "0", "1", good, "0"},
	} {
		env := map[string]string{EnvPE: c.pe, EnvPEs: c.pes, EnvBootstrap: c.at, EnvTimeout: c.timeout}
		_, err := FromEnv(t.Context(), Options{Lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok }})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c, err)
		}
		if errors.Is(err, ErrNotSet) != (c.text == ErrNotSet.Error()) {
			t.Errorf("%+v: is it ErrNotSet? %v", c, err)
		}
		if errors.Is(err, ErrSetting) != (c.text != ErrNotSet.Error()) {
			t.Errorf("%+v: is it ErrSetting? %v", c, err)
		}
	}
	for text, want := range map[string]time.Duration{"1.5": 1500 * time.Millisecond, "2m": 2 * time.Minute, "-1": -time.Second} {
		if got, err := seconds(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
