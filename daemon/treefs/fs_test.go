package treefs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/policy/limits"
)

const (
	spatial  = "195:0"
	temporal = "195:1"
	unnumber = "GPU-00000000-0000-0000-0000-000000000003"
)

// devices are one of each sort: spatial with units left over, temporal, and one without a number.
func devices() []limits.Device {
	return []limits.Device{
		{UUID: "GPU-00000000-0000-0000-0000-000000000001", Number: spatial, Capacity: 16, UnitsPerBit: 8, Remainder: 4, Kind: limits.Spatial, Memory: 16 << 30},
		{UUID: "GPU-00000000-0000-0000-0000-000000000002", Number: temporal, Capacity: 132, UnitsPerBit: 1, Memory: 80 << 30},
		{UUID: unnumber, Capacity: 8, UnitsPerBit: 2, Kind: limits.Spatial},
	}
}

// needFUSE skips a test where nothing can be mounted. Root can, where there is a device.
func needFUSE(t *testing.T) {
	t.Helper()
	if err := usable(); errors.Is(err, fs.ErrNotExist) || err != nil && os.Geteuid() != 0 {
		t.Skipf("nothing can be mounted here: %v", err)
	}
}

// mountHere mounts a tree whose files this process may open. Go's runtime asks of each file that it opens whether it can be
// polled, and does so while it holds a processor, which serving the answer may need. The kernel asks no more once it
// knows.
func mountHere(t *testing.T, dir string, tr *limits.Tree, options Options) *Server {
	t.Helper()
	needFUSE(t)
	server, err := Mount(dir, tr, options)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(filepath.Join(dir, "events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(errors.Join(err, server.Close()))
	}
	defer unix.Close(fd)
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil {
		t.Fatal(errors.Join(err, server.Close()))
	}
	return server
}

// mountTree mounts a tree that has the devices, at dir, until the test ends.
func mountTree(t *testing.T, options Options) (dir string, tr *limits.Tree) {
	t.Helper()
	tr = limits.New(limits.Options{Rights: limits.Rights{Owner: uint32(os.Geteuid())}})
	if err := tr.SetDevices(devices()); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "tree")
	server := mountHere(t, dir, tr, options)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if kind, err := mounted(dir); kind != "" || err != nil {
			t.Errorf("after Close %s is at %s (%v)", kind, dir, err)
		}
	})
	return dir, tr
}

// sh runs a script in dir as a process of its own and returns what it prints; all output of a failed one is in the
// error. The shell goes to dir, not the child before exec: until exec the child holds one of this process's few
// processors, which have to serve dir.
func sh(shell, dir, script string) (string, error) {
	cmd := exec.Command(shell, "-c", `cd "$0" && eval "$1"`, dir, script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, &stderr)
	}
	return stdout.String(), nil
}

