package driver

import (
	"strconv"

	"github.com/lgpu/lgpu/sim/wire"
)

// lock takes Driver.mu for a call; the function it returns ends the call.
func (p *Process) lock() func() {
	p.d.mu.Lock()
	return func() {
		p.d.drain()
		p.d.mu.Unlock()
	}
}

// enter takes Driver.mu for a call that needs the calling thread's context, in good health.
func (p *Process) enter(call *wire.Call) (*context, func(), Result) {
	unlock := p.lock()
	if p.closed {
		return nil, unlock, errDeinitialized
	}
	c := lookup[context](&p.handles, uint64(call.Context))
	if c == nil {
		if call.Context != 0 {
			return nil, unlock, errContextIsDestroyed
		}
		return nil, unlock, errInvalidContext
	}
	return c, unlock, c.fault
}

// enterSafe is enter for a call that is not allowed while the thread captures a stream.
func (p *Process) enterSafe(call *wire.Call) (*context, func(), Result) {
	c, unlock, res := p.enter(call)
	if res == success {
		res = p.safe(call.Thread)
	}
	return c, unlock, res
}

// currentOf is the calling thread's context; nil without one.
func (p *Process) currentOf(call *wire.Call) *context {
	return lookup[context](&p.handles, uint64(call.Context))
}

// text is a string in a buffer of a C program.
func text(s string, length uint32) []byte {
	if length == 0 {
		return nil
	}
	return append([]byte(s[:min(len(s), int(length)-1)]), 0)
}

// Init is cuInit. given says what of the program's environment is set: with bit 0 visible is its CUDA_VISIBLE_DEVICES,
// with bit 1 units its LGPU_SIM_UNITS; share is its CUDA_MPS_ACTIVE_THREAD_PERCENTAGE or empty. As with the real driver
// the first cuInit that finds a device decides.
func (p *Process) Init(_ *wire.Call, flags, given uint32, visibleList, units, share string) wire.CUresult {
	if flags != 0 {
		return errInvalidValue
	}
	defer p.lock()()
	if p.initialised {
		return success
	}
	visible := p.d.shown
	if given&1 != 0 {
		visible = p.d.visibleDevices(visibleList)
	}
	if len(visible) == 0 {
		return errNoDevice
	}
	parts := make([]part, len(p.d.devices))
	if share != "" {
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			p.d.log.Warn("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is not a percentage", "process", p.pid, "value", share)
			return errInvalidValue
		}
		for i, dev := range p.d.devices {
			parts[i].count = dev.portion(percent)
		}
	}
	if given&2 != 0 {
		if err := p.d.parseUnits(units, visible, parts); err != nil {
			p.d.log.Warn("LGPU_SIM_UNITS", "process", p.pid, "value", units, "error", err)
			return errInvalidValue
		}
	}
	p.parts = parts
	p.eager = given&4 != 0
	p.visible.Store(&visible)
	p.initialised = true
	return success
}

// DeviceGetCount is cuDeviceGetCount.
func (p *Process) DeviceGetCount(*wire.Call) (int32, wire.CUresult) {
	return int32(len(*p.visible.Load())), success
}

// DeviceGet is cuDeviceGet.
func (p *Process) DeviceGet(_ *wire.Call, ordinal int32) (wire.CUdevice, wire.CUresult) {
	_, res := p.device(wire.CUdevice(ordinal))
	return wire.CUdevice(ordinal), res
}

// DeviceGetName is cuDeviceGetName.
func (p *Process) DeviceGetName(_ *wire.Call, dev wire.CUdevice, length uint32) ([]byte, wire.CUresult) {
	d, res := p.device(dev)
	if res != success {
		return nil, res
	}
	return text(d.name, length), success
}

// DeviceGetUuid is cuDeviceGetUuid.
func (p *Process) DeviceGetUuid(_ *wire.Call, dev wire.CUdevice) (wire.CUuuid, wire.CUresult) {
	d, res := p.device(dev)
	if res != success {
		return wire.CUuuid{}, res
	}
	return d.uuid, success
}

// DeviceTotalMem is cuDeviceTotalMem.
func (p *Process) DeviceTotalMem(_ *wire.Call, dev wire.CUdevice) (uint64, wire.CUresult) {
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	return d.hw.Memory.Total(), success
}

