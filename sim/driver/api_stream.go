package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// StreamCreate is cuStreamCreateWithPriority.
func (p *Process) StreamCreate(call *wire.Call, flags uint32, priority int32) (wire.CUstream, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	if flags&^streamNonBlocking != 0 {
		return 0, errInvalidValue
	}
	s := c.newStream(flags, clampPriority(int(priority)))
	s.handle = p.handles.add(kindStream, s)
	return wire.CUstream(s.handle), success
}

// StreamDestroy is cuStreamDestroy: what was submitted still runs.
func (p *Process) StreamDestroy(_ *wire.Call, h wire.CUstream) wire.CUresult {
	defer p.lock()()
	s := lookup[stream](&p.handles, uint64(h))
	if s == nil {
		return errInvalidHandle
	}
	s.close()
	return s.ctx.fault
}

// StreamQuery is cuStreamQuery.
func (p *Process) StreamQuery(call *wire.Call, h wire.CUstream) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	if s.capture != nil {
		s.capture.invalidate()
		return errCaptureUnsupported
	}
	if res := s.capturable(); res != success {
		return res
	}
	p.d.drain()
	if !s.idle() {
		return errNotReady
	}
	return s.ctx.fault
}

// StreamSynchronize is cuStreamSynchronize.
func (p *Process) StreamSynchronize(call *wire.Call, h wire.CUstream) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	return s.synchronize()
}

// streamAndEvent finds a stream and an event.
func (p *Process) streamAndEvent(call *wire.Call, h wire.CUstream, ev wire.CUevent) (*stream, *event, Result) {
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return nil, nil, res
	}
	e := lookup[event](&p.handles, uint64(ev))
	if e == nil {
		return nil, nil, errInvalidHandle
	}
	return s, e, success
}

// StreamWaitEvent is cuStreamWaitEvent.
func (p *Process) StreamWaitEvent(call *wire.Call, h wire.CUstream, ev wire.CUevent, flags uint32) wire.CUresult {
	defer p.lock()()
	s, e, res := p.streamAndEvent(call, h, ev)
	if res != success {
		return res
	}
	if flags&^1 != 0 {
		return errInvalidValue
	}
	return s.await(e, flags&1 != 0)
}

// StreamGetPriority is cuStreamGetPriority.
func (p *Process) StreamGetPriority(call *wire.Call, h wire.CUstream) (int32, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return int32(s.priority), success
}

// StreamGetFlags is cuStreamGetFlags.
func (p *Process) StreamGetFlags(call *wire.Call, h wire.CUstream) (uint32, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return s.flags, success
}

// StreamGetId is cuStreamGetId.
func (p *Process) StreamGetId(call *wire.Call, h wire.CUstream) (uint64, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return s.id, success
}

// StreamGetCtx is cuStreamGetCtx.
func (p *Process) StreamGetCtx(call *wire.Call, h wire.CUstream) (wire.CUcontext, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return wire.CUcontext(s.ctx.handle), success
}

// StreamGetDevice is cuStreamGetDevice.
func (p *Process) StreamGetDevice(call *wire.Call, h wire.CUstream) (wire.CUdevice, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return 0, res
	}
	return p.ordinal(s.ctx.dev), success
}

// StreamAttachMemAsync is cuStreamAttachMemAsync: managed memory is reachable from everywhere at all times.
func (p *Process) StreamAttachMemAsync(call *wire.Call, h wire.CUstream, ptr wire.CUdeviceptr, length uint64, flags uint32) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	a, ok := p.allocs.find(uint64(ptr))
	if !ok || a.typ != memManaged || flags != 1 && flags != 2 && flags != 4 || length != 0 && length != a.size {
		return errInvalidValue
	}
	_, res = s.submit(empty{})
	return res
}

// memOp submits one or more operations on values in memory.
func (p *Process) memOp(call *wire.Call, h wire.CUstream, list []wire.CUstreamBatchMemOpParams, flags uint32) Result {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	m, res := p.memops(s.ctx, list, flags)
	if res != success {
		return res
	}
	_, res = s.submit(m)
	return res
}

