package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// GraphAddChildGraphNode is cuGraphAddChildGraphNode: the node has a copy of the graph.
func (p *Process) GraphAddChildGraphNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, hc wire.CUgraph) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	c := lookup[graph](&p.handles, uint64(hc))
	if c == nil || uint64(h) == uint64(hc) {
		return 0, errInvalidValue
	}
	return p.addNode(h, deps, func() (op, Result) { return &child{c.clone(true)}, success })
}

// GraphChildGraphNodeGetGraph is cuGraphChildGraphNodeGetGraph.
func (p *Process) GraphChildGraphNodeGetGraph(_ *wire.Call, h wire.CUgraphNode) (wire.CUgraph, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*child](p, h)
	if res != success {
		return 0, res
	}
	return wire.CUgraph(o.graph.handle), success
}

// GraphExecChildGraphNodeSetParams is cuGraphExecChildGraphNodeSetParams: the shape must be the same.
func (p *Process) GraphExecChildGraphNodeSetParams(_ *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, hc wire.CUgraph) wire.CUresult {
	defer p.lock()()
	_, o, res := execOpOf[*child](p, hx, h)
	if res != success {
		return res
	}
	c := lookup[graph](&p.handles, uint64(hc))
	if c == nil {
		return errInvalidValue
	}
	pairs, info := match(o.graph, c, nil)
	if info.Result != wire.CU_GRAPH_EXEC_UPDATE_SUCCESS {
		return errGraphExecUpdate
	}
	for _, pr := range pairs {
		pr[0].op = pr[1].op
	}
	return success
}

// GraphAddEmptyNode is cuGraphAddEmptyNode.
func (p *Process) GraphAddEmptyNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) { return empty{}, success })
}

// eventOf finds an event for a node.
func (p *Process) eventOf(h wire.CUevent) (*event, Result) {
	e := lookup[event](&p.handles, uint64(h))
	if e == nil {
		return nil, errInvalidValue
	}
	return e, success
}

// GraphAddEventRecordNode is cuGraphAddEventRecordNode.
func (p *Process) GraphAddEventRecordNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, ev wire.CUevent) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) {
		e, res := p.eventOf(ev)
		if res != success {
			return nil, res
		}
		return record{e.point}, success
	})
}

// GraphAddEventWaitNode is cuGraphAddEventWaitNode.
func (p *Process) GraphAddEventWaitNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, ev wire.CUevent) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) {
		e, res := p.eventOf(ev)
		if res != success {
			return nil, res
		}
		return waitPoint{e.point}, success
	})
}

// eventAt finds the event of the program's that has a point.
func (p *Process) eventAt(pt *point) wire.CUevent {
	for h, o := range p.handles.objects {
		if e, ok := o.(*event); ok && e.point == pt {
			return wire.CUevent(h)
		}
	}
	return 0
}

// GraphEventRecordNodeGetEvent is cuGraphEventRecordNodeGetEvent.
func (p *Process) GraphEventRecordNodeGetEvent(_ *wire.Call, h wire.CUgraphNode) (wire.CUevent, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[record](p, h)
	if res != success {
		return 0, res
	}
	return p.eventAt(o.point), success
}

// GraphEventWaitNodeGetEvent is cuGraphEventWaitNodeGetEvent.
func (p *Process) GraphEventWaitNodeGetEvent(_ *wire.Call, h wire.CUgraphNode) (wire.CUevent, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[waitPoint](p, h)
	if res != success {
		return 0, res
	}
	return p.eventAt(o.point), success
}

// setEvent gives an event node another event.
func (p *Process) setEvent(n *node, res Result, ev wire.CUevent, make func(*point) op) Result {
	if res != success {
		return res
	}
	e, res := p.eventOf(ev)
	if res == success {
		n.op = make(e.point)
	}
	return res
}

// GraphEventRecordNodeSetEvent is cuGraphEventRecordNodeSetEvent.
func (p *Process) GraphEventRecordNodeSetEvent(_ *wire.Call, h wire.CUgraphNode, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	n, _, res := opOf[record](p, h)
	return p.setEvent(n, res, ev, func(pt *point) op { return record{pt} })
}

