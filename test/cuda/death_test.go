package cuda

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// victim starts the program of the same name and returns when it is in the middle of things.
func victim(t *testing.T, libraries, socket string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	return startVictim(t, compileVictim(t, libraries), libraries, socket)
}

func compileVictim(t *testing.T, libraries string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "victim")
	args := append([]string{"-std=c11", "-O1", "-Wall", "-Wextra", "-I", "../../tenant/abi/include", "-o", program}, flags...)
	args = append(args, "victim/victim.c", filepath.Join(libraries, "libcuda.so.1"), "-pthread")
	out, err := exec.Command(simtest.CC(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func startVictim(t *testing.T, program, libraries, socket string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(program, "../../sim/kernels/control.ptx")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries, wire.Environment+"="+socket, "ASAN_OPTIONS=detect_leaks=0")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	r := bufio.NewReader(pipe)
	if line, err := r.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the program said %q, %v", line, err)
	}
	return cmd, r
}

// TestHardwareDies takes the hardware away under a running program: every thread's call must return, and say what
// happened.
func TestHardwareDies(t *testing.T) {
	libraries := simtest.Libraries(t)
	dir, err := os.MkdirTemp("", "lgpu-death")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := sim.Listen(filepath.Join(dir, "sim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- sim.Serve(ctx, l, shape, sim.ServeOptions{}) }()
	cmd, r := victim(t, libraries, filepath.Join(dir, "sim.sock"))
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the hardware ended with %v", err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if want := strings.Repeat("46\n", 6); string(rest) != want {
		t.Errorf("the calls returned\n%swant CUDA_ERROR_DEVICE_UNAVAILABLE (46) each", rest)
	}
}

// dial connects to the hardware at socket, and returns also what asks how much memory of its first device is in use, in bytes.
func dial(t *testing.T, socket string) (client *wire.Client, used func() uint64) {
	t.Helper()
	client, err := wire.Dial(socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, func() uint64 {
		t.Helper()
		devices, err := client.Devices()
		if err != nil {
			t.Fatal(err)
		}
		return devices[0].MemoryUsed
	}
}

// TestProgramDies kills a program that has memory and runs a kernel without end: the hardware must free all of it.
func TestProgramDies(t *testing.T) {
	libraries := simtest.Libraries(t)
	socket := simtest.Serve(t, shape)
	client, used := dial(t, socket)
	before := used()
	cmd, _ := victim(t, libraries, socket)
	if now := used(); now < before+100<<20 {
		t.Fatalf("%d bytes in use beside a program that holds 100 MiB", now-before)
	}
	processes, err := client.Processes(0)
	if err != nil {
		t.Fatal(err)
	}
	if len(processes) != 1 || int(processes[0].PID) != cmd.Process.Pid || processes[0].MemoryUsed < 100<<20 {
		t.Errorf("processes %+v, want %d", processes, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Nothing tells another process that memory has come back: ask until it has.
	deadline := time.After(10 * time.Second)
	for tick := time.NewTicker(time.Millisecond); used() != before; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d bytes are still in use", used()-before)
		}
	}
	if processes, err := client.Processes(0); err != nil || len(processes) != 0 {
		t.Errorf("processes %+v, %v", processes, err)
	}
}
