package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fill fills memory of a device until it may not any more, and then says so.
const fill = `import ctypes
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(at), 0)
cuda.cuCtxSetCurrent(at)
for n in range(48):
    size = ctypes.c_size_t(64 << 20)
    if cuda.cuMemAlloc_v2(ctypes.byref(at), size) or cuda.cuMemsetD8_v2(at, 1, size) or cuda.cuCtxSynchronize():
        print("ended after", n)
        break
`

// property is one of the unit, as systemd has it.
func property(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "systemctl", "show", "--value", "-p", name, "lgpud"))
}

// anew waits for the daemon that follows the one of a process, and returns its process.
func anew(t *testing.T, after string) string {
	t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(20 * time.Millisecond) {
		if pid := property(t, "MainPID"); pid != "0" && pid != after && property(t, "ActiveState") == "active" {
			return pid
		}
	}
	t.Fatalf("no daemon follows process %s:\n%s", after, journal(t))
	return ""
}

func journal(t *testing.T) string {
	t.Helper()
	run(t, "journalctl", "--sync")
	return run(t, "journalctl", "--no-pager", "-o", "cat", "-u", "lgpud")
}

// configure adds settings to the unit, as systemctl edit does.
func configure(t *testing.T, settings string) {
	t.Helper()
	const dir = "/etc/systemd/system/lgpud.service.d"
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(dir+"/override.conf", []byte("[Service]\n"+settings+"\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
}

// TestOnBooted is TestBooted on its machine: the unit of an install, by a systemd that runs.
func TestOnBooted(t *testing.T) {
	if os.Getenv(bootedVariable) != t.Name() {
		t.Skip("TestBooted starts it")
	}
	run(t, "systemctl", "enable", "--now", "lgpud")
	sandboxed(t)
	reachable(t)
	p := startProgram(t)
	p.works(t, "at first")
	pid := property(t, "MainPID")

	run(t, "systemctl", "restart", "lgpud")
	next := property(t, "MainPID")
	p.works(t, "after a restart")
	if s := look(t); next == pid || s.LGPUs[0].Path != "/job" || *s.LGPUs[0].Devices[0].Effective.MemoryMax != 256<<20 {
		t.Errorf("after a restart: process %s after %s, %+v", next, pid, s)
	}

	pid = next
	run(t, "kill", "-KILL", pid)
	anew(t, pid)
	p.works(t, "after a kill")
	look(t)
	if n := property(t, "NRestarts"); n != "1" {
		t.Errorf("after a kill: restarted %s times", n)
	}

	run(t, "systemctl", "stop", "lgpud")
	if result := property(t, "Result"); result != "success" {
		t.Errorf("stopped: %s", result)
	}
	p.works(t, "without a daemon")
	run(t, "systemctl", "start", "lgpud")
	look(t)
	p.works(t, "after a stop")

	bounded(t)
	hang(t)
	look(t)
	p.works(t, "after a hang")
	p.in.Close()
	if err := p.Wait(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	unreadable(t)
	follows(t)
	if t.Failed() {
		t.Log(journal(t))
	}
}

// sandboxed checks that what the unit forbids is forbidden.
func sandboxed(t *testing.T) {
	t.Helper()
	status, err := os.ReadFile("/proc/" + property(t, "MainPID") + "/status")
	if err != nil {
		t.Fatal(err)
	}
	const capabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_IPC_LOCK | 1<<unix.CAP_KILL | 1<<unix.CAP_MKNOD |
		1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE
	for _, line := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n", fmt.Sprintf("CapBnd:\t%016x\n", capabilities)} {
		if !strings.Contains(string(status), "\n"+line) {
			t.Errorf("the daemon has not %q:\n%s", line, status)
		}
	}
	page, err := os.ReadFile("../../docs/install.md")
	figure := exposure.FindStringSubmatch(run(t, "systemd-analyze", "security", "--no-pager", "lgpud"))
	version := run(t, "systemd-analyze", "--version")
	if err != nil || figure == nil || strings.HasPrefix(version, "systemd 252 ") && !strings.Contains(string(page), "**"+figure[1]+"**") {
		t.Errorf("exposure %v, which docs/install.md does not say: %v", figure, err)
	}
}

// reachable checks who reaches the daemon by its sockets, and that its tree is seen outside of its sandbox.
func reachable(t *testing.T) {
	t.Helper()
	for name, mode := range map[string]os.FileMode{"": os.ModeDir | 0o711, "lgpud.sock": os.ModeSocket | 0o666, "tenant.sock": os.ModeSocket | 0o666} {
		if info, err := os.Stat("/run/lgpu/" + name); err != nil || info.Mode() != mode {
			t.Errorf("/run/lgpu/%s: %v, %v", name, info.Mode(), err)
		}
	}
	c := exec.Command("lgpu", "daemon", "status")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), " at /run/lgpu/lgpud.sock,") {
		t.Errorf("another user: %v: %s", err, out)
	}
	if _, err := os.Stat("/dev/fuse"); err == nil {
		if _, err := os.Stat("/run/lgpu/tree/memory.max"); err != nil {
			t.Error(err)
		}
	}
}

