package criu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/policy/checkpoint"
)

// strictVariable is the variable with which a test fails rather than is skipped where CRIU cannot work.
const strictVariable = "LGPU_TEST_CRIU"

// TestMain closes to programs what this one was started with, such as the lock of whoever runs tests: a dump would have it.
func TestMain(m *testing.M) {
	open, _ := os.ReadDir("/proc/self/fd") // the one that is open for this is closed in between, and does no harm
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	if os.Getenv(workVariable) != "" {
		work()
	}
	if len(os.Args) > 1 && os.Args[1] == keeping {
		if err := Keep(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(insideVariable) != "" {
		found, err := around(Within{Processes: []int{os.Getpid()}}, func() (bool, error) { return true, nil })
		fmt.Println(checkpoint.Admit(nil, found, nil), err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// keeping is the argument with which this program is a keeper.
const keeping = "keep"

// keeperCommand is the command of one.
func keeperCommand(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, keeping}
}

// again is the restore of a counter from an image, with other streams.
func again(t *testing.T, dir string, streams map[int]Stream, its [2]*os.File) Restore {
	t.Helper()
	return Restore{Keeper: keeperCommand(t), Dir: dir, Inherit: map[string]*os.File{streams[0].Key: its[0], streams[1].Key: its[1]}}
}

// dumped is a counter that has counted one and was dumped and ended, with its image and the streams that it had.
func dumped(t *testing.T, p Program) (c *counter, dir string, streams map[int]Stream) {
	t.Helper()
	c = startCounter(t)
	count(t, c.in, c.out, 1, "one")
	streams, dir = keys(t, c.cmd.Process.Pid), t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: dir}))
	_ = c.cmd.Wait() // killed by CRIU
	return c, dir, streams
}

// insideVariable has this program print what leads out of itself.
const insideVariable = "LGPU_TEST_OUTSIDE"

// TestSession: a session that the PID namespace does not know is found, which CRIU would refuse when all else is done.
func TestSession(t *testing.T) {
	installed(t) // there the kernel lets this program make namespaces
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		args  []string
		found bool
	}{
		{"inherited", []string{self}, true},
		{"of its own", []string{"setsid", self}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inside := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc"}, c.args...)...)
			inside.Env = append(os.Environ(), insideVariable+"=1")
			out, err := inside.CombinedOutput()
			if err != nil || strings.Contains(string(out), "is in a session that its") != c.found {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// adopt makes what loses its parent a child of this process until the test ends: not every machine has a first process that
// looks after orphans, or soon.
func adopt(t *testing.T) {
	set := func(on uintptr) {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	set(1)
	t.Cleanup(func() { set(0) })
}

// bury waits for children of these numbers until the test ends.
func bury(t *testing.T, pids []int) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, pid := range pids {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it need not be there
			}
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
}

func lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	text := "CRIU is NOT TESTED: " + fmt.Sprintf(format, args...)
	if os.Getenv(strictVariable) != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// get fetches CRIU once, where a test must not be skipped.
var get = sync.OnceValues(func() ([]byte, error) { return exec.Command("../../test/criu/get.sh").CombinedOutput() })

// installed is a CRIU that can be used here: one in PATH, or the one that test/criu/get.sh has made.
func installed(t *testing.T) Program {
	t.Helper()
	if os.Geteuid() != 0 {
		lacks(t, "it needs root")
	}
	if p, err := Find(); err == nil {
		if v, err := p.Version(t.Context()); err == nil && v.Enough() {
			return p
		}
	}
	path, err := filepath.Abs("../../build/criu/criu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv(strictVariable) == "" {
			lacks(t, "criu 4.1 or newer is not here; test/criu/get.sh fetches it")
		}
		if out, err := get(); err != nil {
			lacks(t, "test/criu/get.sh: %v\n%s", err, out)
		}
	}
	return Program{path}
}

// patience bounds each request to CRIU.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// explain shows CRIU's log of a failure.
func explain(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if errors.As(err, &e) {
		t.Fatalf("%v\n%s", err, e.Log)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// counter is a program that counts the lines that it reads, and ends with status 7.
type counter struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

const counting = `n=0; while read line; do n=$((n+1)); echo $n $line; done; exit 7`

// pipes are both ends of two pipes.
func pipes(t *testing.T) (its [2]*os.File, in *os.File, out *bufio.Reader) {
	t.Helper()
	r, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), o.Close() })
	return [2]*os.File{r, w}, in, bufio.NewReader(o)
}

func startCounter(t *testing.T) *counter {
	t.Helper()
	return startShell(t, counting)
}

// startShell starts a shell that ends as a counter.
func startShell(t *testing.T, script string) *counter {
	t.Helper()
	its, in, out := pipes(t)
	c := exec.Command("/bin/sh", "-c", script)
	c.Stdin, c.Stdout = its[0], its[1]
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	_, _ = its[0].Close(), its[1].Close()
	return &counter{c, in, out}
}

// count sends a word and expects it back with its number.
func count(t *testing.T, in *os.File, out *bufio.Reader, n int, word string) {
	t.Helper()
	if _, err := fmt.Fprintln(in, word); err != nil {
		t.Fatal(err)
	}
	line, err := out.ReadString('\n')
	if want := fmt.Sprintf("%d %s\n", n, word); err != nil || line != want {
		t.Fatalf("%q, %v, want %q", line, err, want)
	}
}

// keys are the streams of a process by number.
func keys(t *testing.T, pid int) map[int]Stream {
	t.Helper()
	streams, err := Streams(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]Stream{}
	for _, s := range streams {
		all[s.FD] = s
	}
	return all
}

func TestWhatIsInstalled(t *testing.T) {
	p := installed(t)
	v, err := p.Version(patience(t))
	explain(t, err)
	f, err := p.Features(patience(t))
	explain(t, err)
	explain(t, p.Check(patience(t)))
	t.Logf("criu %v, %+v", v, f)
}

// TestDumpAndRestore: a program goes on where it was, with its new launcher's pipes, and its launcher sees how it ends.
func TestDumpAndRestore(t *testing.T) {
	p := installed(t)
	c := startCounter(t)
	count(t, c.in, c.out, 1, "one")
	streams := keys(t, c.cmd.Process.Pid)
	dir := t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: dir}))
	if err := c.cmd.Wait(); err == nil || c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("after the dump it is not gone: %v", err)
	}
	for _, name := range []string{logName, "stats-dump"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	for n := range 2 { // from one image as often as one likes
		its, in, out := pipes(t)
		process, err := p.Restore(patience(t), again(t, dir, streams, its))
		explain(t, err)
		process.Commit()
		_, _ = its[0].Close(), its[1].Close()
		if process.Pid != c.cmd.Process.Pid {
			t.Errorf("process %d, before it was %d", process.Pid, c.cmd.Process.Pid)
		}
		count(t, in, out, 2, "two")
		if n == 0 {
			_, err := p.Restore(patience(t), Restore{Keeper: keeperCommand(t), Dir: dir})
			if !errors.Is(err, ErrPIDTaken) || !strings.Contains(err.Error(), strconv.Itoa(process.Pid)+` is "sh"`) {
				t.Errorf("beside itself: %v", err)
			}
			count(t, in, out, 3, "three")
		}
		_ = in.Close()
		state, err := process.Wait()
		if err != nil || state.ExitCode() != 7 {
			t.Errorf("%v, %v; want status 7", state, err)
		}
	}
}