func oneOp(typ wire.CUstreamBatchMemOpType, addr wire.CUdeviceptr, value uint64, flags uint32) []wire.CUstreamBatchMemOpParams {
	return []wire.CUstreamBatchMemOpParams{{Operation: typ, Address: addr, Value: value, Flags: flags}}
}

// StreamWaitValue32 is cuStreamWaitValue32.
func (p *Process) StreamWaitValue32(call *wire.Call, h wire.CUstream, addr wire.CUdeviceptr, value uint32, flags uint32) wire.CUresult {
	return p.memOp(call, h, oneOp(wire.CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, uint64(value), flags), 0)
}

// StreamWaitValue64 is cuStreamWaitValue64.
func (p *Process) StreamWaitValue64(call *wire.Call, h wire.CUstream, addr wire.CUdeviceptr, value uint64, flags uint32) wire.CUresult {
	return p.memOp(call, h, oneOp(wire.CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags), 0)
}

// StreamWriteValue32 is cuStreamWriteValue32.
func (p *Process) StreamWriteValue32(call *wire.Call, h wire.CUstream, addr wire.CUdeviceptr, value uint32, flags uint32) wire.CUresult {
	return p.memOp(call, h, oneOp(wire.CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, uint64(value), flags), 0)
}

// StreamWriteValue64 is cuStreamWriteValue64.
func (p *Process) StreamWriteValue64(call *wire.Call, h wire.CUstream, addr wire.CUdeviceptr, value uint64, flags uint32) wire.CUresult {
	return p.memOp(call, h, oneOp(wire.CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags), 0)
}

// StreamBatchMemOp is cuStreamBatchMemOp.
func (p *Process) StreamBatchMemOp(call *wire.Call, h wire.CUstream, list []wire.CUstreamBatchMemOpParams, flags uint32) wire.CUresult {
	return p.memOp(call, h, list, flags)
}

// StreamCopyAttributes is cuStreamCopyAttributes.
func (p *Process) StreamCopyAttributes(call *wire.Call, dst, src wire.CUstream) wire.CUresult {
	defer p.lock()()
	cur := p.currentOf(call)
	d, res := p.stream(uint64(dst), cur, call.Thread)
	if res != success {
		return res
	}
	s, res := p.stream(uint64(src), cur, call.Thread)
	if res != success {
		return res
	}
	if d.ctx != s.ctx {
		return errInvalidValue
	}
	d.attrs = s.attrs
	return success
}

// StreamGetAttribute is cuStreamGetAttribute.
func (p *Process) StreamGetAttribute(call *wire.Call, h wire.CUstream, attr wire.CUlaunchAttributeID) (wire.CUstreamAttrValue, wire.CUresult) {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return wire.CUstreamAttrValue{}, res
	}
	if attr == wire.CU_LAUNCH_ATTRIBUTE_PRIORITY {
		return wire.CUstreamAttrValue{uint64(uint32(int32(s.priority)))}, success
	}
	i, ok := streamAttribute(attr)
	if !ok {
		return wire.CUstreamAttrValue{}, errInvalidValue
	}
	return s.attrs[i], success
}

// StreamSetAttribute is cuStreamSetAttribute.
func (p *Process) StreamSetAttribute(call *wire.Call, h wire.CUstream, attr wire.CUlaunchAttributeID, v *wire.CUstreamAttrValue) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	if attr == wire.CU_LAUNCH_ATTRIBUTE_PRIORITY {
		s.priority = clampPriority(int(int32(v[0])))
		return success
	}
	i, ok := streamAttribute(attr)
	if !ok {
		return errInvalidValue
	}
	s.attrs[i] = *v
	return success
}

