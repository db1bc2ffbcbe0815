package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/wire"
)

// addNode adds an op that make makes to a graph.
func (p *Process) addNode(h wire.CUgraph, deps []wire.CUgraphNode, make func() (op, Result)) (wire.CUgraphNode, Result) {
	g, nodes, res := p.graph(h, deps)
	if res != success {
		return 0, res
	}
	o, res := make()
	if res != success {
		return 0, res
	}
	return wire.CUgraphNode(g.add(o, nodes).handle), success
}

// opOf is the op of a node, if it is of type T.
func opOf[T op](p *Process, h wire.CUgraphNode) (*node, T, Result) {
	var none T
	n := lookup[node](&p.handles, uint64(h))
	if n == nil {
		return nil, none, errInvalidValue
	}
	o, ok := n.op.(T)
	if !ok {
		return nil, none, errInvalidValue
	}
	return n, o, success
}

// execOpOf is opOf for a node of an executable graph.
func execOpOf[T op](p *Process, h wire.CUgraphExec, hn wire.CUgraphNode) (*node, T, Result) {
	var none T
	n, res := p.execNode(h, hn)
	if res != success {
		return nil, none, res
	}
	o, ok := n.op.(T)
	if !ok {
		return nil, none, errInvalidValue
	}
	return n, o, success
}

// contextFor is the context that a node names; the current one where it names none.
func (p *Process) contextFor(call *wire.Call, h wire.CUcontext) (*context, Result) {
	if h == 0 {
		h = call.Context
	}
	c := lookup[context](&p.handles, uint64(h))
	if c == nil {
		return nil, errInvalidContext
	}
	return c, c.fault
}

// kernelNode makes the op of a kernel node.
func (p *Process) kernelNode(call *wire.Call, k *wire.KernelNode, params []byte) (*kernelOp, Result) {
	c, res := p.contextFor(call, k.Ctx)
	if res != success {
		return nil, res
	}
	h := uint64(k.Func)
	if h == 0 {
		h = uint64(k.Kern)
	}
	f, res := p.functionOf(h, c)
	if res != success {
		return nil, res
	}
	o := &kernelOp{fn: f, grid: k.Grid, block: k.Block, shared: k.SharedMemBytes, params: slices.Clone(params), kern: uint64(k.Kern)}
	return o, o.check()
}

// GraphAddKernelNode is cuGraphAddKernelNode.
func (p *Process) GraphAddKernelNode(call *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, k *wire.KernelNode, params []byte) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) { return p.kernelNode(call, k, params) })
}

// GraphKernelNodeGetParams is cuGraphKernelNodeGetParams.
func (p *Process) GraphKernelNodeGetParams(_ *wire.Call, h wire.CUgraphNode, capacity uint32) (wire.KernelNode, []byte, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*kernelOp](p, h)
	if res != success {
		return wire.KernelNode{}, nil, res
	}
	return wire.KernelNode{
		Func: wire.CUfunction(o.fn.handle), Kern: wire.CUkernel(o.kern), Ctx: wire.CUcontext(o.fn.module.ctx.handle),
		Grid: o.grid, Block: o.block, SharedMemBytes: o.shared,
	}, o.params[:min(len(o.params), int(capacity))], success
}

// setKernel replaces a kernel node's op, keeping its attributes.
func (p *Process) setKernel(call *wire.Call, n *node, old *kernelOp, k *wire.KernelNode, params []byte) Result {
	o, res := p.kernelNode(call, k, params)
	if res != success {
		return res
	}
	if o.fn.module.ctx != old.fn.module.ctx {
		return errInvalidValue
	}
	o.attrs, o.cooperative, o.priority, o.stream = old.attrs, old.cooperative, old.priority, old.stream
	n.op = o
	return success
}

// GraphKernelNodeSetParams is cuGraphKernelNodeSetParams.
func (p *Process) GraphKernelNodeSetParams(call *wire.Call, h wire.CUgraphNode, k *wire.KernelNode, params []byte) wire.CUresult {
	defer p.lock()()
	n, old, res := opOf[*kernelOp](p, h)
	if res != success {
		return res
	}
	return p.setKernel(call, n, old, k, params)
}

