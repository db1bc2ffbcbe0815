package driver

import (
	"path/filepath"
	"time"

	"github.com/lgpu/lgpu/sim/wire"
)

var (
	_ wire.Driver     = (*Process)(nil)
	_ wire.Management = (*Driver)(nil)
)

// samplePeriod is how far back utilisation looks.
const samplePeriod = time.Second

// percent is a share of the sample period.
func percent(busy time.Duration) uint32 {
	return uint32(min((busy*100+samplePeriod/2)/samplePeriod, 100))
}

// DeviceCount is how many devices there are.
func (d *Driver) DeviceCount() (uint32, wire.CUresult) { return uint32(len(d.devices)), success }

// DeviceInfo is a device and its present state.
func (d *Driver) DeviceInfo(index uint32) (wire.Device, wire.CUresult) {
	if int(index) >= len(d.devices) {
		return wire.Device{}, errInvalidDevice
	}
	d.mu.Lock()
	d.collect()
	d.mu.Unlock()
	dev := d.devices[index]
	h := dev.hw
	total, used := h.Memory.Total(), h.Memory.Total()-h.Memory.Free()
	for _, part := range dev.instances {
		used += part.hw.Memory.Total() - part.hw.Memory.Free()
	}
	w := wire.Device{
		UUID: dev.uuid, PCIBus: uint32(dev.pciBus()), PCIDeviceID: pciDeviceID, ComputeUnits: uint32(h.Config.Units), CoresPerUnit: 128,
		CCMajor: ccMajor, CCMinor: ccMinor, ClockMHz: uint32(max(h.Config.MHz, 1)), MemClockMHz: 3201,
		MemoryTotal: total, MemoryUsed: used,
		UtilizationGPU:    percent(h.Busy(samplePeriod)),
		UtilizationMemory: percent(min(h.In.Busy(samplePeriod)+h.Out.Busy(samplePeriod)+h.Local.Busy(samplePeriod), samplePeriod)),
		Instances:         uint32(len(dev.instances)),
		PowerMilliwatts:   h.Power(), PowerLimitMilliwatts: h.PowerLimit(), EnergyMillijoules: h.Energy(), TemperatureC: h.Temperature(),
	}
	if i := dev.instance; i != nil {
		// A GPU instance has one compute instance, and numbers of GPU instances begin at 1: 0 is the whole GPU's.
		w.Parent, w.Number, w.GPUInstance, w.Slices = uint32(i.of.index+1), uint32(i.number), uint32(i.number+1), uint32(i.compute)
	}
	copy(w.Name[:len(w.Name)-1], dev.name)
	return w, success
}

// DeviceProcesses are the processes with a context on a device, or on an instance of it.
func (d *Driver) DeviceProcesses(index, capacity uint32) ([]wire.Process, uint32, wire.CUresult) {
	if int(index) >= len(d.devices) {
		return nil, 0, errInvalidDevice
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.collect()
	dev := d.devices[index]
	now := uint64(time.Now().UnixMicro())
	var out []wire.Process
	var count uint32
	for p := range d.processes {
		var busy time.Duration
		here := false
		for _, c := range p.contexts {
			if c.dev == dev || c.dev.instance != nil && c.dev.instance.of == dev {
				here = true
				busy += c.channel.Busy(samplePeriod)
			}
		}
		used := p.used[dev.index]
		for _, part := range dev.instances {
			used += p.used[part.index]
		}
		if !here {
			continue
		}
		count++
		if uint32(len(out)) < capacity {
			out = append(out, wire.Process{PID: uint32(p.pid), UtilizationGPU: percent(busy), MemoryUsed: used, SampleTime: now})
		}
	}
	return out, count, success
}

// DeviceTurns are the turns of a device with numbers from since on, how many there are, and the number to ask from next.
// CUDA_ERROR_NOT_SUPPORTED says that processes are confined to parts of the device, where there are no turns.
func (d *Driver) DeviceTurns(index uint32, since uint64, capacity uint32) ([]wire.Turn, uint32, uint64, wire.CUresult) {
	if int(index) >= len(d.devices) {
		return nil, 0, 0, errInvalidDevice
	}
	turns, next, ok := d.devices[index].hw.Turns(since, int(capacity))
	if !ok {
		return nil, 0, 0, errNotSupported
	}
	out := make([]wire.Turn, len(turns))
	for i, t := range turns {
		out[i] = wire.Turn{PID: uint32(t.Owner), Start: uint64(t.Start), End: uint64(t.End)}
		if t.Unfinished {
			out[i].Unfinished = 1
		}
	}
	return out, uint32(len(out)), next, success
}

// ProcessName is the path of a connected process's program.
func (d *Driver) ProcessName(pid, length uint32) ([]byte, wire.CUresult) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.processes {
		if uint32(p.pid) == pid {
			return text(filepath.Clean(p.name), length), success
		}
	}
	return nil, errNotFound
}
