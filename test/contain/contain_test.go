// Package contain tests lgpu run --contain: programs that lose their environment, by all the ways there are, stay within
// their lgpu's memory limit, on the software GPU. As root, and as a user with a user namespace.
package contain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/internal/proc"
)

// nobody is a user without rights. Its programs are those of tests "as a user".
const nobody = 65534

// bin is the folder with lgpu and the programs, which all users may read.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// binVariable names bin to a test that runs in namespaces of its own.
const binVariable = "LGPU_TEST_CONTAIN_BIN"

func run(m *testing.M) int {
	if bin = os.Getenv(binVariable); bin != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lgpu-contain-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), build(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "contain:", err)
		return 1
	}
	bin = dir
	return m.Run()
}

// build makes lgpu and the programs.
func build(dir string) error {
	const libcuda = "../../build/lib/sim/libcuda.so.1"
	if _, err := os.Stat(libcuda); err != nil {
		return errors.New("the C libraries are missing; run: make build")
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	compile := func(out, source string, more ...string) *exec.Cmd {
		args := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I../../tenant/abi/include",
			"-o", filepath.Join(dir, out), "programs/" + source}
		return exec.Command(cc, append(args, more...)...)
	}
	lgpu := exec.Command("go", "build", "-o", dir+"/", "../../cmd/lgpu")
	lgpu.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, c := range []*exec.Cmd{
		lgpu, compile("grab", "grab.c", "-ldl"), compile("linked", "linked.c", libcuda), compile("launch", "launch.c", "-static"),
		compile("plugin.so", "plugin.c", "-shared", "-fPIC", libcuda), compile("namespace", "namespace.c", "-ldl"),
		compile("setuid", "grab.c", "-ldl"),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
		}
	}
	if os.Geteuid() != 0 {
		return nil
	}
	path := filepath.Join(dir, "setuid")
	return errors.Join(os.Chown(path, nobody, nobody), os.Chmod(path, 0o755|os.ModeSetuid|os.ModeSetgid))
}

// place is a runtime folder of its own, and a user who works there.
type place struct {
	dir  string
	uid  int
	libs string
}

// enter makes a place for a user, and ends the daemon there after the test.
func enter(t *testing.T, uid int) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu-contain-place-")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{dir: dir, uid: uid, libs: filepath.Join(dir, "lib")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "r"), 0o711), os.Mkdir(p.libs, 0o755)); err != nil {
		t.Fatal(err)
	}
	if uid != os.Geteuid() {
		for _, path := range []string{dir, filepath.Join(dir, "r"), p.libs} {
			if err := os.Chown(path, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		if out, err := p.command("daemon", "stop").CombinedOutput(); err != nil && !strings.Contains(string(out), "no daemon") {
			t.Errorf("stop the daemon: %v\n%s", err, out)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), dir) {
			t.Errorf("something is mounted below %s: %v", dir, err)
		}
		os.RemoveAll(dir)
	})
	return p
}

// command is lgpu as this place's user types it.
func (p *place) command(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(bin, "lgpu"), args...)
	c.Dir = "/"
	c.Env = []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + p.dir, "LGPU_LIBDIR=" + p.libs,
		"LGPU_RUNTIME_DIR=" + filepath.Join(p.dir, "r"), "LGPU_REAL_LIBNVML=",
	}
	if p.uid != os.Geteuid() {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}}
	}
	return c
}

// lgpu runs a program in an lgpu of 1 GiB.
func (p *place) lgpu(contain string, program ...string) *exec.Cmd {
	return p.command(append([]string{"run", "--sim=1x4GiB,sms=4", "--memory", "1GiB", "--contain=" + contain, "--"}, program...)...)
}

// permitted skips a test where this user may not make a namespace, and says why.
func (p *place) permitted(t *testing.T) {
	t.Helper()
	probe := exec.Command("unshare", "-m", "true")
	if p.uid != 0 {
		probe = exec.Command("unshare", "-Um", "true")
	}
	probe.SysProcAttr = p.command().SysProcAttr
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("user %d may not make a namespace here: %v: %s", p.uid, err, out)
	}
}

// users calls f as root, if the test is, and as a user.
func users(t *testing.T, f func(t *testing.T, p *place)) {
	if os.Geteuid() != 0 {
		t.Run("user", func(t *testing.T) { f(t, enter(t, os.Geteuid())) })
		return
	}
	t.Run("root", func(t *testing.T) { f(t, enter(t, 0)) })
	t.Run("user", func(t *testing.T) { f(t, enter(t, nobody)) })
}