func TestDumpAndGoOn(t *testing.T) {
	p := installed(t)
	c := startCounter(t)
	count(t, c.in, c.out, 1, "one")
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Running}))
	count(t, c.in, c.out, 2, "two")
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Stopped}))
	for !strings.HasPrefix(statusOf(c.cmd.Process.Pid, "State"), "T") { // soon, if it does not go on
		time.Sleep(time.Millisecond)
	}
	if err := c.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	count(t, c.in, c.out, 3, "three")
}

// What CRIU cannot dump is an error with its reason, and the program goes on.
func TestDumpRefused(t *testing.T) {
	p := installed(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // its other end is outside of the tree
	if err != nil {
		t.Fatal(err)
	}
	own, its := os.NewFile(uintptr(pair[0]), "own"), os.NewFile(uintptr(pair[1]), "its")
	defer own.Close()
	c := exec.Command("/bin/sh", "-c", counting)
	c.Stdin, c.Stdout = its, its
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(c.Start(), its.Close()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = c.Process.Kill(), c.Wait() }()
	out := bufio.NewReader(own)
	count(t, own, out, 1, "one")
	if s := keys(t, c.Process.Pid)[0]; s.Kind != "socket" || s.Key != "" {
		t.Errorf("%+v", s)
	}
	err = p.Dump(patience(t), Dump{PID: c.Process.Pid, Dir: t.TempDir()})
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Cause, "External socket is used") || !strings.Contains(e.Log, e.Cause) {
		t.Errorf("%v", err)
	}
	count(t, own, out, 2, "two")
}

