package driver

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// version is a PTX version or target as attributes tell it: 7.8 and sm_78 are 78.
func version(s string) int32 {
	s = strings.ReplaceAll(strings.TrimPrefix(s, "sm_"), ".", "")
	n, err := strconv.Atoi(strings.TrimRight(s, "af"))
	if err != nil {
		return 0
	}
	return int32(n)
}

// functionAttribute is cuFuncGetAttribute.
func functionAttribute(k *ptx.Kernel, m *ptx.Module, dynamic int, carveout int32, attr wire.CUfunction_attribute) (int32, Result) {
	switch attr {
	case wire.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return int32(blockThreads(k)), success
	case wire.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		return int32(k.SharedBytes), success
	case wire.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		var n int64
		for _, g := range m.Globals {
			if g.Space == ptx.SpaceConst {
				n += g.Size
			}
		}
		return int32(n), success
	case wire.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		return int32(k.LocalBytes), success
	case wire.CU_FUNC_ATTRIBUTE_NUM_REGS:
		return int32(k.Regs), success
	case wire.CU_FUNC_ATTRIBUTE_PTX_VERSION:
		return version(m.Target), success
	case wire.CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		return ccMajor*10 + ccMinor, success
	case wire.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		return int32(dynamic), success
	case wire.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return carveout, success
	case wire.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, wire.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET,
		wire.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, wire.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
		wire.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, wire.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
		wire.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		return 0, success
	}
	return 0, errInvalidValue
}

// set is cuFuncSetAttribute.
func (f *function) set(attr wire.CUfunction_attribute, v int32) Result {
	switch attr {
	case wire.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if v < 0 || int(v) > sharedOptIn-f.kernel.SharedBytes {
			return errInvalidValue
		}
		f.maxDynamic = int(v)
		return success
	case wire.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if v < -1 || v > 100 {
			return errInvalidValue
		}
		f.carveout = v
		return success
	case wire.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, wire.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		return success
	}
	return errInvalidValue
}

// FuncGetName is cuFuncGetName.
func (p *Process) FuncGetName(call *wire.Call, h wire.CUfunction, length uint32) ([]byte, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return nil, res
	}
	return text(f.kernel.Name, length), success
}

// paramInfo is the place of one parameter.
func paramInfo(k *ptx.Kernel, i uint64) (uint64, uint64, Result) {
	if i >= uint64(len(k.Params)) {
		return 0, 0, errInvalidValue
	}
	return uint64(k.Params[i].Offset), uint64(k.Params[i].Size), success
}

// KernelGetParamInfo is cuKernelGetParamInfo.
func (p *Process) KernelGetParamInfo(_ *wire.Call, h wire.CUkernel, i uint64) (uint64, uint64, wire.CUresult) {
	defer p.lock()()
	k := lookup[kernel](&p.handles, uint64(h))
	if k == nil {
		return 0, 0, errInvalidHandle
	}
	return paramInfo(k.kernel, i)
}

// FuncGetParamInfo is cuFuncGetParamInfo.
func (p *Process) FuncGetParamInfo(call *wire.Call, h wire.CUfunction, i uint64) (uint64, uint64, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return 0, 0, res
	}
	return paramInfo(f.kernel, i)
}

// FuncParamLayout is where all parameters of a function lie, for the client to gather them.
func (p *Process) FuncParamLayout(call *wire.Call, h wire.CUfunction, capacity uint32) ([]wire.Param, uint32, uint32, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return nil, 0, 0, res
	}
	var out []wire.Param
	for _, q := range f.kernel.Params {
		if uint32(len(out)) == capacity {
			break
		}
		out = append(out, wire.Param{Offset: uint32(q.Offset), Size: uint32(q.Size)})
	}
	return out, uint32(len(f.kernel.Params)), uint32(f.kernel.ParamBytes), success
}

// FuncGetModule is cuFuncGetModule.
func (p *Process) FuncGetModule(call *wire.Call, h wire.CUfunction) (wire.CUmodule, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return 0, res
	}
	return wire.CUmodule(f.module.handle), success
}

// FuncGetAttribute is cuFuncGetAttribute.
func (p *Process) FuncGetAttribute(call *wire.Call, attr wire.CUfunction_attribute, h wire.CUfunction) (int32, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return 0, res
	}
	return functionAttribute(f.kernel, f.module.parsed, f.maxDynamic, f.carveout, attr)
}

