package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// contextFlags are the flags that a context may be made with.
const contextFlags = uint32(wire.CU_CTX_FLAGS_MASK)

// validFlags checks a context's flags: known ones, and at most one way to wait.
func validFlags(flags uint32) bool {
	sched := flags & uint32(wire.CU_CTX_SCHED_MASK)
	return flags&^contextFlags == 0 && sched&(sched-1) == 0
}

// DevicePrimaryCtxRetain is cuDevicePrimaryCtxRetain.
func (p *Process) DevicePrimaryCtxRetain(_ *wire.Call, dev wire.CUdevice) (wire.CUcontext, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	if res := p.faults[d.index]; res != success {
		return 0, res
	}
	c := p.primaries[d.index]
	if c == nil {
		if p.closed {
			return 0, errDeinitialized
		}
		if c, res = p.newContext(d, p.flags[d.index]); res != success {
			return 0, res
		}
		c.primary = true
		p.primaries[d.index] = c
	}
	c.refs++
	return wire.CUcontext(c.handle), success
}

// DevicePrimaryCtxRelease is cuDevicePrimaryCtxRelease.
func (p *Process) DevicePrimaryCtxRelease(call *wire.Call, dev wire.CUdevice) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return res
	}
	c := p.primaries[d.index]
	if c == nil || c.refs == 0 {
		return errInvalidContext
	}
	if c.refs--; c.refs == 0 {
		p.destroy(c)
	}
	return success
}

// DevicePrimaryCtxReset is cuDevicePrimaryCtxReset: the context's state goes, those who retain it keep a handle that is
// worth nothing.
func (p *Process) DevicePrimaryCtxReset(call *wire.Call, dev wire.CUdevice) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return res
	}
	if c := p.primaries[d.index]; c != nil {
		p.destroy(c)
	}
	return success
}

// DevicePrimaryCtxGetState is cuDevicePrimaryCtxGetState.
func (p *Process) DevicePrimaryCtxGetState(_ *wire.Call, dev wire.CUdevice) (uint32, int32, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, 0, res
	}
	if c := p.primaries[d.index]; c != nil {
		return c.flags, 1, success
	}
	return p.flags[d.index], 0, success
}

// DevicePrimaryCtxSetFlags is cuDevicePrimaryCtxSetFlags.
func (p *Process) DevicePrimaryCtxSetFlags(_ *wire.Call, dev wire.CUdevice, flags uint32) wire.CUresult {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return res
	}
	if !validFlags(flags) {
		return errInvalidValue
	}
	p.flags[d.index] = flags
	if c := p.primaries[d.index]; c != nil {
		c.flags = flags
	}
	return success
}

// CtxCreate is cuCtxCreate.
func (p *Process) CtxCreate(_ *wire.Call, flags uint32, dev wire.CUdevice) (wire.CUcontext, wire.CUresult) {
	defer p.lock()()
	d, res := p.device(dev)
	if res != success {
		return 0, res
	}
	if !validFlags(flags) {
		return 0, errInvalidValue
	}
	if p.closed {
		return 0, errDeinitialized
	}
	c, res := p.newContext(d, flags)
	if res != success {
		return 0, res
	}
	return wire.CUcontext(c.handle), success
}

// CtxDestroy is cuCtxDestroy; a dead context can be destroyed, a primary one cannot.
func (p *Process) CtxDestroy(call *wire.Call, ctx wire.CUcontext) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	c := lookup[context](&p.handles, uint64(ctx))
	if c == nil || c.primary {
		return errInvalidContext
	}
	if c.fault == success {
		c.synchronize()
		if lookup[context](&p.handles, uint64(ctx)) != c {
			return errInvalidContext // another thread was faster
		}
	}
	p.destroy(c)
	return success
}

// contextOr is a context, or the calling thread's for 0; nil if there is none.
func (p *Process) contextOr(call *wire.Call, ctx wire.CUcontext) *context {
	if ctx == 0 {
		ctx = call.Context
	}
	return lookup[context](&p.handles, uint64(ctx))
}

