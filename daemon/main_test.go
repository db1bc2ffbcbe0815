package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
)

// TestMain makes the test binary the other programs that tests need: the hardware of a software GPU, and a daemon.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "sim":
		err = hardware(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "daemon":
		err = daemon(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hardware(args []string) error {
	f := flag.NewFlagSet("sim", flag.ContinueOnError)
	socket, shape := f.String("inherit", "", ""), f.String("shape", "", "")
	idle := f.Duration("idle", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	return sim.Inherited(context.Background(), *socket, *shape, *idle, slog.Default())
}

// simCommand is how the daemons of tests start software GPUs.
func simCommand() []string { return []string{os.Args[0], "sim"} }

// asked is what a test wants of a daemon.
type asked struct {
	Hold  *HoldSpec // hold this, and answer with the Hold
	Write []string  // path, file, text
}

// daemon is a daemon in the folder args[0], with a group /g. It answers every line that it is sent, and at the start
// with one of its own.
func daemon(args []string) error {
	n, err := Open(Config{
		Dir: args[0], SimCommand: simCommand(), Inventories: []gpu.Inventory{}, Mount: MountOff, Reattach: time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := n.Tree().Mkdir("/g", 0, 0); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(context.Background()) }()
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(n.Snapshot()); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var a asked
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			return err
		}
		var answer any
		switch {
		case a.Hold != nil:
			h, err := n.Hold(context.Background(), *a.Hold)
			if err != nil {
				return err
			}
			answer = map[string]any{"Path": h.Path, "ID": h.ID, "Environment": h.Environment}
		case a.Write != nil:
			if err := n.Tree().Write(a.Write[0], a.Write[1], a.Write[2]); err != nil {
				return err
			}
			answer = true
		default:
			answer = n.Snapshot()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return <-ended
}

// shortDir is a folder whose path leaves room for the names of sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// libraries returns the C libraries that make build has made.
func libraries(t *testing.T) (interposer, driver string) {
	t.Helper()
	interposer, err := filepath.Abs("../build/lib/liblgpu.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(interposer); err != nil {
		t.Fatal("the C libraries are missing; run: make build")
	}
	return interposer, filepath.Join(filepath.Dir(interposer), "sim")
}

// compile builds a CUDA program against the software GPU.
func compile(t *testing.T, source string) string {
	t.Helper()
	_, driver := libraries(t)
	program := filepath.Join(t.TempDir(), "program")
	cc := exec.Command(simtest.CC(), "-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror",
		"-I../tenant/abi/include", "-o", program, source,
		filepath.Join(driver, "libcuda.so.1"), "-pthread")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cc, err, out)
	}
	return program
}

// tenantEnvironment is the environment of a tenant's program.
func tenantEnvironment(t *testing.T, held map[string]string) []string {
	t.Helper()
	interposer, driver := libraries(t)
	env := append(os.Environ(), "LD_PRELOAD="+interposer, "LD_LIBRARY_PATH="+driver,
		"LGPU_REAL_LIBCUDA="+filepath.Join(driver, "libcuda.so.1"), "LGPU_REAL_LIBNVML="+filepath.Join(driver,
			"libnvidia-ml.so.1"))
	for name, value := range held {
		env = append(env, name+"="+value)
	}
	return env
}

// remote is a daemon in a process of its own.
type remote struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
}

// spawn starts a daemon and waits until it runs.
func spawn(t *testing.T, dir string) (*remote, Snapshot) {
	t.Helper()
	r := &remote{cmd: exec.Command(os.Args[0], "daemon", dir)}
	r.cmd.Stderr = os.Stderr
	in, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kill)
	r.in, r.out = json.NewEncoder(in), json.NewDecoder(out)
	var s Snapshot
	if err := r.out.Decode(&s); err != nil {
		t.Fatalf("the daemon does not start: %v", err)
	}
	return r, s
}

// kill ends the daemon as a crash would.
func (r *remote) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}

// ask sends a request and reads the answer.
func ask[T any](t *testing.T, r *remote, a asked) (answer T) {
	t.Helper()
	if err := r.in.Encode(a); err != nil {
		t.Fatal(err)
	}
	if err := r.out.Decode(&answer); err != nil {
		t.Fatalf("the daemon does not answer: %v", err)
	}
	return answer
}
