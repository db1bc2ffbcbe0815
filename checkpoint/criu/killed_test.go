package criu

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// workVariable has this program be one with threads that calculate and wait, and which counts the lines that it reads.
const workVariable = "LGPU_TEST_WORK"

// killsVariable is how often TestDumpKilled kills CRIU; 1000 take about five minutes.
const killsVariable = "LGPU_TEST_KILLS"

// work answers each line with its number, once all threads have gone on, without an error, since it came.
func work() {
	var steps [6]atomic.Uint64
	for i := range steps {
		go func() {
			runtime.LockOSThread()
			for n := uint64(1); ; n++ {
				if i%2 == 0 {
					time.Sleep(time.Millisecond)
				}
				a, b, x, y := n, n, float64(n), float64(n)
				for range 20000 {
					a, b = a*6364136223846793005+1442695040888963407, b*6364136223846793005+1442695040888963407
					x, y = math.Sqrt(x*x+1), math.Sqrt(y*y+1)
				}
				if a != b || x != y {
					fmt.Println("a register has changed")
					os.Exit(3)
				}
				steps[i].Add(1)
			}
		}()
	}
	in := bufio.NewScanner(os.Stdin)
	for n := 1; in.Scan(); n++ {
		for i := range steps {
			for before := steps[i].Load(); steps[i].Load() == before; {
				time.Sleep(100 * time.Microsecond)
			}
		}
		fmt.Println(n, in.Text())
	}
	os.Exit(7)
}

// worker is a program that works.
type worker struct {
	*counter
	n int
}

func startWorker(t *testing.T) *worker {
	t.Helper()
	its, in, out := pipes(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), workVariable+"=1", "GOTRACEBACK=none")
	c.Stdin, c.Stdout = its[0], its[1]
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(c.Start(), its[0].Close(), its[1].Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	return &worker{&counter{c, in, out}, 0}
}

// works says whether the program goes on, or that it has ended. It must do one of both, and soon.
func (w *worker) works(t *testing.T) bool {
	t.Helper()
	hangs := time.AfterFunc(10*time.Second, func() {
		threads, _ := exec.Command("grep", "-rhE", "^(State|TracerPid|SigBlk|SigPnd)", "--include=status",
			fmt.Sprintf("/proc/%d/task", w.cmd.Process.Pid)).CombinedOutput()
		t.Errorf("it hangs:\n%s", threads)
		_ = w.cmd.Process.Kill()
	})
	defer hangs.Stop()
	w.n++
	_, _ = fmt.Fprintln(w.in, "word") // if it has ended, there is no answer
	line, _ := w.out.ReadString('\n')
	switch line {
	case fmt.Sprintln(w.n, "word"):
		return true
	case "":
		_ = w.cmd.Wait()
		return false
	}
	t.Fatalf("it says %q", line)
	return false
}

// clean says whether a program has nothing of CRIU's in it.
func (w *worker) clean() bool {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", w.cmd.Process.Pid))
	fds, err := descriptors(w.cmd.Process.Pid)
	for _, fd := range fds {
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", w.cmd.Process.Pid, fd))
		if strings.HasPrefix(name, "socket:") || strings.Contains(name, "CRIU") {
			return false
		}
	}
	return err == nil && !strings.Contains(string(maps), "CRIU")
}

// inGroup says whether a process group has one that has not ended.
func inGroup(group int) bool {
	for _, pid := range family(1) { // all that this machine shows
		if of, err := unix.Getpgid(pid); err == nil && of == group && alive(pid) {
			return true
		}
	}
	return false
}

// TestDumpKilled: when CRIU is killed while it dumps, it leaves no process, and the program goes on; some are lost, as
// docs/checkpoint.md says, but none is stopped for good or wrong, and those that go on can be dumped.
func TestDumpKilled(t *testing.T) {
	p := installed(t)
	kills := 12
	if text := os.Getenv(killsVariable); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	file := filepath.Join(dir, "pid")
	// It is asked for its version, and then to dump.
	slow := standIn(t, fmt.Sprintf(`[ -e %q.asked ] && echo $$ >%[1]q; touch %[1]q.asked; exec %q "$@"`, file, p.Path))
	begin := func(pid int) (criu int, done chan error) {
		os.Remove(file)
		os.Remove(file + ".asked")
		images, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		done = make(chan error, 1)
		go func() {
			done <- slow.Dump(patience(t), Dump{PID: pid, Dir: images, After: Running})
			_ = os.RemoveAll(images)
		}()
		for criu == 0 {
			if text, err := os.ReadFile(file); err == nil {
				criu, _ = strconv.Atoi(strings.TrimSpace(string(text))) // it may not all be there yet
			}
			time.Sleep(100 * time.Microsecond)
		}
		return criu, done
	}
	w := startWorker(t)
	_, done := begin(w.cmd.Process.Pid)
	begun := time.Now()
	explain(t, <-done)
	took := time.Since(begun)
	killed, lost, unclean := 0, 0, 0
	for killed < kills {
		criu, done := begin(w.cmd.Process.Pid)
		time.Sleep(time.Duration(random.Int64N(int64(took)))) // any moment will do
		_ = unix.Kill(criu, unix.SIGKILL)                     // it may have ended
		if err := <-done; err != nil {
			killed++
		}
		for until := time.Now().Add(10 * time.Second); inGroup(criu); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("processes of CRIU are left")
			}
		}
		if !w.works(t) {
			lost++
			w = startWorker(t)
		} else if !w.clean() {
			unclean++
		}
	}
	_, done = begin(w.cmd.Process.Pid)
	explain(t, <-done)
	if !w.works(t) {
		t.Error("it is gone after a whole dump")
	}
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	t.Logf("seed %d: of %d killed dumps, %v each, %d have lost the program, and %d have left something in it",
		seed, killed, took, lost, unclean)
	if lost > 3+killed/20 {
		t.Errorf("%d of %d programs are lost", lost, killed)
	}
}