// GraphExecKernelNodeSetParams is cuGraphExecKernelNodeSetParams.
func (p *Process) GraphExecKernelNodeSetParams(call *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, k *wire.KernelNode, params []byte) wire.CUresult {
	defer p.lock()()
	n, old, res := execOpOf[*kernelOp](p, hx, h)
	if res != success {
		return res
	}
	return p.setKernel(call, n, old, k, params)
}

// GraphKernelNodeGetAttribute is cuGraphKernelNodeGetAttribute.
func (p *Process) GraphKernelNodeGetAttribute(_ *wire.Call, h wire.CUgraphNode, attr wire.CUlaunchAttributeID) (wire.CUkernelNodeAttrValue, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*kernelOp](p, h)
	if res != success {
		return wire.CUkernelNodeAttrValue{}, res
	}
	for i := len(o.attrs) - 1; i >= 0; i-- {
		if o.attrs[i].Id == attr {
			return wire.CUkernelNodeAttrValue(o.attrs[i].Value), success
		}
	}
	switch attr {
	case wire.CU_LAUNCH_ATTRIBUTE_PRIORITY:
		return wire.CUkernelNodeAttrValue{uint64(uint32(int32(o.stream)))}, success
	case wire.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
		if o.cooperative {
			return wire.CUkernelNodeAttrValue{1}, success
		}
	case wire.CU_LAUNCH_ATTRIBUTE_IGNORE:
		return wire.CUkernelNodeAttrValue{}, errInvalidValue
	}
	return wire.CUkernelNodeAttrValue{}, success
}

// GraphKernelNodeSetAttribute is cuGraphKernelNodeSetAttribute.
func (p *Process) GraphKernelNodeSetAttribute(_ *wire.Call, h wire.CUgraphNode, attr wire.CUlaunchAttributeID, v *wire.CUkernelNodeAttrValue) wire.CUresult {
	defer p.lock()()
	n, old, res := opOf[*kernelOp](p, h)
	if res != success {
		return res
	}
	o := *old
	o.attrs = slices.Clone(old.attrs)
	if res := o.attributes([]wire.CUlaunchAttribute{{Id: attr, Value: wire.CUlaunchAttributeValue(*v)}}); res != success {
		return res
	}
	if res := o.check(); res != success {
		return res
	}
	n.op = &o
	return success
}

// GraphKernelNodeCopyAttributes is cuGraphKernelNodeCopyAttributes.
func (p *Process) GraphKernelNodeCopyAttributes(_ *wire.Call, dst, src wire.CUgraphNode) wire.CUresult {
	defer p.lock()()
	n, old, res := opOf[*kernelOp](p, dst)
	if res != success {
		return res
	}
	_, from, res := opOf[*kernelOp](p, src)
	if res != success {
		return res
	}
	o := *old
	o.attrs, o.cooperative, o.priority = from.attrs, from.cooperative, from.priority
	n.op = &o
	return success
}

// copyNode makes the op of a copy node.
func (p *Process) copyNode(call *wire.Call, m *wire.CUDA_MEMCPY3D, ctx wire.CUcontext) (*box, Result) {
	c, res := p.contextFor(call, ctx)
	if res != success {
		return nil, res
	}
	return p.pitched(c, m)
}

// GraphAddMemcpyNode is cuGraphAddMemcpyNode.
func (p *Process) GraphAddMemcpyNode(call *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, m *wire.CUDA_MEMCPY3D, ctx wire.CUcontext) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) { return p.copyNode(call, m, ctx) })
}

// GraphMemcpyNodeGetParams is cuGraphMemcpyNodeGetParams.
func (p *Process) GraphMemcpyNodeGetParams(_ *wire.Call, h wire.CUgraphNode) (wire.CUDA_MEMCPY3D, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*box](p, h)
	if res != success {
		return wire.CUDA_MEMCPY3D{}, res
	}
	return o.params, success
}

// GraphMemcpyNodeSetParams is cuGraphMemcpyNodeSetParams.
func (p *Process) GraphMemcpyNodeSetParams(_ *wire.Call, h wire.CUgraphNode, m *wire.CUDA_MEMCPY3D) wire.CUresult {
	defer p.lock()()
	n, old, res := opOf[*box](p, h)
	if res != success {
		return res
	}
	return n.setOp(p.pitched(old.ctx, m))
}