// picture reads every file below dir.
func picture(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "procs.kill" { // which only takes
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestShell(t *testing.T) {
	for _, shell := range []string{"dash", "bash"} {
		if _, err := exec.LookPath(shell); err != nil {
			if shell == "dash" {
				shell = "sh"
			} else {
				continue
			}
		}
		t.Run(shell, func(t *testing.T) {
			dir, _ := mountTree(t, Options{})
			for _, c := range []struct{ script, want string }{
				{"cat lgpu", "195:0 max\n195:1 max\n" + unnumber + " max\n"},
				{"cat lgpu.capacity", "195:0 count=16\n195:1 count=132\n" + unnumber + " count=8\n"},
				{"cat lgpu.default", "195:0 count=16 list=0-15\n195:1 count=132\n" + unnumber + " count=8 list=0-7\n"},
				{"head -n1 lgpu.unit", "195:0 unit=compute_unit units_per_lgpu=8 kind=spatial remainder=4\n"},
				{"mkdir team team/alice && ls -d team/alice", "team/alice\n"},
				{"ls team | tr '\\n' ' '", "alice cgroup.path compute.max compute.min compute.stat energy.stat events gang host.max lgpu lgpu.effective lgpu.priority " +
					"lgpu.weight memory.current memory.evicted memory.high memory.max memory.overcommit memory.peak memory.resident memory.suspend procs procs.kill "},
				{"echo '195:0 count=4' > team/lgpu; cat team/lgpu.effective | head -n1", "195:0 count=4 list=0-3\n"},
				{"printf '195:0 list=1-2' > team/alice/lgpu; head -n1 team/alice/lgpu", "195:0 count=2 list=1-2\n"},
				{"echo '195:1 count=33' >> team/lgpu; sed -n 2p team/lgpu.effective", "195:1 count=33\n"},
				{"echo '195:1 count=32' >> team/lgpu; sed -n 2p team/alice/lgpu.effective", "195:1 count=32\n"},
				{"{ echo 195:0 30; echo 195:1 40; } > team/lgpu.weight; head -n2 team/lgpu.weight", "195:0 30\n195:1 40\n"},
				{"printf '195:0 31\\n195:1 41\\n' > team/lgpu.weight; head -n2 team/lgpu.weight", "195:0 31\n195:1 41\n"},
				{"echo 8GiB > team/memory.max; cat team/memory.max", "195:0 8589934592\n195:1 8589934592\n" + unnumber + " 8589934592\n"},
				{"echo " + unnumber + " max > team/memory.max; cat team/memory.max", "195:0 8589934592\n195:1 8589934592\n" + unnumber + " max\n"},
				{"echo 25% > team/compute.max; head -n1 team/compute.max", "195:0 25%\n"},
				{"echo high > team/lgpu.priority; head -n1 team/lgpu.priority", "195:0 high\n"},
				{"echo 4GiB > host.max; cat host.max", "4294967296\n"},
				{"echo job1 > team/gang; cat team/gang; echo > team/gang; cat team/gang", "job1\n"},
				{"echo 0::/user.slice/alice > team/alice/cgroup.path; cat team/alice/cgroup.path", "0::/user.slice/alice\n"},
				{"echo > team/memory.peak; cat events", "populated 0\n"},
				{"cp team/lgpu /tmp/lgpu.$$ && cat /tmp/lgpu.$$ > team/lgpu && cmp team/lgpu /tmp/lgpu.$$; echo $?; rm /tmp/lgpu.$$", "0\n"},
				{"rmdir team/alice team && ls -d */ 2>/dev/null", ""},
				{"stat -c '%a %F %s' . lgpu events", "775 directory 0\n664 regular empty file 0\n444 regular empty file 0\n"},
				{"touch lgpu && : > lgpu && cat lgpu | head -n1", "195:0 max\n"},
			} {
				got, err := sh(shell, dir, c.script)
				if got != c.want || err != nil && c.want != "" {
					t.Fatalf("%s\ngave %q, %v; want %q", c.script, got, err, c.want)
				}
			}
		})
	}
}

// TestErrnos writes what must be refused, by write(2), and looks that every file is as it was.
func TestErrnos(t *testing.T) {
	var log lines
	dir, tr := mountTree(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, path := range []string{"/a", "/a/b", "/a/c", "/used"} {
		if err := tr.Mkdir(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Enter("/used"); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"lgpu": "195:0 list=0-7\n195:1 count=66", "memory.max": "195:0 1GiB", "cgroup.path": "/bound"} {
		if err := tr.Write("/a", file, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Write("/a/c", "lgpu", "195:0 list=6-7 exclusive=1"); err != nil {
		t.Fatal(err)
	}
	before := picture(t, dir)
	for _, c := range []struct {
		file, text string
		want       syscall.Errno
		says       string // in the log
	}{
		{"a/b/lgpu", "195:0 count=9", syscall.ERANGE, "the parent has 8"},
		{"a/b/lgpu", "195:0 list=8", syscall.EINVAL, "are not the parent's"},
		{"a/b/lgpu", "195:0 list=16", syscall.ERANGE, "there are 16 bits"},
		{"a/b/lgpu", "195:0 list=4294967296", syscall.EOVERFLOW, "4294967295"},
		{"a/b/lgpu", "195:0 list=0-", syscall.EINVAL, "number"},
		{"a/b/lgpu", "195:0 count=3 list=0-1", syscall.EINVAL, "count says 3"},
		{"a/b/lgpu", "195:0 list=5-6", syscall.EBUSY, "/a/c has, exclusively, 6"},
		{"a/b/lgpu", "195:0 count=7", syscall.EBUSY, "siblings leave 6"},
		{"a/b/lgpu", "195:1 list=0-3", syscall.EOPNOTSUPP, "no names"},
		{"a/b/lgpu", "195:1 count=1 exclusive=1", syscall.EOPNOTSUPP, "shared by time"},
		{"a/b/lgpu", "195:7 count=1", syscall.ENODEV, "no such device"},
		{"a/b/lgpu", "195:0 colour=1", syscall.EINVAL, "keys are"},
		{"a/b/lgpu", "195:0", syscall.EINVAL, "behind the device"},
		{"a/b/lgpu", "195:0 count=1\n195:1 count=2\n195:7 count=1\n", syscall.ENODEV, "line 3"},
		{"a/b/lgpu", "195:0 count=1\n195:0 count=2\n", syscall.EINVAL, "line 2"},
		{"a/b/lgpu", "\n", syscall.EINVAL, "nothing was written"},
		{"a/b/lgpu", "max\x00", syscall.EINVAL, "NUL"},
		{"a/b/memory.max", "two potatoes", syscall.EINVAL, "potatoes"},
		{"a/b/memory.max", "16777216T", syscall.ERANGE, "16777216T"},
		{"a/b/compute.max", "101%", syscall.ERANGE, "101%"},
		{"a/b/compute.max", "-1", syscall.EINVAL, "-1"},
		{"a/b/compute.min", "195:1 51%", syscall.ERANGE, "reserves 51%"},
		{"a/b/lgpu.weight", "0", syscall.ERANGE, "1 to 10000"},
		{"a/b/lgpu.weight", "heavy", syscall.EINVAL, "whole number"},
		{"a/b/lgpu.priority", "urgent", syscall.EINVAL, "priorities are"},
		{"a/b/gang", "../x", syscall.EINVAL, "name"},
		{"a/b/host.max", "1\n2", syscall.EINVAL, "one line"},
		{"a/b/cgroup.path", "relative", syscall.EINVAL, "begins with /"},
		{"a/b/cgroup.path", "/bound", syscall.EBUSY, "bound to /a"},
		{"a/b/memory.peak", "5", syscall.EINVAL, "reset"},
		{"a/b/lgpu", strings.Repeat("#", limits.MaxText+1), syscall.E2BIG, "65536"},
		{"a/b/lgpu", strings.Repeat("#", 1<<20), syscall.E2BIG, "65536"},
	} {
		log.clear()
		n, err := writeFile(filepath.Join(dir, c.file), c.text)
		if !errors.Is(err, c.want) || n > 0 {
			t.Errorf("%.40q > %s: wrote %d, %v; want %v", c.text, c.file, n, err, c.want)
		}
		if !strings.Contains(log.String(), c.says) {
			t.Errorf("%.40q > %s: the log says %s, not %q", c.text, c.file, log.String(), c.says)
		}
		if after := picture(t, dir); !maps.Equal(before, after) {
			t.Fatalf("%.40q > %s changed something", c.text, c.file)
		}
	}
	for name, got := range map[string]struct{ err, want error }{
		"mkdir twice":          {os.Mkdir(filepath.Join(dir, "a"), 0o755), syscall.EEXIST},
		"mkdir a file":         {os.Mkdir(filepath.Join(dir, "a", "lgpu"), 0o755), syscall.EEXIST},
		"mkdir a root's file":  {os.Mkdir(filepath.Join(dir, "a", "lgpu.unit"), 0o755), syscall.EEXIST},
		"mkdir a bad name":     {os.Mkdir(filepath.Join(dir, "a", "-x"), 0o755), syscall.EINVAL},
		"mkdir below an lgpu":  {os.Mkdir(filepath.Join(dir, "used", "x"), 0o755), syscall.EBUSY},
		"rmdir of a parent":    {syscall.Rmdir(filepath.Join(dir, "a")), syscall.ENOTEMPTY},
		"rmdir of a used one":  {syscall.Rmdir(filepath.Join(dir, "used")), syscall.EBUSY},
		"rmdir of none":        {syscall.Rmdir(filepath.Join(dir, "none")), syscall.ENOENT},
		"unlink":               {syscall.Unlink(filepath.Join(dir, "a", "lgpu")), syscall.EPERM},
		"create":               {os.WriteFile(filepath.Join(dir, "a", "new"), nil, 0o644), syscall.EACCES},
		"rename":               {os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "z")), syscall.ENOTSUP},
		"chmod":                {os.Chmod(filepath.Join(dir, "a"), 0o777), syscall.EPERM},
		"write read-only":      {os.WriteFile(filepath.Join(dir, "a", "lgpu.effective"), []byte("x"), 0), syscall.EACCES},
		"truncate to a length": {os.Truncate(filepath.Join(dir, "a", "lgpu"), 5), syscall.EINVAL},
	} {
		if !errors.Is(got.err, got.want) {
			t.Errorf("%s: %v; want %v", name, got.err, got.want)
		}
	}
	if after := picture(t, dir); !maps.Equal(before, after) {
		t.Error("a refused operation changed something")
	}
}

// writeFile writes text by one write(2).
func writeFile(path, text string) (int, error) {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_TRUNC, 0)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(fd)
	n, err := syscall.Write(fd, []byte(text))
	return max(n, 0), err
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// TestCutWrites: what was cut in the middle of a line is not taken for two writes.
func TestCutWrites(t *testing.T) {
	dir, tr := mountTree(t, Options{})
	f, err := os.OpenFile(filepath.Join(dir, "lgpu.weight"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("195:0 5\n195:1 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("6\n"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the rest of a line: %v", err)
	}
	if _, err := f.WriteAt([]byte("7"), 100); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a write somewhere: %v", err)
	}
	if _, err := f.WriteAt([]byte("195:0 8\n"), 0); err != nil {
		t.Errorf("a new write from the beginning: %v", err)
	}
	if text, _ := tr.Read("/", "lgpu.weight"); !strings.HasPrefix(text, "195:0 8\n195:1 1\n") {
		t.Errorf("%q", text)
	}
}

// TestWholeReads: a file that is read in pieces, while it changes, is one state.
func TestWholeReads(t *testing.T) {
	dir, tr := mountTree(t, Options{})
	f, err := os.Open(filepath.Join(dir, "lgpu.weight"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []byte
	piece := make([]byte, 7)
	for weight := 1; ; weight++ {
		n, err := f.Read(piece)
		got = append(got, piece[:n]...)
		if err != nil {
			break
		}
		if err := tr.Write("/", "lgpu.weight", fmt.Sprint(200+weight)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "195:0 100\n195:1 100\n" + unnumber + " 100\n"; string(got) != want {
		t.Errorf("read %q, want %q", got, want)
	}
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if n, _ := f.Read(piece); string(piece[:n]) == "195:0 1" {
		t.Errorf("after seeking to the beginning the old picture is read: %q", piece[:n])
	}
}

// TestConcurrent has processes write while others read: no reader sees a state that nobody wrote, no write is lost.
func TestConcurrent(t *testing.T) {
	dir, tr := mountTree(t, Options{})
	if err := tr.Mkdir("/g", 0, 0); err != nil {
		t.Fatal(err)
	}
	const writers, rounds = 4, 40
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			// Each state has the same number on both devices, written by one write(2).
			script := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do n=$((1 + (i + %d) %% 16))
				printf '195:0 count=%%d\n195:1 count=%%d\n' $n $n > g/lgpu || exit 1
				mkdir g/w%d && rmdir g/w%d || exit 1; i=$((i+1)); done`, rounds, w, w, w)
			if out, err := sh("dash", dir, script); err != nil {
				t.Errorf("writer %d: %v %s", w, err, out)
			}
		})
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for reads := 0; ; reads++ {
			select {
			case <-done:
				if reads == 0 {
					t.Error("nothing was read meanwhile")
				}
				return
			default:
			}
			text, err := os.ReadFile(filepath.Join(dir, "g", "lgpu"))
			var a, b int
			if err != nil {
				t.Error(err)
				return
			}
			if n, _ := fmt.Sscanf(string(text), "195:0 count=%d\n195:1 count=%d\n", &a, &b); n != 0 && a != b {
				t.Errorf("a mixed state was read: %q", text)
				return
			}
		}
	})
	wg.Wait()
	close(done)
	readers.Wait()
}

// TestPermissions has another user try.
func TestPermissions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be several users")
	}
	dir, tr := mountTree(t, Options{AllowOther: true})
	for parent := dir; parent != "/"; parent = filepath.Dir(parent) {
		if parent != dir && strings.HasPrefix(parent, os.TempDir()+"/") {
			if err := os.Chmod(parent, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	const alice, staff = 4711, 4712
	if err := tr.Mkdir("/team", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "team"), alice, staff); err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, groups []uint32, script string) error {
		cmd := exec.Command("dash", "-c", `cd "$0" && eval "$1"`, dir, script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	for _, c := range []struct {
		uid    uint32
		groups []uint32
		script string
		ok     bool
	}{
		{alice, nil, "cat lgpu team/lgpu > /dev/null", true},
		{alice, nil, "mkdir team/x && echo 50% > team/x/compute.max && mkdir team/x/y && rmdir team/x/y", true},
		{alice, nil, "echo 50% > team/compute.max", false}, // what she gets is not hers to say
		{alice, nil, "echo 50% > compute.max", false},
		{alice, nil, "mkdir other", false},
		{alice, nil, "rmdir team", false},
		{alice, nil, "echo 1 > team/procs.kill", true},
		{alice, nil, "cat team/procs.kill", false},
		{alice, nil, "echo /user.slice > team/x/cgroup.path", false},
		{4714, nil, "echo 1 > team/procs.kill", false},
		{alice, nil, "chown 4713 team/x", false},
		{alice, nil, "chown 4711 team/x", true}, // it is hers
		{alice, nil, "test -w team/x/compute.max && test -w team && ! test -w team/compute.max && ! test -w .", true},
		{4713, []uint32{staff}, "mkdir team/z && echo 3 > team/z/lgpu.weight && rmdir team/z", true},
		{4714, nil, "cat team/x/compute.max", true},
		{4714, nil, "echo 10% > team/x/compute.max", false},
		{4714, nil, "mkdir team/z", false},
		{4714, nil, "rmdir team/x", false},
	} {
		before := picture(t, dir)
		if err := as(c.uid, c.groups, c.script); (err == nil) != c.ok {
			t.Errorf("user %d: %s: %v; want ok %v", c.uid, c.script, err, c.ok)
		}
		if after := picture(t, dir); !c.ok && !maps.Equal(before, after) {
			t.Errorf("user %d: %s changed something", c.uid, c.script)
		}
	}
	if n, err := tr.Directory("/team/x"); err != nil || n.UID != alice {
		t.Errorf("%+v, %v: what a user makes is hers", n, err)
	}
}

// TestOpenAtClose: files and folders that are open do not keep the tree mounted, and nothing waits for ever.
func TestOpenAtClose(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root an open file keeps the connection")
	}
	tr := limits.New(limits.Options{Rights: limits.Rights{Owner: uint32(os.Geteuid())}})
	if err := tr.SetDevices(devices()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tree")
	server := mountHere(t, dir, tr, Options{})
	f, err := os.OpenFile(filepath.Join(dir, "lgpu"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("max\n"); err == nil {
		t.Error("a write to a closed tree went well")
	}
	if err := server.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// TestDeadDaemon kills a process that serves a tree and mounts again where it was.
func TestDeadDaemon(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if os.Getenv("LGPU_TREE_TEST_DIR") != "" {
		serveForTest(os.Getenv("LGPU_TREE_TEST_DIR"))
	}
	needFUSE(t)
	for range 2 { // two daemons die, one after the other
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeadDaemon$")
		cmd.Env = append(os.Environ(), "LGPU_TREE_TEST_DIR="+dir)
		ready, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close() // the daemon's child ends then
		cmd.Stdin = theirs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		line := make([]byte, 6)
		if _, err := ready.Read(line); err != nil || string(line) != "ready\n" {
			t.Fatalf("the daemon says %q, %v", line, err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "lgpu")); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if err := statWithin(dir, patience); !errors.Is(err, syscall.ENOTCONN) {
			_ = detach(dir) // who looks at it goes on then
			t.Fatalf("a mount without daemon says %v", err)
		}
	}
	server := mountHere(t, dir, limits.New(limits.Options{Rights: limits.Rights{Owner: uint32(os.Geteuid())}}), Options{})
	if _, err := os.ReadFile(filepath.Join(dir, "lgpu")); err != nil {
		t.Error(err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if kind, _ := mounted(dir); kind != "" {
		t.Errorf("%s is still mounted", kind)
	}
}

// TestKilledAtMount kills processes as soon as their mount is there.
func TestKilledAtMount(t *testing.T) {
	if dir := os.Getenv("LGPU_TREE_TEST_DIR"); dir != "" {
		serveForTest(dir)
	}
	needFUSE(t)
	table, err := os.Open("/proc/self/mountinfo") // it can be polled: a change of the mounts is an exception
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for range 30 {
		dir := filepath.Join(t.TempDir(), "tree")
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtMount$")
		cmd.Env = append(os.Environ(), "LGPU_TREE_TEST_DIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			if kind, err := mounted(dir); err != nil || kind != "" {
				break
			}
			if time.Now().After(deadline) {
				t.Error("nothing is mounted")
				break
			}
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}}, 100)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		stuck := time.AfterFunc(patience, func() {
			t.Error("killed, it waits for its own answer")
			_ = detach(dir)
		})
		_ = cmd.Wait()
		stuck.Stop()
		if err := detach(dir); err != nil {
			t.Error(err)
		}
	}
}

// patience ends what hangs.
const patience = 20 * time.Second

// statWithin is stat(2)'s error, or that it has not returned in time.
func statWithin(path string, wait time.Duration) error {
	answer := make(chan error, 1)
	go func() {
		_, err := os.Stat(path)
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(wait):
		return os.ErrDeadlineExceeded
	}
}

// serveForTest is the daemon that tests kill. It leaves a child behind, which lives until its input ends.
func serveForTest(dir string) {
	_, err := Mount(dir, limits.New(limits.Options{Rights: limits.Rights{Owner: uint32(os.Geteuid())}}), Options{})
	if err == nil {
		child := exec.Command("cat")
		child.Stdin = os.Stdin
		err = child.Start()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func TestForeignMount(t *testing.T) {
	if _, err := Mount("/proc", limits.New(limits.Options{Rights: limits.Rights{Owner: uint32(os.Geteuid())}}), Options{}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("mounted over /proc: %v", err)
	}
}

func TestMountType(t *testing.T) {
	const table = `22 27 0:20 / /sys rw shared:7 - sysfs sysfs rw
23 27 0:21 / /run/lgpu/tree rw,nosuid shared:7 master:1 - fuse.lgpu lgpu rw,user_id=0
24 27 0:22 / /tmp/a\040b rw - fuse.lgpu lgpu rw
25 23 0:23 / /run/lgpu/tree rw - tmpfs - rw
garbage - x
`
	for dir, want := range map[string]string{"/sys": "sysfs", "/run/lgpu/tree": "tmpfs", "/tmp/a b": Type, "/run/lgpu": "", "": ""} {
		if got := mountType(table, dir); got != want {
			t.Errorf("mountType(%q) = %q, want %q", dir, got, want)
		}
	}
}

func TestGroups(t *testing.T) {
	if got := groups([]byte("Name:\tx\nGroups:\t4 24 x 4294967296 27 \nNStgid:\t1\n")); !slices.Equal(got, []uint32{4, 24, 27}) {
		t.Errorf("groups: %v", got)
	}
	if got := groups([]byte("Name:\tGroups: 4\n")); got != nil {
		t.Errorf("groups of a name: %v", got)
	}
}
