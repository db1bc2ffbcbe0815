package cuda

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// Results and states of the driver API that the tests speak of.
const (
	cudaSuccess           = 0
	cudaInvalidValue      = 1
	cudaOutOfMemory       = 2
	cudaNotInitialized    = 3
	cudaDeviceUnavailable = 46
	cudaIllegalState      = 401
	cudaNotReady          = 600
	cudaNotPermitted      = 800
	cudaNotSupported      = 801

	running      = 0
	locked       = 1
	checkpointed = 2
	failed       = 3
)

// built is what the tests run: a folder of libraries, and programs.
type built struct{ libraries, ask, worker, victim, crowd, freeze string }

func newBuilt(t *testing.T, flags ...string) built {
	libraries := simtest.Libraries(t, flags...)
	return built{libraries, compile(t, libraries, "ask", flags...), compile(t, libraries, "worker", flags...),
		compileVictim(t, libraries, flags...), compile(t, libraries, "crowd", flags...),
		compile(t, libraries, "freeze", flags...)}
}

func TestCheckpoint(t *testing.T) { runCheckpoints(t, newBuilt(t)) }

// TestCheckpointSanitized is the same with the client libraries and the programs under sanitizers.
func TestCheckpointSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles and runs all again under sanitizers")
	}
	runCheckpoints(t, newBuilt(t, sanitizers...))
}

