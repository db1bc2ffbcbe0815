package ctxswitch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
)

// TestLayout holds the structures against the sizes of the driver's.
func TestLayout(t *testing.T) {
	for _, s := range []struct {
		name      string
		got, want uintptr
	}{
		{"NVOS21_PARAMETERS", unsafe.Sizeof(allocation{}), 32},
		{"NVOS54_PARAMETERS", unsafe.Sizeof(control{}), 32},
		{"nv_ioctl_nvos33_parameters_with_fd", unsafe.Sizeof(mapping{}), 56},
		{"its fd", unsafe.Offsetof(mapping{}.file), 48},
		{"NV0080_ALLOC_PARAMETERS", unsafe.Sizeof(deviceParams{}), 56},
		{"NV2080_ALLOC_PARAMETERS", unsafe.Sizeof(subdeviceParams{}), 4},
		{"NV_MEMORY_ALLOCATION_PARAMS", unsafe.Sizeof(memoryParams{}), 128},
		{"its size", unsafe.Offsetof(memoryParams{}.size), 64},
		{"its numaNode", unsafe.Offsetof(memoryParams{}.node), 120},
		{"NV_EVENT_BUFFER_ALLOC_PARAMETERS", unsafe.Sizeof(bufferParams{}), 72},
		{"its hSubDevice", unsafe.Offsetof(bufferParams{}.subdevice), 52},
		{"NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS", unsafe.Sizeof(bindParams{}), 24},
		{"its reasonCode", unsafe.Offsetof(bindParams{}.reason), 20},
		{"NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS", unsafe.Sizeof(enableParams{}), 8},
		{"NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS", unsafe.Sizeof(uuidParams{}), 272},
		{"NV_EVENT_BUFFER_HEADER", unsafe.Sizeof(header{}), 16},
	} {
		if s.got != s.want {
			t.Errorf("%s: %d, want %d", s.name, s.got, s.want)
		}
	}
}

// sequence is what Open does, and what an error says of each step.
var sequence = []struct{ call, says string }{
	{"open /dev/nvidiactl", "open /dev/nvidiactl"},
	{"allocate 0x41", "allocate a client"},
	{"open /dev/nvidia3", "open /dev/nvidia3"},
	{"command 0x274", "find the GPU by its UUID"},
	{"allocate 0x80", "allocate the device"},
	{"allocate 0x2080", "allocate the subdevice"},
	{"allocate 0x90ce", "allocate the header's memory"},
	{"allocate 0x90ce", "allocate the ring's memory"},
	{"allocate 0x90cd", "allocate the event buffer"},
	{"command 0x20801238 true", "log the switches of all users"},
	{"command 0x90cd0101", "enable the event buffer"},
	{"open /dev/nvidiactl", "map the header: open /dev/nvidiactl"},
	{"map 0xd0003", "map the header"},
	{"mmap", "map the header: mmap"},
	{"open /dev/nvidiactl", "map the ring: open /dev/nvidiactl"},
	{"map 0xd0004", "map the ring"},
	{"mmap", "map the ring: mmap"},
	{"command 0x20800403", "read the GPU's clock"},
	{"command 0x90cd0104", "flush the event buffer"},
}

func TestSequence(t *testing.T) {
	d := newDriver(t)
	trace, err := openOn(d, gpus[1])
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, step := range sequence {
		want = append(want, step.call)
	}
	if !slices.Equal(d.calls, want) {
		t.Errorf("calls %q, want %q", d.calls, want)
	}
	if !trace.AllUsers() {
		t.Error("only this user's programs")
	}
	for range 2 {
		if err := trace.Close(); err != nil {
			t.Error(err)
		}
	}
	d.empty()
	if turns, err := trace.Turns(nil); !errors.Is(err, os.ErrClosed) || turns != nil {
		t.Errorf("after Close: %v, %v", turns, err)
	}
}