// FuncSetAttribute is cuFuncSetAttribute.
func (p *Process) FuncSetAttribute(call *wire.Call, h wire.CUfunction, attr wire.CUfunction_attribute, v int32) wire.CUresult {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return res
	}
	return f.set(attr, v)
}

// FuncSetCacheConfig is cuFuncSetCacheConfig, a hint.
func (p *Process) FuncSetCacheConfig(call *wire.Call, h wire.CUfunction, config wire.CUfunc_cache) wire.CUresult {
	defer p.lock()()
	_, res := p.functionOf(uint64(h), p.currentOf(call))
	if res == success && (config < 0 || config > 3) {
		return errInvalidValue
	}
	return res
}

// FuncSetSharedMemConfig is cuFuncSetSharedMemConfig, which current devices ignore.
func (p *Process) FuncSetSharedMemConfig(call *wire.Call, h wire.CUfunction, config wire.CUsharedconfig) wire.CUresult {
	defer p.lock()()
	_, res := p.functionOf(uint64(h), p.currentOf(call))
	if res == success && (config < 0 || config > 2) {
		return errInvalidValue
	}
	return res
}

// FuncIsLoaded is cuFuncIsLoaded: a function is loaded with its module.
func (p *Process) FuncIsLoaded(call *wire.Call, h wire.CUfunction) (wire.CUfunctionLoadingState, wire.CUresult) {
	defer p.lock()()
	_, res := p.functionOf(uint64(h), p.currentOf(call))
	return wire.CU_FUNCTION_LOADING_STATE_LOADED, res
}

// FuncLoad is cuFuncLoad.
func (p *Process) FuncLoad(call *wire.Call, h wire.CUfunction) wire.CUresult {
	defer p.lock()()
	_, res := p.functionOf(uint64(h), p.currentOf(call))
	return res
}

// OccupancyMaxActiveBlocksPerMultiprocessor is cuOccupancyMaxActiveBlocksPerMultiprocessor.
func (p *Process) OccupancyMaxActiveBlocksPerMultiprocessor(call *wire.Call, h wire.CUfunction, threads int32, dynamic uint64) (int32, wire.CUresult) {
	return p.OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(call, h, threads, dynamic, 0)
}

// OccupancyMaxActiveBlocksPerMultiprocessorWithFlags is cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags.
func (p *Process) OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(call *wire.Call, h wire.CUfunction, threads int32, dynamic uint64, flags uint32) (int32, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return 0, res
	}
	if threads <= 0 || flags&^1 != 0 {
		return 0, errInvalidValue
	}
	if threads > maxThreads {
		return 0, success
	}
	return int32(f.occupancy(int(threads), dynamic)), success
}

// OccupancyAvailableDynamicSMemPerBlock is cuOccupancyAvailableDynamicSMemPerBlock, in bytes.
func (p *Process) OccupancyAvailableDynamicSMemPerBlock(call *wire.Call, h wire.CUfunction, blocks, threads int32) (uint64, wire.CUresult) {
	defer p.lock()()
	f, res := p.functionOf(uint64(h), p.currentOf(call))
	if res != success {
		return 0, res
	}
	if blocks <= 0 || threads <= 0 || threads > maxThreads || int(blocks) > f.occupancy(int(threads), 0) {
		return 0, errInvalidValue
	}
	each := f.module.ctx.dev.hw.Config.Limits.Shared/int(blocks) - f.kernel.SharedBytes - sharedReserved
	return uint64(max(min(each&^127, f.maxDynamic), 0)), success
}

// Launch is cuLaunchKernel, cuLaunchKernelEx and cuLaunchCooperativeKernel.
func (p *Process) Launch(call *wire.Call, l *wire.Launch, h wire.CUstream, params []byte, attrs []wire.CUlaunchAttribute) wire.CUresult {
	p.flush(call)
	defer p.lock()()
	cur := p.currentOf(call)
	if cur == nil {
		return errInvalidContext
	}
	if cur.fault != success {
		return cur.fault
	}
	s, res := p.stream(uint64(h), cur, call.Thread)
	if res != success {
		return res
	}
	f, res := p.functionOf(uint64(l.Function), s.ctx)
	if res != success {
		return res
	}
	o := &kernelOp{fn: f, grid: l.Grid, block: l.Block, shared: l.SharedMemBytes, params: slices.Clone(params), cooperative: l.Cooperative != 0}
	if res := o.attributes(attrs); res != success {
		return res
	}
	return s.launch(o)
}