// CtxGetDevice is cuCtxGetDevice for any context.
func (p *Process) CtxGetDevice(call *wire.Call, ctx wire.CUcontext) (wire.CUdevice, wire.CUresult) {
	defer p.lock()()
	c := p.contextOr(call, ctx)
	if c == nil {
		return 0, errInvalidContext
	}
	return p.ordinal(c.dev), success
}

// CtxGetFlags is cuCtxGetFlags.
func (p *Process) CtxGetFlags(call *wire.Call) (uint32, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if c == nil {
		return 0, res
	}
	return c.flags, success
}

// CtxSetFlags is cuCtxSetFlags.
func (p *Process) CtxSetFlags(call *wire.Call, flags uint32) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	if !validFlags(flags) {
		return errInvalidValue
	}
	c.flags = flags
	return success
}

// CtxGetId is cuCtxGetId.
func (p *Process) CtxGetId(call *wire.Call, ctx wire.CUcontext) (uint64, wire.CUresult) {
	defer p.lock()()
	c := p.contextOr(call, ctx)
	if c == nil {
		return 0, errInvalidContext
	}
	return c.id, success
}

// CtxGetApiVersion is cuCtxGetApiVersion.
func (p *Process) CtxGetApiVersion(call *wire.Call, ctx wire.CUcontext) (uint32, wire.CUresult) {
	defer p.lock()()
	if p.contextOr(call, ctx) == nil {
		return 0, errInvalidContext
	}
	return 3020, success
}

// CtxGetLimit is cuCtxGetLimit.
func (p *Process) CtxGetLimit(call *wire.Call, limit wire.CUlimit) (uint64, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	if limit < 0 || limit >= wire.CU_LIMIT_MAX {
		return 0, errInvalidValue
	}
	if int(limit) >= len(c.limits) {
		return 0, errUnsupportedLimit
	}
	return c.limits[limit], success
}

// CtxSetLimit is cuCtxSetLimit. Stacks take memory; of the others most are kept and told,
// and the interpreter has bounds of its own.
func (p *Process) CtxSetLimit(call *wire.Call, limit wire.CUlimit, value uint64) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	if limit < 0 || limit >= wire.CU_LIMIT_MAX {
		return errInvalidValue
	}
	if int(limit) >= len(c.limits) {
		return errUnsupportedLimit
	}
	if limit == wire.CU_LIMIT_STACK_SIZE {
		if value > maxStack {
			return errInvalidValue
		}
		return c.setStack(value)
	}
	if limit == wire.CU_LIMIT_PRINTF_FIFO_SIZE {
		if c.prints {
			return errInvalidValue
		}
		c.output.resize(value)
	}
	c.limits[limit] = value
	return success
}

// CtxGetCacheConfig is cuCtxGetCacheConfig.
func (p *Process) CtxGetCacheConfig(call *wire.Call) (wire.CUfunc_cache, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	return wire.CUfunc_cache(c.cacheConfig), success
}

// CtxSetCacheConfig is cuCtxSetCacheConfig.
func (p *Process) CtxSetCacheConfig(call *wire.Call, config wire.CUfunc_cache) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	if config < 0 || config > 3 {
		return errInvalidValue
	}
	c.cacheConfig = int32(config)
	return success
}

// CtxGetSharedMemConfig is cuCtxGetSharedMemConfig: banks are 4 bytes wide.
func (p *Process) CtxGetSharedMemConfig(call *wire.Call) (wire.CUsharedconfig, wire.CUresult) {
	_, unlock, res := p.enter(call)
	defer unlock()
	return 1, res
}

// CtxSetSharedMemConfig is cuCtxSetSharedMemConfig, which current devices ignore.
func (p *Process) CtxSetSharedMemConfig(call *wire.Call, config wire.CUsharedconfig) wire.CUresult {
	_, unlock, res := p.enter(call)
	defer unlock()
	if res == success && (config < 0 || config > 2) {
		return errInvalidValue
	}
	return res
}

// CtxGetStreamPriorityRange is cuCtxGetStreamPriorityRange.
func (p *Process) CtxGetStreamPriorityRange(call *wire.Call) (int32, int32, wire.CUresult) {
	_, unlock, res := p.enter(call)
	defer unlock()
	return priorityLeast, priorityGreatest, res
}

