// Package verbstest is a machine with mlx5 NICs for tests: a library in C that stands in for libibverbs and libmlx5,
// the part of sysfs that goes with it, and software HCAs that carry out what its queue pairs are given. The library
// keeps account of all objects, decodes commands by itself, refuses what a device would refuse, and fails any one call
// that a test names.
package verbstest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/verbs"
)

//go:embed testdata/fake.c
var source []byte

// Lack is what a machine lacks.
type Lack uint32

// Things to lack.
const (
	LackRC Lack = 1 << iota
	LackMaskedAtomics
	LackOverrunIgnore
	LackUncachedRegisters
	LackPeerMemory // memory cannot be registered by address
	LackDMABuf     // nor by a dma-buf
	LackDedicatedRegisters
)

// Machine is what to pretend.
type Machine struct {
	NICs     int // mlx5_0 and on, at most 8, with one port each; one of another maker is there as well
	Ethernet bool
	Lacks    Lack
	// Strict makes the HCAs refuse what hardware does not look at: see hca.Config.
	Strict uint8
}

// Fake is the machine. Its end, with the test, checks that nothing is left and that nothing was used that did not
// exist.
type Fake struct {
	t       testing.TB
	library uintptr
	path    string
	sysfs   string

	mu      sync.Mutex
	devices []*hca.Device
	queues  map[[2]uint32]*hca.Queue // by device and number

	portState  func(int32)
	failAt     func(int64)
	calls      func() int64
	live       func() int32
	complaint  func() string
	setDMABuf  func(uint64)
	commands   func() int32
	getCommand func(int32, unsafe.Pointer) int32
}

var compiled = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "verbstest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	input, output := filepath.Join(folder, "fake.c"), filepath.Join(folder, "fake.so")
	if err := os.WriteFile(input, source, 0o600); err != nil {
		return nil, err
	}
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-o", output, input).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("compile the stand-in: %w\n%s", err, out)
	}
	return os.ReadFile(output)
})

// New makes a machine.
func New(t testing.TB, m Machine) *Fake {
	t.Helper()
	binary, err := compiled()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no C compiler")
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{t: t, path: filepath.Join(t.TempDir(), "libfake.so"), sysfs: t.TempDir(), queues: map[[2]uint32]*hca.Queue{}}
	if err := errors.Join(os.WriteFile(f.path, binary, 0o700), f.populate(m)); err != nil {
		t.Fatal(err)
	}
	// A copy of its own, so that it has state of its own.
	if f.library, err = purego.Dlopen(f.path, purego.RTLD_NOW|purego.RTLD_LOCAL); err != nil {
		t.Fatal(err)
	}
	for name, function := range map[string]any{"fake_port_state": &f.portState, "fake_fail_at": &f.failAt, "fake_calls": &f.calls,
		"fake_live": &f.live, "fake_complaint": &f.complaint, "fake_commands": &f.commands, "fake_command": &f.getCommand,
		"fake_dmabuf": &f.setDMABuf} {
		purego.RegisterLibFunc(function, f.library, name)
	}
	var reset func(int32, int32, uint32)
	purego.RegisterLibFunc(&reset, f.library, "fake_reset")
	var hooks func(create, connect, destroy, register, deregister uintptr)
	purego.RegisterLibFunc(&hooks, f.library, "fake_hooks")
	ethernet := int32(0)
	if m.Ethernet {
		ethernet = 1
	}
	reset(int32(m.NICs), ethernet, uint32(m.Lacks))
	fabric := hca.NewLocal()
	for range m.NICs {
		d, err := hca.New(hca.Config{Fabric: fabric, Strict: m.Strict, Logf: t.Logf})
		if err != nil {
			t.Fatal(err)
		}
		f.devices = append(f.devices, d)
	}
	hooks(purego.NewCallback(f.create), purego.NewCallback(f.connect), purego.NewCallback(f.destroy), purego.NewCallback(f.register),
		purego.NewCallback(f.deregister))
	t.Cleanup(f.end)
	return f
}

// populate writes the part of sysfs.
func (f *Fake) populate(m Machine) error {
	var errs []error
	for i := range m.NICs {
		device := filepath.Join(f.sysfs, fmt.Sprintf("devices/pci0000:%02x/0000:%02x:00.0", 0x10+i, 0x20+i))
		class := filepath.Join(f.sysfs, "class/infiniband", fmt.Sprintf("mlx5_%d", i))
		types := filepath.Join(class, "ports/1/gid_attrs/types")
		errs = append(errs, os.MkdirAll(device, 0o755), os.MkdirAll(types, 0o755), os.Symlink(device, filepath.Join(class, "device")),
			os.WriteFile(filepath.Join(device, "numa_node"), []byte(strconv.Itoa(i%2)+"\n"), 0o600))
		for gid := range 8 { // in pairs of RoCE version 1 and 2, as the kernel makes them
			kind := []string{"IB/RoCE v1\n", "RoCE v2\n"}[gid%2]
			errs = append(errs, os.WriteFile(filepath.Join(types, strconv.Itoa(gid)), []byte(kind), 0o600))
		}
	}
	return errors.Join(errs...)
}

