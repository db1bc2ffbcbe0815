package region

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func fourDevices(name string) Spec {
	spec := Spec{Name: name, HostMemory: NoLimit}
	for i := range 4 {
		spec.Devices = append(spec.Devices, DeviceLimits{
			UUID: [16]byte{byte(i + 1)}, Memory: 1 << 30, Granted: 1 << 29, Physical: 16 << 30, Compute: 2500,
		})
	}
	return spec
}

func shared(t testing.TB) *Shared {
	t.Helper()
	s, err := New(fourDevices("x"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestTenantsView: what a tenant can do with the descriptors that it gets.
func TestTenantsView(t *testing.T) {
	s := shared(t)
	err := s.Files(func(limits, usage int) error {
		reopened, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", limits), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reopened.Close()
		for what, fd := range map[string]int{"the descriptor": limits, "one opened anew": int(reopened.Fd())} {
			if _, err := unix.Mmap(fd, 0, LimitsBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				t.Errorf("limits can be mapped writable by %s", what)
			}
			if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
				t.Errorf("limits can be written by %s", what)
			}
			if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil {
				t.Errorf("limits can be punched by %s", what)
			}
			readOnly, err := unix.Mmap(fd, 0, LimitsBytes, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatalf("limits cannot be read by %s: %v", what, err)
			}
			if unix.Mprotect(readOnly, unix.PROT_READ|unix.PROT_WRITE) == nil {
				t.Errorf("a mapping by %s can be made writable", what)
			}
			unix.Munmap(readOnly)
		}
		for what, fd := range map[string]int{"limits": limits, "usage": usage} {
			if unix.Ftruncate(fd, 0) == nil || unix.Ftruncate(fd, 1<<30) == nil {
				t.Errorf("the size of %s can be changed", what)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
				t.Errorf("%s can be sealed further", what)
			}
		}
		seen, err := unix.Mmap(limits, 0, LimitsBytes, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(seen)
		l := (*Limits)(unsafe.Pointer(&seen[0]))
		if l.Magic != Magic || l.ID == 0 || string(l.Name[:2]) != "x\x00" || l.Devices != 4 || l.Device[3].Granted != 1<<29 {
			t.Errorf("the tenant sees %+v", l)
		}
		s.SetHostMemory(1)
		s.SetMemory(3, 2)
		s.SetGranted(3, 3)
		s.SetCompute(3, 4)
		s.SetUnits(3, 5)
		d := l.Device[3]
		if l.HostMemory != 1 || d.Memory != 2 || d.Granted != 3 || d.Compute != 4 || d.Units != 5 {
			t.Errorf("after changes the tenant sees host %d, device %+v", l.HostMemory, d)
		}
		s.SetMemory(4, 1) // devices that are none
		s.SetMemory(-1, 1)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	s.SetMemory(0, 1)
	if s.Used(0) != 0 || !s.Settle(0, nil) || len(s.State().Devices) != 4 {
		t.Error("a closed region has contents")
	}
	if err := s.Files(func(int, int) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Files of a closed region: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	old := shared(t)
	old.usage.Device[2].Memory.Bytes = 77
	spec := fourDevices("x")
	spec.ID = 9
	err := old.Files(func(_, usage int) error {
		s, err := Adopt(spec, usage)
		if err != nil {
			return err
		}
		defer s.Close()
		if s.Used(2) != 77 || s.limits.ID != 9 || s.UsageInode() != old.UsageInode() {
			t.Errorf("adopted: %d bytes used, ID %d, %v and %v", s.Used(2), s.limits.ID, s.UsageInode(), old.UsageInode())
		}
		if old.limits.ID == 9 {
			t.Error("the limits are the old ones")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	memfd := func(size, seals int) int {
		fd, err := unix.MemfdCreate("forged", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, int64(size)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file := func(dir string) int {
		f, err := os.CreateTemp(dir, "forged")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(f.Name())
		if err := f.Truncate(int64(UsageBytes)); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		return fd
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	for what, fd := range map[string]int{
		"unsealed":            memfd(UsageBytes, 0),
		"may shrink":          memfd(UsageBytes, unix.F_SEAL_GROW|unix.F_SEAL_SEAL),
		"may be sealed":       memfd(UsageBytes, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK),
		"cannot be written":   memfd(UsageBytes, usageSeals|unix.F_SEAL_WRITE),
		"written by one only": memfd(UsageBytes, usageSeals|unix.F_SEAL_FUTURE_WRITE),
		"a page short":        memfd(UsageBytes-4096, usageSeals),
		"a page long":         memfd(UsageBytes+4096, usageSeals),
		"an ordinary file":    file(t.TempDir()),
		"a file of a tmpfs":   file("/dev/shm"),
		"a pipe":              pipe[0],
		"closed":              1 << 20,
	} {
		s, err := Adopt(spec, fd)
		if !errors.Is(err, ErrInvalid) || s != nil {
			t.Errorf("%s: %v, %v; want ErrInvalid", what, s, err)
		}
		unix.Close(fd)
	}
	if _, err := New(Spec{Name: "no devices"}); !errors.Is(err, ErrSpec) {
		t.Errorf("no devices: %v, want ErrSpec", err)
	}
}

func TestSwap(t *testing.T) {
	s := shared(t)
	c := &s.usage.Device[1].Memory
	*c = Counter{Bytes: 5, Last: 6}
	for _, old := range []Counter{{5, 7}, {4, 6}, {6, 5}} {
		swapped, bytes, last := swap(c, old.Bytes, old.Last, 1, 2)
		if swapped || bytes != 5 || last != 6 || *c != (Counter{5, 6}) {
			t.Errorf("swap of %v: %v, %d, %d; left %v", old, swapped, bytes, last, *c)
		}
	}
	if swapped, _, _ := swap(c, 5, 6, 1, 2); !swapped || *c != (Counter{1, 2}) {
		t.Errorf("swap: %v, left %v", swapped, *c)
	}
}

func TestMain(m *testing.M) {
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

// built is the folder of what tests compile; TestMain makes and removes it.
var built string

var counterClient = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(built, "counter_client")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	const c = "../liblgpu/"
	out, err := exec.Command(cc, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-DLGPU_FAULT_POINTS",
		"-I"+c, "-o", bin, "testdata/counter_client.c", c+"process/counter.c", c+"testdata/fault.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

// counts starts a process that adds to the counters as a client and waits until it does.
func counts(t *testing.T, s *Shared, client int, seed int, fault string) *exec.Cmd {
	t.Helper()
	bin, err := counterClient()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, strconv.Itoa(client), strconv.Itoa(seed))
	cmd.Env = append(os.Environ(), "LGPU_FAULT="+fault)
	cmd.ExtraFiles = []*os.File{s.usageFile}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		t.Fatalf("client %d of seed %d does not start: %v; %v", client, seed, err, cmd.Wait())
	}
	return cmd
}

func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
}

// TestSettleAtEveryStep: a client killed by itself between any two instructions of the interposer's own counter code,
// while others add, leaves nothing behind once it is settled, and takes nothing of others along.
func TestSettleAtEveryStep(t *testing.T) {
	s := shared(t)
	others := []*exec.Cmd{counts(t, s, 0, 1, ""), counts(t, s, MaxClients-1, 2, "")}
	seed := 3
	for _, point := range []string{"begin", "half-recorded", "recorded", "begun", "noted", "swapped"} {
		for _, n := range []int{1, 2, 3, 50, 51, 1000} {
			seed++
			victim := counts(t, s, 5, seed, fmt.Sprintf("%s:%d", point, n))
			if err := victim.Wait(); !killed(err) {
				t.Fatalf("the client that should die at %s:%d: %v", point, n, err)
			}
			if !s.Settle(5, nil) {
				t.Fatal("two honest clients keep a third from being settled")
			}
			if host, devices := s.Charged(5); host != 0 || devices[3] != 0 {
				t.Fatalf("%s:%d: settled, it holds %d and %v", point, n, host, devices)
			}
		}
	}
	for _, cmd := range others {
		cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if s.Used(3) != 0 || s.Host() != 0 {
		t.Errorf("%d and %d bytes are left when all have ended", s.Used(3), s.Host())
	}
}

// TestSettleTwice: an authority that is killed while it settles leaves what the next can settle.
func TestSettleTwice(t *testing.T) {
	s := shared(t)
	counter, ledger := &s.usage.Device[3].Memory, &s.usage.Client[7].Device[3]
	for what, begin := range map[string]func(){
		"nothing done": func() {},
		"recorded":     func() { ledger.Record[0] = Operation{Before: 40, Delta: -40} },
		"begun": func() {
			ledger.Record[0] = Operation{Before: 40, Delta: -40}
			ledger.Begun = 2
		},
		"swapped": func() {
			ledger.Record[0] = Operation{Before: 40, Delta: -40}
			ledger.Begun, ledger.Applied = 2, 1
			*counter = Counter{Bytes: 60, Last: identity(7, 2)}
		},
	} {
		*ledger = Ledger{Begun: 1, Record: [2]Operation{1: {Delta: 40}}}
		*counter = Counter{Bytes: 100, Last: identity(7, 1)}
		begin()
		if !s.Settle(7, nil) || counter.Bytes != 60 {
			t.Errorf("%s: %d bytes are left, want 60", what, counter.Bytes)
		}
	}
}

func TestCharged(t *testing.T) {
	more := [2]Operation{{Before: 10, Delta: 5}, {Delta: 10}}
	begun := [2]Operation{{Delta: 10}}
	none := [2]Operation{{Before: 10, Delta: -10}, {Delta: 10}}
	s := shared(t)
	for what, c := range map[string]struct {
		ledger  Ledger
		counter Counter
		want    uint64
	}{
		"never used":            {Ledger{}, Counter{}, 0},
		"begun, not applied":    {Ledger{Begun: 2, Record: more}, Counter{Bytes: 10, Last: 3<<48 | 1}, 10},
		"named by the counter":  {Ledger{Begun: 2, Record: more}, Counter{Bytes: 15, Last: 3<<48 | 2}, 15},
		"overtaken by another":  {Ledger{Begun: 2, Applied: 2, Record: none}, Counter{Bytes: 7, Last: 4<<48 | 2}, 0},
		"same number elsewhere": {Ledger{Begun: 2, Record: begun}, Counter{Bytes: 7, Last: 4<<48 | 2}, 0},
		"nonsense":              {Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Before: -5}}}, Counter{}, 0},
	} {
		s.usage.Device[3].Memory, s.usage.Client[3].Device[3] = c.counter, c.ledger
		if _, devices := s.Charged(3); devices[3] != c.want {
			t.Errorf("%s: %d, want %d", what, devices[3], c.want)
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

// TestSettleNotes: what another client did last stays decidable when settling replaces it in the counter.
func TestSettleNotes(t *testing.T) {
	s := shared(t)
	s.usage.Client[3].Device[3] = Ledger{Begun: 1, Record: [2]Operation{1: {Delta: 60}}}
	s.usage.Client[7].Device[3] = Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Delta: 40}}}
	s.usage.Device[3].Memory = Counter{Bytes: 100, Last: identity(3, 1)}
	for _, client := range []int{7, 3} {
		if !s.Settle(client, nil) {
			t.Fatalf("client %d cannot be settled", client)
		}
	}
	if s.Used(3) != 0 {
		t.Errorf("%d bytes are left", s.Used(3))
	}
}

// TestSettleKeeps: of a dead client's memory stays charged what it gave away, in its record, until that is settled too.
func TestSettleKeeps(t *testing.T) {
	s := shared(t)
	s.Claim(3, Owner{PID: 1})
	client := &s.usage.Client[3]
	client.Device[1] = Ledger{Begun: 1, Record: [2]Operation{1: {Delta: 60}}}
	client.Device[3] = Ledger{Begun: 1, Record: [2]Operation{1: {Delta: 100}}}
	s.usage.Device[1].Memory = Counter{Bytes: 60, Last: identity(3, 1)}
	s.usage.Device[3].Memory = Counter{Bytes: 100, Last: identity(3, 1)}
	// A tenant's word is good for no more than it holds.
	client.Exported, client.Released = [MaxDevices]uint64{1: 1 << 40, 2: 5, 3: 70}, [MaxDevices]uint64{1: 1 << 50, 3: 20}
	if exported, released := s.Exports(3); !slices.Equal(exported, []uint64{0, 60, 0, 70}) || !slices.Equal(released, []uint64{0, 60, 0, 20}) {
		t.Errorf("exported %v, released %v", exported, released)
	}
	for _, step := range []struct {
		keep       []uint64
		used, also uint64
		state      uint32
	}{
		{[]uint64{0, 60, 0, 70}, 70, 60, ClientLive},
		{[]uint64{0, 60, 0, 70}, 70, 60, ClientLive}, // nothing is given back twice
		{[]uint64{0, 0, 0, 40}, 40, 0, ClientLive},
		{[]uint64{0, 0, 0, 50}, 40, 0, ClientLive}, // nor taken again
		{nil, 0, 0, ClientFree},
	} {
		if !s.Settle(3, step.keep) || s.Used(3) != step.used || s.Used(1) != step.also || client.State != step.state {
			t.Errorf("keeping %v: %d and %d bytes are charged, state %d; want %+v", step.keep, s.Used(3), s.Used(1), client.State, step)
		}
	}
	s.Claim(3, Owner{PID: 2})
	if exported, released := s.Exports(3); !slices.Equal(exported, make([]uint64, 4)) || !slices.Equal(released, make([]uint64, 4)) {
		t.Errorf("the next client of that index has exported %v, released %v", exported, released)
	}
	if exported, released := s.Exports(MaxClients); len(exported) != 4 || len(released) != 4 {
		t.Errorf("of no client: %v, %v", exported, released)
	}
}

// TestHostileTenant: whatever the tenant writes, while it is read too, every call returns.
func TestHostileTenant(t *testing.T) {
	s := shared(t)
	random := rand.New(rand.NewPCG(1, 2))
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&s.usageMem[0])), UsageBytes/8)
	for range 20 {
		for i := range words {
			atomic.StoreUint64(&words[i], random.Uint64())
		}
		for i := range 100 {
			s.Settle(i, nil)
		}
		s.Settle(-1, nil)
		s.Settle(MaxClients, nil)
		for _, client := range []int{-1, 0, MaxClients - 1, MaxClients} {
			s.Charged(client)
		}
		if state := s.State(); len(state.Devices) != 4 {
			t.Fatalf("%d devices", len(state.Devices))
		}
	}
	var stop atomic.Bool
	var writers sync.WaitGroup
	for i := range 2 {
		writers.Go(func() {
			c, l := &s.usage.Device[3].Memory, &s.usage.Client[1].Device[3]
			for n := uint64(i + 1); !stop.Load(); n++ {
				atomic.StoreUint64(&c.Bytes, n)
				atomic.StoreUint64(&c.Last, 1<<sequenceBits|1<<40)
				atomic.StoreUint64(&l.Applied, 0)
			}
		})
	}
	s.usage.Client[5].Device[3] = Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Delta: 40}}}
	for range 100 {
		s.Settle(5, nil)
	}
	stop.Store(true)
	writers.Wait()
	if !s.Settle(5, nil) {
		t.Error("a client cannot be settled although nobody writes")
	}
}

func BenchmarkSettle(b *testing.B) {
	s := shared(b)
	for b.Loop() {
		s.usage.Client[5].Device[3] = Ledger{Begun: 1, Applied: 1, Record: [2]Operation{1: {Delta: 40}}}
		s.usage.Device[3].Memory.Bytes += 40
		s.Settle(5, nil)
	}
}
