package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
)

// The test program also plays the programs of MPS: nvidia-cuda-mps-control with -f is the daemon, without it sends a
// command; nvidia-cuda-mps-server does nothing for ever. MPS_FAKE is a folder; a file in it named for a property makes the
// daemon behave so: dies, mute, stubborn, serves.
func TestMain(m *testing.M) {
	fake := os.Getenv("MPS_FAKE")
	switch base := filepath.Base(os.Args[0]); {
	case fake == "":
		os.Exit(m.Run())
	case base == "nvidia-cuda-mps-server":
		select {}
	case len(os.Args) > 1 && os.Args[1] == "-f":
		os.Exit(playDaemon(func(property string) bool {
			_, err := os.Stat(filepath.Join(fake, property))
			return err == nil
		}))
	case base == "nvidia-cuda-mps-control":
		os.Exit(playClient())
	}
	os.Exit(m.Run())
}

func playDaemon(is func(string) bool) int {
	if is("dies") {
		fmt.Println("cannot find a device")
		return 1
	}
	if is("stubborn") {
		signal.Ignore(unix.SIGTERM)
	}
	if is("mute") {
		select {}
	}
	l, err := net.Listen("unix", filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if is("serves") {
		server := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), "nvidia-cuda-mps-server"))
		server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := server.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		command, _ := bufio.NewReader(c).ReadString('\n')
		switch {
		case command == "get_server_list\n":
			fmt.Fprintln(c, os.Getpid())
		case command == "quit\n" && !is("stubborn"):
			c.Close()
			return 0
		}
		c.Close()
	}
}

func playClient() int {
	command, _ := io.ReadAll(os.Stdin)
	c, err := net.Dial("unix", filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control"))
	if err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		return 1
	}
	defer c.Close()
	if _, err := c.Write(command); err != nil {
		return 1
	}
	if _, err := io.Copy(os.Stdout, c); err != nil {
		return 1
	}
	return 0
}

// world is a machine with fake MPS programs.
type world struct {
	t      *testing.T
	dir    string // runtime folder
	fake   string // properties
	events chan Event
	config Config
}

var uuid = gpu.UUID{1, 2, 3, 4}

