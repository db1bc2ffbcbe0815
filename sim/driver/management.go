package driver

import (
	"path/filepath"
	"time"

	"github.com/lgpu/lgpu/sim/wire"
)

// Management answers what the management library asks; it needs no process.
type Management struct {
	d *Driver
}

// Management returns the management side of the driver.
func (d *Driver) Management() Management { return Management{d} }

var (
	_ wire.Driver     = (*Process)(nil)
	_ wire.Management = Management{}
)

// samplePeriod is how far back utilisation looks.
const samplePeriod = time.Second

// percent is a share of the sample period.
func percent(busy time.Duration) uint32 {
	return uint32(min((busy*100+samplePeriod/2)/samplePeriod, 100))
}

// DeviceCount is how many devices there are.
func (m Management) DeviceCount() (uint32, wire.CUresult) { return uint32(len(m.d.devices)), success }

// DeviceInfo is a device and its present state.
func (m Management) DeviceInfo(index uint32) (wire.Device, wire.CUresult) {
	if int(index) >= len(m.d.devices) {
		return wire.Device{}, errInvalidDevice
	}
	d := m.d.devices[index]
	total, free := d.hw.Memory.Total(), d.hw.Memory.Free()
	w := wire.Device{
		UUID: d.uuid, PCIBus: uint32(d.pciBus()), PCIDeviceID: pciDeviceID, ComputeUnits: uint32(d.hw.Config.Units), CoresPerUnit: 128,
		CCMajor: ccMajor, CCMinor: ccMinor, ClockMHz: uint32(max(d.hw.Config.MHz, 1)), MemClockMHz: 3201,
		MemoryTotal: total, MemoryUsed: total - free,
		UtilizationGPU:    percent(d.hw.Busy(samplePeriod)),
		UtilizationMemory: percent(min(d.hw.In.Busy(samplePeriod)+d.hw.Out.Busy(samplePeriod)+d.hw.Local.Busy(samplePeriod), samplePeriod)),
		PowerMilliwatts:   0, PowerLimitMilliwatts: 0, TemperatureC: 30,
	}
	copy(w.Name[:len(w.Name)-1], d.name)
	return w, success
}

// DeviceProcesses are the processes with a context on a device.
func (m Management) DeviceProcesses(index, capacity uint32) ([]wire.Process, uint32, wire.CUresult) {
	if int(index) >= len(m.d.devices) {
		return nil, 0, errInvalidDevice
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	d := m.d.devices[index]
	now := uint64(time.Now().UnixMicro())
	var out []wire.Process
	var count uint32
	for p := range m.d.processes {
		var busy time.Duration
		here := false
		for _, c := range p.contexts {
			if c.dev == d {
				here = true
				busy += c.channel.Busy(samplePeriod)
			}
		}
		if !here {
			continue
		}
		count++
		if uint32(len(out)) < capacity {
			out = append(out, wire.Process{PID: uint32(p.pid), UtilizationGPU: percent(busy), MemoryUsed: p.used(d), SampleTime: now})
		}
	}
	return out, count, success
}

// ProcessName is the path of a connected process's program.
func (m Management) ProcessName(pid, length uint32) ([]byte, wire.CUresult) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for p := range m.d.processes {
		if uint32(p.pid) == pid {
			return text(filepath.Clean(p.name), length), success
		}
	}
	return nil, errNotFound
}