// streamAttribute is where a stream keeps an attribute that it only keeps.
func streamAttribute(a wire.CUlaunchAttributeID) (int, bool) {
	switch a {
	case wire.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return 0, true
	case wire.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		return 1, true
	case wire.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		return 2, true
	case wire.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return 3, true
	}
	return 0, false
}

// LaunchHostFunc is cuLaunchHostFunc.
func (p *Process) LaunchHostFunc(call *wire.Call, h wire.CUstream, fn, data wire.HostAddr) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	if fn == 0 {
		return errInvalidValue
	}
	_, res = s.submit(&hostFn{params: wire.CUDA_HOST_NODE_PARAMS{Fn: fn, UserData: data}})
	return res
}

// StreamAddCallback is cuStreamAddCallback.
func (p *Process) StreamAddCallback(call *wire.Call, h wire.CUstream, fn, data wire.HostAddr, flags uint32) wire.CUresult {
	defer p.lock()()
	s, res := p.stream(uint64(h), p.currentOf(call), call.Thread)
	if res != success {
		return res
	}
	if fn == 0 || flags != 0 {
		return errInvalidValue
	}
	if s.capture != nil {
		s.capture.invalidate()
		return errCaptureUnsupported
	}
	_, res = s.submit(&hostFn{params: wire.CUDA_HOST_NODE_PARAMS{Fn: fn, UserData: data}, callback: true, stream: uint64(h)})
	return res
}

// EventCreate is cuEventCreate.
func (p *Process) EventCreate(call *wire.Call, flags uint32) (wire.CUevent, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	const known = eventBlockingSync | eventDisableTiming | eventInterprocess
	if flags&^known != 0 || flags&eventInterprocess != 0 && flags&eventDisableTiming == 0 {
		return 0, errInvalidValue
	}
	e := &event{ctx: c, flags: flags, point: &point{}}
	e.handle = p.handles.add(kindEvent, e)
	return wire.CUevent(e.handle), success
}

// EventRecord is cuEventRecord.
func (p *Process) EventRecord(call *wire.Call, ev wire.CUevent, h wire.CUstream) wire.CUresult {
	return p.EventRecordWithFlags(call, ev, h, 0)
}

// EventRecordWithFlags is cuEventRecordWithFlags.
func (p *Process) EventRecordWithFlags(call *wire.Call, ev wire.CUevent, h wire.CUstream, flags uint32) wire.CUresult {
	defer p.lock()()
	s, e, res := p.streamAndEvent(call, h, ev)
	if res != success {
		return res
	}
	if flags&^recordExternal != 0 {
		return errInvalidValue
	}
	return e.record(s, flags)
}

// EventQuery is cuEventQuery.
func (p *Process) EventQuery(_ *wire.Call, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	e := lookup[event](&p.handles, uint64(ev))
	if e == nil {
		return errInvalidHandle
	}
	p.d.drain()
	return e.query()
}

// EventSynchronize is cuEventSynchronize.
func (p *Process) EventSynchronize(call *wire.Call, ev wire.CUevent) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	e := lookup[event](&p.handles, uint64(ev))
	if e == nil {
		return errInvalidHandle
	}
	return e.synchronize()
}

// EventDestroy is cuEventDestroy.
func (p *Process) EventDestroy(_ *wire.Call, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	e := lookup[event](&p.handles, uint64(ev))
	if e == nil {
		return errInvalidHandle
	}
	p.handles.remove(e.handle)
	if e.exported != nil {
		delete(p.d.exports, *e.exported)
	}
	return e.ctx.fault
}

// EventElapsedTime is cuEventElapsedTime, in milliseconds of device time.
func (p *Process) EventElapsedTime(_ *wire.Call, start, end wire.CUevent) (float32, wire.CUresult) {
	defer p.lock()()
	a, b := lookup[event](&p.handles, uint64(start)), lookup[event](&p.handles, uint64(end))
	if a == nil || b == nil {
		return 0, errInvalidHandle
	}
	p.d.drain()
	return b.since(a)
}
