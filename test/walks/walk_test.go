package walks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	const text = "# A walk\n```console\nalice$ one \\\n  two\n> three\nout 1\n...\nroot# three\n```\n<!-- until bob$ x -->\n<!-- root# y -->\n<!-- a remark -->\n"
	steps, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Line: 3, User: "alice", Command: "one \\\n  two\nthree", Output: []string{"out 1", "..."}, Shown: true, begin: 5, end: 7},
		{Line: 8, User: "root", Command: "three", Shown: true, begin: 8, end: 8},
		{Line: 10, User: "bob", Command: "x", Until: true}, {Line: 11, User: "root", Command: "y"},
	}
	if got := fmt.Sprintf("%+v", steps); got != fmt.Sprintf("%+v", want) {
		t.Errorf("steps\n%s, want\n%+v", got, want)
	}
	again := Rewrite(text, steps, map[int][]string{3: {"out 2"}, 8: {"new"}})
	if want := strings.Replace(text, "root# three\n", "root# three\nnew\n", 1); again != want {
		t.Errorf("rewritten %q, want %q", again, want)
	}
	for _, bad := range []string{"```console\nx\n```\n", "```console\nalice# x\n```", "```console\nroot# x\n", "<!-- until x -->"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestLike(t *testing.T) {
	for _, c := range []struct {
		shown, printed string
		like           bool
	}{
		{"red   GPU-af1d2afa  1 GiB  10.2%", "red GPU-11111111 512 MiB   9%", true},
		{"red 1 GiB", "blue 1 GiB", false},
		{"a\n...\nz", "a\nb\nc\nz", true},
		{"a\n...\nz", "a\nb\nc", false},
		{"2026-11-01 10:00:00.123 CET", "2026-11-02 11:00:01.001 CET", true},
		{"", "x", false},
		{"lgpu: error: --memory 20GiB: each has 16 GiB", "lgpu: error: --memory 20GiB: each has 8 GiB", false},
		{"GPU-680d9cf0-f3d1-44aa-abee-1bf82ccc9bb1 10%", "GPU-680d9cf0-f3d1-44aa-abee-1bf82ccc9bb2 30%", false},
		{"GPU-680d9cf0-f3d1-44aa-abee-1bf82ccc9bb1 10%", "GPU-680d9cf0-f3d1-44aa-abee-1bf82ccc9bb2 10%", true},
		{"red  GPU-680d9cf0  4 GiB  4 GiB  11.7%   60%  alice    107", "red GPU-680d9cf1 3 GiB 4 GiB 9% 60% alice 9", true},
		{"red  GPU-680d9cf0  4 GiB  4 GiB  11.7%   60%  alice    107", "red GPU-680d9cf1 3 GiB 5 GiB 9% 60% alice 9", false},
		{"red  GPU-680d9cf0  4 GiB  4 GiB  11.7%   60%  alice    107", "red GPU-680d9cf1 3 GiB 4 GiB 9% 50% alice 9", false},
		{"   job  frank   1   566M/2G   10→9.6   6.1W  100  waiting", "   job  frank   1   600M/2G   9→9   6W  100  running", true},
		{"   job  frank   1   566M/2G   10→9.6   6.1W  100  waiting", "   job  frank   1   600M/3G   9→9   6W  100  running", false},
		{"2026-11-29 16:24:26.580 +0000  limit.changed  /v  memory.max is 8 GiB (was max), by user 0 (root), process 1 (lgpu)",
			"2026-11-29 16:24:26.581 +0000  limit.changed  /v  memory.max is 8 GiB (was max), by user 0 (root), process 2 (lgpu)", true},
		{"2026-11-29 16:24:26.580 +0000  limit.changed  /v  memory.max is 8 GiB (was max), by user 0 (root), process 1 (lgpu)",
			"2026-11-29 16:24:26.580 +0000  limit.changed  /v  memory.max is 9 GiB (was max), by user 0 (root), process 1 (lgpu)", false},
	} {
		shown := strings.Split(c.shown, "\n")
		if c.shown == "" {
			shown = nil
		}
		if got := Like(shown, strings.Split(c.printed, "\n")); got != c.like {
			t.Errorf("%q and %q: like %v", c.shown, c.printed, got)
		}
	}
}

// Of the numbers that the walks show, each that is wrong is found.
func TestHolds(t *testing.T) {
	ps := []string{
		"/                  GPU-2b21a105   6.6 GiB         -   43.3%     -  -",
		" users/            GPU-2b21a105   2.6 GiB         -   13.3%     -  -",
		"  alice            GPU-2b21a105     2 GiB     2 GiB    9.5%   10%  alice    233",
		"  bob              GPU-2b21a105   566 MiB     1 GiB    3.8%    5%  bob      312",
		" vision            GPU-2b21a105     4 GiB     8 GiB   30.0%   30%  carol    7",
	}
	energy := []string{
		"/                  GPU-2b21a105    795.4 J    57.1 W 100.0%     0.0001     0.08 g",
		"/users             GPU-2b21a105    528.2 J    38.9 W  66.4%     0.0000     0.06 g",
		"/vision            GPU-2b21a105    267.2 J    18.2 W  33.6%     0.0000     0.03 g",
	}
	program := []string{
		"memory 2078277632 CUDA_ERROR_OUT_OF_MEMORY", "kernels 8 1.151081",
		"lgpu: the program was refused device memory 11 times, the last time 1 MiB, by the limit of /users/alice, 2 GiB, which",
	}
	metrics := []string{
		`lgpu_memory_used_bytes{device="G",kind="group",path="/"} 2.147483648e+09`,
		`lgpu_memory_used_bytes{device="G",kind="group",path="/team"} 0`,
		`lgpu_memory_used_bytes{device="G",kind="lgpu",path="/job"} 2.147483648e+09`,
	}
	for _, c := range []struct {
		lines           []string
		old, new, finds string
	}{
		{ps, "", "", ""}, {energy, "", "", ""}, {program, "", "", ""}, {metrics, "", "", ""},
		{ps, "566 MiB     1 GiB", "566 MiB   500 MiB", "above its limit"},
		{ps, "6.6 GiB", "7.6 GiB", "/ has"}, {ps, "2.6 GiB", "2.1 GiB", "/users has"}, {ps, "566 MiB", "266 MiB", "/users has"},
		{ps, "43.3%", "44.3%", "/ has"}, {ps, "3.8%", "8.8%", "/users has"}, {ps, "alice    233", "alice    -", "without a process"},
		{energy, "267.2 J", "0 J", "no energy"}, {energy, "267.2", "269.2", "all in it"}, {energy, "38.9", "48.9", "draws"},
		{energy, "33.6%", "43.6%", "%"}, {energy, "0.0001", "0.0101", "costs"}, {energy, "0.06 g", "0.16 g", "CO2"},
		{program, "2078277632", "2178277632", "its limit"}, {program, "2078277632", "1078277632", "its limit"},
		{program, "kernels 8", "kernels 0", "no kernel"}, {program, "11 times", "0 times", "refused nothing"},
		{metrics, `"/"} 2.1`, `"/"} 3.1`, "/ has"}, {metrics, `"/job"} 2.147483648e+09`, `"/job"} 0`, "no memory"},
	} {
		lines := strings.Split(strings.Replace(strings.Join(c.lines, "\n"), c.old, c.new, 1), "\n")
		err := Holds(lines)
		if c.finds == "" && err != nil || c.finds != "" && (err == nil || !strings.Contains(err.Error(), c.finds)) {
			t.Errorf("%q for %q: %v", c.new, c.old, err)
		}
	}
}

// TestWalks runs every walk on a machine of its own: namespaces for its files, processes and network, with a few users.
// With UPDATE=1 the documents get what the commands print.
func TestWalks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("walks have several users and need root")
	}
	documents, err := filepath.Glob("../../docs/walks/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("no walks: %v", err)
	}
	for _, path := range documents {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".md"), func(t *testing.T) {
			dir := ""
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "2.0.0") {
				dir = versions(t)
			}
			onMachine(t, "TestOnMachine", "LGPU_WALK="+path, "LGPU_WALK_VERSIONS="+dir)
		})
	}
}

