package contain

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// This test binary is the stage too, and as another user a test of its own.
func TestMain(m *testing.M) {
	if Staged() {
		if Stage() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fullPlan is a namespace without /dev/full, which stands in for a GPU of others.
func fullPlan(t *testing.T) *Plan {
	library(t)
	sim, err := filepath.Abs("../../build/lib/sim")
	if err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Abs(interposer)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make(Options{
		Interposer: own, Dir: filepath.Join(t.TempDir(), "contained"), Environment: []string{"LD_LIBRARY_PATH=" + sim},
		Hide: []string{"/dev/full"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start runs a shell command contained and returns its status.
func start(t *testing.T, p *Plan, command string) int {
	t.Helper()
	s, err := p.Start("/bin/sh", []string{"sh", "-c", command}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err == nil {
		err = s.Confirm()
	}
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state.ExitCode()
}

// permitted skips a test where this user may not make a namespace.
func permitted(t *testing.T, p *Plan) {
	t.Helper()
	err := p.Try()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("user %d may not make a namespace here: %v", os.Geteuid(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHide: a hidden device cannot be opened, and others can.
func TestHide(t *testing.T) {
	p := fullPlan(t)
	permitted(t, p)
	for command, want := range map[string]int{
		`test -e /dev/full`: 0, `exec 3>/dev/null && exec 3</dev/zero`: 0, `(exec 3</dev/full) 2>/dev/null`: 2,
		`(exec 3>/dev/full) 2>/dev/null`: 2, `grep -q "^CapEff:.*[1-9a-f]" /proc/self/status; test $? -eq $((! ! $(id -u)))`: 0,
	} {
		if got := start(t, p, command); got != want {
			t.Errorf("%s: status %d, not %d", command, got, want)
		}
	}
	if f, err := os.Open("/dev/full"); err != nil {
		t.Errorf("outside: %v", err)
	} else {
		f.Close()
	}
}

// TestHideAsUser is TestHide in a user namespace, where the flags of mounts from outside are locked.
func TestHideAsUser(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("TestHide is run by a user")
	}
	library(t)
	folder, err := os.MkdirTemp("", "lgpu-hide-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	for name, source := range map[string]string{
		"test": "/proc/self/exe", "build/lib/liblgpu.so": interposer, "build/lib/sim/libcuda.so.1": "../../build/lib/sim/libcuda.so.1",
	} {
		data, err := os.ReadFile(source)
		path := filepath.Join(folder, name)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	work := filepath.Join(folder, "internal/contain")
	if err := errors.Join(os.MkdirAll(work, 0o755), os.Chown(folder, nobody, nobody), os.Chmod(folder, 0o755)); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(folder, "test"), "-test.run=^TestHide$", "-test.v")
	c.Dir, c.Env = work, []string{"TMPDIR=" + folder, "PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- ") {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
}

// TestCgroup: the program begins in the cgroup; where the kernel cannot start it there it enters that by itself.
func TestCgroup(t *testing.T) {
	p := fullPlan(t)
	permitted(t, p)
	plain := t.TempDir() // no cgroup, so that nothing can be started there
	entered := filepath.Join(plain, "cgroup.procs")
	if err := os.WriteFile(entered, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Cgroup = plain
	if got := start(t, p, "exit 5"); got != 5 {
		t.Errorf("status %d", got)
	}
	if text, err := os.ReadFile(entered); string(text) != "0" {
		t.Errorf("it has written %q, %v", text, err)
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if unix.Statfs(root, &s) != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		name := "lgpu-test-" + strconv.Itoa(os.Getpid())
		p.Cgroup = filepath.Join(root, name)
		if err := os.Mkdir(p.Cgroup, 0o755); err != nil {
			t.Skip("no cgroups can be made here: ", err)
		}
		defer os.Remove(p.Cgroup)
		if got := start(t, p, "grep -q '^0::.*/"+name+"$' /proc/self/cgroup"); got != 0 {
			t.Errorf("it is not in the cgroup: status %d", got)
		}
	}
}

// TestTry: what is in the way is said, and a cgroup is entered only by programs.
func TestTry(t *testing.T) {
	p := fullPlan(t)
	join := filepath.Join(t.TempDir(), "tasks")
	if err := os.WriteFile(join, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Tasks = join
	permitted(t, p)
	if text, _ := os.ReadFile(join); len(text) != 0 {
		t.Errorf("trying has entered a cgroup: %q", text)
	}
	if got := start(t, p, "exit 5"); got != 5 {
		t.Errorf("status %d", got)
	}
	if text, _ := os.ReadFile(join); string(text) != "0" {
		t.Errorf("the program has written %q", text)
	}
	p.Covers = append(p.Covers, "/nonexistent/libcuda.so.1")
	if err := p.Try(); err == nil || !strings.Contains(err.Error(), "over /nonexistent/libcuda.so.1: no such file") {
		t.Errorf("a file that is gone: %v", err)
	}
}
