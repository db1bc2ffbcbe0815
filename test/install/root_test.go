package install

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api/state"
)

// patience bounds every wait.
const patience = 60 * time.Second

// rootVariable tells a test binary that it runs in namespaces of its own, and names the folder with the packages.
const rootVariable = "LGPU_TEST_INSTALL_ROOT"

// packages makes the packages of a version and returns the folder that has them. The commit is always the same, whatever
// happens to the one that is checked out meanwhile.
func packages(t *testing.T, version string) string {
	t.Helper()
	run(t, "make", "packages", "VERSION="+version, "COMMIT="+strings.Repeat("0123456789", 4), "COMMIT_EPOCH=1700000000")
	dir := filepath.Join(t.TempDir(), version)
	run(t, "cp", "-r", "build/package", dir)
	return dir
}

// The packages have what make install writes, are equal when made twice, and serve an upgrade under a running program.
func TestPackages(t *testing.T) {
	need(t, "dpkg-deb", "rpm", "setpriv", "sha256sum")
	t.Cleanup(func() { run(t, "make", "build") }) // with its own version again
	old, again := packages(t, "1.0.0"), packages(t, "1.0.0")
	for _, dir := range []string{old, again} {
		run(t, "sh", "-c", `cd "$1" && sha256sum --quiet -c SHA256SUMS`, "sh", dir)
	}
	sums := func(dir string) string {
		text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if sums(old) != sums(again) {
		// diff ends with 1 if there is a difference to tell.
		out, _ := exec.Command("diff", "-r", "--brief", filepath.Join(old, "root"), filepath.Join(again, "root")).CombinedOutput()
		t.Errorf("packages made twice differ:\n%s%s%s", sums(old), sums(again), out)
	}
	have := map[string]string{
		"deb": run(t, "sh", "-c", `dpkg-deb -c "$1"/*.deb`, "sh", old),
		"rpm": run(t, "sh", "-c", `rpm -qlp "$1"/*.rpm`, "sh", old),
	}
	want := files(t, filepath.Join(old, "root"))
	for kind, list := range have {
		for _, file := range want {
			if kind == "deb" {
				file = strings.Replace(file, "zsh/site-functions", "zsh/vendor-completions", 1)
			}
			if !strings.Contains(list, file+"\n") {
				t.Errorf("the %s lacks %s", kind, file)
			}
		}
	}
	for _, file := range installed {
		if !slices.Contains(want, "/usr"+file) {
			t.Errorf("packages lack %s", file)
		}
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"old": old, "new": packages(t, "2.0.0")} {
		if err := os.Rename(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	inRoot(t, dir)
	boot(t, "TestPackagesOnBooted", packagesVariable+"="+dir)
}

// inRoot runs TestInRoot in namespaces of its own. All that it starts ends with it.
func inRoot(t *testing.T, dir string) {
	if os.Getuid() != 0 {
		lacks(t, "only root can have a root of its own")
	}
	c := exec.Command(os.Args[0], "-test.run=^TestInRoot$", "-test.v")
	c.Env = append(os.Environ(), rootVariable+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC, Pdeathsig: unix.SIGKILL,
	}
	out, err := c.CombinedOutput()
	if errors.Is(err, unix.EPERM) { // in a container without privileges
		lacks(t, "namespaces cannot be made here")
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestInRoot") {
		t.Errorf("in a root of its own: %v\n%s", err, out)
	}
}

// enter makes a root like layOut's this process's own.
func enter(t *testing.T, base string) {
	t.Helper()
	root := layOut(t, base)
	here, err := os.Getwd()
	if err == nil {
		err = unix.Chroot(root)
	}
	if err == nil {
		err = os.Chdir(here)
	}
	if err != nil {
		t.Fatalf("change the root: %v", err)
	}
}

// service is the daemon as the unit starts it: with its capabilities, and telling when it is ready.
type service struct {
	*exec.Cmd
	manager *net.UnixConn
}

func startService(t *testing.T) *service {
	t.Helper()
	unit, err := os.ReadFile("/usr/lib/systemd/system/lgpud.service")
	if err != nil {
		t.Fatal(err)
	}
	bounds := "-all"
	for line := range strings.Lines(string(unit)) {
		if list, is := strings.CutPrefix(line, "CapabilityBoundingSet="); is {
			for _, c := range strings.Fields(list) {
				bounds += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
			}
		}
	}
	if bounds == "-all" {
		t.Fatal("the unit names no capabilities")
	}
	const socket = "/run/notify"
	os.Remove(socket)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{exec.Command("setpriv", "--bounding-set="+bounds, "--inh-caps=-all", "--no-new-privs", "--",
		"/usr/bin/lgpu", "daemon", "--store", "/var/lib/lgpu/state.db"), manager}
	s.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	s.Stderr = os.Stderr
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 100)
	if err := manager.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	n, err := manager.Read(message)
	if err != nil || string(message[:n]) != "READY=1" {
		t.Fatalf("the daemon is not ready: %q, %v", message[:n], err)
	}
	return s
}

// stop ends the daemon as an administrator does.
func (s *service) stop(t *testing.T) {
	t.Helper()
	run(t, "lgpu", "daemon", "stop")
	if err := s.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	s.manager.Close()
}

// program is one in an lgpu, which computes for a moment when it is told to.
type program struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startProgram(t *testing.T) *program {
	t.Helper()
	c := exec.Command("lgpu", "run", "--sim=1x1GiB,sms=4", "--name", "job", "--memory", "256MiB", "--",
		"../../build/demo/tenant", "../../sim/kernels/compute.ptx")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &program{c, in, bufio.NewScanner(out)}
	var bytes uint64
	p.expect(t, "memory %d", &bytes)
	if bytes == 0 || bytes > 256<<20 {
		t.Errorf("the program could allocate %d bytes", bytes)
	}
	return p
}

func (p *program) expect(t *testing.T, format string, value any) {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the program has ended: %v", p.out.Err())
	}
	if _, err := fmt.Sscanf(p.out.Text(), format, value); err != nil {
		t.Fatalf("%q: %v", p.out.Text(), err)
	}
}

// works has the program compute, and reports if it cannot.
func (p *program) works(t *testing.T, when string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, "0.2"); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	kernels := 0
	p.expect(t, "kernels %d", &kernels)
	if kernels == 0 {
		t.Errorf("%s the program ran no kernel", when)
	}
}

