package region

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func oneDevice(name string) Spec {
	return Spec{Name: name, HostMemory: NoLimit, Devices: []DeviceLimits{{UUID: [16]byte{1}, Memory: 1 << 30, Physical: 16 << 30, Compute: 2500, Units: 8}}}
}

func create(t *testing.T, path string, spec Spec) *Region {
	t.Helper()
	r, err := Create(path, spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCreateAndOpen(t *testing.T) {
	dir := t.TempDir()
	path := Path(dir, "train")
	made := create(t, path, oneDevice("train"))
	if _, err := Create(path, oneDevice("train")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("a second region of the same name: %v, want ErrExist", err)
	}
	seen, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	got := seen.Spec()
	if got.Name != "train" || got.HostMemory != NoLimit || len(got.Devices) != 1 || got.Devices[0] != oneDevice("").Devices[0] {
		t.Errorf("read back %+v", got)
	}
	s, err := seen.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if !s.Launched || s.ID == 0 || s.Created.IsZero() || len(s.Clients) != 0 || s.Devices[0].Used != 0 {
		t.Errorf("a new lgpu shows %+v", s)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Size() != Bytes {
		t.Errorf("file has mode %#o and %d bytes, want 0600 and %d", info.Mode().Perm(), info.Size(), Bytes)
	}
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the folder after the last launcher: %v, %v", left, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for what, change := range map[string]func(*Spec){
		"no device":        func(s *Spec) { s.Devices = nil },
		"too many devices": func(s *Spec) { s.Devices = make([]DeviceLimits, MaxDevices+1) },
		"too much compute": func(s *Spec) { s.Devices[0].Compute = FullCompute + 1 },
		"a device twice":   func(s *Spec) { s.Devices = append(s.Devices, s.Devices[0]) },
		"no name":          func(s *Spec) { s.Name = "" },
		"a path as name":   func(s *Spec) { s.Name = "../x" },
		"a hidden name":    func(s *Spec) { s.Name = ".x" },
		"a long name":      func(s *Spec) { s.Name = string(make([]byte, 64)) },
	} {
		spec := oneDevice("x")
		change(&spec)
		if r, err := Create(filepath.Join(dir, "x"), spec); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v, %v; want ErrSpec", what, r, err)
		}
	}
	if _, err := Create(filepath.Join(dir, "missing", "x"), oneDevice("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("refused regions left %v", left)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(offset uintptr, b ...byte) func(*os.File) {
		return func(f *os.File) { f.WriteAt(b, int64(offset)) }
	}
	var l Limits
	for what, damage := range map[string]func(*os.File){
		"empty":                   func(f *os.File) { f.Truncate(0) },
		"a byte short":            func(f *os.File) { f.Truncate(Bytes - 1) },
		"limits only":             func(f *os.File) { f.Truncate(LimitsBytes) },
		"other magic":             write(0, 'x'),
		"other version":           write(unsafe.Offsetof(l.Version), 9),
		"no device":               write(unsafe.Offsetof(l.Devices), 0),
		"17 devices":              write(unsafe.Offsetof(l.Devices), 17),
		"very many devices":       write(unsafe.Offsetof(l.Devices), 255, 255, 255, 255),
		"a terminal escape":       write(unsafe.Offsetof(l.Name), 0x1b),
		"a name that never ends":  write(unsafe.Offsetof(l.Name), bytes.Repeat([]byte("a"), 64)...),
		"HAMi's, with none of us": write(0, 0x4e, 0xf7, 0x2f, 0x01),
	} {
		path := filepath.Join(dir, "x"+Extension)
		create(t, path, oneDevice("x")).file.Close() // crash: the file stays
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		damage(f)
		f.Close()
		if r, err := Open(path); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, %v; want ErrInvalid", what, r, err)
		}
		if r, err := Join(path); !errors.Is(err, ErrInvalid) {
			t.Errorf("join, %s: %v, %v; want ErrInvalid", what, r, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fifo); !errors.Is(err, ErrInvalid) {
		t.Errorf("a FIFO: %v", err)
	}
	if err := os.Symlink(fifo, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "link")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
}

// A region that is truncated while open gives an error, not a crash.
func TestTruncatedWhileOpen(t *testing.T) {
	path := Path(t.TempDir(), "x")
	r := create(t, path, oneDevice("x"))
	if err := os.Truncate(path, LimitsBytes+100); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Snapshot(); !errors.Is(err, ErrInvalid) {
		t.Errorf("snapshot %+v, %v; want ErrInvalid", s, err)
	}
	r.Close()
}

func TestLastLauncherRemoves(t *testing.T) {
	path := Path(t.TempDir(), "x")
	first := create(t, path, oneDevice("x"))
	second, err := Join(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the first of two launchers removed the region: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("after the last launcher: %v", err)
	}
	if _, err := Join(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("join after the last launcher: %v", err)
	}
}

// Launchers that come and go at once always find a whole region, and leave none.
func TestLaunchersRace(t *testing.T) {
	path := Path(t.TempDir(), "x")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				r, err := Join(path)
				if errors.Is(err, fs.ErrNotExist) {
					r, err = Create(path, oneDevice("x"))
				}
				if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !r.named() {
					t.Error("a held region lost its name")
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("launchers left %v", left)
	}
}

func TestCollect(t *testing.T) {
	dir := t.TempDir()
	create(t, Path(dir, "crashed"), oneDevice("crashed")).file.Close()
	live := create(t, Path(dir, "live"), oneDevice("live"))
	if err := os.WriteFile(Path(dir, "foreign"), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{newPrefix + "old": time.Hour, newPrefix + "now": 0} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Collect(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"crashed" + Extension: false, "live" + Extension: true, "foreign" + Extension: true, newPrefix + "old": false, newPrefix + "now": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it kept: %v", name, err, want)
		}
	}
	if err := live.Close(); err != nil {
		t.Fatal(err)
	}
}

// client is a process of an lgpu as the interposer makes it: slot claimed by a record lock, some memory held.
type client struct {
	*exec.Cmd
	stdin io.WriteCloser
}

const clientEnv = "LGPU_TEST_CLIENT"

func TestMain(m *testing.M) {
	if path := os.Getenv(clientEnv); path != "" {
		if err := beClient(path); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "lgpu-region-*")
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	built = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func startClient(t *testing.T, path string, slot, bytes int, lock string) *client {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", strconv.Itoa(slot), strconv.Itoa(bytes), lock)
	cmd.Env = append(os.Environ(), clientEnv+"="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("client says %q, %v", line, err)
	}
	return &client{cmd, stdin}
}

// beClient claims a slot, charges itself and waits for its input to end.
func beClient(path string) error {
	slot, _ := strconv.Atoi(os.Args[1])
	held, _ := strconv.Atoi(os.Args[2])
	r, err := open(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	if os.Args[3] == "lock" {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: ClientLockOffset + int64(slot), Len: 1}
		if err := unix.FcntlFlock(r.file.Fd(), unix.F_SETLK, &lock); err != nil {
			return err
		}
	}
	usage := new(Usage)
	if _, err := r.file.ReadAt(bytesOf(usage), LimitsBytes); err != nil {
		return err
	}
	c := &usage.Client[slot]
	*c = Client{State: ClientLive, PID: uint32(os.Getpid()), Start: startTime(uint32(os.Getpid())), Namespace: pidNamespace()}
	copy(c.Comm[:], "a\x1b[31mred")
	c.Device[0] = Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Delta: int64(held)}}}
	usage.Device[0].Memory.Bytes += uint64(held)
	usage.Device[0].Peak = max(usage.Device[0].Peak, usage.Device[0].Memory.Bytes)
	if _, err := r.file.WriteAt(bytesOf(usage), LimitsBytes); err != nil {
		return err
	}
	os.Stdout.WriteString("ready\n")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestSnapshotOfClients(t *testing.T) {
	path := Path(t.TempDir(), "x")
	r := create(t, path, oneDevice("x"))
	a := startClient(t, path, 0, 100<<20, "lock")
	b := startClient(t, path, MaxClients-1, 30<<20, "no lock") // as a program that closed all its descriptors
	check := func(used uint64, pids ...int) {
		t.Helper()
		s, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if s.Devices[0].Used != used || s.Devices[0].Peak != 130<<20 {
			t.Errorf("used %d, peak %d; want %d and %d", s.Devices[0].Used, s.Devices[0].Peak, used, 130<<20)
		}
		if len(s.Clients) != len(pids) {
			t.Fatalf("clients %+v, want pids %v", s.Clients, pids)
		}
		for i, pid := range pids {
			if s.Clients[i].PID != pid || s.Clients[i].Comm != "a?[31mred" {
				t.Errorf("client %d is %+v, want pid %d", i, s.Clients[i], pid)
			}
		}
	}
	check(130<<20, a.Process.Pid, b.Process.Pid)
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.Wait()
	check(30<<20, b.Process.Pid)

	// A live process keeps the lgpu although its launcher has gone.
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Join(path); err != nil {
		t.Fatalf("with a live process: %v", err)
	} else if err = r.Close(); err != nil {
		t.Fatal(err)
	}
	b.stdin.Close()
	if err := b.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := Collect(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the last process: %v", err)
	}
}

func TestLedgerHeld(t *testing.T) {
	for what, c := range map[string]struct {
		ledger  Ledger
		counter Counter
		want    uint64
	}{
		"never used":            {Ledger{}, Counter{}, 0},
		"begun, not applied":    {Ledger{Begun: 2, Record: [2]Operation{{Before: 10, Delta: 5}, {Delta: 10}}}, Counter{Bytes: 10, Last: 3<<48 | 1}, 10},
		"named by the counter":  {Ledger{Begun: 2, Record: [2]Operation{{Before: 10, Delta: 5}, {Delta: 10}}}, Counter{Bytes: 15, Last: 3<<48 | 2}, 15},
		"overtaken by another":  {Ledger{Begun: 2, Applied: 2, Record: [2]Operation{{Before: 10, Delta: -10}, {Delta: 10}}}, Counter{Bytes: 7, Last: 4<<48 | 2}, 0},
		"same number elsewhere": {Ledger{Begun: 1, Applied: 0, Record: [2]Operation{1: {Delta: 10}}}, Counter{Bytes: 7, Last: 4<<48 | 1}, 0},
		"nonsense":              {Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Before: -5}}}, Counter{}, 0},
	} {
		if got := c.ledger.held(3, &c.counter); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

func TestLastSecond(t *testing.T) {
	const now = 1000
	var h [Windows]Window
	for e := uint64(now - Windows + 1); e <= now; e++ {
		h[e%Windows] = Window{Epoch: e, Busy: WindowNanos / 4}
	}
	if got := lastSecond(&h, now); got != 2500 {
		t.Errorf("a quarter of every window is %d", got)
	}
	if got := lastSecond(&h, now+5); got != 1500 { // half a second passes, of which the first tenth was used
		t.Errorf("after half a second: %d", got)
	}
	if got := lastSecond(&h, now+100); got != 0 {
		t.Errorf("after ten seconds: %d", got)
	}
	h[0].Busy, h[1].Busy = 1<<64-1, 1<<64-1
	lastSecond(&h, now) // hostile figures must not panic
}

// FuzzOpen: whatever a file holds, reading it gives a value or an error and both stay in bounds.
func FuzzOpen(f *testing.F) {
	seed := Path(f.TempDir(), "seed")
	r, err := Create(seed, oneDevice("seed"))
	if err != nil {
		f.Fatal(err)
	}
	defer r.Close()
	limits, err := os.ReadFile(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(limits[:LimitsBytes], []byte{}, true)
	f.Add([]byte{0x4e, 0xf7, 0x2f, 0x01}, []byte{1}, true)
	f.Add([]byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, head, usage []byte, long bool) {
		path := Path(t.TempDir(), "x")
		data := append(head[:len(head):len(head)], usage...)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if long {
			if err := os.Truncate(path, max(int64(len(data)), Bytes)); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Open(path)
		if (r == nil) == (err == nil) {
			t.Fatalf("Open gave %v and %v", r, err)
		}
		if err != nil {
			return
		}
		defer r.Close()
		if n := len(r.Spec().Devices); n < 1 || n > MaxDevices {
			t.Fatalf("%d devices", n)
		}
		if _, err := r.Snapshot(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDir(t *testing.T) {
	base := t.TempDir()
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "r"))
	dir, err := Dir()
	if err != nil || dir != filepath.Join(base, "r") {
		t.Fatalf("Dir() = %q, %v", dir, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if again, err := Dir(); err != nil || again != dir {
		t.Errorf("second Dir() = %q, %v", again, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if dir, err := Dir(); err == nil {
		t.Errorf("a folder everybody can write is accepted: %q", dir)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_RUNTIME_DIR", file)
	if dir, err := Dir(); err == nil {
		t.Errorf("a file is accepted as folder: %q", dir)
	}
	if err := os.Symlink(base, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "link"))
	if dir, err := Dir(); err == nil {
		t.Errorf("a link is accepted as folder: %q", dir)
	}
	t.Setenv("LGPU_RUNTIME_DIR", filepath.Join(base, "none", "none"))
	if dir, err := Dir(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder in a missing folder: %q, %v", dir, err)
	}
}