// GraphExecMemcpyNodeSetParams is cuGraphExecMemcpyNodeSetParams.
func (p *Process) GraphExecMemcpyNodeSetParams(call *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, m *wire.CUDA_MEMCPY3D, ctx wire.CUcontext) wire.CUresult {
	defer p.lock()()
	n, _, res := execOpOf[*box](p, hx, h)
	if res != success {
		return res
	}
	return n.setOp(p.copyNode(call, m, ctx))
}

// fillNode makes the op of a memset node.
func (p *Process) fillNode(call *wire.Call, m *wire.CUDA_MEMSET_NODE_PARAMS, ctx wire.CUcontext) (*fill, Result) {
	c, res := p.contextFor(call, ctx)
	if res != success {
		return nil, res
	}
	return p.newFill(c, *m)
}

// GraphAddMemsetNode is cuGraphAddMemsetNode.
func (p *Process) GraphAddMemsetNode(call *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, m *wire.CUDA_MEMSET_NODE_PARAMS, ctx wire.CUcontext) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) { return p.fillNode(call, m, ctx) })
}

// GraphMemsetNodeGetParams is cuGraphMemsetNodeGetParams.
func (p *Process) GraphMemsetNodeGetParams(_ *wire.Call, h wire.CUgraphNode) (wire.CUDA_MEMSET_NODE_PARAMS, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*fill](p, h)
	if res != success {
		return wire.CUDA_MEMSET_NODE_PARAMS{}, res
	}
	return o.params, success
}

// GraphMemsetNodeSetParams is cuGraphMemsetNodeSetParams.
func (p *Process) GraphMemsetNodeSetParams(_ *wire.Call, h wire.CUgraphNode, m *wire.CUDA_MEMSET_NODE_PARAMS) wire.CUresult {
	defer p.lock()()
	n, old, res := opOf[*fill](p, h)
	if res != success {
		return res
	}
	return n.setOp(p.newFill(old.ctx, *m))
}

// GraphExecMemsetNodeSetParams is cuGraphExecMemsetNodeSetParams.
func (p *Process) GraphExecMemsetNodeSetParams(call *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, m *wire.CUDA_MEMSET_NODE_PARAMS, ctx wire.CUcontext) wire.CUresult {
	defer p.lock()()
	n, _, res := execOpOf[*fill](p, hx, h)
	if res != success {
		return res
	}
	return n.setOp(p.fillNode(call, m, ctx))
}

// hostNode makes the op of a host function's node.
func hostNode(params *wire.CUDA_HOST_NODE_PARAMS) (op, Result) {
	if params.Fn == 0 {
		return nil, errInvalidValue
	}
	return &hostFn{params: *params}, success
}

// GraphAddHostNode is cuGraphAddHostNode.
func (p *Process) GraphAddHostNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, params *wire.CUDA_HOST_NODE_PARAMS) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) { return hostNode(params) })
}

// GraphHostNodeGetParams is cuGraphHostNodeGetParams.
func (p *Process) GraphHostNodeGetParams(_ *wire.Call, h wire.CUgraphNode) (wire.CUDA_HOST_NODE_PARAMS, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*hostFn](p, h)
	if res != success {
		return wire.CUDA_HOST_NODE_PARAMS{}, res
	}
	return o.params, success
}

// GraphHostNodeSetParams is cuGraphHostNodeSetParams.
func (p *Process) GraphHostNodeSetParams(_ *wire.Call, h wire.CUgraphNode, params *wire.CUDA_HOST_NODE_PARAMS) wire.CUresult {
	defer p.lock()()
	n, _, res := opOf[*hostFn](p, h)
	if res != success {
		return res
	}
	return n.setOp(hostNode(params))
}

// GraphExecHostNodeSetParams is cuGraphExecHostNodeSetParams.
func (p *Process) GraphExecHostNodeSetParams(_ *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, params *wire.CUDA_HOST_NODE_PARAMS) wire.CUresult {
	defer p.lock()()
	n, _, res := execOpOf[*hostFn](p, hx, h)
	if res != success {
		return res
	}
	return n.setOp(hostNode(params))
}