// bounded has a program fill a software GPU beyond what the unit may have: that ends, and not the daemon.
func bounded(t *testing.T) {
	t.Helper()
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	whole := uint64(machine.Totalram) * uint64(machine.Unit)
	if most, err := strconv.ParseUint(property(t, "MemoryMax"), 10, 64); err != nil || most < whole*59/100 || most > whole*61/100 {
		t.Errorf("the daemon may have %d bytes of %d: %v", most, whole, err)
	}
	held := false
	for _, file := range []string{"/sys/fs/cgroup/memory/system.slice/lgpud.service/memory.limit_in_bytes",
		"/sys/fs/cgroup/system.slice/lgpud.service/memory.max"} {
		text, err := os.ReadFile(file)
		held = held || err == nil && strings.TrimSpace(string(text)) != "max"
	}
	if !held {
		lacks(t, "no controller of memory is there for systemd")
	}
	script := filepath.Join(t.TempDir(), "fill.py")
	if err := os.WriteFile(script, []byte(fill), 0o644); err != nil {
		t.Fatal(err)
	}
	pid := property(t, "MainPID")
	run(t, "systemctl", "set-property", "--runtime", "lgpud", "MemoryMax=512M")
	// On a device of its own: the program beside it is to go on.
	if out := run(t, "lgpu", "run", "--sim=1x4GiB,sms=2", "--", "python3", script); !strings.Contains(out, "ended after") {
		t.Errorf("3 GiB went into 512 MiB: %s", out)
	}
	if now := property(t, "MainPID"); now != pid || property(t, "ActiveState") != "active" {
		t.Errorf("the daemon was process %s and is %s", pid, now)
	}
	run(t, "lgpu", "ps")
	run(t, "systemctl", "set-property", "--runtime", "lgpud", "MemoryMax=60%")
}

// hang has the daemon stand still: systemd starts another one.
func hang(t *testing.T) {
	t.Helper()
	configure(t, "WatchdogSec=3")
	run(t, "systemctl", "restart", "lgpud")
	pid := property(t, "MainPID")
	run(t, "kill", "-STOP", pid)
	anew(t, pid)
	if said := journal(t); !strings.Contains(said, "SIGABRT: abort") {
		t.Errorf("not by the watchdog, which has it say what it does:\n%s", said)
	}
	configure(t, "")
	run(t, "systemctl", "restart", "lgpud")
}

// unreadable has the daemon find a state that is none: it does not begin anew by itself, and does when it is told to.
func unreadable(t *testing.T) {
	t.Helper()
	const state = "/var/lib/lgpu/state.db"
	run(t, "systemctl", "stop", "lgpud")
	if err := os.WriteFile(state, []byte(strings.Repeat("no state\n", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemctl", "start", "lgpud").CombinedOutput(); err == nil {
		t.Errorf("it has begun: %s", out)
	}
	aside, err := filepath.Glob(state + ".damaged-*")
	if err != nil || len(aside) != 1 || property(t, "ExecMainStatus") != "78" || property(t, "ActiveState") != "failed" ||
		!strings.Contains(journal(t), "is damaged") {
		t.Errorf("%v, %v, status %s, %s", aside, err, property(t, "ExecMainStatus"), property(t, "ActiveState"))
	}
	run(t, "systemctl", "start", "lgpud")
	run(t, "lgpu", "daemon", "status")
}

// follows has a command of root start a daemon where the unit's was stopped. The unit's takes its place, unless programs use
// it: those go on.
func follows(t *testing.T) {
	t.Helper()
	for _, used := range []bool{false, true} {
		run(t, "systemctl", "stop", "lgpud")
		run(t, "lgpu", "daemon", "stop") // it is not to come back
		run(t, "lgpu", "create", "/made")
		run(t, "lgpu", "rm", "/made")
		if !used {
			run(t, "systemctl", "start", "lgpud")
			if said, pid := run(t, "lgpu", "daemon", "status"), property(t, "MainPID"); !strings.HasPrefix(said, "process "+pid+" ") {
				t.Errorf("the unit's daemon is %s: %s", pid, said)
			}
			continue
		}
		p := startProgram(t)
		if out, err := exec.Command("systemctl", "start", "lgpud").CombinedOutput(); err == nil {
			t.Errorf("it has begun beside another: %s", out)
		}
		if said := journal(t); !strings.Contains(said, "which a command has started; programs use its lgpus") || !strings.Contains(said, "hint: when they have ended") {
			t.Error(said)
		}
		p.works(t, "beside a unit that does not start")
		p.in.Close()
		if err := p.Wait(); err != nil {
			t.Errorf("the program ended with %v", err)
		}
	}
}
