// Package test tests lgpu as a user has it: the built command, typed in scripts, with unmodified CUDA programs on the
// software GPU. testdata has a script for each topic; what a script cannot say is in Go here. Programs are in programs
// and cuda.
package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// bin is the folder with lgpu and the programs; libs the one with the C libraries.
var bin string

// builtEnvironment is the variable that tells a test binary which another one started of a bin that is built already.
const builtEnvironment = "LGPU_E2E_BIN"

// tried are the signals that tests send to programs and expect to arrive.
var tried = []unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH,
}

// heed has programs of the tests start with signals as they are by default. A shell's background job, or nohup, starts
// the tests with some of them ignored, which programs inherit; of one that is caught they inherit the default.
func heed(signals []unix.Signal) {
	for _, s := range signals {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	heed(tried)
	// What the tests were started with is not their programs': a pipe would keep one from being written to an image.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if built := os.Getenv(builtEnvironment); built != "" {
		bin = built
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lgpu-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	bin = dir
	os.Setenv("LGPU_LIBDIR", filepath.Join(dir, "lib"))
	return m.Run()
}

// build makes lgpu and the C programs, which link to the software GPU's libcuda.so.1 as they would to NVIDIA's.
func build(dir string) error {
	const libcuda = "../build/lib/sim/libcuda.so.1"
	if _, err := os.Stat(libcuda); err != nil {
		return errors.New("the C libraries are missing; run: make build")
	}
	// Two programs at once: into a folder, each by its name.
	lgpu := exec.Command("go", "build", "-o", dir+"/", "../cmd/lgpu", "./pe")
	lgpu.Env = append(os.Environ(), "CGO_ENABLED=0")
	commands := []*exec.Cmd{lgpu}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	suite, err := filepath.Glob("cuda/suite/*.c")
	if err != nil {
		return err
	}
	programs := map[string][]string{"suite": suite, "ask": {"cuda/checkpoint/ask.c"}}
	singles, err := filepath.Glob("programs/*.c")
	if err != nil {
		return err
	}
	for _, source := range singles {
		programs[strings.TrimSuffix(filepath.Base(source), ".c")] = []string{source}
	}
	for program, sources := range programs {
		args := append([]string{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I../tenant/abi/include", "-o", filepath.Join(dir, program)}, sources...)
		commands = append(commands, exec.Command(cc, append(args, libcuda, "-pthread")...))
	}
	for _, c := range commands {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
		}
	}
	return nil
}

// environment is what a test's programs get: a runtime folder of their own, and no lgpu or HAMi settings of the caller.
func environment(runtime string) []string {
	env := []string{"LGPU_RUNTIME_DIR=" + runtime, "PATH=" + bin + ":" + os.Getenv("PATH"), "LGPU_REAL_LIBNVML=/nonexistent/libnvidia-ml.so.1"}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case name == "LGPU_LIBDIR":
		case name == "PATH", name == "LD_PRELOAD", strings.HasPrefix(name, "LGPU_"), strings.HasPrefix(name, "CUDA_"),
			strings.HasPrefix(name, "LSHMEM_"):
			continue
		}
		env = append(env, v)
	}
	return env
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			runtime := filepath.Join(e.WorkDir, "r")
			e.Vars = append(e.Vars, environment(runtime)...)
			p := &place{dir: runtime, env: environment(runtime)}
			e.Defer(func() {
				if err := p.end(); err != nil {
					e.T().Fatal(err)
				}
			})
			return os.Mkdir(runtime, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// status N COMMAND...: the command ends with exit status N.
			"status": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: status N COMMAND...")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				err = ts.Exec(args[1], args[2:]...)
				var exited *exec.ExitError
				if errors.As(err, &exited) {
					got = exited.ExitCode()
				} else {
					ts.Check(err)
				}
				if got != want {
					ts.Fatalf("exit status %d, want %d", got, want)
				}
			},
		},
	})
}