// CtxSynchronize is cuCtxSynchronize.
func (p *Process) CtxSynchronize(call *wire.Call) wire.CUresult {
	return p.CtxSynchronizeContext(call, call.Context)
}

// CtxSynchronizeContext is cuCtxSynchronize for any context.
func (p *Process) CtxSynchronizeContext(call *wire.Call, ctx wire.CUcontext) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	c := p.contextOr(call, ctx)
	if c == nil {
		return errInvalidContext
	}
	if c.fault != success {
		return c.fault
	}
	if res := c.quiet(); res != success {
		return res
	}
	if res := p.safe(call.Thread); res != success {
		return res
	}
	return c.synchronize()
}

// CtxResetPersistingL2Cache is cuCtxResetPersistingL2Cache: there is no cache to reset.
func (p *Process) CtxResetPersistingL2Cache(call *wire.Call) wire.CUresult {
	_, unlock, res := p.enter(call)
	defer unlock()
	return res
}

// CtxEnablePeerAccess is cuCtxEnablePeerAccess: the current context sees the other's memory from now on.
func (p *Process) CtxEnablePeerAccess(call *wire.Call, peer wire.CUcontext, flags uint32) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	o := lookup[context](&p.handles, uint64(peer))
	switch {
	case flags != 0:
		return errInvalidValue
	case o == nil || o == c:
		return errInvalidContext
	case o.dev == c.dev:
		return errPeerAccessUnsupported
	case c.peers[o]:
		return errPeerAccessAlreadyEnabled
	}
	c.peers[o] = true
	p.showAll(o, c)
	return success
}

// CtxDisablePeerAccess is cuCtxDisablePeerAccess.
func (p *Process) CtxDisablePeerAccess(call *wire.Call, peer wire.CUcontext) wire.CUresult {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	o := lookup[context](&p.handles, uint64(peer))
	if o == nil {
		return errInvalidContext
	}
	if !c.peers[o] {
		return errPeerAccessNotEnabled
	}
	delete(c.peers, o)
	p.showAll(o, c)
	return success
}

// showAll makes c's page table say what it may do with the memory of owner.
func (p *Process) showAll(owner, c *context) {
	for _, r := range p.regions.all() {
		if r.ctx == owner {
			p.show(r, c)
		}
	}
}

// CtxRecordEvent is cuCtxRecordEvent: the event marks the end of everything in the context.
func (p *Process) CtxRecordEvent(call *wire.Call, ctx wire.CUcontext, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	c, e, res := p.contextAndEvent(call, ctx, ev)
	if res != success {
		return res
	}
	w := c.newWork(record{e.point})
	for _, s := range c.streams {
		w.after(s.tail)
	}
	e.point.work, e.point.recorded, e.capture = w, true, nil
	p.d.arm(w)
	return success
}

// CtxWaitEvent is cuCtxWaitEvent: everything that follows in the context waits for the event.
func (p *Process) CtxWaitEvent(call *wire.Call, ctx wire.CUcontext, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	c, e, res := p.contextAndEvent(call, ctx, ev)
	if res != success {
		return res
	}
	for _, s := range c.streams {
		w := c.newWork(empty{})
		w.after(s.tail)
		w.after(e.point.work)
		s.tail = w
		p.d.arm(w)
	}
	return success
}

func (p *Process) contextAndEvent(call *wire.Call, ctx wire.CUcontext, ev wire.CUevent) (*context, *event, Result) {
	c, e := p.contextOr(call, ctx), lookup[event](&p.handles, uint64(ev))
	switch {
	case c == nil:
		return nil, nil, errInvalidContext
	case e == nil:
		return nil, nil, errInvalidHandle
	case c.fault != success:
		return nil, nil, c.fault
	}
	return c, e, c.quiet()
}

// ThreadExit drops what belongs to a thread of the program: its per-thread default streams.
func (p *Process) ThreadExit(thread uint64) {
	defer p.lock()()
	delete(p.modes, thread)
	for _, c := range p.contexts {
		if s := c.threads[thread]; s != nil {
			delete(c.threads, thread)
			s.close()
		}
	}
}