// versions makes lgpu of three versions in folders of these names, and returns where they are. That of 2.0.0 has a state of
// a later kind, which the others do not read.
func versions(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const store = "daemon/store/store.go"
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(root, store))
	later := strings.Replace(string(source), "\nconst Schema = 1\n", "\nconst Schema = 2\n", 1)
	if err != nil || later == string(source) {
		t.Fatalf("%s does not say which schema it writes: %v", store, err)
	}
	overlay := fmt.Sprintf(`{"Replace":{%q:%q}}`, filepath.Join(root, store), filepath.Join(dir, "later.go"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "later.go"), []byte(later), 0o644),
		os.WriteFile(filepath.Join(dir, "overlay.json"), []byte(overlay), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"1.0.0", "1.1.0", "2.0.0"} {
		args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w -X main.buildVersion=" + version,
			"-o", filepath.Join(dir, version, "lgpu")}
		if version == "2.0.0" {
			args = append(args, "-overlay", filepath.Join(dir, "overlay.json"))
		}
		build := exec.Command("go", append(args, "./cmd/lgpu")...)
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("lgpu %s: %v\n%s", version, err, out)
		}
	}
	return dir
}

// onMachine runs a test of this binary on a machine of its own, with other variables in its environment.
func onMachine(t *testing.T, test string, variables ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-test.run=^"+test+"$", "-test.v", "-test.timeout=8m")
	c.Env = append(os.Environ(), variables...)
	runtime.LockOSThread() // the machine ends with the thread that makes it
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if !strings.Contains(string(out), "PASS: "+test) {
		t.Errorf("it did not run:\n%s", out)
	} else {
		t.Logf("%s", out)
	}
}

