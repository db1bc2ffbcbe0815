package claim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClaims(t *testing.T) {
	device := fmt.Sprintf("GPU-test-%d", os.Getpid())
	none := filepath.Join(t.TempDir(), "none.sock")
	one, other := New(none), New(none)
	for range 2 {
		if err := one.Take(device); err != nil {
			t.Fatal(err)
		}
	}
	var held *Held
	err := other.Take(device)
	if !errors.As(err, &held) || held.PID != os.Getpid() || held.UID != uint32(os.Getuid()) || held.System {
		t.Errorf("%v, %+v", err, held)
	}
	if !strings.Contains(err.Error(), device) || !strings.Contains(held.Hint(), "administrator") {
		t.Errorf("%v; %s", err, held.Hint())
	}
	if err := other.Take(device + "-another"); err != nil {
		t.Error(err)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if err := other.Take(device); err != nil {
		t.Errorf("what was given back: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
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
	if err := c.Take("GPU-x"); !errors.As(err, &held) || !held.System {
		t.Errorf("%v", err)
	}
	l.Close()
	if err := c.Take(fmt.Sprintf("GPU-y-%d", os.Getpid())); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
