package claim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/rundir"
)

func TestClaims(t *testing.T) {
	device := fmt.Sprintf("GPU-test-%d", os.Getpid())
	none := filepath.Join(t.TempDir(), "none.sock")
	one, other := New(none), New(none)
	var releases []func()
	for range 2 {
		release, err := one.Take(device)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	refused := func(when string) {
		t.Helper()
		var held *Held
		_, err := other.Take(device)
		if !errors.As(err, &held) || held.PID != os.Getpid() || held.UID != uint32(os.Getuid()) || held.System {
			t.Errorf("%s: %v, %+v", when, err, held)
		} else if !strings.Contains(err.Error(), device) || !strings.Contains(held.Hint(), "administrator") {
			t.Errorf("%v; %s", err, held.Hint())
		}
		if !one.Has(device) || other.Has(device) {
			t.Errorf("%s: one has it: %v, the other: %v", when, one.Has(device), other.Has(device))
		}
	}
	refused("taken twice")
	if _, err := other.Take(device + "-another"); err != nil {
		t.Error(err)
	}
	releases[0]()
	releases[0]() // nothing
	refused("released once")
	releases[1]()
	if one.Has(device) {
		t.Error("it has what it gave back")
	}
	release, err := other.Take(device)
	if err != nil {
		t.Fatalf("what was given back: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if _, err := one.Take(device); err != nil {
		t.Errorf("after the other's end: %v", err)
	}
	release() // late: it is another's now
	if !one.Has(device) {
		t.Error("a late release takes it from who has it")
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
}

// However often others ask, the next learns whose it is.
func TestManyAsk(t *testing.T) {
	device := fmt.Sprintf("GPU-asked-%d", os.Getpid())
	one := New(filepath.Join(t.TempDir(), "none.sock"))
	if _, err := one.Take(device); err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	for i := range 5000 { // more than the kernel queues
		if _, err := ask(prefix + device); err != nil {
			t.Fatalf("the %dth time: %v", i+1, err)
		}
	}
}

// Where a system daemon runs nobody else has a device.
func TestSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := New(path)
	var held *Held
	if _, err := c.Take("GPU-x"); !errors.As(err, &held) || !held.System || c.Has("GPU-x") {
		t.Errorf("%v", err)
	}
	l.Close()
	if _, err := c.Take(fmt.Sprintf("GPU-y-%d", os.Getpid())); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A system daemon that has no time to answer is one.
func TestBusySystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	queued, err := net.Dial("unix", path) // nobody else can, as nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer queued.Close()
	var held *Held
	if _, err := New(path).Take("GPU-z"); !errors.As(err, &held) || !held.System {
		t.Errorf("%v", err)
	}
}

// A device that is held gives way to the system's daemon that comes later, also while that is away.
func TestClaimsGiveWay(t *testing.T) {
	device := fmt.Sprintf("GPU-yields-%d", os.Getpid())
	dir, err := os.MkdirTemp("", "claim-") // short, for the socket's sake
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := New(filepath.Join(dir, "lgpud.sock"))
	defer c.Close()
	first, err := c.Take(device)
	if err != nil || !c.Has(device) {
		t.Fatalf("without a system's daemon: %v", err)
	}
	refused := func(when, says string, away bool) {
		t.Helper()
		var held *Held
		_, err := c.Take(device)
		if !errors.As(err, &held) || !held.System || held.Away != away || !strings.Contains(err.Error(), "system") ||
			!strings.Contains(held.Hint(), says) {
			t.Errorf("%s: %v, %+v", when, err, held)
		}
	}
	if err := rundir.Reserve(dir); err != nil {
		t.Fatal(err)
	}
	refused("while it is away", "lgpu daemon stop", true)
	l, err := net.Listen("unix", filepath.Join(dir, "lgpud.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go answer(l)
	refused("once it is there", "leave out", false)
	if c.Has(device) {
		t.Error("it looks after a device that is the system daemon's")
	}
	l.Close()
	if err := rundir.Unreserve(dir); err != nil {
		t.Fatal(err)
	}
	if !c.Has(device) {
		t.Error("what runs has lost its claim")
	}
	second, err := c.Take(device)
	if err != nil {
		t.Fatalf("once it has let users go alone: %v", err)
	}
	first()
	second()
	if c.Has(device) {
		t.Error("it has what it gave back")
	}
}
