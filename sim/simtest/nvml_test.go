//go:build cgo

package simtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// TestNVML asks the management library what monitoring programs ask, through NVIDIA's own Go binding.
func TestNVML(t *testing.T) {
	shape := sim.Shape{Devices: 2, Memory: 512 << 20, Units: 4, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 16 << 20}
	dir := Libraries(t)
	t.Setenv(wire.Environment, Serve(t, shape))
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(dir, "libnvidia-ml.so.1")))
	ok := func(what string, r nvml.Return) {
		t.Helper()
		if r != nvml.SUCCESS {
			t.Fatalf("%s: %v (%d)", what, lib.ErrorString(r), r)
		}
	}
	ok("init", lib.Init())
	version, r := lib.SystemGetDriverVersion()
	ok("driver version", r)
	cuda, r := lib.SystemGetCudaDriverVersion()
	ok("CUDA version", r)
	if !strings.HasPrefix(version, "580.") || cuda != 13000 {
		t.Errorf("driver %s, CUDA %d", version, cuda)
	}
	count, r := lib.DeviceGetCount()
	ok("count", r)
	if count != shape.Devices {
		t.Fatalf("%d devices, want %d", count, shape.Devices)
	}
	if _, r := lib.DeviceGetHandleByIndex(count); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a handle beyond the last: %v", r)
	}
	var devices []nvml.Device
	for i := range count {
		d, r := lib.DeviceGetHandleByIndex(i)
		ok("handle", r)
		devices = append(devices, d)
		name, r := d.GetName()
		ok("name", r)
		uuid, r := d.GetUUID()
		ok("UUID", r)
		serial, r := d.GetSerial()
		ok("serial", r)
		pci, r := d.GetPciInfo()
		ok("PCI", r)
		index, r := d.GetIndex()
		ok("index", r)
		memory, r := d.GetMemoryInfo()
		ok("memory", r)
		memory2, r := d.GetMemoryInfo_v2()
		ok("memory v2", r)
		if name == "" || len(uuid) != 40 || !strings.HasPrefix(uuid, "GPU-") || index != i {
			t.Errorf("device %d is %q, %q, index %d", i, name, uuid, index)
		}
		if memory.Total != shape.Memory || memory.Used+memory.Free != memory.Total || memory2.Total != shape.Memory {
			t.Errorf("device %d: memory %+v, %+v", i, memory, memory2)
		}
		busID := make([]byte, 0, 32)
		for _, c := range pci.BusId {
			if c == 0 {
				break
			}
			busID = append(busID, byte(c))
		}
		for what, find := range map[string]func() (nvml.Device, nvml.Return){
			"UUID":   func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUID(uuid) },
			"serial": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleBySerial(serial) },
			"PCI":    func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(string(busID)) },
		} {
			again, r := find()
			ok("handle by "+what, r)
			if n, _ := again.GetIndex(); n != i {
				t.Errorf("device %d by %s is device %d", i, what, n)
			}
		}
		major, minor, r := d.GetCudaComputeCapability()
		ok("compute capability", r)
		if major < 7 || minor < 0 {
			t.Errorf("compute capability %d.%d", major, minor)
		}
		cores, r := d.GetNumGpuCores()
		ok("cores", r)
		if cores%shape.Units != 0 || cores == 0 {
			t.Errorf("%d cores on %d units", cores, shape.Units)
		}
		current, pending, r := d.GetMigMode()
		ok("MIG mode", r)
		if current != 0 || pending != 0 {
			t.Error("MIG is on")
		}
		_, r = d.GetUtilizationRates()
		ok("utilisation", r)
		_, r = d.GetTemperature(nvml.TEMPERATURE_GPU)
		ok("temperature", r)
		_, r = d.GetPowerUsage()
		ok("power", r)
		_, r = d.GetClockInfo(nvml.CLOCK_SM)
		ok("clock", r)
		_, r = d.GetPerformanceState()
		ok("performance state", r)
		_, r = d.GetBAR1MemoryInfo()
		ok("BAR1", r)
		_, r = d.GetCpuAffinity(16)
		ok("affinity", r)
		if mode, r := d.GetComputeMode(); r != nvml.SUCCESS || mode != nvml.COMPUTEMODE_DEFAULT {
			t.Errorf("compute mode %v, %v", mode, r)
		}
		if processes, r := d.GetComputeRunningProcesses(); r != nvml.SUCCESS || len(processes) != 0 {
			t.Errorf("processes %v, %v", processes, r)
		}
		if _, r := d.GetProcessUtilization(0); r != nvml.ERROR_NOT_FOUND {
			t.Errorf("samples of no process: %v", r)
		}
		if _, r := d.GetFanSpeed(); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("a fan: %v", r)
		}
		if _, r := d.GetNvLinkState(0); r != nvml.ERROR_NOT_SUPPORTED {
			t.Errorf("an NVLink: %v", r)
		}
	}
	level, r := devices[0].GetTopologyCommonAncestor(devices[1])
	ok("topology", r)
	if level != nvml.TOPOLOGY_NODE {
		t.Errorf("topology %v", level)
	}
	for _, level := range []nvml.GpuTopologyLevel{nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_HOSTBRIDGE, nvml.TOPOLOGY_NODE,
		nvml.TOPOLOGY_SYSTEM} {
		near, r := devices[0].GetTopologyNearestGpus(level)
		ok("nearest", r)
		if want := map[bool]int{true: 1}[level == nvml.TOPOLOGY_NODE]; len(near) != want || want == 1 && near[0] != devices[1] {
			t.Errorf("nearest at level %d: %v", level, near)
		}
	}
	if _, r := devices[0].GetTopologyNearestGpus(7); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("nearest at no level: %v", r)
	}
	if set, r := lib.SystemGetTopologyGpuSet(0); r != nvml.SUCCESS || len(set) != 2 || set[0] != devices[0] || set[1] != devices[1] {
		t.Errorf("devices of CPU 0: %v, %v", set, r)
	}
	if _, r := lib.SystemGetTopologyGpuSet(1 << 20); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("devices of no CPU: %v", r)
	}
	status, r := devices[0].GetP2PStatus(devices[1], nvml.P2P_CAPS_INDEX_READ)
	if r != nvml.SUCCESS || status != nvml.P2P_STATUS_OK {
		t.Errorf("peer to peer: %v, %v", status, r)
	}
	if units, r := lib.UnitGetCount(); r != nvml.SUCCESS || units != 0 {
		t.Errorf("%d units, %v", units, r)
	}
	if _, r := lib.UnitGetHandleByIndex(0); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a unit: %v", r)
	}
	if cards, r := lib.SystemGetHicVersion(); r != nvml.SUCCESS || len(cards) != 0 {
		t.Errorf("cards %v, %v", cards, r)
	}
	for _, pid := range []int{1, os.Getpid()} {
		if name, r := lib.SystemGetProcessName(pid); r != nvml.SUCCESS || name == "" {
			t.Errorf("process %d is %q, %v", pid, name, r)
		}
	}
	if _, r := lib.SystemGetProcessName(1 << 30); r != nvml.ERROR_NOT_FOUND {
		t.Errorf("the name of no process: %v", r)
	}
	set, r := lib.EventSetCreate()
	ok("event set", r)
	if _, r := set.Wait(1); r != nvml.ERROR_TIMEOUT {
		t.Errorf("an event: %v", r)
	}
	ok("free event set", set.Free())
	ok("shutdown", lib.Shutdown())
	if _, r := lib.DeviceGetCount(); r != nvml.ERROR_UNINITIALIZED {
		t.Errorf("count after shutdown: %v", r)
	}
}

// TestExports looks at the names that the libraries export: each that the real ones have, and nothing else.
func TestExports(t *testing.T) {
	dir := Libraries(t)
	for library, list := range map[string]string{"libcuda.so.1": "libcuda.map", "libnvidia-ml.so.1": "libnvidia-ml.map"} {
		text, err := os.ReadFile(filepath.Join(Source(), list))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for _, line := range strings.Split(string(text), "\n") {
			if name, ok := strings.CutSuffix(strings.TrimPrefix(line, "\t"), ";"); ok && name != "*" && name != "}" {
				want[name] = true
			}
		}
		got := exports(t, filepath.Join(dir, library))
		for name := range want {
			if !got[name] {
				t.Errorf("%s does not export %s", library, name)
			}
		}
		for name := range got {
			if !want[name] {
				t.Errorf("%s exports %s too", library, name)
			}
		}
	}
}