func runCheckpoints(t *testing.T, b built) {
	for name, test := range map[string]func(*testing.T, built){
		"states": testStates, "names": testNames, "frees devices": testFreesDevices, "lock times out": testLockTimesOut,
		"outlives hardware": testOutlivesHardware, "fails": testFails, "moves": testMoves, "needs room": testNeedsRoom,
		"of others": testOfOthers, "death": testDeath, "crowd": testCrowd,
		"hardware ends": testHardwareEnds, "frozen": testFrozen,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// checkpoints is a worker that is checkpointed, and what the tests need to do that.
type checkpoints struct {
	built
	t      *testing.T
	socket string // of the hardware that who asks is on
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Reader
}

// compile makes one of the programs of the folder checkpoint.
func compile(t *testing.T, libraries, name string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I", "../../tenant/abi/include", "-o", program}, flags...)
	out, err := exec.Command(simtest.CC(), append(args, "checkpoint/"+name+".c", filepath.Join(libraries, "libcuda.so.1"), "-pthread", "-ldl")...).CombinedOutput()
	if err != nil {
		t.Fatalf("compile %s: %v\n%s", name, err, out)
	}
	return program
}

// startWorker starts a worker on the hardware of a socket.
func startWorker(t *testing.T, b built, socket string) *checkpoints {
	t.Helper()
	c := &checkpoints{built: b, t: t, socket: socket}
	c.cmd = exec.Command(b.worker, "../../sim/kernels")
	c.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.libraries, wire.Environment+"="+socket, "ASAN_OPTIONS=detect_leaks=0")
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	c.in, c.out = in, bufio.NewReader(out)
	c.hears("ready")
	return c
}

// hears reads a line of the worker.
func (c *checkpoints) hears(want string) {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || line != want+"\n" {
		c.t.Fatalf("the worker said %q (%v), want %q", line, err, want)
	}
}

// tells writes a line to the worker.
func (c *checkpoints) tells(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// steps has the worker do its nth step.
func (c *checkpoints) steps(n int) {
	c.t.Helper()
	c.tells("step")
	c.hears(fmt.Sprintf("%d %d %d 5a", n, n, n))
}

// asked makes a call about a process, and returns its result and what it told.
func (c *checkpoints) asked(pid int, what ...string) (result, told int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.ask, append([]string{fmt.Sprint(pid)}, what...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+c.libraries, wire.Environment+"="+c.socket, "ASAN_OPTIONS=detect_leaks=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("ask %s: %v\n%s", what, err, out)
	}
	if _, err := fmt.Sscan(string(out), &result, &told); err != nil {
		c.t.Fatalf("ask %s: %q", what, out)
	}
	return result, told
}

// wants makes a call about the worker, with one result.
func (c *checkpoints) wants(want int, what ...string) {
	c.t.Helper()
	if r, _ := c.asked(c.cmd.Process.Pid, what...); r != want {
		c.t.Fatalf("%s returned %d, want %d", what, r, want)
	}
}

func (c *checkpoints) is(want int) {
	c.t.Helper()
	if r, state := c.asked(c.cmd.Process.Pid, "state"); r != cudaSuccess || state != want {
		c.t.Fatalf("the state is %d (%d), want %d", state, r, want)
	}
}

// uuids are those of the devices of a socket's hardware, in hexadecimal digits.
func uuids(t *testing.T, socket string) (all []string) {
	t.Helper()
	client, err := wire.Dial(socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	devices, err := client.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		all = append(all, hex.EncodeToString(d.UUID[:]))
	}
	return all
}

// testStates takes a worker through all states, from outside, and tries in each what cannot be done there.
func testStates(t *testing.T, b built) {
	c := startWorker(t, b, simtest.Serve(t, shape))
	c.steps(1)
	c.is(running)
	for _, what := range []string{"checkpoint", "restore", "unlock"} {
		c.wants(cudaIllegalState, what)
	}
	c.wants(cudaSuccess, "lock", "10000")
	c.is(locked)
	for _, what := range []string{"lock", "restore"} {
		c.wants(cudaIllegalState, what)
	}
	c.wants(cudaSuccess, "unlock")
	c.is(running)
	c.steps(2)
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	c.is(checkpointed)
	for _, what := range []string{"lock", "checkpoint", "unlock"} {
		c.wants(cudaIllegalState, what)
	}
	c.wants(cudaSuccess, "restore")
	c.is(locked)
	c.wants(cudaSuccess, "checkpoint") // once more, without having run
	c.wants(cudaSuccess, "restore")
	c.wants(cudaSuccess, "unlock")
	c.is(running)
	c.steps(3)
}

// testNames: what is asked about is a process that has called cuInit.
func testNames(t *testing.T, b built) {
	c := startWorker(t, b, simtest.Serve(t, shape))
	r, thread := c.asked(c.cmd.Process.Pid, "thread")
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", c.cmd.Process.Pid, thread)); r != cudaSuccess || err != nil || string(comm) != "lgpu-restore\n" {
		t.Errorf("the restore thread %d is %q (%d, %v)", thread, comm, r, err)
	}
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	for _, what := range []string{"state", "thread", "lock", "checkpoint", "restore", "unlock"} {
		for pid, want := range map[int]int{thread: cudaInvalidValue, 0: cudaInvalidValue, -1: cudaInvalidValue, 1 << 30: cudaInvalidValue,
			sleeper.Process.Pid: cudaNotInitialized} {
			if r, _ := c.asked(pid, what); r != want {
				t.Errorf("%s of process %d returned %d, want %d", what, pid, r, want)
			}
		}
	}
	c.steps(1)
}

// testFreesDevices: a checkpointed process has no memory of a device and no connection, and its next call
// waits until it has been unlocked.
func testFreesDevices(t *testing.T, b built) {
	socket := simtest.Serve(t, shape)
	_, used := dial(t, socket)
	before := used()
	c := startWorker(t, b, socket)
	pid := c.cmd.Process.Pid
	c.steps(1)
	c.tells("nvml")
	c.hears(nvmlName(uuids(t, socket)[0]))
	during := used()
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	if now := used(); now != before {
		t.Errorf("%d bytes are in use, and %d were before the program came", now, before)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); strings.HasPrefix(to, "socket:") || strings.Contains(to, "channel") {
			t.Errorf("the checkpointed program has %s", to)
		}
	}
	if maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)); err != nil || strings.Contains(string(maps), "lgpu-sim-channel") {
		t.Errorf("the checkpointed program has a ring mapped (%v)", err)
	}
	c.tells("step")
	waitsForFutex(t, pid)
	c.wants(cudaSuccess, "restore")
	if now := used(); now != during {
		t.Errorf("%d bytes are in use, and %d were before the checkpoint", now, during)
	}
	waitsForFutex(t, pid)
	if n := c.out.Buffered(); n != 0 {
		t.Errorf("the program said something before it was unlocked")
	}
	c.wants(cudaSuccess, "unlock")
	c.hears("2 2 2 5a")
}

// waitsForFutex returns when a process's first thread sleeps on a futex.
func waitsForFutex(t *testing.T, pid int) {
	t.Helper()
	want := fmt.Sprintf("%d ", unix.SYS_FUTEX)
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(time.Millisecond); ; {
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if err != nil {
			t.Skipf("what a process waits for cannot be read here: %v", err)
		}
		if strings.HasPrefix(string(call), want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the program does not wait, it is at %s", call)
		}
	}
}

// testLockTimesOut: a process whose work does not end runs on.
func testLockTimesOut(t *testing.T, b built) {
	c := startWorker(t, b, simtest.Serve(t, shape))
	c.tells("block")
	c.hears("blocked")
	c.wants(cudaNotReady, "lock", "20")
	c.is(running)
	c.tells("error")
	c.hears("0")
	c.tells("open")
	c.hears("opened 1")
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "unlock")
	c.steps(1)
}

// hardware is a hardware process within the test process that can be ended.
func hardware(t *testing.T, socket string) (end func()) {
	t.Helper()
	l, err := sim.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sim.Serve(ctx, l, shape, sim.ServeOptions{}) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hardware ended with %v", err)
		}
	}
	t.Cleanup(end)
	return end
}