// Options are what verbs.Open must be given to be on the machine.
func (f *Fake) Options() verbs.Options {
	return verbs.Options{Verbs: f.path, MLX5: f.path, Sysfs: f.sysfs, GIDIndex: -1, RoCEVersion: 2, Retries: 7, AckTimeout: 20, Reads: 16, Log: f.t.Logf}
}

// SetPortState sets the state of all ports: 4 is active, 1 down.
func (f *Fake) SetPortState(state int) { f.portState(int32(state)) }

// SetDMABuf says what memory any dma-buf's descriptor stands for.
func (f *Fake) SetDMABuf(address uint64) { f.setDMABuf(address) }

// FailAt makes the n-th call from now fail, of those that can; 0: none.
func (f *Fake) FailAt(n int) { f.failAt(int64(n)) }

// Calls is how many calls that can fail there were since FailAt.
func (f *Fake) Calls() int { return int(f.calls()) }

// Live is the number of objects that exist.
func (f *Fake) Live() int { return int(f.live()) }

// Complaint is what the library was used for that makes no sense; "": nothing.
func (f *Fake) Complaint() string { return f.complaint() }

// Commands are those with an opcode, in order.
func (f *Fake) Commands(opcode uint16) [][]byte {
	var list [][]byte
	for i := range f.commands() {
		buffer := make([]byte, 4096)
		n := f.getCommand(i, unsafe.Pointer(&buffer[0]))
		if uint16(buffer[0])<<8|uint16(buffer[1]) == opcode {
			list = append(list, buffer[:n])
		}
	}
	return list
}

func (f *Fake) end() {
	if n := f.Live(); n != 0 {
		f.t.Errorf("%d objects of the library are left", n)
	}
	if c := f.Complaint(); c != "" {
		f.t.Errorf("the library was misused: %s", c)
	}
	for _, d := range f.devices {
		if err := d.Close(); err != nil {
			f.t.Error(err)
		}
	}
	if err := purego.Dlclose(f.library); err != nil {
		f.t.Error(err)
	}
}

func (f *Fake) queue(device int32, number uint32) *hca.Queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queues[[2]uint32{uint32(device), number}]
}

// create is called when a queue pair was made.
func (f *Fake) create(device int32, number uint32, wq, depth, record, cq, _ uint64) {
	q, err := f.devices[device].CreateQueue(hca.QueueConfig{Number: number, WQ: cuda.Bytes(wq, depth*64), Record: cuda.Bytes(record, 8),
		Producer: hca.ProducerRecord, CQ: cuda.Bytes(cq, 64), CQForm: hca.CQCollapsed, CQNumber: number, CQDepth: int(depth)})
	if err != nil {
		f.t.Errorf("create queue pair %#x of mlx5_%d: %v", number, device, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queues[[2]uint32{uint32(device), number}] = q
}

// connect is called when a queue pair becomes ready to send.
func (f *Fake) connect(device int32, number, lid, remote uint32) {
	q, other := f.queue(device, number), f.queue(int32(lid)-100, remote)
	if q == nil || other == nil {
		f.t.Errorf("connect queue pair %#x of mlx5_%d to %#x of LID %d: no such queue pair", number, device, remote, lid)
		return
	}
	if err := q.Connect(context.Background(), other.Endpoint()); err != nil {
		f.t.Error(err)
	}
}

// destroy is called before a queue pair goes.
func (f *Fake) destroy(device int32, number uint32) {
	q := f.queue(device, number)
	if q == nil {
		f.t.Errorf("destroy queue pair %#x of mlx5_%d: no such queue pair", number, device)
		return
	}
	if err := q.Close(); err != nil {
		f.t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.queues, [2]uint32{uint32(device), number})
}

// register is called when memory was registered.
func (f *Fake) register(device int32, key uint32, address, bytes, iova uint64, access uint32) {
	start := address &^ 7
	m, err := hca.NewHostMemory(iova-(address-start), cuda.Bytes(start, bytes+address-start))
	if err == nil {
		err = f.devices[device].RegisterMemory(key, iova, bytes, hca.Access(access)&hca.AllAccess, m)
	}
	if err != nil {
		f.t.Errorf("register memory with mlx5_%d: %v", device, err)
	}
}

// deregister is called before memory is deregistered.
func (f *Fake) deregister(device int32, key uint32) {
	if err := f.devices[device].DeregisterMemory(key); err != nil {
		f.t.Errorf("deregister memory of mlx5_%d: %v", device, err)
	}
}
