package test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/users"
)

// Users of the tests, who need not be known to the machine.
const (
	one        = 65534
	another    = 65533
	adminGroup = 54321
)

// governed is a daemon of root with a configuration, which other users can reach.
func governed(t *testing.T, lines ...string) (*place, *tenant) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	p := newPlace(t)
	for _, dir := range []string{p.dir, bin} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(p.dir, "lgpud.conf")
	text := strings.Join(append(lines, "place = /users/{uid}", "admins = "+strconv.Itoa(adminGroup)), "\n")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := p.serve("--config", file, "--mount", "off")
	p.must("create", shape, "/keep")   // the software GPU, which users do not start
	p.must("run", shape, "--", "true") // installs the libraries, whose folder is root's here
	return p, d
}

// as is lgpu, run by a user of a group.
func (p *place) as(uid, gid int, args ...string) []string {
	return append([]string{"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups", "env",
		"LGPU_SOCKET_API=" + filepath.Join(p.dir, api.Socket), filepath.Join(bin, "lgpu")}, args...)
}

// by runs lgpu as a user of a group, and returns its output and status.
func (p *place) by(uid, gid int, args ...string) (string, int) {
	p.t.Helper()
	line := p.as(uid, gid, args...)
	c := p.command(line[0], line[1:]...)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		p.t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// A user runs more programs at once than may connect without a launcher, starts them all together, and can still look and
// end them.
func TestUserRunsMany(t *testing.T) {
	const programs = 40
	p, _ := governed(t)
	line := p.as(one, one, "run", shape, "--memory", "16MiB", "--", "cat")
	for range programs {
		p.start(line[0], line[1:]...)
	}
	p.wait("all of her programs", func() bool {
		out, status := p.by(one, one, "ps")
		if status != 0 {
			t.Fatalf("lgpu ps: status %d: %s", status, out)
		}
		return strings.Count(out, "users/65534/cat-") == programs
	})
	if out, status := p.by(one, one, "stop", "."); status != 0 {
		t.Errorf("lgpu stop: status %d: %s", status, out)
	}
	p.wait("the end of her programs", func() bool { return !strings.Contains(p.must("ps"), "cat-") })
}

// Two users run programs by one daemon: each in a place of her own, within the administrator's limits, and neither can
// touch what is the other's.
func TestUsersHavePlaces(t *testing.T) {
	p, _ := governed(t, "place.memory.max = 2GiB", "quota.depth = 1")
	line := p.as(one, one, "run", shape, "--name", "job", "--", filepath.Join(bin, "obey"), control)
	c := p.start(line[0], line[1:]...)
	c.until("ready")
	if got := c.says("allocate 3000000000"); got != "allocate 3000000000 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("more than the place has: %s", got)
	}
	if got := c.says("allocate 1500000000"); got != "allocate 1500000000 CUDA_SUCCESS" {
		t.Error(got)
	}
	if out := p.must("ps"); !strings.Contains(out, "users/65534/job ") {
		t.Errorf("ps: %s", out)
	}
	for _, c := range []struct {
		uid, gid int
		status   int
		says     string
		args     []string
	}{
		{one, one, 0, "", []string{"set", "job", "compute.max=50%"}},
		{one, one, 0, "50%", []string{"show", "users/65534/job", "compute.max"}},
		{one, one, 1, "user " + users.Name(one) + " may not", []string{"set", "/users/65534", "memory.max=max"}},
		{one, one, 1, "user " + users.Name(one) + " may not", []string{"create", "/mine"}},
		{one, one, 1, "/users: user " + users.Name(one) + " may not", []string{"rm", ".."}},
		{one, one, 2, "root cannot be removed", []string{"rm", "../.."}},
		{one, one, 1, "for administrators", []string{"daemon", "stop"}},
		{one, one, 1, "quota.depth", []string{"create", "-p", "a/b"}},
		{another, another, 1, "user " + users.Name(another) + " may not", []string{"set", "/users/65534/job", "compute.max=1%"}},
		{another, another, 1, "user " + users.Name(another) + " may not", []string{"stop", "/users/65534/job"}},
		{another, another, 1, "user " + users.Name(another) + " may not", []string{"rm", "/users/65534/job"}},
		{another, another, 1, "user " + users.Name(another) + " may not", []string{"run", shape, "--group", "/users/65534", "--", "true"}},
		{another, another, 0, "", []string{"run", shape, "--", "true"}},
		{another, another, 1, "no administrator has made this software GPU", []string{"run", "--sim=8x64GiB", "--", "true"}},
		{another, another, 1, "no administrator has made this software GPU", []string{"create", "--sim=8x64GiB", "x"}},
		{another, adminGroup, 0, "", []string{"chown", "65533", "/users/65534/a"}},
		{another, another, 0, "", []string{"create", "/users/65534/a/of-another"}},
		{one, one, 0, "", []string{"chown", "65534", "a"}},
		{another, another, 1, "user " + users.Name(another) + " may not", []string{"chown", "65533", "/users/65534/a"}},
	} {
		if out, status := p.by(c.uid, c.gid, c.args...); status != c.status || !strings.Contains(out, c.says) {
			t.Errorf("%q by %d: status %d, %s", c.args, c.uid, status, out)
		}
	}
	if out, s := p.by(one, one, "stop", "/users/65534"); s != 0 {
		t.Errorf("stop: status %d, %s", s, out)
	}
	if s := c.status(); s != 128+int(unix.SIGTERM) {
		t.Errorf("what was stopped ended with %d, %s", s, c.stderr.String())
	}
	if says := "by the limit of /users/65534, 2 GiB, which an administrator can raise"; !strings.Contains(c.stderr.String(), says) {
		t.Errorf("at its end: %s", c.stderr.String())
	}
}

// Where the administrator lets nobody in by himself, a user hears why and whom to ask.
func TestUsersAreRefused(t *testing.T) {
	p, _ := governed(t, "users = refuse")
	if out, s := p.by(one, one, "run", shape, "--", "true"); s != 1 || !strings.Contains(out, "has no directory there") ||
		!strings.Contains(out, "hint: ask for a directory") {
		t.Errorf("status %d, %s", s, out)
	}
	if out, s := p.by(one, one, "ps"); s != 0 {
		t.Errorf("ps: status %d, %s", s, out)
	}
	p.must("create", "/given", "compute.max=50%")
	p.must("chown", "65534", "/given")
	if out, s := p.by(one, one, "run", shape, "--group", "/given", "--", "true"); s != 0 {
		t.Errorf("where she was given something: status %d, %s", s, out)
	}
}

// A configuration with a slip in it starts nothing.
func TestBrokenConfiguration(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.dir, "lgpud.conf")
	if err := os.WriteFile(file, []byte("\nother = none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + "-missing"} {
		out, err := p.command("lgpu", "daemon", "--config", name).CombinedOutput()
		if err == nil || !strings.Contains(string(out), name) {
			t.Errorf("%v, %s", err, out)
		}
		if name == file && (!strings.Contains(string(out), "line 2") || !strings.Contains(string(out), "hint: did you mean others?")) {
			t.Errorf("%s", out)
		}
	}
}