// DeviceGetAttribute is cuDeviceGetAttribute.
func (p *Process) DeviceGetAttribute(_ *wire.Call, attrib wire.CUdevice_attribute, dev wire.CUdevice) (int32, wire.CUresult) {
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	if attrib == wire.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT {
		defer p.lock()()
		return int32(p.unitCount(d)), success
	}
	v, ok := d.attribute(attrib)
	if !ok {
		return 0, errInvalidValue
	}
	return v, success
}

// DeviceGetPCIBusId is cuDeviceGetPCIBusId.
func (p *Process) DeviceGetPCIBusId(_ *wire.Call, dev wire.CUdevice, length uint32) ([]byte, wire.CUresult) {
	d, res := p.device(dev)
	if res != success {
		return nil, res
	}
	return text(d.pciBusID(), length), success
}

// DeviceGetByPCIBusId is cuDeviceGetByPCIBusId.
func (p *Process) DeviceGetByPCIBusId(_ *wire.Call, id string) (wire.CUdevice, wire.CUresult) {
	bus := parsePCIBusID(id)
	for ordinal, d := range *p.visible.Load() {
		if d.pciBus() == bus {
			return wire.CUdevice(ordinal), success
		}
	}
	return 0, errInvalidDevice
}

// DeviceGetP2PAttribute is cuDeviceGetP2PAttribute.
func (p *Process) DeviceGetP2PAttribute(_ *wire.Call, attrib wire.CUdevice_P2PAttribute, src, dst wire.CUdevice) (int32, wire.CUresult) {
	if _, res := p.device(src); res != success {
		return 0, res
	}
	if _, res := p.device(dst); res != success {
		return 0, res
	}
	if src == dst {
		return 0, errInvalidDevice
	}
	switch attrib {
	case wire.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, wire.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		return 1, success
	case wire.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, wire.CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		return 0, success
	}
	return 0, errInvalidValue
}

// DeviceCanAccessPeer is cuDeviceCanAccessPeer.
func (p *Process) DeviceCanAccessPeer(_ *wire.Call, dev, peer wire.CUdevice) (int32, wire.CUresult) {
	if _, res := p.device(dev); res != success {
		return 0, res
	}
	if _, res := p.device(peer); res != success {
		return 0, res
	}
	if dev == peer {
		return 0, success
	}
	return 1, success
}

// DeviceComputeCapability is cuDeviceComputeCapability.
func (p *Process) DeviceComputeCapability(_ *wire.Call, dev wire.CUdevice) (int32, int32, wire.CUresult) {
	_, res := p.device(dev)
	return ccMajor, ccMinor, res
}

// DeviceGetGraphMemAttribute is cuDeviceGetGraphMemAttribute, in bytes. Graph memory is taken when it is needed, so
// what is reserved is what is used.
func (p *Process) DeviceGetGraphMemAttribute(_ *wire.Call, dev wire.CUdevice, attr wire.CUgraphMem_attribute) (uint64, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	var now uint64
	for _, a := range p.allocs.all() {
		if a.typ == memGraph && a.dev == d {
			now += a.phys.frames.Size()
		}
	}
	p.graphHigh[d.index] = max(p.graphHigh[d.index], now)
	switch attr {
	case wire.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, wire.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		return now, success
	case wire.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, wire.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		return p.graphHigh[d.index], success
	}
	return 0, errInvalidValue
}

// DeviceSetGraphMemAttribute is cuDeviceSetGraphMemAttribute: the high-water marks can be set to 0.
func (p *Process) DeviceSetGraphMemAttribute(_ *wire.Call, dev wire.CUdevice, attr wire.CUgraphMem_attribute, value uint64) wire.CUresult {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return res
	}
	if value != 0 || attr != wire.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attr != wire.CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH {
		return errInvalidValue
	}
	p.graphHigh[d.index] = 0
	return success
}

// DeviceGraphMemTrim is cuDeviceGraphMemTrim: there is never unused graph memory.
func (p *Process) DeviceGraphMemTrim(_ *wire.Call, dev wire.CUdevice) wire.CUresult {
	_, res := p.device(dev)
	return res
}