// testOutlivesHardware: the hardware ends while the process is checkpointed; without one it cannot be
// restored, and then it is on the next.
func testOutlivesHardware(t *testing.T, b built) {
	socket := filepath.Join(shortDir(t), "sim.sock")
	end := hardware(t, socket)
	c := startWorker(t, b, socket)
	c.steps(1)
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	end()
	c.is(checkpointed)
	c.wants(cudaDeviceUnavailable, "restore")
	c.is(checkpointed)
	hardware(t, socket)
	c.wants(cudaSuccess, "restore")
	c.wants(cudaSuccess, "unlock")
	c.steps(2)
}

// testFails: the hardware ends under a locked process, which cannot be saved any more.
func testFails(t *testing.T, b built) {
	socket := filepath.Join(shortDir(t), "sim.sock")
	end := hardware(t, socket)
	c := startWorker(t, b, socket)
	c.wants(cudaSuccess, "lock", "10000")
	end()
	c.wants(cudaDeviceUnavailable, "checkpoint")
	c.is(failed)
	for _, what := range []string{"lock", "checkpoint", "restore", "unlock"} {
		c.wants(cudaIllegalState, what)
	}
	c.tells("error")
	c.hears(fmt.Sprint(cudaDeviceUnavailable))
}

// testHardwareEnds ends the hardware while it saves a process, and while it reads one: what was asked for has happened, or
// the process is as it was and can be restored on the next hardware. Nothing is half done.
func testHardwareEnds(t *testing.T, b built) {
	for _, what := range []string{"checkpoint", "restore", "checkpoint", "restore", "restore"} {
		socket := filepath.Join(shortDir(t), "sim.sock")
		end := hardware(t, socket)
		c := startWorker(t, b, socket)
		c.wants(cudaSuccess, "lock", "10000")
		if what == "restore" {
			c.wants(cudaSuccess, "checkpoint")
		}
		asker := exec.Command(c.ask, fmt.Sprint(c.cmd.Process.Pid), what)
		asker.Env = append(os.Environ(), "LD_LIBRARY_PATH="+c.libraries, wire.Environment+"="+socket, "ASAN_OPTIONS=detect_leaks=0")
		out, err := asker.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := asker.Start(); err != nil {
			t.Fatal(err)
		}
		waitsForFutex(t, asker.Process.Pid)
		end()
		var r, told int
		if _, err := fmt.Fscan(out, &r, &told); err != nil {
			t.Fatal(err)
		}
		asker.Wait()
		t.Logf("%s returned %d", what, r)
		switch {
		case what == "checkpoint" && r != cudaSuccess:
			c.is(failed)
			continue
		case what == "restore" && r == cudaSuccess:
			c.wants(cudaDeviceUnavailable, "checkpoint")
			c.is(failed)
			continue
		}
		c.is(checkpointed)
		hardware(t, socket)
		c.wants(cudaSuccess, "restore")
		c.wants(cudaSuccess, "unlock")
		c.steps(1)
	}
}

// shortDir is a folder with a path that is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu-checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// testMoves restores a process on other devices: the machine's own in another order, then those of another
// hardware process. Maps that are no permutation, and devices that are full, are refused, and the process stays
// checkpointed.
func testMoves(t *testing.T, b built) {
	first, second := simtest.Serve(t, shape), simtest.Serve(t, shape)
	from, to := uuids(t, first), uuids(t, second)
	c := startWorker(t, b, first)
	c.steps(1)
	c.tells("nvml")
	c.hears(nvmlName(from[0]))
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	c.wants(cudaInvalidValue, "restore", from[0], from[1])
	c.wants(cudaInvalidValue, "restore", from[0], from[1], from[1], from[1])
	c.wants(cudaInvalidValue, "restore", from[0], to[0], from[1], to[1])
	c.is(checkpointed)
	c.wants(cudaSuccess, "restore", from[0], from[1], from[1], from[0])
	c.wants(cudaSuccess, "unlock")
	c.steps(2)
	c.tells("uuid")
	c.hears(from[1])

	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	c.socket = second
	c.wants(cudaInvalidValue, "restore") // its devices are not there
	c.wants(cudaSuccess, "restore", from[0], to[1], from[1], to[0])
	c.wants(cudaSuccess, "unlock")
	c.steps(3)
	c.tells("uuid")
	c.hears(to[0])
	c.tells("nvml") // it has come along
	c.hears(nvmlName(to[0]))
}

// nvmlName is how NVML writes a device's UUID.
func nvmlName(uuid string) string {
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])
}