// TestEachStepFails: whatever fails, everything is given back and the error says what it was, on which device.
func TestEachStepFails(t *testing.T) {
	for n, step := range sequence {
		for _, failure := range []error{syscall.EIO, gpuIsLost} {
			d := newDriver(t)
			d.failAt, d.failure = n, failure
			if strings.Contains(step.call, "true") { // what another try may mend
				d.refuse[false] = gpuIsLost
			}
			trace, err := openOn(d, gpus[1])
			if err == nil {
				t.Fatalf("%s: %v did not matter", step.call, failure)
			}
			if trace != nil || !strings.Contains(err.Error(), step.says) || !strings.Contains(err.Error(), "1 (GPU-bb000000)") {
				t.Errorf("%s: %v", step.call, err)
			}
			if errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v is for good", step.call, err)
			}
			d.empty()
		}
	}
}

// TestUnsupported: errors that no further try will mend say so, and what would.
func TestUnsupported(t *testing.T) {
	failing := func(call string, failure error) func(*driver) {
		n := slices.IndexFunc(sequence, func(s struct{ call, says string }) bool { return s.call == call })
		return func(d *driver) { d.failAt, d.failure = n, failure }
	}
	tests := []struct {
		name   string
		change func(*driver)
		device gpu.Device
		says   []string
	}{
		{"no driver", failing("open /dev/nvidiactl", syscall.ENOENT), gpus[1], []string{"/dev/nvidiactl", "container"}},
		{"no device file", failing("open /dev/nvidia3", syscall.ENOENT), gpus[1], []string{"/dev/nvidia3", "container"}},
		{"forbidden file", failing("open /dev/nvidia3", syscall.EACCES), gpus[1], []string{"/dev/nvidia3", "root"}},
		{"cgroup of devices", failing("open /dev/nvidia3", syscall.EPERM), gpus[1], []string{"/dev/nvidia3", "root"}},
		{"forbidden class", failing("allocate 0x90cd", insufficientPermissions), gpus[1], []string{"0x1b", "0x90cd", "root"}},
		{"old driver", failing("allocate 0x90ce", invalidClass), gpus[1], []string{"0x22", "0x90ce", "driver 580"}},
		{"other layout", failing("allocate 0x90ce", invalidParamStruct), gpus[1], []string{"0x3a", "driver 580"}},
		{"sandbox", failing("command 0x90cd0101", syscall.EINVAL), gpus[1], []string{"0x90cd0101", "sandbox"}},
		{"GPU elsewhere", func(*driver) {}, gpu.Device{UUID: gpu.UUID{1}, Node: "195:3"}, []string{"0x57", "UUID"}},
		{"no administrator", func(d *driver) {
			d.refuse = map[bool]status{true: insufficientPermissions, false: notSupported}
			d.reason = 4
		}, gpus[1], []string{"0x1b", "all users", "administrator", "reason 4", "root"}},
		{"old GPU", func(d *driver) {
			d.refuse = map[bool]status{true: notSupported, false: notSupported}
			d.reason = 1
		}, gpus[1], []string{"0x56", "too old", "reason 1"}},
		{"unknown reason", func(d *driver) {
			d.refuse = map[bool]status{true: notSupported, false: notSupported}
			d.reason = 77
		}, gpus[1], []string{"reason 77"}},
		{"GPU in MIG mode", func(*driver) {}, gpu.Device{Node: "195:3", Partitioned: true}, []string{"MIG"}},
		{"MIG instance", func(*driver) {}, gpu.Device{Parent: gpu.UUID{1}}, []string{"MIG"}},
		{"no GPU", func(*driver) {}, gpu.Device{Node: "x"}, []string{"device file"}},
		{"path for a minor number", func(*driver) {}, gpu.Device{Node: "195:../x"}, []string{"device file"}},
	}
	for _, test := range tests {
		d := newDriver(t)
		test.change(d)
		_, err := openOn(d, test.device)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		for _, part := range test.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v lacks %q", test.name, err, part)
			}
		}
		d.empty()
	}
	// The cause stays visible.
	d := newDriver(t)
	failing("open /dev/nvidiactl", syscall.ENOENT)(d)
	if _, err := openOn(d, gpus[1]); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestOwnUser: who may not read all users' switches gets its own.
