package attack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

const (
	shape = "--sim=1x16GiB,sms=2"
	// patience bounds every wait; nothing here takes a tenth of it on an idle machine.
	patience = 60 * time.Second
	// calm is how long the daemon has to give free what an attack took.
	calm = 20 * time.Second
	// nobody is the attackers' user.
	nobody = 65534
	// attackerCap is what an attacker's lgpu asks for, in percent.
	attackerCap = 10
)

// siege is a daemon, its honest tenants, and their attackers.
type siege struct {
	t       *testing.T
	dir     string // runtime folder
	log     string // what the daemon says
	metrics string // host:port
	page    string
	tree    string // where it is mounted, or empty
	hang    string // a file whose close never ends, or empty
	env     []string
	daemon  *exec.Cmd
	before  cost // of the daemon before the first attack
	spoilt  bool // a phase has failed since the daemon was started

	// reference is a daemon that is not attacked, whose answers show what the host does.
	reference *siege
	// Calls of lgpu ps that were judged, and that were left out.
	judged, late int
	calls        []time.Duration // of short phases
	logged       int64           // of all phases, bytes of log
	long         time.Duration   // of all phases

	neighbours []*neighbour
	whole      map[string]spell // what each neighbour got over all phases, by its name
}

// spell is for how long a tenant was on a device in a time, and how much device time its work took.
type spell struct{ busy, worked, long time.Duration }

// newSiege makes the place of a siege, in which nothing runs yet.
func newSiege(t *testing.T) *siege {
	dir, err := os.MkdirTemp("", "lgpu-") // not t.TempDir: the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &siege{t: t, dir: filepath.Join(dir, "r"), log: filepath.Join(dir, "log"), metrics: freePort(t), page: freePort(t),
		whole: map[string]spell{}}
	if os.Getuid() != 0 {
		t.Log("not root: the attackers are the daemon's own user")
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, s.dir: 0o711} {
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	s.env = []string{
		"LGPU_RUNTIME_DIR=" + s.dir, "LGPU_LIBDIR=" + filepath.Join(bin, "lib"), "LGPU_REAL_LIBNVML=/nonexistent/libnvidia-ml.so.1",
		"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		// A contained program keeps what was mounted when it started, where / is no shared mount: also files that hang.
		"LGPU_CONTAIN=off",
	}
	t.Cleanup(func() { s.end(dir) })
	return s
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// command is a program in a process group of its own, with all its children.
func (s *siege) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(bin, name), args...)
	c.Env = s.env
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// launch starts the daemon as a service.
func (s *siege) launch(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	mount := "auto"
	if _, err := os.Stat("/dev/fuse"); err == nil && os.Getuid() == 0 {
		mount = "on"
	}
	s.daemon = s.command("lgpu", "daemon", "--dir", s.dir, "--metrics", s.metrics, "--page", s.page, "--mount", mount)
	s.daemon.Stderr = log
	if err := s.daemon.Start(); err != nil {
		t.Fatal(err)
	}
}

