package sim

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/sim/driver"
	"github.com/lgpu/lgpu/sim/wire"
)

// TestMain lets the test binary be the hardware process that Start starts.
func TestMain(m *testing.M) {
	for i, a := range os.Args {
		if a != "be-hardware" {
			continue
		}
		flags := map[string]string{}
		for _, f := range os.Args[i+1:] {
			name, value, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			flags[name] = value
		}
		idle, err := time.ParseDuration(flags["idle"])
		if err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
			defer stop()
			err = Inherited(ctx, flags["inherit"], flags["shape"], idle, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		}
		if err != nil {
			slog.Error("hardware", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func options(t *testing.T) StartOptions {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu-sim-test") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return StartOptions{Dir: dir, Command: []string{os.Args[0], "be-hardware"}, Idle: 50 * time.Millisecond}
}

var small = Shape{Devices: 2, Memory: 256 << 20, Units: 4, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 8 << 20}

// TestStartIsShared starts the same shape many times at once: there must be one process, which ends after the last
// hold.
func TestStartIsShared(t *testing.T) {
	o := options(t)
	var wg sync.WaitGroup
	holds := make([]*Hardware, 8)
	for i := range holds {
		wg.Add(1)
		go func() {
			defer wg.Done()
			h, err := Start(small, o)
			if err != nil {
				t.Errorf("start %d: %v", i, err)
				return
			}
			holds[i] = h
		}()
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var uuids []wire.CUuuid
	for _, h := range holds {
		devices, err := h.Client.Devices()
		if err != nil {
			t.Fatal(err)
		}
		if len(devices) != 2 || devices[0].UUID == devices[1].UUID || devices[1].MemoryTotal != small.Memory || devices[0].ComputeUnits != 4 {
			t.Fatalf("devices %+v", devices)
		}
		uuids = append(uuids, devices[0].UUID)
	}
	for _, u := range uuids {
		if u != uuids[0] {
			t.Errorf("two hardware processes: %x and %x", u, uuids[0])
		}
	}
	gone := watch(t, holds[0].Socket)
	for _, h := range holds {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	gone()
	// And again, over the remains.
	h, err := Start(small, o)
	if err != nil {
		t.Fatal(err)
	}
	gone = watch(t, h.Socket)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	gone()
}

// watch returns a function that waits until the socket has been removed, which the hardware process does at its end.
func watch(t *testing.T, socket string) func() {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(socket), unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	return func() {
		defer unix.Close(fd)
		buf := make([]byte, 4096)
		for {
			if _, err := os.Stat(socket); errors.Is(err, os.ErrNotExist) {
				return
			}
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(poll, 10000); n == 0 && err == nil {
				t.Fatal("the hardware process stays although nobody needs it")
			}
			unix.Read(fd, buf)
		}
	}
}

// A hardware process whose folder has been removed under it ends like any other.
func TestEndsWithoutItsFolder(t *testing.T) {
	o := options(t)
	h, err := Start(small, o)
	if err != nil {
		t.Fatal(err)
	}
	running := func() bool {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if text, err := os.ReadFile(line); err == nil && strings.Contains(string(text), "--inherit="+h.Socket+"\x00") {
				return true
			}
		}
		return false
	}
	if !running() {
		t.Fatal("there is no hardware process")
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); running(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the hardware process does not end")
		}
	}
}

// A program that has become another user's, as by su, still reaches its GPU.
func TestSocketIsForAllUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
}

func TestStartFails(t *testing.T) {
	o := options(t)
	o.Command = []string{"/nonexistent/program"}
	if _, err := Start(small, o); err == nil || !strings.Contains(err.Error(), "start the software GPU") {
		t.Errorf("a missing program: %v", err)
	}
	o.Command = []string{"/bin/false"}
	if _, err := Start(small, o); err == nil {
		t.Error("a program that ends at once: no error")
	}
	o.Command = nil
	if _, err := Start(small, o); err == nil {
		t.Error("no program: no error")
	}
	bad := small
	bad.Units = 0
	if _, err := Start(bad, o); !errors.Is(err, ErrShape) {
		t.Errorf("a bad shape: %v", err)
	}
}

func TestParseShape(t *testing.T) {
	for text, want := range map[string]Shape{
		"":                            DefaultShape,
		"16GiB":                       DefaultShape,
		"2x16GiB,sms=32":              {2, 16 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 0, driver.SlicesSet, driver.Division{}},
		"1x512MiB,clock=2.5MHz":       {1, 512 << 20, 32, 2.5, 2 * time.Millisecond, 4e9, 64 << 20, 0, driver.SlicesSet, driver.Division{}},
		"4x1GiB,slice=5ms,context=1M": {4, 1 << 30, 32, 1, 5 * time.Millisecond, 4e9, 1 << 20, 0, driver.SlicesSet, driver.Division{}},
		"1GiB,link=1GB/s":             {1, 1 << 30, 32, 1, 2 * time.Millisecond, 1e9, 64 << 20, 0, driver.SlicesSet, driver.Division{}},
		"1GiB,switch=200us":           {1, 1 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 200 * time.Microsecond, driver.SlicesSet, driver.Division{}},
		"1GiB,slices=refuse,switch=0": {1, 1 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 0, driver.SlicesRefuse, driver.Division{}},
		"1GiB,switch=10ms,slices=ignore": {1, 1 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 10 * time.Millisecond,
			driver.SlicesIgnore, driver.Division{}},
		"16GiB,mig=3g+1g+1g": {1, 16 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 0, driver.SlicesSet, driver.Division{3, 1, 1}},
		"1GiB,slices=set":    {1, 1 << 30, 32, 1, 2 * time.Millisecond, 4e9, 64 << 20, 0, driver.SlicesSet, driver.Division{}},
	} {
		got, err := ParseShape(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
		if back, err := ParseShape(got.String()); err != nil || back != got {
			t.Errorf("%q is written %q and read back as %+v, %v", text, got.String(), back, err)
		}
	}
	for _, text := range []string{"x", "0x1GiB", "17x1GiB", "-1x1GiB", "1", "2x", "1GiB,sms", "1GiB,sms=0", "1GiB,sms=1e9", "1GiB,foo=1",
		"1GiB,clock=0", "1GiB,clock=NaN", "1GiB,slice=1h", "1GiB,context=2GiB", "99999999TiB", "1GiB,link=1",
		"1GiB,switch=-1us", "1GiB,switch=11ms", "1GiB,switch=200", "1GiB,switch=", "1GiB,slices=yes", "1GiB,slices=", "1GiB,slices=0",
		"1GiB,mig=", "1GiB,mig=1", "1GiB,mig=5g", "1GiB,mig=01g", "1GiB,mig=3g+3g+1g", "1GiB,mig=4g+4g", "1GiB,mig=1g,sms=6",
		"1GiB,mig=1g+1g+1g+1g+1g+1g+1g+1g", "1GiB,mig=1g+0g", "512MiB,mig=1g"} {
		if s, err := ParseShape(text); !errors.Is(err, ErrShape) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}