// TestBounded: whatever a program does with its environment, its memory is limited.
func TestBounded(t *testing.T) {
	grab, linked, launch := filepath.Join(bin, "grab"), filepath.Join(bin, "linked"), filepath.Join(bin, "launch")
	ways := []struct {
		name    string
		rootly  bool // it needs root to change its user
		program []string
	}{
		{"as it is", false, []string{grab}},
		{"linked", false, []string{linked}},
		{"with NVML", false, []string{grab, "both"}},
		{"with NVML, env -i", false, []string{"env", "-i", grab, "both"}},
		{"env -i", false, []string{"env", "-i", grab}},
		{"env -i, linked", false, []string{"env", "-i", linked}},
		{"cleared LD_PRELOAD", false, []string{"env", "-u", "LD_PRELOAD", "LD_PRELOAD=", grab}},
		{"cleared LGPU_SOCKET", false, []string{"env", "-u", "LGPU_SOCKET", grab}},
		{"forged LGPU_SOCKET", false, []string{"env", "LGPU_SOCKET=/dev/null", grab}},
		{"forged LGPU_REAL_LIBCUDA", false, []string{"env", "LGPU_REAL_LIBCUDA=/dev/null", grab}},
		{"HAMi's environment", false, []string{"env", "-u", "LGPU_SOCKET", "CUDA_DEVICE_MEMORY_LIMIT=3g", grab}},
		{"static launcher", false, []string{launch, grab}},
		{"RTLD_DEEPBIND", false, []string{"env", "-i", grab, "deepbind"}},
		{"RTLD_DEEPBIND plug-in", false, []string{grab, "plugin", filepath.Join(bin, "plugin.so")}},
		{"dlmopen", false, []string{grab, "dlmopen"}},
		{"fork and exec chain", false, []string{"sh", "-c", `sh -c "env -i setsid -w ` + launch + " " + grab + `; exit \$?"`}},
		{"preloaded by hand", false, []string{"sh", "-c", "LD_PRELOAD=$LGPU_LIBDIR/liblgpu.so " + grab}},
		{"changed root folder", true, []string{"chroot", "/", "env", "-i", grab}},
		{"su -", true, []string{"su", "-", "-s", "/bin/sh", "nobody", "-c", grab}},
		{"set-uid launcher", true, []string{filepath.Join(bin, "setuid")}},
		{"set-uid launcher, env -i", true, []string{"env", "-i", filepath.Join(bin, "setuid")}},
	}
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				if way.rootly && p.uid != 0 {
					t.Skip("only root changes its user or its root folder in a user namespace of one user")
				}
				out, err := p.lgpu("on", way.program...).CombinedOutput()
				if err != nil || !bounded(out) {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
}

// TestNamespace: in a namespace of the loader of their own, the libraries' threads leave the malloc of the program's libc alone.
func TestNamespace(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		out, err := p.lgpu("on", filepath.Join(bin, "namespace")).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "others: 0\n") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// bounded reports whether a program said so.
func bounded(out []byte) bool { return strings.Contains("\n"+string(out), "\nbounded: ") }

// TestUncontained: what TestBounded looks for is there to be found.
func TestUncontained(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		out, err := p.lgpu("off", "env", "-u", "LD_PRELOAD", filepath.Join(bin, "grab")).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "not bounded") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestProgram: a contained program is a child like any other: its user, its status, its working folder, what it inherits.
func TestProgram(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		for _, test := range []struct {
			program []string
			status  int
			want    string
		}{
			{[]string{"sh", "-c", "exit 7"}, 7, ""},
			{[]string{"sh", "-c", "kill -9 $$"}, 137, ""},
			{[]string{"sh", "-c", `test "$(id -u)" = ` + fmt.Sprint(p.uid) + ` && pwd && umask && echo "$0" "$1"`, "a b", "c"}, 0, "/\n0022\na b c\n"},
			{[]string{filepath.Join(bin, "absent")}, 127, ""},
			{[]string{"/etc/ld.so.cache"}, 126, ""},
			{[]string{"sh", "-c", "test -e /proc/$$/fd/3 || echo closed"}, 0, "closed\n"},
		} {
			out, err := p.lgpu("on", test.program...).Output()
			var ended *exec.ExitError
			status := 0
			if errors.As(err, &ended) {
				status = ended.ExitCode()
			}
			if status != test.status || string(out) != test.want {
				t.Errorf("%q: status %d, not %d; %q, not %q", test.program, status, test.status, out, test.want)
			}
		}
	})
}

// TestLocked: a user's programs cannot take the mounts away, nor write to what is mounted.
func TestLocked(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = nobody
	}
	p := enter(t, uid)
	p.permitted(t)
	for _, attempt := range []string{
		`umount /etc/ld.so.cache`, `umount -l /etc/ld.so.cache`, `unshare -Urm umount /etc/ld.so.cache`,
		`unshare -Urm umount -l "$LGPU_LIBDIR/contained"`, `unshare -Urm mount -o remount,rw "$LGPU_LIBDIR/contained"`,
		`echo x >"$LGPU_LIBDIR/contained/liblgpu.so"`, `nsenter --mount=/proc/1/ns/mnt true`, `chroot /proc/1/root true`,
		`unshare -Urm pivot_root /proc/1/root /proc/1/root`,
	} {
		out, err := p.lgpu("on", "sh", "-c", attempt+" 2>/dev/null && echo succeeded; "+filepath.Join(bin, "grab")).CombinedOutput()
		if err != nil || !bounded(out) {
			t.Errorf("%s: %v\n%s", attempt, err, out)
		}
	}
}

// TestKilled: with its launcher, a contained program ends too, and its mounts with it.
func TestKilled(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		c := p.lgpu("on", "sh", "-c", "echo $$; exec sleep 1000")
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(bufio.NewReader(out), &pid); err != nil {
			t.Fatal(err)
		}
		program, err := proc.Open(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if !program.WaitFor(context.Background(), time.Minute) {
			t.Error("the program has outlived its launcher")
		}
		if err := c.Wait(); err == nil {
			t.Error("the launcher was not killed")
		}
	})
}

// TestImpossible: where no namespace can be made, on says so and starts nothing, auto says so and starts the program.
func TestImpossible(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = nobody
	}
	p := enter(t, uid)
	without := func(contain string) *exec.Cmd {
		// The folder for the libraries cannot be made where a file is.
		c := p.lgpu(contain, "echo", "started")
		if err := os.WriteFile(filepath.Join(p.libs, "contained"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return c
	}
	out, err := without("on").CombinedOutput()
	if err == nil || strings.Contains(string(out), "started") || !strings.Contains(string(out), "lgpu: error: --contain: ") {
		t.Errorf("on: %v\n%s", err, out)
	}
	out, err = without("auto").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "started") || !strings.Contains(string(out), "lgpu: warning: the program is not contained: ") {
		t.Errorf("auto: %v\n%s", err, out)
	}
}