// TestDumpDeaf: a signal that only asks for an end does not end a dump.
func TestDumpDeaf(t *testing.T) {
	p := installed(t)
	c := startCounter(t)
	asked := filepath.Join(t.TempDir(), "asked") // for its version
	told := standIn(t, fmt.Sprintf(`if [ -e %q ]; then for s in HUP INT QUIT TERM; do kill -$s $$; done; fi; touch %[1]q; exec %q "$@"`,
		asked, p.Path))
	explain(t, told.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Running}))
	count(t, c.in, c.out, 1, "one")
}

// dumpedParent is a counter with a child, dumped and ended as by dumped: its processes, image and streams.
func dumpedParent(t *testing.T, p Program) (all []int, dir string, streams map[int]Stream) {
	t.Helper()
	adopt(t)
	c := startShell(t, "sleep 1000 & "+counting)
	count(t, c.in, c.out, 1, "one")
	all, streams, dir = family(c.cmd.Process.Pid), keys(t, c.cmd.Process.Pid), t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: dir}))
	_ = c.cmd.Wait() // killed by CRIU
	_, _ = unix.Wait4(all[1], nil, 0, nil)
	return all, dir, streams
}

// TestKilledBeforeItsFirstStep: a restore of which somebody kills a process when all is there ends soon, and nothing is left. If
// that was the first process, its end is the program's; otherwise it can be tried again.
func TestKilledBeforeItsFirstStep(t *testing.T) {
	p := installed(t)
	all, dir, streams := dumpedParent(t, p)
	for _, victim := range all {
		its, _, _ := pipes(t)
		r := again(t, dir, streams, its)
		r.Ready = func() error { return unix.Kill(victim, unix.SIGKILL) }
		_, err := p.Restore(patience(t), r)
		_, _ = its[0].Close(), its[1].Close()
		var ended *Ended
		if first := errors.As(err, &ended) && ended.Status == 128+int(unix.SIGKILL); first != (victim == all[0]) {
			t.Errorf("%d of %d is killed: %v", victim, all, err)
		}
		if victim != all[0] && !strings.Contains(fmt.Sprint(err), "it can be tried again") {
			t.Errorf("%d of %d is killed: %v", victim, all, err)
		}
		if left := family(os.Getpid())[1:]; slices.ContainsFunc(left, alive) {
			t.Errorf("processes %v are left", left)
		}
	}
}

// TestStoppedBeforeItsFirstStep: a restore of which somebody stops a process, or has it continue, when all is there ends soon.
func TestStoppedBeforeItsFirstStep(t *testing.T) {
	p := installed(t)
	all, dir, streams := dumpedParent(t, p)
	for _, victim := range all {
		for _, signal := range []unix.Signal{unix.SIGCONT, unix.SIGSTOP} {
			its, in, out := pipes(t)
			r := again(t, dir, streams, its)
			r.Ready = func() error {
				err := unix.Kill(victim, signal)
				stops := signal == unix.SIGSTOP || victim == all[0] // CRIU traces that one
				for until := time.Now().Add(10 * time.Second); stops && !stopped(victim) && time.Now().Before(until); {
					time.Sleep(time.Millisecond)
				}
				return err
			}
			program, err := p.Restore(patience(t), r)
			_, _ = its[0].Close(), its[1].Close()
			if err == nil && signal == unix.SIGCONT && victim != all[0] {
				program.Commit()
				count(t, in, out, 2, "two")
				program.End()
			} else if !strings.Contains(fmt.Sprint(err), "it can be tried again") {
				t.Errorf("%v for %d of %d: %v", signal, victim, all, err)
				if err == nil {
					program.End()
				}
			}
			if left := family(os.Getpid())[1:]; slices.ContainsFunc(left, alive) {
				t.Errorf("processes %v are left", left)
			}
		}
	}
}