// GraphExecEventRecordNodeSetEvent is cuGraphExecEventRecordNodeSetEvent.
func (p *Process) GraphExecEventRecordNodeSetEvent(_ *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	n, _, res := execOpOf[record](p, hx, h)
	return p.setEvent(n, res, ev, func(pt *point) op { return record{pt} })
}

// GraphEventWaitNodeSetEvent is cuGraphEventWaitNodeSetEvent.
func (p *Process) GraphEventWaitNodeSetEvent(_ *wire.Call, h wire.CUgraphNode, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	n, _, res := opOf[waitPoint](p, h)
	return p.setEvent(n, res, ev, func(pt *point) op { return waitPoint{pt} })
}

// GraphExecEventWaitNodeSetEvent is cuGraphExecEventWaitNodeSetEvent.
func (p *Process) GraphExecEventWaitNodeSetEvent(_ *wire.Call, hx wire.CUgraphExec, h wire.CUgraphNode, ev wire.CUevent) wire.CUresult {
	defer p.lock()()
	n, _, res := execOpOf[waitPoint](p, hx, h)
	return p.setEvent(n, res, ev, func(pt *point) op { return waitPoint{pt} })
}

// GraphAddMemAllocNode is cuGraphAddMemAllocNode: the address is known now, the memory is there when the graph runs.
func (p *Process) GraphAddMemAllocNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, props *wire.CUmemPoolProps, _ []wire.CUmemAccessDesc, size uint64) (wire.CUgraphNode, wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	g, nodes, res := p.graph(h, deps)
	if res != success {
		return 0, 0, res
	}
	if size == 0 || props.AllocType != wire.CU_MEM_ALLOCATION_TYPE_PINNED || props.Location.Type != wire.CU_MEM_LOCATION_TYPE_DEVICE || g.parent != nil {
		return 0, 0, errInvalidValue
	}
	d, res := p.device(wire.CUdevice(props.Location.Id))
	if res != success {
		return 0, 0, res
	}
	n, res := g.addAlloc(d, size, *props, nodes)
	if res != success {
		return 0, 0, res
	}
	return wire.CUgraphNode(n.handle), wire.CUdeviceptr(n.op.(*allocNode).addr), success
}

// GraphMemAllocNodeGetParams is cuGraphMemAllocNodeGetParams.
func (p *Process) GraphMemAllocNodeGetParams(_ *wire.Call, h wire.CUgraphNode) (wire.CUmemPoolProps, uint64, wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*allocNode](p, h)
	if res != success {
		return wire.CUmemPoolProps{}, 0, 0, res
	}
	return o.props, o.size, wire.CUdeviceptr(o.addr), success
}

// GraphAddMemFreeNode is cuGraphAddMemFreeNode.
func (p *Process) GraphAddMemFreeNode(_ *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, ptr wire.CUdeviceptr) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) {
		from := p.graphMemory[uint64(ptr)]
		if from == nil {
			return nil, errInvalidValue
		}
		return &freeNode{p: p, addr: uint64(ptr), from: from}, success
	})
}

// GraphMemFreeNodeGetParams is cuGraphMemFreeNodeGetParams.
func (p *Process) GraphMemFreeNodeGetParams(_ *wire.Call, h wire.CUgraphNode) (wire.CUdeviceptr, wire.CUresult) {
	defer p.lock()()
	_, o, res := opOf[*freeNode](p, h)
	if res != success {
		return 0, res
	}
	return wire.CUdeviceptr(o.addr), success
}

// GraphAddBatchMemOpNode is cuGraphAddBatchMemOpNode.
func (p *Process) GraphAddBatchMemOpNode(call *wire.Call, h wire.CUgraph, deps []wire.CUgraphNode, ctx wire.CUcontext, list []wire.CUstreamBatchMemOpParams, flags uint32) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	return p.addNode(h, deps, func() (op, Result) {
		c, res := p.contextFor(call, ctx)
		if res != success {
			return nil, res
		}
		return p.memops(c, list, flags)
	})
}