func TestOwnUser(t *testing.T) {
	d := newDriver(t)
	d.refuse[true] = insufficientPermissions
	trace, err := openOn(d, gpus[1])
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	if trace.AllUsers() || !d.bound[false] {
		t.Errorf("all users: %v; bound %v", trace.AllUsers(), d.bound)
	}
}

// TestKernel tries what the real kernel does, with files that every machine has.
func TestKernel(t *testing.T) {
	var k kernel
	path := filepath.Join(t.TempDir(), "memory")
	if _, err := k.open(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := k.open(path)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("programs that this one starts would have the file: %#x, %v", flags, err)
	}
	var argument control
	err = k.ioctl(fd, request(ioctlControl, unsafe.Sizeof(argument)), unsafe.Pointer(&argument))
	if err == nil || !errors.Is(advise(err), errors.ErrUnsupported) {
		t.Errorf("ioctl of a file that is no driver's: %v", err)
	}
	memory, err := k.mmap(fd, 5)
	if err != nil || string(memory) != "hello" {
		t.Fatal(memory, err)
	}
	if err := errors.Join(k.munmap(memory), k.close(fd)); err != nil {
		t.Error(err)
	}
}

// TestStrangeHeader: an index beyond the ring is refused at the start and told as nothing later.
func TestStrangeHeader(t *testing.T) {
	d := newDriver(t)
	h := (*header)(unsafe.Pointer(&d.header[0]))
	h.put = slots
	if _, err := openOn(d, gpus[1]); err == nil {
		t.Error("no error")
	}
	d.empty()
	d = newDriver(t)
	h = (*header)(unsafe.Pointer(&d.header[0]))
	trace, err := openOn(d, gpus[1])
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	d.putAt = func(*driver) { h.put = 1 << 31 }
	if turns, err := trace.Turns(nil); err != nil || turns != nil {
		t.Errorf("%v, %v", turns, err)
	}
}

// start and end are records of a context's turn.
func start(pid uint32, time uint64) record {
	return record{kind: kindSwitch, tag: tagSimple, pid: pid, time: time}
}

func end(pid uint32, time uint64) record {
	return record{kind: kindSwitch, tag: tagEnd, pid: pid, time: time}
}

func opened(t *testing.T) (*driver, *Trace) {
	t.Helper()
	d := newDriver(t)
	d.queue = []record{start(1, 1), end(1, 2), start(1, 3)} // of the time before
	trace, err := openOn(d, gpus[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := trace.Close(); err != nil {
			t.Error(err)
		}
		d.empty()
	})
	return d, trace
}

// TestTurns reads as the daemon does, look by look.
func TestTurns(t *testing.T) {
	d, trace := opened(t)
	looks := []struct {
		clock   uint64
		records []record
		want    []gpu.Turn
	}{
		{90, nil, nil},
		{100, []record{end(1, 95)}, nil}, // its start was before Open
		{200, []record{start(7, 110), end(7, 150), start(8, 160)},
			[]gpu.Turn{{PID: 7, Start: 110, End: 150}, {PID: 8, Start: 160, End: 200, Unfinished: true}}},
		{300, nil, []gpu.Turn{{PID: 8, Start: 160, End: 300, Unfinished: true}}},
		{400, []record{end(8, 310), start(pidKernel, 320), end(pidKernel, 330), start(0, 340), end(0, 350)},
			[]gpu.Turn{{PID: 8, Start: 160, End: 310}, {Start: 320, End: 330}, {Start: 340, End: 350}}},
		// A record may be newer than the clock, which was read before it came.
		{500, []record{start(9, 510)}, []gpu.Turn{{PID: 9, Start: 510, End: 510, Unfinished: true}}},
	}
	before := gpu.Turn{PID: 3, Start: 1, End: 2}
	for n, look := range looks {
		d.clock, d.queue = look.clock, append(d.queue, look.records...)
		d.calls = d.calls[:0]
		got, err := trace.Turns([]gpu.Turn{before})
		if err != nil {
			t.Fatal(err)
		}
		if want := append([]gpu.Turn{before}, look.want...); !slices.Equal(got, want) {
			t.Errorf("look %d: %+v, want %+v", n, got, want)
		}
		if want := []string{"command 0x20800403", "command 0x90cd0104"}; !slices.Equal(d.calls, want) {
			t.Errorf("look %d: calls %q, want %q", n, d.calls, want)
		}
	}
	if trace.Lost() != 0 {
		t.Errorf("%d lost", trace.Lost())
	}
}