// look returns the state as soon as the program is a client again.
func look(t *testing.T) (s state.State) {
	t.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(20 * time.Millisecond) {
		s = state.State{}
		if err := json.Unmarshal([]byte(run(t, "lgpu", "ps", "--json")), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.LGPUs) == 1 && len(s.LGPUs[0].Processes) == 1 {
			return s
		}
	}
	t.Fatalf("the program is no client of the daemon: %+v", s)
	return s
}

// TestInRoot installs, upgrades under a running program, and removes. It is started by TestPackages.
func TestInRoot(t *testing.T) {
	dir := os.Getenv(rootVariable)
	if dir == "" {
		t.Skip("TestPackages starts it")
	}
	enter(t, filepath.Join(dir, "root"))
	for _, v := range []string{"LGPU_RUNTIME_DIR", "LGPU_LIBDIR", "LGPU_SOCKET_API"} {
		os.Unsetenv(v)
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	install := func(which string) {
		run(t, "sh", "-c", `dpkg -i "$1"/*.deb`, "sh", filepath.Join(dir, which))
	}
	install("old")
	if out := run(t, "lgpu", "version"); !strings.HasPrefix(out, "lgpu version 1.0.0 (commit ") {
		t.Errorf("%q", out)
	}
	run(t, "getent", "group", "lgpu")
	for d, mode := range map[string]os.FileMode{"/run/lgpu": 0o711, "/var/lib/lgpu": 0o700} { // as systemd makes them
		if err := os.Mkdir(d, mode); err != nil {
			t.Fatal(err)
		}
	}
	daemon := startService(t)
	p := startProgram(t)
	p.works(t, "before the upgrade")

	install("new")
	if out := run(t, "lgpu", "version"); !strings.HasPrefix(out, "lgpu version 2.0.0 ") {
		t.Errorf("%q", out)
	}
	if s := look(t); s.Daemon.Version != "1.0.0" {
		t.Errorf("daemon %s before its restart", s.Daemon.Version)
	}
	daemon.stop(t)
	p.works(t, "without a daemon")
	daemon = startService(t)
	p.works(t, "after the upgrade")
	s := look(t)
	if s.Daemon.Version != "2.0.0" || s.LGPUs[0].Path != "/job" || *s.LGPUs[0].Devices[0].Effective.MemoryMax != 256<<20 {
		t.Errorf("after the upgrade: %+v", s)
	}
	if _, err := os.Stat("/dev/fuse"); err == nil {
		if text, err := os.ReadFile("/run/lgpu/tree/job/memory.max"); err != nil || !strings.Contains(string(text), " 268435456") {
			t.Errorf("the tree: %q, %v", text, err)
		}
	}

	daemon.stop(t)
	run(t, "dpkg", "--remove", "lgpu")
	p.works(t, "after the removal")
	p.in.Close()
	if err := p.Wait(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	removed(t)
	if _, err := os.Stat("/var/lib/lgpu/state.db"); err != nil {
		t.Errorf("the state did not outlive the removal: %v", err)
	}
	run(t, "dpkg", "--purge", "lgpu")
	if _, err := os.Stat("/var/lib/lgpu"); err == nil {
		t.Error("the state outlived the purge")
	}

	for _, args := range []string{`rpm -U "$1"/old/*.rpm`, `rpm -U "$1"/new/*.rpm`} {
		run(t, "sh", "-c", strings.Replace(args, "rpm", "rpm --dbpath /tmp/rpm --nodeps", 1), "sh", dir)
	}
	if out := run(t, "lgpu", "version"); !strings.HasPrefix(out, "lgpu version 2.0.0 ") {
		t.Errorf("after the upgrade by rpm: %q", out)
	}
	run(t, "rpm", "--dbpath", "/tmp/rpm", "--erase", "lgpu")
	removed(t)
}

// removed reports files of the install that are still there.
func removed(t *testing.T) {
	t.Helper()
	for _, file := range append(slices.Clone(installed), "/share/zsh/vendor-completions/_lgpu") {
		if _, err := os.Lstat("/usr" + file); err == nil {
			t.Errorf("/usr%s is still there", file)
		}
	}
}