func TestNoSuchProcess(t *testing.T) {
	p := installed(t)
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if err := p.Dump(patience(t), Dump{PID: c.Process.Pid, Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "there is no such process") {
		t.Errorf("%v", err)
	}
	_, err := p.Restore(patience(t), Restore{Keeper: keeperCommand(t), Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), treeName) {
		t.Errorf("%v", err)
	}
}

// TestDumpsGivenUp: whenever the time for a dump is over, the program goes on.
func TestDumpsGivenUp(t *testing.T) {
	p := installed(t)
	c := startCounter(t)
	whole := time.Now()
	explain(t, p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Running}))
	took := time.Since(whole)
	for n := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(n)/20)
		err := p.Dump(ctx, Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Running})
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d: %v", n, err)
		}
		count(t, c.in, c.out, n+1, "word")
	}
}

// TestHungRestore: a restore that waits for a lock that another has is ended, and leaves nothing; it can be tried again.
func TestHungRestore(t *testing.T) {
	p := installed(t)
	adopt(t)
	lock := filepath.Join(t.TempDir(), "lock")
	its, in, out := pipes(t)
	c := exec.Command("/bin/sh", "-c", `exec 9>"$0"; flock -n 9 || exit 1; sleep 1000 & `+counting, lock)
	c.Stdin, c.Stdout = its[0], its[1]
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(c.Start(), its[0].Close(), its[1].Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Kill(-c.Process.Pid, unix.SIGKILL), c.Wait() }) // and of what was restored, the child
	count(t, in, out, 1, "one")
	streams := keys(t, c.Process.Pid)
	dir := t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.Process.Pid, Dir: dir}))
	_ = c.Wait() // killed by CRIU
	pids, err := tree(dir)
	if err != nil || len(pids) != 2 {
		t.Fatalf("%v, %v; want the shell and its child", pids, err)
	}
	bury(t, pids[1:])
	other, err := os.Open(lock)
	if err == nil {
		err = unix.Flock(int(other.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	restore := func(ctx context.Context) (*Restored, *os.File, *bufio.Reader, error) {
		its, in, out := pipes(t)
		process, err := p.Restore(ctx, again(t, dir, streams, its))
		return process, in, out, errors.Join(err, its[0].Close(), its[1].Close())
	}
	if err := free(patience(t), pids); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for leader(pids[0]) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel() // when it is under way
	}()
	if _, _, _, err := restore(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	cancel()
	if err := free(patience(t), pids); err != nil {
		t.Fatal(err) // something was left
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	process, in, out, err := restore(patience(t))
	explain(t, err)
	process.Commit()
	count(t, in, out, 2, "two")
	_ = in.Close()
	if state, err := process.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("%v, %v", state, err)
	}
}

// standIn is a criu that is a shell script.
func standIn(t *testing.T, script string) Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return Program{path}
}

// TestHung: a criu that does not come to an end is ended, with what it has started.
func TestHung(t *testing.T) {
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	p := standIn(t, "sleep 1000 & echo $! > "+pid+".new; mv "+pid+".new "+pid+"; wait\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(pid); err == nil {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := p.Version(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "criu version: given up") {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for { // it ends, if it does not the test does
		if state := statusOf(child, "State"); state == "" || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, ask := range []func(context.Context) error{
		p.Check, func(ctx context.Context) error { _, err := p.Features(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := ask(ctx); !errors.Is(err, ErrHung) {
			t.Errorf("%v", err)
		}
		cancel()
	}
}

// TestHungDump: a dump that does not come to its end by itself is ended.
func TestHungDump(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
	before := grace
	grace = 10 * time.Millisecond
	defer func() { grace = before }()
	// It says that it is version 4.1, and does nothing else.
	p := standIn(t, `asked=$(dd bs=65536 count=1 <&3 2>/dev/null | od -An -tx1 -N2 | tr -d ' ')
[ "$asked" = 080a ] && printf '\010\012\020\001\122\004\010\004\020\001' >&3 && exit
trap : ALRM
while :; do sleep 1000; done
`)
	if v, err := p.Version(patience(t)); err != nil || v != (Version{4, 1, 0}) {
		t.Fatal(v, err)
	}
	c := startCounter(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := p.Dump(ctx, Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir()})
	if !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), strconv.Itoa(c.cmd.Process.Pid)) {
		t.Errorf("%v", err)
	}
	count(t, c.in, c.out, 1, "one")
}

// What is no criu is an error that says what it said.
func TestNoCRIU(t *testing.T) {
	for script, want := range map[string]string{
		"echo 'no such option' >&2; exit 1": "no such option", "exit 0": "", "exec 3<&-; cat": "", "kill -9 $$": "killed",
		"echo '(00.1) Error (x.c:1): no rights' >&2": "criu version: no rights",
	} {
		_, err := standIn(t, script).Version(patience(t))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error()+e.Log, want) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if _, err := (Program{"/none/criu"}).Version(t.Context()); err == nil || !strings.Contains(err.Error(), "/none/criu") {
		t.Errorf("%v", err)
	}
	t.Setenv(variable, "/none/criu")
	if _, err := Find(); !errors.Is(err, ErrMissing) {
		t.Errorf("%v", err)
	}
}

func TestVersions(t *testing.T) {
	for text, v := range map[string]Version{"3.17.1": {3, 17, 1}, "4.0": {4, 0, 0}} {
		if v.String() != text || v.Enough() {
			t.Errorf("%v, %v", v, v.Enough())
		}
	}
	for text, v := range map[string]Version{"4.1": {4, 1, 0}, "4.1.1": {4, 1, 1}, "5.0": {5, 0, 0}} {
		if v.String() != text || !v.Enough() {
			t.Errorf("%v, %v", v, v.Enough())
		}
	}
}

func TestStream(t *testing.T) {
	for _, c := range []struct {
		name string
		st   unix.Stat_t
		want Stream
	}{
		{"pipe:[12]", unix.Stat_t{Mode: unix.S_IFIFO, Ino: 12}, Stream{Kind: "pipe", Key: "pipe:[12]"}},
		{"/tmp/fifo", unix.Stat_t{Mode: unix.S_IFIFO, Ino: 12}, Stream{Kind: "pipe", Key: "tmp/fifo"}},
		{"/tmp/out", unix.Stat_t{Mode: unix.S_IFREG}, Stream{Kind: "file", Key: "tmp/out"}},
		{"/dev/null", unix.Stat_t{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}, Stream{Kind: "device", Path: "/dev/null"}},
		{"/dev/pts/1", unix.Stat_t{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(136, 1), Dev: 0x17}, Stream{Kind: "terminal"}},
		{"socket:[1]", unix.Stat_t{Mode: unix.S_IFSOCK}, Stream{Kind: "socket"}},
		{"/", unix.Stat_t{Mode: unix.S_IFDIR}, Stream{Kind: "other"}},
	} {
		if got := stream(0, c.name, &c.st); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if _, err := Streams(1<<30, 0); err == nil {
		t.Error("a process that is not there has streams")
	}
	all := External([]Stream{{External: "a"}, {}, {External: "b"}})
	if fmt.Sprint(all) != "[a b]" {
		t.Errorf("%v", all)
	}
}

// treeOf is the file of a tree with a process and its threads.
func treeOf(pid int64, threads ...int64) []byte {
	var one message
	one.number(treePID, pid)
	for _, n := range threads {
		one.number(treeThread, n)
	}
	return addEntry(newList(treeMagic), one)
}

// anyThread has all threads be there.
func anyThread(int64) bool { return true }

func FuzzTree(f *testing.F) {
	f.Add(treeOf(100, 100, 101))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		pids, err := parseTree(b, anyThread)
		if (len(pids) == 0) == (err == nil) {
			t.Errorf("%v, %v", pids, err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	var m, version message
	version.number(1, 4)
	version.number(2, 1)
	m.number(answerType, requestVersion)
	m.flag(answerSuccess, true)
	m.inner(answerVersion, version)
	f.Add([]byte(m))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseAnswer(b) })
}

func TestTree(t *testing.T) {
	if pids, err := parseTree(treeOf(100, 100, 101), anyThread); err != nil || fmt.Sprint(pids) != "[100 101]" {
		t.Errorf("%v, %v", pids, err)
	}
	there := func(tid int64) bool { return tid == 101 }
	if pids, err := parseTree(treeOf(100, 1<<31, 101), there); err != nil || fmt.Sprint(pids) != "[100 101]" {
		t.Errorf("one that had ended: %v, %v", pids, err)
	}
	for name, b := range map[string][]byte{
		"empty": {}, "of another kind": make([]byte, 20), "init": treeOf(1), "beyond": treeOf(1 << 30), "cut": treeOf(100, 101)[:14],
	} {
		if pids, err := parseTree(b, anyThread); err == nil {
			t.Errorf("%s: %v", name, pids)
		}
	}
}
