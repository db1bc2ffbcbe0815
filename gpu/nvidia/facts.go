package nvidia

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/nvidia/ctxswitch"
)

// utilisation is NVML's nvmlUtilization_t, in percent.
type utilisation struct{ GPU, Memory uint32 }

// processInfo is NVML's nvmlProcessInfo_t, which versions 2 and 3 of the lists of processes share.
type processInfo struct {
	PID                          uint32
	Memory                       uint64 // bytes, or unknownMemory
	GPUInstance, ComputeInstance uint32
}

// unknownMemory stands where the driver cannot tell what a process holds.
const unknownMemory = 1<<64 - 1

// processSample is NVML's nvmlProcessUtilizationSample_t.
type processSample struct {
	PID                        uint32
	Time                       uint64 // microseconds of the wall clock
	SM, Memory, Encode, Decode uint32
}

// sampleAge is how old a sample of a process's activity may be. The driver takes one about every 200 ms.
const sampleAge = 1500 * time.Millisecond

// Facts returns what NVML knows about one of the devices that Devices returned last. Processes are sorted by their id;
// a client of MPS counts as one.
func (i *Inventory) Facts(uuid gpu.UUID) (gpu.Facts, error) {
	h, known := i.handles[uuid]
	if !known {
		return gpu.Facts{}, fmt.Errorf("GPU %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	var memory memoryInfo
	if result := i.memory(h, &memory); result != success {
		return gpu.Facts{}, i.fail("read the memory in use", result)
	}
	f := gpu.Facts{MemoryUsed: memory.Used, Utilisation: -1, MemoryUtilisation: -1, Namespaced: i.namespaced}
	var u utilisation
	if i.utilisation(h, &u) == success { // a MIG instance has none
		f.Utilisation, f.MemoryUtilisation = int(u.GPU), int(u.Memory)
	}
	i.sense(h, &f)
	i.hear()
	f.Fault = i.fault(uuid)
	held := map[uint32]uint64{}
	for _, list := range []func(handle, *uint32, *processInfo) int32{i.compute, i.graphics, i.mps} {
		if err := i.running(h, list, held); err != nil {
			return gpu.Facts{}, err
		}
	}
	busy := i.activity(h, len(held))
	for pid, bytes := range held {
		p := gpu.Process{PID: int(pid), Memory: bytes, Utilisation: -1}
		if busy != nil {
			p.Utilisation = int(busy[pid].SM)
		}
		f.Processes = append(f.Processes, p)
	}
	slices.SortFunc(f.Processes, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return f, nil
}

// chip is NVML's NVML_TEMPERATURE_GPU.
const chip = 0

// sense adds what the device's sensors say, as far as it has them: a MIG instance has none.
func (i *Inventory) sense(h handle, f *gpu.Facts) {
	var power, degrees uint32
	var energy uint64
	if i.power(h, &power) == success {
		f.Power = &power
	}
	if i.energy(h, &energy) == success {
		f.Energy = &energy
	}
	if i.temperature(h, chip, &degrees) == success {
		celsius := int32(degrees)
		f.Temperature = &celsius
	}
}

// Energy reads the counter of one of the devices that Devices returned last. GPUs since Volta have one, MIG instances
// have none.
func (i *Inventory) Energy(uuid gpu.UUID) (uint64, error) {
	h, known := i.handles[uuid]
	if !known {
		return 0, fmt.Errorf("GPU %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	var mj uint64
	switch result := i.energy(h, &mj); result {
	case success:
		return mj, nil
	case notSupported, functionNotFound, invalidArgument:
		return 0, fmt.Errorf("GPU %s has no counter of energy: %w", uuid, errors.ErrUnsupported)
	default:
		return 0, i.fail("read the counter of energy", result)
	}
}

// initialNamespace names the PID namespace that the kernel begins with, whose numbers NVML gives: the kernel fixes it
// (PROC_PID_INIT_INO).
const initialNamespace = "pid:[4026531836]"

// inNamespace reports whether this process is in another PID namespace than the initial one.
func inNamespace() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name != initialNamespace
}

// running adds the processes of one of NVML's lists and the memory they hold. A process is on several lists with the
// same amount.
func (i *Inventory) running(h handle, list func(handle, *uint32, *processInfo) int32, held map[uint32]uint64) error {
	infos := make([]processInfo, 64)
	for {
		n := uint32(len(infos))
		result := list(h, &n, &infos[0])
		switch {
		case result == notSupported || result == functionNotFound:
			return nil
		case result == insufficientSize && int(n) >= len(infos):
			infos = make([]processInfo, 2*n+1) // more may come meanwhile
			continue
		case result != success:
			return i.fail("list the processes", result)
		}
		for _, p := range infos[:min(int(n), len(infos))] {
			if p.Memory == unknownMemory {
				p.Memory = 0
			}
			held[p.PID] = max(held[p.PID], p.Memory)
		}
		return nil
	}
}

// activity returns the newest sample of each process, or nil where the driver has none for this device.
func (i *Inventory) activity(h handle, processes int) map[uint32]processSample {
	samples := make([]processSample, max(2*processes, 128))
	n := uint32(len(samples))
	since := uint64(time.Now().Add(-sampleAge).UnixMicro())
	result := i.processActivity(h, &samples[0], &n, since)
	if result == notFound { // no process did anything
		return map[uint32]processSample{}
	}
	if result != success {
		return nil
	}
	newest := make(map[uint32]processSample, n)
	for _, s := range samples[:min(int(n), len(samples))] {
		if s.Time > since && s.Time >= newest[s.PID].Time {
			newest[s.PID] = s
		}
	}
	return newest
}

// Meter begins to read the driver's log of context switches of one of the devices that Devices returned last.
func (i *Inventory) Meter(uuid gpu.UUID) (gpu.Meter, error) {
	if i.namespaced {
		return nil, fmt.Errorf("the driver names processes of GPU %s by numbers that mean nothing in this PID namespace: %w",
			uuid, errors.ErrUnsupported)
	}
	for _, d := range i.devices {
		if d.UUID == uuid {
			t, err := ctxswitch.Open(d)
			if err != nil {
				return nil, err // not t, which as a Meter would not be nil
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("GPU %s: %w", uuid, gpu.ErrUnknownDevice)
}
