package walks

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAway has users run programs while the system's daemon is away.
func TestAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it has several users and needs root")
	}
	onMachine(t, "TestAwayOnMachine", "LGPU_AWAY=1")
}

// alice is a user of the machine.
var alice = &syscall.Credential{Uid: 1000, Gid: 1000}

// typed is a command of a user, nil for root.
func typed(user *syscall.Credential, args ...string) *exec.Cmd {
	c := exec.Command("/usr/local/bin/lgpu", args...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: user, Pdeathsig: unix.SIGKILL}
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"}
	if user != nil {
		c.Env[1] = "HOME=/home/alice"
	}
	return c
}

// TestAwayOnMachine is TestAway on its machine.
func TestAwayOnMachine(t *testing.T) {
	if os.Getenv("LGPU_AWAY") == "" {
		t.Skip("TestAway starts it")
	}
	furnish(t)
	succeeds := func(user *syscall.Credential, args ...string) {
		t.Helper()
		if out, err := typed(user, args...).CombinedOutput(); err != nil {
			t.Fatalf("lgpu %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	refused := func(when, says string, args ...string) {
		t.Helper()
		out, err := typed(alice, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) {
			t.Errorf("%s: lgpu %s: %v: %s", when, strings.Join(args, " "), err, out)
		}
	}
	serve := func() *exec.Cmd {
		t.Helper()
		d := typed(nil, "daemon", "--mount", "off")
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
		succeeds(nil, "daemon", "status", "--wait", "60s")
		return d
	}
	leaves := func(d *exec.Cmd, s syscall.Signal) {
		t.Helper()
		if err := d.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = d.Wait() // it says that it was killed
	}
	private := func() bool {
		_, err := os.Stat("/tmp/lgpu-1000/lgpud.sock")
		return err == nil
	}
	d := serve()
	succeeds(alice, "create", "one")
	leaves(d, unix.SIGKILL)
	refused("after a crash", "the system's daemon, which manages this machine's devices, is away", "run", "--", "true")
	d = serve()
	leaves(d, unix.SIGTERM)
	refused("after systemctl stop", "for daemons of their own users need an administrator's: lgpu daemon stop", "create", "two")
	d = serve()
	if private() {
		t.Error("she has a daemon of her own")
	}

	// One that comes back in time: she waits, and goes on.
	leaves(d, unix.SIGKILL)
	waits := typed(alice, "create", "three")
	var said bytes.Buffer
	waits.Stderr = &said
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	d = serve()
	if err := waits.Wait(); err != nil {
		t.Errorf("who has waited: %v: %s", err, said.String())
	}
	succeeds(alice, "show", "three")

	// With another runtime folder nobody gets round it; and once an administrator has let users go, nobody is kept.
	beside := typed(alice, "create", "beside")
	beside.Env = append(beside.Env, "LGPU_RUNTIME_DIR=/tmp/beside")
	if out, err := beside.CombinedOutput(); err != nil { // it needs no device yet
		t.Errorf("in a folder of her own: %v: %s", err, out)
	}
	for _, running := range []bool{true, false} {
		if !running {
			leaves(d, unix.SIGKILL)
		}
		if out, err := typed(alice, "daemon", "stop").CombinedOutput(); err == nil {
			t.Errorf("a user has let all go: %s", out)
		}
		succeeds(nil, "daemon", "stop")
		if running {
			_ = d.Wait()
		}
		succeeds(alice, "create", "own")
		if !private() {
			t.Error("she has no daemon of her own")
		}
		succeeds(alice, "rm", "own")
		succeeds(alice, "daemon", "stop")
		for began := time.Now(); private() && time.Since(began) < time.Minute; {
			time.Sleep(10 * time.Millisecond)
		}
		if running {
			d = serve()
		}
	}
}