func newWorld(t *testing.T) *world {
	t.Helper()
	// A socket's path must be short.
	top, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: filepath.Join(top, "run"), fake: filepath.Join(top, "fake"), events: make(chan Event, 100)}
	bin := filepath.Join(top, "bin")
	for _, dir := range []string{w.dir, w.fake, bin} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("MPS_FAKE", w.fake)
	w.config = Config{
		Dir: w.dir, Command: filepath.Join(bin, "nvidia-cuda-mps-control"), Event: func(e Event) { w.events <- e },
		Start: 5 * time.Second, Stop: 300 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond,
	}
	t.Cleanup(func() {
		k := &keeper{m: &Manager{}, dir: w.folder(), uuid: uuid}
		for _, pid := range k.orphans() {
			t.Errorf("process %d of MPS is left behind", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		os.RemoveAll(top)
	})
	return w
}

func (w *world) folder() string { return filepath.Join(w.dir, folder, uuid.String()) }

// be gives daemons that start from now on a property, or takes it.
func (w *world) be(property string, yes bool) {
	w.t.Helper()
	path := filepath.Join(w.fake, property)
	var err error
	if yes {
		err = os.WriteFile(path, nil, 0o600)
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) manager() *Manager {
	w.t.Helper()
	m, err := New(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { m.Close() })
	return m
}

// spatial is a manager with the device in spatial mode.
func (w *world) spatial() *Manager {
	w.t.Helper()
	m := w.manager()
	if err := m.SetMode(w.t.Context(), Device{UUID: uuid}, Spatial); err != nil {
		w.t.Fatal(err)
	}
	return m
}

// await waits for the next event of a kind and drops those before.
func (w *world) await(kind string) Event {
	w.t.Helper()
	for {
		select {
		case e := <-w.events:
			if e.Device != uuid {
				w.t.Errorf("event %+v is of another device", e)
			}
			if e.Kind == kind {
				return e
			}
		case <-time.After(20 * time.Second):
			w.t.Fatalf("there is no event %s", kind)
		}
	}
}

// alive is not whoever has ended and waits to be reaped, by a goroutine of the package that nobody waits for.
func alive(pid int) bool {
	s, err := proc.Read(pid)
	return err == nil && !s.Ended
}

func TestSpatialAndBack(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	if env, err := m.Env(uuid, Tenant{Percent: 3000}); err != nil || len(env) != 0 {
		t.Errorf("in temporal mode the environment is %v, %v", env, err)
	}
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Spatial); err != nil {
		t.Fatal(err)
	}
	started := w.await("mps.started")
	if m.Mode(uuid) != Spatial || !m.Modes()[uuid] || !slices.Equal(m.Processes(uuid), []int{started.PID}) {
		t.Errorf("mode %v, %v, processes %v", m.Mode(uuid), m.Modes(), m.Processes(uuid))
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", started.PID))
	if err != nil || !strings.Contains(string(environ), "CUDA_VISIBLE_DEVICES="+uuid.String()) {
		t.Errorf("the daemon's environment is %q, %v", environ, err)
	}
	for _, tc := range []struct {
		tenant  Tenant
		percent string
		memory  string
	}{
		{Tenant{}, "", ""},
		{Tenant{Percent: 3000, Memory: 1 << 30}, "30", "0=1024M"},
		{Tenant{Percent: 1250, Memory: 1<<30 + 1}, "12.5", "0=1025M"},
		{Tenant{Percent: 1}, "0.01", ""},
		{Tenant{Percent: 10000}, "100", ""},
	} {
		env, err := m.Env(uuid, tc.tenant)
		if err != nil {
			t.Fatal(err)
		}
		if env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != tc.percent || env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != tc.memory ||
			env["CUDA_MPS_PIPE_DIRECTORY"] != filepath.Join(w.folder(), "pipe") || env["CUDA_MPS_LOG_DIRECTORY"] != filepath.Join(w.folder(), "log") {
			t.Errorf("%+v: %v", tc.tenant, env)
		}
	}
	if _, err := m.Env(uuid, Tenant{Units: "0-3"}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("units by name: %v", err)
	}
	if _, err := m.Env(uuid, Tenant{Percent: 10001}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("more than all: %v", err)
	}
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Spatial); err != nil {
		t.Errorf("to the mode that it is in: %v", err)
	}
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Temporal); err != nil {
		t.Fatal(err)
	}
	w.await("mps.stopped")
	if alive(started.PID) || m.Mode(uuid) != Temporal || len(m.Modes()) != 0 {
		t.Errorf("the daemon is alive: %v; mode %v", alive(started.PID), m.Mode(uuid))
	}
	if _, err := os.Stat(w.folder()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
}

func TestBusy(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	for _, mode := range []Mode{Spatial, Temporal} {
		first, err := m.Use(uuid)
		if err != nil {
			t.Fatal(err)
		}
		second, err := m.Use(uuid)
		if err != nil {
			t.Fatal(err)
		}
		first()
		first() // counts once
		if err := m.SetMode(t.Context(), Device{UUID: uuid}, mode); !errors.Is(err, syscall.EBUSY) || m.Mode(uuid) == mode {
			t.Errorf("to %v while it is used: %v", mode, err)
		}
		second()
		if err := m.SetMode(t.Context(), Device{UUID: uuid}, mode); err != nil {
			t.Errorf("to %v when nobody uses it: %v", mode, err)
		}
	}
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Mode(7)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a mode that there is not: %v", err)
	}
}

// TestSwitching checks that nobody gets on a device between two modes.
func TestSwitching(t *testing.T) {
	w := newWorld(t)
	w.be("mute", true)
	m := w.manager()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.SetMode(ctx, Device{UUID: uuid}, Spatial) }()
	for {
		release, err := m.Use(uuid)
		if errors.Is(err, syscall.EBUSY) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		release()
		select {
		case err := <-done:
			if !errors.Is(err, syscall.EBUSY) { // Use was faster: once more
				t.Fatal(err)
			}
			go func() { done <- m.SetMode(ctx, Device{UUID: uuid}, Spatial) }()
		default:
		}
	}
	if m.Settled(uuid, Temporal) || m.Settled(uuid, Spatial) {
		t.Error("the mode is settled")
	}
	hasty, leave := context.WithCancel(t.Context())
	leave()
	if err := m.SetMode(hasty, Device{UUID: uuid}, Spatial); !errors.Is(err, syscall.EBUSY) || !errors.Is(err, ErrSwitching) {
		t.Errorf("a second switch that does not wait: %v", err)
	}
	w.be("mute", false)
	second := make(chan error, 1)
	go func() { second <- m.SetMode(t.Context(), Device{UUID: uuid}, Spatial) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("a daemon that does not answer is taken into use")
	}
	if err := <-second; err != nil || !m.Settled(uuid, Spatial) {
		t.Errorf("a second switch that waits: %v, mode %v", err, m.Mode(uuid))
	}
	if _, err := m.Use(uuid); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestImpostor checks that nobody becomes a server of MPS by his name and his environment.
