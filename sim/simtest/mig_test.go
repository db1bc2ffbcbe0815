//go:build cgo

package simtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// alone is the variable that tells a test binary that it runs one test.
const alone = "LGPU_SIMTEST_ALONE"

// TestMIG asks the management library what programs ask that look for MIG instances, through NVIDIA's own Go binding. It does so
// in a process of its own: the binding binds to the library that is loaded first, for good.
func TestMIG(t *testing.T) {
	if os.Getenv(alone) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestMIG$", "-test.count=1")
		c.Env = append(os.Environ(), alone+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	shape, err := sim.ParseShape("2x1GiB,sms=15,context=16MiB,mig=3g+1g")
	if err != nil {
		t.Fatal(err)
	}
	socket := Serve(t, shape)
	dir := Libraries(t)
	t.Setenv(wire.Environment, socket)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(dir, "libnvidia-ml.so.1")))
	ok := func(what string, r nvml.Return) {
		t.Helper()
		if r != nvml.SUCCESS {
			t.Fatalf("%s: %v (%d)", what, lib.ErrorString(r), r)
		}
	}
	ok("init", lib.Init())
	defer lib.Shutdown()
	count, r := lib.DeviceGetCount()
	ok("count", r)
	if count != 2 {
		t.Fatalf("%d GPUs", count)
	}
	var uuids []string
	for g := range count {
		whole, r := lib.DeviceGetHandleByIndex(g)
		ok("handle", r)
		mode, pending, r := whole.GetMigMode()
		ok("mode", r)
		most, r := whole.GetMaxMigDeviceCount()
		ok("most", r)
		index, r := whole.GetIndex()
		ok("index", r)
		if mode != nvml.DEVICE_MIG_ENABLE || pending != mode || most != 7 || index != g {
			t.Errorf("GPU %d has mode %d, %d, at most %d instances and index %d", g, mode, pending, most, index)
		}
		if is, r := whole.IsMigDeviceHandle(); r != nvml.SUCCESS || is {
			t.Errorf("GPU %d is an instance: %v, %v", g, is, r)
		}
		if _, r := whole.GetGpuInstanceId(); r != nvml.ERROR_INVALID_ARGUMENT {
			t.Errorf("a GPU has a GPU instance: %v", r)
		}
		if _, r := whole.GetDeviceHandleFromMigDeviceHandle(); r != nvml.ERROR_INVALID_ARGUMENT {
			t.Errorf("a GPU has a GPU: %v", r)
		}
		if _, r := whole.GetMigDeviceHandleByIndex(2); r != nvml.ERROR_NOT_FOUND {
			t.Errorf("instance 2: %v", r)
		}
		if all, r := whole.GetMemoryInfo(); r != nvml.SUCCESS || all.Total != 1<<30 {
			t.Errorf("the memory of GPU %d: %+v, %v", g, all, r)
		}
		if _, r := whole.GetPowerUsage(); r != nvml.SUCCESS {
			t.Errorf("the power of GPU %d: %v", g, r)
		}
		for number, want := range []struct {
			name          string
			memory        uint64
			units, slices uint32
		}{{"lgpu Software GPU MIG 3g.1gb", 512 << 20, 6, 3}, {"lgpu Software GPU MIG 1g.1gb", 128 << 20, 2, 1}} {
			d, r := whole.GetMigDeviceHandleByIndex(number)
			ok("instance", r)
			name, r := d.GetName()
			ok("name", r)
			uuid, r := d.GetUUID()
			ok("UUID", r)
			memory, r := d.GetMemoryInfo()
			ok("memory", r)
			attributes, r := d.GetAttributes()
			ok("attributes", r)
			gi, r := d.GetGpuInstanceId()
			ok("GPU instance", r)
			ci, r := d.GetComputeInstanceId()
			ok("compute instance", r)
			index, r := d.GetIndex()
			ok("index", r)
			parent, r := d.GetDeviceHandleFromMigDeviceHandle()
			ok("parent", r)
			if name != want.name || !strings.HasPrefix(uuid, "MIG-") || memory.Total != want.memory || attributes.MultiprocessorCount != want.units ||
				attributes.GpuInstanceSliceCount != want.slices || attributes.ComputeInstanceSliceCount != want.slices ||
				attributes.MemorySizeMB != want.memory>>20 || gi != number+1 || ci != 0 || index != number || parent != whole {
				t.Errorf("instance %d of GPU %d is %q, %s, %+v, %+v, %d/%d, index %d", number, g, name, uuid, memory, attributes, gi, ci, index)
			}
			if is, r := d.IsMigDeviceHandle(); r != nvml.SUCCESS || !is {
				t.Errorf("instance %d of GPU %d is none: %v, %v", number, g, is, r)
			}
			if again, r := lib.DeviceGetHandleByUUID(uuid); r != nvml.SUCCESS || again != d {
				t.Errorf("%s is %v, %v", uuid, again, r)
			}
			if _, r := lib.DeviceGetHandleByUUID(strings.Replace(uuid, "MIG-", "GPU-", 1)); r != nvml.ERROR_NOT_FOUND {
				t.Errorf("%s as a GPU: %v", uuid, r)
			}
			for what, r := range map[string]nvml.Return{
				"power": second(d.GetPowerUsage()), "energy": second(d.GetTotalEnergyConsumption()),
				"utilisation": second(d.GetUtilizationRates()), "temperature": second(d.GetTemperature(nvml.TEMPERATURE_GPU)),
			} {
				if r != nvml.ERROR_NOT_SUPPORTED {
					t.Errorf("the %s of an instance: %v", what, r)
				}
			}
			uuids = append(uuids, uuid)
		}
		near, r := whole.GetTopologyNearestGpus(nvml.TOPOLOGY_NODE)
		ok("nearest", r)
		if n, _ := near[0].GetIndex(); len(near) != 1 || n != 1-g {
			t.Errorf("nearest to GPU %d: %v", g, near)
		}
	}
	program := filepath.Join(t.TempDir(), "instance")
	out, err := exec.Command(CC(), "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", filepath.Join(Source(), "../../tenant/abi/include"),
		"-o", program, filepath.Join(Source(), "../simtest/testdata/instance.c"), filepath.Join(dir, "libcuda.so.1")).CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	third := "1 lgpu Software GPU MIG 3g.1gb " + strings.ReplaceAll(uuids[2][4:], "-", "") + " 536870912 6\n"
	for visible, want := range map[string]string{
		"":                        "1 lgpu Software GPU MIG 3g.1gb " + strings.ReplaceAll(uuids[0][4:], "-", "") + " 536870912 6\n",
		uuids[2]:                  third,
		uuids[2] + "," + uuids[1]: third,
		uuids[3]:                  "1 lgpu Software GPU MIG 1g.1gb " + strings.ReplaceAll(uuids[3][4:], "-", "") + " 134217728 2\n",
		"GPU-" + uuids[3][4:]:     "no device\n",
	} {
		c := exec.Command(program)
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
		if visible != "" {
			c.Env = append(c.Env, "CUDA_VISIBLE_DEVICES="+visible)
		}
		if out, err := c.Output(); err != nil || string(out) != want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: %q, %v, want %q", visible, out, err, want)
		}
	}
}

// second is the result of a call that answers something as well.
func second[T any](_ T, r nvml.Return) nvml.Return { return r }