// TestOnMachine is TestWalks in the namespaces of one walk.
func TestOnMachine(t *testing.T) {
	path := os.Getenv("LGPU_WALK")
	if path == "" {
		t.Skip("it is for TestWalks")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	furnish(t)
	shells, update := map[string]*shell{}, os.Getenv("UPDATE") != ""
	printed := map[int][]string{}
	for _, s := range steps {
		if shells[s.User] == nil {
			shells[s.User] = login(t, s.User)
		}
		begin := time.Now()
		out, status := shells[s.User].run(t, s)
		early := func() bool {
			return s.Until && status != 0 || s.Shown && Looks(s.Command) && !update && (!Like(s.Output, out) || Holds(out) != nil)
		}
		for began := time.Now(); early() && time.Since(began) < time.Minute; out, status = shells[s.User].run(t, s) {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Logf("line %d: %q took %v", s.Line, s.Command, took.Round(time.Second))
		}
		if !s.Shown {
			if status != 0 {
				t.Fatalf("line %d: %q ends with status %d:\n%s", s.Line, s.Command, status, strings.Join(out, "\n"))
			}
			continue
		}
		printed[s.Line] = out
		if err := Holds(out); err != nil {
			t.Errorf("line %d: %q printed\n%s\nof which is wrong: %v", s.Line, s.Command, strings.Join(out, "\n"), err)
		}
		if !Like(s.Output, out) && !update {
			t.Errorf("line %d: %q printed\n%s\nwhere the document has\n%s", s.Line, s.Command, strings.Join(out, "\n"),
				strings.Join(s.Output, "\n"))
		}
	}
	if update && !t.Failed() {
		if err := os.WriteFile(path, []byte(Rewrite(string(text), steps, printed)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// users are those of the machine beside root.
var users = []string{"alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"}

// train stands for the users' program: it takes all memory that it gets, and computes for some seconds.
const train = `#!/bin/sh
yes 1 | head -n "${1:-100000}" | /usr/local/share/tenant /usr/local/share/compute.ptx
`

// serve is another one, which takes so many MiB and computes until it is stopped.
const serve = `#!/bin/sh
yes 1 | /usr/local/share/tenant /usr/local/share/compute.ptx "$1"
`

// furnish makes the machine: users with homes, and lgpu as make install would lay it.
func furnish(t *testing.T) {
	t.Helper()
	must := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("keep mounts to this machine", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must("mount /proc", unix.Mount("proc", "/proc", "proc", 0, ""))
	must("name the machine", unix.Sethostname([]byte("gpu1")))
	must("bring up the loopback device", loopback())
	root, err := filepath.Abs("../..")
	must("find the project", err)
	work := "/tmp/lgpu-walk"
	must("make a place", os.MkdirAll(work, 0o755))
	must("mount a place", unix.Mount("walk", work, "tmpfs", 0, "mode=0755"))
	for _, dir := range []string{"/etc", "/usr/share"} {
		over := filepath.Join(work, "over", dir)
		must("make "+dir, errors.Join(os.MkdirAll(over+"/upper", 0o755), os.MkdirAll(over+"/work", 0o755)))
		must("show "+dir, unix.Mount("over", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+over+"/upper,workdir="+over+"/work"))
	}
	must("lay alerts", os.MkdirAll("/usr/share/lgpu", 0o755))
	copyFile(t, filepath.Join(root, "daemon/metrics/alerts.yaml"), "/usr/share/lgpu/alerts.yaml")
	passwd, group := "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n", "root:x:0:\nnogroup:x:65534:\n"
	for n, u := range users {
		id := 1000 + n
		passwd += fmt.Sprintf("%s:x:%d:%d::/home/%s:/bin/bash\n", u, id, id, u)
		group += fmt.Sprintf("%s:x:%d:\n", u, id)
	}
	group += "lgpu:x:900:\nvision:x:901:carol,dave\n"
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		must("write "+name, os.WriteFile("/etc/"+name, []byte(text), 0o644))
	}
	for _, dir := range []string{"/run", "/home", "/var/lib", "/usr/local", "/tmp"} {
		into := filepath.Join(work, strings.ReplaceAll(dir, "/", "_"))
		mode := os.FileMode(0o755)
		if dir == "/tmp" {
			mode = 0o777 | os.ModeSticky
		}
		must("make "+dir, os.MkdirAll(into, 0o755))
		must("open "+dir, os.Chmod(into, mode))
	}
	must("lay bin", os.MkdirAll(filepath.Join(work, "_usr_local/bin"), 0o755))
	must("lay share", os.MkdirAll(filepath.Join(work, "_usr_local/share"), 0o755))
	for name, from := range map[string]string{
		"bin/lgpu": "bin/lgpu", "share/tenant": "build/demo/tenant", "share/compute.ptx": "sim/kernels/compute.ptx",
	} {
		copyFile(t, filepath.Join(root, from), filepath.Join(work, "_usr_local", name))
	}
	if from := os.Getenv("LGPU_WALK_VERSIONS"); from != "" {
		for version, name := range map[string]string{"1.0.0": "bin", "1.1.0": "share/1.1.0", "2.0.0": "share/2.0.0"} {
			to := filepath.Join(work, "_usr_local", name)
			must("lay "+version, os.MkdirAll(to, 0o755))
			copyFile(t, filepath.Join(from, version, "lgpu"), filepath.Join(to, "lgpu"))
		}
	}
	for name, text := range map[string]string{"train": train, "serve": serve} {
		must("lay "+name, os.WriteFile(filepath.Join(work, "_usr_local/bin", name), []byte(text), 0o755))
	}
	self, err := os.Executable()
	must("find this program", err)
	copyFile(t, self, filepath.Join(work, "_usr_local/share/browse")) // its own folder may be hidden here
	must("lay browse", os.WriteFile(filepath.Join(work, "_usr_local/bin/browse"), []byte(browse("/usr/local/share/browse")), 0o755))
	for n, u := range users {
		home := filepath.Join(work, "_home", u)
		must("make a home", os.MkdirAll(home, 0o755))
		must("give a home", os.Chown(home, 1000+n, 1000+n))
	}
	for _, dir := range []string{"/run", "/home", "/var/lib", "/usr/local", "/tmp"} {
		must("show "+dir, unix.Mount(filepath.Join(work, strings.ReplaceAll(dir, "/", "_")), dir, "", unix.MS_BIND, ""))
	}
}

func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatalf("make build first: %v", err)
	}
}

// shell is where a user types.
type shell struct {
	in  io.Writer
	out *bufio.Scanner
}

// marker ends the output of a command, with its status.
const marker = "\x01walk"

func login(t *testing.T, name string) *shell {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) uint32 {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(n)
	}
	who := &syscall.Credential{Uid: number(u.Uid), Gid: number(u.Gid)}
	for _, g := range groups {
		who.Groups = append(who.Groups, number(g))
	}
	c := exec.Command("bash", "--norc", "--noprofile", "-c", "exec 2>&1 bash --norc --noprofile")
	c.Dir = u.HomeDir
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8", "TERM=xterm-256color",
		"HOME=" + u.HomeDir, "USER=" + name, "LOGNAME=" + name}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s := &shell{in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return s
}

// run types a command and returns what it prints, without empty lines at the end, and its status.
func (s *shell) run(t *testing.T, step Step) ([]string, int) {
	t.Helper()
	if _, err := fmt.Fprintf(s.in, "%s\nprintf '\\n%%s %%d\\n' $'\\x01walk' $?\n", step.Command); err != nil {
		t.Fatalf("line %d: %v", step.Line, err)
	}
	var out []string
	for s.out.Scan() {
		if rest, ends := strings.CutPrefix(s.out.Text(), marker); ends {
			status := 0
			if _, err := fmt.Sscan(rest, &status); err != nil {
				t.Fatalf("line %d: %q: %v", step.Line, rest, err)
			}
			for len(out) > 0 && out[len(out)-1] == "" {
				out = out[:len(out)-1]
			}
			return out, status
		}
		out = append(out, strings.TrimRight(s.out.Text(), " \t"))
	}
	t.Fatalf("line %d: the shell of %s ended: %v", step.Line, step.User, errors.Join(s.out.Err(), io.ErrUnexpectedEOF))
	return nil, 0
}
