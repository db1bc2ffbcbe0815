package nvidia

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/sim/simtest"
)

func TestNoDriver(t *testing.T) {
	t.Setenv("LGPU_REAL_LIBNVML", "/nonexistent/libnvidia-ml.so.1")
	if i, err := Open(); !errors.Is(err, ErrNoDriver) {
		t.Errorf("Open() = %v, %v; want ErrNoDriver", i, err)
	}
}

// A library that is not NVML is refused by the name of what it lacks, not called.
func TestOtherLibrary(t *testing.T) {
	t.Setenv("LGPU_REAL_LIBNVML", "libc.so.6")
	if i, err := Open(); err == nil {
		t.Errorf("Open() = %v with libc for NVML", i)
	}
}

// openFake opens the management library of testdata.
func openFake(t *testing.T) *Inventory {
	t.Helper()
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	cc := exec.Command(simtest.CC(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-I../../tenant/abi/include",
		"-o", library, "testdata/mig.c")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cc, err, out)
	}
	t.Setenv("LGPU_REAL_LIBNVML", library)
	i, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func TestInstances(t *testing.T) {
	i := openFake(t)
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	id := func(last byte) gpu.UUID { return gpu.UUID{15: last} }
	want := []gpu.Device{
		{
			UUID: id(0x0a), Index: 0, Name: "NVIDIA Fake", Memory: 96 << 30, Units: 132, PCI: "00000000:01:00.0",
			Node:        "195:40",
			Partitioned: true,
		},
		{
			UUID: id(0xa0), Index: 0, Name: "NVIDIA Fake MIG 1g.12gb", Memory: 12 << 30, Units: 16,
			PCI:    "00000000:01:00.0",
			Parent: id(0x0a), GPUInstance: 7,
		},
		{
			UUID: id(0xa2), Index: 2, Name: "NVIDIA Fake MIG 3g.48gb", Memory: 48 << 30, Units: 60,
			PCI:    "00000000:01:00.0",
			Parent: id(0x0a), GPUInstance: 2, ComputeInstance: 1,
		},
		{UUID: id(0x0b), Index: 1, Name: "NVIDIA Fake", Memory: 96 << 30, Units: 132, PCI: "00000000:02:00.0",
			Node: "195:41"},
	}
	if len(devices) != len(want) {
		t.Fatalf("%d devices: %v", len(devices), devices)
	}
	for n, d := range devices {
		if d != want[n] {
			t.Errorf("device %d is %+v, want %+v", n, d, want[n])
		}
	}
	if chosen, err := gpu.Select(gpu.Usable(devices), []string{"0:2", "1"}); err != nil || chosen[0] != want[2] ||
		chosen[1] != want[3] {
		t.Errorf("chosen %v, %v", chosen, err)
	}
}

func TestFacts(t *testing.T) {
	i := openFake(t)
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	f, err := i.Facts(devices[3].UUID)
	if err != nil {
		t.Fatal(err)
	}
	if f.MemoryUsed != 7<<30 || f.Utilisation != 80 || f.MemoryUtilisation != 20 {
		t.Errorf("%+v", f)
	}
	if f.Power == nil || *f.Power != 312500 || f.Energy == nil || *f.Energy != 1<<40 || f.Temperature == nil || *f.Temperature != 41 {
		t.Errorf("sensors: %+v", f)
	}
	// More processes than the first try has room for, one of them only on the list of graphics.
	if len(f.Processes) != 101 {
		t.Fatalf("%d processes", len(f.Processes))
	}
	for n, want := range map[int]gpu.Process{
		0:   {PID: 7, Memory: 5 << 20},
		1:   {PID: 1000, Memory: 1 << 20, Utilisation: 33}, // the newest sample
		2:   {PID: 1001},                                   // unknown memory, a sample too old
		100: {PID: 1099, Memory: 100 << 20},
	} {
		if f.Processes[n] != want {
			t.Errorf("process %d is %+v, want %+v", n, f.Processes[n], want)
		}
	}
	// An instance has neither utilisation nor graphics, only its own processes.
	f, err = i.Facts(devices[1].UUID)
	if err != nil || f.Utilisation != -1 || len(f.Processes) != 1 || f.Processes[0] != (gpu.Process{PID: 1000,
		Memory: 1 << 20, Utilisation: -1}) {
		t.Errorf("an instance: %+v, %v", f, err)
	}
	if _, err := i.Facts(gpu.UUID{1}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown device: %v", err)
	}
}

// A GPU has a counter of energy, a MIG instance has none.
func TestEnergy(t *testing.T) {
	i := openFake(t)
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if mj, err := i.Energy(devices[3].UUID); mj != 1<<40 || err != nil {
		t.Errorf("%d mJ, %v", mj, err)
	}
	for _, d := range devices[:3] {
		if _, err := i.Energy(d.UUID); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", d.Identity(), err)
		}
		if f, err := i.Facts(d.UUID); err != nil || f.Power != nil || f.Energy != nil || f.Temperature != nil {
			t.Errorf("%s: %+v, %v", d.Identity(), f, err)
		}
	}
	if _, err := i.Energy(gpu.UUID{1}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown device: %v", err)
	}
}

// The management library of testdata has no driver below it, so nobody can meter its devices; each error says why.
func TestNoMeter(t *testing.T) {
	if inNamespace() {
		t.Skip("in a PID namespace of its own nobody can meter a device, whatever the driver")
	}
	i := openFake(t)
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for n, why := range []string{"MIG", "MIG", "MIG", "/dev/nvidia"} {
		m, err := i.Meter(devices[n].UUID)
		if m != nil || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v", devices[n].Identity(), m, err)
		}
	}
	if m, err := i.Meter(gpu.UUID{1}); m != nil || !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown device: %v, %v", m, err)
	}
}

// On a machine with a driver, what it says makes sense.
func TestMachine(t *testing.T) {
	i, err := Open()
	if errors.Is(err, ErrNoDriver) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		f, err := i.Facts(d.UUID)
		if err != nil {
			t.Errorf("%s: %v", d.Identity(), err)
		}
		t.Logf("%+v: %+v", d, f)
		if d.Memory == 0 || d.Units == 0 && !d.Partitioned || f.MemoryUsed > d.Memory {
			t.Errorf("%+v: %+v", d, f)
		}
		if _, err := os.Stat("/dev/nvidia0"); err == nil && !d.MIG() && d.Node == "" {
			t.Errorf("%s has no device node", d.Identity())
		}
		meter(t, i, d)
	}
}

// meter looks at d's meter, if it has one.
func meter(t *testing.T, i *Inventory, d gpu.Device) {
	m, err := i.Meter(d.UUID)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Logf("%s: %v", d.Identity(), err)
		return
	}
	if err != nil {
		t.Errorf("%s: %v", d.Identity(), err)
		return
	}
	turns, err := m.Turns(nil)
	for _, turn := range turns {
		if turn.Start <= 0 || turn.End < turn.Start {
			t.Errorf("%s: %+v", d.Identity(), turn)
		}
	}
	if err := errors.Join(err, m.Close()); err != nil {
		t.Errorf("%s: %v", d.Identity(), err)
	}
}