// start starts the daemon and waits until it serves and its tree is mounted, where that can be.
func (s *siege) start(t *testing.T) {
	t.Helper()
	s.launch(t)
	must := slices.Contains(s.daemon.Args, "on")
	s.wait(t, "the daemon", func() error {
		conn, err := api.Dial(t.Context(), api.Options{Dir: s.dir})
		if err != nil {
			return err
		}
		defer conn.Close()
		if s.tree = conn.Daemon.GetTree(); s.tree == "" && must {
			return errors.New("the tree is not mounted")
		}
		return nil
	})
	s.spoilt = false
	if s.tree == "" {
		t.Log("the tree is not mounted here: nobody attacks its files")
		return
	}
	mine := filepath.Join(s.tree, "mine")
	if err := os.Mkdir(mine, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(mine, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
}

// wait polls until there is no error; there is no event for what other processes do.
func (s *siege) wait(t *testing.T, what string, done func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			_ = s.daemon.Process.Signal(unix.SIGQUIT) // its log tells then what it was about
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// alive says that the daemon is the process that it was.
func (s *siege) alive() bool {
	return s.daemon.ProcessState == nil && !ended(s.daemon.Process.Pid)
}

// refer starts the reference.
func (s *siege) refer(t *testing.T) {
	t.Helper()
	s.reference = newSiege(t)
	s.reference.start(t)
}

// begin makes sure that there is a daemon to attack, and a fresh one where the attack before has spoilt it: what one
// attack has done is not held against the next.
func (s *siege) begin(t *testing.T) {
	t.Helper()
	hangs.hang(true)
	if !s.spoilt && s.alive() {
		return
	}
	t.Log("the phase before has spoilt the daemon; this one has another")
	s.kill()
	s.start(t)
	s.wait(t, "the neighbours' return", func() error {
		m, err := s.meter()
		for _, n := range s.neighbours {
			if m.busy["/"+n.name] == 0 {
				err = errors.Join(err, fmt.Errorf("%s is not back", n.name))
			}
		}
		return err
	})
	s.before = costOf(s.daemon.Process.Pid)
}

// kill ends the daemon as a crash would.
func (s *siege) kill() {
	_ = s.daemon.Process.Kill()
	_ = s.daemon.Wait()
}

// clients returns how many processes of neighbours are connected.
func (s *siege) clients() (count int, err error) {
	snapshot, err := s.snapshot(callTime)
	for _, node := range snapshot.GetDirectories() {
		if strings.HasPrefix(node.GetPath(), "/honest") {
			count += len(node.GetClients())
		}
	}
	return count, err
}

// snapshot asks the daemon what lgpu ps does.
func (s *siege) snapshot(within time.Duration) (*api.Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := api.Dial(ctx, api.Options{Dir: s.dir})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Snapshot(ctx, &api.SnapshotRequest{})
}

func (s *siege) unmount() {
	// Nothing may be mounted.
	_ = unix.Unmount(filepath.Join(s.dir, "tree"), unix.MNT_DETACH)
}

// end ends everything and fails if a process remains.
func (s *siege) end(dir string) {
	for _, n := range s.neighbours {
		n.stop()
	}
	if s.t.Failed() {
		if log, err := os.ReadFile(s.log); err == nil {
			s.t.Logf("the end of the daemon's log:\n%s", log[max(0, len(log)-2500):])
		}
	}
	if s.daemon != nil {
		if out, err := s.command("lgpu", "daemon", "stop").CombinedOutput(); err != nil {
			s.t.Errorf("lgpu daemon stop: %v: %s", err, out)
			_ = s.daemon.Process.Kill()
		}
		_ = s.daemon.Wait()
	}
	var left []string
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if left = s.processes(); len(left) == 0 || time.Since(began) > calm {
			break
		}
	}
	if len(left) > 0 {
		s.t.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	s.unmount()
	if err := os.RemoveAll(dir); err != nil {
		s.t.Error(err)
	}
}

// processes returns the processes that have the siege's runtime folder.
func (s *siege) processes() []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte("LGPU_RUNTIME_DIR="+s.dir+"\x00")) {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found = append(found, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return found
}

// attacker is an attack that is being made.
type attacker struct {
	cmd   *exec.Cmd
	name  string
	out   bytes.Buffer
	ended chan error
}

// strike begins an attack, as a tenant of an lgpu of its own.
func (s *siege) strike(t *testing.T, a attack, n int, seed uint64, long time.Duration) *attacker {
	t.Helper()
	name := fmt.Sprintf("evil%d", n)
	c := s.command("lgpu", "run", shape, "--name", name, "--memory", "1GiB", "--compute", strconv.Itoa(attackerCap), "--",
		filepath.Join(bin, "hostile"), a.name, strconv.FormatFloat(long.Seconds(), 'f', 3, 64), strconv.FormatUint(seed, 10))
	c.Env = append(c.Env, "HOSTILE_DIR="+s.dir, "HOSTILE_METRICS="+s.metrics, "HOSTILE_PAGE="+s.page,
		"HOSTILE_PROGRAM="+filepath.Join(bin, "hold"), "HOSTILE_HANG="+s.hang)
	if s.tree != "" {
		c.Env = append(c.Env, "HOSTILE_MINE="+filepath.Join(s.tree, "mine"))
	}
	e := &attacker{cmd: c, name: a.name, ended: make(chan error, 1)}
	c.Stdout, c.Stderr = &e.out, &e.out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	timer := time.AfterFunc(long+calm, func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	go func() {
		err := c.Wait()
		timer.Stop()
		e.ended <- err
	}()
	return e
}

// await waits for the end of an attack, which must have struck.
func (e *attacker) await(t *testing.T) {
	t.Helper()
	err := <-e.ended
	struck := false
	for lines := bufio.NewScanner(&e.out); lines.Scan(); {
		t.Logf("%s: %s", e.name, lines.Text())
		struck = struck || strings.HasPrefix(lines.Text(), "acts ") && lines.Text() != "acts 0"
	}
	if err != nil {
		t.Errorf("lgpu run of the attack %q: %v", e.name, err)
	}
	if !struck {
		t.Errorf("the attack %q did nothing", e.name)
	}
}

// recovered waits until what the attack took is free again, and fails if that does not happen or the daemon is another.
func (s *siege) recovered(t *testing.T) {
	t.Helper()
	if !s.alive() {
		t.Error("the daemon has ended")
		return
	}
	hangs.hang(false)
	var now cost
	var err error
	began := time.Now()
	for ; time.Since(began) < calm; time.Sleep(50 * time.Millisecond) {
		now = costOf(s.daemon.Process.Pid)
		if _, err = s.snapshot(callTime); err == nil && now.files <= s.before.files+20 {
			if _, err = scrape(s.metrics); err == nil {
				break
			}
		}
	}
	switch {
	case err != nil:
		t.Errorf("%v after the attack: %v", calm, err)
	case now.files > s.before.files+20:
		t.Errorf("%v after the attack %d descriptors are open, %d before all attacks", calm, now.files, s.before.files)
	}
	if took := time.Since(began); took > time.Second {
		t.Logf("recovered after %v", took)
	}
	if s.tree != "" {
		if err := clean(filepath.Join(s.tree, "mine")); err != nil {
			t.Errorf("what the attackers have made cannot be removed: %v", err)
		}
	}
}

// afterwards looks at what the attackers have left.
func (s *siege) afterwards(t *testing.T) {
	s.begin(t)
	for _, args := range [][]string{
		{"ps"}, {"ps", "--tree"}, {"ps", "--json"}, {"top", "--once"}, {"top", "--once", "--json"}, {"events"}, {"events", "--json"},
	} {
		c := s.command("lgpu", args...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Errorf("lgpu %s: %v: %s", strings.Join(args, " "), err, stderr.String())
		}
		if at := unprintable(string(out)); at >= 0 && args[0] != "top" {
			t.Errorf("lgpu %s prints %q", strings.Join(args, " "), out[max(0, at-40):min(len(out), at+40)])
		}
		if strings.Contains(string(out), "evil") && args[0] != "events" {
			t.Errorf("lgpu %s shows an lgpu of the attackers, who are gone", strings.Join(args, " "))
		}
	}
	slices.Sort(s.calls)
	short := seen{calls: s.calls}
	t.Logf("%d calls in short phases: p50 %v, p99 %v, max %v", len(s.calls), short.quantile(0.5), short.quantile(0.99), short.quantile(1))
	if slow := short.quantile(0.99); slow > psTime {
		t.Errorf("one of a hundred calls of lgpu ps in short phases took %v or more, which is above %v", slow, psTime)
	}
	rate := float64(s.logged) / s.long.Seconds()
	t.Logf("%.1f KiB of log a second in all phases", rate/1024)
	if rate > maxLog {
		t.Errorf("the daemon wrote %.1f KiB of log a second, more than %d", rate/1024, maxLog>>10)
	}
	t.Logf("%d calls of lgpu ps were judged, %d left out", s.judged, s.late)
	if s.late > s.judged {
		t.Error("the host is too busy: an idle daemon does not answer in time either")
	}
	for _, n := range s.neighbours {
		text, err := n.judge(s.whole[n.name])
		t.Log("altogether ", text)
		if err != nil {
			t.Error("altogether ", err)
		}
	}
	for _, address := range []string{s.metrics, s.page} {
		if _, err := scrape(address); err != nil {
			t.Error(err)
		}
	}
	for _, left := range s.processes() {
		if strings.Contains(left, "hostile") {
			t.Errorf("left behind: %s", left)
		}
	}
}

// clean removes the nodes below one, which is what is left of an attack for good.
func clean(node string) error {
	entries, err := os.ReadDir(node)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if below := filepath.Join(node, e.Name()); e.IsDir() {
			if err := errors.Join(clean(below), os.Remove(below)); err != nil {
				return err
			}
		}
	}
	return nil
}

// unprintable returns where a text has something that a terminal might obey, or -1.
func unprintable(text string) int {
	if !utf8.ValidString(text) {
		return 0
	}
	return strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
}

// ended reports whether a process has ended, even if its exit status has not been read yet.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}