func TestImpostor(t *testing.T) {
	w := newWorld(t)
	w.be("serves", true)
	m := w.spatial()
	control := w.await("mps.started").PID
	impostor := exec.Command(filepath.Join(filepath.Dir(w.config.Command), "nvidia-cuda-mps-server"))
	impostor.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(w.folder(), "pipe"))
	if err := impostor.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { impostor.Process.Kill(); impostor.Wait() }()
	k := m.devices[uuid].keeper
	if !slices.Contains(k.orphans(), impostor.Process.Pid) {
		t.Fatal("the impostor is not dressed as a server")
	}
	all := m.Processes(uuid)
	if len(all) != 2 || all[0] != control || slices.Contains(all, impostor.Process.Pid) {
		t.Errorf("processes %v of daemon %d; %d is none", all, control, impostor.Process.Pid)
	}
}

func TestDeath(t *testing.T) {
	w := newWorld(t)
	m := w.spatial()
	first := w.await("mps.started")
	w.be("dies", true)
	if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := w.await("mps.died"); e.PID != first.PID || e.Err == nil {
		t.Errorf("%+v", e)
	}
	for range 3 {
		if e := w.await("mps.failed"); e.Err == nil || !strings.Contains(e.Err.Error(), "cannot find a device") {
			t.Errorf("%+v does not have the daemon's last words", e)
		}
	}
	if _, err := m.Env(uuid, Tenant{}); !errors.Is(err, ErrDown) || m.Modes()[uuid] {
		t.Errorf("while it is down: %v, %v", err, m.Modes())
	}
	if m.Mode(uuid) != Spatial {
		t.Error("it has left its mode")
	}
	w.be("dies", false)
	second := w.await("mps.started")
	if _, err := m.Env(uuid, Tenant{}); err != nil || second.PID == first.PID || !alive(second.PID) {
		t.Errorf("after it was started again: %v, %+v", err, second)
	}
	w.be("dies", true)
	if err := unix.Kill(second.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.await("mps.failed")
	if err := m.Close(); err != nil { // while it is being started again
		t.Error(err)
	}
	if _, err := m.Use(uuid); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	w := newWorld(t)
	m := w.spatial()
	pid := w.await("mps.started").PID
	if err := m.Leave(); err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("the daemon is gone")
	}
	next := w.manager()
	if e := w.await("mps.adopted"); e.PID != pid {
		t.Errorf("%+v, want process %d", e, pid)
	}
	if next.Mode(uuid) != Spatial {
		t.Errorf("mode %v", next.Mode(uuid))
	}
	if env, err := next.Env(uuid, Tenant{Percent: 5000}); err != nil || len(env) != 3 {
		t.Errorf("%v, %v", env, err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil { // not its child
		t.Fatal(err)
	}
	if e := w.await("mps.died"); e.PID != pid {
		t.Errorf("%+v", e)
	}
	again := w.await("mps.started")
	if err := next.Close(); err != nil || alive(again.PID) {
		t.Errorf("after Close the daemon is alive: %v, %v", alive(again.PID), err)
	}
}

// TestLeftovers checks what is made of the folder of a daemon that is no more.
func TestLeftovers(t *testing.T) {
	for name, pid := range map[string]string{
		"nothing":         "",
		"not a number":    "x y",
		"no such process": "4194303 1",
		"another process": strconv.Itoa(os.Getpid()) + " 1",
		"all processes":   "-1 1",
		"the first":       "1 0",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if err := os.MkdirAll(filepath.Join(w.folder(), "pipe"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(w.folder(), "pid"), []byte(pid), 0o600); err != nil {
				t.Fatal(err)
			}
			m := w.manager()
			if m.Mode(uuid) != Temporal {
				t.Error("it adopted something")
			}
			if _, err := os.Stat(w.folder()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder is left: %v", err)
			}
		})
	}
	t.Run("a server without its daemon", func(t *testing.T) {
		w := newWorld(t)
		w.be("serves", true)
		m := w.spatial()
		control := w.await("mps.started").PID
		all := m.Processes(uuid)
		if len(all) != 2 {
			t.Fatalf("processes %v, want the daemon and its server", all)
		}
		if err := m.Leave(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(control, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for unix.Kill(control, 0) == nil { // reaped by whoever started it
			time.Sleep(time.Millisecond)
		}
		if m = w.manager(); m.Mode(uuid) != Temporal {
			t.Error("it adopted a daemon that is dead")
		}
		// The cleanup of the test fails if the server is alive.
	})
}

func TestNotInstalled(t *testing.T) {
	w := newWorld(t)
	w.config.Command = filepath.Join(w.dir, "nowhere")
	m := w.manager()
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Spatial); !errors.Is(err, ErrAbsent) || m.Mode(uuid) != Temporal {
		t.Errorf("%v, mode %v", err, m.Mode(uuid))
	}
}

func TestDoesNotStart(t *testing.T) {
	w := newWorld(t)
	w.be("dies", true)
	m := w.manager()
	err := m.SetMode(t.Context(), Device{UUID: uuid}, Spatial)
	if err == nil || !strings.Contains(err.Error(), "cannot find a device") || m.Mode(uuid) != Temporal {
		t.Errorf("%v, mode %v", err, m.Mode(uuid))
	}
	w.be("dies", false)
	if err := m.SetMode(t.Context(), Device{UUID: uuid}, Spatial); err != nil {
		t.Errorf("when it can: %v", err)
	}
}

func TestDoesNotStop(t *testing.T) {
	w := newWorld(t)
	w.be("stubborn", true)
	m := w.spatial()
	pid := w.await("mps.started").PID
	if err := m.Close(); err != nil || alive(pid) {
		t.Errorf("%v; the daemon is alive: %v", err, alive(pid))
	}
}

func TestSoftware(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	if err := m.SetMode(t.Context(), Device{UUID: uuid, Software: true}, Spatial); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tenant Tenant
		name   string
		value  string
	}{
		{Tenant{Units: "0-3,8"}, "LGPU_SIM_UNITS", "0-3,8"},
		{Tenant{Units: "0-3,8", Percent: 100}, "LGPU_SIM_UNITS", "0-3,8"},
		{Tenant{Percent: 2500}, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"},
	} {
		env, err := m.Env(uuid, tc.tenant)
		if err != nil || len(env) != 1 || env[tc.name] != tc.value {
			t.Errorf("%+v: %v, %v", tc.tenant, env, err)
		}
	}
	if env, err := m.Env(uuid, Tenant{}); err != nil || len(env) != 0 {
		t.Errorf("all of it: %v, %v", env, err)
	}
	if len(m.Processes(uuid)) != 0 || !m.Modes()[uuid] {
		t.Errorf("processes %v, modes %v", m.Processes(uuid), m.Modes())
	}
	if err := m.SetMode(t.Context(), Device{UUID: uuid, Software: true}, Temporal); err != nil {
		t.Error(err)
	}
	select {
	case e := <-w.events:
		t.Errorf("an event %+v of no daemon", e)
	default:
	}
}

// TestManyAtOnce has many change modes and use the device at once: the mode never changes under a user.
func TestManyAtOnce(t *testing.T) {
	m := newWorld(t).manager()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 200 {
				if i%4 == 0 {
					err := m.SetMode(t.Context(), Device{UUID: uuid, Software: true}, Mode(i/4%2))
					if err != nil && !errors.Is(err, syscall.EBUSY) {
						t.Error(err)
					}
					continue
				}
				release, err := m.Use(uuid)
				if errors.Is(err, syscall.EBUSY) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				was := m.Mode(uuid)
				if now := m.Mode(uuid); now != was {
					t.Errorf("the mode changed from %v to %v under a user", was, now)
				}
				release()
			}
		})
	}
	group.Wait()
}

func TestParseMode(t *testing.T) {
	for _, mode := range []Mode{Temporal, Spatial} {
		if got, err := ParseMode(mode.String()); got != mode || err != nil {
			t.Errorf("%v is read as %v, %v", mode, got, err)
		}
	}
	if _, err := ParseMode("Spatial"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v", err)
	}
}