// TestManyRounds goes round the ring, and the numbers of records around theirs, several times. Nothing may be missing.
func TestManyRounds(t *testing.T) {
	d, trace := opened(t)
	var turns []gpu.Turn
	total, clock := 0, uint64(1000)
	for total < 5<<16 {
		for range 1 + total%(most/2) {
			d.queue = append(d.queue, start(7, clock), end(7, clock+10))
			clock += 20
			total++
		}
		d.clock = clock
		var err error
		if turns, err = trace.Turns(turns); err != nil {
			t.Fatal(err)
		}
	}
	if len(turns) != total || trace.Lost() != 0 {
		t.Errorf("%d turns of %d; %d records lost", len(turns), total, trace.Lost())
	}
	for n, turn := range turns {
		if want := (gpu.Turn{PID: 7, Start: 1000 + 20*int64(n), End: 1010 + 20*int64(n)}); turn != want {
			t.Fatalf("turn %d is %+v, want %+v", n, turn, want)
		}
	}
}

// TestOverrun: after more records than the ring holds nothing is told until a turn begins anew, even where the numbers
// of the records, which begin again after 2^16, look as if nothing were missing.
func TestOverrun(t *testing.T) {
	for _, records := range []int{slots - 2, slots, slots + 2, 4 * slots} {
		d, trace := opened(t)
		d.queue = append(d.queue, start(5, 500))
		d.clock = 600
		if turns, err := trace.Turns(nil); err != nil || len(turns) != 1 {
			t.Fatal(turns, err)
		}
		for n := range records / 2 {
			d.queue = append(d.queue, start(7, 1000+20*uint64(n)), end(7, 1010+20*uint64(n)))
		}
		d.clock = 1e9
		if turns, err := trace.Turns(nil); err != nil || len(turns) != 0 {
			t.Errorf("%d records: %d turns, %v", records, len(turns), err)
		}
		if trace.Lost() < uint64(records) {
			t.Errorf("%d records: %d lost", records, trace.Lost())
		}
		d.queue = append(d.queue, end(6, 2e9), start(8, 2e9+10), end(8, 2e9+20))
		d.clock = 3e9
		turns, err := trace.Turns(nil)
		if want := []gpu.Turn{{PID: 8, Start: 2e9 + 10, End: 2e9 + 20}}; err != nil || !slices.Equal(turns, want) {
			t.Errorf("%d records: %v, %v; want %v", records, turns, err, want)
		}
	}
}

// TestReadFails: an error of a look names the call and takes nothing away.
func TestReadFails(t *testing.T) {
	for n, says := range []string{"read the GPU's clock", "flush the event buffer"} {
		d, trace := opened(t)
		d.failAt, d.failure = len(d.calls)+n, gpuIsLost
		had := []gpu.Turn{{PID: 3}}
		turns, err := trace.Turns(had)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "0xf") ||
			!errors.Is(err, gpuIsLost) || !slices.Equal(turns, had) {
			t.Errorf("%v, %v", turns, err)
		}
	}
}

// TestNoMemory: a look into a slice that is large enough allocates nothing.
func TestNoMemory(t *testing.T) {
	d, trace := opened(t)
	trace.files = quiet{d}
	turns := make([]gpu.Turn, 0, 8)
	time := uint64(1000)
	if n := testing.AllocsPerRun(100, func() {
		time += 100
		d.queue = append(d.queue[:0], start(7, time), end(7, time+50), start(8, time+60))
		d.flush()
		if got, err := trace.Turns(turns[:0]); err != nil || len(got) < 2 {
			t.Errorf("%v, %v", got, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	trace.files = d
}

// quiet is a driver whose calls do nothing, without memory.
type quiet struct{ *driver }

func (quiet) ioctl(int, uintptr, unsafe.Pointer) error { return nil }