// testNeedsRoom restores a process where there is no room, and again when there is.
func testNeedsRoom(t *testing.T, b built) {
	socket := simtest.Serve(t, shape)
	c := startWorker(t, b, socket)
	c.steps(1)
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	var others []*exec.Cmd
	for len(others) < 6 { // each has more than 100 MiB of the 1 GiB
		cmd, _ := startVictim(t, b.victim, b.libraries, socket)
		others = append(others, cmd)
	}
	r, _ := c.asked(c.cmd.Process.Pid, "restore")
	if r != cudaOutOfMemory {
		t.Fatalf("restored on a full device: %d", r)
	}
	c.is(checkpointed)
	for _, o := range others {
		o.Process.Kill()
		o.Wait()
	}
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(time.Millisecond); r == cudaOutOfMemory; { // their memory comes back a moment later
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("there is no room yet")
		}
		r, _ = c.asked(c.cmd.Process.Pid, "restore")
	}
	if r != cudaSuccess {
		t.Fatalf("restore: %d", r)
	}
	c.wants(cudaSuccess, "unlock")
	c.steps(2)
}

// testOfOthers: a user may not ask about another user's process.
func testOfOthers(t *testing.T, b built) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	c := startWorker(t, b, simtest.Serve(t, shape))
	dir := shortDir(t)
	for name, from := range map[string]string{"ask": c.ask, "libcuda.so.1": filepath.Join(c.libraries, "libcuda.so.1")} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "ask"), fmt.Sprint(c.cmd.Process.Pid), "lock", "1000")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, wire.Environment+"="+c.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != fmt.Sprintf("%d -1\n", cudaNotPermitted) {
		t.Errorf("another user is told %q (%v)", out, err)
	}
	c.is(running)
}

// testDeath kills who asks while the process drains, which goes on then, and the process while it is checkpointed.
func testDeath(t *testing.T, b built) {
	c := startWorker(t, b, simtest.Serve(t, shape))
	c.tells("block")
	c.hears("blocked")
	asker := exec.Command(c.ask, fmt.Sprint(c.cmd.Process.Pid), "lock", "0")
	asker.Env = append(os.Environ(), "LD_LIBRARY_PATH="+c.libraries, wire.Environment+"="+c.socket)
	if err := asker.Start(); err != nil {
		t.Fatal(err)
	}
	waitsForFutex(t, asker.Process.Pid) // for an answer
	c.tells("error")
	if err := asker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	asker.Wait()
	c.hears("0")
	c.is(running)
	c.tells("open")
	c.hears("opened 1")
	c.wants(cudaSuccess, "lock", "10000")
	c.wants(cudaSuccess, "checkpoint")
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.cmd.Wait()
	c.wants(cudaInvalidValue, "state")
	c.wants(cudaInvalidValue, "restore")
}

// testFrozen: from lock to unlock nothing of a program has to run but its restore thread, so that it can be dumped.
func testFrozen(t *testing.T, b built) {
	c := startWorker(t, b, simtest.Serve(t, shape))
	c.steps(1)
	c.tells("nvml")
	c.hears(nvmlName(uuids(t, c.socket)[0]))
	c.wants(cudaSuccess, "lock", "10000")
	cmd := exec.Command(b.freeze, fmt.Sprint(c.cmd.Process.Pid))
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.libraries, wire.Environment+"="+c.socket, "ASAN_OPTIONS=detect_leaks=0")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 77 {
		t.Skip("a process may not be traced here")
	}
	if err != nil || string(out) != "0 0\n" {
		t.Fatalf("%q, %v", out, err)
	}
	c.wants(cudaSuccess, "unlock")
	c.steps(2)
}

// testCrowd checkpoints a program whose threads make calls, come and go.
func testCrowd(t *testing.T, b built) { runCrowd(t, b.libraries, simtest.Serve(t, shape), 40, b.crowd) }

// TestCheckpointThreads is that under ThreadSanitizer.
func TestCheckpointThreads(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the libraries for ThreadSanitizer")
	}
	setarch, err := exec.LookPath("setarch")
	if err != nil {
		t.Skip("needs setarch: ThreadSanitizer does not take addresses at random")
	}
	libraries := simtest.Libraries(t, "-fsanitize=thread")
	crowd := compile(t, libraries, "crowd", "-fsanitize=thread")
	runCrowd(t, libraries, simtest.Serve(t, shape), 40, setarch, "-R", crowd)
}

func runCrowd(t *testing.T, libraries, socket string, cycles int, command ...string) {
	t.Helper()
	cmd := exec.Command(command[0], append(command[1:], "../../sim/kernels", fmt.Sprint(cycles))...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket, "ASAN_OPTIONS=detect_leaks=0")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "whole\n" {
		t.Errorf("the crowd: %v\n%s", err, out)
	}
}
